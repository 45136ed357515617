"""Counterfactuals: what a recommendation says would have changed it, does change it, and as it says."""

from collections.abc import Iterator
from math import sin
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.config.policy import Budget, Fallback, Pace, Plateau, Policy, RateLimit, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.explain import line
from scaling.decision.pending_action import record_effect
from scaling.decision.transitions import absorb, advance, reconcile_capacity
from scaling.flip import Condition, Flip
from scaling.flips.explained import decide_and_explain
from scaling.log_entry import decision_id
from scaling.model import (
    Capacity,
    Controls,
    Direction,
    EffectOutcome,
    EffectRecord,
    ExternalChange,
    MetricFailure,
    Override,
    Pause,
    Reason,
    Refused,
    ScaleAction,
    Spent,
    Statistic,
    TargetState,
    effect_of,
)
from scaling.rules.combine import metrics_of
from scaling.window import Window
from tests.support.examples import TORTURE, examples
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, at, full, metric, policy, report

PER_UNIT = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 100.0})
CAPPED = RuleSpec(
    type="target_per_unit",
    name="capped",
    options={"metric": "backlog", "target": 100.0, "cap_metric": "partitions"},
)
GUARD = RuleSpec(type="guard", name="db", options={"metric": "ru", "block_out_above": 90.0})
SECOND = RuleSpec(
    type="threshold",
    name="second",
    options={"metric": "other", "scale_out_above": 400.0, "scale_in_below": 50.0},
)
ACTIVE = RuleSpec(type="activation", name="active", options={"metrics": ["backlog", "other"], "above": 5.0})
WITHIN = RuleSpec(
    type="within_request_units",
    name="paid",
    options={"request_units": "ru", "rate": 10.0, "ru_per_record": 5.0},
)
SIZED = RuleSpec(
    type="request_units_for_rate",
    name="sized",
    options={
        "consumers": ["backlog", "other"],
        "rate": 0.01,
        "ru_per_record": 1.0,
        "step": 1,
        "throttled_share": "ru",
        "throttled_above": 0.6,
    },
)
NIGHTS = RuleSpec(
    type="schedule",
    name="nights",
    options={
        "periods": [
            {"from": "00:00", "to": "08:05", "ceiling": 3, "floor": 2},
            {"from": "08:05", "to": "08:20", "floor": 5},
            {"from": "07:00", "to": "24:00", "ceiling": 6},
        ]
    },
)


def several(combine: str) -> RuleSpec:
    levels = {"scale_out_above": "100 * instances + 50", "scale_in_below": 90.0}
    return RuleSpec(
        type="threshold",
        name=combine,
        options={"metrics": ["backlog", "other"], "combine": combine, **levels},
    )


def expression(**texts: str) -> RuleSpec:
    return RuleSpec(type="composite", name="expression", options=texts)


EXPRESSIONS = (
    expression(desired="ceil(backlog.average / 100)"),
    expression(desired="ceil(max(backlog, other.maximum) / 50) + 1"),
    expression(scale_out_when="backlog > 100 and other > 80", scale_in_when="backlog < 60 and other < 30"),
    expression(scale_out_when="backlog + other > 400 or ru > 90", scale_in_when="backlog + other < 100"),
    expression(
        scale_out_when="backlog.average > 100 * instances", scale_in_when="known(other) and other < 50"
    ),
    expression(desired="3 if 200 < backlog < 400 else 5"),
    expression(scale_in_when="backlog == 0"),
    RuleSpec(
        type="composite",
        name="nested",
        options={"rules": [{"type": r.type, **r.options} for r in (THRESHOLD, SECOND, GUARD)]},
    ),
)
MIDNIGHT, NOON = 1_799_971_200.0, NOW // 3600 * 3600  # the day and the hour of NOW
BEYOND = 1e-6
"""Relative step past a value that must be exceeded."""


class Case(msgspec.Struct):
    """The inputs of one decision, to be changed as its flips say."""

    policy: Policy
    windows: dict[str, Window]
    state: TargetState
    controls: Controls
    now: float

    def decide(self):
        return decide_and_explain(self.policy, self.windows, self.state, now=self.now, controls=self.controls)

    def spec(self, **changes) -> None:
        self.policy = Policy(msgspec.structs.replace(self.policy.spec, **changes))

    def capacity(self, **changes) -> None:
        capacity = msgspec.structs.replace(self.state.capacity, **changes)
        self.state = msgspec.structs.replace(self.state, capacity=capacity)


