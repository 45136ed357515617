"""Gauges on Spark: an ordinary shuffle brings the samples of a series and day into one task; `kernel` does the rest.

Spark's own aggregation of the same (`groupBy` with percentile_approx) takes more than twice the processor time, its percentiles
cannot be added up, and its digits are not those of `tidemark telemetry-aggregation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.platform.session import try_setting
from spark_jobs.telemetry_aggregation.kernel.rows import ROWS, rows_of
from spark_jobs.telemetry_aggregation.kernel.samples import SERIES, WINDOWS, Samples, Series, together
from spark_jobs.telemetry_aggregation.schemas import GAUGES
from spark_jobs.telemetry_aggregation.transforms import floor_to, micros
from tidemark.analysis.errors import InputError, JobError

ROWS_PER_TASK = 1_500_000
"""Samples of a task: about 100 MB."""

FEWEST_TASKS = 8
"""Of samples enough that each of so many has some work: any machine's cores are busy."""

ROWS_PER_SMALL_TASK = 100_000
"""A task for fewer costs more to start than to run."""

MOST_ROWS = 20_000_000
"""Samples that a task can hold: 400 MB, and three times as much while it works."""

ROWS_PER_BATCH = 200_000
"""On the way to Python. Spark's default of 10,000 takes a third more processor time (measured on 26 November 2026)."""

_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


def gauges(samples: DataFrame, rows: int, *, distinct: bool = False) -> DataFrame:
    """The table GAUGES from SAMPLES, of which there are about so many rows. `distinct` as in cells.minutes_of.

    An action over it raises InputError (`failures.input_errors`) for a task with too many samples.
    """
    laid = samples.select(*SERIES, micros("at").alias("at"), "value")
    # All windows lie within a day. With the series alone, a long history would be one task's.
    day = floor_to(F.col("at"), WINDOWS["1d"])
    task = partial(_rows, distinct=distinct)
    made = laid.repartition(tasks_for(rows), *SERIES, day).mapInArrow(task, from_arrow_schema(ROWS))
    return made.select(*(F.col(field.name).alias(field.name, metadata=field.metadata) for field in GAUGES))


def tasks_for(rows: int) -> int:
    """Among how many tasks samples are split."""
    return max(-(-rows // ROWS_PER_TASK), min(FEWEST_TASKS, -(-rows // ROWS_PER_SMALL_TASK)), 1)


@contextmanager
def large_batches(spark: SparkSession) -> Iterator[None]:
    """Around actions over `gauges`. Where a platform does not allow the setting, they take longer."""
    before = spark.conf.get(_BATCH)
    try_setting(spark, _BATCH, str(ROWS_PER_BATCH))
    try:
        yield
    finally:
        if before is not None:
            try_setting(spark, _BATCH, before)


def _rows(batches: Iterable[pa.RecordBatch], *, distinct: bool) -> Iterator[pa.RecordBatch]:
    series, taken, rows = Series(), list[Samples](), 0
    for batch in batches:
        samples, _ = Samples.of(pa.Table.from_batches([batch]), series)
        taken.append(samples)
        rows += len(samples.at)
        if rows > MOST_ROWS:
            raise InputError(_too_many(together(taken), series))
    used = 0
    for table, windows in rows_of(together(taken), series, distinct=distinct) if rows else ():
        used = used or int(windows.samples.sum() + windows.copies.sum())
        yield from table.cast(ROWS).to_batches(ROWS_PER_BATCH)  # Spark has no dictionaries
    if used != rows:
        raise JobError(f"a task was given {rows:,} samples, of which {used:,} are in its rows")


def _too_many(samples: Samples, series: Series) -> str:
    counts = np.bincount(samples.series)
    most = counts.argmax()
    name = "/".join(filter(None, (texts[0].as_py() for texts in series.columns(np.array([most], np.int32)))))
    return (
        f"a task has more than {MOST_ROWS:,} samples, {counts[most]:,} of them of the series {name}: more than it can hold"
        f" at once; accepted: up to about {MOST_ROWS // 2:,} of a series and day, or copy the files to one machine and run"
        " `tidemark telemetry-aggregation`, which reads them in the order of time"
    )
