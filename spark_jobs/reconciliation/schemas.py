"""What the reconciliation reads, keeps as evidence, and gives. Times are timestamps in UTC."""

from __future__ import annotations

from enum import StrEnum

from spark_jobs.schemas import row_schema


class Identity(StrEnum):
    """How a document names its event; from the consumer's settings."""

    POSITION = "position"
    """CONSUMER_ID=position: the id is hub, partition and sequence number. Exact."""
    META = "meta"
    """The id is a field of the body, and CONSUMER_META=true keeps the last writer's position in `_tm`. Exact."""
    BODY = "body"
    """The id is a field of the body, and nothing names the last writer: any document written since then counts."""


class Status(StrEnum):
    """What became of an event; each has exactly one, the first that holds."""

    WRITTEN = "written"
    """A document is of this very event."""
    DEAD_LETTERED = "dead_lettered"
    PARKED = "parked"
    """Rejected for a reason that passes: the consumer keeps it, and tries it again."""
    SUPERSEDED = "superseded"
    """Its document was written again since, by a later event with the same id: the last writer wins."""
    PENDING = "pending"
    """Beyond the consumer's checkpoint, or too young: not due yet."""
    OVERDUE = "overdue"
    """Beyond the checkpoint, and older than the grace."""
    REMOVED = "removed"
    """Not there, and need not be any more: its time to live is over, or that of the tombstone that a later delete left. Whether it was
    ever written is not known.
    """
    DROPPED = "dropped"
    """Nothing is made of it in this container, on purpose."""
    STALE = "stale"
    """Its document is there, but of an earlier event: this event's write is missing."""
    LOST = "lost"
    """Neither document nor dead letter, though it is due."""


UNSETTLED = (Status.OVERDUE, Status.STALE, Status.LOST)
"""What fails the check."""


class Gap(StrEnum):
    """Where sequence numbers are missing."""

    BETWEEN_FILES = "between files"
    """At the edge of a capture file: whole files are missing."""
    WITHIN_FILE = "within a file"
    """Inside one file, or in a hub read live: the hub itself does not have them (compaction, for one)."""
    EXPIRED = "expired"
    """Before the first event, and not settled by the checkpoint: gone by retention before they were consumed."""


EVENT_KEYS = row_schema("""
    partition text, sequence_number long, enqueued_at time, file text, document_id text,
    partition_key text, rejection text, writes long, ttl long, version text, further text, record text, of int
""")
"""Events as the consumer's mapping sees them. `document_id` is null where the mapping rejects the event; `rejection` then
says why. `partition_key` is null where ids are made of positions. `writes` is how many documents the event becomes, null for 1;
`ttl` are the seconds after which the document goes, `version` is what the guard of a field compares. `further` are all writes but the first, FURTHER as JSON; `record` is the name that a
dead letter has for the first (letters.py), of the `of` records that the event has.
"""

FURTHER = (
    "array<struct<document_id: string, partition_key: string, ttl: bigint, version: string, record: string>>"
)

DOCUMENT_KEYS = row_schema("""
    id text, partition_key text, modified_at time, partition text, sequence_number long,
    enqueued_at time, version text
""")
"""Documents, with the position of their event if they have it. `enqueued_at` is from `_tm` or `_tv`, `version` from `_tv`."""

ENDS = row_schema("""
    partition text, first long, last long, earliest time, latest time, events long, copies long, copied long, twice long,
    twice_at time, back long, back_at time, ahead_at time
""")
"""Of each partition the first and the last event, by number and by time, how many there are, how many
more were read of the same, and of how many there was more than one. `twice` is the
least number whose events were enqueued at several times, from `twice_at` on. From `back` on there is an event of `back_at`, more than
a minute before one of a lower number, of `ahead_at`.
"""

DEAD_LETTERS = row_schema(
    "partition text, sequence_number long, enqueued_at time, reason text, failed_at time, parked flag, records text, of int"
)
"""Dead letters, and events that are `parked`. `enqueued_at` is that of the event; `records` are the names of its records that the letter
is about, as JSON, and null for all of them; the event had `of` records then.
"""

JUDGED = row_schema("""
    partition text, sequence_number long, enqueued_at time, status text, copies long,
    documents long, dead_letters long, document_id text, partition_key text, rejection text, file text,
    writes long
""")
"""Every event once; of one that becomes several documents the one that is worst off. `copies`: how often it was read (overlapping capture files); `documents`: how many are of it."""

DUPLICATES = row_schema("""
    partition text, sequence_number long, enqueued_at time, kind text, documents long, dead_letters long,
    document_id text
""")
"""Events settled twice: `kind` is "two documents" or "document and dead letter"."""

GAPS = row_schema("""
    partition text, first long, last long, missing long, settled long, kind text, after_file text,
    before_file text, enqueued_after time, enqueued_before time, open flag
""")
"""Runs of missing sequence numbers, `first` to `last`. `settled` of them are known from documents and dead letters;
`open` says that others are not, so that they count as a finding.
"""

BY_HOUR = row_schema(
    f"partition text, hour time, events long, {', '.join(f'{status} long' for status in Status)}, duplicates long"
)
