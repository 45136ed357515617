"""`tidemark spark backtest`: the backtest over many targets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
import typer
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from typer import Argument, Option

from spark_jobs import cli
from spark_jobs.backtest.schemas import PLANS, READINGS, RECOMMENDATIONS, SCORES
from spark_jobs.backtest.tasks import (
    SCORED,
    Preparing,
    Source,
    Span,
    Task,
    arrivals_in_file,
    arrivals_in_rows,
    comparison_of,
    encoded,
    outcomes,
    scored,
)
from spark_jobs.backtest.transforms import (
    chosen,
    histories,
    log_as_readings,
    replayed,
    targets_of,
    totals,
)
from spark_jobs.errors import InputError
from spark_jobs.platform.failures import input_errors
from spark_jobs.platform.output import check_format, is_delta, read_parquet_or_delta
from spark_jobs.platform.progress import watch
from spark_jobs.platform.results import Results
from spark_jobs.platform.rows import OUTSIDE, RowAccount, cached, collected, outside
from spark_jobs.platform.session import try_setting
from spark_jobs.reports.report_files import write_report
from spark_jobs.sources.files.spark_files import read_with_spark, set_aside
from spark_jobs.sources.records.telemetry import read_decisions
from spark_jobs.sources.registration import spark_session
from tidemark.analysis import gates
from tidemark.analysis.backtest.analysis import (
    EVERYWHERE,
    GATES,
    Analysis,
    Job,
    advice,
    analyse,
    counts,
    plan_job,
    plotted,
    refused,
)
from tidemark.analysis.backtest.candidates.grid import BASELINE
from tidemark.analysis.backtest.candidates.recommend import Choice, choose
from tidemark.analysis.backtest.local import read_settings
from tidemark.analysis.backtest.page import report_of
from tidemark.analysis.backtest.reading import ENDINGS, OTHER_COLUMNS, TIME_COLUMNS, check_columns
from tidemark.analysis.backtest.replay.score import Row, row_of
from tidemark.analysis.backtest.work import Comparing
from tidemark.analysis.option_values import check_span, moment
from tidemark.analysis.options import ROOT_FOLDER, Allow, Root, Since, Until, app_settings

NAME = "backtest"

BATCH_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
HISTORIES_PER_BATCH = "16"
"""Rows handed to a worker at once: a row holds a day of a history, and 10,000 of them, the default, no worker could."""


class Inputs(Protocol):
    """Where recorded load is."""

    @property
    def arrivals(self) -> str | None: ...
    @property
    def log(self) -> str | None: ...
    @property
    def since(self) -> datetime | None: ...
    @property
    def until(self) -> datetime | None: ...
    @property
    def quarantine(self) -> str | None: ...
    @property
    def app_settings(self) -> Mapping[str, str] | None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths: `grid` and `config` are read by the driver, `arrivals` and `log` by Spark."""

    grid: Path
    config: Path
    arrivals: str | None = None
    log: str | None = None
    output: str = cli.default_output(NAME)
    fmt: str = "parquet"
    quarantine: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    app_settings: Mapping[str, str] | None = field(default=None, repr=False)
    """What the configuration and the scaling log's table refer to; None: the environment."""
    allow: gates.Limits = field(default_factory=dict)
    """Of GATES."""


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. Raises InputError; GateClosedError, when all is written, where more
    was found than is allowed.
    """
    check_format(settings.fmt)
    plan, targets = read_settings(settings.grid, settings.config, settings.app_settings or os.environ)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    account = RowAccount("the history")
    with cached(histories(extract(spark, settings, account))) as recorded:
        with watch(spark, "reading the history"):
            names = targets_of(recorded, account)
        job = plan_job(plan, targets, names, keep=False)
        found = backtest(spark, job, recorded, names, results)
    return load(spark, results, settings, found)


def extract(spark: SparkSession, settings: Inputs, account: RowAccount) -> DataFrame:
    """READINGS of all inputs, of the time asked for; `account` counts the rows. Raises InputError when none is given."""
    check_span(settings.since, settings.until)
    frames: list[DataFrame] = []
    bounds = settings.since, settings.until
    if settings.arrivals is not None:
        at = (None if bound is None else bound.timestamp() for bound in bounds)
        arrivals = arrivals_of(spark, settings.arrivals)
        frames.append(account.without(arrivals, {OUTSIDE: outside(F.col("at"), *at)}))
    if settings.log is not None:
        entries = read_decisions(
            spark,
            settings.log,
            quarantine=settings.quarantine,
            settings=settings.app_settings,
            since=settings.since,
            until=settings.until,
        )
        frames.append(log_as_readings(entries, account, {OUTSIDE: outside(F.col("at"), *bounds)}))
    if not frames:
        raise InputError("no history: give --arrivals, --log or both")
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def arrivals_of(spark: SparkSession, path: str) -> DataFrame:
    """READINGS of a Delta table, or of CSV and Parquet files, each by its own header. Raises InputError."""
    if not is_delta(spark, path):
        return read_with_spark(spark, path.rstrip("/"), ENDINGS, arrivals_in_file, READINGS)
    frame = read_parquet_or_delta(spark, path)
    check_columns(frame.columns, f"--arrivals {path}")
    wanted = [name for name in frame.columns if name in {*TIME_COLUMNS, "arrivals", "target", *OTHER_COLUMNS}]
    name = path.rstrip("/").rpartition("/")[2]
    return frame.select(*wanted).mapInArrow(partial(arrivals_in_rows, target=name), READINGS)


def backtest(
    spark: SparkSession, job: Job, recorded: DataFrame, names: Sequence[str], results: Results
) -> Analysis:
    """The same as `local.backtest`, over histories that are in Spark; the scores are the table of the `results`. The driver
    holds a few of them for each target. Raises InputError.
    """
    check(spark, job, recorded, names)
    seen = Observation()
    with watch(spark, f"replaying {len(names)} targets"), input_errors(), small_batches(spark):
        told = score(spark, job, recorded, names).observe(seen, F.sum("decisions").alias("decisions"))
        results.write("scores", told.select(*SCORES.fieldNames()))
    scores = results.table("scores")
    with watch(spark, "ranking"):
        choices, everywhere = ranked(scores, job)
    with watch(spark, "comparing with the running policies"):
        works = ((name, work) for name, work in job.comparings(choices))
        compared = [comparison_of(bytes(row.result)) for row in _outcomes(spark, recorded, job, works)]
    comparisons = sorted(compared, key=lambda each: each.target)  # Spark gives them in the order of its tasks
    return analyse(job, choices, comparisons, everywhere, seen.get["decisions"])


def check(spark: SparkSession, job: Job, recorded: DataFrame, names: Sequence[str]) -> None:
    """Raises InputError with the problems of all targets, before anything is replayed."""
    source = None if job.base is not None else job.candidates.source
    with watch(spark, "checking the history"):
        _outcomes(spark, recorded, job, ((name, Preparing()) for name in names), source)


def score(spark: SparkSession, job: Job, recorded: DataFrame, names: Sequence[str]) -> DataFrame:
    """SCORED of all candidates. A task that meets what cannot be replayed raises InputError."""
    spans = job.spans(names, workers_of(spark))
    plans = _plans(spark, job, ((target, Span(first, last)) for target, first, last in spans))
    policies = {job.base: encoded(job.policies(job.base))} if job.base is not None else {}
    work = partial(scored, policies=policies, source=job.candidates.source)
    return replayed(recorded, plans[0], partitions=plans[1], work=work, gives=SCORED)


def ranked(scores: DataFrame, job: Job) -> tuple[dict[str, Choice], Choice | None]:
    """The choice of each target, and the one for all, as `choose` and `for_all` make them. The choices of targets that are not
    drawn have the scores of the candidates that are told of them.
    """
    budget = job.settings.rules.late_budget
    best = sorted(collected(chosen(scores, budget)), key=lambda row: row.target)
    alike = len(best) > 1 and len({row.names for row in best}) == 1
    everywhere = None
    if alike:
        everywhere = choose(_rows(totals(scores), job), late_budget=budget)[""]
        everywhere = msgspec.structs.replace(everywhere, target=EVERYWHERE)
    told = {BASELINE, *([everywhere.recommended] if everywhere is not None else ())}
    recommended = scores.sparkSession.createDataFrame(
        [(row.target, row.recommended) for row in best], "target string, recommended string"
    )
    own = scores.join(F.broadcast(recommended), on="target", how="inner").where(
        F.col("candidate").isin(sorted(told)) | (F.col("candidate") == F.col("recommended"))
    )
    some = choose(_rows(own, job), late_budget=budget)
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


def _rows(scores: DataFrame, job: Job) -> list[Row]:
    """SCORES of few targets, by target and in the order of the candidates."""
    order = {name: place for place, name in enumerate(job.candidates.names)}
    rows = [row_of(line.asDict()) for line in collected(scores.select(*SCORES.fieldNames()))]
    return sorted(rows, key=lambda row: (row.target, order[row.candidate], row.part == "held_out"))


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """While histories are handed to workers."""
    before = str(spark.conf.get(BATCH_SETTING))
    try_setting(spark, BATCH_SETTING, HISTORIES_PER_BATCH)
    try:
        yield
    finally:
        try_setting(spark, BATCH_SETTING, before)  # the session may be a notebook's


def workers_of(spark: SparkSession) -> int:
    """Tasks that Spark runs at a time: what it cuts a range into by itself, which sessions of all kinds tell."""
    return spark.range(1 << 12).select(F.spark_partition_id()).distinct().count()


def _plans(
    spark: SparkSession, job: Job, works: Iterable[tuple[str, Span | Comparing | Preparing]]
) -> tuple[DataFrame, int]:
    """PLANS of works, and into how many partitions they are spread."""
    plans = [
        (
            target,
            number,
            encoded(Task(job.settings, job.metric(target), job.interval(target), job.base_of(target), work)),
        )
        for number, (target, work) in enumerate(works)
    ]
    return spark.createDataFrame(plans, PLANS), min(len(plans), 4 * workers_of(spark))


def _outcomes(
    spark: SparkSession,
    recorded: DataFrame,
    job: Job,
    works: Iterable[tuple[str, Comparing | Preparing]],
    source: Source | None = None,
) -> list[Any]:
    """OUTCOMES of each work, in no order. Raises InputError with the problems of all targets."""
    plans, partitions = _plans(spark, job, works)
    with small_batches(spark):
        work = partial(outcomes, source=source)
        found = collected(replayed(recorded, plans, partitions=partitions, work=work))
    if problems := [row.problem for row in found if row.problem is not None]:
        raise refused(problems)
    return found


def load(spark: SparkSession, results: Results, settings: Settings, found: Analysis) -> str:
    """Writes recommendations and the report beside the scores; returns the report's path."""
    advised = [msgspec.structs.asdict(line) for line in advice(found)]
    results.write("recommendations", spark.createDataFrame(advised, RECOMMENDATIONS))
    told = {**counts(found), "quarantined": set_aside(spark, settings.quarantine)}
    closed = gates.closed_by(settings.allow, told, GATES)
    results.tell(
        inputs={"arrivals": settings.arrivals, "log": settings.log},
        counts=told,
        settings={"from": settings.since, "to": settings.until, "config": settings.config},
        closed=closed,
    )
    results.publish()
    path = write_report(spark, partial(report_of, found), settings.output)
    gates.check(closed, path)
    return path


