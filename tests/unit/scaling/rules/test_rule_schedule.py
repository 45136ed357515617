"""Floors and ceilings by day, time and time zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from scaling.config.rule_registry import RuleError
from scaling.model import Reason
from scaling.window import Window, WindowSpec
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


def test_a_period_over_the_end_of_a_repeated_hour_holds_without_a_break():
    zone = ZoneInfo("Europe/Amsterdam")
    night = [{"from": "02:30", "to": "04:00", "floor": 7}]
    local = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=0).timestamp()  # then 03:00 is 02:00 again

    held = [
        bounds(night, datetime.fromtimestamp(local + 60 * minute, UTC).isoformat(), zone.key)[0]
        for minute in range(-1, 151, 15)
    ]
    assert held == [None, *[7] * 10]


@pytest.mark.parametrize(
    ("dates", "held"),
    [
        ({"on": ["2026-12-25"]}, ["2026-12-25"]),
        ({"on": ["12-25", "2027-01-01..2027-01-02"]}, ["2026-12-25", "2027-01-01", "2027-01-02", "2027-12-25"]),
        ({"on": ["12-31..01-02"]}, ["2026-12-31", "2027-01-01", "2027-01-02", "2027-12-31"]),
        ({"on": ["12-01..12-31"], "days": "fri", "not_on": ["12-25", "2027-12-03"]},
         ["2026-12-04", "2026-12-11", "2026-12-18", "2027-12-10", "2027-12-17", "2027-12-24", "2027-12-31"]),
        ({"on": ["02-29"]}, []),
        ({"on": ["2027-12-30..9999-12-31"]}, ["2027-12-30", "2027-12-31"]),
        ({"on": ["2026-12-24 18:00..2026-12-26 06:00"]}, ["2026-12-25"]),
        ({"on": ["12-24..12-26"], "not_on": ["2026-12-25 11:59..2026-12-25 12:01", "2027-12-25 12:00..2027-12-26 12:01"]},
         ["2026-12-24", "2026-12-26", "2027-12-24"]),
        ({"on": ["holidays.ics"], "not_on": ["12-26"]}, ["2026-12-25", "2027-12-25"]),
    ],
)  # fmt: skip
def test_a_period_holds_on_the_dates_that_are_named_and_on_none_that_is_excepted(dates, held):
    files = {"holidays.ics": [{"begin": "2026-12-25", "days": 2, "yearly": True}]}
    subject = rule("schedule", periods=[{"floor": 4, **dates}], files=files)
    first = datetime(2026, 12, 1, 12, tzinfo=UTC)
    noons = [first + timedelta(days=n) for n in range(396)]

    assert held == [
        f"{noon:%Y-%m-%d}" for noon in noons if subject.evaluate(view(now=noon.timestamp())).floor == 4
    ]


@pytest.mark.parametrize(
    ("moment", "floor"),
    [
        ("2026-12-24T23:00:00+00:00", 4),
        ("2026-12-25T05:00:00+00:00", 4),  # the night of the 24th
        ("2026-12-25T23:00:00+00:00", None),
        ("2026-12-26T05:00:00+00:00", None),  # the night of the 25th
        ("2026-12-26T23:00:00+00:00", 4),
    ],
)
def test_over_midnight_an_excepted_day_is_that_of_the_begin(moment, floor):
    night = [{"from": "22:00", "to": "06:00", "not_on": ["12-25"], "floor": 4}]

    assert bounds(night, moment) == (floor, None)


NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
OPEN = {"label": "office", "floor": 4, "ceiling": 12}


@pytest.mark.parametrize(
    ("period", "holidays", "expected", "note"),
    [
        ({"not_on": ["holidays"]}, 0.0, (4, 12), "r: office"),
        ({"not_on": ["holidays"]}, 1.0, (None, None), "r: not office, because of holidays"),
        ({"not_on": ["holidays"]}, None, (4, None),
         "r: office, of which holidays is not known, so its floor counts"),
        ({"on": ["holidays"]}, 1.0, (4, 12), "r: office"),
        ({"on": ["holidays"]}, 0.0, (None, None), ""),
        ({"on": ["holidays"]}, None, (4, None), "r: office, of which holidays is not known, so its floor counts"),
        ({"on": ["holidays", "11-20"]}, None, (4, 12), "r: office"),
        ({"not_on": ["holidays", "11-20"]}, None, (None, None), "r: not office, because of 11-20"),
        ({"on": ["11-21"], "not_on": ["holidays"]}, None, (None, None), ""),
        ({"on": ["holidays"], "floor": None}, None, (None, None),
         "r: office, of which holidays is not known, so its ceiling does not count"),
    ],
)  # fmt: skip
def test_while_a_metric_is_not_known_a_floor_counts_and_a_ceiling_does_not(period, holidays, expected, note):
    subject = rule("schedule", periods=[{**OPEN, **period}])
    known = Window() if holidays is None else Window([NOON], [holidays])
    spec = WindowSpec(span=60.0, interval=60.0, min_samples=1)
    found = subject.evaluate(view(now=NOON, holidays=known, specs={"holidays": spec}))

    assert subject.metrics() == ("holidays",)
    assert ((found.floor, found.ceiling), found.note) == (expected, note)


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
        ([{"floor": 1, "on": []}], "periods"),
        ([{"floor": 1, "on": ["2026-02-29"]}], "periods[0].on"),
        ([{"floor": 1, "on": ["02-30"]}], "periods[0].on"),
        ([{"floor": 1, "on": ["2026-12-25..12-26"]}], "periods[0].on"),
        ([{"floor": 1, "on": ["2026-12-25..2026-12-24"]}], "periods[0].on"),
        ([{"floor": 1, "on": ["2026-12-25.."]}], "periods[0].on"),
        ([{"floor": 1, "not_on": ["2026-12-25 08:00"]}], "periods[0].not_on"),
        ([{"floor": 1, "not_on": ["2026-12-25 08:00..2026-12-25 08:00"]}], "periods[0].not_on"),
        ([{"floor": 1, "not_on": ["2026-12-25 08:00..2026-12-25 24:00"]}], "periods[0].not_on"),
        ([{"floor": 1, "not_on": ["25.12.2026"]}], "periods[0].not_on"),
        ([{"floor": 1, "not_on": [""]}], "periods[0].not_on"),
        ([{"floor": 1, "not_on": ["holidays.ics"]}], "periods[0].not_on"),
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
