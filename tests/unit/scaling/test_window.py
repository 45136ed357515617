"""Windows count samples at the time they were taken, and say when they may not be acted upon."""

import math

import pytest

from scaling.model import MetricFailure, MetricSample, Reason
from scaling.window import (
    EMPTY,
    MAX_SAMPLES,
    MAX_VALUE,
    Window,
    WindowSpec,
    fail,
    filling_text,
    insert,
    observe,
    summarize,
)

SPEC = WindowSpec(span=600.0, interval=60.0, min_samples=5)
NOW = 100_000.0


def sample(at, value=1.0):
    return MetricSample("backlog", at, value)


def failure(at, reason=Reason.COLLECT_FAILED):
    return MetricFailure("backlog", at, "boom", reason)


def filled(*minutes_ago, value=7.0):
    window = EMPTY
    for minutes in sorted(minutes_ago, reverse=True):
        window = insert(window, sample(NOW - 60 * minutes, value), SPEC)
    return window


def test_ten_samples_a_minute_apart_cover_ten_minutes():
    summary = summarize(filled(*range(10)), SPEC, now=NOW)

    assert (summary.count, summary.covered, summary.gap, summary.problem) == (10, 600.0, False, None)


def test_five_points_over_four_minutes_are_not_ten_minutes():
    summary = summarize(filled(*range(5)), SPEC, now=NOW)

    assert summary.count == 5 >= SPEC.min_samples
    assert summary.problem is Reason.INCOMPLETE_WINDOW


def test_a_span_covered_by_too_few_samples_is_incomplete():
    assert summarize(filled(0, 3, 6, 9), SPEC, now=NOW).problem is Reason.INCOMPLETE_WINDOW


def test_timer_jitter_of_less_than_half_an_interval_is_no_missing_span():
    window = filled(*(minutes * 0.96 for minutes in range(10)))

    assert summarize(window, SPEC, now=NOW).problem is None


def test_a_missing_sample_is_a_gap_but_no_problem():
    summary = summarize(filled(0, 1, 2, 4, 5, 6, 7, 8, 9), SPEC, now=NOW)

    assert (summary.gap, summary.problem) == (True, None)


def test_a_late_sample_closes_the_gap_it_left():
    window = insert(filled(0, 1, 2, 4, 5, 6, 7, 8, 9), sample(NOW - 180), SPEC)

    assert window.times == sorted(window.times)
    assert not summarize(window, SPEC, now=NOW).gap


def test_a_late_sample_goes_with_its_value_to_its_time():
    window = insert(filled(0, 2, value=7.0), sample(NOW - 60, 9.0), SPEC)

    assert (window.times, window.values) == ([NOW - 120, NOW - 60, NOW], [7.0, 9.0, 7.0])


def test_a_second_sample_of_the_same_time_changes_nothing():
    window = filled(0, 1, 2)

    assert insert(window, sample(NOW - 60, 999.0), SPEC) == window


def test_samples_older_than_the_span_are_dropped():
    window = insert(filled(*range(10)), sample(NOW + 60), SPEC)

    assert window.times[0] == NOW - 480
    assert len(window.times) == 10


def test_a_sample_from_before_the_window_leaves_it_as_it_was():
    window = filled(*range(10))

    assert insert(window, sample(NOW - 601), SPEC) == window


def test_the_newest_sample_too_old_is_stale():
    assert summarize(filled(*range(10)), SPEC, now=NOW + 180).problem is None
    assert summarize(filled(*range(10)), SPEC, now=NOW + 181).problem is Reason.STALE_METRIC


def test_the_stale_age_can_be_set():
    spec = WindowSpec(span=600.0, interval=60.0, max_age=30.0)

    assert summarize(filled(*range(10)), spec, now=NOW + 31).problem is Reason.STALE_METRIC


def test_an_empty_window_is_incomplete_and_its_statistics_beat_no_comparison():
    summary = summarize(EMPTY, SPEC, now=NOW)

    assert summary.problem is Reason.INCOMPLETE_WINDOW
    assert all(math.isnan(summary.statistic(s)) for s in ("average", "maximum", "minimum", "latest"))


def test_statistics_are_of_the_samples():
    window = Window([NOW - 120, NOW - 60, NOW], [1.0, 6.0, 2.0])
    summary = summarize(window, SPEC, now=NOW)

    assert [summary.statistic(s) for s in ("average", "maximum", "minimum", "latest")] == [3.0, 6.0, 1.0, 2.0]