def command(
    grid: Annotated[Path, Argument(help="TOML file of the parameters to try; see docs/backtesting.md.")],
    arrivals: Annotated[
        str | None, Option(help="Arrivals as CSV or .parquet: t, arrivals and, for several targets, target.")
    ] = None,
    log: Annotated[
        str | None, Option(help="Scaling log: folder of JSON lines, or table://<connection>.")
    ] = None,
    since: Since = None,
    until: Until = None,
    config: Annotated[Path, Option(help="The configuration with the running policies.")] = Path(
        "tidemark.toml"
    ),
    root: Root = ROOT_FOLDER,
    output: cli.Output = None,
    format_: cli.Format = "parquet",
    quarantine: cli.Quarantine = None,
    allow: Allow = None,
    cores: cli.Cores = None,
    memory: cli.Memory = "2g",
) -> None:
    """Recorded metrics against a grid of rules: late messages, cost, actions, and what to set.

    The decisions are made by the product's own code; a queueing model answers them. Writes the tables scores and
    recommendations, and a report. For a few targets `tidemark backtest` does the same without Spark.
    """
    folder, fmt = output or cli.default_output(NAME), check_format(format_)
    bounds = moment("--from", since), moment("--to", until)
    limits = gates.read_limits(allow or (), GATES)
    settings = Settings(
        grid, config, arrivals, log, folder, fmt, quarantine, *bounds, app_settings(root), limits
    )
    spark = spark_session(NAME, cores=cores, memory=memory)
    typer.echo(run(spark, settings))


if __name__ == "__main__":
    cli.run_command(command)
