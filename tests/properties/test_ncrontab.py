"""Laws of schedules, against a field-by-field check written independently of the parser's search."""

from datetime import UTC, datetime, timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from scaling.schedules import ncrontab

BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))

moments = st.datetimes(
    datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)
)  # made aware by timezones


@st.composite
def items(draw, low, high):
    """One item of a field: its text and the set of values it stands for."""
    step = draw(st.integers(1, 20))
    first, last = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    return draw(
        st.sampled_from(
            [
                ("*", set(range(low, high + 1))),
                (f"*/{step}", set(range(low, high + 1, step))),
                (f"{first}", {first}),
                (f"{first}/{step}", set(range(first, high + 1, step))),
                (f"{first}-{last}", set(range(first, last + 1))),
                (f"{first}-{last}/{step}", set(range(first, last + 1, step))),
            ]
        )
    )


@st.composite
def schedules(draw):
    """A schedule: its text and the six sets of values; only such as some date can match each year."""
    fields = [draw(st.lists(items(low, high), min_size=1, max_size=3)) for low, high in BOUNDS]
    values = [set().union(*(members for _, members in field)) for field in fields]
    assume(min(values[3]) <= 28)  # every month has it
    return " ".join(",".join(text for text, _ in field) for field in fields), values


def matches(moment, values):
    found = (moment.second, moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
    return all(part in allowed for part, allowed in zip(found, values, strict=True))


@given(schedules(), moments)
def test_a_firing_is_later_matches_all_fields_and_is_a_whole_second(schedule, moment):
    text, values = schedule

    firing = ncrontab.parse(text).next_after(moment)

    assert firing > moment
    assert firing.microsecond == 0
    assert matches(firing, values)


@given(schedules(), moments)
def test_no_matching_second_is_skipped(schedule, moment):
    """Checked over the two minutes before the firing and the two after the moment."""
    text, values = schedule
    firing = ncrontab.parse(text).next_after(moment)
    start = moment.replace(microsecond=0) + timedelta(seconds=1)

    for offset in range(120):
        for candidate in (start + timedelta(seconds=offset), firing - timedelta(seconds=1 + offset)):
            assert not (moment < candidate < firing and matches(candidate, values))


@given(schedules(), moments)
def test_asking_from_any_moment_before_the_firing_gives_the_same_firing(schedule, moment):
    text, _ = schedule
    parsed = ncrontab.parse(text)
    firing = parsed.next_after(moment)

    assert firing == parsed.next_after(moment + (firing - moment) / 2)
    assert firing == parsed.next_after(firing - timedelta(microseconds=1))


@given(schedules(), moments)
def test_no_gap_between_firings_is_below_the_smallest_interval(schedule, moment):
    text, _ = schedule
    parsed = ncrontab.parse(text)
    smallest = parsed.smallest_interval()

    for _ in range(5):
        following = parsed.next_after(moment)
        later = parsed.next_after(following)
        assert (later - following).total_seconds() >= smallest
        moment = later
