"""The outbox of notices in Table Storage: a partition for each webhook, a row for each notice, by its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scaling.notice import Notice, QueuedNotice
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
                await self._table.save(_row(webhook, QueuedNotice(notice, now)), None)
            except ConflictError:
                continue  # it is known

    async def waiting(self, webhook: str) -> Sequence[QueuedNotice]:
        query = f"PartitionKey eq '{key_of(webhook)}' and Done eq false"
        found = map(_queued, await self._table.rows(query, limit=READ_AT_ONCE))
        return [queued for queued in found if queued is not None]

    async def save(self, webhook: str, queued: Sequence[QueuedNotice]) -> None:
        await self._table.put([_row(webhook, notice) for notice in queued])

    async def forget(self, webhook: str, *, before: float) -> int:
        query = f"PartitionKey eq '{key_of(webhook)}' and Done eq true and PutAt lt {before:.3f}"
        rows = await self._table.rows(query, select=["PartitionKey", "RowKey"], limit=TRANSACTION_ROWS)
        if rows:
            await self._table.delete(rows)
        return len(rows)


def _row(webhook: str, queued: QueuedNotice) -> dict[str, Any]:
    return {
        "PartitionKey": key_of(webhook),
        "RowKey": key_of(queued.notice.id),
        "Schema": SCHEMA,
        "Kind": queued.notice.kind.value,
        "Done": queued.done,
        "PutAt": float(queued.put_at),
        **in_columns(msgspec.json.encode(queued).decode(), "Data"),
    }


def _queued(row: Entity) -> QueuedNotice | None:
    """None for a row of a later release, or a damaged one: it stays, and holds up no other."""
    try:
        return msgspec.json.decode("".join(of_columns(row, "Data")), type=QueuedNotice)
    except (msgspec.DecodeError, TypeError, RecursionError):
        return None
