"""Encodes events with the codec of azure-eventhub 5.15 when they are added, and stamps them when they are sent."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

from azure.eventhub import EventData, amqp
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.message import Message
from azure.eventhub._transport._pyamqp_transport import PyamqpTransport

from tidemark.publisher.event_hubs.ports.links import EncodedEvent, PublishableEvent
from tidemark.publisher.model import Stamp, numbers_of

PRODUCER_ID = b"com.microsoft:producer-id"
EPOCH = b"com.microsoft:producer-epoch"
NUMBER = b"com.microsoft:producer-sequence-number"
STAMP_KEYS = (PRODUCER_ID, EPOCH, NUMBER)


def _symbol(name: bytes) -> bytes:
    return b"\xa3" + bytes([len(name)]) + name


_NUMBER = struct.Struct(">i")
_BEFORE_ID, _BEFORE_EPOCH = _symbol(PRODUCER_ID) + b"\x81", _symbol(EPOCH) + b"\x61"
_BEFORE_NUMBER = _symbol(NUMBER) + b"\x71"
STAMP_SIZE = len(_BEFORE_ID) + 8 + len(_BEFORE_EPOCH) + 2 + len(_BEFORE_NUMBER) + 4
"""Bytes of a stamp. Its numbers always have their full width."""
_ANNOTATIONS = b"\x00\x53\x72"
_SHORT_DATA, _DATA = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_LENGTH = struct.Struct(">I")
_ONLY_STAMP = _ANNOTATIONS + b"\xc1" + bytes([STAMP_SIZE + 1, 2 * len(STAMP_KEYS)])


def encode_event(event: PublishableEvent, *, stamped: bool) -> EncodedEvent:
    """The event as AMQP, encoded once; the stamp is inserted when the event is sent."""
    message = _outgoing(event.raw_amqp_message if isinstance(event, EventData) else event)
    if not stamped:
        return EncodedEvent(_encoded(message), b"", event)
    if not (message.header or message.message_annotations):
        return EncodedEvent(_ONLY_STAMP, _rest(message), event)
    annotations = message.message_annotations or {}
    names = {name: name.encode() if isinstance(name, str) else name for name in annotations}
    # The stamp of a forwarded event is of another producer.
    kept = {name: value for name, value in annotations.items() if names[name] not in STAMP_KEYS}
    pairs, count = _annotations(kept)
    size, count = STAMP_SIZE + len(pairs), 2 * len(STAMP_KEYS) + count
    if size < 0xFF and count <= 0xFF:
        opening = b"\xc1" + bytes([size + 1, count])
    else:
        opening = b"\xd1" + struct.pack(">II", size + 4, count)
    head = (_encoded(Message(header=message.header)) if message.header else b"") + _ANNOTATIONS + opening
    return EncodedEvent(head, pairs + _rest(message._replace(header=None, message_annotations=None)), event)


def _outgoing(raw: amqp.AmqpAnnotatedMessage) -> Message:
    """The message as the SDK encodes it. The SDK is slow with headers and properties, and most messages have none."""
    if _is_blank(raw.header) and _is_blank(raw.properties) and raw.body_type is amqp.AmqpMessageBodyType.DATA:
        return Message(
            delivery_annotations=raw.delivery_annotations,
            message_annotations=raw.annotations,
            application_properties=raw.application_properties,
            data=cast(list[bytes], raw._data_body),
            footer=raw.footer,
        )
    message: Message = PyamqpTransport.to_outgoing_amqp_message(raw)  # type: ignore[no-untyped-call]
    return message


def _is_blank(section: amqp.AmqpMessageHeader | amqp.AmqpMessageProperties | None) -> bool:
    fields = () if section is None else tuple(vars(section).values())
    return fields.count(None) == len(fields)


def _rest(message: Message) -> bytes:
    """The encoded sections after the message annotations. If there is only data, this function encodes it, which is faster."""
    if not any((message[1], *message[3:5], *message[6:])):
        return b"".join([data_section(body) for body in cast(list[bytes], message.data or [])])
    return _encoded(message)


def data_section(body: bytes) -> bytes:
    """The body as AMQP, which adds up to 8 bytes."""
    size = len(body)
    return (_SHORT_DATA + bytes((size,)) if size < 256 else _DATA + _LENGTH.pack(size)) + body


def _annotations(kept: dict[Any, Any]) -> tuple[bytes, int]:
    """The encoded keys and values of an event's own annotations, and how many those are."""
    if not kept:
        return b"", 0
    section = _encoded(Message(message_annotations=kept))
    if section[: len(_ANNOTATIONS)] != _ANNOTATIONS or section[3] not in {0xC1, 0xD1}:
        raise AssertionError(f"annotations in another encoding: {section[:12]!r}")
    if section[3] == 0xC1:
        return section[6:], section[5]
    return section[12:], int.from_bytes(section[8:12], "big")


def _encoded(message: Message) -> bytes:
    output = bytearray()
    encode_payload(output, message)
    return bytes(output)


def size_in_batch(event: EncodedEvent, *, stamped: bool) -> int:
    """Bytes that the event adds to a batch: the event, its stamp, and the data section around both."""
    size = len(event.head) + len(event.tail) + STAMP_SIZE * stamped
    return size + (5 if size < 256 else 8)


def stamped_events(events: Sequence[EncodedEvent], stamp: Stamp | None) -> list[bytes]:
    """The events as they are sent."""
    if stamp is None:
        return [event.head for event in events]
    group, level = stamp.producer_group_id.to_bytes(8, "big"), stamp.owner_level.to_bytes(2, "big")
    common = _BEFORE_ID + group + _BEFORE_EPOCH + level + _BEFORE_NUMBER
    numbers = numbers_of(stamp.first, len(events))
    return [
        b"".join((head, common, _NUMBER.pack(number), tail))
        for (head, tail, *_), number in zip(events, numbers, strict=True)
    ]


def measured_event(event: PublishableEvent, *, stamped: bool) -> tuple[EncodedEvent, int]:
    encoded = encode_event(event, stamped=stamped)
    return encoded, size_in_batch(encoded, stamped=stamped)
