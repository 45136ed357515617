"""All decisions from received events to saved checkpoints, without a clock and without I/O.

`handle` is the only way to change a pipeline. It takes an input (what happened) and returns effects (what is to be done).
The results of effects come back as further inputs. Invariants, checked by tests/support/consumer/pipeline_checks.py:

1. The low-water mark of a partition is below its lowest unsettled event.
2. An event is settled only by WRITTEN, or by its stored dead letter; every received event at most once.
3. An attempted event is in a batch, waits for a retry, or waits for its dead letter to be stored.
4. Receiving is paused when the backlog reaches its high mark and resumed below the low one, half of it.
5. An input of an older claim changes nothing.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import structs

from consumer.core import effects
from consumer.core.backlog import Backlog, high_count, may_resume, pause_reason
from consumer.core.burial import Burial
from consumer.core.charging import is_capped
from consumer.core.claimed_partition import ClaimedPartition
from consumer.core.lanes import Lanes
from consumer.core.parked import BEHIND, name_of
from consumer.core.statistics import PipelineStatistics, Totals
from consumer.core.work import Siblings, Work, work_of
from consumer.errors import BacklogError, PoisonError
from consumer.model import Outcome, Rejection, Routes, WriteResult
from consumer.options import NO_PARKING, BacklogLimits, BatchLimits, ParkingRules
from consumer.rejections import rejection_of_result
from consumer.versions import SUPERSEDED
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.pacing.charge_limiter import ChargeLimiter
from tidemark.foundation.pacing.retry_delay import Backoff, Chance
from tidemark.foundation.pacing.shared_rate import Rate, limiter_of
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.wording import count_text


class Pipeline:
    """The state of one consumer process."""

    def __init__(
        self,
        limits: BacklogLimits,
        batches: BatchLimits,
        routes: Routes,
        *,
        transactional: bool,
        rate: Rate,
        now: float,
        request_units: float | None = None,
        chance: Chance | None = None,
        parking: ParkingRules = NO_PARKING,
    ) -> None:
        """`chance` spreads retries in time; None does not spread them."""
        self._limits = limits
        self._transactional = transactional
        self._limiter = limiter_of(rate, now)
        self._charges = ChargeLimiter(request_units, now)
        self._lanes = Lanes(batches, routes, self._charges, chance)
        self._backlog = Backlog()
        self._paused = ""  # the reason
        self._reading_routes = False
        self._routes_at = -math.inf
        self._routes_backoff = Backoff(chance)
        self._checkpoint_at = now + limits.checkpoint_every
        self._cause = ""
        self._failed = False
        self.totals = Totals()
        self._burial = Burial(self._backlog, self._lanes, self.totals, parking, chance)

    # -- entry

    def handle(self, item: effects.Input, *, now: float) -> Sequence[effects.Effect]:
        """Applies an input and returns the effects that follow. Raises nothing but programming errors."""
        self._apply(item, now)
        return [*self._effects(now), effects.WakeAt(self._wake_at(now))]

    def _apply(self, item: effects.Input, now: float) -> None:
        match item:
            case effects.EventsReceived():
                self._received(item, now)
            case effects.BatchWritten():
                self._written(item, now)
            case effects.DeadLettersStored():
                self._cause = self._burial.stored(item, now) or self._cause
            case effects.CheckpointSaved():
                self._saved(item, now)
            case effects.PartitionClaimed():
                self._claimed(item, now)
            case effects.ParkedLoaded() | effects.ParkedTried() | effects.ParkedEnded():
                self._parked(item, now)
            case effects.PartitionDraining() | effects.PartitionLost():
                self._ending(item, now)
            case effects.RateChanged() | effects.RequestUnitsChanged():
                is_records = isinstance(item, effects.RateChanged)
                (self._limiter if is_records else self._charges).set_rate(item.rate, now)
            case effects.RoutesRead():
                self._routes_read(item, now)
        # A Tick needs no case: `handle` evaluates everything that depends on time after every input.

    # -- inputs

    def _claimed(self, item: effects.PartitionClaimed, now: float) -> None:
        claim, partitions = item.claim, self._backlog.partitions
        old = partitions.get(claim.partition)
        if old is not None and old.claim.epoch >= claim.epoch:
            return
        if old is not None:
            self._forget(old, now)
        partitions[claim.partition] = ClaimedPartition(claim, transactional=self._transactional)

    def _received(self, item: effects.EventsReceived, now: float) -> None:
        self.totals.expired += item.expired
        partition = self._backlog.find_claimed(item.partition, item.epoch)
        if partition is None or partition.draining:
            return
        if (newest := item.last_enqueued) is not None:  # -1: the partition is empty
            partition.last_enqueued = max(n for n in (newest, partition.last_enqueued) if n is not None)
        if works := self._backlog.receive_all(partition, item.records):  # the hot path
            self._lanes.add_all(works, now)
            self.totals.received += len(works)
            return
        siblings, left, is_new = None, 0, False
        for record in item.records:
            event = record.event
            if left:  # another record of the same event
                left -= 1
            else:
                left = record.of - 1
                siblings = Siblings(record.of, event.size) if left else None
                self.totals.received += 1
                is_new = partition.work_list.receive(event.sequence_number, event.offset)
                self.totals.skipped += not is_new
            if not is_new:
                continue
            work = work_of(record, partition.work_list, siblings)
            self._backlog.add(work)
            if partition.parked.keys and self._take_parked(partition, work, now):
                continue
            if self._transactional or (record.rejection is None and record.dropped is None):
                self._lanes.add(work, now)
            elif record.rejection is not None:
                self._bury(work, record.rejection, now)
            else:
                self._settle(work)

    def _take_parked(self, partition: ClaimedPartition, work: Work, now: float) -> bool:
        """Settles a record that was parked under an earlier claim, or parks it behind an earlier one of its key."""
        record = work.record
        if partition.parked.has_stored(record.event.sequence_number, name_of(record)):
            if work.siblings is not None:
                work.siblings.has_parked = True
            self._backlog.settle(work)
        elif record.rejection is None and record.dropped is None and self._burial.is_behind(work):
            self._bury(work, BEHIND, now)
        else:
            return False
        return True

    def _settle(self, work: Work) -> None:
        if work.record.dropped is not None:
            self.totals.count_dropped(work.record.dropped.reason)
        self._backlog.settle(work)

    def _bury(self, work: Work, rejection: Rejection, now: float) -> None:
        self._backlog.begin(work, now)
        self._burial.bury(work, rejection)

    def _written(self, item: effects.BatchWritten, now: float) -> None:
        works = self._lanes.batch(item.batch_id)
        if self._backlog.settle_written(works, item.results):  # the hot path
            self._burial.poison = self.totals.count_written(item.results)
            self._lanes.take_written(item.batch_id, item.results, now)
            return
        for work, result in zip(works, item.results, strict=True):
            self._tally(work, result)
        for work, result in self._lanes.take_results(item.batch_id, item.results, now):
            if result.outcome is Outcome.RETRY:  # its claim is over
                self._backlog.release(work)
            elif result.outcome is Outcome.REJECT:
                self._reject(work, rejection_of_result(result), now)
            else:
                for settled in (*work.superseded, work):
                    self._settle(settled)
                self._lanes.release_key(work, now)

    def _reject(self, work: Work, rejection: Rejection, now: float) -> None:
        closed = work.work_list.closed  # the present owner of the partition receives it itself
        behind = [] if closed else self._burial.take_behind(work, rejection)
        for dropped in self._lanes.restore_superseded(work, now):
            self._backlog.release(dropped)
        if closed:
            self._backlog.release(work)
        else:
            self._bury(work, rejection, now)
        for waiting in behind:
            self._bury(waiting, BEHIND, now)

    def _parked(self, item: effects.OfParked, now: float) -> None:
        if isinstance(item, effects.ParkedTried):
            self.totals.request_units += item.request_units
            self._charges.charge(item.request_units, now)
            return
        partition = self._backlog.find_claimed(item.partition, item.epoch)
        if partition is None:
            return
        if isinstance(item, effects.ParkedLoaded):
            for number, keys in item.keys.items():
                for name, key in keys.items():
                    partition.parked.add(number, name, key)
                partition.parked.note_stored(number, is_loaded=True)
            return
        partition.parked.end(item.number)
        self.totals.written += item.written
        self.totals.dead_letters += item.is_dead_letter

    def _tally(self, work: Work, result: WriteResult) -> None:
        totals = self.totals
        totals.attempts += 1
        totals.request_units += result.request_units
        if result.outcome is Outcome.RETRY:
            totals.retried += 1
            totals.capped += (capped := is_capped(result))
            totals.throttled += result.throttled and not capped
            sink = f"sink '{work.record.sink}': " if work.record.sink else ""
            status = f"status {result.status}: " if result.status else ""
            self._cause = one_line(f"{sink}{status}{result.reason}")
        elif result.outcome is Outcome.WRITTEN and self._transactional and result.reason:
            totals.dead_letters += 1  # the sink stored the dead letter itself
            self._burial.poison += 1
        elif result.outcome is Outcome.WRITTEN and result.reason == SUPERSEDED:
            totals.count_dropped(SUPERSEDED)
            self._burial.poison = 0
        elif result.outcome is Outcome.WRITTEN and work.record.dropped is None:
            totals.written += 1
            totals.written_units += result.request_units
            self._burial.poison = 0

    def _saved(self, item: effects.CheckpointSaved, now: float) -> None:
        partition = self._backlog.find_claimed(item.partition, item.epoch)
        if partition is None:
            return
        partition.note_saved(item)
        self.totals.checkpoints += item.saved
        self.totals.checkpoints_failed += not item.saved
        if partition.draining and not item.saved:  # the deadline is near: the next save takes no turn
            self._checkpoint_at = min(self._checkpoint_at, now + 0.5)

    def _ending(self, item: effects.PartitionDraining | effects.PartitionLost, now: float) -> None:
        partition = self._backlog.find_claimed(item.partition, item.epoch)
        if partition is None:
            return
        if isinstance(item, effects.PartitionLost):
            self._forget(partition, now)
            del self._backlog.partitions[item.partition]
        elif not partition.draining:
            partition.drain()
            self._drop(partition, now)

    def _routes_read(self, item: effects.RoutesRead, now: float) -> None:
        self._reading_routes = False
        if item.routes is None:
            self._routes_at = now + self._routes_backoff.failed()
            return
        self._routes_backoff.worked()
        self._routes_at = now + 1.0
        self._lanes.reroute(item.routes, now)

    # -- works

    def _forget(self, partition: ClaimedPartition, now: float) -> None:
        """Ends a claim. Batches in flight end by themselves, settle nothing and are not retried, because another consumer
        may have written a later version meanwhile.
        """
        partition.work_list.closed = True
        self._drop(partition, now)

    def _drop(self, partition: ClaimedPartition, now: float) -> None:
        """Drops the works of a claim that were never sent to the sink or the dead-letter store; of a closed claim all
        that are not in flight.
        """
        work_list = partition.work_list
        for work in (*self._lanes.drop(work_list, now), *self._burial.remove(work_list)):
            self._backlog.release(work)

    # -- effects

    def _effects(self, now: float) -> Iterator[effects.Effect]:
        yield from self._burial.next_lots(now)
        yield from self._write(now)
        if self._lanes.stranded and not self._reading_routes and now >= self._routes_at:
            self._reading_routes = True
            yield effects.ReadRoutes()
        yield from self._save(now)
        for partition in self._backlog.partitions.values():
            if (drained := partition.report_drained()) is not None:
                yield drained
        yield from self._regulate()
        error = None if self._failed else self._check_limits(now)
        if error is not None:
            self._failed = True
            yield effects.Fail(error)

    def _write(self, now: float) -> Iterator[effects.Effect]:
        limiter, flush = self._limiter, any(claim.draining for claim in self._backlog.partitions.values())
        for batch in self._lanes.collect(now, lambda n, forced: limiter.take(n, now, forced), flush=flush):
            self._backlog.begin_batch(self._lanes.batch(batch.batch_id), now)
            yield effects.WriteBatch(batch)

    def _save(self, now: float) -> Iterator[effects.Effect]:
        every, after = self._limits.checkpoint_every, self._limits.checkpoint_after
        if due := now >= self._checkpoint_at:
            self._checkpoint_at = now + every
        for partition in self._backlog.partitions.values():
            if (order := partition.start_save(now, every, after, due=due)) is not None:
                yield order

    def _regulate(self) -> Iterator[effects.Effect]:
        held = self._backlog.measure(self._pace)
        if not self._paused:
            if (reason := pause_reason(self._limits, held)) is not None:
                self._paused = reason
                yield effects.PauseReceiving(reason + self._lanes.waiting_most())
        elif may_resume(self._limits, held):
            self._paused = ""
            yield effects.ResumeReceiving()

    def _check_limits(self, now: float) -> TidemarkError | None:
        limits, backlog = self._limits, self._backlog
        if self._burial.poison >= limits.poison:
            return PoisonError(
                f"{count_text(self._burial.poison, 'event in a row was', 'events in a row were')} rejected and none was written (CONSUMER_POISON_LIMIT"
                f" is {limits.poison}); the consumer stops before it drains the hub into the dead letters. See `tidemark dead-letters"
                " list` for the reasons. When their cause is repaired, start again, and write them with `tidemark dead-letters replay`"
            )
        if backlog.count > limits.backlog_of:
            setting, what = "ALLOW_BACKLOG_OF", count_text(backlog.count, "event waits", "events wait")
            what += f", {setting} is {limits.backlog_of}"
        elif backlog.oldest_age(now) > limits.backlog_to:
            setting = "ALLOW_BACKLOG_TO"
            what = f"an event waits longer than {setting}, {limits.backlog_to:g} s"
        else:
            return None
        way_on = f"start again when the cause is gone, and all of them are received again; or raise {setting}, and they wait longer"
        oldest = backlog.describe_oldest(now, self._burial.full_text() or self._cause)
        return BacklogError(f"{what}; {oldest}; {way_on}")

    def _wake_at(self, now: float) -> float:
        lanes_at = self._lanes.next_at(self._limiter.next_at(now), now)
        at = min(self._checkpoint_at, lanes_at, self._burial.next_at())
        if self._lanes.stranded and not self._reading_routes:
            at = min(at, self._routes_at)
        return at

    # -- reading

    @property
    def _pace(self) -> float | None:
        """Records per second that both limits allow, as far as charges are known; None without a limit."""
        limits = (self._limiter.rate, self._charges.records_per_second)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def room(self) -> int:
        """How many events may be received before receiving pauses."""
        return max(0, high_count(self._limits, self._pace) - self._backlog.count)

    def unsettled(self, partition: str, epoch: int) -> int | None:
        """How many events of a claim are not settled; None when the claim is over."""
        current = self._backlog.find_claimed(partition, epoch)
        return None if current is None else current.work_list.unsettled

    def epoch(self, partition: str) -> int | None:
        """The epoch of the present claim; None without a claim."""
        current = self._backlog.partitions.get(partition)
        return None if current is None else current.claim.epoch

    def statistics(self, now: float) -> PipelineStatistics:
        """A snapshot of the present state."""
        return PipelineStatistics(
            totals=structs.replace(self.totals, dropped=dict(self.totals.dropped)),
            backlog_count=self._backlog.count,
            backlog_bytes=self._backlog.bytes,
            oldest_age=self._backlog.oldest_age(now),
            in_flight_batches=self._lanes.in_flight,
            rate_limit=self._limiter.rate,
            paused=bool(self._paused),
            cause=self._burial.full_text() or self._cause,
            concurrency=self._lanes.congestion(),
            partitions=tuple(partition.statistics() for partition in self._backlog.partitions.values()),
            pause_reason=self._paused and self._paused + self._lanes.waiting_most(),
            due_at=self._wake_at(now),
            request_unit_limit=self._charges.rate,
        )
