"""Our own reading of an event is that of the SDK, or none."""

from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload
from hypothesis import given
from hypothesis import strategies as st

from consumer.receiving.amqp_event import last_enqueued, read_event
from consumer.receiving.events import to_event
from devstack.amqp.wire.encoder import encode
from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_section,
)
from devstack.amqp.wire.values import Described, Int, Short, Symbol, ULong
from devstack.event_hubs.storage.events import SentEvent, encode_body, runtime_annotations
from devstack.event_hubs.storage.idempotence import EPOCH, NUMBER, PRODUCER_ID

TEXT = st.text(max_size=300)
PLAIN = st.one_of(
    TEXT,
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=20),
)


def message(body, *, properties=None, key=None, number=7, last=None, before=b""):
    event = SentEvent(before + encode_body(body, properties), partition_key=key)
    told = b"" if last is None else runtime_annotations(last, str(last), 1000, 2000)
    return told + event.stamped(number, "4711", 1_795_000_000_123)


def as_the_sdk_reads(data):
    return to_event("3", EventData._from_message(decode_payload(memoryview(data))))


@given(
    body=st.one_of(st.binary(max_size=600), st.just(b"x" * 70_000)),
    properties=st.one_of(st.none(), st.dictionaries(TEXT.filter(bool), PLAIN, max_size=6)),
    key=st.one_of(st.none(), TEXT.filter(bool)),
    number=st.integers(0, 2**63 - 1),
    last=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
)
def test_an_event_reads_as_the_sdk_reads_it(body, properties, key, number, last):
    data = message(body, properties=properties, key=key, number=number, last=last)
    read = read_event("3", data)
    has_bytes = any(isinstance(value, bytes) for value in (properties or {}).values())

    assert read == (None if has_bytes else as_the_sdk_reads(data))
    assert last_enqueued(data) == last


def test_sections_of_data_are_joined_and_other_sections_passed_over():
    plain = encode_section(HEADER, [True]) + encode_section(PROPERTIES, ["id"])
    data = message(b"one", before=plain) + encode_section(DATA, b"two")

    assert read_event("3", data).body == b"onetwo"
    assert read_event("3", data) == as_the_sdk_reads(data)


def test_an_event_of_an_idempotent_producer_reads_as_the_sdk_reads_it():
    said = {Symbol(PRODUCER_ID): 1_795_000_000_123, Symbol(EPOCH): Short(-300), Symbol(NUMBER): Int(70_000)}
    sent = SentEvent.parse(encode_section(MESSAGE_ANNOTATIONS, said) + encode_body(b"x", {"a": Short(5)}))
    data = sent.stamped(7, "4711", 1_795_000_000_123)

    assert read_event("3", data) == as_the_sdk_reads(data)
    assert read_event("3", data).properties == {"a": 5}


def test_bodies_that_are_no_data_are_left_to_the_sdk():
    stamped = message(b"")
    without = stamped[: -len(encode_section(DATA, b""))]
    value = encode(Described(ULong(0x77), "text"))

    assert read_event("3", without + value) is None
    assert read_event("3", without) is None
    assert read_event("3", stamped) is not None
    nested = encode_section(APPLICATION_PROPERTIES, {"nested": ["a"]})
    assert read_event("3", message(b"x", before=nested)) is None


@given(data=st.binary(max_size=200))
def test_no_bytes_make_it_fail(data):
    read_event("3", data)
    last_enqueued(data)
    read_event("3", message(b"x")[:20] + data)


@given(cut=st.integers(0, 400))
def test_a_message_that_is_cut_off_is_left_to_the_sdk(cut):
    data = message(b"x" * 200, properties={"a": "b"}, key="k", last=9)

    assert read_event("3", data[: min(cut, len(data) - 1)]) is None
