"""What is expected to arrive: rates of several time scales, blended by how well they forecast so far. Pure.

The forecast is the mean arrival rate over the start-up time and one interval, because an instance that is asked for now
serves the messages of that time. It is a weighted sum of the rate of the last interval and of its averages over 30 s,
2 min, 10 min and 1 h:

    forecast = w . r                      r: the five rates, w: their weights

Recursive least squares with forgetting fits the weights to what came true (Ljung and Soederstroem, Theory and Practice of
Recursive Identification, 1983). With y what came, P the covariance of the weights and a forgetting factor q:

    k = P r / (q + r . P r)       w <- w + k (y - w . r)       P <- (P - k (P r)^T) / q

Rates are divided by a scale of their time, so that a quiet night counts as much as a loud day.

The error variance is the mean square of what came beyond the forecast, relative to the forecast and the usual rate. The
margin follows from it. Errors in the other direction do not count: they cost idle instances, and no late message. It is kept
apart for quiet and loud times: where bursts come out of nothing, little more comes while one is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp, sqrt

from scaling.rules.service_level.instances import FIRST_CONCURRENCY, service_rate
from scaling.rules.service_level.memory import FEATURES, LEVEL_ENDS, MAX_FORECASTS, SCALES, Forecast, Memory

FORGETTING_HALF_LIFE = 21_600.0
"""Seconds after which a forecast's error counts half in the weights. Chosen: six hours, so that a day and a night differ."""

FIRST_WEIGHTS = (0.2, 0.4, 0.3, 0.1, 0.0)
"""Chosen: mostly the averages over half a minute and two minutes, which is near what the recorded loads learn."""

FIRST_COVARIANCE = 0.05
"""Chosen: the weights may move by sqrt(0.05), about a fifth, before much is known."""

MAX_COVARIANCE_TRACE = 5.0
"""Bounds the covariance, which grows without end while nothing arrives. Chosen: one for each weight."""

MAX_SCALED_ERROR = 3.0
"""An error in units of the scale counts as no more than this. Chosen, as Huber's estimators do: one burst must not turn
the weights round.
"""

MAX_RELATIVE_ERROR = 10.0
"""A relative error counts as no more than this. Chosen: one wrong count is forgotten in hours, not in days."""

FIRST_ERROR_VARIANCE = 0.02
"""Chosen: an error of a seventh of the rate, which a load of the recorded ones with little noise has."""

ERROR_AVERAGE = 7500.0
"""Seconds over which squared errors are averaged. Chosen: 500 reports of one every 15 s, about two hours."""

FIRST_ERROR_COUNT = 20.0
"""Errors that `FIRST_ERROR_VARIANCE` counts for at first. Chosen: five minutes of reports every 15 s."""

FIRST_LEVEL_COUNT = 60.0
"""Errors that the variance of all levels counts for when one is reached first. Chosen: a quarter of an hour of reports every 15 s."""

USUAL_AVERAGE = 86_400.0
"""Seconds over which the usual rate is averaged: a day, so that each of its hours counts once."""

FIRST_USUAL_TIME = 1800.0
"""Seconds that the first usual rate counts for. Chosen: the half hour of `estimates.LEARNING_TIME`."""

RATE_SHARE, USUAL_SHARE = 0.3, 1.9
"""An error is relative to these shares of the forecast and of the usual rate together, and so is the margin: bursts also come while
little is expected. Measured with the levels of `LEVEL_ENDS` on eight recorded loads, messages counted every 15 s (28 November 2026): with 1
and 1.2 the cost is half a per cent higher, at the same share of late messages.
"""

LEAST_SHARE = 0.05
"""Of what one instance serves, this share is added for the same reason, where next to nothing is usual. Chosen: a smaller surprise needs no
instance. Measured on eleven recorded loads (28 November 2026): messages of 1.6 s do as well with 0.01. With one message of 30 s at a time half a
message a second, which is 15 instances, hid the errors: 2.4 % late at 1.36 times the least cost; with this 1.0 % at 1.49 times.
"""

SCALE_SHARE = 0.1
"""Of the usual rate, this share is part of the scale of a forecast. Chosen: it keeps a quiet hour from being divided by
nearly nothing.
"""

LOWEST, HIGHEST = 0.5, 1.6
"""A forecast stays between 0.5 times the lowest and 1.6 times the highest of the recent rates. Chosen: wider than any rise
within one start-up time of the recorded loads that was foreseeable, and a bound on weights that went wrong.
"""


