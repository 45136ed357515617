"""What is expected to arrive: rates of several time scales, blended by how well they foretold so far. Pure.

The forecast is the mean rate over the start-up time and one interval, since that is what an instance asked for now
comes to meet. It is a linear blend of the last interval's rate and of rates averaged over 30 s, 2 min, 10 min and
1 h. The weights follow by recursive least squares with forgetting (Ljung & Soederstroem, 1983), on values divided by
the scale of the time, so that a quiet night counts as much as a loud day.

`surprise` is the mean square by which more came than was expected, as a share of what was expected and is usual:
the margin is worked out from it, and not from errors in the other direction, which cost nothing but idle instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp, sqrt

from scaling.rules.service_level.memory import FEATURES, FORECASTS, SCALES, Forecast, Memory

FORGET_HALF = 21_600.0
"""Seconds after which an observation counts half: six hours."""

FIRST_BLEND = (0.2, 0.4, 0.3, 0.1, 0.0)
FIRST_SPREAD = 0.05
LARGEST_SPREAD = 5.0
"""Bounds the uncertainty of the weights, which grows without end while nothing arrives."""

LARGEST_ERROR = 3.0
"""An error counts as this many times the scale at most: one burst must not turn the weights round."""

LARGEST_SURPRISE = 10.0
"""Times what was expected and is usual: a surprise counts for no more, so that one wrong count is forgotten in hours."""

FIRST_SURPRISE = 0.02
SURPRISE_TIME = 7500.0
"""Seconds over which errors are averaged (two hours); before that each counts alike."""
FIRST_ERRORS = 20.0

USUAL = 86_400.0
"""Seconds over which the usual rate is averaged."""

USUAL_SHARE = 1.2
"""Of the usual rate this share is added to what an error is a share of, and so to what the margin is for: bursts come
while little is expected, too. Between 0.5 and 1.5 all open traces do as well within a hundredth of their cost.
"""

LEAST_RATE = 0.5
"""Messages per second added for the same reason where next to nothing is usual."""


def begin(memory: Memory, rate: float, usual: float) -> None:
    """From the first rate that was seen, and what is assumed to be usual."""
    memory.rates = [rate] * FEATURES
    memory.usual = max(rate, usual)
    memory.blend = list(FIRST_BLEND)
    memory.spread = [[FIRST_SPREAD if i == j else 0.0 for j in range(FEATURES)] for i in range(FEATURES)]
    memory.surprise = FIRST_SURPRISE


def follow(memory: Memory, rate: float, seconds: float) -> None:
    """Takes the rate of the last interval, which was `seconds` long, into all averages."""
    averaged(memory, rate, seconds)
    age = max(memory.at - memory.since, 0.0)
    memory.usual += max(seconds / USUAL, seconds / (age + 1800.0)) * (rate - memory.usual)


def averaged(memory: Memory, rate: float, seconds: float) -> None:
    """The averages after `seconds` at a rate."""
    _, a, b, c, d = memory.rates
    k, m, n, o = _weights(seconds)
    memory.rates = [rate, a + k * (rate - a), b + m * (rate - b), c + n * (rate - c), d + o * (rate - d)]


@lru_cache(maxsize=64)
def _weights(seconds: float) -> tuple[float, ...]:
    """Of a rate that was seen for so long, in each average."""
    return tuple(1.0 - exp(-seconds / scale) for scale in SCALES)


def judge(memory: Memory, at: float, seconds: float) -> None:
    """Learns from the forecasts whose time is over: weights and surprise."""
    waiting = memory.forecasts
    done = 0
    for forecast in waiting:
        if forecast.until > at + seconds / 2:
            break
        done += 1
        if forecast.until >= at - seconds / 2:  # what came is known for the time of the forecast only
            came = (memory.arrived - forecast.arrived) / max(at - forecast.at, 1e-9)
            _learn(memory, forecast, came, seconds)
    if done:
        memory.forecasts = waiting[done:]


def _learn(memory: Memory, forecast: Forecast, came: float, seconds: float) -> None:
    error = (came - forecast.rate) / (max(forecast.rate, 0.0) + USUAL_SHARE * forecast.usual + LEAST_RATE)
    error = min(error, LARGEST_SURPRISE)
    weight = max(min(seconds / SURPRISE_TIME, 1.0), 1.0 / (memory.seen + FIRST_ERRORS))
    forgetting = 0.5 ** (seconds / FORGET_HALF)
    memory.surprise += weight * ((error * error if error > 0.0 else 0.0) - memory.surprise)
    scale = forecast.scale
    # Written out: a year of minutes has half a million of these, and sum() rounds otherwise from Python 3.12 on.
    a, b, c, d, e = forecast.seen
    seen = (a / scale, b / scale, c / scale, d / scale, e / scale)
    row0, row1, row2, row3, row4 = memory.spread
    g0 = blended(row0, seen)
    g1 = blended(row1, seen)
    g2 = blended(row2, seen)
    g3 = blended(row3, seen)
    g4 = blended(row4, seen)
    gains = (g0, g1, g2, g3, g4)
    power = forgetting + blended(gains, seen)
    missed = came / scale - blended(memory.blend, seen)
    missed = min(max(missed, -LARGEST_ERROR), LARGEST_ERROR) / power
    a, b, c, d, e = memory.blend
    memory.blend = [a + g0 * missed, b + g1 * missed, c + g2 * missed, d + g3 * missed, e + g4 * missed]
    memory.spread = _less(memory.spread, gains, power, forgetting)


def _less(
    spread: list[list[float]], gains: Sequence[float], power: float, forgetting: float
) -> list[list[float]]:
    """The uncertainty of the weights after a lesson: symmetric as before, so fifteen numbers are worked out."""
    row0, row1, row2, row3, row4 = spread
    g0, g1, g2, g3, g4 = gains
    s00 = (row0[0] - g0 * g0 / power) / forgetting
    s01 = (row0[1] - g0 * g1 / power) / forgetting
    s02 = (row0[2] - g0 * g2 / power) / forgetting
    s03 = (row0[3] - g0 * g3 / power) / forgetting
    s04 = (row0[4] - g0 * g4 / power) / forgetting
    s11 = (row1[1] - g1 * g1 / power) / forgetting
    s12 = (row1[2] - g1 * g2 / power) / forgetting
    s13 = (row1[3] - g1 * g3 / power) / forgetting
    s14 = (row1[4] - g1 * g4 / power) / forgetting
    s22 = (row2[2] - g2 * g2 / power) / forgetting
    s23 = (row2[3] - g2 * g3 / power) / forgetting
    s24 = (row2[4] - g2 * g4 / power) / forgetting
    s33 = (row3[3] - g3 * g3 / power) / forgetting
    s34 = (row3[4] - g3 * g4 / power) / forgetting
    s44 = (row4[4] - g4 * g4 / power) / forgetting
    trace = s00 + s11 + s22 + s33 + s44
    if trace > LARGEST_SPREAD:
        less = LARGEST_SPREAD / trace
        s00, s01, s02, s03, s04 = s00 * less, s01 * less, s02 * less, s03 * less, s04 * less
        s11, s12, s13, s14 = s11 * less, s12 * less, s13 * less, s14 * less
        s22, s23, s24 = s22 * less, s23 * less, s24 * less
        s33, s34, s44 = s33 * less, s34 * less, s44 * less
    return [
        [s00, s01, s02, s03, s04],
        [s01, s11, s12, s13, s14],
        [s02, s12, s22, s23, s24],
        [s03, s13, s23, s33, s34],
        [s04, s14, s24, s34, s44],
    ]


def expect(memory: Memory) -> float:
    """Messages per second over the next start-up time, by the blend; within reach of what is seen."""
    rates = memory.rates
    now, seconds30, minutes2, minutes10, _ = rates
    lowest, highest = min(now, seconds30, minutes2), max(now, seconds30, minutes2, minutes10)
    return min(max(blended(memory.blend, rates), 0.5 * lowest), 1.6 * highest)


def blended(blend: Sequence[float], rates: Sequence[float]) -> float:
    """The sum of the rates, each by its weight."""
    a, b, c, d, e = blend
    f, g, h, i, j = rates
    return a * f + b * g + c * h + d * i + e * j


def note(memory: Memory, at: float, rate: float, usual: float, horizon: float, seconds: float) -> None:
    """Keeps a forecast to be judged at the end of its time; some of them only, where the time is long."""
    apart = horizon / FORECASTS
    if memory.forecasts and at - memory.forecasts[-1].at < apart - seconds / 2:
        return
    scale = memory.rates[3] + 0.1 * memory.usual + LEAST_RATE
    made = Forecast(at, at + horizon, memory.arrived, rate, usual, scale, memory.rates)
    memory.forecasts = [*memory.forecasts[-(FORECASTS - 1) :], made]


def deviation(rate: float, surprise: float, usual: float) -> float:
    """By how much more than `rate` comes, one standard deviation of the errors in this direction: what they would have,
    were they as likely in the other.
    """
    return sqrt(2.0 * surprise) * (rate + USUAL_SHARE * usual)
