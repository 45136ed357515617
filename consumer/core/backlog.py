"""The events that a consumer holds, from receipt to settlement: their number, their bytes, the claim of each, and the limits at
which receiving pauses and resumes.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from consumer.core.claimed_partition import ClaimedPartition
from consumer.core.settled.low_water import WorkList
from consumer.core.work import Work, work_of
from consumer.model import Outcome, Record, Rejection, WriteResult
from consumer.options import BacklogLimits
from consumer.rejections import rejection_of_event
from tidemark.foundation.wording import count_text

LEAST_INTAKE = 100
"""Events that may be held however low the rate is: as many as one bulk request takes (BatchLimits.operations)."""


class Held(Struct, frozen=True):
    """What a pipeline holds.

    `unsaved` counts settled events of a partition that no checkpoint covers, `beyond` those above its low-water mark;
    both are the highest of all partitions.
    """

    count: int
    bytes: int
    unsaved: int
    beyond: int
    rate: float | None


def high_count(limits: BacklogLimits, rate: float | None) -> int:
    """The number of held events at which receiving pauses."""
    most = min(limits.high_count, max(1, limits.backlog_of // 2))
    if rate is None:
        return most
    return min(most, max(LEAST_INTAKE, math.ceil(rate * limits.intake_seconds)))


def pause_reason(limits: BacklogLimits, held: Held) -> str | None:
    """Why receiving must pause, or None."""
    high = high_count(limits, held.rate)
    if held.count >= high:
        return f"{count_text(held.count, 'event waits', 'events wait')}, the high mark is {high}"
    if held.bytes >= limits.high_bytes:
        return f"{count_text(held.bytes, 'byte waits', 'bytes wait')}, the high mark is {limits.high_bytes}"
    if held.unsaved >= limits.unsaved:
        unsaved = count_text(held.unsaved, "settled event is", "settled events are")
        return f"{unsaved} in no checkpoint: the checkpoint store does not answer"
    if held.beyond >= limits.unsaved:
        beyond = count_text(held.beyond, "event is", "events are")
        return f"{beyond} settled beyond one that is not; that one is retried first"
    return None


def may_resume(limits: BacklogLimits, held: Held) -> bool:
    """Whether a paused consumer is below its low marks."""
    return (
        held.count <= high_count(limits, held.rate) // 2
        and held.bytes <= limits.high_bytes // 2
        and max(held.unsaved, held.beyond) < limits.unsaved
    )


class Backlog:
    """The events held, and the claims of partitions under which they were received."""

    def __init__(self) -> None:
        self.partitions: dict[str, ClaimedPartition] = {}
        self.count = 0
        self.bytes = 0
        # In the order of their first attempts. OrderedDict, because a dict finds its first key ever more slowly as
        # earlier ones are deleted.
        self._begun: OrderedDict[Work, None] = OrderedDict()

    # -- claims

    def find_claimed(self, partition: str, epoch: int) -> ClaimedPartition | None:
        """The partition, if `epoch` is that of its present claim."""
        claimed = self.partitions.get(partition)
        return claimed if claimed is not None and claimed.claim.epoch == epoch else None

    def partition_of(self, work_list: WorkList) -> ClaimedPartition | None:
        """The partition, if this process still holds the claim of the work list."""
        claimed = self.partitions.get(work_list.partition)
        return claimed if claimed is not None and claimed.work_list is work_list else None

    # -- works

    def add(self, work: Work) -> None:
        self.bytes += work.held
        siblings = work.siblings
        if siblings is None:
            self.count += 1
        elif not siblings.is_counted:
            siblings.is_counted = True
            self.count += 1
            self.bytes += siblings.held

    def receive_all(self, partition: ClaimedPartition, records: Sequence[Record]) -> list[Work]:
        """Takes in events that are new and in order, each with one record, which is to be written. If any is not, none is taken."""
        if not partition.is_plain:
            return []
        work_list, works, entries = partition.work_list, list[Work](), list[tuple[int, str]]()
        for record in records:
            if record.of != 1 or record.rejection is not None or record.dropped is not None:
                return []
            event = record.event
            entries.append((event.sequence_number, event.offset))
            works.append(work_of(record, work_list))
        if not works or not work_list.receive_all(entries):
            return []
        self.count += len(works)
        self.bytes += sum([work.held for work in works])
        return works

    def begin(self, work: Work, now: float) -> None:
        """Notes the first attempt of a work; later attempts change nothing."""
        if work in self._begun:
            return
        work.started_at = now
        self._begun[work] = None
        siblings = work.siblings
        if siblings is not None:
            if siblings.is_begun:
                return
            siblings.is_begun = True
            work.work_list.note_partial(work.record.event.sequence_number)
        self._count_started(work, 1)

    def begin_batch(self, works: Sequence[Work], now: float) -> None:
        """`begin` for the works of a batch that are attempted for the first time, and for those that they supersede."""
        counts: dict[WorkList, int] = {}
        begun = self._begun
        for work in works:
            if work.attempts != 1:
                continue
            if work.siblings is None and not work.superseded and work not in begun:
                work.started_at = now
                begun[work] = None
                counts[work.work_list] = counts.get(work.work_list, 0) + 1
            else:
                for member in (work, *work.superseded):
                    self.begin(member, now)
        for work_list, count in counts.items():
            if (partition := self.partition_of(work_list)) is not None:
                partition.started += count

    def settle_written(self, works: Sequence[Work], results: Sequence[WriteResult]) -> bool:
        """`settle` for all works of a batch, if all are written and each is the only record of its event. Else nothing, and
        False.
        """
        numbers: dict[WorkList, list[int]] = {}
        for work, result in zip(works, results, strict=True):
            if result.outcome is not Outcome.WRITTEN or result.reason or not work.is_alone:
                return False
            if (written := numbers.get(work.work_list)) is None:
                written = numbers[work.work_list] = []
            written.append(work.record.event.sequence_number)
        for work_list, settled in numbers.items():
            if (partition := self.partition_of(work_list)) is not None:
                partition.settle_all(settled)
                partition.started -= len(settled)
        for work in works:
            del self._begun[work]
        self.count -= len(works)
        self.bytes -= sum([work.held for work in works])
        return True

    def settle(self, work: Work) -> None:
        """The record is written, or the dead letter of its event is stored: releases the work. With the last record of an
        event the event is settled, if this process still holds its claim.
        """
        siblings, partition = work.siblings, self.partition_of(work.work_list)
        if partition is not None and (siblings is None or (siblings.open == 1 and not siblings.is_given_up)):
            partition.settle(work.record.event.sequence_number)
        self._end(work)

    def reject(self, work: Work, rejection: Rejection, *, park: bool) -> Rejection:
        """Returns why the event is a dead letter, or parked: of all its records that were rejected, or parked, so far."""
        siblings = work.siblings
        if siblings is None:
            return rejection
        refused = [*(siblings.parked if park else siblings.rejected), (work.record, rejection)]
        if park:
            siblings.parked, siblings.has_parked = refused, True
        else:
            siblings.rejected = refused
        return rejection_of_event(refused)

    def release(self, work: Work) -> None:
        """The work is no longer held. This does not settle its event."""
        if work.siblings is not None:
            work.siblings.is_given_up = True
        self._end(work)

    def _end(self, work: Work) -> None:
        self.bytes -= work.held
        begun = work in self._begun
        if begun:
            del self._begun[work]
        siblings = work.siblings
        if siblings is not None:
            siblings.open -= 1
            if siblings.open:
                return
            self.bytes -= siblings.held
            begun = siblings.is_begun
        self.count -= 1
        if begun:
            self._count_started(work, -1)

    def _count_started(self, work: Work, by: int) -> None:
        partition = self.partition_of(work.work_list)
        if partition is not None:
            partition.started += by

    # -- reading

    def has_others(self, works: Sequence[Work]) -> bool:
        """Whether any record is held besides these."""
        events = Counter(id(work.siblings or work) for work in works)
        return self.count > len(events) or any(
            work.siblings is not None and work.siblings.open > events[id(work.siblings)] for work in works
        )

    def measure(self, rate: float | None) -> Held:
        """What is held, to be compared with the limits."""
        partitions = self.partitions.values()
        unsaved = max((partition.settled_unsaved for partition in partitions), default=0)
        beyond = max((partition.work_list.beyond for partition in partitions), default=0)
        return Held(self.count, self.bytes, unsaved, beyond, rate)

    def oldest_age(self, now: float) -> float:
        """Seconds since the first attempt of the event that was attempted first; 0 if none was attempted."""
        oldest = next(iter(self._begun), None)
        return 0.0 if oldest is None else now - oldest.started_at

    def describe_oldest(self, now: float, cause: str) -> str:
        """The oldest event, for the error that ends a consumer. `cause` is the reason of the last failure."""
        work = next(iter(self._begun), None)
        if work is None:
            return "none of them was attempted: the rate limit or the sink holds them all back"
        event = work.record.event
        return (
            f"the oldest is sequence number {event.sequence_number} of partition {event.partition}, begun"
            f" {now - work.started_at:.0f} s ago, {count_text(work.attempts, 'attempt')}; last cause: {cause or 'none reported'}"
        )
