"""Messages of the caller, encoded once, by the SDK's own codec: their sizes are measured and not guessed.

A body that comes without a message around it - bytes, text, a JSON document - is by far the most frequent, and the
codec needs 40 microseconds for it. Its two sections are written here in two; a property test holds them equal to the
codec's, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._common.constants import (
    _X_OPT_PARTITION_KEY,
    _X_OPT_SCHEDULED_ENQUEUE_TIME,
    MGMT_REQUEST_MESSAGE,
    MGMT_REQUEST_MESSAGE_ID,
    MGMT_REQUEST_PARTITION_KEY,
    MGMT_REQUEST_SESSION_ID,
)
from azure.servicebus._common.tracing import is_tracing_enabled, trace_message
from azure.servicebus._pyamqp._encode import encode_payload, encode_value
from azure.servicebus._pyamqp.message import BatchMessage, Message, Properties
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from publisher.service_bus.core.claims import ClaimSettings, claim_of, marked
from publisher.service_bus.core.errors import OversizedMessageError, UnsendableMessageError
from publisher.service_bus.core.packing import Limits
from publisher.service_bus.core.plain_message import PlainMessage
from publisher.service_bus.core.send_report import Claim, Outgoing

JSON = "application/json"

_PROPERTIES, _DATA = b"\x00\x53\x73", b"\x00\x53\x75"
_NULL = b"\x40"
_PROPERTY_COUNT = 13
_ACCEPTED = (
    "bytes, str, a dict or list (sent as JSON), a PlainMessage, a ServiceBusMessage, a ServiceBusReceivedMessage or an "
    "AmqpAnnotatedMessage"
)


class Encoder:
    """Encodes and measures the messages of one call.

    A message without a message id gets `<id_prefix>-<index>`: the same in every attempt and every resumption, so that
    duplicate detection recognises it. `session_id` is for messages that have none. With `schedule_at` the messages
    are measured for a request that schedules them, of which `request_overhead` bytes are taken.
    """

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
        self._traced = bool(is_tracing_enabled())  # type: ignore[no-untyped-call]  # the SDK's

    def measure(self, message: Any, index: int, limits: Limits) -> Outgoing:
        """The message, encoded; as a claim check if it is too large and there is a place for claims.

        Raises OversizedMessageError or UnsendableMessageError.
        """
        try:
            found = self._encode(message, index)
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            raise UnsendableMessageError(index, f"{error}; accepted: {_ACCEPTED}") from error
        if limits.sendable(found) and not self._always_claimed(found):
            return found
        return self._as_claim(found, limits)

    def wire(self, item: Outgoing) -> Message:
        """The message as the SDK sends it singly."""
        message = self._message(item.message, item.index)
        return message if item.claim is None else _claimed(message, item.claim)

    def _encode(self, message: Any, index: int) -> Outgoing:
        plain = _plain_of(message)
        if plain is None or self._traced or self._schedule_at is not None:
            return self._outgoing(self._message(message, index), message, index)
        message_id = plain.message_id or f"{self._id_prefix}-{index:010d}"
        session_id = plain.session_id or self._session_id
        encoded = plain_message(plain.body, message_id, session_id, plain.content_type)
        envelope = envelope_size(message_id, session_id, None)
        return Outgoing(index, message_id, session_id, None, message, encoded, framed(len(encoded)), envelope)

    def _message(self, message: Any, index: int) -> Message:
        plain = _plain_of(message)
        if plain is not None:
            given = Properties(
                message_id=plain.message_id, group_id=plain.session_id, content_type=plain.content_type
            )
            wire = Message(properties=given, data=[plain.body])
        else:
            wire = PyamqpTransport.to_outgoing_amqp_message(_annotated(message))
        properties = wire.properties or Properties()
        if isinstance(message, ServiceBusReceivedMessage):
            # The SDK decodes texts as bytes, and would send these two, which may be either, as binary.
            properties = properties._replace(
                message_id=_text(properties.message_id), correlation_id=_text(properties.correlation_id)
            )
        if not properties.message_id:
            properties = properties._replace(message_id=f"{self._id_prefix}-{index:010d}")
        if not properties.group_id and self._session_id:
            properties = properties._replace(group_id=self._session_id)
        wire = wire._replace(properties=properties)
        if self._schedule_at is not None:
            annotations = {
                **(wire.message_annotations or {}),
                _X_OPT_SCHEDULED_ENQUEUE_TIME: self._schedule_at,
            }
            wire = wire._replace(message_annotations=annotations)
        return trace_message(wire, PyamqpTransport(), {}) if self._traced else wire

    def _outgoing(self, wire: Message, message: Any, index: int, claim: Claim | None = None) -> Outgoing:
        encoded = encode_payload(bytearray(), wire)
        properties = wire.properties or Properties()
        message_id, session_id = str(_text(properties.message_id)), _text(properties.group_id)
        partition_key = _partition_key(wire)
        if self._schedule_at is None:
            cost, envelope = framed(len(encoded)), envelope_size(message_id, session_id, partition_key)
        else:
            entry = scheduling_entry(message_id, session_id, partition_key, encoded)
            cost, envelope = _size_of(entry), self._request_overhead
        return Outgoing(
            index,
            message_id,
            session_id,
            partition_key,
            message,
            encoded,
            cost,
            envelope,
            claim,
        )

    def _always_claimed(self, found: Outgoing) -> bool:
        return (
            self._claims is not None
            and self._claims.above is not None
            and found.claim is None
            and found.size > self._claims.above
        )

    def _as_claim(self, found: Outgoing, limits: Limits) -> Outgoing:
        limit = max(limits.batch - found.envelope, limits.message) - limits.header
        if self._claims is None:
            hint = "set a claim check, which keeps such bodies in a blob, or make the message smaller"
            raise OversizedMessageError(found.index, found.message_id, found.size, limit, hint)
        wire = self._message(found.message, found.index)
        if not wire.data:
            hint = "its body is no data section, and a claim check keeps only those"
            raise OversizedMessageError(found.index, found.message_id, found.size, limit, hint)
        claim = claim_of(b"".join(bytes(part) for part in wire.data), found.message_id, self._claims)
        small = self._outgoing(_claimed(wire, claim), found.message, found.index, claim)
        if not limits.sendable(small):
            hint = f"its properties alone, without the body of {len(claim.body):,} bytes, are too large"
            raise OversizedMessageError(found.index, found.message_id, small.size, limit, hint)
        return small


def framed(size: int) -> int:
    """The size of a message of `size` bytes within a batch: a data section around it."""
    return size + (5 if size <= 255 else 8)


def envelope_size(message_id: str, session_id: str | None, partition_key: str | None) -> int:
    """What a batch takes beside its messages: the SDK repeats ids of the first one on it.

    The SDK's own ServiceBusMessageBatch does not count these bytes.
    """
    if partition_key is None:
        return _properties_size(len(message_id.encode()), len(session_id.encode()) if session_id else None)
    return len(
        encode_payload(bytearray(), BatchMessage(*batch_envelope(message_id, session_id, partition_key)))
    )


def batch_envelope(message_id: str, session_id: str | None, partition_key: str | None) -> list[Any]:
    """A batch message of the SDK without messages, under the ids of its first."""
    batch: list[Any] = PyamqpTransport.build_batch_message([])
    PyamqpTransport.set_batch_envelope_properties(batch, message_id, session_id, partition_key)
    return batch


def scheduling_entry(
    message_id: str, session_id: str | None, partition_key: str | None, encoded: bytes | bytearray
) -> dict[str, Any]:
    """One message in the body of a request that schedules."""
    entry: dict[str, Any] = {MGMT_REQUEST_MESSAGE_ID: message_id, MGMT_REQUEST_MESSAGE: bytearray(encoded)}
    if session_id:
        entry[MGMT_REQUEST_SESSION_ID] = session_id
    if partition_key:
        entry[MGMT_REQUEST_PARTITION_KEY] = partition_key
    return entry


def plain_message(
    data: bytes, message_id: str, session_id: str | None = None, content_type: str | None = None
) -> bytes:
    """A message of a body, its id and what else is given, as the SDK's codec would write it."""
    size = len(data)
    head = b"\xa0" + size.to_bytes(1, "big") if size <= 255 else b"\xb0" + size.to_bytes(4, "big")
    return _properties(message_id, session_id, content_type) + _DATA + head + data


