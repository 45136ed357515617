"""Which document an event becomes: what of the event its mapping gets."""

from datetime import UTC, datetime

import pytest

from consumer.config import ConsumerConfig
from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.mapping.transforms import mapping_of
from spark_jobs.reconciliation.keys import _keys, event_columns

ROW = {
    "partition": "0",
    "sequence_number": 7,
    "enqueued_at": datetime(2026, 11, 20, 10, tzinfo=UTC),
    "offset": "1",
    "body": b'{"id": "a"}',
    "properties": [],
}


def by_tenant(document, event):
    return {**document, "tenant": event.partition_key}


@pytest.mark.parametrize(
    ("system", "key"),
    [([("x-opt-partition-key", "t1")], '["t1"]'), ([], "[null]"), (None, "[null]")],
)
def test_a_transform_that_reads_the_events_partition_key_finds_the_same_document_as_the_consumer(system, key):
    mapper = DocumentMapper(MappingOptions("hub", "field:id"), ("/tenant",))
    preparation = Preparation(mapper.prepare, mapping=mapping_of(by_tenant))

    [found] = _keys(preparation, {**ROW, "system_properties": system})
    assert found == {"document_id": "a", "partition_key": key}


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"transform": "m:f"}, True),
        ({"transform": "m:f", "meta": True}, True),
        ({}, False),
        ({"transform": "m:f", "id_from": "position"}, False),
    ],
)
def test_what_tells_the_partition_key_is_read_only_where_a_transform_may_look_at_it(settings, needed):
    assert ("system_properties" in event_columns(ConsumerConfig("hub", **settings))) is needed
