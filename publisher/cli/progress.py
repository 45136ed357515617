"""How far a command has come: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

EVERY = 10.0
"""Seconds between two lines: often enough to see that it goes on, seldom enough for a log."""

Show = Callable[[int, str], None]
"""Takes the bytes of the input that are done, and what became of them in words."""


@contextlib.contextmanager
def progress(
    console: Console,
    doing: str,
    *,
    total: int | None,
    quiet: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Show]:
    """What to call with the progress. `total` bytes, None if it is not known."""
    if quiet:
        yield lambda *_: None
    elif not console.is_terminal:
        yield _lines(console, total, clock)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(doing, total=total, told="")
            yield lambda done, told: bar.update(task, completed=done, told=told)


def _lines(console: Console, total: int | None, clock: Callable[[], float]) -> Show:
    last = clock()

    def show(done: int, told: str) -> None:
        nonlocal last
        if clock() - last >= EVERY:
            last = clock()
            console.print(told + (f" ({done / total:.0%} of the input)" if total else ""), soft_wrap=True)

    return show
