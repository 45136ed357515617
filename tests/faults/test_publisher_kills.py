"""SIGKILL to real publishing processes while acknowledgements are being lost: what is stored afterwards, and how often."""

import asyncio
import fcntl
import os
import random
import signal
import sys
import zlib
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from devstack.event_hubs.storage.partition_keys import partition_of
from devstack.servers.faults import Fault
from tests.support.publisher import read
from tests.support.servers.event_hubs import HUB, running_server
from tests.support.waiting import until

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
SET = 10
KILLS = int(os.environ.get("TORTURE_KILLS", "50"))
TROUBLES = [
    "drop_ack",
    "drop_ack_and_link",
    "drop_ack_and_connection",
    "no_answer",
    "drop_connection",
    "detach",
]

COMMAND = "import typer; from tidemark.publisher.cli.publish import publish; typer.run(publish)"


@pytest.fixture
async def server(tmp_path):
    async with running_server(tmp_path, partitions=PARTITIONS) as server:
        yield server


@asynccontextmanager
async def process(server, folder, code, *arguments):
    log = folder / "said.log"
    with log.open("ab") as said:
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, *map(str, arguments)),
            cwd=ROOT,
            env={**os.environ, "EventHubConnection": server.connection_string()},
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
        )
    running.said = log.read_text
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


def trouble(server, rng, count=6):
    """Answers get lost now and then, from now on."""
    server.faults.clear()
    for _ in range(count):
        server.faults.add(Fault("send:*", "latency", count=rng.randint(1, 4), seconds=0.005))
        server.faults.add(Fault("send:*", rng.choice(TROUBLES)))


async def kill_at_random(server, running, rng, *, most):
    """After a random number of further events, at a random moment."""
    wanted = server.event_count(HUB) + rng.randint(0, most)
    await until(
        lambda: server.event_count(HUB) > wanted or running.returncode is not None,
        within=150.0,
        what=lambda: running.said()[-3000:],
    )
    await asyncio.sleep(rng.random() * 0.03)
    assert running.returncode is None, running.said()[-3000:]
    running.kill()
    await running.wait()


def stored(server, partition):
    return [read(one.message)[0] for one in server.events(HUB, partition)]


def by_partition(lines):
    found = {str(number): [] for number in range(PARTITIONS)}
    for line in lines:
        found[str(partition_of(msgspec.json.decode(line)["carrier"], PARTITIONS))].append(line)
    return found


RUNS = [
    pytest.param(3, 1),
    *(
        pytest.param(10, seed, marks=[pytest.mark.torture, pytest.mark.timeout(1800)])
        for seed in range(2, 2 + KILLS // 20)  # half of them here, half below
    ),
]


@pytest.mark.parametrize(("kills", "seed"), RUNS)
async def test_a_file_published_with_saved_state_is_stored_exactly_once_whatever_is_killed(
    server, tmp_path, kills, seed
):
    rng = random.Random(seed)
    carriers = [f"carrier {number}" for number in range(7)]
    lines = [
        msgspec.json.encode({"id": number, "carrier": carriers[zlib.crc32(b"%d" % number) % 7]}).decode()
        for number in range(600 * (kills + 1))
    ]
    file, state = tmp_path / "events.jsonl", tmp_path / "state.json"
    file.write_text("\n".join(lines))
    arguments = [
        *("--hub", HUB, "--file", file, "--partition-key", "carrier", "--idempotent", "--state", state),
        *("--max-events", SET, "--timeout", 0.5, "--root", tmp_path),
    ]
    for _ in range(kills):
        async with process(server, tmp_path, COMMAND, *arguments) as running:
            trouble(server, rng)
            await kill_at_random(server, running, rng, most=500)
    server.faults.clear()

    async with process(server, tmp_path, COMMAND, *arguments) as running:
        async with asyncio.timeout(120):
            assert await running.wait() == 0, running.said()[-3000:]

    for partition, wanted in by_partition(lines).items():
        found = stored(server, partition)
        assert len(found) - len(set(found)) == 0, "doubled"
        assert set(wanted) - set(found) == set(), "lost"
        assert found == wanted, "out of order"
    dropped = sum(server.publishers(HUB, str(id_)).counts["events_dropped"] for id_ in range(PARTITIONS))
    assert dropped > 0, "no acknowledgement was lost: the test tested nothing"


async def stop_outside_a_save(running, state):
    """Within a save it holds the lock of the file, and the others wait for it: see docs/publishing.md."""
    while True:
        running.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.02)  # until the kernel has stopped all threads
        if not is_locked(Path(f"{state}.lock")):
            return
        running.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.003)


