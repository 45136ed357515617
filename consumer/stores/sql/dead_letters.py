"""Dead letters in SQL: the store, and functions that run in the caller's transaction and do not commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from consumer.model import DeadLetter, Event, Rejection, Stream, dead_letter_id, split_place
from consumer.stores.dead_letter_document import (
    clean,
    event_of,
    plain_properties,
    read_properties,
    unreadable,
)
from consumer.stores.sql.tables import DEAD_LETTERS, SqlStore, of_scope

_row = DEAD_LETTERS.c
_REASON_LENGTH = 100
_KEYS = ("Topic", "ConsumerGroup", "PartitionID", "SequenceNumber")

_has_key = and_(*(_row[name] == bindparam(f"key_{name}") for name in _KEYS))
_delete = delete(DEAD_LETTERS).where(_has_key)
_epoch = func.coalesce(_row.Epoch, 0)
_delete_up_to = _delete.where(_epoch <= bindparam("up_to"))
_ANY = 2**63 - 1
"""The latest epoch: a dead letter without one replaces any other."""
_find_later = select(_row.SequenceNumber).where(_has_key, _epoch > bindparam("up_to"))
_insert = insert(DEAD_LETTERS)
_find = select(DEAD_LETTERS).where(_has_key)
_lock = update(DEAD_LETTERS).where(_has_key).values(Attempts=_row.Attempts)
_name = update(DEAD_LETTERS).where(_has_key).values(Records=bindparam("left"))
_PAGE = 100
"""Dead letters in memory while listing; a body can have 1 MB."""
_CONFLICTS = 5
"""Retries when two consumers store the same dead letter at the same time: the second then finds and replaces it."""


class SqlDeadLetterStore(SqlStore):
    """A DeadLetterStore in `EventHubDeadLetter`, to which the transactional sink writes too."""

    async def open(self) -> None:
        await self._look(lambda *_: None, None, DEAD_LETTERS)

    async def put(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> None:
        await self._transact(put, dead_letters, deadline=deadline, again_on_conflict=_CONFLICTS)

    async def list(
        self, *, partition: str | None = None, reason: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        after = ("", -1)
        while page := await self._page(after, partition, reason):
            for dead_letter in page:
                yield dead_letter
            after = page[-1].event.place, page[-1].event.sequence_number

    async def get(self, dead_letter_id: str) -> DeadLetter | None:
        key = key_of(self._scope, dead_letter_id)
        if key is None:
            return None
        where = [_row[name] == value for name, value in key.items()]

        def read(connection: Connection, columns: Sequence[ColumnElement[Any]]) -> Row[Any] | None:
            return connection.execute(select(*columns).where(*where)).one_or_none()

        row = await self._look(read, None, DEAD_LETTERS)
        return None if row is None else dead_letter_of(self._scope, row)

    async def delete(self, dead_letter_ids: Sequence[str], *, epoch: int | None = None) -> int:
        keys = [key for dead_letter_id in dead_letter_ids if (key := key_of(self._scope, dead_letter_id))]
        return await self._database.transact(
            lambda connection: sum(remove_one(connection, key, epoch) for key in keys)
        )

    async def _page(
        self, after: tuple[str, int], partition: str | None, reason: str | None
    ) -> Sequence[DeadLetter]:
        later = and_(_row.PartitionID == after[0], _row.SequenceNumber > after[1])
        where = [*of_scope(DEAD_LETTERS, self._scope), or_(_row.PartitionID > after[0], later)]
        if partition is not None:
            # of all hubs of the name
            where.append(or_(_row.PartitionID == partition, _row.PartitionID.like(f"{partition}@%")))
        if reason is not None:
            where.append(_row.Reason == reason)

        def read(connection: Connection, columns: Sequence[ColumnElement[Any]]) -> Sequence[DeadLetter]:
            query = select(*columns).where(*where).order_by(_row.PartitionID, _row.SequenceNumber)
            return [dead_letter_of(self._scope, row) for row in connection.execute(query.limit(_PAGE))]

        return await self._look(read, (), DEAD_LETTERS)


def put(connection: Connection, scope: Stream, dead_letters: Sequence[DeadLetter]) -> None:
    """Stores or replaces dead letters, as DeadLetterStore.put. Raises IntegrityError when another consumer stores one of them at
    the same time.
    """
    rows = list({dead_letter.id: _values(scope, dead_letter) for dead_letter in dead_letters}.values())
    if rows:
        keys = [{**_key(row), "up_to": row["Epoch"] or _ANY} for row in rows]
        connection.execute(_delete_up_to, keys)
        if any(row["Epoch"] for row in rows):
            # One of an earlier epoch that another consumer has stored meanwhile is a conflict.
            later = [connection.execute(_find_later, key).first() for key in keys]
            rows = [row for row, later_row in zip(rows, later, strict=True) if later_row is None]
    if rows:
        connection.execute(_insert, rows)


def remove_one(connection: Connection, key: dict[str, Any], epoch: int | None = None) -> bool:
    """Deletes a dead letter, unless it is of a later `epoch`; True if it did."""
    if epoch is None:
        return connection.execute(_delete, _key(key)).rowcount > 0
    return connection.execute(_delete_up_to, {**_key(key), "up_to": epoch}).rowcount > 0


def lock_one(connection: Connection, scope: Stream, key: dict[str, Any]) -> DeadLetter | None:
    """The dead letter of a key, which nobody else changes until the transaction ends; None if there is none."""
    if not connection.execute(_lock, _key(key)).rowcount:
        return None
    return dead_letter_of(scope, connection.execute(_find, _key(key)).one())


def name_records(connection: Connection, key: dict[str, Any], records: tuple[str, ...], of: int) -> None:
    """Sets which of an event's records are left in its dead letter."""
    connection.execute(_name, {**_key(key), "left": _names(records, of)})


