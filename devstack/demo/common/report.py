"""What both parts leave behind, and how: a picture and the decisions in a folder, numbers on the screen."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from devstack.demo.common.functions_api import Entry
from devstack.demo.common.run import Run

_BESIDE_WHY = 33  # columns that the other columns of the table take
_LOOK_BACK = 15  # seconds between a decision and its change, at the most

Change = tuple[float, int, int, str]
"""Seconds since the start, the size before and after, the line of the decision."""


def changes(run: Run, sizes: Iterable[tuple[float, int]]) -> tuple[Change, ...]:
    """Where the sizes, each with its seconds since the start, change, and the newest decision for it just before."""
    changed = []
    for (_, before), (at, after) in itertools.pairwise(sizes):
        if before != after:
            lines = [
                str(entry["line"])
                for entry in run.log
                if entry["kind"] == "decision"
                and (entry["current"], entry["desired"]) == (before, after)
                and at - _LOOK_BACK < run.seconds_of(entry["at"]) < at
            ]
            changed.append((at, before, after, lines[-1] if lines else "no decision in the log"))
    return tuple(changed)


def write_log(log: Sequence[Entry], file: Path) -> None:
    """The decisions, a line each. The folder is made if missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(entry) + "\n" for entry in log), encoding="utf-8")


@contextmanager
def panels(path: Path, *, height: float, ratios: Sequence[int]) -> Iterator[Any]:
    """Panels, one above the other, to draw in; at the end they are saved as PNG, and beside it as SVG."""
    figure = Figure(figsize=(10, height), layout="constrained")
    drawn = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)
    yield drawn
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
        axes.grid(visible=False)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    for axes in drawn:
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for file in (
        path,
        path.with_suffix(".svg"),
    ):  # on white: its dark text is on pages with a dark ground, too
        figure.savefig(file, dpi=130, facecolor="white")


def show_changes(
    title: str,
    made: Iterable[Change],
    ways: tuple[str, str],
    unit: str,
    console: Console,
    *,
    when: str = "second",
    cut: bool = False,
) -> None:
    """A table of the changes; `ways` are the words for more and for less, `when` what a second is to the functions.
    `cut`: the reasons take a line each, as far as they fit; they are whole in the log.
    """
    table = Table(when, "change", "why", title=title, title_justify="left", expand=False)
    for at, before, after, line in made:
        way = f"[green]{ways[0]}[/]" if after > before else f"[cyan]{ways[1]}[/]"
        why = line.partition(": ")[2].rpartition(" [")[0] or line
        if cut and len(why) > (room := max(console.width - _BESIDE_WHY, 20)):
            why = f"{why[: room - 1]}…"
        table.add_row(f"{at:.1f}", f"{way} {before:,} -> {after:,}{unit}", escape(why))
    console.print(table)


def show_numbers(rows: Iterable[tuple[str, str]], files: Iterable[Path], console: Console) -> None:
    """Names and numbers, and what was written."""
    table = Table.grid(padding=(0, 2))
    for name, value in (*rows, ("written", ", ".join(str(path) for path in files))):
        table.add_row(f"[bold]{name}[/]", escape(value))
    console.print(table)


def show_end(failures: Sequence[str], passed: str, console: Console) -> None:
    """That nothing failed, or what did."""
    if failures:
        console.print("[red]failed:[/] " + escape("; ".join(failures)))
    else:
        console.print(f"[green]passed:[/] {passed}")
