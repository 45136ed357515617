"""Which document an event becomes: the consumer's own mapping, a batch at a time.

An id made of the event's position is built from columns. An id from the body takes the body's decoding and, where the
consumer has one, the user's transform: the same code that wrote the documents, or the answer would be another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from msgspec import UNSET
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from consumer.config import ConsumerConfig
from consumer.decoding.table import DecoderContext, build_decoder
from consumer.mapping.documents import DocumentMapper, MappingOptions, document_id
from consumer.mapping.preparing import Preparation
from consumer.mapping.transforms import load_transform, mapping_of
from consumer.model import Event, Record
from spark_jobs.reconciliation.schemas import DOCUMENT_KEYS, EVENT_KEYS, Identity
from spark_jobs.schemas import arrow_schema
from spark_jobs.sources.incarnations import Newer, placed

META_FIELDS = "partition=/_tm/partition, sequence_number=/_tm/sequence_number, enqueued_at=/_tm/enqueued_at"
"""The fields to read of documents whose writer keeps positions."""

_POSITIONS = ("hub", "partition", "sequence_number", "enqueued_at", "file")

_ARROW = arrow_schema(EVENT_KEYS)
_PARTITION_KEY = "x-opt-partition-key"
_META = "partition string, sequence_number bigint, enqueued_at double"


def identity_of(config: ConsumerConfig) -> Identity:
    if MappingOptions(config.hub, config.id_from).id_path is None:
        return Identity.POSITION
    return Identity.META if config.meta else Identity.BODY


def event_columns(config: ConsumerConfig) -> tuple[str, ...]:
    """Those of EVENTS that keys are made of, and that say which events are compared: the others need not be read."""
    if identity_of(config) is Identity.POSITION:
        return _POSITIONS
    # Of these only the partition key is wanted, which nothing but a transform looks at.
    system = ("system_properties",) if config.transform else ()
    return (*_POSITIONS, "offset", "body", "properties", *system)


@dataclass(frozen=True)
class EventKeys:
    """What a task makes of its events: CHUNKS of EVENT_KEYS of those that are looked at, by hub and time. Ids made of positions
    are left out, see `with_ids`.
    """

    config: ConsumerConfig
    paths: Sequence[str]
    """The container's partition key paths."""
    since: datetime | None
    until: datetime | None
    packing: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    newer: Newer = field(default_factory=dict)
    """Partitions of a hub that was created anew, and since when."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asked = (rows for batch in batches if (rows := batch.filter(self._asked(batch))).num_rows)
        own = (placed(batch, self.newer) for batch in asked)
        if identity_of(self.config) is Identity.POSITION:
            return self.packing(batch.select([name for name in _POSITIONS if name != "hub"]) for batch in own)
        return self.packing(_keyed(own, self.config, self.paths))

    def _asked(self, batch: pa.RecordBatch) -> pa.Array:
        asked = pc.equal(pc.utf8_lower(batch["hub"]), self.config.hub.lower())
        at = batch["enqueued_at"]
        if self.since is not None:
            asked = pc.and_(asked, pc.greater_equal(at, pa.scalar(self.since, at.type)))
        if self.until is not None:
            asked = pc.and_(asked, pc.less(at, pa.scalar(self.until, at.type)))
        return asked


def with_ids(events: DataFrame, config: ConsumerConfig) -> DataFrame:
    """JUDGED events with their `document_id`, also where it is made of the position."""
    if identity_of(config) is not Identity.POSITION:
        return events
    position = F.concat_ws("~", F.lit(config.hub), "partition", F.col("sequence_number").cast("string"))
    return events.withColumn("document_id", position)


@dataclass(frozen=True)
class PositionIds:
    """What a task makes of documents whose ids are made of positions: CHUNKS of those of this hub, by their `id`."""

    hub: str
    packing: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.packing(map(self._positions, batches))

    def _positions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        head = f"{self.hub}~"
        ids = batch["id"]
        # A fifth of the time that a pattern with groups takes.
        own = ids.filter(pc.match_substring_regex(ids, rf"^{re.escape(head)}.+~[0-9]{{1,18}}$"))
        parts = pc.split_pattern(pc.utf8_slice_codeunits(own, len(head)), "~", max_splits=1, reverse=True)
        partition, number = (pc.list_element(parts, place) for place in range(2))
        return pa.record_batch({"partition": partition, "sequence_number": number.cast(pa.int64())})


def document_keys(documents: DataFrame) -> DataFrame:
    """Documents, as the source "cosmos" gives them, as DOCUMENT_KEYS, where ids are not made of positions."""
    meta = F.from_json("fields", _META)
    return (
        documents.withColumn("meta", meta)
        .select(
            "id",
            "partition_key",
            "modified_at",
            F.col("meta.partition").alias("partition"),
            F.col("meta.sequence_number").alias("sequence_number"),
            F.timestamp_micros((F.col("meta.enqueued_at") * 1_000_000).cast("long")).alias("enqueued_at"),
        )
        .select(*DOCUMENT_KEYS.fieldNames())
    )


def _keyed(
    batches: Iterable[pa.RecordBatch], config: ConsumerConfig, paths: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    mapper = DocumentMapper(MappingOptions(config.hub, config.id_from, config.meta), paths)
    mapping = mapping_of(load_transform(config.transform)) if config.transform else None
    decoder = build_decoder(
        config.decoder, config.decode, DecoderContext({})
    )  # of those that ask no registry
    preparation = Preparation(mapper.prepare, decoder=decoder, mapping=mapping)
    for batch in batches:
        rows = [{**row, **key} for row in batch.to_pylist() for key in _keys(preparation, row)]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)


def _keys(preparation: Preparation, row: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Document id and partition key of each document that the event becomes, or why there is neither."""
    event = Event(
        partition=row["partition"],
        sequence_number=row["sequence_number"],
        offset=row["offset"] or "",
        enqueued_at=row["enqueued_at"].timestamp(),
        body=row["body"] or b"",
        partition_key=dict(row.get("system_properties") or ()).get(_PARTITION_KEY),
        properties=dict(row["properties"] or ()),
        unreadable=None if row["body"] is not None else "the event has no body of bytes",
    )
    return (_key(record) for record in preparation.records([event]) if record.dropped is None)


def _key(record: Record) -> dict[str, str]:
    from spark_jobs.sources.cosmos import canonical_key  # noqa: PLC0415 - half of what a task would load

    if record.rejection is not None:
        return {"rejection": record.rejection.reason}
    values = msgspec.json.decode(record.partition_key)
    key = canonical_key([UNSET if value == {} else value for value in values])
    return {"document_id": document_id(record), "partition_key": key}