def is_locked(path):
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def test_a_command_that_was_stopped_for_long_is_fenced_by_the_one_that_went_on_and_told_so(
    server, tmp_path
):
    """SIGSTOP, and SIGCONT once the second has ended: neither loses or doubles a line."""
    lines = [
        msgspec.json.encode({"id": number, "carrier": f"c{number % 7}"}).decode() for number in range(3000)
    ]
    file, state = tmp_path / "events.jsonl", tmp_path / "state.json"
    file.write_text("\n".join(lines))
    arguments = [
        *("--hub", HUB, "--file", file, "--partition-key", "carrier", "--idempotent", "--state", state),
        *("--max-events", SET, "--timeout", 5, "--root", tmp_path),
    ]
    async with process(server, tmp_path, COMMAND, *arguments, "--rate", 600) as first:
        await until(lambda: server.event_count(HUB) > 300, within=60.0, what=first.said)
        await stop_outside_a_save(first, state)
        async with process(server, tmp_path, COMMAND, *arguments) as second, asyncio.timeout(60):
            assert await second.wait() == 0, second.said()[-3000:]
        first.send_signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            assert await first.wait() == 3, first.said()[-3000:]
        told = " ".join(first.said().split())

    assert f"it was published by process {first.pid} on " in told, told
    assert f"taken its saved state over: process {second.pid} on " in told, told
    for partition, wanted in by_partition(lines).items():
        assert stored(server, partition) == wanted


WITHOUT_STATE = """
import asyncio, sys
from azure.eventhub import EventData
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.model import RetryPolicy

async def main(connection, hub, first, last, size):
    retry = RetryPolicy(max_attempts=20, attempt_timeout=0.5, delay=0.05, max_delay=0.5)
    async with IdempotentProducer.from_connection_string(connection, hub, retry=retry) as producer:
        for start in range(first, last, size):
            events = [EventData(f"e{number}") for number in range(start, min(last, start + size))]
            await producer.send_events(events, partition_id="0")
            print(start + len(events), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
"""


@pytest.mark.parametrize(("kills", "seed"), RUNS)
async def test_without_saved_state_a_kill_loses_nothing_and_doubles_at_most_the_last_set(
    server, tmp_path, kills, seed
):
    """The application keeps what was acknowledged; here, this test does."""
    rng = random.Random(seed)
    total, acknowledged, doubled = 400 * (kills + 1), 0, []
    for kill in range(kills + 1):
        before = set(stored(server, "0"))
        arguments = [server.connection_string(), HUB, acknowledged, total, SET]
        async with process(server, tmp_path, WITHOUT_STATE, *arguments) as running:
            if kill < kills:
                trouble(server, rng)
                await kill_at_random(server, running, rng, most=300)
            else:
                server.faults.clear()
            said = (await running.stdout.read()).split()
        counts = Counter(stored(server, "0"))
        doubled.append(sum(counts[one] - 1 for one in before) - sum(doubled))
        acknowledged = max([acknowledged, *map(int, said)])

    found = stored(server, "0")
    assert set(found) == {f"e{number}" for number in range(total)}
    assert max(doubled) <= SET
    assert list(dict.fromkeys(found)) == [f"e{number}" for number in range(total)], "out of order"
