"""Waits for services that a start needs, until an order to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TypeVar

from tidemark.foundation.calls import answered
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.pacing.retry_delay import RareLines, asked_pause
from tidemark.foundation.wording import count_text

log = logging.getLogger("tidemark.consumer")

_T = TypeVar("_T")

RETRY = 2.0
"""Least seconds between two tries. A service that throttles asks for milliseconds, but a start that is two seconds later
costs nothing.
"""


class StoppedError(Exception):
    """An order to stop came before the first answer: nothing was begun."""


async def when_available(
    what: str,
    call: Callable[[], Awaitable[_T]],
    *,
    retry: float = RETRY,
    stop: asyncio.Event | None = None,
    patience: float = 0.0,
) -> _T:
    """The result of `call`, which is repeated while it raises UnavailableError.

    Once `stop` is set, a hanging call is cancelled and gets `patience` seconds to end; then it is abandoned. After that it
    raises the last UnavailableError, or StoppedError if there was none.
    """
    clock, lines, tries = asyncio.get_running_loop().time, RareLines(), 0
    last: UnavailableError | None = None
    while True:
        try:
            return await _before(stop, answered(what, None, call()), patience)
        except UnavailableError as error:
            last, tries = error, tries + 1
            if lines.is_due(clock()):
                log.warning("cannot begin yet, %s so far: %s", count_text(tries, "try", "tries"), error)
        except StoppedError:
            if last is not None:
                raise last from None
            raise
        pause = asked_pause(last.retry_after, retry)
        if stop is None:
            await asyncio.sleep(pause)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
        if stop.is_set():
            raise last


async def _before(stop: asyncio.Event | None, call: Awaitable[_T], patience: float) -> _T:
    """The result of a call. Raises StoppedError if `stop` is set before it."""
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
    """Cancels tasks and waits `patience` seconds for their end. True if all have ended; the others are abandoned."""
    for task in tasks:
        task.cancel()
        # Otherwise asyncio logs its exception as never retrieved.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not tasks:
        return True
    _, late = await asyncio.wait(tasks, timeout=max(0.0, patience))
    return not late
