"""Samples in Parquet files of this machine: who reads which row groups, and what is made of them where they are read.

Whoever owns a stretch of time reads the row groups that have any of it, by the files' own statistics. So a minute is whole in
one place and finished there; only what hours and days are made of goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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

_EXACT = {
    ("target", "BYTE_ARRAY", "STRING"),
    ("metric", "BYTE_ARRAY", "STRING"),
    ("at", "INT64", "TIMESTAMP"),
    ("value", "DOUBLE", "NONE"),
}

ROWS_AT_ONCE = 200_000
"""They and all that is computed from them fit a core's cache: half the processor time of 4 million at once."""


@cache
def _no_parts() -> pa.DictionaryArray:
    """Made when it is needed: made at import it would bring pandas along, before a process can leave it out."""
    return pa.DictionaryArray.from_arrays(np.zeros(ROWS_AT_ONCE, np.int32), pa.array([""]))


FOR_EVER = (-(1 << 62), 1 << 62)

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


def _micros(moment: datetime | None, default: int) -> int:
    return default if moment is None else round(moment.timestamp() * 1_000_000)


class RowGroup(NamedTuple):
    file: str
    number: int
    rows: int
    times: Span  # whole minutes


class Stretch(NamedTuple):
    """What lies in `own` of these row groups, which are in the order of their times."""

    own: Span
    groups: list[RowGroup]


# -- who reads what


def row_groups(file: str, *, exact: bool = False) -> list[RowGroup] | None:
    """None where a group does not tell its times; `exact`: or where a column is not as METRICS has it. Raises InputError."""
    try:
        metadata = pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"--metrics: the file '{file}' cannot be read: {error}") from error
    names = metadata.schema.names
    position = names.index("at") if "at" in names else None
    kind = None if position is None else metadata.schema.to_arrow_schema().field("at").type
    if (
        kind is None
        or not pa.types.is_timestamp(kind)
        or metadata.schema.column(position).physical_type != "INT64"
    ):
        return None
    if exact and not (kind.tz and kind.unit in ("us", "ms") and _kinds(metadata) >= _EXACT):
        return None
    ticks = _PER_SECOND[kind.unit]
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(position).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = (raw * 1_000_000 // ticks for raw in (statistics.min_raw, statistics.max_raw))
        times = Span(low - low % MINUTE, high - high % MINUTE + MINUTE)
        found.append(RowGroup(file, number, group.num_rows, times))
    return found


def _kinds(metadata: pq.FileMetaData) -> set[tuple[str, str, str]]:
    columns = map(metadata.schema.column, range(metadata.num_columns))
    return {(each.path, each.physical_type, each.logical_type.type) for each in columns}


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
    """How many samples are of a time within the bounds; next to nothing is read where the groups tell that."""
    count = 0
    for group in whole(groups, bounds).groups:
        table = pq.ParquetFile(group.file).read_row_group(group.number, columns=["at"])
        at = _micros_of(table.column("at")).drop_null().to_numpy()
        count += int(np.count_nonzero((at >= bounds.begin) & (at < bounds.end)))
    return count


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
    try:
        file = pq.ParquetFile(group.file, read_dictionary=["target", "metric"])
        batches = file.iter_batches(ROWS_AT_ONCE, [group.number], columns=list(COLUMNS), use_threads=False)
        for batch in batches:
            samples, bad = Samples.of(_samples(pa.Table.from_batches([batch]), group, own), series)
            found.append(samples)
            invalid += bad
    except (pa.ArrowException, KeyError, OSError) as error:
        raise InputError(f"--metrics: the file '{group.file}' cannot be read: {error}") from error
    return found, invalid


def _samples(table: pa.Table, group: RowGroup, own: Span) -> pa.Table:
    at = _micros_of(table.column("at"))
    value = table.column("value").cast(pa.float64())
    part = pa.chunked_array([_no_parts().slice(0, len(table))])
    columns = [table.column("target"), part, table.column("metric"), at, value]
    samples = pa.table(columns, names=SAMPLES.names)
    if own.begin > group.times.begin or own.end < group.times.end:
        moments = at.fill_null(group.times.begin).to_numpy()
        samples = samples.filter(pa.array((moments >= own.begin) & (moments < own.end)))
    return samples


def _micros_of(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of times in nanoseconds the rest is left out: .NET's, and so Azure's, have seven digits of a second."""
    return times.cast(pa.timestamp("us", "UTC"), safe=times.type.unit != "ns").cast(pa.int64())
