"""Snapshots of a pipeline. Counters start with the process."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from consumer.model import WriteResult

_MOST_REASONS = 50
"""Reasons for dropping that are counted apart: a reason with an id in it must not fill the memory."""


class Totals(Struct):
    """Counters. `attempts` counts every send of a record, retries too; `request_units` everything that was charged."""

    received: int = 0
    skipped: int = 0
    """Events received again that were settled already: after a restart, or delivered twice."""
    expired: int = 0
    """Events that retention removed before they were received: lost to this consumer."""
    attempts: int = 0
    written: int = 0
    retried: int = 0
    throttled: int = 0
    """Refused for lack of throughput (429); those of `capped` are not among them."""
    capped: int = 0
    """Refused by the limit of a throughput bucket (429, sub-status 3212)."""
    dead_letters: int = 0
    checkpoints: int = 0
    checkpoints_failed: int = 0
    request_units: float = 0.0
    written_units: float = 0.0
    """Request units of the writes that succeeded."""
    parked: int = 0
    """Events parked, to be tried again."""
    dropped: dict[str, int] = {}
    """By reason: events, or single documents of them, that were not to be written."""

    def count_written(self, results: Sequence[WriteResult]) -> int:
        """Counts results that are all written. Returns how many events in a row are poison then: none."""
        units = sum([result.request_units for result in results])
        self.attempts += len(results)
        self.written += len(results)
        self.request_units += units
        self.written_units += units
        return 0

    def count_dropped(self, reason: str) -> None:
        if reason not in self.dropped and len(self.dropped) >= _MOST_REASONS:
            reason = "other"
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class PartitionStatistics(Struct, frozen=True):
    """The numbers are sequence numbers; -1 means none."""

    partition: str
    epoch: int
    last_enqueued: int | None
    received: int
    low_water: int
    unsettled: int
    draining: bool
    parked: int = 0
    """Events that are parked now."""
    problem: str = ""
    """What holds up its parked events, and before they are known all of it."""

    @property
    def lag(self) -> int | None:
        """Events of the partition that are not settled.

        None while that is unknown: the hub has not reported its newest event, or a consumer without a checkpoint has
        not received any event yet.
        """
        if self.last_enqueued is None or (self.received < 0 <= self.last_enqueued):
            return None
        return max(0, self.last_enqueued - self.received) + self.unsettled


class PipelineStatistics(Struct, frozen=True):
    """`oldest_age` is seconds since the first attempt of the oldest event that was attempted and is not settled."""

    totals: Totals
    backlog_count: int
    backlog_bytes: int
    oldest_age: float
    in_flight_batches: int
    rate_limit: float | None
    paused: bool
    cause: str
    """The reason of the last retry."""
    concurrency: dict[str, int]
    """Batches allowed at a time, by lane."""
    partitions: tuple[PartitionStatistics, ...]
    pause_reason: str = ""
    """Why receiving is paused; '' while it is not."""
    due_at: float = math.inf
    """When the pipeline next does something by itself. In the past: it was not called in time."""
    request_unit_limit: float | None = None
    """Request units per second that may be charged; None means no limit."""
    rate_hubs_count: int = 0
    """How many hubs of the process share `rate_limit`; 0: it is of this one alone."""

    @property
    def parked_count(self) -> int:
        return sum(partition.parked for partition in self.partitions)

    @classmethod
    def of_nothing(cls) -> PipelineStatistics:
        """The statistics of a consumer that was stopped before it began."""
        return cls(Totals(), 0, 0, 0.0, 0, None, paused=False, cause="", concurrency={}, partitions=())
