"""Conditions on documents and events, for `filter` and `when`; compiled once, evaluated without `eval`.

Grammar: Python's expressions, cut down to constants (texts, numbers, true, false, null), paths, `@` values of the event,
comparisons, `in`, `and or not`, and calls of the functions below. A path is written with dots (`order.number`) or
slashes (`/order/number`, also for names that no identifier can be: `/content-type`, `/from`, `/"a b"`).

A missing value reads as null. null equals only null, is false in `and`, `or`, `not`, and every `<`, `<=`, `>`, `>=` with
it is false. Equality is JSON's: values of different kinds differ (`1` is not `true`, `"1"` is not `1`). What has no
meaning, such as `"a" < 1` or `not 5`, is reported with the path (WrongTypeError): the event is rejected instead of being
taken for something that it is not.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from msgspec import UNSET

from consumer.mapping.steps.paths import WrongTypeError, kind, look_up, path_text, read_single_path
from consumer.model import Event
from tidemark.foundation.expressions.parsing import Compiler, ExpressionError, parsed, part_text

Term = Callable[[Any, Event], Any]
"""From a document and its event to a value; a missing one is None. Raises WrongTypeError."""

_SEGMENT = r"""/(?:"[^"]+"|[^\s/"'()\[\],<>=!]+)"""
_TOKEN = re.compile(
    rf"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | @property\b | @(?P<name>\w+) | (?P<path>(?:{_SEGMENT})+)""",
    re.VERBOSE,
)
_EVENT: dict[str, Callable[[Event], Any]] = {
    "partition": lambda event: event.partition,
    "sequence_number": lambda event: event.sequence_number,
    "enqueued_at": lambda event: event.enqueued_at,
    "partition_key": lambda event: event.partition_key,
    "content_type": lambda event: event.content_type,
    "properties": lambda event: dict(event.properties),
}
_CONSTANTS = {"true": True, "false": False, "null": None}

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ORDERED = ((int, float, Decimal), (str,), (date,))


class Condition:
    """A compiled condition."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str) -> None:
        """Raises ExpressionError."""
        self._evaluate = compiled(text)
        self.text = text

    def __call__(self, document: Any, event: Event) -> bool:
        """Whether it holds; null counts as false. Raises WrongTypeError for any other value than true, false and null."""
        return _truth(self._evaluate(document, event), self.text)


def compiled(text: str) -> Term:
    """The function that computes `text`. Raises ExpressionError."""
    if not text.strip():
        raise ExpressionError("the expression is empty; a comparison such as type == 'landed' is accepted")
    rewritten = _TOKEN.sub(_python, " ".join(text.splitlines()))
    try:
        tree = parsed(rewritten, source=text)
    except ExpressionError as error:
        raise ExpressionError(f"{error}{_advice(text)}") from None
    return _compile(tree, None, 0)


def value_term(text: str) -> Term:
    """The value that an option such as `id` names: a path, or a value of the event such as `@partition_key`.

    Raises ExpressionError.
    """
    if text.startswith("@"):
        return compiled(text[1:] if text.startswith("@/") else text)
    try:
        return _of_path(read_single_path(text))
    except ValueError as error:
        raise ExpressionError(str(error)) from None


def _python(token: re.Match[str]) -> str:
    """What Python's grammar lacks, as calls: `at('/a/b')` for a path, `event('partition')` for `@partition`."""
    if token["path"]:
        return f" at({token['path']!r})"
    if token["name"]:
        return f"event({token['name']!r})"
    return token[0].removeprefix("@")


_ADVICE = (
    (r"(?<![=<>!])=(?!=)", "equality is written =="),
    (r"&&|\|\|", "write and, or"),
    (r"!(?!=)", "write not"),
    (r"[\w)\]]/", "a path with slashes begins with one; there is no division"),
    (
        r"(?<!/)\b(from|class|import|is|if|else|for|with|as|pass|return|global|del|def|try|while|lambda)\b",
        "a field of this name is written with a slash, such as /from",
    ),
)


def _advice(text: str) -> str:
    bare = _TOKEN.sub(lambda token: token["path"] or "", text)
    return "".join(f"; {advice}" for pattern, advice in _ADVICE if re.search(pattern, bare))


def _of_path(path: tuple[str, ...]) -> Term:
    def value(document: Any, _event: Event) -> Any:
        member = look_up(document, path)
        return None if member is UNSET else member

    return value


