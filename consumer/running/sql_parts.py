"""Builds the SQL adapters of a consumer. SQLAlchemy, which they import, is an optional extra."""

from __future__ import annotations

from typing import Any, cast

from consumer.config import ConsumerConfig, SqlConfig
from consumer.mapping.transforms import load_transform
from consumer.model import Stream
from consumer.sinks.sql.targets import HandlerTarget, TableTarget, Target, events_target
from consumer.sinks.sql.transactional import SqlTransactionalSink
from consumer.stores.sql.checkpoints import SqlCheckpointStore, SqlLeaseStore
from consumer.stores.sql.dead_letters import SqlDeadLetterStore
from consumer.stores.sql.tables import TABLES
from tidemark.foundation.sql.database import SqlDatabase


class SqlParts:
    """Creates adapters on one database, which the last of them closes."""

    def __init__(self, config: ConsumerConfig, stream: Stream) -> None:
        """Raises SettingsError for a URL that cannot work."""
        sql = self._sql = config.sql
        database = SqlDatabase(
            sql.url, setting="CONSUMER_SQL_URL", create_tables=sql.create_tables, tables=TABLES
        )
        self._on = (database, stream)

    def sink(self) -> SqlTransactionalSink:
        return SqlTransactionalSink(*self._on, target_of(self._sql))

    def checkpoints(self) -> SqlCheckpointStore:
        return SqlCheckpointStore(*self._on)

    def leases(self) -> SqlLeaseStore:
        return SqlLeaseStore(*self._on)

    def dead_letters(self) -> SqlDeadLetterStore:
        return SqlDeadLetterStore(*self._on)


def target_of(sql: SqlConfig) -> Target:
    """Raises SettingsError for a handler that cannot be imported or unknown sources of columns."""
    if sql.handler:
        return HandlerTarget(cast("Any", load_transform(sql.handler)))
    return TableTarget(sql.table, sql.columns, key=sql.key) if sql.table else events_target()
