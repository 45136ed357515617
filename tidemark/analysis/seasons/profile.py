"""Floors for each hour of the week, out of weeks of recorded load, judged on weeks that were held out. Pure.

An hour needs as many instances as serve its busiest quarter. The floor of an hour of the week is what is enough in a share of
the weeks (half of them, unless asked otherwise), so that load that comes by the clock is met, and what comes by chance is left
to the other rules. Days that are alike share their hours, and hours their floors, so that a person can read the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, nan
from zoneinfo import ZoneInfo

import numpy as np
from msgspec import Struct

from tidemark.analysis.advise.question import Question
from tidemark.analysis.backtest.replay.history import HistoryError
from tidemark.foundation.wording import count_text, percent_text

QUARTER = 900
"""Seconds of the span whose busiest one makes an hour's need. Chosen: shorter peaks are left to the other rules."""

HOURS = 168
"""Of a week, from Monday midnight on by the clock of the time zone."""

LEAST_WEEKS = 3
"""Weeks that are needed: two to learn from, and one to judge by."""

HELD_OUT = 0.25
"""The share of the weeks, the newest, that judge. Chosen: the common split; of four weeks three are left to learn from."""

KNOWN_WEEK = 0.5
"""The share of a week's hours that must be known, or it is neither learned from nor judged by. Chosen: of a week with
less, the gap would decide and not the load.
"""

GROUPS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((0, 1, 2, 3, 4, 5, 6),),
    ((0, 1, 2, 3, 4), (5, 6)),
    ((0, 1, 2, 3, 4), (5,), (6,)),
    tuple((day,) for day in range(7)),
)
"""Days that may be alike, from few words to many."""

BETTER = 0.98
"""A longer schedule has to bring the error down to this share. Chosen: less is not worth a
longer schedule to read and maintain.
"""

STEPS = 6
"""Most floors in a day. Chosen: what a person can read and check; night, morning, noon, afternoon, evening and one more."""

ROUGH = 0.05
"""Floors are joined while they differ from the hours' own by no more than this share. Chosen: an instance in twenty."""

SKILL = 0.1
"""How much nearer than one number for all hours a schedule has to be; below, the load does not come by the clock. Chosen: what is
left must outweigh that a schedule has to be maintained.
"""


class Error(Struct, frozen=True):
    """Of floors on weeks they were not made from. `mean` and `flat` are instances that floors, and one floor for all hours, are
    off on average; `short` is the share of hours that needed more, `idle` instance-hours a week beyond what was needed.
    """

    hours: int
    mean: float
    flat: float
    short: float
    idle: float

    @property
    def skill(self) -> float:
        """How much nearer than one number for all hours: 1 is exact, 0 no nearer."""
        return 1.0 - self.mean / self.flat if self.flat else 0.0


class Profile(Struct, frozen=True):
    """`floors` and the `usual` need (instances; NaN: never known) by hour of the week. `held_out` are the needs of the weeks that
    judge; `weeks` how many taught. `lead` is the start-up time in seconds.
    """

    target: str
    zone: str
    weeks: int
    floors: list[int]
    usual: list[float]
    held_out: list[list[float]]
    error: Error
    minimum: int
    maximum: int
    lead: float
    notes: tuple[str, ...] = ()

    @property
    def worth(self) -> bool:
        """Whether a schedule says anything that one minimum would not."""
        return self.error.skill >= SKILL and max(self.floors) > self.minimum


def profile(question: Question, *, zone: str, share: float) -> Profile:
    """Raises HistoryError for a history that is too short, or in bins of more than an hour."""
    target, recorded = question.target, question.recorded
    if recorded.width > 3600:
        raise HistoryError(f"{target.name}: bins of {recorded.width} s; accepted are bins of an hour or less")
    needs = _needs(recorded.bins, recorded.begin, recorded.width, target.service_rate, ZoneInfo(zone))
    weeks = [needs[week] for week in sorted(needs) if _known(needs[week]) >= KNOWN_WEEK]
    if len(weeks) < LEAST_WEEKS:
        raise HistoryError(
            f"{target.name}: {count_text(len(weeks), 'week')} of which half or more is known; at least {LEAST_WEEKS} are needed, two to learn "
            "from and one to judge by. `tidemark history pull --days 93` fetches more"
        )
    held = max(round(len(weeks) * HELD_OUT), 1)
    taught, judge = np.array(weeks[:-held]), np.array(weeks[-held:])
    bounds = target.minimum, target.maximum
    floors = _floors(taught, _grouped(taught, share, bounds), share, bounds)
    flat = _flat(taught, share, bounds)
    return Profile(
        target.name,
        zone,
        len(taught),
        [int(floor) for floor in floors],
        [float(hourly) for hourly in _quantile(taught, 0.5)],
        [[float(hourly) for hourly in week] for week in judge],
        error_of(floors, flat, judge, bounds),
        *bounds,
        target.start_up,
        question.notes,
    )


def _known(week: np.ndarray) -> float:
    return float(np.mean(~np.isnan(week)))


