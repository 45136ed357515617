"""What the demo's second part leaves behind: numbers on the screen, a plot and the decisions in a folder."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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
    changes: tuple[tuple[float, int, int, str], ...]  # (seconds, from, to, the decision's line)
    instance_hours: float
    static_hours: float
    decisions: int

    @property
    def scaled_out(self) -> bool:
        return any(after > before for _, before, after, _ in self.changes)

    @property
    def scaled_in(self) -> bool:
        return any(after < before for _, before, after, _ in self.changes)

    @property
    def passed(self) -> bool:
        return self.sent > 0 and self.left == 0 and self.scaled_out and self.scaled_in


def outcome(demo: DemoRun) -> Outcome:
    """Counts what happened: messages from the ledger, changes from the plan's own history."""
    lines = {
        (entry["current"], entry["desired"], round(entry["at"])): entry["line"]
        for entry in demo.log
        if entry["kind"] == "decision" and entry["current"] != entry["desired"]
    }
    history = demo.plan.history
    changes = tuple(
        (at - demo.began_at, before, after, _line(lines, at, before, after))
        for (_, before), (at, after) in itertools.pairwise(history)
    )
    peak = max(capacity for _, capacity in history)
    instance_hours = _instance_hours(demo)
    return Outcome(
        sent=demo.ledger.sent,
        done=demo.ledger.done,
        left=demo.ledger.left,
        duplicates=demo.ledger.duplicates,
        peak_backlog=max((s.backlog for s in demo.samples), default=0),
        peak_capacity=peak,
        changes=changes,
        instance_hours=instance_hours,
        static_hours=peak * DAY_HOURS,
        decisions=sum(entry["kind"] == "decision" for entry in demo.log),
    )


def _line(lines: dict[tuple[Any, Any, int], str], at: float, before: int, after: int) -> str:
    """The line of the decision behind a change: the newest one like it in the seconds before."""
    for back in range(15):
        line = lines.get((before, after, round(at) - back))
        if line is not None:
            return line
    return f"{before} -> {after}: no decision in the log"


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
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "decisions.jsonl"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in demo.log), encoding="utf-8")
    plot = folder / "autoscaling.png"
    _plot(demo, result, plot)
    return [plot, plot.with_suffix(".svg"), log]


def _plot(demo: DemoRun, result: Outcome, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, needed at the very end only

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - must follow use()

    hours = [s.at * DAY_HOURS / demo.trace.duration for s in demo.samples]
    figure, (load, backlog, instances) = plt.subplots(
        3, 1, figsize=(10, 7.5), sharex=True, layout="constrained"
    )
    load.fill_between(hours, [s.rate for s in demo.samples], color="#9ecae1", step="mid")
    load.set_ylabel("messages/s in")
    load.set_title(
        f"{result.done:,} messages, {result.left} lost, {len(result.changes)} changes of capacity: "
        f"{result.instance_hours:.0f} instance-hours, {result.static_hours:.0f} at the static peak",
        fontsize=11,
    )
    backlog.plot(hours, [s.backlog for s in demo.samples], color="#d95f02", linewidth=1.4)
    backlog.set_ylabel("backlog (messages)")
    instances.step(hours, [s.capacity for s in demo.samples], where="post", color="#1b7837", label="capacity")
    instances.fill_between(
        hours, [s.ready for s in demo.samples], step="post", color="#a6dba0", alpha=0.7, label="ready"
    )
    instances.set_ylabel("instances")
    instances.set_xlabel("hour of the recorded day (from 24 on, the load has ended)")
    instances.set_ylim(0, result.peak_capacity + 1)
    instances.legend(loc="upper left", frameon=False)
    for axes in (load, backlog, instances):
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)


def show(result: Outcome, files: list[Path], console: Console) -> None:
    """Prints what happened."""
    changes = Table("second", "change", "why", title="Scale actions", title_justify="left", expand=False)
    for at, before, after, line in result.changes:
        way = "[green]out[/]" if after > before else "[cyan]in[/]"
        why = line.partition(": ")[2].rpartition(" [")[0] or line
        changes.add_row(f"{at:.1f}", f"{way} {before} -> {after}", escape(why))
    console.print(changes)
    saved = 1 - result.instance_hours / result.static_hours
    table = Table.grid(padding=(0, 2))
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
        ("written", ", ".join(str(path) for path in files)),
    )
    for name, value in rows:
        table.add_row(f"[bold]{name}[/]", escape(value))
    console.print(table)
    if result.passed:
        console.print("[green]passed:[/] nothing lost, scaled out and in")
    else:
        console.print("[red]failed:[/] " + _failure(result))


def _failure(result: Outcome) -> str:
    if result.sent == 0:
        return "no message was sent"
    if result.left:
        return f"{result.left} messages were not completed"
    return "the plan was never scaled " + ("in" if result.scaled_out else "out")
