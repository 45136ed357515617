"""What a target has spent today: its capacity times the time it had it, each second once."""

import msgspec
import pytest

from scaling.budget.spending import day_of, spent_by
from scaling.config.policy import Budget
from scaling.model import Capacity, EffectRecord, Reason, ScaleAction, Spent, TargetState
from tests.support.scaling.budget import DAY, HOUR, MIDNIGHT

BUDGET = Budget(amount=48.0)
HOURLY = Budget(amount=48_000.0, unit="request_unit_hours", hourly=True)
NINE = MIDNIGHT + 9 * HOUR


def known(hours=10.0, *, until=NINE, capacity=3, **changes) -> Spent:
    fields = {"day": MIDNIGHT, "since": MIDNIGHT, "pace": float(capacity)} | changes
    return Spent(until=until, hours=hours, capacity=capacity, **fields)


def state(current=3, *, spent=None, at=NINE, **changes) -> TargetState:
    return TargetState(expected=current, capacity=Capacity(current, at), spent=spent, **changes)


def spent(now, budget=BUDGET, **changes) -> Spent:
    return spent_by(budget, state(**{"spent": known()} | changes), now=now)


def test_capacity_times_the_time_since_the_last_count_is_spent():
    assert spent(NINE + 1200).hours == pytest.approx(10.0 + 3 / 3)


def test_no_second_counts_twice():
    once = spent(NINE + 600)

    assert spent_by(BUDGET, state(spent=once), now=NINE + 600) == once
    assert spent_by(BUDGET, state(spent=once), now=NINE + 400) == once  # another instance's clock


def test_a_gap_counts_at_the_capacity_believed_in():
    assert spent(NINE + 5 * HOUR).hours == pytest.approx(10.0 + 15.0)


def test_an_increase_counts_from_the_report_that_ordered_it_and_a_decrease_from_its_effect():
    out = (EffectRecord(NINE + 1200, 3, 6),)
    inward = (EffectRecord(NINE + 1200, 3, 1),)

    assert spent(NINE + 3600, current=6, effects=out).hours == pytest.approx(10.0 + 6.0)
    assert spent(NINE + 3600, current=1, effects=inward).hours == pytest.approx(10.0 + 1.0 + 2 / 3)


def test_what_was_counted_is_not_counted_again_for_an_effect_that_was_there_then():
    before = (EffectRecord(NINE - 10, 1, 3), EffectRecord(NINE, 3, 3))

    assert spent(NINE + 1200, effects=before).hours == pytest.approx(11.0)


def test_a_pending_increase_may_be_there_already():
    action = ScaleAction("x", "plan", 3, 9, NINE, NINE + 600, Reason.SCALE_OUT)

    assert spent(NINE + 1200, pending=action).hours == pytest.approx(10.0 + 3.0)


def test_an_external_change_counts_as_it_is_read():
    held = TargetState(expected=3, capacity=Capacity(20, NINE), spent=known())
    seen = spent_by(BUDGET, held, now=NINE + 60)

    later = spent_by(BUDGET, msgspec.structs.replace(held, spent=seen), now=NINE + 60 + HOUR)

    assert seen.capacity == 20
    assert later.hours == pytest.approx(seen.hours + 20.0)


def test_an_external_change_after_an_effect_of_ours_counts_as_it_is_read():
    ours = (EffectRecord(NINE - 600, 1, 3),)
    held = TargetState(expected=3, capacity=Capacity(20, NINE), spent=known(), effects=ours)

    assert spent_by(BUDGET, held, now=NINE + 60).capacity == 20


def test_an_effect_newer_than_the_reading_is_what_is_there():
    after = state(5, at=NINE - 60, spent=known(), effects=(EffectRecord(NINE + 30, 3, 5),))

    assert spent_by(BUDGET, after, now=NINE + 60).capacity == 5


def test_a_day_begins_with_nothing_spent_but_the_time_since_midnight():
    late = known(47.0, until=MIDNIGHT + DAY - 60, warned=True)
    new = spent(MIDNIGHT + DAY + 1200, spent=late)

    assert (new.day, new.since, new.warned) == (MIDNIGHT + DAY, MIDNIGHT + DAY, False)
    assert new.hours == pytest.approx(1.0)


def test_after_days_without_a_report_the_whole_day_counts():
    assert spent(MIDNIGHT + 3 * DAY + 2 * HOUR).hours == pytest.approx(6.0)


def test_of_a_day_nobody_counted_the_even_share_is_taken_for_spent():
    new = spent(NINE, spent=None)

    assert new.hours == pytest.approx(48.0 * 9 / 24)
    assert (new.day, new.since) == (MIDNIGHT, NINE)


