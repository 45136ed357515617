"""What the demo's first scene leaves behind: numbers on the screen, a plot and the decisions in a folder.

Instance-hours and late messages are those of the product's own comparison of a target with its shadow; they are only
shown here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from devstack.demo.common.report import (
    Change,
    changes,
    panels,
    show_changes,
    show_end,
    show_numbers,
    write_log,
)
from devstack.demo.orders.run import SERVED, DemoRun
from scaling.shadow.comparison import ShadowView
from tidemark.analysis.plots import drawn_value
from tidemark.foundation.wording import duration_text, percent_text

DAY_HOURS = 24.0
MONTH_HOURS = 730.0
TITLE_WIDTH = 100  # characters

PRICE = 0.20
"""Dollars for an instance and hour: a round figure, near that of a small Premium v3 instance."""

LIVE, SIMULATED = "service_level", "fixed thresholds"
LIVE_COLOUR, SIMULATED_COLOUR = "#1b7837", "#762a83"


class Side(Struct, frozen=True):
    """One set of rules over the recorded day. `late` is the share of messages that waited too long, if it is known."""

    name: str
    hours: float
    late: float | None
    changes: int


class Compared(Struct, frozen=True):
    """The rules that decided beside the simulated ones, over so many seconds of the functions' clock; no message should
    wait longer than `wait`, but for the share `allowed`. `advice` is what `tidemark shadow` says.
    """

    live: Side
    simulated: Side
    seconds: float
    wait: float
    allowed: float
    advice: str

    def month(self, side: Side) -> float:
        """Dollars, if it went on like this for a month."""
        return side.hours * 3600.0 / self.seconds * MONTH_HOURS * PRICE

    @property
    def sentence(self) -> str:
        """Which of both costs more, and which lets more messages wait."""
        more = self.live.hours / self.simulated.hours - 1.0
        hours = f"{percent_text(abs(more), 0)} {'more' if more > 0 else 'fewer'} instance-hours than {self.simulated.name}"
        wait, live, simulated = duration_text(self.wait), self.live.late, self.simulated.late
        if live is None or simulated is None:
            return (
                f"{self.live.name}: {hours}; not known is how many of the messages waited longer than {wait}"
            )
        both = percent_text(live), percent_text(simulated)
        beside = ", as with them" if both[0] == both[1] else f" instead of {both[1]}"
        late = f"{both[0]} of the messages waited longer than {wait}{beside}"
        kept = "" if live <= self.allowed else f", more than the {percent_text(self.allowed)} allowed"
        return f"{self.live.name}: {hours}, and {late}{kept}"


class Outcome(Struct, frozen=True):
    """The numbers of one run."""

    sent: int
    done: int
    left: int
    duplicates: int
    peak_backlog: int
    decisions: int
    changes: tuple[Change, ...]
    compared: Compared | None

    @property
    def failures(self) -> tuple[str, ...]:
        """What of the story did not come true, the first of it; nothing where all of it did."""
        if self.sent == 0:
            return ("no message was sent",)
        if self.left:
            return (f"{self.left} messages were not completed",)
        ways = {"out" if after > before else "in" for _, before, after, _ in self.changes}
        missing = [f"the plan was never scaled {way}" for way in ("out", "in") if way not in ways]
        if self.compared is None:
            missing.append("the simulated rules were not compared")
        return tuple(missing)[:1]


def outcome(demo: DemoRun) -> Outcome:
    """Counts what happened: messages from the ledger, changes from the plan's own history."""
    history = demo.plan.history
    made = changes(demo, [(at - demo.began_at, size) for at, size in history])
    return Outcome(
        sent=demo.ledger.sent,
        done=demo.ledger.done,
        left=demo.ledger.left,
        duplicates=demo.ledger.duplicates,
        peak_backlog=max((s.backlog for s in demo.samples), default=0),
        decisions=sum(entry["kind"] == "decision" for entry in demo.log),
        changes=made,
        compared=_compared(demo, demo.compared, sum(at <= demo.trace.duration for at, *_ in made)),
    )


def _compared(demo: DemoRun, view: ShadowView | None, made: int) -> Compared | None:
    """None where something of it is not known. `made` are the changes of the rules that decided."""
    if view is None or view.wait is None or view.allowed is None or not view.simulated_hours:
        return None
    sizes = [size for at, size in simulated_sizes(demo) if at <= demo.trace.duration]
    changes = sum(before != after for before, after in itertools.pairwise(sizes))
    return Compared(
        Side(LIVE, view.live_hours, view.live_late, made),
        Side(SIMULATED, view.simulated_hours, view.simulated_late, changes),
        view.seconds,
        view.wait,
        view.allowed,
        view.advice,
    )


