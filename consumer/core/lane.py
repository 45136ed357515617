"""One lane: its queue, its retries, and the congestion control of .NET's and JavaScript's bulk executors.

A lane starts with one batch at a time. Each second in which something was written and nothing was throttled allows one
more batch. A second with throttling takes away five batches, or half of them where that is less. The batch after a
throttled one holds at most as many records as were written of it, because the service charges request units for operations that
it refuses.

A batch that the service did not serve at all (429, 408, 5xx, no answer) counts as throttled. The lane then pauses, longer
after each such batch, until a batch is served. Batches that were in flight together count as one.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile

from consumer.core.settled.low_water import WorkList
from consumer.core.work import Work
from consumer.model import Outcome, WriteResult
from consumer.options import BatchLimits

_MIN_BATCH = 2
"""Records in a batch, however much is throttled: one retry and one first attempt, so that neither starves the other."""

Take = Callable[[int, int], int]
"""Given how many first attempts are wanted, and how many others start in any case, returns how many start now."""


class Lane:
    """The works that wait for one lane, and how many batches of them may be in flight."""

    def __init__(self, limits: BatchLimits, now: float, *, ordered: bool, holds: Sequence[int] = ()) -> None:
        """`holds` has the sequence numbers that an ordered lane must not reach; the caller changes it."""
        self._limits = limits
        self.ordered = ordered
        self._holds = holds
        # (since, work): first attempts, and in an ordered lane retries
        self._queue: deque[tuple[float, Work]] = deque()
        self._bytes = 0  # of the queue
        self._retries: list[tuple[float, int, Work]] = []  # heap by due time
        self._served = False  # whether anything was served in this second
        self._throttled = False  # whether anything was throttled in this second
        self._until = now + 1.0  # when this second ends and `concurrency` is adapted
        self.in_flight = 0
        self.failures = 0
        """Rounds of batches in a row in which the service served nothing."""
        self.paused_until = -math.inf
        self.concurrency = 1
        self.limit = limits.operations

    # -- queueing

    def append(self, since: float, work: Work) -> None:
        """Queues a first attempt. The oldest work stays in front, because the flush timer runs for the front."""
        if self.ordered:
            self._insert_in_order(since, work)
        elif self._queue and since < self._queue[0][0]:
            self._queue.appendleft((since, work))
        else:
            self._queue.append((since, work))
        self._bytes += work.size

    def retry(self, due: float, number: int, work: Work) -> None:
        """Queues a retry for the time `due`. Works that are due together are sent by their `number`."""
        heappush(self._retries, (due, number, work))

    def give_back(self, work: Work, due: float) -> None:
        """Queues a retry in an ordered lane: in its order, and the lane sends nothing before `due`."""
        self._insert_in_order(-math.inf, work, front=True)
        self._bytes += work.size
        self.pause(due)

    def _insert_in_order(self, since: float, work: Work, *, front: bool = False) -> None:
        """Inserts by sequence number, behind other records of its event or in `front` of them. Usually that is the end (a
        new event) or the front (a retry).

        No service is known to deliver an event late. If one did and the event stayed behind later ones, the position
        committed with a later event would skip it.
        """
        queue, number = self._queue, work.record.event.sequence_number
        # Before or behind `number`, as sequence numbers are whole.
        bound = number - 0.5 if front else number + 0.5
        if not queue or _number(queue[-1]) < bound:
            queue.append((since, work))
        elif bound < _number(queue[0]):
            queue.appendleft((min(since, queue[0][0]), work))  # keeps the flush timer running
        else:
            queue.insert(bisect(queue, bound, key=_number), (since, work))

    def pause(self, until: float) -> None:
        self.paused_until = max(self.paused_until, until)

    # -- sending

    def may_send(self, now: float, *, flush: bool) -> bool:
        """Whether a batch may be sent: it is full, its oldest record has waited for the flush timer, or a retry is due."""
        if self._busy or self.paused_until > now:
            return False
        if self._retries and self._retries[0][0] <= now:
            return True
        if not self._queue or self._is_held:
            return False
        return flush or self._queue[0][0] + self._limits.flush_after <= now or self._full

    @property
    def _is_held(self) -> bool:
        return bool(self._holds) and _number(self._queue[0]) >= min(self._holds)

    @property
    def _busy(self) -> bool:
        return self.in_flight >= (1 if self.ordered else self.concurrency)

    @property
    def _full(self) -> bool:
        return len(self._queue) >= self.limit or self._bytes >= self._limits.bytes

    def cut(self, now: float, take: Take, most: int) -> list[Work]:
        """Takes the works of the next batch, `most` at most: due retries, then first attempts as far as the rate allows.

        At least one place is left for first attempts, so that records that are refused again and again do not hold up
        the others.
        """
        works: list[Work] = []
        size = 0
        limit = min(self.limit, most)
        max_retries = limit - 1 if self._queue and limit > 1 else limit
        while self._retries and self._retries[0][0] <= now and len(works) < max_retries:
            work = self._retries[0][2]
            if works and size + work.size > self._limits.bytes:
                break
            heappop(self._retries)
            size += work.size
            works.append(work)
        fitting = self._count_fitting(limit - len(works), size, alone=not works)
        granted = self._grant_in_order(fitting, take) if self.ordered else fitting and take(fitting, 0)
        for _ in range(granted):
            work = self._queue.popleft()[1]
            self._bytes -= work.size
            if not work.attempts:
                work.started_at = now
            works.append(work)
        for work in works:
            work.attempts += 1
        return works

    def _grant_in_order(self, fitting: int, take: Take) -> int:
        """How many of the `fitting` works in front may be sent. All records of an event are sent in one batch, because the
        sink stores with them that the event is written: at least one event, however large, as soon as the rate grants
        its first record.
        """
        if self._holds:
            bound = min(self._holds)
            fitting = sum(
                1 for _ in takewhile(lambda item: _number(item) < bound, islice(self._queue, fitting))
            )
        tried = takewhile(lambda item: item[1].attempts, islice(self._queue, fitting))
        retries = sum(1 for _ in tried)  # the rate counted them at their first attempt
        fitting = self._end_of_event(fitting)
        granted = retries + take(fitting - retries, 0) if fitting > retries else retries
        if granted and (others := self._end_of_event(granted, up=True) - granted):
            granted += take(0, others)
        return granted

    def _end_of_event(self, place: int, *, up: bool = False) -> int:
        """The place in the queue nearest to `place` where an event ends: before it, if one does and not `up`."""
        queue, end = self._queue, place
        while not up and 0 < end < len(queue) and _number(queue[end - 1]) == _number(queue[end]):
            end -= 1
        end = end or place
        while 0 < end < len(queue) and _number(queue[end - 1]) == _number(queue[end]):
            end += 1
        return end

    def _count_fitting(self, most: int, size: int, *, alone: bool) -> int:
        """How many queued works, `most` at most, fit a batch of `size` bytes. With `alone` one of any size fits."""
        fitting = 0
        for _, work in islice(self._queue, most):
            size += work.size
            if size > self._limits.bytes and not (alone and fitting == 0):
                break
            fitting += 1
        return fitting

    def note_results(self, works: Sequence[Work], results: Sequence[WriteResult], now: float) -> None:
        """Adapts concurrency and batch size to the results of a batch."""
        throttled = sum(result.throttled for result in results)
        served = any(result.outcome is not Outcome.RETRY for result in results)
        unserved = not served and any(result.unserved for result in results)
        self._adapt(len(works), throttled, now, served=served, unserved=unserved)

    def note_written(self, count: int, now: float) -> None:
        """`note_results` for a batch of `count` works that were all written."""
        self._adapt(count, 0, now, served=True, unserved=False)

    def _adapt(self, count: int, throttled: int, now: float, *, served: bool, unserved: bool) -> None:
        self.in_flight -= 1
        if served:
            self.failures = 0
        elif unserved and now >= self.paused_until:
            self.failures += 1
        self._served |= served
        self._throttled |= throttled > 0 or unserved
        if throttled:
            self.limit = max(min(_MIN_BATCH, self._limits.operations), count - throttled)
        elif count >= self.limit:
            self.limit = min(self._limits.operations, max(self.limit + 1, self.limit * 5 // 4))
        if now < self._until:
            return
        if self._throttled:
            self.concurrency -= min(5, self.concurrency // 2)
        elif self._served:
            self.concurrency = min(self._limits.concurrency, self.concurrency + 1)
        self._served = self._throttled = False
        self._until = now + 1.0

    # -- changes

    def remove(self, work_list: WorkList) -> list[Work]:
        """Removes and returns the works that are dropped with this list; see Work.is_dropped."""
        works = [work for _, work in self._queue] + [work for _, _, work in self._retries]
        self._replace_queue(item for item in self._queue if not item[1].is_dropped(work_list))
        self._retries = [item for item in self._retries if not item[2].is_dropped(work_list)]
        heapify(self._retries)
        return [work for work in works if work.is_dropped(work_list)]

    def take_all(self) -> tuple[list[tuple[float, Work]], list[tuple[float, int, Work]]]:
        """Removes and returns everything: the queue as (since, work), the retries as (due, number, work)."""
        queued, retries = list(self._queue), self._retries
        self._replace_queue(())
        self._retries = []
        return queued, retries

    def _replace_queue(self, items: Iterable[tuple[float, Work]]) -> None:
        self._queue = deque(items)
        self._bytes = sum(work.size for _, work in self._queue)

    # -- reading

    @property
    def queued(self) -> list[Work]:
        return [work for _, work in self._queue]

    @property
    def waiting(self) -> int:
        """Works that wait here, for their first attempt or a retry."""
        return len(self._queue) + len(self._retries)

    def next_at(self, next_start: float) -> float:
        """When `may_send` may become true without further input. `next_start` is when the rate allows a first attempt."""
        if self._busy:
            return math.inf
        earliest = math.inf
        if self._retries:
            earliest = max(self._retries[0][0], self.paused_until)
        if self._queue and not self._is_held:
            due = -math.inf if self._full else self._queue[0][0] + self._limits.flush_after
            start = -math.inf if self._queue[0][1].attempts else next_start
            earliest = min(earliest, max(due, start, self.paused_until))
        return earliest


def _number(item: tuple[float, Work]) -> int:
    return item[1].record.event.sequence_number
