"""From scores to the best of them. DataFrame to DataFrame."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame

from spark_jobs.backtest.schemas import CHOSEN, SCORES
from spark_jobs.backtest.tasks import choices_of, totals_of


def chosen(scores: DataFrame, late_budget: float) -> DataFrame:
    """CHOSEN of SCORES: each target's candidates are ranked in one task, which holds no other target's."""
    together = scores.repartition("target").sortWithinPartitions("target")
    ranked = together.mapInArrow(partial(choices_of, late_budget=late_budget), CHOSEN)
    return ranked.select(*CHOSEN.fieldNames())


def totals(scores: DataFrame) -> DataFrame:
    """SCORES of each candidate over all targets, whose name is empty; added up in the order of the targets."""
    together = scores.repartition("candidate").sortWithinPartitions("candidate", "part", "target")
    return together.mapInArrow(totals_of, SCORES).select(*SCORES.fieldNames())
