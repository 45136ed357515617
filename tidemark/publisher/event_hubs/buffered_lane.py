"""One partition of a BufferedProducer: its buffer, and the task that empties it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple, Protocol

from tidemark.publisher import errors
from tidemark.publisher.errors import PublishError
from tidemark.publisher.event_hubs.batching import PartitionBuffer
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent

TOO_LATE = "the buffered producer was closed before the event was sent"
_FINAL = errors.ProducerDisconnectedError, errors.InvalidProducerStateError


class Entry(NamedTuple):
    event: PublishableEvent
    encoded: EncodedEvent
    bookmark: str | None


class Front(Protocol):
    """The producer, as a lane sees it."""

    stop_on_failure: bool

    @property
    def must_hurry(self) -> bool:
        """Whether an enqueue waits for room."""

    def release(self, events: int, size: int, *, exempt: bool) -> None: ...

    async def publish(self, partition_id: str, entries: list[Entry]) -> PublishError | None: ...

    async def report_unpublished(
        self, partition_id: str, entries: list[Entry], error: PublishError
    ) -> None: ...


class Lane:
    """One partition: its buffer, and the task that empties it."""

    def __init__(self, front: Front, partition_id: str, buffer: PartitionBuffer[Entry]) -> None:
        self.partition_id = partition_id
        self.enqueued_count = 0
        self._settled_count = 0
        self._front = front
        self.buffer = buffer
        self._flush_to = 0
        self._final_error: PublishError | None = None
        self.woken = asyncio.Event()
        self._progress = asyncio.Condition()
        self._task = asyncio.create_task(self._work(), name=f"publisher of partition {partition_id}")

    def add(self, entry: Entry, size: int) -> None:
        self.enqueued_count += 1
        self.buffer.add(entry, size, self._now())
        self.woken.set()

    def require_usable(self) -> None:
        if self._final_error is not None:
            raise type(self._final_error)(str(self._final_error))

    async def wait_settled(self, mark: int) -> None:
        """Wait until the first `mark` events are settled, or their set needs more events. They are sent at once."""
        self._flush_to = max(self._flush_to, mark)
        self.woken.set()
        async with self._progress:
            await self._progress.wait_for(lambda: self._settled_count >= mark or self.buffer.is_short)

    async def stop(self) -> None:
        """End the running set once its outcome is known, and report the events that were not sent."""
        self._task.cancel()
        await asyncio.wait({self._task})
        unsent = self.buffer.drain()
        if unsent:
            error = errors.ProducerClosedError(TOO_LATE)
            await self._front.report_unpublished(self.partition_id, unsent, error)
            await self._count_settled(len(unsent))

    async def _work(self) -> None:
        while True:
            self.woken.clear()
            hurry = self._flush_to > self._settled_count or self._front.must_hurry
            if self.buffer.is_ready(self._now(), hurry=hurry):
                await self._publish_next_set()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self.buffer.ready_at()):
                        await self.woken.wait()

    async def _publish_next_set(self) -> None:
        """Publish the next set, or report why it cannot be published."""
        is_exact = self.buffer.is_exact
        entries, size = self.buffer.take()
        try:
            error = self._final_error
            if error is None:
                error = await self._front.publish(self.partition_id, entries)
            else:
                await self._front.report_unpublished(self.partition_id, entries, error)
            if self._front.stop_on_failure or isinstance(error, _FINAL):
                self._final_error = error
        finally:
            self._front.release(len(entries), size, exempt=is_exact)
            await self._count_settled(len(entries))

    async def _count_settled(self, events: int) -> None:
        self._settled_count += events
        async with self._progress:
            self._progress.notify_all()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
