"""`tidemark spark backtest`: the backtest over many targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import typer
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from typer import Argument, Option

from spark_jobs import cli
from spark_jobs.backtest.analysis import Analysis, Job, advice, analyse, plan_job, refused
from spark_jobs.backtest.candidates.recommend import choose
from spark_jobs.backtest.local import read_settings
from spark_jobs.backtest.page import report_of
from spark_jobs.backtest.replay.score import Row, flat
from spark_jobs.backtest.schemas import PLANS, RECOMMENDATIONS, SCORES
from spark_jobs.backtest.tasks import Task, comparison_of, encoded, rows_of
from spark_jobs.backtest.transforms import arrivals_as_readings, histories, log_as_readings, replayed
from spark_jobs.backtest.work import Work
from spark_jobs.errors import InputError
from spark_jobs.platform.output import check_format, is_delta, read_parquet_or_delta
from spark_jobs.platform.progress import watch
from spark_jobs.platform.results import Results
from spark_jobs.platform.rows import cached, collected
from spark_jobs.platform.session import try_setting
from spark_jobs.reports.report_files import write_report
from spark_jobs.sources.records.telemetry import read_decisions
from spark_jobs.sources.registration import spark_session

NAME = "backtest"

BATCH_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
HISTORIES_PER_BATCH = "16"
"""Rows handed to a worker at once: a row holds a whole history, and 10,000 of them, the default, no worker could."""

_Result = TypeVar("_Result")


class Inputs(Protocol):
    """Where recorded load is."""

    @property
    def arrivals(self) -> str | None: ...
    @property
    def log(self) -> str | None: ...
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
    app_settings: Mapping[str, str] | None = field(default=None, repr=False)
    """What the configuration and the scaling log's table refer to; None: the environment."""


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. Raises InputError."""
    check_format(settings.fmt)
    plan, targets = read_settings(settings.grid, settings.config, settings.app_settings or os.environ)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    before = str(spark.conf.get(BATCH_SETTING))
    with cached(histories(extract(spark, settings))) as recorded:
        try_setting(spark, BATCH_SETTING, HISTORIES_PER_BATCH)
        try:
            with watch(spark, "reading the history"):
                names = [row.target for row in collected(recorded.select("target"))]
            job = plan_job(plan, targets, names)
            found, rows = backtest(spark, job, recorded, names)
        finally:
            try_setting(spark, BATCH_SETTING, before)  # the session may be a notebook's
    return load(spark, results, settings, found, rows)


def extract(spark: SparkSession, settings: Inputs) -> DataFrame:
    """READINGS of all inputs. Raises InputError when none is given."""
    frames: list[DataFrame] = []
    if settings.arrivals is not None:
        frames.append(arrivals_as_readings(_table(spark, settings.arrivals)))
    if settings.log is not None:
        entries = read_decisions(
            spark, settings.log, quarantine=settings.quarantine, settings=settings.app_settings
        )
        frames.append(log_as_readings(entries))
    if not frames:
        raise InputError("no history: give --arrivals, --log or both")
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _table(spark: SparkSession, path: str) -> DataFrame:
    """A Parquet table, or CSV files as texts with the column `file`, the name of each without its ending."""
    try:
        if path.rstrip("/").endswith(".parquet") or is_delta(spark, path):
            return read_parquet_or_delta(spark, path)
        name = F.regexp_replace(F.col("_metadata.file_name"), r"\.csv(\.gz)?$", "")
        texts = spark.read.option("recursiveFileLookup", "true").csv(path, header=True)
        return texts.select("*", name.alias("file"))
    except AnalysisException as error:
        raise InputError(f"--arrivals {path} cannot be read: {str(error).splitlines()[0]}") from error


def backtest(
    spark: SparkSession, job: Job, recorded: DataFrame, names: Sequence[str]
) -> tuple[Analysis, list[Row]]:
    """The same as `local.backtest`, over histories that are in Spark. Raises InputError."""
    rows = score(spark, job, recorded, names)
    choices = choose(rows, late_budget=job.settings.rules.late_budget)
    with watch(spark, "comparing with the running policies"):
        compared = _results(spark, recorded, job, job.comparings(choices), comparison_of)
    comparisons = sorted(compared, key=lambda each: each.target)  # Spark gives them in the order of its tasks
    return analyse(job, choices, comparisons), rows


def score(spark: SparkSession, job: Job, recorded: DataFrame, names: Sequence[str]) -> list[Row]:
    """Scores of all candidates, by target and in the order of the candidates. Raises InputError."""
    with watch(spark, f"replaying {len(names)} targets"):
        scored = _results(spark, recorded, job, job.scorings(names, workers_of(spark)), rows_of)
    order = {
        name: place
        for policies in job.candidates.values()
        for place, name in enumerate(candidate.name for candidate in policies)
    }
    return sorted(
        (row for found in scored for row in found),
        key=lambda row: (row.target, order[row.candidate], row.part == "held_out"),
    )


def workers_of(spark: SparkSession) -> int:
    """Tasks that Spark runs at a time: what it cuts a range into by itself, which sessions of all kinds tell."""
    return spark.range(1 << 12).select(F.spark_partition_id()).distinct().count()


def _results(
    spark: SparkSession,
    recorded: DataFrame,
    job: Job,
    works: Iterable[tuple[str, Work]],
    decode: Callable[[bytes], _Result],
) -> list[_Result]:
    """What each work gave, in no order. Raises InputError with the problems of all targets."""
    plans = [
        (target, number, encoded(Task(job.settings, job.metric(target), job.interval(target), work)))
        for number, (target, work) in enumerate(works)
    ]
    frame = spark.createDataFrame(plans, PLANS)
    partitions = min(len(plans), 4 * workers_of(spark))
    found = collected(replayed(recorded, frame, partitions=partitions))
    if problems := [row.problem for row in found if row.problem is not None]:
        raise refused(problems)
    return [decode(bytes(row.result)) for row in found]


def load(
    spark: SparkSession, results: Results, settings: Settings, found: Analysis, rows: Sequence[Row]
) -> str:
    """Writes scores, recommendations and the report; returns the report's path."""
    lines: list[dict[str, Any]] = [flat(row) for row in rows]
    results.write("scores", spark.createDataFrame(lines, SCORES))
    advised = [msgspec.structs.asdict(line) for line in advice(found)]
    results.write("recommendations", spark.createDataFrame(advised, RECOMMENDATIONS))
    results.publish()
    return write_report(spark, report_of(found), settings.output)


