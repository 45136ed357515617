"""The consumer inside a function that the Event Hubs trigger calls with a batch of one partition.

The host saves its checkpoint after an invocation even if the batch failed. Therefore an invocation returns only when every
event of its batch is written or stored as a dead letter, and raises otherwise. The retry policy of the function has no
limit: it delivers the same batch again, and the partition waits. All invocations of a process share one pipeline, hence
one rate, bulk requests, retries and dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import structs

from consumer.config import ConsumerConfig
from consumer.definition.loading import find_hub, load_definition
from consumer.errors import PositionError
from consumer.leasing.claiming import CALL, claim_partition
from consumer.leasing.ownership import unique_owner
from consumer.model import Checkpoint, Claim, Event, Origin
from consumer.options import DriverSettings
from consumer.ports import CheckpointStore
from consumer.running.assembly import Parts, reporter
from consumer.running.driver import Driver
from consumer.running.other_positions import untried_text
from consumer.running.process import close_part
from consumer.stores.memory import MemoryCheckpointStore
from consumer.telemetry.rate_orders import Limits, Unit
from consumer.telemetry.records import shared
from tidemark.foundation.calls import answered
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.log.process import quiet_sdks
from tidemark.foundation.wording import count_text

log = logging.getLogger("tidemark.consumer")

DRAIN = 5.0
"""Seconds before the deadline from which on no event is started, so that attempted ones can end; at most a quarter of
the time of the invocation."""
SAME_HUB_WITHIN = 2.0
"""Seconds for the hub to answer whether it is still the same one; usually that takes some hundredths of a second."""
PARKED_WITHIN = 5.0
"""Seconds for a store of parked events to answer, once, when a driver is opened. Chosen."""
SAME_BATCH = 60.0
"""Seconds within which an unfinished batch must be delivered again for its progress to count: the retry policy takes 5 s."""
FINAL_REPORT_WITHIN = 5.0
"""Seconds for the final telemetry report, and again for closing the hub's connection."""


class HostedConsumer:
    """One per process and event loop. Invocations share a driver; after a failure the next invocation makes a new one."""

    def __init__(
        self,
        config: ConsumerConfig,
        settings: Mapping[str, str],
        parts: Callable[[ConsumerConfig, Mapping[str, str]], Parts] = Parts,
    ) -> None:
        """`parts` creates the adapters of each driver. Raises SettingsError, also for settings that a trigger cannot follow."""
        check(config)
        for doubt in config.doubts:
            log.warning("%s", doubt)
        self._config = config = with_share(config)
        self._make_parts: Callable[[], Parts] = lambda: parts(config, settings)
        self._owner = unique_owner()
        self._working: _Working | None = None
        self._opening = asyncio.Lock()
        self._batches = _Batches(self._owner)

    async def settle(self, partition: str, events: Sequence[Event], *, deadline: float) -> None:
        """Returns when every event is settled. Raises TidemarkError if they are not by `deadline` (loop time).

        Raises FencedError if the partition was given to another instance, or to this process again, meanwhile.
        """
        working = await answered("the sink or the dead letters", deadline, self._open())
        with working.attributed():
            claim = await working.claim(partition, events, self._batches)
            working.driver.claimed(claim)
            try:
                await working.settle(partition, claim.epoch, events, deadline)
                self._batches.finished(partition)
            except TidemarkError:
                self._batches.unfinished(partition)
                if working.driver.failed.done():
                    await self._discard(working)
                raise
            finally:
                working.driver.lost(partition, claim.epoch)

    async def aclose(self) -> None:
        """Closes the driver. The host never calls it; tests that start several consumers do."""
        if self._working is not None:
            await self._discard(self._working)

    async def _open(self) -> _Working:
        async with self._opening:
            if self._working is None:
                working = _Working(self._make_parts(), self._owner, self._batches.store)
                try:
                    await working.open()
                except BaseException:
                    await working.aclose()
                    raise
                self._working = working
                log.info("rate: %s", _describe_rate(self._config))
        return self._working

    async def _discard(self, working: _Working) -> None:
        if self._working is working:
            self._working = None
            await working.aclose()


