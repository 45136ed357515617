"""Whatever bytes arrive: a record or a rejection, never an exception, and a record keeps what the body said."""

import json

from hypothesis import given
from hypothesis import strategies as st

from consumer.mapping.documents import REASONS, DocumentMapper, MappingOptions
from consumer.model import Event, Write

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
