"""From text to a `Template`: a parser of one function for each rule of the grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tests.bicep_language.nodes import (
    Access,
    Array,
    Binary,
    Call,
    Entry,
    Expression,
    For,
    Lambda,
    Literal,
    Name,
    Object,
    Output,
    Parameter,
    Resource,
    Template,
    Ternary,
    Text,
    Type,
    Unary,
)
from tests.bicep_language.tokens import BicepSyntaxError, Token, tokens_of

__all__ = ["BicepSyntaxError", "read"]

# From the loosest to the tightest.
OPERATORS = (
    ("??",),
    ("||",),
    ("&&",),
    ("==", "!=", "=~", "!~"),
    ("<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/", "%"),
)
LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


@cache
def read(text: str) -> Template:
    """Raises BicepSyntaxError with line and token. A template is read once, however often it is deployed as a module."""
    return _Parser(tokens_of(text)).template()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    # -- tokens ------------------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _is(self, *values: str) -> bool:
        return self._next.kind in {"sign", "name"} and self._next.value in values

    def _take(self, value: str | None = None, *, kind: str | None = None) -> Token:
        token = self._next
        if (value is not None and not self._is(value)) or (kind is not None and token.kind != kind):
            raise BicepSyntaxError(
                f"line {token.line}: found {token.value or token.kind!r}, expected {value or kind}"
            )
        self._at += 1
        return token

    def _skip(self, value: str) -> bool:
        if not self._is(value):
            return False
        self._at += 1
        return True

    def _newlines(self) -> None:
        while self._next.kind == "newline":
            self._at += 1

    # -- declarations ------------------------------------------------------------------------------------

    def template(self) -> Template:
        template = Template()
        rules: dict[str, Callable[[Template, dict[str, tuple[Expression, ...]]], None]] = {
            "targetScope": self._scope,
            "type": self._type_declaration,
            "param": self._parameter,
            "var": self._variable,
            "resource": self._resource,
            "module": self._module,
            "output": self._output,
        }
        self._newlines()
        while self._next.kind != "end":
            decorators = self._decorators()
            word = self._take(kind="name")
            if word.value not in rules:
                raise BicepSyntaxError(f"line {word.line}: {word.value!r} declares nothing that is known")
            rules[word.value](template, decorators)
            if self._next.kind != "end":
                self._take(kind="newline")
            self._newlines()
        return template

    def _decorators(self) -> dict[str, tuple[Expression, ...]]:
        found = {}
        while self._skip("@"):
            name = self._take(kind="name").value
            self._take("(")
            found[name] = self._arguments()
            self._newlines()
        return found

    def _scope(self, template: Template, _: object) -> None:
        self._take("=")
        template.scope = self._plain_text()

    def _type_declaration(self, template: Template, _: object) -> None:
        name = self._take(kind="name").value
        self._take("=")
        self._take("{")
        self._newlines()
        members = {}
        while not self._skip("}"):
            self._decorators()
            member = self._take(kind="name").value
            self._take(":")
            members[member] = self._type()
            self._newlines()
        template.types[name] = members

    def _type(self) -> Type:
        name = self._take(kind="name").value
        many = self._skip("[")
        if many:
            self._take("]")
        return Type(name, many=many, optional=self._skip("?"))

    def _parameter(self, template: Template, decorators: dict[str, tuple[Expression, ...]]) -> None:
        name, kind = self._take(kind="name").value, self._type()
        default = self._expression() if self._skip("=") else None
        template.parameters[name] = Parameter(kind, default, decorators)

    def _variable(self, template: Template, _: object) -> None:
        name = self._take(kind="name").value
        self._take("=")
        template.variables[name] = self._expression()

    def _output(self, template: Template, decorators: dict[str, tuple[Expression, ...]]) -> None:
        name, kind = self._take(kind="name").value, self._type()
        self._take("=")
        template.outputs[name] = Output(kind, self._expression(), decorators)

    def _resource(self, template: Template, _: object) -> None:
        name = self._take(kind="name").value
        kind, _at, version = self._plain_text().partition("@")
        existing = self._skip("existing")
        condition, body = self._deployed()
        template.resources[name] = Resource(kind, version, existing, condition, body)

    def _module(self, template: Template, _: object) -> None:
        name, path = self._take(kind="name").value, self._plain_text()
        condition, body = self._deployed()
        template.modules[name] = Resource(
            "module", "", existing=False, condition=condition, body=body, path=path
        )

    def _deployed(self) -> tuple[Expression | None, Expression]:
        self._take("=")
        condition = self._condition()
        return condition, self._expression()

    def _condition(self) -> Expression | None:
        if not self._skip("if"):
            return None
        self._take("(")
        found = self._expression()
        self._take(")")
        return found

    def _plain_text(self) -> str:
        token = self._take(kind="text")
        if len(token.parts) != 1 or not isinstance(token.parts[0], str):
            raise BicepSyntaxError(f"line {token.line}: a text without interpolation is expected")
        return token.parts[0]

    # -- expressions -------------------------------------------------------------------------------------

    def _expression(self) -> Expression:
        condition = self._operation(0)
        mark = self._at
        self._newlines()
        if not self._skip("?"):
            self._at = mark
            return condition
        self._newlines()
        then = self._expression()
        self._newlines()
        self._take(":")
        self._newlines()
        return Ternary(condition, then, self._expression())

    def _operation(self, level: int) -> Expression:
        if level == len(OPERATORS):
            return self._unary()
        left = self._operation(level + 1)
        while self._is(*OPERATORS[level]):
            operator = self._take().value
            self._newlines()
            left = Binary(operator, left, self._operation(level + 1))
        return left

    def _unary(self) -> Expression:
        if self._is("!", "-"):
            operator = self._take().value
            return Unary(operator, self._unary())
        return self._accesses(self._primary())

    def _accesses(self, target: Expression) -> Expression:
        while self._is(".", ".?", "["):
            sign = self._take().value
            if sign == "[":
                safe = self._skip("?")
                target = Access(target, self._expression(), safe)
                self._take("]")
            else:
                target = Access(target, Literal(self._take(kind="name").value), sign == ".?")
        return target

    def _primary(self) -> Expression:
        token = self._next
        if token.kind == "number":
            return Literal(int(self._take().value))
        if token.kind == "text":
            return self._text(self._take())
        if self._skip("("):
            return self._group()
        if self._skip("["):
            return self._array()
        if self._skip("{"):
            return self._object()
        name = self._take(kind="name").value
        if name in LITERALS:
            return Literal(LITERALS[name])
        if self._skip("("):
            return Call(name, self._arguments())
        if self._skip("=>"):
            return Lambda((name,), self._expression())
        return Name(name)

    def _text(self, token: Token) -> Expression:
        if all(isinstance(part, str) for part in token.parts):
            return Literal("".join(str(part) for part in token.parts))
        return Text(tuple(part if isinstance(part, str) else _Parser(part)._whole() for part in token.parts))

    def _whole(self) -> Expression:
        found = self._expression()
        self._take(kind="end")
        return found

    def _group(self) -> Expression:
        """`(expression)`, or the parameters of a function: `(a, b) => ...`."""
        self._newlines()
        first = self._expression()
        names = [first]
        while self._skip(","):
            names.append(self._expression())
        self._newlines()
        self._take(")")
        if self._skip("=>"):
            if not all(isinstance(name, Name) for name in names):
                raise BicepSyntaxError(f"line {self._next.line}: the parameters of a function are names")
            return Lambda(tuple(name.name for name in names if isinstance(name, Name)), self._expression())
        if len(names) > 1:
            raise BicepSyntaxError(f"line {self._next.line}: found ',', expected ')'")
        return first

    def _arguments(self) -> tuple[Expression, ...]:
        found = []
        self._newlines()
        while not self._skip(")"):
            found.append(self._expression())
            self._newlines()
            if not self._is(")"):
                self._take(",")
                self._newlines()
        return tuple(found)

    def _array(self) -> Expression:
        self._newlines()
        if self._is("for"):
            return self._loop()
        items = []
        while not self._skip("]"):
            items.append(self._expression())
            self._separator("]")
        return Array(tuple(items))

    def _loop(self) -> Expression:
        self._take("for")
        index = None
        if self._skip("("):
            item = self._take(kind="name").value
            self._take(",")
            index = self._take(kind="name").value
            self._take(")")
        else:
            item = self._take(kind="name").value
        self._take("in")
        items = self._expression()
        self._take(":")
        condition = self._condition()
        body = self._expression()
        self._newlines()
        self._take("]")
        return For(item, index, items, condition, body)

    def _separator(self, end: str) -> None:
        """Members stand on lines of their own, or have commas between them."""
        if not self._skip(",") and self._next.kind != "newline" and not self._is(end):
            raise BicepSyntaxError(
                f"line {self._next.line}: found {self._next.value!r}, expected {end} or a comma"
            )
        self._newlines()

    def _object(self) -> Expression:
        entries = []
        self._newlines()
        while not self._skip("}"):
            key = (
                self._text(self._take())
                if self._next.kind == "text"
                else Literal(self._take(kind="name").value)
            )
            self._take(":")
            self._newlines()
            entries.append(Entry(key, self._expression()))
            self._separator("}")
        return Object(tuple(entries))
