"""Whatever is called whenever: the bound holds in every sliding second, and `next_at` tells the truth."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tidemark.foundation.pacing.rate_limiter import RateLimiter, divided

rates = st.sampled_from([0.3, 0.5, 1, 2.5, 9, 10, 10.5, 11, 101, 1001, 30_000])
gaps = st.one_of(
    st.sampled_from([0.0, 0.001, 0.05, 0.1, 1.0]), st.floats(0, 0.3), st.floats(0, 5), st.just(None)
)
calls = st.lists(st.tuples(gaps, st.integers(0, 40_000), st.none() | rates), max_size=60)


@given(rates, calls, st.floats(0, 1e6))
def test_no_sliding_second_holds_more_than_the_highest_rate_that_held_in_it(rate, steps, begin):
    limiter, now = RateLimiter(rate, begin), begin
    starts, in_force = [], [(begin, rate)]
    for gap, wanted, change in steps:
        now = limiter.next_at(now) if gap is None else now + gap
        if change is not None:
            limiter.set_rate(change, now)
            in_force.append((now, change))
        starts.append((now, limiter.take(wanted, now)))

    for first, (time, _) in enumerate(starts):
        window = [(t, n) for t, n in starts[first:] if t < time + 1.0]
        until = window[-1][0]
        before = [r for t, r in in_force if t <= time][-1:]
        held = before + [r for t, r in in_force if time < t <= until]
        # a rate replaced at the very instant may have given the starts before it was replaced
        held += [r for (t, _), (_, r) in zip(in_force[1:], in_force, strict=False) if t == time]
        assert sum(n for _, n in window) <= max(math.ceil(r) for r in held)


@given(rates, calls)
def test_at_the_time_it_names_one_more_may_start_and_before_it_none(rate, steps):
    limiter, now = RateLimiter(rate, 0.0), 0.0
    for gap, wanted, change in steps:
        named = limiter.next_at(now)
        later = named if gap is None else now + gap
        if later < named:
            assert limiter.take(1, later) == 0
        elif wanted:
            assert limiter.take(wanted, later) >= (1 if later == named else 0)
        now = later
        if change is not None:
            limiter.set_rate(change, now)


@given(rates, st.lists(st.floats(0, 3), max_size=30))
def test_nothing_starts_at_once_beyond_a_slots_share(rate, times):
    limiter, now = RateLimiter(rate, 0.0), 0.0
    for gap in times:
        now += gap
        assert limiter.take(10**9, now) <= (math.ceil(rate / 10) if rate >= 10 else 1)


@given(st.floats(0.01, 100_000) | st.integers(1, 100_000).map(float), st.integers(1, 64))
def test_the_parts_of_a_rate_add_up_to_it_and_differ_by_one_at_most(rate, count):
    parts = [divided(rate, index, count) for index in range(count)]

    assert math.isclose(sum(parts), rate, rel_tol=1e-12)
    assert min(parts) > 0
    assert max(parts) - min(parts) <= 2  # one record, and the first one's fraction


@given(st.floats(1, 5_000) | st.integers(1, 5_000).map(float), st.integers(1, 8), st.data())
def test_limiters_that_share_a_rate_of_at_least_one_each_start_no_more_in_any_second_than_one_would(
    rate, count, data
):
    rate = max(rate, float(count))
    begins = data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    starts = []
    for index, begin in enumerate(begins):
        limiter, now = RateLimiter(divided(rate, index, count), begin), begin
        while (now := limiter.next_at(now)) < begin + 3:
            starts.append((now, limiter.take(10**9, now)))
    starts.sort()

    for first, (time, _) in enumerate(starts):
        assert sum(n for t, n in starts[first:] if t < time + 1.0 - 1e-9) <= math.ceil(rate)
