"""The bytes of AMQP 1.0 to values: either a value or ProtocolError, whatever the bytes are."""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

from devstack.amqp.wire.errors import ProtocolError
from devstack.amqp.wire.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

Decoder: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

# Array elements of zero width cost the sender nothing; Azure's clients cap compounds at the same count.
_MAX_EMPTY_ELEMENTS = 65_536

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")
_SIZE_COUNT = struct.Struct(">II")


def decode(data: bytes, position: int = 0) -> tuple[Any, int]:
    """The value that starts at `position`, and where it ends.

    Raises ProtocolError if there is no well-formed value.
    """
    try:
        return _decode(data, position)
    except (IndexError, struct.error):
        raise ProtocolError(f"the value at byte {position} is cut off") from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the value at byte {position} is not text: {error}") from None
    except RecursionError:
        raise ProtocolError(f"the value at byte {position} is nested too deeply") from None


def skip(data: bytes, position: int) -> int:
    """Where the value that starts at `position` ends; looks at sizes only.

    Raises ProtocolError if it does not end within `data`.
    """
    try:
        code = data[position]
        if code == 0:
            return skip(data, skip(data, position + 1))
        end = position + 1 + _FIXED_WIDTH.get(code >> 4, 0)
        if code >= 0xA0:
            width = 1 if code & 0x10 == 0 else 4
            end += width + int.from_bytes(data[position + 1 : position + 1 + width], "big")
    except (IndexError, RecursionError):
        raise ProtocolError(f"the value at byte {position} is cut off") from None
    if end > len(data):
        raise ProtocolError(f"the value at byte {position} is cut off")
    return end


_FIXED_WIDTH = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def _decode(data: bytes, position: int) -> tuple[Any, int]:
    return _DECODERS[data[position]](data, position + 1)


def _unknown(data: bytes, position: int) -> tuple[Any, int]:
    raise ProtocolError(f"0x{data[position - 1]:02x} at byte {position - 1} is no AMQP type")


def _constant(value: Any) -> Decoder:
    return lambda _data, position: (value, position)


def _byte(make: Callable[[int], Any]) -> Decoder:
    return lambda data, position: (make(data[position]), position + 1)


def _signed_byte(make: Callable[[int], Any]) -> Decoder:
    return lambda data, position: (make((data[position] ^ 0x80) - 0x80), position + 1)


def _fixed(layout: struct.Struct, make: Callable[[Any], Any] | None = None) -> Decoder:
    unpack, size = layout.unpack_from, layout.size
    if make is None:
        return lambda data, position: (unpack(data, position)[0], position + size)
    return lambda data, position: (make(unpack(data, position)[0]), position + size)


def _raw(size: int, make: Callable[[bytes], Any]) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        end = position + size
        if end > len(data):
            raise IndexError
        return make(data[position:end]), end

    return decoder


def _sized_8(make: Callable[[bytes], Any]) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        start = position + 1
        end = start + data[position]
        if end > len(data):
            raise IndexError
        return make(data[start:end]), end

    return decoder


def _sized_32(make: Callable[[bytes], Any]) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        start = position + 4
        end = start + _U32.unpack_from(data, position)[0]
        if end > len(data):
            raise IndexError
        return make(data[start:end]), end

    return decoder


def _list_at(data: bytes, position: int, count: int, end: int) -> tuple[list[Any], int]:
    if count > end - position:  # every element takes at least its constructor
        raise ProtocolError(f"a list of {count} elements does not fit in {end - position} bytes")
    values = []
    for _ in range(count):
        value, position = _DECODERS[data[position]](data, position + 1)
        values.append(value)
    if position != end:
        raise ProtocolError(f"a compound ends at byte {position}, its size says {end}")
    return values, end


def _map_at(data: bytes, position: int, count: int, end: int) -> tuple[dict[Any, Any], int]:
    if count % 2:
        raise ProtocolError(f"a map has {count} elements, accepted: an even number")
    flat, end = _list_at(data, position, count, end)
    try:
        return dict(zip(flat[::2], flat[1::2], strict=True)), end
    except TypeError as error:
        raise ProtocolError(f"a map key is not a simple value: {error}") from None


def _array_at(data: bytes, position: int, count: int, end: int) -> tuple[Array, int]:
    descriptors = []
    while data[position] == 0:
        descriptor, position = _decode(data, position + 1)
        descriptors.append(descriptor)
    decoder, code = _DECODERS[data[position]], data[position]
    position += 1
    if count > (_MAX_EMPTY_ELEMENTS if 0x40 <= code < 0x50 else end - position):
        raise ProtocolError(f"an array of {count} elements does not fit in {end - position} bytes")
    values = Array()
    for _ in range(count):
        value, position = decoder(data, position)
        for descriptor in reversed(descriptors):
            value = Described(descriptor, value)
        values.append(value)
    if position != end:
        raise ProtocolError(f"an array ends at byte {position}, its size says {end}")
    return values, end


def _compound_8(make: Callable[[bytes, int, int, int], tuple[Any, int]]) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        end = position + 1 + data[position]
        if end > len(data):
            raise IndexError
        return make(data, position + 2, data[position + 1], end)

    return decoder


def _compound_32(make: Callable[[bytes, int, int, int], tuple[Any, int]]) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        size, count = _SIZE_COUNT.unpack_from(data, position)
        end = position + 4 + size
        if end > len(data):
            raise IndexError
        return make(data, position + 8, count, end)

    return decoder


def _described(data: bytes, position: int) -> tuple[Described, int]:
    descriptor, position = _decode(data, position)
    value, position = _decode(data, position)
    return Described(descriptor, value), position


def _text(data: bytes) -> str:
    return data.decode()


def _symbol(data: bytes) -> Symbol:
    return Symbol(data.decode("ascii"))


def _to_char(data: bytes) -> Char:
    return Char(data.decode("utf-32-be"))


def _to_uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


_TABLE: dict[int, Decoder] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda _data, position: ([], position),
    0x50: _byte(UByte),
    0x51: _signed_byte(Byte),
    0x52: _byte(UInt),
    0x53: _byte(ULong),
    0x54: _signed_byte(Int),
    0x55: _signed_byte(int),
    0x56: _byte(bool),
    0x60: _fixed(_U16, UShort),
    0x61: _fixed(_I16, Short),
    0x70: _fixed(_U32, UInt),
    0x71: _fixed(_I32, Int),
    0x72: _fixed(_F32, Float),
    0x73: _raw(4, _to_char),
    0x74: _raw(4, Decimal32),
    0x80: _fixed(_U64, ULong),
    0x81: _fixed(_I64),
    0x82: _fixed(_F64),
    0x83: _fixed(_I64, Timestamp),
    0x84: _raw(8, Decimal64),
    0x94: _raw(16, Decimal128),
    0x98: _raw(16, _to_uuid),
    0xA0: _sized_8(bytes),
    0xA1: _sized_8(_text),
    0xA3: _sized_8(_symbol),
    0xB0: _sized_32(bytes),
    0xB1: _sized_32(_text),
    0xB3: _sized_32(_symbol),
    0xC0: _compound_8(_list_at),
    0xC1: _compound_8(_map_at),
    0xD0: _compound_32(_list_at),
    0xD1: _compound_32(_map_at),
    0xE0: _compound_8(_array_at),
    0xF0: _compound_32(_array_at),
}

_DECODERS: list[Decoder] = [_TABLE.get(code, _unknown) for code in range(256)]
