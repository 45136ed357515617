"""One lane: its queue, its retries, and the congestion control of .NET's and JavaScript's bulk executors.

It starts with one batch at a time, allows one more after each second in which something was written and nothing throttled,
and after a throttled one fewer by the smaller of five and half. Besides, a throttled batch limits the next one to what
was written of it: operations that will be refused cost request units all the same.

Of a batch that was not served at all (429, 408, 5xx, no answer) the same is learned, and the lane waits: longer each time,
until a batch is served. Those that were on their way together count once.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile

from msgspec import Struct

from consumer.core.settled.low_water import WorkList
from consumer.model import Outcome, Record, WriteResult
from consumer.options import BatchLimits

_LEAST = 2  # records in a batch, however much is throttled: one that is tried again, and one that is not

OPERATION_OVERHEAD = 64
"""Bytes around a document in a bulk request: operation type, field names, braces."""


class Work(Struct, eq=False, gc=False):
    """A record on its way through the pipeline. It refers to nothing that refers back: see consumer.model."""

    record: Record
    work_list: WorkList
    attempts: int = 0
    since: float = math.inf
    """When it came: the flush timer runs from there, also for one that waits for its key."""
    started_at: float = math.inf
    size: int = 0
    """Bytes in a bulk request."""
    held: int = 0
    """Bytes in memory."""
    superseded: Sequence[Work] = ()

    def __post_init__(self) -> None:
        record = self.record
        payload = len(record.payload)
        self.size = payload + len(record.partition_key) + OPERATION_OVERHEAD
        self.held = record.size

    def __repr__(self) -> str:
        event = self.record.event
        return f"<{event.partition}/{event.sequence_number} key {self.record.key!r} attempts {self.attempts}>"


Take = Callable[[int], int]
"""How many of that many first attempts may start now."""


class Lane:
    """What waits for a lane, and how much of it may be on the way at once."""

    def __init__(self, limits: BatchLimits, now: float, *, ordered: bool) -> None:
        self._limits = limits
        self._ordered = ordered
        self._queue: deque[tuple[float, Work]] = deque()  # since when, first attempts (and ordered retries)
        self._bytes = 0  # of the queue
        self._retries: list[tuple[float, int, Work]] = []  # heap by due time
        self._served = False  # in this second, something was
        self._throttled = False  # the same
        self._until = now + 1.0  # when the congestion window is evaluated
        self.in_flight = 0
        self.failures = 0
        """Rounds of batches in a row of which nothing was served."""
        self.paused_until = -math.inf
        self.concurrency = 1
        self.limit = limits.operations

    # -- in

    def append(self, since: float, work: Work) -> None:
        """The oldest stays in front: it is the one that the flush timer runs for."""
        if self._ordered:
            self._place(since, work)
        elif self._queue and since < self._queue[0][0]:
            self._queue.appendleft((since, work))
        else:
            self._queue.append((since, work))
        self._bytes += work.size

    def retry(self, due: float, number: int, work: Work) -> None:
        """The work goes again when it is due; works that are due at once go by their numbers."""
        heappush(self._retries, (due, number, work))

    def give_back(self, work: Work, due: float) -> None:
        """The work goes again at its place in the order, and none before it is due."""
        self._place(-math.inf, work)
        self._bytes += work.size
        self.pause(due)

    def _place(self, since: float, work: Work) -> None:
        """By the sequence number. Events come in order, and what is tried again is before what waits; no service
        sends one late, but the position that is committed with a later one would step over it.
        """
        queue, number = self._queue, work.record.event.sequence_number
        if not queue or _number(queue[-1]) < number:
            queue.append((since, work))
        elif number < _number(queue[0]):
            queue.appendleft((min(since, queue[0][0]), work))  # the flush timer goes on
        else:
            queue.insert(bisect(queue, number, key=_number), (since, work))

    def pause(self, until: float) -> None:
        self.paused_until = max(self.paused_until, until)

    # -- out

    def may_send(self, now: float, *, flush: bool) -> bool:
        """Whether a batch may leave: full, waited for long enough, or a retry that is due."""
        if self._busy or self.paused_until > now:
            return False
        if self._retries and self._retries[0][0] <= now:
            return True
        if not self._queue:
            return False
        return flush or self._queue[0][0] + self._limits.flush_after <= now or self._full

    @property
    def _busy(self) -> bool:
        return self.in_flight >= (1 if self._ordered else self.concurrency)

    @property
    def _full(self) -> bool:
        return len(self._queue) >= self.limit or self._bytes >= self._limits.bytes

    def cut(self, now: float, take: Take) -> list[Work]:
        """Due retries first, then first attempts as far as the rate allows; of these at least one, so that no record
        which is refused again and again holds up the others.
        """
        works: list[Work] = []
        size = 0
        most = self.limit - 1 if self._queue and self.limit > 1 else self.limit
        while self._retries and self._retries[0][0] <= now and len(works) < most:
            work = self._retries[0][2]
            if works and size + work.size > self._limits.bytes:
                break
            heappop(self._retries)
            size += work.size
            works.append(work)
        fresh = self._fit(self.limit - len(works), size, alone=not works)
        tried = takewhile(lambda item: item[1].attempts, islice(self._queue, fresh)) if self._ordered else ()
        again = sum(1 for _ in tried)
        granted = again + take(fresh - again) if fresh > again else again
        for _ in range(granted):
            work = self._pop()
            if not work.attempts:
                work.started_at = now
            works.append(work)
        for work in works:
            work.attempts += 1
        return works

    def _fit(self, most: int, size: int, *, alone: bool) -> int:
        fitting = 0
        for _, work in islice(self._queue, most):
            size += work.size
            if size > self._limits.bytes and not (alone and fitting == 0):
                break
            fitting += 1
        return fitting

    def _pop(self) -> Work:
        work = self._queue.popleft()[1]
        self._bytes -= work.size
        return work

    def answered(self, works: Sequence[Work], results: Sequence[WriteResult], now: float) -> None:
        """A batch is back: the congestion control learns of it."""
        self.in_flight -= 1
        throttled = sum(result.throttled for result in results)
        served = any(result.outcome is not Outcome.RETRY for result in results)
        unserved = not served and any(result.unserved for result in results)
        if served:
            self.failures = 0
        elif unserved and now >= self.paused_until:
            self.failures += 1
        self._served |= served
        self._throttled |= throttled > 0 or unserved
        if throttled:
            self.limit = max(min(_LEAST, self._limits.operations), len(works) - throttled)
        elif len(works) >= self.limit:
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

    def remove(self, goes: Callable[[Work], bool]) -> list[Work]:
        """Takes out the works for which `goes` says so."""
        out = [work for work in self.works() if goes(work)]
        self._replace(item for item in self._queue if not goes(item[1]))
        self._retries = [item for item in self._retries if not goes(item[2])]
        heapify(self._retries)
        return out

    def empty(self) -> tuple[list[tuple[float, Work]], list[tuple[float, int, Work]]]:
        """Takes out everything: what is queued, since when, and what waits for a retry, due when."""
        queued, retries = list(self._queue), self._retries
        self._replace(())
        self._retries = []
        return queued, retries

    def _replace(self, items: Iterable[tuple[float, Work]]) -> None:
        self._queue = deque(items)
        self._bytes = sum(work.size for _, work in self._queue)

    # -- looking

    def next_at(self, next_start: float) -> float:
        """When `may_send` may be true without further input. `next_start` is when the rate allows a start."""
        if self._busy:
            return math.inf
        earliest = math.inf
        if self._retries:
            earliest = max(self._retries[0][0], self.paused_until)
        if self._queue:
            due = -math.inf if self._full else self._queue[0][0] + self._limits.flush_after
            start = -math.inf if self._queue[0][1].attempts else next_start
            earliest = min(earliest, max(due, start, self.paused_until))
        return earliest

    def works(self) -> list[Work]:
        """What is queued, then what waits for a retry."""
        return [work for _, work in self._queue] + [work for _, _, work in self._retries]


def _number(item: tuple[float, Work]) -> int:
    return item[1].record.event.sequence_number
