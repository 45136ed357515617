"""Keeps the leases of an instance: claims its share, renews it, and gives partitions up in order.

A lease is ours for `expiry` seconds from before its last renewal was sent, by our own monotonic clock: the store
cannot count it from an earlier moment. When the store stays away, partitions are given up before that time is over,
so that nobody else can have them while we still write. (Checkpoints are fenced besides.)

Nothing but the store of the leases keeps a lease from being renewed: the hub is asked for its partitions beside it, and
what is known of them holds until it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from consumer.leasing.balance import plan, presence_of, split
from consumer.model import Lease
from consumer.ports import LeaseStore
from tidemark.foundation.calls import answered
from tidemark.foundation.errors import TidemarkError, UnavailableError

_log = logging.getLogger("tidemark.consumer")

_HURRY = 5.0
"""By which the interval is divided while something of ours is in other hands, or the store is away."""
_LEAST_PATIENCE = 2.0  # seconds; a store that is well, on a machine that is not, may take longer than one
_RELEASE_TIMEOUT = 2.0  # seconds; a lease that is not released expires
_PARTITIONS_EVERY = 60.0  # seconds; a hub seldom gets new ones, and asking takes a connection of its own
_PARTITIONS_WITHIN = 30.0  # seconds; the receiver's own limit is half of it
_RESOLUTION = 1.0  # seconds; Blob Storage tells times without fractions


def unique_owner() -> str:
    """A name that no other process has or had; lower-case, since names of blobs are."""
    return f"{socket.gethostname()[:64]}~{os.getpid()}~{secrets.token_hex(4)}".lower()


class Listener(Protocol):
    """Is told about partitions, never about the same one twice at a time."""

    async def claimed(self, partition: str) -> None:
        """The lease is ours: begin. Returns soon; renewals wait for it. What it raises ends `run`."""
        ...

    async def lost(self, partition: str, *, deadline: float, stolen: bool) -> None:
        """The lease goes: finish by `deadline` (loop time); then it is released and anybody's.

        `stolen`: somebody has it already, so there is nothing left to finish.
        """
        ...


@dataclass(eq=False)
class _Held:
    """A partition of ours, until it is released. While `losing`, the listener is finishing it."""

    lease: Lease
    valid_until: float = 0.0
    giving_up: asyncio.TimerHandle | None = None
    losing: asyncio.Task[None] | None = None


@dataclass(eq=False)
class Ownership:
    """`interval`, `expiry` and `drain` are seconds. `partitions` tells which partitions there are now.

    `drain` is what a partition gets that moves to another instance.
    """

    store: LeaseStore
    owner: str
    partitions: Callable[[], Awaitable[Sequence[str]]]
    listener: Listener
    _: KW_ONLY
    interval: float = 10.0
    expiry: float = 30.0
    drain: float = 20.0

    def __post_init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._known: Sequence[str] = ()
        self._strange: frozenset[str] = frozenset()  # leased, and not among them
        self._strange_came = asyncio.Event()
        self._excess_since: Mapping[str, float] = {}
        # A round and a release would otherwise each write over what the other has just read.
        self._writing = asyncio.Lock()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clock = asyncio.get_running_loop().time

    @property
    def owned(self) -> list[str]:
        """The partitions whose leases are ours and stay so."""
        return [partition for partition, held in self._held.items() if held.losing is None]

    async def run(self) -> None:
        """Until cancelled; `release_all` comes after. Raises what the listener raises, and the TidemarkErrors of
        `partitions` and of the store that are no UnavailableError.
        """
        known = await self._ask()
        while not known:
            await asyncio.sleep(self.interval / _HURRY)
            known = await self._ask()
        asking = asyncio.create_task(self._ask_for_ever(), name="partitions of the hub")
        try:
            while True:
                began = self._clock()
                pause = await self._try_round()
                await asyncio.wait({self._failure}, timeout=max(0.0, began + pause - self._clock()))
                if self._failure.done():
                    self._failure.result()
        finally:
            asking.cancel()

    async def _try_round(self) -> float:
        """Seconds from its beginning until the next one."""
        try:
            soon = await self._round()
        except UnavailableError as error:
            _log.warning("leases: %s; %d partitions are kept meanwhile", error, len(self._held))
            # What the store asks for, but never so long that leases end meanwhile, nor without a breath.
            return min(self.interval / 2, max(error.retry_after or 0.0, self.interval / _HURRY))
        return self.interval / _HURRY if soon else self.interval

    async def release_all(self, deadline: float) -> None:
        """Every partition lost and released, and the presence withdrawn, once `run` has ended.

        Renews leases meanwhile. Ends two seconds after `deadline` at the latest, whatever store and listener do.
        """
        for partition in list(self._held):
            self._lose(partition, deadline, stolen=False)
        renewing = asyncio.create_task(self._renew_for_ever())
        try:
            async with asyncio.timeout_at(deadline + _RELEASE_TIMEOUT):
                while self._held:
                    await asyncio.wait({held.losing for held in self._held.values() if held.losing})
                renewing.cancel()
                await self._withdraw()
        except TimeoutError:
            _log.warning(
                "leases: %s not released in time; they expire", ", ".join(self._held) or "the presence"
            )
        finally:
            await _ended([renewing, *(held.losing for held in self._held.values() if held.losing)])
            self._held.clear()
            if self._failure.done():
                self._failure.exception()  # it was logged; run raised it, if there still was a run

    # --- a round ---

    async def _round(self) -> bool:
        """Whether it is worth looking again soon."""
        async with self._writing:
            # At once, and so is what follows from it: no lease is renewed late because another call takes its time.
            before = {partition: held.lease for partition, held in self._held.items()}
            listing, renewing = await asyncio.gather(
                self._list(self._deadline()), self._write(list(before.values())), return_exceptions=True
            )
            if isinstance(listing, BaseException):
                raise listing
            leases, store_now = listing
            renewed = {name for name, held in self._held.items() if held.lease is not before[name]}
            leases = [self._newer(lease) if lease.partition in renewed else lease for lease in leases]
            of_partitions, presences = split(leases)
            self._compare(of_partitions)
            self._look_for_strange(of_partitions)
            made = plan(
                of_partitions,
                presences,
                self._known,
                self.owner,
                store_now,
                self.expiry,
                draining=[partition for partition, held in self._held.items() if held.losing],
                excess_since=self._excess_since,
            )
            self._excess_since = made.excess_since
            kept = [lease for lease in made.release if lease.partition in self._held]
            left = [lease for lease in made.release if lease not in kept]
            due = [lease for lease in (*made.claim, *made.renew, *kept) if lease.partition not in renewed]
            claiming, *others = await asyncio.gather(
                self._write(due),
                self._announce(presences),
                *(self._release(lease, self._deadline()) for lease in (*made.forget, *left)),
                return_exceptions=True,
            )
        for lease in kept:
            if self._held[lease.partition].losing is None:
                _log.info("partition %s: given up for a fair share", lease.partition)
                self._lose(lease.partition, self._clock() + self.drain, stolen=False)
        _raise_first([renewing, claiming, *others])
        return bool(made.missing or renewing or claiming)

    def _look_for_strange(self, leases: Iterable[Lease]) -> None:
        """A lease of a partition that we do not know of is news: others may be leaving it to us already."""
        before = self._strange
        self._strange = frozenset(lease.partition for lease in leases).difference(self._known)
        if self._strange - before:
            self._strange_came.set()

    async def _ask_for_ever(self) -> None:
        answered = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PARTITIONS_EVERY if answered else self.interval):
                    await self._strange_came.wait()
            self._strange_came.clear()
            try:
                answered = await self._ask()
            except TidemarkError as error:
                self._fail(error)
                return

    async def _ask(self) -> bool:
        """Asks the hub which partitions there are, and whether it told. Raises TidemarkErrors that are for good."""
        deadline = self._clock() + _PARTITIONS_WITHIN
        try:
            partitions = await answered("the hub", deadline, self.partitions())
            if not partitions:  # no hub is without: not to be taken for an order to give up all
                raise UnavailableError("the hub names no partitions")
        except UnavailableError as error:
            if self._known:
                _log.warning("partitions of the hub: %s; those known are kept", error)
            else:
                _log.warning("partitions of the hub: %s; nothing can begin until they are known", error)
            return False
        self._known = partitions
        return True

    def _newer(self, lease: Lease) -> Lease:
        """As we renewed it while it was listed; whoever else has it by the list has it since then."""
        return self._held[lease.partition].lease if lease.owner == self.owner else lease

    def _compare(self, leases: Iterable[Lease]) -> None:
        """Finds out what was taken from us, and what a write did whose answer never came."""
        for lease in leases:
            held = self._held.get(lease.partition)
            if held is None:
                continue
            if lease.owner == self.owner:
                held.lease = lease
            elif lease.owner:
                _log.warning("partition %s: its lease was taken by %s", lease.partition, lease.owner)
                self._lose(lease.partition, self._clock() + self.drain, stolen=True)

    async def _announce(self, presences: Sequence[Lease]) -> None:
        name = presence_of(self.owner)
        known = next((lease for lease in presences if lease.partition == name), Lease(name, "", 0.0, ""))
        await self._claim(known, self._deadline())

    async def _list(self, deadline: float) -> tuple[Sequence[Lease], float]:
        return await answered("listing leases", deadline, self.store.list(deadline=deadline))

    async def _claim(self, lease: Lease, deadline: float) -> Lease | None:
        return await answered(
            f"claiming {lease.partition}", deadline, self.store.claim(lease, self.owner, deadline=deadline)
        )

    async def _release(self, lease: Lease, deadline: float) -> None:
        await answered(f"releasing {lease.partition}", deadline, self.store.release(lease, deadline=deadline))

    async def _write(self, leases: Sequence[Lease]) -> int:
        """Claims and renews, all at once. How many somebody else was faster with.

        Raises UnavailableError when that is what became of any, after taking note of the others.
        """
        sent_at, deadline = self._clock(), self._deadline()

        async def write(lease: Lease) -> Lease | None:
            written = await self._claim(lease, deadline)
            if written is not None:  # noted as it comes: one that takes its time costs the others none
                await self._take(written, sent_at)
            return written

        answers = await asyncio.gather(*map(write, leases), return_exceptions=True)
        _raise_first(answers)
        return answers.count(None)

    async def _take(self, lease: Lease, sent_at: float) -> None:
        held = self._held.get(lease.partition)
        is_new = held is None
        if held is None:
            held = self._held[lease.partition] = _Held(lease)
        held.lease, held.valid_until = lease, sent_at + self.expiry - _RESOLUTION
        if held.losing is None:
            if held.giving_up is not None:
                held.giving_up.cancel()
            margin = min(self.drain, self.expiry / 3)
            held.giving_up = asyncio.get_running_loop().call_at(
                held.valid_until - margin, self._give_up, lease.partition
            )
        if is_new:
            await self.listener.claimed(lease.partition)

    # --- giving up ---

    def _give_up(self, partition: str) -> None:
        _log.warning("partition %s: the lease could not be renewed and is about to expire", partition)
        self._lose(partition, self._held[partition].valid_until, stolen=False)

    def _lose(self, partition: str, deadline: float, *, stolen: bool) -> None:
        held = self._held[partition]
        if held.giving_up is not None:
            held.giving_up.cancel()
        if held.losing is None:
            held.losing = asyncio.create_task(self._finish(partition, held, deadline, stolen=stolen))

    async def _finish(self, partition: str, held: _Held, deadline: float, *, stolen: bool) -> None:
        try:
            # After a stall of the process the deadline may be over: the listener is told all the same.
            async with asyncio.timeout_at(max(deadline, self._clock()) + _RELEASE_TIMEOUT / 2):
                await self.listener.lost(partition, deadline=deadline, stolen=stolen)
        except TimeoutError:
            _log.warning("partition %s: was not finished by the deadline", partition)
        except Exception as error:  # noqa: BLE001 - logged in full, and raised by run
            _log.exception("partition %s: could not be finished", partition)
            self._fail(error)
        async with self._writing:
            if not stolen:
                with contextlib.suppress(UnavailableError):  # then it expires
                    await self._release(held.lease, self._clock() + _RELEASE_TIMEOUT)
            del self._held[partition]

    def _fail(self, error: Exception) -> None:
        """Ends `run`."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            async with self._writing:
                with contextlib.suppress(UnavailableError):
                    await self._write([held.lease for held in self._held.values()])

    async def _withdraw(self) -> None:
        """Releases what is left under our name: the presence, and a lease whose claim was never answered."""
        with contextlib.suppress(UnavailableError):  # then they expire
            leases, _ = await self._list(self._clock() + _RELEASE_TIMEOUT)
            for lease in leases:
                if lease.owner == self.owner:
                    await self._release(lease, self._clock() + _RELEASE_TIMEOUT)

    def _deadline(self) -> float:
        """Of one call to the store: one that stays without an answer leaves time for another before the lease ends."""
        return self._clock() + min(self.interval, max(_LEAST_PATIENCE, self.expiry / 6))


def _raise_first(answers: Iterable[object]) -> None:
    """Raises the first error among answers; what is for good before what passes."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, UnavailableError)):
        raise error


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
