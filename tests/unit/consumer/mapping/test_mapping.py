import json

import pytest

from consumer.mapping.documents import REASONS, DocumentMapper, MappingOptions, document_id
from consumer.mapping.limits import MAX_DOCUMENT
from consumer.mapping.partition_hash import hash_key
from consumer.mapping.paths import find, parse_path
from consumer.mapping.preparing import Preparation
from consumer.mapping.transforms import load_transform, mapping_of
from consumer.model import Event, Write
from tidemark.foundation.errors import SettingsError


def event(body, *, sequence_number=17, unreadable=None):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Event("3", sequence_number, "x", 1_795_000_000.25, raw, unreadable=unreadable)


def mapper(*paths, **options):
    return DocumentMapper(MappingOptions("flights", **options), paths or ("/dest",))


def record_of(body, *paths, transform=None, **options):
    mapping = mapping_of(transform) if transform else None
    [record] = Preparation(mapper(*paths, **options).prepare, mapping=mapping).records([event(body)])
    return record


def prepared(body, *paths, **options):
    record = record_of(body, *paths, **options)
    assert record.rejection is None
    return record


def reason(body, *paths, **options):
    record = record_of(body, *paths, **options)
    assert record.rejection is not None
    assert record.rejection.reason in REASONS
    assert (record.payload, record.key) == (b"", "3~17")
    return record.rejection.reason


def nested(depth):
    return b'{"id":"1","a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


def test_a_body_becomes_a_document_with_its_key_and_its_place():
    record = DocumentMapper(MappingOptions("flights"), ("/dest",), hash_key).prepare(
        Write(event({"id": "AA-1", "dest": "LGA", "miles": 1.5}))
    )

    assert json.loads(record.payload) == {"id": "AA-1", "dest": "LGA", "miles": 1.5}
    assert record.partition_key == '["LGA"]'
    assert record.route == hash_key(["LGA"])
    assert record.rejection is None


def test_documents_of_one_id_and_one_partition_key_have_one_key():
    assert (
        prepared({"id": "a", "dest": "LGA", "n": 1}).key == prepared({"id": "a", "dest": "LGA", "n": 2}).key
    )
    assert prepared({"id": "a", "dest": "LGA"}).key != prepared({"id": "a", "dest": "JFK"}).key


ONE_KEY = [
    *(("1", "1.0"), ("1", "1e0"), ("100000000000000000000000", "1e23"), ("0", "-0.0"), ("-0", "0.0")),
    ("9007199254740993", "9007199254740992"),  # beyond 2^53 they are one double
]
TWO_KEYS = [
    *(("9007199254740993", "9007199254740994"), ("1", "1.5"), ("1", '"1"'), ("1", "true"), ("0", "false")),
    *(("null", '"null"'), ('"NaN"', '"nan"'), ("5e-324", "0")),
]


@pytest.mark.parametrize(("one", "other"), [*ONE_KEY, *TWO_KEYS])
@pytest.mark.parametrize("paths", [("/dest",), ("/dest", "/other")])
def test_partition_keys_that_are_equal_to_cosmos_db_have_one_order(one, other, paths):
    first, second = (
        prepared(b'{"id":"a","other":"x","dest":%s}' % text.encode(), *paths) for text in (one, other)
    )

    assert (first.key == second.key) is ((one, other) in ONE_KEY)
    assert document_id(first) == document_id(second) == "a"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/_tm/partition", '["3"]'), ("/_tm/sequence_number", "[17]"), ("/_tm/enqueued_at", "[1795000000.25]")],
)
def test_a_container_may_be_partitioned_by_what_is_known_of_the_event(path, expected):
    record = prepared({"id": "1"}, path, meta=True)

    assert record.partition_key == expected
    assert json.loads(record.payload)["_tm"]["partition"] == "3"
    assert prepared({"id": "1", "_tm": {"partition": "own"}}, path).partition_key in ('["own"]', "[{}]")


def test_an_id_may_come_from_what_is_known_of_the_event():
    assert document_id(prepared({}, "/id", meta=True, id_from="field:_tm/sequence_number")) == "17"


