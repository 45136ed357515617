"""Samples in Parquet files of this machine: tasks read them on their own and write finished rows on their own.

Rows on their way from Parquet through Spark to Python cost ten times what it costs to read them there, and on their way back
about as much. Every task has a stretch of time, so only what hours and days are made of is brought together; through Spark
go the names of files and counts. Where files overlap so much that stretches read them again and again, and where results
are not written to this machine, Spark gets their rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.errors import InputError
from spark_jobs.platform.classic import cores_of
from spark_jobs.platform.failures import input_errors
from spark_jobs.platform.output import local_folder
from spark_jobs.platform.rows import between, cached, collected, done_by_tasks
from spark_jobs.platform.session import WORK_IN_PYTHON
from spark_jobs.schemas import METRICS
from spark_jobs.telemetry_aggregation.gauges import STATES, gauge_states, gauges
from spark_jobs.telemetry_aggregation.inputs import Inputs, read
from spark_jobs.telemetry_aggregation.minutes.samples import MINUTE, WINDOWS
from spark_jobs.telemetry_aggregation.schemas import GAUGES
from spark_jobs.telemetry_aggregation.stretches import stretch
from spark_jobs.telemetry_aggregation.stretches.files import row_groups_of
from spark_jobs.telemetry_aggregation.stretches.stretch import RowGroup
from spark_jobs.telemetry_aggregation.stretches.task import left, summed_up
from spark_jobs.telemetry_aggregation.transforms import samples_of_metrics
from tidemark.analysis.gates import check_sum

STATES_AT_ONCE = 50_000
"""States that one task makes hours and days of; about 100 MB. More go through Spark, series by series."""

SESSION = {
    **WORK_IN_PYTHON,
    "spark.python.daemon.module": "spark_jobs.telemetry_aggregation.stretches.daemon",
}
"""For `extra` of a session that has nothing else to do."""

_PATTERN = frozenset("*?[]{}\\")
"""What Spark takes for more than a letter of a path."""

_OF_SPARK = {"org.apache.spark.sql.parquet.row.metadata": GAUGES.json()}
"""Where Spark looks for what a table's columns say of themselves."""


