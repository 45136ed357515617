"""Memory of a consumer process while Cosmos DB refuses everything: 100 % 429, and a hub that is full.

    python -m benchmarks.consumer_memory --minutes 5
    python -m benchmarks.consumer_memory --table

Every second its resident memory is sampled. After the warm-up (a tenth of the time, at least 15 s) the slope must be
next to nothing. Then the throttling ends, and everything must be written.

With `--table`: the most that a consumer takes beside `CONSUMER_HIGH_BYTES`, for events of three sizes in 1, 8 and 32
partitions, while every write is refused from the first second, and while none is answered. Ten minutes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Annotated

import psutil  # type: ignore[import-untyped]
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.consumer.ours import settings
from benchmarks.consumer.world import World, append, running_world
from devstack.processes.child import ChildProcess

FLAT = 1.0
"""MB per minute that count as flat: of 5 minutes of throttling an hour's worth is 60 MB."""
CONSTANT = 300.0
"""MB: what docs/guarantees.md says is taken beside CONSUMER_HIGH_BYTES."""
HIGH_BYTES = 64_000_000
SIZES = {"100 B": 100, "10 kB": 10_000, "1 MB": 1_000_000}
HUB_PARTITIONS = (1, 8, 32)
CELL_SECONDS = 25.0
MOST_EVENTS = 80_000
SILENT = {"where": "op.upsert.*", "kind": "latency", "count": None, "seconds": 3600.0}
REFUSED = {"where": "op.upsert.*", "kind": "error", "count": None, "status": 429, "retry_after": 0.1}


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """MB per minute, by least squares."""
    times, sizes = zip(*samples, strict=True)
    return 60.0 * statistics.linear_regression(times, sizes).slope


def sample(child: ChildProcess, seconds: float) -> list[tuple[float, float]]:
    """(seconds, MB) for so long."""
    process = psutil.Process(child.pid)
    began = time.monotonic()
    samples: list[tuple[float, float]] = []
    while (now := time.monotonic() - began) < seconds:
        if not child.running:
            raise SystemExit(f"the consumer ended:\n{child.output_tail(5)}")
        samples.append((now, process.memory_info().rss / 1e6))
        time.sleep(1.0)
    return samples


