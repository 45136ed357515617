"""Runs the cells in turns, several rounds on the same servers, and prints the table.

python -m benchmarks.consumer --rounds 3
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import psutil  # type: ignore[import-untyped]
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.consumer.cell import CELLS
from benchmarks.consumer.meter import Measured
from benchmarks.consumer.ours import SINK_RECORDS
from benchmarks.consumer.world import CONTAINER, DATABASE, World, document, remove_containers, running_world
from consumer.mapping.partition_hash import hash_key
from devstack.cosmos.server import DEFAULT_KEY
from devstack.processes.node import ensure_node, ensure_packages

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
JAVASCRIPT = {"(d) JavaScript items.bulk": "bulk", "(d) JavaScript executeBulkOperations": "execute"}

Rounds = dict[str, list[Measured]]

# Ours, the peer, and the target: the peer's CPU per record over ours.
TARGETS = [
    ("ours", "(a) upsert, one by one", 25.0),
    ("ours", "(a) tuned client", None),
    ("ours", "(b) 128 upserts at once", 10.0),
    ("ours", "(b) tuned client", None),
    ("ours", "(c) batch per logical partition", 3.0),
    ("ours: sink alone", "(d) JavaScript items.bulk", 1.0),
    ("ours: sink alone", "(d) JavaScript executeBulkOperations", 1.0),
    ("ours: driver and sink", "(d) JavaScript items.bulk", None),
    ("ours: receiving", "bare client, our prefetch", 0.8),
    ("ours: receiving", "bare client, defaults", 0.8),
    ("ours: two processes, without their starts", "ours: one process, without its start", 0.9),
]
RATE_TARGET = 30_000


def python_cell(name: str, world: World) -> Measured:
    order = [sys.executable, "-m", "benchmarks.consumer.cell", name, msgspec.json.encode(world).decode()]
    return _result(order, {})


def javascript_cell(how: str, world: World, documents: Path) -> Measured:
    node = ensure_node()
    sdk = ensure_packages(node) / "@azure" / "cosmos"
    order = [
        str(node),
        str(HERE / "bulk.cjs"),
        how,
        world.cosmos,
        DEFAULT_KEY,
        DATABASE,
        CONTAINER,
        str(documents),
    ]
    return _result(order, {"COSMOS_SDK": str(sdk)})


def _place(document: dict[str, object]) -> str:
    """Together what goes to one physical partition: so a call of items.bulk becomes one request of 100 operations,
    not ten of ten. The favour is ours; its user would not know.
    """
    return hash_key([str(document["device"])])


def _result(order: list[str], environment: dict[str, str]) -> Measured:
    done = subprocess.run(
        order,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{order[1:4]} failed:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)


def measure(records: int, rounds: int, only: str) -> tuple[Rounds, float]:
    """Every cell once per round, and how busy the machine was with anything else, as a share of its cores."""
    results: Rounds = {}
    with running_world(records) as world, TemporaryDirectory() as folder:
        documents = Path(folder) / "documents.json"
        documents.write_bytes(msgspec.json.encode(sorted(map(document, range(SINK_RECORDS)), key=_place)))
        began, busy = time.perf_counter(), _busy()
        process = psutil.Process()
        mine = _family(process)
        for number in range(rounds):
            for name in (*CELLS, *JAVASCRIPT):
                if only not in name:
                    continue
                print(f"round {number + 1} of {rounds}: {name:40}", end="\r", file=sys.stderr)
                remove_containers(world)
                how = JAVASCRIPT.get(name)
                result = javascript_cell(how, world, documents) if how else python_cell(name, world)
                results.setdefault(name, []).append(result)
        others = _busy() - busy - (_family(process) - mine)
        return results, others / (time.perf_counter() - began) / (os.cpu_count() or 1)


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def _family(process: psutil.Process) -> float:
    """CPU seconds of this process and all its children, the ended ones too."""
    times = process.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        total += child.cpu_times().user + child.cpu_times().system
    return float(total)


def report(rounds: Rounds, others: float) -> None:
    console = Console(width=120)
    table = Table(title="1 KB records; CPU of the client's process")
    for heading in ("cell", "records", "us CPU best", "median", "worst", "per CPU second", "per second"):
        table.add_column(heading, justify="left" if heading == "cell" else "right")
    for name, results in rounds.items():
        costs = sorted(1e6 * result.cpu / result.records for result in results)
        median = statistics.median(costs)
        rate = statistics.median(result.records / result.wall for result in results)
        cells = [f"{results[0].records:,}", *(f"{cost:.1f}" for cost in (costs[0], median, costs[-1]))]
        table.add_row(name, *cells, f"{1e6 / median:,.0f}", f"{rate:,.0f}")
    console.print(table)
    table = Table(title="Ratios of CPU per record, peer over ours: by medians, and best against best")
    for heading in ("ours", "peer", "medians", "bests", "target", "met"):
        table.add_column(heading, justify="left" if heading in {"ours", "peer"} else "right")
    for ours, peer, target in TARGETS:
        if ours not in rounds or peer not in rounds:
            continue
        median, best = (
            kind(run.cpu / run.records for run in rounds[peer])
            / kind(run.cpu / run.records for run in rounds[ours])
            for kind in (statistics.median, min)
        )
        met = "" if target is None else ("yes" if median >= target else "no")
        table.add_row(
            ours, peer, f"{median:.2f}", f"{best:.2f}", "" if target is None else f"{target:g}", met
        )
    console.print(table)
    if "ours" in rounds:
        rate = 1 / statistics.median(run.cpu / run.records for run in rounds["ours"])
        met = "met" if rate >= RATE_TARGET else "missed"
        console.print(f"End to end: {rate:,.0f} records per second and core (target {RATE_TARGET:,}: {met}).")
    console.print(f"Other processes took {others:.0%} of the machine's {os.cpu_count()} cores meanwhile.")


def main(
    records: Annotated[int, typer.Option(min=1_000, help="In the hub.")] = 60_000,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[str, typer.Option(help="Cells whose name contains this.")] = "",
) -> None:
    """Prints CPU per record of the consumer and of its peers, and the ratios."""
    report(*measure(records, rounds, only))


if __name__ == "__main__":
    typer.run(main)
