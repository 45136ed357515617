"""Exactly N records in a second: never more, and when saturated never less."""

import math
import random

import pytest

from tests.oracles.semaphore_limiter import semaphore_starts
from tidemark.foundation.pacing.rate_limiter import RateLimiter

RATES = [1, 9, 10, 11, 101, 1001, 30_000]


def saturated(rate, seconds, late=lambda: 0.0, start=0.0):
    """(time, how many) of a consumer that has always more and is called when the limiter says, or later."""
    limiter = RateLimiter(rate, start)
    now, starts = start, []
    while (now := limiter.next_at(now)) < start + seconds:
        now += late()
        if taken := limiter.take(10**9, now):
            starts.append((now, taken))
    return starts


def most_in_a_second(starts):
    most = within = first = 0
    for time, count in starts:
        within += count
        while starts[first][0] + 1.0 <= time:
            within -= starts[first][1]
            first += 1
        most = max(most, within)
    return most


@pytest.mark.parametrize("start", [0.0, 12_345.678])
@pytest.mark.parametrize("rate", RATES)
def test_a_saturated_consumer_starts_exactly_n_in_every_second(rate, start):
    starts = saturated(rate, 60, start=start)

    assert sum(count for _, count in starts) == 60 * rate
    assert most_in_a_second(starts) == rate
    for offset in (0.0, 0.05, 0.51, 0.999):
        for whole in (1, 7, 30):
            begin, end = start + 3 + offset + 1e-6, start + 3 + offset + whole + 1e-6
            assert sum(count for time, count in starts if begin <= time < end) == whole * rate


@pytest.mark.parametrize("rate", [0.5, 2.5, 10.5, 1000 / 3])
def test_a_fraction_is_exact_over_its_period_and_at_most_the_next_whole_number_in_a_second(rate):
    count = math.ceil(rate)
    period = count / rate
    starts = saturated(rate, 60 * period)

    assert most_in_a_second(starts) == count
    for k in range(50):
        begin, end = (0.33 + k) * period, (1.33 + k) * period
        assert sum(n for time, n in starts if begin <= time < end) == count


@pytest.mark.parametrize("rate", RATES)
def test_after_idleness_no_more_starts_at_once_than_a_slot_holds(rate):
    limiter = RateLimiter(rate, 0.0)

    assert limiter.take(10**9, 3600.0) <= (math.ceil(rate / 10) if rate >= 10 else 1)
    assert limiter.take(10**9, 3600.0) == 0


def test_a_semaphore_of_slots_starts_up_to_1_9_times_the_rate_and_drifts_where_this_one_is_exact():
    assert most_in_a_second(semaphore_starts(1000, 5)) == 1900
    assert most_in_a_second(saturated(1000, 5)) == 1000
    assert sum(count for time, count in semaphore_starts(11, 11) if time >= 1) / 10 == 20
    assert sum(count for time, count in saturated(11, 11) if time >= 1) / 10 == 11


@pytest.mark.parametrize("seed", range(3))
def test_calls_that_come_1_to_5_ms_late_cost_less_than_a_hundredth(seed):
    rng = random.Random(seed)
    starts = saturated(1000, 600, late=lambda: rng.uniform(0.001, 0.005))

    assert most_in_a_second(starts) <= 1000
    assert sum(count for _, count in starts) >= 600 * 1000 * 0.99


def test_what_is_not_wanted_at_once_may_start_later_in_the_slot():
    limiter = RateLimiter(100, 0.0)

    assert [limiter.take(3, 0.0), limiter.next_at(0.05), limiter.take(9, 0.05)] == [3, 0.05, 7]
    assert limiter.next_at(0.05) == pytest.approx(0.1)


def test_records_started_before_a_lower_rate_count_against_it():
    limiter = RateLimiter(1000, 0.0)
    now = 0.0
    for _ in range(10):
        limiter.take(100, now)
        now = limiter.next_at(now)
    limiter.set_rate(100, 0.95)

    assert limiter.rate == 100
    assert limiter.take(1, 0.99) == 0
    assert limiter.next_at(0.99) == pytest.approx(1.9)  # 900 of the 1000 must be a second ago


def test_after_a_lower_rate_the_next_start_waits_for_its_slot_also_where_the_window_has_room_before():
    limiter = RateLimiter(10, 0.0)
    assert [limiter.take(1, 0.0), limiter.take(1, 0.9)] == [1, 1]
    limiter.set_rate(2, 0.95)

    assert limiter.next_at(0.95) == pytest.approx(1.4)  # the first start leaves the window at 1.0
    assert [limiter.take(1, 1.01), limiter.take(1, 1.4)] == [0, 1]


def test_a_higher_rate_holds_at_once_without_a_burst():
    limiter = RateLimiter(10, 0.0)
    limiter.take(1, 0.0)
    limiter.set_rate(1000, 0.02)

    assert limiter.take(10**9, 0.02) == 99


def test_changing_the_rate_at_one_instant_gives_nothing_extra():
    limiter = RateLimiter(1000, 0.0)
    taken = 0
    for rate in (1001, 1000, 1001, 1000):
        taken += limiter.take(10**9, 0.0)
        limiter.set_rate(rate, 0.0)

    assert taken == 100


def test_without_a_rate_everything_may_start():
    limiter = RateLimiter(None, 5.0)

    assert limiter.take(123_456, 5.0) == 123_456
    assert limiter.next_at(6.0) == 6.0
    limiter.set_rate(100, 7.0)
    assert limiter.take(10**9, 7.0) == 10


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none_names_what_is_accepted(rate):
    with pytest.raises(ValueError, match="accepted are positive numbers"):
        RateLimiter(rate, 0.0)


def test_a_clock_that_steps_back_gives_no_extra_starts():
    limiter = RateLimiter(10, 100.0)
    limiter.take(1, 100.0)

    assert limiter.take(1, 50.0) == 0
    assert limiter.next_at(50.0) == pytest.approx(100.1)


def test_changing_the_rate_often_costs_no_starts():
    limiter, taken = RateLimiter(1000, 0.0), 0
    for step in range(200):  # twice in each slot
        limiter.set_rate(1000 + step % 2, 0.05 * step)
        taken += limiter.take(10**9, 0.05 * step)

    assert 9_900 <= taken <= 10_010


def test_two_slots_that_went_by_give_one_slot_s_share_also_at_the_very_beginning_of_the_next():
    limiter = RateLimiter(100, 0.0)

    assert [limiter.take(10**9, 0.2), limiter.take(10**9, 0.2)] == [10, 0]
