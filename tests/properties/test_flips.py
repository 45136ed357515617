"""Counterfactuals: what a recommendation says would have changed it, does change it, and as it says."""

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaling.config.policy import Budget, Fallback, Pace, Plateau, Policy, RateLimit, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.explain import line
from scaling.decision.transitions import believe
from scaling.model import (
    Capacity,
    Controls,
    Direction,
    EffectRecord,
    Flip,
    ForeignHand,
    MetricFailure,
    Override,
    Pause,
    Reason,
    Refused,
    ScaleAction,
    TargetState,
)
from scaling.spent import Spent
from scaling.window import Window
from tests.runner_support import MINUTE, NOW, THRESHOLD, at, full, metric, policy

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
        return decide(self.policy, self.windows, self.state, now=self.now, controls=self.controls)

    def spec(self, **changes) -> None:
        self.policy = Policy(msgspec.structs.replace(self.policy.spec, **changes))


def beyond(flip: Flip) -> float:
    step = max(abs(flip.value), 1.0) * BEYOND
    return {">": flip.value + step, "<": max(flip.value - step, 0.0)}.get(flip.comparator, flip.value)


def apply_flips(case: Case, flips: list[Flip]) -> None:
    times = [flip.value for flip in flips if flip.quantity == "time"]
    for flip in flips:
        kind, _, name = flip.quantity.partition(" ")
        if kind != "time":
            CHANGES[kind](case, flip, name)
    if times:
        move_to(case, max(times))


def move_to(case: Case, until: float) -> None:
    """Later, with the same metrics read again; a foreign capacity is met again, too."""
    delta = until - case.now
    case.windows = {
        name: msgspec.structs.replace(window, times=[t + delta for t in window.times])
        for name, window in case.windows.items()
    }
    capacity = msgspec.structs.replace(case.state.capacity, at=until)
    if case.state.foreign is not None:
        capacity = msgspec.structs.replace(capacity, current=case.state.foreign.seen)
    case.now = until
    case.state = believe(
        case.policy,
        msgspec.structs.replace(case.state, capacity=capacity),
        capacity,
        now=until,
        controls=case.controls,
    )


def set_values(case: Case, flip: Flip, name: str) -> None:
    value = beyond(flip)
    window = case.windows[name]
    case.windows = case.windows | {name: msgspec.structs.replace(window, values=[value] * len(window.values))}


def refill(case: Case, flip: Flip, name: str) -> None:
    """The samples that were missing, at the level of those there are."""
    old = case.windows.get(name, Window())
    value = old.values[-1] if old.values else 10.0
    case.windows = case.windows | {name: full(value, now=case.now)}


def set_bound(case: Case, flip: Flip, name: str) -> None:
    value = int(flip.value) + {">": 1, "<": -1}.get(flip.comparator, 0)
    case.spec(**{flip.quantity: value})


def lift_order(case: Case, flip: Flip, name: str) -> None:
    case.controls = Controls(dry_run=False, override=case.controls.override)
    case.state = msgspec.structs.replace(
        case.state, capacity=msgspec.structs.replace(case.state.capacity, held_by=None)
    )


def free_pace(case: Case, flip: Flip, name: str) -> None:
    spec = case.policy.spec
    free = {"select": "max", "rates": ()}
    case.spec(
        out=msgspec.structs.replace(spec.out, **free), inward=msgspec.structs.replace(spec.inward, **free)
    )


def read_capacity(case: Case, flip: Flip, name: str) -> None:
    case.state = msgspec.structs.replace(
        case.state, capacity=Capacity(3, case.now), expected=3, capacity_error=None
    )


def settle(case: Case, flip: Flip, name: str) -> None:
    case.state = msgspec.structs.replace(
        case.state, capacity=msgspec.structs.replace(case.state.capacity, pending=False)
    )


def change_platform(case: Case, flip: Flip, name: str) -> None:
    """A smaller step; or a floor below what there is."""
    capacity = case.state.capacity
    changed = {"step": 1} if name == "step" else {"floor": max(int(flip.value) - 1, 0)}
    case.state = msgspec.structs.replace(case.state, capacity=msgspec.structs.replace(capacity, **changed))


def raise_budget(case: Case, flip: Flip, name: str) -> None:
    case.spec(budget=msgspec.structs.replace(case.policy.spec.budget, amount=flip.value))


