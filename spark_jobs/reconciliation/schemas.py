"""What the reconciliation reads, keeps as evidence, and gives. Times are timestamps in UTC."""

from __future__ import annotations

from enum import StrEnum

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TEXT, _LONG, _TIME = StringType(), LongType(), TimestampType()


class Identity(StrEnum):
    """How a document tells which event it is of; from the consumer's settings."""

    POSITION = "position"
    """CONSUMER_ID=position: the id is hub, partition and sequence number. Exact."""
    META = "meta"
    """The id is a field of the body, and CONSUMER_META=true keeps the last writer's position in `_tm`. Exact."""
    BODY = "body"
    """The id is a field of the body, and nothing tells the last writer: a document written since then must do."""


class Status(StrEnum):
    """What became of an event; each has exactly one, the first that holds."""

    WRITTEN = "written"
    """A document is of this very event."""
    DEAD_LETTERED = "dead_lettered"
    SUPERSEDED = "superseded"
    """Its document was written again since, by a later event with the same id: the last writer wins."""
    PENDING = "pending"
    """Beyond the consumer's checkpoint, or too young: not due yet."""
    OVERDUE = "overdue"
    """Beyond the checkpoint, and older than the grace."""
    STALE = "stale"
    """Its document is there, but of an earlier event: this event's write is missing."""
    LOST = "lost"
    """Neither document nor dead letter, though it is due."""


UNSETTLED = (Status.OVERDUE, Status.STALE, Status.LOST)
"""What closes the gate."""


class Gap(StrEnum):
    """Where sequence numbers are missing."""

    BETWEEN_FILES = "between files"
    """At the edge of a capture file: whole files are missing."""
    WITHIN_FILE = "within a file"
    """Inside one file, or in a hub read live: the hub itself does not have them (compaction, for one)."""
    EXPIRED = "expired"
    """Between the checkpoint and the first event: gone by retention before they were consumed."""


EVENT_KEYS = StructType(
    [
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("enqueued_at", _TIME),
        StructField("file", _TEXT),
        StructField("document_id", _TEXT),
        StructField("partition_key", _TEXT),
        StructField("rejection", _TEXT),
    ]
)
"""Events as the consumer's mapping sees them. `document_id` is null where the mapping rejects the event; `rejection` then
says why. `partition_key` is null where ids are made of positions.
"""

DOCUMENT_KEYS = StructType(
    [
        StructField("id", _TEXT),
        StructField("partition_key", _TEXT),
        StructField("modified_at", _TIME),
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("enqueued_at", _TIME),
    ]
)
"""Documents, with the position of the event they are of where they tell it. `enqueued_at` is from `_tm`."""

LETTERS = StructType(
    [
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("reason", _TEXT),
        StructField("failed_at", _TIME),
    ]
)

SETTLED_RUNS = StructType(
    [StructField("partition", _TEXT), StructField("first", _LONG), StructField("last", _LONG)]
)
"""Sequence numbers that the consumer's checkpoints call settled, as runs that do not touch."""

JUDGED = StructType(
    [
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("enqueued_at", _TIME),
        StructField("status", _TEXT),
        StructField("copies", _LONG),
        StructField("documents", _LONG),
        StructField("letters", _LONG),
        StructField("document_id", _TEXT),
        StructField("partition_key", _TEXT),
        StructField("rejection", _TEXT),
        StructField("file", _TEXT),
    ]
)
"""Every event once. `copies`: how often it was read (overlapping capture files); `documents`: how many are of it."""

DUPLICATES = StructType(
    [
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("enqueued_at", _TIME),
        StructField("kind", _TEXT),
        StructField("documents", _LONG),
        StructField("letters", _LONG),
        StructField("document_id", _TEXT),
    ]
)
"""Events settled twice: `kind` is "two documents" or "document and dead letter"."""

GAPS = StructType(
    [
        StructField("partition", _TEXT),
        StructField("first", _LONG),
        StructField("last", _LONG),
        StructField("missing", _LONG),
        StructField("settled", _LONG),
        StructField("kind", _TEXT),
        StructField("after_file", _TEXT),
        StructField("before_file", _TEXT),
        StructField("enqueued_after", _TIME),
        StructField("enqueued_before", _TIME),
        StructField("open", BooleanType()),
    ]
)
"""Runs of missing sequence numbers, `first` to `last`. `settled` of them are known from documents and dead letters;
`open` says that others are not, so that they count as a finding.
"""

BY_HOUR = StructType(
    [
        StructField("partition", _TEXT),
        StructField("hour", _TIME),
        StructField("events", _LONG),
        *(StructField(status.value, _LONG) for status in Status),
        StructField("duplicates", _LONG),
    ]
)

CHECKPOINTS = StructType(
    [
        StructField("partition", _TEXT),
        StructField("sequence_number", _LONG),
        StructField("beyond", ArrayType(ArrayType(_LONG))),
        StructField("saved_at", _TIME),
    ]
)
"""As read, for the record: the low-water mark and the runs settled beyond it."""
