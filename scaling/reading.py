"""Reads metrics and capacities through the ports; what cannot be read becomes a failure that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from scaling import explain
from scaling.model import Capacity, MetricFailure, MetricSample, MetricsReport, Reason
from scaling.ports import CollectError, Collector, Reading, Scaler, ScalerError

READ_DEADLINE = 30.0
"""Seconds one read of a metric or a capacity may take before it counts as failed."""

MAX_MESSAGE = 300
"""Characters kept of a failure's message: the failures of 90 metrics must fit into one queue message."""


CONCURRENT_READS = 32

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class MetricSource(Struct, frozen=True):
    """Where one metric of one target comes from: which collector, and which count of its reading."""

    target: str
    metric: str
    entity: str
    count: str


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
        return CollectError(f"no answer within {READ_DEADLINE:.0f} s")
    except Exception as error:  # noqa: BLE001 - user-written collectors may raise anything
        return CollectError(f"{type(error).__name__}: {error}")
    return reading


async def read_capacity(scaler: Scaler, target: str, now: float) -> Capacity | str:
    """The capacity, or why it could not be read."""
    try:
        async with asyncio.timeout(READ_DEADLINE):
            capacity = await scaler.current(target, now=now)
        if not isinstance(capacity, Capacity) or type(capacity.current) is not int or capacity.current < 0:
            return f"the scaler returned {capacity!r}, which is not a capacity"
    except ScalerError as error:
        return str(error)[:MAX_MESSAGE]
    except TimeoutError:
        return f"no answer within {READ_DEADLINE:.0f} s"
    except Exception as error:  # noqa: BLE001 - user-written scalers may raise anything
        return f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
    return capacity


def make_report(
    target: str,
    now: float,
    sources: Iterable[MetricSource],
    readings: Mapping[str, Reading | CollectError],
    capacity: Capacity | str,
) -> MetricsReport:
    """One target's share of a tick."""
    found = [_observed(source, readings[source.entity], now) for source in sources]
    known, error = (capacity, None) if isinstance(capacity, Capacity) else (None, capacity)
    return MetricsReport(
        target,
        now,
        tuple(item for item in found if isinstance(item, MetricSample)),
        tuple(item for item in found if isinstance(item, MetricFailure)),
        known,
        error,
    )


def _observed(
    source: MetricSource, reading: Reading | CollectError, now: float
) -> MetricSample | MetricFailure:
    """NaN and infinity do not travel in JSON, so they become failures here, not in the window."""
    if isinstance(reading, CollectError):
        return MetricFailure(source.metric, now, str(reading)[:MAX_MESSAGE], reading.reason)
    if source.count not in reading.values:
        text = f"the reading has no '{source.count}'; it has {', '.join(map(str, reading.values))}"
        return MetricFailure(source.metric, now, text[:MAX_MESSAGE])
    value, at = reading.values[source.count], reading.at
    if not _is_number(value) or not _is_number(at):
        text = f"found {source.count} {value!r} at {at!r}; a finite number at a time is accepted"
        return MetricFailure(source.metric, now, text[:MAX_MESSAGE], Reason.INVALID_METRIC)
    return MetricSample(source.metric, float(at), float(value))


def _is_number(value: object) -> bool:
    """NaN and infinity fail the comparison."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def report_line(report: MetricsReport) -> str:
    """The one readable line of a tick."""
    values = [f"{s.metric} {explain.number_text(s.value)}" for s in report.samples]
    values += [f"{f.metric} unknown" for f in report.failures]
    values.append(f"capacity {report.capacity.current if report.capacity else 'unknown'}")
    return f"collector {report.target}: {', '.join(values)}"


async def each(
    items: Mapping[str, _Item], work: Callable[[str, _Item], Awaitable[_Result]]
) -> dict[str, _Result]:
    """`work` on every item, at most CONCURRENT_READS at a time. The first error cancels the rest."""
    gate = asyncio.Semaphore(CONCURRENT_READS)

    async def one(key: str, item: _Item) -> _Result:
        async with gate:
            return await work(key, item)

    async with asyncio.TaskGroup() as group:
        tasks = {key: group.create_task(one(key, item)) for key, item in items.items()}
    return {key: task.result() for key, task in tasks.items()}
