"""Reads metrics and capacities through the ports; what cannot be read becomes a failure that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from scaling.config.policy_file import Config
from scaling.model import Capacity, Effect, MetricFailure, MetricSample, MetricsReport, Reason
from scaling.ports import CollectError, Collector, Reading, Scaler, ScalerError
from scaling.rules.answers import MOST
from scaling.schedules.timetable import timetable
from tidemark.foundation.gathering import NoAnswer
from tidemark.foundation.log.tail import Line
from tidemark.foundation.sanitize import describe_error, sanitize_line
from tidemark.foundation.wording import number_text

READ_DEADLINE = 20.0
"""Seconds one read of a metric or a capacity may take before it counts as failed."""

LONGEST_ROUND = 15.0
"""Seconds after which a tick goes on with what answered; below the deadline of a read, so that one that hangs is
recognised by its silence.
"""

SHORTEST_ROUND = 5.0
"""Seconds a round lasts if need be, where half of the schedule's interval is less: opening a client alone takes one or two."""

ALLOWED_KEPT = 1_000
"""Values a platform may allow: 24 KB of a target's row. App Service and Event Hubs allow a few dozen."""

MOST_COUNTER = 2**53
"""Numbers that name a counter are stored as floats, which are exact below this."""

MAX_MESSAGE = 300
"""Characters kept of a failure's message: the failures of 90 metrics must fit into one queue message."""


class MetricSource(Struct, frozen=True):
    """Where one metric of one target comes from: which collector, and which count of its reading. `counter`: it only grows;
    `fingerprint`: of what it measures.
    """

    target: str
    metric: str
    entity: str
    count: str
    counter: bool = False
    fingerprint: str = ""


def endpoint_of(key: str, port: object) -> str:
    """What may hold up this collector or scaler together with others: its `endpoint`, where it has one."""
    return str(getattr(port, "endpoint", key))


async def read_metrics(collector: Collector, now: float) -> Reading | CollectError:
    """A reading, or why there is none. A collector's own bug is a failed read, not the end of the tick."""
    try:
        async with asyncio.timeout(READ_DEADLINE):
            reading = await collector.collect(now=now)
        if not isinstance(reading, Reading) or not isinstance(reading.values, Mapping):
            return CollectError(f"the collector returned {reading!r}, which is not a reading")
    except CollectError as error:
        return error
    except TimeoutError:
        return CollectError(f"no answer within {READ_DEADLINE:g} s")
    except Exception as error:  # user-written collectors may raise anything
        return CollectError(describe_error(error))
    return reading


async def read_capacity(scaler: Scaler, target: str, now: float) -> Capacity | str:
    """The capacity, or why it could not be read."""
    try:
        async with asyncio.timeout(READ_DEADLINE):
            capacity = await scaler.current(target, now=now)
        if not _is_capacity(capacity):
            return _short(f"the scaler returned {capacity!r}, which is not a capacity")
    except ScalerError as error:
        return _short(str(error))
    except TimeoutError:
        return f"no answer within {READ_DEADLINE:g} s"
    except Exception as error:  # user-written scalers may raise anything
        return _short(describe_error(error))
    return capacity


def _is_capacity(answer: object) -> bool:
    """Whether it can travel and be stored: the fields of a user's capacity may be anything."""
    if not isinstance(answer, Capacity) or not _is_number(answer.at) or len(answer.allowed) > ALLOWED_KEPT:
        return False
    msgspec.convert(msgspec.to_builtins(answer), Capacity)  # raises, which is logged
    counts = (
        answer.current,
        answer.floor,
        answer.ceiling or 0,
        answer.ready or 0,
        answer.step,
        *answer.allowed,
    )
    named = len(answer.held_by or "") <= MAX_MESSAGE and len(answer.unknown_state) <= MAX_MESSAGE
    return answer.current >= 0 and named and all(abs(count) <= MOST for count in counts)


def checked_effect(returned: Effect) -> Effect:
    """What a scaler says became of an action, if it can be stored. Raises ValueError or TypeError where it cannot."""
    if not isinstance(returned, Effect):
        raise TypeError(f"the scaler returned {returned!r}"[:MAX_MESSAGE] + ", which is not an effect")
    effect = msgspec.convert(msgspec.to_builtins(returned), Effect)
    if effect.reached is not None and not 0 <= effect.reached <= MOST:
        raise ValueError(f"the scaler says that {effect.reached} was reached; 0 to {MOST} is accepted")
    return msgspec.structs.replace(effect, detail=_short(effect.detail))


