"""Computes Cosmos DB's effective partition key, hash versions 1 and 2.

In version 2 the service hashes every partition key value with MurmurHash3 x64 128, and each physical partition has a range of
hashes. Version 1 (a partition key definition without `version`) hashes with 32 bits, and appends the beginning of the
value. The SDK computes the same in pure Python, 50 times slower; a property test compares the two.

About some values the SDKs for Python and JavaScript disagree in version 1: negative numbers, 0, null, whole numbers from
2^32, and texts over 100 bytes (compared in 72 vectors, November 2026). Their hash is not certain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import mmh3
import msgspec
from msgspec import UNSET, UnsetType

Scalar = str | int | float | bool | UnsetType | None
"""A partition key value; UNSET if the document has none ("undefined", which is not null)."""

UNCERTAIN = "?"
"""The route of a key whose hash is not certain: it is written by its partition key."""

EffectiveKey = Callable[[Sequence[Scalar]], str]

_encode = msgspec.json.Encoder().encode

_CONSTANTS: dict[Scalar, bytes] = {None: b"\x01", False: b"\x02", True: b"\x03"}
_UNDEFINED = b"\x00"
# The two top bits of a hash are zero, so that every hash sorts below the end of the last range, "FF".
_KEPT_BITS = (1 << 126) - 1


def hash_key(values: Sequence[Scalar]) -> str:
    """The effective partition key for kind Hash: 32 upper-case hex digits."""
    return _hex(b"".join(_tagged(value) for value in values))


def multi_hash_key(values: Sequence[Scalar]) -> str:
    """The effective partition key for kind MultiHash (hierarchical): 32 hex digits per level."""
    return "".join(_hex(_tagged(value)) for value in values)


_V1_TEXT = 100  # bytes of a text that version 1 looks at
_SIGN = 1 << 63


def hash_key_v1(values: Sequence[Scalar]) -> str:
    """The effective partition key for kind Hash, version 1, or UNCERTAIN."""
    [value] = values
    if isinstance(value, str):
        text = value.encode()
        if len(text) > _V1_TEXT:
            return UNCERTAIN
        tail = b"\x08" + bytes(byte + 1 for byte in text) + b"\x00"  # no UTF-8 has a byte 255
        hashed = b"\x08" + text + b"\x00"
    elif isinstance(value, bool | UnsetType):
        tail = hashed = _tagged(value)
    elif isinstance(value, int) and 0 < value < 1 << 32:
        tail, hashed = _encoded_v1(float(value)), _tagged(value)
    else:
        return UNCERTAIN
    return (_encoded_v1(float(mmh3.hash(hashed, 0, signed=False))) + tail).hex().upper()


def _encoded_v1(value: float) -> bytes:
    """A number above 0 in the binary form of version 1: 8 bits, then 7 bits a byte; the lowest bit says that more follow."""
    bits = int.from_bytes(struct.pack(">d", value)) ^ _SIGN
    encoded = [0x05, bits >> 56]
    bits = (bits << 8) & (1 << 64) - 1
    rest = []
    while bits:
        rest.append(bits >> 56 | 1)
        bits = (bits << 7) & (1 << 64) - 1
    last = rest.pop() & 0xFE if rest else 0
    return bytes((*encoded, *rest, last))


EFFECTIVE_KEYS: dict[tuple[str, int], EffectiveKey] = {
    ("Hash", 1): hash_key_v1,
    ("Hash", 2): hash_key,
    ("MultiHash", 2): multi_hash_key,
}
"""By kind and version of a container's partition key definition."""


def partition_key_text(values: Sequence[Scalar]) -> str:
    """A partition key as the JSON array text of the service: `["LGA"]`; `{}` stands for a missing value."""
    if UNSET in values:
        return f"[{','.join('{}' if value is UNSET else _encode(value).decode() for value in values)}]"
    return _encode(values).decode()


def order_key(values: Sequence[Scalar], partition_key: str) -> str:
    """Equal for partition keys that are equal in Cosmos DB, where numbers are doubles: `1` and `1.0`, and integers beyond 2^53
    with one double. It is undocumented whether `-0.0` equals `0`; with one key they are only written one after the other.
    """
    if not any(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return partition_key
    return partition_key_text(
        [
            float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else value
            for value in values
        ]
    )


def _hex(tagged: bytes) -> str:
    return f"{mmh3.hash128(tagged) & _KEPT_BITS:032X}"


def _tagged(value: Scalar) -> bytes:
    """A value behind its type's byte, as the service hashes it; numbers are doubles."""
    if isinstance(value, str):
        return b"\x08" + value.encode() + b"\xff"
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, UnsetType):
        return _UNDEFINED
    return b"\x05" + struct.pack("<d", value)
