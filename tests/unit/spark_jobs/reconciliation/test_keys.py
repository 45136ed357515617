"""Which document an event becomes: what of the event its mapping gets."""

import asyncio
import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from msgspec import structs

from consumer.config import ConsumerConfig, read_config
from consumer.decoding.bodies import Definition
from consumer.definition.model import HubDefinition
from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.mapping.operations import WriteOptions
from consumer.mapping.preparing import Preparation
from consumer.mapping.transforms import mapping_of
from spark_jobs.reconciliation.keys import _event, _key_of, _keyed, event_columns
from tests.support.consumer.decoding import ID, MemoryRegistry, zigzag
from tidemark.analysis.errors import InputError, JobError
from tidemark.consuming import delete, drop

CONSUMER = {
    "EventHubConnection": "Endpoint=sb://hub.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=s",
    "EVENTHUB_NAME": "flights",
    "COSMOS_DATABASE": "db",
    "COSMOS_CONTAINER": "flights",
}
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

    found = _key_of(preparation, _event({**ROW, "system_properties": system}), None, WriteOptions())
    assert found == {
        "document_id": "a",
        "partition_key": key,
        "ttl": None,
        "version": None,
        "record": "0",
        "of": 1,
    }


def keys_of(body, monkeypatch=None, made=None, default_ttl=-1, **settings):
    config = read_config({**CONSUMER, **settings})
    if made is not None:
        monkeypatch.setattr(
            "consumer.running.assembly.load_transform", lambda _: lambda document, event: made
        )
        config = structs.replace(config, transform="m:f")
    rows = [{**ROW, "file": "f", "body": body}]
    hub = HubDefinition(config, {**CONSUMER, **settings})
    [batch] = _keyed([pa.RecordBatch.from_pylist(rows)], hub, ["/id"], default_ttl)
    [key] = batch.to_pylist()
    return {name: key[name] for name in ("document_id", "rejection", "writes", "ttl", "version", "further")}


def test_a_time_to_live_counts_where_the_container_has_one_and_its_own_is_the_default():
    defaults = (None, -1, 9)
    assert [keys_of(b'{"id": "a", "ttl": 5}', default_ttl=each)["ttl"] for each in defaults] == [None, 5, 5]
    assert [keys_of(b'{"id": "a"}', default_ttl=each)["ttl"] for each in defaults] == [None, None, 9]
    assert keys_of(b'{"id": "a", "ttl": -1}', default_ttl=9)["ttl"] is None


@pytest.mark.parametrize("version", [3, 7.5, "b"])
def test_the_version_is_that_of_the_guards_field(version):
    body = json.dumps({"id": "a", "v": version}).encode()

    assert keys_of(body, COSMOS_GUARD="field:/v")["version"] == str(version)


GUARDED = {"COSMOS_GUARD": "number", "COSMOS_OPERATION_FROM": "/op"}


@pytest.mark.parametrize(
    ("settings", "document", "key"),
    [
        ({}, {}, ("a", None)),
        ({"COSMOS_TTL": "60"}, {}, ("a", 60)),
        ({"COSMOS_TTL": "field:/keep"}, {"keep": 7}, ("a", 7)),
        (GUARDED, {"op": "delete"}, ("a", 604_800)),  # its tombstone
        (GUARDED, {"op": "upsert"}, ("a", None)),
        (GUARDED, {"op": "patch", "x": 1}, ("a", None)),
        ({"CONSUMER_META": "true", "COSMOS_OPERATION": "patch"}, {"x": 1}, ("a", None)),
    ],
)
def test_each_operation_has_the_id_and_the_time_of_what_it_leaves(settings, document, key):
    found = keys_of(json.dumps({"id": "a", **document}).encode(), **settings)

    assert (found["document_id"], found["ttl"]) == key
    assert found["writes"] is None


