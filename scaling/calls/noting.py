"""Each process writes the numbers of its calls into a row of its own once a minute, so that others can read them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Protocol

from msgspec import Struct

from scaling.calls.limiter import CallLimiter
from scaling.calls.usage import CallsView, ProcessCalls, calls_line, is_tight, process_calls
from tidemark.foundation.log.tail import Line
from tidemark.foundation.sanitize import describe_error

EVERY = 55.0
"""Seconds between two notes: the timers fire once a minute, sometimes a few seconds early."""

LOGGED_EVERY = 595.0
"""Seconds between two log lines, while no call is refused."""

DEADLINE = 5.0
"""Seconds that a note may take, since the function ends after it."""

NOTIFY_AFTER = 590.0
"""Seconds for which every note has refusals before webhooks are notified: a burst ends by itself."""

KEPT = 86_400.0
"""Seconds for which rows of ended processes are kept."""


class CallCounts(Protocol):
    """The rows of all processes."""

    async def put(self, counts: ProcessCalls) -> None: ...

    async def read(self) -> Sequence[ProcessCalls]: ...

    async def forget(self, *, before: float) -> int:
        """Deletes rows not written since then, a bounded number at a time; returns how many."""
        ...

    async def aclose(self) -> None: ...


class Noted(Struct, frozen=True):
    """What a note reports; `short` are the budgets that were too small for NOTIFY_AFTER seconds."""

    lines: tuple[Line, ...] = ()
    warnings: tuple[str, ...] = ()
    short: tuple[CallsView, ...] = ()


class Noting:
    """The notes of one process, under its name."""

    def __init__(self, limiter: CallLimiter, counts: CallCounts, process: str) -> None:
        self.counts = counts
        self._limiter = limiter
        self._process = process
        self._noted = self._forgot = -inf
        self._logged = inf
        self._refused_since: dict[tuple[str, str], float] = {}

    async def note(self, now: float) -> Noted:
        """Writes the numbers, if there were calls and the last note is a minute old."""
        if now < self._noted + EVERY:
            return Noted()
        counts = process_calls(self._process, self._limiter.usage(now), now)
        if not counts.calls:
            return Noted()
        self._noted = now
        self._logged = min(self._logged, now)  # the first ten minutes begin with the first call
        short = self._short(counts)
        lines: tuple[Line, ...] = ()
        if is_tight(counts) or now >= self._logged + LOGGED_EVERY:
            self._logged, lines = now, (calls_line(counts),)
        try:
            async with asyncio.timeout(DEADLINE):
                await self.counts.put(counts)
                if now >= self._forgot + KEPT:
                    self._forgot = now
                    await self.counts.forget(before=now - KEPT)
        except Exception as error:  # the numbers are for people; no error here may end a function
            return Noted(lines, (f"calls: not noted: {describe_error(error) or 'no answer'}",), short)
        return Noted(lines, (), short)

    def _short(self, counts: ProcessCalls) -> tuple[CallsView, ...]:
        """The budgets with refusals in every note for NOTIFY_AFTER seconds."""
        refused = {(view.api, view.scope): view for view in counts.calls if view.refused_minute}
        self._refused_since = {key: self._refused_since.get(key, counts.at) for key in refused}
        return tuple(
            view for key, view in refused.items() if counts.at >= self._refused_since[key] + NOTIFY_AFTER
        )

    async def aclose(self) -> None:
        await self.counts.aclose()
