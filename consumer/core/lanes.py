"""Which records are written together, when, and how many batches at once.

A lane (a physical partition of Cosmos, say) has its own queue, batches, throttling and congestion control (consumer.core.lane),
so that a hot one slows no other. A batch leaves when it is full, when its first record has waited for the flush timer,
or when a retry is due.

Records of one key are never on the way together: the later waits for the earlier, whatever becomes of it. With
`coalesce`, of several that wait only the last is written and settles the others; if it is rejected, the one before
it takes its place.

An ordered lane (a transactional sink) writes strictly in order of sequence numbers, one batch at a time; what must
be retried goes back to its place.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import count

from consumer.core.lane import Lane, Take, Work
from consumer.core.settled.low_water import WorkList
from consumer.model import Batch, Outcome, Routes, WriteResult
from consumer.options import BatchLimits
from tidemark.foundation.pacing.retry_delay import Chance, delay


class Lanes:
    """All lanes of a sink. The caller says when: nothing here looks at a clock."""

    def __init__(self, limits: BatchLimits, routes: Routes, chance: Chance | None = None) -> None:
        """`chance` spreads retries; None spreads nothing."""
        self.limits = limits
        self._chance = chance
        self.ordered = routes.by_partition
        self._routes = routes
        self._lanes: dict[str, Lane] = {}
        self._keys: dict[str, deque[Work] | None] = {}  # keys on their way; the works that wait for them
        self._batches: dict[int, tuple[str, list[Work]]] = {}
        self._stranded: list[Work] = []  # their lane is gone: they wait for new routes
        self._numbers = count(1)
        self._turn = 0

    # -- in

    def add(self, work: Work, now: float) -> None:
        """Queues a record; behind the one of its key that is on its way, if there is one."""
        work.since = now
        if not self.ordered:
            key = work.record.key
            if key in self._keys:
                waiting = self._keys[key]
                if waiting is None:
                    waiting = self._keys[key] = deque()
                # Keys are equal where order must be kept. Written otherwise they may be two documents all the same.
                alike = waiting and waiting[-1].record.partition_key == work.record.partition_key
                if self.limits.coalesce and alike:
                    before = waiting.pop()
                    work.superseded = [*before.superseded, before]
                    before.superseded = []
                waiting.append(work)
                return
            self._keys[key] = None
        self._enqueue(work, now)

    def _enqueue(self, work: Work, now: float) -> None:
        self._lane(self._routes.lane_of(work.record), now).append(work.since, work)

    def _lane(self, name: str, now: float) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(self.limits, now, ordered=self.ordered)
        return lane

    # -- out

    def collect(self, now: float, take: Take, *, flush: bool = False) -> list[Batch]:
        """The batches to be written now. Lanes take turns, so that a scarce rate is shared evenly."""
        batches: list[Batch] = []
        names = list(self._lanes)
        if not names:
            return batches
        start = self._turn % len(names)
        for name in names[start:] + names[:start]:
            lane = self._lanes[name]
            while lane.may_send(now, flush=flush):
                works = lane.cut(now, take)
                if not works:
                    break
                self._turn += 1
                batches.append(self._batch(name, lane, works))
        return batches

    def _batch(self, name: str, lane: Lane, works: list[Work]) -> Batch:
        batch = Batch(next(self._numbers), name, tuple(work.record for work in works))
        self._batches[batch.batch_id] = (name, works)
        lane.in_flight += 1
        return batch

    # -- answers

    def written(
        self, batch_id: int, results: Sequence[WriteResult], now: float
    ) -> list[tuple[Work, WriteResult]]:
        """What is decided of a batch: written and rejected works, and those of a closed claim that would have to be
        retried. The others are queued again.
        """
        name, works = self._batches.pop(batch_id)
        lane = self._lane(name, now)
        lane.answered(works, results, now)
        decided: list[tuple[Work, WriteResult]] = []
        again: list[tuple[Work, WriteResult]] = []
        for work, result in zip(works, results, strict=True):
            if result.outcome is not Outcome.RETRY:
                decided.append((work, result))
            elif work.work_list.closed:
                decided += [(each, result) for each in self._abandon(work, work.work_list, now)]
            else:
                again.append((work, result))
        self._retry(lane, again, now)
        return decided

    def _retry(self, lane: Lane, again: list[tuple[Work, WriteResult]], now: float) -> None:
        if self.ordered:
            for work, result in reversed(again):
                lane.give_back(work, now + delay(result.retry_after, lane.failures, self._chance))
            return
        for work, result in again:
            if result.rerouted:
                self._stranded.append(work)
                continue
            due = now + delay(result.retry_after, lane.failures, self._chance)
            if result.throttled or (lane.failures and result.unserved):
                lane.pause(due)
            lane.retry(due, next(self._numbers), work)

    def finished(self, work: Work, now: float) -> None:
        """The work is settled for good: the next of its key may go."""
        if self.ordered:
            return
        key = work.record.key
        waiting = self._keys[key]
        if waiting:
            self._enqueue(waiting.popleft(), now)
        else:
            del self._keys[key]

    def restore(self, work: Work, now: float) -> list[Work]:
        """A work was rejected: the last one that it stood for takes its place, before all later ones of its key.
        Gives those it stood for whose claims are over: they are out.
        """
        gone = [each for each in work.superseded if each.work_list.closed]
        kept = [each for each in work.superseded if not each.work_list.closed]
        work.superseded = []
        if kept:
            last = kept.pop()
            last.superseded = kept
            self._enqueue(last, now)
        else:
            self.finished(work, now)
        return gone

    # -- changes

    @property
    def stranded(self) -> int:
        """Works that wait for `reroute`."""
        return len(self._stranded)

    def reroute(self, routes: Routes, now: float) -> None:
        """New lanes: what is queued moves to where it belongs now; batches on their way come back as they may."""
        self._routes = routes
        emptied = [lane.empty() for lane in self._lanes.values()]
        queued = [item for queue, _ in emptied for item in queue]
        retries = [item for _, waiting in emptied for item in waiting]
        retries += [(now, next(self._numbers), work) for work in self._stranded]
        self._stranded = []
        self._lanes = {
            name: lane for name, lane in self._lanes.items() if name in routes.lanes or lane.in_flight
        }
        for since, work in sorted(queued, key=lambda item: item[0]):
            self._lane(routes.lane_of(work.record), now).append(since, work)
        for due, number, work in retries:
            self._lane(routes.lane_of(work.record), now).retry(due, number, work)

    def drop(self, work_list: WorkList, now: float) -> list[Work]:
        """Takes out the works of a claim that were never begun; of a closed one also those that wait for a retry."""
        dropped: list[Work] = []
        for key, waiting in list(self._keys.items()):
            if waiting:
                kept = deque[Work]()
                for work in waiting:
                    rest, gone = _split(work, work_list)
                    dropped += gone
                    if rest is not None:
                        kept.append(rest)
                self._keys[key] = kept or None

        def goes(work: Work) -> bool:
            return work.work_list is work_list and (work_list.closed or not work.attempts)

        out = [work for work in self._stranded if goes(work)]
        self._stranded = [work for work in self._stranded if not goes(work)]
        for lane in self._lanes.values():
            out += lane.remove(goes)
        for work in out:
            dropped += self._abandon(work, work_list, now)
        return dropped

    def _abandon(self, work: Work, work_list: WorkList, now: float) -> list[Work]:
        """A work is given up; whatever it stood for of other claims takes its place."""
        rest, gone = _split(work, work_list)
        if rest is None:
            self.finished(work, now)
        else:
            self._enqueue(rest, now)
        return gone

    # -- looking

    def next_at(self, next_start: float) -> float:
        """When `collect` may have something without further input. `next_start` is when the rate allows a start."""
        return min((lane.next_at(next_start) for lane in self._lanes.values()), default=math.inf)

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


def _split(work: Work, work_list: WorkList) -> tuple[Work | None, list[Work]]:
    """Parts a work and all it stands for: what remains without a claim's works, as one work, and those."""
    everything = (*work.superseded, work)
    gone = [each for each in everything if each.work_list is work_list]
    rest = [each for each in everything if each.work_list is not work_list]
    work.superseded = []
    if not rest:
        return None, gone
    last = rest.pop()
    last.superseded = rest
    return last, gone