@pytest.mark.parametrize(
    ("path", "id_from", "said"),
    [
        ("/_tm", "position", "partitioned by /_tm, which no document has.*CONSUMER_META=false"),
        ("/_tm/offset", "position", "partitioned by /_tm/offset.*partition, sequence_number, enqueued_at"),
        ("/id", "field:_tm/enqueued_at", "field:_tm/enqueued_at finds no text or whole number.*use position"),
        ("/id", "field:_tm", "finds no text or whole number"),
    ],
)
def test_what_no_event_can_have_is_refused_at_the_start(path, id_from, said):
    with pytest.raises(SettingsError, match=said):
        mapper(path, meta=True, id_from=id_from)
    mapper(path, id_from=id_from)  # as the error advises: the events may bring it themselves


BODIES = {
    "empty": [b"", b" \n"],
    "encoding": [
        b'{"id":"\xff"}',
        '{"id":"1"}'.encode("utf-16"),
        b'{"id":"\\ud800"}',
        b"\x1f\x8b\x08\x00\x00",
    ],
    "json": ['{"id":"1"}'.encode("utf-16-le"), b"not json", b'{"id":"1"', b'{"id":"1"}{}'],
    "number": [b'{"id":"1","v":NaN}', b'{"id":"1","v":-Infinity}', b'{"id":"1","v":1e400}'],
    "nesting": [b'{"a":' * 20_000 + b"1" + b"}" * 20_000, nested(129)],
    "not_object": [b"[1]", b"null", b'"text"'],
}


@pytest.mark.parametrize(
    ("body", "expected"), [(body, why) for why, bodies in BODIES.items() for body in bodies]
)
def test_a_body_that_is_no_json_object_is_rejected_with_the_word_for_its_cause(body, expected):
    assert reason(body) == expected


def test_what_the_receiver_could_not_read_is_rejected_in_its_words():
    record = mapper().prepare(Write(event(b"{}", unreadable="an AMQP value of type int")))

    assert (record.rejection.reason, record.rejection.detail) == ("unreadable", "an AMQP value of type int")


def test_a_byte_order_mark_and_equal_keys_are_repaired():
    assert json.loads(prepared(b'\xef\xbb\xbf{"id":"1","dest":"a","dest":"b"}').payload) == {
        "id": "1",
        "dest": "b",
    }


def test_as_deep_as_the_service_takes_is_not_too_deep():
    assert json.loads(prepared(nested(128)).payload)["id"] == "1"


@pytest.mark.parametrize(
    ("found", "expected"),
    [("a b", "a b"), ("é" * 511, "é" * 511), (7, "7"), (-7, "-7"), (7.0, "7"), (2**63, str(2**63))],
)
def test_the_id_is_the_value_at_a_path_and_whole_numbers_become_text(found, expected):
    record = prepared({"order": {"number": found}}, id_from="field:order/number")

    assert json.loads(record.payload)["id"] == expected


@pytest.mark.parametrize(
    "found", ["", "a/b", "a\\b", "a?b", "a#b", "é" * 512, "x" * 1024, 1.5, True, None, {}, ["a"]]
)
def test_what_cosmos_cannot_take_as_an_id_is_rejected(found):
    assert reason({"id": found}) == "id"


def test_a_missing_id_is_rejected():
    assert reason({"dest": "LGA"}) == "id"
    assert reason({"id": "1", "order": "x"}, id_from="field:/order/number") == "id"


def test_the_position_as_id_is_the_same_for_every_delivery():
    record = prepared({"id": 5, "dest": "LGA"}, id_from="position")

    assert json.loads(record.payload)["id"] == "flights~3~17"


def test_a_partition_key_path_of_id_sees_the_id_that_was_set():
    assert prepared({"n": 1}, "/id", id_from="position").partition_key == '["flights~3~17"]'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"dest": "LGA"}, '["LGA"]'),
        ({"dest": 'a"b'}, '["a\\"b"]'),
        ({"dest": 3}, "[3]"),
        ({"dest": True}, "[true]"),
        ({"dest": None}, "[null]"),
        ({}, "[{}]"),
    ],
)
def test_the_partition_key_is_written_as_the_service_wants_it(body, expected):
    assert prepared({"id": "1", **body}).partition_key == expected


