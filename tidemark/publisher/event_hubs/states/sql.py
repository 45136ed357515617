"""Producer state in SQL: one row per partition, guarded by its version."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, Text, insert, select, update
from sqlalchemy.dialects import mssql
from sqlalchemy.exc import IntegrityError

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sql.database import SqlDatabase
from tidemark.publisher.event_hubs.ports import state_store
from tidemark.publisher.event_hubs.ports.state_store import StateConflictError
from tidemark.publisher.model import ProducerRecord, StateKey

NAME_LENGTH = 128  # characters of a producer's name

# Azure SQL compares without case unless a column says otherwise, VARCHAR has one code page, and TEXT is deprecated.
_NAME = String(NAME_LENGTH).with_variant(
    mssql.NVARCHAR(NAME_LENGTH, collation="Latin1_General_100_BIN2"), "mssql"
)
_STATE = Text().with_variant(mssql.NVARCHAR(None), "mssql")

STATES = Table(
    "EventHubProducer",
    MetaData(),
    Column("Topic", String(320), primary_key=True),
    Column("Producer", _NAME, primary_key=True),
    Column("PartitionID", String(16), primary_key=True),
    Column("Version", BigInteger, nullable=False),
    Column("State", _STATE, nullable=False),
)
"""The state is JSON, in ASCII: tables of earlier versions have columns of one code page. `Topic` is namespace/hub, in lower
case as in the consumer's tables.
"""

MIGRATION = (
    "ALTER TABLE EventHubProducer DROP CONSTRAINT <its primary key>; "
    f"ALTER TABLE EventHubProducer ALTER COLUMN Producer NVARCHAR({NAME_LENGTH}) COLLATE Latin1_General_100_BIN2 NOT NULL; "
    "ALTER TABLE EventHubProducer ALTER COLUMN State NVARCHAR(MAX) NOT NULL; "
    "ALTER TABLE EventHubProducer ADD PRIMARY KEY (Topic, Producer, PartitionID)"
)
"""Statements that upgrade a table of an earlier version in Azure SQL, and keep its states."""


class SqlStateStore:
    """A ProducerStateStore in the table EventHubProducer, which SqlDatabase creates with `create_tables=True`."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._is_open = True
        database.use()

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        query = select(STATES.c.State, STATES.c.Version, STATES.c.Producer).filter_by(**_keys(key))
        row = await self._transact(lambda connection: connection.execute(query).one_or_none(), deadline)
        if row is None:
            return None
        if row.Producer != key.producer:
            raise SettingsError(
                f"{STATES.name} returned the state of the producer {row.Producer!r} for {key.producer!r}: a table of an earlier "
                "version compares names without case in Azure SQL. Nothing was sent. Name the producer "
                f"{row.Producer!r}, if it is that one, or change the table: {MIGRATION}"
            )
        where = f"the row of {state_store.name_of(key)} in {STATES.name}"
        return state_store.decode(row.State, where), str(row.Version)

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        text = json.dumps(msgspec.to_builtins(record), separators=(",", ":"))
        version = await self._transact(lambda connection: _write(connection, key, text, token), deadline)
        if version is None:
            raise StateConflictError(f"the state of {state_store.name_of(key)} in {STATES.name} has changed")
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
    """The key columns. Raises SettingsError for a producer name that the column cannot distinguish from another."""
    if not 0 < len(key.producer) <= NAME_LENGTH or key.producer != key.producer.rstrip():
        raise SettingsError(
            f"the producer's name is {key.producer!r}, accepted in {STATES.name}: 1 to {NAME_LENGTH} characters, without blanks "
            "at the end, which databases ignore when they compare"
        )
    return {
        "Topic": f"{key.namespace}/{key.hub}".lower(),
        "Producer": key.producer,
        "PartitionID": key.partition_id,
    }


def _write(connection: Connection, key: StateKey, text: str, token: str | None) -> int | None:
    if token is None:
        try:
            with connection.begin_nested():
                connection.execute(insert(STATES).values(**_keys(key), Version=1, State=text))
        except IntegrityError:
            return None
        return 1
    version = int(token) + 1
    unchanged_row = update(STATES).filter_by(**_keys(key), Version=int(token))
    result = connection.execute(unchanged_row.values(Version=version, State=text))
    return version if result.rowcount else None
