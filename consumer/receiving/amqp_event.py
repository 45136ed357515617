"""Reads an event from the bytes of its AMQP message. Pure.

The SDK decodes every field of every section into objects of its own: 80 us per event of 1 KB. The fields of an event are
read in 5 us. A message with anything unusual is left to the SDK.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from consumer.model import Event

# Sections, by the last byte of their descriptor (AMQP 1.0, part 3.2).
_HEADER, _DELIVERY_ANNOTATIONS, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA = range(0x70, 0x76)
_FOOTER = 0x78
_PASSED_OVER = frozenset({_HEADER, _DELIVERY_ANNOTATIONS, _FOOTER})
_CONTENT_TYPE, _CONTENT_ENCODING = 6, 7
"""Fields of the properties section (AMQP 1.0, part 3.2.4)."""

_EMPTY_LIST = 0x45
_SHORT, _LONG = frozenset({0xA0, 0xA1, 0xA3, 0xC0, 0xC1}), frozenset({0xB0, 0xB1, 0xB3, 0xD0, 0xD1})
"""Constructors with a size of one byte, or of four."""

_NO_TYPES: Mapping[str, str] = {}
_TEXTS = frozenset({0xA1, 0xA3, 0xB1, 0xB3})

_int64 = struct.Struct(">q").unpack_from
_uint32 = struct.Struct(">I").unpack_from
_uint64 = struct.Struct(">Q").unpack_from
_int32 = struct.Struct(">i").unpack_from
_int16 = struct.Struct(">h").unpack_from
_float = struct.Struct(">f").unpack_from
_double = struct.Struct(">d").unpack_from

_Value = tuple[Any, int]
Content = Sequence[str | None]
"""Content type and content encoding."""
NO_CONTENT: Content = (None, None)


class UnusualError(Exception):
    """This module does not read such a message."""


UNREADABLE = (UnusualError, KeyError, IndexError, UnicodeDecodeError, struct.error)
"""What reading bytes raises that are not read here."""


def _small_text(data: bytes, at: int) -> _Value:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end


def _large_text(data: bytes, at: int) -> _Value:
    end = at + 4 + _uint32(data, at)[0]
    return data[at + 4 : end].decode(), end


def _small_binary(data: bytes, at: int) -> _Value:
    end = at + 1 + data[at]
    return _text_if_utf8(data[at + 1 : end]), end


def _large_binary(data: bytes, at: int) -> _Value:
    end = at + 4 + _uint32(data, at)[0]
    return _text_if_utf8(data[at + 4 : end]), end


def _text_if_utf8(value: bytes) -> str | bytes:
    """As consumer.receiving.events does: Kafka producers send each header's value as binary."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _char(data: bytes, at: int) -> _Value:
    return data[at : at + 4].decode("utf-32-be"), at + 4


def _decimal(width: int, bits: int, bias: int) -> Callable[[bytes, int], _Value]:
    """Reads decimals of IEEE 754-2008 in `width` bytes, with a coefficient of `bits` as a whole number. The SDK reads only those of
    16 bytes.
    """

    def read(data: bytes, at: int) -> _Value:
        value = int.from_bytes(data[at : at + width])
        sign, top = value >> (8 * width - 1), value >> (8 * width - 6) & 0b11111
        if top >= 0b11110:
            return Decimal("NaN" if top & 1 else ("-Infinity" if sign else "Infinity")), at + width
        shift, begin = (bits - 2, 0b100 << (bits - 2)) if top >= 0b11000 else (bits, 0)
        exponent = value >> shift & ((1 << (8 * width - 1 - bits)) - 1)
        digits = str(begin | value & ((1 << shift) - 1))
        return Decimal((sign, tuple(map(int, digits)), exponent - bias)), at + width

    return read


_READ: Mapping[int, Callable[[bytes, int], _Value]] = {
    0x40: lambda _data, at: (None, at),
    0x41: lambda _data, at: (True, at),
    0x42: lambda _data, at: (False, at),
    0x43: lambda _data, at: (0, at),
    0x44: lambda _data, at: (0, at),
    0x50: lambda data, at: (data[at], at + 1),
    0x51: lambda data, at: (int.from_bytes(data[at : at + 1], signed=True), at + 1),
    0x52: lambda data, at: (data[at], at + 1),
    0x53: lambda data, at: (data[at], at + 1),
    0x54: lambda data, at: (int.from_bytes(data[at : at + 1], signed=True), at + 1),
    0x55: lambda data, at: (int.from_bytes(data[at : at + 1], signed=True), at + 1),
    0x56: lambda data, at: (data[at] == 1, at + 1),
    0x60: lambda data, at: (int.from_bytes(data[at : at + 2]), at + 2),
    0x61: lambda data, at: (_int16(data, at)[0], at + 2),  # the epoch of an idempotent producer
    0x70: lambda data, at: (_uint32(data, at)[0], at + 4),
    0x71: lambda data, at: (_int32(data, at)[0], at + 4),
    0x72: lambda data, at: (_float(data, at)[0], at + 4),
    0x73: _char,
    0x74: _decimal(4, 23, 101),
    0x80: lambda data, at: (_uint64(data, at)[0], at + 8),
    0x81: lambda data, at: (_int64(data, at)[0], at + 8),
    0x82: lambda data, at: (_double(data, at)[0], at + 8),
    0x83: lambda data, at: (_int64(data, at)[0], at + 8),
    0x84: _decimal(8, 53, 398),
    0x94: _decimal(16, 113, 6176),
    0x98: lambda data, at: (UUID(bytes=data[at : at + 16]), at + 16),
    0xA0: _small_binary,
    0xA1: _small_text,
    0xA3: _small_text,
    0xB0: _large_binary,
    0xB1: _large_text,
    0xB3: _large_text,
}

