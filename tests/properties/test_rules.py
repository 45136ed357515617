"""Laws of every rule: more load never asks for less, and unknown is never acted upon."""

import math

from hypothesis import given
from hypothesis import strategies as st

from scaling.model import MetricFailure, Reason, Verdict
from scaling.rules.combine import PROBLEMS, combine, safe_evaluate
from scaling.window import Window
from tests.support.scaling.steady_views import NOW, rule, view

loads = st.lists(st.floats(0, 1e6), min_size=10, max_size=10)
counts = st.integers(1, 30)

RULES = st.sampled_from(
    [
        rule("threshold", metric="m", scale_out_above=500, scale_in_below=300),
        rule("threshold", metric="m", scale_out_above={"1": 300, "4": 1000}, scale_in_below="50 * instances"),
        rule("target_per_unit", metric="m", target=100),
        rule("target_per_unit", metric="m", target=100, mode="value", statistic="average"),
        rule("target_per_unit", metric="m", target="10 * instances", tolerance=0.0),
        rule("composite", desired="m.average / 100 + 1"),
        rule("composite", scale_out_when="m.maximum > 500", scale_in_when="m.maximum < 100", step=2),
        rule(
            "composite",
            rules=[
                {"type": "threshold", "metric": "m", "scale_out_above": 500, "scale_in_below": 300},
                {"type": "target_per_unit", "metric": "m", "target": 100},
            ],
        ),
    ]
)


def window_of(values, **more):
    return Window([NOW - 60.0 * (len(values) - 1 - i) for i in range(len(values))], list(values), **more)


@given(RULES, loads, st.floats(0, 1e6), counts)
def test_more_of_the_metric_never_asks_for_less_capacity(subject, values, more, current):
    less = subject.evaluate(view(current, m=window_of(values)))
    higher = subject.evaluate(view(current, m=window_of([value + more for value in values])))

    assert higher.desired >= less.desired


@given(RULES, loads, counts)
def test_the_reason_is_the_direction_and_the_numbers_are_finite(subject, values, current):
    verdict = subject.evaluate(view(current, m=window_of(values)))

    assert (verdict.reason is Reason.SCALE_OUT) == (verdict.desired > current)
    assert (verdict.reason is Reason.SCALE_IN) == (verdict.desired < current)
    assert all(math.isfinite(e.value) and math.isfinite(e.threshold) for e in verdict.evidence)


@given(RULES, loads, counts, st.integers(0, 9))
def test_with_a_sample_missing_nothing_is_scaled_in(subject, values, current, missing):
    whole = window_of(values)
    gap = Window(
        [at for i, at in enumerate(whole.times) if i != missing],
        [v for i, v in enumerate(whole.values) if i != missing],
    )
    verdict = subject.evaluate(view(current, m=gap))
    inside = 0 < missing < 9

    if inside:
        assert verdict.desired is None or verdict.desired >= current


@given(RULES, loads, counts, st.sampled_from(sorted(PROBLEMS - {Reason.RULE_FAILED})))
def test_after_a_failed_read_no_rule_votes(subject, values, current, reason):
    failed = window_of(values, failure=MetricFailure("m", NOW, "boom", reason))
    verdict = subject.evaluate(view(current, m=failed))

    assert (verdict.desired, verdict.reason) == (None, reason)


votes = st.one_of(
    st.builds(Verdict, st.integers(0, 20), st.just(Reason.SCALE_OUT)),
    st.builds(Verdict, st.none(), st.sampled_from(list(Reason))),
    st.builds(
        Verdict,
        st.none(),
        st.just(Reason.GUARDED),
        blocks_out=st.booleans(),
        floor=st.none() | st.integers(0, 9),
    ),
)


@given(st.data(), st.lists(votes, min_size=2, max_size=6), st.integers(0, 20))
def test_any_out_all_in_whatever_the_order(data, verdicts, current):
    combined = combine(verdicts, current)
    asked = [v.desired for v in verdicts if v.desired is not None]
    missing = any(v.desired is None and v.reason in PROBLEMS for v in verdicts)

    if asked and max(asked) > current:
        assert combined.desired == max(asked)
    elif missing or not asked:
        assert combined.desired is None
    else:
        assert combined.desired == max(asked)
    assert combined.blocks_out == any(v.blocks_out for v in verdicts)
    assert combine(data.draw(st.permutations(verdicts)), current).desired == combined.desired


class Says:
    def __init__(self, answer):
        self.answer = answer

    def evaluate(self, view, /):
        return self.answer


@given(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(),
        st.builds(Verdict, st.floats() | st.integers() | st.text(), st.just(Reason.SCALE_OUT)),
    )
)
def test_whatever_a_users_rule_returns_the_verdict_is_sound(answer):
    verdict = safe_evaluate(Says(answer), view(3, m=0))

    assert isinstance(verdict, Verdict)
    assert verdict.desired is None or (type(verdict.desired) is int and verdict.desired >= 0)
