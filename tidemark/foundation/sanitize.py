"""Texts that cross a border: what may not leave with them, and what may not enter with them. Pure.

`without_secrets` is for whatever leaves: queue messages, the log, tables, HTTP answers, a terminal. SDKs put
connection strings and signed addresses into their exceptions, and people paste them where a name belongs.
`one_line` is for whatever came from a person or another service and is shown as part of a line: nothing in
it can begin a line of its own, move a cursor, or turn the reading direction.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from tidemark.foundation.secrets.known import without_known
from tidemark.foundation.secrets.patterns import kind_of_secret, without_spelt

_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+ *")
_JOINERS = frozenset("\u200c\u200d")  # invisible, and part of ordinary words in Persian and Hindi


def secret_in(text: str) -> str | None:
    """What kind of secret `text` is or holds by its spelling, in words; None for none that can be recognised. What this
    process knows by value does not count: a name in a file may equal a password.
    """
    return kind_of_secret(text)


def without_secrets(text: str) -> str:
    """`text` with the secrets in it replaced by `***`: those that this process knows by value, and those that can be
    recognised. Names, hosts and everything else stay readable. Cut a text after this, not before: of half a secret nothing
    is recognised.
    """
    return without_spelt(without_known(text))


def one_line(text: str) -> str:
    """`text` as part of one line: line breaks become spaces, other invisible characters their escapes."""
    if text.isprintable():
        return text
    return "".join(map(_visible, _BREAKS.sub(" ", text)))


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def sanitize_line(text: str) -> str:
    """`text` as it may leave in a line: without secrets, and without what could begin another line."""
    return one_line(without_secrets(text))


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters of `text` as it may leave. It is cut last: half a secret is recognised by nobody."""
    return sanitize_line(text)[:limit]


def map_texts(value: Any, text: Callable[[str], str], number: Callable[[int], int | None] = int) -> Any:
    """A value as JSON has them, with `text` applied to each text and each name in it, and `number` to whole numbers."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(name)): map_texts(each, text, number) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(each, text, number) for each in value]
    return number(value) if isinstance(value, int) and not isinstance(value, bool) else value


def json_without_secrets(value: object) -> bytes:
    """`value` as JSON without the secrets that this process knows by value. Texts that only look like secrets stay: whoever
    asks for a dead letter as JSON gets the event that was received.
    """
    data = msgspec.json.encode(value)
    if not knows_secret_in_json(data.decode()):
        return data
    # Text by text: in the whole, a secret that ends with a backslash would take the next quotation mark along.
    return msgspec.json.encode(map_texts(msgspec.json.decode(data), without_known))


def knows_secret_in_json(text: str) -> bool:
    """Whether a text of this JSON may hold a secret that this process knows by value, in whatever form it had before."""
    plain = text.replace('\\"', '"').replace("\\\\", "\\")  # in this order, each backslash is undone once
    return without_known(plain) != plain or without_known(text) != text


def error_text(error: BaseException) -> str:
    """What an exception says of itself. Never raises: one of somebody's own may fail to tell its words, or tell
    what no message can carry.
    """
    try:
        return str(error).encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    except Exception:  # see above
        return "its own words cannot be had"


def describe_error(error: BaseException) -> str:
    """An unexpected exception in words that may leave: its type, and its text without secrets, on one line."""
    return sanitize_line(f"{type(error).__name__}: {error_text(error)}")


class HiddenError(RuntimeError):
    """Stands for an exception that had a secret in its text: its type and its text without it."""


@contextmanager
def raise_without_secrets() -> Iterator[None]:
    """For the outermost call of an invocation: what it raises is written into the host's log."""
    try:
        yield
    except Exception as error:
        shown = "".join(traceback.format_exception(error))  # its causes are shown, too
        if without_secrets(shown) == shown:
            raise
        raise HiddenError(describe_error(error)) from None
