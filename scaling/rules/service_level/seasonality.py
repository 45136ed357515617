"""What comes by the clock: the shape of the hour, and the usual rate of the hour of the day and of the week. Pure.

The shape says for each minute of the hour how far arrivals are above the mean of their hour. It multiplies the forecast
as far as it can be trusted. The trust is the slope of a regression through the origin: each new hour, x, is compared with
the shape that was known before it, s,

    share of the shape that came true = sum(x s) / sum(s s)

Noise has no shape: its share is near 0, and the shape then costs nothing. A batch at minute 33 of every hour comes near 1
within a day.
"""

from __future__ import annotations

from scaling.rules.service_level.memory import HOURS, HOURS_OF_WEEK, MINUTES, MinuteShape, UsualRates

HOUR = 3600.0
FIRST_MONDAY = 4 * 86_400.0
"""The epoch began on a Thursday."""

SHAPE_WEIGHT = 0.05
"""Weight of the newest hour in the shape. Chosen: the last day then makes two thirds of it (1 - 0.95^24 = 0.71). With 0.1,
the prototype met the batches of a recorded load (twitter21, 21 November 2026): late messages from 1.95 % to 1.46 %.
"""

FIRST_SHAPE_HOURS = 3.0
"""Hours that a flat shape counts for at first. Chosen: the first hour moves the shape by a third."""

TRUST_WEIGHT = 0.03
"""Weight of the newest hour in the trust. Chosen: half of it is of the last day (0.97^24 = 0.48)."""

MIN_HOURS = 3
"""Hours until a shape is used or judged. Chosen: with fewer, there is nothing to compare an hour with."""

MIN_TRUST = 0.15
"""A smaller share came true by chance. Chosen: days of recorded loads without a shape agree by 0.07 (aws_elb_requests,
alibaba_gpu_pods; 21 November 2026), twice that is ignored.
"""

MAX_ABOVE_MEAN = 5.0
"""A minute counts as no more than this above the mean of its hour. Chosen: ten seconds of load in one minute an hour."""

MIN_FACTOR = 0.2
"""A quiet minute counts as no less than this share of the mean. Chosen: the ratio of two minutes stays below 30."""

HOUR_WEIGHT = 0.3
"""Weight of the newest day (or week) in the usual rate of an hour. Chosen: the last three make two thirds of it."""

HOUR_SHARE = 0.5
"""How much of the usual rate is that of the hour, and not that of all times. Chosen: a day may be unlike the others."""

MIN_WEEKS = 2
"""Weeks until an hour of the week is believed more than the hour of the day. Chosen: one week may be an exception."""


