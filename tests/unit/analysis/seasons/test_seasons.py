"""Profiles of the week out of recorded load: what is found, what is refused, and that the product keeps the schedule."""

import tomllib
from datetime import UTC, datetime, timedelta
from math import nan
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from scaling.rules.schedule import ScheduleRule
from scaling.rules.view import MetricsView
from tidemark.__main__ import command_line
from tidemark.analysis import plots
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.backtest.replay.history import HistoryError, Reading
from tidemark.analysis.seasons.page import _week
from tidemark.analysis.seasons.periods import periods_of, schedule
from tidemark.analysis.seasons.profile import error_of, profile, simplified

MONDAY = datetime(2026, 9, 28, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
OPTIONS = Options(service_rate=1.0, concurrency=16, start_up=120, wait=60, late=0.01, minimum=1, maximum=20)


def office(local):
    """Instances that are needed: six in working hours, two on Saturdays, less than one else."""
    if local.weekday() < 5:
        return 6 if 8 <= local.hour < 18 else 0.4
    return 2 if local.weekday() == 5 and 10 <= local.hour < 14 else 0.4


def question(need, *, weeks=5, zone=UTC, hours=1, begin=MONDAY, options=OPTIONS):
    """Arrivals by bins of some hours, so that the need comes out; None is not known."""
    readings = []
    for n in range(weeks * 168 // hours):
        at = begin + timedelta(hours=hours * n)
        value = need(at.astimezone(zone))
        readings += [] if value is None else [Reading(at.timestamp(), arrivals=value * 3600 * hours)]
    return prepare("orders", readings, options, None)


def test_load_by_the_clock_becomes_floors_that_held_out_weeks_confirm():
    found = profile(question(office), zone="UTC", share=0.5)

    assert (found.weeks, len(found.held_out)) == (4, 1)
    assert found.floors[:24] == [1] * 8 + [6] * 10 + [1] * 6
    assert found.floors[5 * 24 : 6 * 24] == [1] * 10 + [2] * 4 + [1] * 10
    assert found.floors[6 * 24 :] == [1] * 24
    assert (found.error.mean, found.error.short, found.error.idle, found.error.hours) == (0.0, 0.0, 0.0, 168)
    assert found.error.skill == 1.0
    assert found.worth


def test_the_legend_of_a_week_hides_no_line_and_the_last_hour_has_its_width():
    figure = _week(profile(question(office), zone="UTC", share=0.5))
    [axes] = figure.axes

    figure.draw_without_rendering()

    assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1
    floor = next(line for line in axes.lines if line.get_label() == "floor")
    assert list(floor.get_xdata()) == list(range(169))
    plots.drawn(figure)


def test_what_a_week_out_of_the_ordinary_needs_is_told_as_error_and_not_learned():
    def busier(local):
        return (
            9 if local.date() == (MONDAY + timedelta(days=29)).date() and local.hour == 12 else office(local)
        )

    found = profile(question(busier), zone="UTC", share=0.5)

    assert max(found.floors) == 6
    assert found.error.short == pytest.approx(1 / 168)
    assert found.error.mean == pytest.approx(3 / 168)


def test_load_that_comes_by_chance_is_no_reason_for_a_schedule():
    rng = np.random.default_rng(5)

    found = profile(question(lambda _: rng.uniform(1, 9)), zone="UTC", share=0.5)

    assert found.error.skill < 0.1
    assert not found.worth


def test_hours_are_those_of_the_clock_before_and_after_it_is_put_back():
    found = profile(
        question(office, zone=BERLIN), zone="Europe/Berlin", share=0.5
    )  # winter begins in the fourth week

    assert found.floors[:24] == [1] * 8 + [6] * 10 + [1] * 6
    assert found.error.mean == 0.0


def test_the_share_is_of_weeks_in_which_the_floor_is_enough():
    needs = {0: 2, 1: 4, 2: 6, 3: 8, 4: 2}

    def need(local):
        return needs[(local - MONDAY).days // 7] if local.hour == 9 else 0.4

    half, most = (profile(question(need), zone="UTC", share=share) for share in (0.5, 1.0))

    assert (half.floors[9], most.floors[9]) == (5, 8)


def test_unknown_hours_and_weeks_are_neither_learned_from_nor_judged_by():
    def need(local):
        week = (local - MONDAY).days // 7
        return None if week == 2 or (week == 4 and local.hour < 12) else office(local)

    found = profile(question(need), zone="UTC", share=0.5)

    assert (found.weeks, len(found.held_out)) == (3, 1)
    assert found.error.hours == 84
    assert found.floors[:24] == [1] * 8 + [6] * 10 + [1] * 6


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"weeks": 2}, "orders: 2 weeks of which half or more is known; at least 3"),
        ({"hours": 2}, "bins of 7200 s; accepted"),
    ],
)
def test_too_little_is_refused(given, told):
    with pytest.raises(HistoryError, match=told):
        profile(question(office, **given), zone="UTC", share=0.5)