_ONES = (1.0,) * FEATURES
_UPPER = [(row, column) for row in range(FEATURES) for column in range(row, FEATURES)]


def begin(memory: Memory, rate: float, usual: float) -> None:
    """Starts from the first rate that was seen, and the rate that is assumed to be usual."""
    memory.rates = [rate] * FEATURES
    memory.usual_rate = max(rate, usual)
    pair_rates(memory)
    memory.weights = list(FIRST_WEIGHTS)
    memory.covariance = [
        [FIRST_COVARIANCE if row == column else 0.0 for column in range(FEATURES)] for row in range(FEATURES)
    ]
    memory.error_variance = FIRST_ERROR_VARIANCE


def record_rate(memory: Memory, rate: float, seconds: float) -> None:
    """Takes the rate of the last interval, which was `seconds` long, into all averages. These begin with the first rate that was counted: the
    first report ends no interval, so its counts say nothing.
    """
    if memory.observations == 1 and memory.flow_counted:
        begin(memory, rate, memory.usual_rate)
    average_rates(memory, rate, seconds)
    age = memory.at - memory.since
    averaged_over = min(max(age, 0.0) + FIRST_USUAL_TIME, USUAL_AVERAGE)
    memory.usual_rate += seconds / averaged_over * (rate - memory.usual_rate)
    memory.time.usually_busy += seconds / averaged_over * (memory.time.busy[0] - memory.time.usually_busy)


def average_rates(memory: Memory, rate: float, seconds: float) -> None:
    """Moves the averages by `seconds` at a rate."""
    memory.rates = averages_after(memory.rates, rate, seconds)


def averages_after(known: Sequence[float], value: float, seconds: float) -> list[float]:
    """The newest value, and the averages over `SCALES` after `seconds` of it."""
    averages = zip(known[1:], _weights_of(seconds), strict=True)
    return [value, *(average + weight * (value - average) for average, weight in averages)]


def pair_rates(memory: Memory) -> None:
    """The messages being processed that go with the rates, where nothing more is known of them."""
    time = memory.time
    time.busy = [rate * time.used for rate in memory.rates]
    time.usually_busy = memory.usual_rate * time.used


def reckon_anew(memory: Memory, before: float, now: float) -> None:
    """Puts another time of a message into arrivals that were inferred with `before` seconds.

    They are what the backlog grew by and what was completed, which is messages being processed over the time of one. So a rate is kept as a
    pair: only the second part changes. Forecasts that wait for their time to end are not judged.
    """
    change = 1.0 / now - 1.0 / before
    memory.rates = [
        max(rate + busy * change, 0.0) for rate, busy in zip(memory.rates, memory.time.busy, strict=True)
    ]
    memory.usual_rate = max(memory.usual_rate + memory.time.usually_busy * change, 0.0)
    memory.forecasts = []  # what they were made from has changed


def correct_usual_rate(memory: Memory, share: float) -> None:
    """An instance serves so much of what was assumed when the usual rate followed from the instances alone. Forecasts of that time are not
    judged.
    """
    memory.usual_rate = max(memory.usual_rate * min(share, 1.0), memory.rates[3])
    memory.forecasts = []


@lru_cache(maxsize=64)
def _weights_of(seconds: float) -> tuple[float, ...]:
    """The weight in each average of a rate that lasted for so long."""
    return tuple(1.0 - exp(-seconds / scale) for scale in SCALES)


def score_forecasts(memory: Memory, at: float, seconds: float) -> None:
    """Learns from the forecasts whose time has ended: weights and error variance."""
    scored = 0
    for forecast in memory.forecasts:
        if forecast.until > at + seconds / 2:
            break
        scored += 1
        if (
            forecast.until >= at - seconds / 2
        ):  # arrivals are known for exactly the time of the forecast only then
            came = (memory.arrived - forecast.arrived) / max(at - forecast.at, 1e-9)
            _learn_from_error(memory, forecast, came, seconds)
    del memory.forecasts[:scored]


def _learn_from_error(memory: Memory, forecast: Forecast, came: float, seconds: float) -> None:
    reference = RATE_SHARE * max(forecast.rate, 0.0) + USUAL_SHARE * forecast.usual + least_rate(memory)
    error = min(max((came - forecast.rate) / reference, 0.0), MAX_RELATIVE_ERROR)
    weight = _weight_of_error(seconds, memory.observations + FIRST_ERROR_COUNT)
    memory.error_variance += weight * (error * error - memory.error_variance)
    _learn_error_of_level(memory, level_of(forecast.rate, forecast.usual), error, seconds)

    rates = [rate / forecast.scale for rate in forecast.rates]
    forgetting = 0.5 ** (seconds / FORGETTING_HALF_LIFE)
    gains, memory.covariance = _least_squares_step(memory.covariance, rates, forgetting)
    missed = came / forecast.scale - _dot(memory.weights, rates)
    missed = max(min(missed, MAX_SCALED_ERROR), -MAX_SCALED_ERROR)
    memory.weights = [weight + gain * missed for weight, gain in zip(memory.weights, gains, strict=True)]


