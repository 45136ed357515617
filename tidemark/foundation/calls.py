"""Calls to what may hang or fail in any way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tidemark.foundation.errors import TidemarkError, UnavailableError

_T = TypeVar("_T")

PATIENCE = 5.0
"""Seconds after a call's deadline in which it may say itself what became of it; then it is left behind."""


async def answered(what: str, deadline: float | None, call: Awaitable[_T]) -> _T:
    """What a call answers by `deadline` (loop time; None: whenever it does).

    Whatever else becomes of it is UnavailableError, but for TidemarkErrors of its own: whether it did what it was to
    do is then not known. So is a CancelledError out of a library while nobody has cancelled the caller, which would end
    its task without a word.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await call
    except TidemarkError:
        raise
    except TimeoutError:
        raise UnavailableError(f"{what}: no answer in time") from None
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        raise UnavailableError(f"{what}: unexpected {error!r}") from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
