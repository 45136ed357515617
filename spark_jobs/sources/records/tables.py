"""The scaling log's table in Table Storage as the data source "azure_table".

Options: `connection` (the name of the connection's setting, as in the app: AzureWebJobsStorage, or one with
`<name>__tableServiceUri` for an identity) and `table`. The settings are those of the driver's environment where the
functions of this package are used; with `spark.read.format("azure_table")` alone, of the environment that Spark was
started in. One task reads one partition of the table: a target.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from azure.core.exceptions import AzureError, ResourceNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from foundation.azure import connections
from scaling.storage import decision_log
from scaling.storage.rows import read_log_row
from spark_jobs.errors import InputError
from spark_jobs.platform.data_source import Source, TaskReader
from spark_jobs.platform.source_options import carried, environment
from spark_jobs.schemas import DECISIONS, arrow_schema
from spark_jobs.sources.records.records import RejectedError
from spark_jobs.sources.records.telemetry_rows import entry_row

NAME = "azure_table"
SCHEME = "table://"


def read_table(spark: SparkSession, url: str, settings: Mapping[str, str] | None = None) -> DataFrame:
    """DECISIONS from "table://<connection>[/<table>]"; `settings` are the environment by default.

    Raises InputError where the connection's settings are missing; a table that is not there ends the first action.
    """
    connection, _, table = url.removeprefix(SCHEME).partition("/")
    options = {"connection": connection, "table": table or decision_log.TableDecisionLog.TABLE}
    options |= carried(os.environ if settings is None else settings, connection)
    TableSettings.of(options)
    return spark.read.format(NAME).options(**options).load()


class TableSettings(NamedTuple):
    settings: Mapping[str, str]
    connection: str
    table: str

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
        return cls(settings, connection, options.get("table") or decision_log.TableDecisionLog.TABLE)

    async def entities(
        self, partition: str, select: list[str] | None = None, *, needed: bool = False
    ) -> list[Mapping[str, Any]]:
        """The rows of a partition. Raises InputError for a table that is not there or not to be read, and, where the
        partition is needed, for one that has other rows but none of it.
        """
        query = "PartitionKey eq '{}'".format(partition.replace("'", "''"))
        where = f"table '{self.table}' (connection {self.connection})"
        try:
            async with connections.table_service(self.settings, self.connection) as service:
                client = service.get_table_client(self.table)
                found: list[Mapping[str, Any]] = [
                    entity async for entity in client.query_entities(query, select=select)
                ]
                if needed and not found:
                    async for _ in client.list_entities(results_per_page=1):
                        raise InputError(f"{where} is no scaling log: no row of it names a target")
                return found
        except ResourceNotFoundError as error:
            raise InputError(f"there is no {where}") from error
        except (AzureError, OSError) as error:
            raise InputError(f"{where} cannot be read: {connections.network_story(error)}") from error

    def targets(self) -> list[str]:
        """The tasks. Raises InputError."""
        rows = asyncio.run(self.entities(decision_log.TARGETS, ["RowKey"], needed=True))
        return sorted({row["RowKey"] for row in rows})

    def read(self, target: str) -> Iterator[pa.RecordBatch]:
        """DECISIONS on a target. Raises InputError."""
        rows = []
        for entity in asyncio.run(self.entities(target)):
            try:
                rows.append(entry_row(read_log_row(entity, inputs=True)))
            except RejectedError as error:
                raise InputError(
                    f"row '{entity['RowKey']}' of table '{self.table}', partition '{target}': {error}"
                ) from error
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(DECISIONS))


class TableSource(Source):
    NAME = NAME
    SCHEMA = DECISIONS

    def reader(self, schema: StructType) -> TaskReader:  # noqa: ARG002 - Spark's interface
        settings = TableSettings.of(self.options)
        return TaskReader(settings.targets, settings.read)
