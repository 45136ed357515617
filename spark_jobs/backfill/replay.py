"""What a task does: writes the captured events of one partition, in order, with the consumer's own driver.

The driver (consumer/running/driver.py) brings the rate limit, bulk writes, retries without an end, dead letters, and a
checkpoint that is saved only after the writes before it have settled. Here it gets a checkpoint store of the
backfill's own and, twice a second, its share of the budget as its rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from consumer.definition.model import HubDefinition
from consumer.model import Event
from consumer.options import DriverSettings
from consumer.ports import CheckpointStore
from consumer.running.assembly import Parts
from consumer.running.driver import Driver
from consumer.running.waiting import when_available
from consumer.sinks.cosmos.bulk import MODE_CREATE, WriteMode
from consumer.sinks.routed import RoutedSink
from consumer.telemetry.records import shared
from consumer.versions import SUPERSEDED
from spark_jobs.backfill.budget import coordinator
from spark_jobs.backfill.budget.progress import NUMBERS, Counts
from spark_jobs.backfill.target import BackfillSink, CountedDeadLetters, open_checkpoints, open_sink
from spark_jobs.platform.consumer_hub import has_other_sinks
from spark_jobs.platform.user_code import find_own_modules
from tidemark.foundation.errors import TidemarkError

FIRST_ANSWER_WITHIN = 30.0
CLAIM_WITHIN = 30.0
AGAIN_AFTER = 2.0
"""Seconds between two tries to open what is away at the start, as of a consumer."""
NONE = 1e-6
"""The limit per second of a task that has no share: nothing for eleven days."""
SAVE_WITHIN = 60.0
"""Seconds for the last checkpoint of a partition."""

Unit = Literal["records", "request_units"]


class Replaying(Struct, frozen=True):
    """What every task of a job knows. `checkpoint_groups` has the name of each partition's checkpoints."""

    hub: HubDefinition
    """With the settings of a task only."""
    mode: WriteMode
    unit: Unit
    checkpoint_groups: Mapping[str, str]
    address: coordinator.Address


async def replay(
    replaying: Replaying, partition: str, attempt: str, chunks: AsyncIterator[Sequence[Event]]
) -> Counts:
    """Writes all events of a partition and returns once they are settled and that is saved.

    Chunks come in the order of sequence numbers; a few are held at a time. Raises TidemarkError, SupersededError when
    a later attempt works on the partition, UnreachableError when the driver is gone. What was settled until then is
    saved but for the last moment's, and the next attempt skips it.
    """
    async with (
        aclosing(coordinator.CoordinatorClient(replaying.address)) as client,
        aclosing(_Writing(replaying, partition)) as writing,
    ):
        asking = _ShareRequests(client, partition, attempt, writing)
        try:
            await _all_or_first_error(
                writing.write_all(attempt, chunks, asking.granted), asking.keep_asking(), writing.guard()
            )
        finally:
            await writing.stop()
            await asking.report_end()
        return writing.counts()


