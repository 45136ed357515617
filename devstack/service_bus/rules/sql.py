"""The SQL of subscription rules: conditions and actions, parsed once and evaluated per message. Pure.

Grammar and three-valued logic are those of "SQLRuleFilter syntax" and "SQLRuleAction syntax" in the documents of Service
Bus; None stands for unknown as for null. Where they say nothing, we do the careful thing: values of different kinds are
not equal, and ordering or adding them up is an error of the evaluation.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from devstack.service_bus.rules.sql_values import (
    INTEGERS,
    EvaluationError,
    arithmetic,
    compare,
    is_in,
    joined,
    like,
    negated,
    truth,
)

MAX_LENGTH = 1024  # characters of a condition or an action, as the service has it
MAX_STATEMENTS = 32
_MAX_DEPTH = 40  # of parentheses and prefixes; keeps the parser from the end of its stack


class SqlError(ValueError):
    """A text that is no condition or action."""


class View(Protocol):
    """A message as rules see it. Names are case-insensitive."""

    def system(self, name: str) -> Any:
        """None where the message has no such value. Raises EvaluationError for a name that no message has."""

    def user(self, name: str) -> Any:
        """None where the message has no such property."""

    def exists(self, scope: str, name: str) -> bool: ...


Evaluate = Callable[[View], Any]


class Statement(NamedTuple):
    """SET, or REMOVE where there is no `value`."""

    scope: str
    name: str
    value: Evaluate | None


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<delimited>\[(?:[^\]]|\]\])+\]|"(?:[^"]|"")+")
    | (?P<parameter>@\w+)
    | (?P<word>[^\W\d]\w*)
    | (?P<symbol><>|!=|>=|<=|[=<>+\-*/%(),.;])
    )""",
    re.VERBOSE,
)
_RESERVED = frozenset(
    ["AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE", "SET", "REMOVE"]
)
_COMPARISONS = frozenset(("=", "<>", "!=", "<", "<=", ">", ">="))


class _Token(NamedTuple):
    kind: str  # number, text, delimited, parameter, word, symbol or end
    text: str
    at: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind in ("word", "symbol") else ""


def parse_condition(text: str, parameters: Mapping[str, Any] | None = None) -> Evaluate:
    """True, False or None (unknown) for a message. Raises SqlError."""
    parser = _Parser(text, parameters or {})
    condition = parser.either()
    parser.end()
    return lambda view: truth(condition(view))


def parse_action(text: str, parameters: Mapping[str, Any] | None = None) -> list[Statement]:
    """Raises SqlError."""
    parser = _Parser(text, parameters or {})
    statements = [parser.statement()]
    while parser.take(";", ","):
        if parser.token.kind == "end":
            break
        statements.append(parser.statement())
    parser.end()
    if len(statements) > MAX_STATEMENTS:
        raise SqlError(f"an action of {len(statements)} statements, accepted: up to {MAX_STATEMENTS}")
    return statements


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise SqlError(f"an expression of {len(text)} characters, accepted: up to {MAX_LENGTH}")
    parts, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise SqlError(f"{text[at:].strip()[:20]!r} at {at} is no part of an expression")
        kind = str(match.lastgroup)
        parts.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*parts, _Token("end", "", end)]