def test_the_average_of_equal_values_is_that_value():
    """sum([0.1] * 3) / 3 is a little above 0.1, which must not be above a threshold of 0.1."""
    assert summarize(filled(0, 1, 2, value=0.1), SPEC, now=NOW).average == 0.1


def test_a_failed_read_is_the_problem_until_a_newer_sample_arrives():
    failed = fail(filled(*range(10)), failure(NOW + 60))
    assert summarize(failed, SPEC, now=NOW + 60).problem is Reason.COLLECT_FAILED

    late = insert(failed, sample(NOW + 60), SPEC)
    assert summarize(late, SPEC, now=NOW + 60).problem is Reason.COLLECT_FAILED

    recovered = insert(failed, sample(NOW + 120), SPEC)
    assert summarize(recovered, SPEC, now=NOW + 120).problem is None


def test_a_late_failure_does_not_hide_a_newer_sample_or_failure():
    window = filled(*range(10))
    assert fail(window, failure(NOW - 60)) is window

    newer = fail(window, failure(NOW + 60))
    assert fail(newer, failure(NOW + 30)) is newer


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (sample(NOW, math.nan), "not finite"),
        (sample(NOW, math.inf), "not finite"),
        (sample(math.nan), "not finite"),
        (sample(NOW, -1.0), "negative"),
        (sample(NOW, MAX_VALUE * 2), "above"),
        (sample(NOW + 3_600), "future"),
    ],
)
def test_a_bad_sample_is_a_failure_that_says_why_and_no_value(bad, words):
    before = filled(*range(1, 11))
    window = observe(before, bad, SPEC, now=NOW)

    assert window.values == before.values
    assert window.failure.reason is Reason.INVALID_METRIC
    assert words in window.failure.message
    assert summarize(window, SPEC, now=NOW).problem is Reason.INVALID_METRIC


def test_one_interval_of_clock_difference_is_tolerated():
    assert observe(EMPTY, sample(NOW + 60), SPEC, now=NOW).failure is None


@pytest.mark.parametrize("at", [NOW + 1e9, math.inf, math.nan])
def test_a_failure_of_the_future_does_not_outlast_the_next_good_sample(at):
    failed = observe(filled(*range(10)), failure(at), SPEC, now=NOW)
    assert summarize(failed, SPEC, now=NOW).problem is Reason.COLLECT_FAILED

    recovered = observe(failed, sample(NOW + 60), SPEC, now=NOW + 60)
    assert summarize(recovered, SPEC, now=NOW + 60).problem is None


def test_what_a_clock_that_ran_ahead_has_left_goes_with_the_next_true_sample():
    window = EMPTY
    for minutes in range(10):
        ahead = NOW + 7200.0 + 60 * minutes
        window = observe(window, sample(ahead), SPEC, now=ahead)
    window = observe(window, failure(NOW + 7800.0), SPEC, now=NOW + 7800.0)

    window = observe(window, sample(NOW + 15.0, 3.0), SPEC, now=NOW + 15.0)

    assert (window.times, window.values, window.failure) == ([NOW + 15.0], [3.0], None)


def test_what_is_ahead_by_no_more_than_clocks_may_differ_stays():
    window = observe(filled(0, 1), sample(NOW + 60), SPEC, now=NOW)

    assert observe(window, sample(NOW - 30), SPEC, now=NOW).times == [NOW - 60, NOW - 30, NOW, NOW + 60]


def test_an_oversized_window_keeps_the_newest_samples_and_is_never_acted_upon():
    spec = WindowSpec(span=1e6, interval=1.0)
    window = Window([float(i) for i in range(MAX_SAMPLES)], [1.0] * MAX_SAMPLES)

    full = insert(window, sample(float(MAX_SAMPLES)), spec)

    assert (len(full.times), full.times[0], full.truncated) == (MAX_SAMPLES, 1.0, True)
    assert summarize(full, spec, now=float(MAX_SAMPLES)).problem is Reason.INCOMPLETE_WINDOW


