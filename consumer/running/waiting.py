"""What has to be there before anything can begin is waited for, until somebody says to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from math import inf
from typing import TypeVar

from tidemark.foundation.calls import answered
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.wording import count_text

log = logging.getLogger("tidemark.consumer")

_T = TypeVar("_T")

TELL_EVERY = 10.0
"""Seconds between two lines about a start that has to wait."""
RETRY = 2.0
"""Seconds between two tries, at least: a service that throttles names milliseconds, and to begin a little later costs
nothing.
"""


class StoppedError(Exception):
    """Told to stop before the first answer came: nothing was begun."""


async def when_available(
    what: str,
    call: Callable[[], Awaitable[_T]],
    *,
    retry: float = RETRY,
    stop: asyncio.Event | None = None,
    patience: float = 0.0,
) -> _T:
    """What `call` answers, tried again while it raises UnavailableError.

    Once `stop` is set, a call that hangs is cancelled and gets `patience` seconds to end; then it is left behind. Raises
    StoppedError then, or the last UnavailableError, if there was one.
    """
    clock, told_at, tries = asyncio.get_running_loop().time, -inf, 0
    last: UnavailableError | None = None
    while True:
        try:
            return await _before(stop, answered(what, None, call()), patience)
        except UnavailableError as error:
            last, tries = error, tries + 1
            if clock() - told_at >= TELL_EVERY:
                told_at = clock()
                log.warning("cannot begin yet, %s so far: %s", count_text(tries, "try", "tries"), error)
        except StoppedError:
            if last is not None:
                raise last from None
            raise
        pause = max(last.retry_after or 0.0, retry)
        if stop is None:
            await asyncio.sleep(pause)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
        if stop.is_set():
            raise last


async def _before(stop: asyncio.Event | None, call: Awaitable[_T], patience: float) -> _T:
    """What a call answers, if it does before `stop`. Raises StoppedError."""
    if stop is None:
        return await call
    calling = asyncio.ensure_future(call)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((calling, stopping), return_when=asyncio.FIRST_COMPLETED)
        if calling.done():
            return calling.result()
    finally:
        stopping.cancel()
        if not calling.done():
            await ended({calling}, patience)
    raise StoppedError


async def ended(tasks: Collection[asyncio.Future[_T]], patience: float) -> bool:
    """Cancels tasks and waits so many seconds for their end; whether all have ended. The others are left behind."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(_see)
    if not tasks:
        return True
    _, late = await asyncio.wait(tasks, timeout=max(0.0, patience))
    return not late


def _see(task: asyncio.Future[_T]) -> None:
    if not task.cancelled():
        task.exception()  # seen, though nobody waits for it any more