def _label(node: ast.expr) -> str:
    """A part of an expression as the user wrote it."""
    path = _path_of(node)
    if path is not None:
        return path_text(path)
    text = re.sub(r"\bevent\('(\w+)'\)", r"@\1", part_text(node))
    return re.sub(r"\bat\('([^']*)'\)", r"\1", text).replace("property(", "@property(")


def _path_of(node: ast.expr) -> tuple[str, ...] | None:
    """The path that a part is; None for any other part. Raises ExpressionError for a wrong one."""
    match node:
        case ast.Name(id=name) if name not in _CONSTANTS:
            return (name,)
        case ast.Attribute(value=inner, attr=name):
            around = _path_of(inner)
            return None if around is None else (*around, name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as key)):
            around = _path_of(inner)
            return None if around is None or isinstance(key, bool) else (*around, str(key))
        case ast.Call(func=ast.Name(id="at"), args=[ast.Constant(value=str(text))], keywords=[]):
            try:
                return read_single_path(text)
            except ValueError as error:
                raise ExpressionError(str(error)) from None
    return None


def _path(node: ast.expr, _context: None, _depth: int) -> Term:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        constant = _CONSTANTS[node.id]
        return lambda _document, _event: constant
    path = _path_of(node)
    if path is None:
        raise ExpressionError(f"'{_label(node)}' is not accepted; a path such as order.number is")
    return _of_path(path)


def _constant(node: ast.Constant, _context: None, _depth: int) -> Term:
    value = node.value
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise ExpressionError(
            f"'{part_text(node)}' is not accepted; a text, a number, true, false or null is"
        )
    return lambda _document, _event: value


def _list(node: ast.List | ast.Tuple, context: None, depth: int) -> Term:
    parts = [_compile(part, context, depth) for part in node.elts]
    return lambda document, event: [part(document, event) for part in parts]


def _unary(node: ast.UnaryOp, context: None, depth: int) -> Term:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            negative = -number
            return lambda _document, _event: negative
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            operand, label = _compile(inner, context, depth), _label(inner)
            return lambda document, event: not _truth(operand(document, event), label)
    raise ExpressionError(f"'{_label(node)}' is not accepted; - stands before numbers only")


def _boolean(node: ast.BoolOp, context: None, depth: int) -> Term:
    operands = [(_compile(part, context, depth), _label(part)) for part in node.values]
    decisive = isinstance(node.op, ast.Or)

    def evaluate(document: Any, event: Event) -> bool:
        for operand, label in operands:
            if _truth(operand(document, event), label) is decisive:
                return decisive
        return not decisive

    return evaluate


def _truth(value: Any, label: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise WrongTypeError(f"'{label}' is {kind(value)}; expected true, false or null")


def _compare(node: ast.Compare, context: None, depth: int) -> Term:
    parts = [node.left, *node.comparators]
    terms, labels = [_compile(part, context, depth) for part in parts], [_label(part) for part in parts]
    steps = []
    for position, op in enumerate(node.ops):
        step = _COMPARE.get(type(op)) or (_ordered(_ORDER[type(op)]) if type(op) in _ORDER else None)
        if step is None:
            raise ExpressionError(
                f"'{_label(node)}': accepted are < <= > >= == != in, not in; compare with null by =="
            )
        steps.append((step, terms[position + 1], labels[position], labels[position + 1]))

    def evaluate(document: Any, event: Event) -> bool:
        left = terms[0](document, event)
        for step, term, left_label, right_label in steps:
            right = term(document, event)
            if not step(left, right, left_label, right_label):
                return False
            left = right
        return True

    return evaluate


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any, str, str], bool]:
    def holds(left: Any, right: Any, left_label: str, right_label: str) -> bool:
        if left is None or right is None:
            return False
        if isinstance(left, bool) or isinstance(right, bool) or not _are_comparable(left, right):
            raise WrongTypeError(
                f"'{left_label}' is {kind(left)} and '{right_label}' is {kind(right)}; expected two numbers or two texts"
            )
        try:
            return compare(left, right)
        except TypeError:  # one time with a zone, and one without
            raise WrongTypeError(f"'{left_label}' and '{right_label}' cannot be compared") from None

    return holds


def _are_comparable(left: Any, right: Any) -> bool:
    return any(isinstance(left, kinds) and isinstance(right, kinds) for kinds in _ORDERED)


