"""Many calls, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


async def gather(call: Callable[[_T], Awaitable[_R]], items: Iterable[_T], *, at_once: int) -> list[_R]:
    """The results in order, `at_once` calls at a time. The first error ends the others and is raised."""
    slots = asyncio.Semaphore(at_once)

    async def one(item: _T) -> _R:
        async with slots:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
