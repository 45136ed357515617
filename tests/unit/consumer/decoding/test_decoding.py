"""Bodies of every format, whole and broken: their documents, or the word for why there are none."""

import asyncio
import gzip
import io
import json
import math
import struct

import fastavro
import pytest
import zstandard
from google.protobuf import descriptor_pb2
from msgspec import structs

from consumer.decoding import bodies, registries, table
from consumer.decoding.avro import avro_reader
from consumer.decoding.avro_schemas import parse_schema
from consumer.decoding.schemas import ASK_AGAIN, Schemas
from consumer.decoding.table import DECODERS, DecoderContext, build_decoder
from consumer.formats import OPTIONS, AutoOptions, DecoderName, Integers
from consumer.mapping.documents import REASONS as JSON_REASONS
from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.mapping.operations import WriteOptions
from consumer.mapping.preparing import Preparation
from consumer.model import Operation, Rejection
from tests.support.consumer.decoding import (
    ID,
    ORDER,
    SETTINGS,
    MemoryRegistry,
    descriptors,
    event,
    message_class,
    read_decoder,
    record,
    varint,
    zigzag,
)
from tidemark.foundation.errors import SettingsError, UnavailableError

AVRO = f"avro/binary+{ID}"
BODY = zigzag(1) + b"a" + zigzag(5)  # {"id": "a", "n": 5} of ORDER
DOCUMENT = {"id": "a", "n": 5}


def decoder(name, source=None, *, settings=SETTINGS, clock=lambda: 0.0, **options):
    """A decoder whose schemas are those of a registry in memory."""
    found, read = read_decoder({"format": name, **options})
    made = build_decoder(found, read, DecoderContext(settings, clock))
    if source is not None:
        made.reading.schemas._source = source
    return made


def decode(made, *events):
    """What becomes of the last event, when all schemas are loaded."""

    async def run():
        if ids := made.missing(events):
            await made.load(ids, deadline=asyncio.get_running_loop().time() + 10)

    asyncio.run(run())
    return made.decode(events[-1])


def reason(found):
    assert isinstance(found, Rejection), found
    assert found.reason in bodies.REASONS or found.reason in JSON_REASONS
    return found.reason


# -- recognition


def written(codec="null", rows=(DOCUMENT, DOCUMENT), schema=ORDER, **options):
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(schema), rows, codec=codec, **options)
    return file.getvalue()


CLOUD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
CE = {f"ce_{name}": value for name, value in CLOUD.items()}
RECOGNISED = [
    ("avro/binary+ID", event(BODY, AVRO), [DOCUMENT]),
    ("upper case", event(BODY, f"Avro/Binary+{ID.upper()}"), [DOCUMENT]),
    ("blanks", event(BODY, f"avro/binary + {ID}"), [DOCUMENT]),
    ("Kafka's header", event(BODY, **{"content-type": AVRO}), [DOCUMENT]),
    ("Kafka's header as bytes", event(BODY, **{"content-type": AVRO.encode()}), [DOCUMENT]),
    ("AMQP before the header", event(b'{"a":1}', "application/json", **{"content-type": AVRO}), [{"a": 1}]),
    ("nothing is JSON", event(b'{"a":1}'), [{"a": 1}]),
    ("unknown is JSON", event(b'{"a":1}', "application/x-mine"), [{"a": 1}]),
    ("text/plain is JSON", event(b'{"a":1}', "text/plain"), [{"a": 1}]),
    ("JSON schema", event(b'{"a":1}', f"application/json;serialization=Json+{ID}"), [{"a": 1}]),
    ("a file", event(written(), "application/avro"), [DOCUMENT, DOCUMENT]),
    ("a file, deflated", event(written("deflate"), "avro/binary"), [DOCUMENT, DOCUMENT]),
    ("CSV", event(b"a,b\n1,\n", "text/csv; charset=utf-8"), [{"a": "1", "b": ""}]),
    (
        "CloudEvents",
        event(json.dumps({**CLOUD, "data": 1}).encode(), "application/cloudevents+json"),
        [{**CLOUD, "data": 1}],
    ),
    (
        "a batch",
        event(json.dumps([CLOUD, CLOUD]).encode(), "application/cloudevents-batch+json; charset=utf-8"),
        [CLOUD, CLOUD],
    ),
    ("an empty batch", event(b"[]", "application/cloudevents-batch+json"), []),
    ("binary CloudEvents are their data", event(b'{"a":1}', "application/json", **CE), [{"a": 1}]),
    ("gzip by its first bytes", event(gzip.compress(b'{"a":1}')), [{"a": 1}]),
    ("gzip of two members", event(gzip.compress(b'{"a"') + gzip.compress(b":1}")), [{"a": 1}]),
    ("zstd by its first bytes", event(zstandard.compress(b'{"a":1}')), [{"a": 1}]),
    ("two frames", event(zstandard.compress(b'{"a"') + zstandard.compress(b":1}")), [{"a": 1}]),
    ("gzip by encoding", event(gzip.compress(BODY), AVRO, encoding="GZIP"), [DOCUMENT]),
    ("gzip by property", event(gzip.compress(BODY), AVRO, **{"content-encoding": b"gzip"}), [DOCUMENT]),
    ("zstd by encoding", event(zstandard.compress(BODY), AVRO, encoding="zstd"), [DOCUMENT]),
    ("identity", event(BODY, AVRO, encoding="identity"), [DOCUMENT]),
    ("IoT Hub", event(b'{"a":1}', "application/json", encoding="utf-8"), [{"a": 1}]),
    ("gzip that says utf-8", event(gzip.compress(b'{"a":1}'), encoding="utf-8"), [{"a": 1}]),
]


