"""Computes Cosmos DB's effective partition key, hash version 2.

The service hashes every partition key value with MurmurHash3 x64 128, and each physical partition has a range of hashes.
The SDK computes the same in pure Python, 50 times slower; a property test compares the two. Version 1 (a partition key
definition without `version`) is left out, because the SDKs disagree about it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import mmh3
from msgspec import UnsetType

Scalar = str | int | float | bool | UnsetType | None
"""A partition key value; UNSET if the document has none ("undefined", which is not null)."""

EffectiveKey = Callable[[Sequence[Scalar]], str]

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


EFFECTIVE_KEYS: dict[tuple[str, int], EffectiveKey] = {
    ("Hash", 2): hash_key,
    ("MultiHash", 2): multi_hash_key,
}
"""By kind and version of a container's partition key definition."""


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
