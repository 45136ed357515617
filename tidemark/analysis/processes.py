"""The replays of one command on all cores, with a progress bar."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidemark.foundation.log.terminal import Console

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_all(
    work: Callable[[_Task], _Result], tasks: Sequence[_Task], processes: int, text: str
) -> list[_Result]:
    """The results in the order of the tasks. The number of processes changes nothing but the time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ExitStack() as stack:
        mapped: Any = map
        if processes > 1:
            # Started afresh: the progress bar runs a thread, and a fork would copy what it locks.
            executor = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
            stack.callback(executor.shutdown, cancel_futures=True)
            mapped = executor.map
        bar = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
        return list(bar.track(mapped(work, tasks), total=len(tasks), description=text))