def command(
    grid: Annotated[Path, Argument(help="TOML file of the parameters to try; see docs/backtesting.md.")],
    arrivals: Annotated[
        str | None, Option(help="Arrivals as CSV or .parquet: t, arrivals and, for several targets, target.")
    ] = None,
    log: Annotated[
        str | None, Option(help="Scaling log: folder of JSON lines, or table://<connection>.")
    ] = None,
    config: Annotated[Path, Option(help="The configuration with the running policies.")] = Path(
        "tidemark.toml"
    ),
    root: cli.Root = Path(),
    output: cli.Output = None,
    format_: cli.Format = "parquet",
    quarantine: cli.Quarantine = None,
    cores: cli.Cores = None,
    memory: cli.Memory = "2g",
) -> None:
    """Recorded metrics against a grid of rules: late messages, cost, actions, and what to set.

    The decisions are made by the product's own code; a queueing model answers them. Writes the tables scores and
    recommendations, and a report. For a few targets `tidemark backtest` does the same without Spark.
    """
    folder, fmt = output or cli.default_output(NAME), check_format(format_)
    settings = Settings(grid, config, arrivals, log, folder, fmt, quarantine, cli.app_settings(root))
    spark = spark_session(NAME, cores=cores, memory=memory)
    typer.echo(run(spark, settings))


if __name__ == "__main__":
    cli.run_command(command)
