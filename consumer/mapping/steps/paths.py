"""Paths into documents: `/order/number`, `order.number`, `/legs/0/from`, `/legs/*/from`.

After a slash at the beginning, dots belong to names. A number is an index where the document has a list, and `*` stands
for all elements of a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from consumer.mapping.paths import Path, parse_path
from tidemark.foundation.errors import SettingsError

EVERY = "*"


class WrongTypeError(Exception):
    """A document has something that a step or a route cannot use; the message names the path."""


def read_path(text: str) -> Path:
    """Raises ValueError."""
    if not text.strip() or text != text.strip():
        raise ValueError(f"found {text!r}; a path is accepted, such as /order/number or order.number")
    try:
        if "/" in text:
            return parse_path(text if text.startswith("/") else f"/{text}")
    except SettingsError as error:
        raise ValueError(str(error)) from None
    if not all(names := tuple(text.split("."))):
        raise ValueError(f"found {text!r}; names with one dot between them are accepted")
    return names


def read_single_path(text: str) -> Path:
    """A path of one value. Raises ValueError."""
    path = read_path(text)
    if EVERY in path:
        raise ValueError(f"found {text!r}; a path of one value is accepted here, without *")
    return path


def path_text(path: Path) -> str:
    return "".join(f'/"{name}"' if "/" in name else f"/{name}" for name in path)


def look_up(document: Any, path: Path) -> Any:
    """The value at a path; UNSET if there is none."""
    for name in path:
        if isinstance(document, dict):
            document = document.get(name, UNSET)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return UNSET
    return document


def places(document: Any, path: Path) -> Iterator[tuple[Any, Any, str]]:
    """The places that exist at a path: the dict or list around it, its key or index there, and the path as text."""
    *parents, last = path
    around = [(document, "")]
    for name in parents:
        around = [(holder[key], f"{text}/{key}") for holder, text in around for key in _keys(holder, name)]
    for holder, text in around:
        for key in _keys(holder, last):
            yield holder, key, f"{text}/{key}"


def _keys(holder: Any, name: str) -> list[Any]:
    """The keys or indexes in `holder` that a name of a path means."""
    if isinstance(holder, dict):
        return [name] if name in holder else []
    if not isinstance(holder, list):
        return []
    if name == EVERY:
        return list(range(len(holder)))
    return [int(name)] if name.isdecimal() and int(name) < len(holder) else []


def put(document: dict[str, Any], path: Path, value: Any) -> None:
    """Sets the value at a path; objects on the way are made. Raises WrongTypeError for another value on the way."""
    *parents, last = path
    holder: Any = document
    for depth, name in enumerate(parents, start=1):
        holder = holder.setdefault(name, {}) if isinstance(holder, dict) else look_up(holder, (name,))
        if not isinstance(holder, dict | list):
            raise WrongTypeError(f"'{path_text(path[:depth])}' is {kind(holder)}; expected an object")
    if isinstance(holder, dict):
        holder[last] = value
    elif keys := _keys(holder, last):
        for key in keys:
            holder[key] = value
    else:
        raise WrongTypeError(f"'{path_text(path[:-1])}' is a list without an element {last}")


def kind(value: Any) -> str:
    """The name of a value's kind, as `kind()` in expressions and messages give it."""
    if value is UNSET:
        return "missing"
    return _KINDS.get(type(value), f"a {type(value).__name__}")


_KINDS = {type(None): "null", bool: "true or false", str: "a text", dict: "an object", list: "a list"}
_KINDS |= {int: "a number", float: "a number"}


def value_text(value: Any, where: str) -> str:
    """A scalar as text: a whole number without a fraction, true and false as in JSON. Raises WrongTypeError for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise WrongTypeError(f"'{where}' is bytes that are not UTF-8; expected a text") from None
    if isinstance(value, dict | list) or value is None or value is UNSET:
        raise WrongTypeError(f"'{where}' is {kind(value)}; expected a text, a number, true or false")
    return str(value)
