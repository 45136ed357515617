"""Any-out/all-in over rules, expressions over metrics, and what becomes of rules that misbehave."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scaling.config.rule_registry import RuleError
from scaling.flip import Flip
from scaling.model import Evidence, MetricFailure, Reason, Verdict
from scaling.rules.combine import PROBLEMS, combine, direction_reason, safe_evaluate
from tests.support.scaling.steady_views import NOW, rule, steady, view, window

A = {"type": "threshold", "metric": "a", "scale_out_above": 100, "scale_in_below": 50}
B = {"type": "target_per_unit", "metric": "b", "target": 10}


def both():
    return rule("composite", rules=[A, B])


def vote(desired, current=3):
    return Verdict(desired, Reason.SCALE_OUT if desired > current else Reason.SCALE_IN)


def test_any_rule_scales_out_and_the_highest_wins():
    assert both().evaluate(view(3, a=200, b=0)).desired == 4
    assert both().evaluate(view(3, a=200, b=90)).desired == 9


def test_all_rules_must_agree_to_scale_in_and_the_highest_wins():
    assert both().evaluate(view(3, a=0, b=30)).desired == 3
    assert both().evaluate(view(3, a=0, b=10)).desired == 2


def test_a_rule_missing_its_metric_stops_scaling_in_but_not_out():
    assert both().evaluate(view(3, a=window(), b=0)).reason is Reason.INCOMPLETE_WINDOW
    assert both().evaluate(view(3, a=window(), b=90)).desired == 9


def test_a_failed_rule_stops_scaling_in():
    failed = Verdict(None, Reason.RULE_FAILED)

    assert combine([vote(2), failed], 3).desired is None
    assert combine([vote(5), failed], 3).desired == 5


@pytest.mark.parametrize("votes", [(0, 1), (1, 0)])
def test_of_equal_votes_to_stay_the_one_that_was_capped_is_reported(votes):
    both_stay = [Verdict(3, Reason.WITHIN_TARGET), Verdict(3, Reason.AT_CAP)]

    assert combine([both_stay[index] for index in votes], 3).reason is Reason.AT_CAP


def test_floors_ceilings_and_blocks_of_all_are_kept():
    combined = combine(
        [
            vote(5),
            Verdict(None, Reason.WITHIN_TARGET, floor=2, ceiling=9),
            Verdict(None, Reason.GUARDED, floor=4, ceiling=7, blocks_out=True),
        ],
        3,
    )

    assert (combined.floor, combined.ceiling, combined.blocks_out) == (4, 7, True)


def test_without_votes_nothing_is_wanted():
    assert combine([], 3).reason is Reason.WITHIN_TARGET
    assert combine([Verdict(None, Reason.GUARDED, blocks_out=True)] * 2, 3).desired is None


def test_an_expression_gives_the_desired_count_rounded_up():
    desired = rule("composite", name="sum", desired="(a.average + b) / 100")
    verdict = desired.evaluate(view(3, a=250, b=180))

    assert (verdict.desired, verdict.reason) == (5, Reason.SCALE_OUT)
    assert verdict.evidence[0] == Evidence("sum", "a", "average", 250.0, "in", 0.0, 600.0, 10)
    assert verdict.evidence[1].statistic == "latest"


def test_a_negative_expression_asks_for_zero():
    assert rule("composite", desired="a - 100").evaluate(view(3, a=0)).desired == 0


def test_conditions_move_by_a_step_and_out_is_tested_first():
    stepped = rule("composite", scale_out_when="a > 10 * instances", scale_in_when="a < 90", step=2)

    assert [stepped.evaluate(view(3, a=value)).desired for value in (95, 30, 31)] == [5, 1, 5]


def test_an_expression_with_a_missing_metric_does_not_vote_and_with_a_gap_not_for_less():
    desired = rule("composite", desired="a / 100")

    assert desired.evaluate(view(3, a=window())).reason is Reason.INCOMPLETE_WINDOW
    gap = [100, 100, None, *[100] * 7]
    assert desired.evaluate(view(3, a=window(*gap))).desired is None
    assert desired.evaluate(view(1, a=window(*[v and v * 5 for v in gap]))).desired == 5


def test_division_by_zero_in_an_expression_is_a_failed_rule_and_no_action():
    verdict = safe_evaluate(rule("composite", desired="100 / a"), view(3, a=0))

    assert (verdict.desired, verdict.reason) == (None, Reason.RULE_FAILED)
    assert "division by zero" in verdict.note


class Says:
    """A user's rule without metrics(), levels() or Params."""

    def __init__(self, answer):
        self.answer = answer

    def evaluate(self, view, /):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


NAN = float("nan")


@pytest.mark.parametrize(
    "answer",
    [
        KeyError("backlog"),
        RecursionError(),
        None,
        5,
        SimpleNamespace(desired=5, reason=Reason.SCALE_OUT),
        Verdict(-1, Reason.SCALE_IN),
        Verdict(2.5, Reason.SCALE_IN),
        Verdict(True, Reason.SCALE_IN),
        Verdict(None, Reason.WITHIN_TARGET, floor=2.5),
        Verdict(None, Reason.WITHIN_TARGET, ceiling=-1),
        Verdict(5, Reason.SCALE_OUT, (Evidence("r", "a", "latest", NAN, ">", 1.0),)),
        Verdict(5, Reason.SCALE_OUT, (Evidence("r", "a", "latest", 1.0, ">", float("inf")),)),
        Verdict(5, Reason.SCALE_OUT, (), (Flip.at("a", ">", NAN, Reason.SCALE_IN),)),
    ],
)
def test_a_rule_that_raises_or_answers_nonsense_has_failed_and_asks_for_nothing(answer):
    verdict = safe_evaluate(Says(answer), view(3, a=0))

    assert (verdict.desired, verdict.reason) == (None, Reason.RULE_FAILED)
    assert "Says" in verdict.note
    assert len(verdict.note) <= 500


