"""The stream: states of minutes that can change no more, exactly once, batch by batch.

A micro-batch's records join those of the minutes still open. Minutes older than the newest record by more than `late`
are closed: their states are written, never to change; what comes for them afterwards is late and is kept apart. Every
write of a batch goes to a folder of its number, so a batch that runs again after a crash writes the same again: the
source's offsets in Spark's checkpoint and these folders together make each record count once. The functions are the
batch job's, and so the numbers are.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.output import is_local, local, read_table, write_table
from spark_jobs.telemetry_aggregation.cells import MINUTE
from spark_jobs.telemetry_aggregation.datasets import Dataset
from spark_jobs.telemetry_aggregation.transforms import distinct
from spark_jobs.telemetry_aggregation.windows import micros

BEGINNING = -(1 << 62)  # before every record, in microseconds


@dataclass(frozen=True, slots=True)
class Mark:
    """How a dataset stands after a batch. `newest` and `closed` in microseconds: minutes before `closed` are done."""

    newest: int = BEGINNING
    closed: int = BEGINNING
    read: int = 0
    duplicates: int = 0
    late: int = 0
    invalid: int = 0


class Incremental:
    """One dataset's state below `folder`; `step` is for foreachBatch. `late` in microseconds."""

    def __init__(self, dataset: Dataset, folder: str, *, late: int, late_folder: str) -> None:
        self._dataset = dataset
        self._folder = f"{folder}/{dataset.name}"
        self._late = late
        self._late_folder = f"{late_folder}/{dataset.name}"

    def step(self, batch: DataFrame, number: int) -> None:
        """Takes micro-batch `number`; again with the same batch is harmless."""
        rows = self._dataset.prepare(batch).persist()
        try:
            self._take(rows, number)
        finally:
            rows.unpersist()

    def _take(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession  # the stream's own: foreachBatch runs in a copy of the job's
        before = self._mark(spark, number - 1)
        at, valid = micros("at"), self._dataset.valid
        is_late = valid & (at < before.closed)
        counted = rows.select(
            F.count("*").alias("read"),
            F.count_if(is_late).alias("late"),
            F.count_if(~valid).alias("invalid"),
            F.max(F.when(valid, at)).alias("newest"),
        ).first()
        assert counted is not None  # noqa: S101 - an aggregate without groups has one row
        newest = max(before.newest, counted["newest"] if counted["newest"] is not None else BEGINNING)
        closed = max(before.closed, (newest - self._late) // MINUTE * MINUTE)
        live = rows.where(valid & (at >= before.closed))
        if number > 0:
            live = live.unionByName(read_table(spark, self._path("open", number - 1)))
        kept = distinct(live, self._dataset.keys).persist()
        try:
            duplicates = live.count() - kept.count()
            self._write_states(kept, before.closed, closed, number)
            self._write_open(kept, closed, number)
        finally:
            kept.unpersist()
        if counted["late"]:
            write_table(rows.where(is_late), f"{self._late_folder}/batch={number}")
        mark = Mark(newest, closed, counted["read"], duplicates, counted["late"], counted["invalid"])
        self._write_mark(spark, mark, number)
        self._forget(number - 2)

    def _write_states(self, kept: DataFrame, since: int, until: int, number: int) -> None:
        closing = kept.where(micros("at") < until)
        for table, states in self._dataset.states(closing, F.lit(since), F.lit(until)).items():
            write_table(states.coalesce(1), self._path(table, number))

    def _write_open(self, kept: DataFrame, closed: int, number: int) -> None:
        still = kept.where(micros("at") >= closed)
        if self._dataset.carry is not None:
            still = still.unionByName(self._dataset.carry(kept, F.lit(closed)))
        write_table(still, self._path("open", number))

    def _path(self, table: str, number: int) -> str:
        return f"{self._folder}/{table}/batch={number}"

    def _mark(self, spark: SparkSession, number: int) -> Mark:
        if number < 0:
            return Mark()
        row = read_table(spark, self._path("marks", number)).first()
        return Mark() if row is None else Mark(**row.asDict())

    def _write_mark(self, spark: SparkSession, mark: Mark, number: int) -> None:
        columns = [F.lit(getattr(mark, name)).cast("long").alias(name) for name in Mark.__slots__]
        write_table(spark.range(1).coalesce(1).select(*columns), self._path("marks", number))

    def _forget(self, number: int) -> None:
        """Open records of two batches ago: no rerun needs them."""
        path = self._path("open", number)
        if number >= 0 and is_local(path):
            shutil.rmtree(Path(local(path)), ignore_errors=True)


def written(spark: SparkSession, folder: str, dataset: Dataset, table: str) -> DataFrame:
    """All states of a table (or all marks) that the stream has written so far."""
    return spark.read.parquet(f"{folder}/{dataset.name}/{table}").drop("batch")
