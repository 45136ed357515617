"""Rows per second of capture files, against bare fastavro on the same files in the same run.

    python -m benchmarks.spark.capture [--rows 2000000] [--runs 3] [--no-spark]

Bare fastavro is `for record in fastavro.reader(file)`: dictionaries that nobody looks at. The decoder makes Arrow batches
in one thread: all columns by fastavro, positions and times by itself. Spark reads the same files through `read_capture` into its `noop` sink, all columns or
those that a reconciliation needs. "ready batches" is the bound of whatever reads: its tasks map batches that were decoded
before into memory, and only hand them to Spark. Files of Event Hubs Capture have codec null; deflate, for other writers, is
the decoder's alone here.

"per core" compares CPU seconds, which a busy machine disturbs least; for Spark they are those of Java and Python together,
the work of reading only, after one run to warm up. "per core pair" is wall-clock time of two cores against one process of
fastavro: what is gained by using the source. The best of the runs counts.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from benchmarks.spark.usage import cpu_seconds, peak_megabytes
from devstack.event_hubs.storage.capture import SCHEMA
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.avro_events import decode_file
from spark_jobs.sources.capture.capture import read_capture
from spark_jobs.sources.columns.event_columns import EVENT_COLUMNS, Origin
from spark_jobs.sources.registration import spark_session

FILES = 8
PER_SECOND = 1000  # events of a partition: as many as a throughput unit takes in
BODY_BYTES = 200
NEEDED = ("hub", "partition", "sequence_number", "enqueued_at")  # by a reconciliation
COLUMNS = {"all columns": EVENT_COLUMNS, "needed columns": NEEDED}
START = datetime(2026, 11, 21, 8, tzinfo=UTC)


class Cost(NamedTuple):
    wall: float
    cpu: float


def events(count: int, *, properties: bool) -> Iterator[dict[str, Any]]:
    rng = random.Random(1)
    for number in range(count):
        at = START + timedelta(seconds=number // PER_SECOND)
        yield {
            "SequenceNumber": 1_000_000 + number,
            "Offset": str(number * 260),
            "EnqueuedTimeUtc": f"{at.month}/{at.day}/{at.year} {at.hour % 12 or 12}:{at:%M:%S} {at:%p}",
            "SystemProperties": {"x-opt-partition-key": f"device-{number % 100}"} if properties else {},
            "Properties": {"tenant": f"t{number % 7}", "attempt": number % 3, "ratio": rng.random()}
            if properties
            else {},
            "Body": rng.randbytes(BODY_BYTES // 2).hex().encode(),
        }


def write_files(root: Path, rows: int, codec: str, *, properties: bool) -> list[Path]:
    """One file of `rows` / FILES events, linked into as many places."""
    first = root / "first.avro"
    root.mkdir()
    with first.open("wb") as file:
        fastavro.writer(file, SCHEMA, events(rows // FILES, properties=properties), codec=codec)
    paths = [root / f"ns/hub/{index % 4}/2026/11/21/08/{index:02d}/00.avro" for index in range(FILES)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.hardlink_to(first)
    first.unlink()
    return paths


def bare_fastavro(paths: list[Path]) -> int:
    count = 0
    for path in paths:
        with path.open("rb") as file:
            for _ in fastavro.reader(file):
                count += 1
    return count


def decoder(paths: list[Path], columns: tuple[str, ...]) -> int:
    source = Origin("hub", "0", "ns/hub/0/2026/11/21/08/00/00.avro")
    return sum(
        batch.num_rows
        for path in paths
        for batch in decode_file(memoryview(path.read_bytes()), source, columns)
    )


def ready_batches(numbers: Iterable[pa.RecordBatch], base: str) -> Iterator[pa.RecordBatch]:
    """The batches of the files `base`.0, `base`.1, ..., by number."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from pa.ipc.open_stream(pa.memory_map(f"{base}.{number}"))


