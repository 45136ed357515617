"""Stopping at a position: nothing behind it is handed over, and a consumer ends once every partition has settled up to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from consumer.core.statistics import PipelineStatistics
from consumer.leasing.balance import partition_order
from consumer.leasing.start_position import Expired, Start, is_of_hub
from consumer.model import NOTHING_SETTLED, Checkpoint, Event, Replacement
from consumer.ports import CheckpointStore
from consumer.receiving.receiver import HubReceiver, OnEvents, OnExpired
from tidemark.foundation.calls import PATIENCE, answered
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.gathering import gather

log = logging.getLogger("tidemark.consumer")

LATEST = "latest"
ACCEPTED = (
    "latest, a time that is over, such as 2026-11-21T08:00:00Z, or a number of each partition: 0=500,1=700"
)
FIRST_WITHIN = 60.0
"""Seconds for the first event at or after a time. Chosen: a person waits for it."""
_AT_OFFSET_WITHIN = 10.0
"""Seconds for the one at an offset, which may be beyond the end: texts that are no numbers do not tell. Chosen."""
_LOOK_EVERY = 1.0  # seconds between two looks at the positions; chosen: a job ends about that much late
_AT_ONCE = 16  # partitions; chosen, as for the states of a hub
_STORE_WITHIN = 30.0  # seconds for the checkpoint store


class UntilReceiver(HubReceiver):
    """A receiver that hands over nothing behind `last`, by partition: behind it, a partition waits."""

    last: Mapping[str, int] | None = None
    """None: everything is handed over."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.passed = set[str]()
        """Partitions of which an event behind `last` has come: what is before it was handed over, whatever its numbers are."""

    async def receive(
        self,
        partition: str,
        start: Start,
        epoch: int,
        on_events: OnEvents,
        on_expired: OnExpired | None = None,
    ) -> None:
        if self.last is None:
            await super().receive(partition, start, epoch, on_events, on_expired)
            return
        last = self.last.get(partition, NOTHING_SETTLED)

        async def until_last(events: Sequence[Event], last_enqueued: int | None) -> None:
            wanted = [event for event in events if event.sequence_number <= last]
            if wanted or not events:
                await on_events(wanted, last_enqueued)
            if len(wanted) < len(events):
                self.passed.add(partition)
                await asyncio.Event().wait()  # until it is cancelled; no more is asked for meanwhile

        def reported(lost: Expired) -> None:
            if on_expired is not None and lost.first <= last:
                on_expired(lost)

        try:
            await super().receive(partition, start, epoch, until_last, reported)
        finally:
            self.passed.discard(partition)


