"""Receives from an event hub: per partition in order, each event once, whatever happens to connections.

One `receive` runs per owned partition. It awaits a callback with each batch, and asks for more when the callback returns;
the link's credit passes the back-pressure on to the service. The claim's epoch is the link's owner level, so that the
service itself refuses an older owner.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from consumer.errors import FencedError, PositionError
from consumer.leasing.start_position import Expired, Start
from consumer.model import Event, PartitionState
from consumer.receiving.hub import Hub
from consumer.receiving.link import Link, LinkLostError, LinkOptions, ShortcutError
from consumer.receiving.progress import Progress
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.errors import UnavailableError

OnEvents = Callable[[Sequence[Event], int | None], Awaitable[None]]
"""Takes events in order, and the sequence number of the partition's newest event, if known. No events: it is idle."""

OnExpired = Callable[[Expired], None]
"""Takes the events that retention removed, once, before any later event is handed over. An exception ends `receive`."""

_log = logging.getLogger("tidemark.consumer")

_STOLEN = "link:stolen"
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0  # seconds between two attempts to connect
_MESSAGE_OVERHEAD = 512
"""Bytes of a message besides its body: annotations, and the objects around it."""
_CLOSING = 5.0  # seconds until a link is ended by force; the SDK's own stop takes one


class ReceiverOptions(Struct, frozen=True):
    """`prefetch` and `batch` count events, `buffered_bytes` is for all partitions together, times are seconds.

    The SDK's loop sleeps 50 ms after each prefetch: 3,000 allow 60,000 events per second and partition, its default of 300
    allows 6,000. The prefetch is smaller for large events and many partitions, so that at most `buffered_bytes` are
    buffered. The first link of a partition asks for a few events only, because their size is unknown, and the SDK reads
    all it asked for before it hands over the first.
    """

    prefetch: int = 3000
    batch: int = 500
    buffered_bytes: int = 64 * 1024 * 1024
    """Enough for 3,000 events of 150 bytes in each of 32 partitions, or for 2 events of 1 MB."""
    assumed_event_bytes: int = 1024 * 1024
    """Assumed size before the first event: the largest that Event Hubs takes in its Standard tier."""
    idle: float = 1.0
    stuck_after: float = 60.0
    shortcut: bool = True
    """Bypass the SDK's decoding, for a third of the time. Set to False when that fails once."""


class ReceiverStatistics(Struct):
    received: int = 0
    redelivered: int = 0
    """Events that were delivered again and left out."""
    reconnects: int = 0
    stuck: int = 0
    """Links that were silent although the partition had more events, and were replaced."""
    doubted: int = 0
    """Links that lacked events which the hub may still have, and were replaced."""
    resized: int = 0
    last_error: str = ""


