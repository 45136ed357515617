"""Policies of tidemark.toml under a load: the very functions that ship decide, and what they order is carried out. Pure.

A policy of the one rule `service_level`, with no limits beside its bounds, goes a shorter way while its windows are
whole: the same learning and the same step, without the words, windows and rows that explain a decision to people
(`learning`). Where it is left, at a gap, windows and state are made as if they had been kept. It decides the same: a
property test compares both ways.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil

import msgspec

from scaling.config.policy import Pace, Policy
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
    TargetState,
)
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.window import Window, summarize
from tidemark.analysis.simulation.learning import Learner
from tidemark.analysis.simulation.world import Seen

BACKLOG, INCOMING, OUTGOING = "backlog", "incoming", "outgoing"
"""What a metric can be of a queue: messages there; those that came and those completed since the last observation."""


class Shipped:
    """A policy, asked as the autoscaler asks it. `reads` says of each of its metrics what it is; `begin` is the time of
    second 0; `ready` tells it the platform's count of ready instances. `short`: the shorter way may be gone.
    """

    def __init__(
        self,
        policy: Policy,
        reads: Mapping[str, str],
        *,
        begin: float,
        ready: bool = True,
        short: bool = True,
    ) -> None:
        backlog = next(name for name, kind in reads.items() if kind == BACKLOG)
        self.interval = int(policy.windows[backlog].interval)
        self.policy, self.reads, self.begin, self.ready = policy, reads, begin, ready
        self.state = TargetState()
        self.windows: dict[str, Window] = {}
        self.before: Seen | None = None
        self.length = 0  # of samples in a row, the newest included
        self.whole = _whole(policy, reads) if short else None
        self.recent: deque[tuple[float, dict[str, float]]] = deque(maxlen=self.whole)
        self.learner: Learner | None = None

    def see(self, seen: Seen) -> int:
        before, self.before = self.before, seen
        values = {BACKLOG: seen.active, INCOMING: 0.0, OUTGOING: 0.0}
        if before is not None:
            values[INCOMING] = seen.arrived - before.arrived
            values[OUTGOING] = seen.completed - before.completed
        now, ready = self.begin + seen.t, seen.ready if self.ready else None
        if self.whole is not None:
            follows = before is not None and seen.t - before.t == self.interval
            self.length = self.length + 1 if follows else 1
            if self.length > self.whole and seen.total == self.state.expected:
                self.recent.append((now, values))
                return self._learned(now, values, seen.total, ready)
            self._leave()
            self.recent.append((now, values))
        return self._reported(now, values, seen.total, ready)

    def _reported(self, now: float, values: Mapping[str, float], total: int, ready: int | None) -> int:
        samples = tuple(
            MetricSample(name, now, self._shown(name, values[kind], total))
            for name, kind in self.reads.items()
        )
        capacity = Capacity(total, now, ready=ready)
        return self._decide(MetricsReport(self.policy.target, now, samples, (), capacity), now)

    def miss(self, seen: Seen) -> None:
        """An observation that did not come: every metric failed. What came before it is in no later sample."""
        self._leave()
        self.before, self.length = seen, 0
        now, total = self.begin + seen.t, seen.total
        failures = tuple(MetricFailure(name, now, "lost") for name in self.reads)
        self._decide(MetricsReport(self.policy.target, now, (), failures, Capacity(total, now)), now)

    def _shown(self, name: str, value: float, total: int) -> float:
        return value / max(total, 1) if self.policy.spec.metrics[name].per_instance else value

    def _decide(self, report: MetricsReport, now: float) -> int:
        policy, target = self.policy, self.policy.target
        self.windows, state = absorb(policy, self.windows, self.state, report, now=now, controls=NO_CONTROLS)
        made = decide(policy, self.windows, state, now=now, decision_id=decision_id(target, now))
        level = plateau_level(policy, self.windows, now=now)
        self.state, action = advance(policy, state, made, report_at=now, level=level)
        if action is not None:
            self._carry_out(action.action_id, action.from_capacity, action.to_capacity, now)
        self.made = made
        return self.state.expected or 0

    def _carry_out(self, action: str, before: int, after: int, now: float) -> None:
        effect = Effect(action, self.policy.target, EffectOutcome.APPLIED, before, after, after, now)
        self.state = record_effect(self.state, effect)

    # The shorter way

    def _learned(self, now: float, values: Mapping[str, float], total: int, ready: int | None) -> int:
        if self.learner is None:
            rule = self.policy.flat_rules[0]
            assert isinstance(rule, ServiceLevelRule)  # `_whole` saw to it
            self.learner = Learner(self.policy, rule, self.reads, self.state)
        wanted = self.learner.decide(now, values, total, ready)
        if wanted != total:
            self.state = msgspec.structs.replace(self.state, expected=wanted)
        return wanted

    def _leave(self) -> None:
        """Windows and state as if every decision of the shorter way had been made in full."""
        learner, self.learner = self.learner, None
        if learner is None:
            return
        times = [at for at, _ in self.recent]
        self.windows = {
            name: Window(times, [values[kind] for _, values in self.recent])
            for name, kind in self.reads.items()
        }
        capacity = Capacity(self.state.expected or 0, times[-1])
        self.state = msgspec.structs.replace(learner.state(self.state), capacity=capacity)


def _whole(policy: Policy, reads: Mapping[str, str]) -> int | None:
    """Samples in a row after which the windows of a policy are whole, and stay so; None where the shorter way is not
    that of this policy: anything in it could hold a change back, or reduce it.
    """
    spec, rules = policy.spec, policy.flat_rules
    if len(rules) != 1 or type(rules[0]) is not ServiceLevelRule or set(policy.windows) - set(reads):
        return None
    if (spec.out, spec.inward) != (Pace(), Pace()) or spec.plateau or spec.budget or spec.dry_run:
        return None
    if any(metric.per_instance for metric in spec.metrics.values()):
        return None
    lengths = []
    for window in policy.windows.values():
        count = ceil(window.span / window.interval - 1e-9)
        times = [index * window.interval for index in range(count)]
        seen = summarize(Window(times, [0.0] * count), window, now=times[-1])
        if seen.problem is not None or seen.missing or window.schedule:
            return None
        lengths.append(count)
    return max(lengths)
