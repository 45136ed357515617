"""Which partition a partition key belongs to, as the service decides it: Jenkins' lookup3."""

import struct

_MASK = 0xFFFFFFFF
_SEED = 0xDEADBEEF
_TAIL = struct.Struct("<III")


def partition_of(key: str, partitions: int) -> int:
    """The index of the partition, from 0."""
    b, c = _lookup3(key.encode())
    hashed = (b ^ c) & 0xFFFF
    signed = hashed - 0x10000 if hashed & 0x8000 else hashed
    return (
        abs(signed) % partitions
    )  # Math.Abs(signed % partitions) of C#, whose remainder is truncated towards zero


def _rotate(value: int, by: int) -> int:
    return ((value << by) | (value >> (32 - by))) & _MASK


def _lookup3(data: bytes) -> tuple[int, int]:
    """Both hashes, b and c, of hashlittle2 with both seeds 0."""
    a = b = c = (_SEED + len(data)) & _MASK
    whole = max(len(data) - 1, 0) // 12 * 12
    for position in range(0, whole, 12):
        x, y, z = _TAIL.unpack_from(data, position)
        a, b, c = _mix((a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK)
    if len(data) == whole:
        return b, c
    x, y, z = _TAIL.unpack(data[whole:].ljust(12, b"\0"))
    return _final((a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK)


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for shift in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _MASK) ^ _rotate(c, shift)
        c = (c + b) & _MASK
        a, b, c = b, c, a
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int]:
    for shift in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotate(b, shift)) & _MASK
        a, b, c = b, c, a
    return a, b
