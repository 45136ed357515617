"""The backfill's progress for the person who waits: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import partial

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spark_jobs.backfill.budget.coordinator import Coordinator
from spark_jobs.backfill.budget.progress import Snapshot
from spark_jobs.platform.progress import REFRESH, beside, console
from tidemark.foundation.wording import percent_text

LINE_EVERY = 10.0  # seconds, where there is no terminal


def showing(coordinator: Coordinator, total: int) -> AbstractContextManager[None]:
    """Shows how many of `total` events are settled, until the block ends."""
    return beside(partial(_bar if console.is_terminal else _lines, coordinator, total))


def _bar(coordinator: Coordinator, total: int, stop: threading.Event) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=total)
        while not stop.wait(REFRESH):
            before, now = _latest(coordinator)
            progress.update(bar, completed=now.total.settled, description=rates(before, now))


def _lines(coordinator: Coordinator, total: int, stop: threading.Event) -> None:
    while not stop.wait(LINE_EVERY):
        before, now = _latest(coordinator)
        console.print(
            f"{now.total.settled:,} of {total:,} events; {rates(before, now)}", markup=False, soft_wrap=True
        )


def _latest(coordinator: Coordinator) -> tuple[Snapshot, Snapshot]:
    with coordinator.lock:
        history = coordinator.progress.history
        return history[max(0, len(history) - 4)], history[-1]


def rates(before: Snapshot, now: Snapshot) -> str:
    """What happened per second from one picture to the other."""
    seconds = now.at - before.at
    if seconds <= 0:
        return "starting"
    spent = now.total - before.total
    written, units = spent.written / seconds, spent.request_units / seconds
    letters = f", {now.total.dead_letters:,} dead letters" if now.total.dead_letters else ""
    return f"{written:,.0f} records/s, {units:,.0f} RU/s, {percent_text(spent.throttled_share, 1)} throttled{letters}"
