"""Arithmetic and comparisons over named values, compiled once, evaluated without `eval`. Pure.

Grammar: Python's expressions, cut down to numbers, names, `metric.statistic`, `+ - * / // %`, comparisons,
`and or not`, `a if b else c`, and calls of `min max ceil floor round abs`. Everything else is refused when
the expression is compiled, with the part at fault.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping

Environment = Mapping[str, float]
Evaluate = Callable[[Environment], float]

CAPACITY_NAMES = ("instances", "ready", "minimum", "maximum")
"""Names a rule's expressions know beside the metrics."""

MAX_LENGTH = 1_000
MAX_DEPTH = 40

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


class ExpressionError(ValueError):
    """The text is not an expression we accept; the message says which part and what is accepted."""


class Expression:
    """A compiled expression. `names` are the names it reads (`instances`, `backlog.average`, ...)."""

    __slots__ = ("_evaluate", "names", "text")

    def __init__(self, text: str, *, allowed: Iterable[str] | None = None) -> None:
        """Compiles `text`; with `allowed`, every name must be one of these. Raises ExpressionError."""
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"expression of {len(text)} characters; at most {MAX_LENGTH} are accepted")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"'{text}' is not an expression: {error}") from None
        names: set[str] = set()
        self._evaluate = _compile(tree.body, names, 0)
        self.names = tuple(sorted(names))
        self.text = text
        if allowed is not None:
            known = set(allowed)
            unknown = [name for name in self.names if name not in known]
            if unknown:
                raise ExpressionError(
                    f"'{text}' names {', '.join(unknown)}; known here: {', '.join(sorted(known))}"
                )

    def __call__(self, environment: Environment) -> float:
        """The value. Raises ArithmeticError (division by zero, a result that is not finite) or KeyError."""
        try:
            value = float(self._evaluate(environment))
        except ValueError as error:  # ceil(), floor() and round() of NaN
            raise ArithmeticError(f"'{self.text}': {error}") from None
        if not math.isfinite(value):
            raise ArithmeticError(f"'{self.text}' is {value}")
        return value


def _compile(node: ast.expr, names: set[str], depth: int) -> Evaluate:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"expression is nested deeper than {MAX_DEPTH} levels")
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise ExpressionError(
            f"'{_text(node)}' is not accepted; use numbers, metric.statistic, + - * / // %, "
            "comparisons, and/or/not, 'a if b else c', and " + ", ".join(sorted(_FUNCTIONS))
        )
    return handler(node, names, depth + 1)


def _text(node: ast.expr) -> str:
    """The part of the expression at fault, for messages."""
    try:
        return ast.unparse(node)
    except RecursionError:  # hundreds of nested operators inside a part that is refused anyway
        return "a deeply nested part"


def _constant(node: ast.Constant, _names: set[str], _depth: int) -> Evaluate:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        raise ExpressionError(f"'{_text(node)}' is not a number of at most 1e15")
    number = float(value)
    return lambda _environment: number


def _name(node: ast.Name, names: set[str], _depth: int) -> Evaluate:
    return _lookup(node.id, names)


def _attribute(node: ast.Attribute, names: set[str], _depth: int) -> Evaluate:
    if not isinstance(node.value, ast.Name):
        raise ExpressionError(f"'{_text(node)}' is not accepted; write metric.statistic")
    return _lookup(f"{node.value.id}.{node.attr}", names)


def _lookup(name: str, names: set[str]) -> Evaluate:
    names.add(name)
    return lambda environment: environment[name]


def _binary(node: ast.BinOp, names: set[str], depth: int) -> Evaluate:
    function = _BINARY.get(type(node.op))
    if function is None:
        raise ExpressionError(f"'{_text(node)}': operator is not one of + - * / // %")
    left, right = _compile(node.left, names, depth), _compile(node.right, names, depth)
    return lambda environment: function(left(environment), right(environment))


def _unary(node: ast.UnaryOp, names: set[str], depth: int) -> Evaluate:
    function = _UNARY.get(type(node.op))
    if function is None:
        raise ExpressionError(f"'{_text(node)}': operator is not one of - + not")
    operand = _compile(node.operand, names, depth)
    return lambda environment: function(operand(environment))


def _compare(node: ast.Compare, names: set[str], depth: int) -> Evaluate:
    functions = [_COMPARE.get(type(op)) for op in node.ops]
    if None in functions:
        raise ExpressionError(f"'{_text(node)}': comparison is not one of < <= > >= == !=")
    first, *others = [_compile(operand, names, depth) for operand in (node.left, *node.comparators)]
    steps = [(function, operand) for function, operand in zip(functions, others, strict=True) if function]

    def evaluate(environment: Environment) -> float:
        left = first(environment)
        for function, operand in steps:
            right = operand(environment)
            if not function(left, right):
                return False
            left = right
        return True

    return evaluate


def _boolean(node: ast.BoolOp, names: set[str], depth: int) -> Evaluate:
    """The deciding operand, as in Python; the operands after it are not evaluated."""
    *others, last = [_compile(operand, names, depth) for operand in node.values]
    decisive = isinstance(node.op, ast.Or)

    def evaluate(environment: Environment) -> float:
        for operand in others:
            value = operand(environment)
            if bool(value) is decisive:
                return value
        return last(environment)

    return evaluate


def _conditional(node: ast.IfExp, names: set[str], depth: int) -> Evaluate:
    test, then, otherwise = (_compile(part, names, depth) for part in (node.test, node.body, node.orelse))
    return lambda environment: then(environment) if test(environment) else otherwise(environment)


def _call(node: ast.Call, names: set[str], depth: int) -> Evaluate:
    entry = _FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if entry is None or node.keywords:
        raise ExpressionError(
            f"'{_text(node)}' is not accepted; functions are " + ", ".join(sorted(_FUNCTIONS))
        )
    function, fewest, most = entry
    if not fewest <= len(node.args) <= most:
        raise ExpressionError(f"'{_text(node)}' takes {fewest} to {most} arguments")
    arguments = [_compile(argument, names, depth) for argument in node.args]
    return lambda environment: function(*(argument(environment) for argument in arguments))


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
