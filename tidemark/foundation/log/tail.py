"""The tail of a log line: what the line says, once more for queries, as one JSON object at its end. Pure.

Of what a Python function logs, Application Insights keeps the text, the level and the name of the logger; `extra` fields
are not sent. So what queries need travels in the text:

    scaling plan-orders out 1 -> 3: average backlog 812 > 250 ... [plan-orders@...]; {"tidemark":1,"kind":"decision",...}

A query takes what stands from the last `{"tidemark":` on. Inside of a tail that text cannot stand, as JSON writes the
quotation marks of a value with a backslash; and what was written before it, by an operator say, is not the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Self

import msgspec

from tidemark.foundation.sanitize import (
    knows_secret_in_json,
    map_texts,
    one_line,
    sanitize_line,
    without_secrets,
)
from tidemark.foundation.secrets.patterns import without_spelt

SCHEMA = 1
"""Of the fields' names and meanings; new fields do not change it."""

MARK = '{"tidemark":'

SEPARATOR = "; "
"""The semicolon also ends whatever `sanitize` might take for the beginning of a secret, before the tail."""

MAX_LINE = 30_000
"""Characters. Application Insights cuts a message at 32,768, and a tail that is cut is none."""

MAX_TAIL = 16_000
_FRAME, _AROUND = 100, 4
"""Characters of a tail besides its fields, and of a field besides its name and value."""

MAX_TEXT = 1_000
"""Characters of one text inside a tail."""


class Line(str):
    """A log line for people, with the same in fields; whoever takes it for a text loses nothing but those."""

    __slots__ = ("fields", "kind")

    kind: str
    fields: Mapping[str, Any]

    def __new__(cls, text: str, kind: str, fields: Mapping[str, Any]) -> Self:
        """`fields` are what JSON has, in Python's types; those that are None are left out."""
        line = super().__new__(cls, text)
        line.kind, line.fields = kind, fields
        return line


def log_line(line: str) -> str:
    """`line` as it goes into the log: on one line, without secrets, and with its tail where it has fields."""
    text = sanitize_line(line)
    if not isinstance(line, Line):
        return text[:MAX_LINE]
    tail = _tail(line.kind, line.fields)
    if knows_secret_in_json(tail):
        tail = _tail_without_secrets(tail) or tail
    return f"{text[: MAX_LINE - len(SEPARATOR) - len(tail)]}{SEPARATOR}{tail}"


def line_without_secrets(text: str) -> str:
    """A line that is about to be written, whoever made it. Of a tail the texts are looked into one by one, so that it stays
    what it is: taken as one text, a value could seem to begin with the quotation mark that ends another.
    """
    shown = without_secrets(text)
    start = text.rfind(SEPARATOR + MARK)
    if shown == text or start < 0 or not text.endswith("}"):
        return shown
    tail = _tail_without_secrets(text[start + len(SEPARATOR) :])
    return shown if tail is None else f"{without_secrets(text[:start])}{SEPARATOR}{tail}"


def _tail_without_secrets(tail: str) -> str | None:
    try:
        return _json(_clean(msgspec.json.decode(tail), _text))
    except (msgspec.DecodeError, RecursionError):
        return None


def without_tail(text: str) -> str:
    """A logged line as people read it in a terminal."""
    start = text.rfind(SEPARATOR + MARK)
    return text[:start] if start >= 0 and text.endswith("}") else text


def _tail(kind: str, fields: Mapping[str, Any]) -> str:
    """Fields that do not fit are left out, the longest first, and named in `cut`. Never raises: a line that cannot be
    logged must not undo the work that it tells of.
    """
    found: dict[str, str] = {}
    cut: list[str] = []
    for name, value in fields.items():
        if value is not None:
            try:
                found[_clean(name)] = _json(_clean(value))
            except (
                TypeError,
                ValueError,
                RecursionError,
            ):  # of a rule of the user's own: an object, a circle
                cut.append(_clean(name))
    size = _FRAME + len(kind) + sum(len(name) + len(text) + _AROUND for name, text in found.items())
    for name in sorted(found, key=lambda name: len(found[name]), reverse=True):
        if size <= MAX_TAIL:
            break
        cut.append(name)
        size -= len(found.pop(name))
    members = {name: msgspec.Raw(text.encode()) for name, text in found.items()}
    whole = {"tidemark": SCHEMA, "kind": kind, **members}
    return _json(whole | {"cut": cut} if cut else whole)


def _json(value: Any) -> str:
    """What JSON does not have (a number without end, one beyond 64 bits) is null: an unknown number, as elsewhere."""
    return msgspec.json.encode(value).decode()


def _text(value: str) -> str:
    return sanitize_line(value.encode("utf-8", "replace").decode())[:MAX_TEXT]


@lru_cache(2_000)
def _word(value: str) -> str:
    """By spelling alone: what is known by value may grow, and is looked for in the finished tail."""
    return one_line(without_spelt(value.encode("utf-8", "replace").decode()))


WORD = 60
"""Characters of what may be a name of a field, target or metric, or a reason: the same in every line."""


def _quickly(value: str) -> str:
    return _word(value) if len(value) <= WORD else _text(value)


def _clean(value: Any, text: Callable[[str], str] = _quickly) -> Any:
    return map_texts(value, text, number=lambda each: each if abs(each) < 2**63 else None)
