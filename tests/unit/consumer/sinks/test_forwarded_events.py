"""What a forwarded event carries, and that it never goes round."""

from decimal import Decimal
from uuid import UUID

import msgspec
import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from msgspec import structs

from consumer.model import DeadLetter, Event, Operation, Rejection, Stream, Write
from consumer.receiving.amqp_event import read_event
from consumer.sinks.messaging.forwarding import Forwarding, amqp_properties
from consumer.sinks.types import SinkContext, find_sink_type, read_options
from consumer.stores.dead_letter_document import from_document, to_document
from devstack.amqp.wire import values
from devstack.amqp.wire.decoder import decode
from devstack.amqp.wire.encoder import encode
from tidemark.foundation.errors import SettingsError
from tidemark.publisher.event_hubs.sdk.event_encoding import encode_event

STREAM = Stream("one.servicebus.windows.net", "Flights", "$Default")
TARGET = "two.servicebus.windows.net/copies"


def event(body=b'{"a":1}', **more):
    return Event(
        "0",
        7,
        "",
        0.0,
        body,
        **{"partition_key": "LGA", "content_type": "text/x", "content_encoding": "gzip", **more},
    )


def forwarding(key="@partition_key", body="document"):
    return Forwarding(TARGET, STREAM, key, body)


@pytest.mark.parametrize(
    ("body", "write", "expected"),
    [
        ("document", Write(event()), (b'{"a":1}', "text/x", "gzip")),
        ("document", Write(event(), {"b": 2}), (b'{"b":2}', "application/json", None)),
        ("event", Write(event(), {"b": 2}), (b'{"a":1}', "text/x", "gzip")),
        ("event", Write(event(), content=b"unpacked"), (b"unpacked", "text/x", None)),
        ("document", Write(event(b"\xff")), (b"\xff", "text/x", "gzip")),
    ],
)
def test_the_body_is_the_document_or_the_event_as_it_came(body, write, expected):
    made = forwarding(body=body)
    record = made.prepare(write)
    forwarded = made.forwarded(record)

    assert (record.payload, forwarded.content_type, forwarded.content_encoding) == expected


def test_the_properties_say_where_the_event_came_from_and_keep_its_own():
    came = event(
        properties={"mine": 5, "tidemark-path": "zero/hub", "tidemark-index": "3"},
        incarnation="1764165000123",
    )
    made = forwarding()
    record = made.prepare(Write(came, index=2))

    assert made.forwarded(record).properties == {
        "mine": {"TYPE": "LONG", "VALUE": 5},
        "tidemark-source": "one.servicebus.windows.net/flights",
        "tidemark-partition": "0@1764165000123",
        "tidemark-sequence-number": {"TYPE": "LONG", "VALUE": 7},
        "tidemark-index": "2",
        "tidemark-path": "zero/hub one.servicebus.windows.net/flights",
    }


@pytest.mark.parametrize(
    ("key", "document", "expected"),
    [
        ("@partition_key", None, "LGA"),
        ("$.x", {"x": "JFK"}, "JFK"),
        ("$.x", {"x": 5}, "5"),
        ("$.x", {}, ""),
        ("", None, ""),
        ("$.x", {"x": [1]}, "key"),
        ("$.x", {"x": "y" * 129}, "key"),
    ],
)
def test_the_key_is_a_text_or_a_whole_number_of_its_source(key, document, expected):
    record = forwarding(key).prepare(Write(event(), document))

    assert (record.rejection.reason if record.rejection else record.partition_key) == expected


def test_an_event_that_was_in_the_target_before_is_rejected():
    record = forwarding().prepare(Write(event(properties={"tidemark-path": f"zero/hub {TARGET} x/y"})))

    assert record.rejection.reason == "loop"


@pytest.mark.parametrize(("kind", "entity"), [("event_hubs", "hub"), ("service_bus", "queue")])
def test_the_hub_of_the_events_is_no_target_however_it_is_spelt(kind, entity):
    found = find_sink_type(kind)
    where = "Endpoint=sb://ONE.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"
    options = read_options(found, {"connection": "Bus", entity: "FLIGHTS"}, "sinks.a")
    with pytest.raises(SettingsError, match="is the hub that the events come from"):
        found.build(
            options,
            SinkContext(
                {"Bus": where, "AzureWebJobsStorage": "UseDevelopmentStorage=true"}, "Flights", STREAM, "a"
            ),
        )


