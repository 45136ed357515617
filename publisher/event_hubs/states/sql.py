"""Producer state in SQL: one row per partition, guarded by its version."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, Text, insert, select, update
from sqlalchemy.exc import IntegrityError

from foundation.sql.database import SqlDatabase
from publisher.event_hubs.ports.state_store import StateConflictError
from publisher.event_hubs.states import layout
from publisher.model import ProducerRecord, StateKey

STATES = Table(
    "EventHubProducer",
    MetaData(),
    Column("Topic", String(320), primary_key=True),
    Column("Producer", String(128), primary_key=True),
    Column("PartitionID", String(16), primary_key=True),
    Column("Version", BigInteger, nullable=False),
    Column("State", Text, nullable=False),
)
"""The state is JSON. `Topic` is namespace/hub, in lower case as in the consumer's tables."""


class SqlStateStore:
    """A ProducerStateStore in the table EventHubProducer, which the database has to have or to be allowed to create."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._is_open = True
        database.use()

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        query = select(STATES.c.State, STATES.c.Version).filter_by(**_keys(key))
        row = await self._transact(lambda connection: connection.execute(query).one_or_none(), deadline)
        if row is None:
            return None
        where = f"the row of {layout.name_of(key)} in {STATES.name}"
        return layout.decode(row.State, where), str(row.Version)

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        text = msgspec.json.encode(record).decode()
        version = await self._transact(lambda connection: _write(connection, key, text, token), deadline)
        if version is None:
            raise StateConflictError(f"the state of {layout.name_of(key)} in {STATES.name} has changed")
        return str(version)

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._database.release()

    async def _transact(self, work: Any, deadline: float) -> Any:
        def transaction() -> Any:
            self._database.check_tables([STATES])
            with self._database.engine.begin() as connection:
                return work(connection)

        return await self._database.call(transaction, deadline=deadline)


def _keys(key: StateKey) -> dict[str, str]:
    return {
        "Topic": f"{key.namespace}/{key.hub}".lower(),
        "Producer": key.producer,
        "PartitionID": key.partition_id,
    }


def _write(connection: Connection, key: StateKey, text: str, token: str | None) -> int | None:
    """The new version, None if the row is not as it was."""
    if token is None:
        try:
            with connection.begin_nested():
                connection.execute(insert(STATES).values(**_keys(key), Version=1, State=text))
        except IntegrityError:
            return None
        return 1
    version = int(token) + 1
    is_still = update(STATES).filter_by(**_keys(key), Version=int(token))
    written = connection.execute(is_still.values(Version=version, State=text))
    return version if written.rowcount else None
