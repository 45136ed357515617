"""Encodes messages with public or private names of the SDK, and turns too large ones into claim checks or refuses them."""

from __future__ import annotations

import abc
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from msgspec.structs import replace

from tidemark.foundation.tracing.spans import NO_SPANS, Spans, carries_context
from tidemark.publisher.service_bus.core.claims import ClaimSettings, claim_of
from tidemark.publisher.service_bus.core.errors import OversizedMessageError, UnsendableMessageError
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import Claim, Outgoing

_ACCEPTED = (
    "bytes, str, a dict or list (sent as JSON), a PlainMessage, a ServiceBusMessage, a ServiceBusReceivedMessage or an "
    "AmqpAnnotatedMessage"
)
_UNSENDABLE = (TypeError, ValueError, AttributeError, struct.error, MessageSizeExceededError)

_Wire = TypeVar("_Wire")


@dataclass(kw_only=True)
class MessageEncoder(abc.ABC, Generic[_Wire]):
    """Encodes and measures the messages of one call.

    A message without an id gets `<id_prefix>-<index>`, which is the same in every attempt and resumption, so that duplicate
    detection recognises it. Messages without a session get `session_id`. With `schedule_at`, messages are measured for a
    scheduling request, which has `request_overhead` bytes besides them.
    """

    id_prefix: str
    session_id: str | None = None
    schedule_at: datetime | None = None
    request_overhead: int = 0
    claims: ClaimSettings | None = None
    spans: Spans = NO_SPANS

    def measure(self, message: Any, index: int, limits: Limits) -> Outgoing:
        """Encode the message, as a claim check if it is too large and claim checks are set.

        Raises OversizedMessageError or UnsendableMessageError.
        """
        try:
            item = self._encode(message, index)
        except _UNSENDABLE as error:
            raise UnsendableMessageError(index, f"{error}; accepted: {_ACCEPTED}") from error
        above = None if self.claims is None else self.claims.above
        if limits.sendable(item) and (above is None or item.size <= above):
            return item
        return self._as_claim(item, limits)

    def wire(self, item: Outgoing) -> _Wire:
        """The message as the SDK sends it singly."""
        message = self._with_context(self._message(item.message, item.index), item.context)
        return message if item.claim is None else self._claimed(message, item.claim)

    def _encode(self, message: Any, index: int) -> Outgoing:
        wire = self._message(message, index)
        if not self.spans.are_on:
            return self._outgoing(wire, message, index)
        properties = self._properties(wire)
        context = properties if carries_context(properties) else self.spans.header_for_event()
        return replace(
            self._outgoing(self._with_context(wire, context), message, index), context=dict(context)
        )

    def _with_context(self, wire: _Wire, context: Mapping[Any, Any]) -> _Wire:
        """The message with a trace context, for one that carries none or this one."""
        if not context:
            return wire
        properties = self._properties(wire)
        properties.update(context)
        return self._with_properties(wire, properties)

    def _as_claim(self, item: Outgoing, limits: Limits) -> Outgoing:
        limit = max(limits.batch - item.envelope, limits.message) - limits.header
        identity = (item.index, item.message_id)
        if self.claims is None:
            hint = "set a claim check, which keeps such bodies in a blob, or make the message smaller"
            raise OversizedMessageError(*identity, item.size, limit, hint)
        wire = self._with_context(self._message(item.message, item.index), item.context)
        body = self._body(wire)
        if body is None:
            hint = "its body is no data section, and a claim check keeps only those"
            raise OversizedMessageError(*identity, item.size, limit, hint)
        claim = claim_of(body, item.message_id, self.claims)
        small = self._outgoing(self._claimed(wire, claim), item.message, item.index, claim)
        small = replace(small, context=item.context)
        if not limits.sendable(small):
            hint = f"its properties alone, without the body of {len(body):,} bytes, are too large"
            raise OversizedMessageError(*identity, small.size, limit, hint)
        return small

    def _generated_id(self, index: int) -> str:
        return f"{self.id_prefix}-{index:010d}"

    @abc.abstractmethod
    def _message(self, message: Any, index: int) -> _Wire:
        """The message of the SDK, with its ids."""

    @abc.abstractmethod
    def _outgoing(self, wire: _Wire, message: Any, index: int, claim: Claim | None = None) -> Outgoing:
        """The measured message."""

    @abc.abstractmethod
    def _body(self, wire: _Wire) -> bytes | None:
        """The body for a claim check; None if it is no data section."""

    @abc.abstractmethod
    def _properties(self, wire: _Wire) -> dict[str | bytes, Any]:
        """The application properties."""

    @abc.abstractmethod
    def _with_properties(self, wire: _Wire, properties: dict[str | bytes, Any]) -> _Wire:
        """The message with these application properties. The caller's own stays as it is."""

    @abc.abstractmethod
    def _claimed(self, wire: _Wire, claim: Claim) -> _Wire:
        """The message with the claim in place of its body."""


def annotated(message: Any) -> AmqpAnnotatedMessage:
    """The AMQP message of a message of the SDK. Raises TypeError for other objects."""
    if isinstance(message, ServiceBusMessage):
        return message.raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    raise TypeError(f"a {type(message).__name__} is no message")
