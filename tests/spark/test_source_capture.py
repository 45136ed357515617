"""The data source "eventhubs_capture": what is in the files is in the frame or in the quarantine, once."""

import io
import json

import fastavro
import pytest

from spark_jobs.platform.failures import input_errors
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.capture import read_capture
from tests.support.servers.capture_files import SCHEMA, avro, place, record
from tidemark.analysis.errors import InputError


def events(first, count, **options):
    return [record(number, body=b"%d" % number, **options) for number in range(first, first + count)]


def ids(frame):
    return sorted((row.partition, row.sequence_number) for row in frame.collect())


def reasons(folder):
    return [json.loads(path.read_text()) for path in folder.rglob("*.reason.json")]


def test_rows_in_are_rows_out_and_rows_quarantined(spark, tmp_path):
    """Whole files, drifted, duplicate, empty, cut, damaged and zero-byte ones beside each other."""
    lake, aside = tmp_path / "lake", tmp_path / "aside"
    drifted = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "Region", "type": "string"}]}
    whole = avro(events(0, 100), block=2000)
    place(lake, 0, 0, whole)
    place(lake, 0, 5, whole)  # the same file again: its events come again
    place(lake, 1, 0, avro([{**event, "Region": "eu"} for event in events(0, 30)], schema=drifted))
    place(lake, 1, 5, avro([]))
    cut = place(lake, 2, 0, avro(events(0, 50), block=1000)[:-200])
    zero = place(lake, 2, 5, b"")
    damaged = bytearray(avro(events(50, 40), block=100_000, codec="deflate"))
    damaged[-60] ^= 0xFF
    wrong = place(lake, 3, 0, bytes(damaged))
    place(lake, 3, 5, avro(events(90, 10)))

    frame = read_capture(spark, str(lake), quarantine=str(aside))

    assert frame.schema == EVENTS
    expected = (
        [("0", n) for n in range(100)] * 2
        + [("1", n) for n in range(30)]
        + [("3", n) for n in range(90, 100)]
    )
    assert ids(frame) == sorted(expected)
    assert ids(frame) == sorted(expected)  # set aside again, once
    assert {reason["file"] for reason in reasons(aside)} == {str(cut), str(zero), str(wrong)}
    aside_events = sum(reason["events"] for reason in reasons(aside))
    assert len(expected) + aside_events == 100 * 2 + 30 + 50 + 40 + 10
    copies = sorted(path.read_bytes() for path in aside.rglob("*.avro"))
    assert copies == sorted([cut.read_bytes(), zero.read_bytes(), bytes(damaged)])


def test_values_are_those_that_fastavro_reads(spark, tmp_path):
    data = avro(
        [record(n, body=None if n % 5 == 0 else b"b%d" % n, properties={"n": n, "t": "x"}) for n in range(50)]
    )
    file = place(tmp_path, 7, 0, data)

    rows = read_capture(spark, str(tmp_path)).orderBy("sequence_number").collect()

    oracle = list(fastavro.reader(io.BytesIO(data)))
    assert [(row.hub, row.partition, row.file) for row in rows] == [("orders", "7", str(file))] * 50
    assert [row.body for row in rows] == [each["Body"] for each in oracle]
    assert [row.offset for row in rows] == [each["Offset"] for each in oracle]
    assert [row.properties for row in rows] == [
        {"n": str(each["Properties"]["n"]), "t": "x"} for each in oracle
    ]
    assert {row.enqueued_at.isoformat() for row in rows} == {"2026-11-21T08:00:00"}


def test_without_a_quarantine_a_corrupt_file_ends_the_query_by_its_name(spark, tmp_path):
    file = place(tmp_path, 0, 0, avro(events(0, 50))[:-9])

    story = f"^the capture file '{file}' cannot be read: the file ends at byte"
    with pytest.raises(InputError, match=story), input_errors():
        read_capture(spark, str(tmp_path)).collect()


def test_what_is_wrong_with_the_input_is_told_before_anything_is_read(spark, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        read_capture(spark, str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="there are no capture files"):
        read_capture(spark, str(tmp_path))
    place(tmp_path, 0, 0, avro(events(0, 5)))
    with pytest.raises(InputError, match="lies within the input"):
        read_capture(spark, str(tmp_path), quarantine=str(tmp_path / "aside"))
    with pytest.raises(InputError, match="columns name nothing; accepted: hub"):
        read_capture(spark, str(tmp_path), columns=["nothing"])
