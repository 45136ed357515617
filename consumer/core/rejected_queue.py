"""Rejected events that wait for the dead-letter store. They are stored in lots, one at a time, in order of rejection.

Times are seconds of a monotonic clock.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from consumer.core.effects import RejectedRecord, StoreDeadLetters
from consumer.core.settled.low_water import WorkList
from consumer.core.work import Work
from consumer.model import Record, Rejection

DEAD_LETTERS_AT_ONCE = 100
"""Dead letters in one lot, hence in one call to the store: as many as one bulk request takes (BatchLimits.operations)."""

Rejected = tuple[Work, Rejection]


class RejectedQueue:
    """The rejected events that wait, and the lot that is being stored."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """`numbers` are those of lots."""
        self._waiting: deque[Rejected] = deque()
        self.partitions = Counter[str]()
        """How many wait, by partition; those of none are not there."""
        self._storing: tuple[int, list[Rejected]] | None = None
        self._not_before = -math.inf
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Rejected]:
        """Those that wait, without the lot that is being stored."""
        return iter(self._waiting)

    def add(self, work: Work, why: Rejection) -> None:
        self._waiting.append((work, why))
        self.partitions[work.work_list.partition] += 1

    def next_lot(self, now: float, room: Counter[str] | None = None) -> StoreDeadLetters | None:
        """The next lot to be stored; None while a lot is being stored, or until the pause after a failure ends.

        With `room` it is a lot to be parked: of a partition no more than there is room for.
        """
        if self._storing is not None or not self._waiting or now < self._not_before:
            return None
        lot = self._take(room)
        if not lot:
            return None
        self._recount(lot, -1)
        self._storing = (next(self._numbers), lot)
        events: dict[int, list[Rejected]] = {}
        for work, why in lot:
            events.setdefault(id(work.siblings or work), []).append((work, why))
        return StoreDeadLetters(
            self._storing[0],
            # Of several records of one event the last one's rejection names all.
            tuple(
                RejectedRecord(
                    refusals[-1][0].record,
                    refusals[-1][1],
                    refusals[-1][0].attempts,
                    _records(refusals, park=room is not None),
                    joins=(siblings := refusals[-1][0].siblings) is not None and siblings.has_parked,
                )
                for refusals in events.values()
            ),
            park=room is not None,
        )

    def _take(self, room: Counter[str] | None) -> list[Rejected]:
        if room is None:
            return [self._waiting.popleft() for _ in range(min(DEAD_LETTERS_AT_ONCE, len(self._waiting)))]
        lot: list[Rejected] = []
        for _ in range(len(self._waiting)):
            rejected = self._waiting.popleft()
            partition = rejected[0].work_list.partition
            # A claim that is over has no room, and its works are removed.
            if len(lot) < DEAD_LETTERS_AT_ONCE and room[partition] > 0:
                room[partition] -= 1
                lot.append(rejected)
            else:
                self._waiting.append(rejected)
        return lot

    def is_storing(self, lot_id: int) -> bool:
        return self._storing is not None and self._storing[0] == lot_id

    def take_stored(self, lot_id: int) -> list[Rejected]:
        """Removes and returns the lot that was being stored; empty if it is another one: the answer is outdated."""
        if self._storing is None or self._storing[0] != lot_id:
            return []
        lot, self._storing = self._storing[1], None
        return lot

    def put_back(self, lot: Sequence[Rejected], not_before: float) -> None:
        """Queues a lot that was not stored: in front, and not before the time `not_before`."""
        self._waiting.extendleft(reversed(lot))
        self._recount(lot, 1)
        self._not_before = not_before

    def remove(self, work_list: WorkList) -> list[Work]:
        """Removes and returns the waiting works that are dropped with this list; see Work.is_dropped."""
        dropped = [rejected for rejected in self._waiting if rejected[0].is_dropped(work_list)]
        self._waiting = deque(rejected for rejected in self._waiting if not rejected[0].is_dropped(work_list))
        self._recount(dropped, -1)
        return [work for work, _ in dropped]

    def _recount(self, rejected: Sequence[Rejected], by: int) -> None:
        for work, _ in rejected:
            self.partitions[work.work_list.partition] += by
        self.partitions = +self.partitions

    def next_at(self) -> float:
        """When `next_lot` may return a lot without further input."""
        return self._not_before if self._waiting and self._storing is None else math.inf


def _records(rejected: Sequence[Rejected], *, park: bool) -> tuple[Record, ...]:
    """Those of one event. Its dead letter replaces the one that was stored when another record of it was rejected."""
    siblings = rejected[-1][0].siblings
    if park or siblings is None:
        return tuple(work.record for work, _ in rejected)
    return tuple(record for record, _ in siblings.rejected)
