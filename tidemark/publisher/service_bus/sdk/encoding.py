"""Encodes messages, by public or private names of the SDK: turns large ones into claim checks, and refuses others."""

from __future__ import annotations

import abc
import struct
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

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

    A message without a message id gets `<id_prefix>-<index>`: the same in every attempt and every resumption, so that
    duplicate detection recognises it. `session_id` is for messages that have none. With `schedule_at` the messages
    are measured for a request that schedules them, of which `request_overhead` bytes are taken.
    """

    id_prefix: str
    session_id: str | None = None
    schedule_at: datetime | None = None
    request_overhead: int = 0
    claims: ClaimSettings | None = None

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
        message = self._message(item.message, item.index)
        return message if item.claim is None else self._claimed(message, item.claim)

    def _encode(self, message: Any, index: int) -> Outgoing:
        return self._outgoing(self._message(message, index), message, index)

    def _as_claim(self, item: Outgoing, limits: Limits) -> Outgoing:
        limit = max(limits.batch - item.envelope, limits.message) - limits.header
        identity = (item.index, item.message_id)
        if self.claims is None:
            hint = "set a claim check, which keeps such bodies in a blob, or make the message smaller"
            raise OversizedMessageError(*identity, item.size, limit, hint)
        wire = self._message(item.message, item.index)
        body = self._body(wire)
        if body is None:
            hint = "its body is no data section, and a claim check keeps only those"
            raise OversizedMessageError(*identity, item.size, limit, hint)
        claim = claim_of(body, item.message_id, self.claims)
        small = self._outgoing(self._claimed(wire, claim), item.message, item.index, claim)
        if not limits.sendable(small):
            hint = f"its properties alone, without the body of {len(body):,} bytes, are too large"
            raise OversizedMessageError(*identity, small.size, limit, hint)
        return small

    def _generated_id(self, index: int) -> str:
        return f"{self.id_prefix}-{index:010d}"

    @abc.abstractmethod
    def _message(self, message: Any, index: int) -> _Wire:
        """A message of the SDK, with the ids that it is to have."""

    @abc.abstractmethod
    def _outgoing(self, wire: _Wire, message: Any, index: int, claim: Claim | None = None) -> Outgoing:
        """The message as it is measured."""

    @abc.abstractmethod
    def _body(self, wire: _Wire) -> bytes | None:
        """What a claim check would keep; None if the body is no data section."""

    @abc.abstractmethod
    def _claimed(self, wire: _Wire, claim: Claim) -> _Wire:
        """The message without its body, and marked."""


def annotated(message: Any) -> AmqpAnnotatedMessage:
    """A message of the SDK's. Raises TypeError for anything else."""
    if isinstance(message, ServiceBusMessage):
        return message.raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    raise TypeError(f"a {type(message).__name__} is no message")
