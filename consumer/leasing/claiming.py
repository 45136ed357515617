"""Claims a partition's checkpoint, after a check that the checkpoint belongs to this hub.

The first claim stores which hub it is and where receiving begins, before the first event is received. So a process that
ends before its first checkpoint hands these decisions to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
    rerouted_text,
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
CLOCKS = 5.0
"""Seconds by which clocks of a hub's partitions may differ. Chosen: those of one service are milliseconds apart."""

_T = TypeVar("_T")
_log = logging.getLogger("tidemark.consumer")


class Partitions(Protocol):
    """The questions to a hub."""

    @property
    def created_at(self) -> float | None:
        """When the hub was created, epoch seconds; None before the first call of `partitions`."""
        ...

    async def partitions(self) -> Sequence[str]: ...

    async def state(self, partition: str) -> PartitionState: ...


class HubState(Struct, frozen=True):
    """The state of a hub and of one of its partitions, as the hub reported it."""

    state: PartitionState
    created_at: float | None
    partitions: int

    @property
    def hub(self) -> int:
        return identity_of(self.created_at)


async def ask_hub(hub: Partitions, partition: str) -> HubState:
    """Asks for the state of hub and partition.

    Raises PositionError when the hub was created anew since the first call, SettingsError, UnavailableError.
    """
    state = await answered("the hub", _deadline(), hub.state(partition))
    # After the state: so a hub that was created anew in between is noticed, and the state is not mistaken for that of
    # the hub before.
    names = await answered("the hub", _deadline(), hub.partitions())
    return HubState(state, hub.created_at, len(names))


async def claim_partition(
    checkpoints: CheckpointStore,
    hub: Partitions,
    partition: str,
    owner: str,
    policy: PositionPolicy,
    *,
    brought: int | None = None,
    leased_at: float = math.inf,
) -> tuple[Claim, Start]:
    """Claims a partition; returns the claim and where to begin, which is logged too. New decisions are stored with the claim.

    `brought` is for a host that decides itself where receiving begins: the first event that it delivered.
    `leased_at` is a time before now by the lease store's clock, epoch seconds: with "latest", partitions that are claimed later begin at
    what came since, also where this machine's clock is ahead or the store's is; where one is behind, no earlier than about the
    partition's last event by the hub's clock. Raises PositionError, UnavailableError.
    """
    if brought is not None:
        policy = structs.replace(policy, start="earliest")
    now = min(time.time(), leased_at)
    everything = await _store(checkpoints.load_all(deadline=_deadline()))
    stored = everything.get(partition)
    # Asked after the checkpoints are loaded: otherwise the owner before could be ahead of this state of the hub.
    known = await ask_hub(hub, partition)
    now = max(now, known.state.last_enqueued_at - CLOCKS)
    begin = begin_at(partition, everything, known, policy)
    reset_to_earliest = begin.reset and policy.on_foreign_checkpoint is OnDistrust.EARLIEST
    is_new_hub = stored is None and is_another_hub(everything.values(), known.hub)
    if brought is not None and (
        reset_to_earliest or (is_new_hub and policy.on_foreign_checkpoint is not OnDistrust.LATEST)
    ):
        refuse_skipped(partition, known.state, brought)
    replacement = await replacement_for(checkpoints, stored, begin, known, everything, policy.routes, now=now)
    if replacement is not None and brought is not None:  # the host decides where it begins
        origin = structs.replace(replacement.by.origin, number=None)
        replacement = Replacement(stored, structs.replace(replacement.by, origin=origin))
    claim = await _store(checkpoints.claim(partition, owner, deadline=_deadline(), replacement=replacement))
    if claim.replaced != (replacement is not None) or (replacement is None and claim.checkpoint != stored):
        # the owner before saved a checkpoint in between
        known = await ask_hub(hub, partition)
        present = {**everything, partition: claim.checkpoint} if claim.checkpoint else {}
        begin = begin_at(partition, present, known, policy)
        if claim.checkpoint is None or await replacement_for(
            checkpoints, claim.checkpoint, begin, known, present, policy.routes, now=now
        ):
            raise UnavailableError(f"the checkpoint of partition {partition} changed while it was claimed")
    _log_start(claim, begin, stored)
    return claim, begin


def _log_start(claim: Claim, begin: Start, stored: Checkpoint | str | None) -> None:
    level = logging.WARNING if begin.gap or begin.reset else logging.INFO
    _log.log(level, "partition %s: %s", claim.partition, begin.note)
    before = stored.origin.routes if isinstance(stored, Checkpoint) else ""
    if (
        claim.checkpoint is not None
        and claim.origin.rerouted is not None
        and before not in {"", claim.origin.routes}
    ):
        _log.info("%s", rerouted_text({claim.partition: claim.checkpoint.sequence_number}))


def begin_at(
    partition: str, everything: Mapping[str, Checkpoint | str], known: HubState, policy: PositionPolicy
) -> Start:
    """Where to begin in a partition, from all stored checkpoints. Raises PositionError."""
    return start(
        everything.get(partition),
        known.state,
        policy,
        hub_created_at=known.created_at,
        came_later=came_later(partition, everything.values(), known.hub),
        since=since_of(everything.values(), known.hub),
        now=time.time(),
    )


async def replacement_for(
    checkpoints: CheckpointStore,
    stored: Checkpoint | str | None,
    begin: Start,
    known: HubState,
    everything: Mapping[str, Checkpoint | str],
    routes: str = "",
    *,
    now: float,
) -> Replacement | None:
    """The checkpoint that a claim has to store: a new position, the origin of one that has none, or other `routes`. None: nothing."""
    others = everything.values()
    since = since_of(others, known.hub)
    since = now if since is None else since
    if isinstance(stored, Checkpoint) and not begin.reset:
        origin = stored.origin
        if known.hub and not origin.hub:
            incarnation = await incarnation_of(checkpoints, known.hub, others=others)
            origin = structs.replace(origin, hub=known.hub, incarnation=incarnation, since=since)
        if routes and origin.routes != routes:
            at = stored.sequence_number if origin.routes else None
            origin = structs.replace(origin, routes=routes, rerouted=at)
        by = structs.replace(stored, origin=origin)
        return None if origin == stored.origin else Replacement(stored, by)
    before = stored.origin.hub if isinstance(stored, Checkpoint) else known.hub  # 0: creation time unknown
    incarnation = await incarnation_of(checkpoints, known.hub, first=before, others=others)
    origin = Origin(known.hub, known.partitions, incarnation, since=since, routes=routes)
    return Replacement(stored, first_position(begin, known.state, origin))


async def incarnation_of(
    checkpoints: CheckpointStore,
    hub: int,
    *,
    first: int | None = None,
    others: Iterable[Checkpoint | str] = (),
) -> str:
    """The incarnation in keys of the hub that was created at `hub` (Origin.hub); '' if its keys are plain.

    `first` is the hub whose keys are plain if none is stored yet; None means this one. The incarnation in `others` of the
    same hub takes precedence, in case the store has lost that note. Raises UnavailableError.
    """
    if not hub:
        return ""
    if same := origins_of(others, hub):
        return same[0].incarnation
    known = (other.origin for other in others if isinstance(other, Checkpoint) and other.origin.hub)
    plain_hub = next((origin.hub for origin in known if not origin.incarnation), None)
    proposed = plain_hub or (hub if first is None else first)
    plain = await _store(checkpoints.hub_with_plain_keys(proposed, deadline=_deadline()))
    return "" if plain == hub else str(hub)


async def _store(call: Awaitable[_T]) -> _T:
    return await answered("the checkpoint store", _deadline() + PATIENCE, call)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + CALL
