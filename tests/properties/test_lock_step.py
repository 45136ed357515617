"""Instances and request units in step: never more demand than RU/s, whatever is late, lost, doubled or fails.

The simulation runs the real decisions and state transitions of two targets on two platforms. What may happen in
any order: load changes, reports are read and decided upon later, actions are delivered late, twice or never,
the platform takes its time or fails, effects are recorded late or never, checks send actions again.
"""

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.config.policy import Budget, MetricSpec, Pace, Policy, PolicySpec, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.lock_step import as_seen, capacities, objection
from scaling.decision.pending_action import being_carried_out, record_effect, refusal
from scaling.decision.transitions import absorb, advance, already_evaluated, review
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Effect,
    EffectOutcome,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Reason,
    ScaleAction,
    TargetState,
    effect_of,
)
from scaling.window import Window, WindowSpec
from tests.support.examples import examples

START = 1_700_000_000.0
RATE, CHARGE = 1000, 6
UNIT = RATE * CHARGE
DELIVERY = 60.0
"""Seconds that a scaler takes at most; the platform may carry out its order later."""

LATEST = WindowSpec(span=60.0, interval=60.0, min_samples=1)
SIZING = {"rate": RATE, "ru_per_record": CHARGE, "headroom": 1}


def latest(collector: str, count: str, **options) -> MetricSpec:
    return MetricSpec(collector=collector, options=options, count=count, window=LATEST)


BY_BACKLOG = RuleSpec(type="target_per_unit", name="load", options={"metric": "backlog", "target": 100.0})
BY_FORECAST = RuleSpec(
    type="service_level", name="load", options={"backlog": "backlog", "concurrency": 100.0, "start_up": "90s"}
)


def plan_policy(load: RuleSpec = BY_BACKLOG, **changes) -> Policy:
    fields = {
        "target": "plan",
        "scaler": "fake",
        "scaler_options": {},
        "minimum": 1,
        "maximum": 10,
        "metrics": {
            "backlog": latest("fake", "active"),
            "there": latest("target_capacity", "reached", target="ru"),
        },
        "rules": (
            load,
            RuleSpec(
                type="within_request_units", name="within", options={"request_units": "there", **SIZING}
            ),
        ),
        "out": Pace(),
        "inward": Pace(),
    }
    return Policy(PolicySpec(**(fields | changes)))


def ru_policy(**changes) -> Policy:
    fields = {
        "target": "ru",
        "scaler": "fake",
        "scaler_options": {},
        "minimum": 400,
        "maximum": 100_000,
        "metrics": {"instances": latest("target_capacity", "wanted", target="plan")},
        "rules": (
            RuleSpec(
                type="request_units_for_rate",
                name="sizing",
                options={"consumers": "instances", "tolerance": 0, **SIZING},
            ),
        ),
        "out": Pace(),
        "inward": Pace(),
    }
    return Policy(PolicySpec(**(fields | changes)))


@dataclass
class Target:
    policy: Policy
    platform: int
    state: TargetState = field(default_factory=TargetState)
    windows: dict[str, Window] = field(default_factory=dict)


@dataclass
class Flight:
    """An action on its way to the platform: checks are passed, the change will land, or not."""

    action: ScaleAction


