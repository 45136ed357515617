"""Our own reading of an event is that of the SDK, or none."""

import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_frame, decode_payload
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from consumer.receiving.amqp_event import last_enqueued, read_event
from consumer.receiving.events import to_event
from consumer.receiving.layouts import EventReader, TransferLayout
from devstack.amqp.wire.encoder import encode
from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_section,
)
from devstack.amqp.wire.values import Described, Int, Short, Symbol, UInt, ULong
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


def untyped(data):
    """Our reading without the types of properties, which the SDK does not tell."""
    event = read_event("3", data)
    return event and structs.replace(event, property_types={})


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

    assert untyped(data) == as_the_sdk_reads(data)
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
    event = untyped(data)

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
    assert untyped(data) == as_the_sdk_reads(data)


def test_an_event_of_an_idempotent_producer_reads_as_the_sdk_reads_it():
    said = {Symbol(PRODUCER_ID): 1_795_000_000_123, Symbol(EPOCH): Short(-300), Symbol(NUMBER): Int(70_000)}
    sent = SentEvent.parse(encode_section(MESSAGE_ANNOTATIONS, said) + encode_body(b"x", {"a": Short(5)}))
    data = sent.stamped(7, "4711", 1_795_000_000_123)

    assert untyped(data) == as_the_sdk_reads(data)
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


OTHER_ANNOTATIONS = st.dictionaries(
    st.sampled_from(["iothub-device", "x-opt-producer-id", "x-opt-partition-key", "x-opt-offset"]),
    st.one_of(TEXT, st.integers(-(2**40), 2**40), st.booleans(), st.none(), st.just(b"\xff")),
    max_size=2,
)
MESSAGES = st.builds(
    lambda body, properties, key, number, last, said, fields: message(
        body,
        properties=properties,
        key=key,
        number=number,
        last=last,
        before=(
            encode_section(MESSAGE_ANNOTATIONS, {Symbol(name): value for name, value in said.items()})
            if said
            else b""
        )
        + (encode_section(PROPERTIES, fields) if fields else b""),
    ),
    body=st.one_of(st.binary(max_size=300), st.just(b"x" * 300)),
    properties=st.one_of(st.none(), st.dictionaries(TEXT.filter(bool), PLAIN, max_size=2)),
    key=st.one_of(st.none(), st.sampled_from(["a", "zoë", "device-001", "device-002"])),
    number=st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1)),
    last=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    said=OTHER_ANNOTATIONS,
    fields=st.lists(st.one_of(TEXT, st.none()), max_size=8),
)


@given(messages=st.lists(MESSAGES, min_size=1, max_size=4), data=st.data())
def test_events_read_by_the_layout_of_earlier_ones_are_those_read_byte_by_byte(messages, data):
    """Whole messages, those read again, and those of which any byte is another, or the end is missing."""
    reader = EventReader("3")
    for each in (*messages, *messages):
        place = data.draw(st.integers(0, len(each) - 1))
        changed = each[:place] + bytes([data.draw(st.integers(0, 255))]) + each[place + 1 :]
        for read in (each, changed, each[:place], each + changed[place:]):
            assert reader.read(read) == read_event("3", read)


def annotated(*pairs):
    """A message whose annotations are written out: names, and values as AMQP has them."""
    entries = b"".join(b"\xa3" + bytes([len(name)]) + name.encode() + value for name, value in pairs)
    head = b"\x00\x53\x72\xc1" + bytes([len(entries) + 1, 2 * len(pairs)])
    return head + entries + encode_section(DATA, b"x")


