"""Avro bodies whose schema is known by an id: in the content type, in front of the record, or as a fingerprint. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from consumer.decoding import avro_files
from consumer.decoding.avro_schemas import AvroSchema, parse_schema
from consumer.decoding.bodies import Definition, Format, Lookup, PackedError, content_type_of
from consumer.decoding.json_body import read_documents
from consumer.formats import FILES, MESSAGE, AvroFileOptions, Integers
from consumer.model import Event, Rejection

AVRO_TYPE = re.compile(r"\s*avro/binary\s*\+\s*([0-9a-f]{32})\s*", re.IGNORECASE)
"""The content type by all SDKs of Azure Schema Registry."""

_PREAMBLE = re.compile(rb"\0{4}([0-9a-fA-F]{32})", re.DOTALL)
"""The beginning of a body by betas of those SDKs up to early 2022: https://github.com/Azure/azure-sdk-for-python/pull/23318."""

SINGLE_OBJECT = b"\xc3\x01"
"""The beginning of a single object; 8 bytes of fingerprint follow (Avro 1.12, Single-object encoding)."""

_CONFLUENT = struct.Struct(">BI")

Framed = tuple[str, int]
"""The id of a schema, and where the record begins."""

Framing = Callable[[Event], Framed | Rejection]


def by_content_type(event: Event) -> Framed | Rejection:
    content_type = content_type_of(event)
    schema_id = _id_in(content_type)
    if not schema_id:
        return Rejection(
            "content_type", f"the content type is '{content_type[:100]}'; expected avro/binary+<schema id>"
        )
    return schema_id, 0


@lru_cache(maxsize=1024)
def _id_in(content_type: str) -> str:
    """The id in a content type; '' if it has none. A hub has few content types, and a million events."""
    match = AVRO_TYPE.fullmatch(content_type)
    return match[1].lower() if match else ""


def by_preamble(event: Event) -> Framed | Rejection:
    """A content type wins, as in Azure's Kafka client for .NET."""
    if _id_in(content_type_of(event)):
        return by_content_type(event)
    match = _PREAMBLE.match(event.body)
    if match is None:
        return Rejection(
            "avro", "the body does not begin with four zero bytes and the 32 digits of a schema id"
        )
    return match[1].decode().lower(), match.end()


def by_confluent(event: Event) -> Framed | Rejection:
    if len(event.body) < _CONFLUENT.size or event.body[0]:
        return Rejection("avro", "the body does not begin with a zero byte and the four of a schema id")
    return str(_CONFLUENT.unpack_from(event.body)[1]), _CONFLUENT.size


def by_fingerprint(event: Event) -> Framed | Rejection:
    if len(event.body) < 10 or not event.body.startswith(SINGLE_OBJECT):
        return Rejection("avro", "the body does not begin with C3 01 and the fingerprint of a schema")
    return event.body[2:10].hex(), 10


class SchemaFormat(Format):
    """Bodies of one record each, by the schema that `framing` finds."""

    schemas: Lookup

    def __init__(self, framing: Framing, schemas: Lookup) -> None:
        self._framing = framing
        self.schemas = schemas
        self.schema_in_body = framing is not by_content_type

    def shows_packing(self, event: Event) -> bool:
        # A record alone may begin with any bytes.
        return self.schema_in_body and not _id_in(content_type_of(event))

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        framed = self._framing(event)
        if isinstance(framed, Rejection):
            return framed if event.body else Rejection("empty", "the body is empty")
        schema_id, start = framed
        schema = self.schemas.get(schema_id)
        if isinstance(schema, Rejection):
            return schema
        document = schema.decode(event.body, start)
        return document if isinstance(document, Rejection) else [document]

    def schema_of(self, event: Event) -> str:
        framed = self._framing(event)
        return "" if isinstance(framed, Rejection) else framed[0]


class AvroFileFormat(Format):
    """Object container files."""

    def __init__(self, options: AvroFileOptions) -> None:
        self._options = options

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        if not event.body:
            return Rejection("empty", "the body is empty")
        try:
            return avro_files.read_file(event.body, self._options.unpack_limit, self._options.integers)
        except (MemoryError, PackedError):
            raise
        except Exception as error:
            return Rejection(
                "avro", f"the body is no whole Avro file: {type(error).__name__}: {error}"[:1000]
            )


def avro_reader(integers: Integers) -> Callable[[str, Definition], Any]:
    """Makes schemas of what Azure's registry has."""

    def read(schema_id: str, definition: Definition) -> AvroSchema | Rejection:
        if definition.kind != "avro":
            return Rejection("schema", f"the schema {schema_id} is of the format {definition.kind}, not Avro")
        return parse_schema(definition.text, f"schema {schema_id}", integers=integers)

    return read


def confluent_reader(
    integers: Integers, protobuf: Callable[[str], Any] | None
) -> Callable[[str, Definition], Any]:
    """Makes schemas of what a registry of Confluent's kind has. `protobuf` makes one of a label."""

    def read(schema_id: str, definition: Definition) -> Any:
        label = f"schema {schema_id}"
        if definition.kind == "avro":
            return parse_schema(definition.text, label, integers=integers, references=definition.references)
        if definition.kind == "json":
            return _JsonBody(label)
        if definition.kind == "protobuf" and protobuf is not None:
            return protobuf(label)
        missing = f"; set {FILES} and {MESSAGE}" if definition.kind == "protobuf" else ""
        return Rejection("schema", f"{label} is of the type {definition.kind}{missing}")

    return read


class _JsonBody:
    def __init__(self, label: str) -> None:
        self._label = label

    def decode(self, body: bytes, start: int) -> Any:
        documents = read_documents(body[start:])
        if isinstance(documents, Rejection):
            return Rejection(documents.reason, f"{documents.detail} ({self._label})")
        return documents[0]
