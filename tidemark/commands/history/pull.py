"""A pull: what is missing is asked for piece by piece, kept in the journal, and becomes the file at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from tidemark.commands.history import files
from tidemark.commands.history.azure_monitor import Answer
from tidemark.commands.history.journal import Journal, Piece, opened
from tidemark.commands.history.model import (
    DAY,
    MINUTE,
    POINTS,
    SETTLING,
    Minutes,
    Point,
    PullError,
    PullPlan,
    Source,
    Span,
    answered,
    counts,
    missing,
    pieces,
    totals,
    window,
)
from tidemark.commands.history.sources import every_entity
from tidemark.foundation.errors import UnavailableError

ATTEMPTS = 8
"""Requests for one answer: with the waits below, four minutes of a service that is away."""

FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0
"""Seconds before the next request where the service does not say; they double."""

PATIENCE = 600.0
"""The longest wait that is asked for and kept to. Resource Manager counts requests by the hour, and asks for minutes."""

REASKED = 2
"""Times that minutes are asked for again which an answer left out. Chosen: what is missing then is a gap in Azure Monitor."""

ONE_SERIES = 10
"""Time series of one entity: one. More would be added up."""

_T = TypeVar("_T")


class Reader(Protocol):
    """Answers about metrics: `azure_monitor.MetricsReader`."""

    async def read(self, source: Source, span: Span, *, top: int) -> Answer: ...
    async def names(self, source: Source, span: Span) -> list[str]: ...


class Progress(Protocol):
    """Shows how far a pull is: `begin` with the minutes to ask for, `advance` with those that came, `waiting` with why."""

    def begin(self, minutes: int) -> None: ...
    def advance(self, minutes: int) -> None: ...
    def waiting(self, reason: str) -> None: ...


class Result(Struct, frozen=True):
    """The whole file, how many minutes were new, for how many no answer had a value, and how far this clock is from
    Azure's (seconds, ahead is positive).
    """

    minutes: Minutes
    new: int
    untold: int
    clock_offset: float


class Puller:
    """Asks until it is answered. `sleep` waits; `clock` is this machine's."""

    def __init__(
        self,
        reader: Reader,
        progress: Progress,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._reader = reader
        self._progress = progress
        self._clock = clock
        self._sleep = sleep
        self._untold: set[int] = set()
        self._offset = 0.0

    async def pull(self, wanted: PullPlan, days: int, path: Path) -> Result:
        """Reads what the file at `path` lacks of the last `days`, and writes it anew. Raises PullError; what was read
        until then is kept for the next pull to the same file.
        """
        files.check_place(path)
        with opened(path, wanted) as journal:
            before = files.load(path, wanted.target, wanted.source)
            now = await self._now(wanted)
            known = before.keys() | journal.minutes.keys()
            asked = missing(window(now, days, known), known)
            self._progress.begin(sum(map(len, asked)))
            for span in pieces(asked):
                arrivals = totals(await self._series(wanted.arrivals, span, top=ONE_SERIES), span)
                instances = None if wanted.plan is None else await self._instances(wanted.plan, span)
                journal.add(Piece(span.begin, arrivals, instances))
                self._progress.advance(len(span))
            minutes = before | journal.minutes
            await self._require_arrivals(wanted, minutes, now, journal)
            files.save(path, wanted.target, wanted.source, minutes)
            journal.remove()
        return Result(minutes, len(minutes.keys() - before.keys()), len(self._untold), self._offset)

    async def _now(self, wanted: PullPlan) -> float:
        """Now by Azure's clock: this machine's may be ahead, and then minutes would count as over that are not. Shows, too,
        before anything long begins, that both resources can be read.
        """
        here = self._clock()
        last = int(here // MINUTE) - SETTLING
        answer = await self._answer(wanted.arrivals, Span(last - 1, last))
        if wanted.plan is not None:
            await self._answer(wanted.plan, Span(last - 1, last))
        there = here if answer.date is None else answer.date
        self._offset = here - there
        return there

    async def _instances(self, plan: Source, span: Span) -> list[int | None]:
        """The spans are halved until all time series fit into an answer: those beyond the limit are cut silently."""
        top = max(POINTS // len(span), ONE_SERIES)
        series = await self._series(plan, span, top=top)
        if len(series) < top or len(span) == 1:
            return counts(series, span)
        middle = (span.begin + span.end) // 2
        halves = Span(span.begin, middle), Span(middle, span.end)
        return [count for half in halves for count in await self._instances(plan, half)]

    async def _series(self, source: Source, span: Span, *, top: int) -> list[list[Point]]:
        """The time series of `span`. Where there are some they have every minute, if only that it has no value: minutes left
        out are asked for again, and counted when they stay out.
        """
        series = (await self._answer(source, span, top=top)).series
        lacks = _left_out(series, span)
        for _ in range(REASKED):
            for gap in lacks:
                series = [*series, *(await self._answer(source, gap, top=top)).series]
            lacks = _left_out(series, span)
        self._untold |= {minute for gap in lacks for minute in gap.minutes}
        return series

    async def _answer(self, source: Source, span: Span, *, top: int = ONE_SERIES) -> Answer:
        return await self._asked(lambda: self._reader.read(source, span, top=top))

    async def _asked(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """The answer of the first request that has one. Raises PullError when none of ATTEMPTS has."""
        backoff = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await request()
            except UnavailableError as error:
                # "After 0 s" is no wait: all attempts would be over at once.
                wait = error.retry_after or backoff
                if attempt == ATTEMPTS or wait > PATIENCE:
                    raise PullError(
                        f"{error}; what was read is kept, and the same command goes on there"
                        + (f", in {wait:g} s at the earliest" if error.retry_after else "")
                    ) from error
                self._progress.waiting(f"waiting {wait:g} s: {error}")
                await self._sleep(wait)
                if not error.retry_after:
                    backoff = min(backoff * 2, LONGEST_WAIT)
        raise AssertionError("the last attempt returns or raises")

    async def _require_arrivals(
        self, wanted: PullPlan, minutes: Minutes, now: float, journal: Journal
    ) -> None:
        """Raises PullError where no minute has a value: a name that does not exist looks the same as one without traffic."""
        if any(minute.arrivals is not None for minute in minutes.values()):
            return
        everything = every_entity(wanted.arrivals)
        known: list[str] = []
        if everything is not None:
            here = int(now // MINUTE)
            known = await self._asked(lambda: self._reader.names(everything, Span(here - DAY, here)))
        journal.remove()
        names = f" In the last day it had values of {', '.join(known[:20])}" if known else ""
        raise PullError(
            f"none of {len(minutes)} minutes has a value of {wanted.arrivals.metric} for {wanted.source}: Azure Monitor knows "
            f"nothing of a name without messages, whether it exists or not.{names}"
        )


def _left_out(series: list[list[Point]], span: Span) -> list[Span]:
    """Minutes that time series say nothing of; without any, there is nothing to say."""
    return missing(span, answered(series, span)) if series else []
