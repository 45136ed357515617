"""What the platform allows: its steps, floors, ceilings and refusals are known before an action is decided."""

from contextlib import suppress

import msgspec
import pytest

from scaling.config.policy import Pace, RuleSpec
from scaling.decision.blockers import REFUSAL_REMEMBERED
from scaling.decision.pending_action import being_carried_out, hand_back, record_effect
from scaling.decision.transitions import absorb, review
from scaling.flip import Condition
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Effect,
    EffectOutcome,
    Override,
    Reason,
    Refused,
    ScaleAction,
    TargetState,
)
from scaling.ports import ScalerError
from scaling.service.messages import encode
from tests.support.scaling.runner import (
    MINUTE,
    NOW,
    THRESHOLD,
    Crash,
    World,
    at,
    full,
    metric,
    policy,
    report,
)

QUICK = {"metrics": {"backlog": metric(span=120.0, min_samples=2)}}
UNITS = RuleSpec(type="composite", name="sizing", options={"desired": "backlog"})
HIGH, CALM, LOW = 900.0, 300.0, 20.0


def sized(wanted: float, current: int, *, state: TargetState | None = None, now: float = NOW, **changes):
    """The decision where a rule wants `wanted` RU/s of an autoscale container, which has steps of 1,000."""
    made = policy(rules=(UNITS,), **{"minimum": 400, "maximum": 20_000, **changes})
    stepped = Capacity(current, now, floor=1000, ceiling=10_000, step=1000)
    state = state or at(current, capacity=stepped)
    return decide(made, {"backlog": full(wanted, now=now)}, state, now=now, decision_id="plan@t")


# -- steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "current", "desired", "reason"),
    [
        (4400, 5000, 5000, Reason.BETWEEN_STEPS),
        (4000, 5000, 4000, Reason.SCALE_IN),
        (3900, 5000, 4000, Reason.SCALE_IN),
        (5001, 5000, 6000, Reason.SCALE_OUT),
        (50_000, 5000, 10_000, Reason.SCALE_OUT),
        (10, 1000, 1000, Reason.BETWEEN_STEPS),
        (10, 2000, 1000, Reason.SCALE_IN),
        (5000, 5000, 5000, Reason.WITHIN_TARGET),
    ],
)
def test_what_is_decided_is_a_step_of_the_platform(wanted, current, desired, reason):
    decision = sized(wanted, current)

    assert (decision.desired, decision.reason) == (desired, reason)


def test_an_override_between_two_steps_does_not_take_the_place_of_its_own_action():
    made = policy(rules=(UNITS,), minimum=400, maximum=20_000)
    stepped = Capacity(2000, NOW, floor=1000, ceiling=10_000, step=1000)
    override = Controls(override=Override(4400, "kim", NOW - 1, NOW + 3600))
    windows = {"backlog": full(2000.0)}
    first = decide(made, windows, at(2000, capacity=stepped), now=NOW, controls=override)
    action = ScaleAction("plan@1", "plan", 2000, first.desired, NOW, NOW + 600, Reason.OVERRIDDEN)

    again = decide(
        made, windows, at(2000, capacity=stepped, pending=action), now=NOW + MINUTE, controls=override
    )

    assert first.desired == 5000
    assert (again.desired, again.reason) == (2000, Reason.ACTION_PENDING)


def test_a_step_of_the_policy_below_that_of_the_platform_says_so():
    decision = sized(3000, 5000, inward=Pace(step=500))

    assert (decision.desired, decision.reason) == (5000, Reason.BETWEEN_STEPS)
    assert [limit.detail for limit in decision.limits] == ["step 500", "in steps of 1000"]


def test_a_bound_that_is_no_step_is_met_from_within():
    assert sized(50_000, 5000, maximum=8500).desired == 8000
    assert sized(10, 5000, minimum=1500).desired == 2000


# -- allowed values ----------------------------------------------------------------------------------------


def among(wanted: float, current: int, *, controls: Controls = NO_CONTROLS, **changes):
    """The decision where a rule wants `wanted` messaging units, which come in powers of two."""
    made = policy(rules=(UNITS,), **{"minimum": 1, "maximum": 16, **changes})
    state = at(current, capacity=Capacity(current, NOW, floor=1, ceiling=16, allowed=(1, 2, 4, 8, 16)))
    return decide(made, {"backlog": full(wanted)}, state, now=NOW, controls=controls, decision_id="plan@t")


