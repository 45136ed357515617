"""Arithmetic and comparisons over named values, compiled once, evaluated without `eval`. Pure.

Grammar: Python's expressions, cut down to numbers, names, `metric.statistic`, `+ - * / // %`, comparisons,
`and or not`, `a if b else c`, and calls of `min max ceil floor round abs known default`. Everything else is refused
when the expression is compiled, with the part at fault.

A name may be unknown (None). What is computed from it is unknown, unless it cannot matter: `a > 100 or cpu > 80` is
true where a is above 100, whatever cpu is (Kleene's logic of three values). `known(x)` asks, `default(x, 5)` decides
for 5. A value that comes out is that of every value the unknown names could have.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping

from tidemark.foundation.expressions.parsing import Compiler, ExpressionError, parsed, part_text

Environment = Mapping[str, float | None]
Evaluate = Callable[[Environment], float | None]

CAPACITY_NAMES = ("instances", "ready", "minimum", "maximum")
"""Names a rule's expressions know beside the metrics."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {  # name: (function, fewest, most arguments)
    "abs": (abs, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "floor": (math.floor, 1, 1),
    "max": (max, 2, 20),
    "min": (min, 2, 20),
    "round": (round, 1, 1),
}
_OF_UNKNOWN = {
    "known": 1,
    "default": 2,
}  # functions that an unknown argument does not make unknown: their arguments


class Expression:
    """A compiled expression. `names` are the names it reads (`instances`, `backlog.average`, ...)."""

    __slots__ = ("_evaluate", "names", "text")

    def __init__(self, text: str, *, allowed: Iterable[str] | None = None) -> None:
        """Compiles `text`; with `allowed`, every name must be one of these. Raises ExpressionError."""
        tree = parsed(text)
        names: set[str] = set()
        self._evaluate = _compile(tree, names, 0)
        self.names = tuple(sorted(names))
        self.text = text
        if allowed is not None:
            known = set(allowed)
            unknown = [name for name in self.names if name not in known]
            if unknown:
                raise ExpressionError(
                    f"'{text}' names {', '.join(unknown)}; known here: {', '.join(sorted(known))}"
                )

    def __call__(self, environment: Environment) -> float | None:
        """The value, None where it depends on a name whose value is None. Raises ArithmeticError (division by zero, a
        result that is not finite) or KeyError.
        """
        try:
            outcome = self._evaluate(environment)
            if outcome is None:
                return None
            value = float(outcome)
        except ValueError as error:  # ceil(), floor() and round() of NaN
            raise ArithmeticError(f"'{self.text}': {error}") from None
        if not math.isfinite(value):
            raise ArithmeticError(f"'{self.text}' is {value}")
        return value


def _constant(node: ast.Constant, _names: set[str], _depth: int) -> Evaluate:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        raise ExpressionError(f"'{part_text(node)}' is not a number of at most 1e15")
    number = float(value)
    return lambda _environment: number


def _name(node: ast.Name, names: set[str], _depth: int) -> Evaluate:
    return _lookup(node.id, names)


def _attribute(node: ast.Attribute, names: set[str], _depth: int) -> Evaluate:
    if not isinstance(node.value, ast.Name):
        raise ExpressionError(f"'{part_text(node)}' is not accepted; write metric.statistic")
    return _lookup(f"{node.value.id}.{node.attr}", names)


def _lookup(name: str, names: set[str]) -> Evaluate:
    names.add(name)
    return lambda environment: environment[name]


def _binary(node: ast.BinOp, names: set[str], depth: int) -> Evaluate:
    function = _BINARY.get(type(node.op))
    if function is None:
        raise ExpressionError(f"'{part_text(node)}': operator is not one of + - * / // %")
    left, right = _compile(node.left, names, depth), _compile(node.right, names, depth)
    return lambda environment: _applied(function, left(environment), right(environment))


def _unary(node: ast.UnaryOp, names: set[str], depth: int) -> Evaluate:
    function = _UNARY.get(type(node.op))
    if function is None:
        raise ExpressionError(f"'{part_text(node)}': operator is not one of - + not")
    operand = _compile(node.operand, names, depth)
    return lambda environment: _applied(function, operand(environment))


