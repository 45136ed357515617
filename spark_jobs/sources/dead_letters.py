"""Data source "dead_letters": the rejected events that a consumer kept, from whichever store its settings name.

    spark.read.format("dead_letters").option("secretSettings", json).load()

`secretSettings` is a JSON object of the consumer's app settings (docs/settings.md); `CONSUMER_DEAD_LETTERS` says whether
the letters are in blob storage, Cosmos DB or SQL. The consumer's own stores read them. With the option `partitions`,
ids by comma, each Event Hubs partition is a Spark partition, and letters of others are not read; else there is one.
With the option `parked`, "true", the events that the consumer parked come first. `connection` and `storageConnection` name the settings of
the hub's and the storage's connections, where they are not those of the app settings; with `sink`, letters that are of other sinks alone
are not read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from consumer.config import read_config
from consumer.core.parked import SUFFIX
from consumer.definition.model import HubDefinition
from consumer.model import DeadLetter
from consumer.ports import DeadLetterStore
from consumer.running.assembly import Parts
from spark_jobs.platform.consumer_hub import for_executors, has_other_sinks
from spark_jobs.platform.data_source import Source, stepped
from spark_jobs.platform.source_options import SETTINGS, check_secrets, settings_in
from spark_jobs.schemas import arrow_schema, row_schema
from spark_jobs.task_errors import fails_without_secrets
from tidemark.analysis.errors import job_errors

DEAD_LETTERS = row_schema("""
    hub text, consumer_group text, partition text, sequence_number long, offset text,
    enqueued_at time, reason text, detail text, attempts int, failed_at time, size long, parked flag, records text, of int
""")
"""One row per letter; `size` is of the body, in bytes. (`hub`, `partition`, `sequence_number`) identify the event. `parked` are
events that the consumer tries again later; of these `reason` is why they could not be written so far. `records`: the names of its records that the letter is about, as JSON, and null
for all of them; the event had `of` records then.
"""

_CONNECTIONS = {"connection": "hub_connection", "storageconnection": "storage_connection"}
"""Options that name a setting with a connection, where a consumer's file names another than the app settings do."""

_AT_ONCE = 1000  # letters in a batch handed to Spark
_SCHEMA = arrow_schema(DEAD_LETTERS)


class DeadLetterSource(Source):
    NAME = "dead_letters"
    SCHEMA = DEAD_LETTERS

    def reader(self, schema: StructType) -> DeadLetterReader:  # the base's signature
        return DeadLetterReader(self.options)


class DeadLetterReader(DataSourceReader):
    """Raises InputError for settings that cannot work, JobError where a store refuses or holds what is no letter."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_secrets(options)
        lowered = {name.lower(): value for name, value in options.items()}
        self._settings = settings_in("dead_letters", lowered)
        with job_errors():
            config = read_config(self._settings)
        named = {field: lowered[option] for option, field in _CONNECTIONS.items() if option in lowered}
        self._config = structs.replace(config, **named)
        self._sink = lowered.get("sink", "")
        self._with_parked = lowered.get("parked", "") == "true"
        self._wanted = [part.strip() for part in lowered.get("partitions", "").split(",") if part.strip()]

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(partition) for partition in self._wanted] or [InputPartition(None)]

    @fails_without_secrets
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with job_errors():
            for chunk in stepped(self._chunks(partition.value)):
                yield pa.RecordBatch.from_pylist(list(map(_row, chunk)), schema=_SCHEMA)

    async def _chunks(self, partition: str | None) -> AsyncGenerator[list[DeadLetter]]:
        parts = Parts(self._config, self._settings)
        # Parked ones first: an event whose time is up meanwhile becomes a dead letter, and is read then.
        for store in (parts.parked, parts.dead_letters) if self._with_parked else (parts.dead_letters,):
            async for chunk in self._chunks_of(store(), partition):
                yield chunk

    async def _chunks_of(
        self, store: DeadLetterStore, partition: str | None
    ) -> AsyncGenerator[list[DeadLetter]]:
        """Closes the store."""
        async with aclosing(store):
            await store.open()
            chunk: list[DeadLetter] = []
            async for letter in store.list(partition=partition):
                if partition not in {None, letter.event.place}:
                    continue  # of a hub created anew, or before
                if self._sink and _are_of_others(letter, self._sink):
                    continue
                chunk.append(letter)
                if len(chunk) == _AT_ONCE:
                    yield chunk
                    chunk = []
            if chunk:
                yield chunk


def read_dead_letters(
    spark: SparkSession, hub: HubDefinition, partitions: Sequence[str] = (), *, parked: bool = False
) -> DataFrame:
    """DEAD_LETTERS of the hub; what is `parked` too, where asked for. Where the hub is about one of several sinks, without the
    letters of the others alone.
    """
    spark.dataSource.register(DeadLetterSource)
    options = {
        SETTINGS: msgspec.json.encode(for_executors(hub)).decode(),
        "connection": hub.config.hub_connection,
        "storageConnection": hub.config.storage_connection,
        "partitions": ",".join(partitions),
        "parked": str(parked).lower(),
        "sink": hub.sinks[0].name if has_other_sinks(hub) else "",
    }
    return spark.read.format("dead_letters").options(**options).load().select(*DEAD_LETTERS.fieldNames())


def _are_of_others(letter: DeadLetter, sink: str) -> bool:
    """Whether all records that it names are of other sinks (consumer.core.parked.name_of). One that names none is about all."""
    named = [name.rpartition(":")[0] for name in letter.records]
    return bool(named) and all(named) and sink not in named


def _row(letter: DeadLetter) -> dict[str, Any]:
    event, has_names = letter.event, bool(letter.records) and letter.of > 1  # 1: unknown
    return {
        "hub": letter.hub,
        "consumer_group": letter.consumer_group,
        "partition": event.place,
        "sequence_number": event.sequence_number,
        "offset": event.offset,
        "enqueued_at": datetime.fromtimestamp(event.enqueued_at, UTC),
        "reason": letter.rejection.reason,
        "detail": letter.rejection.detail,
        "attempts": letter.attempts,
        "failed_at": datetime.fromtimestamp(letter.failed_at, UTC),
        "size": len(event.body),
        "parked": letter.consumer_group.endswith(SUFFIX),
        "records": msgspec.json.encode(letter.records).decode() if has_names else None,
        "of": letter.of,
    }
