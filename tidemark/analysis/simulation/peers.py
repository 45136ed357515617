"""Autoscalers that users have today, as their documentation or source describes them (docs/service-level.md names it). Pure.

Every peer sees the true counts of the moment, which no real one does.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from tidemark.analysis.simulation.world import Seen


class AllTheTime:
    """As many as there are at the begin, all the time."""

    interval = 3600

    def see(self, seen: Seen) -> int:
        return seen.total


class Keda:
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


class AzureMonitor:
    """Azure Monitor autoscale on active messages per instance: the average of a window above `out` adds `step`, below
    `inward` takes it, unless as many would scale out again; the cooldown is of both directions.
    """

    interval = 60

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
