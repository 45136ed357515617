"""Maintains the leases of an instance: claims its share, renews it, and gives partitions up in order.

A lease is valid for `expiry` seconds by the instance's own monotonic clock, counted from before its last renewal was sent:
the store cannot count from an earlier time. If the store does not answer, partitions are given up before that time ends,
so that no other instance can have them while this one still writes. (Checkpoints are fenced in addition.)

Renewals depend on the lease store only. The hub is asked for its partitions in a separate task, and the known partitions
stay valid until it answers.
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

from consumer.leasing.balance import LeaseAges, plan, presence_of, split
from consumer.model import Lease
from consumer.ports import LeaseStore
from tidemark.foundation.calls import answered
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.pacing.retry_delay import RareLines
from tidemark.foundation.wording import count_text

_log = logging.getLogger("tidemark.consumer")

_HURRY = 5.0
"""Divides the interval while other owners hold partitions of the own share, or while the store does not answer: by
default one round every 2 s."""
_LEAST_PATIENCE = 2.0
"""Seconds for a call to the store; a healthy one may take more than one on a busy machine."""
_RELEASE_TIMEOUT = 2.0  # seconds; after that the lease is left to expire
_PARTITIONS_WITHIN = 30.0  # seconds; twice the receiver's own limit
_RESOLUTION = 1.0  # seconds; Blob Storage reports times in whole seconds


def unique_owner() -> str:
    """A name that no other process has or had; lower-case like the names of blobs."""
    return f"{socket.gethostname()[:64]}~{os.getpid()}~{secrets.token_hex(4)}".lower()


class Listener(Protocol):
    """Gets partitions and loses them. Calls for one partition never overlap."""

    async def claimed(self, partition: str) -> None:
        """Begins to receive. Must return soon, because renewals wait for it. An exception ends `run`."""
        ...

    async def lost(self, partition: str, *, deadline: float, stolen: bool) -> None:
        """Finishes a partition by `deadline` (loop time); then its lease is released.

        `stolen`: another owner has the lease already, so nothing can be finished.
        """
        ...


@dataclass(eq=False)
class _Held:
    """An owned partition, until it is released. While `losing` is set, the listener finishes it."""

    lease: Lease
    valid_until: float = 0.0
    giving_up: asyncio.TimerHandle | None = None
    losing: asyncio.Task[None] | None = None


@dataclass(eq=False)
class Ownership:
    """`interval`, `expiry` and `drain` are seconds. `partitions` lists the present partitions of the hub.

    A partition that moves to another instance has `drain` seconds to finish.
    """

    store: LeaseStore
    owner: str
    partitions: Callable[[], Awaitable[Sequence[str]]]
    listener: Listener
    _: KW_ONLY
    interval: float = 10.0
    expiry: float = 30.0
    drain: float = 20.0
    ask_every: float = 60.0
    """Seconds between two questions to the hub; it seldom gets partitions, and asking takes a connection."""

    def __post_init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._known: Sequence[str] = ()
        self._lines = RareLines()
        self._unknown: set[str] = set()  # leased by somebody, but not in `_known`
        self._unknown_found = asyncio.Event()
        self._excess_since: Mapping[str, float] = {}
        self._ages = LeaseAges()
        # Otherwise a round and a release could each overwrite a lease that the other has just read.
        self._writing = asyncio.Lock()
        self.has_listed = False
        """Whether a round has succeeded: the hub's partitions and their leases are known."""
        self.others = 0
        """Other instances that were present in the last round."""
        self._away = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clock = asyncio.get_running_loop().time

    @property
    def owned(self) -> list[str]:
        """The owned partitions that are not being given up."""
        return [partition for partition, held in self._held.items() if held.losing is None]

    def renewed_at(self, partition: str) -> float:
        """When the lease of an owned partition was renewed last, by the clock of the store."""
        return self._held[partition].lease.renewed_at

    @property
    def holds_any(self) -> bool:
        """Whether partitions are owned, or still being given up."""
        return bool(self._held)

    async def run(self) -> None:
        """Balances until it is cancelled; call `release_all` after it.

        Raises the exceptions of the listener, and TidemarkErrors of `partitions` and of the store but UnavailableError.
        """
        known = await self._ask_partitions()
        while not known:
            await asyncio.sleep(self.interval / _HURRY)
            known = await self._ask_partitions()
        asking = asyncio.create_task(self._keep_asking(), name="partitions of the hub")
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
        """Runs a round; returns the seconds from its beginning to the next round."""
        try:
            soon = await self._round()
        except UnavailableError as error:
            kept = count_text(len(self._held), "partition is", "partitions are")
            _log.warning("leases: %s; %s kept meanwhile", error, kept)
            # As long as the store asks for, but not so long that leases expire, and not without any pause.
            return min(self.interval / 2, max(error.retry_after or 0.0, self.interval / _HURRY))
        return self.interval / _HURRY if soon else self.interval

    async def leave(self) -> None:
        """Gives every partition up, so that others take them. Nothing is claimed until `come_back`."""
        self._away = True
        self._lose_all(self._clock() + self.drain)
        async with self._writing:
            self._lose_all(self._clock() + self.drain)  # also what the round claimed that was under way
            # If the store does not answer, the presence expires, and others get their share later.
            with contextlib.suppress(UnavailableError):
                leases, _ = await self._list(self._deadline())
                for lease in leases:
                    if lease.partition == presence_of(self.owner):
                        await self._release(lease, self._deadline())

    def _lose_all(self, deadline: float) -> None:
        for partition in list(self._held):
            self._lose(partition, deadline, stolen=False)

    def come_back(self) -> None:
        """Takes part again, from the next round on."""
        self._away = False

    async def release_all(self, deadline: float) -> None:
        """Gives up and releases every partition, then deletes the presence. Call it once `run` has ended.

        Renews leases meanwhile. Ends at the latest two seconds after `deadline`, even if store or listener hang.
        """
        self._lose_all(deadline)
        renewing = asyncio.create_task(self._keep_renewing())
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
            tasks = [renewing, *(held.losing for held in self._held.values() if held.losing)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._held.clear()
            if self._failure.done():
                self._failure.exception()  # logged already; this marks it as retrieved

    # --- a round ---

    async def _round(self) -> bool:
        """Lists, renews, claims and releases once. True if the next round should come soon."""
        async with self._writing:
            if self._away:  # what is still being finished keeps its lease
                return bool(await self._write([held.lease for held in self._held.values()]))
            # Concurrently, like the calls after it, so that one slow call does not delay a renewal.
            sent = {partition: held.lease for partition, held in self._held.items()}
            listing, renewing = await asyncio.gather(
                self._list(self._deadline()), self._write(list(sent.values())), return_exceptions=True
            )
            if isinstance(listing, BaseException):
                raise listing
            leases, store_now, now = *listing, self._clock()
            # As they were renewed during the listing. If the list has another owner, that one took the lease later.
            renewed = {name: held.lease for name, held in self._held.items() if held.lease is not sent[name]}
            leases = [renewed.get(old.partition, old) if old.owner == self.owner else old for old in leases]
            self._compare(leases)
            of_partitions, presences = split(self._ages.dated(leases, store_now, now))
            self._note_others(of_partitions, presences, now)
            steps = plan(
                *(of_partitions, presences, self._known, self.owner, now, self.expiry),
                draining=[partition for partition, held in self._held.items() if held.losing],
                excess_since=self._excess_since,
            )
            self._excess_since = steps.excess_since
            kept = [lease for lease in steps.release if lease.partition in self._held]
            unheld = [lease for lease in steps.release if lease not in kept]
            due = [lease for lease in (*steps.claim, *steps.renew, *kept) if lease.partition not in renewed]
            claiming, *others = await asyncio.gather(
                self._write(due),
                self._announce(presences),
                *(self._release(lease, self._deadline()) for lease in (*steps.forget, *unheld)),
                return_exceptions=True,
            )
        for lease in kept:
            if self._held[lease.partition].losing is None:
                _log.info("partition %s: given up for a fair share", lease.partition)
                self._lose(lease.partition, self._clock() + self.drain, stolen=False)
        _raise_first([renewing, claiming, *others])
        self.has_listed = True
        return bool(steps.missing or renewing or claiming)

    def _note_others(self, leases: Iterable[Lease], presences: Iterable[Lease], now: float) -> None:
        """Counts the other instances that are present. A lease of an unknown partition shows that the hub has new ones: asks
        the hub at once, others may wait for us.
        """
        self.others = sum(
            lease.owner not in {"", self.owner} and now - lease.renewed_at <= self.expiry
            for lease in presences
        )
        before, self._unknown = self._unknown, {lease.partition for lease in leases}.difference(self._known)
        if self._unknown - before:
            self._unknown_found.set()

    async def _keep_asking(self) -> None:
        answered = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.ask_every if answered else self.interval):
                    await self._unknown_found.wait()
            self._unknown_found.clear()
            try:
                answered = await self._ask_partitions()
            except TidemarkError as error:
                self._fail(error)
                return

    async def _ask_partitions(self) -> bool:
        """Asks the hub for its partitions; True if it answered. Raises TidemarkErrors that waiting does not cure."""
        deadline = self._clock() + _PARTITIONS_WITHIN
        try:
            partitions = await answered("the hub", deadline, self.partitions())
            if not partitions:  # every hub has partitions: this must not make the instance give all up
                raise UnavailableError("the hub names no partitions")
        except UnavailableError as error:
            if self._lines.is_due(self._clock()):
                then = "those known are kept" if self._known else "nothing can begin until they are known"
                _log.warning("partitions of the hub: %s; %s", error, then)
            return False
        self._known, self._lines = partitions, RareLines()
        return True

    def _compare(self, leases: Iterable[Lease]) -> None:
        """Compares listed leases with the own ones: finds leases that others took, and writes that succeeded unanswered."""
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
        """Claims and renews leases concurrently; returns how many another instance took first.

        Raises UnavailableError if any call failed so, after it has noted the others.
        """
        sent_at, deadline = self._clock(), self._deadline()

        async def write(lease: Lease) -> Lease | None:
            written = await self._claim(lease, deadline)
            if written is not None:  # noted at once, so that a slow call does not delay the others
                await self._take(written, sent_at)
            return written

        answers = await asyncio.gather(*map(write, leases), return_exceptions=True)
        _raise_first(answers)
        return answers.count(None)

    async def _take(self, lease: Lease, sent_at: float) -> None:
        is_new = lease.partition not in self._held
        held = self._held.setdefault(lease.partition, _Held(lease))
        held.lease, held.valid_until = lease, sent_at + self.expiry - _RESOLUTION
        if held.losing is None:
            if held.giving_up is not None:
                held.giving_up.cancel()
            at = held.valid_until - min(self.drain, self.expiry / 3)
            held.giving_up = asyncio.get_running_loop().call_at(at, self._give_up, lease.partition)
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
            # After a stall of the process the deadline may have passed; the listener is called all the same.
            async with asyncio.timeout_at(max(deadline, self._clock()) + _RELEASE_TIMEOUT / 2):
                await self.listener.lost(partition, deadline=deadline, stolen=stolen)
        except TimeoutError:
            _log.warning("partition %s: was not finished by the deadline", partition)
        except Exception as error:  # logged in full, and raised by run
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

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            async with self._writing:
                with contextlib.suppress(UnavailableError):
                    await self._write([held.lease for held in self._held.values()])

    async def _withdraw(self) -> None:
        """Releases the remaining leases of this owner: the presence, and leases whose claim was never answered."""
        with contextlib.suppress(UnavailableError):  # then they expire
            leases, _ = await self._list(self._clock() + _RELEASE_TIMEOUT)
            for lease in leases:
                if lease.owner == self.owner:
                    await self._release(lease, self._clock() + _RELEASE_TIMEOUT)

    def _deadline(self) -> float:
        """The deadline of a call to the store: after one without an answer there is time for another before the lease ends."""
        return self._clock() + min(self.interval, max(_LEAST_PATIENCE, self.expiry / 6))


def _raise_first(answers: Iterable[object]) -> None:
    """Raises the first error among answers; one that waiting does not cure before an UnavailableError."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, UnavailableError)):
        raise error