def test_hierarchical_and_nested_partition_keys():
    body = {"id": "1", "tenant": "t", "place": {"city no.": "Köln"}}

    assert prepared(body, "/tenant", '/place/"city no."', "/missing").partition_key == '["t","Köln",{}]'


@pytest.mark.parametrize("value", [{}, {"a": 1}, [], ["LGA"], "x" * 2049, "é" * 1025])
def test_what_cosmos_cannot_take_as_a_partition_key_is_rejected(value):
    assert reason({"id": "1", "dest": value}) == "partition_key"


def test_a_partition_key_beyond_a_double_is_rejected():
    assert reason(b'{"id":"1","dest":1' + b"0" * 400 + b"}") == "number"


def test_the_size_limit_counts_what_is_added_to_the_document():
    body = {"id": "1", "text": "x" * (MAX_DOCUMENT - len('{"id":"1","text":""}'))}

    assert len(prepared(body).payload) == MAX_DOCUMENT
    assert reason(body, meta=True) == "too_large"


def test_the_position_is_added_when_asked_for():
    assert json.loads(prepared({"id": "1"}, meta=True).payload)["_tm"] == {
        "partition": "3",
        "sequence_number": 17,
        "enqueued_at": 1_795_000_000.25,
    }


def test_a_transform_gets_document_and_event_and_may_change_the_document():
    def transform(document, event):
        document["dest"] = document["dest"].lower()
        return {**document, "id": f"{event.partition}-{event.sequence_number}"}

    record = prepared({"dest": "LGA"}, transform=transform)

    assert json.loads(record.payload) == {"id": "3-17", "dest": "lga"}
    assert record.partition_key == '["lga"]'


def refuse(document, event):
    raise ValueError("no such airport")


def test_a_transform_for_which_memory_does_not_suffice_rejects_nothing():
    def starve(document, event):
        raise MemoryError

    with pytest.raises(MemoryError):
        prepared({"id": "1"}, transform=starve)


@pytest.mark.parametrize("transform", [refuse, lambda *_: None, lambda *_: [], lambda *_: [None], dict])
def test_a_transform_that_fails_or_returns_no_mapping_rejects_the_event(transform):
    assert reason({"id": "1"}, transform=transform) == "transform"


@pytest.mark.parametrize(
    ("value", "expected"), [(object(), "document"), ({(1, 2): 3}, "document"), ("\ud800", "encoding")]
)
def test_a_transform_that_returns_what_json_cannot_hold_rejects_the_event(value, expected):
    assert reason({"id": "1"}, transform=lambda *_: {"id": "1", "v": value}) == expected
    assert reason({"id": "1"}, "/id", transform=lambda *_: {"id": "\ud800"}) == "encoding"


def test_a_rejection_says_what_was_found_and_what_is_accepted():
    rejection = mapper().prepare(Write(event({"id": "a/b"}))).rejection

    assert rejection.detail == "the id 'a/b' holds one of / \\ ? #"


@pytest.mark.parametrize("id_from", ["", "uuid", "field:", "field:/", "field:a//b", "position:x"])
def test_an_unknown_id_strategy_is_a_settings_error(id_from):
    with pytest.raises(SettingsError, match=r"accepted: position, or field|is not a path"):
        MappingOptions("flights", id_from)


@pytest.mark.parametrize(
    ("text", "path"), [("/a", ("a",)), ("/a/b", ("a", "b")), ('/"a/b"/c', ("a/b", "c")), ("/a b", ("a b",))]
)
def test_paths_are_read_as_the_service_writes_them(text, path):
    assert parse_path(text) == path


def test_a_path_through_something_else_than_an_object_finds_nothing():
    assert find({"a": ["b"]}, ("a", "b")) is find({}, ("x",))


def test_a_transform_is_named_by_module_and_function():
    assert load_transform("json:dumps") is json.dumps
    for name in ("json", "json:", "json:nothing", "json:__name__", "no_such_module_here:f"):
        with pytest.raises(SettingsError, match="transform"):
            load_transform(name)