def ranges(flip: Flip) -> dict[str, tuple[float, float]]:
    """The values of each metric that a flip names, from one to the other."""
    found: dict[str, tuple[float, float]] = {}
    for condition in flip.conditions:
        kind, _, name = condition.quantity.partition(" ")
        if name and kind in set(Statistic):
            value, step = condition.value, max(abs(condition.value), 1.0) * BEYOND
            low, high = found.get(name, (0.0, 1e15))
            match condition.comparator:
                case ">":
                    low = max(low, value + step)
                case ">=":
                    low = max(low, value)
                case "<":
                    high = min(high, max(value - step, 0.0) if value > 0 else -1.0)
                case "<=":
                    high = min(high, value)
            found[name] = low, high
    return found


def border(flip: Flip, name: str, part: float = 0.0) -> tuple[float, bool]:
    """The value of a metric at its border, or a part of the way to the other end; and whether that is higher."""
    low, high = ranges(flip)[name]
    conditions = [c for c in flip.conditions if c.quantity in {f"{s} {name}" for s in Statistic}]
    upward = conditions[0].comparator.startswith(">")
    begin, end = (low, high) if upward else (high, low)
    if part and end - begin > 1e6 * max(begin, 1.0):  # so far that nobody goes there evenly
        end = begin * 100 + 1000
    return begin + (end - begin) * part, upward


def apply_flip(case: Case, flip: Flip, part: float = 0.0) -> None:
    times = [condition.value for condition in flip.conditions if condition.quantity == "time"]
    for condition in flip.conditions:
        kind, _, name = condition.quantity.partition(" ")
        if condition.quantity in CHANGES:
            CHANGES[condition.quantity](case, condition, name)
        elif kind in {"samples", "span", "age", "failures"}:
            refill(case, condition, name)
        else:
            assert kind == "time" or name in ranges(flip), condition
    set_values(case, {name: border(flip, name, part) for name in ranges(flip)})
    if times:
        move_to(case, max(times))


def move_to(case: Case, until: float) -> None:
    """Later, with the same metrics read again; an external capacity is met again, too."""
    delta = until - case.now
    case.windows = {
        name: msgspec.structs.replace(window, times=[t + delta for t in window.times])
        for name, window in case.windows.items()
    }
    capacity = msgspec.structs.replace(case.state.capacity, at=until)
    if case.state.external_change is not None:
        capacity = msgspec.structs.replace(capacity, current=case.state.external_change.seen)
    case.now = until
    case.state = reconcile_capacity(
        case.policy,
        msgspec.structs.replace(case.state, capacity=capacity),
        capacity,
        now=until,
        controls=case.controls,
    )


def set_values(case: Case, values: dict[str, tuple[float, bool]]) -> None:
    """Every sample of a metric has its value; of several in one name, each has its share, or what is named of it alone
    where that is further.
    """
    shared: dict[str, float] = {}
    for combined in (name for name in values if "(" in name):
        way, _, rest = combined.partition("(")
        metrics = rest.rstrip(")").split(", ")
        shared |= dict.fromkeys(metrics, values[combined][0] / (len(metrics) if way == "sum" else 1))
    alone = {name: value for name, value in values.items() if "(" not in name}
    for name, (value, upward) in alone.items():
        known = shared.get(name, value)
        shared[name] = max(value, known) if upward else min(value, known)
    for name, value in shared.items():
        window = case.windows[name]
        changed = msgspec.structs.replace(window, values=[value] * len(window.values))
        case.windows = case.windows | {name: changed}


def refill(case: Case, condition: Condition, name: str) -> None:
    """The samples that were missing, at the level of those there are."""
    old = case.windows.get(name, Window())
    value = old.values[-1] if old.values else 10.0
    case.windows = case.windows | {name: full(value, now=case.now)}


def set_bound(case: Case, condition: Condition, name: str) -> None:
    case.spec(**{condition.quantity: int(condition.value)})


def set_schedule(case: Case, condition: Condition, name: str) -> None:
    """Of all periods, as far as they have such a bound and it is narrower."""
    choose = {"ceiling": max, "floor": min}[name]

    def widened(period: dict) -> dict:
        return period | ({name: choose(period[name], int(condition.value))} if name in period else {})

    rules = [
        msgspec.structs.replace(
            rule, options=rule.options | {"periods": [widened(period) for period in rule.options["periods"]]}
        )
        if rule.type == "schedule"
        else rule
        for rule in case.policy.spec.rules
    ]
    case.spec(rules=tuple(rules))


