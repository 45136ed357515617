"""Recorded load by target: read by the driver's plan, handed to tasks with what to do with it, and the results back. One history
is one task's, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, StructType

from spark_jobs.frame import JobSettings
from spark_jobs.platform.failures import input_errors
from spark_jobs.platform.progress import watch
from spark_jobs.platform.rows import OUTSIDE, RowAccount, cached, collected, outside
from spark_jobs.platform.session import try_setting
from spark_jobs.schemas import arrow_schema, row_schema
from spark_jobs.sources.files.spark_files import read_files
from spark_jobs.sources.records.telemetry import read_decisions
from spark_jobs.tables.merging import read_parquet_or_delta
from spark_jobs.tables.places import is_delta
from tidemark.analysis.backtest.analysis import refused
from tidemark.analysis.backtest.candidates.variation import GridError
from tidemark.analysis.backtest.reading import (
    OTHER_COLUMNS,
    TIME_COLUMNS,
    UNREAD,
    arrivals_in,
    check_columns,
    of_metrics,
    rows_as_arrivals,
)
from tidemark.analysis.backtest.replay.history import HistoryError, Reading
from tidemark.analysis.errors import InputError
from tidemark.analysis.input_files import TABLE_ENDINGS
from tidemark.analysis.limits import RowCount
from tidemark.analysis.options import CONFIG
from tidemark.foundation.settings_reader import ConfigError

READINGS = row_schema("target text, at double, arrivals double, instances long, metrics numbers")
"""What was recorded: arrivals in a bin that begins at `at` (seconds since the epoch), or the metrics and the capacity a
decision saw at that time. The other columns are null.
"""

_HISTORY = ArrayType(StructType(READINGS.fields[1:]))

HISTORIES = row_schema("target text, day long, readings history", history=_HISTORY)
"""All readings of one target and day (of UTC, since 1970), in no order; those without a time that can be one have no day.
A row is as large as a day, however long the history is.
"""

PLANS = row_schema("target text, block int, work bytes")
"""Tasks before they meet their histories, numbered by `block`."""

TASKS = row_schema("target text, block int, day long, readings history, work bytes", history=_HISTORY)
"""The days of a history, and what to do with all of them."""

OUTCOMES = pa.schema([("block", pa.int32()), ("result", pa.binary()), ("problem", pa.string())])
"""What a task gave, or why it could not be done."""

Days = list[Sequence[Mapping[str, Any]]]
"""Recorded rows of a target, by day."""

DAY = 86_400
LATEST = 1e15
"""Seconds; a time beyond is none."""

BATCH_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
HISTORIES_PER_BATCH = "16"
"""Rows handed to a worker at once: a row holds a day of a history, and 10,000 of them, the default, no worker could."""


@dataclass(frozen=True, kw_only=True)
class HistorySettings(JobSettings):
    """Paths: `config` is read by the driver, `arrivals` and `log` by Spark."""

    config: Path = CONFIG
    arrivals: str | None = None
    log: str | None = None

    @property
    def inputs(self) -> dict[str, str | None]:
        return {"arrivals": self.arrivals, "log": self.log}


class Recorded(NamedTuple):
    """HISTORIES, the names of their targets in order, and what became of the rows that were read."""

    histories: DataFrame
    names: list[str]
    rows: RowCount


@contextmanager
def recorded(spark: SparkSession, settings: HistorySettings) -> Iterator[Recorded]:
    """The inputs, read once for all that the block does with them. Raises InputError for those that cannot be read or name no
    target; JobError where the histories do not hold all of their rows.
    """
    account = RowAccount("the history")
    with cached(histories(extract(spark, settings, account))) as days:
        with watch(spark, "reading the history"), input_errors():
            row_counts = collected(days.groupBy("target").agg(F.sum(F.size("readings")).alias("rows")))
            rows = account.check(replayed=sum(row.rows for row in row_counts))
        if not row_counts:
            raise refused(["the history is empty: it names no target"])
        yield Recorded(days, sorted(row.target for row in row_counts), rows)


def extract(spark: SparkSession, settings: HistorySettings, account: RowAccount) -> DataFrame:
    """READINGS of all inputs, of the time asked for; `account` counts the rows. Raises InputError when none is given."""
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
        return read_files(spark, path.rstrip("/"), TABLE_ENDINGS, arrivals_in_file, READINGS)
    frame = read_parquet_or_delta(spark, path)
    check_columns(frame.columns, f"--arrivals {path}")
    wanted = [name for name in frame.columns if name in {*TIME_COLUMNS, "arrivals", "target", *OTHER_COLUMNS}]
    name = path.rstrip("/").rpartition("/")[2]
    return frame.select(*wanted).mapInArrow(partial(arrivals_in_rows, target=name), READINGS)


def log_as_readings(decisions: DataFrame, account: RowAccount, reasons: Mapping[str, Column]) -> DataFrame:
    """READINGS of DECISIONS, but for those with one of the `reasons`; `account` counts them. A decision that could not read a
    metric says nothing about that time.
    """
    other, unread = F.col("kind") != "decision", F.col("reason").isin(*sorted(UNREAD))
    made = decisions.select("target", "at", "kind", "reason", "current", "metrics")
    kept = account.without(made, {**reasons, "no decision": other, "metric not read": unread})
    return kept.select(
        "target",
        (F.unix_micros("at") / 1_000_000).alias("at"),
        F.lit(None).cast("double").alias("arrivals"),
        F.col("current").alias("instances"),
        "metrics",
    )


def histories(readings: DataFrame) -> DataFrame:
    """HISTORIES of READINGS."""
    row = F.struct(*READINGS.fieldNames()[1:])
    day = F.when(F.abs("at") < LATEST, F.floor(F.col("at") / DAY)).cast("long")
    return (
        readings.groupBy("target", day.alias("day"))
        .agg(F.collect_list(row).alias("readings"))
        .select(*HISTORIES.fieldNames())
    )


# -- tasks, from the driver's side ----------------------------------------------------------------------


class Task(Protocol):
    """What to do with a history, in a msgspec.Struct. `metric` is the queue's in a scaling log; None leaves it to the log."""

    @property
    def metric(self) -> str | None: ...


