"""`tidemark spark telemetry-aggregation`: telemetry to tables by minute, hour and day, with a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from typer import Option

from spark_jobs import cli
from spark_jobs.frame import AppJobOptions, JobSettings, finish
from spark_jobs.platform.failures import input_errors, reason_of
from spark_jobs.platform.progress import console, watch
from spark_jobs.platform.rows import between
from spark_jobs.platform.session import prepared_session
from spark_jobs.tables.places import check_folder
from spark_jobs.tables.results import Results
from spark_jobs.tables.runs import nothing_new
from spark_jobs.telemetry_aggregation import incremental, local, metric_samples
from spark_jobs.telemetry_aggregation.datasets import Dataset, decisions, metrics, telemetry
from spark_jobs.telemetry_aggregation.gauges import large_batches
from spark_jobs.telemetry_aggregation.inputs import Inputs, read, stream
from spark_jobs.telemetry_aggregation.kernel.samples import MICROS
from spark_jobs.telemetry_aggregation.merging import merge, places_of
from spark_jobs.telemetry_aggregation.schemas import COUNTS, GAUGES, QUALITY, TABLES
from spark_jobs.telemetry_aggregation.tables import (
    Counts,
    InputRecords,
    days_of,
    records_once,
    table_of,
    tables_of,
)
from tidemark.analysis.errors import InputError, JobError
from tidemark.analysis.option_values import price_of, seconds
from tidemark.analysis.options import with_groups
from tidemark.analysis.report import Report

NAME = "telemetry-aggregation"
LIMITED = dict.fromkeys(("late", "ahead", "invalid", "duplicates", "quarantined"), "read")


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """`late`, `hold` and `clock_skew` in seconds; `prices` per instance-hour, or per 100 RU/s-hour for `request_unit_targets`."""

    inputs: Inputs
    checkpoint: str | None = None
    late: float = 600.0
    hold: float = 900.0
    prices: Mapping[str, float] = field(default_factory=dict)
    request_unit_targets: frozenset[str] = frozenset()
    currency: str = ""
    clock_skew: float = 300.0
    """Seconds. Five minutes: what Kerberos allows clocks to differ by, and more than any that are kept in step."""
    now: datetime | None = None
    """What the skew counts from; None is the time when records are read."""
    merge_into: Mapping[str, str] = field(default_factory=dict)
    """By table of merging.KEYS, a table of somebody else's."""
    cores: int | None = None
    """For samples that the driver aggregates; None is all of this machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "quarantine", self.quarantine or self.inputs.quarantine)


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. With a checkpoint, takes what is new since the last run.

    Raises InputError for settings that do not fit together and for inputs without a record; CheckFailedError, when all is
    written, where more was left out than is allowed.
    """
    check_folder(settings.output, "--output")
    if settings.checkpoint is None:
        return _batch(spark, settings)
    check_folder(settings.checkpoint, "--checkpoint")
    if settings.since is not None or settings.until is not None:
        raise InputError(
            "--from and --to choose what a batch reads; a stream reads all that is new since its checkpoint"
        )
    with watch(spark, "taking what is new"):
        _finish(start(spark, settings))
    return publish(spark, settings)


def datasets(settings: Settings) -> list[Dataset]:
    """The inputs that are given."""
    hold, inputs = round(settings.hold * MICROS), settings.inputs
    if not any((inputs.metrics, inputs.telemetry, inputs.decisions)):
        raise InputError("no input; give one or more of --telemetry, --decisions and --metrics")
    given = (
        (inputs.metrics, metrics()),
        (inputs.telemetry, telemetry()),
        (inputs.decisions, decisions(hold=hold, with_samples=inputs.metrics is None)),
    )
    return [dataset for path, dataset in given if path is not None]


def latest(settings: Settings) -> int:
    """The greatest time that a record may have, in microseconds; what is later comes from a clock that is ahead."""
    now = settings.now or datetime.now(UTC)
    return round((now.timestamp() + settings.clock_skew) * MICROS)


# -- batch


def _batch(spark: SparkSession, settings: Settings) -> str:
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    taken: list[InputRecords] = []
    file: Path | None = None
    quality: dict[str, Counts] = {}
    limit = datetime.fromtimestamp(latest(settings) / MICROS, UTC)
    bounds = local.Bounds(settings.since, settings.until, limit)
    with ExitStack() as used:
        for dataset in datasets(settings):
            with watch(spark, f"reading {dataset.name}"):
                if dataset.name != "metrics":
                    frame = read(spark, dataset.name, settings.inputs, settings.since, settings.until)
                    given = between(frame, "at", settings.since, settings.until)
                    kept, quality[dataset.name] = records_once(dataset, given, latest(settings), used)
                    taken.append(kept)
                elif aggregated := metric_samples.aggregated_here(
                    results, settings.inputs, used, bounds, settings.cores
                ):
                    file, quality[dataset.name] = aggregated
                else:
                    taken.append(metric_samples.samples_for_tasks(spark, dataset, settings.inputs, bounds))
        _write(results, tables_of(taken, settings), file)
    for records in taken:
        if records.account is not None:
            quality[records.dataset.name] = metric_samples.counts_of_samples(
                records.account, results.table("gauges")
            )
    merge(results, settings.merge_into, None)
    rows = [(dataset.name, *quality[dataset.name]) for dataset in datasets(settings)]
    return _report(spark, results, rows, settings)


