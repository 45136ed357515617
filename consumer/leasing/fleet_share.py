"""The share of one instance in a rate that all instances share, also while the hub gets partitions. Pure.

    rate of an instance = fleet rate * partitions that it owns / partitions that it knows

A partition has one owner, so the rates never add up to more than the fleet rate if all instances know the same number of
partitions.

When a hub gets partitions, some instances know it before others. An instance that does not know yet divides by the smaller
number, and those instances together may use all of the fleet rate. Therefore an instance that knows divides by the larger
number at once, but does not receive the new partitions until every instance must know them. A new partition that another
instance has claimed may be received at once, because that instance has waited.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

SETTLED_AFTER = 120.0
"""Seconds after which every instance knows a new partition: each asks once a minute, plus a minute for an answer that is
late.
"""


class FleetShare:
    """The partitions that this instance knows. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._receivable_from: dict[str, float] = {}  # by partition, in the loop's time

    @property
    def partitions(self) -> int:
        """How many partitions are known; 0 before the first listing."""
        return len(self._receivable_from)

    def receivable(
        self, partitions: Sequence[str], now: float, *, known_to_all: Collection[str] = ()
    ) -> list[str]:
        """Those of the hub's present partitions that may be received."""
        for partition in partitions:
            self._receivable_from.setdefault(partition, now + SETTLED_AFTER)
            if partition in known_to_all:
                self._receivable_from[partition] = -math.inf
        return [partition for partition in partitions if self._receivable_from[partition] <= now]

    def rate(self, fleet_rate: float, owned: int) -> float:
        """Records per second of an instance with `owned` partitions. Call it after the first listing."""
        return fleet_rate * owned / len(self._receivable_from)