PLACE, OFFSET = ("x-opt-sequence-number", b"\x81" + bytes(7) + b"\x09"), ("x-opt-offset", b"\xa1\x0212")
TIME = ("x-opt-enqueued-time", b"\x83" + bytes(6) + b"\x03\xe8")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            (PLACE, OFFSET, TIME, ("device", b"\xa1\x02ab")),
            (PLACE, OFFSET, TIME, ("device", b"\xa1\x02\xff\xff")),
        ),
        ((("x-opt-sequence-number", b"\x80" + bytes(7) + b"\x09"), OFFSET, TIME),) * 2,
        ((("x-opt-sequence-number", b"\x80" + b"\xff" * 8), OFFSET, TIME),) * 2,
        ((("x-opt-sequence-number", b"\x55\x09"), OFFSET, TIME),) * 2,
        ((PLACE, ("x-opt-offset", b"\xa0\x0212"), TIME),) * 2,
        ((PLACE, ("x-opt-offset", b"\x52\x05"), TIME),) * 2,
        ((TIME, PLACE, OFFSET), (TIME, OFFSET, PLACE)),
        ((PLACE, OFFSET, TIME, PLACE),) * 2,
        ((PLACE, OFFSET),) * 2,
    ],
)
def test_odd_annotations_read_the_same_the_second_time(first, second):
    reader = EventReader("3")

    assert reader.read(annotated(*first)) == read_event("3", annotated(*first))
    assert reader.read(annotated(*second)) == read_event("3", annotated(*second))


def test_partition_keys_of_many_lengths_are_learned_up_to_a_bound():
    reader = EventReader("3")
    for _ in range(2):
        for length in range(240):
            read = message(b"x", key="k" * (length + 1), number=1000)
            assert reader.read(read) == read_event("3", read)

    assert 100 < len(reader._layouts) <= 200


UINTS = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
FRAMES = st.builds(
    lambda handle, number, tag, settled, more, end, payload: transfer_frame(
        [UInt(handle), UInt(number), tag, UInt(0), settled, more, None, None, None, end, None], payload
    ),
    handle=st.integers(0, 1),
    number=UINTS,
    tag=st.one_of(st.binary(min_size=4, max_size=4), st.binary(max_size=9), st.none()),
    settled=st.sampled_from([True, True, True, False, None]),
    more=st.sampled_from([False, False, None, True]),
    end=st.sampled_from([None, None, False]),
    payload=st.binary(max_size=40),
)


def transfer_frame(fields, payload):
    body = encode(Described(ULong(0x14), fields)) + payload
    return (8 + len(body)).to_bytes(4) + b"\x02\x00\x00\x00" + body


@given(
    frames=st.lists(FRAMES, min_size=1, max_size=6),
    most=st.integers(1, 6),
    most_bytes=st.integers(1, 200),
    rest=st.binary(max_size=30),
    cut=st.integers(0, 60),
)
def test_frames_taken_together_are_those_that_the_sdk_decodes_as_whole_settled_messages(
    frames, most, most_bytes, rest, cut
):
    first = transfer_frame([UInt(0), UInt(7), b"tag4", UInt(0), True, False, *[None] * 5], b"first")
    frames = [first, *frames]
    stream = b"".join(frames)
    stream = (stream + rest)[: len(stream + rest) - cut]
    layout = TransferLayout.of(first)
    taken, expected, at = layout.take(stream, most, most_bytes), [], 0
    for frame in frames[: len(taken.messages)]:
        _, fields = decode_frame(memoryview(frame)[8:])
        assert (fields[0], fields[4], bool(fields[5])) == (
            decode_frame(memoryview(first)[8:])[1][0],
            True,
            False,
        )
        expected.append((fields[1], bytes(fields[11])))
        at += len(frame)

    assert [payload for _, payload in expected] == list(taken.messages)
    assert len(expected) <= most
    assert sum(len(payload) for _, payload in expected[:-1]) < most_bytes
    assert (taken.end, taken.size) == (at, sum(len(payload) for _, payload in expected))
    assert not expected or taken.last == expected[-1][0]
    if len(stream) >= len(first):
        assert taken.messages, "a frame has its own layout"


@given(cut=st.integers(0, 400))
def test_a_message_that_is_cut_off_is_left_to_the_sdk(cut):
    data = message(b"x" * 200, properties={"a": "b"}, key="k", last=9)

    assert read_event("3", data[: min(cut, len(data) - 1)]) is None