@pytest.mark.parametrize(("_name", "received", "documents"), RECOGNISED, ids=lambda value: str(value)[:30])
def test_the_content_type_says_how_a_body_is_read(_name, received, documents):
    assert decode(auto(), received) == documents


def auto(**options):
    return decoder("auto", MemoryRegistry(), registry="SchemaRegistry", **options)


def test_auto_without_its_settings_names_them_for_what_it_cannot_read():
    plain = decoder("auto")

    for content_type, setting in [
        (AVRO, "CONSUMER_SCHEMA_REGISTRY"),
        ("application/x-protobuf", "CONSUMER_PROTOBUF_MESSAGE"),
    ]:
        found = plain.decode(event(BODY, content_type))
        assert reason(found) == "content_type"
        assert setting in found.detail
    assert plain.missing([event(BODY, AVRO)]) == ()
    assert plain.decode(event(b'{"a":1}')) == [{"a": 1}]


# -- formats by setting


def confluent(schema, body, number=1, kind="avro", references=(), **options):
    source = MemoryRegistry({str(number): bodies.Definition(schema, kind, references)})
    made = decoder(
        "confluent", source, settings={"ConfluentRegistry": "https://registry.example.org"}, **options
    )
    return decode(made, event(struct.pack(">BI", 0, number) + body))


def test_the_old_preamble_is_read_and_a_content_type_wins():
    made = decoder("avro_preamble", MemoryRegistry())

    assert decode(made, event(b"\0\0\0\0" + ID.encode() + BODY)) == [DOCUMENT]
    assert decode(made, event(BODY, AVRO)) == [DOCUMENT]
    for body in (b"\0" * 36, b"\0\0\0\0" + ID.encode()[:31], b"\0\0\0\1" + ID.encode() + BODY):
        assert reason(decode(made, event(body))) == "avro"


