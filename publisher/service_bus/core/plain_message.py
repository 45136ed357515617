"""A message that is a body and little else: what most messages are, and what is encoded fastest.

Pure.
"""

from __future__ import annotations

from msgspec import Struct


class PlainMessage(Struct, frozen=True):
    """A body with its ids; the SDK's `ServiceBusMessage` takes 75 microseconds to build, this one does not.

    Without a `message_id` the sender gives one, and without a `session_id` that of the call.
    """

    body: bytes
    message_id: str | None = None
    session_id: str | None = None
    content_type: str | None = None
