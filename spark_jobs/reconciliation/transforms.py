"""What became of every event, which sequence numbers are missing, what is there twice. DataFrame -> DataFrame.

Frames are those of schemas.py. An event is (`partition`, `sequence_number`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import and_
from typing import Any

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.reconciliation import buckets
from spark_jobs.reconciliation.letters import with_letters
from spark_jobs.reconciliation.schemas import (
    BY_HOUR,
    DUPLICATES,
    EVENT_KEYS,
    FURTHER,
    GAPS,
    JUDGED,
    Gap,
    Identity,
    Status,
)
from spark_jobs.schemas import arrow_schema, row_schema

EVENT = ("partition", "sequence_number")
_WORST = (
    *(Status.LOST, Status.STALE, Status.OVERDUE, Status.PENDING, Status.PARKED, Status.DEAD_LETTERED),
    *(Status.REMOVED, Status.SUPERSEDED, Status.DROPPED, Status.WRITTEN),
)
"""Of several documents of an event the first of these is what is said of the event."""
_ORDER = ("enqueued_at", "partition", "sequence_number")  # in which events of one id are written

BUCKET_BITS = 18
"""Of the count of sequence numbers that one task looks at together: a partition may have any number of them."""

_WIDE = 1 << 10
"""Buckets from which on a gap is sent to all tasks instead of to those of its buckets: there cannot be many of these."""

_TASKS = 200
"""In a shuffle, if the session has no number: Spark's own default."""

_OF_DOCUMENT = ("document_id", "partition_key", "ttl", "version", "record")
_PACKED = ("partition", "bucket", "rows")
_COUNTED = StructType(
    [*EVENT_KEYS, *row_schema("copies long, documents long, dead_letters long, parked long, checked flag")]
)
_INSIDE = StructType([field for field in GAPS if field.name != "open"])
_HOLES = [name for name in _INSIDE.fieldNames() if name != "settled"]

CLOCK_SKEW = timedelta(seconds=5)
"""Between the clocks of Event Hubs and Cosmos DB; a document's time has whole seconds besides."""


class Due(Struct, frozen=True):
    """When an event must be settled.

    With checkpoints: what they call settled, and what else is older than `grace`, if there is one. Without: what is
    older than `grace`, or everything.
    """

    now: datetime
    by_checkpoint: bool
    grace: timedelta | None = None


def packing() -> Callable[[Iterable[Any]], Iterator[Any]]:
    """What makes CHUNKS of batches of rows, in a task."""
    return partial(buckets.pack, bits=BUCKET_BITS)


def distinct_events(chunks: DataFrame) -> DataFrame:
    """BUCKETS of the CHUNKS of events: every event once, and how often it was there."""
    return _by_bucket(chunks).applyInArrow(buckets.merge, row_schema(buckets.BUCKETS))


def packed_positions(documents: DataFrame) -> DataFrame:
    """CHUNKS of the numbers in DOCUMENT_KEYS."""
    known = documents.where("partition IS NOT NULL AND sequence_number IS NOT NULL")
    return known.select(*EVENT, "enqueued_at").mapInArrow(packing(), row_schema(buckets.CHUNKS))


def positions(documents: DataFrame, dead_letters: DataFrame) -> DataFrame:
    """The CHUNKS of documents and those of DEAD_LETTERS, by `kind`, one of `buckets.KINDS`."""
    frames = [documents]
    for is_of_kind in (~F.col("parked"), F.col("parked")):
        kept = dead_letters.where(is_of_kind).select(*EVENT, "enqueued_at")
        frames.append(kept.mapInArrow(packing(), row_schema(buckets.CHUNKS)))
    named = (frame.withColumn("kind", F.lit(kind)) for kind, frame in zip(buckets.KINDS, frames, strict=True))
    return reduce(DataFrame.unionByName, named)