class Simulation:
    """`locked` False leaves out the question asked before acting: then the invariant must break."""

    def __init__(
        self,
        instances: int,
        *,
        request_units: int | None = None,
        locked: bool = True,
        load: RuleSpec = BY_BACKLOG,
    ) -> None:
        self.now = START
        self.locked = locked
        self.backlog = 100.0 * instances
        self.targets = {
            "plan": Target(plan_policy(load), instances),
            "ru": Target(ru_policy(), request_units or instances * UNIT),
        }
        self.reports: list[MetricsReport] = []
        self.queue: list[ScaleAction] = []
        self.flying: list[Flight] = []
        self.effects: list[Effect] = []
        self.reasons: set[Reason] = set()

    # -- what may happen --------------------------------------------------------------------------

    def wait(self, seconds: int) -> None:
        self.now += seconds

    def load(self, instances: int) -> None:
        self.backlog = 100.0 * instances

    def collect(self, _: int) -> None:
        """Both targets are read at one moment; reports not decided upon by the next one are dropped."""
        self.reports = [self._report(name) for name in self.targets]

    def evaluate(self, pick: int) -> None:
        if not self.reports:
            return
        report = self.reports.pop(pick % len(self.reports))
        target = self.targets[report.target]
        if already_evaluated(target.state, report.at, now=self.now):
            return
        windows, state = absorb(
            target.policy, target.windows, target.state, report, now=self.now, controls=NO_CONTROLS
        )
        decided = decide(
            target.policy, windows, state, now=self.now, decision_id=f"{report.target}@{report.at}"
        )
        self.reasons.add(decided.reason)
        target.windows = windows
        target.state, action = advance(target.policy, state, decided, report_at=report.at, level=None)
        if action is not None:
            self.queue.append(action)

    def deliver(self, pick: int) -> None:
        """The message stays in the queue: it is delivered again, at any time."""
        if not self.queue:
            return
        action = self.queue[pick % len(self.queue)]
        target = self.targets[action.target]
        effect = refusal(target.policy, target.state, NO_CONTROLS, action, now=self.now)
        others = {
            name: as_seen(other.state, Capacity(other.platform, self.now))
            for name, other in self.targets.items()
        }
        if effect is None and self.locked:
            text = objection(target.policy, target.windows, action, others, now=self.now)
            if text is not None:
                effect = effect_of(action, EffectOutcome.FAILED, self.now, text)
        if effect is not None:
            target.state = record_effect(target.state, effect)
        else:
            until = min(self.now + DELIVERY, action.expires_at)
            target.state = being_carried_out(target.state, now=self.now, until=until)
            if not any(flight.action.action_id == action.action_id for flight in self.flying):
                self.flying.append(Flight(action))

    def lose(self, pick: int) -> None:
        if self.queue:
            self.queue.pop(pick % len(self.queue))

    def land(self, pick: int) -> None:
        """An order never outlives its action, and the platform is read just before it."""
        if not self.flying:
            return
        action = self.flying.pop(pick % len(self.flying)).action
        target = self.targets[action.target]
        if self.now >= action.expires_at:
            return
        outcome, found = EffectOutcome.APPLIED, target.platform
        if found == action.to_capacity:
            outcome = EffectOutcome.ALREADY_THERE
        elif found in {action.from_capacity, action.replaces}:
            target.platform = action.to_capacity
        else:
            outcome = EffectOutcome.EXTERNAL_CHANGE
        effect = effect_of(action, outcome, self.now, "")
        self.effects.append(msgspec.structs.replace(effect, reached=target.platform))

    def fail(self, pick: int) -> None:
        if self.flying:
            self.flying.pop(pick % len(self.flying))

    def record(self, pick: int) -> None:
        if self.effects:
            effect = self.effects.pop(pick % len(self.effects))
            self.targets[effect.target].state = record_effect(self.targets[effect.target].state, effect)

    def crash(self, pick: int) -> None:
        """An effect nobody lived to record."""
        if self.effects:
            self.effects.pop(pick % len(self.effects))

    def verify(self, _: int) -> None:
        for target in self.targets.values():
            capacity = Capacity(target.platform, self.now)
            known = {"now": self.now, "controls": NO_CONTROLS, "windows": target.windows}
            found = review(target.policy, target.state, capacity, **known)
            target.state = found.state
            if found.emit is not None:
                self.queue.append(found.emit)

    # -- what must hold ---------------------------------------------------------------------------

    @property
    def demand(self) -> int:
        return self.targets["plan"].platform * UNIT

    @property
    def there(self) -> int:
        return self.targets["ru"].platform

    def _report(self, name: str) -> MetricsReport:
        own = self.targets[name]
        items = [self._item(metric, spec) for metric, spec in own.policy.spec.metrics.items()]
        return MetricsReport(
            name,
            self.now,
            tuple(item for item in items if isinstance(item, MetricSample)),
            tuple(item for item in items if isinstance(item, MetricFailure)),
            Capacity(own.platform, self.now),
        )

    def _item(self, metric: str, spec: MetricSpec) -> MetricSample | MetricFailure:
        if spec.collector == "fake":
            return MetricSample(metric, self.now, self.backlog)
        known = capacities(self.targets[spec.options["target"]].state)
        if known is None:
            return MetricFailure(metric, self.now, "not known yet")
        return MetricSample(metric, self.now, known[spec.count])