def lift_pause(case: Case, condition: Condition, name: str) -> None:
    kept = tuple(p for p in case.controls.pauses if p.direction not in {None, Direction(name)})
    case.controls = msgspec.structs.replace(case.controls, pauses=kept)


def free_pace(case: Case, condition: Condition, name: str) -> None:
    way = "out" if name == "out" else "inward"
    case.spec(**{way: msgspec.structs.replace(getattr(case.policy.spec, way), select="max", rates=())})


def read_capacity(case: Case, condition: Condition, name: str) -> None:
    case.state = msgspec.structs.replace(
        case.state, capacity=Capacity(3, case.now), expected=3, capacity_error=None
    )


def dry_run_off(case: Case, condition: Condition, name: str) -> None:
    case.controls = msgspec.structs.replace(case.controls, dry_run=False)


def raise_budget(case: Case, condition: Condition, name: str) -> None:
    case.spec(budget=msgspec.structs.replace(case.policy.spec.budget, amount=condition.value))


CHANGES = {
    "maximum": set_bound,
    "minimum": set_bound,
    "schedule ceiling": set_schedule,
    "schedule floor": set_schedule,
    "platform ceiling": lambda case, condition, name: case.capacity(ceiling=int(condition.value)),
    "platform floor": lambda case, condition, name: case.capacity(floor=int(condition.value)),
    "platform step": lambda case, condition, name: case.capacity(step=int(condition.value), allowed=()),
    "platform change": lambda case, condition, name: case.capacity(pending=False),
    "other controller": lambda case, condition, name: case.capacity(held_by=None),
    "pause out": lift_pause,
    "pause in": lift_pause,
    "rates out": free_pace,
    "rates in": free_pace,
    "disabled out": free_pace,
    "disabled in": free_pace,
    "capacity": read_capacity,
    "dry-run": dry_run_off,
    "budget": raise_budget,
}

levels = st.sampled_from(
    [0.0, 20.0, 49.0, 75.0, 99.0, 100.0, 150.0, 300.0, 450.0, 500.0, 501.0, 900.0, 5000.0]
)
caps = st.integers(0, 8).map(float)
ages = st.sampled_from([1.0, 60.0, 119.0, 299.0, 599.0, 1200.0])


@st.composite
def windows(draw, values=levels) -> Window:
    shape = draw(
        st.sampled_from(["full"] * 4 + ["short", "stale", "failed", "gap", "lacking", "lacking", "empty"])
    )
    whole = full(draw(values))
    if shape == "short":
        return Window(times=whole.times[2:], values=whole.values[2:])
    if shape == "stale":
        return full(whole.values[0], now=NOW - 400)
    if shape == "failed":
        return Window(whole.times, whole.values, MetricFailure("m", NOW, "no"))
    if shape == "gap":
        times = [NOW - 240, NOW - 230, NOW - 120, NOW - 60, NOW]
        return Window(times, whole.values)
    if shape == "lacking":
        return Window([*whole.times[:2], *whole.times[3:]], whole.values[1:])
    return Window() if shape == "empty" else whole


@st.composite
def paces(draw) -> Pace:
    rates = st.sampled_from(
        [
            (),
            (RateLimit(kind="units", amount=1, period=300.0),),
            (RateLimit(kind="percent", amount=50, period=600.0),),
        ]
    )
    return Pace(
        cooldown=draw(st.sampled_from([0.0, 0.0, 300.0])),
        stabilization=draw(st.sampled_from([0.0, 0.0, 300.0])),
        step=draw(st.sampled_from([None, 1, 3])),
        rates=draw(rates),
        select=draw(st.sampled_from(["max", "max", "min", "disabled"])),
    )


