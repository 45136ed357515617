"""What the sinks of rows have in common."""

from __future__ import annotations

from consumer.mapping.documents import read_object, rejected
from consumer.model import Claim, Event, Operation, Record, Rejection, Stream, Write
from consumer.sinks.lake.columns import RowMapper

APPENDING = frozenset({Operation.UPSERT, Operation.CREATE})
"""What appending a row can mean: rows are never changed or deleted."""


def prepare_row(mapper: RowMapper, write: Write) -> Record:
    """The record with the row of a write, or with its rejection."""
    event = write.event
    if write.operation not in APPENDING:
        why = (
            f"the operation {write.operation} is impossible here: rows are appended, never changed or deleted"
        )
        return rejected(event, Rejection("operation", why))
    document = read_object(event) if write.document is None else write.document
    row = document if isinstance(document, Rejection) else mapper.row(write, document)
    if isinstance(row, Rejection):
        return rejected(event, row)
    key = f"{event.partition}~{event.sequence_number}~{write.index}"
    return Record(event, key, payload=row, operation=write.operation)


def identity_of(stream: Stream, sink: str, claim: Claim) -> str:
    """Names a partition for one sink of one consumer group: what a mark belongs to. A hub that was created anew has marks of its own."""
    incarnation = claim.origin.incarnation
    return _identity(stream, sink, f"{claim.partition}@{incarnation}" if incarnation else claim.partition)


def identity_of_event(stream: Stream, sink: str, event: Event, part: str = "") -> str:
    """Names one event that is written again, or one record of it, apart from its partition."""
    return f"{_identity(stream, sink, event.place)}/again-{event.sequence_number}{part and f'-{part}'}"


def _identity(stream: Stream, sink: str, place: str) -> str:
    return f"{stream.topic}/{stream.consumer_group.lower()}/{sink}/{place}"
