"""A target with a shadow, and a queue whose messages are served by the instances it really has."""

from collections.abc import Callable

from msgspec import structs

from scaling.config.policy import Pace, Policy, QueueSpec, RuleSpec, ShadowSpec
from scaling.decision.decide import decide
from scaling.decision.orders import policy_in_force
from scaling.decision.pending_action import record_effect
from scaling.decision.transitions import absorb, advance
from scaling.log_entry import ShadowSaid, decision_id
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    EffectOutcome,
    MetricSample,
    MetricsReport,
    Recommendation,
    TargetState,
    effect_of,
)
from scaling.rules.service_level.sizing import serving_instances, starting_after_change
from scaling.shadow.beside import Beside, exchange_memories, simulate_shadow
from scaling.shadow.memory import Shadow, decode
from tests.support.scaling.runner import NOW, THRESHOLD, metric, policy

STEP = 15.0
HELD, SERVICE, START_UP = 16.0, 8.0, 60.0
QUEUE = QueueSpec(backlog="backlog", incoming="incoming", outgoing="outgoing", start_up=START_UP)
SERVICE_LEVEL = RuleSpec(
    type="service_level",
    name="service_level",
    options={"backlog": "backlog", "incoming": "incoming", "outgoing": "outgoing"},
)
WINDOW = {"span": 60.0, "interval": STEP, "min_samples": 4}


def fixed(count: int, name: str = "fixed") -> RuleSpec:
    """A rule that always wants the same."""
    return RuleSpec(type="composite", name=name, options={"desired": str(count)})


def shadowed(*rules: RuleSpec, live: tuple[RuleSpec, ...] = (THRESHOLD,), **changes) -> Policy:
    """A target of 1..20 with a backlog, its flows, and a shadow of these rules."""
    fields = {"minimum": 1, "maximum": 20, "out": Pace(), "inward": Pace(), "queue": QUEUE} | changes
    tried = ShadowSpec(rules=rules, **fields)
    metrics = {name: metric(**WINDOW) for name in ("backlog", "incoming", "outgoing")}
    return policy(maximum=20, metrics=metrics, rules=live, shadow=tried)


class Target:
    """A target that is simulated itself: every step one report, one decision, its effect, and messages served.

    Instances serve `start_up` seconds after they were asked for, and are called ready after `called`, which is then, too, where it is None.
    """

    def __init__(
        self,
        made: Policy,
        *,
        current: int = 4,
        rate: Callable[[float], float] | float = 20.0,
        start_up: float = START_UP,
        called: float | None = None,
    ) -> None:
        self.policy, self.current = made, current
        self.start_up, self.called = start_up, start_up if called is None else called
        self.rate = rate if callable(rate) else lambda _: rate
        self.controls = NO_CONTROLS
        self.now = NOW
        self.waiting = 0.0
        self.starts: list[tuple[float, int]] = []
        self.ready = current
        self.windows, self.state = {}, TargetState()
        self.made: Recommendation | None = None
        self.beside = Beside()
        self.lost: tuple[str, ...] = ()

    def step(self) -> None:
        self.now += STEP
        came = self.rate(self.now) * STEP
        served = min(self.waiting + came, self.ready * SERVICE * STEP)
        self.waiting += came - served
        self.ready = serving_instances(self.starts, self.current, self.now, self.start_up)
        busy = HELD * self.ready if self.waiting else HELD / SERVICE * served / STEP
        values = {"backlog": self.waiting + busy, "incoming": came, "outgoing": served}
        samples = tuple(
            MetricSample(name, self.now, value) for name, value in values.items() if name not in self.lost
        )
        called = serving_instances(self.starts, self.current, self.now, self.called)
        capacity = Capacity(self.current, self.now, ready=called)
        self.decide(MetricsReport("plan", self.now, samples, (), capacity))

    def decide(self, report: MetricsReport) -> None:
        rules = policy_in_force(self.policy, self.controls)
        before = exchange_memories(self.policy, self.state, self.controls)
        windows, state = absorb(rules, self.windows, before, report, now=self.now, controls=self.controls)
        made = decide(
            rules,
            windows,
            state,
            now=self.now,
            controls=self.controls,
            decision_id=decision_id("plan", self.now),
        )
        after, action = advance(rules, state, made, report_at=report.at, level=None)
        self.beside = simulate_shadow(self.policy, windows, state, made, controls=self.controls)
        after = structs.replace(after, shadow=self.beside.shadow)
        if action is not None:
            to = action.to_capacity
            after = record_effect(after, effect_of(action, EffectOutcome.APPLIED, self.now, "", to))
            self.starts = starting_after_change(self.starts, self.current, to, self.now)
            self.current = to
        self.windows, self.state, self.made = windows, after, made

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def order(self, controls: Controls) -> None:
        self.controls = controls

    @property
    def shadow(self) -> Shadow:
        found = decode(self.state.shadow)
        assert found is not None
        return found

    @property
    def said(self) -> ShadowSaid:
        assert self.beside.said is not None
        return self.beside.said
