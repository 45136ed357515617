"""Queue messages: versioned JSON, validated on decoding. Pure.

A message is `{"v": 1, "kind": "report" | "action", "body": {...}}`. Fields added by a newer minor writer are
ignored; a higher version is refused by name, so that the message ends, readable, in the poison queue.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from scaling.model import MetricsReport, ScaleAction

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
_envelope = msgspec.json.Decoder(_Envelope)
_report = msgspec.json.Decoder(MetricsReport)
_action = msgspec.json.Decoder(ScaleAction)


def encode_report(report: MetricsReport) -> str:
    """The message of a report. Raises MessageError above MAX_BYTES (a target with very many metrics)."""
    return _encode("report", report)


def encode_action(action: ScaleAction) -> str:
    return _encode("action", action)


def _encode(kind: str, body: Any) -> str:
    data = msgspec.json.encode({"v": VERSION, "kind": kind, "body": body})
    if len(data) > MAX_BYTES:
        raise MessageError(
            f"a {kind} message of {len(data)} bytes; a queue message holds at most {MAX_BYTES}"
        )
    return data.decode()


def decode_report(text: str | bytes) -> MetricsReport:
    """Raises MessageError."""
    return _decode("report", text, _report)


def decode_action(text: str | bytes) -> ScaleAction:
    """Raises MessageError."""
    return _decode("action", text, _action)


def _decode(kind: str, text: str | bytes, decoder: msgspec.json.Decoder[_Message]) -> _Message:
    try:
        envelope = _envelope.decode(text)
        if envelope.kind != kind:
            raise MessageError(f"found a message of kind '{envelope.kind}' where '{kind}' is accepted")
        if envelope.v != VERSION:
            raise MessageError(f"found message version {envelope.v}; this release accepts {VERSION}")
        return decoder.decode(envelope.body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MessageError(f"not a {kind} message: {error}; found {text[:200]!r}") from None
