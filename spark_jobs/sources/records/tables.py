"""Tables of Table Storage as the data source "azure_table": the scaling log, and how consumer instances stand.

Options: `connection` (the name of the connection's setting, as in the app: AzureWebJobsStorage, or one with
`<name>__tableServiceUri` for an identity), `table`, and `layout` ("scaling_log" or "consumer_stats"; by default what the
table's name says). The settings are those of the driver's environment where the functions of this package are used; with
`spark.read.format("azure_table")` alone, of the environment that Spark was started in. One task reads one partition of
the table: a target, or a consumer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from azure.core.exceptions import AzureError, ResourceNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from foundation import consumer_stats
from foundation.azure.connections import (
    ConnectionSettingsError,
    network_story,
    storage_endpoint,
    table_service,
)
from scaling.storage import decision_log
from scaling.storage.rows import read_log_row
from spark_jobs.errors import InputError
from spark_jobs.platform.source_options import carried, environment
from spark_jobs.schemas import CONSUMER_STATS, DECISIONS, arrow_schema
from spark_jobs.sources.records.records import RejectedError
from spark_jobs.sources.records.telemetry_rows import Row, entry_row, stats_row

NAME = "azure_table"
SCHEME = "table://"


class Layout(NamedTuple):
    """How the rows of a table are read. `skipped` is a partition that lists the others."""

    name: str
    table: str
    schema: StructType
    row: Callable[[Mapping[str, Any]], Row]
    skipped: str | None = None


def _decision(entity: Mapping[str, Any]) -> Row:
    return entry_row(read_log_row(entity, inputs=True))


def _stats(entity: Mapping[str, Any]) -> Row:
    try:
        return stats_row(consumer_stats.from_row(entity))
    except consumer_stats.ConsumerStatsError as error:
        raise RejectedError(str(error)) from error


SCALING_LOG = Layout("scaling_log", decision_log.TABLE, DECISIONS, _decision, decision_log.TARGETS)
CONSUMER_STATS_TABLE = Layout("consumer_stats", consumer_stats.TABLE, CONSUMER_STATS, _stats)
LAYOUTS = {layout.name: layout for layout in (SCALING_LOG, CONSUMER_STATS_TABLE)}


def read_table(
    spark: SparkSession, url: str, layout: Layout, settings: Mapping[str, str] | None = None
) -> DataFrame:
    """A frame of the layout's schema from "table://<connection>[/<table>]"; `settings` are the environment by default.

    Raises InputError where the connection's settings are missing; a table that is not there ends the first action.
    """
    connection, _, table = url.removeprefix(SCHEME).partition("/")
    options = {"connection": connection, "table": table or layout.table, "layout": layout.name}
    options |= carried(os.environ if settings is None else settings, connection)
    TableSettings.of(options)
    return spark.read.format(NAME).options(**options).load()


class TableSettings(NamedTuple):
    settings: Mapping[str, str]
    connection: str
    table: str
    layout: Layout

    def __repr__(self) -> str:
        return f"TableSettings({self.table!r} of {self.connection})"  # no secrets

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableSettings:
        """Raises InputError naming the option at fault."""
        connection, table = options.get("connection"), options.get("table")
        named = {layout.table: layout.name for layout in LAYOUTS.values()}
        layout = LAYOUTS.get(options.get("layout") or named.get(table or "", ""))
        if not connection or layout is None:
            raise InputError(
                f'the source "{NAME}" needs the options connection (the name of a setting) and table or layout '
                f"({', '.join(LAYOUTS)}); found connection '{connection}', table '{table}',"
                f" layout '{options.get('layout')}'"
            )
        try:
            settings = environment(options)
            storage_endpoint(settings, connection, "table")
        except ConnectionSettingsError as error:
            raise InputError(f'the source "{NAME}": {error}') from error
        return cls(settings, connection, table or layout.table, layout)

    async def entities(self, query: str | None, select: list[str] | None = None) -> list[Mapping[str, Any]]:
        """Raises InputError for a table that is not there, or not to be read."""
        where = f"table '{self.table}' (connection {self.connection})"
        try:
            async with table_service(self.settings, self.connection) as service:
                client = service.get_table_client(self.table)
                pages = (
                    client.query_entities(query, select=select)
                    if query
                    else client.list_entities(select=select)
                )
                return [entity async for entity in pages]
        except ResourceNotFoundError as error:
            raise InputError(f"there is no {where}") from error
        except (AzureError, OSError) as error:
            raise InputError(f"{where} cannot be read: {network_story(error)}") from error


class TablePartition(InputPartition):
    def __init__(self, key: str) -> None:
        self.key = key


class TableSource(DataSource):
    """The data source "azure_table"."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return TableSettings.of(self.options).layout.schema

    def reader(self, schema: StructType) -> TableReader:  # noqa: ARG002 - Spark's interface
        return TableReader(TableSettings.of(self.options))


class TableReader(DataSourceReader):
    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        settings = self._settings
        listing = settings.layout.skipped
        query = f"PartitionKey eq '{listing}'" if listing else None
        rows = asyncio.run(settings.entities(query, ["PartitionKey", "RowKey"]))
        return [
            TablePartition(key)
            for key in sorted({row["RowKey" if listing else "PartitionKey"] for row in rows})
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TablePartition):  # Spark's stand-in where there are no partitions
            return
        settings = self._settings
        query = "PartitionKey eq '{}'".format(partition.key.replace("'", "''"))
        entities = asyncio.run(settings.entities(query))
        rows = []
        for entity in entities:
            try:
                rows.append(settings.layout.row(entity))
            except RejectedError as error:
                raise InputError(
                    f"row '{entity['RowKey']}' of table '{settings.table}', partition '{partition.key}': {error}"
                ) from error
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(settings.layout.schema))
