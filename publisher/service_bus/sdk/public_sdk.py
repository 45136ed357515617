"""Sending to Service Bus by the public names of the SDK alone: slower, and less is known of what a refusal means.

Sizes are those of the SDK's own batches. Only a few errors are certainly refusals; all others leave the outcome
unknown. A sender that the caller made sends again by itself unless its client has `retry_total=0`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

import msgspec
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusServerBusyError,
)

from publisher.cancellation import is_unexpected
from publisher.service_bus.core.claims import ClaimSettings, claim_of, marked
from publisher.service_bus.core.errors import OversizedMessageError, UnsendableMessageError
from publisher.service_bus.core.packing import Limits
from publisher.service_bus.core.plain_message import PlainMessage
from publisher.service_bus.core.send_report import Claim, Outgoing
from publisher.service_bus.core.send_steps import (
    Accepted,
    Answer,
    Busy,
    Rejected,
    TooLarge,
    Transfer,
    Unknown,
)

REQUEST_OVERHEAD = 1024
"""Bytes of a request that schedules beside its messages: more than it takes, as it cannot be measured."""

_ENVELOPE = 128  # bytes around the ids that the SDK repeats on a batch
_ENTRY = 256  # bytes around a message in a request that schedules
_ANY_SIZE = 2**31 - 1
_PARTITION_KEY = "x-opt-partition-key"
_NEVER = (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)


class PublicEncoder:
    """As publisher.service_bus.sdk.message_sizes.Encoder, by what the SDK says that a message takes in a batch."""

    def __init__(
        self,
        *,
        id_prefix: str,
        session_id: str | None = None,
        schedule_at: datetime | None = None,
        request_overhead: int = 0,
        claims: ClaimSettings | None = None,
    ) -> None:
        self._id_prefix = id_prefix
        self._session_id = session_id
        self._schedule_at = schedule_at
        self._request_overhead = request_overhead
        self._claims = claims

    def measure(self, message: Any, index: int, limits: Limits) -> Outgoing:
        """Raises OversizedMessageError or UnsendableMessageError."""
        try:
            raw = self._annotated(message, index)
            found = self._outgoing(raw, message, index)
        except (TypeError, ValueError, AttributeError, MessageSizeExceededError) as error:
            raise UnsendableMessageError(index, str(error)) from error
        above = None if self._claims is None else self._claims.above
        if limits.sendable(found) and (above is None or found.size <= above):
            return found
        limit = max(limits.batch - found.envelope, limits.message) - limits.header
        if self._claims is None or raw.body_type is not AmqpMessageBodyType.DATA:
            hint = "set a claim check, which keeps bodies of bytes in a blob, or make the message smaller"
            raise OversizedMessageError(index, found.message_id, found.size, limit, hint)
        claim = claim_of(b"".join(raw.body), found.message_id, self._claims)
        small = self._outgoing(_claimed(raw, claim), message, index, claim)
        if not limits.sendable(small):
            raise OversizedMessageError(
                index, small.message_id, small.size, limit, "its properties are too large"
            )
        return small

    def message(self, item: Outgoing) -> AmqpAnnotatedMessage:
        """The message as the SDK sends it."""
        raw = self._annotated(item.message, item.index)
        return raw if item.claim is None else _claimed(raw, item.claim)

    def _outgoing(
        self, raw: AmqpAnnotatedMessage, message: Any, index: int, claim: Claim | None = None
    ) -> Outgoing:
        batch = ServiceBusMessageBatch(max_size_in_bytes=_ANY_SIZE)
        empty = batch.size_in_bytes
        batch.add_message(raw)
        size = batch.size_in_bytes - empty
        properties = raw.properties or AmqpMessageProperties()
        message_id, session_id = str(_text(properties.message_id)), _text(properties.group_id)
        annotations = {_text(key): value for key, value in (raw.annotations or {}).items()}
        key = _text(annotations.get(_PARTITION_KEY))
        ids = sum(len(each.encode()) for each in (message_id, session_id or "", key or ""))
        scheduled = self._schedule_at is not None
        return Outgoing(
            index,
            message_id,
            session_id,
            key,
            message,
            bytes(size),  # the SDK encodes it when it is sent
            size + (_ENTRY + ids if scheduled else 0),
            self._request_overhead if scheduled else _ENVELOPE + ids,
            claim,
        )

    def _annotated(self, message: Any, index: int) -> AmqpAnnotatedMessage:
        """A message of its own, with the ids that it is to have."""
        raw = copy.copy(_raw(message))
        properties = copy.copy(raw.properties) or AmqpMessageProperties()
        if isinstance(message, ServiceBusReceivedMessage):  # the SDK decodes texts as bytes
            properties.message_id = _text(properties.message_id)
            properties.correlation_id = _text(properties.correlation_id)
        properties.message_id = properties.message_id or f"{self._id_prefix}-{index:010d}"
        properties.group_id = properties.group_id or self._session_id
        raw.properties = properties
        return raw


class AsyncLink:
    """One transfer at a time over an asynchronous sender of the SDK."""

    def __init__(self, sender: Any, timeout: float) -> None:
        self.sender = sender
        self.limits = Limits(1, 0)
        self._timeout = timeout

    async def open(self) -> Answer | None:
        """Attach the link unless it is attached; None if that went well."""
        try:
            size = (await self.sender.create_message_batch()).max_size_in_bytes
        except BaseException as error:
            if not is_unexpected(error):
                raise
            return _not_sent(error)
        self.limits = Limits(batch=size, message=size)
        return None

    async def transfer(
        self, effect: Transfer, encoder: PublicEncoder, schedule_at: datetime | None
    ) -> Answer:
        """Send it once, and say what came of it."""
        refused = await self.open()
        if refused is not None:
            return refused
        messages = [encoder.message(item) for item in effect.items]
        try:
            if schedule_at is not None:
                return Accepted(
                    tuple(await self.sender.schedule_messages(messages, schedule_at, timeout=self._timeout))
                )
            await self.sender.send_messages(_outgoing(messages, effect), timeout=self._timeout)
        except BaseException as error:
            if not is_unexpected(error):
                raise
            return _answer_to(error)
        return Accepted()


class SyncLink:
    """The same over a blocking sender of the SDK."""

    def __init__(self, sender: Any, timeout: float) -> None:
        self.sender = sender
        self.limits = Limits(1, 0)
        self._timeout = timeout

    def open(self) -> Answer | None:
        """Attach the link unless it is attached; None if that went well."""
        try:
            size = self.sender.create_message_batch().max_size_in_bytes
        except Exception as error:  # noqa: BLE001 - nothing was sent
            return _not_sent(error)
        self.limits = Limits(batch=size, message=size)
        return None

    def transfer(self, effect: Transfer, encoder: PublicEncoder, schedule_at: datetime | None) -> Answer:
        """Send it once, and say what came of it."""
        refused = self.open()
        if refused is not None:
            return refused
        messages = [encoder.message(item) for item in effect.items]
        try:
            if schedule_at is not None:
                return Accepted(
                    tuple(self.sender.schedule_messages(messages, schedule_at, timeout=self._timeout))
                )
            self.sender.send_messages(_outgoing(messages, effect), timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - told apart below
            return _answer_to(error)
        return Accepted()


def _outgoing(messages: list[AmqpAnnotatedMessage], effect: Transfer) -> Any:
    if effect.singly:
        return messages[0]
    batch = ServiceBusMessageBatch(max_size_in_bytes=_ANY_SIZE)
    for message in messages:
        batch.add_message(message)
    return batch


def _raw(message: Any) -> AmqpAnnotatedMessage:
    if isinstance(message, ServiceBusMessage):
        return message.raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    if isinstance(message, PlainMessage):
        properties = AmqpMessageProperties(
            message_id=message.message_id, group_id=message.session_id, content_type=message.content_type
        )
        return AmqpAnnotatedMessage(data_body=message.body, properties=properties)
    if isinstance(message, Mapping | list):
        properties = AmqpMessageProperties(content_type="application/json")
        return AmqpAnnotatedMessage(data_body=msgspec.json.encode(message), properties=properties)
    if isinstance(message, str):
        return AmqpAnnotatedMessage(data_body=message.encode())
    if isinstance(message, bytes | bytearray | memoryview):
        return AmqpAnnotatedMessage(data_body=bytes(message))
    raise TypeError(f"a {type(message).__name__} is no message")


def _claimed(raw: AmqpAnnotatedMessage, claim: Claim) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(
        data_body=b"",
        header=raw.header,
        properties=raw.properties,
        application_properties=marked(raw.application_properties or {}, claim),
        annotations=cast(dict[str, Any] | None, raw.annotations),
        delivery_annotations=cast(dict[str, Any] | None, raw.delivery_annotations),
        footer=raw.footer,
    )


def _answer_to(error: BaseException) -> Answer:
    """What an error after the transfer says: only these prove that nothing was accepted."""
    if isinstance(error, MessageSizeExceededError):
        return TooLarge(_story(error))
    if isinstance(error, ServiceBusServerBusyError):
        return Busy(_story(error))
    if isinstance(error, _NEVER):
        return Rejected(_story(error))
    return Unknown(_story(error))


def _not_sent(error: BaseException) -> Answer:
    return Rejected(_story(error)) if isinstance(error, _NEVER) else Busy(_story(error))


def _story(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
