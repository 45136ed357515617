"""Which document an event becomes: the consumer's own mapping, a batch at a time.

An id made of the event's position is built from columns. An id from the body takes the body's decoding and, where the
consumer has one, the user's transform: the same code that wrote the documents, or the answer would be another one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from msgspec import UNSET
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from consumer.core.parked import name_of
from consumer.definition.model import HubDefinition
from consumer.formats import DecoderName, JsonOptions
from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.mapping.operations import WriteOptions, write_options
from consumer.mapping.preparing import Preparation
from consumer.model import Event, Operation, Record
from consumer.ports import Decoder
from consumer.running.assembly import Parts
from spark_jobs.platform.consumer_hub import cosmos_options
from spark_jobs.platform.user_code import find_own_modules
from spark_jobs.reconciliation.schemas import DOCUMENT_KEYS, EVENT_KEYS, Identity
from spark_jobs.schemas import arrow_schema
from spark_jobs.sources.incarnations import Newer, placed
from tidemark.analysis.errors import InputError, job_errors

META_FIELDS = "partition=/_tm/partition, sequence_number=/_tm/sequence_number, enqueued_at=/_tm/enqueued_at, n=/_tv/n, at=/_tv/at, of=/_tv/of, v=/_tv/v"
"""The fields to read of documents whose writer keeps positions, for people or for its version guard."""

WITH_TOMBSTONES = (
    "a reconciliation needs COSMOS_GUARD, whose tombstones (COSMOS_TOMBSTONE) say what was deleted"
)

IGNORED = (
    "COSMOS_IF_MISSING (if_missing of a file's sink) is ignore: of an event without a document nothing is left, and it would be"
    " reported as lost"
)

_POSITIONS = ("hub", "partition", "sequence_number", "enqueued_at", "file")

_REGISTRY_WITHIN = 60.0
"""Seconds for a schema registry to answer. Chosen: Spark tries the task again after that."""
_ARROW = arrow_schema(EVENT_KEYS)
_PARTITION_KEY = "x-opt-partition-key"
_META = (
    "partition string, sequence_number bigint, enqueued_at double, n bigint, at double, of string, v string"
)


def identity_of(hub: HubDefinition) -> Identity:
    options = cosmos_options(hub)
    # A route of the file may give its documents other ids than its sink does.
    if MappingOptions(hub.config.hub, options.id).id_path is None and hub.mapper is None:
        return Identity.POSITION
    return Identity.META if options.meta or options.guard != "none" else Identity.BODY


def may_be_several(hub: HubDefinition) -> bool:
    """Whether an event may become several documents, or none."""
    config = hub.config
    is_array = isinstance(config.decode, JsonOptions) and config.decode.arrays
    is_mapped = bool(config.transform) or hub.mapper is not None
    return is_mapped or is_array or config.decoder in {DecoderName.CSV, DecoderName.AVRO_FILE}


def _is_of_columns(hub: HubDefinition, default_ttl: int | None) -> bool:
    """Whether the events' positions say all: no body has to be read."""
    return identity_of(hub) is Identity.POSITION and not may_be_several(hub) and default_ttl is None


def event_columns(hub: HubDefinition, default_ttl: int | None = None) -> tuple[str, ...]:
    """Those of EVENTS that keys are made of, and that say which events are compared: the others need not be read."""
    if _is_of_columns(hub, default_ttl):
        return _POSITIONS
    # Of these only the partition key is wanted, which nothing but a transform, a step or a route looks at.
    system = ("system_properties",) if hub.config.transform or hub.mapper is not None else ()
    return (*_POSITIONS, "offset", "body", "properties", *system)


