"""The sources of telemetry, the scaling log and Application Insights: nothing is lost, bad records are set aside."""

import asyncio
import gzip
import json
from datetime import UTC

import msgspec
import pytest

from devstack.processes.azurite import Azurite
from scaling.log_entry import LogEntry, LogKind
from scaling.storage.decision_log import TableDecisionLog
from spark_jobs.schemas import APP_EVENTS, DECISIONS, TELEMETRY
from spark_jobs.sources.records.app_insights import read_app_insights
from spark_jobs.sources.records.telemetry import (
    read_consumer_telemetry,
    read_decisions,
    stream_consumer_telemetry,
)
from tests.unit.spark_jobs.sources.test_source_records import CHECKPOINT, CLASSIC, INTERVAL, WORKSPACE, entry
from tidemark.analysis.errors import InputError
from tidemark.foundation.azure.connections import table_service

AT = 1_763_712_000.125


def lines(*values):
    return b"".join(
        value if isinstance(value, bytes) else msgspec.json.encode(value) + b"\n" for value in values
    )


def land(root, name, data):
    file = root / "date=2025-11-21" / "hour=08" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def test_telemetry_in_is_telemetry_out_and_aside_batch_and_stream(spark, tmp_path):
    folder, aside = tmp_path / "telemetry", tmp_path / "aside"
    first = land(folder, "a-1.jsonl", lines(INTERVAL, CHECKPOINT, b"{cut\n", CHECKPOINT))
    second = land(folder, "b c-2.jsonl.gz", gzip.compress(lines(INTERVAL, b'{"kind": "new"}\n')))
    cut = land(folder, "c-3.jsonl.gz", gzip.compress(lines(*[INTERVAL] * 20))[:-30])
    land(folder, ".d-4.jsonl.tmp", b"{half")

    with pytest.raises(Exception, match=f"record 3 of '{first}' cannot be read: not a telemetry record"):
        read_consumer_telemetry(spark, str(folder)).collect()
    frame = read_consumer_telemetry(spark, str(folder), quarantine=str(aside))
    rows = sorted(frame.collect(), key=lambda row: (row.file, row.kind))

    assert frame.schema == TELEMETRY
    assert [(row.file, row.kind, row.left, row.received) for row in rows] == [
        (str(first), "checkpoint", 7, None),
        (str(first), "checkpoint", 7, None),
        (str(first), "interval", None, 100),
        (str(second), "interval", None, 100),
    ]
    assert rows[2].partitions[0].asDict() == msgspec.structs.asdict(INTERVAL.partitions[0])
    assert rows[2].at.timestamp() == pytest.approx(AT) or rows[2].at.microsecond == 125_000
    stories = {path.name: json.loads(path.read_text()) for path in aside.rglob("*.reason.json")}
    assert sorted(stories) == [
        f"{name}.reason.json" for name in ("a-1.jsonl.rejects", "b c-2.jsonl.gz.rejects", "c-3.jsonl.gz")
    ]
    assert [stories[name].get("records") for name in sorted(stories)] == [1, 1, None]
    assert next(aside.rglob("a-1.jsonl.rejects")).read_bytes() == b"{cut\n"
    assert next(aside.rglob("c-3.jsonl.gz")).read_bytes() == cut.read_bytes()

    cut.unlink()  # Spark's own reader of files knows no quarantine for a broken gzip: it fails
    stream = stream_consumer_telemetry(spark, str(folder), quarantine=str(tmp_path / "aside2"))
    query = (
        stream.writeStream.format("memory").queryName("telemetry_stream").trigger(availableNow=True).start()
    )
    query.awaitTermination()
    streamed = sorted(spark.table("telemetry_stream").collect(), key=lambda row: (row.file, row.kind))

    assert streamed == rows
    assert sum(path.read_bytes().count(b"\n") for path in (tmp_path / "aside2").rglob("*.rejects")) == 2


