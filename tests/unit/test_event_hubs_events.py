"""Events, readers and start positions of the local Event Hubs, without a network."""

import itertools

import pytest

from devstack.amqp.decoder import decode
from devstack.amqp.encoder import encode
from devstack.amqp.errors import AmqpError, ProtocolError
from devstack.amqp.messages import (
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
from devstack.amqp.values import Described, Symbol, Timestamp, ULong
from devstack.event_hubs.events import (
    SentEvent,
    encode_body,
    parse_delivery,
    runtime_annotations,
    with_delivery_annotations,
)
from devstack.event_hubs.log import Start
from devstack.event_hubs.readers import LINK_STOLEN, MAX_READERS, RESOURCE_LIMIT, Readers
from devstack.event_hubs.sources import parse_start


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
