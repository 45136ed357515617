"""What a target has used today: its capacity times the time it had it, counted from report to report. Pure and total.

* Each second is counted once, from the end of the last count to now, however often a report is delivered.
* A gap between reports counts at the assumed capacity. An increase counts from the report before its effect, which
  ordered it, and a decrease from its effect on, because Azure bills it so.
* Where hours are billed at the highest capacity they had (Cosmos DB), an hour that has begun counts as a whole.
* The time before the first report, and before a state was lost, is unknown, and unknown is not zero: that part of the day
  counts with its even share of the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from math import exp, isfinite
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec.structs import replace

from scaling.config.policy import Budget
from scaling.model import EffectRecord, Spent, TargetState

HOUR = 3600.0
DAY = 86_400.0

CLOCKS_DIFFER = 300.0
"""Seconds that the clocks of two instances may be apart; a count further ahead than that was of a wrong clock.
The source is `scaling.window.CLOCK_TOLERANCE`.
"""


def day_of(at: float, time_zone: str) -> tuple[float, float]:
    """The day that holds a moment, from midnight to midnight of the time zone: 23 or 25 hours where its clock is changed.

    The day of UTC for a moment that no calendar has, and a time zone that this machine does not know.
    """
    if time_zone != "UTC":
        try:
            local = datetime.fromtimestamp(at, ZoneInfo(time_zone))
            midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
            return midnight.timestamp(), (midnight + timedelta(days=1)).timestamp()
        except (ZoneInfoNotFoundError, ValueError, OverflowError, OSError):
            pass
    day = at // DAY * DAY
    return day, day + DAY


def spent_by(budget: Budget, state: TargetState, *, now: float) -> Spent:
    """The usage at `now`: the last count, and the time since then as the state has it."""
    known, there = state.spent, capacity_there(state)
    day, end = day_of(now, budget.time_zone)
    if known is None or _unusable(known, day, now):
        return _begun(budget, there, day, end, now)
    if now <= known.until:
        return known
    ranges = _levels(known.capacity, known.until, state, now)
    if known.day < day:
        known = replace(known, day=day, since=day, hours=0.0, warned=False)
    for begin, until, level in ranges:
        known = _counted(budget, known, max(begin, day), until, level, end)
    if budget.hourly:
        known = _hour_at_least(known, now, there, end)
    return replace(known, until=now, capacity=there)


def capacity_there(state: TargetState) -> int:
    """The capacity that is billed as far as is known: as read, unless an effect of ours was seen after that."""
    capacity = state.capacity
    if capacity is None or (state.effects and state.effects[-1].at > capacity.at):
        return max(state.expected or 0, 0)
    return max(capacity.current, 0)


def _unusable(known: Spent, day: float, now: float) -> bool:
    """True for a count from the future, of a day that another time zone had, or of none at all."""
    finite = isfinite(known.hours + known.pace + known.until + known.hour)
    if not finite or not known.day <= known.until:
        return True
    if known.until > now:
        return known.until > now + CLOCKS_DIFFER
    return known.day != day and known.until > day


def _begun(budget: Budget, there: int, day: float, end: float, now: float) -> Spent:
    gone = budget.hours * (now - day) / max(end - day, 1.0)
    begun = Spent(day, now, now, gone, there, float(there))
    if not budget.hourly:
        return begun
    start, stop = _hour_of(now, day, end)
    return replace(begun, hours=gone + there * (stop - now) / HOUR, hour=start, peak=there)


def _levels(level: int, at: float, state: TargetState, now: float) -> Iterator[tuple[float, float, int]]:
    """(begin, end, capacity) of the time ranges from `at` to `now`."""
    effects: Sequence[EffectRecord] = state.effects
    for effect in effects:
        if at <= effect.at <= now:
            yield at, effect.at, max(level, effect.to_capacity)
            at, level = effect.at, effect.to_capacity
    if state.pending is not None:  # the platform may have it already
        level = max(level, state.pending.to_capacity)
    if at < now:
        yield at, now, level


def _counted(budget: Budget, known: Spent, begin: float, until: float, level: int, end: float) -> Spent:
    """The usage after a time range of one capacity."""
    if until <= begin:
        return known
    seconds, level = until - begin, max(level, 0)
    pace = known.pace + (1.0 - exp(-seconds / HOUR)) * (level - known.pace)
    if not budget.hourly:
        return replace(known, hours=known.hours + level * seconds / HOUR, pace=pace)
    at = begin
    while at < until:
        known = _hour_at_least(known, at, level, end)
        at = _hour_of(at, known.day, end)[1]
    return replace(known, pace=pace)


def _hour_at_least(known: Spent, at: float, level: int, end: float) -> Spent:
    """The usage after the whole hour of `at` is paid for at `level` at least."""
    start, stop = _hour_of(at, known.day, end)
    peak = known.peak if start == known.hour else 0
    paid = max(peak, level)
    return replace(known, hours=known.hours + (paid - peak) * (stop - start) / HOUR, hour=start, peak=paid)


def _hour_of(at: float, day: float, end: float) -> tuple[float, float]:
    """The clock hour (of UTC, as it is billed) that holds a moment, as far as it is of the day."""
    start = at // HOUR * HOUR
    return max(start, day), min(start + HOUR, end)


def hour_of(known: Spent, end: float) -> tuple[float, float]:
    """The hour of the newest count."""
    return _hour_of(known.until, known.day, end)
