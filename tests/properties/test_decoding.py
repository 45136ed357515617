"""What official encoders write is read; and whatever bytes arrive: documents or a rejection, never an exception."""

import asyncio
import base64
import json
import math

import pytest
from azure.eventhub import EventData
from azure.schemaregistry.encoder.avroencoder import AvroEncoder
from cloudevents.core.bindings import amqp, kafka
from cloudevents.core.v1.event import CloudEvent
from google.protobuf import json_format
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumer.decoding.bodies import REASONS
from consumer.decoding.table import DecoderContext, build_decoder
from consumer.formats import DecoderName
from consumer.mapping.documents import REASONS as JSON_REASONS
from consumer.model import Rejection
from tests.support.consumer.decoding import (
    ID,
    SETTINGS,
    MemoryRegistry,
    descriptors,
    event,
    message_class,
    read_decoder,
)

SCHEMA = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "whole", "type": "long"},
        {"name": "small", "type": ["null", "int"]},
        {"name": "real", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "flags", "type": {"type": "array", "items": "boolean"}},
        {"name": "table", "type": {"type": "map", "values": ["string", "long"]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {
            "name": "inner",
            "type": ["null", {"type": "record", "name": "In", "fields": [{"name": "n", "type": "long"}]}],
        },
    ],
}
TEXT = json.dumps(SCHEMA)
longs = st.integers(-(2**63), 2**63 - 1)
reals = st.floats(allow_nan=False, allow_infinity=False)
records = st.fixed_dictionaries(
    {
        "text": st.text(),
        "whole": longs,
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "real": reals,
        "raw": st.binary(max_size=20),
        "flags": st.lists(st.booleans(), max_size=4),
        "table": st.dictionaries(st.text(max_size=5), st.text(max_size=5) | longs, max_size=3),
        "kind": st.sampled_from("AB"),
        "inner": st.none() | st.fixed_dictionaries({"n": longs}),
    }
)


def expected(value):
    """A value as it should be in a document, by its type."""
    match value:
        case bool() | None | str() | float():
            return value
        case int():
            return value if abs(value) <= 2**53 else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: expected(inner) for name, inner in value.items()}
    return [expected(inner) for inner in value]


class Registered:
    """What the encoder asks of a registry."""

    def get_schema_properties(self, group_name, name, definition, format, **_):  # noqa: A002
        return type("Properties", (), {"id": ID})


ENCODER = AvroEncoder(client=Registered(), group_name="g")


def decoder(name, schemas=None, **options):
    found, read = read_decoder({"format": name, **options})
    app = {**SETTINGS, "ConfluentRegistry": "https://registry.example.org"}
    made = build_decoder(found, read, DecoderContext(app, lambda: 0.0))
    if schemas is not None:
        made.reading.schemas._source = MemoryRegistry(schemas)
    return made


def load(made, *ids):
    async def run():
        await made.load(ids, deadline=asyncio.get_running_loop().time() + 10)

    asyncio.run(run())
    return made


AVRO = load(decoder("avro", {ID: TEXT}), ID)


@settings(max_examples=30)  # the encoder takes milliseconds
@given(records)
def test_what_azures_encoder_writes_is_the_document(value):
    written = ENCODER.encode(value, schema=TEXT, message_type=EventData)

    received = event(written.body_as_str("latin-1").encode("latin-1"), written.content_type)
    assert AVRO.decode(received) == [expected(value)]


@pytest.fixture(scope="module")
def protobuf(tmp_path_factory):
    path = tmp_path_factory.mktemp("descriptors") / "shop.pb"
    path.write_bytes(descriptors())
    return decoder("protobuf", files=[str(path)], message="shop.Order", integers="text")


orders = st.fixed_dictionaries(
    {"id": st.text(min_size=1)},
    optional={
        "big": longs.map(str),
        "u": st.integers(0, 2**64 - 1).map(str),
        "small": st.integers(-(2**31), 2**31 - 1),
        "data": st.binary().map(lambda data: base64.b64encode(data).decode()),
        "price": reals,
        "paid": st.booleans(),
        "state": st.sampled_from(["NEW", "PAID"]),
        "lines": st.lists(st.fixed_dictionaries({"n": st.lists(longs.map(str), max_size=2)}), max_size=2),
        "tags": st.dictionaries(st.integers(-9, 9).map(str), longs.map(str), max_size=2),
    },
)


@given(orders)
def test_a_protobuf_message_is_as_its_own_library_writes_json(protobuf, value):
    message = json_format.ParseDict(value, message_class("shop.Order")())

    found = protobuf.decode(event(message.SerializeToString()))
    assert found == [json_format.MessageToDict(message, preserving_proto_field_name=True)]


