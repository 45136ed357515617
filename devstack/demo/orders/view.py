"""The part with the plan as the live view shows it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel

from devstack.demo.common.view import Row, progress, sparklines
from devstack.demo.orders.run import DemoRun, Sample


class OrdersPart:
    """The plan and its load."""

    def __init__(self, run: DemoRun) -> None:
        self.run = run

    def summary(self) -> str:
        now = self.run.samples[-1]
        return (
            f"{now.rate:.0f} messages/min in, backlog {now.backlog}, "
            f"{now.ready} of {now.capacity} instances ready (simulated {_told(now)}), "
            f"{now.done} of {self.run.trace.total} done"
        )

    def screen(self, width: int) -> RenderableType:
        samples, trace = self.run.samples, self.run.trace
        now = samples[-1]
        rows: list[Row] = [
            ("messages/min in", f"{now.rate:.0f}", [s.rate for s in samples], "cyan"),
            ("backlog", f"{now.backlog}", [s.backlog for s in samples], "yellow"),
            ("instances", f"{now.ready}/{now.capacity}", [s.capacity for s in samples], "green"),
            ("simulated", _told(now), [s.simulated or 0 for s in samples], "magenta"),
        ]
        done = progress(now.done, trace.total, width, f"{now.done} of {trace.total} messages done")
        title = f"plan-orders: one day of load in {trace.duration:.0f} minutes, {now.at:.0f} are gone"
        return Panel(Group(sparklines(rows, width), done), title=title)


def _told(sample: Sample) -> str:
    """Simulated instances."""
    return "?" if sample.simulated is None else f"{sample.simulated}"
