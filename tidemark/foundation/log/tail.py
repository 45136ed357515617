"""Adds a tail to a log line: the content of the line again, as one JSON object for queries. Pure.

Application Insights keeps the text, the level and the logger's name of a line that a Python function logs, and no `extra` fields.
So the fields for queries are part of the text:

    scaling plan-orders out 1 -> 3: average backlog 812 > 250 ... [plan-orders@...]; {"tidemark":1,"kind":"decision",...}

A query reads the text from the last `{"tidemark":` on. That text cannot occur within a tail, because JSON escapes the quotation
marks of a value; and an earlier one, for example from an operator, is not the last.
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
"""The version of the fields' names and meanings. New fields do not change it."""

MARK = '{"tidemark":'

SEPARATOR = "; "
"""The semicolon also ends a text before the tail that `sanitize` could take for the beginning of a secret."""

MAX_LINE = 30_000
"""Characters of the longest line. Application Insights cuts a message at 32,768, and a cut tail is unreadable."""

MAX_TAIL = 16_000
"""Characters of the longest tail. Chosen: half of MAX_LINE, so that the sentence before it always fits."""
_FRAME, _AROUND = 100, 4
"""Characters of a tail besides its fields, and of a field besides its name and value."""

MAX_TEXT = 1_000
"""Characters of the longest text within a tail. Chosen."""


class Line(str):
    """A log line for people, together with its fields. It can be used as a plain text."""

    __slots__ = ("fields", "kind")

    kind: str
    fields: Mapping[str, Any]

    def __new__(cls, text: str, kind: str, fields: Mapping[str, Any]) -> Self:
        """`fields` have values that JSON can represent. Fields that are None are omitted."""
        line = super().__new__(cls, text)
        line.kind, line.fields = kind, fields
        return line


def log_line(line: str) -> str:
    """The line for the log: one line without secrets, with a tail if it has fields."""
    text = sanitize_line(line)
    if not isinstance(line, Line):
        return text[:MAX_LINE]
    tail = _tail(line.kind, line.fields)
    if knows_secret_in_json(tail):
        tail = _tail_without_secrets(tail) or tail
    return f"{text[: MAX_LINE - len(SEPARATOR) - len(tail)]}{SEPARATOR}{tail}"


def line_without_secrets(text: str) -> str:
    """Any line without secrets. The texts in a tail are searched one by one, so that it stays JSON: in the whole tail, a value
    could seem to begin with the quotation mark that ends another.
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
    """A logged line for people at a terminal."""
    start = text.rfind(SEPARATOR + MARK)
    return text[:start] if start >= 0 and text.endswith("}") else text


def _tail(kind: str, fields: Mapping[str, Any]) -> str:
    """The tail. Fields that do not fit are omitted, the longest first, and named in `cut`. Never raises, because a line that
    cannot be logged must not undo the work that it reports.
    """
    values: dict[str, str] = {}
    cut: list[str] = []
    for name, value in fields.items():
        if value is not None:
            try:
                values[_clean(name)] = _json(_clean(value))
            except (TypeError, ValueError, RecursionError):  # a user's rule may give an object or a circle
                cut.append(_clean(name))
    size = _FRAME + len(kind) + sum(len(name) + len(text) + _AROUND for name, text in values.items())
    for name in sorted(values, key=lambda name: len(values[name]), reverse=True):
        if size <= MAX_TAIL:
            break
        cut.append(name)
        size -= len(values.pop(name))
    members = {name: msgspec.Raw(text.encode()) for name, text in values.items()}
    whole = {"tidemark": SCHEMA, "kind": kind, **members}
    return _json(whole | {"cut": cut} if cut else whole)


def _json(value: Any) -> str:
    """The value as JSON. An infinite number, and one beyond 64 bits, is null, which means unknown."""
    return msgspec.json.encode(value).decode()


def _text(value: str) -> str:
    return sanitize_line(value.encode("utf-8", "replace").decode())[:MAX_TEXT]


@lru_cache(2_000)
def _word(value: str) -> str:
    """Hide only recognised secrets, so that the result can be cached. Secrets known by value are hidden in the finished tail."""
    return one_line(without_spelt(value.encode("utf-8", "replace").decode()))


WORD = 60
"""Characters of the longest text that is cached: names of fields, targets and metrics, and reasons, which recur in every line. Chosen."""


def _quickly(value: str) -> str:
    return _word(value) if len(value) <= WORD else _text(value)


def _clean(value: Any, text: Callable[[str], str] = _quickly) -> Any:
    return map_texts(value, text, number=lambda whole: whole if abs(whole) < 2**63 else None)
