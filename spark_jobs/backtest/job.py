"""`tidemark spark backtest`: the backtest over many targets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import typer
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_jobs import cli
from spark_jobs.backtest.tasks import (
    CHOSEN,
    RECOMMENDATIONS,
    SCORED,
    SCORES,
    Checked,
    Task,
    checked,
    choices_of,
    compared,
    scored,
    totals_of,
)
from spark_jobs.frame import AppJobOptions, Arrivals, Log, finish
from spark_jobs.per_target import (
    HistorySettings,
    Recorded,
    recorded,
    replay,
    replayed,
    small_batches,
    workers_of,
)
from spark_jobs.platform.failures import input_errors
from spark_jobs.platform.progress import watch
from spark_jobs.platform.rows import collected
from spark_jobs.tables.results import Results
from tidemark.analysis.backtest.analysis import (
    EVERYWHERE,
    LIMITED,
    Analysis,
    Job,
    advice,
    analyse,
    counts,
    plan_job,
    plotted,
)
from tidemark.analysis.backtest.candidates.grid import BASELINE
from tidemark.analysis.backtest.candidates.recommend import Choice, choose
from tidemark.analysis.backtest.local import read_settings
from tidemark.analysis.backtest.page import report_of
from tidemark.analysis.backtest.replay.score import Row, row_of
from tidemark.analysis.backtest.work import Comparing, Comparison
from tidemark.analysis.options import CONFIG, Grid, RunningConfig, with_groups

NAME = "backtest"


@dataclass(frozen=True, kw_only=True)
class Settings(HistorySettings):
    """`grid` is read by the driver."""

    grid: Path


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. Raises InputError; CheckFailedError, when all is written, where more
    was found than is allowed.
    """
    plan, targets = read_settings(settings.grid, settings.config, settings.app_settings or os.environ)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    with recorded(spark, settings) as history:
        job = plan_job(plan, targets, history.names, keep=False)
        analysis = backtest(spark, job, history, results)
    advised = [msgspec.structs.asdict(line) for line in advice(analysis)]
    results.write("recommendations", spark.createDataFrame(advised, RECOMMENDATIONS))
    return finish(
        spark,
        results,
        settings,
        partial(report_of, analysis),
        rows=[history.rows],
        inputs=settings.inputs,
        counts=counts(analysis),
        limited=LIMITED,
        asked={"config": settings.config},
    )


def backtest(spark: SparkSession, job: Job, history: Recorded, results: Results) -> Analysis:
    """The same as `local.backtest`, over histories that are in Spark; the scores are the table of the `results`. The driver
    holds a few of them for each target. Raises InputError with the problems of all targets, before anything is scored.
    """
    source = None if job.base is not None else job.candidates.source
    checks = [(name, _task(job, name)) for name in history.names]
    check = partial(checked, source=source)
    replay(spark, history.histories, checks, check, Checked, "checking the history")
    seen = Observation()
    with watch(spark, f"replaying {len(checks)} targets"), input_errors(), small_batches(spark):
        frame = score(spark, job, history).observe(seen, F.sum("decisions").alias("decisions"))
        results.write("scores", frame.select(*SCORES.fieldNames()))
    scores = results.table("scores")
    with watch(spark, "ranking"):
        choices, everywhere = ranked(scores, job)
    both = [(name, _task(job, name, comparing=work)) for name, work in job.comparings(choices)]
    doing = "comparing with the running policies"
    comparisons = replay(spark, history.histories, both, compared, Comparison, doing)
    by_target = sorted(comparisons, key=lambda comparison: comparison.target)
    return analyse(job, choices, by_target, everywhere, seen.get["decisions"])


def score(spark: SparkSession, job: Job, history: Recorded) -> DataFrame:
    """SCORED of all candidates. A task that meets what cannot be replayed raises InputError."""
    spans = job.spans(history.names, workers_of(spark))
    tasks = [(target, _task(job, target, span=(first, last))) for target, first, last in spans]
    policies = {job.base: msgspec.msgpack.encode(job.policies(job.base))} if job.base is not None else {}
    work = partial(scored, policies=policies, source=job.candidates.source)
    return replayed(spark, history.histories, tasks, work, SCORED)