@pytest.mark.parametrize(
    ("desired", "reason"), [(4, Reason.SCALE_OUT), (2, Reason.SCALE_IN), (3, Reason.WITHIN_TARGET)]
)
def test_the_reason_of_a_vote_is_its_direction_whatever_the_rule_said(desired, reason):
    assert safe_evaluate(Says(Verdict(desired, Reason.PLATEAU)), view(3, a=0)).reason is reason


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "rules"),
        ({"rules": [A], "desired": "a"}, "rules"),
        ({"desired": "a +"}, "desired"),
        ({"desired": "a.median"}, ""),
        ({"scale_out_when": "a > 1", "step": 0}, "step"),
        ({"rules": [A, {"metric": "a"}]}, "rules[1].type"),
        ({"rules": [{"type": "treshold"}]}, "rules[0].type"),
        ({"rules": [{**A, "step": 0}]}, "rules[0].step"),
        ({"rules": [{**A, "name": 5}]}, "rules[0].name"),
    ],
)
def test_wrong_options_are_named(options, key):
    with pytest.raises(RuleError) as caught:
        rule("composite", **options)

    assert key in caught.value.problems


def test_metrics_are_those_of_expressions_and_nested_rules():
    assert rule("composite", rules=[A, {"type": "composite", "desired": "c + b.average"}]).metrics() == (
        "a",
        "b",
        "c",
    )


votes = st.one_of(
    st.builds(lambda desired: Verdict(desired, direction_reason(desired, 3)), st.integers(0, 6)),
    st.just(Verdict(3, Reason.AT_CAP)),
    st.sampled_from([Verdict(None, Reason.COLLECT_FAILED), Verdict(None, Reason.INCOMPLETE_WINDOW)]),
    st.builds(
        lambda floor, out, blocks: Verdict(
            None, Reason.WITHIN_TARGET, floor=floor, out_ceiling=out, blocks_out=blocks
        ),
        st.sampled_from([None, 1, 5]),
        st.sampled_from([None, 3, 4]),
        st.booleans(),
    ),
)


@given(st.lists(st.lists(votes, min_size=1, max_size=4), min_size=1, max_size=4))
def test_any_out_all_in_of_any_out_all_in_is_the_same_as_of_all_at_once(groups):
    flat = combine([verdict for group in groups for verdict in group], 3)
    nested = combine([combine(group, 3) for group in groups], 3)

    assert structs.replace(nested, reason=flat.reason) == flat
    assert (nested.reason in PROBLEMS) == (flat.reason in PROBLEMS)


EITHER = {"scale_out_when": "a > 100 or cpu > 80", "scale_in_when": "a < 20 and cpu < 30"}


def either(current=3, **metrics):
    return rule("composite", **EITHER).evaluate(view(current, **metrics))


def test_a_metric_that_is_unknown_does_not_keep_the_others_from_scaling_out():
    said = either(a=200, cpu=window())

    assert (said.desired, said.reason) == (4, Reason.SCALE_OUT)
    assert said.note.endswith("; cpu incomplete_window")
    assert [evidence.metric for evidence in said.evidence] == ["a"]


def test_what_depends_on_an_unknown_metric_is_no_vote():
    said = either(a=50, cpu=window())

    assert (said.desired, said.reason, said.note) == (
        None,
        Reason.INCOMPLETE_WINDOW,
        "r: cpu incomplete_window",
    )


def test_a_metric_that_cannot_matter_lets_the_rule_stay():
    made = rule("composite", scale_out_when="a > 100 and cpu > 80", scale_in_when="a < 20 and cpu < 30")

    assert made.evaluate(view(3, a=50, cpu=window())).reason is Reason.WITHIN_TARGET


@pytest.mark.parametrize("when", ["a < 20", "a < 20 and not known(cpu)", "a < 20 and default(cpu, 0) < 30"])
def test_nothing_is_scaled_in_while_a_metric_of_the_rule_is_unknown(when):
    made = rule("composite", scale_out_when="cpu > 80 and a > 100", scale_in_when=when)

    whole_but_failed = structs.replace(steady(5), failure=MetricFailure("cpu", NOW, "no answer"))

    for unknown, reason in ((window(), Reason.INCOMPLETE_WINDOW), (whole_but_failed, Reason.COLLECT_FAILED)):
        said = made.evaluate(view(3, a=0, cpu=unknown))
        assert (said.desired, said.reason) == (None, reason)


def test_a_default_in_an_expression_decides_how_many():
    made = rule("composite", desired="ceil(default(cpu, 90) / 10)")

    assert made.evaluate(view(3, cpu=window())).desired == 9
    assert made.evaluate(view(3, cpu=40)).desired == 4
