"""Memory of a consumer process while Cosmos DB refuses everything: 100 % 429, and a hub that is full.

    python -m benchmarks.consumer_memory --minutes 5

Every second its resident memory is sampled. After the warm-up (a tenth of the time, at least 15 s) the slope must be
next to nothing. Then the throttling ends, and everything must be written.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.consumer.ours import settings
from benchmarks.consumer.world import World, running_world
from devstack.processes.child import ChildProcess

FLAT = 1.0
"""MB per minute that count as flat: of 5 minutes of throttling an hour's worth is 60 MB."""
REFUSED = {"where": "op.upsert.*", "kind": "error", "count": None, "status": 429, "retry_after": 0.1}


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """MB per minute, by least squares."""
    times, sizes = zip(*samples, strict=True)
    return 60.0 * statistics.linear_regression(times, sizes).slope


def sample(child: ChildProcess, seconds: float) -> list[tuple[float, float]]:
    """(seconds, MB) for so long."""
    process = psutil.Process(child.pid)
    began = time.monotonic()
    found: list[tuple[float, float]] = []
    while (now := time.monotonic() - began) < seconds:
        if not child.running:
            raise SystemExit(f"the consumer ended:\n{child.output_tail(5)}")
        found.append((now, process.memory_info().rss / 1e6))
        time.sleep(1.0)
    return found


def fault(world: World, method: str) -> None:
    request = urllib.request.Request(
        f"{world.cosmos.rstrip('/')}/faults", json.dumps(REFUSED).encode(), method=method
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


def ranges(world: World) -> list[dict[str, float]]:
    with urllib.request.urlopen(f"{world.cosmos.rstrip('/')}/stats") as answer:
        return list(json.load(answer)["ranges"].values())


def refused(world: World) -> int:
    return int(sum(each["throttled"] for each in ranges(world)))


def spent(world: World) -> float:
    """Request units: what is refused here costs none."""
    return sum(each["request_units"] for each in ranges(world))


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
    found = slope(steady)
    console = Console()
    console.print(table)
    console.print(
        f"After {warm:.0f} s: {min(sizes):.1f} to {max(sizes):.1f} MB, slope {found:+.2f} MB per minute "
        f"(flat: below {FLAT:g})."
    )
    return found < FLAT


def main(
    minutes: Annotated[float, typer.Option(min=0.5)] = 5.0,
    records: Annotated[int, typer.Option(min=1_000, help="In the hub; 50,000 fill the consumer.")] = 100_000,
) -> None:
    """Exit status 1 if memory grows."""
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
