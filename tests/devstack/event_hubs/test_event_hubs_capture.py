"""What consumers of the local Event Hubs receive is what the files of its capture hold."""

import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime

import aiohttp
import fastavro
import pytest
from azure.eventhub import EventData

from devstack.event_hubs import CaptureSettings, EventHubsServer
from devstack.event_hubs.storage.capture import enqueued_time_utc
from devstack.processes.child import free_ports
from tests.support.servers.event_hubs import HUB, producing, receiving, running_server
from tests.support.waiting import until

pytestmark = pytest.mark.wire


def records(folder):
    """Partition -> the records of its files, in order."""
    found = {}
    for path in sorted(folder.rglob("*.avro")):
        with path.open("rb") as file:
            found.setdefault(path.relative_to(folder).parts[2], []).extend(fastavro.reader(file))
    return found


def as_received(event):
    return {
        "SequenceNumber": event.sequence_number,
        "Offset": event.offset,
        "EnqueuedTimeUtc": enqueued_time_utc(event.enqueued_time),
        "SystemProperties": {"x-opt-partition-key": event.partition_key.decode()}
        if event.partition_key
        else {},
        "Properties": {key.decode(): text(value) for key, value in (event.properties or {}).items()},
        "Body": b"".join(event.body),
    }


def text(value):
    return value.decode() if isinstance(value, bytes) else value


async def send(server, count):
    async with producing(server) as producer:
        for number in range(count):
            event = EventData(f"event {number}".encode() * (number % 7))
            event.properties = {"number": number, "half": number / 2, "name": f"n{number}"}
            options = [{"partition_id": "1"}, {"partition_key": f"key {number % 3}"}][number % 2]
            await producer.send_batch([event], **options)


async def test_the_files_hold_what_a_consumer_receives(tmp_path):
    settings = CaptureSettings(tmp_path / "capture", every_seconds=1, every_bytes=200)
    async with running_server(tmp_path, capture=settings) as server:
        await send(server, 40)
        async with receiving(server, partition=None) as received:
            await received.take(40)
        files = await server.flush_capture()
        assert set(files) <= set(server.capture_files)

    received_by_partition = {}
    for partition, event in received.events:
        received_by_partition.setdefault(partition, []).append(as_received(event))
    assert records(settings.folder) == received_by_partition
    assert sum(map(len, received_by_partition.values())) == 40


async def test_stopping_the_server_finishes_the_files(tmp_path):
    settings = CaptureSettings(tmp_path / "capture")
    async with running_server(tmp_path, capture=settings) as server:
        server.append(HUB, "0", [f"event {number}" for number in range(5000)])

    held = records(settings.folder)["0"]
    assert [record["Body"] for record in held] == [f"event {number}".encode() for number in range(5000)]
    assert list(settings.folder.rglob("*.partial")) == []


async def test_a_test_in_another_process_may_end_the_windows(tmp_path):
    settings = CaptureSettings(tmp_path / "capture")
    async with running_server(tmp_path, capture=settings) as server, aiohttp.ClientSession() as http:
        server.append(HUB, "0", ["one"])
        async with http.post(f"{server.control_url}/control", json={"call": "FlushCapture"}) as response:
            assert response.status == 200
            [path] = await response.json()

    assert datetime.now(UTC).strftime("/local/flights/0/%Y/") in path
    assert list(records(settings.folder)) == ["0"]


async def test_without_capture_there_is_nothing_to_flush(tmp_path):
    async with running_server(tmp_path) as server, aiohttp.ClientSession() as http:
        async with http.post(f"{server.control_url}/control", json={"call": "FlushCapture"}) as response:
            assert response.status == 400
            assert "no CaptureSettings" in (await response.json())["error"]
        assert server.capture_files == []


async def test_a_folder_that_cannot_be_written_fails_the_server_aloud(tmp_path):
    (tmp_path / "capture").write_text("a file where the folder should be")
    server = EventHubsServer(ca_dir=tmp_path, capture=CaptureSettings(tmp_path / "capture"))
    server.create_hub(HUB, 1)
    await server.start()
    server.append(HUB, "0", ["event"])

    with pytest.raises(OSError, match="capture"):
        await server.stop()


async def test_a_server_that_is_killed_captures_the_rest_when_it_comes_back(tmp_path):
    [port] = free_ports(1)
    command = [
        *(sys.executable, "-m", "devstack.event_hubs", "--port", str(port), "--hub", f"{HUB}:1"),
        *("--data", str(tmp_path / "data"), "--capture", str(tmp_path / "capture"), "--capture-seconds", "2"),
    ]
    sent = 0
    address = EventHubsServer(ca_dir=tmp_path, port=port)
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            await asyncio.wait_for(process.stdout.readline(), 30)
            async with producing(address) as producer:
                for _ in range(3):
                    seen = False
                    while not seen:  # a window may have ended before the look: the next event opens one
                        await producer.send_batch([EventData(f"event {sent + n}") for n in range(4)])
                        sent += 4
                        with contextlib.suppress(AssertionError):
                            await until(lambda: any((tmp_path / "capture").rglob("*.partial")), within=1.0)
                            seen = True
        finally:
            process.kill()
            await process.wait()
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=os.environ)
    await asyncio.wait_for(process.stdout.readline(), 30)
    process.terminate()
    await process.wait()

    held = [record["SequenceNumber"] for record in records(tmp_path / "capture")["0"]]
    assert sorted(set(held)) == list(range(sent))
    assert len(held) == sent