def _task(
    job: Job, target: str, *, span: tuple[int, int] = (0, 0), comparing: Comparing | None = None
) -> Task:
    metric, interval, base = job.metric(target), job.interval(target), job.base_of(target)
    return Task(
        settings=job.settings, metric=metric, interval=interval, base=base, span=span, comparing=comparing
    )


def ranked(scores: DataFrame, job: Job) -> tuple[dict[str, Choice], Choice | None]:
    """The choice of each target, and the one for all, as `choose` and `for_all` make them. The choices of targets that are not
    drawn have the scores of the candidates that the page shows.
    """
    budget = job.settings.rules.late_budget
    best = sorted(collected(chosen(scores, budget)), key=lambda row: row.target)
    alike = len(best) > 1 and len({row.names for row in best}) == 1
    everywhere = None
    if alike:
        everywhere = choose(_rows(totals(scores), job), late_budget=budget)[""]
        everywhere = msgspec.structs.replace(everywhere, target=EVERYWHERE)
    shown = {BASELINE, *([everywhere.recommended] if everywhere is not None else ())}
    recommended = scores.sparkSession.createDataFrame(
        [(row.target, row.recommended) for row in best], "target string, recommended string"
    )
    shown_scores = scores.join(F.broadcast(recommended), on="target", how="inner").where(
        F.col("candidate").isin(sorted(shown)) | (F.col("candidate") == F.col("recommended"))
    )
    some = choose(_rows(shown_scores, job), late_budget=budget)
    choices = {
        row.target: msgspec.structs.replace(
            some[row.target],
            ranking=(
                row.recommended,
                *(name for name in some[row.target].ranking if name != row.recommended),
            ),
            candidates=row.candidates,
        )
        for row in best
    }
    drawn = scores.where(F.col("target").isin(plotted(choices)))
    return choices | choose(_rows(drawn, job), late_budget=budget), everywhere


def chosen(scores: DataFrame, late_budget: float) -> DataFrame:
    """CHOSEN of SCORES: each target's candidates are ranked in one task, which holds no other target's."""
    together = scores.repartition("target").sortWithinPartitions("target")
    ranked = together.mapInArrow(partial(choices_of, late_budget=late_budget), CHOSEN)
    return ranked.select(*CHOSEN.fieldNames())


def totals(scores: DataFrame) -> DataFrame:
    """SCORES of each candidate over all targets, whose name is empty; added up in the order of the targets."""
    together = scores.repartition("candidate").sortWithinPartitions("candidate", "part", "target")
    return together.mapInArrow(totals_of, SCORES).select(*SCORES.fieldNames())


def _rows(scores: DataFrame, job: Job) -> list[Row]:
    """SCORES of few targets, by target and in the order of the candidates."""
    order = {name: place for place, name in enumerate(job.candidates.names)}
    rows = [row_of(line.asDict()) for line in collected(scores.select(*SCORES.fieldNames()))]
    return sorted(rows, key=lambda row: (row.target, order[row.candidate], row.part == "held_out"))


@with_groups
def command(
    *,
    grid: Grid,
    arrivals: Arrivals = None,
    log: Log = None,
    config: RunningConfig = CONFIG,
    job: AppJobOptions,
) -> None:
    """Recorded metrics against a grid of rules: late messages, cost, actions, and what to set.

    The decisions are made by the product's own code; a queueing model answers them. Writes the tables scores and
    recommendations, and a report. For a few targets `tidemark backtest` does the same without Spark.
    """
    settings = Settings(grid=grid, config=config, arrivals=arrivals, log=log, **job.read(NAME, LIMITED))
    typer.echo(run(job.session(NAME), settings))


if __name__ == "__main__":
    cli.run_command(command)