def simulated_sizes(demo: DemoRun) -> list[tuple[float, int]]:
    """Seconds since the start, and the instances there would be by the simulated rules: the log has it."""
    return [
        (demo.seconds_of(entry["at"]), entry["shadow"]["current"])
        for entry in demo.log
        if entry["kind"] == "decision" and entry["shadow"] is not None
    ]


def write(demo: DemoRun, result: Outcome, folder: Path) -> list[Path]:
    """Writes the plot and the decisions; returns the files."""
    log, plot = folder / "decisions.jsonl", folder / "autoscaling.png"
    write_log(demo.log, log)
    with panels(plot, height=6.5, ratios=(3, 2)) as (instances, backlog):
        _plot_instances(instances, demo)
        if result.compared is not None:
            instances.set_title(fill(result.compared.sentence, TITLE_WIDTH), fontsize=11)
        hours = _hours(demo, [s.at for s in demo.samples])
        backlog.plot(hours, [s.backlog for s in demo.samples], color=LIVE_COLOUR, linewidth=1.4, label=LIVE)
        imagined = [drawn_value(s.simulated_backlog) for s in demo.samples]
        backlog.plot(hours, imagined, color=SIMULATED_COLOUR, linestyle="--", label=f"{SIMULATED}, simulated")
        backlog.set_ylabel("messages in the queue")
        backlog.legend(loc="upper left", frameon=False)
        backlog.set_xlabel("hour of the recorded day")
        backlog.set_xlim(0, DAY_HOURS)
    return [plot, plot.with_suffix(".svg"), log]


def _hours(demo: DemoRun, seconds: Sequence[float]) -> list[float]:
    return [at * DAY_HOURS / demo.trace.duration for at in seconds]


def _plot_instances(axes: Any, demo: DemoRun) -> None:
    """Both capacities over the load, which is told in the same unit: instances that are busy with it."""
    samples, simulated = demo.samples, simulated_sizes(demo)
    hours = _hours(demo, [s.at for s in samples])
    load = [s.rate / SERVED for s in samples]
    axes.fill_between(hours, load, color="#9ecae1", step="mid", label="what the load keeps busy")
    capacity = [s.capacity for s in samples]
    axes.step(hours, capacity, where="post", color=LIVE_COLOUR, linewidth=1.8, label=f"{LIVE}, decides")
    sizes = [size for _, size in simulated]
    at = _hours(demo, [at for at, _ in simulated])
    axes.step(
        at, sizes, where="post", color=SIMULATED_COLOUR, linestyle="--", label=f"{SIMULATED}, simulated"
    )
    axes.set_ylabel("instances")
    axes.set_ylim(0, max([*capacity, *sizes, 1]) + 1)
    axes.legend(loc="upper left", frameon=False)


def show(result: Outcome, files: list[Path], console: Console) -> None:
    """Prints what happened."""
    show_changes("Scale actions", result.changes, ("out", "in"), "", console, when="minute", cut=True)
    rows = [
        ("messages in", f"{result.sent}"),
        ("messages out", f"{result.done}"),
        ("left", f"{result.left} ({result.left} lost, {result.duplicates} delivered twice)"),
        ("decisions logged", f"{result.decisions}"),
        ("peak backlog", f"{result.peak_backlog} messages"),
    ]
    if result.compared is not None:
        _show_compared(result.compared, result.sent, console)
        rows.append(("tidemark shadow says", result.compared.advice))
    show_numbers(rows, files, console)
    show_end(result.failures, "nothing lost, scaled out and in", console)


def _show_compared(compared: Compared, messages: int, console: Console) -> None:
    """Both sides in a table, and in a sentence."""
    wait = duration_text(compared.wait)
    table = Table(
        *("rules", "instance-hours", f"waited over {wait}", "a month", "changes"),
        title=f"The recorded day, {duration_text(compared.seconds)} by the functions' clock",
        caption=f"a month: at this rate, and at ${PRICE:.2f} an instance-hour",
        title_justify="left",
        caption_justify="left",
    )
    for side in (compared.live, compared.simulated):
        late = (
            "?"
            if side.late is None
            else f"{percent_text(side.late)}: {side.late * messages:,.0f} of {messages:,}"
        )
        price = f"${compared.month(side):,.0f}"
        table.add_row(side.name, f"{side.hours:.1f}", late, price, f"{side.changes}")
    console.print(table)
    console.print(escape(compared.sentence), soft_wrap=True)
