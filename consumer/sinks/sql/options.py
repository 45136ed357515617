"""The options of a sink to a SQL database. SQLAlchemy, which it imports, is an optional extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from consumer.mapping.operations import WriteOptions, write_options
from consumer.mapping.transforms import load_transform
from consumer.model import Operation
from consumer.options import WritingTexts
from consumer.sinks.sql.beside import SqlSinkBeside
from consumer.sinks.sql.targets import HandlerTarget, TableTarget, Target, events_target
from consumer.sinks.sql.transactional import SqlTransactionalSink
from consumer.sinks.types import SinkContext, SinkType
from consumer.stores.sql.tables import TABLES
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sql.database import SqlDatabase


class SqlOptions(Struct, frozen=True):
    """The database, and the table or handler that gets the events."""

    connection: str = "CONSUMER_SQL_URL"
    """The name of the setting with the database's address, as SQLAlchemy writes it."""
    table: str = ""
    """A table of the user's own; '' means the table `Events`, which stores the bodies."""
    columns: Mapping[str, str] = {}
    """The value of each column: `$.field` of the event's document, or a name of docs/consuming.md."""
    key: tuple[str, ...] = ()
    """Columns of a unique key of the user's table: rows are then upserted."""
    handler: str = ""
    """`module:function(connection, event)` of the user's own code, instead of a table."""
    guard: str = ""
    """A column beside the key: a row is only replaced or deleted by an event with a larger value of it."""
    operation: str = "upsert"
    """upsert; of a table with a key also create and delete."""
    operation_from: str = ""
    """Where an event says its operation: `/path` or `property:name`, with a table if needed: `/op: d=delete`."""
    empty: str = "reject"
    """`delete`: an event with an empty body deletes the row whose key the event itself gives, by @partition_key for example."""
    create_tables: bool | None = None
    """Whether missing tables of Tidemark are created; None means in SQLite only."""


def open_database(options: SqlOptions, context: SinkContext) -> SqlDatabase:
    """The database of the options, which all parts of a consumer share. Raises SettingsError for a missing or wrong URL."""
    url = context.settings.get(options.connection, "").strip()
    if not url:
        raise SettingsError(
            f"{options.connection} is not set: the database's address, as SQLAlchemy writes it"
        )
    database: SqlDatabase | None = context.shared.get(("sql", url))
    if database is None:
        database = SqlDatabase(
            url,
            setting=options.connection,
            create_tables=options.create_tables,
            tables=TABLES,
            read_only=context.dry_run,
        )
        context.shared["sql", url] = database
    return database


def target_of(options: SqlOptions) -> Target:
    """Raises SettingsError for a handler that cannot be imported or unknown sources of columns."""
    if not (options.table and options.key):
        asked = {"guard": options.guard, "operation_from": options.operation_from}
        asked["operation"] = "" if options.operation == "upsert" else options.operation
        asked["empty"] = "" if options.empty == "reject" else options.empty
        if given := [name for name, value in asked.items() if value]:
            raise SettingsError(
                f"{', '.join(given)}: a handler, the table `Events` and a table without a key take every event as a row of its own;"
                " name a table and its key"
            )
    if options.handler:
        return HandlerTarget(cast("Any", load_transform(options.handler)))
    if not options.table:
        return events_target()
    return TableTarget(options.table, options.columns, key=options.key, guard=options.guard)


def writing_of(options: SqlOptions) -> WriteOptions:
    """Raises SettingsError, also for an operation that has no meaning for rows."""
    if options.operation in {"replace", "patch"}:
        raise SettingsError(
            f"operation: '{options.operation}' has no meaning for rows; accepted: upsert, create, delete, or a handler of"
            " your own"
        )
    texts = WritingTexts(options.operation, options.operation_from, empty=options.empty)
    return write_options(texts)


def _build(options: SqlOptions, context: SinkContext) -> SqlTransactionalSink:
    where = (open_database(options, context), context.stream, target_of(options), writing_of(options))
    return SqlTransactionalSink(*where) if context.alone else SqlSinkBeside(*where, name=context.name)


SQL = SinkType(
    "sql", SqlOptions, _build, {Operation.UPSERT, Operation.CREATE, Operation.DELETE}, (), ordered=True
)
