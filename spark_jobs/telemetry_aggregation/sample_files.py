"""Samples in Parquet files of this machine: tasks read them on their own and write finished rows on their own.

Rows on their way from Parquet through Spark to Python cost ten times what it costs to read them there, and on their way back
about as much. Every task has a stretch of time, so only what hours and days are made of is brought together; through Spark
go the names of files and counts. Where files overlap so much that stretches read them again and again, and where results
are not written to this machine, Spark reads them.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.arrow_columns import arrow_columns
from spark_jobs.errors import InputError
from spark_jobs.platform.rows import between, cached, collected
from spark_jobs.telemetry_aggregation import stretch
from spark_jobs.telemetry_aggregation.gauges import STATES, gauge_states, gauges
from spark_jobs.telemetry_aggregation.minutes import tables
from spark_jobs.telemetry_aggregation.minutes.samples import MINUTE, WINDOWS, Series
from spark_jobs.telemetry_aggregation.schemas import GAUGES
from spark_jobs.telemetry_aggregation.transforms import samples_of_metrics

LEFT = arrow_columns("rows text, states text, waiting long, samples long, copies long, invalid long")
"""What a task tells: the files it left, if any, of rows and of states, how many states, and what became of samples."""

STATES_AT_ONCE = 50_000
"""States that one process makes hours and days of; about 100 MB. More go through Spark, series by series."""

_OF_SPARK = {"org.apache.spark.sql.parquet.row.metadata": GAUGES.json()}
"""Where Spark looks for what a table's columns say of themselves."""


class Made(NamedTuple):
    """Files of rows of the table GAUGES and of states that wait for their hours and days, and what became of samples."""

    rows: list[str]
    states: list[str]
    waiting: int
    samples: int
    copies: int
    invalid: int
    ahead: int


def read_samples(
    frame: DataFrame,
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
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        used.callback(shutil.rmtree, folder, ignore_errors=True)
        made = made_of_files(frame, folder, since, until, limit)
    states: dict[str, DataFrame] = {}
    if made is None:
        until_limit = limit if until is None else min(until, limit)
        found = gauge_states(samples_of_metrics(between(frame, "at", since, until_limit)), distinct=True)
        states["gauges"] = used.enter_context(cached(found))
        ahead = between(frame, "at", max(since or limit, limit), until).count()
        sums = (F.sum(name).alias(name) for name in ("samples", "copies", "invalid"))
        [row] = collected(states["gauges"].agg(*sums))
        made = Made([], [], 0, row.samples or 0, row.copies or 0, row.invalid or 0, ahead)
    if not made.samples:
        raise InputError("--metrics holds no valid record in the time asked for")
    read = made.samples + made.copies + made.invalid + made.ahead
    files = [] if folder is None else gauges_of_files(frame.sparkSession, made, folder)
    return files, states, (read, made.copies, 0, made.ahead, made.invalid)


def made_of_files(
    frame: DataFrame,
    folder: Path,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: datetime | None = None,
    windows: Mapping[str, int] = WINDOWS,
) -> Made | None:
    """What tasks leave in the folder of METRICS of Parquet files, of the time until `limit`; None where Spark has to read them.
    `windows` as in tables.finished. Of a task that is done again only the files of one attempt are told.

    Raises InputError for a file that cannot be read.
    """
    groups = _row_groups_of(frame)
    if groups is None:
        return None
    asked, last = stretch.Span.of(since, until), stretch.Span.of(None, limit).end
    tasks = stretch.stretches(groups, asked._replace(end=min(asked.end, last)))
    if not tasks:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    numbers = frame.sparkSession.range(0, len(tasks), 1, len(tasks))
    work = partial(_made, tasks=tasks, folder=folder, windows=tuple(windows))
    left = collected(numbers.mapInArrow(work, from_arrow_schema(LEFT)))
    return Made(
        rows=[each.rows for each in left if each.rows],
        states=[each.states for each in left if each.states],
        waiting=sum(each.waiting for each in left),
        samples=sum(each.samples for each in left),
        copies=sum(each.copies for each in left),
        invalid=sum(each.invalid for each in left),
        ahead=stretch.count_within(groups, asked._replace(begin=max(asked.begin, last))),
    )


def gauges_of_files(
    spark: SparkSession, made: Made, folder: Path, windows: Mapping[str, int] = WINDOWS
) -> list[str]:
    """The files of the table GAUGES, with the windows that are wider than minutes."""
    wider = {name: width for name, width in windows.items() if width > MINUTE}
    if not made.states:
        return made.rows
    if made.waiting <= STATES_AT_ONCE:
        states = pa.concat_tables(map(pq.read_table, made.states))
        with _File(folder, _OF_SPARK, use_dictionary=tables.TEXTS) as file:
            file.write(tables.windows_of(states, wider))
        return [*made.rows, str(file.path)]
    states = spark.read.schema(STATES).parquet(*(f"file:{each}" for each in made.states))
    place = folder / "wider"
    gauges(states, wider).write.parquet(f"file:{place}")
    return [*made.rows, *map(str, sorted(place.glob("*.parquet")))]


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
    folder: Path,
    windows: Collection[str] = tuple(WINDOWS),
) -> Iterator[pa.RecordBatch]:
    pa.set_cpu_count(1)  # Spark runs a task per core
    stretch.keep_memory()
    for batch in batches:
        left = [_left(tasks[number], folder, windows) for number in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_pylist(left, schema=LEFT)


def _left(task: stretch.Stretch, folder: Path, windows: Collection[str]) -> dict[str, object]:
    """Makes the rows and states of a task; as LEFT."""
    told = dict.fromkeys(("waiting", "samples", "copies", "invalid"), 0)
    states_file = _File(folder, {}, compression="none", use_dictionary=False)
    with _File(folder, _OF_SPARK, use_dictionary=tables.TEXTS) as rows, states_file as states:
        for made in stretch.made(task, Series(), windows=windows):
            rows.write(made.rows)
            told["invalid"] += made.invalid
            if not made.invalid:
                states.write(made.states)
                told["waiting"] += len(made.states)
                told["samples"] += made.samples
                told["copies"] += made.copies
    files = {"rows": rows, "states": states}
    return {**told, **{name: str(file.path) if file.there else None for name, file in files.items()}}


class _File:
    """A Parquet file of a name that no other has, which is there when something has been written."""

    def __init__(self, folder: Path, about: Mapping[str, str], **options: object) -> None:
        self.path = folder / f"{uuid4().hex}.parquet"
        self.there = False
        self._about, self._options = dict(about), options
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, table: pa.Table) -> None:
        if not len(table):
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, table.schema, store_schema=False, **self._options)
            self._writer.add_key_value_metadata(self._about)
            self.there = True
        self._writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
