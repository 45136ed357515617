"""Telemetry records land whole, by hour, once each; a folder that is away costs nothing but waiting."""

import asyncio
import gzip
import json
import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest
from azure.storage.blob import BlobServiceClient

from consumer.config import read_config
from consumer.running.assembly import Parts, reporter
from consumer.telemetry.landing import Landing
from consumer.telemetry.records import CheckpointRecord
from tidemark.foundation.errors import SettingsError

HOUR = datetime(2026, 11, 21, 8, 59, 50, tzinfo=UTC).timestamp()


def record(at, number=0):
    return CheckpointRecord(
        at=at,
        consumer="flights",
        instance="vm-1",
        hub="hub",
        consumer_group="$Default",
        partition="0",
        sequence_number=number,
        offset=str(number),
        epoch=1,
        left=0,
    )


def landed(folder):
    """Sequence numbers by relative path of each file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): [
            json.loads(text)["sequence_number"] for text in path.read_text().splitlines()
        ]
        for path in files
    }


def test_records_land_by_the_hour_of_their_own_time(tmp_path):
    landing = Landing(str(tmp_path), "vm/1", clock=lambda: HOUR)
    for number, at in enumerate((HOUR, HOUR + 5, HOUR + 10, HOUR + 15)):
        landing.add(record(at, number))
    landing.land()
    landing.land()

    first = int(HOUR * 1000)
    assert landed(tmp_path) == {
        f"date=2026-11-21/hour=08/vm_1-{first}.jsonl": [0, 1],
        f"date=2026-11-21/hour=09/vm_1-{first + 1}.jsonl": [2, 3],
    }


def test_a_file_appears_whole_and_is_not_touched_again(tmp_path, monkeypatch):
    landing = Landing(str(tmp_path), "vm", clock=lambda: HOUR)
    seen = []
    replace = os.replace

    def watched(source, target):
        seen.append((Path(source).name[0], Path(source).stat().st_size, Path(target).exists()))
        replace(source, target)

    monkeypatch.setattr("os.replace", watched)
    landing.add(record(HOUR, 1))
    landing.land()
    landing.add(record(HOUR, 2))
    landing.land()

    size = len(next(tmp_path.rglob("*.jsonl")).read_bytes())
    assert seen == [(".", size, False), (".", size, False)]  # readers skip names that begin with a dot
    assert list(landed(tmp_path).values()) == [[1], [2]]


def test_records_wait_for_a_folder_that_is_away_and_land_once_each(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tidemark.consumer")
    (tmp_path / "folder").write_text("a file where the folder should be")
    landing = Landing(str(tmp_path / "folder"), "vm", clock=lambda: HOUR)
    for number in range(3):
        landing.add(record(HOUR, number))
        landing.land()
    assert len(caplog.messages) == 1
    (tmp_path / "folder").unlink()
    landing.land()

    assert list(landed(tmp_path / "folder").values()) == [[0], [1], [2]]
    assert caplog.messages[-1].endswith("telemetry records land again, dropped: 0")


def test_of_too_many_records_the_oldest_are_dropped_and_counted(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "tidemark.consumer")
    monkeypatch.setattr("consumer.telemetry.landing.KEPT", 4)
    (tmp_path / "folder").write_text("")
    landing = Landing(str(tmp_path / "folder"), "vm", clock=lambda: HOUR)
    for number in range(6):
        landing.add(record(HOUR, number))
        landing.land()
    (tmp_path / "folder").unlink()
    landing.land()

    assert list(landed(tmp_path / "folder").values()) == [[2], [3], [4], [5]]
    assert caplog.messages[-1].endswith("dropped: 2")


def test_a_folder_of_another_kind_gets_compressed_files():
    landing = Landing("memory://telemetry-test", "vm", clock=lambda: HOUR)
    landing.add(record(HOUR, 7))
    landing.land()

    system = fsspec.filesystem("memory")
    [path] = system.find("/telemetry-test")
    assert path.endswith(".jsonl.gz")
    assert json.loads(gzip.decompress(system.cat_file(path)))["sequence_number"] == 7


async def test_closing_lands_what_is_left(tmp_path):
    landing = Landing(str(tmp_path), "vm", rotate=3600.0)
    landing.start()
    landing.add(record(HOUR, 1))
    await landing.aclose(asyncio.get_running_loop().time() + 10)

    assert list(landed(tmp_path).values()) == [[1]]


async def test_closing_does_not_wait_longer_than_its_deadline(tmp_path, caplog, monkeypatch):
    release = threading.Event()
    landing = Landing(str(tmp_path), "vm", rotate=3600.0)
    monkeypatch.setattr(landing, "_write", lambda _: release.wait(30))
    landing.start()
    landing.add(record(HOUR, 1))
    await landing.aclose(asyncio.get_running_loop().time() + 0.05)
    release.set()
    landing._thread.join()

    assert caplog.messages[-1].endswith("1 telemetry record did not land in time")


def test_an_unknown_kind_of_folder_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"CONSUMER_TELEMETRY_FOLDER is 'nosuch://x'.*accepted: a local"):
        Landing("nosuch://x", "vm")


@pytest.mark.wire
def test_a_data_lake_folder_is_written_through_its_own_client(azurite):
    """Azurite has no hierarchical namespace; the client and its blobs are the same."""
    with BlobServiceClient.from_connection_string(azurite) as service:
        service.create_container("telemetry")
        landing = Landing(
            "abfss://telemetry@devstoreaccount1.dfs.core.windows.net/raw",
            "vm",
            options={"connection_string": azurite},
            clock=lambda: HOUR,
        )
        landing.add(record(HOUR, 7))
        landing.land()
        container = service.get_container_client("telemetry")
        [name] = container.list_blob_names()
        data = container.download_blob(name).readall()

    assert name == f"raw/date=2026-11-21/hour=08/vm-{int(HOUR * 1000)}.jsonl.gz"
    assert json.loads(gzip.decompress(data))["sequence_number"] == 7


MALFORMED = {"AzureWebJobsStorage": "AccountName=a;AccountKey=QUJD;x"}


@pytest.mark.parametrize(
    ("more", "seconds"), [({}, 10.0), ({"CONSUMER_TELEMETRY_LAND": "2s"}, 2.0), (MALFORMED, 10.0)]
)
def test_records_land_every_ten_seconds_or_as_set_whatever_becomes_of_the_tables(tmp_path, more, seconds):
    settings = {
        "EVENTHUB_NAME": "hub",
        "EventHubConnection": "Endpoint=sb://h.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=a2V5",
        "COSMOS_DATABASE": "db",
        "COSMOS_CONTAINER": "c",
        "CONSUMER_TELEMETRY_FOLDER": str(tmp_path),
        **more,
    }
    parts = Parts(read_config(settings), settings)

    made = reporter(parts, "vm", lambda: None, {})

    assert made.landing._rotate == seconds
