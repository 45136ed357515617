"""Scale actions, and capacity over time: the scaling log as a step function. DataFrame in, DataFrame out.

A decision tells the capacity as it was, an effect the capacity reached. Each reading holds until the target's next,
and at most `hold`: where the log is silent for longer, capacity is not known and is counted as neither hours nor cost.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from scaling.model import MOVED, EffectOutcome
from spark_jobs.telemetry_aggregation.minutes.samples import MICROS, MINUTE
from spark_jobs.telemetry_aggregation.minutes.windows import floor_to, in_windows, micros, starts
from spark_jobs.telemetry_aggregation.schemas import SCALING

COUNTS = ("decisions", "wanted_out", "wanted_in", "scaled_out", "scaled_in", "failed")
_NOT_DONE = [EffectOutcome.REFUSED.value, EffectOutcome.FAILED.value, EffectOutcome.EXPIRED.value]
HOUR_MICROS = 3600 * MICROS


def points(log: DataFrame) -> DataFrame:
    """Readings of the capacity: (target, at, kind, capacity), `at` in microseconds. From DECISIONS."""
    capacity = (
        F.when(F.col("kind") == "decision", F.col("current"))
        .when((F.col("kind") == "effect") & F.col("outcome").isin([o.value for o in MOVED]), F.col("reached"))
        .cast("long")
    )
    read = log.select("target", micros("at").alias("at"), "kind", capacity.alias("capacity"))
    return read.where(F.col("capacity").isNotNull())


def scaling_states(log: DataFrame, *, since: Column, until: Column, hold: int) -> DataFrame:
    """One row per target and minute of [since, until) with entries or known capacity, from DECISIONS.

    Entries before `since` only tell the capacity that still holds. All in microseconds.
    """
    counted = _counts(log.where(micros("at") >= since))
    known = _known(points(log), since, until, hold)
    both = counted.unionByName(known, allowMissingColumns=True)
    return both.groupBy("target", "minute").agg(*_merged())


def _merged() -> list[Column]:
    """Of several states one: hours from minutes."""
    merges = dict.fromkeys((*COUNTS, "capacity_min", "capacity_max", "known", "integral"), F.sum)
    merges |= {"capacity_min": F.min, "capacity_max": F.max}
    return [merge(name).alias(name) for name, merge in merges.items()]


def _counts(log: DataFrame) -> DataFrame:
    decision, effect = F.col("kind") == "decision", F.col("kind") == "effect"
    moved = effect & F.col("outcome").isin([outcome.value for outcome in MOVED])
    marks = {
        "decisions": decision,
        "wanted_out": decision & (F.col("desired") > F.col("current")),
        "wanted_in": decision & (F.col("desired") < F.col("current")),
        "scaled_out": moved & (F.col("reached") > F.col("from_capacity")),
        "scaled_in": moved & (F.col("reached") < F.col("from_capacity")),
        "failed": effect & F.col("outcome").isin(_NOT_DONE),
    }
    return log.groupBy("target", floor_to(micros("at"), MINUTE).alias("minute")).agg(
        *(F.count_if(mark).alias(name) for name, mark in marks.items())
    )


def _known(readings: DataFrame, since: Column, until: Column, hold: int) -> DataFrame:
    """Seconds and capacity-seconds per minute (in microseconds). Of one moment's readings the effect's holds."""
    order = Window.partitionBy("target").orderBy("at", "kind", "capacity")
    end = F.least(F.coalesce(F.lead("at").over(order), until), F.col("at") + F.lit(hold), until)
    spans = readings.select("target", "capacity", F.greatest("at", since).alias("begin"), end.alias("end"))
    minutes = F.sequence(
        floor_to(F.col("begin"), MINUTE), floor_to(F.col("end") - 1, MINUTE), F.lit(MINUTE).cast("long")
    )
    cut = spans.where(F.col("end") > F.col("begin")).select("*", F.explode(minutes).alias("minute"))
    share = F.least("end", F.col("minute") + F.lit(MINUTE)) - F.greatest("begin", "minute")
    return cut.groupBy("target", "minute").agg(
        F.min("capacity").alias("capacity_min"),
        F.max("capacity").alias("capacity_max"),
        F.sum(share).alias("known"),
        F.sum(F.col("capacity") * share).alias("integral"),
    )


def carried(log: DataFrame, before: Column) -> DataFrame:
    """Of entries before a time (microseconds), those that tell each target's capacity then."""
    last = Window.partitionBy("target").orderBy(
        F.desc("at"), F.desc("kind"), F.desc("reached"), F.desc("key")
    )
    told = log.where((micros("at") < before) & (F.col("current").isNotNull() | F.col("reached").isNotNull()))
    tells = told.join(
        points(told).select("target", F.timestamp_micros("at").alias("at"), "kind").distinct(),
        on=["target", "at", "kind"],
        how="left_semi",
    )
    return tells.withColumn("rank", F.row_number().over(last)).where(F.col("rank") == 1).select(*log.columns)


def scaling(
    states: DataFrame, prices: Mapping[str, float], request_unit_targets: frozenset[str]
) -> DataFrame:
    """The table SCALING from minutes. Prices are per instance and hour, or per 100 RU/s and hour."""
    summed = in_windows(states).groupBy("window", "start", "target").agg(*_merged())
    hours = F.col("integral") / F.lit(HOUR_MICROS)
    metered = F.col("target").isin(sorted(request_unit_targets))
    price = F.lit(None).cast("double")
    for target, amount in sorted(prices.items()):
        price = F.when(F.col("target") == target, F.lit(amount)).otherwise(price)
    laid = summed.select(
        "window",
        starts(),
        "target",
        *(F.coalesce(F.col(name), F.lit(0)).cast("long").alias(name) for name in COUNTS),
        "capacity_min",
        "capacity_max",
        F.coalesce(F.col("known") / F.lit(HOUR_MICROS), F.lit(0.0)).alias("known_hours"),
        F.when(metered, F.lit("RU/s")).otherwise(F.lit("instance")).alias("unit"),
        hours.alias("capacity_hours"),
        (hours / F.when(metered, F.lit(100)).otherwise(F.lit(1)) * price).alias("cost"),
    )
    return laid.select(*SCALING.names)
