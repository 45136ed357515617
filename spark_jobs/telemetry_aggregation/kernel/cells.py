"""Samples to cells, a cell being a minute of a series, and cells to wider windows: columns of numbers in and out. Pure.

What is known of a window adds up: counts, sums, extremes, the first and the last sample, and counts per bucket. So batch
and stream, minute and day agree.

All is read from sorted whole numbers: a stable order of the samples by cell and time, and one by cell and bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_jobs.telemetry_aggregation.kernel.buckets import PERCENTS, Doubles, Longs, buckets, middles
from spark_jobs.telemetry_aggregation.kernel.samples import MINUTE, Samples

_WORD = 63  # bits of a whole number that is not negative
_HALF = 31  # of one in half the memory
_DENSE = 2  # counters for each number that is counted, at most: above, sorting is cheaper
_Ints = NDArray[Any]  # whole numbers of either width


class Counts(NamedTuple):
    """How many samples of each of the windows from number `begin` until before `end` are in each bucket, in the order of
    both: `sizes` entries of each window. Without `weight`, an entry is one sample.
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
        for percent in PERCENTS:
            found = np.concatenate([self._buckets_at(percent, counts) for counts in self.counts])
            yield np.clip(middles(found), self.min, self.max)

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
        counts = (_where(each, chosen, place) for each in self.counts)
        return Windows._make([*columns, tuple(each for each in counts if each.begin < each.end)])


def _where(counts: Counts, chosen: NDArray[np.bool_], place: _Ints) -> Counts:
    own = chosen[counts.begin : counts.end]
    kept = np.repeat(own, counts.sizes)
    begin, end = (int(place[edge - 1]) if edge else 0 for edge in (counts.begin, counts.end))
    weight = None if counts.weight is None else counts.weight[kept]
    return Counts(begin, end, counts.sizes[own], counts.bucket[kept], weight)


def joined(windows: Sequence[Windows]) -> Windows:
    """One after the other, which is not the order of series and start."""
    columns: Any = (np.concatenate(each) for each in zip(*(one[:-1] for one in windows), strict=True))
    offsets = np.cumsum([0, *(len(one.start) for one in windows)]).tolist()
    counts = (
        each._replace(begin=each.begin + offset, end=each.end + offset)
        for one, offset in zip(windows, offsets, strict=False)
        for each in one.counts
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
        counts=(_counts(sizes, buckets(value)),),
    )


def _ordered(samples: Samples) -> tuple[_Ints, NDArray[np.bool_], bool]:
    """The rows' numbers in the order of series, time and value, where a cell begins, and whether rows of a cell came so,
    no time twice.

    Sorting whole numbers is five times as fast as sorting rows by several columns. A cell and the row's number, packed
    into one, bring rows of a cell together and leave them as they came, which most often is the order of time.
    """
    at, rows = samples.at, len(samples.at)
    series: _Ints = samples.series
    minutes = at // MINUTE
    minutes -= minutes.min()
    row_bits = rows.bit_length()
    if _cells(series, minutes) >= 1 << (_WORD - row_bits):
        series, minutes = (np.unique(column, return_inverse=True)[1] for column in (series, minutes))
    # Half the width is half the time.
    kind: Any = np.int32 if _cells(series, minutes) < 1 << (_HALF - row_bits) else np.int64
    packed = series.astype(kind)
    packed *= kind(minutes.max() + 1)
    packed += minutes.astype(kind, copy=False)
    packed <<= kind(row_bits)
    packed |= np.arange(rows, dtype=kind)
    packed.sort()
    order = packed & kind((1 << row_bits) - 1)
    packed >>= kind(row_bits)
    begins = np.ones(rows, bool)
    np.not_equal(packed[1:], packed[:-1], out=begins[1:])
    if (at[1:] > at[:-1]).all():
        return order, begins, True
    times = at[order]
    wrong = np.flatnonzero((times[1:] <= times[:-1]) & ~begins[1:])
    if len(wrong):
        mixed = np.flatnonzero(np.isin(packed, packed[wrong]))
        found = order[mixed]
        order[mixed] = found[np.lexsort((samples.value[found], at[found], packed[mixed]))]
    return order, begins, not len(wrong)