def fault(world: World, method: str, which: Mapping[str, object] = REFUSED) -> None:
    request = urllib.request.Request(
        f"{world.cosmos.rstrip('/')}/faults", json.dumps(dict(which)).encode(), method=method
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


def ranges(world: World) -> list[dict[str, float]]:
    with urllib.request.urlopen(f"{world.cosmos.rstrip('/')}/stats") as answer:
        return list(json.load(answer)["ranges"].values())


def refused(world: World) -> int:
    return int(sum(key_range["throttled"] for key_range in ranges(world)))


def spent(world: World) -> float:
    """Request units: what is refused here costs none."""
    return sum(key_range["request_units"] for key_range in ranges(world))


def recover(world: World, child: ChildProcess, within: float) -> float:
    """Ends the throttling; seconds until nothing more is written."""
    before = spent(world)
    fault(world, "DELETE")
    began = time.monotonic()
    last, changed = before, began
    while time.monotonic() - changed < 5.0 or last == before:
        if time.monotonic() - began > within or not child.running:
            raise SystemExit(f"not everything was written:\n{child.output_tail(5)}")
        time.sleep(0.25)
        now = spent(world)
        if now != last:
            last, changed = now, time.monotonic()
    return changed - began


def report(samples: Sequence[tuple[float, float]], warm: float) -> bool:
    """Prints the curve; whether it is flat."""
    table = Table(title="Resident memory of the consumer while every write is refused")
    table.add_column("seconds", justify="right")
    table.add_column("MB", justify="right")
    step = max(1, len(samples) // 15)
    for at, size in samples[::step]:
        table.add_row(f"{at:.0f}", f"{size:.1f}")
    steady = [(at, size) for at, size in samples if at >= warm]
    sizes = [size for _, size in steady]
    growth = slope(steady)
    console = Console()
    console.print(table)
    console.print(
        f"After {warm:.0f} s: {min(sizes):.1f} to {max(sizes):.1f} MB, slope {growth:+.2f} MB per minute "
        f"(flat: below {FLAT:g})."
    )
    return growth < FLAT


def fill_hub(world: World, hub: str, partitions: int, size: int) -> None:
    """Three times what the consumer may hold, by bytes or by number."""
    count = max(partitions, min(MOST_EVENTS, 3 * HIGH_BYTES // size))
    at_once = max(1, 800_000 // (size + 100))
    for partition in range(partitions):
        mine = range(partition, count, partitions)
        for start in range(0, len(mine), at_once):
            append(world, hub, partition, [_event(number, size) for number in mine[start : start + at_once]])


def _event(number: int, size: int) -> bytes:
    body = {"id": str(number), "device": f"device-{number % 100}", "note": ""}
    return json.dumps({**body, "note": "n" * (size - len(json.dumps(body)))}).encode()


def most_beside(world: World, hub: str, seconds: float) -> float:
    """MB that the consumer takes at most, without those it may hold."""
    with TemporaryDirectory() as folder:
        names = {**settings(world), "EVENTHUB_NAME": hub, "CONSUMER_HIGH_BYTES": str(HIGH_BYTES)}
        child = ChildProcess("consumer", [sys.executable, "-m", "consumer", "--root", folder], env=names)
        child.start()
        try:
            return max(size for _, size in sample(child, seconds)) - HIGH_BYTES / 1e6
        finally:
            child.kill()


def fill_table(seconds: float = CELL_SECONDS) -> bool:
    """Prints the table; whether every cell is below the constant."""
    table = Table(title="MB beside CONSUMER_HIGH_BYTES, at most")
    for column in ("events", "partitions", "refused", "silent"):
        table.add_column(column, justify="right")
    hubs = {f"hub-{size}-{n}": n for size in SIZES.values() for n in HUB_PARTITIONS}
    highest = 0.0
    with running_world(0, hubs=hubs) as world:
        for name, size in SIZES.items():
            for partitions in HUB_PARTITIONS:
                hub = f"hub-{size}-{partitions}"
                fill_hub(world, hub, partitions, size)
                cells = []
                for which in (REFUSED, SILENT):
                    fault(world, "POST", which)
                    cells.append(most_beside(world, hub, seconds))
                    fault(world, "DELETE")
                highest = max(highest, *cells)
                table.add_row(name, str(partitions), *(f"{cell:.0f}" for cell in cells))
                Console().print(name, partitions, *(f"{cell:.0f}" for cell in cells))
    Console().print(table)
    Console().print(f"The most is {highest:.0f} MB (stated: {CONSTANT:.0f}).")
    return highest < CONSTANT


def main(
    *,
    minutes: Annotated[float, typer.Option(min=0.5)] = 5.0,
    records: Annotated[int, typer.Option(min=1_000, help="In the hub; 50,000 fill the consumer.")] = 100_000,
    table: Annotated[
        bool, typer.Option("--table", help="By size of events and number of partitions.")
    ] = False,
) -> None:
    """Exit status 1 if memory grows, or is above the constant."""
    if table:
        raise SystemExit(0 if fill_table() else 1)
    seconds = 60.0 * minutes
    warm = max(15.0, seconds / 10)
    with running_world(records) as world, TemporaryDirectory() as folder:
        fault(world, "POST")
        consume = [sys.executable, "-m", "consumer", "--root", folder]  # no local.settings.json there
        child = ChildProcess("consumer", consume, env=settings(world))
        child.start()
        try:
            flat = report(sample(child, seconds), warm)
            print(f"{refused(world):,} operations were refused meanwhile.")
            print(f"Then {records:,} records were written within {recover(world, child, 300.0):.0f} s.")
        finally:
            child.stop(grace_s=30.0)
    raise SystemExit(0 if flat else 1)


if __name__ == "__main__":
    typer.run(main)
