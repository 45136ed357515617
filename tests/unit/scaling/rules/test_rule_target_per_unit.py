"""Proportional scaling by the HPA's formula; the grid against the oracle is in test_hpa_golden."""

import math

import pytest

from scaling.config.rule_registry import RuleError
from scaling.flip import Flip
from scaling.model import Reason, Verdict
from scaling.rules.view import LevelLine
from tests.support.scaling.steady_views import rule, view, window


def hpa(**options):
    return rule("target_per_unit", metric="backlog", **{"target": 100, **options})


@pytest.mark.parametrize(
    ("value", "desired"), [(0, 0), (300, 3), (329, 3), (331, 4), (270, 3), (269, 3), (200, 2), (1_000, 10)]
)
def test_average_value_asks_for_the_metric_divided_by_the_target_outside_the_tolerance(value, desired):
    assert hpa().evaluate(view(3, backlog=value)).desired == desired


def test_value_multiplies_the_ready_units_by_the_ratio():
    whole = hpa(mode="value")

    assert whole.evaluate(view(4, backlog=150)).desired == 6
    assert whole.evaluate(view(4, ready=3, backlog=150)).desired == 5
    assert whole.evaluate(view(0, minimum=0, backlog=150)).desired == 2


def test_units_that_are_not_ready_never_turn_too_much_into_fewer_units():
    verdict = hpa(mode="value").evaluate(view(10, ready=2, backlog=150))

    assert (verdict.desired, verdict.reason) == (10, Reason.WITHIN_TARGET)


def test_the_newest_sample_decides_unless_another_statistic_is_chosen():
    rising = window(*[0] * 9, 800)

    assert hpa().evaluate(view(3, backlog=rising)).desired == 8
    assert hpa(statistic="average").evaluate(view(3, backlog=rising)).desired == 1


def test_a_missing_metric_asks_for_nothing_and_a_gap_for_nothing_less():
    assert hpa().evaluate(view(3, backlog=window())).reason is Reason.INCOMPLETE_WINDOW

    gap = window(0, 0, 0, 0, None, 0, 0, 0, 0, 0)
    assert hpa().evaluate(view(3, backlog=gap)).desired is None


def test_a_gap_keeps_no_rule_from_voting_to_stay():
    gap = window(300, 300, 300, 300, None, 300, 300, 300, 300, 300)

    verdict = hpa().evaluate(view(3, backlog=gap))

    assert (verdict.desired, verdict.reason) == (3, Reason.WITHIN_TARGET)


@pytest.mark.parametrize("mode", ["average_value", "value"])
@pytest.mark.parametrize("tolerance", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("current", [1, 2, 3, 7, 10])
def test_the_flips_are_where_the_answer_changes(mode, tolerance, current):
    """Just beyond the value named, the outcome named; just before it, the one we have."""
    tried = hpa(mode=mode, tolerance=tolerance)
    whole = 100 * current if mode == "average_value" else 100
    for start in (whole, whole * 3, 0):
        verdict = tried.evaluate(view(current, backlog=start))
        for flip in verdict.flips:
            (condition,) = flip.conditions
            nudge = {">": 1e-6, "<=": -1e-6}[condition.comparator]
            beyond = tried.evaluate(view(current, backlog=max(condition.value + nudge, 0)))
            assert beyond.reason is flip.outcome, (start, flip)
            before = tried.evaluate(view(current, backlog=max(condition.value - nudge, 0)))
            assert before.reason is verdict.reason, (start, flip)


def test_levels_are_the_edges_of_the_tolerance_and_the_rounding():
    assert hpa().levels(3) == (
        LevelLine("backlog", "latest", "out", pytest.approx(330)),
        LevelLine("backlog", "latest", "in", 200.0),
    )
    assert hpa().levels(0) == (LevelLine("backlog", "latest", "out", 0.0),)
    # The formula's inverse is off by more than is looked through: the lowest float looked at, which replay knows.
    assert hpa(tolerance=0.999999).levels(3)[1].value == 0.00030000000000862627


def test_breakpoints_are_told_only_where_the_target_varies():
    assert hpa().breakpoints(2, 3) == ()
    assert hpa(target={"1": 100, "2": 200}).breakpoints(2, 3) == (0, 200, 400, 600)


def test_from_zero_anything_asks_for_a_unit():
    verdict = hpa().evaluate(view(0, minimum=0, backlog=1))
    assert verdict.desired == 1

    idle = hpa().evaluate(view(0, minimum=0, backlog=0))
    assert idle.flips == (Flip.at("latest backlog", ">", 0.0, Reason.SCALE_OUT),)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"target": 0}, "target"),
        ({"target": -5}, "target"),
        ({"target": "10 - instances"}, "target"),
        ({"target": "1 / (instances - 7)"}, "target"),
        ({"tolerance": 1}, "tolerance"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"mode": "utilization"}, "mode"),
    ],
)
def test_wrong_options_are_named(options, key):
    with pytest.raises(RuleError) as caught:
        hpa(**options)

    assert key in caught.value.problems


