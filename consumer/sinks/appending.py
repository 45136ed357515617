"""Appends rows in the order of each partition, exactly once, by a mark that is stored with the rows.

The mark of a partition is the number of its last event that is stored. An append stores rows and the new mark in one step, if
the stored mark is still the one that the append began with. So of two consumers of a partition one appends and the other is
refused, and after an unknown outcome the stored mark says what became of it. The checkpoint of the consumer may lag behind.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import reduce
from operator import or_
from typing import Protocol

from consumer.errors import FencedError
from consumer.model import NOTHING_SETTLED, Claim, Event, Outcome, Record, Rejection, WriteResult
from consumer.sinks.partitioned import WRITTEN, PartitionedSink, Results, warn_if_rerouted

log = logging.getLogger("tidemark.consumer")


_BEHIND = WriteResult(Outcome.RETRY, reason="an event before it is rejected first", retry_after=0.0)


class MovedError(Exception):
    """The stored mark is not the one that the append began with: nothing was appended."""


class RefusedError(Exception):
    """The target refuses these rows for what is in one of them, and always will: nothing was appended. The text says why."""


class AppendLog(Protocol):
    """The rows of one partition, as one claim sees them."""

    mark: int
    """The number of the last event that is stored; NOTHING_SETTLED without one."""

    async def append(self, records: Sequence[Record], last: int) -> None:
        """Stores the rows and the mark `last` in one step. After any error but MovedError and RefusedError the outcome is unknown."""
        ...


class AppendingSink(PartitionedSink):
    """The sinks of rows. Records at or below the mark are WRITTEN already."""

    @abstractmethod
    async def load(self, claim: Claim) -> AppendLog:
        """The rows as they are stored now. Any exception means that they are unknown."""

    @abstractmethod
    async def load_event(self, event: Event, part: str = "") -> AppendLog:
        """A log of this one event, or of a part of its records, apart from that of its partition: its mark is NOTHING_SETTLED until
        that is written again.
        """

    def writer(self, claim: Claim) -> Appender:
        return Appender(claim, self.load)

    async def write_again(self, records: Sequence[Record]) -> AsyncIterator[Results]:
        event, of = records[0].event, records[0].of
        if (await self.load_event(event)).mark != NOTHING_SETTLED:  # an older version wrote all of them
            yield [WRITTEN] * len(records)
            return
        parts: dict[int, list[Record]] = {}
        for record in records:
            parts.setdefault(record.index // _BITS, []).append(record)
        answers: dict[int, WriteResult] = {}
        for number, part in parts.items():
            answers |= await _append_again(await self.load_event(event, f"{number}of{of}"), part)
        yield [answers[record.index] for record in records]


_BITS = 62
"""Records of an event for each mark, which is stored as a signed number of 64 bits."""


async def _append_again(stored: AppendLog, records: Sequence[Record]) -> dict[int, WriteResult]:
    """Appends the records whose bit the mark does not have, in one step; if they are refused, in halves. By index the results."""
    mark = 0 if stored.mark == NOTHING_SETTLED else stored.mark
    bits = {record.index: 1 << record.index % _BITS for record in records}
    new = [record for record in records if not mark & bits[record.index]]
    answers = dict.fromkeys(bits, WRITTEN)
    try:
        if new:
            await stored.append(new, reduce(or_, (bits[record.index] for record in new), mark))
    except RefusedError as error:
        if len(new) == 1:
            return answers | {new[0].index: _rejected(error)}
        middle = len(new) // 2
        answers |= await _append_again(stored, new[:middle])
        answers |= await _append_again(stored, new[middle:])
    return answers


class Appender:
    """A PartitionWriter."""

    def __init__(self, claim: Claim, load: Callable[[Claim], Awaitable[AppendLog]]) -> None:
        self._claim = claim
        self._load_log = load
        self._log: AppendLog | None = None
        self._mark: int | None = None  # that this claim last knew
        self._tried: int | None = None  # the mark of the last append that was tried

    async def aclose(self) -> None:
        """Nothing to close."""

    async def write(self, records: Sequence[Record]) -> Results:
        last = records[-1].event.sequence_number
        stored = self._log or await self._load()
        remaining = [record for record in records if record.event.sequence_number > stored.mark]
        results = await self._append(stored, remaining, last) if remaining else []
        return [*[WRITTEN] * (len(records) - len(remaining)), *results]

    async def _append(self, stored: AppendLog, records: Sequence[Record], last: int) -> Results:
        """Appends records of one event or more. If they are refused, the first event that is at fault is found by halving, so that
        its dead letter is stored before the mark passes it.
        """
        self._tried, self._log = last, None  # until it is known what became of it
        try:
            await stored.append(records, last)
        except RefusedError as error:
            self._log = stored
            return await self._append_halves(stored, records, last, error)
        except MovedError:
            await self._load()
            if self._mark != last:  # otherwise it is ours: an answer was lost, and the repetition refused
                raise
        else:
            self._log, self._mark = stored, last
        return [WRITTEN] * len(records)

    async def _append_halves(
        self, stored: AppendLog, records: Sequence[Record], last: int, error: RefusedError
    ) -> Results:
        numbers = sorted({record.event.sequence_number for record in records})
        if len(numbers) == 1:
            return [_rejected(error)] * len(records)
        middle = numbers[(len(numbers) - 1) // 2]
        size = sum(record.event.sequence_number <= middle for record in records)
        results = await self._append(stored, records[:size], middle)
        if results[-1] is WRITTEN:
            return [*results, *await self._append(self._log or await self._load(), records[size:], last)]
        return [*results, *[_BEHIND] * (len(records) - size)]

    async def _load(self) -> AppendLog:
        """Reads the mark. Raises FencedError if another consumer has moved it."""
        claim, known = self._claim, self._mark
        loaded = await self._load_log(claim)
        if known is None:
            _compare(claim, loaded.mark)
        elif loaded.mark > known and loaded.mark != self._tried:
            raise FencedError(
                f"partition {claim.partition}: event {loaded.mark} is stored, and this consumer has stored up to {known}"
            )
        elif loaded.mark < known:
            log.warning(
                "partition %s: rows up to event %d were stored, and now they end at %s: the target was replaced or restored."
                " Later events are stored from here on",
                *(claim.partition, known, _named(loaded.mark)),
            )
        self._log, self._mark = loaded, loaded.mark
        return loaded


def _rejected(error: RefusedError) -> WriteResult:
    return WriteResult(Outcome.REJECT, reason=str(error), rejection=Rejection("refused", str(error)))


def _compare(claim: Claim, mark: int) -> None:
    """Logs what a person should know when checkpoint and mark differ: ahead of the mark, the rows in between are not in the target."""
    warn_if_rerouted(claim, mark)
    settled = claim.checkpoint.sequence_number if claim.checkpoint else NOTHING_SETTLED
    if settled > mark:
        log.info(
            "partition %s: the target has rows up to %s, the checkpoint is at event %d, where this sink goes on. Events in between"
            " went to another sink or target, were rejected, or were dropped",
            *(claim.partition, _named(mark), settled),
        )


def _named(mark: int) -> str:
    return "no event" if mark == NOTHING_SETTLED else f"event {mark}"
