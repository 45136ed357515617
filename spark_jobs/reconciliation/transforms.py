"""What became of every event, which sequence numbers are missing, what is there twice. DataFrame -> DataFrame.

Frames are those of schemas.py. An event is (`partition`, `sequence_number`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from msgspec import Struct
from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

from spark_jobs.reconciliation import buckets
from spark_jobs.reconciliation.schemas import (
    BY_HOUR,
    DUPLICATES,
    ENDS,
    EVENT_KEYS,
    GAPS,
    JUDGED,
    Gap,
    Identity,
    Status,
)
from spark_jobs.schemas import arrow_schema, row_schema

EVENT = ("partition", "sequence_number")
_ORDER = ("enqueued_at", "partition", "sequence_number")  # in which events of one id are written

BUCKET_BITS = 18
"""Of the count of sequence numbers that one task looks at together: a partition may have any number of them."""

_WIDE = 1 << 10
"""Buckets from which on a gap is told to all tasks instead of to those of its buckets: there cannot be many of these."""

_TASKS = 200
"""In a shuffle, where the session tells no number: Spark's own default."""

_PACKED = ("partition", "bucket", "rows")
_COUNTED = StructType([*EVENT_KEYS, *row_schema("copies long, documents long, letters long")])
_INSIDE = row_schema("partition text, first long, settled long")

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


def ends(events: DataFrame) -> DataFrame:
    """ENDS of BUCKETS."""
    twice = F.min(F.when(F.col("twice").isNotNull(), F.struct("twice", "twice_at")))
    found = events.groupBy("partition").agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.min("earliest").alias("earliest"),
        F.max("latest").alias("latest"),
        F.sum("copied").alias("copied"),
        twice.alias("again"),
    )
    return found.select("*", "again.*").select(*ENDS.fieldNames())


def positions(documents: DataFrame, letters: DataFrame) -> DataFrame:
    """CHUNKS of the numbers that DOCUMENT_KEYS and LETTERS tell, by `kind`: documents or letters."""
    told = documents.where("partition IS NOT NULL AND sequence_number IS NOT NULL")
    sides = {"documents": told.select(*EVENT, "enqueued_at"), "letters": letters.select(*EVENT)}
    packed, other = (
        side.mapInArrow(packing(), row_schema(buckets.CHUNKS)).withColumn("kind", F.lit(kind))
        for kind, side in sides.items()
    )
    return packed.unionByName(other)


def judged(
    events: DataFrame,
    documents: DataFrame | None,
    known: DataFrame,
    runs: DataFrame,
    identity: Identity,
    due: Due,
) -> DataFrame:
    """JUDGED: each of `distinct_events` with its status; `known` are the `positions` of documents and letters. Where ids are
    made of positions, these are all there is to know of `documents`.
    """
    count = partial(buckets.count_settled, schema=arrow_schema(_COUNTED), timed=identity is Identity.META)
    counted = _by_bucket(events.select(*_PACKED)).cogroup(_by_bucket(known)).applyInArrow(count, _COUNTED)
    settled = _with_checkpoints(_with_keepers(counted, documents, identity), runs)
    status = _status(identity, due)
    return settled.withColumn("status", status).select(*JUDGED.fieldNames())


def duplicates(events: DataFrame) -> DataFrame:
    """DUPLICATES among JUDGED."""
    kind = F.when(F.col("documents") > 1, "two documents").when(
        (F.col("documents") > 0) & (F.col("letters") > 0), "document and dead letter"
    )
    return events.withColumn("kind", kind).where("kind IS NOT NULL").select(*DUPLICATES.fieldNames())


def by_hour(events: DataFrame) -> DataFrame:
    """BY_HOUR of JUDGED, by the hour the events were enqueued in."""
    twice = (F.col("documents") > 1) | ((F.col("documents") > 0) & (F.col("letters") > 0))
    counted = events.groupBy("partition", F.date_trunc("hour", "enqueued_at").alias("hour")).agg(
        F.count(F.lit(1)).alias("events"),
        *(F.count_if(F.col("status") == status.value).alias(status.value) for status in Status),
        F.count_if(twice).alias("duplicates"),
    )
    return counted.select(*BY_HOUR.fieldNames())


