"""Avro object container files as bodies, such as Event Hubs Capture writes: many records, with their schema. Pure.

fastavro unpacks a block without a limit, so the blocks are cut here, and only the records are read by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro

from consumer.decoding.avro_schemas import AvroSchema, BodyError, parse_schema
from consumer.decoding.bodies import MOST_DOCUMENTS, inflated, unpacked
from consumer.formats import Integers
from consumer.model import Rejection
from tidemark.foundation.wording import count_text

MAGIC = b"Obj\x01"
_METADATA: Any = fastavro.parse_schema({"type": "map", "values": "bytes"})
_SYNC = 16

_CODECS: dict[bytes, Callable[[bytes, int], bytes]] = {
    b"null": lambda data, _: data,
    b"deflate": lambda data, limit: inflated(data, limit, wbits=-15),
    b"zstandard": lambda data, limit: unpacked(data, "zstd", limit),
}


@lru_cache(maxsize=128)
def _schema(text: bytes, integers: Integers) -> AvroSchema | Rejection:
    """A hub has few schemas, and each of its bodies brings one; to parse it takes longer than to read the records."""
    return parse_schema(text, "the schema in the body", integers=integers)


def read_file(body: bytes, limit: int, integers: Integers) -> list[Any] | Rejection:
    """The records of a file. Blocks have `limit` bytes at most when unpacked, all together.

    Raises PackedError, BodyError, and whatever fastavro raises for metadata that are none.
    """
    if not body.startswith(MAGIC):
        return Rejection("avro", "the body is no Avro file: it does not begin with 'Obj' and 1")
    stream = BytesIO(body)
    stream.seek(len(MAGIC))
    metadata: Any = fastavro.schemaless_reader(stream, _METADATA, None)
    codec = metadata.get("avro.codec", b"null")
    if codec not in _CODECS:
        return Rejection("avro", f"the file has the codec {codec[:40]!r}; accepted: null, deflate, zstandard")
    schema = _schema(metadata.get("avro.schema", b""), integers)
    if isinstance(schema, Rejection):
        return schema
    sync = stream.read(_SYNC)
    records: list[Any] = []
    while stream.tell() < len(body):
        count, size = _number(stream), _number(stream)
        if count > MOST_DOCUMENTS - len(records):
            return Rejection("too_many", f"the file has more than {MOST_DOCUMENTS:,} records")
        data = stream.read(max(size, 0))
        if count < 0 or len(data) != size or stream.read(_SYNC) != sync:
            raise BodyError("a block of the file is damaged, or the file ends too early")
        block = _CODECS[codec](data, limit)
        limit -= len(block)
        try:
            records += _records(schema, block, count)
        except MemoryError:
            raise
        except Exception as error:
            return schema.rejection(error)
    return records


def _records(schema: AvroSchema, block: bytes, count: int) -> list[Any]:
    stream = BytesIO(block)
    records = [schema.read(stream) for _ in range(count)]
    if stream.tell() != len(block):
        raise BodyError(
            f"{count_text(len(block) - stream.tell(), 'byte follows', 'bytes follow')} the records of a block"
        )
    return records


def _number(stream: BytesIO) -> int:
    """A long of Avro: zigzag, in groups of seven bits."""
    value = shift = 0
    while shift < 64:
        byte = stream.read(1)
        if not byte:
            raise BodyError("the file ends too early")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
    raise BodyError("a number has more than ten bytes")
