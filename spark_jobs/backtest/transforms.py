"""From recorded rows to one history per target, and to what the replays gave. DataFrame to DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.backtest.reading import TIME_COLUMNS, UNREAD
from spark_jobs.backtest.schemas import HISTORIES, PLANS, READINGS, TASKS
from spark_jobs.backtest.tasks import OUTCOMES, Batches, outcomes
from spark_jobs.errors import InputError


def arrivals_as_readings(frame: DataFrame) -> DataFrame:
    """READINGS of a table: t (or at, time, timestamp: seconds or ISO 8601), arrivals, target or file, and maybe instances and
    backlog, which is a metric of that name then.

    Rows without arrivals are bins of which nothing is known. A time or number that cannot be read gives NaN, which
    the replay refuses by its target. Raises InputError for other columns.
    """
    time = next((name for name in TIME_COLUMNS if name in frame.columns), None)
    if time is None or "arrivals" not in frame.columns:
        raise InputError(
            f"--arrivals has the columns {', '.join(frame.columns)}; accepted: {' or '.join(TIME_COLUMNS)}, arrivals, "
            "and target"
        )
    nan = F.lit(float("nan"))
    text = F.col(time).cast("string")
    moment = F.coalesce(text.try_cast("double"), F.unix_micros(text.try_cast("timestamp")) / 1_000_000, nan)
    known = frame.where(F.col("arrivals").isNotNull() & (F.col("arrivals").cast("string") != ""))
    ran = (
        F.col("instances").try_cast("bigint") if "instances" in frame.columns else F.lit(None).cast("bigint")
    )
    waiting = (
        F.create_map(F.lit("backlog"), F.coalesce(F.col("backlog").try_cast("double"), nan))
        if "backlog" in frame.columns
        else F.lit(None)
    )
    return known.select(
        F.col("target" if "target" in frame.columns else "file").alias("target"),
        moment.alias("at"),
        F.coalesce(F.col("arrivals").try_cast("double"), nan).alias("arrivals"),
        ran.alias("instances"),
        waiting.cast("map<string,double>").alias("metrics"),
    ).select(*READINGS.fieldNames())


def log_as_readings(decisions: DataFrame) -> DataFrame:
    """READINGS of DECISIONS. A decision that could not read a metric tells nothing of that time."""
    made = decisions.select("target", "at", "kind", "reason", "current", "metrics").where(
        (F.col("kind") == "decision") & ~F.col("reason").isin(*sorted(UNREAD))
    )
    return made.select(
        "target",
        (F.unix_micros("at") / 1_000_000).alias("at"),
        F.lit(None).cast("double").alias("arrivals"),
        F.col("current").alias("instances"),
        "metrics",
    ).select(*READINGS.fieldNames())


def histories(readings: DataFrame) -> DataFrame:
    """HISTORIES: all readings of a target in one row."""
    row = F.struct(*READINGS.fieldNames()[1:])
    return (
        readings.select(*READINGS.fieldNames())
        .groupBy("target")
        .agg(F.collect_list(row).alias("readings"))
        .select(*HISTORIES.fieldNames())
    )


def replayed(
    histories: DataFrame, plans: DataFrame, *, partitions: int, work: Batches = outcomes
) -> DataFrame:
    """OUTCOMES of every plan with its target's history. Tasks are spread evenly; their order is of no matter."""
    planned = plans.select(*PLANS.fieldNames())
    tasks = histories.join(planned, on="target", how="inner").select(*TASKS.fieldNames())
    spread = tasks.repartition(partitions)
    return spread.mapInArrow(work, from_arrow_schema(OUTCOMES)).select(*OUTCOMES.names)
