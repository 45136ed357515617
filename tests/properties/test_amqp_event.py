"""Our own reading of an event is that of the SDK, or none."""

import pytest
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
    st.uuids(),
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

    assert read == as_the_sdk_reads(data)
    assert last_enqueued(data) == last


ASCII = st.text(st.characters(max_codepoint=126), max_size=300)
FIELDS_BEFORE_CONTENT = st.lists(
    st.one_of(TEXT, st.none(), st.uuids(), st.integers(0, 2**63 - 1)), max_size=6
)


@given(
    before=FIELDS_BEFORE_CONTENT,
    content=st.lists(st.one_of(ASCII.map(Symbol), TEXT, st.none()), max_size=2),
    after=st.lists(st.one_of(TEXT, st.none()), max_size=4),
)
def test_content_type_and_encoding_read_as_the_sdk_reads_them(before, content, after):
    """Shorter sections too: a sender may leave trailing fields out."""
    fields = [*before, *([None] * (6 - len(before)) if content else ()), *content]
    fields += after if len(content) == 2 else ()
    data = message(b"x", before=encode_section(PROPERTIES, fields))
    event = read_event("3", data)

    assert event == as_the_sdk_reads(data)
    assert [event.content_type, event.content_encoding][: len(content)] == content


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"avro/binary+1", "avro/binary+1"), (7, None), (b"\xff", "\ufffd"), (True, None)],
)
def test_a_content_type_of_another_kind_is_text_or_nothing(content, expected):
    data = message(b"x", before=encode_section(PROPERTIES, [None] * 6 + [content]))

    assert (read_event("3", data) or as_the_sdk_reads(data)).content_type == expected
    assert as_the_sdk_reads(data).content_type == expected


def test_a_partition_key_of_bytes_is_text_on_both_paths():
    said = {Symbol("x-opt-sequence-number"): 7, Symbol("x-opt-offset"): "1", Symbol("x-opt-enqueued-time"): 1}
    data = encode_section(MESSAGE_ANNOTATIONS, {**said, Symbol("x-opt-partition-key"): b"\xff"})

    assert read_event("3", data + encode_section(DATA, b"x")) is None


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