def _compare(node: ast.Compare, names: set[str], depth: int) -> Evaluate:
    functions = [_COMPARE.get(type(op)) for op in node.ops]
    if None in functions:
        raise ExpressionError(f"'{part_text(node)}': comparison is not one of < <= > >= == !=")
    first, *others = [_compile(operand, names, depth) for operand in (node.left, *node.comparators)]
    steps = [(function, operand) for function, operand in zip(functions, others, strict=True) if function]

    def evaluate(environment: Environment) -> float | None:
        left, unknown = first(environment), False
        for function, operand in steps:
            right = operand(environment)
            holds = _applied(function, left, right)
            unknown = unknown or holds is None  # a later part of the chain may still be false
            if holds is not None and not holds:
                return False
            left = right
        return None if unknown else True

    return evaluate


def _boolean(node: ast.BoolOp, names: set[str], depth: int) -> Evaluate:
    """The deciding operand, as in Python; the operands after it are not evaluated. After an unknown operand another one
    may decide, but only among truths: of two numbers, which of them it would be is not known.
    """
    operands = [_compile(operand, names, depth) for operand in node.values]
    decisive, truths = isinstance(node.op, ast.Or), all(map(_is_truth, node.values))

    def evaluate(environment: Environment) -> float | None:
        value: float | None = None
        unknown = False
        for operand in operands:
            value = operand(environment)
            if value is None:
                unknown = True
            elif bool(value) is decisive:
                return value if truths or not unknown else None
        return None if unknown else value

    return evaluate


def _is_truth(node: ast.expr) -> bool:
    """Whether a part can only be true, false or unknown."""
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="known")):
            return True
        case ast.BoolOp(values=parts):
            return all(map(_is_truth, parts))
        case ast.IfExp(body=then, orelse=otherwise):
            return _is_truth(then) and _is_truth(otherwise)
        case _:
            return False


def _conditional(node: ast.IfExp, names: set[str], depth: int) -> Evaluate:
    test, then, otherwise = (_compile(part, names, depth) for part in (node.test, node.body, node.orelse))

    def evaluate(environment: Environment) -> float | None:
        chosen = test(environment)
        return None if chosen is None else then(environment) if chosen else otherwise(environment)

    return evaluate


def _call(node: ast.Call, names: set[str], depth: int) -> Evaluate:
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    if called in _OF_UNKNOWN:
        return _of_unknown(node, called, names, depth)
    entry = _FUNCTIONS.get(called)
    if entry is None or node.keywords:
        raise ExpressionError(f"'{part_text(node)}' is not accepted; functions are {_function_names()}")
    function, fewest, most = entry
    if not fewest <= len(node.args) <= most:
        raise ExpressionError(f"'{part_text(node)}' takes {fewest} to {most} arguments")
    arguments = [_compile(argument, names, depth) for argument in node.args]
    return lambda environment: _applied(function, *(argument(environment) for argument in arguments))


def _of_unknown(node: ast.Call, name: str, names: set[str], depth: int) -> Evaluate:
    """`known(x)`, and `default(x, y)`: y where x is not known."""
    if node.keywords or len(node.args) != _OF_UNKNOWN[name]:
        raise ExpressionError(f"'{part_text(node)}' is not accepted; write known(x), or default(x, y)")
    asked, *others = [_compile(argument, names, depth) for argument in node.args]
    if name == "known":
        return lambda environment: asked(environment) is not None
    [otherwise] = others

    def evaluate(environment: Environment) -> float | None:
        value = asked(environment)
        return otherwise(environment) if value is None else value

    return evaluate


def _function_names() -> str:
    return ", ".join(sorted({*_FUNCTIONS, *_OF_UNKNOWN}))


def _applied(function: Callable[..., float], *values: float | None) -> float | None:
    """The function of known values; unknown where one of them is."""
    return None if None in values else function(*values)


_HANDLERS: dict[type[ast.expr], Callable[..., Evaluate]] = {
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.BoolOp: _boolean,
    ast.Call: _call,
    ast.Compare: _compare,
    ast.Constant: _constant,
    ast.IfExp: _conditional,
    ast.Name: _name,
    ast.UnaryOp: _unary,
}
_compile: Compiler[Evaluate] = Compiler(
    _HANDLERS,
    lambda: (
        "numbers, metric.statistic, + - * / // %, comparisons, and/or/not, 'a if b else c', and "
        + _function_names()
    ),
)
