"""From events received to checkpoints saved: the decisions, with no clock and no I/O.

`handle` is the only way to change a pipeline. It takes what happened and returns what is to be done; results of
what was done come back as further inputs. What always holds, and `validate` checks:

1. The low-water mark of a partition is below its lowest unsettled event.
2. An event is settled only by WRITTEN, or by its stored dead letter; every received event at most once.
3. A started event is in a batch, waiting for a retry, or waiting for its dead letter.
4. Receiving is paused when the backlog reaches its high mark and resumed below the low one, half of it.
5. Nothing of an older claim changes anything.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from consumer.core.claimed_partition import ClaimedPartition
from consumer.core.effects import (
    BatchWritten,
    CheckpointSaved,
    Effect,
    EventsReceived,
    Fail,
    Input,
    LettersStored,
    PartitionClaimed,
    PartitionDraining,
    PartitionLost,
    PauseReceiving,
    RateChanged,
    ReadRoutes,
    ResumeReceiving,
    RoutesRead,
    WakeAt,
    WriteBatch,
)
from consumer.core.lane import BatchLimits, Work
from consumer.core.lanes import Lanes
from consumer.core.limits import (
    Held,
    Limits,
    age_error,
    count_error,
    high_count,
    may_resume,
    pause_reason,
    poison_error,
)
from consumer.core.rate_limiter import RateLimiter
from consumer.core.rejected_queue import RejectedQueue
from consumer.core.retry_delay import Backoff, Chance
from consumer.core.statistics import PipelineStatistics, Totals
from consumer.model import Outcome, Rejection, Routes, WriteResult
from foundation.errors import TidemarkError


class Pipeline:
    """The state of one consumer process."""

    def __init__(
        self,
        limits: Limits,
        batches: BatchLimits,
        routes: Routes,
        *,
        transactional: bool,
        rate: float | None,
        now: float,
        chance: Chance | None = None,
    ) -> None:
        """`chance` spreads retries; None spreads nothing."""
        self._limits = limits
        self._transactional = transactional
        self._limiter = RateLimiter(rate, now)
        self._lanes = Lanes(batches, routes, chance)
        self._partitions: dict[str, ClaimedPartition] = {}
        # In the order of their first attempts. Of a dict the first one is found ever more slowly as the first ones go.
        self._started: OrderedDict[Work, None] = OrderedDict()
        self._rejected = RejectedQueue()
        self._bytes = 0
        self._count = 0
        self._paused = False
        self._reading_routes = False
        self._routes_at = -math.inf
        self._routes_backoff = Backoff(chance)
        self._letters_backoff = Backoff(chance)
        self._checkpoint_at = now + limits.checkpoint_every
        self._poison = 0
        self._cause = ""
        self._failed = False
        self.totals = Totals()

    # -- the one entry

    def handle(self, item: Input, *, now: float) -> Sequence[Effect]:
        """What follows from an input. Raises nothing but programming errors."""
        self._take_in(item, now)
        effects: list[Effect] = []
        self._store_letters(effects, now)
        self._write(effects, now)
        self._read_routes(effects, now)
        self._save(effects, now)
        self._announce_drained(effects)
        self._regulate(effects)
        self._guard(effects, now)
        effects.append(WakeAt(self._wake_at(now)))
        return effects

    def _take_in(self, item: Input, now: float) -> None:
        match item:
            case EventsReceived():
                self._received(item, now)
            case BatchWritten():
                self._written(item, now)
            case LettersStored():
                self._stored(item, now)
            case CheckpointSaved():
                self._saved(item, now)
            case PartitionClaimed():
                self._claimed(item, now)
            case PartitionDraining():
                self._draining(item, now)
            case PartitionLost():
                self._lost(item, now)
            case RateChanged():
                self._limiter.set_rate(item.rate, now)
            case RoutesRead():
                self._routes_read(item, now)
        # A Tick changes nothing by itself: whatever depends on time alone is done in any case.

    # -- inputs

    def _claimed(self, item: PartitionClaimed, now: float) -> None:
        old = self._partitions.get(item.claim.partition)
        if old is not None and old.claim.epoch >= item.claim.epoch:
            return
        if old is not None:
            self._forget(old, now)
        self._partitions[item.claim.partition] = ClaimedPartition(
            item.claim, transactional=self._transactional
        )

    def _received(self, item: EventsReceived, now: float) -> None:
        self.totals.expired += item.expired
        partition = self._current(item.partition, item.epoch)
        if partition is None or partition.draining:
            return
        partition.enqueued(item.last_enqueued)
        for record in item.records:
            event = record.event
            self.totals.received += 1
            if not partition.work_list.receive(event.sequence_number, event.offset, now, event.enqueued_at):
                self.totals.skipped += 1
                continue
            work = Work(record, partition.work_list)
            self._count += 1
            self._bytes += work.held
            if record.rejection is not None and not self._transactional:
                self._start(work, partition, now)
                self._rejected.add(work, record.rejection)
            else:
                self._lanes.add(work, now)

    def _written(self, item: BatchWritten, now: float) -> None:
        for result in item.results:
            self._tally(result)
        for work, result in self._lanes.written(item.batch_id, item.results, now):
            if result.outcome is Outcome.RETRY:  # of a claim that is over
                self._release(work)
            elif result.outcome is Outcome.REJECT:
                self._reject(work, Rejection(f"status_{result.status}", result.reason), now)
            else:
                for each in (*work.superseded, work):
                    self._settle(each)
                self._lanes.finished(work, now)

    def _reject(self, work: Work, rejection: Rejection, now: float) -> None:
        for each in self._lanes.restore(work, now):
            self._release(each)
        if work.work_list.closed:  # whoever has the partition now comes to it by himself
            self._release(work)
        else:
            self._rejected.add(work, rejection)

    def _tally(self, result: WriteResult) -> None:
        totals = self.totals
        totals.attempts += 1
        totals.request_units += result.request_units
        if result.outcome is Outcome.RETRY:
            totals.retried += 1
            totals.throttled += result.throttled
            self._cause = f"status {result.status}: {result.reason}" if result.status else result.reason
        elif result.outcome is Outcome.WRITTEN and self._transactional and result.reason:
            self._count_letter(poison=True)  # the sink kept it itself
        elif result.outcome is Outcome.WRITTEN:
            totals.written += 1
            totals.written_units += result.request_units
            self._poison = 0

    def _count_letter(self, *, poison: bool) -> None:
        self.totals.dead_letters += 1
        self._poison += poison

    def _stored(self, item: LettersStored, now: float) -> None:
        lot = self._rejected.answered(item.letters_id)
        if item.stored:
            self._letters_backoff.worked()
            others = self._count - len(lot) - len(self._rejected)
            for work, _ in lot:
                # Of those never tried one cannot say that nothing is written between while others wait for the sink.
                self._count_letter(poison=bool(work.attempts) or not others)
                self._settle(work)
        elif lot:
            for work, _ in lot:
                if work.work_list.closed:
                    self._release(work)
            self._rejected.put_back(
                [each for each in lot if not each[0].work_list.closed], now + self._letters_backoff.failed()
            )
            self._cause = "the dead-letter store does not take them"

    def _saved(self, item: CheckpointSaved, now: float) -> None:
        partition = self._current(item.partition, item.epoch)
        if partition is None:
            return
        partition.saved(item)
        if item.saved:
            self.totals.checkpoints += 1
        else:
            self.totals.checkpoints_failed += 1
            if partition.draining:  # no waiting for the next round: the deadline is near
                self._checkpoint_at = min(self._checkpoint_at, now + 0.5)

    def _draining(self, item: PartitionDraining, now: float) -> None:
        partition = self._current(item.partition, item.epoch)
        if partition is None or partition.draining:
            return
        partition.drain()
        self._drop(partition, now)

    def _lost(self, item: PartitionLost, now: float) -> None:
        partition = self._current(item.partition, item.epoch)
        if partition is not None:
            self._forget(partition, now)
            del self._partitions[item.partition]

    def _routes_read(self, item: RoutesRead, now: float) -> None:
        self._reading_routes = False
        if item.routes is None:
            self._routes_at = now + self._routes_backoff.failed()
            return
        self._routes_backoff.worked()
        self._routes_at = now + 1.0
        self._lanes.reroute(item.routes, now)

    # -- works

    def _current(self, name: str, epoch: int) -> ClaimedPartition | None:
        partition = self._partitions.get(name)
        return partition if partition is not None and partition.claim.epoch == epoch else None

    def _start(self, work: Work, partition: ClaimedPartition, now: float) -> None:
        work.started_at = now
        self._started[work] = None
        partition.started += 1

    def _settle(self, work: Work) -> None:
        """The event is done, if its claim still is ours."""
        partition = self._partitions.get(work.work_list.partition)
        if partition is not None and partition.work_list is work.work_list:
            partition.settle(work.record.event.sequence_number)
        self._release(work)

    def _release(self, work: Work) -> None:
        self._count -= 1
        self._bytes -= work.held
        if work in self._started:
            del self._started[work]
            partition = self._partitions.get(work.work_list.partition)
            if partition is not None and partition.work_list is work.work_list:
                partition.started -= 1

    def _forget(self, partition: ClaimedPartition, now: float) -> None:
        """The claim is over. What is being written ends by itself, settles nothing and is not tried again: somebody
        else may have written a later version meanwhile.
        """
        partition.work_list.closed = True
        self._drop(partition, now)

    def _drop(self, partition: ClaimedPartition, now: float) -> None:
        """Takes out the works of a claim that were never sent, to sink or dead letters; of a closed one all but those
        that are on their way.
        """
        work_list = partition.work_list

        def goes(work: Work) -> bool:
            return work.work_list is work_list and (work_list.closed or not work.attempts)

        for work in (*self._lanes.drop(work_list, now), *self._rejected.remove(goes)):
            self._release(work)

    # -- effects

    def _store_letters(self, effects: list[Effect], now: float) -> None:
        lot = self._rejected.next_lot(now)
        if lot is not None:
            effects.append(lot)

    def _write(self, effects: list[Effect], now: float) -> None:
        batches = self._lanes.collect(now, lambda wanted: self._limiter.take(wanted, now), flush=self._ending)
        for batch in batches:
            for work in self._lanes.batch(batch.batch_id):
                if work.attempts == 1:
                    for each in (work, *work.superseded):
                        self._begin(each, now)
            effects.append(WriteBatch(batch))

    def _begin(self, work: Work, now: float) -> None:
        if work in self._started:
            return
        partition = self._partitions.get(work.work_list.partition)
        if partition is not None and partition.work_list is work.work_list:
            self._start(work, partition, now)
        else:
            work.started_at = now
            self._started[work] = None

    @property
    def _ending(self) -> bool:
        return any(partition.draining for partition in self._partitions.values())

    def _read_routes(self, effects: list[Effect], now: float) -> None:
        if self._lanes.stranded and not self._reading_routes and now >= self._routes_at:
            self._reading_routes = True
            effects.append(ReadRoutes())

    def _save(self, effects: list[Effect], now: float) -> None:
        due = now >= self._checkpoint_at
        if due:
            self._checkpoint_at = now + self._limits.checkpoint_every
        every, after = self._limits.checkpoint_every, self._limits.checkpoint_after
        saves = (each.save(now, every, after, due=due) for each in self._partitions.values())
        effects += [save for save in saves if save is not None]

    def _announce_drained(self, effects: list[Effect]) -> None:
        drained = (each.drained() for each in self._partitions.values())
        effects += [news for news in drained if news is not None]

    def _regulate(self, effects: list[Effect]) -> None:
        partitions = self._partitions.values()
        unsaved = max((each.settled_unsaved for each in partitions), default=0)
        beyond = max((each.work_list.beyond for each in partitions), default=0)
        held = Held(self._count, self._bytes, unsaved, beyond, self._limiter.rate)
        if not self._paused:
            reason = pause_reason(self._limits, held)
            if reason is not None:
                self._paused = True
                effects.append(PauseReceiving(reason))
        elif may_resume(self._limits, held):
            self._paused = False
            effects.append(ResumeReceiving())

    def _guard(self, effects: list[Effect], now: float) -> None:
        error = None if self._failed else self._excess(now)
        if error is not None:
            self._failed = True
            effects.append(Fail(error))

    def _excess(self, now: float) -> TidemarkError | None:
        limits = self._limits
        if self._poison >= limits.poison:
            return poison_error(limits, self._poison)
        oldest = next(iter(self._started), None)
        if self._count > limits.backlog_of:
            return count_error(limits, self._count, self._story(oldest, now))
        if oldest is not None and now - oldest.started_at > limits.backlog_to:
            return age_error(limits, self._story(oldest, now))
        return None

    def _story(self, work: Work | None, now: float) -> str:
        if work is None:
            return "none of them was begun: the rate limit or the sink holds them all"
        event = work.record.event
        return (
            f"the oldest is sequence number {event.sequence_number} of partition {event.partition}, begun"
            f" {now - work.started_at:.0f} s ago, {work.attempts} attempts; last cause: {self._cause or 'none told'}"
        )

    def _wake_at(self, now: float) -> float:
        at = min(
            self._checkpoint_at, self._lanes.next_at(self._limiter.next_at(now)), self._rejected.next_at()
        )
        if self._lanes.stranded and not self._reading_routes:
            at = min(at, self._routes_at)
        return at

    # -- looking

    @property
    def room(self) -> int:
        """How many events may come before receiving pauses."""
        return max(0, high_count(self._limits, self._limiter.rate) - self._count)

    def unsettled(self, partition: str, epoch: int) -> int | None:
        """How many events of a claim are not settled; None when it is over."""
        current = self._current(partition, epoch)
        return None if current is None else current.work_list.unsettled

    def epoch(self, partition: str) -> int | None:
        """Of the present claim."""
        current = self._partitions.get(partition)
        return None if current is None else current.claim.epoch

    def statistics(self, now: float) -> PipelineStatistics:
        """A picture of the present state."""
        oldest = next(iter(self._started), None)
        return PipelineStatistics(
            totals=self.totals.copy(),
            backlog_count=self._count,
            backlog_bytes=self._bytes,
            oldest_age=0.0 if oldest is None else now - oldest.started_at,
            in_flight_batches=self._lanes.in_flight,
            rate_limit=self._limiter.rate,
            paused=self._paused,
            cause=self._cause,
            concurrency=self._lanes.congestion(),
            partitions=tuple(each.statistics() for each in self._partitions.values()),
        )

    def validate(self) -> None:
        """Raises AssertionError with the story if an invariant is broken. For tests: it walks everything."""
        inside = {id(work): work for work in self._lanes.works()}
        inside.update((id(work), work) for work in self._rejected.works())
        story = f"{self.statistics(0.0)}"
        if len(inside) != self._count:
            raise AssertionError(f"{len(inside)} works inside, {self._count} counted: {story}")
        if sum(work.record.size for work in inside.values()) != self._bytes:
            raise AssertionError(f"bytes are off: {story}")
        for partition in self._partitions.values():
            partition.work_list.validate()
            own = [work for work in inside.values() if work.work_list is partition.work_list]
            lowest = min((work.record.event.sequence_number for work in own), default=math.inf)
            if partition.work_list.mark[0] >= lowest:
                raise AssertionError(f"the mark passed unsettled event {lowest}: {story}")
            if not partition.draining and len(own) != partition.work_list.unsettled:
                raise AssertionError(f"{len(own)} works, {partition.work_list.unsettled} unsettled: {story}")
