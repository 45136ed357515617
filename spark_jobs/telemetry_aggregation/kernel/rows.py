"""Samples to rows of the table GAUGES, for all windows at once: Arrow tables in and out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from spark_jobs.telemetry_aggregation.kernel.buckets import PERCENTS, Doubles
from spark_jobs.telemetry_aggregation.kernel.cells import Windows, minutes_of, wider
from spark_jobs.telemetry_aggregation.kernel.columns import array_of, texts_of
from spark_jobs.telemetry_aggregation.kernel.samples import MICROS, WINDOWS, Samples, Series
from tidemark.analysis.arrow_columns import arrow_columns

ROWS = arrow_columns(f"""
    window text, window_start time, subject text, part text, metric text, samples long, mean double, min double,
    {", ".join(f"p{percent} double" for percent in PERCENTS)}, max double,
    first_at time, first double, last_at time, last double, drain_per_s double, time_to_drain_s double
""")
"""The table GAUGES."""

TEXTS = ["window", "subject", "part", "metric"]
"""Columns of ROWS for which a file has a dictionary; for numbers one costs more than it saves."""

ENCODED = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in TEXTS else field
        for field in ROWS
    ]
)
"""ROWS with dictionaries for TEXTS."""


def rows_of(
    samples: Samples, series: Series, *, distinct: bool, windows: Collection[str] = tuple(WINDOWS)
) -> Iterator[tuple[pa.Table, Windows]]:
    """The rows of each of these windows, and the windows, from all samples of whole days. `distinct` as in cells.minutes_of."""
    if not len(samples.at):
        return
    minutes = minutes_of(samples, distinct=distinct)
    for name, made in wider_windows(minutes, WINDOWS, windows):
        yield table_of(name, made, series), made


def wider_windows(
    windows: Windows, widths: Iterable[str], wanted: Collection[str]
) -> Iterator[tuple[str, Windows]]:
    """The wanted ones of the windows by name, each made of the one before: hours of minutes, days of hours. So the digits of a
    mean do not depend on which are wanted.
    """
    for name in widths:
        windows = wider(windows, WINDOWS[name])
        if name in wanted:
            yield name, windows


def table_of(name: str, windows: Windows, series: Series) -> pa.Table:
    """The rows of windows of one width, as ENCODED."""
    drain = _ratio(windows.first - windows.last, (windows.last_at - windows.first_at) / MICROS)
    count = len(windows.start)
    columns = [
        pa.DictionaryArray.from_arrays(array_of(np.zeros(count, np.int32)), texts_of([name])),
        windows.start,
        *series.columns(windows.series),
        windows.samples,
        windows.total / windows.samples,
        windows.min,
        *windows.percentiles(),
        windows.max,
        windows.first_at,
        windows.first,
        windows.last_at,
        windows.last,
        drain,
        np.where(windows.last == 0, 0.0, _ratio(windows.last, drain)),
    ]
    return pa.table([_column(*column) for column in zip(columns, ENCODED, strict=True)], schema=ENCODED)


def _column(values: Any, field: pa.Field) -> pa.Array:
    return values if isinstance(values, pa.Array) else array_of(values, field.type)


def _ratio(part: Doubles, whole: Doubles) -> Doubles:
    """NaN, which is null in the result, where `whole` is not above 0."""
    ratio: Doubles = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return ratio