def test_confluents_framing_is_read_with_references_and_as_json():
    assert confluent(json.dumps(ORDER), BODY) == [DOCUMENT]
    line = json.dumps({"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "int"}]})
    inner = json.dumps(
        {"type": "record", "name": "shop.Inner", "fields": [{"name": "l", "type": "shop.Line"}]}
    )
    outer = record({"type": "array", "items": "shop.Inner"}, ["null", "shop.Line"])
    body = zigzag(1) + zigzag(4) + zigzag(0) + zigzag(1) + zigzag(6)
    assert confluent(outer, body, references=(line, inner)) == [{"f0": [{"l": {"n": 4}}], "f1": {"n": 6}}]
    assert reason(confluent(outer, body, references=(inner, line))) == "schema"
    assert confluent("{}", b'{"a":1}', kind="json") == [{"a": 1}]
    assert "(schema 1)" in confluent("{}", b'{"a":', kind="json").detail
    assert reason(confluent("x", b"", kind="protobuf")) == "schema"
    for body in (b"\0", b"\0\0\0\0", b"\1\0\0\0\1" + BODY):
        made = decoder(
            "confluent", MemoryRegistry(), settings={"ConfluentRegistry": "https://registry.example.org"}
        )
        assert reason(decode(made, event(body))) == "avro"


def test_confluents_protobuf_names_its_message_by_indexes(tmp_path):
    (tmp_path / "shop.pb").write_bytes(descriptors())
    how = {"files": [str(tmp_path / "shop.pb")], "message": "shop.Order", "kind": "protobuf"}

    assert confluent("x", b"\0" + b"\x0a\x01a", **how) == [{"id": "a"}]
    assert confluent("x", zigzag(2) + zigzag(0) + zigzag(0) + b"\x0a\x01\x05", **how) == [{"n": [5]}]
    assert confluent("x", zigzag(1) + zigzag(1) + b"\x0a\x02\x0a\x00", **how) == [{"next": {"next": {}}}]
    for body in (b"", zigzag(1), zigzag(1) + zigzag(9), zigzag(-1), b"\xff" * 9, zigzag(2**30)):
        assert reason(confluent("x", body, **how)) == "protobuf"


def test_single_objects_are_read_by_schemas_from_files(tmp_path):
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    made = decoder("avro_single_object", files=[str(tmp_path / "order.avsc")])
    mark = bytes.fromhex(parse_schema(json.dumps(ORDER), "").fingerprint)

    assert decode(made, event(b"\xc3\x01" + mark + BODY)) == [DOCUMENT]
    assert reason(decode(made, event(b"\xc3\x01" + mark[::-1] + BODY))) == "schema_unknown"
    assert reason(decode(made, event(b"\xc3\x01" + mark + BODY[:-1]))) == "avro"
    assert reason(decode(made, event(b"\xc3\x02" + mark + BODY))) == "avro"


def test_a_fingerprint_is_in_the_order_of_the_wire():
    """Of the schema "int", whose CRC-64-AVRO is 0x7275d51a3f395c8f by the specification of Avro."""
    assert parse_schema('"int"', "").fingerprint == struct.pack("<Q", 0x7275D51A3F395C8F).hex()


def test_protobuf_is_read_by_its_descriptors(tmp_path):
    (tmp_path / "shop.pb").write_bytes(descriptors())
    made = decoder("protobuf", files=[str(tmp_path / "shop.pb")], message="shop.Order")

    order = message("shop.Order")
    order.id, order.big, order.small, order.data, order.price = "a", 2**53 + 1, -1, b"\xff", 0.1
    order.state, order.u, order.tags[-3] = 1, 7, 2**60
    order.lines.add().n.extend([1, 2**60])
    order.at.FromJsonString("2026-11-27T02:00:00.5Z")
    found = {
        "id": "a",
        "big": "9007199254740993",
        "small": -1,
        "data": "/w==",
        "price": 0.1,
        "u": 7,
        "state": "PAID",
        "lines": [{"n": [1, str(2**60)]}],
        "at": "2026-11-27T02:00:00.500Z",
        "tags": {"-3": str(2**60)},
    }
    assert decode(made, event(order.SerializeToString())) == [found]
    order.state = 9
    assert decode(made, event(order.SerializeToString()))[0]["state"] == 9
    for integers, expected in [("number", 2**60), ("text", str(2**60)), ("safe", str(2**60))]:
        other = decoder(
            "protobuf", files=[str(tmp_path / "shop.pb")], message="shop.Order", integers=integers
        )
        assert decode(other, event(order.SerializeToString()))[0]["tags"] == {"-3": expected}
    packed = event(gzip.compress(order.SerializeToString()))
    assert decode(made, packed)[0]["id"] == "a"  # no message begins as gzip does


def message(name):
    return message_class(name)()


def test_protobuf_that_is_none_is_rejected(tmp_path):
    (tmp_path / "shop.pb").write_bytes(descriptors())
    order = decoder("protobuf", files=[str(tmp_path / "shop.pb")], message="shop.Order")
    node = decoder("protobuf", files=[str(tmp_path / "shop.pb")], message="shop.Node")
    not_finite = message("shop.Order")
    not_finite.price = math.nan
    late = message("shop.Order")
    late.at.seconds = 2**60
    deep = b""
    for _ in range(300):
        deep = b"\x0a" + varint(len(deep)) + deep

    assert reason(decode(order, event(b'{"id":"a"}'))) == "protobuf"
    assert (
        reason(decode(order, event(b"\x0a\xff\xff\xff\xff\x0fabc"))) == "protobuf"
    )  # four billion bytes long
    assert reason(decode(order, event(b"\x98\x06\x01"))) == "protobuf"  # one field, which nobody knows
    assert reason(decode(order, event(not_finite.SerializeToString()))) == "number"
    assert reason(decode(order, event(late.SerializeToString()))) == "undecodable"
    assert reason(decode(node, event(deep))) == "protobuf"


def test_csv_has_its_names_in_a_header_row_or_in_the_setting():
    named = decoder("csv", columns=["a", "b"], delimiter=";")
    assert decode(named, event('1;"x\n;y"\r\n\r\n2;é'.encode())) == [
        {"a": "1", "b": "x\n;y"},
        {"a": "2", "b": "é"},
    ]
    assert decode(decoder("csv"), event(b"a\n" + b"x" * 200_000)) == [{"a": "x" * 200_000}]
    tabs = decoder("csv", delimiter="tab")
    assert decode(tabs, event(b"\xef\xbb\xbf a\tb \n1\t2")) == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b" \n", "empty"),
        (b"a,b\n1", "csv"),
        (b"a,b\n1,2,3", "csv"),
        (b"a,a\n1,2", "csv"),
        (b"a,\n1,2", "csv"),
        (b'a\n"x', "csv"),
        (b'a\n"x"y', "csv"),
        (b"a\n\xff", "encoding"),
        (b"a\n" + b"1\n" * 10_001, "too_many"),
    ],
)
def test_csv_that_is_none_is_rejected(body, expected):
    assert reason(decode(decoder("csv"), event(body))) == expected


def test_text_and_raw_bodies_are_a_field():
    assert decode(decoder("text"), event("é".encode())) == [{"text": "é"}]
    assert reason(decode(decoder("text"), event(b"\xff"))) == "encoding"
    assert decode(decoder("raw"), event(b"\x1f\x8b\x08")) == [{"body": b"\x1f\x8b\x08"}]
    assert decode(decoder("raw", unpack="gzip"), event(gzip.compress(b"a"))) == [{"body": b"a"}]


def test_json_is_read_as_without_a_decoder_unless_an_option_says_otherwise():
    assert decoder("json") is None
    arrays = decoder("json", arrays=True)
    assert decode(arrays, event(b'\xef\xbb\xbf[{"a":1},{"a":2}]')) == [{"a": 1}, {"a": 2}]
    assert decode(arrays, event(b'{"a":1}')) == [{"a": 1}]
    for body, expected in [(b"[1]", "not_object"), (b"null", "not_object"), (b"[", "json"), (b" ", "empty")]:
        assert reason(decode(arrays, event(body))) == expected
    assert reason(decode(arrays, event(b"[%s]" % b",".join([b"{}"] * 10_001)))) == "too_many"
    schema = event(b"{", f"application/json;serialization=Json+{ID}")
    assert f"(schema {ID})" in decode(auto(), schema).detail