@pytest.mark.parametrize(
    ("wanted", "current", "desired", "reason"),
    [
        (3, 1, 4, Reason.SCALE_OUT),
        (5, 4, 8, Reason.SCALE_OUT),
        (9, 16, 16, Reason.BETWEEN_STEPS),
        (7, 16, 8, Reason.SCALE_IN),
        (40, 8, 16, Reason.SCALE_OUT),
        (40, 16, 16, Reason.AT_MAXIMUM),
        (0, 2, 1, Reason.SCALE_IN),
        (0, 1, 1, Reason.BETWEEN_STEPS),
        (4, 3, 4, Reason.SCALE_OUT),  # somebody set what is not allowed any more
    ],
)
def test_what_is_decided_is_an_allowed_value_and_never_below_what_is_needed(wanted, current, desired, reason):
    decision = among(wanted, current)

    assert (decision.desired, decision.reason) == (desired, reason)


def test_bounds_and_orders_are_met_by_allowed_values():
    override = Controls(override=Override(5, "kim", NOW - 1, NOW + 3600))

    assert among(40, 2, maximum=12).desired == 8
    assert among(0, 8, minimum=3).desired == 4
    assert among(1, 1, controls=override).desired == 8


def test_a_step_of_the_policy_that_leads_between_allowed_values_says_so():
    decision = among(4, 16, inward=Pace(step=2))

    assert (decision.desired, decision.reason) == (16, Reason.BETWEEN_STEPS)
    assert [limit.detail for limit in decision.limits] == ["step 2", "allowed are 1, 2, 4, 8, 16"]


# -- floors and ceilings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("floor", "maximum", "rules"),
    [
        (3, 2, ()),  # a zone-redundant plan
        (3, 10, (RuleSpec(type="schedule", name="night", options={"periods": [{"ceiling": 0}]}),)),
    ],
)
@pytest.mark.parametrize("load", [LOW, CALM, HIGH])
def test_a_floor_of_the_platform_above_all_bounds_is_one_clear_reason(floor, maximum, rules, load):
    plain = policy().spec.rules
    made = policy(rules=(*plain, *rules), maximum=maximum)
    state = at(3, capacity=Capacity(3, NOW, floor=floor))

    decision = decide(made, {"backlog": full(load)}, state, now=NOW)

    assert (decision.desired, decision.reason) == (3, Reason.AT_MINIMUM)
    assert decision.limits[0].detail == "platform floor 3"


def test_above_such_a_floor_the_capacity_is_lowered_to_it():
    state = at(5, capacity=Capacity(5, NOW, floor=3))

    decision = decide(policy(maximum=2), {"backlog": full(CALM)}, state, now=NOW)

    assert (decision.desired, decision.reason) == (3, Reason.ABOVE_MAXIMUM)


# -- refusals ----------------------------------------------------------------------------------------------


async def test_a_refusal_is_remembered_and_shown_instead_of_being_met_each_minute():
    world = World(policy(**QUICK))
    world.backlog = HIGH
    world.platform.refusal = "access refused; the identity needs a role"
    await world.pass_minutes(60)

    refused = [e for e in await world.entries("effect") if e.effect.outcome is EffectOutcome.REFUSED]
    decisions = await world.entries("decision")
    assert len(refused) == 4  # an hour, a quarter of an hour apart
    assert decisions[-1].reason == Reason.REFUSED
    assert "refused (access refused; the identity needs a role)" in decisions[-1].line


REFUSAL = Refused(3, 5, NOW - 60, "no", floor=0, ceiling=10)


def told(load=HIGH, *, now=NOW, controls=NO_CONTROLS, refused=REFUSAL, step=2, **capacity):
    state = at(3, capacity=Capacity(3, now, **{"ceiling": 10, **capacity}), refused=refused)
    rule = RuleSpec(
        type="threshold",
        name="t",
        options={"metric": "backlog", "scale_out_above": 500.0, "scale_in_below": 100.0, "step_out": step},
    )
    return decide(policy(rules=(rule,)), {"backlog": full(load, now=now)}, state, now=now, controls=controls)


def test_as_much_and_more_is_held_less_and_the_other_direction_are_tried():
    assert told().reason is Reason.REFUSED
    assert told(step=4).reason is Reason.REFUSED
    assert told(step=1).desired == 4
    assert told(LOW).desired == 2


@pytest.mark.parametrize(
    "change",
    [
        {"ceiling": 12},
        {"floor": 1},
        {"now": NOW + REFUSAL_REMEMBERED},
        {"refused": msgspec.structs.replace(REFUSAL, at=NOW + 86_400.0)},  # by a clock that was ahead
        {"refused": msgspec.structs.replace(REFUSAL, from_capacity=4)},
        {"controls": Controls(external_cleared_at=NOW - 30)},
        {"controls": Controls(override=Override(5, "kim", NOW - 30, NOW + 600))},
    ],
)
def test_a_refusal_counts_until_something_changes(change):
    assert told(**change).desired == 5