def record_rate(hour: MinuteShape, usual: UsualRates, rate: float, start: float, end: float) -> None:
    """Takes the rate of the time from `start` to `end` into both."""
    index = int(end // HOUR)
    if index != usual.index:
        _close_hour(usual)
        usual.index, usual.sum, usual.count = index, 0.0, 0
    usual.sum += rate
    usual.count += 1
    if not 0.0 < end - start <= HOUR:  # of a longer time it is not known what came when
        return
    minute = start // 60.0
    while minute * 60.0 < end:
        _add_messages(hour, minute, rate * (min(end, minute * 60.0 + 60.0) - max(start, minute * 60.0)))
        minute += 1.0


def scale(hour: MinuteShape, usual: UsualRates, ratio: float) -> None:
    """Multiplies all rates: the shape is relative to its hour, and stays."""
    hour.messages = [messages * ratio for messages in hour.messages]
    usual.sum *= ratio
    usual.day = [rate * ratio for rate in usual.day]
    usual.week = [rate * ratio for rate in usual.week]


def _add_messages(hour: MinuteShape, minute: float, messages: float) -> None:
    index = int(minute // MINUTES)
    if index != hour.index:
        if index == hour.index + 1:
            _close_shape(hour)
        hour.index, hour.messages = index, [0.0] * MINUTES
    hour.messages[int(minute % MINUTES)] += messages


def _close_shape(hour: MinuteShape) -> None:
    """At the end of an hour: how much of the shape came true, and the shape with this hour in it."""
    mean = sum(hour.messages) / MINUTES
    if mean <= 0.0:
        return
    newest = [min(value / mean - 1.0, MAX_ABOVE_MEAN) for value in hour.messages]
    if hour.hours >= MIN_HOURS:
        agreement = sum(value * known for value, known in zip(newest, hour.shape, strict=True))
        power = sum(known * known for known in hour.shape)
        hour.agreement += TRUST_WEIGHT * (agreement - hour.agreement)
        hour.power += TRUST_WEIGHT * (power - hour.power)
    weight = max(SHAPE_WEIGHT, 1.0 / (hour.hours + FIRST_SHAPE_HOURS))
    hour.shape = [known + weight * (value - known) for known, value in zip(hour.shape, newest, strict=True)]
    hour.hours += 1


def shape_trust(hour: MinuteShape) -> float:
    """How much of the shape comes true, from 0 to 1."""
    if hour.hours < MIN_HOURS or hour.power <= 0.0:
        return 0.0
    share = hour.agreement / hour.power
    return min((share - MIN_TRUST) / (1.0 - MIN_TRUST), 1.0) if share > MIN_TRUST else 0.0


def shape_factor(hour: MinuteShape, at: float, horizon: float, interval: float) -> float:
    """What the forecast of the `horizon` seconds from `at` is multiplied by: 1 or more, because the shape only raises it.

    The factor compares the loudest minute of that time with the last minute, both by the shape.
    """
    trust = shape_trust(hour)
    if trust <= 0.0:
        return 1.0
    ahead_count = max(round(horizon / interval), 1)
    per_minute = max(int(60.0 / interval), 1)
    ahead = [_shape_at(hour, at + interval * step) for step in range(ahead_count)]
    behind = [_shape_at(hour, at - interval * step) for step in range(1, per_minute + 1)]
    minute = min(per_minute, ahead_count)
    minutes = (ahead[first : first + minute] for first in range(ahead_count - minute + 1))
    loudest, last = max(map(sum, minutes)) / minute, sum(behind) / per_minute
    ratio = max(1.0 + trust * loudest, MIN_FACTOR) / max(1.0 + trust * last, MIN_FACTOR)
    return max(ratio, 1.0)


def _shape_at(hour: MinuteShape, at: float) -> float:
    return hour.shape[int(at // 60.0 % MINUTES)]


def _close_hour(usual: UsualRates) -> None:
    if usual.index < 0 or not usual.count:
        return
    mean = usual.sum / usual.count
    hour, hour_of_week = usual.index % HOURS, _hour_of_week(usual.index)
    usual.day, usual.day_count = _averaged(usual.day, usual.day_count, hour, mean)
    usual.week, usual.week_count = _averaged(usual.week, usual.week_count, hour_of_week, mean)


def _averaged(means: list[float], counts: list[int], hour: int, mean: float) -> tuple[list[float], list[int]]:
    means, counts = [*means], [*counts]
    weight = max(HOUR_WEIGHT, 1.0 / (counts[hour] + 1.0))
    means[hour] += weight * (mean - means[hour])
    counts[hour] += 1
    return means, counts


def _hour_of_week(index: int) -> int:
    return int(index - FIRST_MONDAY // HOUR) % HOURS_OF_WEEK


def usual_rate(usual: UsualRates, at: float, otherwise: float) -> float:
    """The usual rate now: half that of all times (`otherwise`), half the higher one of this hour and the next, if known."""
    index = int(at // HOUR)
    rate, following = rate_of_hour(usual, index), rate_of_hour(usual, index + 1)
    if rate is None:
        return otherwise
    if following is not None:
        rate = max(rate, following)
    return (1.0 - HOUR_SHARE) * otherwise + HOUR_SHARE * rate


def rate_of_hour(usual: UsualRates, index: int) -> float | None:
    """The usual rate of an hour of the week; of the hour of the day, until the former was seen `MIN_WEEKS` times."""
    hour_of_week = _hour_of_week(index)
    if usual.week_count[hour_of_week] >= MIN_WEEKS:
        return usual.week[hour_of_week]
    return usual.day[index % HOURS] if usual.day_count[index % HOURS] else None
