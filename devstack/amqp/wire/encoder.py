"""Values to the bytes of AMQP 1.0.

The narrowest encoding of a value is taken, with one exception: an empty list is written as
list8, because some clients index into a body that a list0 does not have.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

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

Encoder: TypeAlias = Callable[[Any], bytes]

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")
_SIZE_COUNT = struct.Struct(">II")
_CODE_8, _CODE_32, _CODE_64 = struct.Struct(">BB"), struct.Struct(">BI"), struct.Struct(">BQ")
_CODE_I8, _CODE_I32, _CODE_I64 = struct.Struct(">Bb"), struct.Struct(">Bi"), struct.Struct(">Bq")
_CODE_8_8, _CODE_32_32 = struct.Struct(">BBB"), struct.Struct(">BII")


def encode(value: Any) -> bytes:
    """The bytes of a value, constructor included.

    Raises TypeError for a Python type without an AMQP type, ValueError for a number that does
    not fit its type or an array of mixed types.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"AMQP has no type for {type(value).__name__}: {value!r}")
    try:
        return encoder(value)
    except struct.error as error:
        raise ValueError(f"{value!r} does not fit the AMQP type {type(value).__name__}: {error}") from None


def encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return _CODE_8.pack(0x52, value) if 0 < value < 256 else _CODE_32.pack(0x70, value)


def encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return _CODE_8.pack(0x53, value) if 0 < value < 256 else _CODE_64.pack(0x80, value)


def encode_boolean(value: bool) -> bytes:  # noqa: FBT001 - the value itself
    return b"\x41" if value else b"\x42"


def encode_ubyte(value: int) -> bytes:
    return _CODE_8.pack(0x50, value)


def encode_ushort(value: int) -> bytes:
    return b"\x60" + _U16.pack(value)


def _encode_int(value: int) -> bytes:
    return _CODE_I8.pack(0x54, value) if -128 <= value < 128 else _CODE_I32.pack(0x71, value)


def encode_long(value: int) -> bytes:
    return _CODE_I8.pack(0x55, value) if -128 <= value < 128 else _CODE_I64.pack(0x81, value)


def encode_timestamp(value: int) -> bytes:
    return _CODE_I64.pack(0x83, value)


def _variable(code_8: int, code_32: int, data: bytes) -> bytes:
    size = len(data)
    return (_CODE_8.pack(code_8, size) if size < 256 else _CODE_32.pack(code_32, size)) + data


def encode_binary(value: bytes) -> bytes:
    return _variable(0xA0, 0xB0, value)


def encode_string(value: str) -> bytes:
    return _variable(0xA1, 0xB1, value.encode())


def encode_symbol(value: str) -> bytes:
    return _variable(0xA3, 0xB3, value.encode("ascii"))


def _compound(code_8: int, code_32: int, count: int, body: bytes) -> bytes:
    if len(body) < 255 and count < 256:
        return _CODE_8_8.pack(code_8, len(body) + 1, count) + body
    return _CODE_32_32.pack(code_32, len(body) + 4, count) + body


def encode_list_of(parts: list[bytes]) -> bytes:
    """A list whose elements are encoded already."""
    return _compound(0xC0, 0xD0, len(parts), b"".join(parts))


def encode_map_of(pairs: bytes, count: int) -> bytes:
    """A map of `count` pairs whose keys and values are encoded already."""
    return _compound(0xC1, 0xD1, 2 * count, pairs)


def _encode_list(value: list[Any]) -> bytes:
    return encode_list_of([encode(element) for element in value])


def _encode_map(value: dict[Any, Any]) -> bytes:
    return encode_map_of(b"".join(encode(key) + encode(entry) for key, entry in value.items()), len(value))


def _encode_described(value: Described) -> bytes:
    return b"\x00" + encode(value.descriptor) + encode(value.value)


