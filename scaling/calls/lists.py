"""Lists in place of single reads: where many targets read resources of the same parent, one list answers all of them.

Where a list fails, each reader reads its own resource, since a right to the resource may not include the list; so does a
reader whose resource the list lacks. After throttling the limiter decides whether single reads must wait as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable
from functools import partial
from typing import Generic, TypeVar

from scaling.calls.budgets import LIST_FROM
from scaling.calls.limiter import CallRefusedError, urgent
from tidemark.foundation.gathering import AskedOnce
from tidemark.foundation.sanitize import describe_error

FRESH = 10.0
"""Seconds for which a list answers: all readers of one collection come within them."""

LIST_DEADLINE = 8.0
"""Seconds that a list may take; of the 15 s of a collection the rest is left for single reads."""

NOT_AGAIN = 600.0
"""Seconds until a failed list is tried again. Chosen: a role assignment takes up to ten minutes to act."""

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Lists(Generic[_T]):
    """Belongs to one event loop."""

    def __init__(self, throttled: Collection[int] = (429,)) -> None:
        """`throttled` are the statuses by which the service refuses too many calls."""
        self._throttled = throttled
        self._readers: dict[object, tuple[Hashable, ...]] = {}
        self._counts: Counter[Hashable] = Counter()
        self._warned: set[str] = set()
        self.once: AskedOnce[_T] = AskedOnce(self._failed_for)

    def join(self, reader: object, *parents: Hashable) -> None:
        """Counts a reader of something that a list of each of these parents holds."""
        if reader not in self._readers:
            self._readers[reader] = parents
            self._counts.update(parents)

    def leave(self, reader: object) -> bool:
        """Removes a reader; returns whether it was the last one."""
        self._counts.subtract(self._readers.pop(reader, ()))
        return not self._readers

    def readers(self, parent: Hashable) -> int:
        return self._counts[parent]

    async def of(
        self,
        parent: Hashable,
        ask: Callable[[], Awaitable[_T]],
        *,
        now: float,
        what: str,
        least: int = LIST_FROM,
        fresh: float = FRESH,
        version: str = "",
    ) -> _T | None:
        """The list that `ask` reads, once for all readers; None where each reader reads by itself. `what` names it in the log."""
        if self._counts[parent] < least:
            return None
        try:
            return await self.once.get((parent, version), partial(self._asked, ask, what), now=now, age=fresh)
        except Exception:  # `_asked` has logged it; each reader reads by itself
            return None

    async def _asked(self, ask: Callable[[], Awaitable[_T]], what: str) -> _T:
        try:
            with urgent():  # else the single reads that it replaces would use up its budget
                async with asyncio.timeout(LIST_DEADLINE):
                    return await ask()
        except Exception as error:
            if not self._is_throttled(error):
                text = "%s cannot be listed, so each is read by itself; tried again every %g min: %s"
                level = (
                    logging.DEBUG if what in self._warned else logging.WARNING
                )  # a missing role may never be given
                logger.log(level, text, what, NOT_AGAIN / 60, describe_error(error))
                self._warned.add(what)
            raise

    def _is_throttled(self, error: BaseException) -> bool:
        status = getattr(getattr(error, "response", None), "status_code", None)
        return isinstance(error, CallRefusedError) or status in self._throttled

    def _failed_for(self, error: BaseException) -> float:
        is_permanent = isinstance(error, Exception) and not self._is_throttled(error)
        return NOT_AGAIN if is_permanent else FRESH