def _properties(message_id: str, session_id: str | None, content_type: str | None) -> bytes:
    values = (
        _short(b"\xa1", b"\xb1", message_id.encode())
        + _NULL * 5
        + (_short(b"\xa3", b"\xb3", content_type.encode()) if content_type else _NULL)
        + _NULL * 3
        + (_short(b"\xa1", b"\xb1", session_id.encode()) if session_id else _NULL)
        + _NULL * 2
    )
    if len(values) < 255:
        return _PROPERTIES + bytes((0xC0, len(values) + 1, _PROPERTY_COUNT)) + values
    return _PROPERTIES + struct.pack(">BLL", 0xD0, len(values) + 4, _PROPERTY_COUNT) + values


@lru_cache(maxsize=1024)
def _properties_size(message_id: int, session_id: int | None) -> int:
    """The size of a section with ids of so many bytes."""
    return len(_properties("x" * message_id, None if session_id is None else "x" * session_id, None))


def _short(one_byte: bytes, four_bytes: bytes, text: bytes) -> bytes:
    if len(text) <= 255:
        return one_byte + len(text).to_bytes(1, "big") + text
    return four_bytes + len(text).to_bytes(4, "big") + text


def _size_of(value: Any) -> int:
    output = bytearray()
    encode_value(output, value)
    return len(output)