AnyTask = TypeVar("AnyTask", bound=Task)
Result = TypeVar("Result")
Work = Callable[[str, list[Reading], AnyTask], Result]
"""From a target, its readings and a task to a Struct; it runs where the executors are. What is wrong with a history or with a
candidate is a HistoryError, a GridError or a ConfigError.
"""


def replay(
    spark: SparkSession,
    histories: DataFrame,
    tasks: Sequence[tuple[str, AnyTask]],
    work: Work[AnyTask, Result],
    gives: type[Result],
    doing: str,
) -> list[Result]:
    """What `work` gives of each task with its target's history, in the order of the tasks, of which there are some. `doing` is
    shown meanwhile. Raises InputError with the problems of all targets.
    """
    does = partial(_outcomes, work=work, kind=type(tasks[0][1]))
    with watch(spark, doing), small_batches(spark), input_errors():
        rows = collected(replayed(spark, histories, tasks, does, OUTCOMES))
    if problems := [row.problem for row in rows if row.problem is not None]:
        raise refused(problems)
    decode = msgspec.msgpack.Decoder(gives).decode
    return [decode(bytes(row.result)) for row in sorted(rows, key=lambda row: row.block)]


def replayed(
    spark: SparkSession,
    histories: DataFrame,
    tasks: Sequence[tuple[str, Any]],
    does: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    gives: pa.Schema,
) -> DataFrame:
    """What `does` gives, with the columns `gives`, of TASKS, of which it gets the days of a history in their order. Tasks are
    spread evenly. Actions over it are for a block of `small_batches`.
    """
    encode = msgspec.msgpack.Encoder().encode
    plans = [(target, number, encode(task)) for number, (target, task) in enumerate(tasks)]
    partitions = min(len(plans), 4 * workers_of(spark))
    planned = histories.join(spark.createDataFrame(plans, PLANS), on="target", how="inner")
    spread = planned.select(*TASKS.fieldNames()).repartitionById(
        partitions, F.col("block") % F.lit(partitions)
    )
    ordered = spread.sortWithinPartitions("block", "day")
    return ordered.mapInArrow(does, from_arrow_schema(gives)).select(*gives.names)


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
    """Tasks that Spark runs at a time: the number of parts that it cuts a range into by itself, which every kind of session shows."""
    return spark.range(1 << 12).select(F.spark_partition_id()).distinct().count()


