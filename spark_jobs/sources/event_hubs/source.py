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
from collections.abc import Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.platform.data_source import Source, TaskReader
from spark_jobs.platform.source_options import CONNECTION_STRING, carried
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.event_hubs.reading import batches_of
from spark_jobs.sources.event_hubs.settings import NAME, HubSettings


def read_event_hub(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """EVENTS between two positions, as they are when an action runs; the connection's settings are those of the driver.

    Raises InputError for options at fault.
    """
    given = {**carried(os.environ, options.get("connection") or CONNECTION_STRING), **options}
    HubSettings.of(given)
    return spark.read.format(NAME).options(**given).load()


class EventHubSource(Source):
    NAME = NAME
    SCHEMA = EVENTS

    def reader(self, schema: StructType) -> TaskReader:  # Spark's interface
        settings = HubSettings.of(self.options)
        return TaskReader(settings.tasks, partial(batches_of, settings))
