"""Parses expressions within limits, without `eval`, and compiles them by a table of handlers. Pure.

Both languages, that of rules and that of the consumer's file, are Python's expressions, cut down by a table of handlers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

MAX_LENGTH = 1_000  # characters; chosen: longer than any that a person reads
MAX_DEPTH = 40  # chosen: far below the recursion limit of Python (1,000)

_Evaluate = TypeVar("_Evaluate")


class ExpressionError(ValueError):
    """The text is not an expression we accept; the message says which part and what is accepted."""


def parsed(text: str, *, source: str = "") -> ast.expr:
    """The syntax tree of `text`; messages show `source`, if the text was made from it. Raises ExpressionError."""
    if len(source or text) > MAX_LENGTH:
        raise ExpressionError(
            f"expression of {len(source or text)} characters; at most {MAX_LENGTH} are accepted"
        )
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ExpressionError(f"'{source or text}' is not an expression: {why}") from None


def part_text(node: ast.expr) -> str:
    """A part of an expression, for messages."""
    try:
        return ast.unparse(node)
    except RecursionError:  # hundreds of nested operators inside a part that is refused anyway
        return "a deeply nested part"


class Compiler(Generic[_Evaluate]):
    """Makes functions of syntax trees. A handler gets a node, what the caller passed along, and the depth of its operands."""

    def __init__(
        self, handlers: Mapping[type[ast.expr], Callable[..., _Evaluate]], accepted: Callable[[], str]
    ) -> None:
        self._handlers = handlers
        self._accepted = accepted

    def __call__(self, node: ast.expr, context: Any, depth: int) -> _Evaluate:
        """Raises ExpressionError for a part without a handler, and beyond the greatest depth."""
        if depth > MAX_DEPTH:
            raise ExpressionError(f"expression is nested deeper than {MAX_DEPTH} levels")
        handler = self._handlers.get(type(node))
        if handler is None:
            raise ExpressionError(f"'{part_text(node)}' is not accepted; use {self._accepted()}")
        return handler(node, context, depth + 1)
