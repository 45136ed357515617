"""`tidemark publish` of Parquet, Avro and Capture files, in Avro by a schema registry, and as CloudEvents."""

import datetime as dt
import io
import json

import fastavro
import pyarrow as pa
import pytest
from azure.eventhub._pyamqp._decode import decode_payload
from pyarrow import parquet

from devstack.schema_registry import SchemaRegistryServer
from devstack.servers.certificates import ensure_certificate
from tests.devstack.schema_registry.test_schema_registry import AsyncToken
from tests.integration.test_publisher_command import IDS, bodies, publish, server
from tests.support.servers.capture_files import SCHEMA
from tests.support.servers.event_hubs import HUB
from tests.support.servers.threaded import running_in_thread
from tidemark.publisher.cli.rows import encoding
from tidemark.publisher.cli.rows.containers import RowsInput
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key

__all__ = ["server"]

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120)]

ROWS = [{"id": number, "plane": f"N{number % 7}", "delay": number / 4} for number in range(1200)]
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "plane", "type": "string"},
        {"name": "delay", "type": ["null", "double"]},
    ],
}


def write_parquet(path, rows=ROWS):
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=250)


def write_avro(path, rows=ROWS, schema=FLIGHT):
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows)


def messages(server, partition):
    return [
        decode_payload(memoryview(bytes(one.message)))
        for one in server.call(lambda: server.server.events(HUB, partition))
    ]


@pytest.mark.parametrize(("suffix", "write"), [("parquet", write_parquet), ("avro", write_avro)])
def test_the_rows_of_a_file_are_published_by_a_column_once_and_go_on_where_they_stopped(
    server, tmp_path, suffix, write
):
    file, state = tmp_path / f"events.{suffix}", tmp_path / "state.json"
    write(file, [*ROWS[:600], {"id": 0, "plane": "", "delay": None}, *ROWS[601:]])
    options = (
        "--file",
        file,
        "--idempotent",
        "--state",
        state,
        "--partition-key",
        "plane",
        "--property-field",
        "delay",
    )
    assert publish(server, tmp_path, *options) == (0, "1,200 lines published")
    assert publish(server, tmp_path, *options) == (0, "nothing left: 1,200 lines were published before")

    for id_ in IDS:
        mine = [row for row in ROWS if partition_of_key(row["plane"], IDS) == id_]
        found = [json.loads(body) for body in bodies(server, id_) if json.loads(body)["plane"]]
        assert found == [row for row in mine if row["id"] != 600]
    assert {(one.application_properties or {}).get(b"delay") for one in messages(server, "0")} >= {0.25}
    write(file, ROWS[:300])
    status, told = publish(server, tmp_path, *options)
    assert status == 3
    assert "events." in told
    assert "is not the file of the saved state, of which 1,200 rows were published" in told