def write_ready(root: Path, paths: list[Path]) -> None:
    """What the decoder makes of one of the files, by the choice of columns, linked into as many places."""
    source = Origin("hub", "0", "ns/hub/0/2026/11/21/08/00/00.avro")
    for name, columns in COLUMNS.items():
        batches = list(decode_file(memoryview(paths[0].read_bytes()), source, columns))
        first = root.parent / f"{root.name} {name}.0"
        with pa.OSFile(str(first), "wb") as file, pa.ipc.new_stream(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        for number in range(1, FILES):
            first.with_suffix(f".{number}").hardlink_to(first)


def cost_of(work: Callable[[], object], runs: int) -> Cost:
    costs = []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), cpu_seconds()
        work()
        costs.append(Cost(time.perf_counter() - wall, cpu_seconds() - cpu))
    return Cost(min(cost.wall for cost in costs), min(cost.cpu for cost in costs))


def of_spark(root: Path, cores: int, runs: int) -> Iterator[tuple[str, Cost, float]]:
    """Per choice of columns its name, the cost, and the peak memory of all processes so far in megabytes."""
    spark = spark_session("capture", cores=cores, memory="2g")
    try:
        for name, columns in COLUMNS.items():
            writer = read_capture(spark, str(root), columns=columns).write.format("noop").mode("overwrite")
            writer.save()
            yield name, cost_of(writer.save, runs), peak_megabytes()
        for name, columns in COLUMNS.items():
            work = partial(ready_batches, base=str(root.parent / f"{root.name} {name}"))
            schema = StructType([EVENTS[column] for column in columns])
            writer = (
                spark.range(0, FILES, 1, FILES)
                .mapInArrow(work, schema)
                .write.format("noop")
                .mode("overwrite")
            )
            writer.save()
            yield f"ready batches, {name}", cost_of(writer.save, runs), peak_megabytes()
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true")
    given = parser.parse_args()
    rows = given.rows // FILES * FILES
    table = Table(title=f"{rows:,} captured events of {BODY_BYTES} bytes in {FILES} files")
    for name in ("files", "reader", "rows/s", "us CPU a row", "per core", "per core pair", "MB"):
        table.add_column(name, justify="left" if name in {"files", "reader"} else "right")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tidemark-capture-") as scratch:
        for codec in ("null", "deflate"):
            for properties in (False, True):
                label = f"{codec}, {'4 properties' if properties else 'no properties'}"
                console.print(f"{label}: writing files ...", style="dim")
                root = Path(scratch) / f"{codec}-{properties}"
                paths = write_files(root, rows, codec, properties=properties)
                console.print(f"{label}: reading ...", style="dim")
                measure(table, label, root, paths, rows, given)
    console.print(table)


def measure(
    table: Table, label: str, root: Path, paths: list[Path], rows: int, given: argparse.Namespace
) -> None:
    assert bare_fastavro(paths[:1]) * FILES == decoder(paths[:1], EVENT_COLUMNS) * FILES == rows
    peer = cost_of(lambda: bare_fastavro(paths), given.runs)

    def line(reader: str, cost: Cost, *, pair: bool, megabytes: float | None = None) -> None:
        table.add_row(
            label,
            reader,
            f"{rows / cost.wall:,.0f}",
            f"{cost.cpu / rows * 1e6:.2f}",
            f"{peer.cpu / cost.cpu:.1f}",
            f"{peer.wall / cost.wall:.1f}" if pair else "",
            "" if megabytes is None else f"{megabytes:,.0f}",
        )

    line("bare fastavro", peer, pair=False)
    for name, columns in COLUMNS.items():
        line(f"decoder, {name}", cost_of(lambda c=columns: decoder(paths, c), given.runs), pair=False)  # type: ignore[misc]
    if given.no_spark or not label.startswith("null"):  # Event Hubs Capture writes with codec null
        return
    write_ready(root, paths)
    for cores in (1, 2):
        for name, cost, megabytes in of_spark(root, cores, given.runs):
            reader = f"Spark, {cores} core{'s' * (cores > 1)}, {name}"
            line(reader, cost, pair=cores == 2, megabytes=megabytes)


if __name__ == "__main__":
    main()
