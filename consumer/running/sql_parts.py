"""Builds the SQL adapters of a consumer. SQLAlchemy, which they import, is an optional extra."""

from __future__ import annotations

from consumer.options import SqlConfig
from consumer.sinks.sql.options import SqlOptions, open_database
from consumer.sinks.types import SinkContext
from consumer.stores.sql.checkpoints import SqlCheckpointStore, SqlLeaseStore
from consumer.stores.sql.dead_letters import SqlDeadLetterStore


class SqlParts:
    """Creates adapters on one database, which the last of them closes."""

    def __init__(self, options: SqlOptions, context: SinkContext) -> None:
        """Raises SettingsError for a URL that cannot work."""
        self._on = (open_database(options, context), context.stream)

    def checkpoints(self) -> SqlCheckpointStore:
        return SqlCheckpointStore(*self._on)

    def leases(self) -> SqlLeaseStore:
        return SqlLeaseStore(*self._on)

    def dead_letters(self) -> SqlDeadLetterStore:
        return SqlDeadLetterStore(*self._on)


def sql_options(sql: SqlConfig) -> SqlOptions:
    """The options that the app settings give."""
    return SqlOptions(
        table=sql.table,
        columns=sql.columns,
        key=sql.key,
        handler=sql.handler,
        create_tables=sql.create_tables,
    )
