"""What is stored as one JSON document a row: the notices that wait for their webhooks, and the calls of each process.

A row that a later release wrote, or that is damaged, is passed over: it stays, and holds up no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from scaling.calls.usage import ProcessCalls
from scaling.notice import Notice, QueuedNotice
from scaling.storage.rows import SCHEMA, TRANSACTION_ROWS
from tidemark.foundation.azure.table_requests import Row
from tidemark.foundation.azure.tables import TableStore
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.keys import in_columns, key_of, of_columns

_Document = TypeVar("_Document", bound=Struct)

CALLS = "calls"
"""The one partition of the calls."""

READ_AT_ONCE = 1_000
"""Rows of one read, as many as the service returns for one request. A flood of more notices is counted in parts."""


class _DocumentStore(TableStore):
    async def _documents(self, query: str, type_: type[_Document]) -> list[_Document]:
        documents = []
        for row in await self._table.rows(query, limit=READ_AT_ONCE):
            try:
                documents.append(msgspec.json.decode("".join(of_columns(row, "Data")), type=type_))
            except (msgspec.DecodeError, TypeError, RecursionError):
                continue
        return documents

    async def _delete(self, query: str) -> int:
        """Deletes at most one transaction of rows; returns how many."""
        rows = await self._table.rows(query, select=["PartitionKey", "RowKey"], limit=TRANSACTION_ROWS)
        if rows:
            await self._table.delete(rows)
        return len(rows)


def _row(partition: str, key: str, document: Struct, **columns: Any) -> Row:
    data = in_columns(msgspec.json.encode(document).decode(), "Data")
    return {"PartitionKey": partition, "RowKey": key_of(key), "Schema": SCHEMA, **columns, **data}


class TableCallCounts(_DocumentStore):
    """A row for each process, written once a minute. Raises StoreUnavailableError."""

    TABLE = "ScalingCalls"

    async def put(self, counts: ProcessCalls) -> None:
        await self._table.put([_row(CALLS, counts.process, counts, At=float(counts.at))])

    async def read(self) -> Sequence[ProcessCalls]:
        return await self._documents(f"PartitionKey eq '{CALLS}'", ProcessCalls)

    async def forget(self, *, before: float) -> int:
        return await self._delete(f"PartitionKey eq '{CALLS}' and At lt {before:.3f}")


class TableOutbox(_DocumentStore):
    """A partition for each webhook, a row for each notice by its id: one that is put twice is one row, also when it has
    been delivered meanwhile.
    """

    TABLE = "ScalingNotices"

    async def put(self, webhook: str, notices: Sequence[Notice], *, now: float) -> None:
        for notice in notices:
            try:
                await self._table.save(_notice_row(webhook, QueuedNotice(notice, now)), None)
            except ConflictError:
                continue  # it is known

    async def waiting(self, webhook: str) -> Sequence[QueuedNotice]:
        return await self._documents(f"PartitionKey eq '{key_of(webhook)}' and Done eq false", QueuedNotice)

    async def save(self, webhook: str, queued: Sequence[QueuedNotice]) -> None:
        await self._table.put([_notice_row(webhook, notice) for notice in queued])

    async def forget(self, webhook: str, *, before: float) -> int:
        partition = f"PartitionKey eq '{key_of(webhook)}'"
        return await self._delete(f"{partition} and Done eq true and PutAt lt {before:.3f}")


def _notice_row(webhook: str, queued: QueuedNotice) -> Row:
    columns = {"Kind": queued.notice.kind.value, "Done": queued.done, "PutAt": float(queued.put_at)}
    return _row(key_of(webhook), queued.notice.id, queued, **columns)
