"""SIGKILL to real `tidemark send` processes at random moments: what arrived, how often, and what the resume file says."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from devstack.servers.faults import Fault
from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.support.servers.threaded import running_in_thread
from tidemark.publisher.cli.resume_file import read_resume_file

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

QUEUE = "killed"
BATCH = 4500  # lines; the most that one takes
COMMAND = "import typer; from tidemark.publisher.cli.send import send; typer.run(send)"


@pytest.fixture
def server(tmp_path):
    with running_in_thread(lambda: ServiceBusServer(ca_dir=tmp_path)) as running:
        running.call(lambda: running.server.create_queue(QUEUE, QueueSettings(limits=STANDARD)))
        yield running


def arrived(server):
    """How often each line did."""
    found = server.call(lambda: [m.sent.bare for m in server.server.broker.queues[QUEUE].peek(0, 1_000_000)])
    return Counter(int(bare.rpartition(b"line ")[2].split()[0]) for bare in found)


def start(server, folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "--queue", QUEUE, "--root", str(folder), *map(str, arguments)],
        env={**os.environ, "ServiceBusConnection": server.server.connection_string},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(server, folder, *arguments):
    process = start(server, folder, *arguments)
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, " ".join(said.split())


def kill_at_random(server, process, rng):
    """After a random number of further batches, at a random moment: before, during or after a transfer."""
    wanted = sum(arrived(server).values()) + rng.choice([0, 1, BATCH, 2 * BATCH])
    deadline = time.monotonic() + 100
    while sum(arrived(server).values()) < wanted and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(rng.random() * 0.2)
    process.kill()
    process.communicate()


RUNS = [
    pytest.param(3, 1),
    *(pytest.param(12, seed, marks=[pytest.mark.torture, pytest.mark.timeout(1800)]) for seed in range(2, 6)),
]


@pytest.mark.parametrize(("kills", "seed"), RUNS)
def test_a_file_that_is_sent_is_never_doubled_and_what_is_not_known_is_named(server, tmp_path, kills, seed):
    rng, total = random.Random(seed), 30_000 * (1 + kills // 6)
    file, left = tmp_path / "lines.txt", tmp_path / "lines.txt.resume.json"
    file.write_text("".join(f"line {n} \n" for n in range(1, total + 1)))
    server.call(lambda: server.server.faults.add(Fault(f"send:{QUEUE}", "latency", seconds=0.1, count=None)))
    for kill in range(1, kills + 1):
        resume = ("--resume", left) if left.exists() else ()
        process = start(server, tmp_path, "-f", file, *resume)
        try:
            kill_at_random(server, process, rng)
        finally:
            process.kill()
        found = arrived(server)
        assert not [line for line, times in found.items() if times > 1], "doubled"
        if left.exists() and left.stat().st_size:  # killed before it came to that, it leaves none
            ledger = read_resume_file(left.read_bytes(), "left")
            assert set(ledger.done) <= set(found), "said to be sent, and was not"
            assert set(found) - set(ledger.done) <= ledger.unknown, "not said to be sent, and was"
            assert len(ledger.unknown) <= kill * BATCH
        else:
            assert not found

    server.call(server.server.faults.clear)
    status, said = run(server, tmp_path, "-f", file, "--resume", left)
    found = arrived(server)
    assert max(found.values()) == 1, "doubled"
    if status == 3:
        assert f"--resume {left} --resend-unknown" in said
        unknown = read_resume_file(left.read_bytes(), "left").unknown
        assert set(range(1, total + 1)) - set(found) <= unknown
        status, said = run(server, tmp_path, "-f", file, "--resume", left, "--resend-unknown")
        assert {line for line, times in arrived(server).items() if times > 1} <= unknown
    assert status == 0, said
    assert set(arrived(server)) == set(range(1, total + 1)), "lost"
    assert not left.exists()


def test_a_run_that_was_killed_is_not_begun_anew_by_mistake(server, tmp_path):
    file, left = tmp_path / "lines.txt", tmp_path / "lines.txt.resume.json"
    file.write_text("".join(f"line {n} \n" for n in range(1, 20_001)))
    server.call(lambda: server.server.faults.add(Fault(f"send:{QUEUE}", "latency", seconds=0.5, count=None)))
    process = start(server, tmp_path, "-f", file)
    try:
        deadline = time.monotonic() + 100
        while not arrived(server) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        status, said = run(server, tmp_path, "-f", file)
        assert (status, "is in use by another tidemark send" in said) == (2, True), said
    finally:
        process.kill()
        process.communicate()
    status, said = run(server, tmp_path, "-f", file)

    assert status == 2
    assert (
        f"{left} is of a run that did not send everything: go on with --resume {left}, or remove the file"
        in said
    )
    assert max(arrived(server).values()) == 1