Quality = tuple[str, int, int, int, int, int]
"""A row of QUALITY: the input and its counts."""


def _write(results: Results, tables: dict[str, DataFrame], file: Path | None) -> None:
    """Also the gauges in the file, whose series no table has: those of consumers have parts."""
    if file is not None and ("gauges" in tables or not results.take("gauges", file, GAUGES)):
        of_file = results.spark.read.parquet(f"file:{file}")
        tables["gauges"] = of_file.unionByName(tables["gauges"]) if "gauges" in tables else of_file
    for name, table in tables.items():
        with watch(results.spark, f"writing {name}"), large_batches(results.spark), input_errors():
            results.write(name, table)


# -- stream


def start(spark: SparkSession, settings: Settings) -> list[StreamingQuery]:
    """Starts a query per input that takes all there is and ends. State and offsets are below the checkpoint."""
    assert settings.checkpoint is not None  # the caller's contract
    queries = []
    for dataset in datasets(settings):
        taken = incremental.Incremental(
            dataset,
            f"{settings.checkpoint}/state",
            late=round(settings.late * MICROS),
            latest=partial(latest, settings),
            aside=settings.checkpoint,
        )
        writer = stream(spark, dataset.name, settings.inputs).writeStream.foreachBatch(taken.step)
        writer = writer.option("checkpointLocation", f"{settings.checkpoint}/offsets/{dataset.name}")
        queries.append(writer.trigger(availableNow=True).queryName(dataset.name).start())
    return queries


def _finish(queries: Sequence[StreamingQuery]) -> None:
    """Waits for all; the first failure stops the others, which go on where they were with the next run."""
    try:
        for query in queries:
            query.awaitTermination()
    except StreamingQueryException as error:
        reason = reason_of(error)
        ours = reason.startswith(("InputError: ", "JobError: "))
        then = "" if ours else ", the next run goes on from its checkpoint"  # ours say what to do
        raise JobError(f"the stream of {query.name} failed{then}: {reason}") from error
    finally:
        for query in queries:
            query.stop()


def publish(spark: SparkSession, settings: Settings) -> str:
    """The tables and the report of all minutes that the stream has closed; days that did not change stay as they are."""
    results = Results.begin(spark, settings.output, job=NAME, fmt=settings.fmt)
    given = datasets(settings)
    state = f"{settings.checkpoint}/state"
    marks = {dataset.name: incremental.latest_mark(spark, state, dataset) for dataset in given}
    changed: dict[str, list[str]] = {}
    for name in [name for name in TABLES if any(name in dataset.tables for dataset in given)]:
        sources = _sources(name, [dataset for dataset in given if name in dataset.tables], marks, settings)
        changed[name] = results.changed(name, sources)
        with watch(spark, f"writing {name}, {len(changed[name])} of {len(sources)} days"):
            taken = [
                records
                for dataset in given
                if name in dataset.tables
                and (
                    records := incremental.records_of_days(
                        spark, state, dataset, marks[dataset.name], changed[name], name
                    )
                )
            ]
            _write_days(results, name, taken, sources, settings)
    merge(results, settings.merge_into, changed)
    quality = [(name, *(getattr(mark, count) for count in COUNTS)) for name, mark in marks.items()]
    return _report(spark, results, quality, settings, {name: mark.number for name, mark in marks.items()})


def _write_days(
    results: Results, name: str, taken: Sequence[InputRecords], sources: Mapping[str, str], settings: Settings
) -> None:
    changed, start = results.changed(name, sources), F.date_format("window_start", "yyyy-MM-dd")
    there = days_of(name, taken) if changed else set()
    days = {day: source for day, source in sources.items() if day in there or day not in changed}
    empty = results.spark.createDataFrame([], TABLES[name])
    if not days:
        results.write(name, empty)
        return
    with large_batches(results.spark), input_errors():
        table = table_of(name, taken, settings) if there else empty
        results.write_days(name, table, start, days)


def _sources(
    name: str, given: Sequence[Dataset], marks: Mapping[str, incremental.Mark], settings: Settings
) -> dict[str, str]:
    """By day, what a table's rows are made of: the batches, and the settings that go into them."""
    priced = f" {sorted(settings.prices.items())} {sorted(settings.request_unit_targets)}"
    # A table that is named for the first time is merged into as a whole.
    merged = settings.merge_into.get(name, "")
    more = (priced if name == "scaling" else "") + (merged and f" {merged}")
    days: defaultdict[str, list[str]] = defaultdict(list)
    for dataset in given:
        for day, source in incremental.sources(dataset, name, marks[dataset.name]).items():
            days[day].append(source)
    return {day: f"{settings.checkpoint} {'; '.join(sources)}{more}" for day, sources in sorted(days.items())}


