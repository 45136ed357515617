"""Samples in Parquet files of this machine: tasks read them on their own and aggregate them where they are read.

Rows on their way from Parquet through Spark to Python cost ten times what it costs to read them there. Every task owns a
stretch of time and reads the row groups that have any of it, by the files' own statistics: so a minute is whole in one
task, and nothing is shuffled. Where files overlap so much that this reads them again and again, Spark reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from spark_jobs.errors import InputError
from spark_jobs.platform.rows import between
from spark_jobs.schemas import METRICS
from spark_jobs.telemetry_aggregation.gauges import STATES, gauge_states
from spark_jobs.telemetry_aggregation.minutes import cells
from spark_jobs.telemetry_aggregation.minutes.cells import MINUTE
from spark_jobs.telemetry_aggregation.transforms import samples_of_metrics

ROWS_PER_TASK = 4_000_000
"""About 500 MB in a task's process."""

ROWS_AT_ONCE = 200_000
"""They and all that is computed from them fit a core's cache: half the processor time of 4 million at once."""

READ_AT_MOST = 1.6
"""Rows read by all tasks for each row there is: above, reading through Spark is cheaper."""

ALWAYS = (-(1 << 62), 1 << 62)


class Span(NamedTuple):
    """Microseconds: from `begin` until before `end`."""

    begin: int
    end: int


class RowGroup(NamedTuple):
    file: str
    number: int
    rows: int
    times: Span  # whole minutes


class Task(NamedTuple):
    """What lies in `own` of these row groups."""

    own: Span
    groups: list[RowGroup]


def states_of_files(
    frame: DataFrame, since: datetime | None = None, until: datetime | None = None
) -> DataFrame:
    """As `gauge_states` with `distinct`, from METRICS of Parquet files; `since` and `until` bound the time.

    Raises InputError for a file that cannot be read.
    """
    bounds = Span(_micros(since, ALWAYS[0]), _micros(until, ALWAYS[1]))
    groups = _row_groups_of(frame)
    tasks = None if groups is None else tasks_of(groups, bounds)
    if not tasks:
        return gauge_states(samples_of_metrics(between(frame, "at", since, until)), distinct=True)
    numbers = frame.sparkSession.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(partial(_read, tasks=tasks), STATES)


def _micros(moment: datetime | None, default: int) -> int:
    return default if moment is None else round(moment.timestamp() * 1_000_000)


# -- who reads what


def _row_groups_of(frame: DataFrame) -> list[RowGroup] | None:
    """None where Spark has to read the files. Raises InputError."""
    files = [urlsplit(url) for url in sorted(frame.inputFiles())]
    columns = [f"/{name}=" for name in METRICS.names]  # in the folders' names, which Spark reads
    if any(file.scheme != "file" or any(text in file.path for text in columns) for file in files):
        return None
    found: list[RowGroup] = []
    for file in files:
        groups = _row_groups(unquote(file.path))
        if groups is None:
            return None
        found += groups
    return found


def _row_groups(file: str) -> list[RowGroup] | None:
    """None where a group does not tell its times. Raises InputError."""
    try:
        metadata = pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"--metrics: the file '{file}' cannot be read: {error}") from error
    position = metadata.schema.names.index("at") if "at" in metadata.schema.names else None
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = None if position is None else group.column(position).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = _micros_of(statistics.min), _micros_of(statistics.max)
        times = Span(low - low % MINUTE, high - high % MINUTE + MINUTE)
        found.append(RowGroup(file, number, group.num_rows, times))
    return found


def _micros_of(moment: Any) -> int:
    return int(pa.scalar(moment).cast(pa.timestamp("us", "UTC")).value)


def tasks_of(groups: Sequence[RowGroup], bounds: Span) -> list[Task] | None:
    """Tasks of about ROWS_PER_TASK whose times follow each other. None where they would read too much twice, or nothing."""
    groups = sorted(
        (each for each in groups if each.times.begin < bounds.end and each.times.end > bounds.begin),
        key=lambda each: each.times,
    )
    if not groups:
        return None
    cuts, rows = [bounds.begin], 0
    for group in groups:
        if rows and rows + group.rows > ROWS_PER_TASK and group.times.begin > cuts[-1]:
            cuts.append(group.times.begin)
            rows = 0
        rows += group.rows
    owned = [Span(*pair) for pair in pairwise([*cuts, bounds.end])]
    tasks = [
        Task(own, [each for each in groups if each.times.begin < own.end and each.times.end > own.begin])
        for own in owned
    ]
    read = sum(each.rows for task in tasks for each in task.groups)
    return None if read > READ_AT_MOST * sum(each.rows for each in groups) else tasks


# -- a task


def _read(batches: Iterable[pa.RecordBatch], tasks: Sequence[Task]) -> Iterator[pa.RecordBatch]:
    pa.set_cpu_count(1)  # Spark runs a task per core
    for batch in batches:
        for number in batch.column(0).to_pylist():
            task = tasks[number]
            samples = pa.concat_tables(_samples(group, task.own) for group in task.groups)
            for part in cells.parts(samples, ROWS_AT_ONCE):
                yield cells.states_of(part, distinct=True)


def _samples(group: RowGroup, own: Span) -> pa.Table:
    """The group's samples within `own`; one without a time counts as its first. Raises InputError."""
    try:
        file = pq.ParquetFile(group.file, read_dictionary=["target", "metric"])
        table = file.read_row_group(group.number, columns=METRICS.names, use_threads=False)
        at = table.column("at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        value = table.column("value").cast(pa.float64())
    except (pa.ArrowException, KeyError, OSError) as error:
        raise InputError(f"--metrics: the file '{group.file}' cannot be read: {error}") from error
    part = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(table)), pa.array([""]))
    columns = [table.column("target"), pa.chunked_array([part]), table.column("metric"), at, value]
    samples = pa.table(columns, names=cells.SAMPLES.names)
    if own.begin <= group.times.begin and own.end >= group.times.end:
        return samples
    moments = at.fill_null(group.times.begin).to_numpy()
    return samples.filter(pa.array((moments >= own.begin) & (moments < own.end)))
