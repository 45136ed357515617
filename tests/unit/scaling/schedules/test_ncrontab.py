"""Schedules are read as the timer trigger reads them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from scaling.schedules import ncrontab


def firings(text, start, count):
    schedule = ncrontab.parse(text)
    moments, moment = [], start
    for _ in range(count):
        moment = schedule.next_after(moment)
        moments.append(moment)
    return moments


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("0 */5 * * * *", "2026-03-01 10:02:30", "2026-03-01 10:05:00"),
        ("*/15 * * * * *", "2026-03-01 10:02:44", "2026-03-01 10:02:45"),
        (
            "30 5/20 * * * *",
            "2026-03-01 10:25:31",
            "2026-03-01 10:45:30",
        ),  # n/step runs to the end of the field
        ("0 0 9-17/4 * * *", "2026-03-01 13:00:00", "2026-03-01 17:00:00"),
        ("0 0 1,13 * * *", "2026-03-01 13:00:00", "2026-03-02 01:00:00"),
        ("0 30 9 * Jan Mon", "2026-01-05 09:30:00", "2026-01-12 09:30:00"),
        ("0 30 9 * january MONDAY", "2026-02-01 00:00:00", "2027-01-04 09:30:00"),
        ("0 0 0 * * 0", "2026-03-02 00:00:00", "2026-03-08 00:00:00"),  # Sunday is 0
        ("0 0 0 * * Mon-Fri", "2026-03-06 00:00:00", "2026-03-09 00:00:00"),
        ("0 0 0 13 * Fri", "2026-03-13 00:00:00", "2026-11-13 00:00:00"),  # both days must match
        ("0 0 0 29 2 *", "2026-03-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 0 31 * *", "2026-01-31 00:00:00", "2026-03-31 00:00:00"),
        ("59 59 23 31 12 *", "2026-12-31 23:59:59", "2027-12-31 23:59:59"),
        ("*/5 * * * *", "2026-03-01 10:02:30", "2026-03-01 10:05:00"),  # five fields: second 0
        ("0  0 0 1 1 *", "2026-03-01 10:02:30", "2027-01-01 00:00:00"),
    ],
)
def test_the_next_firing_is_the_first_matching_second(schedule, after, expected):
    assert at(expected) == ncrontab.parse(schedule).next_after(at(after))


def test_a_moment_with_a_fraction_still_reaches_the_next_second():
    moment = at("2026-03-01 10:00:00") + timedelta(microseconds=1)

    assert at("2026-03-01 10:00:01") == ncrontab.parse("* * * * * *").next_after(moment)


def test_fields_are_read_on_the_clock_of_the_moment_asked_about():
    east = timezone(timedelta(hours=9))

    firing = ncrontab.parse("0 0 6 * * *").next_after(datetime(2026, 3, 1, 5, tzinfo=east))

    assert datetime(2026, 3, 1, 6, tzinfo=east) == firing
    assert firing.tzinfo is east


def test_a_naive_moment_gives_a_naive_firing():
    assert ncrontab.parse("0 0 6 * * *").next_after(datetime(2026, 3, 1)) == datetime(
        2026, 3, 1, 6
    )  # the case


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:00:30", 30), ("01:30:00", 5400), ("1.00:00:00", 86_400), ("23:59:59", 86_399)]
)
def test_a_time_span_fires_each_interval_after_the_moment_given(text, seconds):
    start = at("2026-03-01 10:00:00")

    assert [start + timedelta(seconds=seconds), start + timedelta(seconds=2 * seconds)] == firings(
        text, start, 2
    )
    assert seconds == ncrontab.parse(text).smallest_interval()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("* * * * * *", 1),
        ("*/20 * * * * *", 20),
        ("*/25 * * * * *", 10),  # :50 to the next :00
        ("0 * * * * *", 60),
        ("0 */7 * * * *", 4 * 60),  # :56 to the next :00
        ("0 0 1,2,8 * * *", 3600),
        ("0 0 1,22 * * *", 3 * 3600),  # over midnight
        ("0 0 0 1,4 * *", 3 * 86_400),
        ("0 0 0 1 * *", 28 * 86_400),
        ("0 0 6 * * Mon", 7 * 86_400),
        ("0 0 0 29 2 *", (366 + 3 * 365) * 86_400),
        ("0 0 0,23 * * Mon,Wed", 23 * 3600),
        ("0 0 0,23 * * Mon,Tue", 3600),
        ("0 0 0 29 2 Mon", (28 * 365 + 7) * 86_400),
    ],
)
def test_the_smallest_interval_is_the_smallest_gap_between_two_firings(text, seconds):
    assert seconds == ncrontab.parse(text).smallest_interval()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("* * * *", r"has 4 fields; accepted are 6 \(second minute hour day month day-of-week\), 5"),
        ("", "has 0 fields"),
        ("60 * * * * *", "second '60': found '60', accepted is 0-59"),
        ("* * 24 * * *", "hour '24': found '24', accepted is 0-23"),
        ("* * * 0 * *", "day '0': found '0', accepted is 1-31"),
        ("* * * * Foo *", "month 'Foo': found 'Foo', accepted is 1-12 or JAN-DEC"),
        ("* * * * * 7", "day-of-week '7': found '7', accepted is 0-6 or SUN-SAT"),
        ("* * * * * M", "day-of-week 'M': found 'M'"),
        ("* * * * * Mon-", "day-of-week 'Mon-': found ''"),
        ("* -5 * * * *", "minute '-5': found ''"),
        ("* 1,,2 * * * *", "minute '': found ''"),
        ("* 1.5 * * * *", "minute '1.5'"),
        ("* ² * * * *", "minute '²'"),
        ("* */0 * * * *", "minute '\\*/0' has the step '0'; a step is a whole number from 1"),
        ("* */x * * * *", "minute '\\*/x' has the step 'x'"),
        ("* */ * * * *", "minute '\\*/' has the step ''"),
        ("* * * * * Fri-Mon", "day-of-week 'Fri-Mon' is a range from high to low; write it as two ranges"),
        ("0 0 0 30 2 *", "never fires: day 30 does not exist in month 2"),
        ("0 0 0 31 Apr,Jun *", "never fires: day 31 does not exist in month Apr,Jun"),
        ("24:00:00", "hours 24 is outside 0-23; write whole days as d.hh:mm:ss"),
        ("00:00:00", "longer than zero"),
        ("00:60:00", "a time span is written hh:mm:ss"),
        ("00:10", "a time span is written hh:mm:ss"),
    ],
)
def test_a_bad_schedule_names_the_field_what_was_found_and_what_is_accepted(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        ncrontab.parse(text)

    assert f"schedule {text!r}" in str(caught.value)