class _Parser:
    """By descent; one method per level of binding, the loosest first."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        self._tokens = _tokens(text)
        self._parameters = {name.lstrip("@").casefold(): value for name, value in parameters.items()}
        self._at = 0
        self._depth = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._at]

    def take(self, *accepted: str) -> str:
        """The next token if it is one of these words or symbols, else ''."""
        word = self.token.upper
        if word not in accepted:
            return ""
        self._at += 1
        return word

    def need(self, accepted: str) -> None:
        if not self.take(accepted):
            raise self._unexpected(accepted)

    def end(self) -> None:
        if self.token.kind != "end":
            raise self._unexpected("an operator or the end")

    def _unexpected(self, accepted: str) -> SqlError:
        what = repr(self.token.text) if self.token.kind != "end" else "the end"
        return SqlError(f"{what} at {self.token.at}, accepted: {accepted}")

    def _deeper(self, parse: Callable[[], Evaluate]) -> Evaluate:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise SqlError(f"an expression of more than {_MAX_DEPTH} levels")
        parsed = parse()
        self._depth -= 1
        return parsed

    def statement(self) -> Statement:
        if self.take("SET"):
            scope, name = self._property()
            self.need("=")
            return Statement(scope, name, self.either())
        if not self.take("REMOVE"):
            raise self._unexpected("SET or REMOVE")
        return Statement(*self._property(), None)

    def either(self) -> Evaluate:
        return self._chain("OR", lambda: self._chain("AND", self._negation, _all), _any)

    def _chain(
        self, word: str, part: Callable[[], Evaluate], joined: Callable[[list[Evaluate]], Evaluate]
    ) -> Evaluate:
        parts = [part()]
        while self.take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else joined(parts)

    def _negation(self) -> Evaluate:
        if not self.take("NOT"):
            return self._comparison()
        inner = self._deeper(self._negation)
        return lambda view: negated(truth(inner(view)))

    def _comparison(self) -> Evaluate:
        left = self._sum()
        operator = self.take(*_COMPARISONS)
        if operator:
            right = self._sum()
            return lambda view: compare(operator, left(view), right(view))
        if self.take("IS"):
            wanted = not self.take("NOT")
            self.need("NULL")
            return lambda view: (left(view) is None) == wanted
        is_negated = bool(self.take("NOT"))
        known = self._in(left) if self.take("IN") else self._like_test(left) if self.take("LIKE") else None
        if known is None:
            if is_negated:
                raise self._unexpected("IN or LIKE")
            return left
        test = known
        return (lambda view: negated(test(view))) if is_negated else test

    def _in(self, left: Evaluate) -> Evaluate:
        self.need("(")
        choices = [self._sum()]
        while self.take(","):
            choices.append(self._sum())
        self.need(")")
        return lambda view: is_in(left(view), [choice(view) for choice in choices])

    def _like_test(self, left: Evaluate) -> Evaluate:
        pattern = self._sum()
        escape = self._sum() if self.take("ESCAPE") else None
        return lambda view: like(left(view), pattern(view), None if escape is None else escape(view))

    def _sum(self) -> Evaluate:
        return self._operations(("+", "-"), lambda: self._operations(("*", "/", "%"), self._signed))

    def _operations(self, operators: tuple[str, ...], part: Callable[[], Evaluate]) -> Evaluate:
        first, rest = part(), []
        while operator := self.take(*operators):
            rest.append((operator, part()))
        if not rest:
            return first

        def evaluate(view: View) -> Any:
            value = first(view)
            for sign, operand in rest:
                value = arithmetic(sign, value, operand(view))
            return value

        return evaluate

    def _signed(self) -> Evaluate:
        sign = self.take("+", "-")
        if not sign:
            return self._primary()
        inner = self._deeper(self._signed)
        return lambda view: arithmetic(sign, 0, inner(view))

    def _primary(self) -> Evaluate:
        if self.take("("):
            inner = self._deeper(self.either)
            self.need(")")
            return inner
        if self.take("EXISTS"):
            self.need("(")
            scope, name = self._property()
            self.need(")")
            return lambda view: view.exists(scope, name)
        constant = self.take("TRUE", "FALSE", "NULL")
        if constant:
            value = {"TRUE": True, "FALSE": False, "NULL": None}[constant]
            return lambda _: value
        if self.token.kind in ("number", "text", "parameter"):
            return self._constant()
        if self._tokens[self._at + 1 :] and self._tokens[self._at + 1].text == "(":
            return self._function()
        scope, name = self._property()
        return (lambda view: view.system(name)) if scope == "sys" else (lambda view: view.user(name))

    def _constant(self) -> Evaluate:
        kind, text, _ = self.token
        self._at += 1
        value: Any
        if kind == "text":
            value = text[1:-1].replace("''", "'")
        elif kind == "number":
            value = int(text) if text.isdecimal() else float(text)
            if isinstance(value, int) and value not in INTEGERS:
                raise SqlError(f"{text} is no integer of 64 bits")
        elif (name := text[1:].casefold()) in self._parameters:
            value = self._parameters[name]
        else:
            raise SqlError(f"the parameter {text} has no value")
        return lambda _: value

    def _function(self) -> Evaluate:
        name = self.token.text.casefold()
        if name == "newid":
            self._at += 1
            self.need("(")
            self.need(")")
            return lambda _: str(uuid4())
        if name not in ("p", "property"):
            raise self._unexpected("newid(), property(name) or p(name)")
        self._at += 1
        self.need("(")
        inner = self._deeper(self._sum)
        self.need(")")
        return lambda view: _named(view, inner(view))

    def _property(self) -> tuple[str, str]:
        """(scope, name); without a scope it is the user's."""
        name = self._name()
        if not self.take("."):
            return "user", name
        if name.casefold() not in ("sys", "user"):
            raise SqlError(f"the scope {name!r}, accepted: sys, user")
        return name.casefold(), self._name()

    def _name(self) -> str:
        kind, text, _ = self.token
        if kind == "delimited":
            self._at += 1
            return text[1:-1].replace(text[-1] * 2, text[-1])
        if kind != "word" or text.upper() in _RESERVED:
            raise self._unexpected("a property")
        self._at += 1
        return text


def _all(parts: list[Evaluate]) -> Evaluate:
    return lambda view: joined((truth(part(view)) for part in parts), decisive=False)


def _any(parts: list[Evaluate]) -> Evaluate:
    return lambda view: joined((truth(part(view)) for part in parts), decisive=True)


def _named(view: View, name: Any) -> Any:
    if name is None:
        return None
    if not isinstance(name, str):
        raise EvaluationError(f"property({name!r}), accepted: a text")
    scope, separator, rest = name.partition(".")
    return (
        view.system(rest)
        if separator and scope.casefold() == "sys"
        else view.user(name.removeprefix("user."))
    )