# -- CloudEvents


def test_binary_cloud_events_become_the_json_form():
    made = decoder("cloudevents", MemoryRegistry(), registry="SchemaRegistry")
    for prefix in ("cloudEvents:", "cloudEvents_", "ce_", "ce-"):
        named = {f"{prefix}{name}": value for name, value in {**CLOUD, "myext": 5}.items()}
        envelope = {**CLOUD, "myext": 5}
        json_type = {"datacontenttype": "application/json"}
        for received, expected in [
            (event(b'{"a":1}', "application/json", **named), {**envelope, **json_type, "data": {"a": 1}}),
            (event(b"[1]", "application/json", **named), {**envelope, **json_type, "data": [1]}),
            (event(b'{"a":1}', **named), {**envelope, "data": {"a": 1}}),
            (event(b"", "application/json", **named), {**envelope, **json_type}),
            (
                event(b"hi", "text/plain", **named),
                {**envelope, "datacontenttype": "text/plain", "data": "hi"},
            ),
            (event(BODY, AVRO, **named), {**envelope, "datacontenttype": AVRO, "data": DOCUMENT}),
            (
                event(b"\xff", "image/png", **named),
                {**envelope, "datacontenttype": "image/png", "data_base64": "/w=="},
            ),
        ]:
            assert decode(made, received) == [expected]
    assert "x" not in decode(made, event(b"1", **CE, ce_x=None))[0]
    at = event(b"1", **CE, ce_time=1_795_000_000_123)  # a timestamp of AMQP
    assert decode(made, at)[0]["time"] == "2026-11-18T11:06:40.123Z"
    assert "time" not in decode(made, event(b"1", **CE))[0]
    structured = event(json.dumps(CLOUD).encode())
    assert decode(made, structured) == [CLOUD]


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (event(b"{}", "application/cloudevents+json"), "cloudevent"),
        (event(json.dumps({**CLOUD, "id": ""}).encode(), "application/cloudevents+json"), "cloudevent"),
        (event(json.dumps({**CLOUD, "id": 5}).encode(), "application/cloudevents+json"), "cloudevent"),
        (event(json.dumps({**CLOUD, "specversion": "2.0"}).encode()), "cloudevent"),
        (event(json.dumps({**CLOUD, "data": 1, "data_base64": "/w=="}).encode()), "cloudevent"),
        (event(json.dumps([CLOUD, {}]).encode(), "application/cloudevents-batch+json"), "cloudevent"),
        (event(b"[1]", "application/cloudevents-batch+json"), "cloudevent"),
        (event(b"[", "application/cloudevents-batch+json"), "json"),
        (event(b"<x/>", "application/cloudevents+xml"), "content_type"),
        (event(b"{}", "image/png"), "cloudevent"),
        (event(b"1", ce_id="1", ce_type="t", ce_source="/s"), "cloudevent"),
        (event(b"{", "application/json", **CE), "json"),
        (event(b'{"a":NaN}', "application/json", **CE), "number"),
        (event(b"1", **CE, ce_x=math.nan), "number"),
        (event(b"\xff", "text/plain", **CE), "encoding"),
        (event(BODY[:-1], AVRO, **CE), "avro"),
    ],
)
def test_a_cloud_event_that_is_none_is_rejected(received, expected):
    made = decoder("cloudevents", MemoryRegistry(), registry="SchemaRegistry")

    assert reason(decode(made, received)) == expected


# -- Avro


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def fixed(size, **more):
    return {"type": "fixed", "name": "F", "size": size, **more}


