"""Turns an interval of an instance into a row of `ConsumerStats`, a telemetry record, and the fields of a log line. Pure.

Telemetry records are JSON, one a line, of two kinds that share their first columns. `at` is epoch seconds.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct, structs

from consumer.core.statistics import PartitionStatistics, PipelineStatistics
from consumer.model import NOTHING_SETTLED, Checkpoint
from consumer.telemetry.interval import Interval
from tidemark.foundation.consumer_stats import ConsumerStats, PartitionStats

_T = TypeVar("_T", bound=Struct)


class Identity(Struct, frozen=True):
    """The instance that reports. `instance` is unique: no two processes ever share it."""

    consumer: str
    instance: str
    hub: str
    consumer_group: str


class PartitionRecord(Struct, frozen=True):
    """As `tidemark.foundation.consumer_stats.PartitionStats`; null means unknown."""

    partition: str
    last_enqueued: int | None
    received: int | None
    low_water: int | None
    lag: int | None
    in_flight: int


class _Record(Struct, frozen=True, tag_field="kind", kw_only=True):
    """The columns that all kinds share."""

    at: float
    consumer: str
    instance: str
    hub: str
    consumer_group: str


class IntervalRecord(_Record, frozen=True, tag="interval", kw_only=True):
    """The work of one instance in `seconds`, and its state at the end. Readers compute rates per second themselves."""

    seconds: float
    received: int
    written: int
    dead_letters: int
    retried: int
    attempts: int
    throttled: int
    checkpoints: int
    checkpoints_failed: int
    request_units: float
    written_units: float
    rate_limit: float | None
    backlog_count: int
    backlog_bytes: int
    oldest_age_s: float
    in_flight_batches: int
    paused: bool
    stopping: bool
    partitions: tuple[PartitionRecord, ...]
    dropped: int = 0
    """Missing in records of older versions, as `parked` is."""
    parked: int = 0


class CheckpointRecord(_Record, frozen=True, tag="checkpoint", kw_only=True):
    """A saved checkpoint; `left` events of the partition were received and not settled then."""

    partition: str
    sequence_number: int
    offset: str
    epoch: int
    left: int


def shared(kind: type[_T], *sources: Struct, **others: Any) -> _T:
    """A struct whose fields are copied by name from the sources, of which the last one wins, or given in `others`."""
    copied = {
        name: getattr(source, name)
        for source in sources
        for name in kind.__struct_fields__
        if hasattr(source, name)
    }
    return kind(**{**copied, **others})


def interval_record(
    identity: Identity, interval: Interval, statistics: PipelineStatistics, *, at: float, stopping: bool
) -> IntervalRecord:
    rounded = {
        name: round(getattr(interval, name), 3) for name in ("seconds", "request_units", "written_units")
    }
    return shared(
        IntervalRecord,
        identity,
        interval,
        statistics,
        **rounded,
        at=at,
        oldest_age_s=round(statistics.oldest_age, 3),
        stopping=stopping,
        dropped=interval.dropped_count,
        partitions=tuple(
            shared(PartitionRecord, _partition(partition)) for partition in statistics.partitions
        ),
    )


def checkpoint_record(
    identity: Identity, checkpoint: Checkpoint, left: int, *, at: float
) -> CheckpointRecord:
    return shared(CheckpointRecord, identity, checkpoint, left=left, at=at)


def consumer_stats(
    identity: Identity,
    interval: Interval,
    statistics: PipelineStatistics,
    *,
    at: float,
    last_charge: float | None,
    stopping: bool,
) -> ConsumerStats:
    """The instance's row. `last_charge` is the newest RU per record known before this interval."""
    totals, charge = statistics.totals, interval.request_units_per_record
    return shared(
        ConsumerStats,
        identity,
        interval,
        statistics,
        at=at,
        rate_limit=statistics.rate_limit or 0.0,
        ru_limit=statistics.request_unit_limit or 0.0,
        ru_per_record=charge,
        last_ru_per_record=last_charge if charge is None else charge,
        ru_per_s=interval.request_units_per_s,
        oldest_age_s=max(0.0, statistics.oldest_age),
        dead_letters_total=totals.dead_letters,
        dropped_total=sum(totals.dropped.values()),
        parked_count=statistics.parked_count,
        written_total=totals.written,
        failed_total=totals.dead_letters,
        retried_total=totals.retried,
        throttled_total=totals.throttled,
        lag=tuple(_partition(partition) for partition in statistics.partitions),
        stopping=stopping,
    )


_COUNTS = ("received", "written", "attempts", "retried", "throttled", "dead_letters", "expired")


def line_fields(
    identity: Identity, interval: Interval, statistics: PipelineStatistics, *, at: float, stopping: bool
) -> dict[str, Any]:
    """The fields of an interval's log line.

    Rates, levels and totals are named as in the HTTP API, counts of the interval as in telemetry records. `lag` is None
    while the lag of a partition is unknown.
    """
    lags, charge = [partition.lag for partition in statistics.partitions], interval.request_units_per_record
    return {
        **structs.asdict(identity),
        "at": round(at, 3),
        "seconds": round(interval.seconds, 3),
        **{name: getattr(interval, name) for name in _COUNTS},
        "dropped": interval.dropped_count,
        "request_units": round(interval.request_units, 3),
        "written_per_s": round(interval.written_per_s, 3),
        "throttled_share": round(interval.throttled_share, 5),
        "ru_per_s": round(interval.request_units_per_s, 3),
        "ru_per_record": None if charge is None else round(charge, 3),
        "rate_limit": statistics.rate_limit,
        "backlog_count": statistics.backlog_count,
        "oldest_age_s": round(statistics.oldest_age, 3),
        "partition_count": len(lags),
        "lag": None if None in lags else sum(lag for lag in lags if lag is not None),
        "dead_letters_total": statistics.totals.dead_letters,
        "paused": statistics.paused,
        "stopping": stopping,
    }


def _partition(state: PartitionStatistics) -> PartitionStats:
    numbers = {"received": _known(state.received), "low_water": _known(state.low_water)}
    return shared(PartitionStats, state, **numbers, in_flight=state.unsettled)


def _known(sequence_number: int) -> int | None:
    return None if sequence_number == NOTHING_SETTLED else sequence_number
