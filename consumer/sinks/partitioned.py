"""What ordered sinks have in common: one write of a partition at a time, and, without transactions, a writer for each claim."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from consumer.errors import FencedError
from consumer.model import Batch, Claim, Outcome, Record, Routes, Write, WriteResult
from consumer.options import BatchLimits
from tidemark.foundation.errors import UnavailableError

log = logging.getLogger("tidemark.consumer")

WRITTEN = WriteResult(Outcome.WRITTEN)
CLOSING = 4.0
"""Seconds for writes under way and connections to end. Chosen: a second less than the consumer waits for all its sinks."""

Results = Sequence[WriteResult]


def part_of(record: Record) -> str:
    """Names a record among those of its event that are written again. Settings that make another number of records make other ones."""
    return f"{record.index}of{record.of}"


class PartitionWriter(Protocol):
    """Writes the records of one partition under one claim."""

    async def write(self, records: Sequence[Record]) -> Results:
        """One result per record. One call runs at a time, and each begins with the first record that is not written yet.

        Raises FencedError when another consumer writes the partition. After any other exception the outcome is unknown.
        """
        ...

    async def aclose(self) -> None: ...


class OpenWrite:
    """The write of one partition under one claim that runs or failed last."""

    running: asyncio.Future[Results] | None = None
    open_from: int | None = None
    """The first event that was tried and is not written."""


_Position = TypeVar("_Position", bound=OpenWrite)


def warn_if_rerouted(claim: Claim, mark: int) -> None:
    """Logs that events between checkpoint and mark went by other routes, so that what a new route would send of them is skipped."""
    checkpoint = claim.checkpoint
    if (
        checkpoint is None
        or checkpoint.origin.rerouted != checkpoint.sequence_number
        or mark <= checkpoint.sequence_number
    ):
        return
    log.warning(
        "partition %s: the routes have changed since the checkpoint at event %d, and the sink has what the routes of before sent it up"
        " to event %d: what a new route would send it of these events is not written. To get it, add a hub with a consumer group of"
        " its own and this route alone, which writes all events from its start on",
        *(claim.partition, checkpoint.sequence_number, mark),
    )


class PartitionWrites(Generic[_Position]):
    """Lets one write of a partition run at a time, by `start`. A write goes on when its deadline has passed or its caller is
    cancelled; the next one waits for it. A batch that comes while an earlier one is not written gets RETRY, because what is
    stored about the position would cover the earlier one. `describe` words an error.
    """

    def __init__(
        self,
        start: Callable[[_Position, Sequence[Record]], asyncio.Future[Results]],
        describe: Callable[[BaseException], str],
    ) -> None:
        self.positions: dict[str, _Position] = {}
        """By partition those that are attached."""
        self._start = start
        self._describe = describe

    async def write(self, batch: Batch, *, deadline: float) -> Results:
        """Raises FencedError, also for a partition that is not attached."""
        if not batch.records:
            return []
        partition = batch.records[0].event.partition
        position = self.positions.get(partition)
        if position is None:
            raise FencedError(f"partition {partition} is not attached to the sink: no claim, no writing")
        if not await _ended(position.running, deadline):
            return _again(batch, "the write before has not ended")
        first = batch.records[0].event.sequence_number
        if position.open_from is not None and position.open_from < first:
            return _again(batch, f"the batch from {position.open_from} on is not written yet")
        position.open_from = first
        position.running = self._start(position, batch.records)
        if not await _ended(position.running, deadline):
            return _again(batch, "no answer by the deadline; the outcome is unknown")
        try:
            results = position.running.result()
        except FencedError:
            raise
        except (
            Exception,
            asyncio.CancelledError,
        ) as error:  # whatever it is, what is stored shows the outcome
            return _again(batch, self._describe(error))
        pairs = zip(batch.records, results, strict=True)
        unwritten = (r.event.sequence_number for r, result in pairs if result.outcome is Outcome.RETRY)
        position.open_from = next(unwritten, None)
        return results


@dataclass(eq=False)
class _Attached(OpenWrite):
    """One partition under one claim."""

    writer: PartitionWriter


class PartitionedSink(ABC):
    """An OrderedSink: a lane is a partition, records come in order, all records of an event in one batch; see PartitionWrites."""

    transactional = False

    def __init__(self, batches: BatchLimits) -> None:
        self._routes = Routes(by_partition=True, appends=True, batches=batches)
        self._writes = PartitionWrites[_Attached](
            lambda position, records: self._start(position.writer.write(records)),
            lambda error: f"{type(error).__name__}: {error}",
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    @abstractmethod
    def writer(self, claim: Claim) -> PartitionWriter:
        """The writer of a claim. Does no I/O."""

    @abstractmethod
    async def open(self) -> Routes: ...

    @abstractmethod
    def prepare(self, write: Write) -> Record: ...

    @abstractmethod
    def write_again(self, records: Sequence[Record]) -> AsyncIterator[Results]:
        """Writes records of one event apart from its partition's mark, which may be far beyond it, each of them once, however often this
        is repeated and with whichever others. Yields the results of the next records, as PartitionWriter.write gives them.
        """

    async def replay(self, records: Sequence[Record], *, deadline: float) -> Results:
        """Writes records of a dead letter's event, whatever the mark. Raises UnavailableError; see OrderedSink."""
        results: list[WriteResult] = []
        try:
            async with asyncio.timeout_at(deadline):
                async for some in self.write_again(records):
                    results += some
        except Exception as error:  # whatever it is, trying again shows the outcome
            why = f"{type(error).__name__}: {error}"
            if not results:
                raise UnavailableError(why) from error
            results += [WriteResult(Outcome.RETRY, reason=why)] * (len(records) - len(results))
        return results

    async def routes(self) -> Routes:
        return self._routes

    def attach(self, claim: Claim) -> None:
        self.detach(claim.partition)
        self._writes.positions[claim.partition] = _Attached(self.writer(claim))

    def detach(self, partition: str) -> None:
        position = self._writes.positions.pop(partition, None)
        if position is not None:
            self._start(_end(position))

    async def aclose(self) -> None:
        """Writes under way may end within CLOSING; then their outcomes are unknown."""
        for partition in list(self._writes.positions):
            self.detach(partition)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSING)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def write(self, batch: Batch, *, deadline: float) -> Results:
        """Raises FencedError, also for a partition that is not attached."""
        return await self._writes.write(batch, deadline=deadline)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because the caller may have stopped waiting


async def _end(position: _Attached) -> None:
    """Closes a writer when its write has ended."""
    if position.running is not None:
        await asyncio.wait([position.running])
    try:
        await position.writer.aclose()
    except Exception as error:  # what was written stays written
        log.debug("closing the writer of a partition failed: %s", error)


async def _ended(running: asyncio.Future[Any] | None, deadline: float) -> bool:
    if running is None or running.done():
        return True
    left = deadline - asyncio.get_running_loop().time()
    done, _ = await asyncio.wait([running], timeout=max(0.0, left))
    return bool(done)


def _again(batch: Batch, reason: str) -> Results:
    return [WriteResult(Outcome.RETRY, reason=reason)] * len(batch.records)
