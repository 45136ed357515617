"""Between zero and one: a threshold to start, and the same one to end."""

import pytest

from scaling.analysis.lint import lint
from scaling.config.checks import Severity
from scaling.config.rule_registry import RuleError
from scaling.flip import Flip
from scaling.model import Evidence, Reason
from scaling.rules.view import LevelLine
from tests.support.scaling.steady_views import policy, rule, view, window


def activation(**options):
    return rule("activation", **{"metric": "backlog", "above": 5, **options})


def test_above_its_threshold_it_asks_for_the_first_one():
    verdict = activation().evaluate(view(0, backlog=6))

    assert (verdict.desired, verdict.reason, verdict.blocks_out) == (1, Reason.SCALE_OUT, False)
    assert verdict.evidence == (Evidence("r", "backlog", "latest", 6.0, ">", 5.0, 600.0, 10),)
    assert verdict.flips == (Flip.at("latest backlog", "<=", 5.0, Reason.NOT_ACTIVE),)


def test_at_its_threshold_nothing_is_started_whatever_others_ask_for():
    verdict = activation().evaluate(view(0, backlog=5))

    assert (verdict.desired, verdict.reason, verdict.blocks_out) == (None, Reason.NOT_ACTIVE, True)


def test_the_newest_sample_starts_and_the_whole_window_ends():
    was_busy = window(6, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    assert activation().evaluate(view(0, backlog=was_busy)).blocks_out
    assert activation().evaluate(view(1, backlog=was_busy)).floor == 1
    assert activation().evaluate(view(1, backlog=5)).floor is None


def test_any_of_several_starts_and_all_have_to_be_quiet():
    both = activation(metric="", metrics=["backlog", "other"])

    assert both.evaluate(view(0, backlog=0, other=6)).desired == 1
    assert both.evaluate(view(3, backlog=0, other=6)).floor == 1
    assert both.evaluate(view(0, backlog=0, other=0)).blocks_out


@pytest.mark.parametrize(("current", "held"), [(0, (True, None)), (1, (False, 1))])
def test_what_is_unknown_starts_nothing_and_ends_nothing(current, held):
    both = activation(metric="", metrics=["backlog", "other"])

    verdict = both.evaluate(view(current, backlog=window(), other=0))

    assert (verdict.blocks_out, verdict.floor) == held
    assert (verdict.desired, verdict.reason) == (None, Reason.INCOMPLETE_WINDOW)


def test_its_levels_stand_between_zero_and_one():
    assert activation().levels(0) == (LevelLine("backlog", "latest", "out", 5.0),)
    assert activation().levels(1) == (LevelLine("backlog", "maximum", "in", 5.0),)
    assert activation().levels(2) == activation(above=0).levels(1) == ()


@pytest.mark.parametrize("above", [0, 5])
def test_lint_sees_that_a_load_between_the_two_thresholds_does_not_flap(above):
    """At one, the threshold rule wants none below 10: what is above the activation stays all the same."""
    made = policy(
        {"type": "activation", "metric": "backlog", "above": above},
        {
            "type": "threshold",
            "metric": "backlog",
            "scale_out_above": "100 * instances + 50",
            "scale_in_below": "100 * (instances - 1) + 10",
        },
        minimum=0,
    )

    assert [each.text for each in lint(made) if each.severity is Severity.ERROR] == []


@pytest.mark.parametrize("options", [{"metrics": ["a"]}, {"metric": ""}, {"above": -1}])
def test_wrong_options_are_named(options):
    with pytest.raises(RuleError):
        activation(**options)
