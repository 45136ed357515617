"""Which records are written together, when, and how many batches at once.

A lane (a physical partition of Cosmos, say) has its own queue, batches, throttling and congestion control, so that
a hot one slows no other. A batch leaves when it is full, when its first record has waited for the flush timer, or
when a retry is due. Congestion control is the one of the .NET and JavaScript bulk executors: start with one batch
at a time, one more after each second without throttling, after a throttled one fewer by the smaller of five and
half. Besides, a throttled batch limits the next one to what was written of it: operations that will be refused cost
request units all the same.

Records of one key are never on the way together: the later waits for the earlier, whatever becomes of it. With
`coalesce`, of several that wait only the last is written and settles the others; if it is rejected, the one before
it takes its place.

An ordered lane (a transactional sink) writes strictly in order of arrival, one batch at a time; what must be
retried goes back to the front.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice

from msgspec import Struct

from consumer.low_water import WorkList
from consumer.model import Batch, Outcome, Record, Routes, WriteResult
from consumer.retry import delay

_LEAST = 2  # records in a batch, however much is throttled: one that is tried again, and one that is not

OPERATION_OVERHEAD = 64
"""Bytes around a document in a bulk request: operation type, field names, braces."""


class BatchLimits(Struct, frozen=True):
    """How batches are cut."""

    operations: int = 100
    """The service takes up to 100 operations per request."""
    bytes: int = 220_201
    """As the .NET, Java and JavaScript SDKs cut their bulk requests; a larger record travels alone."""
    flush_after: float = 1.0
    concurrency: int = 20
    """Batches at once per lane; JavaScript's limit (.NET: 50)."""
    coalesce: bool = False


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
        self.held = payload + len(record.event.body)

    def __repr__(self) -> str:
        event = self.record.event
        return f"<{event.partition}/{event.sequence_number} key {self.record.key!r} attempts {self.attempts}>"


class _Lane:
    """The queue and the congestion control of one lane."""

    __slots__ = (
        "bytes",
        "concurrency",
        "in_flight",
        "limit",
        "paused_until",
        "queue",
        "retries",
        "throttled",
        "until",
    )

    def __init__(self, operations: int, now: float) -> None:
        self.queue: deque[tuple[float, Work]] = deque()  # since when, first attempts (and ordered retries)
        self.bytes = 0  # of the queue
        self.retries: list[tuple[float, int, Work]] = []  # heap by due time
        self.in_flight = 0
        self.paused_until = -math.inf
        self.concurrency = 1
        self.limit = operations
        self.throttled = False
        self.until = now + 1.0  # when the congestion window is evaluated

    def append(self, since: float, work: Work) -> None:
        """The oldest stays in front: it is the one that the flush timer runs for."""
        if self.queue and since < self.queue[0][0]:
            self.queue.appendleft((since, work))
        else:
            self.queue.append((since, work))
        self.bytes += work.size

    def pop(self) -> Work:
        work = self.queue.popleft()[1]
        self.bytes -= work.size
        return work

    def replace(self, items: Iterable[tuple[float, Work]]) -> None:
        self.queue = deque(items)
        self.bytes = sum(work.size for _, work in self.queue)


Take = Callable[[int], int]
"""How many of that many first attempts may start now."""


