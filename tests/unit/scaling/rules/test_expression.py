"""Expressions compute, and do nothing else."""

import pytest

from scaling.rules.expression import Expression
from tidemark.foundation.expressions.parsing import MAX_LENGTH, ExpressionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7.0),
        ("7 // 2 + 7 % 4 - 1 / 4", 5.75),
        ("-backlog.average + instances", -96.0),
        ("ceil(backlog.average / 30)", 4.0),
        ("max(backlog.average, instances, 3) if instances < 5 else 0", 100.0),
        ("round(2.5) + floor(2.9) + abs(-1)", 5.0),
        ("1 < instances < 5", 1.0),
        ("not (instances == 4 and backlog.average != 100)", 1.0),
        ("instances or 1 / 0", 4.0),
        ("0 and 1 / 0", 0.0),
        ("5 < 4 < 1 / 0", 0.0),
        ("2 and 3", 3.0),
    ],
)
def test_the_value_is_pythons(text, expected):
    assert Expression(text)({"backlog.average": 100.0, "instances": 4.0}) == expected


def test_names_are_what_it_reads_sorted():
    assert Expression("b + a.latest * b - max(a.latest, 2)").names == ("a.latest", "b")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "a.b.c",
        "a[0]",
        "[1, 2]",
        "'text'",
        "True",
        "1j",
        "1e400",
        "2 ** 999999",
        "1 << 9",
        "~1",
        "a is 1",
        "a in 1",
        "lambda: 1",
        "(a := 1)",
        "max(*a)",
        "max(a, key=1)",
        "max(1)",
        "open(1)",
        "f'{a}'",
        "a if",
        "",
        "1; 2",
        "(" * 300 + "1" + ")" * 300,
        "-" * 900 + "1",
        "[" + "-" * 900 + "1]",
        "a\x00",
        "\ud800",
        "1" * (MAX_LENGTH + 1),
    ],
)
def test_everything_else_is_refused_when_it_is_compiled(text):
    with pytest.raises(ExpressionError):
        Expression(text)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ExpressionError, match="names backlog; known here: instances"):
        Expression("backlog > 3", allowed=("instances",))


@pytest.mark.parametrize("text", ["1 / a", "1 % a", "b * b", "b - b", "ceil(b - b)", "round(b)"])
def test_a_result_that_is_no_finite_number_is_an_arithmetic_error(text):
    with pytest.raises(ArithmeticError):
        Expression(text)({"a": 0.0, "b": float("inf")})


def test_a_missing_value_is_a_key_error():
    with pytest.raises(KeyError):
        Expression("backlog")({})


UNKNOWN = {"a": None, "b": 5.0, "zero": 0.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("b > 3 or a > 80", 1.0),
        ("a > 80 or b > 3", 1.0),
        ("a > 80 or b > 9", None),
        ("a > 80 and b > 9", 0.0),
        ("b > 3 and a > 80", None),
        ("not a > 80", None),
        ("not (a > 80 and b > 9)", 1.0),
        ("a < b < 3", 0.0),  # whatever a is, b is not below 3
        ("a < b < 9", None),
        ("a or b", None),  # as a number it is a, or b: nobody knows
        ("max(a, b)", None),
        ("a * 0", None),
        ("-a", None),
        ("b if a else b", None),
        ("b if b > 3 else a", 5.0),
        ("a if b > 9 else b", 5.0),
        ("known(a)", 0.0),
        ("known(b)", 1.0),
        ("known(a + b)", 0.0),
        ("known(a > 80 or b > 3)", 1.0),
        ("default(a, 7)", 7.0),
        ("default(b, 7)", 5.0),
        ("default(a, default(a, b)) * 2", 10.0),
        ("default(a, a)", None),
        ("default(zero, 7)", 0.0),
    ],
)
def test_what_an_unknown_name_cannot_change_is_known(text, value):
    assert Expression(text)(UNKNOWN) == value


@pytest.mark.parametrize("text", ["known()", "known(a, b)", "default(a)", "default(a, 1, 2)", "known(x=a)"])
def test_questions_about_the_unknown_take_what_they_take(text):
    with pytest.raises(ExpressionError, match=r"write known\(x\), or default\(x, y\)"):
        Expression(text)