def _needs(
    bins: Sequence[float], begin: float, width: int, rate: float, zone: ZoneInfo
) -> Mapping[int, np.ndarray]:
    """Instances needed in each hour of each week: of a clock that goes back, the hour that comes twice needs the more of both."""
    step = max(QUARTER, width)
    counts = np.array(bins)
    starts = begin + width * np.arange(len(counts))
    quarter = (starts // step).astype(np.int64)
    first, place = np.unique(quarter, return_inverse=True)
    known = ~np.isnan(counts)
    seconds = np.bincount(place, weights=known * float(width), minlength=len(first))
    came = np.bincount(place, weights=np.where(known, counts, 0.0), minlength=len(first))
    needs: dict[int, np.ndarray] = {}
    for number, covered, messages in zip(first, seconds, came, strict=True):
        if covered:
            local = datetime.fromtimestamp(float(number) * step, UTC).astimezone(zone)
            week = needs.setdefault((local.toordinal() - 1) // 7, np.full(HOURS, nan))
            hour = 24 * local.weekday() + local.hour
            week[hour] = np.fmax(week[hour], messages / covered / rate)
    return needs


# -- floors ------------------------------------------------------------------------------------------------


def _quantile(weeks: np.ndarray, share: float) -> np.ndarray:
    """Of each hour over the weeks; NaN where it was never known."""
    ordered = np.sort(weeks, axis=0)  # NaN comes last
    known = np.sum(~np.isnan(weeks), axis=0)
    place = share * np.maximum(known - 1, 0)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, np.maximum(known - 1, 0))
    below, above = (np.take_along_axis(ordered, row[None, :], axis=0)[0] for row in (low, high))
    return np.asarray(below + (above - below) * (place - low))


def _of_days(
    weeks: np.ndarray, groups: Iterable[Sequence[int]], share: float, bounds: tuple[int, int]
) -> np.ndarray:
    """Floors by hour of the week, the same on all days of a group."""
    days = weeks.reshape(len(weeks), 7, 24)
    floors = np.zeros((7, 24))
    for group in groups:
        alike = days[:, list(group), :].reshape(-1, 24)
        floors[list(group)] = _needed(np.nan_to_num(_quantile(alike, share)), bounds)
    return floors.reshape(HOURS)


def _grouped(weeks: np.ndarray, share: float, bounds: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    """The days that are alike: each week is foretold by the others, and more words have to be better by BETTER."""

    def missed(groups: tuple[tuple[int, ...], ...]) -> float:
        error_sum = 0.0
        for out in range(len(weeks)):
            floors = _of_days(np.delete(weeks, out, axis=0), groups, share, bounds)
            error_sum += float(np.nansum(np.abs(floors - _needed(weeks[out], bounds))))
        return error_sum

    chosen, least = GROUPS[0], missed(GROUPS[0])
    for groups in GROUPS[1:]:
        error = missed(groups)
        if error < BETTER * least:
            chosen, least = groups, error
    return chosen


def _floors(
    weeks: np.ndarray, groups: tuple[tuple[int, ...], ...], share: float, bounds: tuple[int, int]
) -> np.ndarray:
    floors = _of_days(weeks, groups, share, bounds).reshape(7, 24)
    for group in groups:
        floors[list(group)] = simplified(floors[group[0]])
    return floors.reshape(HOURS)


def simplified(hours: np.ndarray) -> np.ndarray:
    """The floors of a day with few steps: of each number of steps the nearest, and of these the fewest that are near enough."""
    count = len(hours)
    cost = np.full((STEPS + 1, count + 1), np.inf)
    cost[0, 0] = 0.0
    back = np.zeros((STEPS + 1, count + 1), dtype=int)
    flat_cost = {
        (first, last): float(np.abs(hours[first:last] - _middle(hours[first:last])).sum())
        for first in range(count)
        for last in range(first + 1, count + 1)
    }
    for steps in range(1, STEPS + 1):
        for last in range(1, count + 1):
            tries = [cost[steps - 1, first] + flat_cost[first, last] for first in range(last)]
            back[steps, last] = int(np.argmin(tries))
            cost[steps, last] = tries[back[steps, last]]
    near = ROUGH * float(hours.sum())
    steps = next((number for number in range(1, STEPS + 1) if cost[number, count] <= near), STEPS)
    floors, last = hours.copy(), count
    while last > 0:
        first = back[steps, last]
        floors[first:last] = _middle(hours[first:last])
        last, steps = first, steps - 1
    return floors


def _middle(hours: np.ndarray) -> float:
    """The upper one of two: to be short costs more than to be idle."""
    return float(np.sort(hours)[len(hours) // 2])


# -- errors ------------------------------------------------------------------------------------------------


def _needed(need: np.ndarray, bounds: tuple[int, int]) -> np.ndarray:
    """Whole instances within the bounds; NaN stays."""
    return np.clip(np.ceil(need - 1e-9), *bounds)


def _flat(weeks: np.ndarray, share: float, bounds: tuple[int, int]) -> int:
    """One floor for all hours."""
    known = weeks[~np.isnan(weeks)]
    return min(max(ceil(float(np.quantile(known, share)) - 1e-9), bounds[0]), bounds[1])


def error_of(floors: np.ndarray, flat: float, weeks: np.ndarray, bounds: tuple[int, int]) -> Error:
    """Of floors, and of one floor for all hours, on weeks. Hours that are not known count for nothing."""
    needed = _needed(weeks, bounds)
    off = needed - floors
    hours = int(np.sum(~np.isnan(off)))
    return Error(
        hours,
        float(np.nanmean(np.abs(off))),
        float(np.nanmean(np.abs(needed - flat))),
        float(np.nansum(off > 0)) / hours,
        float(np.nansum(np.maximum(-off, 0.0))) / len(weeks),
    )


def error_text(learned: Profile) -> str:
    error = learned.error
    weeks = len(learned.held_out)
    last = "the last week" if weeks == 1 else f"the last {weeks} weeks"
    return (
        f"learned from {learned.weeks} weeks; on {last}, held out, the floors were {error.mean:.2g} instances off on average (one "
        f"floor for all hours: {error.flat:.2g}), too low in {percent_text(error.short, 0)} of the hours, and {error.idle:.0f} instance-hours a "
        "week too high"
    )