RULES = [
    ("bytes", zigzag(2) + b"\xff\0", "/wA="),
    (fixed(2), b"\xff\0", "/wA="),
    ("long", zigzag(2**53), 2**53),
    ("long", zigzag(2**53 + 1), "9007199254740993"),
    ("long", zigzag(-(2**63)), str(-(2**63))),
    ("double", struct.pack("<d", 0.1), 0.1),
    ("string", zigzag(2) + "é".encode(), "é"),
    ({"type": "enum", "name": "E", "symbols": ["x", "y"]}, zigzag(1), "y"),
    (logical("bytes", "decimal", precision=9, scale=2), zigzag(3) + b"\xff\xff\0", "-2.56"),
    (logical("bytes", "decimal", precision=9), zigzag(1) + b"\x07", "7"),
    (
        logical("bytes", "decimal", precision=2000, scale=1500),
        zigzag(1) + b"\x07",
        "Bw==",
    ),  # no decimal of ours
    (fixed(3, logicalType="decimal", precision=6, scale=5), b"\0\0\1", "0.00001"),
    (logical("string", "uuid"), zigzag(3) + b"any", "any"),
    (fixed(16, logicalType="uuid"), b"a" * 16, "61616161-6161-6161-6161-616161616161"),
    (fixed(12, logicalType="duration"), struct.pack("<III", 1, 2, 3), "P1M2DT0.003S"),
    (logical("int", "date"), zigzag(-1), "1969-12-31"),
    (logical("int", "time-millis"), zigzag(86_399_999), "23:59:59.999"),
    (logical("long", "time-micros"), zigzag(1), "00:00:00.000001"),
    (logical("long", "timestamp-millis"), zigzag(1_795_000_000_123), "2026-11-18T11:06:40.123Z"),
    (logical("long", "timestamp-micros"), zigzag(-1), "1969-12-31T23:59:59.999999Z"),
    (logical("long", "timestamp-nanos"), zigzag(1), "1970-01-01T00:00:00.000000001Z"),
    (logical("long", "local-timestamp-millis"), zigzag(-62_135_596_800_000), "0001-01-01T00:00:00.000"),
    (logical("long", "local-timestamp-micros"), zigzag(0), "1970-01-01T00:00:00.000000"),
    (logical("string", "of-another-world"), zigzag(1) + b"a", "a"),
    (logical("int", "timestamp-millis"), zigzag(5), 5),  # not on this type
    ({"type": {"type": "long", "logicalType": "timestamp-millis"}}, zigzag(0), "1970-01-01T00:00:00.000Z"),
    (["null", "bytes"], zigzag(1) + zigzag(1) + b"a", "YQ=="),
    (
        {"type": "map", "values": "long"},
        zigzag(1) + zigzag(1) + b"k" + zigzag(2**60) + b"\0",
        {"k": str(2**60)},
    ),
    ({"type": "array", "items": "int"}, zigzag(-2) + zigzag(2) + zigzag(1) + zigzag(2) + b"\0", [1, 2]),
]


@pytest.mark.parametrize(("schema", "body", "value"), RULES, ids=lambda value: str(value)[:50])
def test_each_type_of_avro_has_a_rule(schema, body, value):
    assert parse_schema(record(schema), "x").decode(body) == {"f0": value}


def test_whole_numbers_of_64_bits_are_as_the_option_says():
    for integers, value in [(Integers.NUMBER, 2**60), (Integers.TEXT, str(2**60))]:
        schema = parse_schema(record("long", logical("long", "timestamp-millis")), "x", integers=integers)
        assert schema.decode(zigzag(2**60) + zigzag(0)) == {"f0": value, "f1": "1970-01-01T00:00:00.000Z"}


LINKED = json.dumps({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]})
TREE = json.dumps(
    {"type": "record", "name": "T", "fields": [{"name": "kids", "type": {"type": "array", "items": "T"}}]}
)
CHAIN = json.dumps(
    [
        {
            "type": "record",
            "name": f"C{n}",
            "fields": [{"name": "n", "type": ["null", f"C{n + 1}" if n < 3000 else "int"]}],
        }
        for n in range(3000, -1, -1)
    ]
)
BROKEN = [
    ("truncated", json.dumps(ORDER), BODY[:-1], "avro"),
    ("truncated text", json.dumps(ORDER), BODY[:1], "avro"),
    ("nothing", json.dumps(ORDER), b"", "avro"),
    ("bytes behind it", json.dumps(ORDER), BODY + b"\0", "avro"),
    ("JSON", json.dumps(ORDER), b'{"id":"a","n":5}', "avro"),
    ("a length of 2^60", record("string"), zigzag(2**60) + b"abc", "avro"),
    ("a length below 0", record("bytes"), zigzag(-2) + b"abc", "avro"),
    ("the lowest length", record("bytes"), zigzag(-(2**63)), "avro"),
    ("a map of 2^60", record({"type": "map", "values": "null"}), zigzag(2**60), "avro"),
    ("an array of 2^60", record({"type": "array", "items": "int"}), zigzag(2**60) + b"\0", "avro"),
    ("a branch that is not there", record(["null", "int"]), zigzag(5), "avro"),
    (
        "a symbol that is not there",
        record({"type": "enum", "name": "E", "symbols": ["a"]}),
        zigzag(5),
        "avro",
    ),
    ("not UTF-8", record("string"), zigzag(1) + b"\xff", "avro"),
    ("a number without an end", record("long"), b"\xff" * 40, "avro"),
    ("NaN", record("double"), struct.pack("<d", math.nan), "number"),
    (
        "infinity",
        record({"type": "array", "items": "float"}),
        zigzag(1) + struct.pack("<f", math.inf) + b"\0",
        "number",
    ),
    ("a time after 9999", record(logical("long", "timestamp-millis")), zigzag(2**62), "avro"),
    ("a day after 9999", record(logical("int", "date")), zigzag(2**31 - 1), "avro"),
    ("25 o'clock", record(logical("int", "time-millis")), zigzag(90_000_000), "avro"),
    ("fewer bytes than a fixed", record(fixed(2**60)), b"abc", "avro"),
    ("a million levels", LINKED, b"\2" * 10**6 + b"\0", "avro"),
    ("a million levels of arrays", TREE, b"\2" * 10**6, "avro"),
    ("3,000 levels of types", CHAIN, zigzag(3000) + b"\2" * 3000 + b"\0", "avro"),
]


@pytest.mark.parametrize(("_name", "schema", "body", "expected"), BROKEN, ids=lambda value: str(value)[:26])
def test_a_body_that_does_not_match_its_schema_is_rejected_with_the_schemas_name(
    _name, schema, body, expected
):
    found = parse_schema(schema, "schema 17").decode(body)

    assert reason(found) == expected
    assert "schema 17" in found.detail


