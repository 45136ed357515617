"""Harder worlds: what reaches the policy may be wrong, lost or old."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from tidemark.analysis.simulation.world import Model, Outcome, Policy, Run, Seen


@dataclass(frozen=True)
class Sight:
    """How observations reach the policy: `noise` (share by which each count is off, evenly: of the messages there, and of
    those that came and were completed since the last observation), `lost` (share of the observations that do not come), `age`
    (seconds an observation is old), `early` (seconds before an instance serves that it is called ready).
    """

    noise: float = 0.0
    lost: float = 0.0
    age: int = 0
    early: int = 0


CLEAR = Sight()


class HarderRun(Run):
    """A replay through a `sight`. A policy with a method `miss` is given the observations that are lost."""

    def __init__(
        self, arrivals: np.ndarray, policy: Policy, model: Model, first: int, sight: Sight = CLEAR
    ) -> None:
        super().__init__(arrivals, policy, model, first)
        self.sight = sight
        self.rng = np.random.default_rng(7)
        self.true: list[Seen] = []
        self.reported: list[Seen] = []

    def _observed(self, now: int, clock: int) -> Seen:
        seen = super()._observed(now, clock)
        if self.sight.noise:
            seen = self._noisy(seen)
        starting = sum(count for at, count in self.fleet.starting if at <= now + self.sight.early)
        seen = replace(seen, ready=seen.ready + starting)
        self.reported.append(seen)
        lag = self.sight.age // self.policy.interval
        old = self.reported[max(len(self.reported) - 1 - lag, 0)]
        return replace(
            seen,
            active=old.active,
            arrived=old.arrived,
            completed=old.completed,
            age=old.age,
            oldest=old.oldest,
        )

    def _noisy(self, seen: Seen) -> Seen:
        """Each increment of a counter is off, so the counters drift from the true ones."""
        before = self.true[-1] if self.true else Seen(0.0, 0.0, 0.0, 0, 0, 0.0, 0.0)
        shown = self.reported[-1] if self.reported else before
        self.true.append(seen)
        return replace(
            seen,
            active=seen.active * self._factor(),
            arrived=shown.arrived + (seen.arrived - before.arrived) * self._factor(),
            completed=shown.completed + (seen.completed - before.completed) * self._factor(),
        )

    def _factor(self) -> float:
        return float(1.0 + self.sight.noise * (2.0 * self.rng.random() - 1.0))

    def _wanted(self, seen: Seen) -> int:
        if self.sight.lost and self.rng.random() < self.sight.lost:
            if (miss := getattr(self.policy, "miss", None)) is not None:
                miss(seen)
            return self.fleet.total
        return super()._wanted(seen)


def run(arrivals: np.ndarray, policy: Policy, model: Model, first: int, sight: Sight = CLEAR) -> Outcome:
    """Replays one load under one policy, beginning with `first` instances."""
    return HarderRun(arrivals, policy, model, first, sight).replay().outcome()