def test_message_ids_differ_by_hub_place_and_index_and_fit():
    made, other = forwarding(), Forwarding(TARGET, Stream("three", "flights", "$Default"), "", "event")
    writes = [Write(event()), Write(event(), index=1), Write(event(incarnation="1764165000123"))]
    ids = [one.message_id(one.prepare(each)) for one in (made, other) for each in writes]

    assert len(set(ids)) == 6
    assert max(map(len, ids)) <= 128
    assert made.message_id(made.prepare(writes[0])) == ids[0]


@pytest.mark.parametrize("operation", [Operation.DELETE, Operation.PATCH, Operation.REPLACE])
def test_a_message_is_no_change_of_another(operation):
    assert forwarding().prepare(Write(event(), operation=operation)).rejection.reason == "operation"


def sent_on(properties):
    """The properties as they are in the event, and in the message, that is sent."""
    sent = EventData(b"x")
    sent.properties = properties
    encoded = encode_event(sent, stamped=False)
    bus = bytearray()
    message = ServiceBusMessage(b"x", application_properties=properties)
    encode_payload(bus, PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message))
    return encoded.head + encoded.tail, bytes(bus)


@pytest.mark.parametrize(
    "value", [5, -(2**31) - 1, 2**40, -(2**63), 2**64 - 1, True, 1.5, b"x", UUID(int=1), "Köln"]
)
def test_properties_of_any_size_arrive_as_they_were(value):
    """Sequence numbers outgrow the 32 bits that the SDK gives to a bare whole number."""
    for raw in sent_on(amqp_properties({"a": value, "tidemark-sequence-number": 2**40}, {})):
        arrived = decode_payload(memoryview(raw)).application_properties

        assert arrived[b"tidemark-sequence-number"] == 2**40
        assert arrived[b"a"] == (value.encode() if isinstance(value, str) else value)


def wire_of(number):
    """A decimal of 16 bytes."""
    sign, digits, exponent = Decimal(number).as_tuple()
    coefficient = int("".join(map(str, digits)))
    return values.Decimal128(((sign << 127) | (exponent + 6176) << 113 | coefficient).to_bytes(16))


def received(**properties):
    """The event of a message with these properties."""
    annotations = {
        values.Symbol("x-opt-sequence-number"): 7,
        values.Symbol("x-opt-offset"): "7",
        values.Symbol("x-opt-enqueued-time"): values.Timestamp(1),
    }
    sections = ((0x72, annotations), (0x74, properties), (0x75, b"body"))
    return read_event("0", b"".join(b"\x00\x53" + bytes((code,)) + encode(value) for code, value in sections))


TYPED = [
    *(None, True, 5, 2**40, -(2**63), 1.5, "Köln", b"\xff", b"of Kafka", UUID(int=1)),
    *(
        values.UByte(200),
        values.Byte(-5),
        values.UShort(60_000),
        values.Short(-3),
        values.UInt(0),
        values.UInt(5),
    ),
    *(values.UInt(2**32 - 1), values.Int(5), values.Int(-(2**31)), values.ULong(0), values.ULong(2**64 - 1)),
    *(values.Timestamp(1_764_165_000_123), values.Timestamp(-1), values.Float(0.25), values.Symbol("x")),
    *(wire_of("12.50"), wire_of("-3E+5")),
]


@pytest.mark.parametrize("value", TYPED, ids=repr)
@pytest.mark.parametrize("is_stored", [False, True], ids=["", "after a dead letter"])
def test_a_property_of_each_simple_type_is_sent_on_with_its_type(value, is_stored):
    came = received(mine=value)
    if is_stored:
        letter = to_document(DeadLetter("h", "g", came, Rejection("r", ""), 1, 0.0))
        came = from_document(msgspec.json.encode(letter), "here", "id").event
    made = forwarding()
    for raw in sent_on(made.forwarded(made.prepare(Write(came))).properties):
        at = raw.index(b"\x00\x53\x74") + 3
        arrived = decode(raw, at)[0]["mine"]

        assert (type(arrived), arrived) == (type(value), value)


def test_what_has_no_type_of_the_sdk_is_sent_on_as_text_and_lists_and_maps_not_at_all():
    """Events with a char, as .NET has it, or with a decimal of 4 or 8 bytes ended the connection."""
    small, large = (
        values.Decimal32((101 << 23 | 1250).to_bytes(4)),
        values.Decimal64((0b11110 << 58).to_bytes(8)),
    )
    came = received(char=values.Char("ß"), small=small, large=large)
    came = structs.replace(came, properties={**came.properties, "list": [1], "map": {"a": 1}})
    made = forwarding()
    properties = made.forwarded(made.prepare(Write(came))).properties

    assert {name: value for name, value in properties.items() if not name.startswith("tidemark-")} == {
        "char": "ß",
        "small": Decimal(1250),
        "large": "Infinity",
    }
