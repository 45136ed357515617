"""Appends rows in the order of each partition, exactly once, by a mark that is stored with the rows.

The mark of a partition is the number of its last event that is stored. An append stores rows and the new mark in one step, if
the stored mark is still the one that the append began with. So of two consumers of a partition one appends and the other is
refused, and after an unknown outcome the stored mark says what became of it. The checkpoint of the consumer may lag behind.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from consumer.errors import FencedError
from consumer.model import NOTHING_SETTLED, Batch, Claim, Outcome, Record, Routes, Write, WriteResult
from consumer.options import BatchLimits

log = logging.getLogger("tidemark.consumer")

_WRITTEN = WriteResult(Outcome.WRITTEN)


class MovedError(Exception):
    """The stored mark is not the one that the append began with: nothing was appended."""


class AppendLog(Protocol):
    """The rows of one partition, as one claim sees them."""

    mark: int
    """The number of the last event that is stored; NOTHING_SETTLED without one."""

    async def append(self, records: Sequence[Record], last: int) -> None:
        """Stores the rows and the mark `last` in one step. After any error but MovedError the outcome is unknown."""
        ...


@dataclass(eq=False)
class _Position:
    """One partition under one claim. One append at a time changes it."""

    claim: Claim
    log: AppendLog | None = None
    mark: int | None = None
    """The mark that this claim last knew."""
    tried: int | None = None
    """The mark of the last append that was tried."""
    open_from: int | None = None
    """The first event of the first batch that is not written."""
    running: asyncio.Task[None] | None = None


class AppendingSink(ABC):
    """The sinks of rows. A lane is a partition; records come in order, all records of an event in one batch.

    Records at or below the mark are WRITTEN already. `write` raises FencedError when the mark was moved by another consumer,
    and for a partition that is not attached. A batch that comes while an earlier one is not written gets RETRY, because the mark
    would cover the earlier one.
    """

    transactional = False
    ordered = True

    def __init__(self, batches: BatchLimits) -> None:
        self._routes = Routes(by_partition=True, batches=batches)
        self._positions: dict[str, _Position] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def load(self, claim: Claim) -> AppendLog:
        """The rows as they are stored now. Any exception means that they are unknown."""

    @abstractmethod
    async def open(self) -> Routes: ...

    @abstractmethod
    def prepare(self, write: Write) -> Record: ...

    async def routes(self) -> Routes:
        return self._routes

    def attach(self, claim: Claim) -> None:
        self._positions[claim.partition] = _Position(claim)

    def detach(self, partition: str) -> None:
        self._positions.pop(partition, None)

    async def aclose(self) -> None:
        """Ends appends under way; their outcomes are unknown."""
        for task in self._tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        if not batch.records:
            return []
        partition = batch.records[0].event.partition
        position = self._positions.get(partition)
        if position is None:
            raise FencedError(f"partition {partition} is not attached to the sink: no claim, no writing")
        if not await _ended(position.running, deadline):
            return _again(batch, "the append before has not ended")
        first = batch.records[0].event.sequence_number
        if position.open_from is not None and position.open_from < first:
            return _again(batch, f"the batch from {position.open_from} on is not written yet")
        position.open_from = first
        position.running = self._start(self._append(position, batch.records))
        if not await _ended(position.running, deadline):
            return _again(batch, "no answer by the deadline; the outcome is unknown")
        try:
            position.running.result()
        except FencedError:
            raise
        except (
            Exception,
            asyncio.CancelledError,
        ) as error:  # whatever it is, the stored mark shows the outcome
            return _again(batch, f"{type(error).__name__}: {error}")
        position.open_from = None
        return [_WRITTEN] * len(batch.records)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts an append, which goes on when its caller stops waiting."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because the caller may have stopped waiting

    async def _append(self, position: _Position, records: Sequence[Record]) -> None:
        last = records[-1].event.sequence_number
        if position.log is None:
            await self._load(position)
        stored = position.log
        assert stored is not None
        remaining = [record for record in records if record.event.sequence_number > stored.mark]
        if not remaining:
            return
        position.tried, position.log = last, None
        try:
            await stored.append(remaining, last)
        except MovedError:
            await self._load(position)
            if position.mark == last:  # ours: the answer of an attempt was lost, and its repetition refused
                return
            raise
        position.log, position.mark = stored, last

    async def _load(self, position: _Position) -> None:
        """Reads the mark. Raises FencedError if another consumer has moved it."""
        claim, known = position.claim, position.mark
        loaded = await self.load(claim)
        if known is None:
            _compare(claim, loaded.mark)
        elif loaded.mark > known and loaded.mark != position.tried:
            raise FencedError(
                f"partition {claim.partition}: event {loaded.mark} is stored, and this consumer has stored up to {known}"
            )
        elif loaded.mark < known:
            log.warning(
                "partition %s: rows up to event %d were stored, and now they end at %s: the target was replaced or restored."
                " Later events are stored from here on",
                *(claim.partition, known, _named(loaded.mark)),
            )
        position.log, position.mark = loaded, loaded.mark


def _compare(claim: Claim, mark: int) -> None:
    """Logs what a person should know when the checkpoint is ahead of the mark: the rows in between are not in the target."""
    settled = claim.checkpoint.sequence_number if claim.checkpoint else NOTHING_SETTLED
    if settled > mark:
        log.info(
            "partition %s: the target has rows up to %s, the checkpoint is at event %d, where this sink goes on. Events in between"
            " went to another sink or target, were rejected, or were dropped",
            *(claim.partition, _named(mark), settled),
        )


def _named(mark: int) -> str:
    return "no event" if mark == NOTHING_SETTLED else f"event {mark}"


async def _ended(running: asyncio.Task[None] | None, deadline: float) -> bool:
    if running is None or running.done():
        return True
    left = deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait([running], timeout=max(0.0, left))
    return bool(done)


def _again(batch: Batch, reason: str) -> Sequence[WriteResult]:
    return [WriteResult(Outcome.RETRY, reason=reason)] * len(batch.records)