def _equal(left: Any, right: Any) -> bool:
    """Equality of JSON: Python's `==` takes true for 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(value, right[name]) for name, value in left.items())
    return bool(left == right)


def _contains(item: Any, collection: Any, _item_label: str, label: str) -> bool:
    if collection is None:
        return False
    if isinstance(collection, list):
        return any(_equal(item, member) for member in collection)
    raise WrongTypeError(f"'{label}' is {kind(collection)}; expected a list after 'in'")


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any, str, str], bool]] = {
    ast.Eq: lambda left, right, _left_label, _right_label: _equal(left, right),
    ast.NotEq: lambda left, right, _left_label, _right_label: not _equal(left, right),
    ast.In: _contains,
    ast.NotIn: lambda *values: not _contains(*values),
}

_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, Any]] = {  # name: (function, arguments, of no value)
    "starts_with": (str.startswith, 2, False),
    "ends_with": (str.endswith, 2, False),
    "contains": (operator.contains, 2, False),
    "lower": (str.lower, 1, None),
    "upper": (str.upper, 1, None),
    "trim": (str.strip, 1, None),
}
"""Functions of texts; with a null argument they give the value of no value."""


def _call(node: ast.Call, context: None, depth: int) -> Term:
    called = node.func.id if isinstance(node.func, ast.Name) and not node.keywords else ""
    match called, node.args:
        case "at", _:
            return _path(node, context, depth)
        case "exists", [asked] if (path := _path_of(asked)) is not None:
            return lambda document, _event: look_up(document, path) is not UNSET
        case "exists", [
            ast.Call(func=ast.Name(id="property"), args=[ast.Constant(value=str(name))], keywords=[])
        ]:
            return lambda _document, event: name in event.properties
        case "property", [ast.Constant(value=str(name))]:
            return lambda _document, event: event.properties.get(name)
        case "event", [ast.Constant(value=str(name))] if name in _EVENT:
            read = _EVENT[name]
            return lambda _document, event: read(event)
        case "event", _:
            accepted = ", ".join(f"@{name}" for name in _EVENT)
            raise ExpressionError(f"'{_label(node)}' is not accepted; {accepted}, @property('name') are")
        case "kind", [argument]:
            term = _compile(argument, context, depth)
            return lambda document, event: _kind(term(document, event))
        case "length", [argument]:
            return _length(_compile(argument, context, depth), _label(argument))
    if called not in _FUNCTIONS or len(node.args) != _FUNCTIONS[called][1]:
        raise ExpressionError(f"'{_label(node)}' is not accepted; functions are {_functions()}")
    return _of_texts(called, node.args, [_compile(part, context, depth) for part in node.args])


def _kind(value: Any) -> str:
    """`kind(x)`: text, number, boolean, object, list or null."""
    return "boolean" if isinstance(value, bool) else kind(value).removeprefix("an ").removeprefix("a ")


def _length(term: Term, label: str) -> Term:
    def evaluate(document: Any, event: Event) -> int | None:
        value = term(document, event)
        if value is None or isinstance(value, str | list | dict):
            return None if value is None else len(value)
        raise WrongTypeError(f"'{label}' is {kind(value)}; length() expects a text, a list or an object")

    return evaluate


def _of_texts(name: str, parts: list[ast.expr], terms: list[Term]) -> Term:
    function, _, of_nothing = _FUNCTIONS[name]
    labels = list(map(_label, parts))

    def evaluate(document: Any, event: Event) -> Any:
        values = [term(document, event) for term in terms]
        if None in values:
            return of_nothing
        for value, label in zip(values, labels, strict=True):
            if not isinstance(value, str):
                raise WrongTypeError(f"'{label}' is {kind(value)}; {name}() expects a text")
        return function(*values)

    return evaluate


def _functions() -> str:
    texts = [f"{name}({', '.join('xy'[:count])})" for name, (_, count, _) in _FUNCTIONS.items()]
    return ", ".join(["exists(path)", "length(x)", "kind(x)", *texts, "@property('name')"])


_HANDLERS: dict[type[ast.expr], Callable[..., Term]] = {
    ast.Attribute: _path,
    ast.BoolOp: _boolean,
    ast.Call: _call,
    ast.Compare: _compare,
    ast.Constant: _constant,
    ast.List: _list,
    ast.Name: _path,
    ast.Subscript: _path,
    ast.Tuple: _list,
    ast.UnaryOp: _unary,
}
_compile: Compiler[Term] = Compiler(
    _HANDLERS,
    lambda: f"paths, constants, comparisons, in, and/or/not, a list in brackets, and {_functions()}",
)
