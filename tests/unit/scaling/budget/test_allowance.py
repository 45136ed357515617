"""How much the rest of the day allows: what is left lasts to midnight, where it helps most."""

import msgspec
import pytest

from scaling.budget.allowance import allowance_of
from scaling.budget.expected import HEADROOM, need_of
from scaling.config.policy import Budget
from scaling.model import Capacity, Spent, TargetState
from tests.support.scaling.budget import DAY, HOUR, MIDNIGHT, RULE, budgeted, memories
from tests.support.scaling.runner import metric

HOURLY = Budget(amount=48_000.0, unit="request_unit_hours", hourly=True)


def spent(hours, at, *, capacity=1, pace=1.0, **changes) -> Spent:
    return Spent(MIDNIGHT, MIDNIGHT, at, hours, capacity, pace, **changes)


def allowed(hours, hour, *, current=1, memories=None, step=1, pace=1.0, spending=None, **changes):
    """With so many units times hours spent by an hour of the day."""
    at = MIDNIGHT + hour * HOUR
    state = TargetState(
        expected=current,
        capacity=Capacity(current, at, step=step),
        spent=spending or spent(hours, at, capacity=current, pace=pace),
        memories=memories or {},
    )
    return allowance_of(budgeted(**changes), state, now=at)


def test_without_a_budget_nothing_is_said():
    assert allowed(0.0, 9, budget=None) is None


def test_it_is_told_with_its_numbers():
    made = allowed(171.0, 14.6, amount=192.0)

    assert made.text() == "171 of 192 instance-hours spent today, 9.4 h left at 2.2"
    assert made.out == 4


def test_money_is_told_in_money():
    made = allowed(171.0, 23.5, budget=Budget(amount=48.0, unit="money", price=0.25))

    assert made.text() == "42.75 of 48 spent today, 30 min left at 42"
    assert made.takes(43, made.out_side) == pytest.approx((171 + 0.5 + 42 * 0.5) * 0.25)


def test_a_burst_in_the_morning_is_served_though_evening_may_come():
    made = allowed(27.0, 9, amount=192.0, minimum=2)

    assert made.out == 2 + 27  # three times the nine that would last evenly
    assert made.keep > made.out


def test_however_long_a_burst_lasts_something_is_left():
    left, hours = 135.0, 15.0
    for _ in range(4 * 60):
        left -= left / (hours / 3) / 60
        hours -= 1 / 60

    assert left > 135.0 / 3


def test_what_is_left_late_in_the_evening_is_there_to_be_spent():
    assert allowed(40.0, 23, amount=48.0).out == 1 + 14  # half an hour of them
    assert allowed(40.0, 23.75, amount=48.0).out == 1 + 31


def test_a_step_above_the_minimum_is_allowed_as_long_as_it_can_be_paid_for_an_hour():
    assert allowed(0.0, 0, amount=25.0).out == 2
    assert allowed(0.0, 0, amount=24.9).out == 1
    assert allowed(0.1, 0, amount=25.0, current=2).keep == 2
    assert allowed(0.95, 0, amount=25.0, current=2).keep == 1


def test_a_spent_budget_allows_the_minimum():
    made = allowed(60.0, 12, amount=48.0, minimum=2)

    assert (made.out, made.keep) == (2, 2)


def test_the_floor_of_the_platform_is_paid_for_like_the_minimum():
    at = MIDNIGHT
    state = TargetState(expected=3, capacity=Capacity(3, at, floor=3), spent=spent(0.0, at, capacity=3))

    assert allowance_of(budgeted(amount=48.0), state, now=at).keep == 3


