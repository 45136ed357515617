"""A day with a budget, whatever the load does: what is billed stays within it, and nothing goes below the minimum."""

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from scaling.config.policy import Budget
from scaling.model import Reason, Spent, TargetState
from tests.support.examples import examples
from tests.support.scaling.budget import MIDNIGHT, RULE, budgeted, live, memories

MINUTES = 1440

stretches = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 45)), min_size=1, max_size=25)
"""Loads of (minutes, capacity wanted), one after the other, and again."""


def load_of(parts, factor=1):
    by_minute = [wanted * factor for minutes, wanted in parts for _ in range(minutes)]
    return lambda now: float(by_minute[int((now - MIDNIGHT) // 60) % len(by_minute)])


def begun(current, hours=0.0, **changes):
    return TargetState(spent=Spent(MIDNIGHT, MIDNIGHT, MIDNIGHT, hours, current, float(current), **changes))


@examples(8)
@given(stretches, st.integers(1, 4), st.floats(1.0, 6.0), st.integers(0, 3))
def test_no_more_than_the_budget_and_one_interval_is_billed(parts, minimum, times, delay):
    amount = minimum * 24 * times
    made = budgeted(amount, minimum=minimum)

    day = live(made, load_of(parts), current=minimum, delay=delay, state=begun(minimum))

    interval = max(day.capacities) / 60
    assert day.billed <= amount + interval
    assert day.state.spent.hours >= day.billed - interval
    assert delay or day.state.spent.hours <= day.billed
    assert min(day.capacities) >= minimum


@examples(6)
@given(
    stretches,
    st.lists(st.floats(0.0, 400.0), min_size=24, max_size=24),
    st.floats(1.0, 6.0),
    st.integers(0, 3),
)
def test_nor_with_a_forecast_however_wrong_it_is(parts, by_hour, times, delay):
    made = budgeted(24 * times, rules=(*budgeted().spec.rules, RULE))
    state = structs.replace(begun(1), memories=memories(by_hour=by_hour))

    day = live(made, load_of(parts), delay=delay, state=state)

    interval = max(day.capacities) / 60
    assert day.billed <= 24 * times + interval
    assert min(day.capacities) >= 1


@examples(8)
@given(stretches, st.floats(1.0, 6.0), st.integers(0, 3))
@example([(30, 31), (60, 45), (30, 35), (60, 3)], 5.60801754413364, 0)
def test_no_hour_billed_at_its_highest_breaks_the_budget(parts, times, delay):
    budget = Budget(amount=400 * 24 * times, unit="request_unit_hours", hourly=True)
    made = budgeted(budget=budget, minimum=400, maximum=4000)

    day = live(
        made,
        load_of(parts, 100),
        current=400,
        step=100,
        delay=delay,
        state=begun(400, 400.0, hour=MIDNIGHT, peak=400),
    )

    assert day.billed <= budget.amount + 1
    assert (
        day.state.spent.hours >= day.billed - 1
    )  # an order may be billed from its effect on, in the next hour
    assert delay or day.state.spent.hours == day.billed
    assert min(day.capacities) >= 400


@examples(6)
@given(st.integers(2, 45), st.integers(1, 4), st.floats(1.0, 6.0))
def test_under_a_steady_load_it_steps_down_and_does_not_flap(wanted, minimum, times):
    day = live(
        budgeted(minimum * 24 * times, minimum=minimum),
        lambda now: float(wanted),
        current=minimum,
        state=begun(minimum),
    )

    outs = [
        change
        for change in day.changes()
        if change.reason is Reason.SCALE_OUT and change.at < MIDNIGHT + 23 * 3600
    ]
    assert len(outs) <= 4
    held = [each for each in day.made if each.reason is Reason.OVER_BUDGET]
    assert all(any(limit.reason is Reason.OVER_BUDGET for limit in each.limits) for each in held)


@examples(6)
@given(stretches, st.floats(1.0, 6.0))
def test_a_budget_that_never_binds_changes_nothing(parts, times):
    plenty = live(budgeted(40 * 24 * times * 3 + 1), load_of(parts))
    without = live(budgeted(budget=None), load_of(parts))

    assert plenty.capacities == without.capacities
