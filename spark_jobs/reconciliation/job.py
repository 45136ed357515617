"""The reconciliation: is every event of the hub in Cosmos DB or a dead letter? Exit status 3 if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from math import ceil
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from typer import Option

from consumer.definition.model import HubDefinition
from consumer.mapping.operations import write_options
from consumer.model import Checkpoint, Operation
from spark_jobs import cli
from spark_jobs.frame import CAPTURE_LAG, AppJobOptions, CaptureLag, JobSettings, finish, option_words
from spark_jobs.platform.consumer_hub import HubName, SinkName, cosmos_options, hub_on_cosmos, run_facts
from spark_jobs.platform.progress import watch
from spark_jobs.platform.rows import collected
from spark_jobs.platform.source_options import CONNECTION_STRING
from spark_jobs.reconciliation import page
from spark_jobs.reconciliation.extract import Sides, due_runs, extract, settled_runs, work_files
from spark_jobs.reconciliation.keys import (
    IGNORED,
    WITH_TOMBSTONES,
    event_columns,
    may_be_several,
    with_ids,
)
from spark_jobs.reconciliation.schemas import UNSETTLED, Status
from spark_jobs.reconciliation.transforms import (
    Due,
    by_column,
    by_hour,
    duplicates,
    gaps,
    holes,
    judged,
)
from spark_jobs.sources.capture.capture import TaskTransform, read_capture
from spark_jobs.sources.event_hubs.settings import created_at
from spark_jobs.sources.event_hubs.source import read_event_hub
from spark_jobs.sources.files.path_times import FileFilter
from spark_jobs.tables.results import Results
from tidemark.analysis.errors import CHECK_FAILED, InputError, job_errors
from tidemark.analysis.limits import RowCount
from tidemark.analysis.option_values import seconds
from tidemark.analysis.options import with_groups
from tidemark.analysis.report import Report
from tidemark.foundation.azure.connections import connection_string
from tidemark.foundation.log.terminal import Console

JOB = "reconciliation"
LIMITED = dict.fromkeys(("pending", "copies", "quarantined"), "events")
"""What --allow knows; shares are of the events. Findings are a no in any case."""
PARTITIONS_TOLD = 32
"""In the row of a run, of which a hundred are kept: all of most hubs. The table hours has all."""
_ORDER = ("partition", "sequence_number")


class OnGap(StrEnum):
    FAIL = "fail"
    REPORT = "report"


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """`consumer` are the app settings of the consumer whose work is checked. Raises InputError for what cannot be."""

    consumer: Mapping[str, str] = field(repr=False)
    hub: str | None = None
    """Of CONSUMER_FILE; None: its only one, or that of the settings."""
    sink: str | None = None
    """Of the hub; None: its only one to Cosmos DB."""
    capture: str | None = None
    """None: the hub itself is read, from its first event to what was the last when the job began."""
    consumer_group: str = "$Default"
    """Of the hub, to read it with; not the consumer's own."""
    capture_lag: timedelta = timedelta(hours=1)
    """With a bound of time: how much later than its events a capture file may be named."""
    grace: timedelta | None = None
    checkpoints: bool = True
    on_gap: OnGap = OnGap.FAIL
    request_units: float | None = None
    """Per second, for reading documents."""
    now: datetime | None = None
    """What the grace counts from; None is the time at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.request_units is not None and not self.request_units > 0:
            raise InputError(f"--ru is {self.request_units}; accepted: above 0")


def refuse_what_leaves_no_trace(hub: HubDefinition) -> None:
    """Raises InputError where documents go, or are left out, and nothing says that it was on purpose. What a route or a transform
    asks for is refused when an event does.
    """
    with job_errors():
        writing = write_options(cosmos_options(hub))
    table = writing.operation_from.table.values() if writing.operation_from else ()
    operations = {writing.operation, *table}
    deletes = {
        f"COSMOS_OPERATION is {writing.operation}": writing.operation is Operation.DELETE,
        "COSMOS_OPERATION_FROM may say delete": Operation.DELETE in operations,
        "COSMOS_EMPTY is delete": writing.empty == "delete",
    }
    for setting, is_delete in deletes.items():
        if is_delete and not (writing.guarded and writing.tombstone):
            raise InputError(f"{setting}: nothing is left of a document that is deleted; {WITH_TOMBSTONES}")
    if writing.leaves_nothing(operations):
        raise InputError(IGNORED)


def run(settings: Settings, spark: SparkSession) -> tuple[page.Findings, str]:
    """Reads all sides, judges and reports; returns what was found, and the report's path. Raises JobError; CheckFailedError,
    when all is written, where only what is allowed is exceeded.
    """
    now = settings.now or datetime.now(UTC)
    hub = hub_on_cosmos(settings.consumer, "a reconciliation reads", hub=settings.hub, sink=settings.sink)
    refuse_what_leaves_no_trace(hub)
    _refuse_own_group(settings, hub)
    read, name = partial(_events, spark, settings, hub), hub.config.hub
    results = Results.begin(spark, settings.output, job=JOB, fmt=settings.fmt, about=run_facts(hub))
    with work_files(results):
        sides = extract(
            spark,
            read,
            hub,
            results,
            checkpoints=settings.checkpoints,
            request_units=settings.request_units,
            since=settings.since,
            until=settings.until,
            created_at=0.0 if settings.capture else created_at(hub, settings.consumer_group),
        )
        with watch(spark, "comparing"):
            tables = _compare(sides, settings, hub, now, results)
            findings = _findings(tables, sides, settings, name, now)
    return findings, _finish(spark, results, findings, settings, sides)


def _page(findings: page.Findings, settings: Settings) -> Report:
    report = page.build(findings)
    if findings.unsettled and (capture := settings.capture):
        lost = ("--only-missing", f"{settings.output}/unsettled", "--mode", "upsert", "--ru-per-second", 400)
        command = ("tidemark", "spark", "backfill", "--capture", capture, *_same_events(settings), *lost)
        report.next_step("writes exactly what is not settled, at a rate you choose", *command)
    else:
        report.next_step(
            "what this run and those before it read and counted", "tidemark", "runs", settings.output
        )
    return report


def _same_events(settings: Settings) -> list[str]:
    """The options by which another job reads the same events, of the same sink: without them it may refuse to, or take others."""
    lag = settings.capture_lag if settings.since or settings.until else None
    given = {
        "--root": settings.other_root,
        "--hub": settings.hub,
        "--sink": settings.sink,
        "--from": settings.since and settings.since.isoformat(),
        "--to": settings.until and settings.until.isoformat(),
        "--capture-lag": lag and f"{ceil(lag.total_seconds())}s",
        "--quarantine": settings.quarantine,
    }
    return option_words(given)


def _finish(
    spark: SparkSession, results: Results, findings: page.Findings, settings: Settings, sides: Sides
) -> str:
    """Returns the report's path."""
    positions = {
        f"partition {row['partition']}": f"{row['first']} to {row['last']}"
        for row in sides.ends[:PARTITIONS_TOLD]
    }
    counts: dict[str, float | None] = {status.value: findings.counts.get(status, 0) for status in Status}
    counts |= {
        "events": findings.events_total,
        "copies": findings.copies,
        "duplicates": findings.duplicates_total,
    }
    judged_events = {status.value: count for status, count in findings.counts.items()}
    return finish(
        spark,
        results,
        settings,
        partial(_page, findings, settings),
        rows=[RowCount("the hub's events", sum(row["events"] for row in sides.ends), judged_events)],
        inputs={"events": settings.capture or f"hub {findings.hub}", **positions},
        counts=counts | {"missing": findings.missing},
        limited=LIMITED,
        asked={"grace": settings.grace, "on-gap": settings.on_gap},
        findings=["events not settled, settled twice or missing"] if findings.failed else [],
    )