def test_a_window_shorter_than_five_minutes_is_judged_by_its_own_span():
    spec = WindowSpec(span=60.0, interval=15.0, min_samples=4)
    window = EMPTY
    for at in (15.0, 30.0, 45.0, 60.0):
        window = insert(window, sample(at), spec)

    assert summarize(window, spec, now=60.0).problem is None


def test_of_two_failures_of_one_time_the_later_told_counts_and_an_older_one_never():
    window = fail(filled(1), failure(NOW))
    disabled = failure(NOW, Reason.ENTITY_DISABLED)

    assert fail(window, disabled).failure == disabled
    assert fail(window, failure(NOW - 1, Reason.ENTITY_DISABLED)) == window
    assert fail(fail(window, failure(NOW)), failure(NOW)) == window


def counted(*readings):
    """A window of readings a minute apart: a number, or a number and the counter it is of; None where the read failed."""
    window = EMPTY
    for minutes, each in enumerate(readings, start=1 - len(readings)):
        value, counter = each if isinstance(each, tuple) else (each, 0)
        at = NOW + 60 * minutes
        item = failure(at) if value is None else MetricSample("done", at, value, counter)
        window = observe(window, item, SPEC, now=NOW)
    return window


@pytest.mark.parametrize(
    ("readings", "increases"),
    [
        ((100, 110, 130, 130), [10, 20, 0]),
        ((100,), []),  # the first reading
        ((100, 110, None, 130), [10, 10]),  # per interval, after one that failed
        ((100, None, None, None, 140), [10]),
        ((100, 120, 5, 15), [20, 5, 10]),  # the app started anew
        ((100, 120, None, 30, 40), [20, 15, 10]),
        ((3000, 3010, 2000, 2010), [10, 10]),  # a sum lost one of its parts
        ((3000, 3010, 2000, 2010, 3040, 3050), [10, 10, 10]),  # and got it back
        ((10, 20, 5, 15, 25, 35), [10, 5, 10, 10, 10]),  # began anew, and passed its old number
        ((3000, 2000), []),
        (
            ((7, 1), (9, 1), (1_000_000, 2), (1_000_004, 2)),
            [2, 4],
        ),  # another counter: a hub that was made anew
        (((7, 1), (9, 1), (5, 1), (6, 1)), [2, 1]),  # a checkpoint that was put back
    ],
)
def test_a_counter_gives_its_increase_per_interval(readings, increases):
    window = counted(*readings)

    assert window.values == increases
    assert window.failure is None


@pytest.mark.parametrize(("seconds", "increase"), [(58, 12), (62, 12), (90, 8), (40, 18)])
def test_readings_off_their_time_give_the_rate_of_an_interval(seconds, increase):
    readings = [MetricSample("done", NOW + at, value, 0) for at, value in ((0, 100.0), (seconds, 112.0))]
    window = insert(insert(EMPTY, readings[0], SPEC), readings[1], SPEC)

    assert window.values == pytest.approx([increase])


@pytest.mark.parametrize("late", [0.4, 29.0])  # a timer that fired twice, or late and then on time
def test_a_reading_soon_after_another_is_no_increase_but_part_of_the_next_one(late):
    window = counted(80, 90, 100)
    for seconds, value in ((late, 100.5), (60, 110)):
        assert window.values == [10, 10]
        window = insert(window, MetricSample("done", NOW + seconds, value, 0), SPEC)

    assert window.values == [10, 10, 10]


def test_a_window_of_before_the_metric_was_a_counter_begins_anew_and_so_does_one_of_after():
    numbers = filled(*range(10), value=1e6)
    window = insert(numbers, MetricSample("done", NOW + 60, 1e6 + 5, 0), SPEC)
    assert (window.times, window.values) == ([], [])
    assert summarize(window, SPEC, now=NOW + 60).problem is Reason.INCOMPLETE_WINDOW

    assert insert(counted(1, 2), sample(NOW + 60, 7.0), SPEC).readings is None


def test_a_counter_whose_clock_was_put_right_forgets_the_future():
    ahead = MetricSample("done", NOW + 50_000, 500.0, 0)
    window = insert(counted(100, 110), ahead, SPEC)

    later = observe(window, MetricSample("done", NOW + 60, 115.0, 0), SPEC, now=NOW + 60)

    assert NOW + 50_000 not in later.readings.times


