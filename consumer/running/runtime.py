"""A consumer process: leases decide which partitions it receives, and a driver writes the events.

Stopping has one deadline for all its steps: stop receiving, finish attempted events, save the last checkpoints, release the
leases, close. Events that are not settled by then are received again by the next owner of the partition.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from msgspec import Struct, structs

from consumer.errors import FencedError, ShutdownError
from consumer.leasing.away import watch_reach
from consumer.leasing.balance import split
from consumer.leasing.claiming import claim_partition
from consumer.leasing.fleet_share import FleetShare
from consumer.leasing.ownership import Ownership
from consumer.leasing.reach import HUB, Reach, sink_named
from consumer.leasing.start_position import Expired, refuse_gap
from consumer.model import Checkpoint, Claim, Event
from consumer.options import PositionPolicy
from consumer.ports import CheckpointStore, LeaseStore
from consumer.receiving.receiver import HubReceiver
from consumer.running.driver import Driver
from consumer.running.waiting import StoppedError, ended, when_available
from consumer.sinks.routed import ask_target
from tidemark.foundation.calls import PATIENCE, answered
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.pacing.retry_delay import asked_pause

log = logging.getLogger("tidemark.consumer")

_GRACE = 1.0
"""Seconds for tasks to end when the deadline has passed."""

ASK_EVERY = 60.0
"""Seconds between two questions for the partitions of the hub at most."""

_RECLAIM_AFTER = 1.5
"""Lease intervals before a partition is claimed again that another consumer took. The leases are read in between, so that
this process does not claim a partition whose lease it has lost."""


class RuntimeSettings(Struct, frozen=True):
    """Times are seconds."""

    owner: str
    policy: PositionPolicy = PositionPolicy()
    lease_interval: float = 10.0
    lease_expiry: float = 30.0
    """The partitions of a killed process are claimed by others after at most expiry + interval, 40 s by default."""
    drain: float = 20.0
    """The time in which a partition that moves to another instance may finish attempted events."""
    shutdown: float = 25.0
    """The time of a shutdown with all its steps. Azure gives a container 30 s between SIGTERM and SIGKILL."""
    fleet_rate: float | None = None
    """Records per second of all instances together: each takes the share of the partitions it owns."""
    fleet_request_units: float | None = None
    """Request units per second, shared likewise."""
    retry: float = 2.0
    give_up_after: float | None = None
    """Seconds without an answer of hub or sink after which the partitions are given up; see `Reach`."""


@dataclass(eq=False)
class _Receiving:
    """One owned partition."""

    task: asyncio.Task[None]
    claim: Claim | None = None
    error: str = ""
    """Why it receives nothing at the moment."""


@dataclass(eq=False)
class Consumer:
    """Runs until an order to stop, or an error. `on_stopping` is called when the shutdown begins."""

    settings: RuntimeSettings
    receiver: HubReceiver
    driver: Driver
    checkpoints: CheckpointStore
    leases: LeaseStore
    on_stopping: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._receiving: dict[str, _Receiving] = {}
        self._share = FleetShare()
        self._reach = Reach(self.settings.give_up_after)
        self._is_first_listing = True
        self._undrained: list[str] = []
        self._close_by = 0.0
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.driver.on_fenced = self.fenced
        self.driver.on_answer = lambda sink, reached: self._note(sink_named(sink), reached=reached)
        self.ownership = Ownership(
            self.leases,
            self.settings.owner,
            self._list_partitions,
            self,
            interval=self.settings.lease_interval,
            expiry=self.settings.lease_expiry,
            drain=self.settings.drain,
            ask_every=min(ASK_EVERY, max(1.0, (self.settings.give_up_after or math.inf) / 2)),
        )

    @property
    def waits_for(self) -> str:
        """What this instance waits for before it can consume; '' when it can, also while others own all partitions."""
        if not self.driver.is_open:
            return "the sink or the dead-letter store has not answered yet"
        if self._reach.reason:
            return (
                f"it gave its partitions up: {self._reach.reason}; it comes back when hub and sink answer it"
            )
        return "" if self.ownership.has_listed else "the hub and the lease store have not answered yet"

    @property
    def errors(self) -> dict[str, str]:
        """By partition of this instance why it receives nothing at the moment."""
        return {name: receiving.error for name, receiving in self._receiving.items() if receiving.error}

    async def run(self, stop: asyncio.Event) -> None:
        """Consumes until `stop` is set, then shuts down in order.

        Raises SettingsError, PositionError, BacklogError, PoisonError; ShutdownError when the deadline passed before
        every attempted event was settled; UnavailableError when the sink or the dead-letter store did not answer
        before `stop`.
        """
        self._close_by = asyncio.get_running_loop().time() + self.settings.shutdown
        async with AsyncExitStack() as closing:  # every step is taken, even if an earlier one fails
            closing.push_async_callback(lambda: self.receiver.close(self._close_by))
            closing.push_async_callback(self.driver.aclose)
            if not await self._open(stop):
                return
            closing.push_async_callback(self._end_receiving)
            closing.push_async_callback(self._release)
            outcome = await self._balance_until(stop)
        self._raise(outcome)

    async def _open(self, stop: asyncio.Event) -> bool:
        """Waits until the sink and the dead-letter store are open. False if `stop` came before any answer.

        Raises the last UnavailableError if `stop` came after a failure.
        """
        patience, retry = self.settings.shutdown, self.settings.retry
        what = "the sink or the dead letters"
        try:
            await when_available(what, self.driver.open, retry=retry, stop=stop, patience=patience)
        except StoppedError:
            log.info("an order to stop came before %s answered: nothing was begun", what)
            return False
        return True

    async def _balance_until(self, stop: asyncio.Event) -> BaseException | None:
        """The error with which balancing ended, or None."""
        balancing = asyncio.create_task(self.ownership.run(), name="ownership")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        waiting = self.driver.statistics
        watched = self._reach, self.ownership, self._questions, lambda: waiting().backlog_count
        watching = {
            asyncio.create_task(self._watch_positions(), name="positions"),
            asyncio.create_task(watch_reach(*watched, every=self.settings.retry), name="reach"),
        }
        try:
            await asyncio.wait(
                (balancing, stopping, self.driver.failed, self._failure), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopping.cancel()
            await ended({balancing, *watching}, self.settings.shutdown)
        return None if not balancing.done() or balancing.cancelled() else balancing.exception()

    def _raise(self, outcome: BaseException | None) -> None:
        for future in (self.driver.failed, self._failure):
            if future.done() and not future.cancelled():
                future.result()
        if outcome is not None:
            raise outcome
        if self._undrained:
            raise ShutdownError(
                f"partitions {', '.join(self._undrained)}: what was begun was not settled in time; it comes again"
            )

    # -- shutting down

    async def _release(self) -> None:
        self._close_by = asyncio.get_running_loop().time() + self.settings.shutdown
        self._undrained.clear()
        if self.on_stopping is not None:
            self.on_stopping()
        await self.ownership.release_all(self._close_by)

    async def _end_receiving(self) -> None:
        left = self._close_by - asyncio.get_running_loop().time()
        await ended({receiving.task for receiving in self._receiving.values()}, max(left, _GRACE))
        if self._failure.done():
            self._failure.exception()  # marks it as retrieved, so that asyncio does not log it

    # -- called by the ownership

    async def claimed(self, partition: str) -> None:
        """Begins to receive a partition whose lease this process has."""
        log.info("partition %s: claimed", partition)
        self._receiving[partition] = _Receiving(
            asyncio.create_task(self._receive(partition), name=f"partition {partition}")
        )
        self._share_rate()

    async def lost(self, partition: str, *, deadline: float, stolen: bool) -> None:
        """Gives a partition up: drains it, unless it is `stolen`, and ends its claim."""
        receiving = self._receiving.pop(partition, None)
        if receiving is None:
            return
        claim, drained = receiving.claim, False
        receiving.task.cancel()
        try:
            await asyncio.gather(receiving.task, return_exceptions=True)
            if claim is not None and not stolen:
                drained = await self.driver.drain(partition, claim.epoch, deadline=deadline)
        finally:  # also after a timeout: from here on nothing is written under the claim
            if claim is not None:
                self.driver.lost(partition, claim.epoch)
                log.info("partition %s: %s", partition, "drained" if drained else "left with work unsettled")
                if not drained:
                    self._undrained.append(partition)
            self._share_rate()

    async def _list_partitions(self) -> Sequence[str]:
        clock = asyncio.get_running_loop().time
        try:
            partitions = await self.receiver.partitions()
        except UnavailableError:
            self._note(HUB, reached=False)
            raise
        self._note(HUB, reached=True)
        limits = (self.settings.fleet_rate, self.settings.fleet_request_units)
        known: Collection[str] = partitions if limits == (None, None) else ()
        receivable = self._share.receivable(partitions, clock(), known_to_all=known)
        self._share_rate()  # with the larger number at once, even if the next call fails
        if len(receivable) < len(partitions):
            known = await self._known_to_all(partitions)
            receivable = self._share.receivable(partitions, clock(), known_to_all=known)
        return receivable

    async def _known_to_all(self, partitions: Sequence[str]) -> Collection[str]:
        """The partitions that every other instance knows by now; see `FleetShare`."""
        settings = self.settings
        deadline = asyncio.get_running_loop().time() + settings.lease_interval
        leases, store_now = await self.leases.list(deadline=deadline)
        leased, _ = split(leases)
        others = (lease for lease in leased if lease.owner not in {"", settings.owner})
        is_alone = all(lease.renewed_at + settings.lease_expiry < store_now for lease in others)
        is_first, self._is_first_listing = self._is_first_listing, False
        if is_first and is_alone:  # instances that start later list all partitions
            return partitions
        return {lease.partition for lease in leased}

    def _share_rate(self) -> None:
        """Sets the limits to this instance's share. A partition has one owner, so that all shares never exceed the fleet's."""
        if not self._share.partitions or not self._receiving:
            return
        if (fleet := self.settings.fleet_rate) is not None:
            self.driver.set_rate(self._share.rate(fleet, len(self._receiving)))
        if (fleet := self.settings.fleet_request_units) is not None:
            self.driver.set_request_units(self._share.rate(fleet, len(self._receiving)))

    def set_fleet_rate(self, rate: float | None) -> None:
        """Changes the rate of all instances together; it must be set on each of them."""
        self.settings = structs.replace(self.settings, fleet_rate=rate)
        self._share_rate()

    def set_fleet_request_units(self, rate: float | None) -> None:
        """Changes the request units per second of all instances together; they must be set on each of them."""
        self.settings = structs.replace(self.settings, fleet_request_units=rate)
        self._share_rate()

    def fenced(self, partition: str, epoch: int) -> None:
        """Claims a partition again whose claim was refused, if this process still receives it."""
        receiving = self._receiving.get(partition)
        if receiving is not None and receiving.claim is not None and receiving.claim.epoch == epoch:
            receiving.claim = None
            before = receiving.task
            before.cancel()

            async def receive_again() -> None:
                await asyncio.gather(before, return_exceptions=True)
                await asyncio.sleep(_RECLAIM_AFTER * self.settings.lease_interval)
                await self._receive(partition)

            receiving.task = asyncio.create_task(receive_again(), name=f"partition {partition}")

    async def _watch_positions(self) -> None:
        """Looks for positions that an operator set. An idle partition saves nothing, so no refused save reveals them."""
        while True:
            await asyncio.sleep(self.settings.lease_interval)
            if all(receiving.claim is None for receiving in self._receiving.values()):
                continue
            deadline = asyncio.get_running_loop().time() + self.settings.lease_interval
            try:
                loading = self.checkpoints.load_all(deadline=deadline)
                checkpoints = await answered("the checkpoint store", deadline + PATIENCE, loading)
            except Exception as error:  # a refused save or the next listing shows the same
                log.debug("the positions cannot be read: %s", error)
                continue
            for partition, stored in checkpoints.items():
                receiving = self._receiving.get(partition)
                claim = None if receiving is None else receiving.claim
                if claim is not None and isinstance(stored, Checkpoint) and stored.epoch > claim.epoch:
                    taken = FencedError(f"'{stored.owner}' set its position, or claimed it")
                    self.driver.fenced(partition, claim.epoch, taken)

    # -- an instance that reaches nothing

    def _note(self, service: str, *, reached: bool) -> None:
        self._reach.note(service, reached=reached, now=asyncio.get_running_loop().time())

    def _questions(self, deadline: float) -> Sequence[tuple[str, Awaitable[object]]]:
        """What an instance that is away asks: all that it needs."""
        return (
            ("the hub", self.receiver.partitions()),
            ("the sink", ask_target(self.driver.sink)),
            ("the checkpoint store", self.checkpoints.load_all(deadline=deadline)),
        )

    # -- one partition

    async def _receive(self, partition: str) -> None:
        """Receives until it is cancelled, over errors that pass. Any other error ends the consumer."""
        while True:
            try:
                await self._receive_once(partition)
            except FencedError as error:
                # Another consumer receives with a higher epoch: it has no lease, or this process is about to lose its own.
                log.warning("partition %s: another receiver took over: %s", partition, error)
                self._forget_claim(partition, f"another receiver took over: {error}")
                await asyncio.sleep(_RECLAIM_AFTER * self.settings.lease_interval)
            except UnavailableError as error:
                if self._failure.done():
                    return
                log.warning("partition %s: %s", partition, error)
                self._forget_claim(partition, str(error))
                await asyncio.sleep(asked_pause(error.retry_after, self.settings.retry))
            except TidemarkError as error:  # a position or a setting: the operator must act
                self._fail(error)
                return
            except Exception as error:
                log.exception("partition %s: receiving failed", partition)
                self._fail(TidemarkError(f"partition {partition}: internal error: {error!r}"))
                return

    def _forget_claim(self, partition: str, why: str) -> None:
        receiving = self._receiving.get(partition)
        if receiving is None:
            return
        receiving.error = why
        if receiving.claim is not None:
            self.driver.lost(partition, receiving.claim.epoch)
            receiving.claim = None

    def _fail(self, error: TidemarkError) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _receive_once(self, partition: str) -> None:
        asked = (self.checkpoints, self.receiver, partition, self.settings.owner, self.settings.policy)
        claiming = claim_partition(*asked, leased_at=self.ownership.renewed_at(partition))
        claim, begin = await answered("the claim", None, claiming)
        receiving = self._receiving[partition]
        receiving.claim, receiving.error = claim, ""
        self.driver.claimed(claim)
        self.driver.expired(partition, claim.epoch, begin.gap)

        async def on_events(events: Sequence[Event], last_enqueued: int | None) -> None:
            if events:
                self._note(HUB, reached=True)
            try:
                await self.driver.receive(partition, claim.epoch, events, last_enqueued)
            except Exception as error:  # an error in this program: the state in memory cannot be trusted
                log.exception("partition %s: taking events in failed", partition)
                self._fail(TidemarkError(f"partition {partition}: internal error: {error!r}"))
                raise

        def on_expired(lost: Expired) -> None:
            refuse_gap(self.settings.policy, partition, lost)
            log.warning("partition %s: %s", partition, lost)
            self.driver.expired(partition, claim.epoch, lost.count)

        receive_events = self.receiver.receive(partition, begin, claim.epoch, on_events, on_expired)
        await answered("receiving", None, receive_events)