@pytest.mark.parametrize("hour", [0, 9, 21.5, 23.9])
@pytest.mark.parametrize("more", [1, 2, 7])
@pytest.mark.parametrize("budget", [Budget(amount=60.0), HOURLY], ids=["spent", "billed by the hour"])
def test_the_budget_named_is_the_one_that_would_allow_it(hour, more, budget):
    peak = {"hour": MIDNIGHT + hour // 1 * HOUR, "peak": 1000} if budget.hourly else {}
    bounds = {"minimum": 400 if budget.hourly else 1, "maximum": 1_000_000}
    units = 100 if budget.hourly else 1
    at = MIDNIGHT + hour * HOUR
    spending = spent(30.0 * units, at, **peak)
    case = {"spending": spending, "step": units, **bounds}
    capacity = allowed(0, hour, budget=budget, **case).out // units * units + more * units
    made = allowed(0, hour, budget=budget, **case)
    needed = made.takes(capacity, made.out_side)

    assert allowed(0, hour, budget=msgspec.structs.replace(budget, amount=needed), **case).out >= capacity
    assert (
        allowed(0, hour, budget=msgspec.structs.replace(budget, amount=needed * 0.999), **case).out < capacity
    )


# -- with a forecast: nights need 1 instance, days (08:00 to 20:00) 10, of which the policy's minimum is 1


def foreseen(hours, hour, **changes):
    return allowed(hours, hour, rules=(RULE,), memories=memories(), maximum=100, **changes)


def need(hour, given=None, **changes):
    at = MIDNIGHT + hour * HOUR
    state = TargetState(expected=1, memories=memories() if given is None else given)
    return need_of(budgeted(rules=(RULE,), **changes), state, at=at, end=MIDNIGHT + DAY, minimum=1)


def test_the_need_of_the_rest_of_the_day_is_what_was_learned():
    by_day = HEADROOM * 8 - 1

    assert need(0).total == pytest.approx(12 * by_day)
    assert need(12).now == pytest.approx(by_day)
    assert need(12).total == pytest.approx(8 * by_day)
    assert need(19.75).total == pytest.approx(by_day / 4)
    assert need(21).total == 0.0


def test_what_comes_now_beyond_the_usual_counts_for_an_hour():
    beyond = HEADROOM * 4 - 1

    assert need(2, memories(now=40.0)).now == pytest.approx(beyond)
    assert need(2, memories(now=40.0)).total == pytest.approx(need(2).total + beyond)
    assert need(12, memories(now=40.0)) == need(12)


def test_needs_are_whole_instances():
    """An hour of 8.1/s takes two instances that serve ten, with a fifth to spare."""
    by_hour = memories(by_hour=[8.1] * 24)

    assert need(0, by_hour).total == pytest.approx(24)
    assert need(0, by_hour, maximum=1).total == 0.0


@pytest.mark.parametrize(
    "given",
    [{}, memories(days=0), memories(rate=0.0), {"level": b"?"}],
    ids=["none", "young", "idle", "corrupt"],
)
def test_nothing_is_foreseen_before_it_is_learned(given):
    assert need(9, given) is None


def test_what_suffices_allows_the_need_and_of_the_rest_three_times_the_even_pace():
    by_day = HEADROOM * 8 - 1  # nine above the minimum
    made = foreseen(8.0, 8, amount=8 + 16 + 12 * by_day + 32)

    assert made.out == 1 + 9 + 6


def test_what_does_not_suffice_serves_what_comes_as_long_as_it_lasts():
    """Half of what the day needs: the shortage comes as late as it can."""
    half = 12 * (HEADROOM * 8 - 1) / 2
    morning = foreseen(8.0, 8, amount=24 + half)
    later = foreseen(8.0 + 5 * (1 + 9), 13, amount=24 + half, current=10)
    at_last = foreseen(8.0 + 6 * (1 + 9) - 0.5, 14, amount=24 + half, current=10)

    assert (morning.out, morning.keep) == (10, 10)
    assert (later.out, later.keep) == (10, 10)
    assert (at_last.out, at_last.keep) == (2, 7)  # half an hour of one, five minutes of six


def test_an_hour_that_needs_one_more_gets_it_however_much_the_evening_needs():
    """One step more or less is all that a quiet hour has: without it its messages would wait until the evening."""
    day = [8.1] * 18 + [150.0] * 4 + [8.1] * 2
    given = {"rules": (RULE,), "memories": memories(by_hour=day), "maximum": 100, "amount": 24 + 60.0}

    assert allowed(1.0, 1, **given).out == 2
    assert allowed(1.0 + 17 * 2, 18, **given).out == 1 + 18


def test_a_busy_evening_is_not_starved_by_a_morning():
    loud_evening = [0.0] * 18 + [200.0] * 4 + [0.0] * 2
    given = memories(by_hour=loud_evening)
    foretold = allowed(6.0, 6, rules=(RULE,), memories=given, amount=24 + 60, maximum=100)
    blind = allowed(6.0, 6, amount=24 + 60, maximum=100)

    assert blind.out == 1 + 10
    assert foretold.out == 1


# -- hours billed at their highest capacity


def of_hour(hours, hour, *, peak, current=1000, step=100, **changes):
    at = MIDNIGHT + hour * HOUR
    spending = spent(hours, at, capacity=current, hour=at // HOUR * HOUR, peak=peak)
    return allowed(
        0,
        hour,
        current=current,
        spending=spending,
        step=step,
        budget=HOURLY,
        minimum=400,
        maximum=9000,
        **changes,
    )


def test_what_the_hour_has_paid_for_is_free_within_it():
    spent_all = of_hour(60_000.0, 12.5, peak=5000)

    assert (spent_all.out, spent_all.keep) == (5000, 5000)


def test_before_the_next_hour_what_it_cannot_pay_for_goes():
    assert of_hour(60_000.0, 12.97, peak=5000, current=5000).keep == 400


def test_what_goes_into_the_next_hour_is_paid_for_the_whole_hour():
    """Two thousand and the minimum for the last hour are left, however high the pace may be."""
    assert of_hour(48_000.0 - 2400.0, 22.97, peak=5000, current=5000).keep == 2400


def test_nothing_goes_before_the_day_that_has_a_budget_of_its_own():
    assert of_hour(60_000.0, 23.97, peak=5000, current=5000).keep == 5000


def test_more_than_the_hour_has_paid_for_costs_the_whole_hour():
    left = 3600.0
    made = of_hour(48_000.0 - left, 23.5, peak=1000)

    assert made.out == 1000 + 3600


# -- the warning before


def test_it_warns_when_the_pace_of_the_last_hour_does_not_last():
    made = allowed(24.0, 12, amount=48.0, current=4, pace=3.0)

    assert made.will_bind()
    assert made.warning() == (
        "the budget will not last: 24 of 48 instance-hours spent today; at the pace of the last hour (3) the other "
        "12.0 h take 36, and 24 are left"
    )


def test_it_does_not_warn_of_what_lasts_nor_in_the_first_hour():
    assert not allowed(24.0, 12, amount=48.0, pace=2.0).will_bind()
    assert not allowed(4.0, 0.9, amount=48.0, pace=9.0).will_bind()


def test_with_a_forecast_it_warns_of_what_is_expected():
    made = foreseen(8.0, 8, amount=24 + 54, pace=1.0)

    assert made.will_bind()
    assert made.warning() == (
        "the budget will not last: 8 of 78 instance-hours spent today; as far as it is expected the other 16.0 h take "
        "124, and 70 are left"
    )


# -- edges


def test_plenty_allows_the_maximum_itself():
    made = allowed(0.0, 0, amount=1e6)

    assert (made.out, made.keep) == (40, 40)


def test_late_in_the_day_what_is_kept_is_paid_for_five_minutes_at_least():
    assert allowed(47.0, 23.95, amount=48.05, current=9).keep == 1 + 20  # one and a bit, over three minutes
    assert allowed(46.0, 23.5, amount=47.5, current=13).keep == 1 + 12  # one, over five minutes


def test_reports_that_come_seldom_are_paid_for_until_the_next_but_one():
    seldom = {"metrics": {"backlog": metric(span=7200.0, interval=1800.0, min_samples=1)}}

    assert allowed(46.0, 22, amount=48.0 + 6.0, **seldom).out == 1 + 6  # six above the minimum, for an hour
    assert allowed(46.0, 22, amount=48.0 + 6.0, current=9, **seldom).keep == 1 + 6


def test_an_hour_closes_earlier_where_reports_come_seldom():
    seldom = {"metrics": {"backlog": metric(span=1200.0, interval=600.0, min_samples=1)}}

    assert of_hour(60_000.0, 12.6, peak=5000, current=5000, **seldom).keep == 5000
    assert of_hour(60_000.0, 12.7, peak=5000, current=5000, **seldom).keep == 400


def test_a_step_of_the_platform_is_one_step_however_many_units_it_is():
    """At midnight, for an hour: the one above the minimum that is rounded up to a whole one."""
    given = {"budget": HOURLY_OF_28, "minimum": 900, "maximum": 9000, "current": 1000, "step": 1000}
    spending = spent(1000.0, MIDNIGHT, capacity=1000, hour=MIDNIGHT, peak=1000)

    assert allowed(0, 0, spending=spending, **given).out == 2000


HOURLY_OF_28 = Budget(amount=26_000.0, unit="request_unit_hours", hourly=True)


def test_more_than_the_budget_is_told_without_a_pace_for_the_rest():
    assert allowed(60.0, 12, amount=48.0).text() == "60 of 48 instance-hours spent today, 12.0 h left"


def test_what_is_beyond_the_usual_lasts_no_longer_than_the_day():
    assert need(23.75, memories(now=40.0)).total == pytest.approx(0.25 * (HEADROOM * 4 - 1))
