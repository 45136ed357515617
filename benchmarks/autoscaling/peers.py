"""Peers that only the benchmark compares, as their documentation or source describes them: see docs/service-level.md."""

from __future__ import annotations

from collections import deque
from math import ceil

from tidemark.analysis.simulation.world import Seen


class Static:
    """The same number all the time."""

    def __init__(self, count: int) -> None:
        self.interval, self.count = 60, count

    def see(self, _: Seen) -> int:
        return self.count


class ClassicRule:
    """Fixed thresholds, as in Shilkov's autoscaler of 2017: every minute, the average of ten minutes above `up` adds an
    instance, the maximum below `down` takes one, ten minutes after the last change at the earliest.
    """

    interval = 60

    def __init__(self, up: float = 5000, down: float = 1000) -> None:
        self.up, self.down = up, down
        self.history: deque[tuple[float, float]] = deque()
        self.last = -1e9

    def see(self, seen: Seen) -> int:
        self.history.append((seen.t, seen.active))
        while self.history[0][0] < seen.t - 600:
            self.history.popleft()
        values = [value for _, value in self.history]
        if len(values) < 5 or not seen.t - self.last > 600:
            return seen.total
        if int(sum(values) / len(values)) > self.up:
            self.last = seen.t
            return seen.total + 1
        if int(max(values)) < self.down:
            self.last = seen.t
            return seen.total - 1
        return seen.total


class TargetBased:
    """Target-based scaling of Azure Functions: ceil(active / target), every 30 s, `up` more and `down` fewer at most."""

    interval = 30

    def __init__(self, target: float = 16.0, up: int = 4, down: int = 1) -> None:
        self.target, self.up, self.down = target, up, down

    def see(self, seen: Seen) -> int:
        wanted = ceil(seen.active / self.target)
        return min(max(wanted, seen.total - self.down), seen.total + self.up)


class Aws:
    """Target tracking on the backlog per instance: out after `out_minutes` above the target, in after `in_minutes`
    below nine tenths of it, a tenth of the instances a minute at most.
    """

    interval = 60

    def __init__(self, target: float = 600.0, out_minutes: int = 3, in_minutes: int = 15) -> None:
        self.target, self.out_minutes, self.in_minutes = target, out_minutes, in_minutes
        self.above = self.below = 0

    def see(self, seen: Seen) -> int:
        each = seen.active / max(seen.ready, 1)
        self.above = self.above + 1 if each > self.target else 0
        self.below = self.below + 1 if each < 0.9 * self.target else 0
        wanted = ceil(seen.active / self.target)
        if self.above >= self.out_minutes and wanted > seen.total:
            return wanted
        if self.below >= self.in_minutes and wanted < seen.total:
            return max(wanted, seen.total - max(int(seen.total * 0.1), 1))
        return seen.total


class Naive:
    """Ten lines anybody can write: the arrival rate of the last interval times 1.3, and what waits within a minute."""

    interval = 15

    def __init__(self, service_rate: float = 10.0) -> None:
        self.service_rate, self.before = service_rate, 0.0

    def see(self, seen: Seen) -> int:
        rate = (seen.arrived - self.before) / self.interval
        self.before = seen.arrived
        return ceil((rate * 1.3 + seen.waiting / 60.0) / self.service_rate)