def test_the_value_named_as_the_border_is_on_the_kept_side_to_the_last_bit():
    """400 * 1.1 is 440.00000000000006, which is outside the tolerance: the border is one float lower."""
    (flip,) = hpa(target=100.0).evaluate(view(4, backlog=450)).flips
    border = flip.conditions[0].value

    kept = hpa(target=100.0).evaluate(view(4, backlog=border))
    beyond = hpa(target=100.0).evaluate(view(4, backlog=math.nextafter(border, math.inf)))

    assert (kept.desired, beyond.desired) == (4, 5)


def capped(current, backlog, partitions):
    verdict = hpa(cap_metric="partitions").evaluate(view(current, backlog=backlog, partitions=partitions))
    return verdict.desired, verdict.reason


@pytest.mark.parametrize(
    ("current", "backlog", "partitions", "expected"),
    [
        (2, 1_000, 32, (10, Reason.SCALE_OUT)),
        (2, 1_000, 4, (4, Reason.SCALE_OUT)),
        (4, 1_000, 4, (4, Reason.AT_CAP)),
        (6, 1_000, 4, (4, Reason.SCALE_IN)),
        (6, 600, 4, (4, Reason.SCALE_IN)),
        (6, 300, 4, (3, Reason.SCALE_IN)),
        (4, 400, 4, (4, Reason.WITHIN_TARGET)),
        (4, 200, 4, (2, Reason.SCALE_IN)),
        (2, 200, 4, (2, Reason.WITHIN_TARGET)),
        (0, 50, 0, (0, Reason.AT_CAP)),
    ],
)
def test_the_cap_metric_bounds_what_is_asked_for_and_asks_for_nothing_by_itself(
    current, backlog, partitions, expected
):
    assert capped(current, backlog, partitions) == expected


def test_the_cap_is_told_with_its_number_and_what_would_lift_it():
    verdict = hpa(cap_metric="partitions").evaluate(view(4, backlog=1_000, partitions=4))

    lag, cap = verdict.evidence
    assert (lag.metric, lag.comparator, lag.threshold) == ("backlog", ">", 400)
    assert (cap.metric, cap.value, cap.comparator, cap.threshold) == ("partitions", 4, "<", 10)
    assert verdict.flips == (
        Flip.at("latest partitions", ">=", 5.0, Reason.SCALE_OUT),
        Flip.at("latest backlog", "<=", pytest.approx(440), Reason.WITHIN_TARGET),
    )


def test_at_the_cap_more_work_would_only_say_so():
    verdict = hpa(cap_metric="partitions").evaluate(view(4, backlog=400, partitions=4))

    assert [flip.outcome for flip in verdict.flips] == [Reason.AT_CAP, Reason.SCALE_IN]


def test_an_unknown_cap_bounds_nothing_and_lets_nothing_be_asked_for():
    capping = hpa(cap_metric="partitions")

    assert capping.metrics() == ("backlog", "partitions")
    assert capping.evaluate(view(2, backlog=1_000, partitions=window())) == Verdict(
        None, Reason.INCOMPLETE_WINDOW
    )
    gap = window(4, 4, 4, 4, None, 4, 4, 4, 4, 4)
    assert capping.evaluate(view(6, backlog=1_000, partitions=gap)).desired is None
    assert capping.evaluate(view(2, backlog=1_000, partitions=gap)).desired == 4
