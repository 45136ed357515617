"""Live event hubs as the data source "eventhubs": batches between positions, and streams whose positions are in Spark's
checkpoint.

Options: `hub`; `connection`, the name of a setting as the app has it (a connection string, or
`<name>__fullyQualifiedNamespace` for an identity), or `secretConnectionString`, the string itself; `consumerGroup`
($Default; better one of its own: a reader of the group that owns its partitions, such as the consumer, shuts others
out); `startingPosition` (earliest) and, for batches, `endingPosition` (latest), see `positions`;
`maxEventsPerTrigger` for streams; `failOnDataLoss` (true: retention that removed events before they were read ends the
query; false: it is logged, and the query goes on behind them); `receiveTimeout` in seconds (60).

Readers hold no ownership, and write no checkpoints to storage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.platform.source_options import CONNECTION_STRING, carried, needs_stream_limits
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.event_hubs.positions import EARLIEST, LATEST, ranges, resolved
from spark_jobs.sources.event_hubs.settings import NAME, HubSettings
from spark_jobs.sources.event_hubs.task import batches_of


def read_event_hub(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """EVENTS between two positions, as they are when an action runs. Raises InputError for options at fault."""
    return spark.read.format(NAME).options(**_complete(options)).load()


def stream_event_hub(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """EVENTS from a position on. Raises InputError for options at fault."""
    return spark.readStream.format(NAME).options(**_complete(options)).load()


def _complete(options: Mapping[str, str]) -> dict[str, str]:
    """With the settings of the connection as the driver has them. Raises InputError."""
    given = {**carried(os.environ, options.get("connection") or CONNECTION_STRING), **options}
    HubSettings.of(given)
    return given


class EventHubSource(DataSource):
    """The data source "eventhubs"."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return EVENTS

    def reader(self, schema: StructType) -> EventHubReader:  # noqa: ARG002 - Spark's interface
        return EventHubReader(HubSettings.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's interface
        needs_stream_limits(NAME)
        from spark_jobs.sources.event_hubs.stream import EventHubStreamReader  # noqa: PLC0415 - not before 4.2

        return EventHubStreamReader(HubSettings.of(self.options))


class EventHubReader(DataSourceReader):
    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        settings = self._settings
        _, states = settings.look()
        start = resolved(settings.start, states, EARLIEST, "startingPosition")
        end = resolved(settings.end, states, LATEST, "endingPosition")
        return settings.checked(ranges(start, end), states)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of(self._settings, partition)
