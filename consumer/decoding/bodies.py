"""What all decoders share: the content type of an event, and its body unpacked. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from msgspec import Struct

from consumer.formats import Unpack
from consumer.model import Event, Rejection

REASONS = {
    "unreadable": "the message has no body of bytes",
    "empty": "the body is empty",
    "packed": "the body is not the gzip or zstd that it is said to be, or is larger than CONSUMER_UNPACK_LIMIT when unpacked",
    "content_type": "the event does not say how its body is encoded, or in a way that no decoder of this consumer reads",
    "schema_unknown": "the registry, or the schema files, have no schema of the id in the event",
    "schema": "the schema cannot be used: it is broken, of another kind, or would let a small body take any time or memory",
    "avro": "the body does not match its Avro schema",
    "protobuf": "the body is not the Protobuf message",
    "cloudevent": "an attribute that CloudEvents require is missing, or the envelope is malformed",
    "csv": "the body is not CSV with the expected columns",
    "encoding": "the body is not UTF-8",
    "number": "NaN or Infinity, which JSON does not have",
    "not_object": "the body has a value that is no object (record, message)",
    "too_many": "one event has more documents than are taken from one",
    "undecodable": "decoding the event failed in an unexpected way",
}
"""Every reason for a rejection by a decoder, besides those of consumer.mapping.documents for JSON."""

MOST_DOCUMENTS = 10_000
"""Documents of one event. Chosen: a row of CSV takes two bytes of a body, and a record in memory some hundred."""

WINDOW = 8 << 20
"""Bytes of history that a zstd frame may ask a reader to keep: what RFC 8878, 3.1.1.1.2, recommends all readers to support."""

_STEP = 64
"""Bytes of zstd that are unpacked at a time. A block of 4 bytes gives 128 KB at the most (RFC 8878, 3.1.1.2.3), so a step gives 2 MB."""

GZIP, ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
"""The first bytes of both. No text in UTF-8 begins so."""

_ENCODINGS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}
_NOT_READ = frozenset({"br", "compress", "deflate", "lz4", "snappy"})
"""Content encodings that pack a body in another way. All others are no packing: devices of IoT Hub send `utf-8`."""


class PackedError(ValueError):
    """A body cannot be unpacked, or not within the limit."""


def content_type_of(event: Event) -> str:
    """The AMQP content type; else the application property `content-type`, where Kafka's clients put it. '' for none."""
    content_type = event.content_type or event.properties.get("content-type") or ""
    if isinstance(content_type, bytes):
        content_type = content_type.decode("latin-1")
    return content_type.strip() if isinstance(content_type, str) else ""


def media_type(content_type: str) -> str:
    """`application/json` of `Application/JSON; charset=utf-8`."""
    return content_type.partition(";")[0].strip().lower()


def packing_of(event: Event, unpack: Unpack, shows_packing: Callable[[Event], bool]) -> str:
    """`gzip`, `zstd`, or '' for a body that is as it is. Raises PackedError for an encoding that is not read."""
    if unpack is not Unpack.AUTO:
        return "" if unpack is Unpack.NONE else str(unpack)
    said = event.content_encoding or event.properties.get("content-encoding")
    if said:
        text = said.decode("latin-1") if isinstance(said, bytes) else str(said)
        encoding = text.strip().lower()
        if encoding in _NOT_READ:
            raise PackedError(f"the content encoding '{encoding}' is not read; accepted: gzip, zstd")
        if encoding in _ENCODINGS:
            return _ENCODINGS[encoding]
    packing = "gzip" if event.body.startswith(GZIP) else "zstd" if event.body.startswith(ZSTD) else ""
    return packing if packing and shows_packing(event) else ""


def unpacked(body: bytes, packing: str, limit: int) -> bytes:
    """The body, at most `limit` bytes of it. Raises PackedError."""
    if packing == "gzip":
        return inflated(body, limit, wbits=31)
    return _of_zstd(body, limit) if packing == "zstd" else body


