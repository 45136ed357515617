"""Event-time windows over the samples of one metric. Pure.

A window is complete or it says why not. Samples count at the time they were taken, not when they arrive:
late ones are inserted at their time, duplicates are dropped, and a missing one leaves a gap. Each sample
stands for one collection interval, so ten samples a minute apart cover ten minutes, and five samples over
four minutes do not. Where the collector's schedule is uneven, its own times say which samples are missing.

A gap makes scaling in impossible, unless it is within the metric's tolerance: then scaling in has to be right
also if each missing sample was the highest of its window, or the lowest (`with_missing`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import pairwise
from math import isfinite
from operator import sub

from msgspec import Struct, structs

from scaling.increases import Readings, increases
from scaling.model import MetricFailure, MetricSample, Reason
from scaling.schedules.timetable import timetable
from tidemark.foundation.wording import count_text, duration_text

MAX_SAMPLES = 20_000
"""Samples kept per window. Chosen: two weeks of one a minute, 320 KB of the row of 1 MiB."""

MAX_TARGET_SAMPLES = 30_000
"""Samples the windows of one target may hold by configuration, for they share one table row of 1 MiB with
the state. 480 KB of samples, 16 bytes each, leave 500 KB: 115 KB for 2,000 recommendations, up to 300 KB
for the failures of one report (24 Ki characters of two bytes each, as UTF-16 of `\\uXXXX`), the rest for the
last decision.
"""

GAP_INTERVALS = 1.5
"""Two samples further apart than this many intervals have a missing one between them: half an interval either way is the
jitter of `COVERAGE_SLACK`."""

STALE_INTERVALS = 3.0
"""Default age, in intervals, after which the newest sample is no longer evidence of the present."""

MAX_VALUE = 1e15
"""Largest value believed. Above about 9e15 a float no longer counts units, and sums could overflow."""

COVERAGE_SLACK = 0.5
"""Share of one interval by which the covered span may fall short, and a sample may be off its time: timers
fire with jitter. Chosen: half, so that a sample belongs to one interval.
"""

CLOCK_TOLERANCE = 300.0
"""Seconds by which clocks may differ. A report that is further ahead is dropped, for it would outrank every true one until
then; and so is what is remembered from further ahead, which a clock that was put right since has left.
"""


class WindowSpec(Struct, frozen=True):
    """How one metric is windowed. All durations in seconds.

    `interval` is the (smallest) time between collector ticks, or what a sample counts where that is longer; `delay` is how old
    samples are when they are read, at least: so much older they may be before they are stale. `span` the length of the window, `min_samples`
    the least number of samples a rule may act on, `max_age` the age at which the newest sample is stale.
    `schedule` is the collector's NCRONTAB pattern where its ticks are not all `interval` apart, in `time_zone`.
    Of the samples of one window `missing_allowed` may be missing, at most `missing_in_a_row` one after the other.
    So many newest reads as `failures_allowed` may have failed before the metric counts as missing. While it does, rules
    see `default` in its place, if there is one. Neither ever lets anything be scaled in.
    """

    span: float
    interval: float
    min_samples: int = 1
    max_age: float = 0.0
    schedule: str = ""
    time_zone: str = "UTC"
    missing_allowed: int = 0
    missing_in_a_row: int = 1
    failures_allowed: int = 0
    default: float | None = None
    delay: float = 0.0

    @property
    def stale_after(self) -> float:
        return (self.max_age or max(STALE_INTERVALS * self.interval, 1.0)) + self.delay


class Origin(Struct, frozen=True):
    """What the samples of a window measure, as a fingerprint (`scaling.fingerprint`); empty where that is not known.

    Where the metric measured something else before, `former` is the fingerprint of that, and `since` the time of the first report
    after it.
    """

    fingerprint: str = ""
    since: float | None = None
    former: str = ""


UNKNOWN_ORIGIN = Origin()


class Window(Struct, frozen=True):
    """Samples of one metric, ascending by time, none older than the span; `failure` is the newest failed
    read, kept until a newer sample arrives. `truncated` is set when samples had to be dropped to fit.
    Of a counter the samples are its increases, and `readings` what they follow from. `origin` is what all of them measure.
    """

    times: list[float] = []
    values: list[float] = []
    failure: MetricFailure | None = None
    truncated: bool = False
    readings: Readings | None = None
    origin: Origin = UNKNOWN_ORIGIN


EMPTY = Window()

NO_WINDOWS: Mapping[str, Window] = {}
"""Of a target of which nothing was read yet."""


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
    if sample.at > _latest(spec, now):
        return f"sample is {sample.at - now:.0f} s in the future"
    return None


def _latest(spec: WindowSpec, now: float) -> float:
    return now + max(spec.interval, 1.0)


def insert(window: Window, sample: MetricSample, spec: WindowSpec, *, read_at: float | None = None) -> Window:
    """The window with a (checked) sample at its time. A second sample of the same time changes nothing. A read at `read_at`,
    which may be later than the sample, ends earlier failures.
    """
    times, values = window.times, window.values
    read_at = sample.at if read_at is None else max(read_at, sample.at)
    failure = window.failure if window.failure and window.failure.at >= read_at else None
    if sample.counter is not None:
        readings = (window.readings or Readings()).with_reading(sample, spec.span, MAX_SAMPLES + 1)
        times, values = increases(readings, spec.interval)
        truncated = len(readings.times) > MAX_SAMPLES and readings.times[0] > readings.times[-1] - spec.span
        return Window(times, values, failure, truncated, readings, window.origin)
    if not times or sample.at > times[-1]:
        times, values = [*times, sample.at], [*values, sample.value]
    elif times[position := bisect_left(times, sample.at)] != sample.at:
        times = [*times[:position], sample.at, *times[position:]]
        values = [*values[:position], sample.value, *values[position:]]
    first = bisect_right(times, times[-1] - spec.span)  # a sample as old as the span is out
    overflow = max(len(times) - first - MAX_SAMPLES, 0)
    first += overflow
    truncated = overflow > 0 or (window.truncated and len(times) - first >= MAX_SAMPLES)
    if first:
        times, values = times[first:], values[first:]
    return Window(times, values, failure, truncated, origin=window.origin)


def fail(window: Window, failure: MetricFailure) -> Window:
    """The window with a failed read noted, unless a newer sample or failure is already known."""
    known = window.readings.times if window.readings else window.times
    if known and known[-1] > failure.at:
        return window
    if window.failure and window.failure.at > failure.at:
        return window
    return structs.replace(window, failure=failure)


def observe(
    window: Window,
    sample: MetricSample | MetricFailure,
    spec: WindowSpec,
    *,
    now: float,
    read_at: float | None = None,
) -> Window:
    """The window after one report about its metric; bad samples become failures with their reason.

    A failure of the future counts as one of now, else it would outlast every sample until then. What a clock that ran
    ahead and was put right has left is dropped: beside it every true sample would be older than the span.
    """
    window = _until(window, _latest(spec, now))
    if isinstance(sample, MetricFailure):
        at = _past(sample.at, now)
        return fail(window, sample if at == sample.at else structs.replace(sample, at=at))
    problem = check_sample(sample, spec, now=now)
    if problem:
        at = _past(sample.at, now)
        return fail(window, MetricFailure(sample.metric, at, problem, Reason.INVALID_METRIC))
    return insert(window, sample, spec, read_at=read_at)


def _until(window: Window, latest: float) -> Window:
    """Without what is later."""
    times, failure, readings = window.times, window.failure, window.readings
    if failure is not None and failure.at > latest:
        failure = None
    if readings is not None:
        readings = readings.until(latest)
    if (failure, readings) == (window.failure, window.readings) and (not times or times[-1] <= latest):
        return window
    kept = bisect_right(times, latest)
    return Window(times[:kept], window.values[:kept], failure, window.truncated, readings, window.origin)


def _past(at: float, now: float) -> float:
    return at if isfinite(at) and at <= now else now


class Summary(Struct, frozen=True, gc=False):
    """What a window says at one moment.

    `problem` is None when rules may act on it, else the reason they may not. `gap` alone forbids only
    scaling in; `missing` samples without a gap are within the metric's tolerance. With no samples at all the
    statistics are NaN, so that no comparison can hold. `lacking` is why there is a gap where that is not a sample missing
    within the window: the newest reads failed, or these are not samples but the metric's default.
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
    missing: int = 0
    lacking: Reason | None = None

    def statistic(self, name: str) -> float:
        """One of `average`, `maximum`, `minimum`, `latest`. Raises AttributeError for another name."""
        return getattr(self, name)  # type: ignore[no-any-return]


