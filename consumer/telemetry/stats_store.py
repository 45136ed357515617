"""The table `ConsumerStats`: each instance writes its row every few seconds, and the dashboard reads them."""

from __future__ import annotations

import logging

from tidemark.foundation.azure.tables import TableStore
from tidemark.foundation.consumer_stats import TABLE, ConsumerStats, ConsumerStatsError, from_row, to_row
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.keys import key_of

KEPT = 86_400.0
"""Seconds for which an instance that stopped writing is still shown; then its row may be deleted."""

PRUNED_AT_ONCE = 100  # rows of one transaction

log = logging.getLogger("tidemark.consumer")


class TableStatsStore(TableStore):
    """Rows of instances. All raise StoreUnavailableError."""

    TABLE = TABLE

    async def put(self, stats: ConsumerStats) -> None:
        """Replaces the instance's row."""
        await self._table.put([to_row(stats)])

    async def load_all(self, since: float) -> list[ConsumerStats]:
        """Rows written at `since` (epoch seconds) or later, of all consumers."""
        stats: list[ConsumerStats] = []
        for row in await self._table.rows(f"at ge {since:.3f}"):
            try:
                stats.append(from_row(row))
            except ConsumerStatsError as error:  # one newer instance does not hide the others
                log.warning("table %s: %s", self._table.name, error)
        return stats

    async def prune(self, consumer: str, before: float) -> None:
        """Deletes some of the consumer's rows that were last written before `before`. Every start adds an instance, so rows
        of old ones would pile up.
        """
        query = f"PartitionKey eq '{key_of(consumer)}' and at lt {before:.3f}"
        rows = await self._table.rows(query, select=["PartitionKey", "RowKey"], limit=PRUNED_AT_ONCE)
        if not rows:
            return
        try:
            await self._table.delete(rows)
        except ConflictError:
            log.debug("another instance deleted old rows of %s", consumer)
