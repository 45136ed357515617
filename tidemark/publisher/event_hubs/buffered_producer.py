"""A producer that collects events and publishes them in the background, as users of the .NET client know it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass

from tidemark.publisher import errors
from tidemark.publisher.cancellation import is_unexpected
from tidemark.publisher.errors import PublishError
from tidemark.publisher.event_hubs.batch import FailedEvent, Published, SentSet, Unpublished
from tidemark.publisher.event_hubs.batching import BufferLimits, PartitionBuffer, SetLimits
from tidemark.publisher.event_hubs.buffered_lane import TOO_LATE, Entry, Lane
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key
from tidemark.publisher.event_hubs.ports.links import PublishableEvent
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.model import SavedState

_log = logging.getLogger(__name__)

OnPublished = Callable[[Published], Awaitable[None] | None]
OnUnpublished = Callable[[Unpublished], Awaitable[None] | None]


@dataclass(eq=False)
class BufferedProducer(AbstractAsyncContextManager["BufferedProducer"]):
    """Takes events one by one and publishes them in sets, one set at a time per partition and in order.

    An event goes to a partition by its id, by a key (hashed as the service does), or in turn. Every event that was
    enqueued is told of once: to `on_published`, or to `on_unpublished`. Both may be coroutines; the next set of the
    partition waits for them; what they raise is logged. The producer is closed with it.

    With `stop_on_failure` nothing is published to a partition any more after a set that was not: its order has no gap,
    and a saved state stays at that set.
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
        self._turn = 0
        self._events = 0
        self._bytes = 0
        self._exempt_events = 0  # of sets from before a restart, which may need more than there is room for
        self._exempt_bytes = 0
        self._crowd = 0  # enqueues that wait for room
        self._turn_to_wait = asyncio.Lock()
        self._room = asyncio.Event()
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
        events, which it waits for; they do not count where room is scarce. Before anything is enqueued for the
        partition.
        """
        state = await self.producer.saved_state(partition_id)
        if partition_id in self._lanes:
            raise PublishError(f"partition {partition_id}: events were enqueued already, resume it before")
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
        """Returns once the event is buffered; waits as long as there is no room.

        `bookmark`: where the input of this partition goes on after the event. Raises MessageTooLargeError, and what
        ended publishing to the partition for good (ProducerDisconnectedError, InvalidProducerStateError).
        """
        if partition_id is not None and partition_key is not None:
            raise errors.PublishSettingsError(
                "partition_id and partition_key are given; accepted: one of them, or none"
            )
        lane = await self._lane(await self._choose(partition_id, partition_key))
        self._require_open()  # both may have taken a while
        encoded, size = self.producer.encode(event)
        room = lane.buffer.limits.max_bytes
        if size > room:
            raise errors.MessageTooLargeError(
                f"partition {lane.partition_id}: an event takes {size} bytes, a message has room for {room}"
            )
        lane.require_usable()
        if not lane.buffer.is_short and (self._crowd or not self._has_room(size)):
            await self._wait_for_room(size)
            lane.require_usable()
        self._events += 1
        self._bytes += size
        if lane.buffer.is_short:
            self._exempt_events += 1
            self._exempt_bytes += size
        lane.add(Entry(event, encoded, bookmark), size)

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send what is buffered without waiting for more; returns once all of it is settled.

        Raises FlushTimeoutError after the timeout in seconds: the rest stays buffered, and is being sent. Also where a
        set from before a restart (see `resume`) is not complete, once all others are settled.
        """
        marks = [(lane, lane.taken_in) for lane in self._lanes.values()]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(lane.wait_settled(mark) for lane, mark in marks))
        except TimeoutError:
            raise errors.FlushTimeoutError(
                f"{self._events} events were not settled within {timeout:g} s; they stay buffered"
            ) from None
        short = [lane for lane, mark in marks if mark and lane.buffer.is_short]
        if short:
            raise errors.FlushTimeoutError(
                f"partition {short[0].partition_id}: {short[0].taken_in} events wait for the others of the set that was "
                "sent before the restart (SavedState.pending); they stay buffered: enqueue those, then flush"
            )

    async def close(self, *, flush: bool = True, timeout: float | None = 30.0) -> None:
        """Publish what is buffered, unless `flush` is False; then stop. Nothing is enqueued any more.

        After the timeout (None: however long the attempts take), and without `flush`, what is left goes to `on_unpublished`. Raises FlushTimeoutError then.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._room.set()
        late = None
        for lane in self._lanes.values():
            lane.buffer.expect_no_more()  # a set from before a restart is refused then, with what to do
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

    # --- inside

    async def _choose(self, partition_id: str | None, partition_key: str | None) -> str:
        self._require_open()
        if partition_id is not None:
            return partition_id
        if partition_key is not None:
            return await self.partition_for(partition_key)
        ids = await self.producer.get_partition_ids()
        self._turn = (self._turn + 1) % len(ids)
        return ids[self._turn - 1]

    def _require_open(self) -> None:
        if self._is_closed:
            raise errors.ProducerClosedError("the buffered producer is closed")

    async def _lane(self, partition_id: str) -> Lane:
        if partition_id not in self._lanes:
            async with self._opening:  # of two first events of a partition one makes the lane
                if partition_id not in self._lanes:
                    size = await self.producer.max_message_size(partition_id)
                    self._require_open()  # nobody would stop the lane
                    limits = SetLimits(size, self._limits.max_events or size, self._limits.max_wait)
                    buffer = PartitionBuffer[Entry](limits, first_set=self._first_sets.get(partition_id))
                    self._lanes[partition_id] = Lane(self, partition_id, buffer)
        return self._lanes[partition_id]

    def _has_room(self, size: int) -> bool:
        """An empty buffer takes any event."""
        limits = self._limits
        events, taken = self._events - self._exempt_events, self._bytes - self._exempt_bytes
        if not events:
            return True
        return events < limits.max_buffered_events and taken + size <= limits.max_buffered_bytes

    async def _wait_for_room(self, size: int) -> None:
        """In the order of arrival: one waits for room, the others for their turn."""
        self._crowd += 1
        try:
            async with self._turn_to_wait:
                while not self._is_closed and not self._has_room(size):
                    self._room.clear()
                    for lane in self._lanes.values():
                        lane.woken.set()  # nobody waits for more events now
                    await self._room.wait()
        finally:
            self._crowd -= 1
        if self._is_closed:
            raise errors.ProducerClosedError(
                "the buffered producer was closed while an event waited for room"
            )

    @property
    def is_crowded(self) -> bool:
        return self._crowd > 0 and not self._room.is_set()

    def release(self, events: int, size: int, *, exempt: bool) -> None:
        """Room, of a lane."""
        self._events -= events
        self._bytes -= size
        if exempt:
            self._exempt_events -= events
            self._exempt_bytes -= size
        self._room.set()

    async def publish(self, partition_id: str, entries: list[Entry]) -> PublishError | None:
        """One set, and who is told of it; the error that ended it, if there was one."""
        sources = tuple(entry.event for entry in entries)
        bookmark = next((entry.bookmark for entry in reversed(entries) if entry.bookmark is not None), None)
        set_ = SentSet(sources, [entry.encoded for entry in entries], bookmark)
        ended: BaseException | None = None
        failed: PublishError | None = None
        try:
            await self.producer.send_set(partition_id, set_)
        except BaseException as error:  # noqa: BLE001 - raised once the application knows
            ended = error
        if ended is not None and not set_.is_published:
            failed = _as_publish_error(ended)
            await self.tell_unpublished(partition_id, entries, failed)
        elif self.on_published is not None:
            await _call(self.on_published, Published(partition_id, set_.sources, set_.first))
        if ended is not None and not is_unexpected(ended):
            raise ended
        return failed

    async def tell_unpublished(self, partition_id: str, entries: list[Entry], error: PublishError) -> None:
        failures = tuple(FailedEvent(entry.event, error) for entry in entries)
        await _call(self.on_unpublished, Unpublished(partition_id, failures))


def _as_publish_error(error: BaseException) -> PublishError:
    """What an application is told of a set that ended by this error. What nobody thought of says nothing of its
    outcome.
    """
    if not is_unexpected(error):
        cause = error.__cause__
        return cause if isinstance(cause, PublishError) else errors.ProducerClosedError(TOO_LATE)
    if isinstance(error, PublishError):
        return error
    return errors.OutcomeUnknownError(
        f"unexpected {type(error).__name__}: {error}; the events may be stored or not"
    )


async def _call(callback: Callable[..., Awaitable[None] | None], told: Published | Unpublished) -> None:
    try:
        result = callback(told)
        if inspect.isawaitable(result):
            await result
    except BaseException as error:  # whatever an application's callback raises
        if not is_unexpected(error):
            raise
        _log.exception("partition %s: a callback of the buffered producer failed", told.partition_id)