CLOUD = decoder("cloudevents")
names = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True)
words = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=10)
attributes = st.builds(
    lambda required, more: {**more, **required},
    st.fixed_dictionaries(
        {"id": words, "source": words, "type": words, "specversion": st.just("1.0")},
        optional={"subject": words, "datacontenttype": st.just("application/json")},
    ),
    st.dictionaries(names.map("x{}".format), words, max_size=3),
)
json_values = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers(-9, 9) | st.text(), max_size=3
)


def received(written):
    """A message of the SDK's bindings as an event."""
    if isinstance(written, amqp.AMQPMessage):
        properties = {str(name): value for name, value in written.application_properties.items()}
        return event(written.application_data, written.properties.get("content-type"), **properties)
    headers = {
        name: value.decode() if isinstance(value, bytes) else value for name, value in written.headers.items()
    }
    return event(written.value or b"", **headers)


@given(attributes, json_values, st.sampled_from([amqp, kafka]), st.booleans())
def test_what_the_cloud_events_sdk_writes_is_read_by_its_attributes(
    given_attributes, data, binding, structured
):
    cloud = CloudEvent({**given_attributes, "datacontenttype": "application/json"}, data)
    write = binding.to_structured_event if structured else binding.to_binary_event

    [found] = CLOUD.decode(received(write(cloud)))
    read = binding.from_amqp_event if binding is amqp else binding.from_kafka_event
    by_sdk = read(write(cloud))
    assert found.pop("data") == by_sdk.get_data() == data
    known = {name: value for name, value in by_sdk.get_attributes().items() if name in found}
    # The SDK sets a missing time to that of reading; a document has none then.
    assert found.pop("time", None) is None or "time" in cloud.get_attributes()
    assert found == {name: value for name, value in known.items() if name != "time"}


def all_decoders(folder):
    (folder / "shop.pb").write_bytes(descriptors())
    (folder / "a.avsc").write_text(TEXT)
    options = {
        DecoderName.PROTOBUF: {"files": [str(folder / "shop.pb")], "message": "shop.Order"},
        DecoderName.AVRO_SINGLE_OBJECT: {"files": [str(folder / "a.avsc")]},
        DecoderName.JSON: {"arrays": True},
        DecoderName.AUTO: {"registry": "SchemaRegistry"},
        DecoderName.CLOUDEVENTS: {"registry": "SchemaRegistry"},
    }
    made = {name: decoder(name, **options.get(name, {})) for name in DecoderName}
    for each in made.values():
        if each.reading.schemas is not None:
            each.reading.schemas._source = MemoryRegistry({ID: TEXT})
    return made


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    return all_decoders(tmp_path_factory.mktemp("all"))


content_types = st.sampled_from(
    [
        *(
            "",
            "application/json",
            f"avro/binary+{ID}",
            "avro/binary",
            "text/csv",
            "image/png",
            "avro/binary+",
        ),
        *(
            "application/cloudevents+json",
            "application/cloudevents-batch+json",
            "application/x-protobuf",
            "text/x",
        ),
    ]
)
beginnings = st.sampled_from(
    [
        b"",
        b"Obj\x01",
        b"\xc3\x01",
        b"\0\0\0\0" + ID.encode(),
        b"\0\0\0\0\1",
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
    ]
)
ce = st.dictionaries(
    st.sampled_from(
        ["ce_id", "ce_type", "ce_source", "ce_specversion", "ce_x", "ce_time", "content-encoding"]
    ),
    st.text(max_size=4)
    | st.integers()
    | st.binary(max_size=4)
    | st.floats()
    | st.just("1.0")
    | st.just("gzip"),
)


@given(
    st.sampled_from(list(DecoderName)),
    content_types,
    beginnings,
    st.binary(max_size=60) | records.map(str).map(str.encode),
    ce,
)
@example(DecoderName.CLOUDEVENTS, "", b"", b"1", {"ce_time": 10**30, "ce_id": "1"})
def test_any_bytes_are_documents_or_a_rejection(decoders, name, content_type, beginning, body, properties):
    made = decoders[name]
    arrived = event(beginning + body, content_type or None, **properties)

    if ids := made.missing([arrived]):
        load(made, *ids)
    found = made.decode(arrived)

    if isinstance(found, Rejection):
        assert found.reason in REASONS or found.reason in JSON_REASONS
        assert found.detail
    else:
        assert all(isinstance(document, dict) for document in found) or not arrived.body
        assert not any(
            isinstance(each, float) and math.isnan(each)
            for document in found
            for each in (document or {}).values()
        )


@given(records, st.data())
def test_a_record_that_lost_its_end_or_won_another_is_rejected(value, data):
    written = ENCODER.encode(value, schema=TEXT, message_type=EventData)
    whole = written.body_as_str("latin-1").encode("latin-1")
    cut = data.draw(st.integers(1, len(whole) - 1))

    for body in (whole[:cut], whole + b"\0"):
        found = AVRO.decode(event(body, written.content_type))
        assert isinstance(found, Rejection)
        assert ID in found.detail