# -- where the executors are ----------------------------------------------------------------------------


def tasks_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, bytes, Days]]:
    """Of TASKS, each target, block and work with the days of its history; one history is held at a time."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for (target, block, work), days in groupby(rows, key=itemgetter("target", "block", "work")):
        yield target, block, work, [day["readings"] for day in days]


def _outcomes(
    batches: Iterable[pa.RecordBatch], work: Work[AnyTask, Any], kind: type[AnyTask]
) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: TASKS in, OUTCOMES out. What is wrong with a history becomes a problem, not a failed task."""
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
    for target, block, text, days in tasks_in(batches):
        result = problem = None
        try:
            task = decode(text)
            result = encode(work(target, readings_of(days, task.metric), task))
        except (HistoryError, ConfigError, GridError) as error:
            problem = str(error)
        row = {"block": block, "result": result, "problem": problem}
        yield pa.RecordBatch.from_pylist([row], schema=OUTCOMES)


def readings_of(days: Days, metric: str | None) -> list[Reading]:
    """READINGS of one target in their order in time, from those of its days in their order. Of several entries of one
    decision the last one counts, by its content: rows come in no order.
    """
    parts = [_of_day(day, metric) for day in days]
    once = [reading for readings, _ in parts for reading in readings]
    return [*once, *(reading for _, twice in parts for reading in twice)]


def _of_day(recorded: Sequence[Mapping[str, Any]], metric: str | None) -> tuple[list[Reading], list[Reading]]:
    """The readings, and those that were given before."""
    readings: dict[tuple[bool, float], Reading] = {}
    twice: list[Reading] = []
    for row in sorted(recorded, key=_order):
        if row["arrivals"] is not None:
            waiting = dict(row["metrics"] or ()).get("backlog")
            reading = Reading(row["at"], row["arrivals"], waiting, row["instances"])
            if (True, row["at"]) in readings:
                twice.append(reading)
            readings[True, row["at"]] = reading
        elif seen := of_metrics(row["at"], dict(row["metrics"] or ()), row["instances"], metric):
            readings[False, row["at"]] = seen
    return [*readings.values()], twice


def _order(row: Mapping[str, Any]) -> tuple[float, float, int, str]:
    arrivals = -1.0 if row["arrivals"] is None else row["arrivals"]
    instances = -1 if row["instances"] is None else row["instances"]
    return row["at"], arrivals, instances, str(sorted(dict(row["metrics"] or ()).items()))


_READINGS = arrow_schema(READINGS)
_AT_ONCE = 10_000  # rows of READINGS in a batch


def arrivals_in_file(name: str, data: memoryview) -> Iterator[pa.RecordBatch]:
    """READINGS of a file. Raises InputError."""
    return _as_readings(arrivals_in(name, data))


def arrivals_in_rows(batches: Iterable[pa.RecordBatch], target: str) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: rows of a table in, READINGS out. `target` is that of rows without such a column. Raises InputError."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return _as_readings(rows_as_arrivals(rows, target, "--arrivals"))


def _as_readings(pairs: Iterable[tuple[str, Reading]]) -> Iterator[pa.RecordBatch]:
    rest = iter(pairs)
    while some := list(islice(rest, _AT_ONCE)):
        rows = [
            {
                "target": target,
                "at": reading.at,
                "arrivals": reading.arrivals,
                "instances": reading.instances,
                "metrics": None if reading.backlog is None else [("backlog", reading.backlog)],
            }
            for target, reading in some
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_READINGS)
