"""The budget of the day bounds scaling out and takes back what it does not pay for; what stands above it, and what not."""

import msgspec
from msgspec import structs

from scaling.config.policy import Budget, Fallback, Pace, RuleSpec
from scaling.decision.explain import line
from scaling.decision.transitions import absorb, advance, budget_warning
from scaling.flip import Condition
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Delivery,
    Direction,
    EffectRecord,
    Limit,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Override,
    Pause,
    Reason,
    Refused,
    ScaleAction,
    Spent,
    TargetState,
    Verdict,
)
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.window import Window
from tests.support.scaling.budget import DAY, HOUR, MIDNIGHT, budgeted, live, memories
from tests.support.scaling.runner import at, full

NINE = MIDNIGHT + 9 * HOUR
FLOOR_OF_5 = RuleSpec(type="schedule", name="floor", options={"periods": [{"floor": 5}]})
AS_WANTED = budgeted().spec.rules


class Knowing(ServiceLevelRule):
    """What the rule has learned, which is not changed; it asks for nothing."""

    learn = None

    def evaluate(self, view):
        return Verdict(None, Reason.WITHIN_TARGET)


KNOWING = RuleSpec(type=f"{__name__}:Knowing", name="level", options={"backlog": "backlog"})


def known(hours, *, current=3, now=NINE, **changes) -> Spent:
    return Spent(MIDNIGHT, MIDNIGHT, now, hours, current, float(current), **changes)


def made(
    wanted=9.0, *, hours=9.0, current=3, amount=48.0, controls=NO_CONTROLS, now=NINE, windows=None, **changes
):
    state = changes.pop("state", {})
    given = at(current, now=now, spent=known(hours, current=current, now=now), **state)
    read = {"backlog": full(wanted, now=now, count=2)} if windows is None else windows
    return decide(budgeted(amount, **changes), read, given, now=now, controls=controls, decision_id="plan@t")


def test_more_than_the_rest_of_the_day_pays_for_is_reduced_to_that_with_the_numbers():
    reduced = made(9.0, hours=9.0, current=1)

    assert (reduced.reason, reduced.desired) == (Reason.SCALE_OUT, 5)
    assert (
        Limit(Reason.OVER_BUDGET, 9, 5, "9 of 48 instance-hours spent today, 15.0 h left at 2.6")
        in reduced.limits
    )


def test_a_hold_says_what_is_spent_and_what_would_have_allowed_more():
    text = line(made(9.0, hours=171.0, current=4, amount=192.0, now=MIDNIGHT + 14.6 * HOUR))

    assert text == (
        "scaling plan hold 4: over budget (171 of 192 instance-hours spent today, 9.4 h left at 2.2): 9 wanted, 4 "
        "allowed; latest backlog 9 > 4 over 1 min (2 samples); scale out to 5 or more if budget >= 193; or scale out to 9 if not before "
        "2027-01-16 00:00:00Z [plan@t]"
    )


def test_what_is_not_paid_for_any_more_is_taken_back_without_cooldown():
    just_out = {"effects": (EffectRecord(NINE - 60, 2, 3),)}
    taken = made(9.0, hours=47.0, state=just_out, inward=Pace(cooldown=600.0))

    assert (taken.reason, taken.desired) == (Reason.OVER_BUDGET, 1)
    assert "in 3 -> 1: over budget (47 of 48 instance-hours spent today" in line(taken)


def test_what_was_just_allowed_is_kept():
    allowed = made(40.0, hours=9.0, current=1).desired

    assert made(40.0, hours=9.0 + allowed / 4, current=allowed, now=NINE + HOUR / 4).desired == allowed


def test_rules_that_want_less_than_is_paid_for_decide():
    lower = made(2.0, hours=30.0, current=9)

    assert (lower.reason, lower.desired) == (Reason.SCALE_IN, 2)


def test_nothing_goes_below_the_minimum_however_much_is_spent():
    spent = made(9.0, hours=500.0, current=2, minimum=2)

    assert (spent.reason, spent.desired) == (Reason.OVER_BUDGET, 2)
    assert made(0.0, hours=500.0, current=0, minimum=2).reason is Reason.BELOW_MINIMUM


def test_nothing_is_taken_back_while_a_metric_is_missing():
    whole = full(9.0, now=NINE, count=2)
    failed = Window(whole.times, whole.values, MetricFailure("backlog", NINE, "no"))

    assert made(hours=47.0, windows={"backlog": failed}).reason is Reason.COLLECT_FAILED


