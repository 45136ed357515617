"""Days on which a daily series broke: its level changed and stayed changed, whatever the pattern of its weekdays. Pure.

The model: log(value) = level of the segment + effect of the weekday + noise. Levels are constant between breaks. The
fit is by medians (Tukey's median polish of the table segments x weekdays), so it minimises absolute residuals: a bank
holiday, or a day with ten times the load, moves neither a level nor a weekday.

The search adds one break at a time, or two where one alone does not stand: the one that takes most from the sum of
absolute residuals. It is kept if

- both sides have `minimum_days` known days, and for a seasonal series every weekday after it was seen before it, else
  a weekend and a loss look the same; of a series without season, the quartiles of both sides do not overlap;
- the level changed by at least `least_change`;
- the change is at least `strictness` standard errors. The error of a level of n days is 1.2533 x scale / sqrt(n), the
  asymptotic error of a median; the scale is 1.4826 x the median absolute residual, the p smallest left out where p
  parameters were fitted, because a fit by absolute values goes through p points exactly; or the error that sampling
  itself causes, if that is larger. Levels are compared over `WINDOW` days on each side, so slow growth is no break.

Choosing the best of many days makes chance results look good; `strictness` was set by simulation for it, see README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, inf, log, sqrt

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

WEEK = 7
WINDOW = 28
"""Days on each side of a break that its size is measured on."""
SCALE_FLOOR = 0.02
"""No series is believed to be steadier than 2 % a day: constant ones have a scale of 0."""
_MEDIAN_ERROR = 1.2533  # sqrt(pi / 2): standard error of a median against that of a mean, normal noise
_TO_SIGMA = 1.4826  # median absolute deviation to standard deviation, normal noise
_POLISHES = 8
_MOST_BREAKS = 12


class BreakSettings(Struct, frozen=True):
    """What counts as a break. Raises ValueError for what cannot be."""

    minimum_days: int = 4
    """Fewer changed days than this are an incident, a bank holiday with its bridge day, say; never a break."""
    least_change: float = 0.2
    """Smallest change of the level, as a share of it: 0.2 is a fall by 20 %, or the rise that undoes it."""
    strictness: float = 6.0
    """Standard errors."""

    def __post_init__(self) -> None:
        if self.minimum_days < 2:
            raise ValueError(f"minimum_days is {self.minimum_days}; accepted: 2 or more")
        if not 0 < self.least_change < 1:
            raise ValueError(f"least_change is {self.least_change}; accepted: between 0 and 1")
        if not 0 < self.strictness < inf:
            raise ValueError(f"strictness is {self.strictness}; accepted: above 0")


class Break(Struct, frozen=True):
    """From day `index` on, the level is `ratio` times what it was; `low` to `high` is two standard errors about it."""

    index: int
    ratio: float
    low: float
    high: float
    strength: float
    """Standard errors that the change is away from none."""

    @property
    def fell(self) -> bool:
        return self.ratio < 1


class Fit(Struct, frozen=True):
    """A series explained. `expected` and `unbroken` have one value a day, in the unit of the series."""

    breaks: tuple[Break, ...]
    expected: tuple[float, ...]
    """The model's value for each day, breaks included."""
    unbroken: tuple[float, ...]
    """Its value for each day if the level had stayed that of the first segment."""
    scale: float
    """Relative day-to-day noise, a standard deviation."""


class _Series(Struct, frozen=True):
    """Logarithms of the known days. `slots` is each day's weekday, all 0 where there is no season."""

    days: Whole
    values: Numbers
    errors: Numbers
    slots: Whole

    @property
    def seasonal(self) -> bool:
        return bool(self.slots.any())


