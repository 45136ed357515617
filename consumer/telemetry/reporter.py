"""Reports on an instance: a log line, a row in Table Storage, metrics, and records for later analysis.

Reporting must not stop or slow the consumer. A report that fails is logged once per outage, and the next one is tried.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from consumer.core.statistics import PipelineStatistics, Totals
from consumer.leasing.start_position import rerouted_text
from consumer.model import Checkpoint, Claim
from consumer.telemetry import interval as intervals
from consumer.telemetry.landing import Landing
from consumer.telemetry.metrics import ConsumerMetrics
from consumer.telemetry.rate_orders import RateFollower, RateOrderError
from consumer.telemetry.records import (
    Identity,
    checkpoint_record,
    consumer_stats,
    interval_record,
    line_fields,
)
from consumer.telemetry.stats_store import KEPT, TableStatsStore
from tidemark.foundation.consumer_stats import ConsumerStats
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.log.tail import Line, log_line

log = logging.getLogger("tidemark.consumer")

CALL_TIMEOUT = 30.0
"""Seconds one round of calls to Table Storage may take; the next one begins after it."""

LONGEST_PROBLEM = 2_000
"""Characters of a row's `problem`, and of its `notice`."""

EXPECTED = (StoreUnavailableError, RateOrderError, TimeoutError)


