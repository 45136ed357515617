"""Floors and ceilings by day, time and time zone."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from scaling.config.rule_registry import RuleError
from scaling.model import Reason
from tests.support.scaling.steady_views import rule, view


def bounds(periods, moment, zone="UTC"):
    verdict = rule("schedule", periods=periods, time_zone=zone).evaluate(
        view(now=datetime.fromisoformat(moment).timestamp())
    )
    assert (verdict.desired, verdict.reason) == (None, Reason.WITHIN_TARGET)
    return verdict.floor, verdict.ceiling


OFFICE = [{"days": "mon-fri", "from": "08:00", "to": "18:00", "floor": 4, "ceiling": 12}]


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-20T07:59:59+00:00", (None, None)),  # a Friday
        ("2026-11-20T08:00:00+00:00", (4, 12)),
        ("2026-11-20T17:59:59+00:00", (4, 12)),
        ("2026-11-20T18:00:00+00:00", (None, None)),
        ("2026-11-21T12:00:00+00:00", (None, None)),
    ],
)
def test_a_period_begins_with_its_first_minute_and_ends_before_its_last(moment, expected):
    assert bounds(OFFICE, moment) == expected


@pytest.mark.parametrize(
    ("moment", "floor"),
    [
        ("2026-11-20T21:59:00+00:00", None),
        ("2026-11-20T22:00:00+00:00", 2),
        ("2026-11-21T05:59:00+00:00", 2),  # Saturday morning still belongs to Friday
        ("2026-11-21T06:00:00+00:00", None),
        ("2026-11-21T22:00:00+00:00", None),
        ("2026-11-20T05:00:00+00:00", None),  # Friday morning belongs to Thursday
    ],
)
def test_over_midnight_the_day_is_that_of_the_begin(moment, floor):
    assert bounds([{"days": "fri", "from": "22:00", "to": "06:00", "floor": 2}], moment) == (floor, None)


def test_the_highest_floor_and_the_lowest_ceiling_of_all_active_periods_hold():
    periods = [{"floor": 2, "ceiling": 20}, {"floor": 5}, {"ceiling": 9}]

    assert bounds(periods, "2026-11-20T12:00:00+00:00") == (5, 9)


@pytest.mark.parametrize(
    ("moment", "floor"),
    [
        ("2026-07-03T06:30:00+00:00", 4),  # 08:30 in summer
        ("2026-11-20T06:30:00+00:00", None),  # 07:30 in winter
        ("2026-11-20T07:30:00+00:00", 4),
    ],
)
def test_times_are_the_time_zones_wall_clock_daylight_saving_included(moment, floor):
    assert bounds(OFFICE, moment, "Europe/Amsterdam")[0] == floor


def test_the_hour_repeated_in_autumn_is_in_the_period_twice():
    zone = ZoneInfo("Europe/Amsterdam")
    night = [{"from": "02:00", "to": "03:00", "floor": 7}]
    first = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=0)
    second = first.replace(fold=1)

    assert second.timestamp() - first.timestamp() == 3_600
    for moment in (first, second):
        assert bounds(night, moment.isoformat(), "Europe/Amsterdam") == (7, None)


def test_equal_begin_and_end_are_a_whole_day():
    period = [{"days": "mon", "from": "08:00", "to": "08:00", "floor": 3}]

    assert bounds(period, "2026-11-24T07:59:00+00:00") == (3, None)
    assert bounds(period, "2026-11-24T08:00:00+00:00") == (None, None)


def test_days_may_wrap_around_the_week():
    period = [{"days": "sat-mon,wed", "floor": 3}]
    found = [bounds(period, f"2026-11-{day}T12:00:00+00:00")[0] for day in range(16, 23)]  # Monday to Sunday

    assert found == [3, None, 3, None, None, 3, 3]


@pytest.mark.parametrize(
    ("periods", "key"),
    [
        ([], "periods"),
        ([{"days": "mo-fr", "floor": 1}], "periods[0].days"),
        ([{"from": "25:00", "floor": 1}], "periods[0].from"),
        ([{"to": "24:01", "floor": 1}], "periods[0].to"),
        ([{"from": "8"}], "periods[0].from"),
        ([{"days": "daily"}], "periods[0].floor"),
        ([{"floor": -1}], "periods[0].floor"),
        ([{"floor": 5, "ceiling": 4}], "periods[0].floor"),
        ([{"floor": 1}, {"start": "08:00", "floor": 1}], "periods"),
    ],
)
def test_wrong_periods_are_named(periods, key):
    with pytest.raises(RuleError) as caught:
        rule("schedule", periods=periods)

    assert key in caught.value.problems


@pytest.mark.parametrize("zone", ["Europe/Amsterdm", "", "../etc/passwd", "America"])
def test_an_unknown_time_zone_is_named(zone):
    with pytest.raises(RuleError, match="IANA"):
        rule("schedule", periods=[{"floor": 1}], time_zone=zone)