def inflated(body: bytes, limit: int, *, wbits: int) -> bytes:
    """Unpacks deflate (`wbits` -15) or gzip (31), which may have several members. Raises PackedError."""
    parts, size, rest = [], 0, body
    while True:
        unpacking = zlib.decompressobj(wbits)
        try:
            part = unpacking.decompress(rest, limit - size + 1)
        except zlib.error as error:
            raise PackedError(f"not gzip or deflate: {error}") from None
        parts.append(part)
        size += len(part)
        if size > limit:
            raise PackedError(f"unpacked it has more than {limit:,} bytes (CONSUMER_UNPACK_LIMIT)")
        if not unpacking.eof:
            raise PackedError("the compressed data ends too early")
        rest = unpacking.unused_data
        if not rest or wbits < 0:
            return b"".join(parts)


def _of_zstd(body: bytes, limit: int) -> bytes:
    try:
        import zstandard  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError:
        raise PackedError("reading zstd needs the package zstandard, of the extra 'decoders'") from None
    try:
        size = zstandard.frame_content_size(body)
        if size > limit:
            raise PackedError(f"unpacked it has more than {limit:,} bytes (CONSUMER_UNPACK_LIMIT)")
        if size >= 0:
            with suppress(zstandard.ZstdError):  # several frames, or a frame of more than it says
                return bytes(_frame().decompress(body, allow_extra_data=False))
        return _of_frames(body, limit)
    except zstandard.ZstdError as error:
        raise PackedError(f"not zstd: {error}") from None


def _of_frames(body: bytes, limit: int) -> bytes:
    """Several frames, or one that does not say its size, step by step."""
    parts, size, at = [], 0, 0
    while at < len(body):
        unpacking = _frame().decompressobj()
        while not unpacking.eof:
            if at >= len(body):
                raise PackedError("the compressed data ends too early")
            part = unpacking.decompress(body[at : at + _STEP])
            at += _STEP
            size += len(part)
            if size > limit:
                raise PackedError(f"unpacked it has more than {limit:,} bytes (CONSUMER_UNPACK_LIMIT)")
            parts.append(part)
        at = min(at, len(body)) - len(unpacking.unused_data)
    return b"".join(parts)


@lru_cache(maxsize=1)
def _frame() -> Any:
    import zstandard  # noqa: PLC0415 - see above

    return zstandard.ZstdDecompressor(max_window_size=WINDOW)


class Definition(Struct, frozen=True):
    """A schema as a registry has it."""

    text: str
    kind: str = "avro"
    """`avro`, `json` or `protobuf`."""
    references: tuple[str, ...] = ()
    """Texts of the schemas that it names, each after those that it names itself."""


class Lookup(Protocol):
    """The schemas that are known."""

    def get(self, schema_id: str) -> Any:
        """What was made of a schema, or a Rejection. Raises RuntimeError for one that `missing` would have named."""

    def missing(self, ids: Collection[str]) -> list[str]:
        """Those that have to be fetched first."""


class Format:
    """Base of what reads one format. `decode` gets an event that has a document, with its body unpacked, and may raise anything:
    that rejects the event.
    """

    schemas: Lookup | None = None
    """What `schema_of` may need."""

    schema_in_body = False
    """Whether the id of a schema is in the body, which then has to be unpacked for `schema_of`."""

    def has_document(self, event: Event) -> bool:
        """False for a tombstone: an event without a body."""
        return bool(event.body)

    def shows_packing(self, event: Event) -> bool:
        """Whether a body that begins as gzip or zstd does can only be that."""
        return True

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        raise NotImplementedError

    def schema_of(self, event: Event) -> str:
        """The id of the schema that an event needs; '' for none."""
        return ""


def checked(documents: Sequence[Any]) -> Sequence[Any] | Rejection:
    if len(documents) > MOST_DOCUMENTS:
        return Rejection(
            "too_many", f"the event has {len(documents):,} documents; at most {MOST_DOCUMENTS:,} are taken"
        )
    for document in documents:
        if not isinstance(document, dict):
            return Rejection(
                "not_object", f"the body has a value of type {type(document).__name__}; expected an object"
            )
    return documents


def finite(value: float) -> float:
    """Raises NotFiniteError for NaN and the infinities, which JSON does not have."""
    if value - value != 0.0:
        raise NotFiniteError(f"{value!r} is no JSON number")
    return value


class NotFiniteError(ValueError):
    """A number that JSON does not have."""
