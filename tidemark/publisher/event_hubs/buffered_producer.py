"""A producer that collects events and publishes them in the background, like the one of the .NET client."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from tidemark.foundation.wording import count_text
from tidemark.publisher import errors
from tidemark.publisher.cancellation import is_unexpected
from tidemark.publisher.errors import PublishError
from tidemark.publisher.event_hubs.batch import FailedEvent, Published, SentSet, Unpublished
from tidemark.publisher.event_hubs.batching import BufferLimits, PartitionBuffer, SetLimits
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.model import SavedState

_log = logging.getLogger(__name__)

OnPublished = Callable[[Published], Awaitable[None] | None]
OnUnpublished = Callable[[Unpublished], Awaitable[None] | None]


TOO_LATE = "the buffered producer was closed before the event was sent"
_FINAL = errors.ProducerDisconnectedError, errors.InvalidProducerStateError


class Entry(NamedTuple):
    event: PublishableEvent
    encoded: EncodedEvent
    bookmark: str | None


class Lane:
    """One partition: its buffer, and the task that empties it."""

    def __init__(self, front: BufferedProducer, partition_id: str, buffer: PartitionBuffer[Entry]) -> None:
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


@dataclass(eq=False)
class BufferedProducer(AbstractAsyncContextManager["BufferedProducer"]):
    """Takes events one by one and publishes them in sets, one set at a time per partition and in order.

    An event goes to a partition by partition id, by key (hashed as the service does), or round robin. Every enqueued event is
    reported once, to `on_published` or to `on_unpublished`. Both may be coroutines; the next set of the partition waits for
    them; their exceptions are logged. Closing it closes the producer.

    With `stop_on_failure`, a partition publishes nothing after its first failed set: its order has no gap, and a saved state
    stays at that set.
    """

    producer: IdempotentProducer
    _: KW_ONLY
    on_unpublished: OnUnpublished
    on_published: OnPublished | None = None
    limits: BufferLimits | None = None
    stop_on_failure: bool = False

    def __post_init__(self) -> None:
        self._limits = self.limits or BufferLimits()
        self._lanes: dict[str, Lane] = {}
        self._first_sets: dict[str, int] = {}
        self._opening = asyncio.Lock()
        self._next_partition = 0
        self._events = 0
        self._bytes = 0
        self._exempt_events = 0  # of sets from before a restart, which may be larger than the limits
        self._exempt_bytes = 0
        self._waiting_enqueues = 0
        self._queue_for_room = asyncio.Lock()
        self._room_changed = asyncio.Event()
        self._is_closed = False

    # --- for applications

    @property
    def buffered_events(self) -> int:
        """Events that were enqueued and are not settled."""
        return self._events

    @property
    def buffered_bytes(self) -> int:
        return self._bytes

    async def resume(self, partition_id: str) -> SavedState:
        """Return the saved state of the partition. Call it before enqueueing events for the partition.

        If a set is pending, the first set waits until it has as many events as the pending one. These events do not count
        as buffered.
        """
        state = await self.producer.saved_state(partition_id)
        if partition_id in self._lanes:
            raise PublishError(
                f"partition {partition_id}: events were enqueued already; call resume before enqueue"
            )
        if state.pending is not None:
            self._first_sets[partition_id] = state.pending.count
        return state

    async def partition_for(self, partition_key: str) -> str:
        """The partition of a key."""
        return partition_of_key(partition_key, await self.producer.get_partition_ids())

    async def enqueue(
        self,
        event: PublishableEvent,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        bookmark: str | None = None,
    ) -> None:
        """Buffer the event; waits while the buffer is full.

        `bookmark` is the position of this partition's input after the event. Raises MessageTooLargeError, and
        ProducerDisconnectedError or InvalidProducerStateError if the partition accepts no more events.
        """
        if partition_id is not None and partition_key is not None:
            raise errors.PublishSettingsError(
                "partition_id and partition_key are both given; accepted: one of them, or none"
            )
        lane = await self._lane(await self._choose(partition_id, partition_key))
        self._require_open()  # the producer may have been closed meanwhile
        encoded, size = self.producer.encode(event)
        room = lane.buffer.limits.max_bytes
        if size > room:
            raise errors.MessageTooLargeError(
                f"partition {lane.partition_id}: an event takes {size} bytes, a message has room for {room}"
            )
        lane.require_usable()
        if not lane.buffer.is_short and (self._waiting_enqueues or not self._has_room(size)):
            await self._wait_for_room(size)
            lane.require_usable()
        self._events += 1
        self._bytes += size
        if lane.buffer.is_short:
            self._exempt_events += 1
            self._exempt_bytes += size
        lane.add(Entry(event, encoded, bookmark), size)

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send all buffered events without waiting for more; returns once all of them are settled.

        Raises FlushTimeoutError after the timeout in seconds; sending goes on. Raises it also if a set from before a
        restart (see `resume`) is incomplete, once all other sets are settled.
        """
        marks = [(lane, lane.enqueued_count) for lane in self._lanes.values()]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(lane.wait_settled(mark) for lane, mark in marks))
        except TimeoutError:
            raise errors.FlushTimeoutError(
                f"{count_text(self._events, 'event was', 'events were')} not settled within {timeout:g} s and stayed buffered"
            ) from None
        short = [lane for lane, mark in marks if mark and lane.buffer.is_short]
        if short:
            raise errors.FlushTimeoutError(
                f"partition {short[0].partition_id}: {count_text(short[0].enqueued_count, 'buffered event waits', 'buffered events wait')}"
                " for the others of the set that was sent before the restart (SavedState.pending): enqueue those, then flush"
            )

    async def close(self, *, flush: bool = True, timeout: float | None = 30.0) -> None:
        """Publish all buffered events, unless `flush` is False; then stop.

        After the timeout (None: as long as the attempts take), and without `flush`, the rest goes to `on_unpublished`.
        Raises FlushTimeoutError after the timeout.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._room_changed.set()
        late = None
        for lane in self._lanes.values():
            lane.buffer.expect_no_more()  # an incomplete set from before a restart fails then, with advice
        try:
            if flush:
                await self.flush(timeout=timeout)
        except errors.FlushTimeoutError as error:
            late = error
        finally:
            await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))
            await self.producer.close()
        if late is not None:
            raise late

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=exc_type is None)

    # --- internal

    async def _choose(self, partition_id: str | None, partition_key: str | None) -> str:
        self._require_open()
        if partition_id is not None:
            return partition_id
        if partition_key is not None:
            return await self.partition_for(partition_key)
        ids = await self.producer.get_partition_ids()
        self._next_partition = (self._next_partition + 1) % len(ids)
        return ids[self._next_partition - 1]

    def _require_open(self) -> None:
        if self._is_closed:
            raise errors.ProducerClosedError("the buffered producer is closed")

    async def _lane(self, partition_id: str) -> Lane:
        if partition_id not in self._lanes:
            async with self._opening:  # two first events of a partition may arrive at once
                if partition_id not in self._lanes:
                    size = await self.producer.max_message_size(partition_id)
                    self._require_open()  # a closed producer would never stop the lane
                    limits = SetLimits(size, self._limits.max_events or size, self._limits.max_wait)
                    buffer = PartitionBuffer[Entry](limits, first_set=self._first_sets.get(partition_id))
                    self._lanes[partition_id] = Lane(self, partition_id, buffer)
        return self._lanes[partition_id]

    def _has_room(self, size: int) -> bool:
        """Whether the limits allow the event. An empty buffer takes any event."""
        limits = self._limits
        events, taken = self._events - self._exempt_events, self._bytes - self._exempt_bytes
        if not events:
            return True
        return events < limits.max_buffered_events and taken + size <= limits.max_buffered_bytes

    async def _wait_for_room(self, size: int) -> None:
        self._waiting_enqueues += 1
        try:
            async with self._queue_for_room:
                while not self._is_closed and not self._has_room(size):
                    self._room_changed.clear()
                    for lane in self._lanes.values():
                        lane.woken.set()  # sets are sent at once, without waiting for more events
                    await self._room_changed.wait()
        finally:
            self._waiting_enqueues -= 1
        if self._is_closed:
            raise errors.ProducerClosedError(
                "the buffered producer was closed while an event waited for room"
            )

    @property
    def must_hurry(self) -> bool:
        return self._waiting_enqueues > 0 and not self._room_changed.is_set()

    def release(self, events: int, size: int, *, exempt: bool) -> None:
        """Give back the room of settled events."""
        self._events -= events
        self._bytes -= size
        if exempt:
            self._exempt_events -= events
            self._exempt_bytes -= size
        self._room_changed.set()

    async def publish(self, partition_id: str, entries: list[Entry]) -> PublishError | None:
        """Publish one set and report it. Returns the error if it failed."""
        sources = tuple(entry.event for entry in entries)
        bookmark = next((entry.bookmark for entry in reversed(entries) if entry.bookmark is not None), None)
        set_ = SentSet(sources, [entry.encoded for entry in entries], bookmark)
        raised: BaseException | None = None
        failed: PublishError | None = None
        try:
            await self.producer.send_set(partition_id, set_)
        except BaseException as error:  # raised after it was reported to the application
            raised = error
        if raised is not None and not set_.is_published:
            failed = _as_publish_error(raised)
            await self.report_unpublished(partition_id, entries, failed)
        elif self.on_published is not None:
            await _call(self.on_published, Published(partition_id, set_.sources, set_.first))
        if raised is not None and not is_unexpected(raised):
            raise raised
        return failed

    async def report_unpublished(self, partition_id: str, entries: list[Entry], error: PublishError) -> None:
        failures = tuple(FailedEvent(entry.event, error) for entry in entries)
        await _call(self.on_unpublished, Unpublished(partition_id, failures))


def _as_publish_error(error: BaseException) -> PublishError:
    """The error to report for a set. After an unexpected one, the outcome is unknown."""
    if not is_unexpected(error):
        cause = error.__cause__
        return cause if isinstance(cause, PublishError) else errors.ProducerClosedError(TOO_LATE)
    if isinstance(error, PublishError):
        return error
    return errors.OutcomeUnknownError(
        f"unexpected {type(error).__name__}: {error}; the events may be stored or not"
    )


async def _call(callback: Callable[..., Awaitable[None] | None], report: Published | Unpublished) -> None:
    try:
        result = callback(report)
        if inspect.isawaitable(result):
            await result
    except BaseException as error:  # whatever an application's callback raises
        if not is_unexpected(error):
            raise
        _log.exception("partition %s: a callback of the buffered producer failed", report.partition_id)
