"""`tidemark spark telemetry-aggregation`: telemetry to tables by minute, hour and day, with a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Annotated

import typer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.streaming.query import StreamingQuery

from scaling.config_reader import parse_duration
from spark_jobs import cli
from spark_jobs.errors import InputError, JobError
from spark_jobs.output import check_format, read_table, write_table
from spark_jobs.progress import watch
from spark_jobs.report_files import write_report
from spark_jobs.session import spark_session
from spark_jobs.telemetry_aggregation import page
from spark_jobs.telemetry_aggregation.capacity import scaling
from spark_jobs.telemetry_aggregation.cells import MICROS
from spark_jobs.telemetry_aggregation.datasets import Dataset, States, decisions, metrics, telemetry
from spark_jobs.telemetry_aggregation.gauges import gauges
from spark_jobs.telemetry_aggregation.incremental import BEGINNING, Incremental, written
from spark_jobs.telemetry_aggregation.inputs import Inputs, between, read, stream
from spark_jobs.telemetry_aggregation.sample_files import states_of_files
from spark_jobs.telemetry_aggregation.schemas import QUALITY
from spark_jobs.telemetry_aggregation.transforms import distinct, flows
from spark_jobs.telemetry_aggregation.windows import micros

NAME = "telemetry-aggregation"


@dataclass(frozen=True, slots=True)
class Settings:
    """`late` and `hold` in seconds; `prices` per instance-hour, or per 100 RU/s-hour for `request_unit_targets`."""

    inputs: Inputs
    output: str = cli.default_output(NAME)
    fmt: str = "parquet"
    since: datetime | None = None
    until: datetime | None = None
    checkpoint: str | None = None
    late: float = 600.0
    hold: float = 900.0
    prices: Mapping[str, float] = field(default_factory=dict)
    request_unit_targets: frozenset[str] = frozenset()
    currency: str = ""


def run(spark: SparkSession, settings: Settings) -> str:
    """Extract, transform, load; returns the report's path. With a checkpoint, takes what is new since the last run.

    Raises InputError for settings that do not fit together and for inputs without a record.
    """
    check_format(settings.fmt)
    if settings.checkpoint is None:
        return _batch(spark, settings)
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


# -- batch


def _batch(spark: SparkSession, settings: Settings) -> str:
    parts: list[dict[str, DataFrame]] = []
    quality: list[tuple[object, ...]] = []
    cached: list[DataFrame] = []
    for dataset in datasets(settings):
        frame = read(spark, dataset.name, settings.inputs)
        with watch(spark, f"reading {dataset.name}"):
            if dataset.name == "metrics":  # as many as there are: aggregated where they are read
                kept, counts = _kept_samples(frame, settings)
                states: States = {"gauges": kept}
            else:
                kept, newest, counts = _kept(dataset, between(frame, settings.since, settings.until))
                states = dataset.states(kept, F.lit(BEGINNING), F.lit(newest))
        cached.append(kept)
        quality.append((dataset.name, *counts))
        parts.append(dict(states))
    tables = tables_of(parts, settings)
    return _load(spark, tables, spark.createDataFrame(quality, QUALITY), settings, cached)


def _kept(dataset: Dataset, frame: DataFrame) -> tuple[DataFrame, int, tuple[int, int, int, int]]:
    """The valid records, each once and cached; the newest's time; how many were read, twice there, late and invalid.

    Raises InputError when there is none: an empty input is an error of the path more often than a quiet day.
    """
    seen = Observation()
    rows = dataset.prepare(frame).observe(
        seen, F.count("*").alias("read"), F.count_if(~dataset.valid).alias("invalid")
    )
    kept = distinct(rows.where(dataset.valid), dataset.keys).persist()
    row = kept.select(F.count("*").alias("kept"), F.max(micros("at")).alias("newest")).first()
    if row is None or not row.kept:
        raise InputError(f"--{dataset.name} holds no valid record in the time asked for")
    counts: dict[str, int] = seen.get
    return (
        kept,
        row.newest,
        (counts["read"], counts["read"] - counts["invalid"] - row.kept, 0, counts["invalid"]),
    )


def _kept_samples(frame: DataFrame, settings: Settings) -> tuple[DataFrame, tuple[int, int, int, int]]:
    """As `_kept`, but already the states of minutes."""
    states = states_of_files(frame, settings.since, settings.until).persist()
    row = states.agg(*(F.sum(name).alias(name) for name in ("samples", "copies", "invalid"))).first()
    if row is None or not row.samples:
        raise InputError("--metrics holds no valid record in the time asked for")
    return states, (row.samples + row.copies + row.invalid, row.copies, 0, row.invalid)


def tables_of(parts: Sequence[Mapping[str, DataFrame]], settings: Settings) -> dict[str, DataFrame]:
    """The tables of all windows from states of minutes, which may come from several inputs."""
    states: dict[str, DataFrame] = {}
    for part in parts:
        for name, frame in part.items():
            states[name] = states[name].unionByName(frame) if name in states else frame
    tables = {}
    if "gauges" in states:
        tables["gauges"] = gauges(states["gauges"])
    if "flows" in states:
        tables["flows"] = flows(states["flows"])
    if "scaling" in states:
        tables["scaling"] = scaling(states["scaling"], settings.prices, settings.request_unit_targets)
    return tables


# -- stream


def start(spark: SparkSession, settings: Settings) -> list[StreamingQuery]:
    """Starts a query per input that takes all there is and ends. State and offsets are below the checkpoint."""
    assert settings.checkpoint is not None  # noqa: S101 - the caller's contract
    queries = []
    for dataset in datasets(settings):
        taken = Incremental(
            dataset,
            f"{settings.checkpoint}/state",
            late=round(settings.late * MICROS),
            late_folder=f"{settings.output}/late",
        )
        writer = stream(spark, dataset.name, settings.inputs).writeStream.foreachBatch(taken.step)
        offsets = f"{settings.checkpoint}/offsets/{dataset.name}"
        queries.append(
            writer.option("checkpointLocation", offsets)
            .trigger(availableNow=True)
            .queryName(dataset.name)
            .start()
        )
    return queries


def _finish(queries: Sequence[StreamingQuery]) -> None:
    """Waits for all; the first failure stops the others, which go on where they were with the next run."""
    try:
        for query in queries:
            query.awaitTermination()
    except StreamingQueryException as error:
        first = str(error).strip().splitlines()[0]
        raise JobError(
            f"the stream of {query.name} failed, the next run goes on from its checkpoint: {first}"
        ) from error
    finally:
        for query in queries:
            query.stop()


def publish(spark: SparkSession, settings: Settings) -> str:
    """The tables and the report of all minutes that the stream has closed."""
    state = f"{settings.checkpoint}/state"
    parts, marks = [], []
    for dataset in datasets(settings):
        parts.append({name: written(spark, state, dataset, name) for name in dataset.tables})
        sums = (F.sum(name).alias(name) for name in QUALITY.names[1:])
        marks.append(
            written(spark, state, dataset, "marks").agg(*sums).select(F.lit(dataset.name).alias("input"), "*")
        )
    quality = reduce(DataFrame.unionByName, marks).select(*QUALITY.names)
    return _load(spark, tables_of(parts, settings), quality, settings, [])


# -- load


def _load(
    spark: SparkSession,
    tables: Mapping[str, DataFrame],
    quality: DataFrame,
    settings: Settings,
    cached: Sequence[DataFrame],
) -> str:
    fmt = settings.fmt
    for name, table in {**tables, "quality": quality}.items():
        with watch(spark, f"writing {name}"):
            write_table(table, f"{settings.output}/{name}", fmt=fmt)
    for frame in cached:
        frame.unpersist()
    with watch(spark, "writing the report"):
        finished = {name: read_table(spark, f"{settings.output}/{name}", fmt) for name in tables}
        counts: list[Row] = read_table(spark, f"{settings.output}/quality", fmt).orderBy("input").collect()
        return write_report(spark, page.build(finished, counts, settings.currency), settings.output)


# -- command line


def command(
    telemetry: Annotated[str | None, typer.Option(help="Folder of the consumer's telemetry records.")] = None,
    decisions: Annotated[str | None, typer.Option(help="Scaling log: folder of JSON lines.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Samples as Parquet: target, metric, at, value. Else the scaling log's."),
    ] = None,
    output: cli.Output = None,
    format_: cli.Format = "parquet",
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Take only what is new since the last run with this folder, exactly once."),
    ] = None,
    late: Annotated[str, typer.Option(help="With --checkpoint: how late records may come.")] = "10m",
    hold: Annotated[
        str, typer.Option(help="How long a reading of a capacity holds without another.")
    ] = "15m",
    price: Annotated[
        list[str] | None,
        typer.Option(
            help="TARGET=AMOUNT per instance-hour, or per 100 RU/s-hour for --ru-target. Repeat per target."
        ),
    ] = None,
    ru_target: Annotated[
        list[str] | None, typer.Option(help="A target whose capacity is RU/s. Repeat per target.")
    ] = None,
    currency: Annotated[str, typer.Option(help="The currency of the prices, for the report.")] = "",
    since: cli.Since = None,
    until: cli.Until = None,
    root: cli.Root = Path(),
    quarantine: cli.Quarantine = None,
    files_per_batch: Annotated[
        int | None, typer.Option(min=1, help="With --checkpoint: files of a micro-batch at most.")
    ] = None,
    cores: cli.Cores = None,
    memory: cli.Memory = "2g",
) -> None:
    """Backlog percentiles, time to drain, rates, 429 share, RU per record, lag, scale actions, capacity-hours and cost.

    Windows of a minute, an hour and a day. Writes the tables gauges, flows, scaling and quality, and a report.
    """
    settings = Settings(
        inputs=Inputs(telemetry, decisions, metrics, quarantine, files_per_batch, cli.app_settings(root)),
        output=output or cli.default_output(NAME),
        fmt=check_format(format_),
        since=cli.moment(since, "--from"),
        until=cli.moment(until, "--to"),
        checkpoint=checkpoint,
        late=_seconds(late, "--late"),
        hold=_seconds(hold, "--hold"),
        prices=dict(_price(text) for text in price or ()),
        request_unit_targets=frozenset(ru_target or ()),
        currency=currency,
    )
    spark = spark_session(NAME, cores=cores, memory=memory)
    typer.echo(run(spark, settings))


def _seconds(text: str, option: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def _price(text: str) -> tuple[str, float]:
    target, _, amount = text.rpartition("=")
    try:
        value = float(amount)
    except ValueError:
        value = -1.0
    if not target or not 0 <= value < float("inf"):
        raise InputError(
            f"--price is '{text}'; accepted: TARGET=AMOUNT with an amount of 0 or more, plan-orders=0.19"
        )
    return target, value


def main(argv: Sequence[str] | None = None) -> None:
    cli.run_command(command, argv)


if __name__ == "__main__":
    main()
