"""Tests the tables of a SQL consumer with statements that change no row but need the same rights as those that do, in a
transaction that is rolled back. Only statements that the consumer uses are tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import sqlalchemy as sa

from consumer.config import SinkKind
from consumer.running.assembly import Parts
from consumer.running.sql_parts import sql_options
from consumer.sinks.sql.options import SqlOptions, target_of
from consumer.stores.sql.tables import DEAD_LETTERS, EVENTS, LEASES, TABLES
from tidemark.foundation.checkup import TriedError, Trouble
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sql.database import SqlDatabase, sqlstate

_STATES = {
    "42501": Trouble.REFUSED,  # PostgreSQL: a right is missing
    "28000": Trouble.REFUSED,  # the login, both servers
    "28P01": Trouble.REFUSED,
    "3D000": Trouble.ABSENT,
}
_UPDATES = ("update",)
_DELETES = {DEAD_LETTERS.name: ("delete",), LEASES.name: ("update", "delete")}
"""Besides inserting: a dead letter that is stored again replaces the first one, and a presence is deleted."""

_DENIED = "permission was denied"  # Azure SQL has no SQLSTATE of its own for it


async def absent(parts: Parts, url: str, options: SqlOptions | None) -> Sequence[str]:
    """Our tables that are missing for a sink with these options; None: for what the settings say, which may be positions alone. A
    table of the user must exist. Raises TriedError, TidemarkError.
    """
    config = parts.config
    is_sink = options is not None or config.sink is SinkKind.SQL
    sql = options or sql_options(config.sql)
    has_target = is_sink and bool(sql.table or sql.handler)
    database = SqlDatabase(url, setting=sql.connection, connections=1, create_tables=False)
    database.use()
    try:
        with _database_errors():
            if has_target:
                await database.call(partial(target_of(sql).open, database, parts.stream))
            ours = TABLES if has_target or not is_sink else (*TABLES, EVENTS)
            return await database.call(partial(_tried, database, ours, sql if has_target else None))
    finally:
        await database.release()


def _tried(database: SqlDatabase, ours: Sequence[sa.Table], sql: SqlOptions | None) -> Sequence[str]:
    inspector = sa.inspect(database.engine)
    missing = [table.name for table in ours if not inspector.has_table(table.name)]
    with database.engine.connect() as connection, connection.begin() as transaction:
        for table in ours:
            if table.name not in missing:
                _change_nothing(connection, table, table.c.keys(), _DELETES.get(table.name, _UPDATES))
        if sql is not None and sql.table:
            schema, _, name = sql.table.rpartition(".")
            target = sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=connection)
            _change_nothing(connection, target, [*sql.columns], _UPDATES if sql.key else ())
        transaction.rollback()
    return missing


def _change_nothing(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], further: Sequence[str]
) -> None:
    """Only columns that the consumer writes: the database may fill the others itself."""
    nothing = sa.select(*(table.c[name] for name in names)).where(sa.false())
    connection.execute(sa.insert(table).from_select(names, nothing))
    if "update" in further:
        same = {names[-1]: table.c[names[-1]]}
        connection.execute(sa.update(table).where(sa.false()).values(same))
    if "delete" in further:
        connection.execute(sa.delete(table).where(sa.false()))


@contextmanager
def _database_errors() -> Iterator[None]:
    """Raises the database's errors as TriedError, with the kind of trouble."""
    try:
        yield
    except UnavailableError as error:
        cause = error.__cause__
        if not isinstance(cause, sa.exc.DBAPIError):
            raise
        trouble = _STATES.get(sqlstate(cause))
        if trouble is None:
            lost = cause.connection_invalidated or (
                isinstance(cause, sa.exc.OperationalError) and not sqlstate(cause)
            )
            trouble = Trouble.UNREACHABLE if lost else Trouble.OTHER
        if _DENIED in str(cause.orig).casefold():
            trouble = Trouble.REFUSED
        raise TriedError(trouble, str(error)) from error