def test_nothing_is_taken_back_while_scaling_in_is_paused():
    paused = Controls(pauses=(Pause("kim", NINE - 60, Direction.IN),))

    assert made(hours=47.0, controls=paused).reason is Reason.PAUSED
    assert made(hours=47.0, controls=Controls(dry_run=True)).reason is Reason.DRY_RUN


def test_a_refused_giving_back_is_not_ordered_every_minute():
    refused = {"refused": Refused(3, 1, NINE - 60, "no")}

    assert made(hours=47.0, state=refused).reason is Reason.REFUSED


def test_an_override_stands_above_the_budget_and_counts():
    ordered = made(hours=47.0, controls=Controls(override=Override(9, "kim", NINE, NINE + 600)))

    assert (ordered.reason, ordered.desired) == (Reason.OVERRIDDEN, 9)


def test_the_floor_of_a_schedule_is_held_as_far_as_it_is_paid_for():
    rules = (*AS_WANTED, FLOOR_OF_5)
    paid = made(0.0, hours=9.0, current=1, amount=96.0, rules=rules)
    partly = made(0.0, hours=9.0, current=1, amount=40.0, rules=rules)
    there = made(0.0, hours=9.0, current=4, amount=40.0, rules=rules)

    assert (paid.reason, paid.desired) == (Reason.BELOW_MINIMUM, 5)
    assert (partly.reason, partly.desired) == (Reason.BELOW_MINIMUM, 4)
    assert partly.limits[0].reason is Reason.OVER_BUDGET
    assert (there.reason, there.desired, there.limits[0].wanted) == (Reason.OVER_BUDGET, 4, 5)


def test_a_floor_that_is_not_paid_for_does_not_flap():
    day = live(budgeted(60.0, rules=(*AS_WANTED, FLOOR_OF_5)), lambda now: 0.0)

    until_late = day.capacities[:1430]
    assert until_late == sorted(until_late, reverse=True)
    assert (until_late[0], until_late[-1]) == (5, 1)
    assert day.billed <= 60.1


def test_the_fallback_is_paid_for_like_any_scale_out():
    missing = {"missing_since": NINE - 900}
    given = {"fallback": Fallback(capacity=8), "windows": {}, "current": 1, "state": missing}

    assert made(hours=9.0, **given).desired == 5
    assert made(hours=500.0, **given).reason is Reason.OVER_BUDGET


def test_steps_of_the_platform_are_allowed_whole():
    stepped = Budget(amount=48_000.0, unit="request_unit_hours", hourly=True)
    spending = {"spent": known(9000.0, current=1000, hour=NINE, peak=1000)}
    state = at(1000, now=NINE, **spending)
    state = msgspec.structs.replace(state, capacity=Capacity(1000, NINE, step=1000))
    given = budgeted(budget=stepped, minimum=1000, maximum=20_000)

    out = decide(given, {"backlog": full(20_000.0, now=NINE, count=2)}, state, now=NINE)

    assert out.desired == 5000


def test_at_midnight_the_budget_is_new():
    held = made(9.0, hours=47.99, current=1, now=MIDNIGHT + DAY - 60)
    after = at(1, now=MIDNIGHT + DAY, spent=known(47.99, current=1, now=MIDNIGHT + DAY - 60))
    windows = {"backlog": full(9.0, now=MIDNIGHT + DAY, count=2)}

    assert held.flips[-1].conditions == (Condition("time", ">=", MIDNIGHT + DAY),)
    assert decide(budgeted(), windows, after, now=MIDNIGHT + DAY).desired == 4