def fit_breaks(
    values: Sequence[float | None],
    *,
    seasonal: bool,
    errors: Sequence[float] | None = None,
    settings: BreakSettings | None = None,
) -> Fit:
    """The breaks of a series of consecutive days.

    None is a day of which nothing is known. Values are 0 or more; a 0 is read as a half, or as half of the smallest
    value above 0 if that is less: a logarithm needs it, and medians hardly care. `errors` are the values' relative standard errors from sampling.
    """
    rules = settings or BreakSettings()
    series = _series(values, errors, seasonal=seasonal)
    if not len(series.days):
        return Fit((), (), (), 0.0)
    starts: list[int] = []
    while len(starts) < _MOST_BREAKS and (more := _more_starts(series, starts, rules)):
        starts = more
    return _described(series, starts, len(values))


def detectable_fall(
    days_before: int, days_after: int, scale: float, settings: BreakSettings | None = None
) -> float | None:
    """The smallest fall, as a share, that would be reported between so many days; None: no fall would be."""
    rules = settings or BreakSettings()
    if min(days_before, days_after) < rules.minimum_days:
        return None
    error = _error(max(scale, SCALE_FLOOR), days_before, days_after)
    return max(rules.least_change, 1 - exp(-rules.strictness * error))


def _series(values: Sequence[float | None], errors: Sequence[float] | None, *, seasonal: bool) -> _Series:
    if any(value is not None and not 0 <= value < inf for value in values):
        raise ValueError("values must be 0 or more, and finite")
    days = np.array([day for day, value in enumerate(values) if value is not None], dtype=np.int64)
    known = np.array([value for value in values if value is not None], dtype=float)
    if not (known > 0).any():
        days, known = days[:0], known[:0]
    else:
        known = np.where(known > 0, known, min(0.5, known[known > 0].min() / 2))
    given = np.zeros(len(values)) if errors is None else np.asarray(errors, dtype=float)
    slots = days % WEEK if seasonal else np.zeros_like(days)
    return _Series(days, np.log(known), given[days], slots)


class _Division(Struct, frozen=True):
    """Where segments start, the first excepted, and what that gives."""

    starts: list[int]
    effects: Numbers
    breaks: list[Break]


def _more_starts(series: _Series, starts: Sequence[int], rules: BreakSettings) -> list[int]:
    """The starts with one more, or with two more: a loss that ended shows only with both its ends. Else empty."""
    one = _best_split(series, starts, rules)
    if one is None or _stands(series, one, rules):
        return one.starts if one else []
    two = _best_split(series, one.starts, rules)
    return two.starts if two is not None and _stands(series, two, rules) else []


def _best_split(series: _Series, starts: Sequence[int], rules: BreakSettings) -> _Division | None:
    """The division with one more segment that leaves the least residuals; None if there is no room for one."""
    options = [sorted([*starts, start]) for start in range(len(series.days)) if start not in starts]
    options = [option for option in options if _allowed(series, option, rules)]
    if not options:
        return None
    segments = np.stack([_segments(len(series.days), option) for option in options])
    levels, effects = _polish(series, segments)
    residuals = series.values - np.take_along_axis(levels, segments, 1) - effects[:, series.slots]
    best = int(np.abs(residuals).sum(axis=1).argmin())
    scale = _scale(residuals[best], series, len(starts) + 2)
    return _Division(options[best], effects[best], _breaks(series, options[best], effects[best], scale))


def _stands(series: _Series, division: _Division, rules: BreakSettings) -> bool:
    """Every break of it is large and sure enough."""
    least = -log(1 - rules.least_change)
    return all(
        abs(log(change.ratio)) >= least and change.strength >= rules.strictness for change in division.breaks
    ) and (series.seasonal or _apart(series, division.starts))


def _apart(series: _Series, starts: Sequence[int]) -> bool:
    """Neighbouring segments differ in most of their days, not only in how many weekends they happen to hold."""
    bounds = [0, *starts, len(series.values)]
    sides = [np.quantile(series.values[begin:end], (0.25, 0.75)) for begin, end in pairwise(bounds)]
    return all(one[1] < other[0] or other[1] < one[0] for one, other in pairwise(sides))