_ARROW = pa.schema(
    [
        ("target", pa.string()),
        ("metric", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("value", pa.float64()),
    ]
)
"""METRICS, written out: Spark 3.5 cannot make it with a zone of our choice, and this job runs there."""


class Made(NamedTuple):
    """Files of rows of the table GAUGES and of states that wait for their hours and days, and what became of samples."""

    rows: list[str]
    states: list[str]
    waiting: int
    samples: int
    copies: int
    invalid: int
    ahead: int

    @property
    def counted(self) -> int:
        """All samples that were read."""
        return self.samples + self.copies + self.invalid + self.ahead


def read_samples(
    spark: SparkSession,
    inputs: Inputs,
    folder: Path | None,
    used: ExitStack,
    since: datetime | None,
    until: datetime | None,
    limit: datetime,
) -> tuple[list[str], dict[str, DataFrame], tuple[int, int, int, int, int]]:
    """From METRICS of a time: files of the table GAUGES below `folder`, or without one, or where tasks cannot read the files,
    the states of its rows, by table; and what became of the samples, as QUALITY has it.

    Both are there while `used` lasts. What is later than `limit` comes from a clock that is ahead. Raises InputError.
    """
    made = None
    groups = row_groups_here(local_folder(spark, str(inputs.metrics)))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        used.callback(shutil.rmtree, folder, ignore_errors=True)
        if groups is not None:
            made = made_of_files(spark, groups, folder, since, until, limit)
    states: dict[str, DataFrame] = {}
    if made is None:
        frame = read(spark, "metrics", inputs) if groups is None else samples_of_files(spark, groups)
        # A sample without a time is in no bounds; where none were asked for, it counts as invalid.
        asked = between(frame, "at", since, until).where(F.col("at").isNull() | (F.col("at") < F.lit(limit)))
        found = gauge_states(samples_of_metrics(asked), distinct=True)
        states["gauges"] = used.enter_context(cached(found))
        ahead = between(frame, "at", max(since or limit, limit), until).count()
        sums = (F.sum(name).alias(name) for name in ("samples", "copies", "invalid"))
        [row] = collected(states["gauges"].agg(*sums))
        made = Made([], [], 0, row.samples or 0, row.copies or 0, row.invalid or 0, ahead)
        if since is None and until is None:
            rows = frame.count() if groups is None else sum(group.rows for group in groups)
            check_sum("--metrics", rows, {"counted": made.counted})
    if not made.samples:
        raise InputError("--metrics holds no valid record in the time asked for")
    counts = made.counted, made.copies, 0, made.ahead, made.invalid
    return [] if folder is None else gauges_of_files(spark, made, folder), states, counts


def made_of_files(
    spark: SparkSession,
    groups: Sequence[RowGroup],
    folder: Path,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: datetime | None = None,
    windows: Mapping[str, int] = WINDOWS,
) -> Made | None:
    """What tasks leave in the folder of the row groups' METRICS, of the time until `limit`; None where Spark has to read them.
    `windows` as in tables.finished. Of a task that is done again only the files of one attempt are told.

    Raises InputError for a file that cannot be read.
    """
    asked, last = stretch.Span.of(since, until), stretch.Span.of(None, limit).end
    tasks = stretch.stretches(groups, asked._replace(end=min(asked.end, last)), cores=cores_of(spark))
    if not tasks:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with input_errors():
        told = done_by_tasks(
            spark, partial(left, folder=folder, about=_OF_SPARK, windows=tuple(windows)), tasks
        )
    if told is None:
        return None
    unread = stretch.count_unread(groups, last) if since is None and until is None else 0
    made = Made(
        rows=[each.rows for each in told if each.rows],
        states=[each.states for each in told if each.states],
        waiting=sum(each.waiting for each in told),
        samples=sum(each.samples for each in told),
        copies=sum(each.copies for each in told),
        invalid=sum(each.invalid for each in told) + unread,
        ahead=stretch.count_within(groups, asked._replace(begin=max(asked.begin, last))),
    )
    if since is None and until is None:
        check_sum("--metrics", sum(group.rows for group in groups), {"counted": made.counted})
    return made


def gauges_of_files(
    spark: SparkSession, made: Made, folder: Path, windows: Mapping[str, int] = WINDOWS
) -> list[str]:
    """The files of the table GAUGES, with the windows that are wider than minutes."""
    wider = {name: width for name, width in windows.items() if width > MINUTE}
    if not made.states:
        return made.rows
    if made.waiting <= STATES_AT_ONCE:
        # In a task: the driver would load pandas to make a table, which takes longer than to make it.
        sum_up = partial(summed_up, folder=folder, about=_OF_SPARK, windows=wider)
        written = done_by_tasks(spark, sum_up, [made.states])
        if written is not None:
            return [*made.rows, *filter(None, written)]
    states = spark.read.schema(STATES).parquet(*(f"file:{each}" for each in made.states))
    place = folder / "wider"
    gauges(states, wider).write.parquet(f"file:{place}")
    return [*made.rows, *map(str, sorted(place.glob("*.parquet")))]


def row_groups_here(place: Path | None) -> list[RowGroup] | None:
    """Of the files of this machine, as one machine reads them; None where Spark has to look: elsewhere, for names that are
    patterns, and for Delta tables. Raises InputError.
    """
    if place is None or set(str(place)) & _PATTERN or (place / "_delta_log").exists():
        return None
    return row_groups_of(place)


def samples_of_files(spark: SparkSession, groups: Sequence[RowGroup]) -> DataFrame:
    """METRICS, each row group read by a task: Spark's own reader takes other types than one machine."""
    numbers = spark.range(0, len(groups), 1, max(len(groups), 1))
    return numbers.mapInArrow(partial(_rows_of, groups=tuple(groups)), METRICS)


def _rows_of(batches: Iterable[pa.RecordBatch], groups: Sequence[RowGroup]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column("id").to_pylist():
            for rows in stretch.samples_in(groups[number]):
                yield from rows.cast(_ARROW).to_batches()
