"""Autoscalers on real load: `python -m benchmarks autoscaling`, or by itself with options.

    python -m benchmarks.autoscaling [--traces DIR] [--only TEXT] [--conditions] [--out DIR]

Every policy replays every trace; a table tells instance-hours as a ratio to the clairvoyant lower bound, late messages,
actions and flaps; a plot draws cost against lateness. `--conditions` adds rows for service_level that sees less of the world.
Other worlds, senses and objectives: `python -m benchmarks.autoscaling.grid`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from math import ceil, exp, log
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.autoscaling import bound, traces, worlds
from benchmarks.autoscaling.field import CONDITIONS, FIELD
from benchmarks.autoscaling.plot import draw
from tidemark.analysis.simulation import world


@dataclass(frozen=True)
class Row:
    """One policy on one trace."""

    policy: str
    trace: str
    apart: bool
    cost: float
    late: float
    actions: float
    flaps: float


@dataclass(frozen=True)
class Job:
    folder: str
    trace: str
    policy: str
    condition: int = -1


def play(job: Job) -> Row:
    """One policy on one trace, in a process of its own."""
    condition, model = CONDITIONS[max(job.condition, 0)], world.Model()
    load = traces.load(Path(job.folder), job.trace, model.service_rate)
    arrivals = load.arrivals
    if job.condition >= 0:
        policy = condition.policy()
    else:
        policy = next(entry for entry in FIELD if entry.name == job.policy).make(arrivals, model)
    first = max(ceil(arrivals.mean() / model.service_rate), 1)
    found = worlds.run(arrivals, policy, model, first, condition.sight)
    cost = found.instance_hours / bound.lower_bound(load)
    return Row(
        job.policy,
        job.trace,
        load.apart,
        cost,
        100 * found.late,
        found.actions_per_hour,
        found.flaps_per_hour,
    )


def find_bounds(folder: Path, names: Sequence[str], progress: Progress) -> None:
    """Works out the bounds that are not known yet, and keeps them."""
    task = progress.add_task("lower bounds", total=len(names))
    for name in names:
        bound.lower_bound(traces.load(folder, name, world.Model().service_rate), keep=True)
        progress.advance(task)


def played(jobs: Sequence[Job], progress: Progress, workers: int) -> list[Row]:
    task = progress.add_task("replays", total=len(jobs))
    rows = []
    with ProcessPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(play, job) for job in jobs]):
            rows.append(future.result())
            progress.advance(task)
    return rows


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def summary(title: str, rows: Sequence[Row], order: Sequence[str]) -> Table:
    """One line per policy over the traces that count; those apart in columns of their own."""
    apart = sorted({row.trace for row in rows if row.apart})
    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for name in ("cost x", "late % mean", "highest", "at most 1 %", "actions/h", "flaps/h", *apart):
        table.add_column(name, justify="right")
    for policy in order:
        own = [row for row in rows if row.policy == policy]
        counted = [row for row in own if not row.apart]
        if not counted:
            continue
        cost = exp(mean([log(row.cost) for row in counted]))
        late = [row.late for row in counted]
        others = [f"{row.cost:.2f} {row.late:.2f} %" for name in apart for row in own if row.trace == name]
        table.add_row(
            policy,
            f"{cost:.3f}",
            f"{mean(late):.2f}",
            f"{max(late):.1f}",
            f"{sum(each <= 1.0 for each in late)} of {len(late)}",
            f"{mean([row.actions for row in counted]):.1f}",
            f"{mean([row.flaps for row in counted]):.1f}",
            *others,
        )
    return table


def by_trace(rows: Sequence[Row], policies: Sequence[str]) -> Table:
    """Cost and late messages of a few policies on each trace."""
    table = Table(title="by trace: cost x, late %", title_justify="left")
    table.add_column("trace")
    for policy in policies:
        table.add_column(policy, justify="right")
    for trace in sorted({row.trace for row in rows}, key=lambda name: name):
        cells = [
            f"{row.cost:.2f} {row.late:5.2f}"
            for policy in policies
            for row in rows
            if row.policy == policy and row.trace == trace
        ]
        table.add_row(trace, *cells)
    return table


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.autoscaling", description="Autoscalers on real load.")
    parser.add_argument(
        "--traces", type=Path, default=traces.FOLDER, help="folder of NAME.csv.gz: t, arrivals"
    )
    parser.add_argument("--only", default="", help="policies whose name holds this text")
    parser.add_argument("--conditions", action="store_true", help="also with worse observations")
    parser.add_argument("--out", type=Path, help="folder for the plot and the rows")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    names = traces.names(chosen.traces)
    if not names:
        parser.error(f"no NAME.csv.gz in {chosen.traces}")
    entries = [entry for entry in FIELD if chosen.only in entry.name]
    jobs = [Job(str(chosen.traces), name, entry.name) for entry in entries for name in names]
    harder = [
        Job(str(chosen.traces), name, condition.name, index)
        for index, condition in enumerate(CONDITIONS)
        for name in names
        if chosen.conditions
    ]
    console = Console(width=200 if not sys.stdout.isatty() else None)
    with Progress(console=Console(stderr=True)) as progress:
        find_bounds(chosen.traces, names, progress)
        rows = played(jobs, progress, chosen.workers)
        conditions = played(harder, progress, chosen.workers) if harder else []
    order = [entry.name for entry in entries]
    console.print(summary(f"{len(names)} traces, sampled as each does", rows, order))
    console.print(by_trace(rows, [name for name in order if name in {"service_level", "KEDA target 12"}]))
    if conditions:
        console.print(
            summary("service_level with worse observations", conditions, [c.name for c in CONDITIONS])
        )
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        draw(rows, {entry.name for entry in entries if entry.ours}, chosen.out)
        text = json.dumps([row.__dict__ for row in (*rows, *conditions)], indent=1)
        (chosen.out / "rows.json").write_text(text + "\n")
        console.print(f"plot and rows: {chosen.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
