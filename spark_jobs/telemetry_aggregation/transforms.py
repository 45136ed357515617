"""From records to samples and to states of a minute, and from states to windows. DataFrame in, DataFrame out.

States of a minute add up: those of an hour's minutes give the hour's. Windows are whole numbers, which are cheaper by far than
Spark's window structs. Gauges are in `gauges`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.telemetry_aggregation.kernel.samples import MICROS, MINUTE, WINDOWS
from spark_jobs.telemetry_aggregation.schemas import FLOWS, SAMPLES

PIPELINE = ("consumer", "hub", "consumer_group")
COUNTERS = (
    *("received", "written", "dead_letters", "retried"),
    *("attempts", "throttled", "checkpoints", "checkpoints_failed"),
)
AMOUNTS = ("seconds", "request_units", "written_units")
"""Rounded to 0.001 by the writer: summed as thousandths."""
INSTANCE_GAUGES = {
    "backlog_count": "consumer.backlog",
    "oldest_age_s": "consumer.oldest_age",
    "rate_limit": "consumer.rate_limit",
    "stopping": "consumer.stopping",  # 1 in an instance's last record, unless it was killed
}


def micros(at: Column | str) -> Column:
    return F.unix_micros(F.col(at) if isinstance(at, str) else at)


def floor_to(time: Column, width: int) -> Column:
    """The beginning of the window of a time in microseconds; right before the epoch too."""
    return time - F.pmod(time, F.lit(width))


def in_windows(states: DataFrame) -> DataFrame:
    """Every minute once per window it belongs to, with `window` and `start` (microseconds) in place of `minute`."""
    windows = (
        F.struct(F.lit(name).alias("window"), floor_to(F.col("minute"), width).alias("start"))
        for name, width in WINDOWS.items()
    )
    return states.select(F.inline(F.array(*windows)), "*").drop("minute")


def starts() -> Column:
    return F.timestamp_micros("start").alias("window_start")


def distinct(records: DataFrame, keys: Sequence[str], *, copies: bool = False) -> DataFrame:
    """One record per key. Of copies that differ the greatest stays, whatever the order: a rerun keeps the same. With `copies` how
    many there were, that record included, in a column of this name.
    """
    rest = [column for column in records.columns if column not in keys]
    count = [F.count(F.lit(1)).alias("copies")] if copies else []
    names = [*records.columns, *(["copies"] if copies else [])]
    if len(rest) == 1:  # a number is aggregated by hashing, a struct by sorting
        return records.groupBy(*keys).agg(F.max(rest[0]).alias(rest[0]), *count).select(*names)
    best = records.groupBy(*keys).agg(F.max(F.struct(*rest)).alias("kept"), *count)
    return best.select(*(F.col(f"kept.{name}") if name in rest else F.col(name) for name in names))


# -- samples: every gauge of every source in one shape


def samples_of_metrics(metrics: DataFrame) -> DataFrame:
    """From METRICS."""
    return metrics.select(F.col("target").alias("subject"), F.lit("").alias("part"), "metric", "at", "value")


def samples_of_decisions(decisions: DataFrame) -> DataFrame:
    """From DECISIONS, `metrics` laid open as entries: the metrics each decision was made on."""
    made = decisions.where(F.col("kind") == "decision")
    return samples_of_metrics(made.select("target", "at", F.inline("metrics").alias("metric", "value")))


def samples_of_telemetry(telemetry: DataFrame) -> DataFrame:
    """From TELEMETRY: gauges of instances (`part` is the instance) and of partitions (`part` is the partition)."""
    intervals = telemetry.where(F.col("kind") == "interval")
    of_instances = _gauges(intervals, F.col("instance"), INSTANCE_GAUGES)
    frame = intervals.select("consumer", "at", F.explode("partitions").alias("p"))
    flat = frame.select("consumer", "at", "p.*")
    of_partitions = _gauges(
        flat, F.col("partition"), {"lag": "consumer.lag", "in_flight": "consumer.in_flight"}
    )
    saved = telemetry.where(F.col("kind") == "checkpoint")
    of_checkpoints = _gauges(saved, F.col("partition"), {"left": "consumer.checkpoint_lag"})
    return of_instances.unionByName(of_partitions).unionByName(of_checkpoints)


def _gauges(frame: DataFrame, part: Column, names: dict[str, str]) -> DataFrame:
    """A sample per row and name whose value is known."""
    values = (
        F.struct(F.lit(metric).alias("metric"), F.col(column).cast("double").alias("value"))
        for column, metric in names.items()
    )
    sample = F.inline(F.array(*values))
    laid = frame.select(F.col("consumer").alias("subject"), part.alias("part"), "at", sample)
    return laid.select(*SAMPLES.names).where(F.col("value").isNotNull())


def flow_states(telemetry: DataFrame) -> DataFrame:
    """One row per consumer and minute in which an interval ended, from TELEMETRY."""
    end = micros("at")
    begin = end - F.round(F.col("seconds") * MICROS).cast("long")
    return (
        telemetry.where(F.col("kind") == "interval")
        .groupBy(*PIPELINE, floor_to(end, MINUTE).alias("minute"))
        .agg(
            F.count("at").alias("intervals"),
            F.collect_set("instance").alias("instances"),
            F.min(begin).alias("begin"),
            F.max(end).alias("end"),
            F.sum(F.col("paused").cast("long")).alias("paused"),
            *(F.sum(name).alias(name) for name in COUNTERS),
            *(F.sum(F.round(F.col(name) * 1000).cast("long")).alias(name) for name in AMOUNTS),
        )
    )


def flows(states: DataFrame) -> DataFrame:
    """The table FLOWS from minutes."""
    keys = ["window", "start", *PIPELINE]
    summed = (
        in_windows(states)
        .groupBy(*keys)
        .agg(
            F.size(F.array_distinct(F.flatten(F.collect_list("instances")))).cast("long").alias("instances"),
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            *(F.sum(name).alias(name) for name in ("intervals", "paused", *COUNTERS, *AMOUNTS)),
        )
    )
    units = {name: F.col(name) / F.lit(1000) for name in ("request_units", "written_units")}
    covered = (F.col("end") - F.col("begin")) / F.lit(MICROS)
    laid = summed.select(
        "window",
        starts(),
        *PIPELINE,
        "intervals",
        "instances",
        covered.alias("covered_s"),
        *COUNTERS,
        *(column.alias(name) for name, column in units.items()),
        _ratio(F.col("received"), covered).alias("received_per_s"),
        _ratio(F.col("written"), covered).alias("written_per_s"),
        _ratio(units["request_units"], covered).alias("request_units_per_s"),
        _ratio(F.col("throttled"), F.col("attempts")).alias("throttled_share"),
        _ratio(units["written_units"], F.col("written")).alias("request_units_per_record"),
        _ratio(F.col("paused"), F.col("intervals")).alias("paused_share"),
    )
    return laid.select(*FLOWS.names)


def _ratio(part: Column, whole: Column) -> Column:
    """Null where there is nothing to divide by."""
    return F.when(whole > 0, part / whole)
