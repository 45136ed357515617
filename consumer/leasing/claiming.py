"""Becoming the writer of a partition's checkpoint, once it is clear that the checkpoint is this hub's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from consumer.leasing.start_position import Start, start
from consumer.model import NOTHING_SETTLED, Checkpoint, Claim, PartitionState
from consumer.options import PositionPolicy
from consumer.ports import CheckpointStore
from foundation.calls import PATIENCE, answered
from foundation.errors import UnavailableError

CALL = 30.0
"""Seconds one request to the hub or the checkpoint store may take."""

_T = TypeVar("_T")
_log = logging.getLogger("tidemark.consumer")


class Partitions(Protocol):
    """What the hub tells of itself."""

    @property
    def created_at(self) -> float | None: ...

    async def state(self, partition: str) -> PartitionState: ...


async def claim_partition(
    checkpoints: CheckpointStore, hub: Partitions, partition: str, owner: str, policy: PositionPolicy
) -> tuple[Claim, Start]:
    """The claim, and where to begin, which is logged. A checkpoint that the policy gives up is replaced before.

    Raises PositionError, UnavailableError.
    """
    stored = (await _store(checkpoints.load_all(deadline=_deadline()))).get(partition)
    # later: else the owner before us could be ahead of what we know of the hub
    state = await _hub(hub.state(partition))
    begin = start(stored, state, policy, hub_created_at=hub.created_at)
    if begin.reset:
        position = NOTHING_SETTLED if begin.sequence_number is None else begin.sequence_number
        anew = Checkpoint(partition, position, begin.offset, owner=owner)
        await _store(checkpoints.put(anew, deadline=_deadline()))
    claim = await _store(checkpoints.claim(partition, owner, deadline=_deadline()))
    if not begin.reset and claim.checkpoint != stored:  # saved in between by the owner before us
        state = await _hub(hub.state(partition))
        begin = start(claim.checkpoint, state, policy, hub_created_at=hub.created_at)
        if begin.reset:
            raise UnavailableError(f"the checkpoint of partition {partition} changed while it was claimed")
    level = logging.WARNING if begin.gap or begin.reset else logging.INFO
    _log.log(level, "partition %s: %s", partition, begin.note)
    return claim, begin


async def _store(call: Awaitable[_T]) -> _T:
    return await answered("the checkpoint store", _deadline() + PATIENCE, call)


async def _hub(call: Awaitable[_T]) -> _T:
    return await answered("the hub", _deadline(), call)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + CALL
