"""Rejected records on their way out of the pipeline: into the dead-letter store, or parked, to be tried again later.

An event is settled when it is stored in either of them. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

from consumer.core.backlog import Backlog
from consumer.core.effects import DeadLettersStored, StoreDeadLetters
from consumer.core.lanes import Lanes
from consumer.core.parked import BEHIND, name_of
from consumer.core.rejected_queue import Rejected, RejectedQueue
from consumer.core.settled.low_water import WorkList
from consumer.core.statistics import Totals
from consumer.core.work import Work
from consumer.model import Rejection
from consumer.options import ParkingRules
from tidemark.foundation.pacing.retry_delay import Backoff, Chance
from tidemark.foundation.wording import count_text


class Burial:
    """Two queues: of dead letters, and of what is to be parked."""

    def __init__(
        self, backlog: Backlog, lanes: Lanes, totals: Totals, rules: ParkingRules, chance: Chance | None
    ) -> None:
        self._backlog = backlog
        self._lanes = lanes
        self._totals = totals
        self._rules = rules
        numbers = count(1)
        self._letters, self._parking = RejectedQueue(numbers), RejectedQueue(numbers)
        self._backoffs = {self._letters: Backoff(chance), self._parking: Backoff(chance)}
        self.poison = 0
        """Dead letters in a row, with nothing written in between."""

    def bury(self, work: Work, rejection: Rejection) -> None:
        park = self.is_parkable(work, rejection)
        partition = self._backlog.partition_of(work.work_list)
        if park and partition is not None:
            partition.parked.add(work.record.event.sequence_number, name_of(work.record), work.record.key)
        (self._parking if park else self._letters).add(work, self._backlog.reject(work, rejection, park=park))
        self._lanes.hold(work)

    def is_parkable(self, work: Work, rejection: Rejection) -> bool:
        """Whether the record is to be tried again later. Ordered sinks skip what is below their mark, so theirs is not."""
        reasons = self._rules.reasons
        return (
            bool(reasons) and (rejection.reason in reasons or rejection is BEHIND) and self._is_by_key(work)
        )

    def _is_by_key(self, work: Work) -> bool:
        return not self._lanes.is_ordered(work)

    def take_behind(self, work: Work, rejection: Rejection) -> list[Work]:
        """The works that wait for a record that is to be parked, if they are to be parked behind it."""
        if not (self._rules.by_key and self.is_parkable(work, rejection)):
            return []
        return self._lanes.take_waiting(work)

    def is_behind(self, work: Work) -> bool:
        """Whether an earlier event with the key of the record just received is parked."""
        if not self._rules.by_key:
            return False
        partition, number = self._backlog.partition_of(work.work_list), work.record.event.sequence_number
        return (
            partition is not None
            and partition.parked.is_behind(number, work.record.key)
            and self._is_by_key(work)
        )

    def next_lots(self, now: float) -> Iterator[StoreDeadLetters]:
        if (lot := self._letters.next_lot(now)) is not None:
            yield lot
        room = self._room() if self._parking.partitions else None
        if room and (lot := self._parking.next_lot(now, room)) is not None:
            yield lot

    def _room(self) -> Counter[str]:
        """How many more events may be parked, by partition; those that are full are not there."""
        partitions = self._backlog.partitions
        parking = {name: partitions[name] for name in self._parking.partitions if name in partitions}
        counts = {
            name: math.inf
            if partition.draining or partition.parked.are_ahead(partition.work_list.mark[0])
            else self._rules.most - partition.parked.count
            for name, partition in parking.items()
        }
        return +Counter(counts)

    def next_at(self) -> float:
        """When `next_lots` may return a lot without further input. A partition that is full waits for input."""
        parking = self._parking.next_at() if self._parking.partitions and self._room() else math.inf
        return min(self._letters.next_at(), parking)

    def stored(self, item: DeadLettersStored, now: float) -> str:
        """Returns the cause, if they were not stored."""
        queue = self._letters if self._letters.is_storing(item.lot_id) else self._parking
        lot = queue.take_stored(item.lot_id)
        if item.stored:
            self._backoffs[queue].worked()
            is_alone = self._is_alone(lot)
            for work, _ in lot:
                self._count(work, is_alone=is_alone, park=queue is self._parking)
                self._lanes.release_hold(work)
                self._backlog.settle(work)
            return ""
        for work, _ in lot:
            if work.work_list.closed:
                self._lanes.release_hold(work)
                self._backlog.release(work)
        if lot:
            kept = [rejected for rejected in lot if not rejected[0].work_list.closed]
            queue.put_back(kept, now + self._backoffs[queue].failed())
        return "the dead-letter store does not take them" if lot else ""

    def _is_alone(self, lot: Sequence[Rejected]) -> bool:
        """Whether nothing is held besides this lot and what is rejected too."""
        if self._backlog.count > len(lot) + len(self._letters) + len(self._parking):
            return False
        return not self._backlog.has_others([work for work, _ in (*lot, *self._letters, *self._parking)])

    def _count(self, work: Work, *, is_alone: bool, park: bool) -> None:
        if park:
            partition, number = self._backlog.partition_of(work.work_list), work.record.event.sequence_number
            if partition is not None and not partition.parked.has_stored(number):
                self._totals.parked += 1
                # Again: another record of the event may have been written since, which ended what was parked then.
                partition.parked.add(number, name_of(work.record), work.record.key)
                partition.parked.note_stored(number)
        elif _is_first_letter(work):
            self._totals.dead_letters += 1
            # A record rejected before any attempt proves no poison while others still wait for the sink: they may be
            # written in between.
            self.poison += bool(work.attempts) or is_alone

    def remove(self, work_list: WorkList) -> list[Work]:
        """Removes and returns the works that are dropped with this list; see Work.is_dropped."""
        removed = self._letters.remove(work_list) + self._parking.remove(work_list)
        for work in removed:
            self._lanes.release_hold(work)
        return removed

    def full_text(self) -> str:
        """Which partition has as many parked events as it may have, if any is held by that; the cause that people are shown."""
        full = (
            sorted(self._parking.partitions.keys() - self._room().keys()) if self._parking.partitions else []
        )
        if not full:
            return ""
        parked = count_text(self._rules.most, "parked event")
        return f"partition {full[0]} has {parked}, as many as CONSUMER_PARK_MOST allows"


def _is_first_letter(work: Work) -> bool:
    """Whether this is the first time that the dead letter of the event is stored."""
    siblings = work.siblings
    if siblings is None:
        return True
    first, siblings.is_dead_letter = not siblings.is_dead_letter, True
    return first
