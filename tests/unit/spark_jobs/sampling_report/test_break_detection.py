"""Breaks of daily series: the story of the article, its look-alikes, and how often chance fools the search."""

from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_jobs.sampling_report.breaks import BreakSettings, detectable_fall, fit_breaks
from spark_jobs.sampling_report.verdicts import Day, Kind, analyse, lost_events

# May 6, 2017 was a Saturday; 22 days; the SDK was upgraded on Saturday, May 20; Thursday, May 25 was a bank holiday.
FIRST = date(2017, 5, 6)
UPGRADE = date(2017, 5, 20)
HOLIDAY = date(2017, 5, 25)
WEEK = [0.3, 0.25, 1.0, 1.05, 1.02, 1.0, 0.95]  # from Saturday on


def story(*, rate=30.0, kept=1.0, days=22, holiday=True, noise=0.03, seed=1):
    """Days of the article; from the upgrade on the rate is `rate` and `kept` of the events are tracked at all."""
    rng = np.random.default_rng(seed)
    found = []
    for place in range(days):
        day = FIRST + timedelta(days=place)
        count = 100_000 * WEEK[place % 7] * np.exp(rng.normal(0, noise))
        if holiday and day == HOLIDAY:
            count *= 0.35
        changed = day >= UPGRADE
        share = (rate if changed else 100.0) * np.exp(rng.normal(0, 0.05) if changed else 0)
        found.append(Day(day, min(share, 100.0), float(round(count * (kept if changed else 1)))))
    return found


def changed(days, places, **fields):
    """The days with other fields at these places, each made of the day."""
    return [
        replace(day, **{name: made(day) for name, made in fields.items()}) if place in places else day
        for place, day in enumerate(days)
    ]


def times(factor):
    return lambda day: day.corrected * factor


def kinds(days, **options):
    return [(finding.day, finding.kind) for finding in analyse(days, **options).findings]


def day_number(place):
    return FIRST + timedelta(days=place)


