"""The events that a consumer holds, from receipt to settlement: counted, weighed, and each under its claim.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict

from consumer.core.claimed_partition import ClaimedPartition
from consumer.core.lane import Work
from consumer.core.limits import Held


class Backlog:
    """What is held, and the claims of partitions that it was received under."""

    def __init__(self) -> None:
        self.partitions: dict[str, ClaimedPartition] = {}
        self.count = 0
        self.bytes = 0
        # In the order of their first attempts. Of a dict the first one is found ever more slowly as the first ones go.
        self._begun: OrderedDict[Work, None] = OrderedDict()

    # -- claims

    def current(self, partition: str, epoch: int) -> ClaimedPartition | None:
        """The partition, if this is the epoch of its present claim."""
        found = self.partitions.get(partition)
        return found if found is not None and found.claim.epoch == epoch else None

    def _partition_of(self, work: Work) -> ClaimedPartition | None:
        """The partition, if the claim that the work came under still is ours."""
        found = self.partitions.get(work.work_list.partition)
        return found if found is not None and found.work_list is work.work_list else None

    # -- works

    def add(self, work: Work) -> None:
        self.count += 1
        self.bytes += work.held

    def begin(self, work: Work, now: float) -> None:
        """Its first attempt, if none was."""
        if work in self._begun:
            return
        work.started_at = now
        self._begun[work] = None
        partition = self._partition_of(work)
        if partition is not None:
            partition.started += 1

    def settle(self, work: Work) -> None:
        """The event is done, if its claim still is ours; and out."""
        partition = self._partition_of(work)
        if partition is not None:
            partition.settle(work.record.event.sequence_number)
        self.release(work)

    def release(self, work: Work) -> None:
        """The work is out; of its event nothing is said."""
        self.count -= 1
        self.bytes -= work.held
        if work in self._begun:
            del self._begun[work]
            partition = self._partition_of(work)
            if partition is not None:
                partition.started -= 1

    # -- looking

    def held(self, rate: float | None) -> Held:
        """What the limits are about."""
        partitions = self.partitions.values()
        unsaved = max((each.settled_unsaved for each in partitions), default=0)
        beyond = max((each.work_list.beyond for each in partitions), default=0)
        return Held(self.count, self.bytes, unsaved, beyond, rate)

    def oldest_age(self, now: float) -> float:
        """Seconds since the first attempt of the one begun first; 0 if none is begun."""
        oldest = next(iter(self._begun), None)
        return 0.0 if oldest is None else now - oldest.started_at

    def story(self, now: float, cause: str) -> str:
        """The oldest event, for the error that ends a consumer; `cause` is of the last failure."""
        work = next(iter(self._begun), None)
        if work is None:
            return "none of them was begun: the rate limit or the sink holds them all"
        event = work.record.event
        return (
            f"the oldest is sequence number {event.sequence_number} of partition {event.partition}, begun"
            f" {now - work.started_at:.0f} s ago, {work.attempts} attempts; last cause: {cause or 'none told'}"
        )
