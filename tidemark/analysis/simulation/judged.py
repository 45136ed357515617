"""A replay that goes on after its load until it is known of each message whether it was late. Pure.

`world.Run` serves for half an hour after the load, without decisions, as the rows that the benchmark keeps were replayed. With a
longer wait it would call late what waits when that is over, and with any it would judge a batch at the end by instances that
nobody asked for any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemark.analysis.simulation.world import Model, Policy, Run


class JudgedRun(Run):
    """Decides and serves on for the wait of the objective, half an hour at least. That time is neither billed nor counted."""

    def __init__(
        self,
        arrivals: np.ndarray,
        policy: Policy,
        model: Model,
        first: int,
        parts: Sequence[tuple[int, int]] = ((0, 0),),
    ) -> None:
        super().__init__(arrivals, policy, model, first, parts)
        if (more := self.length + model.wait - self.end) > 0:
            self.end += more
            self.arrived = np.pad(self.arrived, (0, more), mode="edge")
            self.begun = np.pad(self.begun, (0, more))
            begin, _, clock_ahead = self.spans[-1]
            self.spans[-1] = (begin, self.end, clock_ahead)

    def replay(self) -> JudgedRun:
        interval, aborted = self.policy.interval, None
        for begin, end, clock_ahead in self.spans:
            for start in range(begin, end, interval):
                if aborted is None and start >= self.length:
                    aborted = self.aborted
                self._decide(start, start + clock_ahead)
                last = min(start + interval, end)
                while self.served < last:
                    self._serve(last)
        self.aborted = self.aborted if aborted is None else aborted
        self.totals = [(at, count) for at, count in self.totals if at < self.length]
        return self

    @property
    def waiting_at_end(self) -> float:
        """Messages of the load that were not begun when it ended."""
        return max(self.arrived.item(self.length) - self.begun.item(self.length), 0.0)
