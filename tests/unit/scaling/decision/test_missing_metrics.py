"""Metrics that fail: how long they are waited for, what rules see in their place, and that nothing is scaled in on it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.lint import lint
from scaling.config.policy import Fallback, Plateau, RuleSpec
from scaling.decision.explain import line
from scaling.decision.pending_action import record_effect
from scaling.decision.transitions import absorb, advance
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    EffectOutcome,
    EffectRecord,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Reason,
    TargetState,
    effect_of,
)
from scaling.window import EMPTY, Window, WindowSpec, or_default, summarize
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, at, full, metric, policy

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


def failed_now(reason, *, count=5):
    """A window whose newest read failed."""
    return msgspec.structs.replace(
        full(10.0, count=count), failure=MetricFailure("backlog", NOW, "no", reason)
    )


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
    assert "if backlog can be read again" in line(found)


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


# -- No vote, no data and disabled are three things

HOUR_WINDOW = {"span": 600.0, "min_samples": 10}
FIVE = Fallback(capacity=5, after=300.0)
SERVED = RuleSpec(type="service_level", name="sla", options={"backlog": "backlog"})
LESS_ON_A_DEFAULT = RuleSpec(type="composite", name="less", options={"scale_in_when": "backlog < 100"})


class BrokenRule:
    """A user's rule with a bug."""

    def evaluate(self, view):
        raise ZeroDivisionError

    def metrics(self):
        return ("backlog",)


BROKEN = RuleSpec(type="tests.unit.scaling.decision.test_missing_metrics:BrokenRule", name="mine", options={})


def lived(made, reads, *, current=2, start=None):
    """What is decided, a minute each, on these reads: a number, None for no report, a reason for a failed read."""
    windows, state, found = {}, start or TargetState(), []
    for minute, read in enumerate(reads):
        now = NOW + MINUTE * minute
        if read is None:
            continue
        good = not isinstance(read, Reason)
        capacity = Capacity(current if state.expected is None else state.expected, now)
        report = MetricsReport(
            "plan",
            now,
            (MetricSample("backlog", now, read),) if good else (),
            () if good else (MetricFailure("backlog", now, "no answer", read),),
            capacity,
        )
        windows, state = absorb(made, windows, state, report, now=now, controls=NO_CONTROLS)
        made_now = decide(made, windows, state, now=now, decision_id=f"plan@{minute}")
        state, action = advance(made, state, made_now, report_at=now, level=None)
        if action is not None:
            done = effect_of(action, EffectOutcome.APPLIED, now, "", action.to_capacity)
            state = record_effect(state, done)
        found.append(made_now)
    return found


INVALID, DISABLED = Reason.INVALID_METRIC, Reason.ENTITY_DISABLED
NO_VOTE = {
    "a first start: the window fills": [0.0] * 20,
    "an outage longer than the window": [0.0] * 12 + [None] * 30 + [0.0] * 12,
    "one sample missed, and again and again": ([0.0] * 8 + [None]) * 4,
    "one read failed, and again and again": ([0.0] * 4 + [FAILED]) * 8,
    "reads that fail for less than its time": [0.0] * 12 + [FAILED] * 4 + [0.0] * 20,
}


@pytest.mark.parametrize("reads", NO_VOTE.values(), ids=NO_VOTE)
@pytest.mark.parametrize("rule", [THRESHOLD, SERVED, LESS_ON_A_DEFAULT], ids=lambda rule: rule.type)
def test_the_fallback_does_not_act_while_the_metrics_are_read(rule, reads):
    made = policy(metrics={"backlog": metric(**HOUR_WINDOW)}, rules=(rule,), fallback=FIVE)

    assert Reason.FALLBACK not in {each.reason for each in lived(made, reads)}


NO_DATA = {
    "failed": (FAILED, FIVE.after),
    "invalid": (INVALID, FIVE.after),
}


@pytest.mark.parametrize(
    "before", [[0.0] * 12, [0.0], [], [None] * 3], ids=["whole", "fills", "never", "late"]
)
@pytest.mark.parametrize(("reason", "after"), NO_DATA.values(), ids=NO_DATA)
def test_the_fallback_acts_its_time_after_the_first_read_that_failed(reason, after, before):
    made = policy(metrics={"backlog": metric(**HOUR_WINDOW)}, fallback=FIVE)

    found = lived(made, [*before, *[reason] * 12])

    acted = [each.at for each in found if each.reason is Reason.FALLBACK]
    first = NOW + MINUTE * len(before)
    # A window that filled kept the rules from voting, too: its last decision may count as the first.
    assert acted[0] - first in ({after} if before != [0.0] else {after, after - MINUTE})


