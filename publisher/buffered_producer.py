"""A producer that collects events and publishes them in the background, as users of the .NET client know it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self

from publisher.batching import BatchLimits, BufferLimits, PartitionBuffer
from publisher.errors import (
    FlushTimeoutError,
    InvalidProducerStateError,
    MessageTooLargeError,
    ProducerClosedError,
    ProducerDisconnectedError,
    PublishError,
    PublishSettingsError,
)
from publisher.event_hubs.batch import FailedEvent, Published, SentSet, Unpublished
from publisher.event_hubs.event_encoding import (
    PublishableEvent,
    encode_event,
    partition_of_key,
    size_in_batch,
)
from publisher.event_hubs.ports import EncodedEvent
from publisher.idempotent_producer import IdempotentProducer
from publisher.model import SavedState

_log = logging.getLogger(__name__)

_FINAL = ProducerDisconnectedError, InvalidProducerStateError
_TOO_LATE = "the buffered producer was closed before the event was sent"


OnPublished = Callable[[Published], Awaitable[None] | None]
OnUnpublished = Callable[[Unpublished], Awaitable[None] | None]


class _Entry(NamedTuple):
    event: PublishableEvent
    encoded: EncodedEvent
    bookmark: str | None


class BufferedProducer:
    """Takes events one by one and publishes them in sets, one set at a time per partition and in order.

    An event goes to a partition by its id, by a key (hashed as the service does), or in turn. Every event that was
    enqueued is told of once: to `on_published`, or to `on_unpublished`. Both may be coroutines; the next set of the
    partition waits for them; what they raise is logged. The producer is closed with it.

    With `stop_on_failure` nothing is published to a partition any more after a set that was not: its order has no gap,
    and a saved state stays at that set.
    """

    def __init__(
        self,
        producer: IdempotentProducer,
        *,
        on_unpublished: OnUnpublished,
        on_published: OnPublished | None = None,
        limits: BufferLimits | None = None,
        stop_on_failure: bool = False,
    ) -> None:
        self.stop_on_failure = stop_on_failure
        self._producer = producer
        self._on_published = on_published
        self._on_unpublished = on_unpublished
        self._limits = limits or BufferLimits()
        self._lanes: dict[str, _Lane] = {}
        self._first_sets: dict[str, int] = {}
        self._opening = asyncio.Lock()
        self._ids: list[str] = []
        self._turn = 0
        self._events = 0
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    # --- what an application does

    @property
    def buffered_events(self) -> int:
        """Events that were enqueued and are not settled."""
        return self._events

    @property
    def buffered_bytes(self) -> int:
        return self._bytes

    async def resume(self, partition_id: str) -> SavedState:
        """Where the saved state of the partition says to go on. If a set is pending, the first set will be of as many
        events. Before anything is enqueued for the partition.
        """
        state = await self._producer.saved_state(partition_id)
        if partition_id in self._lanes:
            raise PublishError(f"partition {partition_id}: events were enqueued already, resume it before")
        if state.pending is not None:
            self._first_sets[partition_id] = state.pending.count
        return state

    async def partition_for(self, partition_key: str) -> str:
        """The partition of a key."""
        return partition_of_key(partition_key, await self._partition_ids())

    async def enqueue(
        self,
        event: PublishableEvent,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        bookmark: str | None = None,
    ) -> None:
        """Returns once the event is buffered; waits as long as there is no room.

        `bookmark`: where the input of this partition goes on after the event. Raises MessageTooLargeError, and what
        ended publishing to the partition for good (ProducerDisconnectedError, InvalidProducerStateError).
        """
        if partition_id is not None and partition_key is not None:
            raise PublishSettingsError(
                "partition_id and partition_key are given; accepted: one of them, or none"
            )
        lane = await self._lane(await self._choose(partition_id, partition_key))
        encoded = encode_event(event, stamped=self._producer.is_idempotent)
        size = size_in_batch(encoded, stamped=self._producer.is_idempotent)
        if size > lane.max_bytes:
            raise MessageTooLargeError(
                f"partition {lane.partition_id}: an event takes {size} bytes, a message has room for {lane.max_bytes}"
            )
        lane.require_usable()
        if self._waiting or not self._has_room(size):
            await self._wait_for_room(size)
            lane.require_usable()
        self._events += 1
        self._bytes += size
        lane.add(_Entry(event, encoded, bookmark), size)

    async def enqueue_all(
        self,
        events: Iterable[PublishableEvent],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        for event in events:
            await self.enqueue(event, partition_id=partition_id, partition_key=partition_key)

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send what is buffered without waiting for more; returns once all of it is settled.

        Raises FlushTimeoutError after the timeout in seconds: the rest stays buffered, and is being sent.
        """
        marks = [(lane, lane.taken_in) for lane in self._lanes.values()]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(lane.wait_settled(mark) for lane, mark in marks))
        except TimeoutError:
            raise FlushTimeoutError(
                f"{self._events} events were not settled within {timeout:g} s; they stay buffered"
            ) from None

    async def close(self, *, flush: bool = True, timeout: float | None = 30.0) -> None:
        """Publish what is buffered, unless `flush` is False; then stop. Nothing is enqueued any more.

        After the timeout (None: however long the attempts take), and without `flush`, what is left goes to `on_unpublished`. Raises FlushTimeoutError then.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._let_all_in()
        late = None
        try:
            if flush:
                await self.flush(timeout=timeout)
        except FlushTimeoutError as error:
            late = error
        finally:
            await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))
            await self._producer.close()
        if late is not None:
            raise late

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(flush=exc_type is None)

    # --- inside

    async def _choose(self, partition_id: str | None, partition_key: str | None) -> str:
        if self._is_closed:
            raise ProducerClosedError("the buffered producer is closed")
        if partition_id is not None:
            return partition_id
        if partition_key is not None:
            return await self.partition_for(partition_key)
        ids = await self._partition_ids()
        self._turn = (self._turn + 1) % len(ids)
        return ids[self._turn - 1]

    async def _partition_ids(self) -> list[str]:
        if not self._ids:
            self._ids = await self._producer.get_partition_ids()
        return self._ids

    async def _lane(self, partition_id: str) -> _Lane:
        if partition_id not in self._lanes:
            async with self._opening:  # of two first events of a partition one makes the lane
                if partition_id not in self._lanes:
                    size = await self._producer.max_message_size(partition_id)
                    limits = BatchLimits(size, self._limits.max_events or size, self._limits.max_wait)
                    buffer = PartitionBuffer[_Entry](limits, first_set=self._first_sets.get(partition_id))
                    self._lanes[partition_id] = _Lane(self, partition_id, buffer, size)
        return self._lanes[partition_id]

    def _has_room(self, size: int) -> bool:
        """An empty buffer takes any event."""
        limits = self._limits
        if not self._events:
            return True
        return self._events < limits.max_buffered_events and self._bytes + size <= limits.max_buffered_bytes

    async def _wait_for_room(self, size: int) -> None:
        """In the order of arrival."""
        first = True
        while first or not self._has_room(size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn) if first else self._waiting.appendleft(turn)
            first = False
            for lane in self._lanes.values():
                lane.wake()  # nobody waits for more events now
            try:
                await turn
            except asyncio.CancelledError:
                self._forget(turn)
                raise
            if self._is_closed:
                raise ProducerClosedError("the buffered producer was closed while an event waited for room")
        self._let_in()

    def _forget(self, turn: asyncio.Future[None]) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        else:
            self._let_in()  # it was let in and is gone: the next one

    def _let_in(self) -> None:
        if self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    def _let_all_in(self) -> None:
        while self._waiting:
            self._let_in()

    @property
    def is_crowded(self) -> bool:
        return bool(self._waiting)

    def release(self, events: int, size: int) -> None:
        """Room, of a lane."""
        self._events -= events
        self._bytes -= size
        self._let_in()

    async def publish(self, partition_id: str, entries: list[_Entry]) -> PublishError | None:
        """One set, and who is told of it; the error that ended it, if there was one."""
        sources = tuple(entry.event for entry in entries)
        bookmark = next((entry.bookmark for entry in reversed(entries) if entry.bookmark is not None), None)
        set_ = SentSet(sources, [entry.encoded for entry in entries], bookmark)
        try:
            await self._producer.send_set(partition_id, set_)
        except PublishError as error:
            await self.tell_unpublished(partition_id, entries, error)
            return error
        except asyncio.CancelledError as cancelled:
            if set_.is_published:
                await self._tell_published(partition_id, set_)
            else:
                cause = cancelled.__cause__
                known = cause if isinstance(cause, PublishError) else ProducerClosedError(_TOO_LATE)
                await self.tell_unpublished(partition_id, entries, known)
            raise
        await self._tell_published(partition_id, set_)
        return None

    async def _tell_published(self, partition_id: str, set_: SentSet) -> None:
        if self._on_published is not None:
            await _call(self._on_published, Published(partition_id, set_.sources, set_.first))

    async def tell_unpublished(self, partition_id: str, entries: list[_Entry], error: PublishError) -> None:
        failures = tuple(FailedEvent(entry.event, error) for entry in entries)
        await _call(self._on_unpublished, Unpublished(partition_id, failures))


class _Lane:
    """One partition: its buffer, and the task that empties it."""

    def __init__(
        self, front: BufferedProducer, partition_id: str, buffer: PartitionBuffer[_Entry], max_bytes: int
    ) -> None:
        self.partition_id = partition_id
        self.max_bytes = max_bytes
        self.taken_in = 0  # events since the beginning
        self._settled = 0
        self._front = front
        self._buffer = buffer
        self._flush_to = 0
        self._ended: PublishError | None = None
        self._woken = asyncio.Event()
        self._progress = asyncio.Condition()
        self._task = asyncio.create_task(self._work(), name=f"publisher of partition {partition_id}")

    def add(self, entry: _Entry, size: int) -> None:
        self.taken_in += 1
        self._buffer.add(entry, size, self._now())
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    def require_usable(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))

    async def wait_settled(self, mark: int) -> None:
        """Until the first `mark` events of all are settled; they are sent at once."""
        self._flush_to = max(self._flush_to, mark)
        self.wake()
        async with self._progress:
            await self._progress.wait_for(lambda: self._settled >= mark)

    async def stop(self) -> None:
        """End the set under way at a safe point, and give back what is left."""
        self._task.cancel()
        await asyncio.wait({self._task})
        error = ProducerClosedError(_TOO_LATE)
        left = self._buffer.drain()
        if left:
            await self._front.tell_unpublished(self.partition_id, left, error)

    async def _work(self) -> None:
        while True:
            self._woken.clear()
            hurry = self._flush_to > self._settled or self._front.is_crowded
            if not self._buffer.ready(self._now(), hurry=hurry):
                await self._wait()
                continue
            entries, size = self._buffer.take()
            await self._settle(entries, size)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout_at(self._buffer.ready_at()):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _settle(self, entries: list[_Entry], size: int) -> None:
        try:
            error = self._ended
            if error is None:
                error = await self._front.publish(self.partition_id, entries)
            else:
                await self._front.tell_unpublished(self.partition_id, entries, error)
            if self._front.stop_on_failure or isinstance(error, _FINAL):
                self._ended = error
        finally:
            self._settled += len(entries)
            self._front.release(len(entries), size)
        async with self._progress:
            self._progress.notify_all()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _call(callback: Callable[..., Awaitable[None] | None], told: Published | Unpublished) -> None:
    try:
        result = callback(told)
        if inspect.isawaitable(result):
            await result
    except Exception:  # noqa: BLE001 - whatever an application's callback raises
        _log.exception("partition %s: a callback of the buffered producer failed", told.partition_id)
