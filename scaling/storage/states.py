"""States and windows in Table Storage: one partition per target, one row written per evaluation.

Rows of a partition: `state` with all windows, `controls` (operators' orders), `drain` (the notice for workers) and
`corrupt:<row>:<inverted time of its last write>`. The last are copies of rows that could not be read: they
are made when the damage is met, before anybody can write over it, and stay until an operator deletes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaling.drains.view import DRAINING, drain_columns
from scaling.model import Controls, TargetState
from scaling.ports import Snapshot
from scaling.storage import rows as layout
from scaling.window import Window
from tidemark.foundation.azure.table_requests import Entity
from tidemark.foundation.azure.tables import Table, TableStore
from tidemark.foundation.keys import inverted, key_of

DRAIN_ROW = "drain"

# The corrupt copies are skipped by the service: they may be large, and nobody here reads them.
_NOT_ASIDE = "(RowKey lt 'corrupt:' or RowKey ge 'corrupt;')"


class TableStateStore(TableStore):
    """A load is one request, a save is one request about one row, guarded by its tag: orders are a row of their own, so
    that one never conflicts with an evaluation, which only reads it.

    A save whose answer got lost is repeated by the SDK and then conflicts with itself: ConflictError does not
    promise that another writer won, only that the state has to be loaded and decided again.
    """

    TABLE = "ScalingState"

    async def load(self, target: str) -> Snapshot:
        """A missing row reads as its default; an unreadable one too, and `corrupt` names it.

        Raises NewerStateError, StoreUnavailableError.
        """
        partition = key_of(target)
        rows = await self._table.rows(f"PartitionKey eq '{partition}' and {_NOT_ASIDE}")
        return await self._set_aside(target, rows)

    async def load_all(self, targets: Iterable[str]) -> dict[str, Snapshot]:
        """The snapshots of these targets from one pass over the table: a request per 1,000 rows.

        Unreadable rows are named, and left where they are, because the reader may have no right to write.
        Raises NewerStateError, StoreUnavailableError.
        """
        partitions: dict[str, list[Entity]] = defaultdict(list)
        for row in await self._table.rows(_NOT_ASIDE):
            partitions[row["PartitionKey"]].append(row)
        snapshots: dict[str, Snapshot] = {}
        for target in targets:
            snapshots[target], _ = _snapshot(target, partitions[key_of(target)])
        return snapshots

    async def _set_aside(self, target: str, rows: Sequence[Entity]) -> Snapshot:
        """The snapshot, after what is unreadable was copied: the caller may write over it."""
        snapshot, damaged = _snapshot(target, rows)
        for row in damaged:
            await set_aside(self._table, row)
        return snapshot

    async def save(
        self, loaded: Snapshot, state: TargetState, windows: Mapping[str, Window] | None = None
    ) -> None:
        """Raises ConflictError, TooLargeError and StoreUnavailableError; after the first two nothing was written."""
        columns = layout.target_row(loaded.target, state, loaded.windows if windows is None else windows)
        row, etag = entity(loaded.target, "state", columns), loaded.etags.get("state")
        # Workers obey a row that the state knows nothing of: that was lost, or an older release has written it.
        stale = loaded.state.drain is None and DRAIN_ROW in loaded.etags
        if state.drain == loaded.state.drain and not stale:
            await self._table.save(row, etag)
        else:  # workers read it from there on, and nothing that was not saved
            await self._table.save_with(row, etag, entity(loaded.target, DRAIN_ROW, drain_columns(state)))

    async def load_controls(self, target: str) -> Snapshot:
        """As `load`, of the operators' orders alone: an order can be given whatever the state's row is like."""
        row = await self._table.get(key_of(target), "controls")
        return await self._set_aside(target, [row] if row else [])

    async def save_controls(self, loaded: Snapshot, controls: Controls) -> None:
        """Raises ConflictError when the row of the orders changed since `loaded`, TooLargeError, StoreUnavailableError."""
        row = entity(loaded.target, "controls", layout.controls_row(controls))
        await self._table.save(row, loaded.etags.get("controls"))


def _snapshot(target: str, rows: Sequence[Entity]) -> tuple[Snapshot, list[Entity]]:
    """What the rows of a target hold, and those of them that could not be read."""
    state, controls = TargetState(), Controls()
    windows: Mapping[str, Window] = {}
    etags: dict[str, str] = {}
    corrupt: list[str] = []
    damaged: list[Entity] = []
    for row in rows:
        name = row_name(row)
        if name == DRAIN_ROW and row.get("State") != DRAINING:
            continue  # nobody obeys it
        etags[name] = row.etag
        unreadable: tuple[str, ...] = ()
        if name == "state":
            state, windows, unreadable = layout.read_target(row)
        elif name == "controls":
            try:
                controls = layout.read_controls(row)
            except layout.CorruptRowError:
                unreadable = (name,)
        if unreadable:
            damaged.append(row)
            corrupt.extend(unreadable)
    return Snapshot(target, state, windows, controls, etags, tuple(corrupt)), damaged


def entity(target: str, name: str, row: Mapping[str, layout.Value]) -> dict[str, Any]:
    """The entity of a named row (`state`, `controls`); `Name` keeps what its key encodes."""
    return {"PartitionKey": key_of(target), "RowKey": key_of(name), "Name": name, **row}


def row_name(row: Entity) -> str:
    """The name of a row: from its column, when that fits the key, so that damage cannot rename a row."""
    name = row.get("Name")
    return name if isinstance(name, str) and key_of(name) == row["RowKey"] else str(row["RowKey"])


async def set_aside(table: Table, row: Entity) -> None:
    """Copies an unreadable row under a key made of its last write, so that one damage makes one copy."""
    key = f"corrupt:{row['RowKey']}:{inverted(row.written)}"
    await table.put([{**row, "RowKey": key}])
