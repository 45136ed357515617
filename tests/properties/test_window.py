"""Laws of windows: order of arrival does not matter, and nothing bad ever gets in."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scaling.flips.explained import decide_and_explain
from scaling.model import MetricFailure, MetricSample, Reason, TargetState
from scaling.storage.rows import read_target, target_row
from scaling.window import EMPTY, MAX_VALUE, WindowSpec, insert, observe, summarize
from tests.support.scaling.runner import at, policy

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


growth = st.integers(0, 10**9)
# The tick of a reading, how much was counted until then, and whether the source began anew before it.
counted = st.dictionaries(st.integers(0, 9), st.tuples(growth, st.booleans()), min_size=1)


def readings_of(found, counter=0):
    """Readings of a number that begins anew where the source did, each time under a name of its own."""
    readings, value = [], 0
    for tick in sorted(found):
        by, anew = found[tick]
        counter += anew
        value = by if anew else value + by
        readings.append(MetricSample("m", NOW - 60.0 * (9 - tick), float(value), counter))
    return readings


@given(st.data(), counted)
def test_increases_add_up_to_what_was_counted_whatever_the_order_and_repetition(data, found):
    readings = readings_of(found, counter=1)
    again = data.draw(st.lists(st.sampled_from(readings)))
    failures = data.draw(st.lists(st.builds(MetricFailure, st.just("m"), times, st.just("boom"))))
    window = fed(data.draw(st.permutations([*readings, *again, *failures])))

    assert (window.times, window.values) == (fed(readings).times, fed(readings).values)
    known = dict(zip(window.times, window.values, strict=True))
    for before, after in itertools.pairwise(readings):
        intervals = (after.at - before.at) / 60.0
        if before.counter == after.counter:
            assert known[after.at] * intervals == pytest.approx(after.value - before.value)
        else:
            assert after.at not in known


@given(st.permutations(readings_of(dict.fromkeys(range(10), (10, False)))), st.sets(st.integers(1, 7)))
def test_a_read_that_failed_neither_loses_nor_doubles_an_increase(readings, failed):
    window = fed([reading for reading in readings if (NOW - reading.at) / 60 not in failed])

    assert window.values == [10.0] * (9 - len(failed))
    assert summarize(window, SPEC, now=NOW).gap == bool(failed)


@given(counted)
def test_a_window_of_increases_is_stored_and_goes_on(found):
    readings = readings_of(found)
    stored = {"m": fed(readings[:-1]), "other": fed([MetricSample("other", NOW, 5.0)])}
    _, windows, corrupt = read_target(target_row("plan", TargetState(), stored))

    assert (windows, corrupt) == (stored, ())
    assert observe(windows["m"], readings[-1], SPEC, now=NOW) == fed(readings)


@given(counted.filter(lambda found: len(found) > 1))
def test_whoever_reads_a_window_of_increases_sees_a_metric_like_any_other(found):
    """The decision, and what would change it: nobody takes what the next report may bring for a reading of the counter."""
    window = fed(readings_of(found))
    plain = structs.replace(window, readings=None)
    rules, state = policy(), at(3, now=NOW)
    made = [
        decide_and_explain(rules, {"backlog": each}, state, now=NOW, decision_id="plan@20270115T080000.000Z")
        for each in (window, plain)
    ]

    assert made[0] == made[1]