def _refuse_own_group(settings: Settings, hub: HubDefinition) -> None:
    if settings.capture is None and settings.consumer_group.lower() == hub.config.consumer_group.lower():
        raise InputError(
            f"--consumer-group is '{settings.consumer_group}', the consumer's own: its readers would shut this one out; "
            "make a consumer group for the reconciliation, or give --capture"
        )


def _events(
    spark: SparkSession,
    settings: Settings,
    definition: HubDefinition,
    then: TaskTransform | None = None,
    default_ttl: int | None = None,
) -> DataFrame:
    config, columns = definition.config, event_columns(definition, default_ttl)
    if settings.capture is not None:
        lag = settings.capture_lag.total_seconds()
        return read_capture(
            spark,
            settings.capture,
            quarantine=settings.quarantine,
            columns=columns,
            wanted=FileFilter(settings.since, settings.until, config.hub, lag=lag),
            then=then,
        )
    group = settings.consumer_group
    options = {"hub": config.hub, "consumerGroup": group, "connection": config.hub_connection}
    if text := connection_string(definition.settings, config.hub_connection):
        options[CONNECTION_STRING] = text
    events = read_event_hub(spark, options).select(*columns)
    return events if then is None else events.mapInArrow(then.work, then.schema)


def _compare(
    sides: Sides,
    settings: Settings,
    hub: HubDefinition,
    now: datetime,
    results: Results,
) -> dict[str, DataFrame]:
    """Judges, and writes each result; the tables by name."""
    due = Due(now, sides.checkpoints is not None, settings.grace)
    checkpoints = sides.checkpoints or {}
    runs = due_runs(sides)
    status = judged(
        *(sides.events, sides.documents, sides.known, runs, sides.identity, due),
        read_at=(settings.now or datetime.now(UTC)) if sides.expires else None,
        letters=results.table("dead-letters") if may_be_several(hub) else None,
    )
    results.write("events", with_ids(status, hub))
    events = results.table("events")
    unsettled = events.where(F.col("status").isin([status.value for status in UNSETTLED]))
    results.write("unsettled", unsettled.sortWithinPartitions(*_ORDER))
    results.write("duplicates", duplicates(events).sortWithinPartitions(*_ORDER))
    # Of a part of the time the first event says nothing about what came before it.
    begins = {} if settings.since else checkpoints
    missing = gaps(holes(sides.events, settled_runs(begins)), sides.known, _widest(sides.ends, begins))
    results.write("gaps", missing.sortWithinPartitions("partition", "first"))
    results.write("hours", by_hour(events).sortWithinPartitions("partition", "hour"))
    return {name: results.table(name) for name in ("events", "unsettled", "duplicates", "gaps", "hours")}


