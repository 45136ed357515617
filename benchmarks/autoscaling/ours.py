"""Our own rules: the very functions that ship decide, and what they order is carried out."""

from benchmarks.autoscaling.world import Model, Seen
from scaling.config.policy import MetricSpec, Pace, Policy, PolicySpec, RuleSpec
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
from scaling.window import Window, WindowSpec

MONDAY = 1_799_625_600.0  # 2027-01-11T00:00:00Z
BACKLOG, INCOMING, OUTGOING = "backlog", "incoming", "outgoing"
METRICS = (BACKLOG, INCOMING, OUTGOING)


class Shipped:
    """A policy of tidemark.toml. `counts` are the metrics it reads; `ready` tells the platform's count of ready ones."""

    def __init__(
        self,
        rule: str,
        options: dict[str, object],
        *,
        interval: int = 15,
        counts: tuple[str, ...] = (BACKLOG,),
        out: Pace | None = None,
        inward: Pace | None = None,
        window: float = 0.0,
        model: Model | None = None,
        ready: bool = True,
    ) -> None:
        model = model or Model()
        self.interval = interval
        span = WindowSpec(span=window or 4.0 * interval, interval=float(interval), missing_allowed=1)
        metric = MetricSpec(collector="simulated", options={}, count="active", window=span)
        self.policy = Policy(
            PolicySpec(
                target="plan",
                scaler="simulated",
                scaler_options={},
                minimum=model.minimum,
                maximum=model.maximum,
                metrics=dict.fromkeys(counts, metric),
                rules=(RuleSpec(type=rule, name=rule, options=options),),
                out=out or Pace(),
                inward=inward or Pace(),
            )
        )
        self.counts, self.ready = counts, ready
        self.state = TargetState()
        self.windows: dict[str, Window] = {}
        self.before: Seen | None = None

    def see(self, seen: Seen) -> int:
        before, self.before = self.before, seen
        values = {BACKLOG: seen.active}
        values[INCOMING] = seen.arrived - before.arrived if before is not None else 0.0
        values[OUTGOING] = seen.completed - before.completed if before is not None else 0.0
        now = MONDAY + seen.t
        samples = tuple(MetricSample(name, now, values[name]) for name in self.counts)
        capacity = Capacity(seen.total, now, ready=seen.ready if self.ready else None)
        return self._decide(MetricsReport("plan", now, samples, (), capacity), now)

    def miss(self, t: float, total: int) -> None:
        """An observation that did not come: every metric failed. Counters go on, and the next interval is longer."""
        now = MONDAY + t
        failures = tuple(MetricFailure(name, now, "lost") for name in self.counts)
        self._decide(MetricsReport("plan", now, (), failures, Capacity(total, now)), now)

    def _decide(self, report: MetricsReport, now: float) -> int:
        policy = self.policy
        self.windows, state = absorb(policy, self.windows, self.state, report, now=now, controls=NO_CONTROLS)
        made = decide(policy, self.windows, state, now=now, decision_id=decision_id("plan", now))
        self.state, action = advance(policy, state, made, report_at=now, level=None)
        if action is not None:
            before, after = action.from_capacity, action.to_capacity
            effect = Effect(action.action_id, "plan", EffectOutcome.APPLIED, before, after, after, now)
            self.state = record_effect(self.state, effect)
        self.made = made
        return self.state.expected or 0


def service_level(*, interval: int = 15, counts: tuple[str, ...] = METRICS, **changes: object) -> Shipped:
    """The rule of this benchmark, with nothing given but the objective."""
    model = changes.pop("model", None)
    ready = changes.pop("ready", True)
    names = {name: name for name in counts}
    return Shipped(
        "service_level",
        {**names, **changes},
        interval=interval,
        counts=counts,
        model=model if isinstance(model, Model) else None,
        ready=bool(ready),
    )
