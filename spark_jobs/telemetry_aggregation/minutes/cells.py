"""Samples to states of cells, a cell being a minute of a series; and cells to windows. Arrow tables in and out. Pure.

Spark brings what belongs together into one task; what is computed there is here. A cell's state adds up: counts, sums,
extremes, the first and the last sample, and counts per bucket. So batch and stream, minute and day agree.

States are sorted numbers: a stable order of the samples by cell and time is what everything else is read from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark_jobs.arrow_columns import arrow_columns
from spark_jobs.telemetry_aggregation.minutes.buckets import (
    BITS,
    MIDDLE,
    PERCENTS,
    Doubles,
    Longs,
    buckets,
    percentiles,
)

MICROS = 1_000_000
MINUTE = 60 * MICROS
WINDOWS: dict[str, int] = {"1m": MINUTE, "1h": 60 * MINUTE, "1d": 24 * 60 * MINUTE}
"""Name to microseconds. Each is a multiple of a minute and begins at a multiple of itself since the epoch, in UTC."""

SERIES = ("subject", "part", "metric")

SAMPLES = arrow_columns("subject text, part text, metric text, at long, value double")
"""`at` in microseconds since the epoch."""

STATES = arrow_columns("""
    subject text, part text, metric text, minute long, samples long, total double, min double, max double,
    first_at long, first double, last_at long, last double, histogram bytes, copies long, invalid long
""")
"""`minute`, `first_at` and `last_at` in microseconds. `histogram`: bucket and count, in turn, each of 32 bits.

`samples` counts all but `copies` (of a sample that is there) and `invalid` ones (no finite number, or no name or time);
invalid samples are in a state whose minute is null and which has no others.
"""

ROWS = arrow_columns(f"""
    window text, window_start time, subject text, part text, metric text, samples long, mean double, min double,
    {", ".join(f"p{percent} double" for percent in PERCENTS)}, max double,
    first_at time, first double, last_at time, last double, drain_per_s double, time_to_drain_s double
