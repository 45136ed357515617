"""Samples in Parquet files of this machine, in the order of time: row group by row group, by the files' own statistics.

A minute is finished when no later row group has samples of it. If row groups that overlap hold more rows than memory may, their
samples are first written to files, one for each time range, and these are aggregated one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark_jobs.telemetry_aggregation.kernel.columns import array_of, numbers_of, texts_of
from spark_jobs.telemetry_aggregation.kernel.samples import HOUR, MINUTE, SAMPLES, Samples, Series
from tidemark.analysis.errors import InputError

COLUMNS = ("target", "metric", "at", "value")

ROWS_TOGETHER = 1_000_000
"""Rows in memory from which whole hours are finished; chosen: 25 MB of samples."""

ROWS_AT_MOST = 2_000_000
"""Rows in memory up to which a part ends with an hour, not with a minute. With all that is made of them, 100 million rows of a day took
400 MB with it, and 520 MB with twice as many, in the same CPU time (27 November 2026).
"""

ROWS_OPEN = 4 * ROWS_AT_MOST
"""Rows of row groups that overlap, at most: 160 MB. If there are more, samples go through files."""

RANGES = 64
"""Files for time ranges, at least; a range with too many rows is split again. Chosen: an hour is split into minutes at once."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

ROWS_AT_ONCE = 200_000
"""Rows that are worked on at once. They and all that is computed from them fit a core's cache: half the CPU time of 4 million."""


FOR_EVER = (-(1 << 62), 1 << 62)
"""Microseconds. No calendar has times beyond, and arithmetic with 64 bits would overflow."""

EVERY_TIME = -(1 << 63), 1 << 63
"""Microseconds: every time that a column can hold."""

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


def _micros(time: datetime | None, default: int) -> int:
    return default if time is None else round(time.timestamp() * 1_000_000)


class RowGroup(NamedTuple):
    file: str
    number: int
    rows: int
    times: Span  # whole minutes
    names: tuple[tuple[str, str | None], ...] = ()
    """Columns that are in the names of the file's folders instead of the file."""


# -- which row groups