_NAN = float("nan")


def summarize(window: Window, spec: WindowSpec, *, now: float) -> Summary:
    times, values = window.times, window.values
    count = len(times)
    if not count:
        why = window.failure.reason if window.failure else Reason.INCOMPLETE_WINDOW
        return Summary(0, _NAN, _NAN, _NAN, _NAN, 0.0, _NAN, gap=True, problem=why)
    newest = times[-1]
    covered = newest - times[0] + spec.interval
    if spec.schedule:
        read = [at + spec.delay for at in times] if spec.delay else times
        ahead, runs = _missing_by_schedule(read, spec)
        covered = covered if ahead else max(covered, spec.span)
    else:
        ahead, runs = _missing_ahead(covered, spec), _missing_between(times, spec)
    missing = ahead + sum(runs)
    longest = max(ahead, *runs) if runs else ahead
    tolerated = missing <= spec.missing_allowed and longest <= spec.missing_in_a_row
    age = now - newest
    highest, lowest = max(values), min(values)
    average = sum(values) / count
    if not lowest <= average <= highest:  # rounding must not lift a mean above its values
        average = highest if average > highest else lowest
    lacking = _tolerated_failure(window, spec)
    gap = (bool(runs) and not tolerated) or lacking is not None
    problem = _problem(window, spec, count, age, short=ahead > 0 and not tolerated)
    return Summary(count, average, highest, lowest, values[-1], covered, age, gap, problem, missing, lacking)


