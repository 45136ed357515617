"""The consumer inside a function that the Event Hubs trigger calls with a batch of one partition.

The host checkpoints after the invocation, whatever became of the batch. So an invocation returns only when every
event of its batch is written or a stored dead letter, and raises otherwise: the function's retry policy, without a
limit, then brings the same batch again, and the partition waits meanwhile. Rate, bulk, retries and dead letters are
the pipeline's, shared by all invocations of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import structs

from consumer.config import ConsumerConfig, read_config
from consumer.errors import PositionError
from consumer.leasing.claiming import CALL, claim_partition
from consumer.leasing.ownership import unique_owner
from consumer.model import Checkpoint, Claim, Event, Origin
from consumer.ports import CheckpointStore
from consumer.running.assembly import Parts, reporter
from consumer.running.driver import Driver, DriverSettings
from consumer.running.process import close_part
from consumer.stores.memory import MemoryCheckpointStore
from consumer.telemetry.records import shared
from tidemark.foundation.calls import answered
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.log.process import quiet_sdks

log = logging.getLogger("tidemark.consumer")

DRAIN = 5.0
"""Seconds before the deadline at which nothing more is begun, so that what was begun can end; a quarter at most."""
RECOGNIZED_WITHIN = 2.0
"""Seconds the hub has to say that it is still the same; asking it takes some hundredths of one."""
SAME_BATCH = 60.0
"""Seconds within which a batch that was not finished must come again for its progress to count."""
LAST_WORDS = 5.0


class HostedConsumer:
    """One per process and event loop. The driver outlives invocations; one that failed is replaced by the next."""

    def __init__(
        self,
        config: ConsumerConfig,
        settings: Mapping[str, str],
        parts: Callable[[ConsumerConfig, Mapping[str, str]], Parts] = Parts,
    ) -> None:
        """`parts` gives each driver its adapters. Raises SettingsError, also for what a trigger cannot do."""
        _check(config)
        for doubt in config.doubts:
            log.warning("%s", doubt)
        self._config = config = with_share(config)
        self._make_parts: Callable[[], Parts] = lambda: parts(config, settings)
        self._owner = unique_owner()
        self._working: _Working | None = None
        self._opening = asyncio.Lock()
        self._batches = _Batches(self._owner)

    async def settle(self, partition: str, events: Sequence[Event], *, deadline: float) -> None:
        """Returns when every event is settled. Raises TidemarkError when that is not so by `deadline` (loop time).

        FencedError: the partition was given to somebody else, or to this process once more, meanwhile.
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
        """Ends what runs. The host has no word for it: for those who start more than one."""
        if self._working is not None:
            await self._discard(self._working)

    async def _open(self) -> _Working:
        async with self._opening:
            if self._working is None:
                working = _Working(self._make_parts(), self._owner, self._batches.store)
                try:
                    await working.driver.open()
                except BaseException:
                    await working.aclose()
                    raise
                self._working = working
                log.info("rate: %s", _rate_story(self._config))
        return self._working

    async def _discard(self, working: _Working) -> None:
        if self._working is working:
            self._working = None
            await working.aclose()


class _Working:
    """A driver with its parts, until it fails."""

    def __init__(self, parts: Parts, owner: str, progress: CheckpointStore) -> None:
        """`progress` keeps positions for a sink that has none. Raises SettingsError."""
        self._parts = parts
        self._owner = owner
        self._hub = parts.receiver()
        self._origins: dict[str, Origin] = {}  # of partitions that are known to be of this hub
        self._brought: dict[str, int] = {}  # the last event of each that was settled here
        self._every = parts.config.telemetry.every
        sink = parts.sink()
        self._is_host_s = not sink.transactional  # the position
        self._stored = parts.recognized() if self._is_host_s else parts.checkpoints()
        positions = progress if self._is_host_s else self._stored
        self.driver = Driver(shared(DriverSettings, parts.config), sink, positions, parts.dead_letters())
        self._reporter = reporter(
            parts,
            owner,
            lambda: self.driver.statistics() if self.driver.is_open else None,
            set_rate=self.driver.set_rate,
            set_fleet_rate=share_of(parts.config, self.driver.set_rate),
        )
        self._reporter.open()
        self._contexts: list[contextvars.Context] = []

    @contextlib.contextmanager
    def attributed(self) -> Iterator[None]:
        """What the driver logs meanwhile is of this invocation: the host drops lines of those that ended."""
        context = contextvars.copy_context()
        self._contexts.append(context)
        self.driver.context = context
        try:
            yield
        finally:
            self._contexts.remove(context)
            self.driver.context = self._contexts[-1] if self._contexts else None

    async def claim(self, partition: str, events: Sequence[Event], batches: _Batches) -> Claim:
        """The host owns the position, but for a transactional sink, which has its own. Which hub the position is of is
        ours to know: of one that was created anew, the host would leave out, and we take for settled, what is not.

        Raises PositionError, UnavailableError.
        """
        await self._recognize(partition, events[0].sequence_number)
        if self._is_host_s:
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
        if not self._is_host_s:
            self.driver.expired(partition, claim.epoch, begin.gap)
        return claim

    async def _recognize(self, partition: str, first: int) -> None:
        """Forgets what is known of the hub where it was created anew since. A hub that does not say is the same while
        its events go on where the last batch ended. Raises UnavailableError: then nobody knows.
        """
        if partition not in self._origins:
            return  # it is asked anyhow
        try:
            async with asyncio.timeout(RECOGNIZED_WITHIN):
                await self._hub.partitions()
        except PositionError:
            before, self._hub = self._hub, self._parts.receiver()
            self._origins.clear()
            self._brought.clear()
            await before.close(asyncio.get_running_loop().time() + CALL)
        except (UnavailableError, TimeoutError) as error:
            if self._brought.get(partition) != first - 1:
                raise UnavailableError(
                    f"partition {partition}: event {first} does not follow the last one, and the hub does not say whether"
                    f" it is the same: {error or 'no answer'}"
                ) from None

    async def settle(self, partition: str, epoch: int, events: Sequence[Event], deadline: float) -> None:
        """Telemetry is told from here: of the tasks of a process, only invocations have a log."""
        driver, loop = self.driver, asyncio.get_running_loop()
        left = max(0.0, deadline - loop.time())
        work = asyncio.create_task(self._settle(partition, epoch, events))
        try:
            async with asyncio.timeout_at(deadline - min(DRAIN, left / 4)):
                while not (work.done() or driver.failed.done()):
                    self._reporter.tell()
                    await asyncio.wait(
                        (work, driver.failed), timeout=self._every, return_when=asyncio.FIRST_COMPLETED
                    )
            (work if work.done() else driver.failed).result()
        except TimeoutError:
            await driver.drain(partition, epoch, deadline=deadline)
            raise TidemarkError(
                f"partition {partition}: not all of {len(events)} events, from sequence number"
                f" {events[0].sequence_number} on, were settled in the time of an invocation (CONSUMER_SLICE); last"
                f" cause: {driver.statistics().cause or 'none told'}. The batch comes again"
            ) from None
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        self._brought[partition] = events[-1].sequence_number
        self._reporter.tell()

    async def _settle(self, partition: str, epoch: int, events: Sequence[Event]) -> None:
        await self.driver.receive(partition, epoch, events)
        await self.driver.settled(partition, epoch)

    async def aclose(self) -> None:
        await self._reporter.aclose(asyncio.get_running_loop().time() + LAST_WORDS)
        await self.driver.aclose()
        await self._hub.close(asyncio.get_running_loop().time() + LAST_WORDS)
        for part in (self.driver.sink, self.driver.dead_letters, self._stored):
            await close_part(part)


