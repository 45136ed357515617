"""Proportional scaling by the HPA's formula; the grid against the oracle is in test_hpa_golden."""

import math

import pytest

from scaling.model import Flip, Reason
from scaling.rules import RuleError
from scaling.rules.view import LevelLine
from tests.steady_views import rule, view, window


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
            nudge = 1e-6 if flip.comparator == ">" else -1e-6
            beyond = tried.evaluate(view(current, backlog=max(flip.value + nudge, 0)))
            if flip.value + nudge >= 0:
                assert beyond.reason is flip.outcome, (start, flip)
            before = tried.evaluate(view(current, backlog=max(flip.value - nudge, 0)))
            assert before.reason is verdict.reason, (start, flip)


def test_levels_are_the_edges_of_the_tolerance_and_the_rounding():
    assert hpa().levels(3) == (
        LevelLine("backlog", "latest", "out", pytest.approx(330)),
        LevelLine("backlog", "latest", "in", 200.0),
    )
    assert hpa().levels(0) == (LevelLine("backlog", "latest", "out", 0.0),)


def test_breakpoints_are_told_only_where_the_target_varies():
    assert hpa().breakpoints(2, 3) == ()
    assert hpa(target={"1": 100, "2": 200}).breakpoints(2, 3) == (0, 200, 400, 600)


def test_from_zero_anything_asks_for_a_unit():
    verdict = hpa().evaluate(view(0, minimum=0, backlog=1))
    assert verdict.desired == 1

    idle = hpa().evaluate(view(0, minimum=0, backlog=0))
    assert idle.flips == (Flip("latest backlog", ">", 0.0, Reason.SCALE_OUT),)


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

    kept = hpa(target=100.0).evaluate(view(4, backlog=flip.value))
    beyond = hpa(target=100.0).evaluate(view(4, backlog=math.nextafter(flip.value, math.inf)))

    assert (kept.desired, beyond.desired) == (4, 5)
