"""Sizes are those of the SDK's own codec; what is private in the SDK is as the sender needs it."""

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage, Message, Properties
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from hypothesis import given
from hypothesis import strategies as st

from devstack.amqp.wire.messages import batched
from devstack.service_bus.messages.messages import identity
from tidemark.publisher.service_bus.core.claims import ClaimSettings, reference_of
from tidemark.publisher.service_bus.core.errors import OversizedMessageError, UnsendableMessageError
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import PlainMessage
from tidemark.publisher.service_bus.sdk.message_sizes import (
    Encoder,
    batch_envelope,
    envelope_size,
    framed,
    plain_message,
)

LARGE = Limits(1_000_000, 1_000_000)
LATER = datetime(2030, 1, 1, tzinfo=UTC)


def encoder(**options):
    return Encoder(id_prefix="call", **options)


def measured(message, limits=LARGE, **options):
    return encoder(**options).measure(message, 7, limits)


def wire_of(items):
    """A batch as the SDK writes it."""
    first = items[0]
    batch = batch_envelope(first.message_id, first.session_id, first.partition_key)
    batch[5] = [item.encoded for item in items]
    return bytes(encode_payload(bytearray(), BatchMessage(*batch)))


ids = st.one_of(st.text(min_size=1, max_size=12), st.integers(1, 300).map(lambda n: "é" * n))


@given(
    st.one_of(st.binary(max_size=300), st.integers(250, 70_000).map(bytes)),
    ids,
    st.one_of(st.none(), ids),
    st.one_of(st.none(), st.text(min_size=1, max_size=300)),
)
def test_a_plain_message_is_written_as_the_codec_writes_it(data, message_id, session_id, content_type):
    properties = Properties(message_id=message_id, group_id=session_id, content_type=content_type)
    expected = encode_payload(bytearray(), Message(properties=properties, data=[data]))

    assert plain_message(data, message_id, session_id, content_type) == bytes(expected)


messages = st.one_of(
    st.binary(max_size=600),
    st.text(max_size=600),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=4),
    st.builds(PlainMessage, st.binary(max_size=600), session_id=st.one_of(st.none(), st.text(max_size=128))),
    st.builds(
        ServiceBusMessage,
        st.binary(max_size=600),
        session_id=st.one_of(st.none(), st.text(min_size=1, max_size=128)),
        message_id=st.one_of(st.none(), st.text(min_size=1, max_size=128), st.uuids().map(str)),
        application_properties=st.dictionaries(
            st.text(min_size=1, max_size=9), st.integers(0, 99), max_size=3
        ),
    ),
    st.builds(
        lambda data, given: AmqpAnnotatedMessage(
            data_body=data, properties=AmqpMessageProperties(message_id=given, correlation_id=given)
        ),
        st.binary(max_size=300),
        st.one_of(
            st.uuids(),
            st.integers(1, 2**40),
            st.binary(min_size=1, max_size=20).map(lambda b: b.hex().encode()),
        ),
    ),
    st.builds(
        lambda data, key: ServiceBusMessage(data, partition_key=key),
        st.binary(max_size=300),
        st.text(min_size=1, max_size=128),
    ),
)


@given(st.lists(messages, min_size=1, max_size=6))
def test_the_measured_size_of_a_batch_is_its_size_on_the_wire(sent):
    encode = encoder()
    items = [encode.measure(message, index, LARGE) for index, message in enumerate(sent)]

    wire = wire_of(items)
    assert LARGE.of_run(items) == len(wire)
    assert batched(wire) == [bytes(item.encoded) for item in items]


def test_a_message_is_encoded_as_the_sdk_would_encode_it():
    message = ServiceBusMessage(
        b"body",
        message_id="m",
        session_id="s",
        subject="news",
        time_to_live=timedelta(hours=1),
        application_properties={"a": 1, "b": "text"},
    )
    batch = ServiceBusMessageBatch(max_size_in_bytes=10_000)
    batch.add_message(message)

    assert bytes(measured(message).encoded) == bytes(batch._message[5][0])
    assert batch._message[:5] == batch_envelope("m", "s", None)[:5]


texts = st.one_of(st.none(), st.text(max_size=20))


@given(
    st.builds(
        ServiceBusMessage,
        st.one_of(st.none(), st.binary(max_size=300), st.text(max_size=30)),
        message_id=st.one_of(st.none(), st.text(max_size=128), st.uuids()),
        session_id=texts,
        subject=st.one_of(st.none(), texts),
        content_type=texts,
        partition_key=st.none(),
        correlation_id=st.one_of(st.none(), texts),
        application_properties=st.one_of(st.none(), st.just({}), st.just({"a": 1})),
    )
)
def test_every_message_of_the_sdk_is_encoded_as_the_sdk_encodes_it(message):
    batch = ServiceBusMessageBatch(max_size_in_bytes=100_000)
    batch.add_message(message)
    expected = bytes(batch._message[5][0])
    encoded = bytes(measured(message).encoded)

    if message.message_id:
        assert encoded == expected
    else:
        assert identity(encoded).message_id == "call-0000000007"


def test_the_sdk_does_not_count_its_envelope_and_the_sender_does():
    batch = ServiceBusMessageBatch(max_size_in_bytes=10_000)
    batch.add_message(ServiceBusMessage(b"x" * 100, message_id="m" * 100, session_id="s" * 100))
    on_the_wire = len(encode_payload(bytearray(), BatchMessage(*batch._message)))

    assert on_the_wire - batch.size_in_bytes == envelope_size("m" * 100, "s" * 100, None) == 221


