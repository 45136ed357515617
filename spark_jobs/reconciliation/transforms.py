"""What became of every event, which sequence numbers are missing, what is there twice. DataFrame -> DataFrame.

Frames are those of schemas.py. An event is (`partition`, `sequence_number`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.reconciliation.schemas import BY_HOUR, DUPLICATES, GAPS, JUDGED, Gap, Identity, Status

EVENT = ("partition", "sequence_number")
_ORDER = ("enqueued_at", "partition", "sequence_number")  # in which events of one id are written

BUCKET_BITS = 18
"""Of the count of sequence numbers that one task looks at together: a partition may have any number of them."""

_WIDE = 1 << 10
"""Buckets from which on a gap is told to all tasks instead of to those of its buckets: there cannot be many of these."""

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


def distinct_events(events: DataFrame) -> DataFrame:
    """EVENT_KEYS with every event once, and how often it was there as `copies`.

    `lives` counts the times at which events of this number were enqueued: more than one, and the hub was recreated.
    """
    others = [name for name in events.columns if name not in EVENT]
    return events.groupBy(*EVENT).agg(
        *(F.min(name).alias(name) for name in others),
        F.count(F.lit(1)).alias("copies"),
        F.count_distinct("enqueued_at").alias("lives"),
    )


def judged(
    events: DataFrame, documents: DataFrame, letters: DataFrame, runs: DataFrame, identity: Identity, due: Due
) -> DataFrame:
    """JUDGED: each of `distinct_events` with its status."""
    found = _with_letters(_with_documents(events, documents, identity), letters)
    settled = _with_checkpoints(found, runs)
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


def gaps(events: DataFrame, documents: DataFrame, letters: DataFrame, runs: DataFrame) -> DataFrame:
    """GAPS in the sequence numbers of `distinct_events`; `runs` are null-free SETTLED_RUNS, empty without checkpoints."""
    missing = _gaps_inside(events).unionByName(_gaps_before(events, runs), allowMissingColumns=True)
    known = documents.where("sequence_number IS NOT NULL").select(*EVENT)
    numbers = (
        known.unionByName(letters.select(*EVENT)).distinct().withColumn("bucket", _bucket("sequence_number"))
    )
    ends = missing.select(
        "partition", "first", "last", _bucket("first").alias("begin"), _bucket("last").alias("end")
    )
    is_wide = F.col("end") - F.col("begin") >= F.lit(_WIDE)
    narrow = ends.where(~is_wide).withColumn("bucket", F.explode(F.sequence("begin", "end")))
    inside = (
        (F.col("gap.partition") == F.col("known.partition"))
        & (F.col("known.sequence_number") >= F.col("gap.first"))
        & (F.col("known.sequence_number") <= F.col("gap.last"))
    )
    here = inside & (F.col("gap.bucket") == F.col("known.bucket"))
    found = (
        numbers.alias("known")
        .join(narrow.alias("gap"), on=here, how="inner")
        .select("gap.partition", "gap.first")
        .unionByName(
            numbers.alias("known")
            .join(F.broadcast(ends.where(is_wide)).alias("gap"), on=inside, how="inner")
            .select("gap.partition", "gap.first")
        )
    )
    counted = found.groupBy("partition", "first").agg(F.count(F.lit(1)).alias("settled"))
    joined = missing.join(counted, on=["partition", "first"], how="left").na.fill(0, ["settled"])
    return joined.withColumn("open", F.col("settled") < F.col("missing")).select(*GAPS.fieldNames())


def _with_documents(events: DataFrame, documents: DataFrame, identity: Identity) -> DataFrame:
    """Adds `documents` that are of the event, and the time and position of the one under its id, the `keeper`."""
    told = documents.where("partition IS NOT NULL AND sequence_number IS NOT NULL")
    if identity is Identity.POSITION:
        holders = told.groupBy(*EVENT).agg(F.count(F.lit(1)).alias("documents"))
        nothing = {name: F.lit(None).cast("long") for name in ("keeper_number", "keeper_at")}
        return events.join(holders, on=list(EVENT), how="left").withColumns(
            {**nothing, "keeper_partition": F.lit(None).cast("string")}
        )
    keepers = documents.select(
        F.col("id").alias("document_id"),
        "partition_key",
        F.col("partition").alias("keeper_partition"),
        F.col("sequence_number").alias("keeper_number"),
        F.unix_seconds("modified_at").alias("keeper_at"),
    )
    kept = events.join(keepers, on=["document_id", "partition_key"], how="left")
    if identity is Identity.BODY:
        lasts = events.where("document_id IS NOT NULL").groupBy("document_id", "partition_key")
        last = lasts.agg(F.max(F.struct(*_ORDER)).alias("last_of_id"))
        told = kept.join(last, on=["document_id", "partition_key"], how="left")
        return told.withColumn("documents", F.lit(0).cast("long"))
    return _with_holders(kept, told)


def _with_holders(events: DataFrame, told: DataFrame) -> DataFrame:
    """Adds how many documents have the event's position in `_tm`.

    `_tm` names no hub: the time tells events of the same number in another hub apart. Capture files have whole seconds.
    """
    same = (
        (F.col("event.partition") == F.col("told.partition"))
        & (F.col("event.sequence_number") == F.col("told.sequence_number"))
        & (F.abs(F.unix_millis("event.enqueued_at") - F.unix_millis("told.enqueued_at")) <= 1000)
    )
    pairs = events.select(*EVENT, "enqueued_at").alias("event").join(told.alias("told"), on=same, how="inner")
    holders = pairs.groupBy("event.partition", "event.sequence_number").agg(
        F.count(F.lit(1)).alias("documents")
    )
    return events.join(holders, on=list(EVENT), how="left")


def _with_letters(events: DataFrame, letters: DataFrame) -> DataFrame:
    counted = letters.groupBy(*EVENT).agg(F.count(F.lit(1)).alias("letters"))
    joined = events.join(counted, on=list(EVENT), how="left")
    return joined.withColumns(
        {name: F.coalesce(F.col(name), F.lit(0).cast("long")) for name in ("documents", "letters")}
    )


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


def _bucket(number: str) -> Column:
    return F.shiftright(number, BUCKET_BITS)


def _gaps_inside(events: DataFrame) -> DataFrame:
    """Bucket by bucket; at the edges of buckets, of which there are few, over the whole partition."""
    told = events.select(
        "partition", "sequence_number", "file", "enqueued_at", _bucket("sequence_number").alias("bucket")
    )
    event = F.struct("sequence_number", "file", "enqueued_at")
    ends = told.groupBy("partition", "bucket").agg(
        F.min_by(event, "sequence_number").alias("first_of"),
        F.max_by(event, "sequence_number").alias("last_of"),
    )
    order = Window.partitionBy("partition").orderBy("bucket")
    edges = ends.select(
        "partition", F.lag("last_of").over(order).alias("before"), F.col("first_of").alias("after")
    )
    within = Window.partitionBy("partition", "bucket").orderBy("sequence_number")
    steps = told.select("partition", F.lag(event).over(within).alias("before"), event.alias("after"))
    stepped = (
        steps.unionByName(edges)
        .select(
            "partition",
            (F.col("before.sequence_number") + 1).alias("first"),
            (F.col("after.sequence_number") - 1).alias("last"),
            F.col("before.file").alias("after_file"),
            F.col("after.file").alias("before_file"),
            F.col("before.enqueued_at").alias("enqueued_after"),
            F.col("after.enqueued_at").alias("enqueued_before"),
        )
        .where("first <= last")
    )
    edge = F.when(F.col("after_file").eqNullSafe(F.col("before_file")), Gap.WITHIN_FILE.value)
    return stepped.withColumns(
        {"missing": F.col("last") - F.col("first") + 1, "kind": edge.otherwise(Gap.BETWEEN_FILES.value)}
    )


def _gaps_before(events: DataFrame, runs: DataFrame) -> DataFrame:
    """From the low-water mark, the end of a partition's first run, to its first event."""
    marks = runs.groupBy("partition").agg(F.min_by("last", "first").alias("mark"))
    begins = events.groupBy("partition").agg(
        F.min("sequence_number").alias("begin"),
        F.min_by("file", "sequence_number").alias("before_file"),
        F.min("enqueued_at").alias("enqueued_before"),
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
