"""The classic rule: the average above one threshold scales out, the maximum below another scales in."""

import pytest

from scaling.config.rule_registry import RuleError
from scaling.flip import Flip
from scaling.model import Evidence, Reason
from scaling.rules.view import LevelLine
from tests.support.scaling.steady_views import rule, steady, view, window


def classic(**options):
    return rule("threshold", metric="backlog", **{"scale_out_above": 500, "scale_in_below": 300, **options})


def test_an_average_above_the_threshold_scales_out_by_one_step_with_the_numbers():
    verdict = classic().evaluate(view(3, backlog=501))

    assert (verdict.desired, verdict.reason) == (4, Reason.SCALE_OUT)
    assert verdict.evidence == (Evidence("r", "backlog", "average", 501.0, ">", 500.0, 600.0, 10),)
    assert verdict.flips == (Flip.at("average backlog", "<=", 500.0, Reason.WITHIN_TARGET),)


@pytest.mark.parametrize(("value", "desired"), [(500, 3), (300, 3), (299, 2)])
def test_the_thresholds_themselves_keep_the_count(value, desired):
    assert classic().evaluate(view(3, backlog=value)).desired == desired


def test_one_high_sample_keeps_the_maximum_and_with_it_the_count():
    assert classic().evaluate(view(3, backlog=window(*[10] * 9, 300))).desired == 3
    assert classic().evaluate(view(3, backlog=window(*[10] * 9, 299))).desired == 2


def test_staying_tells_both_values_that_would_have_changed_it():
    verdict = classic().evaluate(view(3, backlog=400))

    assert verdict.reason is Reason.WITHIN_TARGET
    assert verdict.flips == (
        Flip.at("average backlog", ">", 500.0, Reason.SCALE_OUT),
        Flip.at("maximum backlog", "<", 300.0, Reason.SCALE_IN),
    )


def test_nothing_is_scaled_in_from_zero():
    verdict = classic().evaluate(view(0, minimum=0, backlog=0))

    assert (verdict.desired, verdict.reason) == (0, Reason.WITHIN_TARGET)
    assert verdict.flips == (Flip.at("average backlog", ">", 500.0, Reason.SCALE_OUT),)


def test_steps_may_differ_by_direction():
    steps = classic(step_out=3, step_in=2)

    assert steps.evaluate(view(5, backlog=900)).desired == 8
    assert steps.evaluate(view(5, backlog=0)).desired == 3


def test_a_gap_allows_scaling_out_but_never_in():
    gap = [0, 0, 0, None, 0, 0, 0, 0, 0, 0]
    held = classic().evaluate(view(3, backlog=window(*gap)))
    assert (held.desired, held.reason) == (None, Reason.INCOMPLETE_WINDOW)

    high = window(*[None if v is None else 900 for v in gap])
    assert classic().evaluate(view(3, backlog=high)).desired == 4


@pytest.mark.parametrize("value", [0, 900])
def test_an_incomplete_window_never_acts(value):
    verdict = classic().evaluate(view(3, backlog=window(*[value] * 5)))

    assert (verdict.desired, verdict.reason) == (None, Reason.INCOMPLETE_WINDOW)


def test_a_metric_without_samples_holds_without_numbers():
    verdict = classic().evaluate(view(3, backlog=window()))

    assert (verdict.desired, verdict.evidence) == (None, ())


def test_thresholds_may_depend_on_the_instance_count():
    by_count = classic(scale_out_above={"1": 300, "4": 1000}, scale_in_below="50 * instances")

    assert [by_count.evaluate(view(n, backlog=400)).desired for n in (1, 3, 4)] == [2, 4, 4]
    assert [by_count.evaluate(view(n, backlog=199)).desired for n in (3, 4)] == [3, 3]


def test_each_scales_out_on_any_metric_and_in_on_all():
    each = rule("threshold", metrics=["a", "b"], scale_out_above=100, scale_in_below=50)

    assert each.evaluate(view(3, a=0, b=101)).desired == 4
    assert each.evaluate(view(3, a=0, b=60)).desired == 3
    assert each.evaluate(view(3, a=0, b=0)).desired == 2


def test_each_scales_out_by_one_metric_while_another_is_missing_but_never_in():
    each = rule("threshold", metrics=["a", "b"], scale_out_above=100, scale_in_below=50)

    assert each.evaluate(view(3, a=window(), b=101)).desired == 4
    assert each.evaluate(view(3, a=window(), b=0)).desired is None


def test_the_sum_of_metrics_is_compared_as_one():
    total = rule("threshold", metrics=["a", "b"], combine="sum", scale_out_above=100, scale_in_below=50)

    verdict = total.evaluate(view(3, a=60, b=60))

    assert verdict.desired == 4
    assert verdict.evidence[0].metric == "sum(a, b)"
    assert verdict.evidence[0].value == 120.0
    assert total.evaluate(view(3, a=20, b=20)).desired == 2
    assert total.evaluate(view(3, a=window(), b=500)).desired is None


def test_a_gap_in_one_of_combined_metrics_keeps_them_from_scaling_in():
    total = rule("threshold", metrics=["a", "b"], combine="sum", scale_out_above=100, scale_in_below=50)
    gap = window(0, 0, 0, None, 0, 0, 0, 0, 0, 0)

    held = total.evaluate(view(3, a=gap, b=0))

    assert (held.desired, held.reason) == (None, Reason.INCOMPLETE_WINDOW)


def test_maximum_and_minimum_combine_too():
    options = {"metrics": ["a", "b"], "scale_out_above": 100}

    assert rule("threshold", combine="maximum", **options).evaluate(view(3, a=0, b=101)).desired == 4
    assert rule("threshold", combine="minimum", **options).evaluate(view(3, a=0, b=101)).desired == 3


def test_other_statistics_can_be_chosen():
    latest = classic(out_statistic="latest", in_statistic="latest")

    assert latest.evaluate(view(3, backlog=window(*[0] * 9, 900))).desired == 4
    assert latest.evaluate(view(3, backlog=window(*[900] * 9, 0))).desired == 2


def test_levels_are_both_thresholds_of_every_metric_at_a_count():
    levels = rule("threshold", metrics=["a", "b"], scale_out_above={"1": 5, "2": 9}, scale_in_below=3)

    assert levels.levels(2) == (
        LevelLine("a", "average", "out", 9.0),
        LevelLine("b", "average", "out", 9.0),
        LevelLine("a", "maximum", "in", 3.0),
        LevelLine("b", "maximum", "in", 3.0),
    )


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"scale_out_above": 5}, "metric"),
        ({"metric": "a", "metrics": ["b"], "scale_out_above": 5}, "metric"),
        ({"metric": "a"}, "scale_out_above"),
        ({"metric": "a", "scale_out_above": 5, "step": 0}, "step"),
        ({"metric": "a", "scale_out_above": 5, "step_in": -1}, "step_in"),
        ({"metric": "a", "scale_out_above": "backlog + 1"}, "scale_out_above"),
        ({"metric": "a", "scale_out_above": float("inf")}, "scale_out_above"),
        ({"metric": "a", "scale_out_above": True}, "scale_out_above"),
        ({"metric": "a", "scale_out_over": 5}, "scale_out_over"),
        ({"metric": "a", "scale_out_above": 5, "combine": "median"}, "combine"),
    ],
)
def test_wrong_options_are_named(options, key):
    with pytest.raises(RuleError) as caught:
        rule("threshold", **options)

    assert key in caught.value.problems


def test_a_view_of_the_default_window_is_whole():
    assert view(backlog=steady(1)).metric("backlog").problem is None