class _Working:
    """A driver with its parts, until it fails."""

    def __init__(self, parts: Parts, owner: str, progress: CheckpointStore) -> None:
        """`progress` stores the positions of unfinished batches for a sink without positions. Raises SettingsError."""
        self._parts = parts
        self._owner = owner
        self._hub = parts.receiver()
        self._origins: dict[str, Origin] = {}  # by partition, where the present hub is known
        self._last_settled: dict[str, int] = {}  # by partition: the last sequence number settled here
        self._every = parts.config.telemetry.every
        sink = parts.sink()
        self._host_keeps_position = not sink.transactional
        self._stored = parts.known_hubs() if self._host_keeps_position else parts.checkpoints()
        positions = progress if self._host_keeps_position else self._stored
        self.driver = Driver(
            shared(DriverSettings, parts.config),
            sink,
            positions,
            parts.dead_letters(),
            spans=parts.spans(),
            preparation=parts.preparation(sink),
        )
        self._reporter = reporter(
            parts,
            owner,
            lambda: self.driver.statistics() if self.driver.is_open else None,
            {
                unit: Limits(set_limit, share_of(parts.config, set_limit, unit))
                for unit, set_limit in (
                    (Unit.RECORDS, self.driver.set_rate),
                    (Unit.REQUEST_UNITS, self.driver.set_request_units),
                )
            },
        )
        self._reporter.open()
        self._untried = list(parts.parked_untried(behind_trigger=True))
        self._contexts: list[contextvars.Context] = []

    async def open(self) -> None:
        """Opens the driver, and warns of parked events. Raises SettingsError, UnavailableError."""
        await self.driver.open()
        if text := await untried_text(self._parts.config, self._untried, within=PARKED_WITHIN):
            log.warning("%s", text)
            self._reporter.notices["parked"] = text

    @contextlib.contextmanager
    def attributed(self) -> Iterator[None]:
        """Attributes the driver's log lines to this invocation: the host drops lines of invocations that have ended."""
        context = contextvars.copy_context()
        self._contexts.append(context)
        self.driver.context = context
        try:
            yield
        finally:
            self._contexts.remove(context)
            self.driver.context = self._contexts[-1] if self._contexts else None

    async def claim(self, partition: str, events: Sequence[Event], batches: _Batches) -> Claim:
        """Claims the partition for one batch.

        The host keeps the position, except for a transactional sink, which stores its own. The consumer itself checks
        which hub a position belongs to. Without that, events of a hub that was created anew would be skipped.

        Raises PositionError, UnavailableError.
        """
        await self._check_hub(partition, events[0].sequence_number)
        if self._host_keeps_position:
            if partition not in self._origins:
                self._origins[partition] = (await self._claim_anew(partition, events)).origin
            return await batches.claim(partition, events, self._origins[partition])
        if partition in self._origins:
            deadline = asyncio.get_running_loop().time() + CALL
            claim = await self._stored.claim(partition, self._owner, deadline=deadline)
            if claim.origin == self._origins[partition]:
                return claim
        claim = await self._claim_anew(partition, events)
        self._origins[partition] = claim.origin
        return claim

    async def _claim_anew(self, partition: str, events: Sequence[Event]) -> Claim:
        claim, begin = await claim_partition(
            self._stored,
            self._hub,
            partition,
            self._owner,
            self._parts.config.policy,
            brought=events[0].sequence_number,
        )
        if not self._host_keeps_position:
            self.driver.expired(partition, claim.epoch, begin.gap)
        return claim

    async def _check_hub(self, partition: str, first: int) -> None:
        """Forgets the origins of partitions if the hub was created anew.

        A hub that does not answer counts as the same one if the batch follows the last one without a gap. Raises
        UnavailableError otherwise.
        """
        if partition not in self._origins:
            return  # the claim asks the hub anyway
        try:
            async with asyncio.timeout(SAME_HUB_WITHIN):
                await self._hub.partitions()
        except PositionError:
            before, self._hub = self._hub, self._parts.receiver()
            self._origins.clear()
            self._last_settled.clear()
            await before.close(asyncio.get_running_loop().time() + CALL)
        except (UnavailableError, TimeoutError) as error:
            if self._last_settled.get(partition) != first - 1:
                raise UnavailableError(
                    f"partition {partition}: event {first} does not follow the last one, and the hub does not say whether"
                    f" it is the same: {error or 'no answer'}"
                ) from None

    async def settle(self, partition: str, epoch: int, events: Sequence[Event], deadline: float) -> None:
        """Settles a batch and reports telemetry meanwhile: only invocations of a process have a log, its other tasks have none."""
        driver, loop = self.driver, asyncio.get_running_loop()
        left = max(0.0, deadline - loop.time())
        work = asyncio.create_task(self._settle(partition, epoch, events))
        try:
            async with asyncio.timeout_at(deadline - min(DRAIN, left / 4)):
                while not (work.done() or driver.failed.done()):
                    self._reporter.report_if_due()
                    await asyncio.wait(
                        (work, driver.failed), timeout=self._every, return_when=asyncio.FIRST_COMPLETED
                    )
            (work if work.done() else driver.failed).result()
        except TimeoutError:
            await driver.drain(partition, epoch, deadline=deadline)
            raise TidemarkError(
                f"partition {partition}: the time of an invocation (CONSUMER_SLICE) did not suffice to settle"
                f" {count_text(len(events), 'event')} from sequence number {events[0].sequence_number} on; last"
                f" cause: {driver.statistics().cause or 'none reported'}. The batch is delivered again"
            ) from None
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        self._last_settled[partition] = events[-1].sequence_number
        self._reporter.report_if_due()

    async def _settle(self, partition: str, epoch: int, events: Sequence[Event]) -> None:
        await self.driver.receive(partition, epoch, events)
        await self.driver.settled(partition, epoch)

    async def aclose(self) -> None:
        await self._reporter.aclose(asyncio.get_running_loop().time() + FINAL_REPORT_WITHIN)
        await self.driver.aclose()
        await self._hub.close(asyncio.get_running_loop().time() + FINAL_REPORT_WITHIN)
        untried = [store for _, store in self._untried]
        for part in (self.driver.sink, self.driver.dead_letters, self._stored, *untried):
            await close_part(part)


