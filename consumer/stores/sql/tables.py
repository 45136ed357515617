"""The consumer's tables, the same on SQLite, PostgreSQL and Azure SQL. Times in them are UTC.

`EventHubCheckpoint` and `EventHubDeadLetter` follow the article on transactional checkpoints. Added are the consumer group
in the keys, the sequence number in the key of a dead letter, the body itself, and the epoch that fences a former owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from consumer.model import Stream
from tidemark.foundation.sql.database import MissingTablesError, SqlDatabase

_T = TypeVar("_T")
_DATETIME2 = mssql.DATETIME2(6)  # type: ignore[no-untyped-call]


class UtcSeconds(TypeDecorator[float]):
    """Epoch seconds in Python, a readable date and time in UTC in the database, to the microsecond."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # The server's own DATETIME counts in steps of 3 ms.
        return dialect.type_descriptor(_DATETIME2 if dialect.name == "mssql" else sa.DateTime())

    def process_bind_param(self, value: float | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value, UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> float | None:
        return None if value is None else value.replace(tzinfo=UTC).timestamp()


class utc_now(FunctionElement[float]):  # noqa: N801 - an SQL function, named as such
    """The database's time when the statement runs, not when the transaction began."""

    type = UtcSeconds()
    inherit_cache = True


_NOW = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "postgresql": "(clock_timestamp() AT TIME ZONE 'utc')",
    "mssql": "SYSUTCDATETIME()",
}


@compiles(utc_now)
def _compile_utc_now(_element: utc_now, compiler: SQLCompiler, **_kwargs: Any) -> str:
    return _NOW.get(compiler.dialect.name, "CURRENT_TIMESTAMP")


metadata = sa.MetaData()


def _keys(partition: int = 32) -> list[sa.Column[Any]]:
    """The key columns. Together they fit the 900 bytes that a key may have in Azure SQL."""
    return [
        sa.Column("Topic", sa.String(340), primary_key=True),  # namespace/hub
        sa.Column("ConsumerGroup", sa.String(64), primary_key=True),
        sa.Column("PartitionID", sa.String(partition), primary_key=True),
    ]


def _number(name: str, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, autoincrement=False, nullable=False, **options)


CHECKPOINTS = sa.Table(
    "EventHubCheckpoint",
    metadata,
    *_keys(),
    _number("SequenceNumber"),  # -1: nothing is settled
    sa.Column("Offset", sa.String(256), nullable=False),  # opaque; longer than 20 with geo-replication
    sa.Column("Beyond", sa.UnicodeText, nullable=False),  # settled runs above the position, JSON
    _number("OwnerEpoch"),
    sa.Column("Owner", sa.String(256), nullable=False),
    sa.Column("SavedAt", UtcSeconds),  # NULL: claimed, never saved
    sa.Column("Origin", sa.UnicodeText),  # JSON of model.Origin; NULL: an older version saved it
)
"""One more row per hub name says which hub has plain keys, in any namespace: Topic is the hub's name, group and partition
are empty, and SequenceNumber is when that hub was created."""

DEAD_LETTERS = sa.Table(
    "EventHubDeadLetter",
    metadata,
    *_keys(),
    _number("SequenceNumber", primary_key=True),
    sa.Column("Offset", sa.String(256), nullable=False),
    sa.Column("EnqueuedAt", UtcSeconds, nullable=False),
    sa.Column("PartitionKey", sa.UnicodeText),
    sa.Column("Properties", sa.UnicodeText, nullable=False),  # JSON
    sa.Column("Body", sa.LargeBinary, nullable=False),
    sa.Column("Unreadable", sa.UnicodeText),
    sa.Column("Reason", sa.String(100), nullable=False),
    sa.Column("Error", sa.UnicodeText, nullable=False),
    sa.Column("Attempts", sa.Integer, nullable=False),
    sa.Column("FailedAt", UtcSeconds, nullable=False),
    # NULL: the event has none, or an older version stored it
    sa.Column("ContentType", sa.UnicodeText),
    sa.Column("ContentEncoding", sa.UnicodeText),
    sa.Column(
        "Records", sa.UnicodeText
    ),  # JSON of DeadLetter's `of` and `records`; NULL: one record, or unknown
    sa.Column("Epoch", sa.BigInteger),  # NULL: a dead letter, or an older version parked it
    sa.Column("FirstFailure", sa.UnicodeText),  # NULL: no replay of it was rejected
)

LEASES = sa.Table(
    "EventHubLease",
    metadata,
    *_keys(partition=128),  # here an instance's name, too
    sa.Column("Owner", sa.String(256), nullable=False),  # '': nobody
    sa.Column("RenewedAt", UtcSeconds, nullable=False),
    _number("Version"),
)

TABLES = (CHECKPOINTS, DEAD_LETTERS, LEASES)
"""All but the default target."""

EVENTS = sa.Table(
    "Events",
    sa.MetaData(),  # apart: only made where it is the target
    sa.Column("Topic", sa.String(340), primary_key=True),
    sa.Column("PartitionID", sa.String(32), primary_key=True),
    _number("SequenceNumber", primary_key=True),
    sa.Column("EnqueuedAt", UtcSeconds, nullable=False),
    sa.Column("Body", sa.JSON, nullable=False),
)


class SqlStore:
    """Base of the stores in these tables: the database, and the consumer group whose rows they use."""

    def __init__(self, database: SqlDatabase, scope: Stream) -> None:
        self._database = database
        self._scope = scope
        database.use()

    async def _transact(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """The result of `work(connection, scope, *arguments)` in a transaction, with the options of SqlDatabase.transact."""
        return await self._database.transact(
            lambda connection: work(connection, self._scope, *arguments), **options
        )

    async def _look(
        self,
        work: Callable[[Connection, Sequence[ColumnElement[Any]]], _T],
        none: _T,
        table: sa.Table,
        *,
        deadline: float | None = None,
    ) -> _T:
        """The result of `work(connection, columns of the table)` in a transaction that only reads. A dry run completes no tables: to
        it a column that an older version did not make is NULL, and without the table `none` is the result, whatever else is missing.
        """
        database = self._database
        if not database.read_only:
            return await database.transact(lambda on: work(on, list(table.c)), deadline=deadline)

        def look() -> _T:
            try:
                database.require_file()
            except MissingTablesError:
                return none
            with database.engine.begin() as connection:
                inspector = sa.inspect(connection)
                if not inspector.has_table(table.name):
                    return none
                has = {column["name"] for column in inspector.get_columns(table.name)}
                missing = {column.name for column in table.c if column.nullable} - has
                columns: list[ColumnElement[Any]] = [
                    sa.null().label(column.name) if column.name in missing else column for column in table.c
                ]
                return work(connection, columns)

        return await database.call(look, deadline=deadline)

    async def aclose(self) -> None:
        await self._database.release()


def of_scope(table: sa.Table, scope: Stream, partition: str | None = None) -> list[ColumnElement[bool]]:
    """The conditions that select the rows of a consumer group, or of one of its partitions."""
    keys = scope.keys if partition is None else {**scope.keys, "PartitionID": partition}
    return [table.c[name] == value for name, value in keys.items()]