@dataclass(frozen=True)
class EventKeys:
    """What a task makes of its events: CHUNKS of EVENT_KEYS of those that are looked at, by hub and time. Ids made of positions
    are left out, see `with_ids`.
    """

    hub: HubDefinition = field(repr=False)
    """With the settings of a task only: the connection of the schema registry, where the bodies need one."""
    paths: Sequence[str]
    """The container's partition key paths."""
    since: datetime | None
    until: datetime | None
    packing: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    newer: Newer = field(default_factory=dict)
    """Partitions of a hub that was created anew, and since when."""
    default_ttl: int | None = None
    """The container's, which is None where no document has a time to live."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asked = (rows for batch in batches if (rows := batch.filter(self._asked(batch))).num_rows)
        placed_batches = (placed(batch, self.newer) for batch in asked)
        if _is_of_columns(self.hub, self.default_ttl):
            return self.packing(
                batch.select([name for name in _POSITIONS if name != "hub"]) for batch in placed_batches
            )
        return self.packing(_keyed(placed_batches, self.hub, self.paths, self.default_ttl))

    def _asked(self, batch: pa.RecordBatch) -> pa.Array:
        asked = pc.equal(pc.utf8_lower(batch["hub"]), self.hub.config.hub.lower())
        at = batch["enqueued_at"]
        if self.since is not None:
            asked = pc.and_(asked, pc.greater_equal(at, pa.scalar(self.since, at.type)))
        if self.until is not None:
            asked = pc.and_(asked, pc.less(at, pa.scalar(self.until, at.type)))
        return asked


def with_ids(events: DataFrame, hub: HubDefinition) -> DataFrame:
    """JUDGED events with their `document_id`, also where it is made of the position."""
    if identity_of(hub) is not Identity.POSITION:
        return events
    position = F.concat_ws("~", F.lit(hub.config.hub), "partition", F.col("sequence_number").cast("string"))
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
        # A fifth of the time that a pattern with groups takes. The last number is that of a write after the event's first.
        of_hub = ids.filter(
            pc.match_substring_regex(ids, rf"^{re.escape(head)}[^~]+~[0-9]{{1,18}}(~[0-9]+)?$")
        )
        parts = pc.split_pattern(pc.utf8_slice_codeunits(of_hub, len(head)), "~")
        partition, number = (pc.list_element(parts, place) for place in range(2))
        return pa.record_batch({"partition": partition, "sequence_number": number.cast(pa.int64())})


def document_keys(documents: DataFrame, hub: str = "") -> DataFrame:
    """Documents, as the source "cosmos" gives them, as DOCUMENT_KEYS, where ids are not made of positions. The version guard's stamp
    says whose a document is, also of a tombstone; its events are those of `hub`, namespace/hub.
    """
    is_stamped = F.col("meta.of").isNotNull()
    is_own = F.substring_index("meta.of", "/", 2) == F.lit(hub)
    stamped = {
        "partition": F.substring_index("meta.of", "/", -1),
        "sequence_number": F.col("meta.n"),
        "enqueued_at": F.col("meta.at"),
    }
    columns = {
        name: F.when(is_stamped & is_own, value).when(~is_stamped, F.col(f"meta.{name}"))
        for name, value in stamped.items()
    }
    columns["enqueued_at"] = F.timestamp_micros((columns["enqueued_at"] * 1_000_000).cast("long"))
    columns["version"] = F.col("meta.v")
    keyed = documents.withColumn("meta", F.from_json("fields", _META)).withColumns(columns)
    return keyed.select(*DOCUMENT_KEYS.fieldNames())


def _keyed(
    batches: Iterable[pa.RecordBatch],
    hub: HubDefinition,
    paths: Sequence[str],
    default_ttl: int | None,
) -> Iterator[pa.RecordBatch]:
    options = cosmos_options(hub)
    writing = write_options(options)
    mapping = MappingOptions(hub.config.hub, options.id, options.meta, writing)
    mapper = DocumentMapper(mapping, paths, has_ttl=default_ttl is not None)
    find_own_modules(hub.settings)
    preparation = Parts(hub.config, hub.settings, hub).preparation(mapper)
    decoder = preparation.decoder
    with asyncio.Runner() as runner:  # one loop for the task: a credential keeps its connection
        for batch in batches:
            rows = batch.to_pylist()
            events = [_event(row) for row in rows]
            if decoder is not None and (schemas := decoder.missing(events)):
                with job_errors():
                    runner.run(_load(decoder, schemas))
            keyed = [
                {**row, **_key_of(preparation, event, default_ttl, writing)}
                for row, event in zip(rows, events, strict=True)
            ]
            yield pa.RecordBatch.from_pylist(keyed, schema=_ARROW)


async def _load(decoder: Decoder, schemas: Collection[str]) -> None:
    await decoder.load(schemas, deadline=asyncio.get_running_loop().time() + _REGISTRY_WITHIN)


def _event(row: dict[str, Any]) -> Event:
    return Event(
        partition=row["partition"],
        sequence_number=row["sequence_number"],
        offset=row["offset"] or "",
        enqueued_at=row["enqueued_at"].timestamp(),
        body=row["body"] or b"",
        partition_key=dict(row.get("system_properties") or ()).get(_PARTITION_KEY),
        properties=dict(row["properties"] or ()),
        unreadable=None if row["body"] is not None else "the event has no body of bytes",
    )


def _key_of(
    preparation: Preparation, event: Event, default_ttl: int | None, writing: WriteOptions
) -> dict[str, Any]:
    """The documents that the event becomes by EVENT_KEYS, or why there is none. Raises InputError."""
    records = (record for record in preparation.records([event]) if record.dropped is None)
    keys = [_key(record, default_ttl, writing) for record in records]
    if len(keys) == 1:
        return keys[0]
    further = msgspec.json.encode(keys[1:]).decode() if keys else None
    return {**(keys[0] if keys else {}), "writes": len(keys), "further": further}


def _key(record: Record, default_ttl: int | None, writing: WriteOptions) -> dict[str, Any]:
    """Document id, partition key, time to live and version, or the reason of its rejection. Raises InputError for what leaves no trace."""
    from spark_jobs.sources.cosmos import canonical_key  # noqa: PLC0415 - half of what a task would load

    named = {"record": name_of(record), "of": record.of}
    if record.rejection is not None:
        return {"rejection": record.rejection.reason, **named}
    place = f"event {record.event.sequence_number} of partition {record.event.partition}"
    if writing.leaves_nothing({record.operation}):
        raise InputError(f"{place} asks for {record.operation}, and {IGNORED}")
    if record.operation is Operation.DELETE and not record.payload:
        raise InputError(
            f"{place} deletes a document, and leaves nothing that could be compared: {WITH_TOMBSTONES}"
        )
    values = msgspec.json.decode(record.partition_key)
    key = canonical_key([UNSET if value == {} else value for value in values])
    document, change = msgspec.json.decode(record.payload, type=_Document), record.change
    ttl = default_ttl if document.ttl is None else document.ttl
    version = change.stamp.v if change is not None and change.stamp is not None else None
    return {
        "document_id": document.id if change is None else change.id,
        "partition_key": key,
        "ttl": ttl if default_ttl is not None and isinstance(ttl, int) and ttl > 0 else None,
        "version": None if version is None else str(version),
        **named,
    }


class _Document(msgspec.Struct):
    """What is read of a payload. A patch has no id."""

    id: str = ""
    ttl: Any = None
