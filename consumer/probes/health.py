"""Whether a consumer is alive and ready, from what its event loop published last. Pure.

Liveness asks for a restart, which cures neither a hub nor a sink that is away. So it depends on this process only: on the beat of its
event loop, and on work that is due and not done. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from consumer.core.statistics import PartitionStatistics, PipelineStatistics
from consumer.telemetry.records import Identity

BEAT = 1.0
"""Seconds between two beats of the loop."""
STALLED = 30.0
"""Seconds without a beat after which the loop counts as blocked. The longest known turn of a healthy loop takes less than one."""
WATCHDOG = 300.0
"""Seconds for which the pipeline may leave undone what is due, and a call may go on beyond its own end (DriverSettings.call_timeout)."""


class Pulse(Struct, frozen=True):
    """What the loop published at a beat."""

    at: float
    waits_for: str = "the start"
    """Why this instance consumes nothing at the moment, as a person reads it; '' when it consumes or may."""
    statistics: PipelineStatistics | None = None
    overdue_since: float | None = None
    """Since when the pipeline leaves undone what is due."""
    unanswered_since: float | None = None
    """Since when batches are in flight and none of them ended."""
    call_timeout: float = 0.0
    errors: dict[str, str] = {}
    """The last error of receiving, by partition; only of partitions that it holds up."""
    stopping: bool = False


class Progress:
    """Watches from beat to beat whether a pipeline does what is due."""

    def __init__(self) -> None:
        self._overdue_since: float | None = None
        self._unanswered_since: float | None = None
        self._attempts = -1

    def note(self, statistics: PipelineStatistics, now: float) -> tuple[float | None, float | None]:
        """`overdue_since` and `unanswered_since` of a Pulse."""
        if statistics.due_at > now:
            self._overdue_since = None
        elif self._overdue_since is None:
            self._overdue_since = statistics.due_at
        attempts = statistics.totals.attempts
        if not statistics.in_flight_batches or attempts != self._attempts:
            self._unanswered_since = now if statistics.in_flight_batches else None
        self._attempts = attempts
        return self._overdue_since, self._unanswered_since


def why_dead(pulse: Pulse, now: float) -> str:
    """Why the process should be restarted; '' while it is alive."""
    silent = now - pulse.at
    if silent > STALLED:
        return f"the event loop is blocked: no beat for {silent:.0f} s"
    if pulse.overdue_since is not None and now - pulse.overdue_since > WATCHDOG:
        return f"the pipeline is stuck: what is due was not done for {now - pulse.overdue_since:.0f} s"
    if pulse.unanswered_since is not None and now - pulse.unanswered_since > pulse.call_timeout + WATCHDOG:
        return (
            f"the pipeline is stuck: no write ended for {now - pulse.unanswered_since:.0f} s, though each call ends after"
            f" {pulse.call_timeout:g} s"
        )
    return ""


def why_unready(pulse: Pulse, now: float) -> str:
    """Why this instance consumes nothing; '' when it is ready, also if others own all partitions."""
    return why_dead(pulse, now) or ("it is stopping" if pulse.stopping else pulse.waits_for)


def state_of(identity: Identity, pulse: Pulse, now: float) -> dict[str, Any]:
    """The state of the instance and of each of its partitions, for people: null is unknown."""
    statistics = pulse.statistics
    state: dict[str, Any] = {
        **structs.asdict(identity),
        "beat_age_s": round(max(0.0, now - pulse.at), 3),
        "live": not why_dead(pulse, now),
        "ready": not why_unready(pulse, now),
        "waits_for": why_unready(pulse, now) or None,
        "stopping": pulse.stopping,
        "partitions": [],
    }
    if statistics is None:
        return state
    state |= {
        "paused": statistics.pause_reason or None,
        "rate_limit": statistics.rate_limit,
        "rate_hubs_count": statistics.rate_hubs_count,
        "request_unit_limit": statistics.request_unit_limit,
        "backlog_count": statistics.backlog_count,
        "oldest_age_s": round(statistics.oldest_age, 3),
        "last_error": statistics.cause or None,
        "totals": structs.asdict(statistics.totals),
    }
    received = {partition.partition for partition in statistics.partitions}
    state["partitions"] = [
        _partition(partition, statistics, pulse.errors.get(partition.partition))
        for partition in statistics.partitions
    ] + [
        {"partition": name, "epoch": None, "last_error": error}
        for name, error in sorted(pulse.errors.items())
        if name not in received
    ]
    return state


def _partition(
    partition: PartitionStatistics, statistics: PipelineStatistics, error: str | None
) -> dict[str, Any]:
    paused = statistics.pause_reason or ("it is given up" if partition.draining else "")
    return {
        "partition": partition.partition,
        "epoch": partition.epoch,
        "low_water": partition.low_water,
        "received": partition.received,
        "last_enqueued": partition.last_enqueued,
        "lag": partition.lag,
        "unsettled": partition.unsettled,
        "parked": partition.parked,
        "paused": paused or None,
        "last_error": error or partition.problem or None,
    }