class Lanes:
    """All lanes of a sink. The caller says when: nothing here looks at a clock."""

    def __init__(self, limits: BatchLimits, routes: Routes) -> None:
        self.limits = limits
        self.ordered = routes.by_partition
        self._routes = routes
        self._lanes: dict[str, _Lane] = {}
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
                if self.limits.coalesce and waiting:
                    before = waiting.pop()
                    work.superseded = [*before.superseded, before]
                    before.superseded = []
                waiting.append(work)
                return
            self._keys[key] = None
        self._enqueue(work, now)

    def _enqueue(self, work: Work, now: float) -> None:
        self._lane(self._routes.lane_of(work.record), now).append(work.since, work)

    def _lane(self, name: str, now: float) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(self.limits.operations, now)
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
            while self._may_send(lane, now, flush=flush):
                works = self._cut(lane, now, take)
                if not works:
                    break
                self._turn += 1
                batches.append(self._batch(name, lane, works))
        return batches

    def _may_send(self, lane: _Lane, now: float, *, flush: bool) -> bool:
        concurrency = 1 if self.ordered else lane.concurrency
        if lane.in_flight >= concurrency or lane.paused_until > now:
            return False
        if lane.retries and lane.retries[0][0] <= now:
            return True
        if not lane.queue:
            return False
        return flush or lane.queue[0][0] + self.limits.flush_after <= now or self._full(lane)

    def _full(self, lane: _Lane) -> bool:
        return len(lane.queue) >= lane.limit or lane.bytes >= self.limits.bytes

    def _cut(self, lane: _Lane, now: float, take: Take) -> list[Work]:
        """Due retries first, then first attempts as far as the rate allows; of these at least one, so that no record
        which is refused again and again holds up the others.
        """
        works: list[Work] = []
        size = 0
        most = lane.limit - 1 if lane.queue and lane.limit > 1 else lane.limit
        while lane.retries and lane.retries[0][0] <= now and len(works) < most:
            work = lane.retries[0][2]
            if works and size + work.size > self.limits.bytes:
                break
            heappop(lane.retries)
            size += work.size
            works.append(work)
        fresh = self._fit(lane, lane.limit - len(works), size, alone=not works)
        again = sum(1 for _, work in islice(lane.queue, fresh) if work.attempts) if self.ordered else 0
        granted = again + take(fresh - again) if fresh > again else again
        for _ in range(granted):
            work = lane.pop()
            if not work.attempts:
                work.started_at = now
            works.append(work)
        for work in works:
            work.attempts += 1
        return works

    def _fit(self, lane: _Lane, most: int, size: int, *, alone: bool) -> int:
        fitting = 0
        for _, work in islice(lane.queue, most):
            size += work.size
            if size > self.limits.bytes and not (alone and fitting == 0):
                break
            fitting += 1
        return fitting

    def _batch(self, name: str, lane: _Lane, works: list[Work]) -> Batch:
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
        lane.in_flight -= 1
        self._congestion(lane, works, results, now)
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

    def _retry(self, lane: _Lane, again: list[tuple[Work, WriteResult]], now: float) -> None:
        if self.ordered:
            self._back(lane, again, now)
            return
        for work, result in again:
            if result.rerouted:
                self._stranded.append(work)
                continue
            due = now + delay(result.retry_after)
            if result.throttled:
                lane.paused_until = max(lane.paused_until, due)
            heappush(lane.retries, (due, next(self._numbers), work))

    def _back(self, lane: _Lane, again: list[tuple[Work, WriteResult]], now: float) -> None:
        for work, result in reversed(again):
            lane.queue.appendleft((-math.inf, work))
            lane.bytes += work.size
            lane.paused_until = max(lane.paused_until, now + delay(result.retry_after))

    def _congestion(self, lane: _Lane, works: list[Work], results: Sequence[WriteResult], now: float) -> None:
        throttled = sum(result.throttled for result in results)
        if throttled:
            lane.throttled = True
            lane.limit = max(min(_LEAST, self.limits.operations), len(works) - throttled)
        elif len(works) >= lane.limit:
            lane.limit = min(self.limits.operations, max(lane.limit + 1, lane.limit * 5 // 4))
        if now < lane.until:
            return
        if lane.throttled:
            lane.concurrency -= min(5, lane.concurrency // 2)
        else:
            lane.concurrency = min(self.limits.concurrency, lane.concurrency + 1)
        lane.throttled = False
        lane.until = now + 1.0

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
        queued = [item for lane in self._lanes.values() for item in lane.queue]
        retries = [item for lane in self._lanes.values() for item in lane.retries]
        retries += [(now, next(self._numbers), work) for work in self._stranded]
        self._stranded = []
        self._lanes = {
            name: lane for name, lane in self._lanes.items() if name in routes.lanes or lane.in_flight
        }
        for lane in self._lanes.values():
            lane.replace(())
            lane.retries = []
        for since, work in sorted(queued, key=lambda item: item[0]):
            self._lane(routes.lane_of(work.record), now).append(since, work)
        for due, number, work in retries:
            heappush(self._lane(routes.lane_of(work.record), now).retries, (due, number, work))

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
            out += [work for _, work in lane.queue if goes(work)]
            out += [work for _, _, work in lane.retries if goes(work)]
            lane.replace([item for item in lane.queue if not goes(item[1])])
            lane.retries = [item for item in lane.retries if not goes(item[2])]
            heapify(lane.retries)
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
        earliest = math.inf
        for lane in self._lanes.values():
            concurrency = 1 if self.ordered else lane.concurrency
            if lane.in_flight >= concurrency:
                continue
            if lane.retries:
                earliest = min(earliest, max(lane.retries[0][0], lane.paused_until))
            if lane.queue:
                due = -math.inf if self._full(lane) else lane.queue[0][0] + self.limits.flush_after
                start = -math.inf if lane.queue[0][1].attempts else next_start
                earliest = min(earliest, max(due, start, lane.paused_until))
        return earliest

    @property
    def in_flight(self) -> int:
        """Batches that are being written."""
        return len(self._batches)

    def batch(self, batch_id: int) -> Sequence[Work]:
        """The works of a batch that is being written."""
        return self._batches[batch_id][1]

    def works(self) -> Iterator[Work]:
        """Every work inside, in no order: for checks."""
        for lane in self._lanes.values():
            yield from (each for _, work in lane.queue for each in (work, *work.superseded))
            yield from (each for _, _, work in lane.retries for each in (work, *work.superseded))
        for _, batch in self._batches.values():
            yield from (each for work in batch for each in (work, *work.superseded))
        for waiting in self._keys.values():
            yield from (each for work in waiting or () for each in (work, *work.superseded))
        yield from (each for work in self._stranded for each in (work, *work.superseded))

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