@st.composite
def states(draw) -> TargetState:
    current = draw(st.integers(0, 12))
    moves = sorted(draw(st.lists(ages, max_size=3, unique=True)), reverse=True)
    effects = tuple(
        EffectRecord(NOW - age, *draw(st.sampled_from([(2, 3), (4, 3), (1, 4)])), draw(levels))
        for age in moves
    )
    blocked = draw(
        st.sampled_from(
            ["no"] * 8
            + ["pending", "moving", "held", "external_change", "corrupt", "unread"]
            + ["stepped", "stepped", "floor", "floor", "refused", "refused"]
        )
    )
    refused_to = draw(st.integers(0, 12).filter(lambda to: to != current))
    changes = {
        "pending": {"pending": ScaleAction("p@1", "plan", 3, 4, NOW - 9, NOW + 500, Reason.SCALE_OUT)},
        "moving": {"capacity": Capacity(current, NOW, pending=True)},
        "doubtful": {
            "capacity": Capacity(current, NOW, pending=True, unknown_state="Odd", unknown_since=NOW)
        },
        "held": {"capacity": Capacity(current, NOW, held_by="autoscale")},
        "external_change": {
            "external_change": ExternalChange(current + 1, current, NOW - 30),
            "capacity": Capacity(current + 1, NOW),
        },
        "corrupt": {"corrupt_since": NOW - 30},
        "unread": {"capacity_error": "403"},
        "stepped": {"capacity": Capacity(current, NOW, step=draw(st.sampled_from([2, 3, 5])))},
        "floor": {"capacity": Capacity(current, NOW, floor=draw(st.integers(0, 12)))},
        "refused": {"refused": Refused(current, refused_to, NOW - draw(ages), "no")},
    }.get(blocked, {})
    recommended = sorted(draw(st.lists(st.tuples(ages, st.integers(0, 9)), max_size=4)), reverse=True)
    return at(
        current,
        effects=effects,
        recommendations=tuple((NOW - age, units) for age, units in recommended),
        missing_since=draw(st.sampled_from([None, NOW - 900])),
        spent=Spent(
            MIDNIGHT, MIDNIGHT, NOW, draw(st.floats(0.0, 200.0)), current, float(current), NOON, peak=current
        ),
        **changes,
    )


@st.composite
def orders(draw) -> Controls:
    ends = st.sampled_from([None, NOW + 120, NOW + 900])
    directions = st.sampled_from([None, *Direction])
    pauses = draw(st.lists(st.tuples(directions, ends), max_size=2)) if draw(st.booleans()) else []
    override = Override(draw(st.integers(1, 8)), "kim", NOW, NOW + 600)
    return Controls(
        pauses=tuple(Pause("kim", NOW - 9, direction, until) for direction, until in pauses),
        override=override if draw(st.integers(0, 5)) == 0 else None,
        dry_run=draw(st.sampled_from([None, None, None, True])),
    )


@st.composite
def cases(draw) -> Case:
    base = [
        (THRESHOLD,),
        (PER_UNIT,),
        (CAPPED,),
        (THRESHOLD, SECOND),
        (THRESHOLD, GUARD),
        (PER_UNIT, SECOND, GUARD),
        (CAPPED, THRESHOLD),
        (SIZED,),
        *((several(way),) for way in ("each", "sum", "maximum", "minimum")),
        *((rule,) for rule in EXPRESSIONS),
    ]
    extra = draw(st.lists(st.sampled_from([ACTIVE, WITHIN, NIGHTS, SECOND, EXPRESSIONS[2]]), max_size=2))
    rules = (*draw(st.sampled_from(base)), *extra)
    rules = tuple({rule.name: rule for rule in rules}.values())
    names = sorted({name for rule in policy(rules=rules).rules for name in metrics_of(rule)})
    names = names or ["backlog"]
    made = policy(
        metrics=dict.fromkeys(
            names, draw(st.sampled_from([metric(), metric(min_samples=4, missing_allowed=1)]))
        ),
        rules=rules,
        minimum=draw(st.integers(0, 3)),
        maximum=draw(st.integers(4, 9)),
        out=draw(paces()),
        inward=draw(paces()),
        plateau=draw(st.sampled_from([None, Plateau(metric="backlog", effects=1)])),
        fallback=draw(st.sampled_from([None, Fallback(capacity=4)])),
        budget=draw(st.sampled_from([None, None, Budget(amount=96.0), Budget(amount=96.0, hourly=True)])),
    )
    read = {name: draw(windows(caps if name == "partitions" else levels)) for name in names}
    return Case(made, read, draw(states()), draw(orders()), NOW)


def assert_flips_come_true(case: Case) -> None:
    before = case.decide()
    for flip in before.flips:
        if not flip.conditions:
            continue
        if not flip.possible:
            low = [c for c in flip.conditions if c.comparator.startswith("<") and c.value <= 0]
            assert low or any(low > high for low, high in ranges(flip).values()), (before, flip)
            continue
        for part in (0.0, 0.3, 1.0):
            other = msgspec.structs.replace(case)
            apply_flip(other, flip, part)
            after = other.decide()
            told = (flip, part, after.reason, after.current, after.desired, after.limits, before.reason)
            if flip.outcome is None:
                assert (after.reason, after.note, after.limits) != (before.reason, before.note, before.limits)
                continue
            assert after.reason is flip.outcome, told
            if flip.to is None:
                assert after.desired == after.current, told
            elif part and flip.beyond:
                assert after.acts, told
                assert (after.desired > after.current) == (flip.to > after.current), told
            else:
                assert after.desired == flip.to, told


