"""The functions of the query language that are known here, and its aggregates.

A scalar function returns UNSET (undefined) for arguments of the wrong type.
"""

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from devstack.cosmos.query.values import rank, sort_key

Function = Callable[..., Any]


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _on_strings(test: Callable[[str, str], Any]) -> Function:
    def apply(text: Any, part: Any, ignore_case: Any = False) -> Any:  # noqa: FBT002 - called by position only
        if not isinstance(text, str) or not isinstance(part, str):
            return UNSET
        return test(text.casefold(), part.casefold()) if ignore_case is True else test(text, part)

    return apply


def _on_string(change: Callable[[str], Any]) -> Function:
    return lambda text: change(text) if isinstance(text, str) else UNSET


def _on_number(change: Callable[[float], Any]) -> Function:
    return lambda number: change(number) if is_number(number) else UNSET


def _substring(text: Any, start: Any, length: Any) -> Any:
    if not isinstance(text, str) or not is_number(start) or not is_number(length):
        return UNSET
    return text[int(start) : int(start) + int(length)]


def _concat(*parts: Any) -> Any:
    return "".join(parts) if all(isinstance(part, str) for part in parts) else UNSET


def _array_contains(array: Any, wanted: Any, partial: Any = False) -> Any:  # noqa: FBT002 - called by position only
    if not isinstance(array, list):
        return UNSET
    if partial is True and isinstance(wanted, dict):
        return any(isinstance(item, dict) and wanted.items() <= item.items() for item in array)
    return any(rank(item) == rank(wanted) and item == wanted for item in array)


def _array_length(array: Any) -> Any:
    return len(array) if isinstance(array, list) else UNSET


def _matches(text: Any, pattern: Any, flags: Any = "") -> Any:
    if not isinstance(text, str) or not isinstance(pattern, str) or not isinstance(flags, str):
        return UNSET
    return re.search(pattern, text, re.IGNORECASE if "i" in flags else 0) is not None


def _to_number(text: Any) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except (TypeError, ValueError):
        return UNSET


def _power(base: Any, exponent: Any) -> Any:
    return base**exponent if is_number(base) and is_number(exponent) else UNSET


SCALARS: dict[str, Function] = {
    "ABS": _on_number(abs),
    "ARRAY_CONTAINS": _array_contains,
    "ARRAY_LENGTH": _array_length,
    "CEILING": _on_number(math.ceil),
    "CONCAT": _concat,
    "CONTAINS": _on_strings(lambda text, part: part in text),
    "ENDSWITH": _on_strings(str.endswith),
    "FLOOR": _on_number(math.floor),
    "INDEX_OF": _on_strings(str.find),
    "IS_ARRAY": lambda value: isinstance(value, list),
    "IS_BOOL": lambda value: isinstance(value, bool),
    "IS_DEFINED": lambda value: value is not UNSET,
    "IS_NULL": lambda value: value is None,
    "IS_NUMBER": is_number,
    "IS_OBJECT": lambda value: isinstance(value, dict),
    "IS_STRING": lambda value: isinstance(value, str),
    "LENGTH": _on_string(len),
    "LOWER": _on_string(str.lower),
    "LTRIM": _on_string(str.lstrip),
    "POWER": _power,
    "REGEXMATCH": _matches,
    "ROUND": _on_number(lambda number: math.floor(number + 0.5)),
    "RTRIM": _on_string(str.rstrip),
    "STARTSWITH": _on_strings(str.startswith),
    "STRINGEQUALS": _on_strings(str.__eq__),
    "STRINGTONUMBER": _to_number,
    "SUBSTRING": _substring,
    "TOSTRING": lambda value: UNSET if value is UNSET else value if isinstance(value, str) else str(value),
    "TRIM": _on_string(str.strip),
    "UPPER": _on_string(str.upper),
}


CLOCKS: dict[str, Callable[[float], Any]] = {
    "GETCURRENTDATETIME": lambda now: datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0Z"),
    "GETCURRENTTICKS": lambda now: int(now * 10_000_000),
    "GETCURRENTTIMESTAMP": lambda now: int(now * 1000),
}
"""Functions of the time in seconds since 1970, one and the same for the whole of a query."""


def _count(values: Iterable[Any]) -> int:
    return sum(value is not UNSET for value in values)


def _sum(values: Iterable[Any]) -> Any:
    defined = [value for value in values if value is not UNSET]
    return sum(defined) if all(map(is_number, defined)) else UNSET


def _average(values: Iterable[Any]) -> Any:
    defined = [value for value in values if value is not UNSET]
    return sum(defined) / len(defined) if defined and all(map(is_number, defined)) else UNSET


def _extreme(choose: Callable[..., Any]) -> Callable[[Iterable[Any]], Any]:
    def apply(values: Iterable[Any]) -> Any:
        return choose((value for value in values if value is not UNSET), key=sort_key, default=UNSET)

    return apply


AGGREGATES: dict[str, Callable[[Iterable[Any]], Any]] = {
    "AVG": _average,
    "COUNT": _count,
    "MAX": _extreme(max),
    "MIN": _extreme(min),
    "SUM": _sum,
}