""")
"""The table GAUGES."""

_SAME = ("samples", "total", "min", "max", "first_at", "first", "last_at", "last")
"""What states and windows have by the same names."""

_NEVER = np.iinfo(np.int64)
_WORD = 63  # bits of a whole number that is not negative
_PAIR = np.dtype([("bucket", "<i4"), ("count", "<i4")])


class Names(NamedTuple):
    """The series of some rows: `codes` per row; equal series have equal codes, and `columns` are what they stand for."""

    codes: Longs
    columns: tuple[pa.DictionaryArray, ...]

    @classmethod
    def of(cls, table: pa.Table) -> Names:
        codes = np.zeros(len(table), np.int64)
        columns = []
        for name in SERIES:
            column = _encoded(table.column(name))
            codes = codes * max(1, len(column.dictionary)) + column.indices.to_numpy(zero_copy_only=False)
            columns.append(column)
        return cls(codes, tuple(columns))

    def at(self, rows: Longs) -> list[pa.Array]:
        return [column.take(pa.array(rows)).cast(pa.string()) for column in self.columns]


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    # pyarrow gives the chunks of an empty column another type than those of others
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


# -- samples to states


def parts(samples: pa.Table, rows: int) -> Iterator[pa.Table]:
    """SAMPLES in consecutive parts of `rows` rows or some more, no minute in two of them; one part if times are mixed."""
    at = samples.column("at")
    until = np.maximum.accumulate(at.fill_null(_NEVER.min).to_numpy())
    since = np.minimum.accumulate(at.fill_null(_NEVER.max).to_numpy()[::-1])[::-1]
    cuts = np.flatnonzero(until[:-1] < since[1:] - since[1:] % MINUTE) + 1
    begin = 0
    while begin < len(samples):
        later = np.searchsorted(cuts, begin + rows)
        end = int(cuts[later]) if later < len(cuts) else len(samples)
        yield samples.slice(begin, end - begin)
        begin = end


def states_of(samples: pa.Table, *, distinct: bool) -> pa.RecordBatch:
    """The states of all cells in SAMPLES (names may be dictionaries), in no order.

    `distinct`: of samples with the same series and time, one counts, the greatest; the others are copies.
    """
    valid = _valid(samples)
    invalid = len(samples) - int(np.count_nonzero(valid))
    if invalid:
        samples = samples.filter(pa.array(valid))
    if not len(samples):
        return _of_invalid(invalid)
    names = Names.of(samples)
    at, value = _numbers(samples, "at"), _numbers(samples, "value")
    cells, order, in_order = _ordered(names.codes, at, value)
    at, value = at[order], value[order]
    copies = np.zeros(0, np.int64)
    if distinct and not in_order and len(kept := _last_of_equals(cells, at)) < len(at):
        copies = np.diff(kept, prepend=-1) - 1  # before the one that is kept, in the same cell
        cells, order, at, value = cells[kept], order[kept], at[kept], value[kept]
    starts = _begins(cells)
    ends = np.append(starts[1:], len(cells))
    states = [
        *names.at(order[starts]),
        at[starts] - at[starts] % MINUTE,
        ends - starts,
        np.add.reduceat(value, starts),
        np.minimum.reduceat(value, starts),
        np.maximum.reduceat(value, starts),
        at[starts],
        value[starts],
        at[ends - 1],
        value[ends - 1],
        _histograms(starts, value),
        np.add.reduceat(copies, starts) if len(copies) else np.zeros(len(starts), np.int64),
        np.zeros(len(starts), np.int64),
    ]
    found = pa.record_batch(states, schema=STATES)
    return pa.concat_batches([found, _of_invalid(invalid)]) if invalid else found


def _valid(samples: pa.Table) -> NDArray[np.bool_]:
    known = np.ones(len(samples), bool)
    for name in samples.column_names:
        if samples.column(name).null_count:
            known &= samples.column(name).is_valid().to_numpy(zero_copy_only=False)
    finite: NDArray[np.bool_] = known & np.isfinite(_numbers(samples, "value"))
    return finite


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """Nulls are NaN in doubles; other columns have none."""
    found: NDArray[Any] = table.column(name).to_numpy()
    return found


def _of_invalid(count: int) -> pa.RecordBatch:
    if not count:
        return pa.RecordBatch.from_pylist([], schema=STATES)
    return pa.RecordBatch.from_pylist([{"samples": 0, "copies": 0, "invalid": count}], schema=STATES)


def _begins(keys: Longs) -> Longs:
    """Where each run of equal keys begins; there is one at least."""
    return np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)


def _ordered(codes: Longs, at: Longs, value: Doubles) -> tuple[Longs, Longs, bool]:
    """The rows' cells and numbers in the order of series, time and value, and whether they came so, no time twice.

    Sorting whole numbers is five times as fast as sorting rows by several columns. A cell and the row's number, packed
    into one, bring rows of a cell together and leave them as they came, which most often is the order of time.
    """
    minutes = at // MINUTE
    begin, end = int(minutes.min()), int(minutes.max())
    row_bits = len(at).bit_length()
    if (int(codes.max()) + 1) * (end - begin + 1) >= 1 << (_WORD - row_bits):
        codes = np.unique(codes, return_inverse=True)[1]
        minutes, begin = np.unique(minutes, return_inverse=True)[1], 0
        end = int(minutes.max())
    cells = codes * (end - begin + 1) + (minutes - begin)
    packed = (cells << row_bits) | np.arange(len(at))
    packed.sort()
    order = packed & ((1 << row_bits) - 1)
    cells = packed >> row_bits
    times = at[order]
    wrong = np.flatnonzero((times[1:] <= times[:-1]) & (cells[1:] == cells[:-1]))
    if len(wrong):
        rows = np.flatnonzero(np.isin(cells, cells[wrong]))
        mixed = order[rows]
        order[rows] = mixed[np.lexsort((value[mixed], at[mixed], cells[rows]))]
    return cells, order, not len(wrong)


def _last_of_equals(cells: Longs, at: Longs) -> Longs:
    """Of neighbours with the same cell and time, the last one's position: the greatest, in `_ordered`'s order."""
    differs = (cells[1:] != cells[:-1]) | (at[1:] != at[:-1])
    return np.append(np.flatnonzero(differs), len(at) - 1)


def _histograms(starts: Longs, value: Doubles) -> pa.Array:
    """Of each run of values that begins at `starts`, the buckets and counts."""
    sizes = np.diff(np.append(starts, len(value)))
    runs = np.repeat(np.arange(len(starts)), sizes)
    keys = (runs << BITS) | (buckets(value) + MIDDLE)
    keys.sort()
    firsts = _begins(keys)
    pairs = np.empty(len(firsts), _PAIR)
    pairs["bucket"] = (keys[firsts] & ((1 << BITS) - 1)) - MIDDLE
    pairs["count"] = np.diff(np.append(firsts, len(keys)))
    offsets = np.searchsorted(keys[firsts] >> BITS, np.arange(len(starts) + 1)) * _PAIR.itemsize
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"{len(value)} samples at once; accepted: up to {np.iinfo(np.int32).max // _PAIR.itemsize}"
        )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(pairs)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


# -- states to windows


class _Windows(NamedTuple):
    """Windows of series in the order of both, or the states they are made of. Entries: window, bucket and count."""

    row: Longs  # a state of the window's series
    code: Longs
    start: Longs
    samples: Longs
    total: Doubles
    min: Doubles
    max: Doubles
    first_at: Longs
    first: Doubles
    last_at: Longs
    last: Doubles
    entries: tuple[Longs, Longs, Longs]


def windows_of(states: pa.Table, windows: Mapping[str, int] = WINDOWS) -> pa.Table:
    """The rows of the windows, each a multiple of the one before, from all states of some series.

    States of invalid samples are left out.
    """
    states = states.filter(pc.is_valid(states.column("minute")))
    if not len(states):
        return ROWS.empty_table()
    names = Names.of(states)
    found = _Windows(
        row=np.arange(len(states)),
        code=names.codes,
        start=_numbers(states, "minute"),
        entries=_entries(states.column("histogram")),
        **{name: _numbers(states, name) for name in _SAME},
    )
    tables = []
    for window, width in windows.items():  # days from hours, hours from minutes
        found = _wider(found, width)
        tables.append(_rows(window, found, names))
    return pa.concat_tables(tables)


def _entries(histograms: pa.ChunkedArray) -> tuple[Longs, Longs, Longs]:
    pairs = np.concatenate([_pairs(chunk) for chunk in histograms.chunks])
    sizes = pc.binary_length(histograms).to_numpy() // _PAIR.itemsize
    rows = np.repeat(np.arange(len(histograms)), sizes)
    return rows, pairs["bucket"].astype(np.int64), pairs["count"].astype(np.int64)


def _pairs(chunk: pa.Array) -> NDArray[np.void]:
    offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    data = np.frombuffer(chunk.buffers()[2] or b"", np.uint8)
    return data[offsets[0] : offsets[-1]].view(_PAIR)


def _wider(given: _Windows, width: int) -> _Windows:
    """The windows of `width` microseconds."""
    start = given.start - given.start % width
    order = np.lexsort((given.first_at, start, given.code))
    changes = (np.diff(given.code[order]) != 0) | (np.diff(start[order]) != 0)
    begins = np.append(0, np.flatnonzero(changes) + 1)
    ends = np.append(begins[1:], len(order)) - 1
    groups = np.append(0, np.cumsum(changes))
    latest = order[np.lexsort((given.last_at[order], groups))]  # as a rule the same order again
    group_of = np.empty(len(order), np.int64)
    group_of[order] = groups
    firsts, lasts = order[begins], latest[ends]
    return _Windows(
        row=given.row[firsts],
        code=given.code[firsts],
        start=start[firsts],
        samples=np.add.reduceat(given.samples[order], begins),
        total=np.add.reduceat(given.total[order], begins),
        min=np.minimum.reduceat(given.min[order], begins),
        max=np.maximum.reduceat(given.max[order], begins),
        first_at=given.first_at[firsts],
        first=given.first[firsts],
        last_at=given.last_at[lasts],
        last=given.last[lasts],
        entries=_added(group_of[given.entries[0]], *given.entries[1:]),
    )


def _added(groups: Longs, numbers: Longs, counts: Longs) -> tuple[Longs, Longs, Longs]:
    """Counts per group and bucket, in the order of both."""
    keys = (groups << BITS) | (numbers + MIDDLE)
    bits = int(counts.max()).bit_length()
    if int(keys.max()).bit_length() + bits < 64:
        # Sorting numbers is five times as fast as finding their order.
        packed = (keys << bits) | counts
        packed.sort()
        keys, counts = packed >> bits, packed & ((1 << bits) - 1)
    else:
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
    firsts = _begins(keys)
    numbers = (keys[firsts] & ((1 << BITS) - 1)) - MIDDLE
    return keys[firsts] >> BITS, numbers, np.add.reduceat(counts, firsts)


def _rows(window: str, found: _Windows, names: Names) -> pa.Table:
    drain = _ratio(found.first - found.last, (found.last_at - found.first_at) / MICROS)
    columns = [
        pa.repeat(window, len(found.row)),
        found.start,
        *names.at(found.row),
        found.samples,
        found.total / found.samples,
        found.min,
        *(np.clip(percentile, found.min, found.max) for percentile in percentiles(*found.entries)),
        found.max,
        found.first_at,
        found.first,
        found.last_at,
        found.last,
        drain,
        np.where(found.last == 0, 0.0, _ratio(found.last, drain)),
    ]
    arrays = [
        pa.array(values, type=field.type, from_pandas=True)
        for values, field in zip(columns, ROWS, strict=True)
    ]
    return pa.table(arrays, schema=ROWS)


def _ratio(part: Doubles, whole: Doubles) -> Doubles:
    """NaN, which is null in the result, where `whole` is not above 0."""
    found: Doubles = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return found
