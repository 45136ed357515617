"""What it costs to decode one event, beside the format's own library, in CPU time of the same run.

python -m benchmarks.consumer.decoders
"""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import msgspec
import zstandard
from azure.schemaregistry.encoder.avroencoder import AvroEncoder
from cloudevents.core.bindings import amqp
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)
from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from benchmarks.consumer.world import document
from consumer.decoding.avro import SchemaFormat, avro_reader, by_content_type
from consumer.decoding.avro_schemas import parse_schema
from consumer.decoding.schemas import Schemas
from consumer.decoding.table import DecoderContext, Guarded, build_decoder
from consumer.formats import OPTIONS, AvroOptions, DecoderName, Integers
from consumer.mapping.documents import read_object
from consumer.model import Event, Rejection

ID = "0" * 32
AVRO = f"avro/binary+{ID}"
ROUNDS = 7
SECONDS = 0.1
"""CPU time of a round; the quickest counts."""

READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        *({"name": name, "type": "string"} for name in ("id", "device", "at")),
        {"name": "celsius", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "position",
            "type": {
                "type": "record",
                "name": "Position",
                "fields": [{"name": name, "type": "double"} for name in ("latitude", "longitude")],
            },
        },
        {"name": "note", "type": "string"},
    ],
}
WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [{"name": f"f{n}", "type": "long" if n % 2 else "string"} for n in range(40)],
}


class Row(Struct):
    """`ours` and `peer` decode one event."""

    name: str
    ours: Callable[[], Any]
    peer_name: str = ""
    peer: Callable[[], Any] | None = None


def avro_body(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


_PARSED = fastavro.parse_schema(READING)


def as_avro(reading: Event) -> Event:
    """The event with its JSON as a record of READING."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _PARSED, msgspec.json.decode(reading.body))
    return structs.replace(reading, body=stream.getvalue(), content_type=AVRO)


def avro_decoder(schema: Any) -> Guarded:
    """A decoder that knows one schema."""
    known = {ID: parse_schema(json.dumps(schema), "the schema")}
    schemas = Schemas(None, avro_reader(Integers.SAFE), time.monotonic, known)
    return Guarded(SchemaFormat(by_content_type, schemas), AvroOptions())


def event(body: bytes, content_type: str | None = None, **properties: Any) -> Event:
    return Event("0", 1, "1", 0.0, body, properties=properties, content_type=content_type)


class _Known:
    def __init__(self, schema: Any) -> None:
        self.definition = json.dumps(schema)

    def get_schema(self, *_: Any, **__: Any) -> _Known:
        return self

    def get_schema_properties(self, *_: Any, **__: Any) -> None:
        """For encoding only."""


def avro_row(name: str, schema: Any, value: Any) -> Row:
    decoder, received = avro_decoder(schema), event(avro_body(schema, value), AVRO)
    client: Any = _Known(schema)
    encoder: Any = AvroEncoder(client=client)
    message: Any = {"content": received.body, "content_type": AVRO}
    return Row(name, lambda: decoder.decode(received), "avroencoder", lambda: encoder.decode(message))


def protobuf_row(folder: Path) -> Row:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="R")
    for number, (name, kind) in enumerate(
        [("id", "STRING"), ("n", "INT64"), ("x", "DOUBLE"), ("ok", "BOOL"), ("raw", "BYTES")], 1
    ):
        message.field.add(name=name, number=number, type=getattr(kinds, f"TYPE_{kind}"), label=1)
    described = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    (folder / "r.pb").write_bytes(described)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.R"))
    received = event(kind(id="a", n=2**40, x=0.5, ok=True, raw=b"123").SerializeToString())
    decoder = built({"format": "protobuf", "files": [str(folder / "r.pb")], "message": "p.R"})
    return Row(
        "Protobuf, 5 fields",
        lambda: decoder.decode(received),
        "MessageToDict",
        lambda: json_format.MessageToDict(kind.FromString(received.body), preserving_proto_field_name=True),
    )


def built(table: dict[str, Any]) -> Any:
    name = DecoderName(table.get("format", "auto"))
    given = {option: value for option, value in table.items() if option != "format"}
    return build_decoder(name, msgspec.convert(given, OPTIONS[name]), DecoderContext({}))


def rows(folder: Path) -> list[Row]:
    body = msgspec.json.encode(document(0))
    attributes = {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
        "time": "2026-11-27T00:00:00Z",
    }
    cloud = event(
        body, "application/json", **{f"cloudEvents_{name}": value for name, value in attributes.items()}
    )
    message = amqp.AMQPMessage({"content-type": "application/json"}, dict(cloud.properties), cloud.body)
    auto, events, csv = built({}), built({"format": "cloudevents"}), built({"format": "csv"})
    plain, packed, zstd = event(body), event(gzip.compress(body)), event(zstandard.compress(body))
    table = event(b"id,device,celsius\n" + b"reading-1,device-1,20.5\n" * 20, "text/csv")
    return [
        Row("JSON, 1 KB, without a decoder", lambda: read_object(plain)),
        Row("JSON, 1 KB, auto", lambda: auto.decode(plain)),
        Row("JSON, 1 KB in gzip, auto", lambda: auto.decode(packed)),
        Row("JSON, 1 KB in zstd, auto", lambda: auto.decode(zstd)),
        avro_row("Avro, 1 KB, 8 fields", READING, document(0)),
        avro_row("Avro, 40 fields", WIDE, {f"f{n}": n if n % 2 else "text" for n in range(40)}),
        protobuf_row(folder),
        Row(
            "CloudEvents, binary, 1 KB of JSON",
            lambda: events.decode(cloud),
            "cloudevents",
            lambda: amqp.from_amqp_event(message),
        ),
        Row("CSV, 20 rows", lambda: csv.decode(table)),
    ]


def microseconds(call: Callable[[], Any]) -> float:
    """CPU time of one call: of the quickest round."""
    if isinstance(result := call(), Rejection):
        raise SystemExit(f"the benchmark's own event was rejected: {result}")
    count, best = 1, float("inf")
    while count < 1 << 24:
        began = time.process_time()
        for _ in range(count):
            call()
        took = time.process_time() - began
        if took >= SECONDS:
            break
        count *= 2
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(count):
            call()
        best = min(best, (time.process_time() - began) / count)
    return best * 1e6


def main() -> None:
    table = Table("an event", "us", "its own library", "us", "ratio", title="Decoding one event")
    with TemporaryDirectory() as folder:
        for row in rows(Path(folder)):
            ours = microseconds(row.ours)
            peer = microseconds(row.peer) if row.peer else None
            of_peer = ("", "") if peer is None else (f"{peer:.1f}", f"{peer / ours:.1f}")
            table.add_row(row.name, f"{ours:.1f}", row.peer_name, *of_peer)
    Console().print(table)


if __name__ == "__main__":
    main()