def test_an_order_that_was_refused_itself_is_held_too():
    controls = Controls(override=Override(5, "kim", NOW - 90, NOW + 600))

    assert told(controls=controls).reason is Reason.REFUSED


def test_what_a_check_of_ours_refused_is_no_refusal_of_the_platform():
    action = ScaleAction("plan@1", "plan", 3, 5, NOW, NOW + 600, Reason.SCALE_OUT)
    effect = Effect("plan@1", "plan", EffectOutcome.REFUSED, 3, 5, None, NOW, "paused by kim")

    assert record_effect(at(3, pending=action), effect).refused is None


# -- a part first ------------------------------------------------------------------------------------------

ORDER = ScaleAction("plan@1", "plan", 3, 10, NOW, NOW + 600, Reason.SCALE_OUT)
STARTED = at(3, pending=ORDER)


def accepted(reached: int = 5) -> Effect:
    return Effect("plan@1", "plan", EffectOutcome.ACCEPTED, 3, 10, reached, NOW + 5, "on its way")


def seen(state: TargetState, current: int, now: float, *, pending: bool = False) -> TargetState:
    told = msgspec.structs.replace(
        report(CALM, current, now=now), capacity=Capacity(current, now, pending=pending)
    )
    return absorb(policy(), {}, state, told, now=now, controls=NO_CONTROLS)[1]


def reason_of(state: TargetState, now: float) -> Reason:
    return decide(policy(), {"backlog": full(CALM, now=now)}, state, now=now).reason


def test_our_own_asynchronous_scale_out_is_no_external_change_at_any_time():
    state = record_effect(STARTED, accepted())
    for minute, current in enumerate([5, 5, 7, 9, 9], start=1):
        state = seen(state, current, NOW + MINUTE * minute, pending=True)
        assert state.external_change is None
        assert reason_of(state, NOW + MINUTE * minute) is Reason.ACTION_PENDING

    state = seen(state, 10, NOW + 660)  # after the action has expired

    assert (state.expected, state.external_change, state.pending) == (10, None, None)
    assert [(e.from_capacity, e.to_capacity) for e in state.effects] == [(3, 10)]
    assert reason_of(state, NOW + 660) is Reason.WITHIN_TARGET


@pytest.mark.parametrize("check", [True, False])
def test_a_part_at_which_the_platform_ends_is_our_effect(check):
    state = record_effect(STARTED, accepted())
    now = NOW + 120

    if check:
        found = review(policy(), state, Capacity(8, now), now=now, controls=NO_CONTROLS)
        assert (found.effect.outcome, found.effect.reached) == (EffectOutcome.LIMITED, 8)
        state = found.state
    else:  # no check was made as long as the action lived
        assert seen(state, 8, now).external_change is None
        state = seen(state, 8, NOW + 660)

    assert (state.expected, state.external_change, state.pending, state.pending_accepted) == (
        8,
        None,
        None,
        None,
    )


def test_a_second_delivery_that_finds_the_part_is_our_effect_too():
    state = record_effect(STARTED, accepted())
    found = msgspec.structs.replace(accepted(7), outcome=EffectOutcome.EXTERNAL_CHANGE)

    after = record_effect(state, found)

    assert (after.expected, after.external_change) == (7, None)


@pytest.mark.parametrize("current", [2, 11])
def test_a_capacity_that_our_action_does_not_lead_through_is_a_external_change(current):
    assert seen(record_effect(STARTED, accepted()), current, NOW + 60).external_change is not None


def test_a_redelivery_after_a_crash_that_followed_a_partial_grant_is_no_external_change():
    died = being_carried_out(STARTED, now=NOW + 1, until=NOW + 46)
    found = msgspec.structs.replace(accepted(5), outcome=EffectOutcome.EXTERNAL_CHANGE)

    assert seen(died, 5, NOW + 60).external_change is None
    again = record_effect(being_carried_out(died, now=NOW + 90, until=NOW + 135), found)
    assert (again.expected, again.external_change, again.pending) == (5, None, None)
    checked = review(policy(), died, Capacity(5, NOW + 90), now=NOW + 90, controls=NO_CONTROLS)
    assert (checked.effect.outcome, checked.state.expected) == (EffectOutcome.LIMITED, 5)


def test_what_the_first_delivery_finds_on_its_way_is_somebody_elses():
    found = msgspec.structs.replace(accepted(5), outcome=EffectOutcome.EXTERNAL_CHANGE)
    first = being_carried_out(STARTED, now=NOW + 1, until=NOW + 46)
    handed = being_carried_out(hand_back(first, "plan@1", due_at=NOW + 60), now=NOW + 60, until=NOW + 105)

    assert record_effect(first, found).external_change.seen == 5
    assert record_effect(handed, found).external_change.seen == 5


