"""From events of Application Insights to counts and sums per bin, raw and corrected. DataFrame -> DataFrame.

Corrected: an event with item count w was retained with probability 1/w and stands for w events, so sum(w) and
sum(w x value) estimate what happened without bias (Horvitz and Thompson, 1952). SDKs sample by the hash of the
operation id, so an operation is retained or left out as a whole: the draws are operations, and the variance of a sum
is estimated by the sum over retained operations of (1 - p) x t^2, with t the operation's corrected total and
p = events / sum(w) the probability it was retained with (Poisson sampling; Saerndal, Swensson and Wretman, "Model
Assisted Survey Sampling", 1992, section 3.5). An event without an operation id is an operation of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.platform.rows import OUTSIDE, RowAccount, outside
from spark_jobs.schemas import row_schema

BINS = row_schema("""
    bin_start time, rows long, without_item_count long, corrected_count long,
    corrected_count_error double, sampling_rate double, without_measurement long, raw_sum double,
    corrected_sum double, corrected_sum_error double
""")
"""`rows` are retained events; `*_error` standard errors; `sampling_rate` percent, null in a bin without a known item
count. Rows whose item count is not known, or below 1, are in `rows` and `raw_sum` and in nothing corrected. Sums are of the
measurement, null where no row of the bin has it.
"""

_COUNTS = frozenset(
    {"rows", "without_item_count", "corrected_count", "corrected_count_error", "without_measurement"}
)

SHARES = row_schema("""
    side text, dimension text, value text, rows long, events long, share double,
    sampling_rate double
""")
"""How the events "before" and "after" a day divide over the values of a dimension; `share` of the corrected events."""

LEAST_SHARE = 0.05
"""A value rarer than this on both sides is left out: ids and texts of all kinds are no dimensions to look at."""

# Where KQL's bin() begins to count, so that bins of any length are those of the queries: weeks begin on Mondays.
FIRST_BIN = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ORIGIN = (datetime(1970, 1, 1, tzinfo=UTC) - FIRST_BIN) // _MICROSECOND


def names(events: DataFrame) -> DataFrame:
    """Rows per event name and table, how many have an id, and the time of the first and the last."""
    return events.groupBy("name", "source").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count("item_id").alias("with_id"),
        F.min("timestamp").alias("first"),
        F.max("timestamp").alias("last"),
    )


def chosen(
    events: DataFrame,
    account: RowAccount,
    name: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The events of this name, from `since` on and before `until`, as they come; `account` counts them and the others."""
    other, time = F.col("name") != name, outside(F.col("timestamp"), since, until)
    return account.without(events, {"other events": other, OUTSIDE: time})


def once(events: DataFrame) -> DataFrame:
    """Each record once that has an id, however many files hold it; those without one as they come. `copies` is how many there
    were, that one included.

    The time belongs to the key although ids are unique: should a writer's not be, nothing is lost.
    """
    row = F.concat(F.lit("row "), F.monotonically_increasing_id())
    keyed = events.withColumn("key", F.coalesce("item_id", row)).groupBy("key", "timestamp")
    rest = (F.first(name).alias(name) for name in events.columns if name != "timestamp")
    return keyed.agg(*rest, F.count(F.lit(1)).alias("copies")).select(*events.columns, "copies")


def binned(events: DataFrame, width: timedelta, measurement: str | None) -> DataFrame:
    """BINS of those bins that have events."""
    weighted = events.select(
        bin_start(F.col("timestamp"), width).alias("bin_start"),
        F.nullif(F.col("operation_id"), F.lit("")).alias("operation_id"),
        weight().alias("weight"),
        _value(measurement).alias("value"),
    )
    operations = weighted.groupBy("bin_start", "operation_id").agg(*_totals())
    return _summed(operations).select(*BINS.fieldNames())


