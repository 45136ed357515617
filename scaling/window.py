"""Event-time windows over the samples of one metric. Pure.

A window is complete or it says why not. Samples count at the time they were taken, not when they arrive:
late ones are inserted at their time, duplicates are dropped, and a missing one leaves a gap that makes
scaling in impossible. Each sample stands for one collection interval, so ten samples a minute apart cover
ten minutes, and five samples over four minutes do not.
"""

from __future__ import annotations

from bisect import bisect_left
from math import isfinite
from operator import sub

from msgspec import Struct, structs

from scaling.model import MetricFailure, MetricSample, Reason

MAX_SAMPLES = 20_000
"""Samples kept per window."""

MAX_TARGET_SAMPLES = 30_000
"""Samples the windows of one target may hold by configuration, for they share one table row of 1 MiB with
the state. 480 KB of samples, 16 bytes each, leave 500 KB: 115 KB for 2,000 recommendations, up to 300 KB
for the failures of one report (24 Ki characters of two bytes each, as UTF-16 of `\\uXXXX`), the rest for the
last decision.
"""

GAP_INTERVALS = 1.5
"""Two samples further apart than this many intervals have a missing one between them."""

STALE_INTERVALS = 3.0
"""Default age, in intervals, after which the newest sample is no longer evidence of the present."""

MAX_VALUE = 1e15
"""Largest value believed. Above about 9e15 a float no longer counts units, and sums could overflow."""

COVERAGE_SLACK = 0.5
"""Share of one interval by which the covered span may fall short: timers fire with jitter."""


class WindowSpec(Struct, frozen=True):
    """How one metric is windowed. All durations in seconds.

    `interval` is the time between collector ticks, `span` the length of the window, `min_samples` the
    least number of samples a rule may act on, `max_age` the age at which the newest sample is stale.
    """

    span: float
    interval: float
    min_samples: int = 1
    max_age: float = 0.0

    @property
    def stale_after(self) -> float:
        return self.max_age or max(STALE_INTERVALS * self.interval, 1.0)


class Window(Struct, frozen=True):
    """Samples of one metric, ascending by time, none older than the span; `failure` is the newest failed
    read, kept until a newer sample arrives. `truncated` is set when samples had to be dropped to fit.
    """

    times: list[float] = []
    values: list[float] = []
    failure: MetricFailure | None = None
    truncated: bool = False


EMPTY = Window()


def check_sample(sample: MetricSample, spec: WindowSpec, *, now: float) -> str | None:
    """What is wrong with a sample, or None: it must be finite, 0 to MAX_VALUE, and not from the future.

    One interval of clock difference between the collector and this machine is tolerated.
    """
    if not isfinite(sample.value) or not isfinite(sample.at):
        return f"value {sample.value} at {sample.at} is not finite"
    if sample.value < 0:
        return f"value {sample.value:g} is negative"
    if sample.value > MAX_VALUE:
        return f"value {sample.value:g} is above {MAX_VALUE:g}"
    if sample.at > now + max(spec.interval, 1.0):
        return f"sample is {sample.at - now:.0f} s in the future"
    return None


def insert(window: Window, sample: MetricSample, spec: WindowSpec) -> Window:
    """The window with a (checked) sample at its time. A second sample of the same time changes nothing."""
    times, values = window.times, window.values
    failure = window.failure if window.failure and window.failure.at >= sample.at else None
    if not times or sample.at > times[-1]:
        newest = sample.at
        times, values = [*times, sample.at], [*values, sample.value]
    else:
        newest = times[-1]
        position = bisect_left(times, sample.at)
        if times[position] != sample.at:
            times = [*times[:position], sample.at, *times[position:]]
            values = [*values[:position], sample.value, *values[position:]]
    return _trimmed(times, values, newest, spec, failure, truncated=window.truncated)


def _trimmed(
    times: list[float],
    values: list[float],
    newest: float,
    spec: WindowSpec,
    failure: MetricFailure | None,
    *,
    truncated: bool,
) -> Window:
    horizon = newest - spec.span
    first = bisect_left(times, horizon)
    if first < len(times) and times[first] == horizon:
        first += 1
    overflow = len(times) - first - MAX_SAMPLES
    if overflow > 0:
        first += overflow
    kept = times[first:] if first else times
    return Window(
        kept,
        values[first:] if first else values,
        failure,
        overflow > 0 or (truncated and len(kept) >= MAX_SAMPLES),
    )


def fail(window: Window, failure: MetricFailure) -> Window:
    """The window with a failed read noted, unless a newer sample or failure is already known."""
    if window.times and window.times[-1] > failure.at:
        return window
    if window.failure and window.failure.at > failure.at:
        return window
    return Window(window.times, window.values, failure, window.truncated)


def observe(window: Window, sample: MetricSample | MetricFailure, spec: WindowSpec, *, now: float) -> Window:
    """The window after one report about its metric; bad samples become failures with their reason.

    A failure of the future counts as one of now, else it would outlast every sample until then.
    """
    if isinstance(sample, MetricFailure):
        at = _past(sample.at, now)
        return fail(window, sample if at == sample.at else structs.replace(sample, at=at))
    problem = check_sample(sample, spec, now=now)
    if problem:
        at = _past(sample.at, now)
        return fail(window, MetricFailure(sample.metric, at, problem, Reason.INVALID_METRIC))
    return insert(window, sample, spec)


def _past(at: float, now: float) -> float:
    return at if isfinite(at) and at <= now else now


class Summary(Struct, frozen=True, gc=False):
    """What a window says at one moment.

    `problem` is None when rules may act on it, else the reason they may not. `gap` alone forbids only
    scaling in. With no samples at all the statistics are NaN, so that no comparison can hold.
    """

    count: int
    average: float
    maximum: float
    minimum: float
    latest: float
    covered: float
    age: float
    gap: bool
    problem: Reason | None

    def statistic(self, name: str) -> float:
        """One of `average`, `maximum`, `minimum`, `latest`. Raises AttributeError for another name."""
        return getattr(self, name)  # type: ignore[no-any-return]


_NAN = float("nan")


def summarize(window: Window, spec: WindowSpec, *, now: float) -> Summary:
    """Statistics and quality of the window as of `now`."""
    times, values = window.times, window.values
    count = len(times)
    if not count:
        problem = window.failure.reason if window.failure else Reason.INCOMPLETE_WINDOW
        return Summary(0, _NAN, _NAN, _NAN, _NAN, 0.0, _NAN, gap=True, problem=problem)
    newest = times[-1]
    covered = newest - times[0] + spec.interval
    age = now - newest
    gap = count > 1 and max(map(sub, times[1:], times)) > GAP_INTERVALS * spec.interval
    highest, lowest = max(values), min(values)
    average = sum(values) / count
    if not lowest <= average <= highest:  # rounding must not lift a mean above its values
        average = highest if average > highest else lowest
    return Summary(
        count,
        average,
        highest,
        lowest,
        values[-1],
        covered,
        age,
        gap,
        _problem(window, spec, count, covered, age),
    )


def _problem(window: Window, spec: WindowSpec, count: int, covered: float, age: float) -> Reason | None:
    if window.failure is not None:
        return window.failure.reason
    if age > spec.stale_after:
        return Reason.STALE_METRIC
    if count < spec.min_samples or covered < spec.span - COVERAGE_SLACK * spec.interval or window.truncated:
        return Reason.INCOMPLETE_WINDOW
    return None