class Outage:
    """Logs the first failure of an outage, and its end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None

    async def watch(self, work: Awaitable[None], *, within: float) -> bool:
        """Awaits `work` for at most `within` seconds; True if it succeeded. Cancellation passes through."""
        try:
            async with asyncio.timeout(within):
                await work
        except Exception as error:  # telemetry ends nothing, whatever its stores raise
            if self._since is None:
                self._since = time.monotonic()
                reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
                unexpected = None if isinstance(error, EXPECTED) else error
                log.warning("%s: %s; tried again until it works", self._what, reason, exc_info=unexpected)
            return False
        if self._since is not None:
            log.info("%s: works again after %.0f s", self._what, time.monotonic() - self._since)
            self._since = None
        return True


@dataclass(eq=False)
class Reporter:
    """Reports on one instance until it is closed, on one event loop. It closes the stores that it is given; a store that is
    None gets no reports.
    """

    identity: Identity
    statistics: Callable[[], PipelineStatistics | None]
    """Returns None as long as there are no statistics."""
    every: float = 5.0
    stats: TableStatsStore | None = None
    rates: RateFollower | None = None
    landing: Landing | None = None
    metrics: ConsumerMetrics | None = None
    clock: Callable[[], float] = time.time
    stopping: bool = False
    """Part of every report. Set it when the shutdown begins."""
    problem: str = ""
    """Why this instance has failed; part of its last row."""
    notices: dict[str, str] = field(default_factory=dict)
    """By subject, what an operator should know of this start; part of every row."""

    def __post_init__(self) -> None:
        self._rerouted: dict[str, int] = {}
        self._before = Totals()
        self._before_at = 0.0
        self._charge: float | None = None
        self._pruned = False
        self._writing = Outage("the row of this instance in table ConsumerStats")
        self._following = Outage("the rate order of this consumer in table ConsumerControls")
        self._loop_task: asyncio.Task[None] | None = None
        self._remote_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to report; the first interval begins now."""
        self.open()
        self._loop_task = asyncio.create_task(self._run(), name="telemetry")

    def open(self) -> None:
        """For an owner that calls `report_if_due` itself, instead of `start`."""
        self._before_at = asyncio.get_running_loop().time()
        if self.landing is not None:
            self.landing.start()

    def report_if_due(self) -> None:
        """Reports on the time since the last report, once every interval at most."""
        if asyncio.get_running_loop().time() >= self._before_at + self.every:
            self._report_now()

    def on_claim(self, claim: Claim) -> None:
        """A partition was claimed, whose routes may have been found changed at its position."""
        checkpoint = claim.checkpoint
        if checkpoint is not None and checkpoint.origin.rerouted == checkpoint.sequence_number:
            self._rerouted[claim.partition] = checkpoint.sequence_number
            self.notices["routes"] = rerouted_text(self._rerouted)

    def on_checkpoint(self, checkpoint: Checkpoint, left: int) -> None:
        """A checkpoint was saved; `left` events received of its partition are not settled."""
        where = "before the first event"
        if checkpoint.sequence_number >= 0:
            where = f"at sequence number {checkpoint.sequence_number} (offset {checkpoint.offset})"
        log.info("partition %s: checkpointed %s, leaving %d", checkpoint.partition, where, left)
        if self.landing is not None:
            self.landing.add(checkpoint_record(self.identity, checkpoint, left, at=self.clock()))

    async def aclose(self, deadline: float) -> None:
        """Makes the final report and closes the stores, until `deadline` (of the loop's clock)."""
        loop = asyncio.get_running_loop()
        self.stopping = True
        for task in (self._loop_task, self._remote_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        last: list[Awaitable[Any]] = []
        row = self.report()
        if row is not None and self.stats is not None:
            last.append(self._writing.watch(self.stats.put(row), within=max(0.1, deadline - loop.time())))
        last += [target.aclose(deadline) for target in (self.landing, self.metrics) if target is not None]
        await asyncio.gather(*last)
        for store in (self.stats, self.rates):
            if store is not None:
                await store.aclose()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            at = max(at + self.every, loop.time())  # a loop that was blocked does not catch up in a burst
            await asyncio.sleep(at - loop.time())
            self._report_now()

    def _report_now(self) -> None:
        try:
            row = self.report()
        except Exception:
            log.exception("reporting failed")
            return
        if row is not None and (self._remote_task is None or self._remote_task.done()):
            self._remote_task = asyncio.create_task(self._remote(row), name="telemetry row")

    def report(self) -> ConsumerStats | None:
        """Reports on the time since the last report to log, metrics and files; returns the row that is to be written.

        Returns None as long as there are no statistics.
        """
        statistics = self.statistics()
        if statistics is None and self.problem:  # it failed before it began, which its row says
            statistics = PipelineStatistics.of_nothing()
        if statistics is None:
            return None
        at = asyncio.get_running_loop().time()
        interval = intervals.between(self._before, statistics.totals, at - self._before_at)
        self._before, self._before_at = statistics.totals, at
        now = self.clock()
        fields = line_fields(self.identity, interval, statistics, at=now, stopping=self.stopping)
        line = Line(intervals.line(interval, statistics), "consumer", fields)
        log.info("%s", log_line(line))
        if self.metrics is not None:
            self.metrics.record(interval, statistics)
        if self.landing is not None:
            self.landing.add(
                interval_record(self.identity, interval, statistics, at=now, stopping=self.stopping)
            )
        row = consumer_stats(
            self.identity, interval, statistics, at=now, last_charge=self._charge, stopping=self.stopping
        )
        notice = "; ".join(filter(None, [intervals.problems_text(statistics), *self.notices.values()]))
        row = structs.replace(row, problem=self.problem[:LONGEST_PROBLEM], notice=notice[:LONGEST_PROBLEM])
        self._charge = row.last_ru_per_record
        return row

    async def _remote(self, row: ConsumerStats) -> None:
        calls = []
        if self.stats is not None:
            calls.append(self._writing.watch(self._put(self.stats, row), within=CALL_TIMEOUT))
        if self.rates is not None:
            calls.append(self._following.watch(self.rates.poll(), within=CALL_TIMEOUT))
        await asyncio.gather(*calls)

    async def _put(self, stats: TableStatsStore, row: ConsumerStats) -> None:
        await stats.put(row)
        if not self._pruned:
            self._pruned = True
            await stats.prune(row.consumer, self.clock() - KEPT)
