"""The scaling log's table in Table Storage as the data source "azure_table".

Options: `connection` (the name of the connection's setting, as in the app: AzureWebJobsStorage, or one with
`<name>__tableServiceUri` for an identity) and `table`. The settings are those of the driver's environment where the
functions of this package are used; with `spark.read.format("azure_table")` alone, of the environment that Spark was
started in. One task reads a time range of one partition of the table: of a target. The options `since` and `until`,
seconds since 1970, leave out what is older or newer.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from azure.core.exceptions import AzureError, ResourceNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from scaling.storage import decision_log
from scaling.storage.rows import read_log_row
from spark_jobs.platform.data_source import Source, TaskReader, stepped
from spark_jobs.platform.source_options import carried, environment
from spark_jobs.schemas import DECISIONS, arrow_schema
from spark_jobs.sources.records.records import RejectedError
from spark_jobs.sources.records.telemetry_rows import entry_row
from tidemark.analysis.errors import InputError
from tidemark.foundation.azure import connections
from tidemark.foundation.keys import after

NAME = "azure_table"
SCHEME = "table://"

TASKS = 64
"""That a log of few targets is cut into."""

HISTORY = 400 * 86_400.0
"""Seconds that are cut where no time is asked for; the first slice has all that is older, too."""

_ARROW = arrow_schema(DECISIONS)


def read_table(
    spark: SparkSession,
    url: str,
    settings: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """DECISIONS from "table://<connection>[/<table>]"; `settings` are the environment by default.

    Raises InputError where the connection's settings are missing; a table that is not there ends the first action.
    """
    connection, _, table = url.removeprefix(SCHEME).partition("/")
    options = {"connection": connection, "table": table or decision_log.TableDecisionLog.TABLE}
    bounds = {"since": since, "until": until}
    options |= {name: repr(at.timestamp()) for name, at in bounds.items() if at is not None}
    options |= carried(os.environ if settings is None else settings, connection)
    TableSettings.of(options)
    return spark.read.format(NAME).options(**options).load()


class TableSettings(NamedTuple):
    settings: Mapping[str, str]
    connection: str
    table: str
    since: float | None = None
    until: float | None = None

    def __repr__(self) -> str:
        return f"TableSettings({self.table!r} of {self.connection})"  # no secrets

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableSettings:
        """Raises InputError naming the option at fault."""
        connection = options.get("connection")
        if not connection:
            raise InputError(f'the source "{NAME}" needs the option connection (the name of a setting)')
        try:
            settings = environment(options)
            connections.storage_endpoint(settings, connection, "table")
        except connections.ConnectionSettingsError as error:
            raise InputError(f'the source "{NAME}": {error}') from error
        table = options.get("table") or decision_log.TableDecisionLog.TABLE
        return cls(settings, connection, table, _time(options, "since"), _time(options, "until"))

    async def pages(
        self, query: str, select: list[str] | None = None, *, needed: bool = False
    ) -> AsyncGenerator[list[Mapping[str, Any]]]:
        """The rows that the query finds, a page at a time. Raises InputError for a table that is not there or not to be
        read, and, where a row is needed, for one that has others but not these.
        """
        where = f"table '{self.table}' (connection {self.connection})"
        has_rows = False
        try:
            async with connections.table_service(self.settings, self.connection) as service:
                client = service.get_table_client(self.table)
                async for page in client.query_entities(query, select=select).by_page():
                    rows: list[Mapping[str, Any]] = [entity async for entity in page]
                    has_rows = has_rows or bool(rows)
                    yield rows
                if needed and not has_rows:
                    async for _ in client.list_entities(results_per_page=1):
                        raise InputError(f"{where} is no scaling log: no row of it names a target")
        except ResourceNotFoundError as error:
            raise InputError(f"there is no {where}") from error
        except (AzureError, OSError) as error:
            raise InputError(
                f"{where} cannot be read: {connections.describe_network_error(error)}"
            ) from error

    def tasks(self) -> list[Slice]:
        """Targets, each in as many slices of time as keep all cores busy. Raises InputError."""
        names = stepped(self.pages(_of_partition(decision_log.TARGETS), ["RowKey"], needed=True))
        targets = sorted({row["RowKey"] for page in names for row in page})
        count = max(TASKS // max(len(targets), 1), 1)
        end = datetime.now(UTC).timestamp() if self.until is None else self.until
        begin = max(end - HISTORY if self.since is None else self.since, 0.0)
        cuts = [begin + (end - begin) * number / count for number in range(1, count)] if end > begin else []
        edges = [self.since, *cuts, self.until]
        return [Slice(target, *span) for target in targets for span in pairwise(edges)]

    def read(self, task: Slice) -> Iterator[pa.RecordBatch]:
        """DECISIONS on a target. Raises InputError."""
        for page in stepped(self.pages(task.query())):
            yield pa.RecordBatch.from_pylist([self._row(entity) for entity in page], schema=_ARROW)

    def _row(self, entity: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return entry_row(read_log_row(entity, inputs=True))
        except RejectedError as error:
            raise InputError(
                f"row '{entity['RowKey']}' of table '{self.table}', partition '{entity['PartitionKey']}': {error}"
            ) from error


class Slice(NamedTuple):
    """What one task reads: a target's entries from `since` on and before `until`, in seconds; None does not bound."""

    target: str
    since: float | None
    until: float | None

    def query(self) -> str:
        """Row keys begin with the time, the newest first."""
        bounds = [] if self.since is None else [f"RowKey lt '{after(self.since)}'"]
        bounds += [] if self.until is None else [f"RowKey ge '{after(self.until)}'"]
        return " and ".join([_of_partition(self.target), *bounds])


def _of_partition(partition: str) -> str:
    return "PartitionKey eq '{}'".format(partition.replace("'", "''"))


class TableSource(Source):
    NAME = NAME
    SCHEMA = DECISIONS

    def reader(self, schema: StructType) -> TaskReader:  # Spark's interface
        settings = TableSettings.of(self.options)
        return TaskReader(settings.tasks, settings.read)


def _time(options: Mapping[str, str], name: str) -> float | None:
    text = options.get(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise InputError(
            f"the source \"{NAME}\": {name} is '{text}'; accepted are seconds since 1970"
        ) from None
