"""Files that Spark opens and Python decodes: the same rows, and the same complaints, as where Python opens them."""

import json
from datetime import timedelta

import msgspec
import pytest
from pyspark.sql import functions as F

from spark_jobs.platform.classic import copy_with_spark
from spark_jobs.platform.failures import input_errors
from spark_jobs.schemas import APP_EVENTS
from spark_jobs.sources.capture import capture
from spark_jobs.sources.capture.capture import read_capture
from spark_jobs.sources.files.input_files import Quarantine
from spark_jobs.sources.files.path_times import FileFilter
from spark_jobs.sources.files.spark_files import folder_for_python, url_for_spark
from spark_jobs.sources.records import record_files
from spark_jobs.sources.records.app_insights import read_app_insights
from spark_jobs.sources.records.telemetry import read_consumer_telemetry
from tests.spark.test_source_capture import events, place
from tests.support.servers.capture_files import START
from tests.unit.spark_jobs.sources.test_source_capture import avro
from tests.unit.spark_jobs.sources.test_source_records import CHECKPOINT
from tidemark.analysis.errors import InputError


@pytest.fixture
def elsewhere(monkeypatch):
    """As though this machine's folders were in a lake: Spark opens them."""
    for module in (capture, record_files):
        monkeypatch.setattr(module, "url_for_spark", lambda _spark, path, _storage: f"file:{path}")


def test_local_folders_and_what_spark_does_not_know_are_pythons(spark, tmp_path):
    assert url_for_spark(spark, str(tmp_path), None) is None
    assert url_for_spark(spark, "abfss://c@a.dfs.core.windows.net/x", None) is None
    assert folder_for_python(spark, f"file://{tmp_path}/a b") == f"{tmp_path}/a b"


def test_capture_files_are_decoded_and_bad_ones_set_aside(spark, tmp_path, elsewhere):
    for minute in range(4):
        place(tmp_path / "in", minute % 2, minute, avro(events(minute * 10, 10)))
    place(tmp_path / "in", 0, 9, avro(events(90, 10))[:-9])
    with (
        pytest.raises(InputError, match=r"the capture file '.*' cannot be read: the file ends"),
        input_errors(),
    ):
        read_capture(spark, str(tmp_path / "in")).collect()

    rows = read_capture(
        spark,
        str(tmp_path / "in"),
        quarantine=str(tmp_path / "aside"),
        columns=["partition", "sequence_number", "hub"],
    ).collect()

    assert sorted((row.partition, row.sequence_number) for row in rows) == sorted(
        (str(minute % 2), number) for minute in range(4) for number in range(minute * 10, minute * 10 + 10)
    )
    assert {row.hub for row in rows} == {"orders"}
    [reason] = (tmp_path / "aside").rglob("*.reason.json")
    assert json.loads(reason.read_text())["file"].endswith(".avro")
    with pytest.raises(InputError, match="lies within the input"):
        Quarantine("memory://in/aside", "memory://in/")


def test_records_are_read_and_bad_ones_set_aside(spark, tmp_path, elsewhere):
    good = {"timestamp": "2026-11-20T08:00:00Z", "name": "E", "itemCount": 1}
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "A.JSONL").write_text(json.dumps(good) + "\n{broken\n")
    (tmp_path / "in" / "b.json").write_text(json.dumps([good, good]))
    (tmp_path / "in" / "notes.txt").write_text("no input")
    (tmp_path / "in" / "_hidden.json").write_text("no input")

    frame = read_app_insights(spark, str(tmp_path / "in"), quarantine=str(tmp_path / "aside"))

    assert frame.columns == APP_EVENTS.names
    assert frame.agg(F.count("name")).collect()[0][0] == 3
    assert [file.read_text() for file in (tmp_path / "aside").rglob("*.rejects")] == ["{broken\n"]
    with pytest.raises(InputError, match=r"there are no files .*\.jsonl"):
        (tmp_path / "none").mkdir()
        read_app_insights(spark, str(tmp_path / "none"))


def test_of_a_stretch_of_time_nothing_else_is_opened(spark, tmp_path, elsewhere):
    """Files of other times could not be read, and no quarantine is given: whoever opened them would be told."""
    day = START.replace(hour=0)
    for hour in (5, 8, 20):
        data = avro(events(hour, 1)) if hour == 8 else b"broken"
        file = tmp_path / f"lake/ns/orders/0/2026/11/21/{hour:02d}/00/00.avro"
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        folder = tmp_path / f"telemetry/date=2026-11-21/hour={hour:02d}"
        folder.mkdir(parents=True)
        (folder / "a.jsonl").write_bytes(msgspec.json.encode(CHECKPOINT) if hour == 8 else b"{broken")
    wanted = FileFilter(day + timedelta(hours=8), day + timedelta(hours=9), "Orders", lag=3600.0)

    assert read_capture(spark, str(tmp_path / "lake"), wanted=wanted).count() == 1
    assert read_capture(spark, str(tmp_path / "lake" / "ns" / "orders"), wanted=wanted).count() == 1
    exact = FileFilter(wanted.since, wanted.until)
    assert read_consumer_telemetry(spark, str(tmp_path / "telemetry"), wanted=exact).count() == 1
    with pytest.raises(InputError, match="cannot be read"), input_errors():
        read_capture(spark, str(tmp_path / "lake"), columns=["offset"]).collect()


def test_spark_copies_a_file_whose_path_has_spaces_and_percent_signs(spark, tmp_path) -> None:
    folder = tmp_path / "a b 50%25"
    folder.mkdir()
    (folder / "page.html").write_text("a page")

    assert copy_with_spark(spark, folder / "page.html", f"file:{tmp_path}/out 1/page.html")

    assert (tmp_path / "out 1" / "page.html").read_text() == "a page"