class _Batches:
    """The progress of unfinished batches: a batch that is delivered again continues where it ended.

    Without it, a batch that takes longer than an invocation would never end. The progress of one batch never counts for
    another one with the same sequence numbers, because the hub may have been created anew.
    """

    def __init__(self, owner: str) -> None:
        self.store = MemoryCheckpointStore()
        self._owner = owner
        # By partition: the batch, and when it was last worked on.
        self._batches: dict[str, tuple[object, float]] = {}

    async def claim(self, partition: str, events: Sequence[Event], origin: Origin) -> Claim:
        now = asyncio.get_running_loop().time()
        batch = (len(events), events[0], events[-1])
        known, since = self._batches.get(partition, (None, 0.0))
        if known != batch or now > since + SAME_BATCH:
            before = Checkpoint(partition, events[0].sequence_number - 1, "", origin=origin)
            await self.store.put(before, deadline=now)
        self._batches[partition] = (batch, now)
        return await self.store.claim(partition, self._owner, deadline=now)

    def unfinished(self, partition: str) -> None:
        if partition in self._batches:
            self._batches[partition] = (self._batches[partition][0], asyncio.get_running_loop().time())

    def finished(self, partition: str) -> None:
        self._batches.pop(partition, None)


def check(config: ConsumerConfig) -> None:
    """Raises SettingsError for settings that a trigger cannot follow."""
    problems = []
    if config.parking.reasons:
        problems.append(
            "CONSUMER_PARK is set: with CONSUMER_HOSTING=trigger nothing runs between two batches, and no instance owns a partition,"
            " so that nobody would try parked events again. Unset CONSUMER_PARK: rejected events become dead letters, which"
            " `tidemark dead-letters replay` writes when their cause is gone; or use slices, or a process"
        )
    if config.dry_run:
        problems.append(
            "COSMOS_WRITE is false: with CONSUMER_HOSTING=trigger the host checkpoints what a dry run has not written;"
            " use slices, or a process"
        )
    for setting, own_setting, fleet in (
        ("CONSUMER_FLEET_RATELIMIT", "EVENTHUB_RATELIMIT", config.fleet_rate),
        ("CONSUMER_FLEET_RU_PER_SECOND", "CONSUMER_RU_PER_SECOND", config.fleet_request_units),
    ):
        if fleet is not None and not config.most_processes:
            problems.append(
                f"{setting} is set, and CONSUMER_MAXIMUM_INSTANCES is not: with CONSUMER_HOSTING=trigger an"
                " instance knows no other, so it needs the most instances that the platform may run to know its share; or"
                f" set {own_setting}, which is for each process"
            )
    if problems:
        raise SettingsError("\n".join(problems))


