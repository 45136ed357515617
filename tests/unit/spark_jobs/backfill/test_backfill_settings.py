"""A backfill's settings, its target, and what it says when something is wrong."""

import gzip
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
import zstandard

from consumer.decoding.avro_schemas import parse_schema
from spark_jobs.backfill.run import BackfillSettings, _checkpoint_group, backfill
from spark_jobs.backfill.target import read_target
from spark_jobs.backfill.transforms import Selection
from spark_jobs.platform.consumer_hub import for_executors, hub_on_cosmos
from spark_jobs.platform.failures import reason_of
from spark_jobs.reconciliation.job import refuse_what_leaves_no_trace
from spark_jobs.reconciliation.keys import _keyed
from tests.support.consumer.decoding import descriptors, message_class
from tidemark.analysis.errors import InputError

CONSUMER = {
    "EventHubConnection": "Endpoint=sb://orders.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=s",
    "CosmosConnection__accountEndpoint": "https://orders.documents.azure.com/",
    "EVENTHUB_NAME": "flights",
    "COSMOS_DATABASE": "db",
    "COSMOS_CONTAINER": "flights",
}


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ({}, "exactly one of --ru-per-second and --records-per-second"),
        ({"ru_per_second": 1.0, "records_per_second": 1}, "exactly one of"),
        ({"ru_per_second": 0.0}, "--ru-per-second: the budget is 0.0; accepted: a positive number"),
        ({"records_per_second": -3}, "--records-per-second: the budget is -3"),
    ],
)
def test_a_budget_that_is_none_is_refused_by_its_option(budget, told):
    with pytest.raises(InputError, match=told):
        BackfillSettings(**budget).shares()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"EVENTHUB_NAME": ""}, "EVENTHUB_NAME is not set"),
        (
            {"CONSUMER_SCHEMA_REGISTRY": "SchemaRegistry"},
            "CONSUMER_DECODER is auto and CONSUMER_UNPACK auto; the Spark jobs read .*json.*, with CONSUMER_UNPACK none",
        ),
        (
            {"CONSUMER_UNPACK": "auto", "CONSUMER_DECODER": "json"},
            "CONSUMER_DECODER is json and CONSUMER_UNPACK auto",
        ),
        (
            {"CONSUMER_DECODER": "avro_preamble", "CONSUMER_UNPACK": "none"},
            "no schema registry connection 'SchemaRegistry'|SchemaRegistry__fullyQualifiedNamespace",
        ),
        (
            {
                "CONSUMER_DECODER": "protobuf",
                "CONSUMER_UNPACK": "none",
                "CONSUMER_SCHEMA_FILES": "nowhere.binpb",
                "CONSUMER_PROTOBUF_MESSAGE": "a.B",
            },
            "'nowhere.binpb' cannot be read",
        ),
        (
            {"CONSUMER_SINK": "sql", "CONSUMER_SQL_URL": "sqlite://"},
            "CONSUMER_SINK is sql; a backfill writes to Cosmos",
        ),
        ({"CONSUMER_FILE": "nowhere.toml"}, "CONSUMER_FILE is 'nowhere.toml': the file cannot be read"),
        (
            {"COSMOS_PATCH_MARK": "false"},
            "COSMOS_PATCH_MARK .* is false: a backfill would apply patches again",
        ),
        ({"COSMOS_WRITE": "false"}, "COSMOS_WRITE is false: nothing would be written"),
        ({"EventHubConnection": ""}, "no Event Hubs connection 'EventHubConnection'"),
    ],
)
def test_a_target_that_cannot_be_written_is_refused_by_its_setting(setting, told):
    with pytest.raises(InputError, match=told):
        read_target({**CONSUMER, **setting})


JSON = b'{"id": "a", "dest": "LGA"}'
FLIGHT = """{"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "string"}, {"name": "dest", "type": "string"}]}"""
SINGLE = b"\xc3\x01" + bytes.fromhex(parse_schema(FLIGHT, "").fingerprint) + b"\x02a\x06LGA"
ORDER = message_class("shop.Order")(id="a", big=1).SerializeToString()


@pytest.mark.parametrize(
    ("name", "unpack", "body", "other", "rejection"),
    [
        ("json", "gzip", gzip.compress(JSON), JSON, "packed"),
        ("json", "zstd", zstandard.compress(JSON), JSON, "packed"),
        ("avro_single_object", "none", SINGLE, SINGLE[1:], "avro"),
        ("avro_single_object", "gzip", gzip.compress(SINGLE), SINGLE, "packed"),
        ("protobuf", "none", ORDER, b"\xff", "protobuf"),
    ],
)
def test_a_body_has_the_id_of_the_document_that_the_consumer_writes(
    tmp_path, name, unpack, body, other, rejection
):
    (tmp_path / "flight.avsc").write_text(FLIGHT)
    (tmp_path / "shop.pb").write_bytes(descriptors())
    files = {"avro_single_object": "flight.avsc", "protobuf": "shop.pb"}
    settings = {"CONSUMER_DECODER": name, "CONSUMER_UNPACK": unpack}
    if name in files:
        settings["CONSUMER_SCHEMA_FILES"] = str(tmp_path / files[name])
    if name == "protobuf":
        settings["CONSUMER_PROTOBUF_MESSAGE"] = "shop.Order"
    hub = read_target({**CONSUMER, **settings})
    row = {
        "partition": "0",
        "sequence_number": 1,
        "enqueued_at": datetime(2026, 11, 27, tzinfo=UTC),
        "file": "f",
        "offset": "",
        "properties": None,
    }
    rows = [{**row, "body": each} for each in (body, other)]

    (keys,) = _keyed([pa.RecordBatch.from_pylist(rows)], hub, ["/id"], None)

    assert [(key["document_id"], key["rejection"]) for key in keys.to_pylist()] == [
        ("a", None),
        (None, rejection),
    ]


