"""decide(): every outcome has its Reason, in a fixed order of precedence, with the limits and flips it names."""

import pytest

from scaling.config.policy import Budget, DrainSpec, Fallback, Pace, Plateau, RateLimit, RuleSpec
from scaling.decision import explain
from scaling.flip import Condition, Flip
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Delivery,
    Direction,
    EffectRecord,
    Evidence,
    ExternalChange,
    Limit,
    MetricFailure,
    Override,
    Pause,
    Reason,
    Refused,
    ScaleAction,
    Spent,
    TargetState,
    Verdict,
)
from scaling.notice import Drain, DrainEnd
from scaling.target_facts import TargetFacts
from scaling.window import Window
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, at, full, metric, policy

HIGH, CALM, LOW = 900.0, 300.0, 20.0
GUARD = RuleSpec(type="guard", name="db", options={"metric": "ru", "block_out_above": 90.0})
WITH_GUARD = {
    "metrics": {"backlog": metric(), "ru": metric()},
    "rules": (THRESHOLD, GUARD),
}
WITHIN = RuleSpec(
    type="within_request_units",
    name="step",
    options={"request_units": "ru", "rate": 1000.0, "ru_per_record": 6.0, "headroom": 1.0},
)
WITH_STEP = {
    "metrics": {"backlog": metric(), "ru": metric()},
    "rules": (THRESHOLD, WITHIN),
}
CAPPED = RuleSpec(
    type="target_per_unit",
    name="lag",
    options={"metric": "backlog", "target": 100.0, "cap_metric": "partitions"},
)
WITH_CAP = {"metrics": {"backlog": metric(), "partitions": metric()}, "rules": (CAPPED,)}
PENDING = ScaleAction("plan@x", "plan", 3, 4, NOW - 60, NOW + 540, Reason.SCALE_OUT)
OUT_EFFECT = EffectRecord(NOW - 60, 2, 3, 900.0, "a")
IN_EFFECT = EffectRecord(NOW - 60, 4, 3, 20.0, "b")


class BrokenRule:
    """A user's rule with a bug."""

    def evaluate(self, view):
        raise ZeroDivisionError("of the user")

    def metrics(self):
        return ("backlog",)


BROKEN = RuleSpec(type="tests.unit.scaling.decision.test_decide:BrokenRule", name="mine", options={})


def made(value=CALM, current=3, *, windows=None, state=None, controls=NO_CONTROLS, now=NOW, **changes):
    windows = {"backlog": full(value, now=now)} if windows is None else windows
    state = state or at(current)
    return decide(policy(**changes), windows, state, now=now, controls=controls, decision_id="plan@t")


def failed(reason: Reason) -> dict[str, Window]:
    whole = full(LOW)
    return {"backlog": Window(whole.times, whole.values, MetricFailure("backlog", NOW, "no", reason))}


def paused(direction=None, until=None) -> Controls:
    return Controls(pauses=(Pause("kim", NOW - 60, direction, until),))


def overridden(capacity: int, until: float = NOW + 600) -> Controls:
    return Controls(override=Override(capacity, "kim", NOW - 60, until))


def spent(hours: float, current: int = 3) -> Spent:
    """So much of the budget of NOW's day, of which it is eight o'clock."""
    return Spent(NOW - 8 * 3600, NOW - 8 * 3600, NOW, hours, current, float(current))


ALWAYS_ONE, ALWAYS_NONE = (
    RuleSpec(type="composite", name=name, options={"desired": f"{count} + 0 * backlog"})
    for name, count in (("one", 1), ("none", 0))
)
STEPPED = Capacity(3000, NOW, floor=1000, step=1000)
GAPPED = Window(times=[NOW - 240, NOW - 180, NOW - 60, NOW - 30, NOW], values=[LOW] * 5)

TWO = {
    "metrics": {"backlog": metric(), "other": metric()},
    "rules": (
        THRESHOLD,
        RuleSpec(
            type="threshold",
            name="other",
            options={"metric": "other", "scale_out_above": 500.0, "scale_in_below": 100.0, "step_out": 2},
        ),
    ),
}


def both(one: float | None, other: float | None):
    windows = {name: full(value) for name, value in (("backlog", one), ("other", other)) if value is not None}
    return {"windows": windows, **TWO}


SEVEN_ABOVE_A_PAUSE = Controls(pauses=paused().pauses, override=overridden(7).override)
OUT_TEN_MINUTES_AGO = at(3, effects=(EffectRecord(NOW - 600, 2, 3),))
MISSING_LONG = {"windows": {}, "fallback": Fallback(capacity=8), "state": at(3, missing_since=NOW - 900)}
MISSING_299 = {"windows": {}, "fallback": Fallback(capacity=5), "state": at(3, missing_since=NOW - 299)}
FORGOTTEN = {"value": LOW, "inward": Pace(cooldown=100.0, stabilization=900.0)}
FLAT = {
    "state": at(3, effects=(EffectRecord(NOW - 120, 1, 2, 20.0), EffectRecord(NOW - 60, 2, 3, 20.0))),
    "plateau": Plateau(metric="backlog", effects=2),
}
EVERY_TROUBLE = at(3, capacity_error="403", corrupt_since=NOW - 30, pending=PENDING)

