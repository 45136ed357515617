"""Samples to cells, a cell being a minute of a series, and cells to wider windows: columns of numbers in and out. Pure.

What is known of a window adds up: counts, sums, extremes, the first and the last sample, and counts per bucket. So batch
and stream, minute and day agree.

Samples are put into the order of their cells and times once. Their buckets are sorted only for windows whose percentiles are
asked for: wider windows count them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_jobs.telemetry_aggregation.kernel.buckets import PERCENTS, Doubles, Longs, buckets, middles
from spark_jobs.telemetry_aggregation.kernel.samples import MINUTE, Samples

_DIGIT = 16
"""Bits of a number that numpy sorts in linear time."""
_DENSE = 4
"""Counters for each number that is counted, at most. To go through a counter takes 4 ns, to sort a number 20 (26 November 2026);
with more, 4 million samples would need above 128 MB of counters.
"""
_Ints = NDArray[Any]  # whole numbers of either width


class Counts(NamedTuple):
    """How many samples of each of the windows from number `begin` until before `end` are in each bucket: `sizes` entries of each
    window, in the order of the windows. Entries with a `weight` are in the order of their buckets within a window. Without,
    each is one sample, and they are in no order: most often only wider windows are asked for percentiles.
    """

    begin: int
    end: int
    sizes: Longs
    bucket: _Ints
    weight: Longs | None


class Windows(NamedTuple):
    """Windows of series, in the order of both. `start`, `first_at` and `last_at` in microseconds.

    `samples` counts all but `copies`: of the same time as one that is there.
    """

    series: _Ints
    start: Longs
    samples: Longs
    total: Doubles
    min: Doubles
    max: Doubles
    first_at: Longs
    first: Doubles
    last_at: Longs
    last: Doubles
    copies: Longs
    counts: tuple[Counts, ...]  # of all windows, one after the other

    def percentiles(self) -> Iterator[Doubles]:
        """Per percent of PERCENTS, the percentile of each window by nearest rank."""
        in_order = [_sorted(counts) for counts in self.counts]
        for percent in PERCENTS:
            values = np.concatenate([self._buckets_at(percent, counts) for counts in in_order])
            yield np.clip(middles(values), self.min, self.max)

    def _buckets_at(self, percent: int, counts: Counts) -> _Ints:
        samples = self.samples[counts.begin : counts.end]
        ranks = np.cumsum(samples) - samples + (samples * percent + 99) // 100
        places = ranks - 1 if counts.weight is None else np.searchsorted(np.cumsum(counts.weight), ranks)
        return counts.bucket[places]

    def where(self, chosen: NDArray[np.bool_]) -> Windows:
        if chosen.all():
            return self
        place = np.cumsum(chosen)
        columns: Any = (column[chosen] for column in self[:-1])
        counts = (_where(count, chosen, place) for count in self.counts)
        return Windows._make([*columns, tuple(count for count in counts if count.begin < count.end)])


def _where(counts: Counts, chosen: NDArray[np.bool_], place: _Ints) -> Counts:
    chosen_counts = chosen[counts.begin : counts.end]
    kept = np.repeat(chosen_counts, counts.sizes)
    begin, end = (int(place[edge - 1]) if edge else 0 for edge in (counts.begin, counts.end))
    weight = None if counts.weight is None else counts.weight[kept]
    return Counts(begin, end, counts.sizes[chosen_counts], counts.bucket[kept], weight)


def joined(windows: Sequence[Windows]) -> Windows:
    """One after the other, which is not the order of series and start."""
    columns: Any = (np.concatenate(column) for column in zip(*(one[:-1] for one in windows), strict=True))
    offsets = np.cumsum([0, *(len(one.start) for one in windows)]).tolist()
    counts = (
        count._replace(begin=count.begin + offset, end=count.end + offset)
        for one, offset in zip(windows, offsets, strict=False)
        for count in one.counts
    )
    return Windows._make([*columns, tuple(counts)])


# -- samples to minutes


def minutes_of(samples: Samples, *, distinct: bool) -> Windows:
    """The cells of samples, of which there is one at least.

    `distinct`: of samples with the same series and time, one counts, the greatest; the others are copies.
    """
    at, value = samples.at, samples.value
    order, begins, in_order = _ordered(samples)
    kept = None
    if distinct and not in_order:
        kept = _last_of_equals(begins, at[order])
        order, begins = order[kept], np.diff(np.cumsum(begins)[kept], prepend=0) != 0
    value = value[order]
    starts = np.flatnonzero(begins)
    sizes = np.diff(starts, append=len(order))
    ends = starts + sizes - 1
    first_at, last_at = at[order[starts]], at[order[ends]]
    copies = np.zeros(len(starts), np.int64)
    if kept is not None:  # before the one that is kept, in the same cell
        copies = np.add.reduceat(np.diff(kept, prepend=-1) - 1, starts)
    return Windows(
        series=samples.series[order[starts]],
        start=first_at - first_at % MINUTE,
        samples=sizes,
        total=np.add.reduceat(value, starts),
        min=np.minimum.reduceat(value, starts),
        max=np.maximum.reduceat(value, starts),
        first_at=first_at,
        first=value[starts],
        last_at=last_at,
        last=value[ends],
        copies=copies,
        counts=(Counts(0, len(sizes), sizes, buckets(value), None),),
    )


def _ordered(samples: Samples) -> tuple[_Ints, NDArray[np.bool_], bool]:
    """The rows' numbers in the order of series, time and value, where a cell begins, and whether rows of a cell came so,
    no time twice.
    """
    at, series = samples.at, samples.series
    minutes = at // MINUTE
    minutes -= minutes.min()
    # Most often rows come in the order of time, and a stable order of their series is all that it takes.
    order = stable_order(series, None if (at[1:] >= at[:-1]).all() else stable_order(minutes))
    begins = _changes(series[order]) | _changes(minutes[order])
    times = at[order]
    wrong = np.flatnonzero((times[1:] <= times[:-1]) & ~begins[1:])
    if len(wrong):
        cells = np.cumsum(begins)
        mixed = np.flatnonzero(np.isin(cells, cells[wrong]))
        places = order[mixed]
        order[mixed] = places[np.lexsort((samples.value[places], at[places], cells[mixed]))]
    return order, begins, not len(wrong)


def stable_order(keys: _Ints, order: _Ints | None = None) -> _Ints:
    """The places of whole numbers that are not negative in their order; equal ones stay in the given order, or as they came.

    By digits, the last one first: a fifth of the time that it takes to sort the numbers themselves, and a 20th of `lexsort`'s.
    """
    for shift in range(0, max(int(keys.max()).bit_length(), 1), _DIGIT):
        digits = (keys >> shift).astype(np.uint16)
        if order is None:
            order = np.argsort(digits, kind="stable")
        else:
            order = order[np.argsort(digits[order], kind="stable")]
    assert order is not None  # there was a digit at least
    return order


def _changes(values: _Ints) -> NDArray[np.bool_]:
    """Where a value is not the one before; the first always."""
    return np.append(True, values[1:] != values[:-1])


def _last_of_equals(begins: NDArray[np.bool_], at: Longs) -> Longs:
    """Of neighbours with the same cell and time, the last one's position: the greatest, in `_ordered`'s order."""
    differs = begins[1:] | (at[1:] != at[:-1])
    return np.append(np.flatnonzero(differs), len(at) - 1)


def _sorted(counts: Counts) -> Counts:
    """With the entries of each window in the order of their buckets."""
    if counts.weight is not None or not len(counts.bucket):
        return counts
    low = int(counts.bucket.min())
    width = int(counts.bucket.max()) - low + 1
    # Half the width is half the time.
    kind: Any = np.int32 if len(counts.sizes) * width <= np.iinfo(np.int32).max else np.int64
    windows = np.repeat(np.arange(len(counts.sizes), dtype=kind) * kind(width) - kind(low), counts.sizes)
    keys = counts.bucket + windows
    keys.sort()
    keys -= windows
    return counts._replace(bucket=keys)


# -- windows to wider ones


def wider(given: Windows, width: int) -> Windows:
    """The windows of `width` microseconds, from all windows of some series, in any order: in the order of series and start, or as
    they are given, where each is the only one of its wider window.
    """
    order = _ordered(Samples(given.series, given.first_at, given.first))[0]
    series = given.series[order]
    start = given.first_at[order]
    start -= start % width
    begins = _changes(series) | _changes(start)
    firsts = np.flatnonzero(begins)
    if len(firsts) == len(order):
        return given._replace(start=given.start - given.start % width)
    groups = np.cumsum(begins) - 1
    lasts = np.append(firsts[1:], len(order)) - 1
    last_at = given.last_at[order]
    latest = order
    if np.any((last_at[1:] < last_at[:-1]) & ~begins[1:]):
        latest = order[np.lexsort((last_at, groups))]
    group_of = np.empty(len(order), np.int64)
    group_of[order] = groups
    first, last = order[firsts], latest[lasts]
    return Windows(
        series=series[firsts],
        start=start[firsts],
        samples=np.add.reduceat(given.samples[order], firsts),
        total=np.add.reduceat(given.total[order], firsts),
        min=np.minimum.reduceat(given.min[order], firsts),
        max=np.maximum.reduceat(given.max[order], firsts),
        first_at=given.first_at[first],
        first=given.first[first],
        last_at=given.last_at[last],
        last=given.last[last],
        copies=np.add.reduceat(given.copies[order], firsts),
        counts=(_added(group_of, given.counts, len(firsts)),),
    )


def _added(group_of: _Ints, given: Sequence[Counts], groups: int) -> Counts:
    """The counts of the windows by group."""
    low = min(int(counts.bucket.min()) for counts in given)
    high = max(int(counts.bucket.max()) for counts in given)
    # Only the buckets that were met are counted: zero's, and those of negative values, are far from all others.
    seen = np.zeros(high - low + 1, bool)
    for counts in given:
        seen[counts.bucket - low] = True
    met, place = np.flatnonzero(seen), np.cumsum(seen, dtype=np.int32) - 1

    def keys_of(counts: Counts) -> Longs:
        windows = np.repeat(group_of[counts.begin : counts.end] * len(met), counts.sizes)
        windows += place[counts.bucket - low]
        return windows

    if groups * len(met) <= _DENSE * sum(len(counts.bucket) for counts in given):
        dense = np.zeros(groups * len(met), np.int64)
        for counts in given:
            np.add.at(dense, keys_of(counts), 1 if counts.weight is None else counts.weight)
        keys = np.flatnonzero(dense)
        weight = dense[keys]
    else:
        weights = [np.ones(len(c.bucket), np.int64) if c.weight is None else c.weight for c in given]
        keys = np.concatenate(list(map(keys_of, given)))
        order = stable_order(keys)
        firsts = np.flatnonzero(_changes(keys[order]))
        weight = np.add.reduceat(np.concatenate(weights)[order], firsts)
        keys = keys[order[firsts]]
    window, place_met = np.divmod(keys, len(met))
    return Counts(0, groups, np.bincount(window, minlength=groups), met[place_met] + low, weight)
