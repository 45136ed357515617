"""Thresholds in their three forms."""

import pytest

from scaling.rules.level import LevelError, compile_level


def test_a_number_is_the_same_at_every_count():
    assert [compile_level(500)(count) for count in (0, 1, 30)] == [500.0] * 3


def test_a_table_applies_the_entry_at_or_below_the_count():
    level = compile_level({"8": 2500, "1": 300, "4": 1000})

    assert [level(count) for count in (0, 1, 3, 4, 7, 8, 100)] == [300, 300, 300, 1000, 1000, 2500, 2500]


def test_an_expression_reads_the_instance_count():
    level = compile_level("250 * instances + 100")

    assert [level(count) for count in (1, 4)] == [350.0, 1100.0]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"one": 3.0}, "instance counts"),
        ({"1.5": 3.0}, "instance counts"),
        ({}, "at least one"),
        ({"-1": 3.0}, "0 or more"),
        ({"1": float("nan")}, "finite"),
        (float("inf"), "finite"),
        (float("nan"), "finite"),
        ("250 * instnces", "instances"),
        ("1 / (instances - 1)", "division"),
        ("__import__('os')", "not accepted"),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(spec, words):
    with pytest.raises(LevelError, match=words):
        compile_level(spec)
