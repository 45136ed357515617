"""What each process has called, in Table Storage: one partition, a row for each process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scaling.calls.usage import ProcessCalls
from scaling.storage.rows import SCHEMA, TRANSACTION_ROWS
from tidemark.foundation.azure.table_requests import Entity
from tidemark.foundation.azure.tables import TableStore
from tidemark.foundation.keys import in_columns, key_of, of_columns

PARTITION = "calls"


class TableCallCounts(TableStore):
    """A write a minute and process. Raises StoreUnavailableError."""

    TABLE = "ScalingCalls"

    async def put(self, counts: ProcessCalls) -> None:
        row = {
            "PartitionKey": PARTITION,
            "RowKey": key_of(counts.process),
            "Schema": SCHEMA,
            "At": float(counts.at),
            **in_columns(msgspec.json.encode(counts).decode(), "Data"),
        }
        await self._table.put([row])

    async def read(self) -> Sequence[ProcessCalls]:
        found = map(_counts, await self._table.rows(f"PartitionKey eq '{PARTITION}'", limit=1_000))
        return [each for each in found if each is not None]

    async def forget(self, *, before: float) -> int:
        query = f"PartitionKey eq '{PARTITION}' and At lt {before:.3f}"
        rows = await self._table.rows(query, select=["PartitionKey", "RowKey"], limit=TRANSACTION_ROWS)
        if rows:
            await self._table.delete(rows)
        return len(rows)


def _counts(row: Entity) -> ProcessCalls | None:
    """None for a row of a later release, or a damaged one."""
    try:
        return msgspec.json.decode("".join(of_columns(row, "Data")), type=ProcessCalls)
    except (msgspec.DecodeError, TypeError, RecursionError):
        return None