@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 70_000])
def test_a_message_in_a_batch_is_framed_as_the_codec_frames_it(size):
    one = BatchMessage(*[None] * 5, [bytes(size)], *[None] * 3)

    assert framed(size) == len(encode_payload(bytearray(), one))


def test_ids_are_given_where_there_are_none_and_are_the_same_every_time():
    assert measured(b"x").message_id == "call-0000000007"
    assert measured(AmqpAnnotatedMessage(data_body=b"x")).message_id == "call-0000000007"
    assert identity(bytes(measured(b"x").encoded)).message_id == "call-0000000007"
    assert measured(ServiceBusMessage(b"x", message_id="own")).message_id == "own"
    assert measured(b"x", session_id="s").session_id == "s"
    assert measured(ServiceBusMessage(b"x"), session_id="s").session_id == "s"
    assert measured(ServiceBusMessage(b"x", session_id="own"), session_id="s").session_id == "own"


def test_the_callers_message_is_left_as_it_is():
    message = AmqpAnnotatedMessage(data_body=b"x", application_properties={"a": 1})
    measured(message, session_id="s", schedule_at=LATER, claims=ClaimSettings(above=0))

    assert message.properties is None
    assert message.annotations is None
    assert message.application_properties == {"a": 1}


def test_a_document_goes_as_json():
    item = measured({"id": 1, "name": "é"})

    assert b"application/json" in item.encoded
    assert json.loads(item.encoded[item.encoded.index(b"{") :]) == {"id": 1, "name": "é"}


def test_a_plain_message_keeps_the_ids_that_it_has():
    item = measured(PlainMessage(b"x", message_id="own", session_id="s"), session_id="other")
    scheduled = measured(PlainMessage(b"x", message_id="own", session_id="s"), schedule_at=LATER)

    assert (item.message_id, item.session_id) == (scheduled.message_id, scheduled.session_id) == ("own", "s")


def test_an_annotated_message_keeps_a_body_that_is_a_value():
    message = AmqpAnnotatedMessage(
        value_body={"a": 1}, properties=AmqpMessageProperties(message_id=uuid.UUID(int=5))
    )

    assert measured(message).message_id == str(uuid.UUID(int=5))


@pytest.mark.parametrize("wrong", [7, None, object()])
def test_what_is_no_message_is_refused_by_its_index(wrong):
    with pytest.raises(UnsendableMessageError, match=r"message 7: .* accepted: bytes, str, a dict"):
        measured(wrong)


def test_a_message_too_large_is_refused_by_index_id_size_and_limit():
    message = ServiceBusMessage(bytes(2000), message_id="big")
    with pytest.raises(
        OversizedMessageError, match=r"message 7 \(message id big\) has 2,031 bytes, accepted: up to 1,500"
    ):
        measured(message, Limits(1000, 1500))


def test_a_message_too_large_becomes_a_claim_with_its_properties_kept():
    message = ServiceBusMessage(
        bytes(2000), message_id="a/b", session_id="s", application_properties={"p": 1}
    )
    item = measured(message, Limits(1000, 1000), claims=ClaimSettings())

    assert item.claim.body == bytes(2000)
    assert item.claim.blob.startswith("claims/message/a%2Fb/")
    assert item.session_id == "s"
    wire = encoder(claims=ClaimSettings()).wire(item)
    assert wire.application_properties["p"] == 1
    assert wire.data == [b""]
    reference = reference_of(wire.application_properties)
    assert (reference.blob, reference.sha256, reference.size) == (item.claim.blob, item.claim.sha256, 2000)


def test_bodies_above_a_setting_become_claims_even_where_they_fit():
    assert measured(bytes(600), claims=ClaimSettings(above=500)).claim is not None
    assert measured(bytes(300), claims=ClaimSettings(above=500)).claim is None


def test_a_claim_does_not_help_against_large_properties_or_bodies_that_are_no_data():
    limits, claims = Limits(1000, 1000), ClaimSettings()
    properties = ServiceBusMessage(b"x", application_properties={"p": "x" * 2000})
    with pytest.raises(OversizedMessageError, match="its properties alone"):
        measured(properties, limits, claims=claims)
    with pytest.raises(OversizedMessageError, match="its body is no data section"):
        measured(AmqpAnnotatedMessage(value_body="x" * 2000), limits, claims=claims)


def test_a_scheduled_message_carries_its_time_and_costs_its_entry_in_the_request():
    item = measured(b"body", schedule_at=LATER, request_overhead=300)

    assert b"x-opt-scheduled-enqueue-time" in item.encoded
    assert item.envelope == 300
    assert item.cost > len(item.encoded)


def test_what_is_private_in_the_sdk_is_as_the_sender_needs_it():
    """azure-servicebus is pinned; a new version that fails here needs tidemark/publisher/service_bus/sdk/link.py looked at."""
    from azure.servicebus import ServiceBusClient, aio  # noqa: PLC0415 - the SDK's clients, only here

    connection = "Endpoint=sb://x.servicebus.windows.net;SharedAccessKeyName=a;SharedAccessKey=b"
    for client in (ServiceBusClient, aio.ServiceBusClient):
        sender = client.from_connection_string(connection).get_queue_sender("q")
        assert sender._amqp_transport.KIND == PyamqpTransport.KIND == "pyamqp"
        assert sender._config.retry_total == 3
        assert sender._max_message_size_on_link == sender._max_batch_size_on_link == 0
        assert callable(sender._mgmt_request_response_with_retry)
        assert sender._mgmt_target.endswith("q/$management")
    batch = ServiceBusMessageBatch()
    assert isinstance(batch._message, list)
    assert len(batch._message) == 9
    assert batch._message[5] == []
    assert len(batch) == batch._count == 0