FIRST_POLICY = {
    "rules": (
        RuleSpec(
            type="threshold",
            name="backlog",
            options={
                "metric": "backlog",
                "scale_out_above": "250 * instances",
                "scale_in_below": "100 * (instances - 1)",
                "step_out": 2,
            },
        ),
    ),
    "out": Pace(cooldown=300.0),
    "inward": Pace(cooldown=600.0),
}
"""README's, with the cooldown for scaling in that `tidemark.toml` has; not in dry-run, so that cooldowns run."""


def a_day(made: Policy, minutes: int) -> Iterator[Case]:
    """Each decision of a day whose backlog rises and falls with the load, the instances and chance."""
    windows, state, backlog, current, chance = {}, TargetState(), 0.0, 1, Random(1)
    for minute in range(minutes):
        now = NOW + MINUTE * minute
        arrivals = 700.0 * (1.1 + sin(minute / 115.0)) * chance.uniform(0.5, 1.5)
        backlog = max(backlog + arrivals - 300.0 * current, 0.0)
        read = report(round(backlog), current, now=now)
        windows, state = absorb(made, windows, state, read, now=now, controls=Controls())
        yield Case(made, windows, state, Controls(), now)
        decided = decide(made, windows, state, now=now, decision_id=decision_id("plan", now))
        state, action = advance(made, state, decided, report_at=now, level=None)
        if action is not None:
            current = action.to_capacity
            effect = effect_of(action, EffectOutcome.APPLIED, now + 5, "", current)
            state = record_effect(state, effect)


def test_no_decision_of_a_day_by_the_first_policy_of_the_readme_promises_what_does_not_follow() -> None:
    reasons = set()
    for case in a_day(policy(**FIRST_POLICY), 1440 if TORTURE else 180):
        reasons.add(case.decide().reason)
        assert_flips_come_true(case)

    assert reasons >= {Reason.WITHIN_TARGET, Reason.COOLING_DOWN, Reason.SCALE_OUT, Reason.SCALE_IN}


@examples(60)
@given(cases())
def test_every_flip_leads_to_the_outcome_it_names(case: Case) -> None:
    assert_flips_come_true(case)


def scaled(case: Case, outcome: Reason) -> Reason:
    flip = next(flip for flip in case.decide().flips if flip.outcome is outcome)
    other = msgspec.structs.replace(case)
    apply_flip(other, flip)
    return other.decide().reason


def held_case(value=900.0, current=3, **changes) -> Case:
    state, controls = changes.pop("state", at(current)), changes.pop("controls", Controls())
    given_windows = changes.pop("windows", {"backlog": full(value)})
    return Case(policy(**changes), given_windows, state, controls, NOW)


OUTS = {
    "within target": held_case(300.0),
    "at the maximum": held_case(current=10),
    "cooling": held_case(state=at(3, effects=(EffectRecord(NOW - 60, 2, 3),)), out=Pace(cooldown=600.0)),
    "stabilizing": held_case(
        state=at(3, recommendations=((NOW - 60, 2), (NOW - 30, 3))), out=Pace(stabilization=300.0)
    ),
    "rate limited": held_case(
        state=at(3, effects=(EffectRecord(NOW - 60, 2, 3),)),
        out=Pace(rates=(RateLimit(kind="units", amount=1, period=300.0),)),
    ),
    "disabled": held_case(out=Pace(select="disabled")),
    "paused": held_case(controls=Controls(pauses=(Pause("kim", NOW),))),
    "paused twice": held_case(
        controls=Controls(
            pauses=(Pause("kim", NOW, None, NOW + 60), Pause("kim", NOW, Direction.OUT, NOW + 600))
        )
    ),
    "pending": held_case(
        state=at(3, pending=ScaleAction("p@1", "plan", 3, 4, NOW - 9, NOW + 500, Reason.SCALE_OUT))
    ),
    "moving": held_case(state=at(3, capacity=Capacity(3, NOW, pending=True))),
    "held": held_case(state=at(3, capacity=Capacity(3, NOW, held_by="autoscale"))),
    "corrupt": held_case(state=at(3, corrupt_since=NOW - 30)),
    "over budget": held_case(
        state=at(1, spent=Spent(MIDNIGHT, MIDNIGHT, NOW, 47.0, 1, 1.0)), budget=Budget(amount=48.0)
    ),
    "over budget in this hour": held_case(
        state=at(3, spent=Spent(MIDNIGHT, MIDNIGHT, NOW, 47.0, 3, 3.0, NOON, peak=3)),
        budget=Budget(amount=48.0, hourly=True),
    ),
    "over a budget that is too small for another on any day": held_case(
        state=at(2, spent=Spent(MIDNIGHT, MIDNIGHT, NOW, 9.0, 2, 2.0)), budget=Budget(amount=26.0)
    ),
    "overridden": held_case(controls=Controls(override=Override(3, "kim", NOW, NOW + 600))),
    "dry-run": held_case(controls=Controls(dry_run=True)),
    "all at once": held_case(
        windows={"backlog": full(900.0), "ru": full(95.0)},
        metrics={"backlog": metric(), "ru": metric()},
        rules=(THRESHOLD, GUARD),
        state=at(10, effects=(EffectRecord(NOW - 60, 9, 10),)),
        out=Pace(cooldown=600.0),
        controls=Controls(pauses=(Pause("kim", NOW),)),
    ),
}


