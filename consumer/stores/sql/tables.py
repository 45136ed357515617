"""The consumer's tables, the same on SQLite, PostgreSQL and Azure SQL. Times in them are UTC.

`EventHubCheckpoint` and `EventHubDeadLetter` are those of the article on transactional checkpoints, with what was
missing there: the consumer group in the keys, the sequence number in the key of a dead letter, the body itself, and
the epoch that fences a former owner.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UnicodeText,
)
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from consumer.model import Stream
from foundation.sql.database import SqlDatabase
from foundation.sql.database import ddl as statements

_DATETIME2 = mssql.DATETIME2(6)  # type: ignore[no-untyped-call]


class UtcSeconds(TypeDecorator[float]):
    """Epoch seconds here, a readable date and time in UTC there; kept to the microsecond."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # The server's own DATETIME counts in steps of 3 ms.
        return dialect.type_descriptor(_DATETIME2 if dialect.name == "mssql" else DateTime())

    def process_bind_param(self, value: float | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base's signature
        return None if value is None else datetime.fromtimestamp(value, UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> float | None:  # noqa: ARG002 - the base's signature
        return None if value is None else value.replace(tzinfo=UTC).timestamp()


class utc_now(FunctionElement[float]):  # noqa: N801 - an SQL function, named as such
    """The database's own time at this very moment, not at the start of the transaction."""

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


metadata = MetaData()


def _keys(partition: int = 32) -> list[Column[Any]]:
    """Together within the 900 bytes a key may have in Azure SQL."""
    return [
        Column("Topic", String(340), primary_key=True),  # namespace/hub
        Column("ConsumerGroup", String(64), primary_key=True),
        Column("PartitionID", String(partition), primary_key=True),
    ]


def _number(name: str, **options: Any) -> Column[Any]:
    return Column(name, BigInteger, autoincrement=False, nullable=False, **options)


CHECKPOINTS = Table(
    "EventHubCheckpoint",
    metadata,
    *_keys(),
    _number("SequenceNumber"),  # -1: nothing is settled
    Column("Offset", String(256), nullable=False),  # opaque; longer than 20 with geo-replication
    Column("Beyond", UnicodeText, nullable=False),  # settled runs above the position, JSON
    _number("OwnerEpoch"),
    Column("Owner", String(256), nullable=False),
    Column("SavedAt", UtcSeconds),  # NULL: claimed, never saved
)

DEAD_LETTERS = Table(
    "EventHubDeadLetter",
    metadata,
    *_keys(),
    _number("SequenceNumber", primary_key=True),
    Column("Offset", String(256), nullable=False),
    Column("EnqueuedAt", UtcSeconds, nullable=False),
    Column("PartitionKey", UnicodeText),
    Column("Properties", UnicodeText, nullable=False),  # JSON
    Column("Body", LargeBinary, nullable=False),
    Column("Unreadable", UnicodeText),
    Column("Reason", String(100), nullable=False),
    Column("Error", UnicodeText, nullable=False),
    Column("Attempts", Integer, nullable=False),
    Column("FailedAt", UtcSeconds, nullable=False),
)

LEASES = Table(
    "EventHubLease",
    metadata,
    *_keys(partition=128),  # here an instance's name, too
    Column("Owner", String(256), nullable=False),  # '': nobody
    Column("RenewedAt", UtcSeconds, nullable=False),
    _number("Version"),
)

TABLES = (CHECKPOINTS, DEAD_LETTERS, LEASES)
"""All but the default target."""

EVENTS = Table(
    "Events",
    MetaData(),  # apart: only made where it is the target
    Column("Topic", String(340), primary_key=True),
    Column("PartitionID", String(32), primary_key=True),
    _number("SequenceNumber", primary_key=True),
    Column("EnqueuedAt", UtcSeconds, nullable=False),
    Column("Body", JSON, nullable=False),
)


def ddl(dialect: str = "postgresql", *, events: bool = True) -> str:
    """The statements that make the tables, for a database where the consumer may not: `sqlite`, `postgresql` or
    `mssql`. `events` adds the default target.
    """
    return statements([*TABLES, *([EVENTS] if events else [])], dialect)


class SqlStore:
    """What the stores in these tables have in common: a use of the database, and the rows of one consumer group."""

    def __init__(self, database: SqlDatabase, scope: Stream) -> None:
        self._database = database
        self._scope = scope
        database.use()

    async def aclose(self) -> None:
        await self._database.release()


def of_scope(table: Table, scope: Stream, partition: str | None = None) -> list[ColumnElement[bool]]:
    """What holds of the rows of a consumer group, or of one partition of it."""
    keys = scope.keys if partition is None else {**scope.keys, "PartitionID": partition}
    return [table.c[name] == value for name, value in keys.items()]
