"""Rejected events that wait for the dead-letter store. They are stored in lots, one at a time, in order of rejection.

Times are seconds of a monotonic clock.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import count

from consumer.core.effects import RejectedRecord, StoreDeadLetters
from consumer.core.settled.low_water import WorkList
from consumer.core.work import Work
from consumer.model import Rejection

DEAD_LETTERS_AT_ONCE = 100
"""Dead letters in one lot, hence in one call to the store: as many as one bulk request takes (BatchLimits.operations)."""

Rejected = tuple[Work, Rejection]


class RejectedQueue:
    """The rejected events that wait, and the lot that is being stored."""

    def __init__(self) -> None:
        self._waiting: deque[Rejected] = deque()
        self._storing: tuple[int, list[Rejected]] | None = None
        self._not_before = -math.inf
        self._numbers = count(1)

    def __len__(self) -> int:
        """How many wait, without the lot that is being stored."""
        return len(self._waiting)

    def add(self, work: Work, why: Rejection) -> None:
        self._waiting.append((work, why))

    def next_lot(self, now: float) -> StoreDeadLetters | None:
        """The next lot to be stored; None while a lot is being stored, or until the pause after a failure ends."""
        if self._storing is not None or not self._waiting or now < self._not_before:
            return None
        lot = [self._waiting.popleft() for _ in range(min(DEAD_LETTERS_AT_ONCE, len(self._waiting)))]
        self._storing = (next(self._numbers), lot)
        # Of several records of one event the last one's rejection tells of all.
        events = {id(work.siblings or work): (work, why) for work, why in lot}
        return StoreDeadLetters(
            self._storing[0],
            tuple(RejectedRecord(work.record, why, work.attempts) for work, why in events.values()),
        )

    def take_stored(self, lot_id: int) -> list[Rejected]:
        """Removes and returns the lot that was being stored; empty if it is another one: the answer is outdated."""
        if self._storing is None or self._storing[0] != lot_id:
            return []
        lot, self._storing = self._storing[1], None
        return lot

    def put_back(self, lot: Sequence[Rejected], not_before: float) -> None:
        """Queues a lot that was not stored: in front, and not before the time `not_before`."""
        self._waiting.extendleft(reversed(lot))
        self._not_before = not_before

    def remove(self, work_list: WorkList) -> list[Work]:
        """Removes and returns the waiting works that are dropped with this list; see Work.is_dropped."""
        dropped = [work for work, _ in self._waiting if work.is_dropped(work_list)]
        self._waiting = deque(rejected for rejected in self._waiting if not rejected[0].is_dropped(work_list))
        return dropped

    def next_at(self) -> float:
        """When `next_lot` may return a lot without further input."""
        return self._not_before if self._waiting and self._storing is None else math.inf
