"""What the pipeline is told and what it orders. Inputs are past tense, effects imperative."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from consumer.model import Batch, Checkpoint, Claim, Record, Rejection, Routes, WriteResult
from foundation.errors import TidemarkError


class _OfClaim(Struct, frozen=True):
    """Of one claim of a partition."""

    partition: str
    epoch: int


class PartitionClaimed(Struct, frozen=True):
    claim: Claim


class EventsReceived(_OfClaim, frozen=True):
    """Prepared records of one partition in order; `last_enqueued` is the hub's newest sequence number, if told.
    `expired` counts events that retention took before these.
    """

    records: Sequence[Record]
    last_enqueued: int | None = None
    expired: int = 0


class BatchWritten(Struct, frozen=True):
    batch_id: int
    results: Sequence[WriteResult]


class LettersStored(Struct, frozen=True):
    """`stored` is False when the outcome is unknown: they are stored again."""

    letters_id: int
    stored: bool


class CheckpointSaved(_OfClaim, frozen=True):
    """`saved` is False when the outcome is unknown: it is saved again with the next one."""

    checkpoint: Checkpoint
    saved: bool


class PartitionDraining(_OfClaim, frozen=True):
    """Start nothing more of this claim; finish what is begun, then save the last checkpoint."""


class PartitionLost(_OfClaim, frozen=True):
    """The claim is over: ignore whatever still comes of it."""


class RateChanged(Struct, frozen=True):
    rate: float | None
    """Records per second; None is no limit."""


class RoutesRead(Struct, frozen=True):
    """`routes` is None when they could not be read."""

    routes: Routes | None


class Tick(Struct, frozen=True):
    """Time has passed."""


Input = (
    PartitionClaimed
    | EventsReceived
    | BatchWritten
    | LettersStored
    | CheckpointSaved
    | PartitionDraining
    | PartitionLost
    | RateChanged
    | RoutesRead
    | Tick
)


class WriteBatch(Struct, frozen=True):
    batch: Batch


class RejectedRecord(Struct, frozen=True):
    record: Record
    rejection: Rejection
    attempts: int


class StoreLetters(Struct, frozen=True):
    letters_id: int
    rejected: tuple[RejectedRecord, ...]


class SaveCheckpoint(Struct, frozen=True):
    claim: Claim
    checkpoint: Checkpoint


class PauseReceiving(Struct, frozen=True):
    reason: str


class ResumeReceiving(Struct, frozen=True):
    pass


class ReadRoutes(Struct, frozen=True):
    pass


class PartitionDrained(_OfClaim, frozen=True):
    """Nothing begun is open any more and the last checkpoint is saved: the lease may be released."""


class WakeAt(Struct, frozen=True):
    """Send a Tick at this time; each one replaces the one before."""

    at: float


class Fail(Struct, frozen=True):
    """End the process with this error."""

    error: TidemarkError


Effect = (
    WriteBatch
    | StoreLetters
    | SaveCheckpoint
    | PauseReceiving
    | ResumeReceiving
    | ReadRoutes
    | PartitionDrained
    | WakeAt
    | Fail
)