def test_where_a_day_needs_more_than_its_budget_the_shortage_comes_as_late_as_it_can():
    """Two busy times, and nine tenths of what they take: nothing is held back from the first for the second."""
    wanted = [20 if 18 <= hour < 22 else 10 if 8 <= hour < 12 else 2 for hour in range(24)]
    foreseen = memories(
        by_hour=[each * 8.0 for each in wanted]
    )  # ten messages/s each, and a quarter to spare
    state = TargetState(spent=known(0.0, current=2, now=MIDNIGHT), memories=foreseen)
    given = budgeted(0.9 * sum(wanted), rules=(*AS_WANTED, KNOWING))

    def load(now):
        return float(wanted[int((now - MIDNIGHT) // HOUR)])

    day = live(given, load, current=2, state=state)

    short = [minute for minute, there in enumerate(day.capacities) if there < load(MIDNIGHT + 60 * minute)]
    assert min(short) >= 20.5 * 60
    assert 0.88 * sum(wanted) < day.billed <= 0.9 * sum(wanted) + 0.5


def test_what_is_foretold_of_the_next_day_is_by_its_budget():
    now = MIDNIGHT + DAY - 60
    pending = ScaleAction("plan@1", "plan", 1, 2, now - 60, now + 540, Reason.SCALE_OUT)
    over, ended = pending.expires_at, structs.replace(pending, expires_at=NINE + 60)
    begun = {"pending": pending, "delivery": Delivery(over, over)}
    held = made(9.0, hours=47.99, current=1, now=now, state=begun)
    begun = {"pending": ended, "delivery": Delivery(NINE + 60, NINE + 60)}
    spent = made(9.0, hours=47.99, current=1, state=begun)

    assert [(f.conditions, f.outcome) for f in held.flips] == [
        ((Condition("time", ">=", now + 540),), Reason.SCALE_OUT)
    ]
    (flip,) = spent.flips  # once it is given up the budget is what holds
    assert [c.quantity for c in flip.conditions] == ["time", "budget"]


def test_request_units_that_instances_need_are_not_ordered_away():
    sizing = RuleSpec(
        type="request_units_for_rate",
        name="sizing",
        options={"consumers": "backlog", "rate": 1000, "ru_per_record": 6, "headroom": 1},
    )
    spending = {"spent": known(60_000.0, current=30_000, now=NINE + 3500, hour=NINE, peak=30_000)}
    budget = Budget(amount=48_000.0, unit="request_unit_hours", hourly=True)
    given = budgeted(budget=budget, minimum=400, maximum=90_000, rules=(sizing,))

    def decided(instances):
        windows = {"backlog": full(instances, now=NINE + 3500, count=2)}
        return decide(given, windows, at(30_000, now=NINE + 3500, **spending), now=NINE + 3500)

    assert (decided(5.0).reason, decided(5.0).desired) == (Reason.OVER_BUDGET, 30_000)
    assert decided(5.0).limits[1] == Limit(
        Reason.LOCK_STEP, 400, 30_000, "5 x 1000 records/s x 6 RU = 30000 RU/s are needed still"
    )
    assert (decided(2.0).reason, decided(2.0).desired) == (Reason.SCALE_IN, 12_000)


# -- counting, and the warning, as reports come


def absorbed(state, now, *, current=3, policy=None):
    told = MetricsReport("plan", now, (MetricSample("backlog", now, 3.0),), (), Capacity(current, now))
    return absorb(policy or budgeted(), {}, state, told, now=now, controls=NO_CONTROLS)[1]


def test_a_report_counts_once_however_often_it_is_absorbed():
    once = absorbed(at(3, spent=known(10.0)), NINE + 600)

    assert once.spent.hours == 10.5
    assert absorbed(once, NINE + 600).spent == once.spent


def test_time_counts_while_the_capacity_cannot_be_read():
    told = MetricsReport("plan", NINE + 600, (), (), None, "403")
    after = absorb(budgeted(), {}, at(3, spent=known(10.0)), told, now=NINE + 600, controls=NO_CONTROLS)[1]

    assert after.spent.hours == 10.5


def test_nothing_is_counted_without_a_budget_or_before_there_is_a_capacity():
    assert absorbed(at(3), NINE, policy=budgeted(budget=None)).spent is None
    told = MetricsReport("plan", NINE, (), (), None, "403")
    assert absorb(budgeted(), {}, TargetState(), told, now=NINE, controls=NO_CONTROLS)[1].spent is None


def test_that_the_budget_will_not_last_is_told_once_a_day():
    state, told = TargetState(spent=known(9.0, current=4), expected=4, capacity=Capacity(4, NINE)), []
    windows = {}
    for minute in range(1, 2 * 1440):
        now = NINE + 60 * minute
        report = MetricsReport("plan", now, (MetricSample("backlog", now, 4.0),), (), Capacity(4, now))
        windows, after = absorb(budgeted(), windows, state, report, now=now, controls=NO_CONTROLS)
        if (text := budget_warning(budgeted(), state, after, now=now)) is not None:
            told.append((now, text))
        state, _ = advance(
            budgeted(), after, decide(budgeted(), windows, after, now=now), report_at=now, level=None
        )

    assert [now for now, _ in told] == [NINE + 60, MIDNIGHT + DAY + HOUR, MIDNIGHT + 2 * DAY + HOUR]
    assert told[0][1].startswith(
        "the budget will not last: 9.07 of 48 instance-hours spent today; at the pace of"
    )