def with_share(config: ConsumerConfig) -> ConsumerConfig:
    """The configuration with the rate of this process, if a fleet rate is set.

    Instances of a trigger do not know each other. Each takes one share of the largest possible number of processes, so
    that together they never exceed the fleet rate.
    """
    shares = {
        field: fleet / config.most_processes
        for field, fleet in (("rate", config.fleet_rate), ("request_units", config.fleet_request_units))
        if fleet is not None
    }
    return structs.replace(config, **shares)


def share_of(
    config: ConsumerConfig, set_rate: Callable[[float | None], None], unit: Unit = Unit.RECORDS
) -> Callable[[float | None], None]:
    """A function that follows an ordered fleet rate; None leaves this process its own rate."""

    def set_fleet_rate(rate: float | None) -> None:
        if rate is None:
            return
        if config.most_processes:
            set_rate(rate / config.most_processes)
        else:
            log.warning(
                "a rate of %g %s was ordered for all instances together: a trigger can keep it only with"
                " CONSUMER_MAXIMUM_INSTANCES set; it is not followed",
                *(rate, unit.text),
            )

    return set_fleet_rate


def _describe_rate(config: ConsumerConfig) -> str:
    processes = config.most_processes
    if config.rate is None:
        return "no limit"
    if config.fleet_rate is not None:
        fleet = f"{config.fleet_rate:,g} records/s of all processes, {processes} at most"
        return f"{fleet}: {config.rate:,g} of this one"
    own_rate = f"{config.rate:,g} records/s of this process"
    if not processes:
        return f"{own_rate}; how many processes there may be is not known (CONSUMER_MAXIMUM_INSTANCES)"
    total = f"{config.rate * processes:,g} together; CONSUMER_FLEET_RATELIMIT is for all of them"
    return f"{own_rate}, of which there may be {processes}: {total}"


_hosted: dict[asyncio.AbstractEventLoop, HostedConsumer] = {}


def hosted(settings: Mapping[str, str]) -> HostedConsumer:
    """The process's consumer. Raises SettingsError."""
    quiet_sdks(settings)
    loop = asyncio.get_running_loop()
    if loop not in _hosted:
        hub = find_hub(
            load_definition(settings), None, asked_by="CONSUMER_HOSTING=trigger with CONSUMER_FILE"
        )
        if hub.config.hub.lower() != settings.get("EVENTHUB_NAME", "").strip().lower():
            raise SettingsError(
                f"EVENTHUB_NAME is '{settings.get('EVENTHUB_NAME', '')}'; accepted: '{hub.config.hub}', the hub of"
                " CONSUMER_FILE, as the trigger receives from EVENTHUB_NAME"
            )
        _hosted[loop] = HostedConsumer(
            hub.config, hub.settings, lambda config, of_hub: Parts(config, of_hub, hub)
        )
    return _hosted[loop]