@pytest.mark.parametrize(
    ("schema", "body", "told"),
    [
        (json.dumps(ORDER), b"", "it ends too early"),
        (record("long"), b"", "it ends too early"),
        (record(["null", "int"]), b"", "it ends too early"),
        (record("string"), b"\x04a", "it ends too early"),
        (record("long"), b"\x02\x02\x02", "2 bytes follow the value"),
        (
            record(logical("long", "timestamp-millis")),
            zigzag(2**62),
            "a date or time is out of range (Python",
        ),
    ],
)
def test_a_record_that_does_not_end_where_its_body_does_or_holds_no_time_is_told_in_words(schema, body, told):
    found = parse_schema(schema, "schema 17").decode(body)

    assert found.detail.startswith(f"the body does not match schema 17: {told}")


UNUSABLE = {
    "no JSON": "{",
    "no schema": "5",
    "an unknown name": '"shop.Nothing"',
    "a record in itself": '{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}',
    "that said to be checked": '{"__fastavro_parsed__":true,"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}',
    "an array of nulls": record({"type": "array", "items": "null"}),
    "an array of empty records": record(
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}
    ),
    "an array of empty fixed": record({"type": "array", "items": fixed(0)}),
    "a fixed below 0": record(fixed(-1)),
    "2^40 nulls": json.dumps(
        [{"type": "record", "name": "Z0", "fields": []}]
        + [
            {"type": "record", "name": f"Z{n}", "fields": [{"name": f, "type": f"Z{n - 1}"} for f in "ab"]}
            for n in range(1, 41)
        ]
    ),
    "5,000 levels": '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000,
    "100,000 levels": "[" * 100_000,
    "a field without a type": '{"type":"record","name":"A","fields":[{"name":"a"}]}',
    "fields that are none": '{"type":"record","name":"A","fields":5}',
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_schema_that_is_broken_or_unsafe_rejects_its_events(name):
    found = parse_schema(UNUSABLE[name], "schema 17")

    assert reason(found) == "schema"
    assert "schema 17" in found.detail


def test_values_of_recursive_schemas_are_read():
    assert parse_schema(LINKED, "x").decode(b"\2\2\0") == {"next": {"next": {"next": None}}}
    assert parse_schema(TREE, "x").decode(zigzag(2) + b"\0\0\0") == {"kids": [{"kids": []}, {"kids": []}]}


def test_files_that_are_damaged_or_too_large_are_rejected():
    made = decoder("avro_file", unpack_limit=100_000)
    whole = written("deflate")
    bomb = written("deflate", [{"id": "x" * 10**6, "n": 1}])
    zstd = written("null").replace(b"\x08null", b"\x12zstandard")
    at = len(zstd) - 16 - 2 * len(BODY)
    packed = zstandard.compress(zstd[at:-16])
    zstd = zstd[: at - 1] + zigzag(len(packed)) + packed + zstd[-16:]

    assert decode(made, event(zstd)) == [DOCUMENT, DOCUMENT]
    assert decode(made, event(written(rows=[]))) == []
    for cut in range(1, len(whole)):
        found = decode(made, event(whole[:cut]))
        assert found == [] or reason(found) == "avro"
    assert reason(decode(made, event(whole[:-1] + bytes([whole[-1] ^ 1])))) == "avro"
    assert reason(decode(made, event(bomb))) == "packed"
    blocks = written("deflate", [{"id": "x" * 20_000, "n": 1}] * 6, sync_interval=1)
    assert reason(decode(made, event(blocks))) == "packed"
    assert len(decode(decoder("avro_file"), event(blocks))) == 6
    assert reason(decode(made, event(written().replace(b"\x08null", b"\x0csnappy")))) == "avro"
    assert reason(decode(made, event(written(rows=[DOCUMENT] * 10_001)))) == "too_many"
    assert reason(decode(made, event(written(rows=["a"], schema="string")))) == "not_object"


# -- packed bodies


def rle_bomb(size, header=b"\x00\x58"):
    """Zstandard with blocks of 128 KB of one byte each: 4 bytes a block. The header does not say the size."""
    block = struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] + b"0"
    return b"\x28\xb5\x2f\xfd" + header + block * (size >> 17) + b"\x01\0\0"


