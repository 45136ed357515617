"""Any text compiles or is refused; what compiles computes what Python computes, and does nothing else."""

import builtins
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.rules.expression import Expression, ExpressionError

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
