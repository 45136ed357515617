"""Sends to Service Bus with public names of the SDK only. That is slower, and fewer errors are known to be refusals.

Sizes are those of the SDK's own batches. Only a few errors are certainly refusals; after all others, the outcome is unknown. A
sender that the caller created repeats transfers unless its client has `retry_total=0`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage, exceptions
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties

from tidemark.publisher.blocking import wait_if_needed
from tidemark.publisher.cancellation import is_unexpected
from tidemark.publisher.service_bus.core import send_steps as steps
from tidemark.publisher.service_bus.core.claims import add_claim, text_of
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import Claim, Outgoing, plain_of
from tidemark.publisher.service_bus.sdk.encoding import MessageEncoder, annotated

REQUEST_OVERHEAD = 1024
"""Bytes of a scheduling request besides its messages. It cannot be measured, so this is more than it takes."""

_ENVELOPE = 128  # bytes around the ids that the SDK repeats on a batch; more than they take
_ENTRY = 256  # bytes around a message in a scheduling request; more than they take
_ANY_SIZE = 2**31 - 1
_PARTITION_KEY = "x-opt-partition-key"
_RIGHTS = (
    "check the connection's key or identity: sending needs the right Send (Azure Service Bus Data Sender)"
)
NEVER = {
    exceptions.ServiceBusAuthenticationError: _RIGHTS,
    exceptions.ServiceBusAuthorizationError: _RIGHTS,
    exceptions.MessagingEntityNotFoundError: "check the name, and the namespace of the connection",
    exceptions.MessagingEntityDisabledError: "enable the entity for sending",
}
"""Permanent refusals -> what to do about them."""


class PublicEncoder(MessageEncoder[AmqpAnnotatedMessage]):
    """Measures messages by what the SDK counts for them in a batch."""

    def _outgoing(
        self, wire: AmqpAnnotatedMessage, message: Any, index: int, claim: Claim | None = None
    ) -> Outgoing:
        batch = ServiceBusMessageBatch(max_size_in_bytes=_ANY_SIZE)
        empty = batch.size_in_bytes
        batch.add_message(wire)
        size = batch.size_in_bytes - empty
        properties = wire.properties or AmqpMessageProperties()
        message_id, session_id = str(text_of(properties.message_id)), text_of(properties.group_id)
        annotations = {text_of(key): value for key, value in (wire.annotations or {}).items()}
        key = text_of(annotations.get(_PARTITION_KEY))
        ids = sum(len(text.encode()) for text in (message_id, session_id or "", key or ""))
        scheduled = self.schedule_at is not None
        return Outgoing(
            index,
            message_id,
            session_id,
            key,
            message,
            bytes(size),  # the SDK encodes it when it is sent
            size + (_ENTRY + ids if scheduled else 0),
            self.request_overhead if scheduled else _ENVELOPE + ids,
            claim,
        )

    def _message(self, message: Any, index: int) -> AmqpAnnotatedMessage:
        plain = plain_of(message)
        if plain is None:
            raw = copy.copy(annotated(message))
            properties = copy.copy(raw.properties) or AmqpMessageProperties()
        else:
            raw = AmqpAnnotatedMessage(data_body=plain.body)
            properties = AmqpMessageProperties(
                message_id=plain.message_id, group_id=plain.session_id, content_type=plain.content_type
            )
        if isinstance(message, ServiceBusReceivedMessage):  # the SDK decodes texts as bytes
            properties.message_id = text_of(properties.message_id)
            properties.correlation_id = text_of(properties.correlation_id)
        properties.message_id = properties.message_id or self._generated_id(index)
        properties.group_id = properties.group_id or self.session_id
        raw.properties = properties
        return raw

    def _body(self, wire: AmqpAnnotatedMessage) -> bytes | None:
        return b"".join(wire.body) if wire.body_type is AmqpMessageBodyType.DATA else None

    def _properties(self, wire: AmqpAnnotatedMessage) -> dict[str | bytes, Any]:
        return dict(wire.application_properties or {})

    def _with_properties(
        self, wire: AmqpAnnotatedMessage, properties: dict[str | bytes, Any]
    ) -> AmqpAnnotatedMessage:
        wire.application_properties = properties  # of the copy that `_message` made
        return wire

    def _claimed(self, wire: AmqpAnnotatedMessage, claim: Claim) -> AmqpAnnotatedMessage:
        return AmqpAnnotatedMessage(
            data_body=b"",
            header=wire.header,
            properties=wire.properties,
            application_properties=add_claim(wire.application_properties or {}, claim),
            annotations=cast(dict[str, Any] | None, wire.annotations),
            delivery_annotations=cast(dict[str, Any] | None, wire.delivery_annotations),
            footer=wire.footer,
        )


class Link:
    """Transfers one batch at a time over a sender of the SDK, asynchronous or blocking, which nobody else may use."""

    def __init__(self, sender: Any, timeout: float) -> None:
        self.sender = sender
        self.limits = Limits(1, 0)
        self.failure: BaseException | None = None
        """The error of a private name of the SDK, if one has failed."""
        self._timeout = timeout

    def request_overhead(self) -> int:
        """Bytes of a scheduling request besides its messages."""
        return REQUEST_OVERHEAD

    async def open(self) -> steps.Answer | None:
        """Attach the link unless it is attached. Returns None on success."""
        try:
            self.limits = await self._attached()
        except BaseException as error:
            if not is_unexpected(error):
                raise
            return self._not_sent(error)
        return None

    async def transfer(self, effect: steps.Transfer, encoder: Any) -> steps.Answer:
        """Transfer once; returns the answer."""
        refused = await self.open()
        if refused is not None:
            return refused
        try:
            transfer = self._prepared(effect, encoder)
        except Exception as error:  # from encoding; nothing was sent
            return self._not_sent(error)
        try:
            numbers = await wait_if_needed(transfer())
        except BaseException as error:
            if not is_unexpected(error):
                raise
            return self._answer_to(error)
        return steps.Accepted() if encoder.schedule_at is None else steps.Accepted(tuple(numbers))

    async def _attached(self) -> Limits:
        size = (await wait_if_needed(self.sender.create_message_batch())).max_size_in_bytes
        return Limits(batch=size, message=size)

    def _prepared(self, effect: steps.Transfer, encoder: Any) -> Callable[[], Any]:
        messages = [encoder.wire(item) for item in effect.items]
        if encoder.schedule_at is not None:
            return partial(
                self.sender.schedule_messages, messages, encoder.schedule_at, timeout=self._timeout
            )
        batch = ServiceBusMessageBatch(max_size_in_bytes=_ANY_SIZE)
        for message in () if effect.singly else messages:
            batch.add_message(message)
        whole = messages[0] if effect.singly else batch
        return partial(self.sender.send_messages, whole, timeout=self._timeout)

    def _answer_to(self, error: BaseException) -> steps.Answer:
        """What an error after the transfer says: only these prove that nothing was accepted."""
        if isinstance(error, exceptions.MessageSizeExceededError):
            return steps.TooLarge(_describe(error))
        if isinstance(error, (exceptions.ServiceBusServerBusyError, *NEVER)):
            return self._not_sent(error)
        return steps.Unknown(_describe(error))

    def _not_sent(self, error: BaseException) -> steps.Answer:
        return (
            steps.Rejected(_describe(error))
            if isinstance(error, tuple(NEVER))
            else steps.Busy(_describe(error))
        )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