def _allowed(series: _Series, starts: Sequence[int], rules: BreakSettings) -> bool:
    bounds = [0, *starts, len(series.days)]
    if min(np.diff(bounds)) < rules.minimum_days:
        return False
    if not series.seasonal:
        return True
    seen: set[int] = set()
    for begin, end in pairwise(bounds):
        inside = {int(slot) for slot in series.slots[begin:end]}
        if begin and not inside <= seen:
            return False
        seen |= inside
    return True


def _segments(length: int, starts: Sequence[int]) -> Whole:
    """The number of the segment that each day belongs to."""
    return np.searchsorted(np.asarray(starts, dtype=np.int64), np.arange(length), side="right")


def _polish(series: _Series, segments: Whole) -> tuple[Numbers, Numbers]:
    """Levels by segment and effects by weekday for every row of `segments`, which are alternative divisions."""
    rows = len(segments)
    many = int(segments.max()) + 1
    effects = np.zeros((rows, WEEK))
    levels = np.zeros((rows, many))
    for _ in range(_POLISHES if series.seasonal else 1):
        rest = series.values - effects[:, series.slots]
        for segment in range(many):
            levels[:, segment] = _median(np.where(segments == segment, rest, np.nan))
        if not series.seasonal:
            break
        rest = series.values - np.take_along_axis(levels, segments, 1)
        for slot in range(WEEK):
            chosen = series.slots == slot
            if chosen.any():
                effects[:, slot] = _median(rest[:, chosen])
        effects -= np.median(effects, axis=1, keepdims=True)
    return levels, effects


def _median(table: Numbers) -> Numbers:
    """The median of each row, of what is not NaN; numpy's own is a hundred times slower on many short rows."""
    ordered = np.sort(table, axis=1)  # NaN goes last
    counts = (~np.isnan(table)).sum(axis=1)
    low = np.take_along_axis(ordered, ((counts - 1) // 2)[:, None], 1)
    high = np.take_along_axis(ordered, (counts // 2)[:, None], 1)
    return ((low + high) / 2)[:, 0]


def _scale(residuals: Numbers, series: _Series, segments: int) -> float:
    """Standard deviation of a day's noise, robust, from the residuals of a fit."""
    parameters = segments + (len(set(series.slots.tolist())) - 1)
    rest = np.sort(np.abs(residuals))[min(parameters, len(residuals) - 1) :]
    return max(_TO_SIGMA * float(np.median(rest)), SCALE_FLOOR)


def _error(scale: float, before: float, after: float) -> float:
    return _MEDIAN_ERROR * scale * sqrt(1 / before + 1 / after)


def _breaks(series: _Series, starts: Sequence[int], effects: Numbers, scale: float) -> list[Break]:
    rest = series.values - effects[series.slots]
    bounds = [0, *starts, len(rest)]
    breaks = []
    for begin, start, end in zip(bounds, bounds[1:], bounds[2:], strict=False):
        before = slice(max(begin, start - WINDOW), start)
        after = slice(start, min(end, start + WINDOW))
        step = float(np.median(rest[after]) - np.median(rest[before]))
        noise = max(scale, float(np.median(series.errors[before])), float(np.median(series.errors[after])))
        error = _error(noise, before.stop - before.start, after.stop - after.start)
        low, high = exp(step - 2 * error), exp(step + 2 * error)
        breaks.append(Break(int(series.days[start]), exp(step), low, high, strength=abs(step) / error))
    return breaks


def _described(series: _Series, starts: Sequence[int], length: int) -> Fit:
    segments = _segments(len(series.days), starts)
    levels, effects = _polish(series, segments[None, :])
    scale = _scale(series.values - levels[0][segments] - effects[0][series.slots], series, len(starts) + 1)
    everyday = _segments(length, [int(series.days[start]) for start in starts])
    weekday = effects[0][np.arange(length) % WEEK] if series.seasonal else np.zeros(length)
    return Fit(
        breaks=tuple(_breaks(series, starts, effects[0], scale)),
        expected=tuple(np.exp(levels[0][everyday] + weekday).tolist()),
        unbroken=tuple(np.exp(levels[0][0] + weekday).tolist()),
        scale=scale,
    )
