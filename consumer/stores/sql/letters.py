"""Dead letters as rows: every function runs in the caller's transaction, and none commits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, bindparam, delete, insert

from consumer.model import DeadLetter, Event, Rejection
from consumer.stores.sql.tables import DEAD_LETTERS, Scope

_row = DEAD_LETTERS.c
_REASON_LENGTH = 100
_NUMBER = re.compile(r"[0-9]{1,18}")
_KEYS = ("Topic", "ConsumerGroup", "PartitionID", "SequenceNumber")

_delete = delete(DEAD_LETTERS).where(and_(*(_row[name] == bindparam(f"key_{name}") for name in _KEYS)))
_insert = insert(DEAD_LETTERS)


def put(connection: Connection, scope: Scope, letters: Sequence[DeadLetter]) -> None:
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


def key_of(scope: Scope, letter_id: str) -> dict[str, Any] | None:
    """The key columns of a letter; None for an id that no letter of the scope can have."""
    head = f"{scope.hub}~{scope.consumer_group}~"
    partition, separator, number = letter_id.removeprefix(head).rpartition("~")
    if not letter_id.startswith(head) or not separator or not _NUMBER.fullmatch(number):
        return None
    return {**scope.keys, "PartitionID": partition, "SequenceNumber": int(number)}


def letter_of(scope: Scope, row: Row[Any]) -> DeadLetter:
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


def _values(scope: Scope, letter: DeadLetter) -> dict[str, Any]:
    event = letter.event
    return {
        **scope.keys,
        "PartitionID": event.partition,
        "SequenceNumber": event.sequence_number,
        "Offset": event.offset,
        "EnqueuedAt": event.enqueued_at,
        "PartitionKey": _text(event.partition_key),
        "Properties": _properties(event),
        "Body": event.body,
        "Unreadable": _text(event.unreadable),
        "Reason": _text(letter.rejection.reason[:_REASON_LENGTH]),
        "Error": _text(letter.rejection.detail),
        "Attempts": letter.attempts,
        "FailedAt": letter.failed_at,
    }


def _text(value: str | None) -> str | None:
    """What every database takes: PostgreSQL refuses U+0000, and no half of a surrogate pair can be encoded."""
    return None if value is None else value.replace("\0", "\ufffd").encode(errors="replace").decode()


def _properties(event: Event) -> str:
    try:
        return msgspec.json.encode(event.properties, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - see below
        # AMQP knows maps of odd keys; a letter that cannot be stored would hold up its partition forever.
        return msgspec.json.encode({str(k): _text(repr(v)) for k, v in event.properties.items()}).decode()
