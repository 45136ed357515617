"""Cleans texts that leave or enter the process. Pure.

`without_secrets` is for every text that leaves: queue messages, the log, tables, HTTP answers, a terminal. SDKs put connection
strings and signed addresses into their exceptions, and people paste them in place of a name. `one_line` is for texts of a person
or another service that are shown within a line: they can start no new line, move no cursor, and not turn the reading direction.
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
_TLS_OBJECT = re.compile(r"(Cannot connect to host \S+) ssl:(?:<[^>]*>|\w+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_JOINERS = frozenset("\u200c\u200d")  # invisible, and part of ordinary words in Persian and Hindi


def secret_in(text: str) -> str | None:
    """The kind of secret that `text` is or contains, by how it is written, in words; None without one. Secrets that this
    process knows by value do not count, because a name in a file may equal a password.
    """
    return kind_of_secret(text)


def without_secrets(text: str) -> str:
    """`text` with `***` in place of its secrets: those that this process knows by value, and those that are recognised. Names,
    hosts and everything else stay readable. Shorten a text after this call: half a secret is not recognised.
    """
    return without_spelt(without_known(text))


def one_line(text: str) -> str:
    """`text` as part of one line, without colours: line breaks become spaces, other invisible characters their escapes."""
    if text.isprintable():
        return text
    return "".join(map(_visible, _BREAKS.sub(" ", _COLOURS.sub("", text))))


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def sanitize_line(text: str) -> str:
    """`text` on one line and without secrets."""
    return one_line(without_secrets(_COLOURS.sub("", text)))  # a secret with a colour in it is not recognised


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters of `text`, on one line and without secrets. It is cut last, as half a secret is not recognised."""
    return sanitize_line(text)[:limit]


def map_texts(value: Any, text: Callable[[str], str], number: Callable[[int], int | None] = int) -> Any:
    """A JSON value with `text` applied to each text and name in it, and `number` to each whole number."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(name)): map_texts(member, text, number) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(member, text, number) for member in value]
    return number(value) if isinstance(value, int) and not isinstance(value, bool) else value


def json_without_secrets(value: object) -> bytes:
    """`value` as JSON without the secrets that this process knows by value. Texts that only look like secrets stay, so that a
    dead letter as JSON is the event that was received.
    """
    data = msgspec.json.encode(value)
    if not knows_secret_in_json(data.decode()):
        return data
    # Text by text, because in the whole a secret that ends with a backslash would include the next quotation mark.
    return msgspec.json.encode(map_texts(msgspec.json.decode(data), without_known))


def knows_secret_in_json(text: str) -> bool:
    """Whether a text of this JSON may contain a secret that this process knows by value, in any form."""
    plain = text.replace('\\"', '"').replace("\\\\", "\\")  # in this order, each backslash is undone once
    return without_known(plain) != plain or without_known(text) != text


def error_text(error: BaseException) -> str:
    """The text of an exception, without a TLS object. Never raises, although an exception of user code may fail to give its
    text, or give a text that no message can contain.
    """
    try:
        text = str(error).encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
        return without_tls_object(text)
    except Exception:  # see above
        return "its text cannot be read"


def without_tls_object(text: str) -> str:
    """The text of aiohttp's error without the object of its TLS context."""
    return _TLS_OBJECT.sub(r"\1", text)


def describe_error(error: BaseException) -> str:
    """The type of an exception, and its text without secrets, on one line."""
    return sanitize_line(f"{type(error).__name__}: {error_text(error)}")


class HiddenError(RuntimeError):
    """Replaces an exception with a secret in its text: the type, and the text without the secret."""


@contextmanager
def raise_without_secrets() -> Iterator[None]:
    """Raise HiddenError in place of exceptions with secrets. For the outermost call of an invocation: the host logs what it raises."""
    try:
        yield
    except Exception as error:
        shown = "".join(traceback.format_exception(error))  # with its causes
        if without_secrets(shown) == shown:
            raise
        raise HiddenError(describe_error(error)) from None
