"""Policies of tidemark.toml under a load: the very functions that ship decide, and what they order is carried out. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from scaling.advice.world import Seen
from scaling.config.policy import Policy
from scaling.decision.decide import decide
from scaling.decision.pending_action import record_effect
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
    TargetState,
)
from scaling.window import Window

BACKLOG, INCOMING, OUTGOING = "backlog", "incoming", "outgoing"
"""What a metric can be of a queue: messages there; those that came and those completed since the last observation."""


class Shipped:
    """A policy, asked as the autoscaler asks it. `reads` says of each of its metrics what it is; `begin` is the time of
    second 0; `ready` tells it the platform's count of ready instances.
    """

    def __init__(self, policy: Policy, reads: Mapping[str, str], *, begin: float, ready: bool = True) -> None:
        backlog = next(name for name, kind in reads.items() if kind == BACKLOG)
        self.interval = int(policy.windows[backlog].interval)
        self.policy, self.reads, self.begin, self.ready = policy, reads, begin, ready
        self.state = TargetState()
        self.windows: dict[str, Window] = {}
        self.before: Seen | None = None

    def see(self, seen: Seen) -> int:
        before, self.before = self.before, seen
        values = {BACKLOG: seen.active}
        values[INCOMING] = seen.arrived - before.arrived if before is not None else 0.0
        values[OUTGOING] = seen.completed - before.completed if before is not None else 0.0
        now = self.begin + seen.t
        samples = tuple(MetricSample(name, now, values[kind]) for name, kind in self.reads.items())
        capacity = Capacity(seen.total, now, ready=seen.ready if self.ready else None)
        return self._decide(MetricsReport(self.policy.target, now, samples, (), capacity), now)

    def miss(self, t: float, total: int) -> None:
        """An observation that did not come: every metric failed. Counters go on, and the next interval is longer."""
        now = self.begin + t
        failures = tuple(MetricFailure(name, now, "lost") for name in self.reads)
        self._decide(MetricsReport(self.policy.target, now, (), failures, Capacity(total, now)), now)

    def _decide(self, report: MetricsReport, now: float) -> int:
        policy, target = self.policy, self.policy.target
        self.windows, state = absorb(policy, self.windows, self.state, report, now=now, controls=NO_CONTROLS)
        made = decide(policy, self.windows, state, now=now, decision_id=decision_id(target, now))
        self.state, action = advance(policy, state, made, report_at=now, level=None)
        if action is not None:
            before, after = action.from_capacity, action.to_capacity
            effect = Effect(action.action_id, target, EffectOutcome.APPLIED, before, after, after, now)
            self.state = record_effect(self.state, effect)
        self.made = made
        return self.state.expected or 0