def test_a_day_has_six_floors_at_most_and_keeps_those_that_are_few():
    few = np.array([1.0] * 8 + [6.0] * 10 + [2.0] * 6)
    many = np.array([float(1 + n % 12) for n in range(24)])

    assert list(simplified(few)) == list(few)
    assert sum(a != b for a, b in zip(simplified(many), simplified(many)[1:], strict=False)) < 6


def test_errors_count_whole_instances_within_the_bounds():
    weeks = np.array([[0.2, 3.4, nan, 30.0]])

    error = error_of(np.array([2.0, 2.0, 9.0, 9.0]), 4.0, weeks, (1, 10))

    assert (error.hours, error.mean, error.flat) == (
        3,
        pytest.approx((1 + 2 + 1) / 3),
        pytest.approx((3 + 0 + 6) / 3),
    )
    assert (error.short, error.idle) == (pytest.approx(2 / 3), 1.0)


def test_instances_start_before_the_hour_that_needs_them_also_over_midnight():
    floors = [4] * 24 + [1] * 144

    assert periods_of(floors, 1, 0) == [{"days": "mon", "from": "00:00", "to": "24:00", "floor": 4}]
    assert periods_of(floors, 1, 3) == [
        {"days": "mon", "from": "00:00", "to": "24:00", "floor": 4},
        {"days": "sun", "from": "23:57", "to": "24:00", "floor": 4},
    ]
    assert periods_of([1] * 168, 1, 3) == []
    assert periods_of(([1] * 8 + [2] * 16) * 7, 1, 3) == [
        {"days": "daily", "from": "07:57", "to": "24:00", "floor": 2}
    ]


def test_the_product_keeps_the_floors_of_the_schedule_and_has_them_ready():
    rng = np.random.default_rng(2)
    found = profile(question(office, zone=BERLIN), zone="Europe/Berlin", share=0.5)
    found = msgspec.structs.replace(found, floors=[int(floor) for floor in rng.integers(1, 4, 168)])

    (rule,) = tomllib.loads(schedule(found))["targets"]["orders"]["rules"]
    assert rule.pop("type") == "schedule"
    params = msgspec.convert(rule, ScheduleRule.Params)
    assert params.problems() == {}
    kept = ScheduleRule(params, name="schedule")
    for hour in range(168):
        for minute, floor in (
            (0, found.floors[hour]),
            (58, max(found.floors[hour], found.floors[(hour + 1) % 168])),
        ):
            local = datetime(2026, 11, 16, tzinfo=BERLIN) + timedelta(hours=hour, minutes=minute)
            verdict = kept.evaluate(
                MetricsView({}, {}, 1, ready=1, minimum=1, maximum=20, now=local.timestamp())
            )
            assert (verdict.floor or 1) == floor


def invoke(folder, *arguments):
    return CliRunner().invoke(command_line(), ["seasons", "orders.csv", *arguments], env={"COLUMNS": "120"})


def test_the_command_prints_the_schedule_with_its_error_and_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [(MONDAY + timedelta(hours=n)) for n in range(4 * 168)]
    lines = [f"{at.isoformat()},{3600 * 2 * office(at):.0f}" for at in rows]
    (tmp_path / "orders.csv").write_text("\n".join(["t,arrivals", *lines]))

    found = invoke(tmp_path, "--service-rate", "2", "--time-zone", "UTC", "--allow", "worth=0")

    assert found.exit_code == 3, found.output
    assert "check failed: worth 1, allowed 0" in found.output
    assert "learned from 3 weeks; on the last week, held out, the floors were 0 instances off" in found.output
    assert 'from = "07:58"' in found.output
    assert "next: tidemark lint" in found.output
    (row,) = parquet.read_table("seasons-output/schedules.parquet").to_pylist()
    assert row["toml"] in found.output.replace("\r", "")
    assert len(parquet.read_table("seasons-output/floors.parquet")) == 168
    assert "by the hour of the week" in (tmp_path / "seasons-output" / "seasons.html").read_text()
    assert "--time-zone is 'Berlin'; accepted" in invoke(tmp_path, "--time-zone", "Berlin").output
