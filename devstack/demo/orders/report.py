"""What the demo's second part leaves behind: numbers on the screen, a plot and the decisions in a folder."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console

from devstack.demo.common.report import (
    Change,
    changes,
    show_changes,
    show_end,
    show_numbers,
    three_panels,
    write_log,
)
from devstack.demo.orders.run import DemoRun

DAY_HOURS = 24.0


class Outcome(Struct, frozen=True):
    """The numbers of one run. Instance-hours are counted on the trace's own day."""

    sent: int
    done: int
    left: int
    duplicates: int
    peak_backlog: int
    peak_capacity: int
    changes: tuple[Change, ...]
    instance_hours: float
    static_hours: float
    decisions: int

    @property
    def failures(self) -> tuple[str, ...]:
        """What of the story did not come true, the first of it; nothing where all of it did."""
        if self.sent == 0:
            return ("no message was sent",)
        if self.left:
            return (f"{self.left} messages were not completed",)
        ways = {"out" if after > before else "in" for _, before, after, _ in self.changes}
        return tuple(f"the plan was never scaled {way}" for way in ("out", "in") if way not in ways)[:1]


def outcome(demo: DemoRun) -> Outcome:
    """Counts what happened: messages from the ledger, changes from the plan's own history."""
    history = demo.plan.history
    peak = max(capacity for _, capacity in history)
    return Outcome(
        sent=demo.ledger.sent,
        done=demo.ledger.done,
        left=demo.ledger.left,
        duplicates=demo.ledger.duplicates,
        peak_backlog=max((s.backlog for s in demo.samples), default=0),
        peak_capacity=peak,
        changes=changes(demo.log, demo.began_at, [(at - demo.began_at, size) for at, size in history]),
        instance_hours=_instance_hours(demo),
        static_hours=peak * DAY_HOURS,
        decisions=sum(entry["kind"] == "decision" for entry in demo.log),
    )


def _instance_hours(demo: DemoRun) -> float:
    """Capacity integrated over the trace's day: its 24 hours pass in `trace.duration` seconds."""
    total = 0.0
    end = demo.began_at + demo.trace.duration
    history = [*demo.plan.history, (end, 0)]
    for (at, capacity), (until, _) in itertools.pairwise(history):
        total += capacity * max(min(until, end) - max(at, demo.began_at), 0.0)
    return total * DAY_HOURS / demo.trace.duration


def write(demo: DemoRun, result: Outcome, folder: Path) -> list[Path]:
    """Writes the plot and the decisions; returns the files."""
    log, plot = folder / "decisions.jsonl", folder / "autoscaling.png"
    write_log(demo.log, log)
    hours = [s.at * DAY_HOURS / demo.trace.duration for s in demo.samples]
    with three_panels(plot, height=7.5) as (load, backlog, instances):
        load.fill_between(hours, [s.rate for s in demo.samples], color="#9ecae1", step="mid")
        load.set_ylabel("messages/s in")
        load.set_title(
            f"{result.done:,} messages, {result.left} lost, {len(result.changes)} changes of capacity: "
            f"{result.instance_hours:.0f} instance-hours, {result.static_hours:.0f} at the static peak",
            fontsize=11,
        )
        backlog.plot(hours, [s.backlog for s in demo.samples], color="#d95f02", linewidth=1.4)
        backlog.set_ylabel("backlog (messages)")
        _plot_instances(instances, hours, demo, result)
    return [plot, plot.with_suffix(".svg"), log]


def _plot_instances(axes: Any, hours: list[float], demo: DemoRun, result: Outcome) -> None:
    axes.step(hours, [s.capacity for s in demo.samples], where="post", color="#1b7837", label="capacity")
    axes.fill_between(
        hours, [s.ready for s in demo.samples], step="post", color="#a6dba0", alpha=0.7, label="ready"
    )
    axes.set_ylabel("instances")
    axes.set_xlabel("hour of the recorded day (from 24 on, the load has ended)")
    axes.set_ylim(0, result.peak_capacity + 1)
    axes.legend(loc="upper left", frameon=False)


def show(result: Outcome, files: list[Path], console: Console) -> None:
    """Prints what happened."""
    show_changes("Scale actions", result.changes, ("out", "in"), "", console)
    saved = 1 - result.instance_hours / result.static_hours
    rows = (
        ("messages in", f"{result.sent}"),
        ("messages out", f"{result.done}"),
        ("left", f"{result.left} ({result.left} lost, {result.duplicates} delivered twice)"),
        ("decisions logged", f"{result.decisions}"),
        ("scale actions", f"{len(result.changes)}"),
        ("peak backlog", f"{result.peak_backlog} messages"),
        (
            "instance-hours",
            (
                f"{result.instance_hours:.1f} against {result.static_hours:.1f} at the static peak of "
                f"{result.peak_capacity} ({saved:.0%} less)"
            ),
        ),
    )
    show_numbers(rows, files, console)
    show_end(result.failures, "nothing lost, scaled out and in", console)