def in_columns(hours: DataFrame, first: datetime, width: timedelta) -> DataFrame:
    """BY_HOUR with `width` for an hour, from `first` on: as many rows as a page can show, however long the time."""
    seconds = F.unix_seconds("hour") - F.lit(round(first.timestamp()))
    step = F.lit(round(width.total_seconds()))
    begin = F.timestamp_seconds(F.unix_seconds("hour") - F.pmod(seconds, step))
    summed = hours.groupBy("partition", begin.alias("hour")).agg(
        *(F.sum(name).alias(name) for name in BY_HOUR.fieldNames()[2:])
    )
    return summed.select(*BY_HOUR.fieldNames())


def holes(events: DataFrame, runs: DataFrame) -> DataFrame:
    """Missing sequence numbers of `distinct_events`: GAPS, but for what is settled of them. `runs` are null-free SETTLED_RUNS,
    empty without checkpoints.
    """
    return _gaps_inside(events).unionByName(_gaps_before(events, runs), allowMissingColumns=True)


def gaps(missing: DataFrame, known: DataFrame) -> DataFrame:
    """GAPS of `holes`, which are used several times."""
    spans = missing.select(
        "partition", "first", "last", _bucket("first").alias("begin"), _bucket("last").alias("end")
    )
    is_wide = F.col("end") - F.col("begin") >= F.lit(_WIDE)
    narrow = spans.where(~is_wide).withColumn("bucket", F.explode(F.sequence("begin", "end")))
    here = (F.col("gap.partition") == F.col("known.partition")) & F.col("known.bucket").between(
        F.col("gap.begin"), F.col("gap.end")
    )
    wide = known.select("partition", "bucket").distinct().alias("known")
    wide = wide.join(F.broadcast(spans.where(is_wide)).alias("gap"), on=here, how="inner")
    pieces = narrow.unionByName(wide.select("gap.*", "known.bucket"))
    pieces = pieces.select("partition", "bucket", "first", "last")
    count = partial(buckets.count_inside, schema=arrow_schema(_INSIDE))
    found = _by_bucket(known.select(*_PACKED)).cogroup(_by_bucket(pieces)).applyInArrow(count, _INSIDE)
    counted = found.groupBy("partition", "first").agg(F.sum("settled").alias("settled"))
    joined = missing.join(counted, on=["partition", "first"], how="left").na.fill(0, ["settled"])
    return joined.withColumn("open", F.col("settled") < F.col("missing")).select(*GAPS.fieldNames())


def _with_keepers(events: DataFrame, documents: DataFrame | None, identity: Identity) -> DataFrame:
    """Adds the time and position of the document under the event's id, the `keeper`."""
    if documents is None or identity is Identity.POSITION:
        nothing = {name: F.lit(None).cast("long") for name in ("keeper_number", "keeper_at")}
        return events.withColumns({**nothing, "keeper_partition": F.lit(None).cast("string")})
    keepers = documents.select(
        F.col("id").alias("document_id"),
        "partition_key",
        F.col("partition").alias("keeper_partition"),
        F.col("sequence_number").alias("keeper_number"),
        F.unix_seconds("modified_at").alias("keeper_at"),
    )
    kept = events.join(keepers, on=["document_id", "partition_key"], how="left")
    if identity is Identity.META:
        return kept
    lasts = events.where("document_id IS NOT NULL").groupBy("document_id", "partition_key")
    last = lasts.agg(F.max(F.struct(*_ORDER)).alias("last_of_id"))
    told = kept.join(last, on=["document_id", "partition_key"], how="left")
    return told.withColumn("documents", F.lit(0).cast("long"))  # no document tells whose it is


