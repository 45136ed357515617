"""Checkpoints and leases in memory: for a dry run, a trigger and tests. It is also the shortest statement of the rules.

No call waits, so deadlines have no meaning here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from consumer.errors import FencedError, unreadable_checkpoint
from consumer.leasing.balance import is_presence
from consumer.model import Checkpoint, Claim, Lease, Replacement

Clock = Callable[[], float]
"""Epoch seconds, UTC."""


class MemoryCheckpointStore:
    """A CheckpointStore of one hub and consumer group. Partitions in `unreadable` read as corrupt."""

    def __init__(self, *, clock: Clock = time.time) -> None:
        self.unreadable: dict[str, str] = {}
        self._clock = clock
        self._epochs: dict[str, int] = {}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._plain: int | None = None

    async def claim(
        self, partition: str, owner: str, *, deadline: float, replacement: Replacement | None = None
    ) -> Claim:
        stored = self.unreadable.get(partition) or self._checkpoints.get(partition)
        replaced = replacement is not None and replacement.found == stored
        if isinstance(stored, str) and not replaced:
            raise unreadable_checkpoint(partition, "in memory", stored)
        epoch = self._next_epoch(partition)
        if replacement is not None and replaced:
            self.unreadable.pop(partition, None)
            self._store(replacement.by, owner=owner, epoch=epoch)
        checkpoint = self._checkpoints.get(partition)
        if checkpoint is not None:
            self._checkpoints[partition] = msgspec.structs.replace(checkpoint, owner=owner, epoch=epoch)
        return Claim(partition, owner, epoch, checkpoint, replaced)

    async def hub_with_plain_keys(self, hub: int, *, deadline: float) -> int:
        if self._plain is None:
            self._plain = hub
        return self._plain

    async def save(self, claim: Claim, checkpoint: Checkpoint, *, deadline: float) -> None:
        if self._epochs.get(claim.partition) != claim.epoch:
            raise FencedError(
                f"partition {claim.partition} was claimed since {claim.owner} claimed it (epoch {claim.epoch})"
            )
        stored = self._checkpoints.get(claim.partition)
        if stored is None or checkpoint.sequence_number >= stored.sequence_number:
            self._store(checkpoint, owner=claim.owner, epoch=claim.epoch)

    async def load_all(self, *, deadline: float) -> dict[str, Checkpoint | str]:
        return {**self._checkpoints, **self.unreadable}

    async def put(self, checkpoint: Checkpoint, *, deadline: float) -> None:
        self.unreadable.pop(checkpoint.partition, None)
        epoch = self._next_epoch(checkpoint.partition)
        self._store(checkpoint, owner=checkpoint.owner, epoch=epoch)

    async def aclose(self) -> None:
        """Does nothing: another consumer may use the store again."""

    def _next_epoch(self, partition: str) -> int:
        self._epochs[partition] = self._epochs.get(partition, 0) + 1
        return self._epochs[partition]

    def _store(self, checkpoint: Checkpoint, *, owner: str, epoch: int) -> None:
        self._checkpoints[checkpoint.partition] = msgspec.structs.replace(
            checkpoint, owner=owner, epoch=epoch, saved_at=self._clock()
        )


class MemoryLeaseStore:
    """A LeaseStore of one hub and consumer group."""

    def __init__(self, *, clock: Clock = time.time) -> None:
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._writes = 0

    async def list(self, *, deadline: float) -> tuple[Sequence[Lease], float]:
        return list(self._leases.values()), self._clock()

    async def claim(self, lease: Lease, owner: str, *, deadline: float) -> Lease | None:
        return self._write(lease, owner) if self._is_still(lease) else None

    async def release(self, lease: Lease, *, deadline: float) -> None:
        if not (lease.token and self._is_still(lease)):
            return
        if is_presence(lease.partition):
            del self._leases[lease.partition]
        else:
            self._write(lease, "")

    async def aclose(self) -> None:
        """Does nothing: another consumer may use the store again."""

    def _is_still(self, lease: Lease) -> bool:
        present = self._leases.get(lease.partition)
        return lease.token == (present.token if present else "")

    def _write(self, lease: Lease, owner: str) -> Lease:
        self._writes += 1
        written = Lease(lease.partition, owner, self._clock(), token=str(self._writes))
        self._leases[lease.partition] = written
        return written
