"""Gauges on Spark: it brings the samples of a cell, and the cells of a series, into one task; `cells` does the rest.

A shuffle and numpy in place of Spark's own aggregation: counting per bucket in Spark takes a row per minute, series and
bucket, which was six times the processor time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.telemetry_aggregation.minutes import cells
from spark_jobs.telemetry_aggregation.minutes.cells import WINDOWS
from spark_jobs.telemetry_aggregation.minutes.windows import floor_to, micros
from spark_jobs.telemetry_aggregation.schemas import GAUGES

STATES = from_arrow_schema(cells.STATES)


def gauge_states(samples: DataFrame, *, distinct: bool = False) -> DataFrame:
    """One row per series and minute, as cells.STATES, from SAMPLES. `distinct` as in cells.states_of."""
    laid = samples.select(*cells.SERIES, micros("at").alias("at"), "value")
    # With the series alone, one that is read often would be one task's.
    hour = floor_to(F.col("at"), WINDOWS["1h"])
    return laid.repartition(*cells.SERIES, hour).mapInArrow(partial(_states, distinct=distinct), STATES)


def gauges(states: DataFrame, windows: Mapping[str, int] = WINDOWS) -> DataFrame:
    """The table GAUGES from `gauge_states`; `windows` as in cells.windows_of."""
    task = partial(_windows, windows=windows)
    rows = states.repartition(*cells.SERIES).mapInArrow(task, from_arrow_schema(cells.ROWS))
    return rows.select(*(F.col(field.name).alias(field.name, metadata=field.metadata) for field in GAUGES))


def _states(batches: Iterable[pa.RecordBatch], *, distinct: bool) -> Iterator[pa.RecordBatch]:
    found = list(batches)
    if found:
        yield cells.states_of(pa.Table.from_batches(found), distinct=distinct)


def _windows(batches: Iterable[pa.RecordBatch], windows: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    found = list(batches)
    if found:
        yield from cells.windows_of(pa.Table.from_batches(found), windows).to_batches()