def _tolerated_failure(window: Window, spec: WindowSpec) -> Reason | None:
    """The reason of the newest failure while no more reads in a row than allowed can have failed since the newest sample.

    Only of reads that failed: what a service did answer (a disabled entity, a number that is none) does not change by waiting.
    """
    failure = window.failure
    if failure is None or failure.reason is not Reason.COLLECT_FAILED or not spec.failures_allowed:
        return None
    since = failure.at - window.times[-1] - spec.delay
    return failure.reason if since <= (spec.failures_allowed + COVERAGE_SLACK) * spec.interval else None


def or_default(summary: Summary, spec: WindowSpec) -> Summary:
    """The same, or the metric's default while it is missing. A disabled entity is not missing, nor is a window that fills."""
    problem, value = summary.problem, spec.default
    filling = problem is Reason.INCOMPLETE_WINDOW and summary.count > 0
    if problem is None or value is None or filling or problem is Reason.ENTITY_DISABLED:
        return summary
    return Summary(0, value, value, value, value, 0.0, summary.age, gap=True, problem=None, lacking=problem)


def _problem(window: Window, spec: WindowSpec, count: int, age: float, *, short: bool) -> Reason | None:
    failure = window.failure
    if failure is not None and _tolerated_failure(window, spec) is None:
        return failure.reason
    if failure is not None and not spec.max_age:
        age -= failure.at - window.times[-1]  # somebody did read it since
    if age > spec.stale_after:
        return Reason.STALE_METRIC
    if count < spec.min_samples or short or window.truncated:
        return Reason.INCOMPLETE_WINDOW
    return None


def filling_text(summary: Summary, spec: WindowSpec) -> str | None:
    """How far a window has filled, `3 of 5 min`, while that is all it lacks; else None."""
    if summary.problem is not Reason.INCOMPLETE_WINDOW:
        return None
    if summary.covered + COVERAGE_SLACK * spec.interval < spec.span:
        minutes = spec.span < 3600 and not spec.span % 60
        covered = f"{summary.covered / 60:.2g}" if minutes else duration_text(summary.covered)
        return f"{covered} of {duration_text(spec.span)}"
    if summary.count < spec.min_samples:
        return f"{summary.count} of {count_text(spec.min_samples, 'sample')}"
    return None


def with_missing(summary: Summary, high: int) -> Summary:
    """The same, so many of the missing samples being as high as the highest there is, the others as low as the lowest."""
    if not summary.missing or not summary.count:
        return summary
    low = summary.missing - high
    total = summary.average * summary.count + summary.maximum * high + summary.minimum * low
    average = total / (summary.count + summary.missing)
    return structs.replace(summary, average=min(max(average, summary.minimum), summary.maximum))


# -- missing samples: before the first one, and between each two


def samples_missing(earlier: float, later: float, spec: WindowSpec) -> int:
    """How many samples are missing between two."""
    times = [earlier, later]
    if later <= earlier:
        return 0
    return sum(_missing_by_schedule(times, spec)[1] if spec.schedule else _missing_between(times, spec))


def _missing_ahead(covered: float, spec: WindowSpec) -> int:
    if covered >= spec.span - COVERAGE_SLACK * spec.interval:
        return 0
    return max(_intervals(spec.span - covered, spec), 1)


def _missing_between(times: list[float], spec: WindowSpec) -> list[int]:
    """The lengths of all gaps."""
    limit = GAP_INTERVALS * spec.interval
    if len(times) < 2 or max(map(sub, times[1:], times)) <= limit:
        return []
    apart = (later - earlier for earlier, later in pairwise(times))
    return [max(_intervals(seconds, spec) - 1, 1) for seconds in apart if seconds > limit]


def _intervals(seconds: float, spec: WindowSpec) -> int:
    return round(min(seconds / spec.interval, MAX_SAMPLES))


def _missing_by_schedule(times: list[float], spec: WindowSpec) -> tuple[int, list[int]]:
    """The same for both, by the times of the schedule, each sample being half the smallest interval off at most."""
    slack = COVERAGE_SLACK * spec.interval
    try:
        due = timetable(spec.schedule, spec.time_zone).due
        ahead = due(times[-1] - spec.span + slack, times[0] - slack)
        between = [
            due(earlier + slack, later - slack)
            for earlier, later in pairwise(times)
            if later - earlier > spec.interval
        ]
    except (ArithmeticError, ValueError, OSError):
        return 1, [len(times)]  # times no calendar has: nothing is known of what is missing
    return ahead, [length for length in between if length]
