"""Encodes the runs of settled events beyond the low-water mark as a short text that is stored with the checkpoint.

Text: one letter for the method, then base64 of a CRC-32 (big-endian, of the small letter, the mark and the plain bytes) and
the bytes, deflated if the letter is a capital.

    R      runs: their distances from the last number before them, then their lengths - 1, all LEB128
    r      the same, not deflated; written by older versions, like b and B
    b, B   bits: the distance of the first run as LEB128, then one bit per sequence number, the lowest first

If the text exceeds the limit, the runs furthest from the mark are left out: their events are written again after a restart,
and no event is skipped. The CRC covers the mark, so that a map is never read with another mark: that would lose events.
"""

from __future__ import annotations

import binascii
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence

Run = tuple[int, int]

MOST_RUNS = 20_000  # runs that are encoded at most: far more than fit, and still encoded in milliseconds
MOST_BYTES = 1 << 18  # of an inflated map, which bounds the memory that a hostile text can take


def encode(runs: Sequence[Run], mark: int, limit_bytes: int) -> str:
    """A text of at most `limit_bytes` ASCII characters, '' for none. `runs` ascend, are apart and beyond `mark`."""
    kept = min(len(runs), MOST_RUNS)
    while kept:
        body = _to_runs(runs[:kept], mark)
        text = "R" + b64encode(_checksum("R", mark, body) + zlib.compress(body)).decode()
        if len(text) <= limit_bytes and len(body) <= MOST_BYTES:
            return text
        # Size grows nearly in proportion to the number of runs; 5 % less than that ends the search in few steps.
        kept = min(kept - 1, int(kept * min(limit_bytes / len(text), MOST_BYTES / len(body)) * 0.95))
    return ""


def decode(text: str, mark: int) -> tuple[Run, ...]:
    """The runs of a text made for this `mark`. Raises ValueError for anything else."""
    if not text:
        return ()
    method, packed = text[0], text[1:]
    try:
        data = b64decode(packed, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the completion map is not base64: {error}") from None
    checksum, body = data[:4], data[4:]
    if method.isupper():
        body = _inflate(body)
    if method not in "rRbB" or checksum != _checksum(method, mark, body):
        raise ValueError("the completion map does not belong to this mark, or is damaged")
    return tuple(_from_runs(body, mark) if method in "rR" else _from_bits(body, mark))


def _checksum(method: str, mark: int, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(f"{method.lower()}{mark}".encode())).to_bytes(4, "big")


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"the completion map cannot be inflated: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise ValueError("the completion map is cut off or too large")
    return plain


def _to_runs(runs: Sequence[Run], mark: int) -> bytes:
    packed = bytearray()
    previous = mark
    for first, last in runs:
        _append(packed, first - previous)
        previous = last
    for first, last in runs:  # behind all distances, which are nearly equal and deflate to almost nothing
        _append(packed, last - first)
    return bytes(packed)


def _from_runs(body: bytes, mark: int) -> Iterator[Run]:
    numbers = list(_numbers(body))
    half = len(numbers) // 2
    previous = mark
    for distance, length in zip(numbers[:half], numbers[half:], strict=True):
        first = previous + distance
        previous = first + length
        yield first, previous


def _from_bits(body: bytes, mark: int) -> Iterator[Run]:
    size = next(index for index, byte in enumerate(body) if byte < 0x80) + 1
    base = mark + next(_numbers(body[:size]))
    digits = bin(int.from_bytes(body[size:], "little"))[:1:-1]
    for ones in re.finditer("1+", digits):
        yield base + ones.start(), base + ones.end() - 1


def _append(packed: bytearray, number: int) -> None:
    while number >= 0x80:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)


def _numbers(body: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in body:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