CHANGES = {
    "average": set_values,
    "maximum": lambda case, flip, name: (set_values if name else set_bound)(case, flip, name),
    "minimum": lambda case, flip, name: (set_values if name else set_bound)(case, flip, name),
    "latest": set_values,
    "samples": refill,
    "span": refill,
    "age": refill,
    "failures": refill,
    "control": lift_order,
    "step": free_pace,
    "capacity": read_capacity,
    "pending": settle,
    "platform": change_platform,
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
        return Window([*whole.times[:2], *whole.times[3:]], [draw(values), *whole.values[2:]])
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
            + ["pending", "moving", "held", "foreign", "corrupt", "unread"]
            + ["stepped", "stepped", "floor", "floor", "refused", "refused"]
        )
    )
    refused_to = draw(st.integers(0, 12).filter(lambda to: to != current))
    changes = {
        "pending": {"pending": ScaleAction("p@1", "plan", 3, 4, NOW - 9, NOW + 500, Reason.SCALE_OUT)},
        "moving": {"capacity": Capacity(current, NOW, pending=True)},
        "held": {"capacity": Capacity(current, NOW, held_by="autoscale")},
        "foreign": {"foreign": ForeignHand(current + 1, current, NOW - 30)},
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
    rules = draw(
        st.sampled_from(
            [
                (THRESHOLD,),
                (PER_UNIT,),
                (CAPPED,),
                (THRESHOLD, SECOND),
                (THRESHOLD, GUARD),
                (PER_UNIT, SECOND, GUARD),
                (CAPPED, THRESHOLD),
            ]
        )
    )
    options = [rule.options for rule in rules]
    names = sorted({o[key] for o in options for key in ("metric", "cap_metric") if key in o})
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


def test_every_kind_of_flip_can_be_applied() -> None:
    assert set(CHANGES) >= {
        "average",
        "maximum",
        "minimum",
        "latest",
        "samples",
        "age",
        "failures",
        "control",
    }


@settings(max_examples=300)
@given(cases())
def test_all_flips_of_one_outcome_together_change_what_is_decided(case: Case) -> None:
    before = case.decide()
    assert before.flips

    for outcome in {flip.outcome for flip in before.flips}:
        other = msgspec.structs.replace(case)
        flips = [flip for flip in before.flips if flip.outcome is outcome]
        assume(all(flip.value >= 0 for flip in flips))
        apply_flips(other, flips)
        after = other.decide()

        assert (after.reason, after.desired) != (before.reason, before.desired), (before, outcome, after)


def scaled(case: Case, outcome: Reason) -> Reason:
    before = case.decide()
    other = msgspec.structs.replace(case)
    apply_flips(other, [flip for flip in before.flips if flip.outcome is outcome])
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
        windows={"backlog": full(20.0)},
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

    assert Flip("average backlog", ">", 500.0, Reason.SCALE_OUT) in at_border.decide().flips
    assert at_border.decide().reason is Reason.WITHIN_TARGET
    assert above.decide().reason is Reason.SCALE_OUT


def test_a_foreign_capacity_is_taken_over_at_the_time_named() -> None:
    case = held_case(300.0, state=at(3, foreign=ForeignHand(7, 3, NOW - 60)))

    assert scaled(case, Reason.WITHIN_TARGET) is Reason.WITHIN_TARGET
    assert case.policy.spec.foreign_hold > MINUTE


CHANGING = {Reason.SCALE_OUT, Reason.SCALE_IN}
MISSING = {
    Reason.INCOMPLETE_WINDOW,
    Reason.STALE_METRIC,
    Reason.COLLECT_FAILED,
    Reason.INVALID_METRIC,
}


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


@settings(max_examples=300)
@given(young_cases())
def test_a_change_that_missing_samples_point_to_follows_when_they_come_as_they_were(case: Case) -> None:
    before = case.decide()
    promised = {flip.outcome for flip in before.flips} & CHANGING
    if before.reason not in MISSING or not promised:
        return
    (outcome,) = promised

    apply_flips(case, list(before.flips))

    assert case.decide().reason is outcome


@settings(max_examples=300)
@given(cases())
def test_the_words_of_every_decision_are_one_line_and_promise_no_rest(case: Case) -> None:
    text = line(case.decide())

    assert text.isprintable()
    assert "within target possible" not in text
