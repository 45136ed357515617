"""Lists in place of single reads: what many targets of one moment read of the same place is asked once, for all of them.

What cannot be listed is read one by one, for a right to the single one may not suffice for the list; so is what a list lacks.
Where too much was asked, the gate knows whether single reads are too much as well, and refuses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable
from functools import partial
from typing import Generic, TypeVar

from scaling.calls.budgets import LIST_FROM
from scaling.calls.gate import CallRefusedError, urgent
from tidemark.foundation.gathering import AskedOnce
from tidemark.foundation.sanitize import told

FRESH = 10.0
"""Seconds for which a list is the answer: all readers of one collection come within them."""

LIST_DEADLINE = 8.0
"""Seconds a list may take: there must be time left to read one by one."""

NOT_AGAIN = 600.0
"""Seconds until a list that could not be read is tried again."""

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Lists(Generic[_T]):
    """Belongs to one event loop."""

    def __init__(self, throttled: Collection[int] = (429,)) -> None:
        """`throttled` are the answers that say that too much was asked."""
        self._throttled = throttled
        self._readers: set[object] = set()
        self._counts: Counter[Hashable] = Counter()
        self._warned: set[str] = set()
        self.once: AskedOnce[_T] = AskedOnce(self._failed_for)

    def join(self, reader: object, *places: Hashable) -> None:
        """`reader` reads something that may be listed with others of a place."""
        if reader not in self._readers:
            self._readers.add(reader)
            self._counts.update(places)

    def leave(self, reader: object) -> bool:
        """Whether it was the last one."""
        self._readers.discard(reader)
        return not self._readers

    def readers(self, place: Hashable) -> int:
        return self._counts[place]

    async def of(
        self,
        place: Hashable,
        ask: Callable[[], Awaitable[_T]],
        *,
        now: float,
        what: str,
        least: int = LIST_FROM,
        fresh: float = FRESH,
        version: str = "",
    ) -> _T | None:
        """What `ask` lists, asked once for all; None where each is to be read by itself. `what` names it in the log."""
        if self._counts[place] < least:
            return None
        try:
            return await self.once.get((place, version), partial(self._asked, ask, what), now=now, age=fresh)
        except Exception:  # noqa: BLE001 - `_asked` has logged it; each is read by itself
            return None

    async def _asked(self, ask: Callable[[], Awaitable[_T]], what: str) -> _T:
        try:
            with urgent():  # or single reads, which it spares, would keep it from being read
                async with asyncio.timeout(LIST_DEADLINE):
                    return await ask()
        except Exception as error:
            if not self._is_throttled(error):
                text = "%s cannot be listed, so each is read by itself; tried again every %g min: %s"
                level = logging.DEBUG if what in self._warned else logging.WARNING  # it may stay so for good
                logger.log(level, text, what, NOT_AGAIN / 60, told(error))
                self._warned.add(what)
            raise

    def _is_throttled(self, error: BaseException) -> bool:
        status = getattr(getattr(error, "response", None), "status_code", None)
        return isinstance(error, CallRefusedError) or status in self._throttled

    def _failed_for(self, error: BaseException) -> float:
        lasting = isinstance(error, Exception) and not self._is_throttled(error)
        return NOT_AGAIN if lasting else FRESH