def test_a_count_of_a_clock_far_ahead_is_none():
    ahead = known(until=NINE + 3 * DAY, day=MIDNIGHT + 3 * DAY)

    assert spent(NINE, spent=ahead) == spent(NINE, spent=None)
    assert spent(NINE, spent=known(until=NINE + 200)).until == NINE + 200  # clocks differ a little


def test_near_midnight_an_instance_whose_clock_is_behind_counts_nothing():
    new = known(0.1, until=MIDNIGHT + DAY + 2, day=MIDNIGHT + DAY)

    assert spent(MIDNIGHT + DAY - 5, spent=new) == new


def test_another_time_zone_begins_the_count_anew():
    zone = Budget(amount=48.0, time_zone="Asia/Tokyo")  # its day began six hours before nine in UTC

    begun = spent(MIDNIGHT + 18 * HOUR, zone, spent=known(until=MIDNIGHT + 17 * HOUR))

    assert begun.day == MIDNIGHT + 15 * HOUR
    assert begun.hours == pytest.approx(48.0 * 3 / 24)


def test_the_pace_is_the_capacity_of_about_the_last_hour():
    assert spent(NINE + 600, spent=known(pace=9.0)).pace == pytest.approx(8.08, abs=0.01)
    assert spent(NINE + 5 * HOUR, spent=known(pace=9.0)).pace == pytest.approx(3.04, abs=0.01)


# -- hours billed at their highest capacity


def hourly(now, **changes):
    return spent(now, HOURLY, **changes)


FULL = known(10_000.0, capacity=1000, hour=NINE - HOUR, peak=1000)


def test_an_hour_counts_as_a_whole_at_its_highest():
    begun = hourly(NINE + 60, spent=FULL, current=1000)
    raised = hourly(NINE + 120, spent=begun, current=4000, at=NINE + 120)
    lowered = hourly(NINE + 1800, spent=raised, current=500, at=NINE + 1800)
    again = hourly(NINE + 2400, spent=lowered, current=3000, at=NINE + 2400)

    assert [each.hours for each in (begun, raised, lowered, again)] == [11_000, 14_000, 14_000, 14_000]


def test_each_hour_of_a_gap_counts():
    assert hourly(NINE + 2.5 * HOUR, spent=FULL, current=1000).hours == 13_000


def test_an_hour_begins_at_what_there_is_then():
    high = known(10_000.0, capacity=4000, until=NINE - 60, hour=NINE - HOUR, peak=4000)
    lowered = (EffectRecord(NINE - 30, 4000, 500),)

    assert hourly(NINE + 60, spent=high, current=500, effects=lowered).hours == 10_500


def test_days_that_begin_within_an_hour_pay_their_part_of_it():
    kolkata = msgspec.structs.replace(HOURLY, time_zone="Asia/Kolkata")  # midnight is 18:30 UTC
    day = MIDNIGHT + 18.5 * HOUR
    late = known(900.0, until=day - 60, capacity=1000, day=day - DAY, hour=day - 0.5 * HOUR, peak=1000)

    assert spent_by(kolkata, state(1000, spent=late), now=day + 60).hours == 500
    assert spent_by(kolkata, state(1000, spent=late), now=day + HOUR).hours == 1500


# -- days


def test_days_are_those_of_the_time_zone():
    assert day_of(NINE, "UTC") == (MIDNIGHT, MIDNIGHT + DAY)
    assert day_of(NINE, "Europe/Amsterdam") == (MIDNIGHT - HOUR, MIDNIGHT + 23 * HOUR)
    assert day_of(NINE, "Asia/Kolkata") == (MIDNIGHT - 5.5 * HOUR, MIDNIGHT + 18.5 * HOUR)


@pytest.mark.parametrize(("noon", "hours"), [(1_806_228_000.0, 23), (1_824_980_400.0, 25)])
def test_a_day_on_which_clocks_change_has_an_hour_less_or_more(noon, hours):
    day, end = day_of(noon, "Europe/Amsterdam")

    assert end - day == hours * HOUR
    assert day_of(end, "Europe/Amsterdam")[0] == end


@pytest.mark.parametrize("at", [1e300, -1e300, 1e12, -1e12])
def test_moments_that_no_calendar_has_are_of_some_day(at):
    day, end = day_of(at, "Europe/Amsterdam")

    assert day <= at <= end
    spent_by(Budget(amount=48.0, time_zone="Europe/Amsterdam"), state(spent=known()), now=at)


def test_of_a_day_nobody_counted_the_hour_that_has_begun_counts_as_a_whole():
    begun = spent(NINE + 1200, HOURLY, spent=None, current=1000)

    assert begun.hours == pytest.approx(48_000.0 * (9 + 1 / 3) / 24 + 1000 * 2 / 3)
    assert (begun.hour, begun.peak) == (NINE, 1000)
