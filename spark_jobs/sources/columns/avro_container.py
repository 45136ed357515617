"""Avro object container files: a header, then blocks of records, each ended by the file's sync marker. Pure.

Only the container: what a record is made of is the decoder's business. A file is read whole, and every defect of it is
reported with its position; a block is never guessed.
"""

from __future__ import annotations

import json
import zlib
from binascii import crc32
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

MAGIC = b"Obj\x01"
_SYNC = 16
_CRC = 4


class CorruptFileError(ValueError):
    """A file is not what it should be. The message says what was found, where, and what is accepted.

    `events` counts the records that the headers of its blocks announce, as far as they can be read.
    """

    def __init__(self, reason: str, *, events: int = 0) -> None:
        super().__init__(reason)
        self.events = events


class Header(NamedTuple):
    """`end` is where the first block begins."""

    schema: Any
    codec: str
    sync: bytes
    end: int


class Block(NamedTuple):
    """So many records, decompressed; a view of the file's data where nothing is compressed."""

    records: int
    payload: bytes | memoryview


def read_header(data: memoryview) -> Header:
    """Raises CorruptFileError."""
    if not data.nbytes:
        raise CorruptFileError("the file is empty; an Avro file has a header even without records")
    if data[:4] != MAGIC:
        raise CorruptFileError(
            f"the file begins with {bytes(data[:4])!r}; an Avro file begins with {MAGIC!r}"
        )
    try:
        metadata, position = _metadata(data, len(MAGIC))
        schema, codec = json.loads(metadata["avro.schema"]), metadata.get("avro.codec", b"null").decode()
    except (IndexError, KeyError, ValueError) as error:
        raise CorruptFileError(f"the Avro header is incomplete or not readable: {error!r}") from error
    sync = bytes(data[position : position + _SYNC])
    if len(sync) < _SYNC:
        raise CorruptFileError("the Avro header is incomplete: it ends within its sync marker")
    return Header(schema, codec, sync, position + _SYNC)


def blocks(data: memoryview, header: Header) -> Iterator[Block]:
    """The blocks in order. Raises CorruptFileError at the first that is cut or does not end where it should."""
    decompress = _CODECS.get(header.codec)
    if decompress is None:
        raise CorruptFileError(
            f"the file's codec is '{header.codec[:40]}'; accepted are {', '.join(sorted(_CODECS))}"
        )
    position, events = header.end, 0
    while position < data.nbytes:
        start = position
        try:
            count, position = read_long(data, position)
            size, position = read_long(data, position)
        except IndexError:
            raise CorruptFileError(
                f"the file ends at byte {data.nbytes}, within the block at {start}", events=events
            ) from None
        if count < 0 or size < 0:
            raise CorruptFileError(
                f"the block at byte {start} has {count} records of {size} bytes", events=events
            )
        events += count
        end = position + size
        if end + _SYNC > data.nbytes:
            missing = end + _SYNC - data.nbytes
            raise CorruptFileError(
                f"the file ends at byte {data.nbytes}, {missing} bytes before the end of the block at {start}",
                events=events,
            )
        if data[end : end + _SYNC] != header.sync:
            raise CorruptFileError(
                f"the block at byte {start} is not followed by the sync marker", events=events
            )
        try:
            payload = decompress(data[position:end])
        except (zlib.error, OSError, ValueError, IndexError) as error:
            raise CorruptFileError(
                f"the block at byte {start} cannot be decompressed ({header.codec}): {error}", events=events
            ) from error
        yield Block(count, payload)
        position = end + _SYNC


def announced_events(data: memoryview) -> int:
    """Records that the file's block headers announce, up to its end or its first defect."""
    try:
        header = read_header(data)
        return sum(block.records for block in blocks(data, header))
    except CorruptFileError as error:
        return error.events


def read_long(data: memoryview, position: int) -> tuple[int, int]:
    """A zigzag varint, and the position behind it. Raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than ten bytes")


def _metadata(data: memoryview, position: int) -> tuple[dict[str, bytes], int]:
    metadata: dict[str, bytes] = {}
    while True:
        count, position = read_long(data, position)
        if count == 0:
            return metadata, position
        if count < 0:  # then the block's size follows
            count, (_, position) = -count, read_long(data, position)
        for _ in range(count):
            name, position = _read_bytes(data, position)
            metadata[name.decode()], position = _read_bytes(data, position)


def _read_bytes(data: memoryview, position: int) -> tuple[bytes, int]:
    size, position = read_long(data, position)
    if size < 0 or position + size > data.nbytes:
        raise IndexError(f"a value of {size} bytes at byte {position} of {data.nbytes}")
    return bytes(data[position : position + size]), position + size


def _inflate(data: memoryview) -> bytes:
    inflater = zlib.decompressobj(-15)
    payload = inflater.decompress(data) + inflater.flush()
    if not inflater.eof:
        raise ValueError("the compressed data is cut")
    return payload


def _unsnap(data: memoryview) -> bytes:
    """Snappy with the CRC of the decompressed bytes behind it, as Avro has it."""
    size = shift = position = 0
    while True:  # the decompressed size, a plain varint, comes first
        byte = data[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    if size > 255 * data.nbytes:  # 64 bytes for 3 is what snappy does at best
        raise ValueError(f"{data.nbytes} bytes cannot hold {size}")
    payload: bytes = pa.decompress(data[:-_CRC], size, codec="snappy", asbytes=True)
    if crc32(payload) != int.from_bytes(data[-_CRC:], "big"):
        raise ValueError("the checksum differs")
    return payload


def _zstandard(data: memoryview) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
        payload: bytes = stream.read()
    return payload


def _as_it_is(data: memoryview) -> memoryview:
    return data


_CODECS: dict[str, Callable[[memoryview], bytes | memoryview]] = {
    "null": _as_it_is,
    "deflate": _inflate,
    "snappy": _unsnap,
    "zstandard": _zstandard,
}
