"""Dead letters as rows: every function runs in the caller's transaction, and none commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, bindparam, delete, insert

from consumer.model import DeadLetter, Event, Rejection, Stream
from consumer.stores.letter_document import clean, event_of, plain_properties
from consumer.stores.sql.tables import DEAD_LETTERS

_row = DEAD_LETTERS.c
_REASON_LENGTH = 100
_KEYS = ("Topic", "ConsumerGroup", "PartitionID", "SequenceNumber")

_delete = delete(DEAD_LETTERS).where(and_(*(_row[name] == bindparam(f"key_{name}") for name in _KEYS)))
_insert = insert(DEAD_LETTERS)


def put(connection: Connection, scope: Stream, letters: Sequence[DeadLetter]) -> None:
    """Replaces letters that are there. Raises IntegrityError when somebody else puts one at the same moment."""
    if letters:
        rows = list({letter.id: _values(scope, letter) for letter in letters}.values())
        remove(connection, rows)
        connection.execute(_insert, rows)


def remove(connection: Connection, keys: Sequence[dict[str, Any]]) -> None:
    """`keys` has the four key columns by name, and may have more."""
    connection.execute(_delete, [{f"key_{name}": key[name] for name in _KEYS} for key in keys])


def remove_one(connection: Connection, key: dict[str, Any]) -> bool:
    """True if there was one."""
    return connection.execute(_delete, {f"key_{name}": key[name] for name in _KEYS}).rowcount > 0


def key_of(scope: Stream, letter_id: str) -> dict[str, Any] | None:
    """The key columns of a letter; None for an id that no letter of the scope can have."""
    found = event_of(letter_id, scope.hub, scope.consumer_group)
    return None if found is None else {**scope.keys, "PartitionID": found[0], "SequenceNumber": found[1]}


def letter_of(scope: Stream, row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        hub=scope.hub,
        consumer_group=scope.consumer_group,
        event=Event(
            partition=row.PartitionID,
            sequence_number=row.SequenceNumber,
            offset=row.Offset,
            enqueued_at=row.EnqueuedAt,
            body=bytes(row.Body),
            partition_key=row.PartitionKey,
            properties=msgspec.json.decode(row.Properties),
            unreadable=row.Unreadable,
        ),
        rejection=Rejection(row.Reason, row.Error),
        attempts=row.Attempts,
        failed_at=row.FailedAt,
    )


def _values(scope: Stream, letter: DeadLetter) -> dict[str, Any]:
    event = letter.event
    return {
        **scope.keys,
        "PartitionID": event.partition,
        "SequenceNumber": event.sequence_number,
        "Offset": event.offset,
        "EnqueuedAt": event.enqueued_at,
        "PartitionKey": _text(event.partition_key),
        "Properties": msgspec.json.encode(plain_properties(event.properties)).decode(),
        "Body": event.body,
        "Unreadable": _text(event.unreadable),
        "Reason": _text(letter.rejection.reason[:_REASON_LENGTH]),
        "Error": _text(letter.rejection.detail),
        "Attempts": letter.attempts,
        "FailedAt": letter.failed_at,
    }


def _text(value: str | None) -> str | None:
    """What every database takes: PostgreSQL refuses U+0000, and no half of a surrogate pair can be encoded."""
    return None if value is None else clean(value.replace("\0", "\ufffd"))
