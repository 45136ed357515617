"""Windows as Arrow tables: states, which add up, and the rows of the table GAUGES. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from spark_jobs.telemetry_aggregation.minutes.buckets import PERCENTS, Doubles
from spark_jobs.telemetry_aggregation.minutes.cells import (
    Counts,
    Windows,
    joined,
    minutes_of,
    wider,
)
from spark_jobs.telemetry_aggregation.minutes.samples import (
    HOUR,
    MICROS,
    WINDOWS,
    Samples,
    Series,
)
from tidemark.analysis.arrow_columns import arrow_columns

STATES = arrow_columns("""
    subject text, part text, metric text, minute long, samples long, total double, min double, max double,
    first_at long, first double, last_at long, last double, histogram bytes, copies long, invalid long
""")
"""`minute`, where the window begins, `first_at` and `last_at` in microseconds. `histogram`: bucket and count, in turn, each
of 32 bits.

`samples` counts all but `copies` (of a sample that is there) and `invalid` ones (no finite number, or no name or time);
invalid samples are in a state whose minute is null and which has no others.
"""

ROWS = arrow_columns(f"""
    window text, window_start time, subject text, part text, metric text, samples long, mean double, min double,
    {", ".join(f"p{percent} double" for percent in PERCENTS)}, max double,
    first_at time, first double, last_at time, last double, drain_per_s double, time_to_drain_s double
""")
"""The table GAUGES."""

TEXTS = ["window", "subject", "part", "metric"]
"""Of ROWS, what a file has a dictionary of; of numbers one costs more than it saves."""

_SAME = ("samples", "total", "min", "max", "first_at", "first", "last_at", "last", "copies")
"""What states and windows have by the same names."""

_PAIR = np.dtype([("bucket", "<i4"), ("count", "<i4")])


def states_of(samples: pa.Table, *, distinct: bool) -> pa.RecordBatch:
    """The states of all cells in SAMPLES (names may be dictionaries), in no order. `distinct` as in cells.minutes_of."""
    series = Series()
    valid, invalid = Samples.of(samples, series)
    found = [of_invalid(invalid)] if invalid else []
    if len(valid.at):
        found.append(states(minutes_of(valid, distinct=distinct), series))
    return pa.concat_batches(found) if found else of_invalid(0)


def of_invalid(count: int) -> pa.RecordBatch:
    if not count:
        return pa.RecordBatch.from_pylist([], schema=STATES)
    return pa.RecordBatch.from_pylist([{"samples": 0, "copies": 0, "invalid": count}], schema=STATES)


def states(windows: Windows, series: Series) -> pa.RecordBatch:
    columns = [
        *series.columns(windows.series),
        windows.start,
        *(getattr(windows, name) for name in _SAME[:-1]),
        pa.concat_arrays([_histograms(counts) for counts in windows.counts]),
        windows.copies,
        np.zeros(len(windows.start), np.int64),
    ]
    return pa.record_batch(_arrays(columns, STATES), names=STATES.names).cast(STATES)


class Finished(NamedTuple):
    """What becomes of some samples: rows of the minutes' windows, states for the wider ones, and how many are what."""

    rows: pa.Table
    states: pa.Table
    samples: int
    copies: int
    invalid: int


def finished(
    samples: Iterable[Samples],
    series: Series,
    begin: int,
    end: int,
    *,
    distinct: bool,
    windows: Collection[str] = tuple(WINDOWS),
) -> Finished | None:
    """All samples from `begin` until before `end` (microseconds), no minute in two parts; None where there is none.

    The states are of hours. Of an hour that is not whole they are of minutes: an hour is summed up from minutes, all at
    once, so that its digits do not depend on who owned which part of it. Without "1m" in `windows` there are no rows, with
    nothing else no states.
    """
    found = [minutes_of(part, distinct=distinct) for part in samples if len(part.at)]
    if not found:
        return None
    minutes = joined(found)
    made = []
    if set(windows) != {"1m"}:
        hours = minutes.start - minutes.start % HOUR
        whole = (hours >= begin) & (hours + HOUR <= end)
        made = [minutes.where(~whole)] if not whole.all() else []
        if whole.any():
            made.append(wider(minutes.where(whole), HOUR))
    return Finished(
        rows("1m", minutes, series) if "1m" in windows else ROWS.empty_table(),
        pa.Table.from_batches([states(each, series) for each in made], STATES),
        samples=int(minutes.samples.sum()),
        copies=int(minutes.copies.sum()),
        invalid=0,
    )


