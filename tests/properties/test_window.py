"""Laws of windows: order of arrival does not matter, and nothing bad ever gets in."""

import math

from hypothesis import given
from hypothesis import strategies as st

from scaling.model import MetricFailure, MetricSample, Reason
from scaling.window import EMPTY, MAX_VALUE, WindowSpec, insert, observe, summarize

SPEC = WindowSpec(span=600.0, interval=60.0, min_samples=5)
NOW = 100_000.0

times = st.integers(0, 40).map(lambda i: NOW - 30.0 * i)
values = st.floats(0, MAX_VALUE, allow_nan=False)
# One value per time: a second sample of a time is dropped, so which came first would matter.
good = st.dictionaries(times, values, max_size=40).map(
    lambda found: [MetricSample("m", at, value) for at, value in found.items()]
)
any_float = st.floats(allow_nan=True, allow_infinity=True)
anything = st.one_of(
    st.builds(MetricSample, st.just("m"), any_float, any_float),
    st.builds(MetricSample, st.just("m"), times, any_float),
    st.builds(MetricFailure, st.just("m"), any_float, st.just("boom"), st.just(Reason.COLLECT_FAILED)),
)


def fed(samples):
    window = EMPTY
    for sample in samples:
        window = observe(window, sample, SPEC, now=NOW)
    return window


@given(st.data(), good)
def test_the_order_of_arrival_does_not_matter(data, samples):
    shuffled = data.draw(st.permutations(samples))

    assert fed(shuffled) == fed(samples)


@given(good)
def test_a_second_delivery_of_everything_changes_nothing(samples):
    assert fed([*samples, *samples]) == fed(samples)


@given(st.lists(anything, max_size=30))
def test_whatever_arrives_the_window_stays_ordered_finite_and_within_its_span(items):
    window = fed(items)

    assert window.times == sorted(set(window.times))
    assert len(window.times) == len(window.values)
    assert all(math.isfinite(v) and 0 <= v <= MAX_VALUE for v in window.values)
    assert all(at <= NOW + SPEC.interval for at in window.times)
    if window.times:
        assert window.times[-1] - window.times[0] < SPEC.span
    if window.failure is not None:
        assert window.failure.at <= NOW


@given(st.lists(anything, max_size=30))
def test_a_window_without_problem_is_whole(items):
    summary = summarize(fed(items), SPEC, now=NOW)

    if summary.problem is None:
        assert summary.count >= SPEC.min_samples
        assert summary.covered >= SPEC.span - SPEC.interval / 2
        assert summary.age <= SPEC.stale_after
        if not summary.gap:
            assert summary.count >= 7  # ten minutes in steps of at most ninety seconds


@given(good.filter(bool))
def test_statistics_lie_between_the_least_and_the_most(samples):
    summary = summarize(fed(samples), SPEC, now=NOW)

    assert summary.minimum <= summary.average <= summary.maximum
    assert summary.minimum <= summary.latest <= summary.maximum


@given(st.lists(anything, max_size=20))
def test_one_newer_good_sample_ends_every_failure(items):
    window = insert(fed(items), MetricSample("m", NOW + 61, 1.0), SPEC)

    assert window.failure is None