def _report(
    spark: SparkSession,
    results: Results,
    quality: Sequence[Quality],
    settings: Settings,
    batches: Mapping[str, int] | None = None,
) -> str:
    """Makes the run's tables current and writes the page of them. `batches` are those that a stream has taken."""
    results.write("quality", spark.createDataFrame(list(quality), QUALITY).coalesce(1))
    columns = zip(*(counts for _, *counts in quality), strict=True)
    counts: dict[str, float | None] = dict(zip(COUNTS, map(sum, columns), strict=True))
    paths = {name: getattr(settings.inputs, name) for name in ("telemetry", "decisions", "metrics")}
    inputs = {
        name: f"{path}, batches to {batches[name]}" if batches is not None else path
        for name, path in paths.items()
        if path is not None
    }
    old = nothing_new(results.last, inputs, counts) if batches is not None else ""
    if old:
        console.print(old, style="bold yellow", markup=False, highlight=False, soft_wrap=True)
    tables = {name: results.table(name) for name in results.new.versions if name != "quality"}
    return finish(
        spark,
        results,
        settings,
        partial(_page, tables, quality, settings, old),
        rows=(),  # those of each input, and of each batch, were checked when its counts were made
        inputs=inputs,
        counts=counts,
        limited=LIMITED,
        asked={
            "checkpoint": settings.checkpoint,
            "late": settings.late,
            "hold": settings.hold,
            "clock-skew": settings.clock_skew,
            "quarantine": settings.quarantine,
        },
    )


def _page(
    tables: Mapping[str, DataFrame], quality: Sequence[Quality], settings: Settings, note: str
) -> Report:
    from spark_jobs.telemetry_aggregation.pages import page  # noqa: PLC0415 - matplotlib takes a second

    report = page.build(tables, sorted(quality, key=str), settings.currency, note)
    report.next_step(
        "what this run and those before it read and counted", "tidemark", "runs", settings.output
    )
    return report


@with_groups
def command(
    *,
    telemetry: Annotated[str | None, Option(help="Folder of the consumer's telemetry records.")] = None,
    decisions: Annotated[str | None, Option(help="Scaling log: folder of JSON lines.")] = None,
    metrics: Annotated[
        str | None, Option(help="Samples as Parquet: target, metric, at, value. Else the scaling log's.")
    ] = None,
    checkpoint: Annotated[
        str | None, Option(help="Take only what is new since the last run with this folder, exactly once.")
    ] = None,
    late: Annotated[str, Option(help="With --checkpoint: how late records may come.")] = "10m",
    clock_skew: Annotated[
        str, Option(help="How far ahead of this machine's clock a record's time may be; others are left out.")
    ] = "5m",
    hold: Annotated[str, Option(help="How long a reading of a capacity holds without another.")] = "15m",
    price: Annotated[
        list[str] | None,
        Option(
            help="TARGET=AMOUNT per instance-hour, or per 100 RU/s-hour for --ru-target. Repeat per target."
        ),
    ] = None,
    ru_target: Annotated[
        list[str] | None, Option(help="A target whose capacity is RU/s. Repeat per target.")
    ] = None,
    currency: Annotated[str, Option(help="The currency of the prices, for the report.")] = "",
    merge_into: Annotated[list[str] | None, Option(help="TABLE=PLACE: merge its rows there, too.")] = None,
    files_per_batch: Annotated[
        int | None, Option(min=1, help="With --checkpoint: files of a micro-batch at most.")
    ] = None,
    job: AppJobOptions,
) -> None:
    """Backlog percentiles, time to drain, rates, 429 share, RU per record, lag, scale actions, capacity-hours and cost.

    Windows of a minute, an hour and a day. Writes the tables gauges, flows, scaling and quality, and a report.
    """
    given = job.read(NAME, LIMITED)
    inputs = Inputs(telemetry, decisions, metrics, job.quarantine, files_per_batch, given["app_settings"])
    settings = Settings(
        inputs=inputs,
        checkpoint=checkpoint,
        late=seconds("--late", late),
        hold=seconds("--hold", hold),
        clock_skew=seconds("--clock-skew", clock_skew),
        prices=dict(price_of(text) for text in price or ()),
        request_unit_targets=frozenset(ru_target or ()),
        currency=currency,
        merge_into=places_of(merge_into or ()),
        cores=job.cores,
        **given,
    )
    if telemetry or decisions or checkpoint:
        spark = job.session(NAME)
    else:  # what samples need of Spark; our sources take two seconds of the processor to be known
        spark = prepared_session(NAME, cores=job.cores, memory=job.memory)
    typer.echo(run(spark, settings))


if __name__ == "__main__":
    cli.run_command(command)
