"""Events: what a producer sends, and the form in which a partition keeps and delivers it."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from devstack.amqp.wire.decoder import skip
from devstack.amqp.wire.encoder import encode, encode_map_of, encode_string
from devstack.amqp.wire.errors import ProtocolError
from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    batched,
    encode_section,
    section_value,
    sections,
)
from devstack.amqp.wire.values import Int, Short, Symbol, Timestamp, ULong
from devstack.event_hubs.storage.idempotence import EPOCH, NUMBER, PRODUCER_ID

PARTITION_KEY = "x-opt-partition-key"

# The service's own annotations: what a producer says of them is dropped.
_SERVICE_KEYS = frozenset(("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time", PARTITION_KEY))
_SEQUENCE_KEY, _OFFSET_KEY, _TIME_KEY, _PARTITION_KEY = (
    encode(Symbol(key))
    for key in ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time", PARTITION_KEY)
)
_MAP8 = b"\x00" + encode(ULong(MESSAGE_ANNOTATIONS)) + b"\xc1"
# Sequence number (long), enqueued time (timestamp) and offset (string of up to 255 bytes).
_SYSTEM = struct.Struct(f">{len(_SEQUENCE_KEY)}scq{len(_TIME_KEY)}scq{len(_OFFSET_KEY)}scB")
_MAP8_LIMIT = 255
_DATA_8, _DATA_32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_HEADER_PREFIX = b"\x00\x53\x70"
_UNANNOTATED = (b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x75", b"\x00\x53\x76", b"\x00\x53\x77")


def _symbol_then(key: str, value: bytes) -> bytes:
    return re.escape(encode(Symbol(key))) + value


# The annotations of idempotent publishing and no others, in any order: size, then the pairs. What clients send all
# day is not worth decoding; whatever looks different is.
_STAMPED = re.compile(
    rb"\x00\x53\x72\xc1(.)\x06((?:%b|%b|%b){3})"
    % (
        _symbol_then(PRODUCER_ID, rb"(?:\x81(.{8})|\x55(.))"),
        _symbol_then(EPOCH, rb"\x61(.{2})"),
        _symbol_then(NUMBER, rb"(?:\x71(.{4})|\x54(.))"),
    ),
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class SentEvent:
    """What a producer handed over. `bare` holds the sections from properties on, byte for byte.

    `annotations` are the pairs of a producer's own message annotations, encoded, and `claims` the
    same as they were decoded.
    """

    bare: bytes
    header: bytes = b""
    partition_key: str | None = None
    annotations: bytes = b""
    annotation_count: int = 0
    claims: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of what the producer sent, more or less; offsets are counted in it."""
        return len(self.bare) + len(self.annotations)

    @classmethod
    def parse(cls, payload: bytes, partition_key: str | None = None) -> "SentEvent":
        """`partition_key` is for an event that brings none of its own.

        Raises ProtocolError when what precedes the properties is not well-formed.
        """
        if payload.startswith(_UNANNOTATED):  # most are, and the rest is nobody's business
            return cls(payload, b"", partition_key)
        if stamped := _parse_stamped(payload):
            return replace(stamped, partition_key=partition_key) if partition_key is not None else stamped
        header, annotations, bare_start = b"", {}, len(payload)
        for code, start, value_start, end in sections(payload):
            if code == HEADER:
                header = payload[start:end]
            elif code == MESSAGE_ANNOTATIONS:
                annotations = section_value(payload, value_start, dict)
            elif code != DELIVERY_ANNOTATIONS:
                bare_start = start
                break
        own_key = annotations.get(PARTITION_KEY)
        kept = {key: value for key, value in annotations.items() if key not in _SERVICE_KEYS}
        return cls(
            bare=payload[bare_start:],
            header=header,
            partition_key=own_key if isinstance(own_key, str) else partition_key,
            annotations=b"".join(encode(key) + encode(value) for key, value in kept.items()),
            annotation_count=len(kept),
            claims=kept,
        )

    def stamped(self, sequence_number: int, offset: str, enqueued_ms: int) -> bytes:
        """The message that consumers get."""
        at = offset.encode()
        pairs = (
            _SYSTEM.pack(
                *(_SEQUENCE_KEY, b"\x81", sequence_number, _TIME_KEY, b"\x83", enqueued_ms),
                *(_OFFSET_KEY, b"\xa1", len(at)),
            )
            + at
        )
        count = 3
        if self.partition_key is not None:
            pairs += _PARTITION_KEY + encode_string(self.partition_key)
            count += 1
        if self.annotation_count:
            pairs += self.annotations
            count += self.annotation_count
        if len(pairs) < _MAP8_LIMIT and count <= _MAP8_LIMIT // 2:
            return b"%b%b%c%c%b%b" % (self.header, _MAP8, len(pairs) + 1, 2 * count, pairs, self.bare)
        return self.header + _MAP8[:-1] + encode_map_of(pairs, count) + self.bare