@pytest.fixture
def own_azurite():
    """An Azurite whose scaling log holds what this file's tests write, and nothing else."""
    with Azurite().running_blocking() as running:
        yield running.connection_string


def test_the_log_is_the_same_from_files_and_from_the_table(spark, tmp_path, own_azurite, monkeypatch):
    prefix = "SparkStorage"
    monkeypatch.setenv(prefix, own_azurite)
    entries = [
        entry(at=AT + index, target=f"plan {index % 3}", inputs=b"\x01" * 100_000 if index == 4 else None)
        for index in range(7)
    ]
    entries.append(LogEntry("plan 0", AT, LogKind.CONTROL, "c", "paused", "paused", by="me"))

    async def fill():
        log = TableDecisionLog({prefix: own_azurite}, prefix)
        await log.append(entries)
        await log.aclose()
        async with table_service({prefix: own_azurite}, prefix) as service:
            other = await service.create_table("ConsumerStats")
            await other.upsert_entity({"PartitionKey": "shop", "RowKey": "consumer-1"})

    asyncio.run(fill())
    (tmp_path / "log.json").write_bytes(msgspec.json.encode(entries[:5]))
    (tmp_path / "log.jsonl").write_bytes(lines(*entries[5:]))

    table, files = read_decisions(spark, f"table://{prefix}"), read_decisions(spark, str(tmp_path))
    read = sorted(table.collect(), key=lambda row: (row.at, row.kind))

    assert table.schema == files.schema == DECISIONS
    assert sorted(files.collect(), key=lambda row: (row.at, row.kind)) == read
    assert [row.target for row in read] == ["plan 0", *(f"plan {index % 3}" for index in range(7))]
    assert read[5].inputs == b"\x01" * 100_000
    late = read_decisions(spark, f"table://{prefix}", since=read[3].at.replace(tzinfo=UTC))
    assert sorted(late.collect(), key=lambda row: (row.at, row.kind)) == [
        row for row in read if row.at >= read[3].at
    ]
    with pytest.raises(Exception, match="there is no table 'Nothing'"):
        read_decisions(spark, f"table://{prefix}/Nothing").collect()
    with pytest.raises(Exception, match=r"'ConsumerStats' .* is no scaling log"):
        read_decisions(spark, f"table://{prefix}/ConsumerStats").collect()
    with pytest.raises(InputError, match="Elsewhere"):
        read_decisions(spark, "table://Elsewhere")


def test_exports_of_application_insights_in_any_form_are_events_or_aside(spark, tmp_path):
    exports, aside = tmp_path / "exports", tmp_path / "aside"
    exports.mkdir()
    (exports / "PT1H.json").write_bytes(lines(*[WORKSPACE] * 3, {**WORKSPACE, "ItemCount": None}))
    (exports / "classic.json.gz").write_bytes(gzip.compress(msgspec.json.encode([CLASSIC] * 2)))
    (exports / "broken.json").write_bytes(b'[{"name": ')
    (exports / "empty.jsonl").write_bytes(b"")

    frame = read_app_insights(spark, str(exports), quarantine=str(aside))
    rows = frame.collect()

    assert frame.schema == APP_EVENTS
    assert sorted(row.source for row in rows) == ["AppEvents"] * 3 + ["customEvents"] * 2
    assert {
        (row.item_count, row.dimensions["tenant"], row.measurements["EventXReceived_Count"]) for row in rows
    } == {(3, "eu", 120.0)}
    stories = {path.name: json.loads(path.read_text()) for path in aside.rglob("*.reason.json")}
    assert sorted(stories) == ["PT1H.json.rejects.reason.json", "broken.json.reason.json"]
    assert stories["PT1H.json.rejects.reason.json"]["records"] == 1
    with pytest.raises(InputError, match="there are no files for app_insights"):
        read_app_insights(spark, str(aside / "nothing").removesuffix("/nothing") + "/PT1H.json.rejects")