def make_report(
    target: str,
    now: float,
    sources: Iterable[MetricSource],
    readings: Mapping[str, Reading | CollectError | NoAnswer],
    capacity: Capacity | str | NoAnswer,
) -> MetricsReport:
    """One target's share of a tick."""
    sources = tuple(sources)
    observed = [_observed(source, readings[source.entity], now) for source in sources]
    if isinstance(capacity, NoAnswer):
        capacity = _short(capacity.why)
    known, error = (capacity, None) if isinstance(capacity, Capacity) else (None, capacity)
    samples = tuple(item for item in observed if isinstance(item, MetricSample))
    failures = tuple(item for item in observed if isinstance(item, MetricFailure))
    fingerprints = {source.metric: source.fingerprint for source in sources if source.fingerprint}
    return MetricsReport(target, now, samples, failures, known, error, fingerprints)


def _observed(
    source: MetricSource, reading: Reading | CollectError | NoAnswer, now: float
) -> MetricSample | MetricFailure:
    """What of a reading cannot be used is a failure of this metric, not of the others: its values are a user's."""
    if isinstance(reading, NoAnswer):
        return MetricFailure(source.metric, now, _short(reading.why))
    try:
        if isinstance(reading, CollectError):
            reason = reading.reason if isinstance(reading.reason, Reason) else Reason.COLLECT_FAILED
            return MetricFailure(source.metric, now, _short(str(reading)), reason)
        return _sample(source, reading, now)
    except Exception as error:  # a mapping, a number, an error of the user's own may raise anything
        return MetricFailure(
            source.metric, now, _short(f"the reading cannot be used: {describe_error(error)}")
        )


def _sample(source: MetricSource, reading: Reading, now: float) -> MetricSample | MetricFailure:
    """NaN and infinity do not travel in JSON, so they become failures here, not in the window."""
    if source.count not in reading.values:
        text = reading.unknown.get(source.count) or (
            f"the reading has no '{source.count}'; it has {', '.join(map(str, reading.values))}"
        )
        return MetricFailure(source.metric, now, _short(text))
    value, at = reading.values[source.count], reading.at
    if not _is_number(value) or not _is_number(at):
        text = f"found {source.count} {value!r} at {at!r}; a finite number at a time is accepted"
        return MetricFailure(source.metric, now, _short(text), Reason.INVALID_METRIC)
    counter = reading.counters.get(source.count)
    if counter is None:
        counter = 0 if source.counter else None
    elif isinstance(counter, bool) or not isinstance(counter, int) or not 0 <= counter < MOST_COUNTER:
        text = (
            f"found the counter {str(counter)[:40]} of {source.count}; a whole number below 2**53 is accepted"
        )
        return MetricFailure(source.metric, now, _short(text), Reason.INVALID_METRIC)
    return MetricSample(source.metric, float(at), float(value), counter)


def _short(text: str) -> str:
    """From here it goes into a queue, tables, logs and pages; a lone surrogate could not."""
    return sanitize_line(text.encode("utf-8", "replace").decode())[:MAX_MESSAGE]


def _is_number(value: object) -> bool:
    """NaN and infinity fail the comparison."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def seconds_to_next(config: Config, target: str, now: float) -> float:
    """Seconds until the target is read again: its interval, or the pause of an uneven schedule, such as a night."""
    policy = config.policies[target]
    every = policy.interval or config.interval
    window = next(iter(policy.windows.values()), None)
    if window is None or not window.schedule:
        return every
    return max(every, timetable(window.schedule, window.time_zone).seconds_to_next(now))


def report_line(report: MetricsReport, interval: float | None = None) -> Line:
    """The one line of a tick; `interval` is the seconds to the target's next one."""
    values = [
        f"{s.metric} {number_text(s.value)}" + (" in all" if s.counter is not None else "")
        for s in report.samples
    ]
    values += [
        f"{f.metric} {'disabled' if f.reason is Reason.ENTITY_DISABLED else 'unknown'}"
        for f in report.failures
    ]
    capacity = report.capacity
    known = "unknown" if capacity is None else "as advised" if capacity.advised else str(capacity.current)
    values.append(f"capacity {known}")
    fields = {
        "target": report.target,
        "at": report.at,
        "metrics": {sample.metric: sample.value for sample in report.samples if sample.counter is None},
        "failures": msgspec.to_builtins(report.failures) or None,
        "current": capacity.current if capacity and not capacity.advised else None,
        "ready": capacity.ready if capacity else None,
        "held_by": capacity.held_by if capacity else None,
        "capacity_error": report.capacity_error,
        "interval": interval,
    }
    return Line(f"collector {report.target}: {', '.join(values)}", "report", fields)
