"""Numbers, times, counts, and what a type accepts, in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isfinite
from typing import Any

import msgspec
from msgspec import inspect

_WORDS: dict[type[inspect.Type], str] = {
    inspect.AnyType: "any value",
    inspect.NoneType: "nothing",
    inspect.BoolType: "true or false",
    inspect.DateTimeType: "a time",
    inspect.DateType: "a date",
    inspect.StructType: "a table",
    inspect.DictType: "a table",
}
_BOUNDS = {"ge": "from", "gt": "above", "le": "up to", "lt": "below"}


def number_text(value: float) -> str:
    """A number with at most two decimals, or two significant digits below 0.1: 812, 0.25, 12000, 0.0041."""
    if not isfinite(value) or abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.1 else f"{value:.2g}"


def duration_text(seconds: float) -> str:
    """`45 s`, `10 min`, `1 h 30 min`, `2 d`."""
    rounded = round(seconds)
    if rounded < 60 or (rounded < 600 and rounded % 60):
        return f"{rounded} s"
    days, rest = divmod(round(rounded / 60), 1_440)
    hours, minutes = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def count_text(count: int, noun: str, plural: str = "", *, style: str = "") -> str:
    """`0 samples`, `1 sample`, `2 samples`; `plural` if it is irregular, and `style` formats the count: `1,204 samples` with ','."""
    return f"{count:{style}} {noun if count == 1 else plural or f'{noun}s'}"


def percent_text(share: float, decimals: int | None = None) -> str:
    """`8 %`, `0.41 %`: a share in per cent, with so many decimals; two digits, for small shares, where none are named."""
    percent = 100.0 * share
    if decimals is None and abs(percent) < 99.5:
        return f"{percent:.2g} %"
    return f"{percent:.{decimals or 0}f} %"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The known word that is most like an unknown one, as a question; `otherwise` if none is like it."""
    similar = get_close_matches(word, list(known), n=1)
    return f"did you mean '{similar[0]}'?" if similar else otherwise


def time_text(at: float) -> str:
    """A time in UTC, to the second."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"


def file_problem(error: BaseException) -> str:
    """Why a file cannot be used, in words: `Permission denied` of `[Errno 13] Permission denied: 'a.toml'`. The caller names the file."""
    return getattr(error, "strerror", None) or str(error)


def why_refused(value: object, error: msgspec.ValidationError, wanted: Any) -> str:
    """Why `msgspec.convert(value, wanted)` raised `error`: what was found, and what is accepted.

    What the type itself says (`ValueError` in `__post_init__`, an option missing within) stays as it is.
    """
    text = str(error)
    if text.startswith(("Expected ", "Invalid ")):
        place, found, info = _within(value, inspect.type_info(wanted), text)
        return f"found {found!r}{place and f' at {place}'}; accepted: {_described(info)}"
    if (unknown := _UNKNOWN.match(text)) is not None:
        place, _, info = _within(value, inspect.type_info(wanted), text)
        if isinstance(info, inspect.StructType):
            names = ", ".join(field.encode_name for field in info.fields)
            return f"found '{unknown[1]}'{place and f' at {place}'}; accepted: {names}"
    return f"found {value!r}: {text}"


def _within(value: Any, info: inspect.Type, text: str) -> tuple[str, Any, inspect.Type]:
    """The place within a value that an error names (`- at `$[0].on``), what is there, and its type; as far as both can be followed."""
    place = ""
    for index, name in _STEPS.findall(text.rpartition("- at `$")[2]):
        if (
            index
            and isinstance(info, inspect.ListType | inspect.VarTupleType)
            and isinstance(value, list | tuple)
        ):
            value, info = value[int(index)], info.item_type
        elif name and isinstance(info, inspect.StructType) and isinstance(value, Mapping) and name in value:
            fields = {field.encode_name: field.type for field in info.fields}
            value, info = value[name], fields[name]
        else:
            break
        place += f"[{index}]" if index else f".{name}"
    return place, value, info


_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_STEPS = re.compile(r"\[(\d+)\]|\.(\w+)")


def accepted(wanted: Any) -> str:
    """The values of a type, such as `text`, `a whole number from 1`, `a list of text`."""
    return _described(inspect.type_info(wanted))


def _described(info: inspect.Type) -> str:
    match info:
        case inspect.UnionType():
            return " or ".join(_described(one) for one in info.types if not isinstance(one, inspect.NoneType))
        case inspect.EnumType():
            return ", ".join(str(one.value) for one in info.cls)
        case inspect.LiteralType():
            return ", ".join(map(str, info.values))
        case inspect.StrType():
            return "text, not empty" if info.min_length == 1 else "text"
        case inspect.IntType():
            return " ".join(["a whole number", *_limits(info)])
        case inspect.FloatType():
            return " ".join(["a number", *_limits(info)])
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return f"a list of {_described(info.item_type)}{', not empty' if info.min_length else ''}"
        case inspect.TupleType():
            return f"a list of {', '.join(map(_described, info.item_types))}"
    return _WORDS.get(type(info)) or type(info).__name__.removesuffix("Type").lower()


def _limits(info: inspect.IntType | inspect.FloatType) -> Iterator[str]:
    for name, words in _BOUNDS.items():
        limit = getattr(info, name)
        if limit is not None:
            yield f"{words} {limit:g}"
