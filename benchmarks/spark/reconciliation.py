"""The whole reconciliation of a hub's capture files, beside the same of an older commit: read, judged, tables and page.

    python -m benchmarks.spark.reconciliation [--events 20000000] [--rounds 1] [--against COMMIT] [--identity meta] [--cache DIR]

Eight partitions, each a capture file of events of 200 bytes and a second one that holds its last thousand again. A table of
Parquet files takes the place of the container, because no local Cosmos DB holds so many documents; dead letters and
checkpoints are given, too. Everything else is the job as it ships. Planted are events without a document, with two, with
a dead letter, with both, beyond the checkpoint, in two files, and sequence numbers that are nowhere: the job must
find exactly these. `--against` makes a work tree of that commit in a temporary folder and runs the same there, in the
same Python. Each run is a process of its own; CPU seconds are user and system time of its whole tree, the start of Python and
Java included. `load` is the mean number of runnable tasks in the minute before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from benchmarks.spark.usage import cpu_seconds, peak_megabytes

HUB = "flights"
PARTITIONS = 8
PER_SECOND = 1000  # events of a partition: as many as a throughput unit takes in
START = datetime(2026, 11, 21, 8, tzinfo=UTC)
FIRST = 2_000_000  # sequence number: as many bytes in Avro as all after it
GAP = 3
BEYOND = 500  # events behind each checkpoint
CONTAINER_FILES = 16  # as feed ranges: documents lie there by a hash of their keys
TIME = pa.timestamp("us", "UTC")
IDENTITIES = {
    "position": {"CONSUMER_ID": "position"},
    "meta": {"CONSUMER_ID": "field:id", "CONSUMER_META": "true"},
}


# -- what is planted: by the place of an event in its partition


def numbers(count: int) -> Any:
    """Sequence numbers of a partition; in the middle some are left out."""
    place = np.arange(count)
    return FIRST + place + GAP * (place >= count // 2)


def planted(count: int) -> dict[str, Any]:
    place = np.arange(count)
    beyond = place >= count - BEYOND
    lost = (place % 10_000 == 17) & ~beyond
    kept = lost & (place // 10_000 % 4 == 3)  # as a dead letter
    return {
        "documents": ~lost & ~beyond,
        "twice": (place % 50_000 == 29) & ~beyond,
        "letters": kept | ((place % 100_000 == 41) & ~beyond),
        "lost": lost & ~kept,
        "dead_lettered": kept,
        "pending": beyond,
    }


def expected(count: int) -> dict[str, int]:
    made = {name: int(where.sum()) * PARTITIONS for name, where in planted(count).items()}
    both = made["letters"] - made["dead_lettered"]
    counts = {
        "written": made["documents"],
        **{name: made[name] for name in ("dead_lettered", "lost", "pending")},
        "duplicates": both + made["twice"],
        "copies": ((count - 1) % PER_SECOND + 1) * PARTITIONS,
        "missing": GAP * PARTITIONS,
    }
    return {name: number for name, number in counts.items() if number}


# -- files


def generate(folder: Path, count: int) -> None:
    for partition in range(PARTITIONS):
        write_capture(folder / "capture", partition, count)
    write_documents(folder / "documents", count)
    write_letters(folder / "letters", count)


def digits(values: Any, width: int) -> Any:
    """The decimal digits of numbers as bytes, a row each."""
    return (values[:, None] // 10 ** np.arange(width)[::-1] % 10 + ord("0")).astype(np.uint8)


def write_capture(root: Path, partition: int, count: int) -> None:
    """Blocks of a second each, made of columns: fastavro would take an hour for 20 million records."""
    from io import BytesIO

    import fastavro

    from devstack.event_hubs.storage.capture import SCHEMA

    head = BytesIO()
    fastavro.writer(head, SCHEMA, [], sync_marker=bytes(range(16)))
    sequence = numbers(count)
    folder = root / f"ns/{HUB}/{partition}/2026/11/21"
    for hour in ("08", "09"):
        (folder / hour / "00").mkdir(parents=True)
    with (folder / "08/00/00.avro").open("wb") as file, (folder / "09/00/00.avro").open("wb") as again:
        for target in (file, again):
            target.write(head.getvalue())
        for begin in range(0, count, PER_SECOND):
            block = block_of(partition, sequence[begin : begin + PER_SECOND], begin)
            file.write(block)
        again.write(block)


def block_of(partition: int, sequence: Any, begin: int) -> bytes:
    at = START + timedelta(seconds=begin // PER_SECOND)
    text = f"{at.month}/{at.day}/{at.year} {at.hour % 12 or 12}:{at:%M:%S} {at:%p}".encode()
    size = len(sequence)
    zigzag = 2 * sequence
    number = np.stack([zigzag >> (7 * n) & 127 | (128 if n < 3 else 0) for n in range(4)], 1).astype(np.uint8)

    def same(data: bytes) -> Any:
        return np.broadcast_to(np.frombuffer(data, np.uint8), (size, len(data)))

    body = f'{{"id": "{partition}-', '", "pad": "' + "x" * 164 + '"}'
    record = np.concatenate(
        [
            *(number, same(bytes([24])), digits(sequence * 260, 12)),
            same(bytes([2 * len(text)]) + text + bytes([0, 0, 2])),
            same(varint(len(body[0]) + 12 + len(body[1])) + body[0].encode()),
            *(digits(sequence, 12), same(body[1].encode())),
        ],
        axis=1,
    ).tobytes()
    return varint(size) + varint(len(record)) + record + bytes(range(16))


def varint(value: int) -> bytes:
    zigzag, encoded = 2 * value, bytearray()
    while zigzag > 127:
        encoded.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*encoded, zigzag])


def write_documents(root: Path, count: int) -> None:
    """As Cosmos DB gives them: each file holds all partitions, in about the order in which they were written."""
    made, sequence = planted(count), numbers(count)
    schema = pa.schema(
        [("position", pa.string()), ("meta", pa.string()), ("modified_at", TIME), ("fields", pa.string())]
    )
    root.mkdir(parents=True)
    files = [parquet.ParquetWriter(root / f"{n:02d}.parquet", schema) for n in range(CONTAINER_FILES)]
    step = 1 << 17
    for begin in range(0, count, step):
        places = np.arange(begin, min(begin + step, count))
        places = np.concatenate([places[made["documents"][places]], places[made["twice"][places]]])
        for partition in range(PARTITIONS):
            texts = sequence[places].astype("U12")
            seconds = START.timestamp() + places // PER_SECOND
            fields = np.char.add(f'{{"partition": "{partition}", "sequence_number": ', texts)
            fields = np.char.add(
                np.char.add(fields, ', "enqueued_at": '), seconds.astype(np.int64).astype("U12")
            )
            ids = np.char.zfill(texts, 12)
            second = np.arange(len(places)) >= made["documents"][begin : begin + step].sum()
            table = pa.table(
                [
                    np.char.add(f"{HUB}~{partition}~", texts),
                    np.where(
                        second,
                        np.char.add(f"{partition}-", np.char.add(ids, "-again")),
                        np.char.add(f"{partition}-", ids),
                    ),
                    pa.array(((seconds + 2) * 1e6).astype(np.int64), TIME),
                    np.char.add(fields, "}"),
                ],
                schema=schema,
            )
            file = (sequence[places] * 2_654_435_761 >> 16) % CONTAINER_FILES
            for number, writer in enumerate(files):
                writer.write_table(table.filter(pa.array(file == number)))
    for writer in files:
        writer.close()


def write_letters(root: Path, count: int) -> None:
    places = np.flatnonzero(planted(count)["letters"])
    sequence = numbers(count)[places]
    root.mkdir(parents=True)
    times = pa.array(((START.timestamp() + places // PER_SECOND) * 1e6).astype(np.int64), TIME)
    for partition in range(PARTITIONS):
        columns = {
            "partition": pa.array([str(partition)] * len(sequence)),
            "sequence_number": sequence,
            "enqueued_at": times,
            "reason": pa.array(["json"] * len(sequence)),
            "failed_at": times,
        }
        parquet.write_table(pa.table(columns), root / f"{partition}.parquet")


# -- the cell: the job, in the tree of any commit


@contextmanager
def given_sides(data: Path, count: int, identity: str) -> Iterator[None]:
    """The job with tables of files for what would be read from Cosmos DB and blob storage."""
    from pyspark.sql import functions as F

    from consumer.model import Checkpoint
    from spark_jobs.reconciliation import extract

    def documents(spark: Any, _options: Any) -> Any:
        key = F.lit('["x"]') if identity == "position" else F.concat(F.lit('["'), "meta", F.lit('"]'))
        fields = F.lit("{}") if identity == "position" else F.col("fields")
        table = spark.read.parquet(str(data / "documents"))
        return table.select(
            F.col(identity).alias("id"), key.alias("partition_key"), "modified_at", fields.alias("fields")
        )

    mark = int(numbers(count)[-BEYOND - 1])
    marks = {str(partition): Checkpoint(str(partition), mark, "") for partition in range(PARTITIONS)}
    replaced = {
        "read_documents": documents,
        "read_dead_letters": lambda spark, *_: spark.read.parquet(str(data / "letters")),
        "read_checkpoints": lambda *_: marks,
        "partition_key_paths": lambda _: ("/id",),
    }
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch.object(extract, name, value))
        yield


def run_cell(data: Path, result: Path, count: int, identity: str, cores: int) -> None:
    from spark_jobs.reconciliation.job import Settings, run
    from spark_jobs.sources.registration import spark_session

    load, begun = os.getloadavg()[0], time.perf_counter()
    consumer = {
        "EventHubConnection": "Endpoint=sb://hub.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
        "EVENTHUB_NAME": HUB,
        "CosmosConnection": "AccountEndpoint=https://localhost:1/;AccountKey=AAAA",
        "COSMOS_DATABASE": "db",
        "COSMOS_CONTAINER": HUB,
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        **IDENTITIES[identity],
    }
    settings = Settings(consumer=consumer, capture=str(data / "capture"), output=str(result))
    with given_sides(data, count, identity):
        spark = spark_session("reconciliation", cores=cores, memory="4g")
        findings, _ = run(settings, spark)
        measured = {"cpu": cpu_seconds(), "mb": peak_megabytes()}
        spark.stop()
    counts = {status.value: number for status, number in findings.counts.items()}
    counts |= {
        "duplicates": findings.duplicates_total,
        "copies": findings.copies,
        "missing": findings.missing,
    }
    measured |= {"wall": time.perf_counter() - begun, "load": load}
    positive = {name: number for name, number in counts.items() if number}
    print(json.dumps({"measured": measured, "found": positive}))


def measure(tree: Path, data: Path, scratch: Path, count: int, given: argparse.Namespace) -> dict[str, float]:
    result = scratch / "result"
    shutil.rmtree(result, ignore_errors=True)  # of the run before
    # By its path, for an older commit may not have it; -P, for its folder holds other modules of common names.
    argv = [sys.executable, "-P", __file__, "--cell", "--cache", str(data), "--result", str(result)]
    argv += ["--events", str(given.events), "--identity", given.identity, "--cores", str(given.cores)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(argv, env=environment, cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["found"] == expected(count), (reported["found"], expected(count))
    measured: dict[str, float] = reported["measured"]
    return measured


# -- the comparison


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory(prefix="tidemark-against-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--identity", choices=IDENTITIES, default="position")
    parser.add_argument("--cache", type=Path, help="where the data is kept for the next run")
    parser.add_argument("--cores", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--cell", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    count = given.events // PARTITIONS
    if given.cell:
        run_cell(given.cache, given.result, count, given.identity, given.cores)
        return
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-reconciliation-")))
        data = (given.cache or scratch) / f"events-{given.events}"
        if not data.exists():
            staging = data.with_name(f".{data.name}")
            shutil.rmtree(staging, ignore_errors=True)
            generate(staging, count)
            staging.rename(data)
        trees = {"this": Path(__file__).parents[2]}
        if given.against:
            trees[given.against] = stack.enter_context(tree_of(given.against))
        compare(trees, data, scratch, count, given)


def compare(trees: dict[str, Path], data: Path, scratch: Path, count: int, given: argparse.Namespace) -> None:
    total = count * PARTITIONS
    print(f"{total:,} events in {PARTITIONS} partitions, ids by {given.identity}, {given.cores} cores")
    print(f"  {'':10}{'wall s':>9}{'CPU s':>9}{'events/s':>10}{'peak MB':>9}{'load':>7}")
    results: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(given.rounds):
        for name, tree in trees.items():
            results[name].append(measure(tree, data, scratch, count, given))
    middle = {
        name: {key: statistics.median(cell[key] for cell in cells) for key in cells[0]}
        for name, cells in results.items()
    }
    for name, cell in middle.items():
        print(
            f"  {name:10}{cell['wall']:9.1f}{cell['cpu']:9.1f}{total / cell['wall']:10,.0f}{cell['mb']:9,.0f}{cell['load']:7.1f}"
        )
    if given.against:
        this, other = middle["this"], middle[given.against]
        print(
            f"  {other['wall'] / this['wall']:.2f} times as fast, {other['cpu'] / this['cpu']:.2f} times less CPU"
        )
    print("  found is what was planted, each time")


if __name__ == "__main__":
    main()