def tick(simulation: Simulation) -> None:
    """A minute in which nothing goes wrong."""
    simulation.wait(60)
    simulation.collect(0)
    for _ in range(2):
        simulation.evaluate(0)
    for index in reversed(range(len(simulation.queue))):
        simulation.deliver(index)
        simulation.lose(index)
        simulation.land(0)
        simulation.record(0)
    simulation.verify(0)


OPERATIONS = (
    *("wait", "wait", "wait", "load", "load", "collect", "collect", "collect", "verify"),
    *("evaluate",) * 5,
    *("deliver",) * 5,
    *("land", "land", "land", "record", "record", "record", "record", "lose", "fail", "crash"),
)


def run(seed: int, *, locked: bool, length: int = 250, load: RuleSpec = BY_BACKLOG) -> Simulation:
    """A random schedule; it ends when there is more demand than request units."""
    chance = Random(seed)
    instances = chance.randint(1, 6)
    request_units = chance.choice([instances, 10]) * UNIT
    simulation = Simulation(instances, request_units=request_units, locked=locked, load=load)
    tick(simulation)
    for _ in range(length):
        name = chance.choice(OPERATIONS)
        argument = chance.randint(0, 3)
        if name == "wait":
            argument = chance.choice([1, 5, 30, 60, 130, 601])
        elif name == "load":
            argument = chance.randint(1, 10)
        getattr(simulation, name)(argument)
        if simulation.demand > simulation.there:
            break
    return simulation


@given(st.integers(0, 2**32), st.sampled_from([BY_BACKLOG, BY_FORECAST]))
@examples(200)
def test_there_is_never_more_demand_than_request_units(seed, load):
    simulation = run(seed, locked=True, load=load)

    assert simulation.demand <= simulation.there


def test_the_schedules_are_such_that_it_takes_the_question_before_acting():
    ended = [run(seed, locked=False) for seed in range(100)]

    assert sum(simulation.demand > simulation.there for simulation in ended) >= 5


def test_without_the_question_before_acting_both_may_move_at_once():
    """The schedule that makes the question necessary: each decides by what the other was."""
    assert _race(locked=False) == (10 * UNIT, 4 * UNIT)
    assert _race(locked=True)[0] <= _race(locked=True)[1]


def _race(*, locked: bool) -> tuple[int, int]:
    simulation = Simulation(4, request_units=10 * UNIT, locked=locked)
    simulation.collect(0)
    simulation.evaluate(0)
    simulation.evaluate(0)  # the plan was not known yet
    simulation.wait(60)
    simulation.load(10)
    simulation.collect(0)
    simulation.evaluate(0)
    simulation.evaluate(0)
    assert [action.to_capacity for action in simulation.queue] == [10, 4 * UNIT]
    simulation.deliver(0)
    simulation.deliver(1)
    simulation.land(0)
    simulation.land(0)
    return simulation.demand, simulation.there


def test_request_units_stay_while_the_platform_may_still_carry_out_a_withdrawn_scale_out():
    simulation = Simulation(1, request_units=10 * UNIT)
    simulation.load(5)
    for load in (5, 5, 1, 1, 1):
        simulation.load(load)
        simulation.wait(61)
        simulation.collect(0)
        simulation.evaluate(0)
        simulation.evaluate(0)
        for index in range(len(simulation.queue)):
            simulation.deliver(index)
    plan = simulation.targets["plan"].state
    assert (plan.pending, plan.withdrawn.may_lead_to) == (None, 5)
    while simulation.flying:  # request units first
        simulation.land(-1)

    assert (simulation.demand, simulation.there) == (5 * UNIT, 5 * UNIT)
    simulation.wait(3600)  # an action is not carried out after it expired, and nobody pays for it any longer
    for _ in range(20):
        tick(simulation)
        assert simulation.demand <= simulation.there
    assert (simulation.demand, simulation.there) == (UNIT, UNIT)


