"""A message that is a body and little else: what most messages are, and what is encoded fastest.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct


class PlainMessage(Struct, frozen=True):
    """A body with its ids; the SDK's `ServiceBusMessage` takes 75 microseconds to build, this one does not.

    Without a `message_id` the sender gives one, and without a `session_id` that of the call.
    """

    body: bytes
    message_id: str | None = None
    session_id: str | None = None
    content_type: str | None = None


def plain_of(message: Any) -> PlainMessage | None:
    """A body that comes without a message around it, or as a plain one; a dict or list as JSON. None for others."""
    if isinstance(message, PlainMessage):
        return message
    if isinstance(message, bytes):
        return PlainMessage(message)
    if isinstance(message, str):
        return PlainMessage(message.encode())
    if isinstance(message, Mapping | list):
        return PlainMessage(msgspec.json.encode(message), content_type="application/json")
    if isinstance(message, bytearray | memoryview):
        return PlainMessage(bytes(message))
    return None