@pytest.mark.parametrize("name", OUTS)
def test_a_promised_scale_out_follows(name: str) -> None:
    assert OUTS[name].decide().reason is not Reason.SCALE_OUT
    assert scaled(OUTS[name], Reason.SCALE_OUT) is Reason.SCALE_OUT


INS = {
    "within target": held_case(300.0),
    "at the minimum": held_case(20.0, 2, minimum=2),
    "cooling": held_case(
        20.0, state=at(3, effects=(EffectRecord(NOW - 60, 2, 3),)), inward=Pace(cooldown=600.0)
    ),
    "stabilizing": held_case(
        20.0, state=at(3, recommendations=((NOW - 60, 5),)), inward=Pace(stabilization=300.0)
    ),
    "another metric missing": held_case(
        windows={"backlog": full(20.0), "ru": full(10.0, now=NOW - 400)},
        metrics={"backlog": metric(), "ru": metric()},
        rules=(THRESHOLD, GUARD),
    ),
    "paused": held_case(20.0, controls=Controls(pauses=(Pause("kim", NOW, Direction.IN, NOW + 60),))),
    "disabled": held_case(20.0, inward=Pace(select="disabled")),
}


@pytest.mark.parametrize("name", INS)
def test_a_promised_scale_in_follows(name: str) -> None:
    assert INS[name].decide().reason is not Reason.SCALE_IN
    assert scaled(INS[name], Reason.SCALE_IN) is Reason.SCALE_IN


def test_the_value_named_is_the_exact_border() -> None:
    at_border = held_case(500.0)
    above = held_case(500.0 * (1 + BEYOND))

    assert Flip(Reason.SCALE_OUT, (Condition("average backlog", ">", 500.0),), 4) in at_border.decide().flips
    assert at_border.decide().reason is Reason.WITHIN_TARGET
    assert above.decide().reason is Reason.SCALE_OUT


def test_an_external_capacity_is_taken_over_at_the_time_named() -> None:
    case = held_case(300.0, state=at(3, external_change=ExternalChange(7, 3, NOW - 60)))

    assert scaled(case, Reason.WITHIN_TARGET) is Reason.WITHIN_TARGET
    assert case.policy.spec.external_hold > MINUTE


@st.composite
def young_cases(draw) -> Case:
    """Nothing blocks, and every window lacks something."""
    case = draw(cases())
    shapes = (
        lambda value: full(value, count=4),
        lambda value: full(value, now=NOW - 400),
        lambda value: msgspec.structs.replace(full(value), failure=MetricFailure("m", NOW, "no")),
        lambda value: Window([NOW - 240, NOW - 230, NOW - 120, NOW - 60, NOW], [value] * 5),
    )
    case.windows = {
        name: draw(st.sampled_from(shapes))(draw(caps if name == "partitions" else levels))
        for name in case.policy.spec.metrics
    }
    case.state, case.controls = at(draw(st.integers(0, 12))), Controls()
    return case


@examples(60)
@given(young_cases())
def test_what_missing_samples_point_to_follows_when_they_come_as_they_were(case: Case) -> None:
    assert_flips_come_true(case)


@examples(60)
@given(cases())
def test_the_words_of_every_decision_are_one_line(case: Case) -> None:
    text = line(case.decide())

    assert text.isprintable()
