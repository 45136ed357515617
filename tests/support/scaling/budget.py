"""A target with a budget, lived through minute by minute: the product's own functions decide, the bill is kept beside."""

from collections.abc import Callable

from msgspec import Struct

from scaling.config.policy import Budget, MetricSpec, Pace, Policy, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.pending_action import record_effect
from scaling.decision.transitions import absorb, advance
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Effect,
    EffectOutcome,
    MetricSample,
    MetricsReport,
    Recommendation,
    TargetState,
)
from scaling.rules.service_level import memory
from scaling.rules.service_level.memory import CANDIDATES, Candidate, LearnedInstance, Memory, UsualRates
from scaling.window import Window
from tests.support.scaling.runner import MINUTE, metric, policy

MIDNIGHT = 1_799_971_200.0  # 15 January 2027, 00:00 UTC
HOUR, DAY = 3600.0, 86_400.0
AS_WANTED = RuleSpec(type="target_per_unit", name="load", options={"metric": "backlog", "target": 1.0})
"""The capacity wanted is the load itself."""


def latest() -> MetricSpec:
    return metric(span=60.0, min_samples=1)


def budgeted(amount: float = 48.0, **changes) -> Policy:
    """Between 1 and 40 instances, as many as the load says, and so many instance-hours a day."""
    fields = {"budget": Budget(amount=amount)} | changes
    given = {"metrics": {"backlog": latest()}, "rules": (AS_WANTED,), "maximum": 40, "inward": Pace()}
    return policy(**(given | fields))


class Lived(Struct):
    """What came of it: each minute's recommendation and capacity, and what was billed (capacity times hours)."""

    made: list[Recommendation]
    capacities: list[int]
    billed: float
    state: TargetState

    def changes(self) -> list[Recommendation]:
        return [each for each in self.made if each.acts]


def live(
    made: Policy,
    load: Callable[[float], float],
    *,
    start: float = MIDNIGHT,
    minutes: int = 1440,
    current: int = 1,
    step: int = 1,
    delay: int = 0,
    state: TargetState | None = None,
    controls: Controls = NO_CONTROLS,
) -> Lived:
    """`load` gives the capacity wanted at a time; effects come `delay` minutes after their decision."""
    state = state or TargetState()
    windows: dict[str, Window] = {}
    lived = Lived([], [], 0.0, state)
    due = None
    hours: dict[float, int] = {}
    for minute in range(minutes):
        now = start + MINUTE * minute
        if due is not None and due[0] <= minute:
            action = due[1]
            effect = Effect(
                action.action_id,
                "plan",
                EffectOutcome.APPLIED,
                action.from_capacity,
                action.to_capacity,
                action.to_capacity,
                now,
            )
            state, current, due = record_effect(state, effect), action.to_capacity, None
        found = current  # an hour is billed for it, too, although it may be scaled in at once
        told = MetricsReport(
            "plan", now, (MetricSample("backlog", now, load(now)),), (), Capacity(current, now, step=step)
        )
        windows, state = absorb(made, windows, state, told, now=now, controls=controls)
        decided = decide(made, windows, state, now=now, controls=controls, decision_id=f"plan@{minute}")
        state, action = advance(made, state, decided, report_at=now, level=None)
        if action is not None:
            if delay == 0:
                effect = Effect(
                    action.action_id,
                    "plan",
                    EffectOutcome.APPLIED,
                    current,
                    action.to_capacity,
                    action.to_capacity,
                    now,
                )
                state, current = record_effect(state, effect), action.to_capacity
            else:
                due = (minute + delay, action)
        lived.made.append(decided)
        lived.capacities.append(current)
        lived.billed += current / 60
        hours[now // HOUR] = max(hours.get(now // HOUR, 0), found, current)
    lived.state = state
    if made.spec.budget is not None and made.spec.budget.hourly:
        lived.billed = float(sum(hours.values()))
    return lived


RULE = RuleSpec(type="service_level", name="level", options={"backlog": "backlog"})


def memories(*, days=8, now=0.0, rate=10.0, by_hour=None):
    """Learned: an instance serves 10 messages/s; by day 80/s come, at night 8/s."""
    rates = by_hour or [80.0 if 8 <= hour < 20 else 8.0 for hour in range(24)]
    known = Memory(
        since=MIDNIGHT - days * DAY,
        at=MIDNIGHT,
        rates=[now] * 5,
        weights=[0.2] * 5,
        covariance=[[0.0] * 5 for _ in range(5)],
        usual_rate=44.0,
        marks=[(MIDNIGHT, 0.0)],
        candidates=[Candidate() for _ in range(CANDIDATES)],
        usual_rates=UsualRates(day=rates, day_count=[days] * 24),
        learned=LearnedInstance(service_rate=rate, service_rate_count=100),
    )
    return {"level": memory.encode(known)}
