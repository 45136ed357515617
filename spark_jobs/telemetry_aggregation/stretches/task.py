"""A stretch of samples to files, in a task. Nothing here loads Spark or what it needs: each of its workers would."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from spark_jobs.telemetry_aggregation.minutes import tables
from spark_jobs.telemetry_aggregation.minutes.samples import Series
from spark_jobs.telemetry_aggregation.stretches import stretch
from spark_jobs.telemetry_aggregation.stretches.process import keep_memory


class Left(NamedTuple):
    """What a task tells: the files it left, if any, of rows and of states, how many states, and what became of samples."""

    rows: str | None
    states: str | None
    waiting: int
    samples: int
    copies: int
    invalid: int


def left(task: stretch.Stretch, folder: Path, about: Mapping[str, str], windows: Collection[str]) -> Left:
    """Makes the rows and states of a task, as files in the folder; `about` says something of those of rows."""
    pa.set_cpu_count(1)  # Spark runs a task per core
    keep_memory()
    waiting = samples = copies = invalid = 0
    states_file = TableFile(folder, {}, compression="none", use_dictionary=False)
    with TableFile(folder, about, use_dictionary=tables.TEXTS) as rows, states_file as states:
        for made in stretch.made(task, Series(), windows=windows):
            rows.write(made.rows)
            invalid += made.invalid
            if not made.invalid:
                states.write(made.states)
                waiting += len(made.states)
                samples += made.samples
                copies += made.copies
    return Left(rows.written, states.written, waiting, samples, copies, invalid)


def summed_up(
    files: Sequence[str], folder: Path, about: Mapping[str, str], windows: Mapping[str, int]
) -> str | None:
    """The file of rows of the wider windows, from files of all states, if there is any."""
    states = pa.concat_tables(map(pq.read_table, files))
    with TableFile(folder, about, use_dictionary=tables.TEXTS) as file:
        file.write(tables.windows_of(states, windows))
    return file.written


class TableFile:
    """A Parquet file of a name that no other has, which is there when something has been written."""

    def __init__(self, folder: Path, about: Mapping[str, str], **options: object) -> None:
        self._path = folder / f"{uuid4().hex}.parquet"
        self.written: str | None = None
        self._about, self._options = dict(about), options
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, table: pa.Table) -> None:
        if not len(table):
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, store_schema=False, **self._options)
            self._writer.add_key_value_metadata(self._about)
            self.written = str(self._path)
        self._writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
