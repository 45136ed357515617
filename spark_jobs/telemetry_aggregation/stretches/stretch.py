"""Samples in Parquet files of this machine: who reads which row groups, and what is made of them where they are read.

Whoever owns a stretch of time reads the row groups that have any of it, by the files' own statistics. So a minute is whole in
one place and finished there; only what hours and days are made of goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from spark_jobs.errors import InputError
from spark_jobs.telemetry_aggregation.minutes.samples import (
    HOUR,
    MINUTE,
    SAMPLES,
    WINDOWS,
    Samples,
    Series,
    parts,
)
from spark_jobs.telemetry_aggregation.minutes.tables import ROWS, Finished, finished, of_invalid

COLUMNS = ("target", "metric", "at", "value")

ROWS_PER_STRETCH = 3_000_000
"""The fewest where there are more: a row group at a cut is read twice."""

STRETCHES_PER_CORE = 2
"""Of what is left, each takes its part: great ones first, few cuts, and small ones last, so that all cores end together."""

LONGEST = 1.5
"""Times what a stretch should be, where a cut there saves reading."""

ROWS_TOGETHER = 1_000_000
"""Rows from which whole hours are finished."""

ROWS_AT_MOST = 4_000_000
"""Rows for which the end of an hour is waited for; about 500 MB with all that is made of them."""

READ_AT_MOST = 1.6
"""Rows read by all for each row there is: above, reading through Spark is cheaper."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

ROWS_AT_ONCE = 200_000
"""They and all that is computed from them fit a core's cache: half the processor time of 4 million at once."""


@cache
def _no_parts() -> pa.DictionaryArray:
    """Made when it is needed: made at import it would bring pandas along, before a process can leave it out."""
    return pa.DictionaryArray.from_arrays(np.zeros(ROWS_AT_ONCE, np.int32), pa.array([""]))


FOR_EVER = (-(1 << 62), 1 << 62)
"""Microseconds; what lies beyond, no calendar has, and arithmetic with 64 bits would go wrong."""

