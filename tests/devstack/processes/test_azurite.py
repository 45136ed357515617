"""Azurite starts, serves the unmodified storage SDKs, and leaves nothing behind."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueClient

from devstack.processes.azurite import Azurite
from devstack.processes.child import ChildProcess, ProcessError, free_ports, port_is_free

pytestmark = pytest.mark.wire


def wait_until(condition, timeout_s=15.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def process_exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie only waits for its reaper


def test_the_session_fixture_serves_the_queue_blob_and_table_sdks(azurite):
    with QueueClient.from_connection_string(azurite, "azurite-selftest") as queue:
        queue.create_queue()
        queue.send_message("over the wire")
        assert [message.content for message in queue.receive_messages()] == ["over the wire"]
        queue.delete_queue()
    with BlobServiceClient.from_connection_string(azurite) as blobs:
        assert [c.name for c in blobs.list_containers(name_starts_with="azurite-selftest")] == []
    with TableServiceClient.from_connection_string(azurite) as tables:
        tables.create_table("azuriteselftest")
        assert "azuriteselftest" in {table.name for table in tables.list_tables()}
        tables.delete_table("azuriteselftest")


async def test_data_in_a_location_outlives_the_process_and_the_ports_are_released(tmp_path):
    location = tmp_path / "storage"
    base = free_ports(3)[0]
    async with Azurite(base, location) as first:
        pid = first.pid
        assert {"blob": base, "queue": base + 1, "table": base + 2} == first.ports
        with QueueClient.from_connection_string(first.connection_string, "kept") as queue:
            queue.create_queue()
            queue.send_message("still here")

    assert not process_exists(pid)
    assert not first.running
    assert all(port_is_free(base + offset) for offset in range(3))

    async with Azurite(base, location) as second:
        with QueueClient.from_connection_string(second.connection_string, "kept") as queue:
            assert [message.content for message in queue.peek_messages()] == ["still here"]


async def test_it_can_be_started_by_blocking_even_while_a_loop_runs():
    with Azurite().running_blocking() as azurite:
        pid = azurite.pid
        assert process_exists(pid)

    assert not process_exists(pid)


async def test_a_start_that_is_cancelled_leaves_nothing_running(monkeypatch):
    started, pids = asyncio.Event(), []
    start = ChildProcess.start
    monkeypatch.setattr(
        ChildProcess, "start", lambda self: (start(self), pids.append(self.pid), started.set())
    )
    task = asyncio.create_task(Azurite().start())
    await started.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not process_exists(pids[0])


async def test_all_who_stop_a_process_wait_until_it_is_gone():
    process = ChildProcess("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
    process.start()
    pid = process.pid

    found = await asyncio.gather(*(process.stop_async() for _ in range(8)))

    assert sorted(found, key=str) == [-signal.SIGTERM, *[None] * 7]
    assert not process_exists(pid)


def test_free_ports_are_in_a_row_and_below_those_that_systems_give_to_clients():
    ports = free_ports(3)
    assert list(ports) == [ports[0], ports[0] + 1, ports[0] + 2]
    assert all(map(port_is_free, ports))
    assert ports[-1] < 32_768


def test_where_no_ports_are_free_the_range_is_named(monkeypatch):
    monkeypatch.setattr("devstack.processes.child.port_is_free", lambda port: port % 3 != 0)
    assert free_ports(2)[0] % 3 == 1
    with pytest.raises(ProcessError, match="no 3 free ports in a row from 20000 to 32767"):
        free_ports(3)


async def test_a_port_in_use_is_named_before_anything_is_started():
    base = free_ports(3)[0]
    with socket.create_server(("127.0.0.1", base + 1)):
        azurite = Azurite(base)
        with pytest.raises(
            ProcessError, match=rf"port {base + 1}, wanted for Azurite's queue service, is in use"
        ):
            await azurite.start()
    assert not azurite.running


async def test_a_free_port_that_somebody_takes_meanwhile_is_replaced(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offers = [[*free_ports(2), taken.getsockname()[1]]]
        # Other tests run beside this one: what is free now may be taken, too.
        monkeypatch.setattr(
            "devstack.processes.azurite.free_ports",
            lambda count: offers.pop() if offers else free_ports(count),
        )

        async with Azurite() as azurite:
            assert azurite.running
            assert taken.getsockname()[1] not in azurite.ports.values()


async def test_a_location_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    azurite = Azurite(location=tmp_path / "file" / "below")

    with pytest.raises(OSError, match="below"):
        await azurite.start()

    assert not azurite.running


def test_a_child_that_ends_at_once_is_reported_with_its_last_lines():
    child = ChildProcess("the child", [sys.executable, "-c", "print('cannot go on'); raise SystemExit(3)"])
    child.start()
    try:
        with pytest.raises(ProcessError, match=r"(?s)the child ended before it was ready.*cannot go on"):
            child.wait_until_ready(lambda: False, timeout_s=10)
    finally:
        child.stop()


def test_a_child_that_never_listens_is_reported_when_the_time_is_over():
    child = ChildProcess("the child", [sys.executable, "-c", "import time; time.sleep(60)"])
    child.start()
    try:
        with pytest.raises(ProcessError, match=r"was not ready within 0.1 s; it wrote nothing"):
            child.wait_until_ready(lambda: False, timeout_s=0.1)
    finally:
        child.stop()


def test_a_child_that_ignores_the_polite_signal_is_killed_after_the_grace():
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = ChildProcess("stubborn", [sys.executable, "-c", stubborn])
    child.start()
    pid = child.pid
    wait_until(lambda: "up" in child.output_tail())

    child.stop(grace_s=0.2)

    assert not process_exists(pid)
    child.stop()  # idempotent


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux only"
)
def test_a_child_ends_when_its_parent_is_killed():
    parent_code = (
        "import time, sys; from devstack.processes.child import ChildProcess\n"
        "child = ChildProcess('orphan', [sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "child.start(); print('child', child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(re.match(r"child (\d+)", parent.stdout.readline())[1])
        assert process_exists(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()

    wait_until(lambda: not process_exists(pid))
