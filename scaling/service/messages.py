"""Queue messages: versioned JSON, validated on decoding. Pure.

A message is `{"v": 1, "kind": "report" | "action", "body": {...}}`. Fields added by a newer minor writer are
ignored; a higher version is refused by name, so that the message ends, readable, in the poison queue.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from scaling.model import MetricsReport, ScaleAction
from tidemark.foundation.sanitize import shorten

VERSION = 1
MAX_BYTES = 48 * 1024
"""A storage queue message holds 64 KiB; base64 leaves 48 KiB of it."""


class MessageError(ValueError):
    """A queue message cannot be read; it names what was found and what is accepted."""


class _Envelope(Struct):
    v: int
    kind: str
    body: msgspec.Raw


_Message = TypeVar("_Message", MetricsReport, ScaleAction)
_KINDS: dict[type[Struct], str] = {MetricsReport: "report", ScaleAction: "action"}


def encode(message: MetricsReport | ScaleAction) -> str:
    """Raises MessageError above MAX_BYTES (the report of a target with very many metrics)."""
    kind = _KINDS[type(message)]
    data = msgspec.json.encode({"v": VERSION, "kind": kind, "body": message})
    if len(data) > MAX_BYTES:
        raise MessageError(
            f"a {kind} message of {len(data)} bytes; a queue message holds at most {MAX_BYTES}"
        )
    return data.decode()


def decode(expected: type[_Message], text: str | bytes) -> _Message:
    """The report or the action in a message. Raises MessageError."""
    kind = _KINDS[expected]
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
        if envelope.kind != kind:
            raise MessageError(f"found a message of kind '{envelope.kind}' where '{kind}' is accepted")
        if envelope.v != VERSION:
            raise MessageError(f"found message version {envelope.v}; this release accepts {VERSION}")
        return msgspec.json.decode(envelope.body, type=expected)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
        raise MessageError(f"not a {kind} message: {error}; found {shorten(shown, 200)!r}") from None