def test_what_a_delivery_that_died_had_asked_for_is_ours_also_after_its_action_was_sent_again():
    died = being_carried_out(STARTED, now=NOW + 1, until=NOW + 46)
    again = review(policy(), died, Capacity(3, NOW + 120), now=NOW + 120, controls=NO_CONTROLS)

    assert again.emit == STARTED.pending
    assert seen(again.state, 5, NOW + 180).external_change is None


@pytest.mark.parametrize(
    "error", [ScalerError("could not be read back", unknown=True), TimeoutError(), KeyError("status")]
)
async def test_a_delivery_of_unknown_outcome_after_a_partial_grant_costs_no_hold(error):
    six = msgspec.structs.replace(THRESHOLD, options=THRESHOLD.options | {"step_out": 6})
    world = World(policy(rules=(six,), **QUICK))
    world.backlog = HIGH
    world.platform.available = 2  # of six
    await world.tick()
    await world.drain()
    world.clock.now += MINUTE
    await world.tick()
    ask = world.scaler.inner.apply

    async def lost(action, *, now):
        await ask(action, now=now)
        raise error

    world.scaler.inner.apply = lost
    with suppress(KeyError):
        await world.drain()
    world.scaler.inner.apply, world.platform.available = ask, None
    world.clock.now += 30.0
    await world.autoscaler().apply(encode((await world.state()).pending))

    state = await world.state()
    assert (state.expected, state.external_change, state.pending) == (4, None, None)
    assert world.platform.ledger == [4]


async def test_a_crash_after_a_partial_grant_costs_no_hold():
    world = World(
        policy(
            rules=(msgspec.structs.replace(THRESHOLD, options=THRESHOLD.options | {"step_out": 6}),), **QUICK
        )
    )
    world.backlog = HIGH
    world.platform.available = 2  # of six
    for _ in range(2):
        await world.tick()
        world.scaler.after = crash_in_apply
        with suppress(Crash):
            await world.drain()
        world.scaler.after = None
        world.clock.now += MINUTE
    assert world.platform.ledger == [4]

    world.platform.available = None
    await world.drain()  # the message comes again, and the platform could give all of it now

    state = await world.state()
    assert (state.expected, state.external_change, state.pending) == (4, None, None)
    assert [e.reason for e in await world.entries("effect")] == ["limited"]


def crash_in_apply(call: str) -> None:
    if call == "scaler.apply":
        raise Crash


def test_before_the_platform_is_known_to_have_accepted_a_part_may_be_anybodys():
    assert seen(STARTED, 5, NOW + 60).external_change is not None


# -- bounds of nested rules --------------------------------------------------------------------------------


def nested(*rules: RuleSpec) -> RuleSpec:
    inner = [{"type": rule.type, **rule.options} for rule in rules]
    return RuleSpec(type="composite", name="all", options={"rules": inner})


GUARD = RuleSpec(type="guard", name="db", options={"metric": "load", "block_out_above": 90.0})
WITHIN = RuleSpec(
    type="within_request_units",
    name="step",
    options={"request_units": "load", "rate": 1000.0, "ru_per_record": 6.0, "headroom": 1.0},
)


@pytest.mark.parametrize(
    ("bound", "load", "detail", "flip"),
    [
        (GUARD, 95.0, "load 95 > 90", ("average load", "<=", 90.0)),
        (WITHIN, 19_000.0, "load 19000 suffices for 3", ("latest load", ">=", 24_000.0)),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
def test_a_bound_nested_in_composites_says_what_it_says_by_itself(bound, load, detail, flip, deep):
    rules = (nested(THRESHOLD, bound),) if deep else (THRESHOLD, bound)
    made = policy(metrics={"backlog": metric(), "load": metric()}, rules=rules)

    decision = decide(made, {"backlog": full(HIGH), "load": full(load)}, at(3), now=NOW)

    assert decision.desired == 3
    assert decision.limits[0].detail == detail
    assert [f.conditions for f in decision.flips] == [(Condition(*flip),)]


# -- reports of clocks that differ -------------------------------------------------------------------------


async def test_a_report_from_ahead_blinds_the_capacity_for_no_tick():
    world = World(policy(**QUICK))
    await world.tick()
    await world.drain()
    world.clock.now += 290
    await world.tick()  # a collector whose clock is ahead
    world.clock.now -= 290
    await world.drain()
    world.platform.move(5)
    await world.minute()

    assert (await world.state()).capacity.current == 5
