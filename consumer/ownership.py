"""Keeps the leases of an instance: claims its share, renews it, and gives partitions up in order.

A lease is ours for `expiry` seconds from before its last renewal was sent, by our own monotonic clock: the store
cannot count it from an earlier moment. When the store stays away, partitions are given up before that time is over,
so that nobody else can have them while we still write. (Checkpoints are fenced besides.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from consumer.balance import plan, presence_of, split
from consumer.errors import UnavailableError
from consumer.model import Lease
from consumer.ports import LeaseStore

_log = logging.getLogger("tidemark.consumer")

_HURRY = 5.0
"""By which the interval is divided while something of ours is in other hands, or the store is away."""
_RELEASE_TIMEOUT = 2.0  # seconds; a lease that is not released expires
_PARTITIONS_EVERY = 60.0  # seconds; a hub seldom gets new ones, and asking takes a connection of its own
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


class _Held:
    """A partition of ours, until it is released. While `losing`, the listener is finishing it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.valid_until = 0.0
        self.giving_up: asyncio.TimerHandle | None = None
        self.losing: asyncio.Task[None] | None = None


class Ownership:
    """`interval`, `expiry` and `drain` are seconds. `partitions` tells which partitions there are now.

    `drain` is what a partition gets that moves to another instance.
    """

    def __init__(
        self,
        store: LeaseStore,
        owner: str,
        partitions: Callable[[], Awaitable[Sequence[str]]],
        listener: Listener,
        *,
        interval: float = 10.0,
        expiry: float = 30.0,
        drain: float = 20.0,
    ) -> None:
        self._store = store
        self._owner = owner
        self._list_partitions = partitions
        self._listener = listener
        self._interval, self._expiry, self._drain = interval, expiry, drain
        self._held: dict[str, _Held] = {}
        self._partitions: Sequence[str] = ()
        self._partitions_until = 0.0
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
        """Until cancelled; `release_all` comes after. Raises what the listener and `partitions` raise, but for
        UnavailableError.
        """
        while True:
            began, pause = self._clock(), self._interval
            try:
                if await self._round():
                    pause = self._interval / _HURRY
            except UnavailableError as error:
                _log.warning("leases: %s; %d partitions are kept meanwhile", error, len(self._held))
                pause = error.retry_after or self._interval / _HURRY
            await asyncio.wait({self._failure}, timeout=max(0.0, began + pause - self._clock()))
            if self._failure.done():
                self._failure.result()

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
        await self._refresh_partitions()
        async with self._writing:
            leases, store_now = await self._store.list(deadline=self._deadline())
            of_partitions, presences = split(leases)
            self._compare(of_partitions)
            made = plan(
                of_partitions,
                presences,
                self._partitions,
                self._owner,
                store_now,
                self._expiry,
                draining=[partition for partition, held in self._held.items() if held.losing],
                excess_since=self._excess_since,
            )
            self._excess_since = made.excess_since
            await self._announce(presences)
            kept = [lease for lease in made.release if lease.partition in self._held]
            beaten = await self._write([*made.claim, *made.renew, *kept])
            for lease in (*made.forget, *(lease for lease in made.release if lease not in kept)):
                await self._store.release(lease, deadline=self._deadline())
        for lease in kept:
            if self._held[lease.partition].losing is None:
                _log.info("partition %s: given up for a fair share", lease.partition)
                self._lose(lease.partition, self._clock() + self._drain, stolen=False)
        return bool(made.missing or beaten)

    async def _refresh_partitions(self) -> None:
        if self._partitions and self._clock() < self._partitions_until:
            return
        try:
            self._partitions = await self._list_partitions()
            self._partitions_until = self._clock() + _PARTITIONS_EVERY
        except UnavailableError:
            if not self._partitions:  # those known before will do
                raise

    def _compare(self, leases: Iterable[Lease]) -> None:
        """Finds out what was taken from us, and what a write did whose answer never came."""
        for lease in leases:
            held = self._held.get(lease.partition)
            if held is None:
                continue
            if lease.owner == self._owner:
                held.lease = lease
            elif lease.owner:
                _log.warning("partition %s: its lease was taken by %s", lease.partition, lease.owner)
                self._lose(lease.partition, self._clock() + self._drain, stolen=True)

    async def _announce(self, presences: Sequence[Lease]) -> None:
        name = presence_of(self._owner)
        known = next((lease for lease in presences if lease.partition == name), Lease(name, "", 0.0, ""))
        await self._store.claim(known, self._owner, deadline=self._deadline())

    async def _write(self, leases: Sequence[Lease]) -> int:
        """Claims and renews, all at once. How many somebody else was faster with.

        Raises UnavailableError when that is what became of any, after taking note of the others.
        """
        sent_at, deadline = self._clock(), self._deadline()
        answers = await asyncio.gather(
            *(self._store.claim(lease, self._owner, deadline=deadline) for lease in leases),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, Lease):
                await self._take(answer, sent_at)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers.count(None)

    async def _take(self, lease: Lease, sent_at: float) -> None:
        held = self._held.get(lease.partition)
        is_new = held is None
        if held is None:
            held = self._held[lease.partition] = _Held(lease)
        held.lease, held.valid_until = lease, sent_at + self._expiry - _RESOLUTION
        if held.losing is None:
            if held.giving_up is not None:
                held.giving_up.cancel()
            margin = min(self._drain, self._expiry / 3)
            held.giving_up = asyncio.get_running_loop().call_at(
                held.valid_until - margin, self._give_up, lease.partition
            )
        if is_new:
            await self._listener.claimed(lease.partition)

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
                await self._listener.lost(partition, deadline=deadline, stolen=stolen)
        except TimeoutError:
            _log.warning("partition %s: was not finished by the deadline", partition)
        except Exception as error:  # noqa: BLE001 - logged in full, and raised by run
            _log.exception("partition %s: could not be finished", partition)
            if not self._failure.done():  # ends run
                self._failure.set_exception(error)
        async with self._writing:
            if not stolen:
                with contextlib.suppress(UnavailableError):  # then it expires
                    await self._store.release(held.lease, deadline=self._clock() + _RELEASE_TIMEOUT)
            del self._held[partition]

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            async with self._writing:
                with contextlib.suppress(UnavailableError):
                    await self._write([held.lease for held in self._held.values()])

    async def _withdraw(self) -> None:
        """Releases what is left under our name: the presence, and a lease whose claim was never answered."""
        with contextlib.suppress(UnavailableError):  # then they expire
            leases, _ = await self._store.list(deadline=self._clock() + _RELEASE_TIMEOUT)
            for lease in leases:
                if lease.owner == self._owner:
                    await self._store.release(lease, deadline=self._clock() + _RELEASE_TIMEOUT)

    def _deadline(self) -> float:
        """Of one call to the store: an answer that takes longer is of no use to a lease."""
        return self._clock() + min(self._interval, self._expiry / 3)


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    every = list(tasks)
    for task in every:
        task.cancel()
    await asyncio.gather(*every, return_exceptions=True)