def windows_of(states: pa.Table, windows: Mapping[str, int] = WINDOWS) -> pa.Table:
    """ROWS of the windows (the texts are dictionaries), each a multiple of the one before, from all states of some series.

    States of invalid samples are left out.
    """
    if states.column("minute").null_count:
        states = states.filter(states.column("minute").is_valid())
    if not len(states):
        return ROWS.empty_table()
    series = Series()
    found = Windows(
        series=series.numbers(states),
        start=states.column("minute").to_numpy(),
        counts=tuple(_counts(states.column("histogram"))),
        **{name: states.column(name).to_numpy() for name in _SAME},
    )
    tables = []
    for window, width in windows.items():  # days from hours, hours from minutes
        found = wider(found, width)
        tables.append(rows(window, found, series))
    return pa.concat_tables(tables)


def rows(window: str, found: Windows, series: Series) -> pa.Table:
    """ROWS, but for the texts, which are dictionaries."""
    drain = _ratio(found.first - found.last, (found.last_at - found.first_at) / MICROS)
    columns = [
        pa.DictionaryArray.from_arrays(np.zeros(len(found.start), np.int32), pa.array([window])),
        found.start,
        *series.columns(found.series),
        found.samples,
        found.total / found.samples,
        found.min,
        *found.percentiles(),
        found.max,
        found.first_at,
        found.first,
        found.last_at,
        found.last,
        drain,
        np.where(found.last == 0, 0.0, _ratio(found.last, drain)),
    ]
    return pa.table(_arrays(columns, ROWS), names=ROWS.names)


def _arrays(columns: Iterable[Any], schema: pa.Schema) -> list[pa.Array]:
    """NaN is null."""
    return [
        column if isinstance(column, pa.Array) else pa.array(column, field.type, from_pandas=True)
        for column, field in zip(columns, schema, strict=True)
    ]


def _ratio(part: Doubles, whole: Doubles) -> Doubles:
    """NaN, which is null in the result, where `whole` is not above 0."""
    found: Doubles = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return found


def _histograms(counts: Counts) -> pa.Array:
    begin, end, sizes, bucket, weight = counts
    if weight is None:
        runs = np.repeat(np.arange(len(sizes)), sizes)
        firsts = np.append(0, np.flatnonzero((runs[1:] != runs[:-1]) | (bucket[1:] != bucket[:-1])) + 1)
        weight = np.diff(firsts, append=len(bucket))
        sizes, bucket = np.bincount(runs[firsts], minlength=len(sizes)), bucket[firsts]
    pairs = np.empty(len(bucket), _PAIR)
    pairs["bucket"], pairs["count"] = bucket, weight
    if pairs.nbytes > np.iinfo(np.int32).max:
        raise ValueError(
            f"{len(bucket)} counts at once; accepted: up to {np.iinfo(np.int32).max // _PAIR.itemsize}"
        )
    offsets = np.cumsum([0, *sizes], dtype=np.int32) * np.int32(_PAIR.itemsize)
    return pa.Array.from_buffers(pa.binary(), end - begin, [None, pa.py_buffer(offsets), pa.py_buffer(pairs)])


def _counts(histograms: pa.ChunkedArray) -> Iterator[Counts]:
    begin = 0
    for chunk in histograms.chunks:
        if len(chunk):
            offsets = np.frombuffer(chunk.buffers()[1], np.int32)[
                chunk.offset : chunk.offset + len(chunk) + 1
            ]
            data = np.frombuffer(chunk.buffers()[2] or b"", np.uint8)
            pairs = data[offsets[0] : offsets[-1]].view(_PAIR)
            sizes = np.diff(offsets).astype(np.int64) // _PAIR.itemsize
            bucket, weight = (pairs[name].astype(np.int64) for name in ("bucket", "count"))
            yield Counts(begin, begin + len(chunk), sizes, bucket, weight)
        begin += len(chunk)