def _findings(
    tables: Mapping[str, DataFrame], sides: Sides, settings: Settings, hub: str, now: datetime
) -> page.Findings:
    begins = [row["earliest"] for row in sides.ends if row["earliest"] is not None]
    newest = max((row["latest"] for row in sides.ends if row["latest"] is not None), default=None)
    span = None if newest is None else (_hour(min(begins)), _hour(newest))
    hours = [] if span is None else _dicts(by_column(tables["hours"], span[0], page.column_of(*span)))
    counts = {status: total for status in Status if (total := sum(row[status.value] for row in hours))}
    unsettled = sum(counts.get(status, 0) for status in UNSETTLED)
    twice = sum(row["duplicates"] for row in hours)
    [totals] = _dicts(
        tables["gaps"].agg(
            F.count(F.lit(1)).alias("gaps"),
            F.coalesce(F.sum(F.when(F.col("open"), F.expr("missing - settled"))), F.lit(0)).alias("missing"),
        )
    )
    failing = totals["missing"] if settings.on_gap is OnGap.FAIL else 0
    coming = page.yet_to_come(newest, now=now, until=settings.until, lag=settings.capture_lag)
    return page.Findings(
        hub=hub,
        source=f"capture files in {settings.capture}" if settings.capture else "read from the hub",
        identity=sides.identity,
        counts=counts,
        copies=sum(row["copied"] for row in sides.ends),
        hours=hours,
        unsettled=_first(tables["unsettled"].orderBy(*_ORDER), unsettled),
        duplicates=_first(tables["duplicates"].orderBy(*_ORDER), twice),
        duplicates_total=twice,
        gaps=_first(tables["gaps"].orderBy(F.col("open").desc(), "partition", "first"), totals["gaps"]),
        gaps_total=totals["gaps"],
        missing=totals["missing"],
        checkpoints=sides.checkpoints,
        failed=bool(unsettled or twice or failing),
        span=span,
        yet_to_come=coming if settings.capture else "",
    )


