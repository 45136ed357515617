"""The demo's live view in the terminal; without a terminal, a line whenever something happened."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from devstack.demo_run import DemoRun

_BLOCKS = " ▁▂▃▄▅▆▇█"
_DECISIONS_SHOWN = 10
_STATUS_LINE_EVERY = 10.0


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest `width` values as block characters, scaled to their maximum."""
    shown = list(values)[-width:]
    top = max(shown, default=0) or 1
    return "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1))] for value in shown)


class DemoView:
    """Redraws on every `update`. Use as a context manager."""

    def __init__(self, console: Console, demo: DemoRun) -> None:
        self._console = console
        self._demo = demo
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._seen: set[tuple[float, str]] = set()
        self._next_line = 0.0

    def __enter__(self) -> Self:
        self._console.print(f"dashboard: {self._demo.functions.url}/dashboard")
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, demo: DemoRun) -> None:
        """Shows the demo as it stands."""
        if self._live is not None:
            self._live.update(self._screen(demo), refresh=True)
        else:
            self._lines(demo)

    def _lines(self, demo: DemoRun) -> None:
        for entry in reversed(demo.log):
            key = (entry["at"], entry["kind"])
            if key not in self._seen and _tells(entry):
                self._console.print(
                    f"{entry['at'] - demo.began_at:6.1f} s  {escape(entry['line'])}", soft_wrap=True
                )
            self._seen.add(key)
        if demo.elapsed >= self._next_line:
            self._next_line += _STATUS_LINE_EVERY
            now = demo.samples[-1]
            self._console.print(
                f"{now.at:6.1f} s  {now.rate:.0f} messages/s in, backlog {now.backlog}, "
                f"{now.ready} of {now.capacity} instances ready, {now.done} of {demo.trace.total} done",
                soft_wrap=True,
            )

    def _screen(self, demo: DemoRun) -> RenderableType:
        width = max(self._console.width - 40, 20)
        now = demo.samples[-1]
        numbers = Table.grid(padding=(0, 2))
        numbers.add_column(justify="right")
        numbers.add_column(width=9, justify="right")
        numbers.add_column()
        samples = demo.samples
        rows = (
            ("messages/s in", f"{now.rate:.0f}", [s.rate for s in samples], "cyan"),
            ("backlog", f"{now.backlog}", [s.backlog for s in samples], "yellow"),
            ("instances", f"{now.ready}/{now.capacity}", [s.capacity for s in samples], "green"),
        )
        for name, value, values, colour in rows:
            numbers.add_row(name, f"[bold]{value}[/]", Text(sparkline(values, width), style=colour))
        total = demo.trace.total
        progress = Table.grid(padding=(0, 2))
        progress.add_row(
            ProgressBar(total=total, completed=now.done, width=width), f"{now.done} of {total} messages done"
        )
        title = f"plan-orders: one day of load in {demo.trace.duration:.0f} s, {now.at:.0f} s gone"
        decisions = Group(*(_decision(entry, demo.began_at) for entry in _told(demo.log)))
        return Group(
            Panel(Group(numbers, progress), title=title),
            Panel(decisions, title="what changed, and why", height=_DECISIONS_SHOWN + 2),
            Text(_current_line(demo), style="dim", overflow="ellipsis", no_wrap=True),
        )


def _tells(entry: dict[str, Any]) -> bool:
    """True for what a person wants to see: changes, effects, checks; not every hold."""
    return bool(entry["kind"] != "decision" or entry["current"] != entry["desired"])


def _told(log: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in log if _tells(entry)][:_DECISIONS_SHOWN]


def _decision(entry: dict[str, Any], began_at: float) -> Text:
    style = {"effect": "green", "verify": "yellow"}.get(entry["kind"], "")
    line = entry["line"].rpartition(" [")[0] or entry["line"]
    return Text(f"{entry['at'] - began_at:6.1f} s  {line}", style=style, overflow="ellipsis", no_wrap=True)


def _current_line(demo: DemoRun) -> str:
    targets = demo.status.get("targets") or [{}]
    return str(targets[0].get("line") or "waiting for the first report")
