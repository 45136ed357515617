"""What users have today, transcribed: each is as its own documentation or source says, and no better. Pure.

Sources: docs/service-level.md names them. Every peer sees the true counts of the moment, which in life they do not.
"""

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

    def miss(self, seen: Seen) -> None:
        pass


class _Peer:
    """A peer holds what there is while it sees nothing."""

    interval = 60

    def miss(self, seen: Seen) -> None:
        pass


class ClassicRule(_Peer):
    """Fixed thresholds, as in Shilkov's autoscaler of 2017: every minute, the average of ten minutes above `up` adds an
    instance, the maximum below `down` takes one, ten minutes after the last change at the earliest.
    """

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


class Keda(_Peer):
    """KEDA on a queue, which hands the count to the HPA (AverageValue): ceil(active / target) outside a tolerance of a
    tenth, at most twice as many or four more per 15 s, down to the highest recommendation of the stabilization window.
    """

    interval = 15

    def __init__(self, target: float = 5.0, stabilization: float = 300.0) -> None:
        self.target, self.stabilization = target, stabilization
        self.recommended: deque[tuple[float, int]] = deque()

    def see(self, seen: Seen) -> int:
        current = seen.total
        ratio = seen.active / (self.target * max(current, 1))
        wanted = current if abs(1.0 - ratio) <= 0.1 else ceil(seen.active / self.target)
        wanted = min(wanted, max(2 * current, current + 4))
        while self.recommended and self.recommended[0][0] <= seen.t - self.stabilization:
            self.recommended.popleft()
        while self.recommended and self.recommended[-1][1] <= wanted:
            self.recommended.pop()
        self.recommended.append((seen.t, wanted))
        return wanted if wanted >= current else min(current, self.recommended[0][1])


class TargetBased(_Peer):
    """Target-based scaling of Azure Functions: ceil(active / target), every 30 s, `up` more and `down` fewer at most."""

    interval = 30

    def __init__(self, target: float = 16.0, up: int = 4, down: int = 1) -> None:
        self.target, self.up, self.down = target, up, down

    def see(self, seen: Seen) -> int:
        wanted = ceil(seen.active / self.target)
        return min(max(wanted, seen.total - self.down), seen.total + self.up)


class AzureMonitor(_Peer):
    """Azure Monitor autoscale on active messages per instance: the average of a window above `out` adds `step`, below
    `inward` takes it, unless as many would scale out again; the cooldown is of both directions.
    """

    def __init__(
        self, out: float = 100, inward: float = 10, window: float = 600, cooldown: float = 300, step: int = 1
    ) -> None:
        self.out, self.inward, self.window, self.cooldown, self.step = out, inward, window, cooldown, step
        self.history: deque[tuple[float, float]] = deque()
        self.last = -1e9

    def see(self, seen: Seen) -> int:
        self.history.append((seen.t, seen.active))
        while self.history[0][0] <= seen.t - self.window:
            self.history.popleft()
        if seen.t - self.last < self.cooldown:
            return seen.total
        mean = sum(value for _, value in self.history) / len(self.history)
        each = mean / seen.total
        if each > self.out:
            self.last = seen.t
            return seen.total + self.step
        if each < self.inward:
            for fewer in range(max(seen.total - self.step, 1), seen.total):
                if mean / fewer <= self.out:
                    self.last = seen.t
                    return fewer
        return seen.total


class Aws(_Peer):
    """Target tracking on the backlog per instance: out after `out_minutes` above the target, in after `in_minutes`
    below nine tenths of it, a tenth of the instances a minute at most.
    """

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


class Naive(_Peer):
    """Ten lines anybody can write: the arrival rate of the last interval times 1.3, and what waits within a minute."""

    interval = 15

    def __init__(self, service_rate: float = 10.0) -> None:
        self.service_rate, self.before = service_rate, 0.0

    def see(self, seen: Seen) -> int:
        rate = (seen.arrived - self.before) / self.interval
        self.before = seen.arrived
        return ceil((rate * 1.3 + seen.waiting / 60.0) / self.service_rate)