def row_groups(file: str, metadata: pq.FileMetaData) -> list[RowGroup] | None:
    """None where a group has no statistics of its times."""
    position = metadata.schema.names.index("at")
    if metadata.schema.column(position).physical_type != "INT64":
        return None
    ticks = _PER_SECOND[metadata.schema.to_arrow_schema().field("at").type.unit]
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(position).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = (raw * 1_000_000 // ticks for raw in (statistics.min_raw, statistics.max_raw))
        groups.append(RowGroup(file, number, group.num_rows, Span.whole_minutes(low, high)))
    return groups


def within(groups: Iterable[RowGroup], bounds: Span) -> list[RowGroup]:
    """The row groups that have any time within the bounds, in the order of their times."""
    overlapping = (
        group for group in groups if group.times.begin < bounds.end and group.times.end > bounds.begin
    )
    return sorted(overlapping, key=lambda row_group: row_group.times)


def count_most_open(groups: Sequence[RowGroup]) -> int:
    """The greatest number of rows in row groups that overlap."""
    changes = [(group.times.begin, group.rows) for group in groups]
    changes += [(group.times.end, -group.rows) for group in groups]
    return max(accumulate(rows for _, rows in sorted(changes)), default=0)


def count_within(groups: Iterable[RowGroup], bounds: Span) -> int:
    """How many samples are of a time within the bounds; a side that is not bounded reaches as far as a column does. Only row groups
    whose statistics overlap the bounds are read. Raises InputError.
    """
    begin = EVERY_TIME[0] if bounds.begin == FOR_EVER[0] else bounds.begin
    end = EVERY_TIME[1] if bounds.end == FOR_EVER[1] else bounds.end
    count = 0
    for group in within(groups, Span(begin, end)):
        at = numbers_of(read_times(group).drop_null())
        count += int(np.count_nonzero((at >= begin) & (at < end)))
    return count


def count_unread(groups: Sequence[RowGroup], end: int) -> int:
    """How many samples of all until `end` are not read to be aggregated: of a time before any that is, and without a time in
    row groups of other times. Raises InputError.
    """
    read = set(within(groups, Span(FOR_EVER[0], end)))
    timeless: int = sum(read_times(group).null_count for group in groups if group not in read)
    return timeless + count_within(groups, Span(EVERY_TIME[0], FOR_EVER[0]))


def read_times(group: RowGroup) -> pa.ChunkedArray:
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


# -- samples in the order of time

Read = tuple[Samples, int]
"""Samples, and how many are invalid."""

Ready = tuple[list[Samples], Span]
"""Samples of minutes that are whole, and the time they are of."""


@dataclass
class Account:
    """How many samples were invalid so far."""

    invalid: int = 0


def in_order(
    groups: Sequence[RowGroup], own: Span, series: Series, account: Account, folder: Path, run: Run = map
) -> Iterator[Ready]:
    """Yields all samples within `own` in the order of time; no minute is in two parts. `run` may read several row groups at the same
    time. Temporary files are in the folder while the iterator lasts: 20 bytes for each sample, where samples go through files.
    Raises InputError.
    """
    groups = within(groups, own)
    if count_most_open(groups) <= ROWS_OPEN:
        yield from _ready(groups, own, run(partial(_read_all, own=own, series=series), groups), account)
        return
    begin, end = max(own.begin, groups[0].times.begin), min(own.end, max(group.times.end for group in groups))
    # One after the other and little by little: a row group may hold more rows than may wait.
    read = (batch for group in groups for batch in _read(group, own, series))
    rows = sum(group.rows for group in groups)
    yield from _through_files(_counted(read, account), Span(begin, end), rows, folder)


def _counted(read: Iterable[Read], account: Account) -> Iterator[Samples]:
    for samples, bad in read:
        account.invalid += bad
        yield samples


def _ready(
    groups: Sequence[RowGroup], own: Span, read: Iterator[list[Read]], account: Account
) -> Iterator[Ready]:
    """Yields samples of minutes of which no later row group has any: of whole hours, unless these hold too many."""
    begins = [group.times.begin for group in groups[1:]]
    begins += [own.end] * bool(groups)
    begin, left = own.begin, list[Samples]()
    for read_samples, following in zip(read, begins, strict=True):
        left += _counted(read_samples, account)
        rows = sum(len(samples.at) for samples in left)
        end = following
        if following < own.end:
            if rows <= ROWS_AT_MOST:
                end -= following % HOUR
            if rows < ROWS_TOGETHER or end <= begin:
                continue
        yield [samples.between(begin, end) for samples in left], Span(begin, end)
        left = [samples.between(end, own.end) for samples in left]
        left, begin = [samples for samples in left if len(samples.at)], end


_RECORD = np.dtype([("series", "<i4"), ("at", "<i8"), ("value", "<f8")])


@dataclass
class _Range:
    """Samples of a time range in a file, as they came."""

    file: Path
    rows: int = 0
    first: int = FOR_EVER[1]
    last: int = FOR_EVER[0]

    def append(self, records: NDArray[Any]) -> None:
        with self.file.open("ab") as file:  # opened each time: a process may not have hundreds open
            file.write(records.tobytes())
        self.rows += len(records)
        self.first, self.last = (
            min(self.first, int(records["at"].min())),
            max(self.last, int(records["at"].max())),
        )

    def samples(self) -> Iterator[Samples]:
        with self.file.open("rb") as file:
            while len(records := np.fromfile(file, _RECORD, ROWS_AT_ONCE)):
                yield Samples(*(np.ascontiguousarray(records[name]) for name in Samples._fields))


def _through_files(samples: Iterable[Samples], span: Span, rows: int, folder: Path) -> Iterator[Ready]:
    """Yields the samples, all of them within `span`, range by range. Ranges begin at whole hours. Those that divide one hour begin
    with the span, so each is shorter than the span, and the division ends.
    """
    begin = span.begin - span.begin % (HOUR if span.end - span.begin > HOUR else MINUTE)
    width = -(-(span.end - begin) // max(RANGES, -(-rows // ROWS_TOGETHER)))
    width += -width % (HOUR if width > HOUR else MINUTE)
    for number, part in sorted(_ranges(samples, begin, width, folder).items()):
        if part.rows > ROWS_AT_MOST and width > MINUTE:
            inner = Span.whole_minutes(part.first, part.last)
            yield from _through_files(part.samples(), inner, part.rows, folder)
        else:
            yield list(part.samples()), Span(begin + number * width, begin + (number + 1) * width)
        part.file.unlink()


def _ranges(samples: Iterable[Samples], begin: int, width: int, folder: Path) -> dict[int, _Range]:
    """Writes the samples to files, and returns these by the number of their range."""
    ranges: dict[int, _Range] = {}
    for sample in samples:
        records = np.empty(len(sample.at), _RECORD)
        for name, column in sample._asdict().items():
            records[name] = column
        numbers = (sample.at - begin) // width
        order = np.argsort(numbers, kind="stable")
        records, numbers = records[order], numbers[order]
        firsts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        for first, last in pairwise([*firsts.tolist(), len(numbers)]):
            number = int(numbers[first])
            if number not in ranges:
                ranges[number] = _Range(folder / f".{begin}-{width}-{number}.samples")
            ranges[number].append(records[first:last])
    return ranges


# -- reading


def _read(group: RowGroup, own: Span, series: Series) -> Iterator[Read]:
    """Yields the group's samples within `own`; one without a time counts as the group's first time. Raises InputError."""
    for table in tables_in(group):
        yield Samples.of(_samples(table, group, own), series)


def _read_all(group: RowGroup, own: Span, series: Series) -> list[Read]:
    return list(_read(group, own, series))


def tables_in(group: RowGroup) -> Iterator[pa.Table]:
    """Yields the columns of METRICS, some rows at a time, with times as they are stored. Raises InputError."""
    names, rows = dict(group.names), 0
    columns = [name for name in COLUMNS if name not in names]
    with _reading(group, read_dictionary=[name for name in ("target", "metric") if name in columns]) as file:
        batches = file.iter_batches(ROWS_AT_ONCE, [group.number], columns=columns, use_threads=False)
        for batch in batches:
            rows += batch.num_rows
            table = pa.Table.from_batches([batch])
            for name, text in names.items():
                one = pa.nulls(1, pa.string()) if text is None else texts_of([text])
                table = table.append_column(name, one.take(_zeros(len(table))))
            yield table
    _check_rows(group, rows)


def samples_in(group: RowGroup) -> Iterator[pa.Table]:
    """METRICS, some rows at a time; names may be dictionaries. Raises InputError."""
    for table in tables_in(group):
        at = _micros_of(table.column("at")).cast(pa.timestamp("us", "UTC"))
        texts = (_text(table.column(name)) for name in ("target", "metric"))
        yield pa.table([*texts, at, _value(table)], names=list(COLUMNS))


def _zeros(count: int) -> pa.Array:
    return array_of(np.zeros(count, np.int32))


def _samples(table: pa.Table, group: RowGroup, own: Span) -> pa.Table:
    at = _micros_of(table.column("at"))
    part = pa.chunked_array([pa.DictionaryArray.from_arrays(_zeros(len(table)), texts_of([""]))])
    columns = [_text(table.column("target")), part, _text(table.column("metric")), at, _value(table)]
    samples = pa.table(columns, names=SAMPLES.names)
    if own.begin > group.times.begin or own.end < group.times.end:
        moments = numbers_of(at)
        if at.null_count:
            known = numbers_of(at.is_valid())
            moments = np.where(known, moments, max(group.times.begin, FOR_EVER[0]))
        samples = samples.filter(array_of((moments >= own.begin) & (moments < own.end)))
    return samples


def _value(table: pa.Table) -> pa.ChunkedArray:
    return table.column("value").cast(pa.float64(), safe=False)  # integers beyond 2^53 are rounded


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As strings, or a dictionary of strings: Polars and pandas 3 write large strings, and others views."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return (
            column if pa.types.is_string(kind.value_type) else column.cast(kind.value_type).cast(pa.string())
        )
    return column if pa.types.is_string(kind) else column.cast(pa.string())


def _micros_of(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """In microseconds. Digits beyond are dropped: times of .NET, and so of Azure, have seven digits of a second."""
    return times.cast(pa.timestamp("us", "UTC"), safe=times.type.unit != "ns").cast(pa.int64())