WHOLE = story(rate=100.0)
LONG = story(rate=100.0, days=42)
VERDICTS = {
    "had the events been lost, the same chart of raw counts says so": (
        story(rate=100.0, kept=0.3),
        [(UPGRADE, Kind.LOST)],
    ),
    "where nothing changed nothing is found": (WHOLE, []),
    "a stop of all events is a loss": (
        changed(WHOLE, range(16, 22), rate=lambda _: None, corrected=lambda _: 0.0),
        [(day_number(16), Kind.LOST)],
    ),
    "weeks of sampling before a loss tell them apart": (
        changed(story(days=42), range(30, 42), corrected=times(0.4)),
        [(UPGRADE, Kind.SAMPLED), (day_number(30), Kind.LOST)],
    ),
    "sampling that ends is no loss": (
        changed(story(days=36), range(28, 36), rate=lambda _: 100.0),
        [(UPGRADE, Kind.SAMPLED), (day_number(28), Kind.RATE_ROSE)],
    ),
    "a measurement that shrinks while the count goes on": (
        changed(changed(WHOLE, range(14), total=times(5.0)), range(14, 22), total=times(2.0)),
        [(UPGRADE, Kind.SUM_FELL)],
    ),
    **{
        f"a bank holiday and {bridge} days in all do not alarm": (
            changed(story(rate=100.0, days=35, holiday=False), range(26, 26 + bridge), corrected=times(0.3)),
            [],
        )
        for bridge in (1, 2, 3)
    },
    # Adaptive sampling keeps the traffic level: at weekends it leaves out less.
    "weekends do not alarm where the rate follows the load": (
        changed(LONG, range(42), rate=lambda day: 90.0 if day.day.weekday() >= 5 else 30.0),
        [],
    ),
    "days of which nothing is known are no zeros": (
        changed(WHOLE, {3, 15, 16}, rate=lambda _: None, corrected=lambda _: None),
        [],
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_days_are_judged(case):
    days, expected = VERDICTS[case]

    assert kinds(days) == expected


def test_the_article_is_sampled_from_may_20_on_and_nothing_is_lost():
    [finding] = analyse(story()).findings

    assert (finding.day, finding.kind) == (UPGRADE, Kind.SAMPLED)
    assert 0.25 < finding.rate.ratio < 0.35
    assert finding.detectable is not None
    assert "nothing lost" in finding.sentence()


def test_sampled_and_lost_at_once_is_told_as_both():
    [finding] = analyse(story(rate=30.0, kept=0.5)).findings

    assert (finding.day, finding.kind) == (UPGRADE, Kind.SAMPLED_AND_LOST)
    assert finding.count.low < 0.5 < finding.count.high


@pytest.mark.parametrize("rate_after", [-1, 0, 1])
def test_what_is_sampled_and_lost_within_a_day_is_told_of_the_earlier_one(rate_after):
    lost, whole = story(rate=100.0, kept=0.4), FIRST + timedelta(days=14)
    rates = [100.0 if day.day < whole + timedelta(days=rate_after) else 30.0 for day in lost]
    days = [Day(day.day, rate, day.corrected) for day, rate in zip(lost, rates, strict=True)]

    assert kinds(days) == [(whole + timedelta(days=min(rate_after, 0)), Kind.SAMPLED_AND_LOST)]


def test_of_a_loss_the_missing_events_are_estimated():
    days = story(rate=100.0, kept=0.6)
    whole = story(rate=100.0)
    analysis = analyse(days)
    [finding] = analysis.findings
    missing = sum(each.corrected for each in whole) - sum(day.corrected for day in days)

    assert lost_events(days, analysis.count, finding) == pytest.approx(missing, rel=0.15)


def test_a_loss_that_ends_is_missing_only_until_it_ended():
    days = story(rate=100.0, days=42, kept=0.5, holiday=False)
    days = changed(days, range(28, 42), corrected=times(2))
    analysis = analyse(days)
    lost, back = analysis.findings

    assert (lost.kind, back.kind) == (Kind.LOST, Kind.COUNT_ROSE)
    assert back.day == FIRST + timedelta(days=28)
    expected = sum(day.corrected for day in days[14:28])  # half of what there should have been
    assert lost_events(days, analysis.count, lost) == pytest.approx(expected, rel=0.1)


def test_of_a_stop_all_that_was_expected_is_missing():
    days = changed(WHOLE, range(16, 22), rate=lambda _: None, corrected=lambda _: 0.0)
    analysis = analyse(days)
    expected = sum(day.corrected for day in story(rate=100.0, holiday=False)[16:])

    assert lost_events(days, analysis.count, analysis.findings[0]) == pytest.approx(expected, rel=0.1)


def test_a_stop_of_small_values_is_a_fall_and_no_rise():
    [found] = fit_breaks([1e-3] * 15 + [0.0] * 10, seasonal=False).breaks

    assert (found.index, found.fell) == (15, True)


def test_too_short_a_history_leaves_the_loss_undecided():
    days = story()[11:]  # three days before the upgrade, eight from it on

    assert kinds(days, settings=BreakSettings(minimum_days=3)) == [(UPGRADE, Kind.UNDECIDED)]


def test_a_measurement_below_zero_is_not_judged():
    assert analyse(changed(WHOLE, range(22), total=lambda _: -1.0)).total is None


def test_what_sampling_alone_makes_uncertain_is_not_taken_for_a_loss():
    """At a tenth of a percent the corrected count jumps by itself, and its standard error says so."""
    days = story(rate=100.0, kept=0.75, holiday=False, noise=0.0)
    rough = changed(days, range(14, 22), error=times(0.3))

    assert kinds(days) == [(UPGRADE, Kind.LOST)]
    assert kinds(rough) == []


def test_empty_and_constant_and_zero_series_have_no_breaks():
    for values in ([], [None, None], [0.0] * 30, [5.0] * 30):
        assert fit_breaks(values, seasonal=True).breaks == ()


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_values_that_no_count_can_have_are_refused(value):
    with pytest.raises(ValueError, match="0 or more"):
        fit_breaks([1.0, value], seasonal=False)


@pytest.mark.parametrize(
    "wrong", [{"minimum_days": 1}, {"least_change": 0.0}, {"least_change": 1.0}, {"strictness": 0.0}]
)
def test_settings_that_cannot_be_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BreakSettings(**wrong)


def test_a_fall_can_only_be_seen_with_days_on_both_sides():
    assert detectable_fall(14, 3, 0.05) is None
    assert detectable_fall(14, 8, 0.02) == 0.2
    assert detectable_fall(14, 8, 0.2) > detectable_fall(28, 28, 0.2) > 0.2


@given(
    seed=st.integers(0, 10_000),
    days=st.integers(21, 60),
    factor=st.sampled_from([1e-2, 10.0, 1e6]),
    noise=st.sampled_from([0.02, 0.1]),
)
@settings(max_examples=25, deadline=None)
def test_the_unit_of_a_series_changes_nothing(seed, days, factor, noise):
    values = _noisy(seed, days, noise)
    one, other = (fit_breaks(list(each), seasonal=True) for each in (values, values * factor))

    assert [each.index for each in one.breaks] == [each.index for each in other.breaks]
    assert one.expected == pytest.approx([each / factor for each in other.expected])


@given(seed=st.integers(0, 10_000), at=st.integers(14, 30), fall=st.floats(0.5, 0.95))
@settings(max_examples=25, deadline=None)
def test_a_large_fall_is_found_at_its_day_wherever_it_is(seed, at, fall):
    values = _noisy(seed, 36, 0.04)
    values[at:] *= 1 - fall
    [found] = fit_breaks(list(values), seasonal=True).breaks

    assert found.fell
    assert abs(found.index - at) <= 1
    assert found.ratio == pytest.approx(1 - fall, rel=0.15)


def test_chance_raises_at_most_one_alarm_in_fifty_series_with_heavy_tails_and_bank_holidays():
    alarms = sum(
        bool(fit_breaks(list(_noisy(seed, 22 + seed % 40, 0.1, holidays=0.03)), seasonal=True).breaks)
        for seed in range(50)
    )

    assert alarms <= 1


def _noisy(seed, days, noise, holidays=0.0):
    """A weekly wave with noise of three degrees of freedom."""
    rng = np.random.default_rng(seed)
    week = np.resize(np.roll(WEEK, rng.integers(7)), days)
    off = np.where(rng.random(days) < holidays, rng.uniform(0.2, 0.6, days), 1.0)
    return 10_000 * week * off * np.exp(noise * rng.standard_t(3, days) / np.sqrt(3))
