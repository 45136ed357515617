"""`tidemark spark advise`: the advice over many targets, with the figures of `tidemark advise`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from typer import Option

from spark_jobs import cli
from spark_jobs.advise.schemas import ADVICE, TAKEN
from spark_jobs.advise.tasks import Done, Task, done_of, encoded, outcomes
from spark_jobs.backtest.job import extract, small_batches, workers_of
from spark_jobs.backtest.schemas import PLANS
from spark_jobs.backtest.transforms import histories, replayed, targets_of
from spark_jobs.platform.output import check_format
from spark_jobs.platform.progress import watch
from spark_jobs.platform.results import Results
from spark_jobs.platform.rows import RowAccount, cached, collected
from spark_jobs.reports.report_files import write_report
from spark_jobs.sources.files.spark_files import set_aside
from spark_jobs.sources.registration import spark_session
from tidemark.analysis.advise import local, page
from tidemark.analysis.advise.answered import GATES, Answer, answer, counts, flat
from tidemark.analysis.advise.question import Options
from tidemark.analysis.backtest.analysis import refused
from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.analysis.gates import Limits, check, closed_by, read_limits
from tidemark.analysis.option_values import moment
from tidemark.analysis.options import ROOT_FOLDER, Allow, Root, Since, Until, app_settings
from tidemark.analysis.report import Report

NAME = "advise"

BLOCKS = 14
"""Most tasks a target is cut into: about as many as there are policies."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths: `config` is read by the driver, `arrivals` and `log` by Spark."""

    config: Path
    options: Options
    arrivals: str | None = None
    log: str | None = None
    output: str = cli.default_output(NAME)
    fmt: str = "parquet"
    quarantine: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    app_settings: Mapping[str, str] | None = field(default=None, repr=False)
    """What the configuration and the scaling log's table refer to; None: the environment."""
    allow: Limits = field(default_factory=dict)
    """Of GATES."""


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. Raises InputError; GateClosedError, when all is written, where more
    was found than is allowed.
    """
    check_format(settings.fmt)
    targets = local.read_targets(settings.config, settings.app_settings or os.environ)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    account = RowAccount("the history")
    with cached(histories(extract(spark, settings, account))) as recorded:
        with watch(spark, "reading the history"):
            names = targets_of(recorded, account)
        answers = advised(spark, recorded, names, settings.options, targets)
        make = partial(_page, spark, recorded, settings.options, targets, answers)
        return load(spark, results, settings, answers, make)


def advised(
    spark: SparkSession,
    recorded: DataFrame,
    names: Sequence[str],
    options: Options,
    targets: Targets | None,
) -> list[Answer]:
    """The answers of all recorded targets, by name. Raises InputError with the problems of all of them."""
    if not names:
        raise refused(["the history is empty: it names no target"])
    return _answers(spark, recorded, names, options, targets, drawn=len(names) <= page.DRAWN)


def _page(
    spark: SparkSession,
    recorded: DataFrame,
    options: Options,
    targets: Targets | None,
    found: Sequence[Answer],
) -> Report:
    """Of many targets, those that are drawn are replayed once more, with lines over time."""
    if len(found) <= page.DRAWN:
        return page.report_of(found)
    most = [each.question.target.name for each in page.drawn(found)]
    again = {
        each.question.target.name: each
        for each in _answers(spark, recorded, most, options, targets, drawn=True)
    }
    return page.report_of([again.get(each.question.target.name, each) for each in found])


def _answers(
    spark: SparkSession,
    recorded: DataFrame,
    names: Sequence[str],
    options: Options,
    targets: Targets | None,
    *,
    drawn: bool,
) -> list[Answer]:
    """The answers of some targets, in their order; with lines over time where these are to be `drawn`."""
    done = _done(spark, recorded, names, options, targets, drawn=drawn)
    by_target: dict[str, list[Done]] = {name: [] for name in names}
    for each in done:
        by_target[each.question.target.name].append(each)
    answers = []
    for name, own in by_target.items():
        rows = {number: row for each in own for number, row in each.rows.items()}
        ordered = [rows[number] for number in sorted(rows)]
        answers.append(answer(own[0].question, options, ordered, local.table_of(name, targets)))
    return answers


def _done(
    spark: SparkSession,
    recorded: DataFrame,
    names: Sequence[str],
    options: Options,
    targets: Targets | None,
    *,
    drawn: bool,
) -> list[Done]:
    blocks = min(max(-(-4 * workers_of(spark) // max(len(names), 1)), 1), BLOCKS)
    plans: list[tuple[str, int, bytes]] = []
    for name in names:
        spec = local.spec_of(name, targets)
        metric = local.metric_for(spec, options)
        tasks = (Task(options, spec, metric, block, blocks, drawn) for block in range(blocks))
        plans += [(name, len(plans) + task.block, encoded(task)) for task in tasks]
    with watch(spark, f"replaying {len(names)} targets"), small_batches(spark):
        frame = spark.createDataFrame(plans, PLANS)
        partitions = max(min(len(plans), 4 * workers_of(spark)), 1)
        found = collected(replayed(recorded, frame, partitions=partitions, work=outcomes))
    if problems := [row.problem for row in found if row.problem is not None]:
        raise refused(problems)
    return [done_of(bytes(row.result)) for row in found]


def load(
    spark: SparkSession,
    results: Results,
    settings: Settings,
    answers: Sequence[Answer],
    make: Callable[[], Report],
) -> str:
    """Writes both tables and the report; returns the report's path."""
    rows = [row for found in answers for row in flat(found)]
    results.write("advice", spark.createDataFrame(rows, ADVICE))
    taken = [(a.question.target.name, a.choice.taken, a.choice.why, a.toml) for a in answers]
    results.write("taken", spark.createDataFrame(taken, TAKEN))
    told = {**counts(answers), "quarantined": set_aside(spark, settings.quarantine)}
    closed = closed_by(settings.allow, told, GATES)
    results.tell(
        inputs={"arrivals": settings.arrivals, "log": settings.log},
        counts=told,
        settings={"from": settings.since, "to": settings.until, "config": settings.config},
        closed=closed,
    )
    results.publish()
    path = write_report(spark, make, settings.output)
    check(closed, path)
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
    service_rate: local.ServiceRate = None,
    concurrency: local.Concurrency = None,
    start_up: local.StartUp = None,
    wait_: local.Wait = None,
    late: local.Late = None,
    minimum: local.Minimum = None,
    maximum: local.Maximum = None,
    metric: local.Metric = None,
    price: local.Price = None,
    currency: local.Currency = "",
    config: local.Config = local.CONFIG,
    root: Root = ROOT_FOLDER,
    output: cli.Output = None,
    format_: cli.Format = "parquet",
    quarantine: cli.Quarantine = None,
    allow: Allow = None,
    cores: cli.Cores = None,
    memory: cli.Memory = "2g",
) -> None:
    """What today's policies, Azure Monitor autoscale, KEDA and service_level would have made of recorded load.

    Over all targets of the history; for one of them `tidemark advise` does the same without Spark. Writes the tables advice
    and taken, and a report.
    """
    options = local.options_of(
        service_rate=service_rate,
        concurrency=concurrency,
        start_up=start_up,
        wait=wait_,
        late=late,
        minimum=minimum,
        maximum=maximum,
        metric=metric,
        price=price,
        currency=currency,
    )
    folder, fmt = output or cli.default_output(NAME), check_format(format_)
    bounds = moment("--from", since), moment("--to", until)
    limits = read_limits(allow or (), GATES)
    settings = Settings(
        config, options, arrivals, log, folder, fmt, quarantine, *bounds, app_settings(root), limits
    )
    spark = spark_session(NAME, cores=cores, memory=memory)
    typer.echo(run(spark, settings))


if __name__ == "__main__":
    cli.run_command(command)
