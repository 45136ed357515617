"""The rows of checkpoints. Every function runs in the caller's transaction and does not commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from consumer.errors import FencedError, PositionError, unreadable_checkpoint
from consumer.model import NOTHING_SETTLED, Checkpoint, Claim, Origin, Replacement, Stream
from consumer.stores.sql.tables import CHECKPOINTS, of_scope, utc_now

Runs = tuple[tuple[int, int], ...]

_runs = msgspec.json.Decoder(Runs)
_origin = msgspec.json.Decoder(Origin)
_row = CHECKPOINTS.c


def claim(
    connection: Connection, scope: Stream, partition: str, owner: str, replacement: Replacement | None = None
) -> Claim:
    """Claims a partition. Raises PositionError; IntegrityError when another first claim happens at the same time."""
    taken = connection.execute(
        update(CHECKPOINTS)
        .where(*of_scope(CHECKPOINTS, scope, partition))
        .values(OwnerEpoch=_row.OwnerEpoch + 1, Owner=owner)
    )
    if taken.rowcount == 0:
        connection.execute(insert(CHECKPOINTS).values(**_blank(scope, partition, owner)))
    row = _read(connection, scope, partition)
    if row is None:
        raise AssertionError("the row was written in this transaction")
    claimed = Claim(partition, owner, row.OwnerEpoch)
    replaced = replacement is not None and _without_owner(replacement.found) == _without_owner(
        _read_checkpoint(row)
    )
    if replacement is not None and replaced:  # the update above has locked the row
        where = of_scope(CHECKPOINTS, scope, partition)
        connection.execute(update(CHECKPOINTS).where(*where).values(**_decided(replacement.by)))
        row = _read(connection, scope, partition) or row
    return msgspec.structs.replace(claimed, checkpoint=_checkpoint(row), replaced=replaced)


def _without_owner(checkpoint: Checkpoint | str | None) -> Checkpoint | str | None:
    """The position alone, for comparison: a claim changes owner and epoch."""
    if isinstance(checkpoint, Checkpoint):
        return msgspec.structs.replace(checkpoint, owner="", epoch=0)
    return checkpoint


def hub_with_plain_keys(connection: Connection, scope: Stream, hub: int) -> int:
    """See CheckpointStore. Raises IntegrityError when another first call happens at the same time."""
    keys = {"Topic": scope.hub.lower(), "ConsumerGroup": "", "PartitionID": ""}
    query = select(_row.SequenceNumber).where(*(_row[name] == value for name, value in keys.items()))
    stored = connection.execute(query).scalar_one_or_none()
    if stored is not None:
        return int(stored)
    connection.execute(insert(CHECKPOINTS).values(**{**_blank(scope, "", ""), **keys, "SequenceNumber": hub}))
    return hub


def save(connection: Connection, scope: Stream, claim: Claim, checkpoint: Checkpoint) -> None:
    """Raises FencedError."""
    if not _move(connection, scope, claim, checkpoint, _row.SequenceNumber <= checkpoint.sequence_number):
        stored_position(connection, scope, claim)


def advance(
    connection: Connection, scope: Stream, claim: Claim, previous: int, checkpoint: Checkpoint
) -> bool:
    """Compare and set: False, and nothing changed, unless claim and position are still the stored ones.

    The row stays locked until the transaction ends: of two writers, the second waits and is then refused.
    """
    return _move(connection, scope, claim, checkpoint, _row.SequenceNumber == previous)


def _move(
    connection: Connection, scope: Stream, claim: Claim, checkpoint: Checkpoint, if_: ColumnElement[bool]
) -> bool:
    # The owner is compared too: if the row was deleted meanwhile, epochs begin at 1 again.
    ours = (_row.OwnerEpoch == claim.epoch, _row.Owner == claim.owner)
    where = (*of_scope(CHECKPOINTS, scope, claim.partition), if_, *ours)
    moved = connection.execute(update(CHECKPOINTS).where(*where).values(**_values(checkpoint)))
    return moved.rowcount > 0


def put(connection: Connection, scope: Stream, checkpoint: Checkpoint) -> None:
    values = {**_decided(checkpoint), "Owner": checkpoint.owner}
    changed = connection.execute(
        update(CHECKPOINTS)
        .where(*of_scope(CHECKPOINTS, scope, checkpoint.partition))
        .values(**values, OwnerEpoch=_row.OwnerEpoch + 1)
    )
    if changed.rowcount == 0:
        blank = _blank(scope, checkpoint.partition, checkpoint.owner)
        connection.execute(insert(CHECKPOINTS).values(**{**blank, **values}))


def stored_position(connection: Connection, scope: Stream, claim: Claim) -> int:
    """The sequence number as stored now. Raises FencedError unless the row still belongs to the claim."""
    row = _read(connection, scope, claim.partition)
    if row is None:
        raise FencedError(
            f"partition {claim.partition} has no row in {CHECKPOINTS.name}: it was claimed in another store, or the "
            "row was deleted since"
        )
    if (row.OwnerEpoch, row.Owner) != (claim.epoch, claim.owner):
        raise FencedError(
            f"partition {claim.partition} was claimed by '{row.Owner}' (epoch {row.OwnerEpoch}) after "
            f"'{claim.owner}' (epoch {claim.epoch})"
        )
    return int(row.SequenceNumber)


def load_all(
    connection: Connection, scope: Stream, columns: Sequence[ColumnElement[Any]]
) -> dict[str, Checkpoint | str]:
    checkpoints: dict[str, Checkpoint | str] = {}
    for row in connection.execute(select(*columns).where(*of_scope(CHECKPOINTS, scope))):
        checkpoint = _read_checkpoint(row)
        if checkpoint is not None:
            checkpoints[row.PartitionID] = checkpoint
    return checkpoints


def _read_checkpoint(row: Row[Any] | None) -> Checkpoint | str | None:
    try:
        return None if row is None else _checkpoint(row)
    except PositionError as error:  # the caller adds what to do
        return f"table {CHECKPOINTS.name}: {error.__cause__}"


def _read(connection: Connection, scope: Stream, partition: str) -> Row[Any] | None:
    return connection.execute(
        select(CHECKPOINTS).where(*of_scope(CHECKPOINTS, scope, partition))
    ).one_or_none()


def _checkpoint(row: Row[Any]) -> Checkpoint | None:
    if row.SavedAt is None:
        return None
    try:
        beyond = _runs.decode(row.Beyond)
        number = msgspec.convert(row.SequenceNumber, int)
        origin = _origin.decode(row.Origin or "{}")
    except (ValueError, TypeError, RecursionError) as error:
        raise unreadable_checkpoint(row.PartitionID, f"table {CHECKPOINTS.name}", error) from error
    claimed_by = row.Owner, row.OwnerEpoch
    return Checkpoint(row.PartitionID, number, row.Offset, beyond, row.SavedAt, *claimed_by, origin)


def _values(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "SequenceNumber": checkpoint.sequence_number,
        "Offset": checkpoint.offset,
        "Beyond": msgspec.json.encode(checkpoint.beyond).decode(),
        "SavedAt": utc_now(),
    }


def _decided(checkpoint: Checkpoint) -> dict[str, Any]:
    """The values with the origin, which no later save changes."""
    return {**_values(checkpoint), "Origin": msgspec.json.encode(checkpoint.origin).decode()}


def _blank(scope: Stream, partition: str, owner: str) -> dict[str, Any]:
    return {
        **scope.keys,
        "PartitionID": partition,
        "SequenceNumber": NOTHING_SETTLED,
        "Offset": "",
        "Beyond": "[]",
        "OwnerEpoch": 1,
        "Owner": owner,
    }