ACTIVATED = {
    "minimum": 0,
    "rules": (
        THRESHOLD,
        RuleSpec(type="activation", name="wake", options={"metric": "backlog", "above": 5.0}),
    ),
}
UNREAD_AT_ZERO = {
    "current": 0,
    "windows": {"other": full(HIGH)},
    **TWO,
    "minimum": 0,
    "rules": (*TWO["rules"], ACTIVATED["rules"][1]),
}

# What is decided in each case: (reason, desired); `at(3)`, minimum 1, maximum 10 where nothing is said.
CASES = {
    "out": ({"value": HIGH}, Reason.SCALE_OUT, 4),
    "in": ({"value": LOW}, Reason.SCALE_IN, 2),
    "steady": ({}, Reason.WITHIN_TARGET, 3),
    "below the minimum": ({"current": 0}, Reason.BELOW_MINIMUM, 1),
    "above the maximum": ({"current": 12}, Reason.ABOVE_MAXIMUM, 10),
    "changes spent": (
        {
            "value": LOW,
            "facts": TargetFacts(changes_per_hour=4),
            "state": at(3, effects=tuple(EffectRecord(NOW - 600 + n, 2, 3) for n in range(3))),
        },
        Reason.CHANGES_SPENT,
        3,
    ),
    "unanswered": (
        {
            "value": LOW,
            "drain": DrainSpec(notice=60.0),
            "state": at(
                3,
                drain=Drain(
                    "plan@0",
                    3,
                    2,
                    NOW - 90,
                    NOW - 30,
                    NOW + 600,
                    3,
                    end=DrainEnd.UNANSWERED,
                    ended_at=NOW - 30,
                ),
            ),
        },
        Reason.UNANSWERED,
        3,
    ),
    "override": ({"controls": overridden(7)}, Reason.OVERRIDDEN, 7),
    "override reached": ({"value": HIGH, "controls": overridden(3)}, Reason.OVERRIDDEN, 3),
    "fallback": (
        {"windows": {}, "fallback": Fallback(capacity=5), "state": at(3, missing_since=NOW - 300)},
        Reason.FALLBACK,
        5,
    ),
    "no samples": ({"windows": {}}, Reason.INCOMPLETE_WINDOW, 3),
    "too few samples": ({"windows": {"backlog": full(HIGH, count=4)}}, Reason.INCOMPLETE_WINDOW, 3),
    "a gap, in": ({"windows": {"backlog": GAPPED}}, Reason.INCOMPLETE_WINDOW, 3),
    "stale": ({"windows": {"backlog": full(LOW, now=NOW - 200)}}, Reason.STALE_METRIC, 3),
    "unread": ({"windows": failed(Reason.COLLECT_FAILED)}, Reason.COLLECT_FAILED, 3),
    "invalid": ({"windows": failed(Reason.INVALID_METRIC)}, Reason.INVALID_METRIC, 3),
    "disabled": ({"windows": failed(Reason.ENTITY_DISABLED)}, Reason.ENTITY_DISABLED, 3),
    "never seen": ({"value": HIGH, "state": TargetState()}, Reason.CAPACITY_UNKNOWN, None),
    "capacity unread": ({"value": HIGH, "state": at(3, capacity_error="403")}, Reason.CAPACITY_UNKNOWN, 3),
    "rule failed": ({"rules": (BROKEN,)}, Reason.RULE_FAILED, 3),
    "corrupt": ({"value": HIGH, "state": at(3, corrupt_since=NOW - 30)}, Reason.STATE_CORRUPT, 3),
    "cooling out": (
        {"value": HIGH, "state": at(3, effects=(OUT_EFFECT,)), "out": Pace(cooldown=600.0)},
        Reason.COOLING_DOWN,
        3,
    ),
    "cooling in": (
        {"value": LOW, "state": at(3, effects=(OUT_EFFECT,)), "inward": Pace(cooldown=600.0)},
        Reason.COOLING_DOWN,
        3,
    ),
    "stabilizing in": (
        {"value": LOW, "state": at(3, recommendations=((NOW - 60, 4),)), "inward": Pace(stabilization=300.0)},
        Reason.STABILIZING,
        3,
    ),
    "stabilizing out": (
        {"value": HIGH, "state": at(3, recommendations=((NOW - 60, 2),)), "out": Pace(stabilization=300.0)},
        Reason.STABILIZING,
        3,
    ),
    "rate": (
        {
            "value": HIGH,
            "state": at(3, effects=(OUT_EFFECT,)),
            "out": Pace(rates=(RateLimit(kind="units", amount=1, period=300.0),)),
        },
        Reason.RATE_LIMITED,
        3,
    ),
    "direction disabled": ({"value": LOW, "inward": Pace(select="disabled")}, Reason.RATE_LIMITED, 3),
    "at the maximum": ({"value": HIGH, "current": 10}, Reason.AT_MAXIMUM, 10),
    "at the minimum": ({"value": LOW, "current": 1}, Reason.AT_MINIMUM, 1),
    "over budget": (
        {"value": HIGH, "budget": Budget(amount=72.0), "state": at(3, spent=spent(50.0))},
        Reason.OVER_BUDGET,
        3,
    ),
    "beyond what the budget pays for": (
        {"budget": Budget(amount=72.0), "state": at(3, spent=spent(71.0))},
        Reason.OVER_BUDGET,
        1,
    ),
    "at the cap": (
        dict(windows={"backlog": full(HIGH), "partitions": full(3.0)}, **WITH_CAP),
        Reason.AT_CAP,
        3,
    ),
    "less than a step of the platform": (
        {"value": LOW, "current": 3000, "maximum": 9000, "state": at(3000, capacity=STEPPED)},
        Reason.BETWEEN_STEPS,
        3000,
    ),
    "refused": ({"value": HIGH, "state": at(3, refused=Refused(3, 4, NOW - 60, "no"))}, Reason.REFUSED, 3),
    "guarded": (
        dict(windows={"backlog": full(HIGH), "ru": full(95.0)}, **WITH_GUARD),
        Reason.GUARDED,
        3,
    ),
    "guard unread": (dict(windows={"backlog": full(HIGH)}, **WITH_GUARD), Reason.GUARDED, 3),
    "no request units for one more": (
        dict(windows={"backlog": full(HIGH), "ru": full(23_999.0)}, **WITH_STEP),
        Reason.LOCK_STEP,
        3,
    ),
    "request units unread": (dict(windows={"backlog": full(HIGH)}, **WITH_STEP), Reason.LOCK_STEP, 3),
    "request units for one more": (
        dict(windows={"backlog": full(HIGH), "ru": full(24_000.0)}, **WITH_STEP),
        Reason.SCALE_OUT,
        4,
    ),
    "plateau": (
        {
            "value": HIGH,
            "state": at(
                3, effects=(EffectRecord(NOW - 120, 1, 2, 900.0), EffectRecord(NOW - 60, 2, 3, 900.0))
            ),
            "plateau": Plateau(metric="backlog", effects=2),
        },
        Reason.PLATEAU,
        3,
    ),
    "paused": ({"value": HIGH, "controls": paused()}, Reason.PAUSED, 3),
    "paused below the minimum": ({"current": 0, "controls": paused(Direction.OUT)}, Reason.PAUSED, 0),
    "moved by hand under a surge": (
        {"value": HIGH, "state": at(3, external_change=ExternalChange(7, 3, NOW - 60))},
        Reason.SCALE_OUT,
        8,
    ),
    "moved by hand": (
        {"value": LOW, "state": at(3, external_change=ExternalChange(7, 3, NOW - 60))},
        Reason.EXTERNAL_CHANGE,
        7,
    ),
    "moved by hand below the minimum": (
        {"value": LOW, "minimum": 4, "state": at(8, external_change=ExternalChange(2, 8, NOW - 60))},
        Reason.BELOW_MINIMUM,
        4,
    ),
    "moved by hand above the maximum": (
        {"value": LOW, "state": at(8, external_change=ExternalChange(15, 8, NOW - 60))},
        Reason.ABOVE_MAXIMUM,
        10,
    ),
    "moved by hand after an override": (
        {"value": LOW, "state": at(5, external_change=ExternalChange(8, 5, NOW)), "controls": overridden(5)},
        Reason.EXTERNAL_CHANGE,
        8,
    ),
    "overridden after it was moved by hand": (
        {
            "value": LOW,
            "state": at(5, external_change=ExternalChange(8, 5, NOW - 60)),
            "controls": overridden(5),
        },
        Reason.OVERRIDDEN,
        5,
    ),
    "held by another controller": (
        {"value": HIGH, "state": at(3, capacity=Capacity(3, NOW, held_by="autoscale"))},
        Reason.EXTERNAL_CHANGE,
        3,
    ),
    "pending": ({"value": HIGH, "state": at(3, pending=PENDING)}, Reason.ACTION_PENDING, 3),
    "platform pending": (
        {"value": HIGH, "state": at(3, capacity=Capacity(3, NOW, pending=True))},
        Reason.ACTION_PENDING,
        3,
    ),
    "dry-run": ({"value": HIGH, "dry_run": True}, Reason.DRY_RUN, 4),
    "dry-run by order": ({"value": HIGH, "controls": Controls(dry_run=True)}, Reason.DRY_RUN, 4),
    "an unknown capacity before everything": ({"state": EVERY_TROUBLE}, Reason.CAPACITY_UNKNOWN, 3),
    "override above a pause": ({"value": LOW, "controls": SEVEN_ABOVE_A_PAUSE}, Reason.OVERRIDDEN, 7),
    "override beyond the bounds": ({"controls": overridden(50)}, Reason.OVERRIDDEN, 10),
    "override expired": ({"controls": overridden(7, until=NOW)}, Reason.WITHIN_TARGET, 3),
    "out after in": (
        {"value": HIGH, "state": at(3, effects=(IN_EFFECT,)), "out": Pace(cooldown=600.0)},
        Reason.SCALE_OUT,
        4,
    ),
    "cooldown over": (
        {"value": HIGH, "state": OUT_TEN_MINUTES_AGO, "out": Pace(cooldown=600.0)},
        Reason.SCALE_OUT,
        4,
    ),
    "cooldown nearly over": (
        {"value": HIGH, "state": OUT_TEN_MINUTES_AGO, "out": Pace(cooldown=600.5)},
        Reason.COOLING_DOWN,
        3,
    ),
    "in, out paused": ({"value": LOW, "controls": paused(Direction.OUT)}, Reason.SCALE_IN, 2),
    "out, in paused": ({"value": HIGH, "controls": paused(Direction.IN)}, Reason.SCALE_OUT, 4),
    "out beats in": (both(LOW, HIGH), Reason.SCALE_OUT, 5),
    "in not by one rule": (both(LOW, CALM), Reason.WITHIN_TARGET, 3),
    "in by every rule": (both(LOW, LOW), Reason.SCALE_IN, 2),
    "in with one missing": (both(LOW, None), Reason.INCOMPLETE_WINDOW, 3),
    "out with one missing": (both(HIGH, None), Reason.SCALE_OUT, 4),
    "too many, unread": ({"windows": {}, "current": 12}, Reason.INCOMPLETE_WINDOW, 12),
    "too many, guard unread": (
        dict(windows={"backlog": full(HIGH)}, current=12, **WITH_GUARD),
        Reason.AT_MAXIMUM,
        12,
    ),
    "in beside a failing rule": ({"value": LOW, "rules": (THRESHOLD, BROKEN)}, Reason.RULE_FAILED, 3),
    "out beside a failing rule": ({"value": HIGH, "rules": (THRESHOLD, BROKEN)}, Reason.SCALE_OUT, 4),
    "to the minimum, guarded and cooling": (
        dict(
            windows={"backlog": full(HIGH), "ru": full(95.0)},
            state=at(0, effects=(EffectRecord(NOW - 1, 1, 0),)),
            minimum=2,
            out=Pace(cooldown=600.0),
            **WITH_GUARD,
        ),
        Reason.BELOW_MINIMUM,
        2,
    ),
    "fallback too early": (MISSING_299, Reason.INCOMPLETE_WINDOW, 3),
    "fallback below what is there": (
        MISSING_LONG | {"state": at(9, missing_since=NOW - 900)},
        Reason.INCOMPLETE_WINDOW,
        9,
    ),
    "fallback by steps": (MISSING_LONG | {"out": Pace(step=2)}, Reason.FALLBACK, 5),
    "fallback paused": (MISSING_LONG | {"controls": paused()}, Reason.PAUSED, 3),
    "fallback above the maximum": (MISSING_LONG | {"maximum": 6}, Reason.FALLBACK, 6),
    "in on a plateau": ({"value": LOW, **FLAT}, Reason.SCALE_IN, 2),
    "at zero, below the activation": (
        ACTIVATED | {"value": 5.0, "current": 0, "rules": (*ACTIVATED["rules"], ALWAYS_ONE)},
        Reason.NOT_ACTIVE,
        0,
    ),
    "at zero, above the activation": (ACTIVATED | {"value": 6.0, "current": 0}, Reason.SCALE_OUT, 1),
    "at zero, the activation unknown": (UNREAD_AT_ZERO, Reason.INCOMPLETE_WINDOW, 0),
    "at zero, the activation unknown for long": (
        ACTIVATED | MISSING_LONG | {"state": at(0, missing_since=NOW - 900)},
        Reason.FALLBACK,
        8,
    ),
    "the last one, above the activation": (ACTIVATED | {"value": 6.0, "current": 1}, Reason.STILL_ACTIVE, 1),
    "the last one, below the activation": (ACTIVATED | {"value": 5.0, "current": 1}, Reason.SCALE_IN, 0),
    "the last one, once above the activation": (
        ACTIVATED
        | {"current": 1, "windows": {"backlog": Window(full(0.0).times, [6.0, 0.0, 0.0, 0.0, 0.0])}},
        Reason.STILL_ACTIVE,
        1,
    ),
    "the last one, the activation unknown": (
        ACTIVATED | {"current": 1, "windows": failed(Reason.COLLECT_FAILED)},
        Reason.COLLECT_FAILED,
        1,
    ),
    "to one at once, above the activation": (
        ACTIVATED | {"value": 6.0, "current": 3, "rules": (ACTIVATED["rules"][1], ALWAYS_NONE)},
        Reason.SCALE_IN,
        1,
    ),
    "forgotten": (FORGOTTEN | {"state": at(3, corrupt_since=NOW - 899)}, Reason.STATE_CORRUPT, 3),
    "forgotten long ago": (FORGOTTEN | {"state": at(3, corrupt_since=NOW - 900)}, Reason.SCALE_IN, 2),
    "pending, expired": (
        {"value": HIGH, "state": at(3, pending=PENDING), "now": PENDING.expires_at},
        Reason.SCALE_OUT,
        4,
    ),
    "dry-run lifted by order": (
        {"value": HIGH, "dry_run": True, "controls": Controls(dry_run=False)},
        Reason.SCALE_OUT,
        4,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_case_has_its_reason_and_its_desired_capacity(name: str) -> None:
    arguments, reason, desired = CASES[name]

    recommendation = made(**arguments)

    assert (recommendation.reason, recommendation.desired) == (reason, desired)


@pytest.mark.parametrize("name", CASES)
def test_each_case_names_what_would_have_changed_it_and_reads_as_one_line(name: str) -> None:
    recommendation = made(**CASES[name][0])

    line = explain.line(recommendation)

    assert recommendation.flips
    assert all(
        (flip.outcome, flip.to) != (recommendation.reason, recommendation.desired)
        for flip in recommendation.flips
    )
    assert "\n" not in line
    assert line.endswith("[plan@t]")


def test_every_reason_is_produced_by_a_case() -> None:
    assert {reason for _, reason, _ in CASES.values()} == set(Reason)


# Precedence: everything at once, then one obstacle after the other is lifted.

EVERYTHING = {
    "corrupt": {"corrupt_since": NOW - 30},
    "external_change": {"external_change": ExternalChange(7, 10, NOW - 60)},
    "pending": {"pending": PENDING, "delivery": Delivery(NOW + 60, NOW + 60)},
}


def test_what_forbids_a_decision_is_told_in_a_fixed_order() -> None:
    told = []
    left = dict(EVERYTHING)
    for name in (*EVERYTHING, None):
        fields = {key: value for part in left.values() for key, value in part.items()}
        told.append(made(HIGH, state=at(10, **fields), controls=overridden(5)).reason)
        left.pop(name, None)

    assert told == [Reason.STATE_CORRUPT, Reason.EXTERNAL_CHANGE, Reason.ACTION_PENDING, Reason.OVERRIDDEN]


def test_an_override_takes_the_place_of_a_pending_action_that_leads_elsewhere() -> None:
    stuck = at(3, pending=PENDING)

    elsewhere = made(HIGH, state=stuck, controls=overridden(7))
    back = made(HIGH, state=stuck, controls=overridden(3))
    there_anyway = made(HIGH, state=stuck, controls=overridden(4))

    assert (elsewhere.reason, elsewhere.desired) == (Reason.OVERRIDDEN, 7)
    assert elsewhere.note == "override to 7 by kim; it takes the place of 3 -> 4 [plan@x]"
    assert (back.reason, back.desired) == (Reason.OVERRIDDEN, 3)
    assert there_anyway.reason is Reason.ACTION_PENDING


@pytest.mark.parametrize(
    ("capacity", "ordered", "limit"),
    [
        (Capacity(3, NOW, ceiling=5), 7, Limit(Reason.AT_MAXIMUM, 7, 5, "ceiling of the platform 5")),
        (Capacity(3, NOW, floor=2), 1, Limit(Reason.AT_MINIMUM, 1, 2, "platform floor 2")),
        (Capacity(3, NOW, allowed=(3, 6, 9)), 4, Limit(Reason.BETWEEN_STEPS, 4, 6, "allowed are 3, 6, 9")),
    ],
)
def test_an_override_that_is_clamped_says_by_what(capacity: Capacity, ordered: int, limit: Limit) -> None:
    found = made(CALM, state=at(3, capacity=capacity), controls=overridden(ordered))

    assert (found.desired, found.limits) == (limit.allowed, (limit,))


@pytest.mark.parametrize(
    ("capacity", "desired"),
    [
        (Capacity(8, NOW, allowed=(4, 8)), 4),
        (Capacity(8, NOW, step=4), 4),
        (Capacity(4, NOW, allowed=(4, 8)), 4),
        (Capacity(8, NOW), 2),
    ],
)
def test_a_ceiling_below_the_first_step_of_the_platform_leads_to_that_step(capacity, desired) -> None:
    found = made(CALM, state=at(capacity.current, capacity=capacity), maximum=2)

    assert found.desired == desired


def test_an_override_waits_for_a_change_in_the_making_and_no_longer() -> None:
    carried = at(3, pending=PENDING, delivery=Delivery(NOW + 90, NOW + 90))
    moving = at(3, pending=PENDING, capacity=Capacity(3, NOW, pending=True))

    held = made(HIGH, state=carried, controls=overridden(7))

    assert held.reason is Reason.ACTION_PENDING
    assert held.note == "the override waits for 3 -> 4 [plan@x], which is being carried out"
    assert held.flips == (Flip(Reason.OVERRIDDEN, (Condition("time", ">=", NOW + 90),), 7),)
    assert made(HIGH, state=carried, controls=overridden(7), now=NOW + 90).desired == 7
    assert made(HIGH, state=moving, controls=overridden(7)).reason is Reason.ACTION_PENDING


def test_all_that_holds_a_scale_out_back_is_listed_in_order_and_the_first_is_the_reason() -> None:
    effects = (EffectRecord(NOW - 120, 8, 9, HIGH), EffectRecord(NOW - 60, 9, 10, HIGH))
    held = made(
        windows={"backlog": full(HIGH), "ru": full(95.0)},
        state=at(10, effects=effects),
        controls=paused(),
        out=Pace(cooldown=600.0),
        plateau=Plateau(metric="backlog", effects=2),
        **WITH_GUARD,
    )

    assert [limit.reason for limit in held.limits] == [
        Reason.AT_MAXIMUM,
        Reason.GUARDED,
        Reason.PLATEAU,
        Reason.COOLING_DOWN,
        Reason.PAUSED,
    ]
    assert held.reason is Reason.AT_MAXIMUM
    (flip,) = held.flips
    assert (flip.outcome, flip.to) == (Reason.SCALE_OUT, 11)
    assert {condition.quantity for condition in flip.conditions} == {
        "maximum",
        "average ru",
        "latest backlog",
        "time",
        "pause out",
    }


def test_steps_rates_and_bounds_each_leave_a_limit_in_the_order_they_bit() -> None:
    rule = RuleSpec(type="target_per_unit", name="t", options={"metric": "backlog", "target": 10.0})
    recommendation = made(
        900.0,
        3,
        maximum=5,
        rules=(rule,),
        out=Pace(step=20, rates=(RateLimit(kind="units", amount=6, period=60.0),)),
    )

    assert [(limit.reason, limit.wanted, limit.allowed) for limit in recommendation.limits] == [
        (Reason.RATE_LIMITED, 90, 23),
        (Reason.RATE_LIMITED, 23, 9),
        (Reason.AT_MAXIMUM, 9, 5),
    ]
    assert (recommendation.proposed, recommendation.desired) == (90, 5)
    assert recommendation.reason is Reason.SCALE_OUT


def test_a_scale_out_tells_its_numbers() -> None:
    recommendation = made(HIGH)

    assert recommendation.evidence == (Evidence("backlog", "backlog", "average", HIGH, ">", 500.0, 300.0, 5),)
    assert recommendation.flips == (
        Flip(
            Reason.WITHIN_TARGET,
            (Condition("average backlog", "<=", 500.0), Condition("average backlog", ">=", 100.0)),
        ),
    )


# Several rules and metrics


def test_the_highest_of_several_proposals_wins_and_all_that_asked_are_named() -> None:
    recommendation = made(**both(HIGH, HIGH))

    assert recommendation.desired == 5
    (flip,) = recommendation.flips  # both of them: one alone changes nothing
    assert [c.quantity for c in flip.conditions][:2] == ["average backlog", "average other"]


def test_a_missing_metric_no_rule_votes_on_forbids_scaling_in_too() -> None:
    held = made(windows={"backlog": full(LOW)}, **WITH_GUARD)

    assert held.reason is Reason.INCOMPLETE_WINDOW
    assert held.limits == (Limit(Reason.INCOMPLETE_WINDOW, 2, 3, "ru"),)
    assert held.flips == (Flip.at("samples ru", ">=", 5.0, None),)  # what it is, nobody knows


# Bounds


def test_from_below_the_minimum_the_rules_go_as_far_as_their_pace_allows() -> None:
    rule = RuleSpec(type="target_per_unit", name="t", options={"metric": "backlog", "target": 100.0})

    free = made(900.0, 1, minimum=2, rules=(rule,))
    stepped = made(900.0, 1, minimum=2, rules=(rule,), out=Pace(step=3))
    short = made(900.0, 0, minimum=2, rules=(rule,), out=Pace(step=1))

    assert (free.reason, free.desired) == (Reason.SCALE_OUT, 9)
    assert (stepped.reason, stepped.desired) == (Reason.SCALE_OUT, 4)
    assert (short.reason, short.desired) == (Reason.BELOW_MINIMUM, 2)


def test_a_schedule_raises_the_minimum_and_lowers_the_maximum() -> None:
    def scheduled(**bounds):
        return RuleSpec(type="schedule", name="office", options={"periods": [{"days": "daily", **bounds}]})

    assert made(rules=(THRESHOLD, scheduled(floor=5))).desired == 5
    lowered = made(rules=(THRESHOLD, scheduled(ceiling=2)))
    assert (lowered.reason, lowered.desired) == (Reason.ABOVE_MAXIMUM, 2)
    at_ceiling = made(HIGH, rules=(THRESHOLD, scheduled(ceiling=3)))
    assert at_ceiling.limits == (Limit(Reason.AT_MAXIMUM, 4, 3, "ceiling of the schedule 3"),)


def test_the_platforms_limits_bind_as_the_policys_do() -> None:
    at_ceiling = made(HIGH, state=at(3, capacity=Capacity(3, NOW, ceiling=3)))
    assert at_ceiling.limits == (Limit(Reason.AT_MAXIMUM, 4, 3, "ceiling of the platform 3"),)
    assert made(LOW, state=at(3, capacity=Capacity(3, NOW, floor=3))).reason is Reason.AT_MINIMUM


def test_a_ceiling_wins_over_a_floor() -> None:
    recommendation = made(state=at(2, capacity=Capacity(2, NOW, ceiling=4)), minimum=6)

    assert (recommendation.minimum, recommendation.maximum, recommendation.desired) == (4, 4, 4)


# Fallback, plateau, stabilization


def test_the_fallback_is_not_for_metrics_of_disabled_entities() -> None:
    arguments = {"fallback": Fallback(capacity=8), "state": at(3, missing_since=NOW - 9_000)}
    disabled = failed(Reason.ENTITY_DISABLED)["backlog"]
    two = {"metrics": {"backlog": metric(), "other": metric()}}

    alone = made(windows={"backlog": disabled}, **arguments)
    beside_a_healthy_one = made(windows={"backlog": disabled, "other": full(CALM)}, **arguments, **two)
    beside_a_failed_one = made(
        windows={"backlog": disabled, "other": failed(Reason.COLLECT_FAILED)["backlog"]}, **arguments, **two
    )

    assert (alone.reason, alone.desired) == (Reason.ENTITY_DISABLED, 3)
    assert (beside_a_healthy_one.reason, beside_a_healthy_one.desired) == (Reason.ENTITY_DISABLED, 3)
    assert (beside_a_failed_one.reason, beside_a_failed_one.desired) == (Reason.FALLBACK, 8)


def test_a_plateau_ends_when_the_backlog_falls_or_the_hold_is_over() -> None:
    effects = (EffectRecord(NOW - 120, 1, 2, 2000.0), EffectRecord(NOW - 60, 2, 3, 1500.0))
    plateau = Plateau(metric="backlog", effects=2, fall=0.05, hold=1800.0)

    held = made(1900.0, state=at(3, effects=effects), plateau=plateau)
    fell = made(1899.0, state=at(3, effects=effects), plateau=plateau)
    later = made(1900.0, state=at(3, effects=effects), plateau=plateau, now=NOW + 1740)

    assert held.reason is Reason.PLATEAU
    (flip,) = held.flips
    assert (flip.outcome, flip.to) == (Reason.SCALE_OUT, 4)
    assert flip.conditions == (
        Condition("latest backlog", "<", 1900.0),
        Condition("latest backlog", ">", 500.0),
    )
    assert fell.reason is Reason.SCALE_OUT
    assert later.reason is Reason.SCALE_OUT


def test_stabilization_reduces_to_the_most_cautious_recommendation_of_its_window() -> None:
    rule = RuleSpec(type="target_per_unit", name="t", options={"metric": "backlog", "target": 100.0})
    state = at(9, recommendations=((NOW - 400, 9), (NOW - 200, 6), (NOW - 100, 4)))

    recommendation = made(200.0, state=state, rules=(rule,), inward=Pace(stabilization=300.0))

    assert (recommendation.proposed, recommendation.desired) == (2, 6)
    assert recommendation.limits[0].reason is Reason.STABILIZING


def test_the_wait_named_by_stabilization_ends_with_the_last_recommendation_that_holds() -> None:
    state = at(3, recommendations=((NOW - 250, 5), (NOW - 100, 3), (NOW - 60, 2)))

    held = made(LOW, state=state, inward=Pace(stabilization=300.0))

    assert held.flips == (
        Flip(Reason.SCALE_IN, (Condition("time", ">=", pytest.approx(NOW + 200, abs=0.01)),), 2),
    )


def test_the_wait_named_by_a_rate_limit_is_the_moment_that_frees_a_whole_unit() -> None:
    effects = (EffectRecord(NOW - 250, 1, 2), EffectRecord(NOW - 100, 2, 3))
    pace = Pace(rates=(RateLimit(kind="units", amount=1, period=300.0),))

    held = made(HIGH, state=at(3, effects=effects), out=pace)

    assert held.flips == (
        Flip(Reason.SCALE_OUT, (Condition("time", ">=", pytest.approx(NOW + 200, abs=0.01)),), 4),
    )


# What a hold promises for afterwards


def test_a_pending_action_tells_what_would_follow_without_it() -> None:
    over = PENDING.expires_at
    begun = at(3, pending=PENDING, delivery=Delivery(over, over))

    assert made(LOW, state=begun).flips == (Flip(Reason.SCALE_IN, (Condition("time", ">=", over),), 2),)


def test_an_override_tells_what_the_rules_would_do_after_it() -> None:
    assert made(HIGH, controls=overridden(3)).flips == (
        Flip(Reason.SCALE_OUT, (Condition("time", ">=", NOW + 600),), 4),
    )


def test_dry_run_shows_what_would_be_done_and_does_not_act() -> None:
    recommendation = made(HIGH, dry_run=True)

    assert recommendation.desired == 4
    assert not recommendation.acts
    assert recommendation.limits[-1] == Limit(Reason.SCALE_OUT, 4, 4, "dry-run")


def test_rules_are_asked_once_per_decision() -> None:
    asked = []

    class Counting:
        def evaluate(self, view):
            asked.append(view.current)
            return Verdict(view.current + 1, Reason.SCALE_OUT, blocks_out=True, note="busy")

        def metrics(self):
            return ("backlog",)

    counted = policy()
    counted.rules = (Counting(),)
    recommendation = decide(counted, {"backlog": full(CALM)}, at(3), now=NOW)

    assert recommendation.reason is Reason.GUARDED
    assert asked == [3]


@pytest.mark.parametrize("minutes", [0, 2, 3])
def test_a_metric_is_stale_after_three_missing_samples(minutes: int) -> None:
    fresh = made(windows={"backlog": full(HIGH, now=NOW - minutes * MINUTE)})
    stale = made(windows={"backlog": full(HIGH, now=NOW - minutes * MINUTE - 181)})

    assert fresh.reason is Reason.SCALE_OUT
    assert stale.reason is Reason.STALE_METRIC


def test_scaling_out_goes_as_far_as_the_other_target_suffices() -> None:
    recommendation = made(
        windows={"backlog": full(900.0), "ru": full(36_000.0)},
        metrics=WITH_STEP["metrics"],
        rules=(
            RuleSpec(type="target_per_unit", name="load", options={"metric": "backlog", "target": 100}),
            WITHIN,
        ),
    )

    assert (recommendation.reason, recommendation.proposed, recommendation.desired) == (
        Reason.SCALE_OUT,
        9,
        6,
    )
    assert recommendation.limits == (Limit(Reason.LOCK_STEP, 9, 6, "ru 36000 suffices for 6"),)


# Orders and bounds that the platform or a schedule cuts


def allowed(*values):
    return at(8, capacity=Capacity(8, NOW, allowed=values))


NIGHT = RuleSpec(type="schedule", name="night", options={"periods": [{"ceiling": 1}]})
OVERRIDES = {
    "the maximum": (overridden(50), {}, 10, "at maximum (maximum 10): 50 wanted, 10 allowed"),
    "a schedule's ceiling": (
        overridden(9),
        {"rules": (THRESHOLD, RuleSpec(type="schedule", name="n", options={"periods": [{"ceiling": 4}]}))},
        4,
        "at maximum (ceiling of the schedule 4): 9 wanted, 4 allowed",
    ),
    "the minimum": (overridden(1), {"minimum": 2}, 2, "at minimum (minimum 2): 1 wanted, 2 allowed"),
    "a step of the platform": (
        overridden(3),
        {"state": allowed(1, 2, 4, 8)},
        4,
        "between steps (allowed are 1, 2, 4, 8): 3 wanted, 4 allowed",
    ),
}


@pytest.mark.parametrize(("orders", "changes", "given", "words"), OVERRIDES.values(), ids=OVERRIDES)
def test_an_override_that_is_cut_says_by_what(orders, changes, given, words) -> None:
    found = made(current=5, controls=orders, **changes)
    reached = made(
        controls=orders, **changes | {"state": at(given, capacity=changes.get("state", at(5)).capacity)}
    )

    assert (found.reason, found.desired) == (Reason.OVERRIDDEN, given)
    assert words in explain.line(found)
    assert words in explain.line(reached)


def test_an_override_that_is_not_cut_has_no_limits() -> None:
    assert made(controls=overridden(7)).limits == ()


@pytest.mark.parametrize(
    ("state", "changes", "desired"),
    [
        (allowed(2, 4, 8), {}, 2),  # not 0, which is neither allowed nor above the minimum
        (allowed(2, 4, 8), {"minimum": 0}, 2),
        (allowed(0, 2, 4, 8), {"minimum": 0}, 0),
        (allowed(0, 2, 4, 8), {"minimum": 1}, 2),
        (at(8, capacity=Capacity(8, NOW, step=2)), {"minimum": 2}, 2),
        (at(8, capacity=Capacity(8, NOW, step=2)), {"minimum": 0}, 0),
        (at(8, capacity=Capacity(8, NOW, step=5)), {"minimum": 5}, 5),
        (at(8), {"minimum": 2}, 1),  # a ceiling stands above the minimum
    ],
)
def test_a_ceiling_below_the_platform_s_first_step_leads_to_that_step(state, changes, desired) -> None:
    found = made(state=state, rules=(THRESHOLD, NIGHT), **changes)
    there = made(state=at(desired, capacity=state.capacity), rules=(THRESHOLD, NIGHT), **changes)

    assert (found.reason, found.desired) == (Reason.ABOVE_MAXIMUM, desired)
    assert not there.acts
