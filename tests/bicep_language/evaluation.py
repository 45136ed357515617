"""What an expression comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.bicep_language.functions import Function, text_of
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
    Ternary,
    Text,
    Unary,
)


class BicepEvaluationError(Exception):
    """What Resource Manager would refuse, or a part of the language that is not known here."""


class NotDeployed:
    """Stands for a resource or module whose condition is false: it has no properties and no outputs."""

    def __init__(self, name: str) -> None:
        self.name = name


Lookup = Callable[[str], Any]
Locals = Mapping[str, Any]
NOTHING: Locals = {}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "=~": lambda a, b: a.lower() == b.lower(),
    "!~": lambda a, b: a.lower() != b.lower(),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


class Evaluator:
    """Evaluates expressions of one template; `lookup` knows its names. Raises BicepEvaluationError."""

    def __init__(self, lookup: Lookup, functions: Mapping[str, Function]) -> None:
        self._lookup = lookup
        self._functions = functions
        self._rules: dict[type, Callable[[Any, Locals], Any]] = {
            Literal: lambda node, _: node.value,
            Text: self._text,
            Name: self._name,
            Object: self._object,
            Array: lambda node, local: [self.value(item, local) for item in node.items],
            For: lambda node, local: [self.value(node.body, each) for each in self.rounds(node, local)],
            Unary: self._unary,
            Binary: self._binary,
            Ternary: self._ternary,
            Access: self._access,
            Call: self._call,
            Lambda: self._lambda,
        }

    def value(self, node: Expression, local: Locals = NOTHING) -> Any:
        return self._rules[type(node)](node, local)

    def rounds(self, node: For, local: Locals = NOTHING) -> Iterator[Locals]:
        """The names of each round of a loop that its condition lets through."""
        for index, item in enumerate(self.value(node.items, local)):
            names = {**local, node.item: item, **({node.index: index} if node.index else {})}
            if node.condition is None or self._truth(node.condition, names):
                yield names

    def _truth(self, node: Expression, local: Locals) -> bool:
        found = self.value(node, local)
        if not isinstance(found, bool):
            raise BicepEvaluationError(f"a condition comes to {found!r}, a bool is accepted")
        return found

    def _text(self, node: Text, local: Locals) -> str:
        parts = [part if isinstance(part, str) else self.value(part, local) for part in node.parts]
        return "".join(text_of(part) for part in parts)

    def _name(self, node: Name, local: Locals) -> Any:
        return local[node.name] if node.name in local else self._lookup(node.name)

    def _object(self, node: Object, local: Locals) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for entry in node.entries:
            key = self.value(entry.key, local)
            if key in found:
                raise BicepEvaluationError(f"an object has {key!r} twice")
            found[key] = self.value(entry.value, local)
        return found

    def _unary(self, node: Unary, local: Locals) -> Any:
        return (
            not self._truth(node.operand, local) if node.operator == "!" else -self.value(node.operand, local)
        )

    def _binary(self, node: Binary, local: Locals) -> Any:
        if node.operator == "&&":
            return self._truth(node.left, local) and self._truth(node.right, local)
        if node.operator == "||":
            return self._truth(node.left, local) or self._truth(node.right, local)
        left = self.value(node.left, local)
        if node.operator == "??":
            return self.value(node.right, local) if left is None else left
        return BINARY[node.operator](left, self.value(node.right, local))

    def _ternary(self, node: Ternary, local: Locals) -> Any:
        return self.value(node.then if self._truth(node.condition, local) else node.otherwise, local)

    def _access(self, node: Access, local: Locals) -> Any:
        target, index = self.value(node.target, local), self.value(node.index, local)
        if isinstance(target, NotDeployed):
            raise BicepEvaluationError(f"{target.name} is not deployed, and its {index} is read")
        if node.safe and (target is None or (isinstance(target, dict) and index not in target)):
            return None
        try:
            return target[index]
        except (KeyError, IndexError, TypeError):
            raise BicepEvaluationError(f"there is no {index!r} in {_brief(target)}") from None

    def _call(self, node: Call, local: Locals) -> Any:
        if node.function not in self._functions:
            raise BicepEvaluationError(f"the function {node.function} is not known")
        given = [self.value(argument, local) for argument in node.arguments]
        try:
            return self._functions[node.function](*given)
        except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise BicepEvaluationError(
                f"{node.function}({', '.join(map(_brief, given))}): {error}"
            ) from error

    def _lambda(self, node: Lambda, local: Locals) -> Function:
        def called(*given: Any) -> Any:
            names = dict(zip(node.parameters, given, strict=True))
            return self.value(node.body, {**local, **names})

        return called


def names_in(node: Expression | Entry) -> Iterator[str]:
    """Names that an expression uses, those of its own loops and functions left out."""
    bound: set[str] = set()
    match node:
        case Name(name):
            yield name
        case For(item, index, _items, _condition, _body):
            bound = {item, *([index] if index else [])}
        case Lambda(parameters, _body):
            bound = set(parameters)
    for child in _children(node):
        yield from (name for name in names_in(child) if name not in bound)


def functions_called(node: Expression | Entry) -> Iterator[str]:
    if isinstance(node, Call):
        yield node.function
    for child in _children(node):
        yield from functions_called(child)


def _children(node: Expression | Entry) -> list[Expression | Entry]:
    match node:
        case Text(parts):
            return [part for part in parts if not isinstance(part, str)]
        case Object(entries):
            return list(entries)
        case Entry(key, value):
            return [key, value]
        case Array(items):
            return list(items)
        case For(_item, _index, items, condition, body):
            return [items, *([condition] if condition is not None else []), body]
        case Unary(_operator, operand):
            return [operand]
        case Binary(_operator, left, right):
            return [left, right]
        case Ternary(condition, then, otherwise):
            return [condition, then, otherwise]
        case Access(target, index, _safe):
            return [target, index]
        case Call(_function, arguments):
            return list(arguments)
        case Lambda(_parameters, body):
            return [body]
    return []


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
