"""The demo's live view in the terminal; without a terminal, a line whenever something happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from devstack.demo.common.run import Run

_BLOCKS = " ▁▂▃▄▅▆▇█"
_TOLD = 10
_STATUS_LINE_EVERY = 10.0
_BESIDE = 40  # columns that names and numbers take

Row = tuple[str, str, Sequence[float], str]
"""Name, value now, all values, colour."""


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest `width` values as block characters, scaled to their maximum."""
    shown = list(values)[-width:]
    top = max(shown, default=0) or 1
    return "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1))] for value in shown)


class Part(Protocol):
    """How a part looks."""

    @property
    def run(self) -> Run: ...

    def screen(self, width: int) -> RenderableType:
        """Its numbers; sparklines and bars are `width` wide."""
        ...

    def summary(self) -> str:
        """The same in a line."""
        ...


class DemoView:
    """Redraws on every `update`. Use as a context manager."""

    def __init__(self, console: Console, part: Part) -> None:
        self._console = console
        self._part = part
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._seen: set[tuple[float, str]] = set()
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """Shows the part as it stands."""
        if self._live is not None:
            self._live.update(self._screen(), refresh=True)
        else:
            self._lines()

    def _lines(self) -> None:
        run = self._part.run
        for at, line, _ in _told(run):
            if (at, line) not in self._seen:
                self._seen.add((at, line))
                self._console.print(f"{at:6.1f} s  {escape(line)}", soft_wrap=True)
        if run.elapsed >= self._next_line:
            self._next_line += _STATUS_LINE_EVERY
            self._console.print(f"{run.elapsed:6.1f} s  {self._part.summary()}", soft_wrap=True)

    def _screen(self) -> RenderableType:
        run = self._part.run
        lines = [
            Text(f"{at:6.1f} s  {_short(line)}", style=style, overflow="ellipsis", no_wrap=True)
            for at, line, style in reversed(_told(run)[-_TOLD:])
        ]
        return Group(
            self._part.screen(max(self._console.width - _BESIDE, 20)),
            Panel(Group(*lines), title="what happened, and why", height=_TOLD + 2),
            Text(run.line or "waiting for the first report", style="dim", overflow="ellipsis", no_wrap=True),
        )


def sparklines(rows: Sequence[Row], width: int) -> Table:
    """A row each: name, value, history."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column(width=9, justify="right")
    table.add_column()
    for name, value, values, colour in rows:
        table.add_row(name, f"[bold]{value}[/]", Text(sparkline(values, width), style=colour))
    return table


def progress(done: int, total: int, width: int, text: str) -> Table:
    """A bar and what it says."""
    table = Table.grid(padding=(0, 2))
    table.add_row(ProgressBar(total=total, completed=done, width=width), text)
    return table


def _told(run: Run) -> list[tuple[float, str, str]]:
    """(seconds, line, style) of all that a person wants to see, in order: changes, effects, checks; not every hold."""
    styles = {"effect": "green", "verify": "yellow"}
    lines = [
        (run.seconds_of(entry["at"]), entry["line"], styles.get(entry["kind"], ""))
        for entry in run.log
        if entry["kind"] != "decision" or entry["current"] != entry["desired"]
    ]
    lines += [(at, line, "magenta") for at, line in run.events]
    return sorted(lines, key=lambda item: item[0])


def _short(line: str) -> str:
    """Without the ids at its end."""
    return line.rpartition(" [")[0] or line