def _parse_stamped(payload: bytes) -> SentEvent | None:
    """An event with the annotations of idempotent publishing and no others; None if it is not that simple."""
    match = _STAMPED.match(payload)
    if match is None:
        return None
    size, pairs, *fields = match.groups()
    id_, epoch, number = fields[0] or fields[1], fields[2], fields[3] or fields[4]
    if size[0] != len(pairs) + 1 or id_ is None or epoch is None or number is None:
        return None
    claims = {
        PRODUCER_ID: int.from_bytes(id_, "big", signed=True),
        EPOCH: Short(int.from_bytes(epoch, "big", signed=True)),
        NUMBER: Int(int.from_bytes(number, "big", signed=True)),
    }
    return SentEvent(payload[match.end() :], annotations=pairs, annotation_count=3, claims=claims)


def parse_delivery(message_format: int, payload: bytes) -> list[SentEvent]:
    """The events of one delivery, in order; all of them have the partition key that the delivery has.

    Raises ProtocolError when the delivery is not well-formed.
    """
    if message_format != BATCH_FORMAT:
        return [SentEvent.parse(payload)]
    key, position = None, 0
    if not payload.startswith((_DATA_8, _DATA_32)):
        envelope = SentEvent.parse(payload)
        key, position = envelope.partition_key, len(payload) - len(envelope.bare)
    return [SentEvent.parse(part, key) for part in _data_sections(payload, position)]


def _data_sections(payload: bytes, position: int) -> list[bytes]:
    parts, total = [], len(payload)
    while position < total:
        prefix = payload[position : position + 4]
        if prefix == _DATA_32:
            start = position + 8
            end = start + int.from_bytes(payload[position + 4 : start], "big")
        elif prefix == _DATA_8:
            start = position + 5
            end = start + payload[start - 1]
        else:
            return batched(payload)  # written in an unusual way, or not well-formed
        if end > total:
            raise ProtocolError(f"the event at byte {position} of a batch is cut off")
        parts.append(payload[start:end])
        position = end
    return parts


def encode_body(body: bytes | str, properties: Mapping[str, Any] | None = None) -> bytes:
    """The sections of an event with a binary body and application properties."""
    data = body.encode() if isinstance(body, str) else body
    said = encode_section(APPLICATION_PROPERTIES, dict(properties)) if properties else b""
    return said + encode_section(DATA, data)


def runtime_annotations(sequence_number: int, offset: str, enqueued_ms: int, now_ms: int) -> bytes:
    """The delivery annotations that tell a consumer how far its partition reaches."""
    return encode_section(
        DELIVERY_ANNOTATIONS,
        {
            Symbol("last_enqueued_sequence_number"): sequence_number,
            Symbol("last_enqueued_offset"): offset,
            Symbol("last_enqueued_time_utc"): Timestamp(enqueued_ms),
            Symbol("runtime_info_retrieval_time_utc"): Timestamp(now_ms),
        },
    )


def with_delivery_annotations(annotations: bytes, message: bytes) -> bytes:
    """A message with its delivery annotations where they belong, behind the header if there is one."""
    if not message.startswith(_HEADER_PREFIX):
        return annotations + message
    header_end = skip(message, len(_HEADER_PREFIX))
    return message[:header_end] + annotations + message[header_end:]
