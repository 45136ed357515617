"""Lets a cancelled caller wait for work that has begun, because its outcome is unknown until it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

_Result = TypeVar("_Result")

CANCEL_GRACE = 5.0
"""Seconds that a transfer or save may still take after its caller was cancelled; then its outcome is unknown. Chosen."""


async def finish_before_cancelling(work: Awaitable[_Result], grace: float = CANCEL_GRACE) -> _Result:
    """The result of the work, even if the caller is cancelled meanwhile: compare `cancel_count` before and after.

    Raises CancelledError if the work has not ended `grace` seconds later, or at a second cancellation: then the work was
    cancelled, too, and has ended.
    """
    task = asyncio.ensure_future(work)
    if task.done():
        return task.result()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.CancelledError):  # the first cancellation is raised by the caller
            await asyncio.wait({task}, timeout=grace)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        return task.result()


def cancel_count() -> int:
    """How many cancellations of the running task are pending (Task.cancelling)."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return 0
    return 0 if task is None else task.cancelling()


def is_unexpected(error: BaseException) -> bool:
    """Whether the error is a failure of the work: any Exception, or a CancelledError from an SDK although nobody cancelled the
    running task.
    """
    return isinstance(error, Exception) or (isinstance(error, asyncio.CancelledError) and not cancel_count())
