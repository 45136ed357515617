"""Expressions compute, and do nothing else."""

import pytest

from scaling.rules.expression import MAX_LENGTH, Expression, ExpressionError


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
