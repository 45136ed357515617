"""`tidemark spark seasons`: the profiles and schedules of many targets, with the figures of `tidemark seasons`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from typer import Option

from spark_jobs import cli
from spark_jobs.backtest.job import extract, small_batches, workers_of
from spark_jobs.backtest.schemas import PLANS
from spark_jobs.backtest.transforms import histories, replayed, targets_of
from spark_jobs.platform.output import check_format
from spark_jobs.platform.progress import watch
from spark_jobs.platform.results import Results
from spark_jobs.platform.rows import RowAccount, cached, collected
from spark_jobs.reports.report_files import write_report
from spark_jobs.schemas import row_schema
from spark_jobs.seasons.tasks import Task, encoded, outcomes, profile_of
from spark_jobs.sources.files.spark_files import set_aside
from spark_jobs.sources.registration import spark_session
from tidemark.analysis import gates
from tidemark.analysis.advise import local as advise
from tidemark.analysis.advise.question import Options
from tidemark.analysis.backtest.analysis import refused
from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.analysis.option_values import moment
from tidemark.analysis.options import ROOT_FOLDER, Allow, Root, Since, Until, app_settings
from tidemark.analysis.seasons import local, page, tables
from tidemark.analysis.seasons.profile import Profile
from tidemark.analysis.seasons.tables import GATES, totals

NAME = "seasons"


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths: `config` is read by the driver, `arrivals` and `log` by Spark. `zone` and `share` as `profile` has them."""

    config: Path
    options: Options
    zone: str = "UTC"
    share: float = 0.5
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
    targets = advise.read_targets(settings.config, settings.app_settings or os.environ)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    account = RowAccount("the history")
    with cached(histories(extract(spark, settings, account))) as recorded:
        with watch(spark, "reading the history"):
            names = targets_of(recorded, account)
        profiles = profiled(spark, recorded, names, settings, targets)
    return load(spark, results, settings, profiles)


def profiled(
    spark: SparkSession,
    recorded: DataFrame,
    names: Sequence[str],
    settings: Settings,
    targets: Targets | None,
) -> list[Profile]:
    """The profiles of all recorded targets, by name. Raises InputError with the problems of all of them."""
    if not names:
        raise refused(["the history is empty: it names no target"])
    plans: list[tuple[str, int, bytes]] = []
    for number, name in enumerate(names):
        spec = advise.spec_of(name, targets)
        metric = advise.metric_for(spec, settings.options)
        task = Task(settings.options, spec, metric, settings.zone, settings.share)
        plans.append((name, number, encoded(task)))
    with watch(spark, f"learning the weeks of {len(names)} targets"), small_batches(spark):
        frame = spark.createDataFrame(plans, PLANS)
        partitions = max(min(len(plans), 4 * workers_of(spark)), 1)
        found = collected(replayed(recorded, frame, partitions=partitions, work=outcomes))
    if problems := [row.problem for row in found if row.problem is not None]:
        raise refused(problems)
    return sorted((profile_of(bytes(row.result)) for row in found), key=lambda each: each.target)


def load(spark: SparkSession, results: Results, settings: Settings, profiles: Sequence[Profile]) -> str:
    """Writes both tables and the report; returns the report's path."""
    made = [tables.rows_of(each) for each in profiles]
    for name, columns in tables.ALL.items():
        schema = row_schema(columns)
        rows = [tuple(row[column] for column in schema.fieldNames()) for each in made for row in each[name]]
        results.write(name, spark.createDataFrame(rows, schema))
    told = {**totals(profiles), "quarantined": set_aside(spark, settings.quarantine)}
    closed = gates.closed_by(settings.allow, told, GATES)
    results.tell(
        inputs={"arrivals": settings.arrivals, "log": settings.log},
        counts=told,
        settings={
            "from": settings.since,
            "to": settings.until,
            "config": settings.config,
            "zone": settings.zone,
        },
        closed=closed,
    )
    results.publish()
    path = write_report(spark, partial(page.report_of, profiles), settings.output)
    gates.check(closed, path)
    return path


def command(
    arrivals: Annotated[
        str | None, Option(help="Arrivals as CSV or .parquet: t, arrivals and, for several targets, target.")
    ] = None,
    log: Annotated[
        str | None, Option(help="Scaling log: folder of JSON lines, or table://<connection>.")
    ] = None,
    since: Since = None,
    until: Until = None,
    service_rate: advise.ServiceRate = None,
    concurrency: advise.Concurrency = None,
    start_up: advise.StartUp = None,
    minimum: advise.Minimum = None,
    maximum: advise.Maximum = None,
    metric: advise.Metric = None,
    time_zone: local.Zone = "UTC",
    share: local.Share = local.SHARE,
    config: advise.Config = advise.CONFIG,
    root: Root = ROOT_FOLDER,
    output: cli.Output = None,
    format_: cli.Format = "parquet",
    quarantine: cli.Quarantine = None,
    allow: Allow = None,
    cores: cli.Cores = None,
    memory: cli.Memory = "2g",
) -> None:
    """What targets need by the hour of the week, as a `schedule` to paste, with its error on weeks that were held out.

    Over all targets of the history; for one of them `tidemark seasons` does the same without Spark. Writes the tables floors
    and schedules, and a report.
    """
    options = advise.options_of(
        service_rate=service_rate, concurrency=concurrency, start_up=start_up, wait=None, late=None,
        minimum=minimum, maximum=maximum, metric=metric, price=None, currency="",
    )  # fmt: skip
    zone, wanted = local.zone_of(time_zone), local.share_of(share)
    folder, fmt = output or cli.default_output(NAME), check_format(format_)
    bounds = moment("--from", since), moment("--to", until)
    limits = gates.read_limits(allow or (), GATES)
    known = app_settings(root)
    settings = Settings(
        config, options, zone, wanted, arrivals, log, folder, fmt, quarantine, *bounds, known, limits
    )
    spark = spark_session(NAME, cores=cores, memory=memory)
    typer.echo(run(spark, settings))


if __name__ == "__main__":
    cli.run_command(command)
