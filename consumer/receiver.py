"""Receives from an event hub: per partition in order, each event once, over whatever happens to connections.

One `receive` runs per owned partition. It hands events to an awaited callback, whose return is the permission to go
on: back-pressure reaches the service by way of the link's credit. The claim's epoch is the link's owner level, so
that the service itself refuses an older owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.exceptions import EventHubError
from msgspec import Struct

from consumer.errors import FencedError, PositionError, SettingsError, UnavailableError
from consumer.link import EARLIEST, Link, LinkLostError, LinkOptions, options_of_client, position_at
from consumer.model import Event, PartitionState
from consumer.position import Start
from scaling.connections import Settings, event_hub_client, network_story, tls_context

OnEvents = Callable[[Sequence[Event], int | None], Awaitable[None]]
"""Gets events in order, and the sequence number of the partition's last event as far as it is known. No events: the
partition is idle.
"""

_log = logging.getLogger("tidemark.consumer")

_Result = TypeVar("_Result")

_STOLEN = "link:stolen"
_NOT_FOUND = "not-found"
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0  # seconds between two attempts to connect
_FIRST_PATIENCE = 15.0  # seconds in which a partition with events has to give the first one
_REQUEST_TIMEOUT = 15.0  # seconds; a request over a new connection takes 0.4 s
_CLOSING = 5.0  # seconds until a link is ended by force; the SDK's own stop takes one


class ReceiverOptions(Struct, frozen=True):
    """`prefetch` and `batch` count events, `buffered_bytes` is for all partitions together, times are seconds.

    The SDK's loop sleeps 50 ms after each prefetch: 3,000 give up to 60,000 events per second and partition, its
    default of 300 gives 6,000. Prefetch falls with the size of events, so that what is buffered ahead of the
    pipeline stays within `buffered_bytes`.
    """

    prefetch: int = 3000
    batch: int = 500
    buffered_bytes: int = 256 * 1024 * 1024
    assumed_event_bytes: int = 16 * 1024
    """Size of an event before the first has come."""
    idle: float = 1.0
    stuck_after: float = 60.0
    shortcut: bool = True
    """Read messages past the SDK's own decoding: a third of the time."""
    start_by_offset: bool = False
    """Begin at offsets instead of sequence numbers, where known: for geo-replicated hubs, which number anew."""


class ReceiverStatistics(Struct, frozen=True):
    received: int = 0
    redelivered: int = 0
    """Events that came again and were left out."""
    reconnects: int = 0
    stuck: int = 0
    """Links that were silent while the partition had more events, and were replaced."""
    resized: int = 0
    last_error: str = ""


class _Progress:
    """How far a partition has been handed over, and what is known beyond."""

    def __init__(self, partition: str, start: Start) -> None:
        self.partition = partition
        self.start = start
        first = start.sequence_number
        self.delivered = -1 if first is None else first - start.inclusive
        self.offset = "" if start.inclusive else start.offset
        self.began = False
        self.last_enqueued: int | None = None
        self.event_bytes = 0.0

    def next_position(self, *, by_offset: bool) -> tuple[int | str | Any, bool]:
        """The SDK's starting position, and whether it is inclusive."""
        if not self.began and self.start.time is not None:
            return position_at(self.start.time), True
        if self.delivered < 0:
            return EARLIEST, False
        if by_offset and self.offset:
            return self.offset, False
        return self.delivered, False

    def expects(self, state: PartitionState) -> bool:
        """Whether the partition has an event that should have come."""
        if state.empty or state.last_sequence_number <= self.delivered:
            return False
        return self.began or self.start.time is None or state.last_enqueued_at >= self.start.time

    def advance(self, event: Event) -> None:
        self.delivered, self.offset, self.began = event.sequence_number, event.offset, True

    def measure(self, events: Sequence[Event]) -> None:
        size = sum(len(event.body) for event in events) / len(events)
        self.event_bytes = max(size, 0.9 * self.event_bytes + 0.1 * size)


