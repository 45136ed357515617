"""Rejected events on their way to the dead-letter store: one lot at a time, in the order they were rejected.

Times are seconds of a monotonic clock.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from consumer.core.effects import RejectedRecord, StoreDeadLetters
from consumer.core.lane import Work
from consumer.model import Rejection

DEAD_LETTERS_AT_ONCE = 100

Rejected = tuple[Work, Rejection]


class RejectedQueue:
    """What waits for the store, and the lot that is being stored."""

    def __init__(self) -> None:
        self._waiting: deque[Rejected] = deque()
        self._storing: tuple[int, list[Rejected]] | None = None
        self._not_before = -math.inf
        self._numbers = count(1)

    def __len__(self) -> int:
        """What waits; without the lot that is being stored."""
        return len(self._waiting)

    def add(self, work: Work, why: Rejection) -> None:
        self._waiting.append((work, why))

    def next_lot(self, now: float) -> StoreDeadLetters | None:
        """The next lot to be stored, unless one is on its way, or the store has asked for patience."""
        if self._storing is not None or not self._waiting or now < self._not_before:
            return None
        lot = [self._waiting.popleft() for _ in range(min(DEAD_LETTERS_AT_ONCE, len(self._waiting)))]
        self._storing = (next(self._numbers), lot)
        return StoreDeadLetters(
            self._storing[0], tuple(RejectedRecord(work.record, why, work.attempts) for work, why in lot)
        )

    def answered(self, lot_id: int) -> list[Rejected]:
        """Takes out the lot of that number; empty when there is none: the answer is an old one."""
        if self._storing is None or self._storing[0] != lot_id:
            return []
        lot, self._storing = self._storing[1], None
        return lot

    def put_back(self, lot: Sequence[Rejected], not_before: float) -> None:
        """The store did not take these: they come first, and not before that time."""
        self._waiting.extendleft(reversed(lot))
        self._not_before = not_before

    def remove(self, goes: Callable[[Work], bool]) -> list[Work]:
        """Takes out of what waits the works for which `goes` says so."""
        out = [work for work, _ in self._waiting if goes(work)]
        self._waiting = deque(each for each in self._waiting if not goes(each[0]))
        return out

    def next_at(self) -> float:
        """When `next_lot` may have something without further input."""
        return self._not_before if self._waiting and self._storing is None else math.inf
