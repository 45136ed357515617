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
    age = memory.at - memory.since
    over = USUAL if age > USUAL - 1800.0 else (age if age > 0.0 else 0.0) + 1800.0
    memory.usual += seconds / over * (rate - memory.usual)


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
            time = at - forecast.at
            came = (memory.arrived - forecast.arrived) / (time if time > 1e-9 else 1e-9)
            _learn(memory, forecast, came, seconds)
    del waiting[:done]


def _learn(memory: Memory, forecast: Forecast, came: float, seconds: float) -> None:
    expected = forecast.rate if forecast.rate > 0.0 else 0.0
    error = (came - forecast.rate) / (expected + USUAL_SHARE * forecast.usual + LEAST_RATE)
    if error < 0.0:
        error = 0.0
    elif error > LARGEST_SURPRISE:
        error = LARGEST_SURPRISE
    weight = max(min(seconds / SURPRISE_TIME, 1.0), 1.0 / (memory.seen + FIRST_ERRORS))
    forgetting = 0.5 ** (seconds / FORGET_HALF)
    memory.surprise += weight * (error * error - memory.surprise)
    scale = forecast.scale
    # Written out: a year of minutes has half a million of these, and sum() rounds otherwise from Python 3.12 on.
    a, b, c, d, e = forecast.seen
    seen = (a / scale, b / scale, c / scale, d / scale, e / scale)
    gains, memory.spread = _lesson(memory.spread, seen, forgetting)
    missed = came / scale - blended(memory.blend, seen)
    if missed > LARGEST_ERROR:
        missed = LARGEST_ERROR
    elif missed < -LARGEST_ERROR:
        missed = -LARGEST_ERROR
    a, b, c, d, e = memory.blend
    f, g, h, i, j = gains
    memory.blend = [a + f * missed, b + g * missed, c + h * missed, d + i * missed, e + j * missed]


def _lesson(
    spread: list[list[float]], seen: tuple[float, ...], forgetting: float
) -> tuple[tuple[float, ...], list[list[float]]]:
    """What each weight learns of an error, and the uncertainty of the weights afterwards: symmetric as before, so fifteen
    numbers are worked out.
    """
    a, b, c, d, e = seen
    (s00, s01, s02, s03, s04), (_, s11, s12, s13, s14), (_, _, s22, s23, s24), row3, row4 = spread
    s33, s34, s44 = row3[3], row3[4], row4[4]
    g0 = s00 * a + s01 * b + s02 * c + s03 * d + s04 * e
    g1 = s01 * a + s11 * b + s12 * c + s13 * d + s14 * e
    g2 = s02 * a + s12 * b + s22 * c + s23 * d + s24 * e
    g3 = s03 * a + s13 * b + s23 * c + s33 * d + s34 * e
    g4 = s04 * a + s14 * b + s24 * c + s34 * d + s44 * e
    power = forgetting + (g0 * a + g1 * b + g2 * c + g3 * d + g4 * e)
    # Divided once: the interpreter has no fast way for it, as it has for the other three.
    kept, by = 1.0 / forgetting, 1.0 / power
    h0, h1, h2, h3, h4 = g0 * by, g1 * by, g2 * by, g3 * by, g4 * by
    s00 = (s00 - h0 * g0) * kept
    s01 = (s01 - h0 * g1) * kept
    s02 = (s02 - h0 * g2) * kept
    s03 = (s03 - h0 * g3) * kept
    s04 = (s04 - h0 * g4) * kept
    s11 = (s11 - h1 * g1) * kept
    s12 = (s12 - h1 * g2) * kept
    s13 = (s13 - h1 * g3) * kept
    s14 = (s14 - h1 * g4) * kept
    s22 = (s22 - h2 * g2) * kept
    s23 = (s23 - h2 * g3) * kept
    s24 = (s24 - h2 * g4) * kept
    s33 = (s33 - h3 * g3) * kept
    s34 = (s34 - h3 * g4) * kept
    s44 = (s44 - h4 * g4) * kept
    after = [
        [s00, s01, s02, s03, s04],
        [s01, s11, s12, s13, s14],
        [s02, s12, s22, s23, s24],
        [s03, s13, s23, s33, s34],
        [s04, s14, s24, s34, s44],
    ]
    trace = s00 + s11 + s22 + s33 + s44
    if trace > LARGEST_SPREAD:
        less = LARGEST_SPREAD / trace
        after = [[value * less for value in row] for row in after]
    return (h0, h1, h2, h3, h4), after


def expect(memory: Memory) -> float:
    """Messages per second over the next start-up time, by the blend; within reach of what is seen."""
    rates = memory.rates
    now, seconds30, minutes2, minutes10, _ = rates
    least = 0.5 * min(now, seconds30, minutes2)
    most = 1.6 * max(now, seconds30, minutes2, minutes10)
    rate = blended(memory.blend, rates)
    if rate < least:
        rate = least
    return most if rate > most else rate  # what is no number stays none: it is found out


def blended(blend: Sequence[float], rates: Sequence[float]) -> float:
    """The sum of the rates, each by its weight."""
    a, b, c, d, e = blend
    f, g, h, i, j = rates
    return a * f + b * g + c * h + d * i + e * j


def note(memory: Memory, at: float, rate: float, usual: float, horizon: float, seconds: float) -> None:
    """Keeps a forecast to be judged at the end of its time; some of them only, where the time is long."""
    apart = horizon / FORECASTS
    waiting = memory.forecasts
    if waiting and at - waiting[-1].at < apart - seconds / 2:
        return
    scale = memory.rates[3] + 0.1 * memory.usual + LEAST_RATE
    made = Forecast(at, at + horizon, memory.arrived, rate, usual, scale, memory.rates)
    del waiting[: 1 - FORECASTS]
    waiting.append(made)


def deviation(rate: float, surprise: float, usual: float) -> float:
    """By how much more than `rate` comes, one standard deviation of the errors in this direction: what they would have,
    were they as likely in the other.
    """
    return sqrt(2.0 * surprise) * (rate + USUAL_SHARE * usual)