PACKED = [
    ("not gzip", event(b"{}", encoding="gzip")),
    ("truncated", event(gzip.compress(b"{}" * 100)[:-5])),
    ("damaged", event(gzip.compress(b"{}" * 100)[:-5] + b"\0\0\0\0\0")),
    ("bytes behind it", event(gzip.compress(b"{}") + b"x")),
    ("a bomb", event(gzip.compress(b"0" * 50_000_000))),
    ("a bomb of members", event(gzip.compress(b"0" * 1_000_000) * 6)),
    ("not zstd", event(b"{}", encoding="zstd")),
    ("truncated zstd", event(zstandard.compress(b"0123456789" * 100)[:-5])),
    ("zstd, bytes behind it", event(zstandard.compress(b"{}") + b"xyz")),
    ("a bomb that says its size", event(zstandard.compress(b"0" * 50_000_000))),
    ("a bomb that does not", event(rle_bomb(1 << 32))),
    ("a bomb that lies", event(rle_bomb(1 << 36, b"\xa0" + struct.pack("<I", 1 << 20)))),
    ("a window of 2 GB", event(b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\0\0")),
    ("another encoding", event(b"{}", encoding="br")),
]


@pytest.mark.parametrize(("name", "received"), PACKED, ids=lambda value: str(value)[:25])
def test_a_body_that_is_not_packed_as_it_says_or_too_large_is_rejected(name, received):
    found = decode(auto(), received)

    assert reason(found) == "packed"
    assert ("CONSUMER_UNPACK_LIMIT" in found.detail) is ("bomb" in name and "lies" not in name)


def test_packing_is_not_guessed_where_a_body_may_begin_so():
    """0x1f 0x8b 0x08 is a record of Avro, too."""
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": "int"} for n in "ab"]})
    made = decoder("avro", MemoryRegistry({ID: schema}))

    assert decode(made, event(b"\x1f\x8b\x08", AVRO)) == [{"a": -16, "b": -518}]
    preamble = decoder("avro_preamble", MemoryRegistry({ID: schema}))
    assert decode(preamble, event(b"\x1f\x8b\x08", AVRO)) == [{"a": -16, "b": -518}]
    framed = b"\0\0\0\0" + ID.encode() + b"\x1f\x8b\x08"
    assert decode(preamble, event(gzip.compress(framed))) == [{"a": -16, "b": -518}]
    plain = decoder("text", unpack="none")
    assert reason(decode(plain, event(gzip.compress(b"a")))) == "encoding"


# -- schemas of a registry


def test_a_schema_is_asked_for_once_and_an_unknown_one_once_a_minute():
    registry, now = MemoryRegistry(), [0.0]
    made = decoder("avro", registry, clock=lambda: now[0])
    strange = "f" * 32
    events = [event(BODY, AVRO), event(BODY, f"avro/binary+{strange}")]

    assert decode(made, *events * 5) == Rejection("schema_unknown", f"the schema {strange} is not known")
    assert registry.asked == [ID, strange]
    now[0] = ASK_AGAIN - 1
    decode(made, *events)
    assert registry.asked == [ID, strange]
    now[0] = ASK_AGAIN + 1
    assert reason(made.decode(events[1])) == "schema_unknown"  # until somebody has asked again
    registry.schemas[strange] = json.dumps(ORDER)
    assert decode(made, *events) == [DOCUMENT]
    assert registry.asked == [ID, strange, strange]


async def test_a_registry_that_does_not_answer_makes_no_event_a_dead_letter():
    registry = MemoryRegistry()
    registry.down = True
    made = decoder("avro", registry)
    deadline = asyncio.get_running_loop().time() + 10

    for _ in range(2):
        with pytest.raises(UnavailableError, match="does not answer"):
            await made.load(made.missing([event(BODY, AVRO)]), deadline=deadline)
    registry.down = False
    await made.load(made.missing([event(BODY, AVRO)]), deadline=deadline)
    assert made.decode(event(BODY, AVRO)) == [DOCUMENT]


async def test_a_registry_that_hangs_is_given_up_at_the_deadline_and_several_ask_once():
    class Hanging(MemoryRegistry):
        async def fetch(self, ids, into):
            self.asked += ids
            await asyncio.sleep(0 if len(self.asked) > 1 else 60)
            await super().fetch([], into)
            for each in ids:
                into(each, bodies.Definition(json.dumps(ORDER)))

    registry = Hanging()
    made = decoder("avro", registry)
    now = asyncio.get_running_loop().time
    with pytest.raises(UnavailableError, match="no answer in time"):
        await made.load([ID], deadline=now() + 0.01)
    await asyncio.gather(*(made.load([ID], deadline=now() + 10) for _ in range(5)))
    assert registry.asked == [ID, ID]


def test_what_was_never_loaded_is_no_unknown_schema():
    made = decoder("avro", MemoryRegistry())

    found = made.decode(event(BODY, AVRO))
    assert (found.reason, "not loaded" in found.detail) == ("undecodable", True)


# -- the guard


def test_nothing_but_memory_error_leaves_a_decoder():
    made = decoder("text")

    def failing(error):
        class Reading(bodies.Format):
            def decode(self, event):
                raise error

            def schema_of(self, event):
                raise error

        made.reading = Reading()
        made.reading.schemas = Schemas(MemoryRegistry(), avro_reader(Integers.SAFE), lambda: 0.0)

    for error in (ValueError("x"), RecursionError(), KeyError("k"), OverflowError(), AssertionError()):
        failing(error)
        assert reason(made.decode(event(b"x"))) == "undecodable"
        assert made.missing([event(b"x")]) == ()
    failing(MemoryError())
    with pytest.raises(MemoryError):
        made.decode(event(b"x"))
    with pytest.raises(MemoryError):
        made.missing([event(b"x")])


@pytest.mark.parametrize("name", [name for name in DecoderName if name is not DecoderName.JSON])
def test_tombstones_reach_the_sink_and_what_could_not_be_received_is_rejected_in_its_words(name, tmp_path):
    (tmp_path / "shop.pb").write_bytes(descriptors())
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    options = {
        DecoderName.PROTOBUF: {"files": [str(tmp_path / "shop.pb")], "message": "shop.Order"},
        DecoderName.AVRO_SINGLE_OBJECT: {"files": [str(tmp_path / "order.avsc")]},
    }
    settings = {**SETTINGS, "ConfluentRegistry": "https://registry.example.org"}
    made = decoder(name, settings=settings, **options.get(name, {}))

    received = event(b"\0\0\0\0\1", unreadable="an AMQP value of type int")
    assert decode(made, received) == Rejection("unreadable", "an AMQP value of type int")
    assert decode(made, event(b"", AVRO)) == [None]
    if name is not DecoderName.RAW:
        packed = event(gzip.compress(b""), "text/csv", encoding="gzip")
        assert reason(decode(made, packed)) in {"empty", "avro", "content_type", "cloudevent"}


def test_an_empty_body_deletes_its_document_whatever_the_format_if_the_sink_is_told_so():
    tombstone = structs.replace(event(b"", AVRO), partition_key="a")
    for empty, expected in [("delete", (Operation.DELETE, None)), ("reject", (Operation.UPSERT, "empty"))]:
        mapper = DocumentMapper(MappingOptions("hub", writing=WriteOptions(empty=empty)), ("/id",))
        preparation = Preparation(mapper.prepare, decoder=decoder("avro", MemoryRegistry()))

        assert not preparation.decoder.missing([tombstone])
        [record] = preparation.records([tombstone])
        assert (record.operation, record.rejection and record.rejection.reason) == expected


# -- options


def test_every_format_has_options_and_a_builder():
    assert set(DECODERS) == set(OPTIONS) == set(DecoderName)
    for name, row in DECODERS.items():
        assert read_decoder({"format": name}) == (name, row.options())
    assert read_decoder({"registry": "R"}) == (DecoderName.AUTO, AutoOptions(registry="R"))


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ({"format": "avro"}, {}, "no schema registry connection 'SchemaRegistry': set Schema"),
        ({"format": "avro"}, {"SchemaRegistry": "Endpoint=sb://x"}, "accepts identities only"),
        (
            {"format": "confluent"},
            {},
            "no schema registry 'ConfluentRegistry': set ConfluentRegistry to its https",
        ),
        ({"format": "confluent"}, {"ConfluentRegistry": "http://x.org"}, "'x.org' is not asked over TLS"),
        ({"format": "avro_single_object"}, {}, "set CONSUMER_SCHEMA_FILES .paths. or CONSUMER_SCHEMA_NAMES"),
        (
            {"format": "avro_single_object", "files": ["/nowhere"]},
            {},
            "'/nowhere' cannot be read: No such file",
        ),
        (
            {"format": "avro_single_object", "names": ["x"]},
            SETTINGS,
            "name 'x' is not known; accepted: group/name",
        ),
        ({"format": "protobuf"}, {}, "set CONSUMER_SCHEMA_FILES and CONSUMER_PROTOBUF_MESSAGE"),
        ({"format": "csv", "delimiter": "ab"}, {}, "CONSUMER_CSV_DELIMITER is 'ab'; accepted: one character"),
        ({"format": "csv", "columns": ["a", "a"]}, {}, "CONSUMER_CSV_COLUMNS names a column twice"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start_with_the_setting_and_what_is_accepted(
    given, settings, said
):
    with pytest.raises(SettingsError, match=said):
        decoder(given.pop("format"), settings=settings, **given)


def test_descriptors_that_do_not_fit_are_refused_at_the_start(tmp_path):
    path = tmp_path / "shop.pb"
    whole = descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    for content, name, said in [
        (
            descriptors(),
            "shop.Nothing",
            "message 'shop.Nothing' is not in the descriptors; accepted: .*shop.Order",
        ),
        (b"syntax = 'proto3';", "shop.Order", "is no complete descriptor set"),
        (b"", "shop.Order", "has no descriptors"),
        (
            descriptor_pb2.FileDescriptorSet(file=[whole.file[1]]).SerializeToString(),
            "shop.Order",
            "is no complete descriptor set .*--include_imports",
        ),
    ]:
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=said):
            decoder("protobuf", files=[str(path)], message=name)
    path.write_text("{}")
    with pytest.raises(SettingsError, match=r"CONSUMER_SCHEMA_FILES: the schema in .* cannot be used"):
        decoder("avro_single_object", files=[str(path)])


@pytest.mark.parametrize(
    ("name", "package", "options"),
    [
        ("avro", "fastavro", {}),
        ("avro", "azure.schemaregistry", {}),
        ("avro_file", "fastavro", {}),
        ("protobuf", "google.protobuf", {}),
        ("text", "zstandard", {"unpack": "zstd"}),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch, name, package, options):
    monkeypatch.setattr(
        "tidemark.foundation.version.prefix", "elsewhere"
    )  # not a clone's own, which has all extras
    for module in (table, registries):
        found = module.find_spec
        monkeypatch.setattr(
            module, "find_spec", lambda wanted, found=found: None if wanted == package else found(wanted)
        )

    with pytest.raises(SettingsError, match=r"need the package .*decoders"):
        decoder(name, **options)
    if package == "fastavro":
        assert reason(decoder("auto").decode(event(b"Obj\1", "application/avro"))) == "content_type"
