"""What comes by the clock: the shape of the hour, and the usual rate of the time of the day and the week. Pure.

The shape says for each minute of the hour how far arrivals are above the mean of their hour. It multiplies the
forecast, as far as it can be trusted: each new hour is compared with the shape known before it, and the share of the
shape that came true is the trust (the slope of a regression through the origin). Noise has no shape, so its trust is
0, and costs nothing; a batch at minute 33 of every hour comes near 1 within a day.
"""

from __future__ import annotations

from collections.abc import Iterator

from scaling.rules.service_level.memory import HOURS, MINUTES, WEEK, Calendar, Hour

HOUR = 3600.0
MONDAY = 4 * 86_400.0  # the first Monday of the epoch

SHAPE_WEIGHT = 0.05
"""Weight of the newest hour in the shape: of the last day it holds two thirds."""
TRUST_WEIGHT = 0.03
FIRST_HOURS = 3
"""Hours until a shape is used or judged."""

LEAST_TRUST = 0.15
"""A smaller share of the shape came true by chance."""

HIGHEST = 5.0
"""A minute counts as this many times the mean of its hour more at most."""

LEAST_SHARE = 0.2

CALENDAR_WEIGHT = 0.3
"""Weight of the newest day (or week) in the usual rate of an hour."""

CALENDAR_SHARE = 0.5
"""The usual rate is half that of the time of the day, half that of all days: a day may be unlike the others."""


def follow(hour: Hour, calendar: Calendar, rate: float, start: float, end: float) -> None:
    """Takes the rate of the time from `start` to `end` into both."""
    index = int(end // HOUR)
    if index != calendar.index:
        _close(calendar)
        calendar.index, calendar.sum, calendar.count = index, 0.0, 0
    calendar.sum += rate
    calendar.count += 1
    minute = start // 60.0
    if start < end <= minute * 60.0 + 60.0:  # within one minute, as where a target is looked at once a minute
        _take(hour, minute, rate * (end - start))
        return
    for minute, seconds in _minutes(start, end):
        _take(hour, minute, rate * seconds)


def _take(hour: Hour, minute: float, messages: float) -> None:
    which = int(minute // MINUTES)
    if which != hour.index:
        if which == hour.index + 1:
            _compare(hour)
        hour.index, hour.now = which, [0.0] * MINUTES
    hour.now[int(minute % MINUTES)] += messages


def _minutes(start: float, end: float) -> Iterator[tuple[float, float]]:
    """The minutes (since the epoch) of a time, each with the seconds of it; none of a time longer than an hour."""
    if not 0.0 < end - start <= HOUR:
        return
    minute = start // 60.0
    while minute * 60.0 < end:
        yield minute, min(end, minute * 60.0 + 60.0) - max(start, minute * 60.0)
        minute += 1.0


def _compare(hour: Hour) -> None:
    """An hour is over: how much of the shape came true, and the shape with this hour in it."""
    mean = sum(hour.now) / MINUTES
    if mean <= 0.0:
        return
    new = [min(value / mean - 1.0, HIGHEST) for value in hour.now]
    if hour.hours >= FIRST_HOURS:
        common = sum(a * b for a, b in zip(new, hour.shape, strict=True))
        power = sum(value * value for value in hour.shape)
        hour.agreement += TRUST_WEIGHT * (common - hour.agreement)
        hour.power += TRUST_WEIGHT * (power - hour.power)
    weight = max(SHAPE_WEIGHT, 1.0 / (hour.hours + 3.0))
    hour.shape = [known + weight * (value - known) for known, value in zip(hour.shape, new, strict=True)]
    hour.hours += 1


def trust(hour: Hour) -> float:
    """How much of the shape comes true, from 0 to 1."""
    if hour.hours < FIRST_HOURS or hour.power <= 0.0:
        return 0.0
    share = hour.agreement / hour.power
    return min((share - LEAST_TRUST) / (1.0 - LEAST_TRUST), 1.0) if share > LEAST_TRUST else 0.0


def factor(hour: Hour, at: float, horizon: float, step: float) -> float:
    """By what the forecast of the `horizon` seconds from `at` is multiplied: 1 or more, for the shape only raises.

    What the clock says of the loudest minute of that time, compared with what it said of the last minute: `step` is the
    time between two observations.
    """
    share = trust(hour)
    if share <= 0.0:
        return 1.0
    shape = hour.shape
    count, behind = max(round(horizon / step), 1), max(int(60.0 / step), 1)
    ahead = [shape[int((at + step * k) // 60.0 % MINUTES)] for k in range(count)]
    if (
        behind == 1
    ):  # looked at once a minute: the sums below have one term, and take longer than all else here
        coming, past = max(ahead), shape[int((at - step) // 60.0 % MINUTES)]
    else:
        minute = min(behind, count)
        coming = max(sum(ahead[k : k + minute]) for k in range(count - minute + 1)) / minute
        past = sum(shape[int((at - step * k) // 60.0 % MINUTES)] for k in range(1, behind + 1)) / behind
    ratio = max(1.0 + share * coming, LEAST_SHARE) / max(1.0 + share * past, LEAST_SHARE)
    return max(ratio, 1.0)


def _close(calendar: Calendar) -> None:
    if calendar.index < 0 or not calendar.count:
        return
    mean = calendar.sum / calendar.count
    day, week = calendar.index % HOURS, _hour_of_week(calendar.index)
    for means, seen, place in (
        (calendar.day, calendar.day_seen, day),
        (calendar.week, calendar.week_seen, week),
    ):
        weight = max(CALENDAR_WEIGHT, 1.0 / (seen[place] + 1.0))
        means[place] += weight * (mean - means[place])
        seen[place] += 1


def _hour_of_week(index: int) -> int:
    return int(index - MONDAY // HOUR) % WEEK


def usual(calendar: Calendar, at: float, otherwise: float) -> float:
    """The usual rate now: half that of all times, half the higher one of this hour and the next, where these are known."""
    index = int(at // HOUR)
    rate, following = of_hour(calendar, index), of_hour(calendar, index + 1)
    if rate is None:
        return otherwise
    if following is not None and following > rate:
        rate = following
    return (1.0 - CALENDAR_SHARE) * otherwise + CALENDAR_SHARE * rate


def of_hour(calendar: Calendar, index: int) -> float | None:
    """The rate of an hour of the week; of the hour of the day, where that has been seen but once or never."""
    place = _hour_of_week(index)
    if calendar.week_seen[place] >= 2:
        return calendar.week[place]
    return calendar.day[index % HOURS] if calendar.day_seen[index % HOURS] else None