def epoch_seconds(text: str) -> float:
    """A time in ISO 8601, UTC unless it says otherwise. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def read_numbers(text: str) -> dict[str, int]:
    """`0=500,1=700`. Raises ValueError."""
    numbers: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if not name or name in numbers or int(number) < NOTHING_SETTLED:
            raise ValueError(part)
        numbers[name] = int(number)
    return numbers


class EndAt:
    """Ends a consumer at a position. `statistics` are those of this process."""

    def __init__(
        self,
        position: str,
        receiver: UntilReceiver,
        checkpoints: CheckpointStore,
        statistics: Callable[[], PipelineStatistics | None],
    ) -> None:
        self._position = position
        self._receiver, self._checkpoints, self._statistics = receiver, checkpoints, statistics
        self._trusted = set[str]()

    async def resolve(self) -> None:
        """Find the last number of each partition. Raises SettingsError, UnavailableError."""
        names = sorted(await self._receiver.partitions(), key=partition_order)
        numbers = self._receiver.last = await self._numbers(names)
        log.info("stops at %s", ",".join(f"{name}={last}" for name, last in numbers.items()))

    async def _numbers(self, names: Sequence[str]) -> dict[str, int]:
        position = self._position
        if position == LATEST:
            states = await self._receiver.states(names)
            return {name: states[name].last_sequence_number for name in names}
        try:
            at = None if "=" in position else epoch_seconds(position)
            given = read_numbers(position) if at is None else {}
        except ValueError:
            raise SettingsError(f"CONSUMER_UNTIL is '{position}'; accepted: {ACCEPTED}") from None
        if at is None:
            if set(given) != set(names):
                raise SettingsError(
                    f"CONSUMER_UNTIL has numbers of the partitions {', '.join(given)}; accepted: one of each, {', '.join(names)}"
                )
            return {name: given[name] for name in names}
        if at > time.time():
            raise SettingsError(f"CONSUMER_UNTIL is '{position}', which is not over; accepted: {ACCEPTED}")
        stored = await self._stored()

        async def last(name: str) -> int:
            return await last_before(self._receiver, name, at, stored.get(name))

        return dict(zip(names, await gather(last, names, at_once=_AT_ONCE), strict=True))

    async def run(self, stop: asyncio.Event, consume: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        """Run `consume` until `stop`, or until every partition has settled up to its number. Call `resolve` before."""
        if await self._is_done():
            log.info("every partition has settled up to there: nothing to do")
            return
        ending = asyncio.Event()
        watching = {
            asyncio.create_task(self._watch(ending), name="until"),
            asyncio.create_task(_pass_on(stop, ending), name="stop"),
        }
        try:
            await consume(ending)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self, ending: asyncio.Event) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                is_done = await self._is_done()
            except TidemarkError:  # the next look may succeed
                continue
            except Exception:  # a job that nobody watches would never end
                log.exception("whether every partition has settled up to there is looked at again")
                continue
            if is_done:
                log.info("every partition has settled up to there: stopping in order")
                ending.set()
                return

    async def _is_done(self) -> bool:
        stored, statistics = await self._stored(), self._statistics()
        mine = {partition.partition: partition for partition in statistics.partitions} if statistics else {}
        for name, last in (self._receiver.last or {}).items():
            partition = mine.get(name)
            if last == NOTHING_SETTLED or (partition is not None and partition.low_water >= last):
                continue
            if await self._has_skipped(name, stored.get(name), last):
                continue
            if await self._is_settled(name, stored.get(name), last):
                continue
            if partition is not None and partition.unsettled:
                return False
            state = await self._receiver.state(name)
            if not state.empty and state.begin_sequence_number <= last:
                return False  # otherwise retention has removed what was left
        return True

    async def _has_skipped(self, name: str, stored: Checkpoint | str | None, last: int) -> bool:
        """Whether the hub lacks the last number, and some before it: it was compacted, or they were never given. The position is
        stored then, by which other instances see it, and the next start.
        """
        # Of this moment: since an earlier look the last events may have come.
        statistics = self._statistics()
        partitions = statistics.partitions if statistics and name in self._receiver.passed else ()
        marks = [
            partition.low_water
            for partition in partitions
            if partition.partition == name and not (partition.unsettled or partition.draining)
        ]
        # Another position is of another claim, or of this one before its last checkpoint was saved.
        if not isinstance(stored, Checkpoint) or marks != [stored.sequence_number]:
            return False
        by = structs.replace(stored, sequence_number=last, offset="", beyond=())
        deadline = asyncio.get_running_loop().time() + _STORE_WITHIN
        claiming = self._checkpoints.claim(
            name, stored.owner, deadline=deadline, replacement=Replacement(stored, by)
        )
        return (await answered("the checkpoint store", deadline + PATIENCE, claiming)).replaced

    async def _is_settled(self, name: str, stored: Checkpoint | str | None, last: int) -> bool:
        """By the stored position, if it is one of this hub: its numbers say nothing of a hub of the same name before."""
        if not isinstance(stored, Checkpoint) or stored.sequence_number < last:
            return False
        if name not in self._trusted:
            state = await self._receiver.state(name)
            if not is_of_hub(stored, state, self._receiver.created_at):
                return False
            self._trusted.add(name)  # a hub that is created anew while this runs ends the consumer
        return True

    async def _stored(self) -> Mapping[str, Checkpoint | str]:
        deadline = asyncio.get_running_loop().time() + _STORE_WITHIN
        loading = self._checkpoints.load_all(deadline=deadline)
        return await answered("the checkpoint store", deadline + PATIENCE, loading)


async def _pass_on(stop: asyncio.Event, ending: asyncio.Event) -> None:
    await stop.wait()
    ending.set()


async def last_before(
    receiver: HubReceiver, partition: str, at: float, stored: Checkpoint | str | None
) -> int:
    """The number of the last event that was enqueued before a time. Raises UnavailableError, FencedError."""
    state = await receiver.state(partition)
    if state.empty or at > state.last_enqueued_at:
        return state.last_sequence_number
    epoch = stored.epoch if isinstance(stored, Checkpoint) else 0
    return await first_event(receiver, partition, Start(time=at, inclusive=True), epoch + 1) - 1


async def first_event(receiver: HubReceiver, partition: str, start: Start, epoch: int) -> int:
    """The number of the first event from `start` on, which only receiving shows.

    This takes the link from a consumer with a lower epoch, which claims the partition again.
    """
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_events(events: Sequence[Event], _last: int | None) -> None:
        if events and not first.done():
            first.set_result(events[0].sequence_number)

    within = FIRST_WITHIN if start.time is not None else min(FIRST_WITHIN, _AT_OFFSET_WITHIN)
    receiving = asyncio.create_task(receiver.receive(partition, start, epoch, on_events))
    try:
        either: set[asyncio.Future[Any]] = {receiving, first}
        await asyncio.wait(either, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        receiving.cancel()
        (outcome,) = await asyncio.gather(receiving, return_exceptions=True)
    if first.done():
        return first.result()
    if isinstance(outcome, TidemarkError):
        raise outcome
    where = f"at or after the offset '{start.offset}'" if start.time is None else "from that time on"
    raise UnavailableError(f"partition {partition} delivered no event {where} within {within:.0f} s")
