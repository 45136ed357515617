"""The inputs of the pipeline (what happened, in the past tense) and its effects (what is to be done, imperative)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from consumer.model import Batch, Checkpoint, Claim, Record, Rejection, Routes, WriteResult
from tidemark.foundation.errors import TidemarkError


class Input(Struct, frozen=True):
    """Something that happened."""


class Effect(Struct, frozen=True):
    """Something that the driver is to do."""


class _OfClaim(Input, frozen=True):
    """Something that happened under one claim of a partition."""

    partition: str
    epoch: int


class PartitionClaimed(Input, frozen=True):
    claim: Claim


class EventsReceived(_OfClaim, frozen=True):
    """Prepared records of one partition, in order.

    `last_enqueued` is the newest sequence number that the hub reported, None if it reported none. `expired` counts
    events before these that retention removed.
    """

    records: Sequence[Record]
    last_enqueued: int | None = None
    expired: int = 0


class BatchWritten(Input, frozen=True):
    batch_id: int
    results: Sequence[WriteResult]


class DeadLettersStored(Input, frozen=True):
    """`stored` is False when the outcome is unknown; the dead letters are then stored again."""

    lot_id: int
    stored: bool


class CheckpointSaved(_OfClaim, frozen=True):
    """`saved` is False when the outcome is unknown; the next checkpoint then covers the same events."""

    checkpoint: Checkpoint
    saved: bool


class ParkedLoaded(_OfClaim, frozen=True):
    """Parked events that were stored under earlier claims: the keys of their records by name, by sequence number, or by a
    text for those of a hub of the same name before.
    """

    keys: Mapping[int | str, Mapping[str, str]]


class ParkedEnded(_OfClaim, frozen=True):
    """A parked event was tried again for the last time: it is written, or a dead letter."""

    number: int | str
    written: int
    """Records written."""
    is_dead_letter: bool


class ParkedTried(Input, frozen=True):
    """Parked events were tried again, and charged so much, whatever became of them and their claim."""

    request_units: float


OfParked = ParkedLoaded | ParkedTried | ParkedEnded


class PartitionDraining(_OfClaim, frozen=True):
    """Start no more events of this claim, finish those that were attempted, then save the last checkpoint."""


class PartitionLost(_OfClaim, frozen=True):
    """The claim is over: results that arrive under it are ignored."""


class RateChanged(Input, frozen=True):
    rate: float | None
    """Records per second; None means no limit."""


class RequestUnitsChanged(Input, frozen=True):
    rate: float | None
    """Request units per second; None means no limit."""


class RoutesRead(Input, frozen=True):
    """`routes` is None when they could not be read."""

    routes: Routes | None


class Tick(Input, frozen=True):
    """Time has passed; sent when the last WakeAt is reached."""


class WriteBatch(Effect, frozen=True):
    batch: Batch


class RejectedRecord(Struct, frozen=True):
    """A rejected record of an event, or the last of several. `records` are those that are parked now, or all of the event's so far
    that make it a dead letter. `joins`: another one was parked, and its dead letter may be stored already, which is to stay in it.
    """

    record: Record
    rejection: Rejection
    attempts: int
    records: tuple[Record, ...]
    joins: bool = False


class StoreDeadLetters(Effect, frozen=True):
    """`park`: stored to be tried again, not as dead letters."""

    lot_id: int
    rejected: tuple[RejectedRecord, ...]
    park: bool = False


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
    """Every attempted event is settled and the last checkpoint is saved: the lease may be released."""

    partition: str
    epoch: int


class WakeAt(Effect, frozen=True):
    """Send a Tick at this time. A new WakeAt replaces the one before."""

    at: float


class Fail(Effect, frozen=True):
    """End the process with this error."""

    error: TidemarkError