@pytest.mark.parametrize(
    ("made", "writes", "further"),
    [
        (drop("old"), 0, []),
        ([{"id": "a"}, {"id": "b"}], 2, ["b"]),
        ([{"id": "a"}, {"no": "id"}], 2, [None]),
        ([{"id": "a"}, drop("x")], None, []),
    ],
)
def test_all_writes_of_an_event_are_kept_and_so_is_an_event_that_is_dropped(
    monkeypatch, made, writes, further
):
    found = keys_of(b"{}", monkeypatch, made)

    assert found["writes"] == writes
    assert [each.get("document_id") for each in json.loads(found["further"] or "[]")] == further


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({"CONSUMER_JSON_ARRAYS": "true"}, b'[{"id": "a"}, {"id": "b"}, {"id": "c"}]'),
        ({"CONSUMER_DECODER": "csv", "CONSUMER_UNPACK": "none"}, b"id,x\na,1\nb,2\nc,3\n"),
        ({"CONSUMER_DECODER": "csv", "CONSUMER_UNPACK": "none", "CONSUMER_ID": "position"}, b"x\n1\n2\n3\n"),
    ],
)
def test_each_document_of_a_body_is_one_to_look_for(settings, body):
    found = keys_of(body, **settings)
    ids = [found["document_id"], *(each["document_id"] for each in json.loads(found["further"]))]

    assert found["writes"] == 3
    assert ids == (
        ["a", "b", "c"] if len(settings) < 3 else [f"flights~0~7{index}" for index in ("", "~1", "~2")]
    )
    assert "body" in event_columns(HubDefinition(read_config({**CONSUMER, **settings}), {}))


def test_what_is_deleted_without_a_tombstone_is_refused_by_name(monkeypatch):
    with pytest.raises(InputError, match=r"event 7 of partition 0 deletes a document, .* needs COSMOS_GUARD"):
        keys_of(b"{}", monkeypatch, delete({"id": "a"}))


def test_all_schemas_of_a_task_are_asked_for_in_one_event_loop(monkeypatch):
    """What a credential keeps belongs to its loop."""
    loops, ids = [], [f"{n:032x}" for n in range(2)]

    async def fetch(_, schemas, into):
        loops.append(asyncio.get_running_loop())
        for each in schemas:
            into(each, Definition('{"type":"record","name":"R","fields":[{"name":"id","type":"string"}]}'))

    monkeypatch.setattr("consumer.decoding.registries.AzureRegistry.fetch", fetch)
    settings = {**CONSUMER, "CONSUMER_DECODER": "avro_preamble", "CONSUMER_UNPACK": "none"}
    settings["SchemaRegistry__fullyQualifiedNamespace"] = "ns.servicebus.windows.net"
    bodies = [bytes(4) + each.encode() + zigzag(1) + b"a" for each in ids]
    batches = [pa.RecordBatch.from_pylist([{**ROW, "file": "f", "body": body}]) for body in bodies]
    keys = list(_keyed(batches, HubDefinition(read_config(settings), settings), ["/id"], None))

    assert [each["document_id"][0].as_py() for each in keys] == ["a", "a"]
    assert len(loops) == 2
    assert loops[0] is loops[1]


@pytest.mark.parametrize("is_down", [False, True])
def test_a_schema_is_asked_of_the_registry(monkeypatch, is_down):
    registry = MemoryRegistry({ID: '{"type":"record","name":"R","fields":[{"name":"id","type":"string"}]}'})
    registry.down = is_down
    monkeypatch.setattr(
        "consumer.decoding.registries.AzureRegistry.fetch", lambda _, *asked: registry.fetch(*asked)
    )
    settings = {"CONSUMER_DECODER": "avro_preamble", "CONSUMER_UNPACK": "none"}
    settings["SchemaRegistry__fullyQualifiedNamespace"] = "ns.servicebus.windows.net"
    body = bytes(4) + ID.encode() + zigzag(1) + b"a"
    if is_down:
        with pytest.raises(JobError, match="the registry does not answer"):
            keys_of(body, **settings)
        return

    assert keys_of(body, **settings)["document_id"] == "a"


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"transform": "m:f"}, True),
        ({"transform": "m:f", "meta": True}, True),
        ({}, False),
        ({"transform": "m:f", "id_from": "position"}, True),
    ],
)
def test_what_tells_the_partition_key_is_read_only_where_a_transform_may_look_at_it(settings, needed):
    assert (
        "system_properties" in event_columns(HubDefinition(ConsumerConfig("hub", **settings), {}))
    ) is needed
