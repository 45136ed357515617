"""The replays of one command on all cores, with a progress bar; where that cannot be seen, with a line now and then."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidemark.foundation.log.terminal import Console
from tidemark.foundation.wording import duration_text

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

SAID_EVERY = 10.0
"""Seconds between two lines where standard error is no terminal. Chosen: a log of minutes stays short."""


def run_all(
    work: Callable[[_Task], _Result],
    tasks: Sequence[_Task],
    processes: int,
    text: str,
    *,
    cost: Callable[[_Task], float] = lambda _: 0.0,
) -> list[_Result]:
    """The results in the order of the tasks. The number of processes changes nothing but the time. What has the highest `cost` is begun
    first, or one process would be busy with it at the end while the others wait.
    """
    order = sorted(range(len(tasks)), key=lambda index: cost(tasks[index]), reverse=True)
    results: dict[int, _Result] = {}
    with _progress(len(tasks), text) as advance:
        for index, result in _done(work, tasks, order, processes):
            results[index] = result
            advance()
    return [results[index] for index in range(len(tasks))]


def _done(
    work: Callable[[_Task], _Result], tasks: Sequence[_Task], order: Sequence[int], processes: int
) -> Iterator[tuple[int, _Result]]:
    """Each result with the place of its task, as it is there."""
    if processes <= 1:
        yield from ((index, work(tasks[index])) for index in order)
        return
    # Started afresh: what shows the progress runs a thread, and a fork would copy what it locks.
    executor = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = {executor.submit(work, tasks[index]): index for index in order}
        yield from ((futures[future], future.result()) for future in as_completed(futures))
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _progress(count: int, text: str) -> Iterator[Callable[[], None]]:
    """Shows how many of `count` are done on standard error; what it yields is called for each."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(text, total=count)
            yield lambda: bar.advance(task)
        return
    done: list[float] = []
    ended, begun = Event(), monotonic()

    def say() -> None:
        while not ended.wait(SAID_EVERY):
            so_far = f"{len(done)} of {count} done after {duration_text(round(monotonic() - begun))}"
            console.print(f"{text}: {so_far}", highlight=False, markup=False, soft_wrap=True)

    saying = Thread(target=say, daemon=True)
    saying.start()
    try:
        yield lambda: done.append(monotonic())
    finally:
        ended.set()
        saying.join()
