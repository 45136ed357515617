"""Checkpoints and leases in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from consumer.leasing.balance import is_presence
from consumer.model import Checkpoint, Claim, Lease, Replacement
from consumer.stores.sql import positions
from consumer.stores.sql.tables import CHECKPOINTS, LEASES, SqlStore, of_scope, utc_now

_row = LEASES.c
FIRST_CLAIM_CONFLICTS = 3
"""Retries after two first claims of a partition insert the same key. Later claims find the row and wait for its lock."""


class SqlCheckpointStore(SqlStore):
    """A CheckpointStore in `EventHubCheckpoint`, the table that the transactional sink changes in its transactions."""

    async def claim(
        self, partition: str, owner: str, *, deadline: float, replacement: Replacement | None = None
    ) -> Claim:
        retries = FIRST_CLAIM_CONFLICTS
        return await self._transact(
            positions.claim, partition, owner, replacement, deadline=deadline, again_on_conflict=retries
        )

    async def hub_with_plain_keys(self, hub: int, *, deadline: float) -> int:
        retries = FIRST_CLAIM_CONFLICTS
        return await self._transact(
            positions.hub_with_plain_keys, hub, deadline=deadline, again_on_conflict=retries
        )

    async def save(self, claim: Claim, checkpoint: Checkpoint, *, deadline: float) -> None:
        await self._transact(positions.save, claim, checkpoint, deadline=deadline)

    async def load_all(self, *, deadline: float) -> dict[str, Checkpoint | str]:
        def work(on: Connection, columns: Sequence[ColumnElement[Any]]) -> dict[str, Checkpoint | str]:
            return positions.load_all(on, self._scope, columns)

        return await self._look(work, {}, CHECKPOINTS, deadline=deadline)

    async def put(self, checkpoint: Checkpoint, *, deadline: float) -> None:
        retries = FIRST_CLAIM_CONFLICTS
        await self._transact(positions.put, checkpoint, deadline=deadline, again_on_conflict=retries)


class SqlLeaseStore(SqlStore):
    """A LeaseStore in `EventHubLease`; its clock is that of the database."""

    async def list(self, *, deadline: float) -> tuple[Sequence[Lease], float]:
        return await self._database.transact(self._list, deadline=deadline, urgent=True)

    async def claim(self, lease: Lease, owner: str, *, deadline: float) -> Lease | None:
        work = partial(self._renew if lease.token else self._insert, lease=lease, owner=owner)
        return await self._database.transact(work, deadline=deadline, urgent=True)

    async def release(self, lease: Lease, *, deadline: float) -> None:
        if lease.token:
            gone = is_presence(lease.partition)
            work = partial(self._delete, lease=lease) if gone else partial(self._renew, lease=lease, owner="")
            await self._database.transact(work, deadline=deadline, urgent=True)

    def _list(self, connection: Connection) -> tuple[Sequence[Lease], float]:
        rows = connection.execute(
            select(LEASES).where(*of_scope(LEASES, self._scope)).order_by(_row.PartitionID)
        )
        leases = [_lease(row) for row in rows]
        return leases, connection.execute(select(utc_now())).scalar_one()

    def _insert(self, connection: Connection, *, lease: Lease, owner: str) -> Lease | None:
        values = {**self._scope.keys, "PartitionID": lease.partition, "Owner": owner, "Version": 1}
        try:
            with connection.begin_nested():
                connection.execute(insert(LEASES).values(**values, RenewedAt=utc_now()))
        except IntegrityError:
            return None
        return self._read(connection, lease.partition)

    def _delete(self, connection: Connection, *, lease: Lease) -> None:
        connection.execute(delete(LEASES).where(*self._is_still(lease)))

    def _renew(self, connection: Connection, *, lease: Lease, owner: str) -> Lease | None:
        written = connection.execute(
            update(LEASES)
            .where(*self._is_still(lease))
            .values(Owner=owner, RenewedAt=utc_now(), Version=_row.Version + 1)
        )
        return self._read(connection, lease.partition) if written.rowcount else None

    def _read(self, connection: Connection, partition: str) -> Lease:
        return _lease(
            connection.execute(select(LEASES).where(*of_scope(LEASES, self._scope, partition))).one()
        )

    def _is_still(self, lease: Lease) -> Sequence[ColumnElement[bool]]:
        return [*of_scope(LEASES, self._scope, lease.partition), _row.Version == int(lease.token)]


def _lease(row: Row[Any]) -> Lease:
    return Lease(row.PartitionID, row.Owner, row.RenewedAt, str(row.Version))
