"""Any text compiles or is refused; what compiles computes what Python computes, and does nothing else."""

import builtins
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.rules.expression import Expression
from tidemark.foundation.expressions.parsing import ExpressionError

NAMES = ("a", "b", "instances")

leaves = st.one_of(
    st.sampled_from(NAMES),
    st.floats(0, 1e6).map(lambda value: f"{value:.3f}"),
    st.sampled_from(["0.0", "1.0", "2.0"]),
)


def nested(inner):
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(inner, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), inner, inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]} {parts[1]} {parts[3]})"
        ),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        inner.map(lambda part: f"(-{part})"),
        inner.map(lambda part: f"(not {part})"),
        st.tuples(st.sampled_from(["abs", "ceil", "floor", "round"]), inner).map(
            lambda parts: f"{parts[0]}({parts[1]})"
        ),
        st.tuples(st.sampled_from(["max", "min"]), pair).map(
            lambda parts: f"{parts[0]}({parts[1][0]}, {parts[1][1]})"
        ),
    )


expressions = st.recursive(leaves, nested, max_leaves=12)
values = st.fixed_dictionaries({name: st.floats(0, 1e6) for name in NAMES})
PYTHON = {"abs": abs, "ceil": math.ceil, "floor": math.floor, "round": round, "max": max, "min": min}


@given(expressions, values)
def test_the_value_is_pythons_own(text, environment):
    try:
        expected = float(eval(text, {"__builtins__": {}, **PYTHON}, dict(environment)))
    except (ArithmeticError, ValueError):
        expected = None

    if expected is None or not math.isfinite(expected):
        with pytest.raises(ArithmeticError):
            Expression(text)(environment)
    else:
        assert Expression(text)(environment) == expected


ALPHABET = "ab01.+-*/%()[]{}<>=!,:'\"\\ \t\n#@_lambdforinutyexcpws"
fragments = st.sampled_from(
    [
        *("a", "b.average", "1", "2.5", "(", ")", "+", "-", "*", "**", "//", "<", "==", ",", ".", "[", "]"),
        *("if", "else", "and", "or", "not", "in", "is", "lambda", ":", ":=", "for", "x", "await", "yield"),
        *(
            "max",
            "open",
            "print",
            "__import__",
            "'os'",
            "__class__",
            "eval",
            "exec",
            "{",
            "}",
            "f'{a}'",
            "\\",
            "\n",
        ),
    ]
)
anything = st.one_of(
    st.text(max_size=60), st.text(ALPHABET, max_size=60), st.lists(fragments, max_size=25).map(" ".join)
)


@given(anything, values)
def test_any_text_compiles_or_is_refused_and_never_does_anything(text, environment):
    def forbidden(*_args, **_kwargs):
        raise AssertionError(f"{text!r} executed something")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("eval", "exec", "open", "print", "input"):
            patch.setattr(builtins, name, forbidden)
        try:
            expression = Expression(text)
        except ExpressionError:
            return
        try:
            result = expression(environment)
        except (ArithmeticError, KeyError):
            return

    assert math.isfinite(result)


with_unknown = st.recursive(
    leaves,
    lambda inner: st.one_of(
        nested(inner),
        inner.map(lambda part: f"known({part})"),
        st.tuples(inner, inner).map(lambda parts: f"default({parts[0]}, {parts[1]})"),
    ),
    max_leaves=12,
)
no_questions = st.recursive(leaves, nested, max_leaves=12)
fillings = st.fixed_dictionaries({name: st.sampled_from([0.0, 1.0, 2.0, 7.5, 1e6]) for name in NAMES})


@given(no_questions, values, st.sets(st.sampled_from(NAMES)), st.lists(fillings, min_size=3, max_size=3))
def test_what_is_known_in_spite_of_unknown_names_holds_whatever_they_are(text, environment, unknown, others):
    expression = Expression(text)
    try:
        found = expression({name: None if name in unknown else environment[name] for name in NAMES})
    except ArithmeticError:
        return

    for other in others if found is not None else ():
        try:
            filled = expression({name: (other if name in unknown else environment)[name] for name in NAMES})
        except ArithmeticError:  # division by one of them, say: then there is no value that could be another
            continue
        assert filled == found


@given(with_unknown, values, st.sets(st.sampled_from(NAMES)))
def test_with_unknown_names_there_is_a_finite_value_or_none_or_an_arithmetic_error(
    text, environment, unknown
):
    try:
        found = Expression(text)({name: None if name in unknown else environment[name] for name in NAMES})
    except ArithmeticError:
        return

    assert found is None or math.isfinite(found)
    if not unknown:
        assert found is not None


@given(with_unknown, values)
def test_a_known_name_is_known_and_needs_no_default(text, environment):
    def value(of):
        try:
            return Expression(of)(environment)
        except (ArithmeticError, ExpressionError):  # too deep, or too long
            return "none"

    assert value(f"known({text})") in {1.0, "none"}
    assert value(f"default({text}, 1)") == value(text) or value(text) == "none"