class HubReceiver:
    """Partitions, their states and their events, of one hub for one consumer group.

    `client_options` go to the constructors of the SDK's clients. Every task is owned: `close` ends them all.
    """

    def __init__(
        self,
        settings: Settings,
        prefix: str,
        hub: str,
        consumer_group: str,
        *,
        options: ReceiverOptions | None = None,
        **client_options: Any,
    ) -> None:
        self.options = options or ReceiverOptions()
        self.created_at: float | None = None
        """When the hub was created, once `partitions` was asked."""
        self._settings = settings
        self._prefix = prefix
        self._hub = hub
        self._consumer_group = consumer_group
        self._client_options = client_options
        self._tls: ssl.SSLContext | None = None
        self._management: EventHubConsumerClient | None = None
        self._statistics = ReceiverStatistics()
        self._receiving = 0
        self._background: set[asyncio.Task[Any]] = set()

    def statistics(self) -> ReceiverStatistics:
        return self._statistics

    async def partitions(self) -> list[str]:
        """The ids of all partitions now.

        Raises SettingsError when there is no such hub at the first time, PositionError when the hub is no longer the
        one it was, UnavailableError.
        """
        properties = await self._ask(lambda client: client.get_eventhub_properties())
        created_at = properties["created_at"].timestamp()
        if self.created_at not in {None, created_at}:
            raise PositionError(
                f"event hub '{self._hub}' was created anew while it was being received from: its checkpoints are "
                "those of another hub. Start again; on_foreign_checkpoint decides"
            )
        self.created_at = created_at
        return list(properties["partition_ids"])

    async def state(self, partition: str) -> PartitionState:
        """Raises UnavailableError, and SettingsError as `partitions` does."""
        found = await self._ask(lambda client: client.get_partition_properties(partition))
        return PartitionState(
            partition,
            found["beginning_sequence_number"],
            found["last_enqueued_sequence_number"],
            found["last_enqueued_offset"],
            found["last_enqueued_time_utc"].timestamp(),
            found["is_empty"],
        )

    async def receive(self, partition: str, start: Start, epoch: int, on_events: OnEvents) -> None:
        """Receives until it is cancelled, over lost connections, without gap and without repeat.

        Raises FencedError when a higher epoch receives from the partition, PositionError when the hub was created
        anew, and what `on_events` raises. Nothing is handed over once it has ended; its link closes behind it.
        """
        progress = _Progress(partition, start)
        self._receiving += 1
        try:
            failures = 0
            while True:
                delivered = progress.delivered
                failure = await self._receive_once(progress, epoch, on_events)
                if failure is None:
                    continue
                failures = 1 if progress.delivered > delivered else failures + 1
                await self._recover(progress, failure, failures)
        finally:
            self._receiving -= 1

    async def close(self, deadline: float | None = None) -> None:
        """Closes connections, by `deadline` (loop time) if given. End all `receive` calls before."""
        if self._management is not None:
            self._spawn(_close_client(self._management))
            self._management = None
        if not self._background:
            return
        timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        _, late = await asyncio.wait(self._background, timeout=timeout)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)

    # --- one link ---

    async def _receive_once(
        self, progress: _Progress, epoch: int, on_events: OnEvents
    ) -> LinkLostError | None:
        """What ended the link; None if it should be replaced at once."""
        position, inclusive = progress.next_position(by_offset=self.options.start_by_offset)
        link = Link(
            await self._client(),
            LinkOptions(
                progress.partition,
                position,
                inclusive,
                epoch,
                prefetch=self._prefetch(progress),
                batch=self.options.batch,
                shortcut=self.options.shortcut,
            ),
        )
        try:
            return await self._pump(link, progress, on_events)
        finally:
            self._spawn(link.close(_CLOSING))

    async def _pump(self, link: Link, progress: _Progress, on_events: OnEvents) -> LinkLostError | None:
        clock = asyncio.get_running_loop().time
        began_at = heard_at = clock()
        suspect = False
        while True:
            try:
                events = await link.take(self.options.idle)
            except LinkLostError as error:
                return error
            if events:
                await self._hand_over(events, link.last_enqueued, progress, on_events)
                began_at = heard_at = clock()
                suspect = False
                if self._is_unfit(link, progress):
                    self._count(resized=1)
                    return None
                continue
            if suspect:
                self._count(stuck=1)
                _log.warning(
                    "partition %s: nothing came for %.0f s after event %d although there are more: connecting anew%s",
                    *(progress.partition, clock() - began_at, progress.delivered),
                    # The SDK keeps a refused link to itself, and tries it again for ever.
                    "" if progress.began else f"; does the consumer group '{self._consumer_group}' exist?",
                )
                return None
            if clock() - heard_at > (self.options.stuck_after if progress.began else self._first_patience):
                heard_at, suspect = clock(), await self._is_behind(progress)
            await on_events((), progress.last_enqueued)

    async def _hand_over(
        self, events: Sequence[Event], last_enqueued: int | None, progress: _Progress, on_events: OnEvents
    ) -> None:
        known, fresh = progress.delivered, []
        for event in events:
            if event.sequence_number <= known:
                continue  # it came again: after a rewind, or from before a reconnect
            known = event.sequence_number
            fresh.append(event)
        progress.last_enqueued = last_enqueued
        self._count(received=len(fresh), redelivered=len(events) - len(fresh))
        if fresh:
            progress.measure(fresh)
            await on_events(fresh, last_enqueued)
            progress.advance(fresh[-1])

    async def _is_behind(self, progress: _Progress) -> bool:
        try:
            state = await self.state(progress.partition)
        except UnavailableError:
            return False  # not known; the next look tells
        progress.last_enqueued = state.last_sequence_number
        return progress.expects(state)

    async def _recover(self, progress: _Progress, failure: LinkLostError, failures: int) -> None:
        """Waits before the next attempt, and sees to it that the hub is still the same."""
        if _STOLEN in failure.condition:
            raise FencedError(f"partition {progress.partition} is received from by a later owner: {failure}")
        self._count(reconnects=1, last_error=str(failure))
        _log.warning(
            "partition %s: connection lost after event %d, attempt %d to get it back: %s",
            *(progress.partition, progress.delivered, failures, failure),
        )
        if failures > 1:
            longest = min(_FIRST_BACKOFF * 2.0 ** (failures - 1), _LONGEST_BACKOFF)
            await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - keeps a fleet apart
        try:
            await self.partitions()  # a hub created anew may have as many events again
            state = await self.state(progress.partition)
        except UnavailableError:
            return
        if state.last_sequence_number < progress.delivered:
            raise PositionError(
                f"partition {progress.partition}: event {progress.delivered} was received, but the hub's last event "
                f"is {state.last_sequence_number}: event hub '{self._hub}' was created anew"
            )

    @property
    def _first_patience(self) -> float:
        return min(_FIRST_PATIENCE, self.options.stuck_after)

    # --- how much to ask for ---

    def _prefetch(self, progress: _Progress) -> int:
        share = self.options.buffered_bytes / max(1, self._receiving)
        fitting = share / (progress.event_bytes or self.options.assumed_event_bytes)
        return int(max(10, min(self.options.prefetch, fitting)))

    def _is_unfit(self, link: Link, progress: _Progress) -> bool:
        # A new link takes half a second: only for a factor worth it.
        fitting = self._prefetch(progress)
        return link.prefetch > 2 * fitting or 4 * link.prefetch < fitting

    # --- connections ---

    async def _client(self) -> EventHubConsumerClient:
        if self._tls is None:
            self._tls = await asyncio.to_thread(tls_context, self._settings)  # read once for all connections
        return event_hub_client(
            self._settings,
            self._prefix,
            self._hub,
            self._consumer_group,
            **{"ssl_context": self._tls, **options_of_client(), **self._client_options},
        )

    async def _ask(
        self, request: Callable[[EventHubConsumerClient], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        if self._management is None:
            self._management = await self._client()
        # In a task of its own: the SDK awaits by asyncio.wait_for, which in Python 3.11 now and then swallows the
        # cancellation that would end whoever asks.
        asking = self._spawn(request(self._management))
        try:
            await asyncio.wait({asking}, timeout=_REQUEST_TIMEOUT)
            if not asking.done():
                raise TimeoutError(f"no answer within {_REQUEST_TIMEOUT:g} s")
            return asking.result()
        except (EventHubError, OSError) as error:  # a timeout is an OSError
            if self.created_at is None and _NOT_FOUND in (getattr(error, "error", None) or ""):
                raise SettingsError(f"there is no event hub '{self._hub}': {network_story(error)}") from error
            raise UnavailableError(f"event hub '{self._hub}': {network_story(error)}") from error
        finally:
            asking.cancel()

    def _spawn(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also when nobody waits for it any more

    def _count(self, *, last_error: str | None = None, **more: int) -> None:
        found = self._statistics
        added = {name: getattr(found, name) + count for name, count in more.items()}
        self._statistics = msgspec.structs.replace(
            found, **added, last_error=found.last_error if last_error is None else last_error
        )


async def _close_client(client: EventHubConsumerClient) -> None:
    with contextlib.suppress(Exception):  # it is gone one way or the other
        async with asyncio.timeout(_CLOSING):
            await client.close()