def filled(bins: DataFrame, first: datetime, last: datetime, width: timedelta) -> DataFrame:
    """BINS of every bin from `first` to `last`, both starts of bins: where there are no events, of 0 rows."""
    span, step = (last - first) // width + 1, width // _MICROSECOND
    begin = (first - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
    grid = bins.sparkSession.range(span).select(
        F.timestamp_micros(F.col("id") * F.lit(step) + F.lit(begin)).alias("bin_start")
    )
    joined = grid.join(bins, on="bin_start", how="left").orderBy("bin_start")
    empty = F.col("rows").isNull()
    return joined.select(
        *(
            F.when(empty, F.lit(0).cast(field.dataType)).otherwise(F.col(field.name)).alias(field.name)
            if field.name in _COUNTS
            else F.col(field.name)
            for field in BINS
        )
    )


def shares(events: DataFrame, break_at: datetime, days: int) -> DataFrame:
    """SHARES of the `days` from a break on against the same weekdays of the week before it."""
    week, length = timedelta(days=7), timedelta(days=days)
    at = F.col("timestamp")
    after = (at >= F.lit(break_at)) & (at < F.lit(break_at + length))
    before = (at >= F.lit(break_at - week)) & (at < F.lit(break_at - week + length))
    sided = events.select(
        F.when(after, "after").when(before, "before").alias("side"),
        weight().alias("weight"),
        F.explode(_dimensions()).alias("dimension", "value"),
    ).where("side IS NOT NULL AND weight IS NOT NULL AND value IS NOT NULL")
    # Every event has a source, so its values add up to all of a side.
    whole = sided.where(F.col("dimension") == "source").groupBy("side").agg(F.sum("weight").alias("all"))
    counted = sided.groupBy("side", "dimension", "value").agg(
        F.count(F.lit(1)).alias("rows"), F.sum("weight").alias("events")
    )
    joined = counted.join(F.broadcast(whole), on="side", how="inner")
    shared = joined.withColumns(
        {"share": F.col("events") / F.col("all"), "sampling_rate": 100.0 * F.col("rows") / F.col("events")}
    )
    return shared.where(F.col("share") >= LEAST_SHARE).select(*SHARES.fieldNames())


def bin_start(timestamp: Column, width: timedelta) -> Column:
    """The start of a time's bin, as KQL's `bin(timestamp, width)`."""
    microseconds = F.unix_micros(timestamp)
    return F.timestamp_micros(
        microseconds - F.pmod(microseconds + F.lit(_ORIGIN), F.lit(width // _MICROSECOND))
    )


def weight() -> Column:
    """How many events a row stands for; null where it does not say so."""
    return F.when(F.col("item_count") >= 1, F.col("item_count").cast("long"))


def _value(measurement: str | None) -> Column:
    if measurement is None:
        return F.lit(None).cast("double")
    value = F.col("measurements")[F.lit(measurement)]
    infinite = F.abs(value) == F.lit(float("inf"))
    return F.when(~F.isnan(value) & ~infinite, value)


def _totals() -> list[Column]:
    weight, value = F.col("weight"), F.col("value")
    alone = 1 - 1 / weight  # of an event that is drawn by itself
    return [
        F.count(F.lit(1)).alias("rows"),
        F.count("weight").alias("weighted"),
        F.sum("weight").alias("events"),
        F.count("value").alias("values"),
        F.sum("value").alias("raw_sum"),
        F.sum(weight * value).alias("corrected_sum"),
        F.sum(alone * weight * weight).alias("count_variance"),
        F.sum(alone * (weight * value) * (weight * value)).alias("sum_variance"),
    ]


def _summed(operations: DataFrame) -> DataFrame:
    left_out = 1 - F.col("weighted") / F.col("events")

    def variance(total: str, alone: str) -> Column:
        drawn = left_out * F.col(total).cast("double") * F.col(total).cast("double")
        return F.sqrt(F.sum(F.when(F.col("operation_id").isNull(), F.col(alone)).otherwise(drawn)))

    return operations.groupBy("bin_start").agg(
        F.sum("rows").alias("rows"),
        F.sum(F.col("rows") - F.col("weighted")).alias("without_item_count"),
        F.sum("events").alias("corrected_count"),
        variance("events", "count_variance").alias("corrected_count_error"),
        (100.0 * F.sum("weighted") / F.sum("events")).alias("sampling_rate"),
        F.sum(F.col("rows") - F.col("values")).alias("without_measurement"),
        F.sum("raw_sum").alias("raw_sum"),
        F.sum("corrected_sum").alias("corrected_sum"),
        variance("corrected_sum", "sum_variance").alias("corrected_sum_error"),
    )


def _dimensions() -> Column:
    standard = F.create_map(
        *(part for name in ("source", "sdk_version", "role") for part in (F.lit(name), F.col(name)))
    )
    # A custom dimension of the same name is another one.
    custom = F.transform_keys("dimensions", lambda name, _: F.concat(F.lit("customDimensions."), name))
    return F.map_concat(standard, F.coalesce(custom, F.create_map().cast("map<string,string>")))
