"""When a record is tried again."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.foundation.pacing.retry_delay import (
    JITTER,
    LEAST_DELAY,
    LONGEST_ASKED,
    LONGEST_DELAY,
    Backoff,
    RareLines,
    asked_pause,
    delay,
)


@pytest.mark.parametrize(
    ("retry_after", "expected"), [(None, 2.0), (0.0, 0.05), (0.25, 0.25), (30.0, 30.0), (-1.0, 0.05)]
)
def test_the_service_decides_and_else_it_is_two_seconds(retry_after, expected):
    assert delay(retry_after) == expected


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 2.0), (0.5, 2.25)])
def test_jitter_only_ever_adds(chance, expected):
    assert delay(None, chance=lambda: chance) == expected


@pytest.mark.parametrize(
    ("failures", "expected"), [(0, 2.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 10.0), (5_000, 10.0)]
)
def test_what_fails_again_and_again_waits_twice_as_long_each_time_up_to_a_bound(failures, expected):
    assert delay(None, failures) == expected
    assert delay(0.25, failures) == 0.25


@given(st.lists(st.booleans(), max_size=50), st.floats(0.0, 0.99))
def test_a_wait_is_never_shorter_than_two_seconds_nor_longer_than_its_bound_and_chance(outcomes, chance):
    backoff = Backoff(lambda: chance)
    for worked in outcomes:
        if worked:
            backoff.worked()
        else:
            assert 2.0 <= backoff.failed() <= LONGEST_DELAY * (1 + JITTER)


@pytest.mark.parametrize("asked", [301.0, 86_400.0, 1e300, inf])
def test_a_service_makes_one_try_wait_for_five_minutes_at_most(asked):
    assert delay(asked) == asked_pause(asked, 2.0) == LONGEST_ASKED


def test_what_is_no_number_makes_no_try_wait_for_it():
    assert (delay(nan), asked_pause(nan, 2.0), asked_pause(None, 2.0)) == (LEAST_DELAY, 2.0, 2.0)


def test_a_line_that_would_come_at_every_try_is_logged_ever_less_often_and_every_ten_minutes_at_least():
    lines = RareLines()

    logged = [at for at in range(4000) if lines.is_due(float(at))]

    assert logged == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030, 3630]