def _names(records: tuple[str, ...], of: int) -> str | None:
    return msgspec.json.encode((of, records)).decode() if of > 1 else None


def _key(columns: dict[str, Any]) -> dict[str, Any]:
    return {f"key_{name}": columns[name] for name in _KEYS}


def key_of(scope: Stream, dead_letter_id: str) -> dict[str, Any] | None:
    """The key columns of a dead letter; None for an id that no dead letter of the scope can have."""
    position = event_of(dead_letter_id, scope.hub, scope.consumer_group)
    return (
        None
        if position is None
        else {**scope.keys, "PartitionID": position[0], "SequenceNumber": position[1]}
    )


def dead_letter_of(scope: Stream, row: Row[Any]) -> DeadLetter:
    """Raises UnreadableError naming the row, for one whose properties are no JSON."""
    partition, incarnation = split_place(row.PartitionID)
    try:
        properties, types = read_properties(msgspec.json.decode(row.Properties))
        of, records = msgspec.json.decode(row.Records or "[1,[]]", type=tuple[int, tuple[str, ...]])
    except (ValueError, TypeError, RecursionError) as error:
        row_text = f"the row of PartitionID {row.PartitionID}, SequenceNumber {row.SequenceNumber} in {DEAD_LETTERS.name}"
        letter_id = dead_letter_id(scope.hub, scope.consumer_group, row.PartitionID, row.SequenceNumber)
        raise unreadable(row_text, error, letter_id) from error
    event = Event(
        *(partition, row.SequenceNumber, row.Offset, row.EnqueuedAt, bytes(row.Body)),
        partition_key=row.PartitionKey,
        properties=properties,
        unreadable=row.Unreadable,
        incarnation=incarnation,
        content_type=row.ContentType,
        content_encoding=row.ContentEncoding,
        property_types=types,
    )
    why = Rejection(row.Reason, row.Error)
    names = scope.hub, scope.consumer_group
    latest = row.Attempts, row.FailedAt
    return DeadLetter(*names, event, why, *latest, records, of, row.Epoch or 0, row.FirstFailure or "")


def _values(scope: Stream, dead_letter: DeadLetter) -> dict[str, Any]:
    event = dead_letter.event
    return {
        **scope.keys,
        "PartitionID": event.place,
        "SequenceNumber": event.sequence_number,
        "Offset": event.offset,
        "EnqueuedAt": event.enqueued_at,
        "PartitionKey": _text(event.partition_key),
        "Properties": msgspec.json.encode(plain_properties(event)).decode(),
        "Body": event.body,
        "Unreadable": _text(event.unreadable),
        "Reason": _text(dead_letter.rejection.reason[:_REASON_LENGTH]),
        "Error": _text(dead_letter.rejection.detail),
        "Attempts": dead_letter.attempts,
        "FailedAt": dead_letter.failed_at,
        "ContentType": _text(event.content_type),
        "ContentEncoding": _text(event.content_encoding),
        "Records": _names(dead_letter.records, dead_letter.of),
        "Epoch": dead_letter.epoch or None,
        "FirstFailure": _text(dead_letter.first or None),
    }


def _text(value: str | None) -> str | None:
    """The text without characters that a database refuses: U+0000 (PostgreSQL) and halves of surrogate pairs."""
    return None if value is None else clean(value.replace("\0", "\ufffd"))
