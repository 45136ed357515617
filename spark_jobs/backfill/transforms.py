"""Which captured events are replayed, and how they come to the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from msgspec import Struct
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from spark_jobs.platform.rows import between
from spark_jobs.schemas import row_schema
from spark_jobs.sources.incarnations import Newer, with_places

POSITION = ("hub", "partition", "sequence_number")

PLAN = row_schema(
    """
    partition text, events long, first_sequence_number long, last_sequence_number long,
    first_enqueued_at time, last_enqueued_at time, digest digits
    """,
    digits=DecimalType(38, 0),
)
"""One row per partition. `events` counts copies of an event, too; `digest` differs for different sets of positions."""

REPLAYED = row_schema("""
    partition text, sequence_number long, offset text, enqueued_us long, partition_key text,
    body bytes, properties texts
""")
"""What a task gets of an event. `enqueued_us` is microseconds since 1970."""

PARTITION_KEY = "x-opt-partition-key"


class Selection(Struct, frozen=True):
    """Which of the captured events: those that all of these select. What is unset selects everything."""

    since: datetime | None = None
    until: datetime | None = None
    partitions: tuple[str, ...] = ()
    only_missing: str | None = None
    """Path of a table: `<output>/unsettled` of a reconciliation, which means its last finished run, or a Parquet or Delta
    table with the columns partition and sequence_number; where there is a column hub, it counts.
    """
    capture_lag: float = 3600.0
    """Seconds. With a bound of time: how much later than its events a capture file may be named."""

    @property
    def is_bounded(self) -> bool:
        """Whether events are left out by their time or partition."""
        return bool(self.since or self.until or self.partitions)


EVERYTHING = Selection()


def of_hub(
    events: DataFrame, hub: str, selection: Selection = EVERYTHING, newer: Newer | None = None
) -> DataFrame:
    """EVENTS of a hub (its name in any case, as the service has it), those selected by time and partition. Of `newer` hubs of
    that name the partitions are those of keys.
    """
    of_this_hub = events.where(F.lower("hub") == hub.lower())
    frame = between(of_this_hub, "enqueued_at", selection.since, selection.until)
    if selection.partitions:
        frame = frame.where(F.col("partition").isin(list(selection.partitions)))
    return with_places(frame, newer or {}).select(*events.columns)


def only_missing(events: DataFrame, missing: DataFrame) -> DataFrame:
    """EVENTS at the positions of `missing` (hub, partition, sequence_number)."""
    wanted = missing.select(F.lower("hub").alias("_hub"), "partition", "sequence_number")
    return (
        events.withColumn("_hub", F.lower("hub"))
        .join(wanted, on=["_hub", "partition", "sequence_number"], how="left_semi")
        .select(*events.columns)
    )


def plan(events: DataFrame) -> DataFrame:
    """EVENTS of one hub -> PLAN."""
    position = F.xxhash64("partition", "sequence_number").cast(DecimalType(20, 0))
    return (
        events.groupBy("partition")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.min("sequence_number").alias("first_sequence_number"),
            F.max("sequence_number").alias("last_sequence_number"),
            F.min("enqueued_at").alias("first_enqueued_at"),
            F.max("enqueued_at").alias("last_enqueued_at"),
            F.sum(position).cast(DecimalType(38, 0)).alias("digest"),
        )
        .select(*PLAN.fieldNames())
    )


def hours(events: DataFrame) -> DataFrame:
    """EVENTS of one hub -> by partition and hour: the lowest and the highest sequence number, in order."""
    return (
        events.groupBy("partition", F.date_trunc("hour", "enqueued_at").alias("hour"))
        .agg(F.min("sequence_number").alias("lowest"), F.max("sequence_number").alias("highest"))
        .sort("partition", "hour")
    )


def begins_again(rows: Iterable[Row]) -> Row | None:
    """Of `hours`, the first one with numbers that its partition had passed an hour and more before: they began anew, so the
    events are of two hubs. Neighbouring hours are not compared, since the clocks of a service may step back a little.
    """
    for _, group in groupby(rows, key=lambda row: row["partition"]):
        ordered, before, highest = list(group), 0, -1
        for row in ordered:
            while ordered[before]["hour"] <= row["hour"] - timedelta(hours=2):
                highest = max(highest, ordered[before]["highest"])
                before += 1
            if row["lowest"] <= highest:
                return row
    return None


def in_order(events: DataFrame, partitions: Sequence[str]) -> DataFrame:
    """EVENTS of one hub -> REPLAYED: each of the `partitions` in a task of its own, in order of sequence numbers."""
    places = F.create_map(*[F.lit(item) for pair in enumerate(partitions) for item in reversed(pair)])
    return (
        events.withColumn("enqueued_us", F.unix_micros("enqueued_at"))
        .withColumn("partition_key", F.col("system_properties")[PARTITION_KEY])
        .select(*REPLAYED.fieldNames())
        .repartitionById(len(partitions), places[F.col("partition")])
        .sortWithinPartitions("sequence_number")
    )