class _Batches:
    """What is settled of batches that were not finished: when one comes again, it goes on from there.

    Without that, a batch that takes longer than an invocation may would never end. Of another batch nothing passes for
    settled, whatever its numbers: the hub may have been created anew.
    """

    def __init__(self, owner: str) -> None:
        self.store = MemoryCheckpointStore()
        self._owner = owner
        self._batches: dict[str, tuple[object, float]] = {}  # and when they were last worked on

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


def _check(config: ConsumerConfig) -> None:
    problems = []
    if config.dry_run:
        problems.append(
            "COSMOS_WRITE is false: with CONSUMER_HOSTING=trigger the host checkpoints what a dry run has not written;"
            " use slices, or a process"
        )
    if config.fleet_rate is not None and not config.most_processes:
        problems.append(
            "CONSUMER_FLEET_RATELIMIT is set, and CONSUMER_MAXIMUM_INSTANCES is not: with CONSUMER_HOSTING=trigger an"
            " instance knows no other, so it needs the most instances that the platform may run to know its share; or"
            " set EVENTHUB_RATELIMIT, which is for each process"
        )
    if problems:
        raise SettingsError("; ".join(problems))


def with_share(config: ConsumerConfig) -> ConsumerConfig:
    """With the rate of this process where one is set for all: instances do not know each other, so each takes one share
    of the most there can be, and all of them never exceed it.
    """
    if config.fleet_rate is None:
        return config
    return structs.replace(config, rate=config.fleet_rate / config.most_processes)


def share_of(
    config: ConsumerConfig, set_rate: Callable[[float | None], None]
) -> Callable[[float | None], None]:
    """What is done when a rate for all instances is ordered; None leaves the process its own."""

    def set_fleet_rate(rate: float | None) -> None:
        if rate is None:
            return
        if config.most_processes:
            set_rate(rate / config.most_processes)
        else:
            log.warning(
                "a rate of %g/s was ordered for all instances together: a trigger can keep it only with"
                " CONSUMER_MAXIMUM_INSTANCES set; it is not followed",
                rate,
            )

    return set_fleet_rate


def _rate_story(config: ConsumerConfig) -> str:
    processes = config.most_processes
    if config.fleet_rate is not None:
        share = config.fleet_rate / processes
        return (
            f"{config.fleet_rate:,g} records/s of all processes, {processes} at most: {share:,g} of this one"
        )
    if config.rate is None:
        return "no limit of the rate"
    if not processes:
        return (
            f"{config.rate:,g} records/s of this process; how many of them there may be is not known"
            " (CONSUMER_MAXIMUM_INSTANCES)"
        )
    return (
        f"{config.rate:,g} records/s of this process, of which there may be {processes}:"
        f" {config.rate * processes:,g} together; CONSUMER_FLEET_RATELIMIT is for all of them"
    )


_hosted: dict[asyncio.AbstractEventLoop, HostedConsumer] = {}


def hosted(settings: Mapping[str, str]) -> HostedConsumer:
    """The process's consumer. Raises SettingsError."""
    quiet_sdks(settings)
    loop = asyncio.get_running_loop()
    if loop not in _hosted:
        _hosted[loop] = HostedConsumer(read_config(settings), settings)
    return _hosted[loop]