def test_bodies_that_are_read_in_another_way_are_another_backfill():
    """Or the same command, with the setting mended, would say of each event that it was settled before."""
    ways = [
        {},
        {"CONSUMER_JSON_ARRAYS": "true"},
        {"CONSUMER_UNPACK": "gzip"},
        *({"CONSUMER_DECODER": name, "CONSUMER_UNPACK": "none"} for name in ("csv", "text", "raw")),
        {"CONSUMER_DECODER": "csv", "CONSUMER_UNPACK": "none", "CONSUMER_CSV_DELIMITER": ";"},
    ]
    budget = BackfillSettings(records_per_second=1)
    groups = [
        _checkpoint_group("c", read_target({**CONSUMER, "CONSUMER_ID": "position", **way}), budget, "e")
        for way in ways
    ]

    assert len({*groups}) == len(ways)


@pytest.mark.parametrize(
    "setting", [{"COSMOS_OPERATION": "delete"}, {"COSMOS_OPERATION_FROM": "/op"}, {"COSMOS_EMPTY": "delete"}]
)
def test_mode_create_is_refused_where_events_change_what_exists(setting):
    read_target({**CONSUMER, **setting}, "upsert")
    with pytest.raises(InputError, match="use mode upsert, with COSMOS_GUARD"):
        read_target({**CONSUMER, **setting}, "create")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({}, None),
        ({"COSMOS_OPERATION": "create"}, None),
        ({"COSMOS_OPERATION": "patch"}, None),
        ({"COSMOS_OPERATION": "patch", "COSMOS_IF_MISSING": "ignore"}, "is ignore: of an event"),
        ({"COSMOS_OPERATION": "delete"}, "COSMOS_OPERATION is delete: nothing is left"),
        ({"COSMOS_OPERATION": "delete", "COSMOS_GUARD": "number"}, None),
        (
            {"COSMOS_EMPTY": "delete", "COSMOS_GUARD": "number", "COSMOS_TOMBSTONE": "off"},
            "COSMOS_EMPTY is delete",
        ),
        ({"COSMOS_OPERATION_FROM": "/op"}, "COSMOS_OPERATION_FROM may say delete"),
        ({"COSMOS_OPERATION_FROM": "/op: c=create, u=upsert"}, None),
        ({"COSMOS_TTL": "7d"}, None),
    ],
)
def test_a_reconciliation_calls_nothing_lost_that_was_removed_on_purpose(setting, told):
    hub = hub_on_cosmos({**CONSUMER, **setting}, "a reconciliation reads")

    with pytest.raises(InputError, match=told) if told else nullcontext():
        refuse_what_leaves_no_trace(hub)


def test_a_cluster_that_starts_second_attempts_is_refused():
    captured = SimpleNamespace(sparkSession=SimpleNamespace(conf={"spark.speculation": "true"}))

    with pytest.raises(InputError, match=r"spark\.speculation is true; accepted: false"):
        backfill(captured, Selection(), BackfillSettings(records_per_second=1), read_target(CONSUMER))


def test_tasks_get_the_settings_of_the_consumer_and_no_other_secret():
    registry = {
        "CONSUMER_DECODER": "avro_preamble",
        "CONSUMER_UNPACK": "none",
        "CONSUMER_SCHEMA_REGISTRY": "Schemas",
        "Schemas__fullyQualifiedNamespace": "ns.servicebus.windows.net",
    }
    others = {
        "PATH": "/bin",
        "OrdersConnection": "secret",
        "CosmosConnectionOther": "secret",
        "HOME": "/root",
    }

    hub = read_target({**CONSUMER, **registry, **others, "AzureWebJobsStorage": "blobs"})

    assert for_executors(hub) == {
        **CONSUMER,
        **registry,
        "AzureWebJobsStorage": "blobs",
    }


def test_of_a_stack_trace_the_tasks_own_error_is_told():
    trace = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "replay.py", line 5, in replay
spark_jobs.sources.columns.avro_container.CorruptFileError: a first cause
During handling of the above exception, another exception occurred:
consumer.errors.PoisonError: 500 events in a row were rejected
org.apache.spark.SparkException: Job aborted"""

    assert reason_of(RuntimeError(trace)) == "PoisonError: 500 events in a row were rejected"
    assert reason_of(RuntimeError("\nworker gone\n  at x")) == "worker gone"
    assert reason_of(RuntimeError()) == "RuntimeError"
