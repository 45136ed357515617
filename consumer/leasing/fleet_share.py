"""What one instance may start of a rate that all share, also while the hub grows. Pure.

Every instance takes, of the whole, as many parts as it owns partitions, and divides by the number of partitions it knows.
A partition has one owner, so that the parts never add up to more than the whole as long as all divide by the same number.

When a hub grows, some know it before others. Who does not know yet divides by the smaller number, and its parts may use up
the whole. So whoever learns of it divides by the larger number at once, but leaves the new partitions alone until
everybody must have learned of them. Where somebody has claimed one, he has waited that long for everybody.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

SETTLED_AFTER = 120.0
"""Seconds after which every instance knows of a new partition: each asks once a minute, and has another one to ask
again where the answer is late.
"""


class FleetShare:
    """What this instance knows of the partitions. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._from: dict[str, float] = {}  # when a partition may be received

    @property
    def partitions(self) -> int:
        """How many partitions are known; 0 before the first look."""
        return len(self._from)

    def receivable(
        self, partitions: Sequence[str], now: float, *, known_to_all: Collection[str] = ()
    ) -> list[str]:
        """Those of the hub's partitions, as it tells them now, that may be received."""
        for each in partitions:
            self._from.setdefault(each, now + SETTLED_AFTER)
            if each in known_to_all:
                self._from[each] = -math.inf
        return [each for each in partitions if self._from[each] <= now]

    def rate(self, whole: float, owned: int) -> float:
        """Records per second of an instance that owns so many partitions. Ask after the first look."""
        return whole * owned / len(self._from)
