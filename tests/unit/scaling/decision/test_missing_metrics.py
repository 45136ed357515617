"""Metrics that fail: how long they are waited for, what rules see in their place, and that nothing is scaled in on it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.config.policy import Plateau, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.explain import line
from scaling.decision.transitions import absorb
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    EffectRecord,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Reason,
)
from scaling.window import EMPTY, WindowSpec, or_default, summarize
from tests.runner_support import MINUTE, NOW, THRESHOLD, at, full, metric, policy

FAILED = Reason.COLLECT_FAILED


def failing(made, window, *, failures, reason=FAILED, current=3):
    """What is decided after so many reads in a row that failed, with the windows as they are then."""
    windows, state, now = {"backlog": window}, at(current), NOW
    for _ in range(failures):
        now += MINUTE
        failure = MetricFailure("backlog", now, "no answer", reason)
        report = MetricsReport("plan", now, (), (failure,), Capacity(current, now))
        windows, state = absorb(made, windows, state, report, now=now, controls=NO_CONTROLS)
    return decide(made, windows, state, now=now + 1, controls=NO_CONTROLS, decision_id="d")


def tolerant(**changes):
    return policy(metrics={"backlog": metric(**changes)})


@pytest.mark.parametrize(("failures", "reason"), [(1, Reason.SCALE_OUT), (2, Reason.SCALE_OUT), (3, FAILED)])
def test_the_last_value_stands_while_no_more_reads_fail_than_allowed(failures, reason):
    found = failing(tolerant(failures_allowed=2), full(900.0), failures=failures)

    assert found.reason is reason


def test_without_the_option_the_first_failure_counts():
    assert failing(tolerant(), full(900.0), failures=1).reason is FAILED


def test_nothing_is_scaled_in_while_the_newest_read_failed_and_the_line_says_what_is_missing():
    found = failing(
        tolerant(failures_allowed=2, missing_allowed=2, missing_in_a_row=2), full(10.0), failures=1
    )

    assert (found.reason, found.desired) == (Reason.INCOMPLETE_WINDOW, 3)
    assert "once backlog can be read again" in line(found)


@pytest.mark.parametrize("reason", [Reason.ENTITY_DISABLED, Reason.INVALID_METRIC])
def test_what_the_service_did_tell_is_no_failure_to_wait_for(reason):
    found = failing(tolerant(failures_allowed=2), full(900.0), failures=1, reason=reason)

    assert found.reason is reason


def test_so_many_failures_are_not_stale_before_they_are_too_many():
    found = failing(tolerant(failures_allowed=10), full(900.0), failures=10)

    assert found.reason is Reason.SCALE_OUT


@pytest.mark.parametrize(("minutes", "reason"), [(3, Reason.SCALE_IN), (4, Reason.STALE_METRIC)])
def test_failures_that_are_allowed_make_no_old_value_a_new_one(minutes, reason):
    """What is read may be as old as whoever wrote it, such as the state of another target; no read fails then."""
    made = tolerant(failures_allowed=10)
    now = NOW + minutes * MINUTE

    found = decide(
        made, {"backlog": full(10.0)}, at(3, now=now), now=now, controls=NO_CONTROLS, decision_id="d"
    )

    assert found.reason is reason


def test_in_place_of_a_missing_metric_rules_see_its_default():
    found = failing(tolerant(default=700.0), full(10.0), failures=1)

    assert (found.reason, found.desired) == (Reason.SCALE_OUT, 4)
    assert "average backlog 700 > 500" in line(found)


def test_a_default_never_scales_in():
    found = failing(tolerant(default=0.0), full(10.0), failures=1)

    assert (found.reason, found.desired) == (Reason.INCOMPLETE_WINDOW, 3)


def test_a_disabled_entity_has_no_default():
    found = failing(tolerant(default=700.0), full(10.0), failures=1, reason=Reason.ENTITY_DISABLED)

    assert found.reason is Reason.ENTITY_DISABLED


def test_a_window_that_fills_is_not_missing():
    spec = WindowSpec(span=300.0, interval=60.0, min_samples=5, default=700.0)

    assert or_default(summarize(full(1.0, count=2), spec, now=NOW), spec).problem is Reason.INCOMPLETE_WINDOW
    assert or_default(summarize(EMPTY, spec, now=NOW), spec).latest == 700.0


def test_a_default_says_nothing_of_what_scaling_out_did():
    effects = tuple(EffectRecord(NOW - 60.0 * n, 3 - n, 4 - n, 700.0) for n in (3, 2, 1))
    made = policy(metrics={"backlog": metric(default=700.0)}, plateau=Plateau(metric="backlog"))
    failure = MetricFailure("backlog", NOW, "no answer")
    windows = {"backlog": msgspec.structs.replace(full(700.0), failure=failure)}

    found = decide(made, windows, at(3, effects=effects), now=NOW, controls=NO_CONTROLS, decision_id="d")

    assert found.reason is Reason.SCALE_OUT


EITHER = RuleSpec(
    type="composite",
    name="either",
    options={
        "scale_out_when": "backlog > 500 or cpu > 80",
        "scale_in_when": "backlog < 100 and default(cpu, 0) < 50",
    },
)
numbers = st.one_of(st.none(), st.floats(0, 1000))


@given(
    numbers,
    numbers,
    st.sampled_from([None, 0.0, 40.0, 900.0]),
    st.integers(0, 3),
    st.sampled_from([EITHER, THRESHOLD]),
)
def test_whatever_is_missing_nothing_is_scaled_in(backlog, cpu, default, allowed, rule):
    metrics = {
        "backlog": metric(failures_allowed=allowed),
        "cpu": metric(default=default, failures_allowed=allowed),
    }
    made = policy(metrics=metrics, rules=(rule,))
    told = {"backlog": backlog, "cpu": cpu}
    samples = tuple(MetricSample(name, NOW + 60, value) for name, value in told.items() if value is not None)
    failures = tuple(MetricFailure(name, NOW + 60, "no") for name, value in told.items() if value is None)
    report = MetricsReport("plan", NOW + 60, samples, failures, Capacity(3, NOW + 60))
    before = {name: full(50.0) for name in told}
    windows, state = absorb(made, before, at(3), report, now=NOW + 61, controls=NO_CONTROLS)

    found = decide(made, windows, state, now=NOW + 61, controls=NO_CONTROLS, decision_id="d")

    if failures:
        assert found.desired is None or found.desired >= 3
