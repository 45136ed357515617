"""Live event hubs as the data source "eventhubs": batches between positions, and streams whose positions are in Spark's
checkpoint.

Options: `hub`; `connection`, the name of a setting as the app has it (a connection string, or
`<name>__fullyQualifiedNamespace` for an identity), or `secretConnectionString`, the string itself; `consumerGroup`
($Default; better one of its own: a reader of the group that owns its partitions, such as the consumer, shuts others
out); `startingPosition` (earliest) and, for batches, `endingPosition` (latest), see `event_hub_positions`;
`maxEventsPerTrigger` for streams; `failOnDataLoss` (true: retention that removed events before they were read ends the
query; false: it is logged, and the query goes on behind them); `receiveTimeout` in seconds (60).

Readers hold no ownership, and write no checkpoints to storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from consumer.model import PartitionState
from consumer.receiving.receiver import HubReceiver
from foundation.azure.connections import ConnectionSettingsError, event_hubs_endpoint
from foundation.errors import SettingsError, UnavailableError
from spark_jobs.errors import InputError
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.event_hubs.positions import (
    EARLIEST,
    LATEST,
    Range,
    lost,
    parse_position,
    ranges,
    resolved,
)
from spark_jobs.sources.event_hubs.reading import RangeReader
from spark_jobs.sources.options import (
    CONNECTION_STRING,
    carried,
    check_secrets,
    environment,
    needs_stream_limits,
    positive,
)

NAME = "eventhubs"

log = logging.getLogger("tidemark.spark")


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


@dataclass(frozen=True)
class HubSettings:
    """The options, parsed."""

    hub: str
    connection: str
    environment: Mapping[str, str]
    """Settings in which the connection is found."""
    consumer_group: str
    start: dict[str, str | int]
    end: dict[str, str | int]
    max_events: int | None
    fail_on_data_loss: bool
    receive_timeout: int

    def __repr__(self) -> str:
        return f"HubSettings({self.hub!r} of {self.connection})"  # no secrets

    @classmethod
    def of(cls, options: Mapping[str, str]) -> HubSettings:
        """Raises InputError naming the option at fault."""
        check_secrets(options)
        hub = options.get("hub")
        text, connection = options.get(CONNECTION_STRING), options.get("connection")
        if not hub or not (text or connection):
            raise InputError(
                f'the source "{NAME}" needs the options hub, and connection or {CONNECTION_STRING}'
            )
        limit, loss = options.get("maxEventsPerTrigger"), options.get("failOnDataLoss", "true").lower()
        if loss not in {"true", "false"}:
            raise InputError(f"failOnDataLoss is '{loss}'; accepted are true and false")
        settings = cls(
            hub=hub,
            connection=CONNECTION_STRING if text else str(connection),
            environment={**environment(options), **({CONNECTION_STRING: text} if text else {})},
            consumer_group=options.get("consumerGroup") or "$Default",
            start=parse_position(options.get("startingPosition") or EARLIEST, "startingPosition"),
            end=parse_position(options.get("endingPosition") or LATEST, "endingPosition"),
            max_events=None if limit is None else positive("maxEventsPerTrigger", limit),
            fail_on_data_loss=loss == "true",
            receive_timeout=positive("receiveTimeout", options.get("receiveTimeout") or "60"),
        )
        try:
            event_hubs_endpoint(settings.environment, settings.connection)
        except ConnectionSettingsError as error:
            raise InputError(f'the source "{NAME}": {error}') from error
        return settings

    def look(self) -> tuple[str, dict[str, PartitionState]]:
        """When the hub was created, and how its partitions stand now. Raises InputError."""
        return asyncio.run(self._look())

    async def _look(self) -> tuple[str, dict[str, PartitionState]]:
        receiver = HubReceiver(self.environment, self.connection, self.hub, self.consumer_group)
        try:
            partitions = await receiver.partitions()
            states = await asyncio.gather(*(receiver.state(partition) for partition in partitions))
        except (SettingsError, UnavailableError) as error:
            raise InputError(f'the source "{NAME}": {error}') from error
        finally:
            await receiver.close(asyncio.get_running_loop().time() + 5.0)
        created = f"{receiver.created_at or 0.0:.3f}"
        return created, {state.partition: state for state in states}

    async def state_of(self, partition: str) -> PartitionState:
        """How a partition stands now. Raises InputError."""
        _, states = await self._look()
        return states[partition]

    def checked(self, wanted: Sequence[Range], states: Mapping[str, PartitionState]) -> list[InputPartition]:
        """One task for each partition. Raises InputError where events are gone, or logs it, as the settings say."""
        for each in wanted:
            story = lost(each, states[each.partition]) if each.partition in states else None
            if story is not None:
                self.report_loss(story)
        return [HubRange(each) for each in wanted]

    def report_loss(self, story: str) -> None:
        """Raises InputError, or logs."""
        if self.fail_on_data_loss:
            raise InputError(
                f"event hub '{self.hub}': {story}; set failOnDataLoss to false to go on without them"
            )
        log.warning("event hub '%s': %s", self.hub, story)


class HubRange(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted


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


def batches_of(settings: HubSettings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The batches of a task."""
    if not isinstance(partition, HubRange):  # Spark's stand-in where there is nothing to read
        return
    reader = RangeReader(settings, partition.wanted)
    loop: Any = asyncio.new_event_loop()
    try:
        while (batch := loop.run_until_complete(reader.next_batch())) is not None:
            yield batch
    finally:
        with contextlib.suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(reader.close(), 10.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