def judged(
    events: DataFrame,
    documents: DataFrame | None,
    known: DataFrame,
    runs: Iterable[tuple[str, int, int]],
    identity: Identity,
    due: Due,
    *,
    read_at: datetime | None = None,
    letters: DataFrame | None = None,
) -> DataFrame:
    """JUDGED: each of `distinct_events` with its status; `known` are the `positions` of documents and dead letters. Where ids are
    made of positions, these are all there is to know of `documents`. `runs` are what checkpoints call settled: partition,
    first and last sequence number of ranges that do not overlap. `read_at`: when the documents had been read, which may have a time to live; `letters` are given
    where an event may become several documents: DEAD_LETTERS.
    """
    checked: dict[str, list[tuple[int, int]]] = {}
    for partition, first, last in sorted(runs):
        checked.setdefault(partition, []).append((first, last))
    count = partial(
        buckets.count_settled,
        schema=arrow_schema(_COUNTED),
        timed=identity is Identity.META,
        checked=checked,
    )
    by_bucket = _by_bucket(events.select(*_PACKED)).cogroup(_by_bucket(known))
    settled = by_bucket.applyInArrow(count, _COUNTED)
    settled = settled.withColumn("writes", F.coalesce("writes", F.lit(1).cast("long")))
    if documents is None or identity is Identity.POSITION:
        kinds = {
            "keeper_number": "long",
            "keeper_at": "long",
            "keeper_partition": "string",
            "keeper_version": "string",
        }
        kept = settled.withColumns({name: F.lit(None).cast(kind) for name, kind in kinds.items()})
    else:
        kept = _with_keepers(
            settled if letters is None else _by_document(settled),
            documents,
            identity,
            last=read_at is not None,
        )
    is_over = _is_over(read_at + CLOCK_SKEW, identity) if read_at is not None else F.lit(False)
    kept = with_letters(kept, letters, identity)
    frame = kept.withColumn("status", _status(identity, due, is_over)).select(*JUDGED.fieldNames())
    return frame if letters is None else _worst(frame)


def duplicates(events: DataFrame) -> DataFrame:
    """DUPLICATES among JUDGED."""
    kind = F.when(_has_more(), "two documents").when(_is_both(), "document and dead letter")
    return events.withColumn("kind", kind).where("kind IS NOT NULL").select(*DUPLICATES.fieldNames())


def by_hour(events: DataFrame) -> DataFrame:
    """BY_HOUR of JUDGED, by the hour the events were enqueued in."""
    twice = _has_more() | _is_both()
    counted = events.groupBy("partition", F.date_trunc("hour", "enqueued_at").alias("hour")).agg(
        F.count(F.lit(1)).alias("events"),
        *(F.count_if(F.col("status") == status.value).alias(status.value) for status in Status),
        F.count_if(twice).alias("duplicates"),
    )
    return counted.select(*BY_HOUR.fieldNames())


def by_column(hours: DataFrame, first: datetime, width: timedelta) -> DataFrame:
    """BY_HOUR with `width` for an hour, from `first` on: as many rows as a page can show, however long the time."""
    seconds = F.unix_seconds("hour") - F.lit(round(first.timestamp()))
    step = F.lit(round(width.total_seconds()))
    begin = F.timestamp_seconds(F.unix_seconds("hour") - F.pmod(seconds, step))
    summed = hours.groupBy("partition", begin.alias("hour")).agg(
        *(F.sum(name).alias(name) for name in BY_HOUR.fieldNames()[2:])
    )
    return summed.select(*BY_HOUR.fieldNames())


def unsettled_ranges(runs: Iterable[tuple[str, int, int]]) -> dict[str, list[tuple[int, int | None]]]:
    """By partition, first and last of the numbers between the `runs` that checkpoints call settled, and from the last run on."""
    ranges: dict[str, list[tuple[int, int | None]]] = {}
    for partition, first, last in sorted(runs):
        of_partition = ranges.setdefault(partition, [])
        if of_partition:
            of_partition[-1] = (of_partition[-1][0], first - 1)
        of_partition.append((last + 1, None))
    return ranges


def holes(events: DataFrame, runs: Iterable[tuple[str, int, int]]) -> DataFrame:
    """Missing sequence numbers of `distinct_events`: GAPS, but for what is settled of them. `runs` are what checkpoints call
    settled, as for `judged`; none without checkpoints. Within buckets, which a task looks at by itself, and at their
    edges, of which there are few.
    """
    holed = events.where("last - first >= events").select("partition", "rows")
    inside = holed.mapInArrow(buckets.steps, row_schema(buckets.STEPS))
    order = Window.partitionBy("partition").orderBy("bucket")
    begin = F.lag("last").over(order)
    between = F.array(F.struct((begin + 1).alias("first"), F.lit(None).cast("long").alias("last")))
    edges = events.select(
        "partition",
        F.when(begin.isNull(), _unsettled(runs)).otherwise(between).alias("open"),
        (F.col("first") - 1).alias("end"),
        F.lag("last_file").over(order).alias("after_file"),
        F.col("first_file").alias("before_file"),
        F.lag("last_at").over(order).alias("enqueued_after"),
        F.col("first_at").alias("enqueued_before"),
        F.when(begin.isNull(), Gap.EXPIRED.value).alias("kind"),
    )
    bounds = {"first": F.col("open.first"), "last": F.least("open.last", "end")}
    edges = edges.withColumn("open", F.explode("open")).withColumns(bounds)
    edges = edges.where("first <= last").drop("open", "end")
    frame = inside.unionByName(edges, allowMissingColumns=True)
    same_file = F.col("after_file").eqNullSafe(F.col("before_file"))
    kind = F.when(same_file, Gap.WITHIN_FILE.value).otherwise(Gap.BETWEEN_FILES.value)
    missing = F.col("last") - F.col("first") + 1
    return frame.withColumns({"missing": missing, "kind": F.coalesce("kind", kind)})