def _plain_of(message: Any) -> PlainMessage | None:
    """The message as a plain one; None for one with properties that a plain one does not have."""
    if isinstance(message, PlainMessage):
        return message
    if type(message) is ServiceBusMessage:
        return _plain_of_sdk(message.raw_amqp_message)
    if isinstance(message, bytes):
        return PlainMessage(message)
    if isinstance(message, str):
        return PlainMessage(message.encode())
    if isinstance(message, Mapping | list):
        return PlainMessage(msgspec.json.encode(message), content_type=JSON)
    if isinstance(message, bytearray | memoryview):
        return PlainMessage(bytes(message))
    return None


def _plain_of_sdk(raw: AmqpAnnotatedMessage) -> PlainMessage | None:
    """A message of the SDK's that has a body, ids and a content type, and nothing else."""
    parts: Any = raw._data_body  # noqa: SLF001 - the public one is a generator
    if not parts or len(parts) != 1 or raw.application_properties or raw.annotations:
        return None
    if raw.delivery_annotations or raw.footer or any(value is not None for value in _values(raw.header)):
        return None
    given = raw.properties
    if given is None:
        return None
    plain = (given.message_id, given.group_id, given.content_type)
    if sum(value is not None for value in _values(given)) != sum(value is not None for value in plain):
        return None
    if not plain[0] or not all(value is None or (value and isinstance(value, str)) for value in plain):
        return None
    return PlainMessage(bytes(parts[0]), *plain)  # type: ignore[arg-type]  # they are texts, as was checked


def _values(section: Any) -> Iterable[Any]:
    return () if section is None else vars(section).values()


def _annotated(message: Any) -> AmqpAnnotatedMessage:
    if isinstance(message, ServiceBusMessage):
        return message.raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    raise TypeError(f"a {type(message).__name__} is no message")


def _claimed(wire: Message, claim: Claim) -> Message:
    return wire._replace(
        data=[b""],
        application_properties=marked(wire.application_properties or {}, claim),
    )


def _partition_key(wire: Message) -> str | None:
    annotations = wire.message_annotations or {}
    key: str | None = _text(
        annotations.get(_X_OPT_PARTITION_KEY) or annotations.get(_X_OPT_PARTITION_KEY.decode())
    )
    return key


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
