"""The job `backfill`: captured events into Cosmos DB, at a rate that all tasks share, and again without harm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, cast

import typer
from pyspark.sql import SparkSession
from typer import Option

from consumer.sinks.cosmos.bulk import WriteMode
from spark_jobs import cli
from spark_jobs.backfill.run import BackfillSettings, backfill
from spark_jobs.backfill.story import Backfilled, report_of
from spark_jobs.backfill.target import read_target
from spark_jobs.backfill.transforms import POSITION, Selection
from spark_jobs.errors import InputError
from spark_jobs.platform.output import check_format
from spark_jobs.platform.results import Results
from spark_jobs.reports.report_files import write_report
from spark_jobs.sources.capture.capture import read_capture
from spark_jobs.sources.files.path_times import Wanted
from spark_jobs.sources.files.spark_files import set_aside
from spark_jobs.sources.registration import spark_session
from tidemark.analysis.gates import Limits, check, exceeded, read_limits
from tidemark.analysis.option_values import moment, seconds
from tidemark.analysis.options import ROOT_FOLDER, Allow, Root, Since, Until, app_settings
from tidemark.analysis.report import Report

NAME = "backfill"
GATES = ("dead-letters", "absent", "quarantined")
"""`absent` are missing events that no capture file has."""
COUNTS = ("written", "existed", "dead_letters", "skipped")
PARTITIONS = (
    "partition string, events long, written long, existed long, dead_letters long, settled_before long, "
    "request_units double"
)
"""The table `partitions`; of COUNTS, `skipped` is called `settled_before` there."""


def command(
    capture: Annotated[str, Option(help="Folder of the capture files (Avro).")],
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
    since: Since = None,
    until: Until = None,
    capture_lag: cli.CaptureLag = cli.CAPTURE_LAG,
    partitions: Annotated[str, Option(help="Only these partitions of the hub, such as 0,1,5.")] = "",
    only_missing: Annotated[
        str | None,
        Option(help="Only the events that a table of the job reconciliation lists: <its output>/unsettled."),
    ] = None,
    root: Root = ROOT_FOLDER,
    again: Annotated[  # noqa: FBT002 - an option
        bool, Option("--again", help="Write once more what earlier runs of the same events have settled.")
    ] = False,
    coordinator_port: Annotated[
        int, Option(min=0, max=65535, help="Port on the driver for the tasks; 0: any.")
    ] = 0,
    allow: Allow = None,
    quarantine: cli.Quarantine = None,
    output: cli.Output = None,
    fmt: cli.Format = "parquet",
    cores: cli.Cores = None,
    memory: cli.Memory = "2g",
) -> None:
    """Writes captured events into Cosmos DB with the consumer's settings, at a rate that all tasks share.

    Stopped or killed, the same command goes on where it was. Events that can never be written become dead letters.
    """
    settings = BackfillSettings(_mode(mode), ru_per_second, records_per_second, again, coordinator_port)
    names = tuple(name.strip() for name in partitions.split(",") if name.strip())
    lag = seconds("--capture-lag", capture_lag)
    selection = Selection(moment("--from", since), moment("--to", until), names, only_missing, lag)
    environment = app_settings(root)
    settings.shares()
    limits = read_limits(allow or (), GATES)
    read_target(environment)
    check_format(fmt)
    spark = spark_session("tidemark backfill", cores=cores, memory=memory)
    folder = output or cli.default_output(NAME)
    told = run(
        spark,
        capture,
        selection,
        settings,
        environment,
        folder,
        quarantine=quarantine,
        fmt=fmt,
        allow=limits,
    )
    for line in told:
        typer.echo(line)


def run(
    spark: SparkSession,
    capture: str,
    selection: Selection,
    settings: BackfillSettings,
    environment: Mapping[str, str],
    folder: str,
    *,
    quarantine: str | None = None,
    fmt: str = "parquet",
    allow: Limits | None = None,
) -> Sequence[str]:
    """Backfills, and reports into `folder`; returns what to tell. Raises JobError; GateClosedError as `save`."""
    # What is wrong with the folder is told before anything is written.
    Results.begin(spark, folder, job=NAME, fmt=fmt)
    hub = read_target(environment).hub
    wanted = Wanted(selection.since, selection.until, hub, selection.partitions, selection.capture_lag)
    read = partial(read_capture, spark, capture, quarantine=quarantine, wanted=wanted)
    positions, events = read(columns=(*POSITION, "enqueued_at")), read()
    done = backfill(events, selection, settings, environment, positions=positions)
    if done is None:
        return (f"{selection.only_missing} lists no missing events of this hub: nothing to do",)
    told = {
        "from": selection.since,
        "to": selection.until,
        "only-missing": selection.only_missing,
        "mode": settings.mode,
    }
    aside = set_aside(spark, quarantine)
    path = save(spark, done, folder, fmt, capture=capture, settings=told, aside=aside, allow=allow)
    return (*done.lines, f"report: {path}")


def save(
    spark: SparkSession,
    done: Backfilled,
    folder: str,
    fmt: str = "parquet",
    *,
    capture: str = "",
    settings: Mapping[str, object] | None = None,
    aside: int | None = None,
    allow: Limits | None = None,
) -> str:
    """Writes the table `partitions` and the report; returns the report's page. `aside` are events in the quarantine. Raises
    GateClosedError where then more is left out than is allowed.
    """
    rows = [
        (each.partition, each.events, *(getattr(counts, name) for name in COUNTS), counts.request_units)
        for each in done.plan
        for counts in (done.partitions[each.partition],)
    ]
    results = Results.begin(spark, folder, job=NAME, fmt=fmt, about={"hub": done.hub, "target": done.target})
    results.write("partitions", spark.createDataFrame(rows, PARTITIONS))
    totals = {name: sum(getattr(each, name) for each in done.partitions.values()) for name in COUNTS}
    events = sum(each.events for each in done.plan)
    counts = {
        "events": events,
        **totals,
        "dead-letters": totals["dead_letters"],
        "absent": done.not_captured,
        "quarantined": aside,
    }
    closed = exceeded(allow or {}, counts, events)
    results.tell(inputs={"capture": capture}, counts=counts, settings=settings, closed=closed)
    results.publish()
    path = write_report(spark, partial(_page, done, capture or "capture/"), folder)
    check(closed, path)
    return path


def _page(done: Backfilled, capture: str) -> Report:
    report = report_of(done)
    check_all = ("tidemark", "spark", "reconciliation", "--capture", capture)
    report.next_step("whether any event is neither in the database nor a dead letter", *check_all)
    return report


def _mode(text: str) -> WriteMode:
    if text not in {"create", "upsert"}:
        raise InputError(f"--mode is '{text}'; accepted: create, upsert")
    return cast("WriteMode", text)


if __name__ == "__main__":
    cli.run_command(command)