async def _all_or_first_error(work: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, None]) -> None:
    """Runs `work` with what never ends `beside` it; the first error of any ends all and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(coroutine) for coroutine in beside]
            await group.create_task(work)
            for other in others:
                other.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class _Writing:
    """A driver with its adapters, for one partition."""

    def __init__(self, replaying: Replaying, partition: str) -> None:
        hub, config = replaying.hub, replaying.hub.config
        self._partition = partition
        self._unit = replaying.unit
        self._sink: BackfillSink = open_sink(hub, replaying.mode)
        # Of several sinks of the hub the others' writes never come here, and this one's are named as in the consumer.
        is_one = has_other_sinks(hub)
        sink = RoutedSink({hub.sinks[0].name: self._sink}) if is_one else self._sink
        find_own_modules(hub.settings)
        parts = Parts(config, hub.settings, hub)
        self._dead_letters = CountedDeadLetters(parts.dead_letters(), whole=is_one)
        self._checkpoints: CheckpointStore = open_checkpoints(
            config, hub.settings, replaying.checkpoint_groups[partition]
        )
        self._driver = Driver(
            shared(DriverSettings, config, rate=None, request_units=None),  # the share is the limit
            sink,
            self._checkpoints,
            self._dead_letters,
            preparation=parts.preparation(sink),
        )
        self._share = NONE
        self._unsettled = 0

    async def aclose(self) -> None:
        for part in (self._sink, self._dead_letters, self._checkpoints):
            await part.aclose()

    async def write_all(
        self, owner: str, chunks: AsyncIterator[Sequence[Event]], granted: asyncio.Event
    ) -> None:
        """Begins with the first share."""
        driver, partition, now = self._driver, self._partition, asyncio.get_running_loop().time
        await granted.wait()
        # A short outage of the target or of the stores must not cost the job what starting it has taken.
        await when_available("the sink or the dead letters", driver.open, retry=AGAIN_AFTER)
        self._use_share()
        claim = await when_available(
            "the claim",
            lambda: self._checkpoints.claim(partition, owner, deadline=now() + CLAIM_WITHIN),
            retry=AGAIN_AFTER,
        )
        driver.claimed(claim)
        async for events in chunks:
            await driver.receive(partition, claim.epoch, events)
        await driver.settled(partition, claim.epoch)
        if not await driver.drain(partition, claim.epoch, deadline=now() + SAVE_WITHIN):
            raise TidemarkError(
                f"partition {partition}: everything is written, but that could not be saved within {SAVE_WITHIN:g} s;"
                " run the job again"
            )
        self._unsettled = 0

    async def guard(self) -> None:
        """Raises what made the driver give up."""
        await asyncio.shield(self._driver.failed)

    async def stop(self) -> None:
        """Begins nothing more, and gives up what is on its way."""
        await self._driver.aclose()

    def use_share(self, amount: float) -> None:
        """The share from now on; 0 is none until the next one."""
        self._share = amount or NONE
        if self._driver.is_open:
            self._use_share()

    def _use_share(self) -> None:
        set_limit = self._driver.set_rate if self._unit == "records" else self._driver.set_request_units
        set_limit(self._share)

    def counts(self) -> Counts:
        if not self._driver.is_open:
            return Counts()
        statistics = self._driver.statistics()
        totals = statistics.totals
        for place in statistics.partitions:  # without it once the claim has ended
            self._unsettled = place.unsettled
        totals_by_name = {
            name: getattr(totals, name)
            for name in NUMBERS
            if name not in {"existed", "dropped", "left_out", "unsettled"}
        }
        totals_by_name["unsettled"] = self._unsettled
        superseded = totals.dropped.get(SUPERSEDED, 0)  # they are among those that existed
        totals_by_name["written"] += superseded
        totals_by_name["left_out"] = left_out = totals.dropped.get(MODE_CREATE, 0)
        totals_by_name["dropped"] = sum(totals.dropped.values()) - superseded - left_out
        return Counts(existed=self._sink.existed, reasons=dict(self._dead_letters.reasons), **totals_by_name)


@dataclass
class _ShareRequests:
    """Asks the coordinator for shares, and ends the work when there is none any more. `holds` is the share in use."""

    client: coordinator.CoordinatorClient
    partition: str
    attempt: str
    writing: _Writing
    holds: int = 0
    granted: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep_asking(self) -> None:
        """Never returns. Raises SupersededError; UnreachableError as soon as the share in use has ended."""
        loop = asyncio.get_running_loop()
        until = loop.time() + FIRST_ANSWER_WITHIN
        why = "no answer"
        try:
            async with asyncio.timeout_at(until) as limit:
                while True:
                    sent = loop.time()
                    try:
                        answer = await self.client.ask(self._ask())
                    except coordinator.UnreachableError as error:
                        why = str(error)
                    else:
                        if limit.expired():  # the client took its cancellation for its own time that was up
                            raise TimeoutError
                        if answer.amount or self.holds:  # without a share the task waits for the next one
                            self.holds = answer.number
                            self.writing.use_share(answer.amount)
                            self.granted.set()
                            limit.reschedule(sent + answer.seconds)
                        elif not self.holds:
                            limit.reschedule(sent + FIRST_ANSWER_WITHIN)
                    await asyncio.sleep(max(0.0, sent + coordinator.ASK_EVERY - loop.time()))
        except TimeoutError:
            raise coordinator.UnreachableError(
                f"partition {self.partition}: the job's driver gave no share of the budget in time ({why}); can"
                " executors reach it? See the setting spark.driver.host and the option --coordinator-port"
            ) from None

    def _ask(self, *, over: bool = False) -> coordinator.Ask:
        return coordinator.Ask(self.partition, self.attempt, self.holds, self.writing.counts(), over)

    async def report_end(self) -> None:
        """Reports the last counts; the share is free at once rather than when its lease ends."""
        try:
            await self.client.ask(self._ask(over=True))
        except Exception:  # the driver is gone, or knows of a later attempt
            return
