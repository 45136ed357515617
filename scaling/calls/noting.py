"""Once a minute a process notes what it has called, where others can read it: a row of its own in a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Protocol

from msgspec import Struct

from scaling.calls.gate import Gate
from scaling.calls.usage import CallsView, ProcessCalls, calls_line, is_tight, process_calls
from tidemark.foundation.log.tail import Line
from tidemark.foundation.sanitize import told

EVERY = 55.0
"""Seconds between two notes: the timers are a minute apart, and come early sometimes."""

LOGGED_EVERY = 595.0
"""Seconds between two log lines, while no call is refused."""

DEADLINE = 5.0
"""Seconds a note may take: what the function found waits for it."""

LASTING = 590.0
"""Seconds for which calls have to be refused again and again before people are told: a burst gets its turn by itself."""

KEPT = 86_400.0
"""Seconds the rows of processes that are gone are kept."""


class CallCounts(Protocol):
    """The rows of all processes."""

    async def put(self, counts: ProcessCalls) -> None: ...

    async def read(self) -> Sequence[ProcessCalls]: ...

    async def forget(self, *, before: float) -> int:
        """Deletes rows of processes that told nothing since then: a bounded number, which is returned."""
        ...

    async def aclose(self) -> None: ...


class Noted(Struct, frozen=True):
    """What there is to tell; `short` are the budgets that have not sufficed for a while."""

    lines: tuple[Line, ...] = ()
    warnings: tuple[str, ...] = ()
    short: tuple[CallsView, ...] = ()


class Noting:
    """Belongs to one process, which has this name."""

    def __init__(self, gate: Gate, counts: CallCounts, process: str) -> None:
        self.counts = counts
        self._gate = gate
        self._process = process
        self._noted = self._forgot = -inf
        self._logged = inf
        self._refused_since: dict[tuple[str, str], float] = {}

    async def note(self, now: float) -> Noted:
        """Notes what was called, if anything was and the last note is a minute old."""
        if now < self._noted + EVERY:
            return Noted()
        counts = process_calls(self._process, self._gate.usage(), now)
        if not counts.calls:
            return Noted()
        self._noted, self._logged = (
            now,
            min(self._logged, now),
        )  # the first ten minutes begin with the first call
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the counts are for people to look at, and end nothing
            return Noted(lines, (f"calls: not noted: {told(error) or 'no answer'}",), short)
        return Noted(lines, (), short)

    def _short(self, counts: ProcessCalls) -> tuple[CallsView, ...]:
        """Those refused in every note of a while."""
        refused = {(each.api, each.scope): each for each in counts.calls if each.refused_minute}
        self._refused_since = {key: self._refused_since.get(key, counts.at) for key in refused}
        return tuple(each for key, each in refused.items() if counts.at >= self._refused_since[key] + LASTING)

    async def aclose(self) -> None:
        await self.counts.aclose()
