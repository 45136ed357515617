"""Becoming the writer of a partition's checkpoint, once it is clear that the checkpoint is this hub's."""

from __future__ import annotations

import asyncio
from typing import Protocol

from consumer.errors import UnavailableError
from consumer.model import NOTHING_SETTLED, Checkpoint, Claim, PartitionState
from consumer.ports import CheckpointStore
from consumer.position import PositionPolicy, Start, start

CALL = 30.0
"""Seconds one request to the checkpoint store may take."""


class Partitions(Protocol):
    """What the hub tells of itself."""

    created_at: float | None

    async def state(self, partition: str) -> PartitionState: ...


async def claim_partition(
    checkpoints: CheckpointStore, hub: Partitions, partition: str, owner: str, policy: PositionPolicy
) -> tuple[Claim, Start]:
    """The claim, and where to begin. A checkpoint that the policy gives up is replaced before.

    Raises PositionError, UnavailableError.
    """
    stored = (await checkpoints.load_all(deadline=_deadline())).get(partition)
    state = await hub.state(
        partition
    )  # later: else the owner before us could be ahead of what we know of the hub
    begin = start(stored, state, policy, hub_created_at=hub.created_at)
    if begin.reset:
        position = NOTHING_SETTLED if begin.sequence_number is None else begin.sequence_number
        anew = Checkpoint(partition, position, begin.offset, owner=owner)
        await checkpoints.put(anew, deadline=_deadline())
    claim = await checkpoints.claim(partition, owner, deadline=_deadline())
    if not begin.reset and claim.checkpoint != stored:  # saved in between by the owner before us
        state = await hub.state(partition)
        begin = start(claim.checkpoint, state, policy, hub_created_at=hub.created_at)
        if begin.reset:
            raise UnavailableError(f"the checkpoint of partition {partition} changed while it was claimed")
    return claim, begin


def _deadline() -> float:
    return asyncio.get_running_loop().time() + CALL