def _learn_error_of_level(memory: Memory, level: int, error: float, seconds: float) -> None:
    """A level begins with the variance of all of them."""
    before, count = memory.level_variances[level], memory.level_counts[level]
    before = before if count else memory.error_variance
    weight = _weight_of_error(seconds, count + FIRST_LEVEL_COUNT)
    memory.level_variances[level] = before + weight * (error * error - before)
    memory.level_counts[level] = count + 1


def _weight_of_error(seconds: float, count: float) -> float:
    """Of the newest of `count` errors, of `seconds`, in their mean."""
    return max(min(seconds / ERROR_AVERAGE, 1.0), 1.0 / count)


def level_of(rate: float, usual: float) -> int:
    """How loud it is: an index of `Memory.level_variances`."""
    return sum(rate >= times * usual for times in LEVEL_ENDS)


def _least_squares_step(
    covariance: list[list[float]], rates: Sequence[float], forgetting: float
) -> tuple[list[float], list[list[float]]]:
    """One step of recursive least squares: how much each weight moves with an error, and the covariance afterwards."""
    projected = [_dot(row, rates) for row in covariance]
    per_error = 1.0 / (forgetting + _dot(projected, rates))
    gains = [value * per_error for value in projected]
    growth = 1.0 / forgetting
    after = [[0.0] * FEATURES for _ in range(FEATURES)]
    for row, column in _UPPER:  # symmetric to the last digit, or errors of rounding add up
        value = (covariance[row][column] - gains[row] * projected[column]) * growth
        after[row][column] = after[column][row] = value
    trace = _dot([after[index][index] for index in range(FEATURES)], _ONES)
    if trace > MAX_COVARIANCE_TRACE:
        factor = MAX_COVARIANCE_TRACE / trace
        after = [[value * factor for value in row] for row in after]
    return gains, after


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    """The scalar product of five numbers each (`FEATURES`), rounded after each term. sum() is more exact from Python 3.12 on, and
    a logged decision has to come out the same on every version.
    """
    now, half, two, ten, hour = left
    now2, half2, two2, ten2, hour2 = right
    return now * now2 + half * half2 + two * two2 + ten * ten2 + hour * hour2


def expected_rate(memory: Memory) -> float:
    """Messages per second over the next start-up time, within reach of the recent rates."""
    now, seconds30, minutes2, minutes10, _ = memory.rates
    lowest = LOWEST * min(now, seconds30, minutes2)
    highest = HIGHEST * max(now, seconds30, minutes2, minutes10)
    return min(max(_dot(memory.weights, memory.rates), lowest), highest)


def record_forecast(
    memory: Memory, at: float, rate: float, usual: float, horizon: float, seconds: float
) -> None:
    """Keeps a forecast until its time ends; only some of them, where the time is long."""
    spacing = horizon / MAX_FORECASTS
    if memory.forecasts and at - memory.forecasts[-1].at < spacing - seconds / 2:
        return
    forecast = Forecast(
        at=at,
        until=at + horizon,
        arrived=memory.arrived,
        rate=rate,
        usual=usual,
        scale=memory.rates[3] + SCALE_SHARE * memory.usual_rate + least_rate(memory),
        rates=memory.rates,
    )
    memory.forecasts = [*memory.forecasts[1 - MAX_FORECASTS :], forecast]


def least_rate(memory: Memory) -> float:
    """Messages per second that are next to nothing."""
    learned = memory.learned
    return LEAST_SHARE * service_rate(learned, learned.concurrency or FIRST_CONCURRENCY)


def upward_deviation(memory: Memory) -> float:
    """One standard deviation of what comes beyond the expected rate, in messages per second.

    The error variance is over the errors in this direction only, which are half of all: hence the factor of two.
    """
    rate, usual = memory.expected_rate, memory.usual_now
    level = level_of(rate, usual)
    variance = memory.level_variances[level] if memory.level_counts[level] else memory.error_variance
    return sqrt(2.0 * variance) * (RATE_SHARE * rate + USUAL_SHARE * usual)
