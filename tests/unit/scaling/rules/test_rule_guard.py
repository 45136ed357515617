"""A guard blocks scaling out and asks for nothing."""

import pytest

from scaling.config.rule_registry import RuleError
from scaling.flip import Flip
from scaling.model import Evidence, Reason
from scaling.rules.view import LevelLine
from tests.support.scaling.steady_views import rule, view, window


def guard(**options):
    return rule("guard", metric="ru", **{"block_out_above": 80, **options})


def test_above_its_level_it_blocks_with_the_numbers():
    verdict = guard().evaluate(view(ru=81))

    assert (verdict.desired, verdict.blocks_out, verdict.reason) == (None, True, Reason.GUARDED)
    assert verdict.evidence == (Evidence("r", "ru", "average", 81.0, ">", 80.0, 600.0, 10),)
    assert verdict.flips == (Flip.at("average ru", "<=", 80.0, Reason.SCALE_OUT),)


def test_at_its_level_it_does_not_block():
    assert not guard().evaluate(view(ru=80)).blocks_out


def test_a_metric_that_cannot_be_read_blocks_unless_told_otherwise():
    unknown = guard().evaluate(view(ru=window()))
    assert (unknown.blocks_out, unknown.note) == (True, "ru unknown (incomplete_window)")
    assert unknown.flips == (Flip.at("average ru", "<=", 80.0, Reason.SCALE_OUT),)

    assert not guard(when_missing="allow").evaluate(view(ru=window())).blocks_out


def test_its_level_may_depend_on_the_count():
    by_count = guard(block_out_above={"1": 80, "5": 60})

    assert [by_count.evaluate(view(n, ru=70)).blocks_out for n in (4, 5)] == [False, True]
    assert by_count.levels(5) == (LevelLine("ru", "average", "guard", 60.0),)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"block_out_above": "ru"}, "block_out_above"),
        ({"block_out_above": float("nan")}, "block_out_above"),
        ({"when_missing": "ignore"}, "when_missing"),
    ],
)
def test_wrong_options_are_named(options, key):
    with pytest.raises(RuleError) as caught:
        guard(**options)

    assert key in caught.value.problems
