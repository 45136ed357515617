"""Calls that may hang or fail in any way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.sanitize import describe_error

_T = TypeVar("_T")

PATIENCE = 5.0
"""Seconds after its deadline in which a call may still return or raise; then it is abandoned. Chosen."""


async def answered(what: str, deadline: float | None, call: Awaitable[_T]) -> _T:
    """The result of a call by `deadline`, in the loop's time; None: without a limit.

    Raises the call's own TidemarkErrors, and UnavailableError for all other failures, after which its effect is unknown. A
    CancelledError from a library counts as a failure, too, unless the caller was cancelled: it would end the caller's task
    silently.
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
        raise UnavailableError(f"{what}: unexpected {describe_error(error)}") from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
