"""Values in conditions of subscription rules: comparing, matching and calculating with what may be unknown (None). Pure."""

import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any
from uuid import UUID

INTEGERS = range(-(2**63), 2**63)


class EvaluationError(Exception):
    """A condition or action that cannot be evaluated for a message."""


def truth(value: Any) -> bool | None:
    """Raises EvaluationError for what is neither true nor false, nor unknown."""
    if value is None:
        return None
    if isinstance(value, bool):
        return value
    raise EvaluationError(f"{value!r} is neither true nor false")


def negated(value: bool | None) -> bool | None:  # noqa: FBT001 - a truth value
    return None if value is None else not value


def joined(values: Iterable[bool | None], *, decisive: bool) -> bool | None:
    """AND (False decides) and OR (True does): an unknown one leaves it open unless another decides."""
    unknown = False
    for value in values:
        if value is decisive:
            return decisive
        unknown = unknown or value is None
    return None if unknown else not decisive


def _kind(value: Any) -> type:
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return UUID if isinstance(value, UUID) else str if isinstance(value, str) else type(value)


def _equal(left: Any, right: Any) -> bool:
    if {_kind(left), _kind(right)} == {UUID, str}:
        return str(left).casefold() == str(right).casefold()
    return _kind(left) is _kind(right) and bool(left == right)


def compare(operator: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if operator == "=":
        return _equal(left, right)
    if operator in ("<>", "!="):
        return not _equal(left, right)
    if _kind(left) is not _kind(right) or _kind(left) not in (float, str):
        raise EvaluationError(f"{left!r} {operator} {right!r}: these have no order")
    ordered: int = (left > right) - (left < right)
    return {"<": ordered < 0, "<=": ordered <= 0, ">": ordered > 0, ">=": ordered >= 0}[operator]


def is_in(value: Any, choices: list[Any]) -> bool | None:
    return joined((compare("=", value, choice) for choice in choices), decisive=True)


def like(value: Any, pattern: Any, escape: Any) -> bool | None:
    if value is None or pattern is None:
        return None
    if not isinstance(value, str) or not isinstance(pattern, str):
        raise EvaluationError(f"{value!r} LIKE {pattern!r}: accepted are texts")
    if escape is not None and (not isinstance(escape, str) or len(escape) != 1):
        raise EvaluationError(f"ESCAPE {escape!r}, accepted: one character")
    return _pattern(pattern, escape).fullmatch(value) is not None


@lru_cache(maxsize=256)
def _pattern(text: str, escape: str | None) -> re.Pattern[str]:
    parts, characters = [], iter(text)
    for character in characters:
        if character == escape:
            parts.append(re.escape(next(characters, "")))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.compile("".join(parts), re.DOTALL)


def arithmetic(operator: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        return left + right
    if _kind(left) is not float or _kind(right) is not float:
        raise EvaluationError(f"{left!r} {operator} {right!r}: accepted are numbers")
    if operator in "/%" and right == 0:
        raise EvaluationError(f"{left!r} {operator} 0")
    try:
        result = _OPERATORS[operator](left, right)
    except OverflowError:
        raise EvaluationError(f"{left!r} {operator} {right!r} is out of range") from None
    if isinstance(result, int) and result not in INTEGERS:
        raise EvaluationError(f"{left!r} {operator} {right!r} is no integer of 64 bits")
    return result


def _divide(left: Any, right: Any) -> Any:
    """Integers are cut towards zero, as C# does it."""
    if not isinstance(left, int) or not isinstance(right, int):
        return left / right
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left - right * _divide(left, right)
    return math.fmod(left, right)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "%": _remainder,
}
