"""Expressions of the query language, compiled to functions of a row."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from devstack.cosmos.protocol.errors import CosmosError, bad_request
from devstack.cosmos.query.functions import AGGREGATES, CLOCKS, SCALARS, is_number
from devstack.cosmos.query.lexer import END, Token
from devstack.cosmos.query.values import both, either, equal, ordered


class Row:
    """What an expression sees: values by name, and the aggregates of its group."""

    __slots__ = ("aggregates", "names")

    def __init__(self, names: dict[str, Any], aggregates: list[Any] | None = None) -> None:
        self.names = names
        self.aggregates = aggregates or []


Expression = Callable[[Row], Any]
Aggregate = tuple[str, Expression]

_COMPARISONS: dict[str, Callable[[int], bool]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
_CONSTANTS: dict[str, Any] = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": UNSET}


class ExpressionParser:
    """Recursive descent over tokens; `aggregates` collects those met on the way, in order.

    Every method raises CosmosError (400) that names the token at fault.
    """

    def __init__(self, tokens: list[Token], parameters: Mapping[str, Any], now: float = 0.0) -> None:
        self._now = now
        self._tokens = tokens
        self._position = 0
        self._parameters = parameters
        self.aggregates: list[Aggregate] = []

    # Tokens

    @property
    def current(self) -> Token:
        return self._tokens[self._position]

    def accept(self, *values: str) -> Token | None:
        """The current token, consumed, if it is one of these symbols or upper-case words."""
        token = self.current
        if token.kind in ("name", "symbol") and token.value in values:
            self._position += 1
            return token
        return None

    def expect(self, value: str) -> None:
        if self.accept(value) is None:
            raise self.unexpected(value)

    def identifier(self) -> str:
        token = self.current
        if token.kind != "name":
            raise self.unexpected("a name")
        self._position += 1
        return token.text

    def finish(self) -> None:
        if self.current is not END:
            raise self.unexpected("the end of the query")

    def unexpected(self, wanted: str) -> CosmosError:
        return bad_request(f"Syntax error in the query near {self.current.text!r}, expected {wanted}")

    # Expressions, loosest binding first

    def expression(self) -> Expression:
        test = self._coalesce()
        if self.accept("?") is None:
            return test
        yes = self.expression()
        self.expect(":")
        no = self.expression()
        return lambda row: yes(row) if test(row) is True else no(row)

    def _coalesce(self) -> Expression:
        left = self._or()
        while self.accept("??"):
            left = _coalesced(left, self._or())
        return left

    def _or(self) -> Expression:
        left = self._and()
        while self.accept("OR"):
            left = _joined(either, left, self._and())
        return left

    def _and(self) -> Expression:
        left = self._not()
        while self.accept("AND"):
            left = _joined(both, left, self._not())
        return left

    def _not(self) -> Expression:
        if self.accept("NOT"):
            return _negated(self._not())
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        negated = self.accept("NOT") is not None
        if self.accept("IN"):
            test = self._in(left)
        elif self.accept("BETWEEN"):
            test = self._between(left)
        elif self.accept("LIKE"):
            test = _like(left, self._sum())
        elif negated:
            raise self.unexpected("IN, BETWEEN or LIKE")
        else:
            symbol = self.accept("=", "!=", "<>", *_COMPARISONS)
            return left if symbol is None else _compared(symbol.value, left, self._sum())
        return _negated(test) if negated else test

    def _in(self, left: Expression) -> Expression:
        self.expect("(")
        choices = self._list(")")

        def test(row: Row) -> Any:
            value = left(row)
            return UNSET if value is UNSET else any(equal(value, choice(row)) is True for choice in choices)

        return test

    def _between(self, left: Expression) -> Expression:
        low = self._sum()
        self.expect("AND")
        return _joined(both, _compared(">=", left, low), _compared("<=", left, self._sum()))

    def _sum(self) -> Expression:
        left = self._product()
        while symbol := self.accept("+", "-", "||"):
            right = self._product()
            left = (
                _concatenated(left, right) if symbol.value == "||" else _calculated(symbol.value, left, right)
            )
        return left

    def _product(self) -> Expression:
        left = self._unary()
        while symbol := self.accept("*", "/", "%"):
            left = _calculated(symbol.value, left, self._unary())
        return left

    def _unary(self) -> Expression:
        if self.accept("-"):
            return _calculated("-", lambda _row: 0, self._unary())
        if self.accept("+"):
            return self._unary()
        return self._path(self._primary())

    def _path(self, value: Expression) -> Expression:
        while symbol := self.accept(".", "["):
            if symbol.value == ".":
                value = _property(value, _constant(self.identifier()))
            else:
                value = _property(value, self.expression())
                self.expect("]")
        return value

    def _primary(self) -> Expression:
        token = self.current
        if token.kind in ("number", "string"):
            self._position += 1
            return _constant(token.value)
        if token.kind == "parameter":
            self._position += 1
            if token.value not in self._parameters:
                raise bad_request(f"The query uses {token.value}, which is not among its parameters")
            return _constant(self._parameters[token.value])
        if self.accept("("):
            if self._at_subquery():
                return _first_of(self._subquery())
            inner = self.expression()
            self.expect(")")
            return inner
        if self.accept("["):
            items = self._list("]")
            return lambda row: [value for item in items if (value := item(row)) is not UNSET]
        if self.accept("{"):
            return self._object()
        return self._named()

    def _named(self) -> Expression:
        name = self.identifier()
        upper = name.upper()
        if self.accept("("):
            if upper in {"EXISTS", "ARRAY"} and self._at_subquery():
                results = self._subquery()
                return results if upper == "ARRAY" else lambda row: bool(results(row))
            return self._call(upper)
        if upper in _CONSTANTS:
            return _constant(_CONSTANTS[upper])
        return lambda row: row.names.get(name, UNSET)

    def _at_subquery(self) -> bool:
        return self.current.kind == "name" and self.current.value == "SELECT"

    def _subquery(self) -> Callable[[Row], list[Any]]:
        """The results of a SELECT for a row, up to its closing parenthesis."""
        raise self.unexpected("no SELECT here")

    def _call(self, name: str) -> Expression:
        arguments = self._list(")")
        if name in AGGREGATES:
            if len(arguments) != 1:
                raise bad_request(f"{name} takes one argument, got {len(arguments)}")
            index = len(self.aggregates)
            self.aggregates.append((name, arguments[0]))
            return lambda row: row.aggregates[index]
        if name in CLOCKS and not arguments:
            return _constant(CLOCKS[name](self._now))
        function = SCALARS.get(name)
        if function is None:
            known = ", ".join(sorted({*SCALARS, *AGGREGATES, *CLOCKS}))
            raise bad_request(f"The function {name} is not known here, accepted: {known}")

        def call(row: Row) -> Any:
            try:
                return function(*(argument(row) for argument in arguments))
            except TypeError:
                raise bad_request(f"{name} does not take {len(arguments)} arguments") from None

        return call

    def _list(self, end: str) -> list[Expression]:
        items: list[Expression] = []
        if self.accept(end):
            return items
        while True:
            items.append(self.expression())
            if self.accept(end):
                return items
            self.expect(",")

    def _object(self) -> Expression:
        members: list[tuple[str, Expression]] = []
        while not self.accept("}"):
            if members:
                self.expect(",")
            token = self.current
            if token.kind not in ("string", "name"):
                raise self.unexpected("the name of a property")
            self._position += 1
            self.expect(":")
            members.append((token.value if token.kind == "string" else token.text, self.expression()))
        return lambda row: {name: value for name, member in members if (value := member(row)) is not UNSET}


def _constant(value: Any) -> Expression:
    return lambda _row: value


def _first_of(results: Callable[[Row], list[Any]]) -> Expression:
    """A subquery as one value: its only result, or undefined."""
    return lambda row: values[0] if (values := results(row)) else UNSET


def _property(holder: Expression, name: Expression) -> Expression:
    def get(row: Row) -> Any:
        value, key = holder(row), name(row)
        if isinstance(value, dict):
            return value.get(key, UNSET) if isinstance(key, str) else UNSET
        if isinstance(value, list) and is_number(key) and 0 <= key < len(value):
            return value[int(key)]
        return UNSET

    return get


def _joined(operation: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    return lambda row: operation(left(row), right(row))


def _coalesced(left: Expression, right: Expression) -> Expression:
    return lambda row: right(row) if (value := left(row)) is UNSET else value


def _negated(test: Expression) -> Expression:
    return lambda row: not value if isinstance(value := test(row), bool) else UNSET


def _compared(symbol: str, left: Expression, right: Expression) -> Expression:
    if symbol == "=":
        return lambda row: equal(left(row), right(row))
    if symbol in ("!=", "<>"):
        return _negated(lambda row: equal(left(row), right(row)))
    accept = _COMPARISONS[symbol]

    def test(row: Row) -> Any:
        order = ordered(left(row), right(row))
        return UNSET if order is None else accept(order)

    return test


def _calculated(symbol: str, left: Expression, right: Expression) -> Expression:
    calculate = _ARITHMETIC[symbol]

    def value(row: Row) -> Any:
        first, second = left(row), right(row)
        if not is_number(first) or not is_number(second) or (symbol in "/%" and second == 0):
            return UNSET
        return calculate(first, second)

    return value


def _concatenated(left: Expression, right: Expression) -> Expression:
    def value(row: Row) -> Any:
        first, second = left(row), right(row)
        return first + second if isinstance(first, str) and isinstance(second, str) else UNSET

    return value


def _like(left: Expression, right: Expression) -> Expression:
    def test(row: Row) -> Any:
        text, pattern = left(row), right(row)
        if not isinstance(text, str) or not isinstance(pattern, str):
            return UNSET
        wild = re.escape(pattern).replace("%", ".*").replace("_", ".")
        return re.fullmatch(wild, text, re.DOTALL) is not None

    return test