def test_ten_minutes_of_a_counter_are_a_whole_window():
    assert summarize(counted(*range(11)), SPEC, now=NOW).problem is None
    assert summarize(counted(*range(10)), SPEC, now=NOW).problem is Reason.INCOMPLETE_WINDOW
    assert fail(counted(5), failure(NOW - 1)).failure is None


LATE = WindowSpec(span=600.0, interval=60.0, min_samples=5, delay=180.0)


def test_a_source_that_is_known_to_be_late_is_not_stale_for_that():
    late = filled(*range(4, 14))

    assert summarize(late, LATE, now=NOW).problem is None
    assert summarize(late, LATE, now=NOW + 121).problem is Reason.STALE_METRIC
    assert summarize(late, SPEC, now=NOW).problem is Reason.STALE_METRIC


@pytest.mark.parametrize("at", [NOW - 180, NOW - 240])  # the next grain, or the same again
def test_a_read_ends_a_failure_though_its_sample_is_older(at):
    failed = fail(filled(*range(4, 14)), failure(NOW - 60))
    assert summarize(failed, LATE, now=NOW).problem is Reason.COLLECT_FAILED

    read = observe(failed, sample(at), LATE, now=NOW, read_at=NOW)

    assert summarize(read, LATE, now=NOW).problem is None


def test_a_sample_ends_an_older_failure_also_where_the_clock_of_the_read_is_behind():
    failed = fail(filled(*range(1, 11)), failure(NOW - 30))

    assert insert(failed, sample(NOW), SPEC, read_at=NOW - 90).failure is None


def test_failures_that_are_allowed_are_counted_from_the_read_of_a_late_sample():
    spec = WindowSpec(span=600.0, interval=60.0, delay=180.0, failures_allowed=2)
    window = filled(*range(4, 14))  # read when the newest was three minutes old, a minute ago

    for minutes, lacking in ((0, True), (1, True), (2, False)):
        now = NOW + 60 * minutes
        summary = summarize(fail(window, failure(now)), spec, now=now)
        assert (summary.lacking is Reason.COLLECT_FAILED) is lacking


def test_late_samples_are_due_at_the_times_of_the_schedule_by_which_they_are_read():
    spec = WindowSpec(span=600.0, interval=60.0, delay=180.0, schedule="0 * 8-17 * * *")
    morning = 1_700_035_200.0  # 2023-11-15 08:00 UTC
    evening = [morning - 50_460 - 60 * minute - 180 for minute in range(9, -1, -1)]  # the last read at 17:59
    window = Window([*evening, morning - 180, morning - 120], [1.0] * 12)

    assert summarize(window, spec, now=morning + 60).missing == 0


@pytest.mark.parametrize("early", [20.0, -20.0])
def test_the_newest_sample_of_a_schedule_may_be_off_its_time_as_timers_are(early):
    spec = WindowSpec(span=600.0, interval=60.0, schedule="0 * * * * *")
    minute = 1_700_035_200.0
    times = [minute - 60 * back for back in range(9, 0, -1)] + [minute - early]

    summary = summarize(Window(times, [1.0] * 10), spec, now=minute + 30)

    assert (summary.missing, summary.problem) == (0, None)


@pytest.mark.parametrize(
    ("spec", "count", "told"),
    [
        (SPEC, 0, "0 of 10 min"),
        (SPEC, 3, "3 of 10 min"),
        (SPEC, 10, None),  # whole
        (WindowSpec(span=90.0, interval=15.0), 2, "30 s of 90 s"),
        (WindowSpec(span=7200.0, interval=60.0), 30, "30 min of 2 h"),
        (WindowSpec(span=150.0, interval=15.0), 5, "75 s of 150 s"),
        (WindowSpec(span=60.0, interval=60.0, min_samples=3), 1, "1 of 3 samples"),
    ],
)
def test_a_window_that_only_has_to_fill_says_how_far_it_is(spec, count, told):
    times = [NOW - spec.interval * back for back in range(count)][::-1]

    assert filling_text(summarize(Window(times, [1.0] * count), spec, now=NOW), spec) == told


def test_a_window_with_something_else_wrong_does_not_say_that_it_fills():
    failed = Window([NOW], [1.0], failure=MetricFailure("m", NOW, "timed out"))
    stale = Window([NOW - 9_000], [1.0])

    assert [filling_text(summarize(window, SPEC, now=NOW), SPEC) for window in (failed, stale)] == [
        None,
        None,
    ]
