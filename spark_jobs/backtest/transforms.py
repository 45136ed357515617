"""From recorded rows to histories, to what the replays gave, and to the best of it. DataFrame to DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.backtest.schemas import CHOSEN, HISTORIES, PLANS, READINGS, SCORES, TASKS
from spark_jobs.backtest.tasks import OUTCOMES, Batches, choices_of, totals_of
from spark_jobs.platform.failures import input_errors
from spark_jobs.platform.rows import RowAccount, collected
from tidemark.analysis.backtest.reading import UNREAD

DAY = 86_400
LATEST = 1e15  # seconds; a time beyond is none


def log_as_readings(decisions: DataFrame, account: RowAccount, reasons: Mapping[str, Column]) -> DataFrame:
    """READINGS of DECISIONS, but for those with one of the `reasons`; `account` counts them. A decision that could not read a
    metric tells nothing of that time.
    """
    other, unread = F.col("kind") != "decision", F.col("reason").isin(*sorted(UNREAD))
    made = decisions.select("target", "at", "kind", "reason", "current", "metrics")
    return (
        account.without(made, {**reasons, "no decision": other, "metric not read": unread})
        .select(
            "target",
            (F.unix_micros("at") / 1_000_000).alias("at"),
            F.lit(None).cast("double").alias("arrivals"),
            F.col("current").alias("instances"),
            "metrics",
        )
        .select(*READINGS.fieldNames())
    )


def histories(readings: DataFrame) -> DataFrame:
    """HISTORIES of READINGS."""
    row = F.struct(*READINGS.fieldNames()[1:])
    day = F.when(F.abs("at") < LATEST, F.floor(F.col("at") / DAY)).cast("long")
    return (
        readings.select(*READINGS.fieldNames())
        .groupBy("target", day.alias("day"))
        .agg(F.collect_list(row).alias("readings"))
        .select(*HISTORIES.fieldNames())
    )


def targets_of(histories: DataFrame, account: RowAccount) -> list[str]:
    """The names of all targets, in order. Raises InputError for a file that cannot be read; JobError where the histories do
    not hold all rows that `account` knows.
    """
    with input_errors():
        found = collected(histories.groupBy("target").agg(F.sum(F.size("readings")).alias("rows")))
        account.check(replayed=sum(row.rows for row in found))
    return sorted(row.target for row in found)


def replayed(
    histories: DataFrame,
    plans: DataFrame,
    *,
    partitions: int,
    work: Batches,
    gives: pa.Schema = OUTCOMES,
) -> DataFrame:
    """What `work` gives, with the columns `gives`, of every plan with its target's history. Tasks are spread evenly; a plan
    is one task's, which gets the days of its history in their order.
    """
    planned = plans.select(*PLANS.fieldNames())
    tasks = histories.join(planned, on="target", how="inner").select(*TASKS.fieldNames())
    spread = tasks.repartitionById(partitions, F.col("block") % F.lit(partitions))
    ordered = spread.sortWithinPartitions("block", "day")
    return ordered.mapInArrow(work, from_arrow_schema(gives)).select(*gives.names)


def chosen(scores: DataFrame, late_budget: float) -> DataFrame:
    """CHOSEN of SCORES: each target's candidates are ranked in one task, which holds no other target's."""
    together = scores.repartition("target").sortWithinPartitions("target")
    ranked = together.mapInArrow(partial(choices_of, late_budget=late_budget), CHOSEN)
    return ranked.select(*CHOSEN.fieldNames())


def totals(scores: DataFrame) -> DataFrame:
    """SCORES of each candidate over all targets, whose name is empty; added up in the order of the targets."""
    together = scores.repartition("candidate").sortWithinPartitions("candidate", "part", "target")
    return together.mapInArrow(totals_of, SCORES).select(*SCORES.fieldNames())
