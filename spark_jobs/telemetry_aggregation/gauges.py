"""Gauges on Spark: it brings the samples of a cell, and the cells of a series, into one task; `minutes` does the rest.

A shuffle and numpy in place of Spark's own aggregation: counting per bucket in Spark takes a row per minute, series and
bucket, which was six times the processor time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.telemetry_aggregation.minutes import tables
from spark_jobs.telemetry_aggregation.minutes.buckets import Longs
from spark_jobs.telemetry_aggregation.minutes.samples import HOUR, SERIES, WINDOWS
from spark_jobs.telemetry_aggregation.minutes.windows import floor_to, micros
from spark_jobs.telemetry_aggregation.schemas import GAUGES

STATES = from_arrow_schema(tables.STATES)

ROWS_AT_ONCE = 500_000
"""Rows that a task computes with at once: 100 MB, however many rows it has been given."""


def gauge_states(samples: DataFrame, *, distinct: bool = False) -> DataFrame:
    """One row per series and minute, as tables.STATES, from SAMPLES. `distinct` as in tables.states_of."""
    laid = samples.select(*SERIES, micros("at").alias("at"), "value")
    # With the series alone, one that is read often would be one task's.
    together = _together(laid, floor_to(F.col("at"), HOUR))
    return together.mapInArrow(partial(_states, distinct=distinct), STATES)


def gauges(states: DataFrame, windows: Mapping[str, int] = WINDOWS) -> DataFrame:
    """The table GAUGES from `gauge_states`; `windows` as in tables.windows_of."""
    task = partial(_windows, windows=windows)
    # Windows lie within the widest: nothing needs more of a series at once, and a long history is many tasks'.
    together = _together(states, floor_to(F.col("minute"), max(windows.values())))
    rows = together.mapInArrow(task, from_arrow_schema(tables.ROWS))
    return rows.select(*gauge_columns())


def gauge_columns() -> list[Column]:
    """Those of GAUGES, with what it says of them."""
    return [F.col(field.name).alias(field.name, metadata=field.metadata) for field in GAUGES]


def _together(rows: DataFrame, begin: Column) -> DataFrame:
    """All rows of a series with the same `begin` in one task, which gets them in the order of it."""
    return rows.repartition(*SERIES, begin).sortWithinPartitions(begin)


def _states(batches: Iterable[pa.RecordBatch], *, distinct: bool) -> Iterator[pa.RecordBatch]:
    for samples in whole_windows(batches, "at", HOUR):
        yield tables.states_of(samples, distinct=distinct)


def _windows(batches: Iterable[pa.RecordBatch], windows: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    for states in whole_windows(batches, "minute", max(windows.values())):
        yield from (
            tables.windows_of(states, windows).cast(tables.ROWS).to_batches()
        )  # Spark has no dictionaries


def whole_windows(
    batches: Iterable[pa.RecordBatch], time: str, width: int, rows: int = ROWS_AT_ONCE
) -> Iterator[pa.Table]:
    """Batches in the order of windows of `time` (microseconds), as tables of `rows` rows or some more: no window is in two
    of them.
    """
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if sum(each.num_rows for each in held) >= rows and batch.num_rows:
            last = _window_of(held[-1], time, width)[-1]
            cut = int(np.searchsorted(_window_of(batch, time, width), last, side="right"))
            if cut < batch.num_rows:
                yield pa.Table.from_batches([*held, batch.slice(0, cut)])
                held, batch = [], batch.slice(cut)  # noqa: PLW2901 - the rest of it
        if batch.num_rows:
            held.append(batch)
    if held:
        yield pa.Table.from_batches(held)


def _window_of(batch: pa.RecordBatch, time: str, width: int) -> Longs:
    """By row; what has no time comes first, as Spark sorts it."""
    times: Longs = batch.column(time).fill_null(-(1 << 62)).to_numpy()
    return times // width
