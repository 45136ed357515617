"""What the pipeline is told and what it orders. Inputs are past tense, effects imperative."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from consumer.model import Batch, Checkpoint, Claim, Record, Rejection, Routes, WriteResult
from tidemark.foundation.errors import TidemarkError


class Input(Struct, frozen=True):
    """What the pipeline is told."""


class Effect(Struct, frozen=True):
    """What it orders."""


class _OfClaim(Input, frozen=True):
    """Told of one claim of a partition."""

    partition: str
    epoch: int


class PartitionClaimed(Input, frozen=True):
    claim: Claim


class EventsReceived(_OfClaim, frozen=True):
    """Prepared records of one partition in order; `last_enqueued` is the hub's newest sequence number, if told.
    `expired` counts events that retention took before these.
    """

    records: Sequence[Record]
    last_enqueued: int | None = None
    expired: int = 0


class BatchWritten(Input, frozen=True):
    batch_id: int
    results: Sequence[WriteResult]


class DeadLettersStored(Input, frozen=True):
    """`stored` is False when the outcome is unknown: they are stored again."""

    lot_id: int
    stored: bool


class CheckpointSaved(_OfClaim, frozen=True):
    """`saved` is False when the outcome is unknown: it is saved again with the next one."""

    checkpoint: Checkpoint
    saved: bool


class PartitionDraining(_OfClaim, frozen=True):
    """Start nothing more of this claim; finish what is begun, then save the last checkpoint."""


class PartitionLost(_OfClaim, frozen=True):
    """The claim is over: ignore whatever still comes of it."""


class RateChanged(Input, frozen=True):
    rate: float | None
    """Records per second; None is no limit."""


class RoutesRead(Input, frozen=True):
    """`routes` is None when they could not be read."""

    routes: Routes | None


class Tick(Input, frozen=True):
    """Time has passed."""


class WriteBatch(Effect, frozen=True):
    batch: Batch


class RejectedRecord(Struct, frozen=True):
    record: Record
    rejection: Rejection
    attempts: int


class StoreDeadLetters(Effect, frozen=True):
    lot_id: int
    rejected: tuple[RejectedRecord, ...]


class SaveCheckpoint(Effect, frozen=True):
    claim: Claim
    checkpoint: Checkpoint


class PauseReceiving(Effect, frozen=True):
    reason: str


class ResumeReceiving(Effect, frozen=True):
    pass


class ReadRoutes(Effect, frozen=True):
    pass


class PartitionDrained(Effect, frozen=True):
    """Nothing begun is open any more and the last checkpoint is saved: the lease may be released."""

    partition: str
    epoch: int


class WakeAt(Effect, frozen=True):
    """Send a Tick at this time; each one replaces the one before."""

    at: float


class Fail(Effect, frozen=True):
    """End the process with this error."""

    error: TidemarkError