def _unsettled(runs: Iterable[tuple[str, int, int]]) -> Column:
    """The row's own of `unsettled_ranges`; null where there is no checkpoint."""
    ranges = {
        partition: [{"first": first, "last": last} for first, last in spans]
        for partition, spans in unsettled_ranges(runs).items()
    }
    as_json = F.lit(msgspec.json.encode(ranges).decode())
    return F.from_json(as_json, "map<string, array<struct<first: bigint, last: bigint>>>")[F.col("partition")]


def gaps(missing: DataFrame, known: DataFrame, widest: int | None = None) -> DataFrame:
    """GAPS of `holes`, of which none has more than `widest` numbers; None: any may be in it."""
    spans = missing.select(*_HOLES, _bucket("first").alias("begin"), _bucket("last").alias("end"))
    is_wide = F.col("end") - F.col("begin") >= F.lit(_WIDE)
    end = F.when(is_wide, F.col("begin")).otherwise(F.col("end"))
    pieces = spans.withColumn("bucket", F.explode(F.sequence("begin", end)))
    if widest is None or widest > (_WIDE - 1) << BUCKET_BITS:
        here = (
            (F.col("gap.partition") == F.col("known.partition"))
            & (F.col("known.bucket") > F.col("gap.begin"))
            & (F.col("known.bucket") <= F.col("gap.end"))
        )
        there = known.select("partition", "bucket").distinct().alias("known")
        wide = there.join(F.broadcast(spans.where(is_wide)).alias("gap"), on=here, how="inner")
        pieces = pieces.unionByName(wide.select("gap.*", "known.bucket"))
    count = partial(buckets.count_inside, schema=arrow_schema(_INSIDE))
    by_bucket = _by_bucket(known.select(*_PACKED)).cogroup(_by_bucket(pieces.select("bucket", *_HOLES)))
    counted = by_bucket.applyInArrow(count, _INSIDE).groupBy(*_HOLES).agg(F.sum("settled").alias("settled"))
    return counted.withColumn("open", F.col("settled") < F.col("missing")).select(*GAPS.fieldNames())


def _are_there() -> Column:
    """As many documents are of the event as it becomes."""
    return F.col("documents") >= F.greatest("writes", F.lit(1))


def _has_more() -> Column:
    """More documents are of the event than it becomes."""
    return F.col("documents") > F.greatest("writes", F.lit(1))


def _is_both() -> Column:
    """All documents of the event are there, and a dead letter."""
    return _are_there() & (F.col("dead_letters") > 0)


def _by_document(events: DataFrame) -> DataFrame:
    """A row for each document that an event becomes; one for an event that becomes none."""
    first = F.array(F.struct(*_OF_DOCUMENT).cast(FURTHER[len("array<") : -1]))
    further = F.coalesce(F.from_json("further", FURTHER), F.array().cast(FURTHER))
    written = events.withColumn("written", F.explode(F.concat(first, further)))
    return written.withColumns({name: F.col(f"written.{name}") for name in _OF_DOCUMENT})


def _worst(documents: DataFrame) -> DataFrame:
    """Of the documents of each event the one that is worst off: JUDGED."""
    place = F.array_position(F.array(*(F.lit(status.value) for status in _WORST)), F.col("status"))
    row = F.struct(place, *JUDGED.fieldNames())
    return documents.groupBy(*EVENT).agg(F.min(row).alias("row")).select("row.*").select(*JUDGED.fieldNames())