def _cells(series: _Ints, minutes: _Ints) -> int:
    return (int(series.max()) + 1) * (int(minutes.max()) + 1)


def _last_of_equals(begins: NDArray[np.bool_], at: Longs) -> Longs:
    """Of neighbours with the same cell and time, the last one's position: the greatest, in `_ordered`'s order."""
    differs = begins[1:] | (at[1:] != at[:-1])
    return np.append(np.flatnonzero(differs), len(at) - 1)


def _counts(sizes: Longs, numbers: Longs) -> Counts:
    """Of each run of so many buckets."""
    low = int(numbers.min())
    width = int(numbers.max()) - low + 1
    # Half the width is half the time.
    kind: Any = np.int32 if len(sizes) * width <= np.iinfo(np.int32).max else np.int64
    runs = np.repeat(np.arange(len(sizes), dtype=kind) * kind(width) - kind(low), sizes)
    keys = numbers.astype(kind)
    keys += runs
    keys.sort()
    keys -= runs
    return Counts(0, len(sizes), sizes, keys, None)


# -- windows to wider ones


def wider(given: Windows, width: int) -> Windows:
    """The windows of `width` microseconds, from all windows of some series, in any order: in the order of series and start, or as
    they are given, where each is the only one of its wider window.
    """
    order = _ordered(Samples(given.series, given.first_at, given.first))[0]
    series = given.series[order]
    start = given.first_at[order]
    start -= start % width
    begins = np.ones(len(order), bool)
    begins[1:] = (series[1:] != series[:-1]) | (start[1:] != start[:-1])
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


def _added(group_of: Longs, given: Sequence[Counts], groups: int) -> Counts:
    """The counts of the windows by group."""
    low = min(int(counts.bucket.min()) for counts in given)
    high = max(int(counts.bucket.max()) for counts in given)
    zero = low == 0 < high
    if zero:  # its bucket is far from all others: it is counted right before them
        low = min(_least_but_zero(counts.bucket) for counts in given) - 1
    width = high - low + 1

    def keys_of(counts: Counts) -> Longs:
        keys = np.repeat(group_of[counts.begin : counts.end] * width, counts.sizes)
        keys += np.maximum(counts.bucket - low, 0)
        return keys

    if groups * width <= _DENSE * sum(len(counts.bucket) for counts in given):
        dense = np.zeros(groups * width, np.int64)
        for counts in given:
            np.add.at(dense, keys_of(counts), 1 if counts.weight is None else counts.weight)
        keys = np.flatnonzero(dense)
        sums = dense[keys]
    else:
        ones = (np.ones(len(c.bucket), np.int64) if c.weight is None else c.weight for c in given)
        keys, sums = _summed(np.concatenate(list(map(keys_of, given))), np.concatenate(list(ones)))
    window, bucket = np.divmod(keys, width)
    bucket += low
    if zero:
        bucket[bucket == low] = 0
    return Counts(0, groups, np.bincount(window, minlength=groups), bucket, sums)


def _least_but_zero(buckets: _Ints) -> int:
    """Of buckets that are not below zero; very great where all are zero."""
    return int((buckets - 1).view(f"u{buckets.itemsize}").min()) + 1


def _summed(keys: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """Each key once, in order, and the sum of its counts."""
    bits = int(counts.max()).bit_length()
    if int(keys.max()).bit_length() + bits <= _WORD:
        # Sorting numbers is five times as fast as finding their order.
        packed = (keys << bits) | counts
        packed.sort()
        keys, counts = packed >> bits, packed & ((1 << bits) - 1)
    else:
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
    firsts = np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)
    return keys[firsts], np.add.reduceat(counts, firsts)
