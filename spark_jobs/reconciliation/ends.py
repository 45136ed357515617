"""The first and the last event of each partition, and whether all between them are of one hub.

A hub that was deleted and made anew has the numbers of the one before again, and capture files keep both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from consumer.model import split_place
from spark_jobs.platform.rows import collected
from spark_jobs.reconciliation.schemas import ENDS
from spark_jobs.sources.columns.event_columns import STEP_BACK
from spark_jobs.sources.incarnations import utc_text
from tidemark.analysis.errors import InputError


def partition_ends(events: DataFrame) -> DataFrame:
    """ENDS of BUCKETS."""
    twice = F.min(F.when(F.col("twice").isNotNull(), F.struct("twice", "twice_at")))
    columns = [field for field in events.columns if field != "rows"]
    frame = (
        events.select(columns)
        .withColumn("step", _step_back())
        .groupBy("partition")
        .agg(
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.min("earliest").alias("earliest"),
            F.max("latest").alias("latest"),
            F.sum("events").alias("events"),
            F.sum("copies").alias("copies"),
            F.sum("copied").alias("copied"),
            twice.alias("again"),
            F.min("step").alias("step"),
        )
    )
    return frame.select("*", "again.*", "step.*").select(*ENDS.fieldNames())


def _step_back() -> Column:
    """ENDS' `back` of a bucket: within it, or from buckets of lower numbers to it."""
    below = Window.partitionBy("partition").orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    ahead = F.max("latest").over(below)
    is_back = F.unix_micros(ahead) - F.unix_micros("earliest") > STEP_BACK
    names = ("back", "back_at", "ahead_at")
    across = (
        column.alias(name)
        for column, name in zip((F.col("first"), F.col("earliest"), ahead), names, strict=True)
    )
    return F.when(F.col("back").isNotNull(), F.struct(*names)).when(is_back, F.struct(*across))


def begin_of(ends: Sequence[Row]) -> datetime | None:
    """When the first event was enqueued; None if there is none.

    A hub that was deleted and made anew numbers its events from 0 again. Raises InputError for two events of one number, and for
    times that go back where numbers go on.
    """
    for row in ends:
        if row["twice"] is not None:
            raise InputError(
                f"partition {row['partition']} has several events of number {row['twice']}, enqueued at "
                "different times: the hub was recreated. Look at one of its lives with --from or --to; the first of these "
                f"events came at {row['twice_at'].isoformat()}"
            )
        if row["back"] is not None:
            raise InputError(
                f"partition {row['partition']}: an event from number {row['back']} on came at {row['back_at'].isoformat()}, one with a"
                f" lower number not before {row['ahead_at'].isoformat()}: they are of two hubs of this name, one of which was deleted,"
                " and what is written of which cannot be known. Look at one of them with --from or --to"
            )
    return min((row["earliest"] for row in ends if row["earliest"] is not None), default=None)


def refuse_between(ends: Sequence[Row], known: DataFrame) -> None:
    """Raises InputError where documents have keys of a hub that is neither the present one nor the first: since when it was there is
    known, but not which of the captured events are its own.
    """
    places = [row["partition"] for row in collected(known.select("partition").distinct())]
    looked_at = {row["partition"]: row["latest"] for row in ends}
    for place in sorted(places):
        partition, created = split_place(place)
        if place in looked_at or not created.isdecimal():
            continue
        for other, latest in looked_at.items():
            of, before = split_place(other)
            is_later = of == partition and int(before or 0) < int(created)
            if is_later and latest is not None and int(created) <= latest.timestamp() * 1000:
                raise InputError(
                    f"partition {partition}: documents have keys of a hub of this name that was created at {utc_text(int(created))}, and"
                    f" events came until {latest.isoformat()}. Which of them are of that hub is not known, so what is written of"
                    f" them cannot be known; accepted: --to {utc_text(int(created))}, or --from when the present hub was created"
                )