NEVER = -(1 << 63), 1 << 63
"""All that a column of times can hold."""

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""As `map`, and in its order."""


class Span(NamedTuple):
    """Microseconds: from `begin` until before `end`."""

    begin: int
    end: int

    @classmethod
    def of(cls, since: datetime | None, until: datetime | None) -> Span:
        """None does not bound."""
        return cls(_micros(since, FOR_EVER[0]), _micros(until, FOR_EVER[1]))

    @classmethod
    def whole_minutes(cls, first: int, last: int) -> Span:
        """Those in which times from `first` to `last` lie."""
        return cls(first - first % MINUTE, last - last % MINUTE + MINUTE)


def _micros(moment: datetime | None, default: int) -> int:
    return default if moment is None else round(moment.timestamp() * 1_000_000)


class RowGroup(NamedTuple):
    file: str
    number: int
    rows: int
    times: Span  # whole minutes
    names: tuple[tuple[str, str | None], ...] = ()
    """Columns that are not in the file, since its folders tell them."""


class Stretch(NamedTuple):
    """What lies in `own` of these row groups, which are in the order of their times."""

    own: Span
    groups: list[RowGroup]


# -- who reads what


def row_groups(file: str, metadata: pq.FileMetaData) -> list[RowGroup] | None:
    """None where a group does not tell its times."""
    position = metadata.schema.names.index("at")
    if metadata.schema.column(position).physical_type != "INT64":
        return None
    ticks = _PER_SECOND[metadata.schema.to_arrow_schema().field("at").type.unit]
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(position).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = (raw * 1_000_000 // ticks for raw in (statistics.min_raw, statistics.max_raw))
        found.append(RowGroup(file, number, group.num_rows, Span.whole_minutes(low, high)))
    return found


def whole(groups: Iterable[RowGroup], bounds: Span) -> Stretch:
    """All that lies in the bounds, as one stretch."""
    within = (each for each in groups if each.times.begin < bounds.end and each.times.end > bounds.begin)
    return Stretch(bounds, sorted(within, key=lambda each: each.times))


def stretches(groups: Iterable[RowGroup], bounds: Span, *, cores: int) -> list[Stretch] | None:
    """Stretches that follow each other, whole hours where possible. None where too much would be read twice, or nothing."""
    groups = whole(groups, bounds).groups
    if not groups:
        return None
    rows = sum(group.rows for group in groups)
    cuts, left, twice = [bounds.begin], rows, _read_twice(groups)
    first = 0
    while cut := _cut(
        groups[first:], cuts[-1], max(ROWS_PER_STRETCH, left // (STRETCHES_PER_CORE * cores)), twice
    ):
        cuts.append(cut.at)
        first, left = first + cut.groups, left - cut.rows
    found = [whole(groups, Span(*pair)) for pair in pairwise([*cuts, bounds.end])]
    read = sum(each.rows for stretch in found for each in stretch.groups)
    return None if read > READ_AT_MOST * rows else found


class _Cut(NamedTuple):
    """What a stretch that ends there costs, in rows, and so many groups and rows of those that are left begin in it."""

    cost: int
    at: int
    groups: int
    rows: int


def _cut(groups: Sequence[RowGroup], after: int, wanted: int, twice: Callable[[int], int]) -> _Cut | None:
    """Where the stretch that begins at `after` ends, about as many rows as `wanted` long: where little is read twice; None where
    that is too near the end.
    """
    best, rows = None, 0
    for number, group in enumerate(groups):
        if number and (2 * rows >= wanted or rows + group.rows > wanted):
            begin = group.times.begin
            hour = begin - begin % HOUR
            at = hour if hour > max(after, groups[0].times.begin) else begin
            cost = 2 * twice(at) + max(rows - wanted, 0)
            if at > after and (best is None or cost <= best.cost):
                best = _Cut(cost, at, number, rows)
        if best and rows + group.rows > LONGEST * wanted:
            return best
        rows += group.rows
    return best if rows > wanted else None


def _read_twice(groups: Sequence[RowGroup]) -> Callable[[int], int]:
    """How many rows are of groups that begin before a moment and end after it."""
    begins = sorted((group.times.begin, group.rows) for group in groups)
    ends = sorted((group.times.end, group.rows) for group in groups)
    begun, ended = ([0, *accumulate(rows for _, rows in edges)] for edges in (begins, ends))

    def twice(at: int) -> int:
        return begun[bisect_left(begins, (at,))] - ended[bisect_left(ends, (at + 1,))]

    return twice


def count_within(groups: Iterable[RowGroup], bounds: Span) -> int:
    """How many samples are of a time within the bounds, which reach as far as a column can hold where they are not bounded; next
    to nothing is read where the groups tell that. Raises InputError.
    """
    begin = NEVER[0] if bounds.begin == FOR_EVER[0] else bounds.begin
    end = NEVER[1] if bounds.end == FOR_EVER[1] else bounds.end
    count = 0
    for group in whole(groups, Span(begin, end)).groups:
        at = times_of(group).drop_null().to_numpy()
        count += int(np.count_nonzero((at >= begin) & (at < end)))
    return count


def count_unread(groups: Sequence[RowGroup], end: int) -> int:
    """How many samples of all until `end` no stretch reads: of a time before any that is aggregated, and without a time in
    groups of other times. Raises InputError.
    """
    read = set(whole(groups, Span(FOR_EVER[0], end)).groups)
    timeless: int = sum(times_of(group).null_count for group in groups if group not in read)
    return timeless + count_within(groups, Span(NEVER[0], FOR_EVER[0]))


def times_of(group: RowGroup) -> pa.ChunkedArray:
    """The times of all rows of a group, in microseconds. Raises InputError."""
    with _reading(group) as file:
        at = file.read_row_group(group.number, columns=["at"]).column("at")
        _check_rows(group, len(at))
        return _micros_of(at)


@contextmanager
def _reading(group: RowGroup, **options: Any) -> Iterator[pq.ParquetFile]:
    try:
        # INT96 has days beyond what nanoseconds in 64 bits hold.
        with pq.ParquetFile(group.file, coerce_int96_timestamp_unit="us", **options) as file:
            yield file
    except (pa.ArrowException, KeyError, OSError) as error:
        raise InputError(f"--metrics: the file '{group.file}' cannot be read: {error}") from error


def _check_rows(group: RowGroup, read: int) -> None:
    """Raises InputError where a damaged page gave fewer rows, or more, than the file says."""
    if read != group.rows:
        raise InputError(
            f"--metrics: the file '{group.file}' is damaged: row group {group.number} has {group.rows:,} rows, of which"
            f" {read:,} can be read; accepted are whole files: write or copy it again, or move it elsewhere"
        )


# -- what is made of them


Read = tuple[list[Samples], int]
"""Samples, and how many are invalid."""


def made(
    stretch: Stretch, series: Series, run: Run = map, windows: Collection[str] = tuple(WINDOWS)
) -> Iterator[Finished]:
    """All minutes of the stretch, in the order of time, and a state of the invalid samples. Raises InputError.

    Of samples with the same series and time one counts. `run` may do several at the same time. `windows` as in
    tables.finished.
    """
    invalid: list[int] = []
    read = run(partial(_read, own=stretch.own, series=series), stretch.groups)
    finish = partial(_finished, series=series, windows=windows)
    yield from filter(None, run(finish, _ready(stretch, read, invalid)))
    if bad := sum(invalid):
        yield Finished(ROWS.empty_table(), pa.Table.from_batches([of_invalid(bad)]), 0, 0, bad)


def _finished(ready: tuple[list[Samples], Span], series: Series, windows: Collection[str]) -> Finished | None:
    samples, span = ready
    return finished(parts(samples), series, span.begin, span.end, distinct=True, windows=windows)


def _ready(
    stretch: Stretch, read: Iterator[Read], invalid: list[int]
) -> Iterator[tuple[list[Samples], Span]]:
    """Samples of minutes that no later row group has any of: of whole hours, where those are not too many."""
    begins = [group.times.begin for group in stretch.groups[1:]]
    begins += [stretch.own.end] * bool(stretch.groups)
    begin, left = stretch.own.begin, list[Samples]()
    for (samples, bad), following in zip(read, begins, strict=True):
        invalid.append(bad)
        left += samples
        rows = sum(len(each.at) for each in left)
        end = following
        if following < stretch.own.end:
            end -= following % (MINUTE if rows > ROWS_AT_MOST else HOUR)
            if rows < ROWS_TOGETHER or end <= begin:
                continue
        yield [each.between(begin, end) for each in left], Span(begin, end)
        left = [each.between(end, stretch.own.end) for each in left]
        left, begin = [each for each in left if len(each.at)], end


def _read(group: RowGroup, own: Span, series: Series) -> Read:
    """The group's samples within `own`; one without a time counts as its first. Raises InputError."""
    found, invalid = [], 0
    for table in tables_in(group):
        samples, bad = Samples.of(_samples(table, group, own), series)
        found.append(samples)
        invalid += bad
    return found, invalid


