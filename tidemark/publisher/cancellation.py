"""Work that a cancelled caller still waits for: until it has ended, nobody can say what it did."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")

SETTLING = 5.0
"""Seconds that a transfer or a save may still take after its caller was cancelled. Afterwards the outcome is unknown."""


async def settled(work: Coroutine[Any, Any, _Result], grace: float = SETTLING) -> _Result:
    """The result of the work, also if the caller is cancelled meanwhile: `cancellations` tells that.

    Raises CancelledError if the work has not ended `grace` seconds after that, or by a second cancellation: then it
    was cancelled itself, and has ended.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.CancelledError):  # it is on its way already
            await asyncio.wait({task}, timeout=grace)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        return task.result()


def cancellations() -> int:
    """How often the running task was asked to end, and has not said yet that it will not."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return 0
    return 0 if task is None else task.cancelling()


def is_unexpected(error: BaseException) -> bool:
    """Whether it is to be taken as a failure of the work: any Exception, and a CancelledError out of an SDK while nobody
    has cancelled the running task.
    """
    return isinstance(error, Exception) or (isinstance(error, asyncio.CancelledError) and not cancellations())