def test_a_run_that_is_stopped_within_the_file_goes_on_at_its_row(server, tmp_path):
    file, state = tmp_path / "events.parquet", tmp_path / "state.json"
    write_parquet(file, [*ROWS[:700], {"id": 700, "plane": None, "delay": 1.0}, *ROWS[701:]])
    options = ("--file", file, "--idempotent", "--state", state, "--max-events", 40)

    status, told = publish(server, tmp_path, *options, "--id-field", "plane")
    assert status == 2
    assert "events.parquet, row 701: it has no text or number in 'plane', the message id" in told
    before = sum(len(bodies(server, id_)) for id_ in IDS)
    assert 0 < before <= 700
    status, told = publish(server, tmp_path, *options)
    assert (status, "--id-field was plane" in told) == (3, True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"no parquet", "a.parquet, row 1: it cannot be read as parquet"),
        ("a.avro", b"no avro", "a.avro, row 1: it cannot be read as avro"),
    ],
)
def test_what_cannot_be_read_is_refused_by_file_and_row(server, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    status, told = publish(server, tmp_path, "--file", tmp_path / name)
    assert status == 2
    assert words in told


def test_times_are_texts_and_a_column_that_json_cannot_say_is_named(server, tmp_path):
    write_avro(
        tmp_path / "a.avro",
        [{"at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}],
        {
            "type": "record",
            "name": "T",
            "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
        },
    )
    assert publish(server, tmp_path, "--file", tmp_path / "a.avro", "--partition", "0")[0] == 0
    assert bodies(server, "0") == ['{"at":"2026-01-02T00:00:00Z"}']
    input_ = RowsInput(io.BytesIO(), "a.parquet", "parquet")
    with pytest.raises(
        PublishSettingsError, match=r"a.parquet, row 2, column 'span': it cannot be read as parquet"
    ):
        input_.line_of({"id": 1, "span": object()}, 2)


def test_captured_events_are_published_with_body_properties_and_key_as_they_were(server, tmp_path):
    rows = [
        {
            "SequenceNumber": number,
            "Offset": str(number),
            "EnqueuedTimeUtc": "1/1/2026 0:00:00 AM",
            "SystemProperties": {
                "x-opt-partition-key": f"k{number}",
                "content-type": "text/plain",
                "message-id": f"m{number}",
            },
            "Properties": {"n": number, "t": "x"},
            "Body": b"\x00raw %d" % number,
        }
        for number in range(20)
    ]
    write_avro(tmp_path / "01.avro", rows, SCHEMA)
    assert publish(server, tmp_path, "--file", tmp_path / "01.avro")[0] == 0

    for id_ in IDS:
        mine = [
            row
            for row in rows
            if partition_of_key(row["SystemProperties"]["x-opt-partition-key"], IDS) == id_
        ]
        found = messages(server, id_)
        assert [b"".join(one.data) for one in found] == [row["Body"] for row in mine]
        assert [one.application_properties[b"n"] for one in found] == [row["SequenceNumber"] for row in mine]
        assert {one.properties.content_type for one in found} == {b"text/plain"}
        assert [one.properties.message_id.decode() for one in found] == [
            row["SystemProperties"]["message-id"] for row in mine
        ]


@pytest.fixture
def schemas(tmp_path, monkeypatch):
    certificate = ensure_certificate(tmp_path / "certificate")
    monkeypatch.setattr(encoding, "credential", lambda *_: AsyncToken())
    with running_in_thread(lambda: SchemaRegistryServer(certificate)) as running:
        monkeypatch.setenv("SchemaRegistry__fullyQualifiedNamespace", running.server.namespace)
        monkeypatch.setenv("TIDEMARK_CA_BUNDLE", str(running.server.ca_path))
        yield running.server


def test_rows_become_avro_with_the_id_of_the_registry_and_what_does_not_fit_is_named(
    server, schemas, tmp_path
):
    file = tmp_path / "events.avro"
    write_avro(file, ROWS[:50])
    options = ("--schema-registry", "SchemaRegistry", "--schema-group", "air", "--partition", "0")
    status, told = publish(server, tmp_path, "--file", file, *options)
    assert status == 1
    assert "has no schema air/air.Flight like this one" in told
    assert "--register-schema" in told

    assert publish(server, tmp_path, "--file", file, *options, "--register-schema")[0] == 0
    assert publish(server, tmp_path, "--file", file, *options)[0] == 0
    found = messages(server, "0")
    assert len(found) == 100
    kind, _, id_ = found[0].properties.content_type.decode().partition("+")
    assert (kind, len(id_)) == ("avro/binary", 32)
    rows = [fastavro.schemaless_reader(io.BytesIO(b"".join(one.data)), FLIGHT) for one in found[:50]]
    assert rows == ROWS[:50]

    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({"id": "three", "plane": "N1", "delay": None}))
    (tmp_path / "flight.avsc").write_text(json.dumps(FLIGHT))
    status, told = publish(server, tmp_path, "--file", lines, *options, "--schema", tmp_path / "flight.avsc")
    assert status == 2
    assert "row 2 does not fit the schema" in told
    assert "id" in told


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_rows_become_cloud_events_in_both_modes(server, tmp_path, mode):
    file = tmp_path / "events.parquet"
    write_parquet(file, ROWS[:3])
    options = (
        "--cloudevents",
        mode,
        "--cloudevents-source",
        "/air",
        "--cloudevents-type",
        "flight.landed",
        "--partition",
        "0",
    )
    assert publish(server, tmp_path, "--file", file, *options, "--cloudevents-subject-field", "plane")[0] == 0

    first = messages(server, "0")[0]
    wanted = {
        "specversion": "1.0",
        "source": "/air",
        "type": "flight.landed",
        "subject": "N0",
        "id": "tidemark-publish-events.parquet-1",
    }
    if mode == "binary":
        found = {name.decode(): value.decode() for name, value in first.application_properties.items()}
        assert found == {f"cloudEvents:{name}": value for name, value in wanted.items()}
        assert first.properties.content_type == b"application/json"
        assert json.loads(b"".join(first.data)) == ROWS[0]
    else:
        assert first.properties.content_type == b"application/cloudevents+json; charset=utf-8"
        found = json.loads(b"".join(first.data))
        assert found == {**wanted, "datacontenttype": "application/json", "data": ROWS[0]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cloudevents", "binary"), "--cloudevents needs --cloudevents-source and --cloudevents-type"),
        (("--cloudevents-type", "x"), "need --cloudevents, binary or structured"),
        (("--schema-group", "x"), "need --schema-registry"),
        (("--schema-registry", "SchemaRegistry", "--schema-group", "x"), "needs --schema FILE"),
        (("--schema-registry", "SchemaRegistry"), "needs --schema-group"),
    ],
)
def test_options_that_do_not_go_together_are_refused(server, tmp_path, options, words):
    (tmp_path / "a.jsonl").write_text("{}")
    status, told = publish(server, tmp_path, "--file", tmp_path / "a.jsonl", *options)
    assert status == 2
    assert words in told