class HubReceiver(Hub):
    """A hub whose events are received."""

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
        super().__init__(settings, prefix, hub, consumer_group, client_options)
        self.options = options or ReceiverOptions()
        self._statistics = ReceiverStatistics()
        self._receiving = 0
        self._event_bytes: dict[str, float] = {}  # by partition, measured under earlier claims

    def statistics(self) -> ReceiverStatistics:
        return msgspec.structs.replace(self._statistics)

    async def receive(
        self,
        partition: str,
        start: Start,
        epoch: int,
        on_events: OnEvents,
        on_expired: OnExpired | None = None,
    ) -> None:
        """Receives until it is cancelled, over lost connections, without repetition, and without gaps except for events that
        retention removed. These are passed to `on_expired`; without it they are logged.

        Raises FencedError if a higher epoch receives from the partition, PositionError if the hub was created anew, and
        the exceptions of `on_events` and `on_expired`. Nothing is handed over after it has ended; its link closes later.
        """
        progress = Progress(
            partition, start, on_expired or partial(_log.warning, "partition %s: %s", partition)
        )
        progress.event_bytes = self._event_bytes.get(partition, 0.0)
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
            self._event_bytes[partition] = progress.event_bytes

    # --- one link ---

    async def _receive_once(
        self, progress: Progress, epoch: int, on_events: OnEvents
    ) -> LinkLostError | None:
        """Receives over one link; returns its failure, or None if it should be replaced at once."""
        position, inclusive = progress.next_position()
        link = Link(
            await self.client(),
            LinkOptions(
                progress.partition,
                position,
                inclusive,
                epoch,
                prefetch=self._prefetch(progress),
                batch=self.options.batch,
                shortcut=self.options.shortcut,
                most_bytes=self._share_of_bytes,
                partitions=self.ids,
                on_broken=self._without_shortcut,
            ),
        )
        try:
            return await self._pump(link, progress, on_events)
        finally:
            self.spawn(link.close(_CLOSING))

    def _without_shortcut(self, error: Exception) -> None:
        if self.options.shortcut:
            self.options = msgspec.structs.replace(self.options, shortcut=False)
            _log.warning(
                "events are received the SDK's own way from now on, which costs three times the processor time: %s",
                error if isinstance(error, ShortcutError) else repr(error),
            )

    async def _pump(self, link: Link, progress: Progress, on_events: OnEvents) -> LinkLostError | None:
        clock = asyncio.get_running_loop().time
        began_at = heard_at = clock()
        suspect = False
        while True:
            try:
                events = await link.take(self.options.idle)
            except LinkLostError as error:
                return error
            if events:
                if not await self._hand_over(events, link, progress, on_events):
                    return None
                began_at = heard_at = clock()
                suspect = False
                if self._is_unfit(link, progress):
                    self._statistics.resized += 1
                    return None
                continue
            if suspect:
                self._statistics.stuck += 1
                progress.silent_links += 1
                _log.warning(
                    "partition %s: nothing came for %.0f s after event %d although there are more: connecting anew%s",
                    *(progress.partition, clock() - began_at, progress.delivered),
                    # The SDK does not report a refused link, and tries it again for ever.
                    "" if progress.began else f"; does the consumer group '{self.consumer_group}' exist?",
                )
                return None
            if clock() - heard_at > progress.patience(self.options.stuck_after):
                heard_at, suspect = clock(), await self._is_behind(progress)
            await on_events((), progress.last_enqueued)

    async def _hand_over(
        self, events: Sequence[Event], link: Link, progress: Progress, on_events: OnEvents
    ) -> bool:
        """Hands events over. False if some are missing before the rest that the hub may still have."""
        known, fresh = progress.delivered, []
        for event in events:
            if event.sequence_number <= known:
                continue  # delivered again: after a rewind, or from before a reconnect
            known = event.sequence_number
            fresh.append(event)
        progress.last_enqueued = link.last_enqueued
        self._statistics.redelivered += len(events) - len(fresh)
        if not fresh:
            return True
        progress.measure(fresh)
        gap = None
        if progress.skips(fresh):
            await self._explain_gaps(progress, fresh)
            gap = self._doubted_gap(progress, fresh)
        handed = fresh[:gap]
        if handed:
            self._statistics.received += len(handed)
            watch = self._watch_waiting_link(link, progress)
            try:
                await on_events(handed, link.last_enqueued)
            finally:
                watch.cancel()
            progress.advance(handed[-1])
        return gap is None

    def _watch_waiting_link(self, link: Link, progress: Progress) -> _Watch:
        """While receiving is paused, closes a link that asked for too much: other partitions were claimed since, and each
        gets less. The next link receives its events again.
        """

        def close_if_too_large() -> bool:
            is_too_large = link.prefetch > 2 * self._prefetch(progress)
            if is_too_large:
                self.spawn(link.close(_CLOSING))
            return is_too_large

        return _Watch(close_if_too_large, self.options.idle)

    async def _is_behind(self, progress: Progress) -> bool:
        try:
            state = await self.state(progress.partition)
        except UnavailableError:
            return False  # unknown; the next check may know
        progress.last_enqueued = state.last_sequence_number
        self._note_expired(progress, state)
        return progress.expects(state)

    # --- retention and gaps ---

    async def _explain_gaps(self, progress: Progress, events: Sequence[Event]) -> None:
        """Asks the hub about the missing numbers before the next events until it answers. Nothing is handed over before,
        because the consumer may have to stop at the gap.
        """
        failures = 0
        while True:
            try:
                state = await self.state(progress.partition)
            except UnavailableError as error:
                failures += 1
                _log.warning(
                    "partition %s: up to event %d some are missing after event %d, and the hub does not say whether"
                    " retention took them; it is asked again: %s",
                    *(progress.partition, events[-1].sequence_number, progress.delivered, error),
                )
                await asyncio.sleep(_backoff(failures))
            else:
                self._note_expired(progress, state, events)
                return

    def _doubted_gap(self, progress: Progress, events: Sequence[Event]) -> int | None:
        """`Progress.before_gap`, with log lines."""
        had_gaps = progress.has_gaps
        gap = progress.before_gap(events)
        if gap is not None:
            self._statistics.doubted += 1
            _log.warning(
                "partition %s: event %d came without the one before it: connecting anew, to ask for it once more",
                *(progress.partition, events[gap].sequence_number),
            )
        elif progress.has_gaps and not had_gaps:
            _log.info(
                "partition %s: numbers are missing in the hub itself between event %d and event %d: it was compacted,"
                " or they were never given",
                *(progress.partition, progress.delivered, events[-1].sequence_number),
            )
        return gap

    def _note_expired(self, progress: Progress, state: PartitionState, events: Sequence[Event] = ()) -> None:
        """Notes the events that retention has removed before what was handed over. Raises PositionError for a new hub."""
        if state.last_sequence_number < progress.delivered:
            raise PositionError(
                f"partition {progress.partition}: event {progress.delivered} was received, but the hub's last event "
                f"is {state.last_sequence_number}: event hub '{self.name}' was created anew"
            )
        expired = progress.expired(state, events)
        if expired is not None:
            progress.on_expired(expired)
            progress.delivered = expired.last

    async def _recover(self, progress: Progress, failure: LinkLostError, failures: int) -> None:
        """Waits before the next attempt, and checks that the hub is still the same."""
        if _STOLEN in failure.condition:
            raise FencedError(f"partition {progress.partition} is received from by a later owner: {failure}")
        self._statistics.reconnects += 1
        self._statistics.last_error = str(failure)
        _log.warning(
            "partition %s: connection lost after event %d, attempt %d to get it back: %s",
            *(progress.partition, progress.delivered, failures, failure),
        )
        if failures > 1:
            await asyncio.sleep(_backoff(failures))
        try:
            await self.partitions()  # a hub created anew may have as many events
            state = await self.state(progress.partition)
        except UnavailableError:
            return
        self._note_expired(progress, state)

    # --- prefetch ---

    def _prefetch(self, progress: Progress) -> int:
        share = self._share_of_bytes()
        measured = progress.event_bytes and progress.event_bytes + _MESSAGE_OVERHEAD
        return int(max(1, min(self.options.prefetch, share / (measured or self.options.assumed_event_bytes))))

    def _share_of_bytes(self) -> float:
        return self.options.buffered_bytes / max(1, self._receiving)

    def _is_unfit(self, link: Link, progress: Progress) -> bool:
        # A new link takes half a second, so it is made only for a large factor.
        fitting = self._prefetch(progress)
        if link.is_closed or link.prefetch > 2 * fitting:
            return True
        return 2 * link.prefetch <= fitting and not link.widen(fitting) and 4 * link.prefetch < fitting


class _Watch:
    """Calls `is_done` every few seconds until it returns True, or until `cancel`."""

    def __init__(self, is_done: Callable[[], bool], every: float) -> None:
        self._is_done, self._every = is_done, every
        self._schedule()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._check)

    def _check(self) -> None:
        if not self._is_done():
            self._schedule()

    def cancel(self) -> None:
        self._timer.cancel()


def _backoff(failures: int) -> float:
    """Seconds before the next attempt, after `failures` failed ones."""
    longest = min(_FIRST_BACKOFF * 2.0 ** min(failures - 1, 10), _LONGEST_BACKOFF)
    return random.uniform(longest / 2, longest)  # noqa: S311 - keeps a fleet apart
