"""Chooses the partition of a partition key by the rule of the service (pure).

The service hashes the key's UTF-8 with Bob Jenkins' lookup3 (hashlittle2 of lookup3.c, both seeds 0), takes 16 bits of
both results as a signed number, and takes the absolute value of its remainder, which C# truncates towards zero. The clients for
.NET, Java and JavaScript do the same. The one for Python uses Python's floored remainder, which gives another partition for
most negative hashes: see docs/publishing.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

_WORDS = struct.Struct("<III")
_MASK = 0xFFFFFFFF
_MIXING = (4, 6, 8, 16, 19, 4)
_FINISHING = (14, 11, 25, 16, 4, 14, 24)


def partition_of_key(key: str, partition_ids: Sequence[str], *, floored: bool = False) -> str:
    """The partition that the service would choose. `partition_ids` in the order of the service.

    `floored`: the partition that the SDK for Python and earlier versions of this publisher choose.
    """
    hashed = hash_of_key(key)
    return partition_ids[(hashed if floored else abs(hashed)) % len(partition_ids)]


@lru_cache(maxsize=4096)  # keys repeat, and a hash takes 10 microseconds
def hash_of_key(key: str) -> int:
    """The hash of a key: 16 bits, signed."""
    data = key.encode()
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    if data:
        *blocks, last = range(0, len(data), 12)
        for start in blocks:
            a, b, c = _add_block(a, b, c, data[start : start + 12])
            for bits in _MIXING:
                a = (a - c & _MASK) ^ _rotate(c, bits)
                c = c + b & _MASK
                a, b, c = b, c, a
        a, b, c = _add_block(a, b, c, data[last:].ljust(12, b"\0"))
        for bits in _FINISHING:
            c = (c ^ b) - _rotate(b, bits) & _MASK
            a, b, c = b, c, a
        b, c = a, b  # the seven rounds above leave the names rotated
    bits_16 = (b ^ c) & 0xFFFF
    return bits_16 - 0x10000 if bits_16 & 0x8000 else bits_16


def _add_block(a: int, b: int, c: int, block: bytes) -> tuple[int, int, int]:
    x, y, z = _WORDS.unpack(block)
    return a + x & _MASK, b + y & _MASK, c + z & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
