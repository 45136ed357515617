"""Whatever bytes arrive: a record or a rejection, never an exception, and a record keeps what the body said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.mapping.documents import REASONS, DocumentMapper, MappingOptions
from consumer.mapping.limits import MAX_DEPTH, MAX_DOCUMENT
from consumer.mapping.operations import WriteOptions
from consumer.mapping.partition_hash import hash_key, multi_hash_key
from consumer.model import Event, Operation, Write

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
objects = st.dictionaries(st.text(), values, max_size=6)
almost = st.builds(
    lambda text, at, junk: text[:at] + junk + text[at:],
    objects.map(json.dumps),
    st.integers(0, 40),
    st.text(max_size=2),
)

MAPPER = DocumentMapper(MappingOptions("hub", "position"), ("/pk", "/a/b"))


@given(st.binary(max_size=60) | almost.map(str.encode))
def test_any_bytes_are_a_record_or_a_rejection(body):
    record = MAPPER.prepare(Write(Event("0", 1, "1", 0.0, body)))

    assert (record.rejection is None) == bool(record.payload)
    assert record.rejection is None or record.rejection.reason in REASONS


@given(objects, st.sampled_from(["LGA", 1, None, True]))
def test_a_document_is_the_body_with_its_id(document, key):
    body = {**document, "pk": key, "a": {}}
    record = MAPPER.prepare(Write(Event("0", 1, "1", 0.0, json.dumps(body).encode())))

    assert json.loads(record.payload) == {**body, "id": "hub~0~1"}
    assert json.loads(record.partition_key) == [key, {}]


def mappers(paths, effective_key):
    """One that keeps the bytes where it may, and one that never does: the oracle."""
    options = MappingOptions("hub", writing=WriteOptions(source="namespace/hub"))
    keeping, encoding = (DocumentMapper(options, paths, effective_key) for _ in range(2))
    encoding._as_received = None
    return keeping, encoding


KEYS_AT = [*mappers(("/pk",), hash_key), *mappers(("/pk", "/a/b"), multi_hash_key)]
NAMES = st.sampled_from(["id", "pk", "a", "b", "x", 'q"', "\\", "ü"])


def text_of(members):
    """An object with its members one after the other, equal keys too."""
    return "{" + ",".join(f"{json.dumps(name)}{gap}:{value}" for name, gap, value in members) + "}"


members = st.lists(
    st.tuples(NAMES, st.sampled_from(["", "", "", " ", "\n"]), st.deferred(lambda: json_texts)), max_size=4
)
json_texts = st.deferred(
    lambda: st.one_of(
        values.map(json.dumps),
        st.sampled_from(
            ['"a"', '"\\ud800"', "1e400", "NaN", "01", '"\\""', '"\\u0022"', "[[1]]", '"a/b"', '"\x01"']
        ),
        members.map(text_of),
        st.lists(members.map(text_of), max_size=2).map(lambda found: f"[{','.join(found)}]"),
    )
)
documents = st.builds(
    lambda id_, key, inner, rest, end: (
        text_of([("id", "", id_), ("pk", "", key), ("a", "", inner), *rest]) + end
    ),
    id_=st.sampled_from(['"i"', '"j"', "7", "null", '"a/b"', '""', json.dumps("i" * 1100)]),
    key=st.sampled_from(['"k"', '"ü"', "1", "1.0", "true", "{}", json.dumps("k" * 2100)]),
    inner=st.sampled_from(['{"b":"c"}', "{}", '{"b":"c","b":"d"}']),
    rest=members,
    end=st.sampled_from(["", "", " \n", "x"]),
)


@given(bodies=st.lists(st.one_of(documents.map(str.encode), st.binary(max_size=30)), min_size=1, max_size=3))
def test_a_record_whose_bytes_are_kept_is_the_one_that_is_encoded_anew(bodies):
    """Twice, because of what is remembered of a partition key. Payloads are equal as the service reads them."""
    for keeping, encoding in (KEYS_AT[:2], KEYS_AT[2:]):
        for body in (*bodies, *bodies):
            kept, anew = (
                mapper.prepare(Write(Event("0", 1, "1", 0.0, body))) for mapper in (keeping, encoding)
            )

            assert _without_payload(kept) == _without_payload(anew)
            if kept.payload != anew.payload:
                assert kept.payload is kept.event.body
                assert _pairs(kept.payload) == _pairs(anew.payload)


def _without_payload(record):
    return record.key, record.partition_key, record.route, record.rejection, record.operation, record.change


def _pairs(payload):
    """With every member, so that equal keys are not taken for one."""
    return json.loads(payload, object_pairs_hook=lambda pairs: pairs, parse_int=float)


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        (b'{"id":"a","pk":"k","n":{"x":[{"y":"z"}]}}', True),
        (b'{ "id" : "a",\n "pk": "k" }\n', True),
        (b'{"id":"a","pk":"k","id":"b"}', False),
        (b'{"id":"a","pk":"k","n":{"x":1,"x":2}}', False),
        (b'{"id":"a","pk":"k","n":[[{"x":1,"x":"2"}]]}', False),
        (b'{"id":"a","pk":"k","n":"\\""}', False),  # it may be, but nobody can tell by counting
        (b'\xef\xbb\xbf{"id":"a","pk":"k"}', False),
        (b'{"id":"a","pk":1}', False),
        (b'{"id":1,"pk":"k"}', False),
        (b'{"id":"a","pk":"k","n":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}", True),
        (b'{"id":"a","pk":"k","n":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", False),
        (b'{"id":"a","pk":"k"' + b" " * MAX_DOCUMENT + b"}", False),
    ],
)
def test_bytes_are_kept_where_nothing_is_to_be_changed_or_repaired(body, is_kept):
    keeping, encoding = KEYS_AT[:2]
    kept, anew = (mapper.prepare(Write(Event("0", 1, "1", 0.0, body))) for mapper in (keeping, encoding))

    assert (kept.payload is kept.event.body) == is_kept
    assert _without_payload(kept) == _without_payload(anew)


@pytest.mark.parametrize(
    "options",
    [{"id_from": "position"}, {"meta": True}]
    + [
        {"writing": WriteOptions(**writing)}
        for writing in [
            {"guard": "number"},
            {"ttl": "60"},
            {"operation": Operation.CREATE},
            {"empty": "delete"},
        ]
    ],
)
def test_no_bytes_are_kept_where_options_change_documents(options):
    mapper = DocumentMapper(MappingOptions("hub", **options), ("/pk",), hash_key)
    record = mapper.prepare(Write(Event("0", 1, "1", 0.0, b'{ "id":"a","pk":"k"}')))

    assert record.rejection is None
    assert record.payload != record.event.body


def test_what_is_remembered_of_partition_keys_has_a_bound(monkeypatch):
    monkeypatch.setattr("consumer.mapping.as_received.MOST_KEYS", 3)
    keeping, encoding = mappers(("/pk",), hash_key)
    for number in range(10):
        write = Write(Event("0", 1, "1", 0.0, b'{"id":"a","pk":"k%d"}' % number))
        assert keeping.prepare(write) == encoding.prepare(write)

    assert len(keeping._as_received._keys) <= 3