def _with_checkpoints(events: DataFrame, runs: DataFrame) -> DataFrame:
    """Adds `checked`: a checkpoint calls it settled. Runs of a partition do not overlap, so no event is doubled."""
    within = (
        (F.col("event.partition") == F.col("run.partition"))
        & (F.col("event.sequence_number") >= F.col("run.first"))
        & (F.col("event.sequence_number") <= F.col("run.last"))
    )
    joined = events.alias("event").join(F.broadcast(runs).alias("run"), on=within, how="left")
    return joined.select("event.*", F.col("run.first").isNotNull().alias("checked"))


def _status(identity: Identity, due: Due) -> Column:
    old = F.lit(True) if due.grace is None else F.col("enqueued_at") < F.lit(due.now - due.grace)  # noqa: FBT003 - a literal
    unchecked = ~F.col("checked") if due.by_checkpoint else ~old
    has_keeper = F.col("keeper_at").isNotNull()
    status = F.when((F.col("documents") > 0) | _kept(identity), Status.WRITTEN.value)
    status = status.when(F.col("letters") > 0, Status.DEAD_LETTERED.value)
    status = status.when(has_keeper & _later(), Status.SUPERSEDED.value)
    if due.by_checkpoint and due.grace is not None:
        status = status.when(unchecked & old, Status.OVERDUE.value)
    status = status.when(unchecked, Status.PENDING.value)
    return status.when(has_keeper, Status.STALE.value).otherwise(Status.LOST.value)


def _kept(identity: Identity) -> Column:
    """The document under the event's id is the event's, though no count of positions says so."""
    own = (F.col("keeper_partition") == F.col("partition")) & (
        F.col("keeper_number") == F.col("sequence_number")
    )
    if identity is not Identity.BODY:
        return F.coalesce(own, F.lit(False))  # noqa: FBT003 - a literal
    # Of all events with this id the last: the document must be its.
    last = F.struct(*_ORDER) == F.col("last_of_id")
    return F.col("keeper_at").isNotNull() & _written_since() & last & (F.col("letters") == 0)


def _later() -> Column:
    """The keeper was written after the event: by position in the event's own partition, else by time."""
    same = F.col("keeper_partition") == F.col("partition")
    return F.when(same, F.col("keeper_number") > F.col("sequence_number")).otherwise(_written_since())


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


def _gaps_inside(events: DataFrame) -> DataFrame:
    """Bucket by bucket; at the edges of buckets, of which there are few, over the whole partition."""
    order = Window.partitionBy("partition").orderBy("bucket")
    edges = events.select(
        "partition",
        (F.lag("last").over(order) + 1).alias("first"),
        (F.col("first") - 1).alias("last"),
        F.lag("last_file").over(order).alias("after_file"),
        F.col("first_file").alias("before_file"),
        F.lag("last_at").over(order).alias("enqueued_after"),
        F.col("first_at").alias("enqueued_before"),
    ).where("first <= last")
    holed = events.where("last - first >= events").select("partition", "rows")
    inside = holed.mapInArrow(buckets.steps, row_schema(buckets.STEPS))
    stepped = inside.unionByName(edges)
    edge = F.when(F.col("after_file").eqNullSafe(F.col("before_file")), Gap.WITHIN_FILE.value)
    return stepped.withColumns(
        {"missing": F.col("last") - F.col("first") + 1, "kind": edge.otherwise(Gap.BETWEEN_FILES.value)}
    )


def _gaps_before(events: DataFrame, runs: DataFrame) -> DataFrame:
    """From the low-water mark, the end of a partition's first run, to its first event."""
    marks = runs.groupBy("partition").agg(F.min_by("last", "first").alias("mark"))
    begins = events.groupBy("partition").agg(
        F.min("first").alias("begin"),
        F.min_by("first_file", "first").alias("before_file"),
        F.min("earliest").alias("enqueued_before"),
    )
    joined = begins.join(F.broadcast(marks), on="partition", how="inner").where("mark + 1 < begin")
    return joined.select(
        "partition",
        (F.col("mark") + 1).alias("first"),
        (F.col("begin") - 1).alias("last"),
        "before_file",
        "enqueued_before",
        (F.col("begin") - F.col("mark") - 1).alias("missing"),
        F.lit(Gap.EXPIRED.value).alias("kind"),
    )
