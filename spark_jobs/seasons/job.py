"""`tidemark spark seasons`: the profiles and schedules of many targets, with the figures of `tidemark seasons`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

import typer
from pyspark.sql import SparkSession

from spark_jobs import cli
from spark_jobs.frame import AppJobOptions, Arrivals, Log, finish
from spark_jobs.per_target import HistorySettings, recorded, replay
from spark_jobs.schemas import row_schema
from spark_jobs.seasons.tasks import Task, work
from spark_jobs.tables.results import Results
from tidemark.analysis.advise.local import metric_for, read_targets, spec_of
from tidemark.analysis.advise.options import QueueOptions
from tidemark.analysis.advise.question import Options
from tidemark.analysis.options import CONFIG, Config, with_groups
from tidemark.analysis.seasons import local, page, tables
from tidemark.analysis.seasons.profile import Profile
from tidemark.analysis.seasons.tables import LIMITED, totals

NAME = "seasons"


@dataclass(frozen=True, kw_only=True)
class Settings(HistorySettings):
    """`zone` and `share` as `profile` has them."""

    options: Options
    zone: str = "UTC"
    share: float = 0.5


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. Raises InputError; CheckFailedError, when all is written, where more
    was found than is allowed.
    """
    targets = read_targets(settings.config, settings.app_settings or os.environ)
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    with recorded(spark, settings) as history:
        tasks: list[tuple[str, Task]] = []
        for name in history.names:
            spec = spec_of(name, targets)
            metric = metric_for(spec, settings.options)
            tasks.append((name, Task(settings.options, spec, metric, settings.zone, settings.share)))
        doing = f"learning the weeks of {len(tasks)} targets"
        profiles = replay(spark, history.histories, tasks, work, Profile, doing)
    made = [tables.rows_of(profile) for profile in profiles]
    for name, columns in tables.ALL.items():
        schema = row_schema(columns)
        rows = [
            tuple(row[column] for column in schema.fieldNames()) for tables in made for row in tables[name]
        ]
        results.write(name, spark.createDataFrame(rows, schema))
    return finish(
        spark,
        results,
        settings,
        partial(page.report_of, profiles),
        rows=[history.rows],
        inputs=settings.inputs,
        counts=totals(profiles),
        limited=LIMITED,
        asked={"config": settings.config, "zone": settings.zone},
    )


@with_groups
def command(
    *,
    arrivals: Arrivals = None,
    log: Log = None,
    load: QueueOptions,
    time_zone: local.Zone = "UTC",
    share: local.Share = local.SHARE,
    config: Config = CONFIG,
    job: AppJobOptions,
) -> None:
    """What targets need by the hour of the week, as a `schedule` to paste, with its error on weeks that were held out.

    Over all targets of the history; for one of them `tidemark seasons` does the same without Spark. Writes the tables floors
    and schedules, and a report.
    """
    settings = Settings(
        options=load.read(),
        zone=local.zone_of(time_zone),
        share=local.share_of(share),
        config=config,
        arrivals=arrivals,
        log=log,
        **job.read(NAME, LIMITED),
    )
    typer.echo(run(job.session(NAME), settings))


if __name__ == "__main__":
    cli.run_command(command)
