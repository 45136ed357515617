"""Samples in Parquet files of this machine: tasks read them on their own and finish minutes where they are read.

Rows on their way from Parquet through Spark to Python cost ten times what it costs to read them there. Every task has a
stretch of time, so only what hours and days are made of is shuffled. Where files overlap so much that stretches read them
again and again, Spark reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from urllib.parse import unquote, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.platform.rows import between
from spark_jobs.telemetry_aggregation import stretch
from spark_jobs.telemetry_aggregation.gauges import gauge_columns, gauge_states, gauges
from spark_jobs.telemetry_aggregation.minutes import tables
from spark_jobs.telemetry_aggregation.minutes.samples import MINUTE, WINDOWS, Series
from spark_jobs.telemetry_aggregation.minutes.windows import micros
from spark_jobs.telemetry_aggregation.transforms import samples_of_metrics

_OF_STATES = [field for field in tables.STATES if field.name not in tables.ROWS.names]
MADE = pa.schema([*tables.ROWS, *_OF_STATES])
"""A row of GAUGES, or, where `window` is null, a state: what both have by the same name is in the same column."""


def made_of_files(
    frame: DataFrame,
    since: datetime | None = None,
    until: datetime | None = None,
    windows: Mapping[str, int] = WINDOWS,
) -> DataFrame:
    """MADE, or only states where Spark reads the files, from METRICS of Parquet files, copies left out; `since` and `until`
    bound the time. `windows` as in tables.finished.

    Raises InputError for a file that cannot be read.
    """
    groups = _row_groups_of(frame)
    tasks = None if groups is None else stretch.stretches(groups, stretch.Span.of(since, until))
    if tasks:
        numbers = frame.sparkSession.range(0, len(tasks), 1, len(tasks))
        return numbers.mapInArrow(
            partial(_made, tasks=tasks, windows=tuple(windows)), from_arrow_schema(MADE)
        )
    return gauge_states(samples_of_metrics(between(frame, "at", since, until)), distinct=True)


def states_in(made: DataFrame) -> DataFrame:
    """The states of hours and minutes, as tables.STATES."""
    if "window" not in made.columns:
        return made
    times = {name: micros(name).alias(name) for name in ("first_at", "last_at")}
    return made.where(F.col("window").isNull()).select(
        *(times.get(name, F.col(name)) for name in tables.STATES.names)
    )


def gauges_of_files(made: DataFrame, windows: Mapping[str, int] = WINDOWS) -> DataFrame:
    """The table GAUGES of the windows that were asked for."""
    if "window" not in made.columns:
        return gauges(made, windows)
    wider = {name: width for name, width in windows.items() if width > MINUTE}
    finished = made.where(F.col("window").isNotNull()).select(*gauge_columns())
    if not wider:
        return finished
    return finished.unionByName(gauges(states_in(made), wider))


def _row_groups_of(frame: DataFrame) -> list[stretch.RowGroup] | None:
    """None where Spark has to read the files. Raises InputError."""
    files = [urlsplit(url) for url in sorted(frame.inputFiles())]
    columns = [f"/{name}=" for name in stretch.COLUMNS]  # in the folders' names, which Spark reads
    if any(file.scheme != "file" or any(text in file.path for text in columns) for file in files):
        return None
    found: list[stretch.RowGroup] = []
    for file in files:
        groups = stretch.row_groups(unquote(file.path))
        if groups is None:
            return None
        found += groups
    return found


def _made(
    batches: Iterable[pa.RecordBatch],
    tasks: Sequence[stretch.Stretch],
    windows: Collection[str] = tuple(WINDOWS),
) -> Iterator[pa.RecordBatch]:
    pa.set_cpu_count(1)  # Spark runs a task per core
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for made in stretch.made(tasks[number], Series(), windows=windows):
                for table in (made.rows, made.states):
                    yield from _laid(table).to_batches()


def _laid(table: pa.Table) -> pa.Table:
    """As MADE, what is not there being null."""
    there = set(table.column_names)
    columns = [
        table.column(field.name).cast(field.type) if field.name in there else pa.nulls(len(table), field.type)
        for field in MADE
    ]
    return pa.table(columns, schema=MADE)