def _encode_array(value: Array) -> bytes:
    if not value:
        return b"\xe0\x02\x00\x40"
    constructor = _constructor_of(value[0])
    if any(_constructor_of(element) != constructor for element in value):
        raise ValueError(f"an AMQP array holds one type, got {sorted({type(e).__name__ for e in value})}")
    return _compound(0xE0, 0xF0, len(value), constructor + b"".join(map(_element, value)))


def _constructor_of(value: Any) -> bytes:
    if isinstance(value, Described):
        return b"\x00" + encode(value.descriptor) + _constructor_of(value.value)
    if type(value) not in _WIDE:
        raise TypeError(f"AMQP has no type for {type(value).__name__}: {value!r}")
    return bytes((_WIDE[type(value)][0],))


def _element(value: Any) -> bytes:
    """The value without a constructor, in the widest encoding of its type."""
    if isinstance(value, Described):
        return _element(value.value)
    return _WIDE[type(value)][1](value)


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _wide_list(value: list[Any]) -> bytes:
    body = b"".join(map(encode, value))
    return _SIZE_COUNT.pack(len(body) + 4, len(value)) + body


def _wide_map(value: dict[Any, Any]) -> bytes:
    body = b"".join(encode(key) + encode(entry) for key, entry in value.items())
    return _SIZE_COUNT.pack(len(body) + 4, 2 * len(value)) + body


def _wide_array(value: Array) -> bytes:
    if not value:
        return _SIZE_COUNT.pack(5, 0) + b"\x40"
    body = _constructor_of(value[0]) + b"".join(map(_element, value))
    return _SIZE_COUNT.pack(len(body) + 4, len(value)) + body


def _char(value: str) -> bytes:
    return value.encode("utf-32-be")


_WIDE: dict[type, tuple[int, Encoder]] = {
    type(None): (0x40, lambda _: b""),
    bool: (0x56, lambda value: b"\x01" if value else b"\x00"),
    UByte: (0x50, lambda value: struct.pack(">B", value)),
    UShort: (0x60, _U16.pack),
    UInt: (0x70, _U32.pack),
    ULong: (0x80, _U64.pack),
    Byte: (0x51, lambda value: struct.pack(">b", value)),
    Short: (0x61, _I16.pack),
    Int: (0x71, _I32.pack),
    int: (0x81, _I64.pack),
    Float: (0x72, _F32.pack),
    float: (0x82, _F64.pack),
    Decimal32: (0x74, bytes),
    Decimal64: (0x84, bytes),
    Decimal128: (0x94, bytes),
    Char: (0x73, _char),
    Timestamp: (0x83, _I64.pack),
    UUID: (0x98, lambda value: value.bytes),
    bytes: (0xB0, _sized),
    str: (0xB1, lambda value: _sized(value.encode())),
    Symbol: (0xB3, lambda value: _sized(value.encode("ascii"))),
    list: (0xD0, _wide_list),
    dict: (0xD1, _wide_map),
    Array: (0xF0, _wide_array),
}

_ENCODERS: dict[type, Encoder] = {
    type(None): lambda _: b"\x40",
    bool: encode_boolean,
    UByte: encode_ubyte,
    UShort: encode_ushort,
    UInt: encode_uint,
    ULong: encode_ulong,
    Byte: lambda value: _CODE_I8.pack(0x51, value),
    Short: lambda value: b"\x61" + _I16.pack(value),
    Int: _encode_int,
    int: encode_long,
    Float: lambda value: b"\x72" + _F32.pack(value),
    float: lambda value: b"\x82" + _F64.pack(value),
    Decimal32: lambda value: b"\x74" + value,
    Decimal64: lambda value: b"\x84" + value,
    Decimal128: lambda value: b"\x94" + value,
    Char: lambda value: b"\x73" + _char(value),
    Timestamp: encode_timestamp,
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: encode_binary,
    str: encode_string,
    Symbol: encode_symbol,
    list: _encode_list,
    dict: _encode_map,
    Array: _encode_array,
    Described: _encode_described,
}
