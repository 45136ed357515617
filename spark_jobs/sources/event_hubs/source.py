"""Live event hubs as the data source "eventhubs": batches between positions.

Options: `hub`; `connection`, the name of a setting as the app has it (a connection string, or
`<name>__fullyQualifiedNamespace` for an identity), or `secretConnectionString`, the string itself; `consumerGroup`
($Default; better one of its own: a reader of the group that owns its partitions, such as the consumer, shuts others
out); `startingPosition` (earliest) and `endingPosition` (latest), see `positions`; `failOnDataLoss` (true: retention that
removed events before they were read ends the query; false: it is logged, and the query goes on behind them);
`receiveTimeout` in seconds (60).

Readers hold no ownership, and write no checkpoints to storage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.platform.source_options import CONNECTION_STRING, carried
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.event_hubs.positions import EARLIEST, LATEST, ranges, resolved
from spark_jobs.sources.event_hubs.settings import NAME, HubSettings
from spark_jobs.sources.event_hubs.task import batches_of


def read_event_hub(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """EVENTS between two positions, as they are when an action runs; the connection's settings are those of the driver.

    Raises InputError for options at fault.
    """
    given = {**carried(os.environ, options.get("connection") or CONNECTION_STRING), **options}
    HubSettings.of(given)
    return spark.read.format(NAME).options(**given).load()


class EventHubSource(DataSource):
    """The data source "eventhubs"."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return EVENTS

    def reader(self, schema: StructType) -> EventHubReader:  # noqa: ARG002 - Spark's interface
        return EventHubReader(HubSettings.of(self.options))


class EventHubReader(DataSourceReader):
    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        settings = self._settings
        states = settings.look()
        start = resolved(settings.start, states, EARLIEST, "startingPosition")
        end = resolved(settings.end, states, LATEST, "endingPosition")
        return settings.checked(ranges(start, end), states)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._settings, partition)
