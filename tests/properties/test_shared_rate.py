"""Takers that share a rate never start more than it together, use it up while they have work, and share it by what waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.foundation.pacing.shared_rate import SharedRate


def drive(rate, waiting, seconds, *, per_turn=100, step=0.01, capacity=None):
    """Starts of each taker as (time, count); each asks whenever its limiter says, for as much as a request takes."""
    shared = SharedRate(rate, 0.0)
    shares = [shared.share(0.0) for _ in waiting]
    starts = [[] for _ in waiting]
    for turn in range(int(seconds / step)):
        now = turn * step
        for index, share in enumerate(shares):
            share.waiting = waiting[index]
            if not waiting[index] or share.next_at(now) > now:
                continue
            wanted = per_turn if capacity is None else capacity[index]
            while wanted and (taken := share.take(min(wanted, per_turn), now)):
                starts[index].append((now, taken))
                wanted -= 0 if capacity is None else taken
    return starts


def most_in_a_second(starts):
    everything = sorted(start for taker in starts for start in taker)
    return max(
        (
            sum(count for at, count in everything if begin - 1e-9 <= at < begin + 1.0 - 1e-9)
            for begin, _ in everything
        ),
        default=0,
    )


@given(st.floats(0.5, 3000), st.lists(st.sampled_from([0, 1, 10, 5000]), min_size=1, max_size=4))
def test_all_together_never_start_more_than_the_rate_in_any_second(rate, waiting):
    assert most_in_a_second(drive(rate, waiting, 2.5)) <= -(-rate // 1)


@pytest.mark.parametrize(
    ("rate", "waiting", "expected"),
    [
        (1000, [500, 500], [5000, 5000]),
        (1000, [900, 100], [9000, 1000]),
        (1000, [10_000, 1, 0], [9901, 99, 0]),
        (7, [1, 1, 1], [23, 23, 23]),
        (0.5, [1, 1], [3, 3]),
    ],
)
def test_the_rate_is_shared_by_what_waits(rate, waiting, expected):
    counts = [sum(count for _, count in taker) for taker in drive(rate, waiting, 10)]

    assert sum(counts) == pytest.approx(rate * 10, rel=0.02, abs=1)
    assert counts == pytest.approx(expected, rel=0.05, abs=2)


def test_what_a_slow_taker_does_not_use_goes_to_the_others():
    counts = [
        sum(count for _, count in taker)
        for taker in drive(1000, [100_000, 100], 10, step=0.02, capacity=[1, 100])
    ]

    assert counts[0] == pytest.approx(500, rel=0.05)
    assert sum(counts) > 9_500


def test_a_taker_keeps_its_own_rate_too():
    shared = SharedRate(100, 0.0)
    share = shared.share(0.0)
    share.set_rate(10, 0.0)

    assert sum(share.take(100, turn / 10) for turn in range(10)) == 10
    assert share.rate == 10