def _with_keepers(
    events: DataFrame, documents: DataFrame, identity: Identity, *, last: bool = False
) -> DataFrame:
    """Adds the time and position of the document under the event's id, the `keeper`, and with `last` the last event of the id."""
    keepers = documents.select(
        F.col("id").alias("document_id"),
        "partition_key",
        F.col("partition").alias("keeper_partition"),
        F.col("sequence_number").alias("keeper_number"),
        F.unix_seconds("modified_at").alias("keeper_at"),
        F.col("version").alias("keeper_version"),
    )
    kept = events.join(keepers, on=["document_id", "partition_key"], how="left")
    if identity is Identity.META and not last:
        return kept
    lasts = events.where("document_id IS NOT NULL").groupBy("document_id", "partition_key")
    last_of_id = lasts.agg(F.max(F.struct(*_ORDER, "ttl")).alias("last_of_id"))
    frame = kept.join(last_of_id, on=["document_id", "partition_key"], how="left")
    if identity is Identity.META:
        return frame
    return frame.withColumn("documents", F.lit(0).cast("long"))  # no document names its event


def _is_over(now: datetime, identity: Identity) -> Column:
    """The time to live of the document is over, or that of what the last event of its id wrote."""

    def over(at: str, ttl: str) -> Column:
        return F.coalesce(F.unix_seconds(at) + F.col(ttl) <= F.lit(int(now.timestamp())), F.lit(False))

    is_expired = over("enqueued_at", "ttl")
    return (
        is_expired
        if identity is Identity.POSITION
        else is_expired | over("last_of_id.enqueued_at", "last_of_id.ttl")
    )


def _status(identity: Identity, due: Due, is_over: Column) -> Column:
    old = F.lit(True) if due.grace is None else F.col("enqueued_at") < F.lit(due.now - due.grace)
    unchecked = ~F.col("checked") if due.by_checkpoint else ~old
    has_keeper = F.col("keeper_at").isNotNull()
    status = F.when(_are_there() | _kept(identity), Status.WRITTEN.value)
    status = status.when(F.col("lettered"), Status.DEAD_LETTERED.value)
    status = status.when(F.col("is_parked"), Status.PARKED.value)
    status = status.when(has_keeper & _later(), Status.SUPERSEDED.value)
    if due.by_checkpoint and due.grace is not None:
        status = status.when(unchecked & old, Status.OVERDUE.value)
    status = status.when(unchecked, Status.PENDING.value)
    status = status.when(has_keeper, Status.STALE.value).when(is_over, Status.REMOVED.value)
    return status.when(F.col("writes") == 0, Status.DROPPED.value).otherwise(Status.LOST.value)


def _kept(identity: Identity) -> Column:
    """The document under the event's id is the event's, though no count of positions says so."""
    is_of_event = (F.col("keeper_partition") == F.col("partition")) & (
        F.col("keeper_number") == F.col("sequence_number")
    )
    if identity is not Identity.BODY:
        return F.coalesce(is_of_event, F.lit(False))
    # Of all events with this id the last: the document must be its.
    # Name by name: Spark 3.5 compares no structs whose fields have other names.
    last = reduce(and_, (F.col(name) == F.col(f"last_of_id.{name}") for name in _ORDER))
    return (
        F.col("keeper_at").isNotNull() & _written_since() & last & ~(F.col("lettered") | F.col("is_parked"))
    )


def _later() -> Column:
    """The keeper was written after the event: by the version that both have, by position in the event's own partition, else by time."""
    same = F.col("keeper_partition") == F.col("partition")
    numbers = [F.col(name).cast("double") for name in ("keeper_version", "version")]
    is_first = F.coalesce(numbers[0] >= numbers[1], F.col("keeper_version") >= F.col("version"))
    return (
        F.when(is_first.isNotNull(), is_first)
        .when(same, F.col("keeper_number") > F.col("sequence_number"))
        .otherwise(_written_since())
    )


def _written_since() -> Column:
    skew = int(CLOCK_SKEW.total_seconds())
    return F.col("keeper_at") + F.lit(skew) >= F.unix_seconds("enqueued_at")


def _by_bucket(frame: DataFrame) -> GroupedData:
    """Over as many tasks as Spark has in a shuffle: it would see how few bytes a bucket is, and give them all to one."""
    try:
        tasks = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or _TASKS)
    except ValueError:  # Databricks has "auto"
        tasks = _TASKS
    return frame.repartition(tasks, "partition", "bucket").groupBy("partition", "bucket")


def _bucket(number: str) -> Column:
    return F.shiftright(number, BUCKET_BITS)
