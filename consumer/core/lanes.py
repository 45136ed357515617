"""Decides which records are written together, when, and in how many batches at a time.

A lane, such as a physical partition of Cosmos DB, has its own queue, batches, throttling and congestion control
(consumer.core.lane), so that a hot lane does not slow the others. A batch is sent when it is full, when its first record
has waited for the flush timer, or when a retry is due.

Two records of one key are never in flight together: the later one waits until the earlier one is settled. With
`coalesce`, only the last of several waiting records is written, and it settles the others. If it is rejected, the record
before it is written instead.

An ordered lane (a transactional sink) writes strictly by sequence number, one batch at a time. A record that must be
retried returns to its position in that order.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count

from consumer.core.charging import charge_of
from consumer.core.lane import Lane, Take
from consumer.core.settled.low_water import WorkList
from consumer.core.work import Work
from consumer.model import NOTHING_SETTLED, Batch, Outcome, Record, Routes, WriteResult
from consumer.options import BatchLimits
from tidemark.foundation.pacing.charge_limiter import ChargeLimiter
from tidemark.foundation.pacing.retry_delay import Chance, delay
from tidemark.foundation.wording import count_text


class Lanes:
    """All lanes of a sink. Every method that depends on time takes `now`."""

    def __init__(
        self, limits: BatchLimits, routes: Routes, charges: ChargeLimiter, chance: Chance | None = None
    ) -> None:
        """`charges` limits first attempts and retries alike. `chance` spreads retries in time; None does not spread them."""
        self.limits = limits
        self._charges = charges
        self._chance = chance
        self._routes = routes
        # By partition the events that its ordered lanes must not pass; see `hold`.
        self._holds: dict[str, list[int]] = {}
        self._lanes: dict[str, Lane] = {}
        self._keys: dict[str, deque[Work] | None] = {}  # by key in flight: the works that wait for it
        self._batches: dict[int, tuple[str, list[Work]]] = {}
        self._stranded: list[Work] = []  # their lane was removed: they wait for new routes
        self._numbers = count(1)
        self._turn = 0

    # -- queueing

    def add(self, work: Work, now: float) -> None:
        """Queues a record; if one of its key is in flight, behind that one."""
        work.since = now
        if not self._routes.of(work.record).by_partition:
            key = work.record.key
            if key in self._keys:
                waiting = self._keys[key]
                if waiting is None:
                    waiting = self._keys[key] = deque()
                if waiting and self._takes_the_place_of(work.record, waiting[-1].record):
                    earlier = waiting.pop()
                    work.superseded = [*earlier.superseded, earlier]
                    earlier.superseded = []
                waiting.append(work)
                return
            self._keys[key] = None
        self._enqueue(work, now)

    def _takes_the_place_of(self, record: Record, earlier: Record) -> bool:
        """Whether the earlier one of this key need not be written. What a sink appends or sends is of the order of its key, and no
        change of a document.
        """
        if not self.limits.coalesce or self._routes.of(record).appends:
            return False
        # Records of one order key may still be two documents: partition keys 1 and 1.0 order alike (documents.py).
        return record.partition_key == earlier.partition_key and record.replaces(earlier)

    def add_all(self, works: Sequence[Work], now: float) -> None:
        """`add` for several records, in order."""
        keys, lanes, routes = self._keys, self._lanes, self._routes
        is_simple = not (routes.of_sinks or routes.by_partition)
        for work in works:
            record = work.record
            if is_simple and record.key not in keys:
                work.since = now
                keys[record.key] = None
                (lanes.get(routes.lane_of(record)) or self._lane_of(work, now)).append(now, work)
            else:
                self.add(work, now)

    def _enqueue(self, work: Work, now: float) -> None:
        self._lane_of(work, now).append(work.since, work)

    def _lane_of(self, work: Work, now: float) -> Lane:
        name = self._routes.lane_of(work.record)
        lane = self._lanes.get(name)
        if lane is None:
            routes = self._routes.of(work.record)
            holds = self._holds.setdefault(work.work_list.partition, []) if routes.by_partition else []
            if routes.by_partition:
                self._charges.expect_nothing(name)
            lane = Lane(routes.batches or self.limits, now, ordered=routes.by_partition, holds=holds)
            self._lanes[name] = lane
        return lane

    # -- holding

    def hold(self, work: Work) -> None:
        """Lets no ordered lane of the partition pass this event until `release_hold`: its dead letter is not stored yet, and a
        later mark of the sink would cover it.
        """
        if self._routes.is_ordered:
            number = work.record.event.sequence_number
            self._holds.setdefault(work.work_list.partition, []).append(number)

    def release_hold(self, work: Work) -> None:
        if self._routes.is_ordered:
            self._holds[work.work_list.partition].remove(work.record.event.sequence_number)

    # -- sending

    def collect(self, now: float, take: Take, *, flush: bool = False) -> list[Batch]:
        """The batches to be written now. Another lane is first each time, so that they share a scarce rate evenly."""
        batches: list[Batch] = []
        names = list(self._lanes)
        start = self._turn % max(1, len(names))
        for name in names[start:] + names[:start]:
            lane = self._lanes[name]
            while lane.may_send(now, flush=flush) and (most := self._charges.affordable(name, now)):
                works = lane.cut(now, take, most)
                if not works:
                    break
                self._turn += 1
                batch = Batch(next(self._numbers), name, tuple(work.record for work in works))
                self._charges.start(batch.batch_id, name, len(works), now)
                self._batches[batch.batch_id] = (name, works)
                lane.in_flight += 1
                batches.append(batch)
        return batches

    # -- results

    def take_results(
        self, batch_id: int, results: Sequence[WriteResult], now: float
    ) -> list[tuple[Work, WriteResult]]:
        """Returns the works of a batch that need no retry: those written or rejected, and those whose claim is over.

        The other works are queued for a retry.
        """
        name, works = self._batches.pop(batch_id)
        lane = self._lanes[name]  # kept while a batch of it is in flight
        lane.note_results(works, results, now)
        self._charge(batch_id, results, now)
        decided: list[tuple[Work, WriteResult]] = []
        to_retry: list[tuple[Work, WriteResult]] = []
        for work, result in zip(works, results, strict=True):
            if result.outcome is not Outcome.RETRY:
                decided.append((work, result))
            elif work.work_list.closed:
                decided += [(dropped, result) for dropped in self._abandon(work, work.work_list, now)]
            else:
                to_retry.append((work, result))
        self._retry(lane, to_retry, now)
        return decided

    def take_written(self, batch_id: int, results: Sequence[WriteResult], now: float) -> None:
        """`take_results` and `release_key` for a batch whose works are all written."""
        name, works = self._batches.pop(batch_id)
        lane = self._lanes[name]
        lane.note_written(len(works), now)
        self._charge(batch_id, results, now)
        if lane.ordered:
            return
        keys = self._keys
        for work in works:
            key = work.record.key
            if waiting := keys[key]:
                self._enqueue(waiting.popleft(), now)
            else:
                del keys[key]

    def _charge(self, batch_id: int, results: Sequence[WriteResult], now: float) -> None:
        if self._charges.awaits(batch_id):
            served = [result.request_units for result in results if result.outcome is not Outcome.RETRY]
            self._charges.settle(batch_id, map(charge_of, results), now, served=served)

    def _retry(self, lane: Lane, refused: list[tuple[Work, WriteResult]], now: float) -> None:
        if lane.ordered:
            for work, result in reversed(refused):
                lane.give_back(work, now + delay(result.retry_after, lane.failures, self._chance))
            return
        for work, result in refused:
            if result.rerouted:
                self._stranded.append(work)
                continue
            due = now + delay(result.retry_after, lane.failures, self._chance)
            if result.throttled or (lane.failures and result.unserved):
                lane.pause(due)
            lane.retry(due, next(self._numbers), work)

    def release_key(self, work: Work, now: float) -> None:
        """Queues the next work of this work's key; call it when the work is settled or dropped."""
        if self._routes.of(work.record).by_partition:
            return
        key = work.record.key
        waiting = self._keys[key]
        if waiting:
            self._enqueue(waiting.popleft(), now)
        else:
            del self._keys[key]

    def is_ordered(self, work: Work) -> bool:
        return self._routes.of(work.record).by_partition

    def take_waiting(self, work: Work) -> list[Work]:
        """Removes and returns the works of this claim that wait for this one of their key, with those that they supersede."""
        waiting = self._keys.get(work.record.key) or deque()
        taken = [member for member in waiting if member.work_list is work.work_list]
        if taken:
            others = deque(member for member in waiting if member.work_list is not work.work_list)
            self._keys[work.record.key] = others or None
        works = [member for first in taken for member in (*first.superseded, first)]
        for taken_work in works:
            taken_work.superseded = ()
        return works

    def restore_superseded(self, work: Work, now: float) -> list[Work]:
        """After a rejection: queues the last work that this one superseded, before all later works of its key.

        Returns the superseded works whose claims are over; they are dropped.
        """
        dropped = [superseded for superseded in work.superseded if superseded.work_list.closed]
        kept = [superseded for superseded in work.superseded if not superseded.work_list.closed]
        work.superseded = []
        if kept:
            last = kept.pop()
            last.superseded = kept
            self._enqueue(last, now)
        else:
            self.release_key(work, now)
        return dropped

    # -- changes

    @property
    def stranded(self) -> int:
        """Works that wait for `reroute`."""
        return len(self._stranded)

    def reroute(self, routes: Routes, now: float) -> None:
        """Takes in new routes: moves every queued work to its present lane. Batches in flight end on their old lane."""
        self._routes = routes
        emptied = [lane.take_all() for lane in self._lanes.values()]
        queued = [item for queue, _ in emptied for item in queue]
        retries = [item for _, waiting in emptied for item in waiting]
        retries += [(now, next(self._numbers), work) for work in self._stranded]
        self._stranded = []
        self._lanes = {
            name: lane for name, lane in self._lanes.items() if routes.has_lane(name) or lane.in_flight
        }
        for since, work in sorted(queued, key=lambda item: item[0]):
            self._lane_of(work, now).append(since, work)
        for due, number, work in retries:
            self._lane_of(work, now).retry(due, number, work)

    def drop(self, work_list: WorkList, now: float) -> list[Work]:
        """Removes the works of a claim that were never attempted, and for a closed claim also those that wait for a retry."""
        if not work_list.closed:
            work_list.kept = self._last_partial(work_list)
        dropped: list[Work] = []
        for key, waiting in list(self._keys.items()):
            if waiting:
                kept = deque[Work]()
                for work in waiting:
                    remaining, of_claim = _separate(work, work_list)
                    dropped += of_claim
                    if remaining is not None:
                        kept.append(remaining)
                self._keys[key] = kept or None

        removed = [work for work in self._stranded if work.is_dropped(work_list)]
        self._stranded = [work for work in self._stranded if not work.is_dropped(work_list)]
        for lane in self._lanes.values():
            removed += lane.remove(work_list)
        for work in removed:
            dropped += self._abandon(work, work_list, now)
        return dropped

    def _last_partial(self, work_list: WorkList) -> int:
        """The last event of which some records were attempted and others wait. What is before it must be written before it: in its
        order by key, and in an ordered lane because its mark covers all that is before.
        """
        waiting = [work for of_key in self._keys.values() for work in of_key or ()]
        waiting += [work for lane in self._lanes.values() for work in lane.queued]
        members = [member for work in waiting for member in (*work.superseded, work)]
        numbers = [
            member.record.number[0]
            for member in members
            if member.work_list is work_list and member.is_partial
        ]
        if self._routes.of_sinks and self._routes.is_ordered:
            # A mark of theirs may be there; with another file the events before it could have a record for that sink.
            numbers.append(work_list.highest_settled)
        return max(numbers, default=NOTHING_SETTLED)

    def _abandon(self, work: Work, work_list: WorkList, now: float) -> list[Work]:
        """Drops a claim's part of a work and returns it. What the work superseded under other claims is queued instead."""
        remaining, of_claim = _separate(work, work_list)
        if remaining is None:
            self.release_key(work, now)
        else:
            self._enqueue(remaining, now)
        return of_claim

    # -- reading

    def next_at(self, next_start: float, now: float) -> float:
        """When `collect` may return a batch without further input. `next_start` is when the rate allows a first attempt."""
        times = [(name, lane.next_at(next_start)) for name, lane in self._lanes.items()]
        if self._charges.rate is not None:
            times = [(name, max(at, self._charges.next_at(name, now))) for name, at in times if at < math.inf]
        return min((at for _, at in times), default=math.inf)

    def waiting_most(self) -> str:
        """With several sinks, which of them most works wait for, as the end of a sentence."""
        if not self._routes.of_sinks:
            return ""
        counts = Counter[str]()
        for name, lane in self._lanes.items():
            counts[name.partition("/")[0]] += lane.waiting
        for name, works in self._batches.values():
            counts[name.partition("/")[0]] += len(works)
        counts.update(work.record.sink for waiting in self._keys.values() for work in waiting or ())
        [(sink, count)] = counts.most_common(1) or [("", 0)]
        return f"; sink '{sink}' holds {count} of {count_text(counts.total(), 'record')}" if count else ""

    @property
    def in_flight(self) -> int:
        """Batches that are being written."""
        return len(self._batches)

    def batch(self, batch_id: int) -> Sequence[Work]:
        """The works of a batch that is being written."""
        return self._batches[batch_id][1]

    def congestion(self) -> dict[str, int]:
        """Batches allowed at once, per lane."""
        return {name: lane.concurrency for name, lane in self._lanes.items()}


def _separate(work: Work, work_list: WorkList) -> tuple[Work | None, list[Work]]:
    """Separates a work and those it supersedes: those that stay as one work, and those that are dropped with this claim."""
    works = (*work.superseded, work)
    of_claim = [member for member in works if member.is_dropped(work_list)]
    others = [member for member in works if not member.is_dropped(work_list)]
    work.superseded = []
    if not others:
        return None, of_claim
    last = others.pop()
    last.superseded = others
    return last, of_claim