def _widest(ends: Sequence[Row], checkpoints: Mapping[str, Checkpoint]) -> int:
    """No gap has more numbers: those of a partition from what was settled, or the first event, to the last."""
    settled = {partition: checkpoint.sequence_number for partition, checkpoint in checkpoints.items()}
    return max(
        (row["last"] - min(row["first"], settled.get(row["partition"], row["first"])) for row in ends),
        default=0,
    )


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _first(frame: DataFrame, total: int) -> list[dict[str, Any]]:
    """As many rows as a page shows; Spark is not asked where there are none."""
    return _dicts(frame.limit(page.ROWS_SHOWN)) if total else []


def _dicts(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in collected(frame)]


@with_groups
def command(
    *,
    hub: HubName = None,
    sink: SinkName = None,
    capture: Annotated[
        str | None, Option(show_default="the hub itself is read", help="Folder of the capture files.")
    ] = None,
    consumer_group: Annotated[
        str, Option(help="To read the hub itself with; not the consumer's own.")
    ] = "$Default",
    capture_lag: CaptureLag = CAPTURE_LAG,
    grace: Annotated[
        str | None,
        Option(show_default="by checkpoint only", help="Events younger than this are not due: 15m."),
    ] = None,
    checkpoints: Annotated[
        bool,
        Option(
            "--checkpoints/--no-checkpoints",
            help="Whether what the consumer's checkpoints do not call settled is pending, not lost.",
        ),
    ] = True,
    on_gap: Annotated[OnGap, Option(help="Whether missing sequence numbers fail the check.")] = OnGap.FAIL,
    ru: Annotated[float | None, Option(help="Request units per second that reading may use.")] = None,
    job: AppJobOptions,
) -> None:
    """Which events of the hub are neither in Cosmos DB nor dead letters, or there twice. Exit status 3 if any.

    The consumer's own settings (docs/settings.md) say where everything is; they come from the environment and
    from local.settings.json. 0: no findings; 3: findings; 1: the job could not decide.
    """
    given = job.read(JOB, LIMITED)
    settings = Settings(
        consumer=given["app_settings"],
        hub=hub,
        sink=sink,
        capture=capture,
        consumer_group=consumer_group,
        capture_lag=timedelta(seconds=seconds("--capture-lag", capture_lag)),
        grace=timedelta(seconds=seconds("--grace", grace)) if grace else None,
        checkpoints=checkpoints,
        on_gap=on_gap,
        request_units=ru,
        **given,
    )
    findings, path = run(settings, job.session(JOB))
    _tell(findings, path)
    if findings.failed:
        raise typer.Exit(CHECK_FAILED)


def _tell(findings: page.Findings, path: str) -> None:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    counts = ", ".join(
        f"{count:,} {status.replace('_', ' ')}" for status, count in sorted(findings.counts.items())
    )
    if not findings.events_total:
        console.print("there are no events in the time asked for: nothing was compared", style="bold yellow")
    console.print(
        f"{findings.events_total:,} events: {counts or 'none'}; {findings.duplicates_total:,} settled twice; "
        f"{findings.missing:,} sequence numbers missing"
    )
    if findings.yet_to_come:
        console.print(findings.yet_to_come, style="yellow")
    outcome, colour = ("failed", "red") if findings.failed else ("passed", "green")
    console.print(f"check {outcome}", style=f"bold {colour}")
    console.print(f"report: {path}")


if __name__ == "__main__":
    cli.run_command(command, name=JOB)