@pytest.mark.parametrize("goal", [1, 3, 10])
def test_both_arrive_where_the_load_leads(goal):
    simulation = Simulation(4)
    simulation.load(goal)
    for _ in range(8):
        tick(simulation)
        assert simulation.demand <= simulation.there

    assert (simulation.demand, simulation.there) == (goal * UNIT, goal * UNIT)
    assert (Reason.LOCK_STEP in simulation.reasons) == (goal == 10)


@given(st.integers(0, 2**32), st.integers(1, 10))
@examples(25)
def test_whatever_happened_half_an_hour_of_quiet_brings_both_where_the_load_leads(seed, goal):
    simulation = run(seed, locked=True)
    simulation.flying.clear()
    simulation.effects.clear()
    simulation.load(goal)
    for _ in range(30):
        tick(simulation)
        assert simulation.demand <= simulation.there

    assert (simulation.demand, simulation.there) == (goal * UNIT, goal * UNIT)


def test_nobody_pays_for_instances_that_a_guard_a_step_or_a_cooldown_keeps_from_coming():
    """A load for ten, of which one comes at a time, ten minutes apart; and none while a guard forbids it."""
    simulation = Simulation(1)
    guard = RuleSpec(type="guard", name="db", options={"metric": "backlog", "block_out_above": 600.0})
    spec = plan_policy().spec
    for rules, pace, highest in (
        ((*spec.rules, guard), Pace(), 1),
        (spec.rules, Pace(step=1, cooldown=600.0), 3),
    ):
        simulation.targets["plan"].policy = plan_policy(rules=rules, out=pace)
        simulation.load(10)
        for _ in range(16):
            tick(simulation)
            assert simulation.there <= highest * UNIT

    assert simulation.demand == 3 * UNIT


def test_a_forecast_raises_request_units_before_its_instances_come_and_lowers_them_after():
    simulation = Simulation(2, load=BY_FORECAST)
    seen = [(simulation.demand, simulation.there)]
    for instances in [2] * 5 + [8] * 10 + [1] * 40:
        simulation.load(instances)
        tick(simulation)
        seen.append((simulation.demand, simulation.there))
        assert simulation.demand <= simulation.there

    demands, there = zip(*seen, strict=True)
    assert max(demands) >= 8 * UNIT
    assert there.index(max(there)) <= demands.index(max(demands))
    assert demands[-1] < 8 * UNIT
    assert there[-1] == demands[-1]


@examples(5)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 10)), min_size=1, max_size=8), st.floats(1.0, 6.0)
)
def test_a_budget_of_request_units_lasts_the_day_though_nothing_is_taken_from_under_instances(loads, times):
    """What instances need cannot be taken back: so no more is ever allowed than lasts to midnight."""
    budget = Budget(amount=24 * UNIT * times, unit="request_unit_hours", hourly=True)
    simulation = Simulation(1)
    simulation.now = START // 86_400 * 86_400 - 60
    simulation.targets["ru"].policy = ru_policy(budget=budget, minimum=UNIT)
    by_minute = [instances for minutes, instances in loads for _ in range(minutes)]
    hours: dict[int, int] = {}
    for minute in range(1440):
        simulation.load(by_minute[minute % len(by_minute)])
        tick(simulation)
        hour = minute // 60
        hours[hour] = max(hours.get(hour, 0), simulation.there)
        assert simulation.demand <= simulation.there

    assert sum(hours.values()) <= budget.amount + 1
    assert Reason.ACTION_PENDING not in simulation.reasons  # nothing is ordered that could not be carried out
