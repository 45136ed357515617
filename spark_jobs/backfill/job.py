"""The job `backfill`: captured events into Cosmos DB, at a rate that all tasks share, and again without harm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, cast

import typer
from pyspark.sql import SparkSession
from typer import Option

from consumer.definition.model import HubDefinition
from consumer.sinks.cosmos.bulk import WriteMode
from spark_jobs import cli
from spark_jobs.backfill.report import Backfilled, report_of
from spark_jobs.backfill.run import BackfillSettings, backfill, settled_rows
from spark_jobs.backfill.target import read_target
from spark_jobs.backfill.transforms import POSITION, Selection
from spark_jobs.frame import CAPTURE_LAG, AppJobOptions, CaptureLag, JobSettings, finish, option_words
from spark_jobs.platform.consumer_hub import HubName, SinkName
from spark_jobs.sources.capture.capture import read_capture
from spark_jobs.sources.files.path_times import FileFilter
from spark_jobs.tables.results import Results
from tidemark.analysis.errors import InputError
from tidemark.analysis.option_values import seconds
from tidemark.analysis.options import with_groups
from tidemark.analysis.report import Report

NAME = "backfill"
LIMITED = dict.fromkeys(("dead-letters", "absent", "quarantined"), "events")
"""`absent` are missing events that no capture file has."""
COUNTS = ("written", "existed", "dead_letters", "skipped")
PARTITIONS = (
    "partition string, events long, written long, existed long, dead_letters long, settled_before long, "
    "request_units double"
)
"""The table `partitions`; of COUNTS, `skipped` is called `settled_before` there."""


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """`target` is as `read_target` gives it; `selection` bounds the time as the settings do."""

    capture: str
    selection: Selection
    budget: BackfillSettings
    target: HubDefinition = field(repr=False)
    hub: str | None = None
    """Of CONSUMER_FILE; None: its only one, or that of the settings."""
    sink: str | None = None
    """Of the hub; None: its only one to Cosmos DB."""


@with_groups
def command(
    *,
    capture: Annotated[str, Option(help="Folder of the capture files (Avro).")],
    hub: HubName = None,
    sink: SinkName = None,
    ru_per_second: Annotated[
        float | None, Option(help="Request units per second, of all tasks together.")
    ] = None,
    records_per_second: Annotated[
        int | None, Option(help="Records per second, of all tasks together.")
    ] = None,
    mode: Annotated[
        str,
        Option(help="create leaves documents that exist as they are; upsert replaces them, newer ones too."),
    ] = "create",
    capture_lag: CaptureLag = CAPTURE_LAG,
    partitions: Annotated[str, Option(help="Only these partitions of the hub, such as 0,1,5.")] = "",
    only_missing: Annotated[
        str | None,
        Option(help="Only the events that a table of the job reconciliation lists: <its output>/unsettled."),
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Write once more what earlier runs of the same events have settled.")
    ] = False,
    coordinator_port: Annotated[
        int, Option(min=0, max=65535, help="Port on the driver for the tasks; 0: any.")
    ] = 0,
    job: AppJobOptions,
) -> None:
    """Writes captured events into Cosmos DB with the consumer's settings, at a rate that all tasks share.

    Stopped or killed, the same command goes on where it was. Events that can never be written become dead letters.
    """
    budget = BackfillSettings(_mode(mode), ru_per_second, records_per_second, again, coordinator_port)
    names = tuple(name.strip() for name in partitions.split(",") if name.strip())
    given = job.read(NAME, LIMITED)
    lag = seconds("--capture-lag", capture_lag)
    selection = Selection(given["since"], given["until"], names, only_missing, lag)
    budget.shares()
    target = read_target(given["app_settings"], budget.mode, hub=hub, sink=sink)
    settings = Settings(
        capture=capture, selection=selection, budget=budget, target=target, hub=hub, sink=sink, **given
    )
    for line in run(job.session(NAME), settings):
        typer.echo(line)


def run(spark: SparkSession, settings: Settings) -> Sequence[str]:
    """Backfills, and reports; returns the lines to print. Raises JobError; CheckFailedError as `save`."""
    selection, target = settings.selection, settings.target
    # A folder at fault is refused before anything is written.
    Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    name = target.config.hub
    wanted = FileFilter(selection.since, selection.until, name, selection.partitions, selection.capture_lag)
    read = partial(read_capture, spark, settings.capture, quarantine=settings.quarantine, wanted=wanted)
    positions, events = read(columns=(*POSITION, "enqueued_at")), read()
    done = backfill(events, selection, settings.budget, target, positions=positions)
    if done is None:
        return (f"{selection.only_missing} lists no missing events of this hub: nothing to do",)
    asked = {"only-missing": selection.only_missing, "mode": settings.budget.mode}
    path = save(spark, done, settings, check=_check_options(settings), capture=settings.capture, asked=asked)
    return (*done.lines, f"report: {path}")


def save(
    spark: SparkSession,
    done: Backfilled,
    settings: JobSettings,
    *,
    check: Sequence[str] = (),
    capture: str = "",
    asked: Mapping[str, object] | None = None,
) -> str:
    """Writes the table `partitions` and the report; returns the report's page. `check` are options of the job that checks it. Raises CheckFailedError where more is left out
    than is allowed.
    """
    rows = [
        (plan.partition, plan.events, *(getattr(counts, name) for name in COUNTS), counts.request_units)
        for plan in done.plan
        for counts in (done.partitions[plan.partition],)
    ]
    about = {"hub": done.hub, "target": done.target}
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt, about=about)
    results.write("partitions", spark.createDataFrame(rows, PARTITIONS))
    totals = {
        name: sum(getattr(partition, name) for partition in done.partitions.values()) for name in COUNTS
    }
    return finish(
        spark,
        results,
        settings,
        partial(_page, done, check or ("--capture", capture or "capture/")),
        rows=settled_rows(done.plan, done.partitions),
        inputs={"capture": capture},
        counts={
            "events": sum(plan.events for plan in done.plan),
            **totals,
            "dead-letters": totals["dead_letters"],
            "absent": done.not_captured,
        },
        limited=LIMITED,
        asked=asked,
    )


def _check_options(settings: Settings) -> list[str]:
    """The options by which a reconciliation reads the same files, and is about the same sink."""
    given = {
        "--root": settings.other_root,
        "--capture": settings.capture,
        "--hub": settings.hub,
        "--sink": settings.sink,
        "--quarantine": settings.quarantine,
    }
    return option_words(given)


def _page(done: Backfilled, check: Sequence[str]) -> Report:
    report = report_of(done)
    check_all = ("tidemark", "spark", "reconciliation", *check)
    report.next_step("whether any event is neither in the database nor a dead letter", *check_all)
    return report


def _mode(text: str) -> WriteMode:
    if text not in {"create", "upsert"}:
        raise InputError(f"--mode is '{text}'; accepted: create, upsert")
    return cast("WriteMode", text)


if __name__ == "__main__":
    cli.run_command(command)
