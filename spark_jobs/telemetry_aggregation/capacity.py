"""Scale actions, and capacity over time: the scaling log as a step function. DataFrame in, DataFrame out.

A decision logs the capacity before it, an effect the capacity that was reached. Each reading holds until the target's next,
and at most for `hold`. If the log has no entry for longer, the capacity is unknown, and counts as neither hours nor cost.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from scaling.model import MOVED, EffectOutcome
from spark_jobs.telemetry_aggregation.kernel.samples import MICROS, MINUTE
from spark_jobs.telemetry_aggregation.schemas import SCALING
from spark_jobs.telemetry_aggregation.transforms import floor_to, in_windows, micros, starts

COUNTS = ("decisions", "wanted_out", "wanted_in", "scaled_out", "scaled_in", "failed")
_NOT_DONE = [EffectOutcome.REFUSED.value, EffectOutcome.FAILED.value, EffectOutcome.EXPIRED.value]
HOUR_MICROS = 3600 * MICROS


def _logged_capacity() -> Column:
    """The capacity in an entry; null where there is none."""
    moved = (F.col("kind") == "effect") & F.col("outcome").isin([outcome.value for outcome in MOVED])
    return F.when(F.col("kind") == "decision", F.col("current")).when(moved, F.col("reached")).cast("long")


def scaling_states(log: DataFrame, *, until: Column, hold: int) -> DataFrame:
    """One row per target and minute before `until` with entries or known capacity, from DECISIONS. Times in microseconds."""
    marked = _marked(_once_an_action(log))
    known = _known(log, until, hold)
    both = marked.unionByName(known, allowMissingColumns=True)
    return both.groupBy("target", "minute").agg(*_merged())


def _once_an_action(log: DataFrame) -> DataFrame:
    """The entries, of the effects of each action the first that moved the target, or the first failure where none did.

    An action that is delivered several times, or found by a check besides, has an entry each time. The key of an effect is
    `effect-OUTCOME-TIME`, the time being that of the decision (`scaling.service.entries`).
    """
    effect, moved = F.col("kind") == "effect", F.col("outcome").isin([outcome.value for outcome in MOVED])
    action = F.coalesce(
        F.nullif(F.regexp_extract("key", "^effect-[a-z_]+-(.+)$", 1), F.lit("")), F.col("key")
    )
    of_action = Window.partitionBy("target", "action")
    effects = log.where(effect).select("*", action.alias("action"), moved.alias("moved"))
    first = F.row_number().over(of_action.orderBy(F.col("moved").desc(), "at", "key"))
    kept = effects.select("*", first.alias("place")).where("place = 1").select(*log.columns)
    return log.where(~effect).unionByName(kept)


def _merged() -> list[Column]:
    """Of several states one: hours from minutes."""
    merges = dict.fromkeys((*COUNTS, "capacity_min", "capacity_max", "known", "integral"), F.sum)
    merges |= {"capacity_min": F.min, "capacity_max": F.max}
    return [merge(name).alias(name) for name, merge in merges.items()]


def _marked(log: DataFrame) -> DataFrame:
    """A row per entry: its minute, and 1 or 0 by the names of COUNTS."""
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
    # What is not known to be is not counted.
    counted = (F.when(mark, 1).otherwise(0).cast("long").alias(name) for name, mark in marks.items())
    return log.select("target", floor_to(micros("at"), MINUTE).alias("minute"), *counted)


def _known(log: DataFrame, until: Column, hold: int) -> DataFrame:
    """A row per reading of the capacity and minute in which it held, with seconds and capacity-seconds (in microseconds). Of one
    moment's readings the effect's holds.
    """
    read = log.select("target", micros("at").alias("at"), "kind", _logged_capacity().alias("capacity"))
    order = Window.partitionBy("target").orderBy("at", "kind", "capacity")
    end = F.least(F.coalesce(F.lead("at").over(order), until), F.col("at") + F.lit(hold), until)
    spans = read.where(F.col("capacity").isNotNull()).select(
        "target", "capacity", F.col("at").alias("begin"), end.alias("end")
    )
    minutes = F.sequence(
        floor_to(F.col("begin"), MINUTE), floor_to(F.col("end") - 1, MINUTE), F.lit(MINUTE).cast("long")
    )
    cut = spans.where(F.col("end") > F.col("begin")).select("*", F.explode(minutes).alias("minute"))
    share = F.least("end", F.col("minute") + F.lit(MINUTE)) - F.greatest("begin", "minute")
    return cut.select(
        "target",
        "minute",
        F.col("capacity").alias("capacity_min"),
        F.col("capacity").alias("capacity_max"),
        share.alias("known"),
        (F.col("capacity") * share).alias("integral"),
    )


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