OF_ONE_METRIC = {  # what is there of the backlog; whether the fallback acts after its time
    "a window that fills": (full(300.0, count=2), {}, False),
    "a gap": (Window([NOW - 240, NOW - 60, NOW], [10.0] * 3), {}, False),
    "a default on which less is wanted": (failed_now(FAILED), {"default": 0.0}, False),
    "a failure that is waited for": (failed_now(FAILED), {"failures_allowed": 3}, False),
    "a disabled entity": (failed_now(DISABLED), {}, False),
    "a failed read": (failed_now(FAILED), {}, True),
    "a failed read while the window fills": (failed_now(FAILED, count=2), {}, True),
    "a number that is none": (failed_now(INVALID), {}, True),
    "an old sample": (full(300.0, now=NOW - 1000), {}, True),
    "an old sample of a window that fills": (full(300.0, now=NOW - 1000, count=2), {}, True),
    "no sample ever": (EMPTY, {}, True),
}


@pytest.mark.parametrize(("window", "spec", "acts"), OF_ONE_METRIC.values(), ids=OF_ONE_METRIC)
def test_what_of_a_metric_lets_the_fallback_act(window, spec, acts):
    made = policy(metrics={"backlog": metric(**spec)}, fallback=FIVE)

    found = decide(made, {"backlog": window}, at(3, missing_since=NOW - 900), now=NOW)
    kept, _ = advance(made, at(3), found, report_at=NOW, level=None)

    assert (found.reason is Reason.FALLBACK) is acts
    assert found.unread is acts
    assert acts or found.desired == 3
    if window.failure is None or window.failure.reason is not DISABLED:
        assert kept.missing_since == (NOW if acts else None)


def test_a_rule_that_fails_by_itself_is_no_missing_metric():
    state = at(3, missing_since=NOW - 900)
    found = decide(policy(rules=(BROKEN,), fallback=FIVE), {"backlog": full(300.0)}, state, now=NOW)

    assert (found.reason, found.unread) == (Reason.RULE_FAILED, False)


def test_a_metric_that_is_read_but_fills_is_not_to_blame_for_one_that_no_vote_waits_for():
    guard = RuleSpec(type="guard", name="db", options={"metric": "ru", "block_out_above": 90.0})
    made = policy(metrics={"backlog": metric(), "ru": metric()}, rules=(THRESHOLD, guard), fallback=FIVE)
    windows = {"backlog": full(300.0, count=2), "ru": failed_now(FAILED)}

    assert decide(made, windows, at(3, missing_since=NOW - 900), now=NOW).reason is Reason.INCOMPLETE_WINDOW


@pytest.mark.parametrize(("disabled", "reason"), [(True, Reason.ENTITY_DISABLED), (False, Reason.FALLBACK)])
def test_at_zero_an_unknown_activation_metric_lets_the_fallback_start_one_and_a_disabled_one_does_not(
    disabled, reason
):
    wake = RuleSpec(type="activation", name="wake", options={"metric": "backlog"})
    two = {"metrics": {"backlog": metric(), "cpu": metric()}, "minimum": 0}
    cpu = RuleSpec(type="target_per_unit", name="cpu", options={"metric": "cpu", "target": 50.0})
    windows = {"backlog": failed_now(DISABLED if disabled else FAILED), "cpu": failed_now(FAILED)}

    found = decide(
        policy(rules=(cpu, wake), fallback=FIVE, **two), windows, at(0, missing_since=NOW - 900), now=NOW
    )

    assert found.reason is reason


@pytest.mark.parametrize(("after", "told"), [(300.0, True), (600.0, False)])
def test_lint_says_how_long_a_fallback_outlasts_what_it_answers_and_so_it_is(after, told):
    made = policy(metrics={"backlog": metric(**HOUR_WINDOW)}, fallback=Fallback(capacity=5, after=after))
    texts = [each.text for each in lint(made) if each.kind == "outlasted_fallback"]

    assert bool(texts) is told
    if told:
        assert "nothing is scaled in before the failed reads have left that window, 10 min after" in texts[0]
        found = lived(made, [*[0.0] * 12, *[FAILED] * 7, *[0.0] * 20])
        least = min(each.at for each in found[12:] if each.reason is Reason.SCALE_IN)
        assert least - found[18].at == HOUR_WINDOW["span"]
