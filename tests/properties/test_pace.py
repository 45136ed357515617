"""Laws of pace: no limit reverses a change, goes beyond what was wanted, or frees itself too early."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from scaling.config.policy import Pace, RateLimit
from scaling.decision.pacing import apply_pace, apply_stabilization, rate_bound, rate_free_at
from scaling.model import EffectRecord

NOW = 100_000.0
counts = st.integers(0, 60)
rates = st.builds(
    RateLimit,
    kind=st.sampled_from(["units", "percent"]),
    amount=st.integers(1, 200),
    period=st.sampled_from([15.0, 60.0, 300.0]),
)
paces = st.builds(
    Pace,
    cooldown=st.just(0.0),
    stabilization=st.sampled_from([0.0, 60.0, 300.0]),
    step=st.none() | st.integers(1, 10),
    rates=st.lists(rates, max_size=3).map(tuple),
    select=st.sampled_from(["max", "min", "disabled"]),
)
histories = st.lists(st.tuples(st.integers(0, 700).map(lambda ago: NOW - ago), counts), max_size=8).map(
    lambda found: tuple(sorted(found))
)
changes = st.lists(
    st.builds(EffectRecord, st.integers(0, 700).map(lambda ago: NOW - ago), counts, counts), max_size=8
).map(lambda found: tuple(sorted(found, key=lambda effect: effect.at)))


def between(value, one, other):
    return min(one, other) <= value <= max(one, other)


@given(counts, counts, histories, paces, paces)
def test_stabilization_lands_between_the_count_and_what_is_wanted(wanted, current, history, out, inward):
    assert between(apply_stabilization(wanted, current, history, out, inward, NOW), current, wanted)


@given(counts, counts, changes, paces)
def test_limits_land_between_the_count_and_what_is_wanted_and_tell_every_cut(wanted, current, effects, pace):
    if wanted == current:
        return
    desired, limits = apply_pace(wanted, current, effects, pace, NOW)

    assert type(desired) is int
    assert between(desired, current, wanted)
    assert bool(limits) == (desired != wanted)
    if limits:
        assert limits[0].wanted == wanted
        assert limits[-1].allowed == desired
        assert all(a.allowed == b.wanted for a, b in itertools.pairwise(limits))


@given(counts, changes, paces, st.booleans())
def test_a_rate_is_free_when_it_says_and_not_before(current, effects, pace, out):
    free = rate_free_at(current, effects, pace, NOW, out=out)

    def moves(at):
        bound = rate_bound(current, effects, pace, at, out=out)
        return bound > current if out else bound < current

    if free is not None:
        assert free > NOW
        assert moves(free)


@given(counts, counts, changes, paces)
def test_selecting_the_least_change_never_allows_more_than_the_most(wanted, current, effects, pace):
    def allowed(select):
        chosen = Pace(step=pace.step, rates=pace.rates, select=select)
        return abs(apply_pace(wanted, current, effects, chosen, NOW)[0] - current) if wanted != current else 0

    assert allowed("disabled") == 0
    assert allowed("min") <= allowed("max")
