"""Policies of tidemark.toml under a load: the functions that ship decide, and what they order is carried out. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from scaling.config.policy import Policy
from scaling.decision.decide import decide
from scaling.decision.pending_action import record_effect
from scaling.decision.seen import plateau_level
from scaling.decision.transitions import absorb, advance
from scaling.log_entry import decision_id
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Effect,
    EffectOutcome,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Recommendation,
    ScaleAction,
    TargetState,
)
from scaling.window import Window
from tidemark.analysis.simulation.world import Seen

BACKLOG, INCOMING, OUTGOING = "backlog", "incoming", "outgoing"
OLDEST_AGE, OLDEST_ACTIVE_AGE = "oldest_age", "oldest_active_age"
LATE_INCOMING, LATE_OUTGOING = "late_incoming", "late_outgoing"
"""What a metric can be of a queue: messages there; those that came and those completed since the last observation; the age in
seconds of the oldest message that waits, or of the oldest one that waits or is processed; those that came and those
completed in the newest minute that is known, `LATE_BY` seconds after its end, with the end of the minute as its time.
"""

MINUTE = 60.0
LATE_BY = 180.0
"""As `azure_monitor` reads them: see DELAY in scaling/collectors/number/azure_monitor.py."""


class Shipped:
    """A policy, asked as the autoscaler asks it. `reads` maps each of its metrics to what it is of the queue; `begin` is the time
    of second 0. With `ready`, the platform reports how many instances are ready.
    """

    def __init__(self, policy: Policy, reads: Mapping[str, str], *, begin: float, ready: bool = True) -> None:
        backlog = next(name for name, kind in reads.items() if kind == BACKLOG)
        self.interval = int(policy.windows[backlog].interval)
        self.policy, self.reads, self.begin, self.ready = policy, reads, begin, ready
        self.state = TargetState()
        self.windows: dict[str, Window] = {}
        self.past: deque[Seen] = deque()
        """The observations before, back to the minute whose counts are known now."""

    def see(self, seen: Seen) -> int:
        samples: list[MetricSample] = []
        failures: list[MetricFailure] = []
        before = self.past[-1] if self.past else None
        self.remember(seen)
        counts = {
            BACKLOG: seen.active,
            INCOMING: 0.0 if before is None else seen.arrived - before.arrived,
            OUTGOING: 0.0 if before is None else seen.completed - before.completed,
            OLDEST_AGE: seen.age,
            OLDEST_ACTIVE_AGE: seen.oldest,
        }
        at = self.begin + seen.t
        for name, kind in self.reads.items():
            instances = max(seen.total, 1) if self.policy.spec.metrics[name].per_instance else 1
            if kind in counts:
                samples.append(MetricSample(name, at, counts[kind] / instances))
            elif (minute := self._minute(kind)) is not None:
                samples.append(MetricSample(name, minute[0], minute[1] / instances))
            else:
                failures.append(MetricFailure(name, at, "no minute is known yet"))
        return self.report(seen, samples, failures, seen.ready if self.ready else None)

    def remember(self, seen: Seen) -> None:
        oldest = seen.t - LATE_BY - 2 * MINUTE
        while len(self.past) > 1 and self.past[1].t <= oldest:
            self.past.popleft()
        self.past.append(seen)

    def _minute(self, kind: str) -> tuple[float, float] | None:
        """End of the newest minute that is known, and what was counted in it; None where it was not observed in full."""
        now = self.begin + self.past[-1].t
        end = (now - LATE_BY) // MINUTE * MINUTE
        times = [self.begin + seen.t for seen in self.past]
        if times[0] > end - MINUTE:
            return None
        counts = [seen.arrived if kind == LATE_INCOMING else seen.completed for seen in self.past]
        first, last = np.interp([end - MINUTE, end], times, counts).tolist()
        return end, max(last - first, 0.0)

    def report(
        self,
        seen: Seen,
        samples: Sequence[MetricSample],
        failures: Sequence[MetricFailure],
        ready: int | None,
    ) -> int:
        """Decides on a report and carries the decision out at once; returns the capacity to have."""
        now = self.begin + seen.t
        capacity = Capacity(seen.total, now, ready=ready)
        report = MetricsReport(self.policy.target, now, tuple(samples), tuple(failures), capacity)
        self.windows, self.state, self.made, action = evaluate(self.policy, self.windows, self.state, report)
        if action is not None:
            self.state = record_effect(self.state, applied(action, now))
        return self.state.expected or 0


def evaluate(
    policy: Policy, windows: Mapping[str, Window], state: TargetState, report: MetricsReport
) -> tuple[dict[str, Window], TargetState, Recommendation, ScaleAction | None]:
    """Windows and state after a report, the decision on it, and the action to carry out, as the autoscaler does it."""
    now = report.at
    windows, state = absorb(policy, windows, state, report, now=now, controls=NO_CONTROLS)
    made = decide(policy, windows, state, now=now, decision_id=decision_id(policy.target, now))
    level = plateau_level(policy, windows, now=now)
    state, action = advance(policy, state, made, report_at=now, level=level, announces=False)
    return windows, state, made, action


def applied(action: ScaleAction, at: float) -> Effect:
    """The effect of an action that is carried out in full."""
    before, after = action.from_capacity, action.to_capacity
    return Effect(
        action.action_id, action.target, EffectOutcome.APPLIED, before, after, after, at, "as simulated"
    )