def tables_in(group: RowGroup) -> Iterator[pa.Table]:
    """The columns of METRICS, some rows at a time: `at` in microseconds. Raises InputError."""
    names, rows = dict(group.names), 0
    columns = [name for name in COLUMNS if name not in names]
    with _reading(group, read_dictionary=[name for name in ("target", "metric") if name in columns]) as file:
        batches = file.iter_batches(ROWS_AT_ONCE, [group.number], columns=columns, use_threads=False)
        for batch in batches:
            rows += batch.num_rows
            table = pa.Table.from_batches([batch])
            for name, text in names.items():
                table = table.append_column(name, pa.array([text], pa.string()).take(_zeros(len(table))))
            yield table
    _check_rows(group, rows)


def samples_in(group: RowGroup) -> Iterator[pa.Table]:
    """METRICS, some rows at a time; names may be dictionaries. Raises InputError."""
    for table in tables_in(group):
        at = _micros_of(table.column("at")).cast(pa.timestamp("us", "UTC"))
        texts = (_text(table.column(name)) for name in ("target", "metric"))
        yield pa.table([*texts, at, _value(table)], names=list(COLUMNS))


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, np.int32))


def _samples(table: pa.Table, group: RowGroup, own: Span) -> pa.Table:
    at = _micros_of(table.column("at"))
    part = pa.chunked_array([_no_parts().slice(0, len(table))])
    columns = [_text(table.column("target")), part, _text(table.column("metric")), at, _value(table)]
    samples = pa.table(columns, names=SAMPLES.names)
    if own.begin > group.times.begin or own.end < group.times.end:
        moments = at.fill_null(max(group.times.begin, FOR_EVER[0])).to_numpy()
        samples = samples.filter(pa.array((moments >= own.begin) & (moments < own.end)))
    return samples


def _value(table: pa.Table) -> pa.ChunkedArray:
    return table.column("value").cast(pa.float64(), safe=False)  # integers beyond 2^53 are rounded


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As strings, or a dictionary of such: there are large ones (of Polars, of pandas 3), and views."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return (
            column if pa.types.is_string(kind.value_type) else column.cast(kind.value_type).cast(pa.string())
        )
    return column if pa.types.is_string(kind) else column.cast(pa.string())


def _micros_of(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of times in nanoseconds the rest is left out: .NET's, and so Azure's, have seven digits of a second."""
    return times.cast(pa.timestamp("us", "UTC"), safe=times.type.unit != "ns").cast(pa.int64())
