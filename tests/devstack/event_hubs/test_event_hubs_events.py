"""Events, readers and start positions of the local Event Hubs, without a network."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.amqp.wire.decoder import decode
from devstack.amqp.wire.encoder import encode
from devstack.amqp.wire.errors import AmqpError, ProtocolError
from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    encode_section,
    section_value,
    sections,
)
from devstack.amqp.wire.values import Described, Int, Short, Symbol, Timestamp, ULong
from devstack.event_hubs.sources import parse_start
from devstack.event_hubs.storage import events
from devstack.event_hubs.storage.events import (
    SentEvent,
    encode_body,
    parse_delivery,
    runtime_annotations,
    with_delivery_annotations,
)
from devstack.event_hubs.storage.idempotence import EPOCH, NUMBER, PRODUCER_ID
from devstack.event_hubs.storage.log import Start
from devstack.event_hubs.storage.readers import LINK_STOLEN, MAX_READERS, RESOURCE_LIMIT, Readers


def read_sections(message):
    return {code: decode(message, value_start)[0] for code, _, value_start, _ in sections(message)}


# --- events ---


def test_an_event_keeps_its_bytes_from_the_properties_on_and_gets_annotations_before_them():
    bare = (
        encode_section(PROPERTIES, ["id", b"user"])
        + encode_section(APPLICATION_PROPERTIES, {"k": 1, "f": 0.5})
        + encode_section(VALUE, {"a": [1, None]})
    )

    message = SentEvent.parse(bare).stamped(7, "1234", 1_700_000_000_000)

    assert message.endswith(bare)
    assert read_sections(message[: -len(bare)]) == {
        MESSAGE_ANNOTATIONS: {
            "x-opt-sequence-number": 7,
            "x-opt-enqueued-time": Timestamp(1_700_000_000_000),
            "x-opt-offset": "1234",
        }
    }


def test_a_producers_annotations_stay_except_those_that_are_the_services():
    sent = encode_section(
        MESSAGE_ANNOTATIONS,
        {
            Symbol("x-opt-partition-key"): "a key",
            Symbol("x-opt-offset"): "forged",
            Symbol("mine"): "v" * 300,
        },
    )

    event = SentEvent.parse(encode_section(HEADER, [True]) + sent + encode_section(DATA, b"body"))
    message = event.stamped(2**40, "5", 0)

    assert list(read_sections(message)) == [HEADER, MESSAGE_ANNOTATIONS, DATA]
    assert read_sections(message)[MESSAGE_ANNOTATIONS] == {
        "x-opt-sequence-number": 2**40,
        "x-opt-enqueued-time": 0,
        "x-opt-offset": "5",
        "x-opt-partition-key": "a key",
        "mine": "v" * 300,
    }


@pytest.mark.parametrize("size", [0, 1, 200, 255, 256, 70_000])
def test_a_batch_holds_whole_events_of_any_size_and_its_key_is_theirs(size):
    inner = [encode_section(DATA, b"x" * size), encode_section(SEQUENCE, [1, 2]), encode_section(DATA, b"")]
    envelope = encode_section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): "k"})

    parsed = parse_delivery(BATCH_FORMAT, envelope + b"".join(encode_section(DATA, each) for each in inner))

    assert [(event.bare, event.partition_key) for event in parsed] == [(each, "k") for each in inner]


def test_a_batch_that_is_cut_off_is_no_batch():
    whole = encode_section(DATA, encode_section(DATA, b"x" * 300))

    with pytest.raises(ProtocolError):
        parse_delivery(BATCH_FORMAT, whole[:-1])


def test_delivery_annotations_go_behind_the_header():
    message = encode_section(HEADER, [True]) + encode_section(DATA, b"body")

    annotated = with_delivery_annotations(runtime_annotations(5, "50", 1, 2), message)

    assert [code for code, *_ in sections(annotated)] == [HEADER, DELIVERY_ANNOTATIONS, DATA]


# --- readers ---

_names = itertools.count()


class Reader:
    def __init__(self, epoch=None):
        self.epoch, self.name, self.error = epoch, f"reader-{next(_names)}", None

    def displaced(self, error):
        self.error = error


@pytest.mark.parametrize(
    ("first", "second", "displaced"),
    [(0, 1, True), (1, 1, True), (None, 0, True), (None, None, False)],
)
def test_a_reader_displaces_those_it_is_not_outranked_by(first, second, displaced):
    readers, old, new = Readers(), Reader(first), Reader(second)
    readers.join(old)

    readers.join(new)

    assert (old.error is not None) == displaced
    assert list(readers) == ([new] if displaced else [old, new])
    if displaced:
        assert old.error.condition == LINK_STOLEN


@pytest.mark.parametrize("second", [0, None])
def test_a_reader_that_is_outranked_is_refused_until_the_other_leaves(second):
    readers, old, new = Readers(), Reader(1), Reader(second)
    readers.join(old)

    with pytest.raises(AmqpError) as refused:
        readers.join(new)
    assert (refused.value.condition, old.error) == (LINK_STOLEN, None)

    readers.leave(old)
    readers.join(new)
    assert list(readers) == [new]


def test_only_five_readers_share_a_partition():
    readers = Readers()
    shared = [Reader() for _ in range(MAX_READERS)]
    for reader in shared:
        readers.join(reader)

    with pytest.raises(AmqpError, match=shared[0].name) as refused:
        readers.join(Reader())
    assert refused.value.condition == RESOURCE_LIMIT

    readers.leave(shared[0])
    readers.join(Reader())


# --- filters ---


def source(selector):
    filters = {Symbol("apache.org:selector-filter:string"): selector}
    return Described(ULong(0x28), ["address", None, None, None, None, None, None, filters])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", Start("offset", "-1")),
        (b"amqp.annotation.x-opt-offset >= '@latest'", Start("offset", "@latest", inclusive=True)),
        (
            "amqp.annotation.x-opt-sequence-number >='12'",
            Start("sequence-number", "12", inclusive=True),
        ),
        ("amqp.annotation.x-opt-enqueued-time > 1700000000000", Start("enqueued-time", "1700000000000")),
    ],
)
def test_a_selector_says_where_a_consumer_starts(expression, expected):
    wire = Described(Symbol("apache.org:selector-filter:string"), expression)

    assert parse_start(decode(encode(source(wire)))[0]) == expected


def test_without_a_selector_a_consumer_starts_at_the_first_event():
    assert parse_start(Described(ULong(0x28), ["address"])) == parse_start(None) == Start("offset", "-1")


@pytest.mark.parametrize("expression", ["1 = 1", "amqp.annotation.x-opt-offset < '3'", 5])
def test_a_selector_that_is_not_understood_is_refused(expression):
    with pytest.raises(AmqpError, match="accepted"):
        parse_start(source(expression))


def test_sections_of_an_event_are_those_of_a_body_with_properties():
    bare = encode_body("text", {"k": "v"})

    codes = [code for code, *_ in sections(bare)]
    assert codes == [APPLICATION_PROPERTIES, DATA]
    [*_, (_, _, value_start, _)] = sections(bare)
    assert section_value(bare, value_start, bytes) == b"text"


# --- annotations of idempotent publishing, which are read without being decoded ---

KEYS = {PRODUCER_ID: lambda n: n, EPOCH: Short, NUMBER: Int}
IDS = st.one_of(st.integers(-128, 127), st.integers(-(2**63), 2**63 - 1))


def annotated(pairs):
    """A message with these annotations, their values encoded already."""
    section = b"".join(encode(Symbol(key)) + value for key, value in pairs)
    head = b"\x00\x53\x72\xc1" + bytes((len(section) + 1, 2 * len(pairs)))
    return head + section + encode_body("body", {"p": 1})


def wide(key, number):
    """A value with all the bytes of its type, as some clients write it."""
    return {
        PRODUCER_ID: lambda: b"\x81" + number.to_bytes(8, "big", signed=True),
        EPOCH: lambda: b"\x61" + number.to_bytes(2, "big", signed=True),
        NUMBER: lambda: b"\x71" + number.to_bytes(4, "big", signed=True),
    }[key]()


@given(
    id_=IDS,
    epoch=st.integers(-(2**15), 2**15 - 1),
    number=st.one_of(st.integers(-128, 127), st.integers(-(2**31), 2**31 - 1)),
    order=st.permutations(list(KEYS)),
    in_full=st.booleans(),
    key=st.one_of(st.none(), st.text(max_size=5)),
)
def test_stamps_that_are_read_without_decoding_say_what_decoding_says(
    id_, epoch, number, order, in_full, key
):
    said = {PRODUCER_ID: id_, EPOCH: epoch, NUMBER: number}
    payload = annotated(
        [(name, wide(name, said[name]) if in_full else encode(KEYS[name](said[name]))) for name in order]
    )

    event = SentEvent.parse(payload, key)

    assert events._parse_stamped(payload) is not None
    assert event.claims == said
    assert [type(event.claims[name]) for name in KEYS] == [int, Short, Int]
    assert (event.partition_key, event.bare) == (key, encode_body("body", {"p": 1}))
    code, _, value_start, _ = next(sections(event.stamped(7, "70", 5)))
    kept = section_value(event.stamped(7, "70", 5), value_start, dict)
    assert code == MESSAGE_ANNOTATIONS
    assert {name: kept[name] for name in said} == said
    assert kept["x-opt-sequence-number"] == 7


@pytest.mark.parametrize(
    "pairs",
    [
        [(PRODUCER_ID, encode(5)), (EPOCH, encode(Short(1)))],
        [(PRODUCER_ID, encode(5)), (PRODUCER_ID, encode(5)), (EPOCH, encode(Short(1)))],
        [(PRODUCER_ID, encode(5)), (EPOCH, encode(Int(1))), (NUMBER, encode(Int(1)))],
        [(PRODUCER_ID, encode(5)), (EPOCH, encode(Short(1))), (NUMBER, encode(Int(1))), ("more", encode(1))],
    ],
)
def test_annotations_that_are_not_just_these_three_are_decoded(pairs):
    payload = annotated(pairs)

    assert events._parse_stamped(payload) is None
    assert set(SentEvent.parse(payload).claims) == {name for name, _ in pairs}
