"""Becoming the writer of a partition's checkpoint, once it is clear that the checkpoint is this hub's.

Where receiving begins for the first time, and which hub that is, is stored by the claim itself, before the first event is
received: a process that ends before its first checkpoint leaves to the next one what was decided.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct, structs

from consumer.leasing.start_position import (
    Start,
    came_later,
    first_position,
    identity_of,
    is_another_hub,
    origins_of,
    refuse_skipped,
    since_of,
    start,
)
from consumer.model import Checkpoint, Claim, Origin, PartitionState, Replacement
from consumer.options import OnDistrust, PositionPolicy
from consumer.ports import CheckpointStore
from tidemark.foundation.calls import PATIENCE, answered
from tidemark.foundation.errors import UnavailableError

CALL = 30.0
"""Seconds one request to the hub or the checkpoint store may take."""

_T = TypeVar("_T")
_log = logging.getLogger("tidemark.consumer")


class Partitions(Protocol):
    """What the hub tells of itself."""

    @property
    def created_at(self) -> float | None:
        """Epoch seconds; None before `partitions` was asked."""
        ...

    async def partitions(self) -> Sequence[str]: ...

    async def state(self, partition: str) -> PartitionState: ...


class Known(Struct, frozen=True):
    """What the hub says of itself and of a partition."""

    state: PartitionState
    created_at: float | None
    partitions: int

    @property
    def hub(self) -> int:
        return identity_of(self.created_at)


async def ask_hub(hub: Partitions, partition: str) -> Known:
    """Raises PositionError when the hub was created anew since `hub` was asked first, SettingsError, UnavailableError."""
    state = await _hub(hub.state(partition))
    # Afterwards: a hub that was created anew in between is noticed, and a state is not taken for that of another.
    names = await _hub(hub.partitions())
    return Known(state, hub.created_at, len(names))


async def claim_partition(
    checkpoints: CheckpointStore,
    hub: Partitions,
    partition: str,
    owner: str,
    policy: PositionPolicy,
    *,
    brought: int | None = None,
) -> tuple[Claim, Start]:
    """The claim, and where to begin, which is logged. What is decided for the first time, or anew, is stored with it.

    `brought` is for a host that decides itself where receiving begins: the first event that it brought. Raises
    PositionError, UnavailableError.
    """
    if brought is not None:
        policy = structs.replace(policy, start="earliest")
    everything = await _store(checkpoints.load_all(deadline=_deadline()))
    stored = everything.get(partition)
    # later: else the owner before us could be ahead of what we know of the hub
    known = await ask_hub(hub, partition)
    begin = begin_at(partition, everything, known, policy)
    told = begin.reset and policy.on_foreign_checkpoint is OnDistrust.EARLIEST
    unseen = stored is None and is_another_hub(everything.values(), known.hub)
    if brought is not None and (told or (unseen and policy.on_foreign_checkpoint is not OnDistrust.LATEST)):
        refuse_skipped(partition, known.state, brought)
    replacement = await to_store(checkpoints, stored, begin, known, everything)
    if replacement is not None and brought is not None:  # where it begins is not ours to say
        origin = structs.replace(replacement.by.origin, number=None)
        replacement = Replacement(stored, structs.replace(replacement.by, origin=origin))
    claim = await _store(checkpoints.claim(partition, owner, deadline=_deadline(), replacement=replacement))
    if claim.replaced != (replacement is not None) or (replacement is None and claim.checkpoint != stored):
        # saved in between by the owner before us
        known = await ask_hub(hub, partition)
        found = {**everything, partition: claim.checkpoint} if claim.checkpoint else {}
        begin = begin_at(partition, found, known, policy)
        if claim.checkpoint is None or await to_store(checkpoints, claim.checkpoint, begin, known, found):
            raise UnavailableError(f"the checkpoint of partition {partition} changed while it was claimed")
    level = logging.WARNING if begin.gap or begin.reset else logging.INFO
    _log.log(level, "partition %s: %s", partition, begin.note)
    return claim, begin


def begin_at(
    partition: str, everything: Mapping[str, Checkpoint | str], known: Known, policy: PositionPolicy
) -> Start:
    """Where to begin in a partition, from all that is stored. Raises PositionError."""
    return start(
        everything.get(partition),
        known.state,
        policy,
        hub_created_at=known.created_at,
        came_later=came_later(partition, everything.values(), known.hub),
        since=since_of(everything.values(), known.hub),
    )


async def to_store(
    checkpoints: CheckpointStore,
    stored: Checkpoint | str | None,
    begin: Start,
    known: Known,
    everything: Mapping[str, Checkpoint | str],
) -> Replacement | None:
    """What a claim has to store: a position that is new, or the hub of one that does not say it."""
    others = everything.values()
    since = since_of(others, known.hub)
    since = time.time() if since is None else since
    if isinstance(stored, Checkpoint) and not begin.reset:
        if stored.origin.hub or not known.hub:
            return None
        incarnation = await incarnation_of(checkpoints, known.hub, others=others)
        adopted = structs.replace(stored.origin, hub=known.hub, incarnation=incarnation, since=since)
        return Replacement(stored, structs.replace(stored, origin=adopted))
    before = (
        stored.origin.hub if isinstance(stored, Checkpoint) else known.hub
    )  # 0: one of which nobody knows when
    incarnation = await incarnation_of(checkpoints, known.hub, first=before, others=others)
    origin = Origin(known.hub, known.partitions, incarnation, since=since)
    return Replacement(stored, first_position(begin, known.state, origin))


async def incarnation_of(
    checkpoints: CheckpointStore,
    hub: int,
    *,
    first: int | None = None,
    others: Iterable[Checkpoint | str] = (),
) -> str:
    """What keys of a hub's events carry, for the hub that was created then (Origin.hub). `first` is the hub whose keys are
    plain if that is not stored yet; None: this one. What `others` of the hub carry counts, though the store has lost the
    note that says so. Raises UnavailableError.
    """
    if not hub:
        return ""
    if same := origins_of(others, hub):
        return same[0].incarnation
    plain_of = (each.origin for each in others if isinstance(each, Checkpoint) and each.origin.hub)
    known = next((origin.hub for origin in plain_of if not origin.incarnation), None)
    asked = known or (hub if first is None else first)
    plain = await _store(checkpoints.hub_with_plain_keys(asked, deadline=_deadline()))
    return "" if plain == hub else str(hub)


async def _store(call: Awaitable[_T]) -> _T:
    return await answered("the checkpoint store", _deadline() + PATIENCE, call)


async def _hub(call: Awaitable[_T]) -> _T:
    return await answered("the hub", _deadline(), call)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + CALL
