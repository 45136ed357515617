"""What is shown of a budget."""

import msgspec

from scaling.config.policy import Budget
from scaling.model import Capacity, Spent, TargetState
from scaling.web.budget_view import BudgetView, budget_view
from tests.support.scaling.budget import DAY, HOUR, MIDNIGHT, budgeted

NOON = MIDNIGHT + 12 * HOUR


def shown(hours=24.0, *, made=None, since=MIDNIGHT, pace=2.0, now=NOON):
    spent = Spent(MIDNIGHT, since, NOON, hours, 2, pace)
    state = TargetState(expected=2, capacity=Capacity(2, NOON), spent=spent)
    return budget_view(made or budgeted(), state, now=now)


def test_what_is_spent_and_what_is_allowed():
    assert shown() == BudgetView(
        unit="instance_hours",
        per_day=48.0,
        spent=24.0,
        since=MIDNIGHT,
        day_ends=MIDNIGHT + DAY,
        allowed=4,
        kept=7,
        text="24 of 48 instance-hours spent today, 12.0 h left at 2: 4 allowed, up to 7 kept",
        warning=None,
    )


def test_money_is_shown_in_money():
    view = shown(made=budgeted(budget=Budget(amount=12.0, unit="money", price=0.25)))

    assert (view.per_day, view.spent) == (12.0, 6.0)
    assert view.text == "6 of 12 spent today, 12.0 h left at 2: 4 allowed, up to 7 kept"


def test_time_that_passed_since_the_last_report_counts():
    assert shown(now=NOON + HOUR).spent == 26.0


def test_a_budget_that_will_not_last_is_warned_of():
    assert shown(pace=5.0).warning.startswith("the budget will not last: 24 of 48 instance-hours spent today")


def test_what_is_not_known_of_the_day_is_said():
    assert shown(since=NOON - HOUR).text.endswith(
        "; before 2027-01-15 11:00:00Z nothing is known, and the even share is taken for spent"
    )


def test_nothing_is_shown_without_a_budget_or_before_anything_is_counted():
    assert shown(made=budgeted(budget=None)) is None
    assert budget_view(budgeted(), TargetState(), now=NOON) is None


def test_it_goes_into_json():
    assert msgspec.json.decode(msgspec.json.encode(shown()))["allowed"] == 4


def test_what_is_allowed_is_told_in_steps_of_the_platform():
    budget = Budget(amount=50_000.0, unit="request_unit_hours", hourly=True)
    made = budgeted(budget=budget, minimum=400, maximum=10_000)
    spent = Spent(MIDNIGHT, MIDNIGHT, NOON, 20_000.0, 400, 400.0, hour=NOON, peak=400)
    state = TargetState(expected=400, capacity=Capacity(400, NOON, step=100), spent=spent)

    view = budget_view(made, state, now=NOON)

    assert (view.allowed % 100, view.kept % 100) == (0, 0)
    assert f": {view.allowed} allowed, up to {view.kept} kept" in view.text
