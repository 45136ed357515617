"""The outbox of notices in Table Storage: a partition for each webhook, a row for each notice, by its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scaling.notice import Letter, Notice
from scaling.storage.rows import SCHEMA, TRANSACTION_ROWS
from tidemark.foundation.azure.table_requests import Entity
from tidemark.foundation.azure.tables import TableStore
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.keys import in_columns, key_of, of_columns

READ_AT_ONCE = 1_000
"""Letters of one round. A flood of more is counted in parts."""


class TableOutbox(TableStore):
    """A notice handed in twice is one row, also where it has arrived meanwhile."""

    TABLE = "ScalingNotices"

    async def put(self, webhook: str, notices: Sequence[Notice], *, now: float) -> None:
        for notice in notices:
            try:
                await self._table.save(_row(webhook, Letter(notice, now)), None)
            except ConflictError:
                continue  # it is known

    async def waiting(self, webhook: str) -> Sequence[Letter]:
        query = f"PartitionKey eq '{key_of(webhook)}' and Done eq false"
        found = map(_letter, await self._table.rows(query, limit=READ_AT_ONCE))
        return [letter for letter in found if letter is not None]

    async def save(self, webhook: str, letters: Sequence[Letter]) -> None:
        await self._table.put([_row(webhook, letter) for letter in letters])

    async def forget(self, webhook: str, *, before: float) -> int:
        query = f"PartitionKey eq '{key_of(webhook)}' and Done eq true and PutAt lt {before:.3f}"
        rows = await self._table.rows(query, select=["PartitionKey", "RowKey"], limit=TRANSACTION_ROWS)
        if rows:
            await self._table.delete(rows)
        return len(rows)


def _row(webhook: str, letter: Letter) -> dict[str, Any]:
    return {
        "PartitionKey": key_of(webhook),
        "RowKey": key_of(letter.notice.id),
        "Schema": SCHEMA,
        "Kind": letter.notice.kind.value,
        "Done": letter.done,
        "PutAt": float(letter.put_at),
        **in_columns(msgspec.json.encode(letter).decode(), "Data"),
    }


def _letter(row: Entity) -> Letter | None:
    """None for a row of a later release, or a damaged one: it stays, and holds up no other."""
    try:
        return msgspec.json.decode("".join(of_columns(row, "Data")), type=Letter)
    except (msgspec.DecodeError, TypeError, RecursionError):
        return None