_TYPES: Mapping[int, str] = {
    0x50: "UBYTE",
    0x51: "BYTE",
    0x60: "USHORT",
    0x61: "SHORT",
    0x43: "UINT",
    0x52: "UINT",
    0x70: "UINT",
    0x54: "INT",
    0x71: "INT",
    0x44: "ULONG",
    0x53: "ULONG",
    0x80: "ULONG",
    0x72: "FLOAT",
    0x83: "TIMESTAMP",
    0xA0: "BINARY",
    0xB0: "BINARY",
    0xA3: "SYMBOL",
    0xB3: "SYMBOL",
}
"""By constructor the types, as the SDKs name them, of values that become what a long, a double or a string does."""


def read_event(partition: str, data: bytes) -> Event | None:
    """The event of a message; None if it contains anything that is not read here."""
    try:
        return _read(partition, data)
    except UNREADABLE:
        return None


def last_enqueued(data: bytes) -> int | None:
    """The sequence number of the partition's newest event, if the message contains it, else None."""
    try:
        if data[:3] != b"\x00\x53\x71":  # the service puts it first
            return None
        value = _map(data, 3).get("last_enqueued_sequence_number")
    except UNREADABLE:
        return None
    return value if isinstance(value, int) else None


def _read(partition: str, data: bytes) -> Event:
    annotations, properties, types, content, body = read_sections(data, 0)
    return Event(
        partition,
        annotations["x-opt-sequence-number"],
        annotations["x-opt-offset"],
        annotations["x-opt-enqueued-time"] / 1000,
        body,
        _text_or_none(annotations.get("x-opt-partition-key")),
        properties,
        content_type=content[0],
        content_encoding=content[1],
        property_types=types,
    )


def read_sections(
    data: bytes, at: int
) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, str], Content, bytes]:
    """Message annotations, application properties with their types, content and body of the sections from `at` to the end of the
    message.
    """
    annotations: Mapping[str, Any] = {}
    properties: Mapping[str, Any] = {}
    types: Mapping[str, str] = _NO_TYPES
    content = NO_CONTENT
    body: bytes | None = None
    end = len(data)
    while at < end:
        if data[at] or data[at + 1] != 0x53:
            raise UnusualError
        section = data[at + 2]
        start, stop = _span(data, at + 3)
        if stop > end:
            raise UnusualError
        if section == _DATA:
            body = data[start:stop] if body is None else body + data[start:stop]
        elif section == _ANNOTATIONS:
            annotations = _map(data, at + 3)
        elif section == _APPLICATION:
            types = {}
            properties = _map(data, at + 3, types)
        elif section == _PROPERTIES:
            content = _content(data, at + 3)
        elif section not in _PASSED_OVER:
            raise UnusualError
        at = stop
    if body is None:
        raise UnusualError
    return annotations, properties, types, content, body


def section_end(data: bytes, at: int) -> int:
    """Where the section at `at` ends."""
    return _span(data, at + 3)[1]


def _span(data: bytes, at: int) -> tuple[int, int]:
    """The beginning and the end of the content of the value at `at`."""
    constructor = data[at]
    if constructor in _SHORT:
        return at + 2, at + 2 + data[at + 1]
    if constructor in _LONG:
        return at + 5, at + 5 + _uint32(data, at + 1)[0]
    if constructor == _EMPTY_LIST:
        return at + 1, at + 1
    raise UnusualError


def _content(data: bytes, at: int) -> Content:
    """Content type and content encoding of the properties section at `at`."""
    if data[at] == 0xC0:
        count, at = data[at + 2], at + 3
    elif data[at] == 0xD0:
        count, at = _uint32(data, at + 5)[0], at + 9
    elif data[at] == _EMPTY_LIST:
        return NO_CONTENT
    else:
        raise UnusualError
    values: list[Any] = []
    for _ in range(min(count, _CONTENT_ENCODING + 1)):
        value, at = _READ[data[at]](data, at + 1)
        values.append(value)
    values += [None] * (_CONTENT_ENCODING + 1 - len(values))
    return _text_or_none(values[_CONTENT_TYPE]), _text_or_none(values[_CONTENT_ENCODING])


def _text_or_none(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise UnusualError


def _map(data: bytes, at: int, types: dict[str, str] | None = None) -> Mapping[str, Any]:
    """Reads a map with texts as keys and plain values. `types` gets the types of those whose value does not say it."""
    if data[at] == 0xC1:
        stop, at = at + 2 + data[at + 1], at + 3
    elif data[at] == 0xD1:
        stop, at = at + 5 + _uint32(data, at + 1)[0], at + 9
    else:
        raise UnusualError
    pairs = {}
    while at < stop:
        if data[at] not in _TEXTS:
            raise UnusualError
        key, at = _READ[data[at]](data, at + 1)
        constructor = data[at]
        value, at = _READ[constructor](data, at + 1)
        pairs[key] = value
        if types is not None and constructor in _TYPES and not isinstance(value, bytes):
            types[key] = _TYPES[constructor]
    return pairs
