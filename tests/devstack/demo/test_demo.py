"""The demo as a newcomer starts it, with less load and fewer records: it ends by itself, tells what happened, leaves
nothing.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from devstack.demo.streaming.run import Instance
from devstack.processes.child import ProcessError
from tidemark.__main__ import command_line as tidemark
from tidemark.foundation.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.wire, pytest.mark.timeout(1000)]


@pytest.fixture
def start():
    """Starts demos. What a failed test leaves of them is killed, or it would load the machine of the next ones: the
    children of a demo die with it.
    """
    with contextlib.ExitStack() as started:

        def start(folder, *options):
            demo = subprocess.Popen(
                [sys.executable, "-m", "devstack", "demo", "--folder", str(folder), *options],
                cwd=ROOT,
                env={**os.environ, "DEMO_UNDER_TEST": str(folder), "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            started.enter_context(demo)
            started.callback(demo.kill)
            return demo

        yield start


def left_behind(folder):
    """Processes that carry this test's mark in their environment."""
    mark = f"DEMO_UNDER_TEST={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue  # it ended, or is not ours
    return found


def still_left(folder):
    """What is left of a demo after ten seconds: Spark's Python workers end only once they see that Java has."""
    deadline = time.monotonic() + 10
    while (left := left_behind(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_the_demo_loses_nothing_scales_both_ways_and_leaves_plots(start, tmp_path):
    demo = start(tmp_path, "--seconds", "20", "--records", "3000")

    output, _ = demo.communicate(timeout=900)

    assert demo.returncode == 0, output
    assert "passed: nothing lost, scaled out and in" in output
    assert re.search(r"messages in +1100\b", output), output
    assert re.search(r"messages out +1100\b", output), output
    assert "0 lost" in output
    assert re.search(r"out \d -> \d+ .* messages/s expected within 90 s", output), output
    for rules in ("service_level", "fixed thresholds"):
        assert re.search(rf"│ {rules} +│ \d\.\d +│ [\d.]+ %: [\d,]+ of 1,100 +│ \$\d+ +│ \d+ ", output), (
            output
        )
    assert re.search(
        r"^service_level: \d+ % (more|fewer) instance-hours than fixed thresholds", output, re.MULTILINE
    ), output
    assert re.search(r"tidemark shadow says +too little seen", output), output
    assert "passed: every record is a document or a dead letter, none twice" in output
    assert re.search(r"records in the hub +3000\b", output), output
    assert re.search(r"documents +2980\b", output), output
    assert re.search(r"dead letters +20\b", output), output
    assert re.search(r"^lost +0 *$", output, re.MULTILINE), output
    assert re.search(r"^duplicates +0 *$", output, re.MULTILINE), output
    assert re.search(r"replayed +\d+ records", output), output
    assert re.search(r"telemetry +the consumers' records have [1-9]\d+ of \d+ writes", output), output
    assert re.search(r"throttled +[1-9]\d* operations answered 429", output), output
    assert re.search(r"consumer \d is killed: SIGKILL", output), output
    assert re.search(r"up 400 -> [\d,]{4,} RU/s .* latest (throttled|consumers) [\d.]+ > ", output), output
    assert re.search(
        r"passed: Reconciliation .*\n +3,000 events: 20 dead lettered, 2,980 written; 0 settled twice", output
    )
    assert "passed: Aggregation of the consumers' telemetry" in output
    for name in ("reconciliation", "telemetry-aggregation"):
        assert "<svg" in next(tmp_path.glob(f"*{name.partition('-')[0]}*.html")).read_text(), name
        data = tmp_path / "data" / name
        assert f"next: .venv/bin/tidemark runs {data} " in output, output
        runs = CliRunner().invoke(tidemark(), ["runs", str(data)])
        assert "passed" in runs.output, runs.output
    page = next(tmp_path.glob("telemetry-aggregation*.html")).read_text()
    assert "RU/s-hours" in page
    assert "Instance-hours" not in page  # of the first scene, whose clock ran ahead, nothing is left
    for name in ("autoscaling", "consumer"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (tmp_path / f"{name}.svg").read_text()
    assert still_left(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "part", "sign"),
    [
        pytest.param(signal.SIGINT, "orders", "dashboard:", marks=pytest.mark.torture),
        (signal.SIGTERM, "flights", "consumer 2 starts"),
    ],
)
def test_an_interrupted_demo_leaves_no_process_behind(start, tmp_path, number, part, sign):
    demo = start(tmp_path, "--part", part)
    for line in demo.stdout:
        if sign in line:
            break
    assert left_behind(tmp_path)

    demo.send_signal(number)
    output, _ = demo.communicate(timeout=120)

    assert demo.returncode == 130, output
    assert still_left(tmp_path) == []


@pytest.mark.parametrize(
    ("part", "sign", "program", "message"),
    [
        pytest.param(
            *("flights", "consumer 1 starts", "devstack.function_host", "the functions ended by themselves"),
            marks=pytest.mark.torture,
        ),
        ("orders", "dashboard:", "azurite.js", "Azurite ended by itself"),
    ],
)
def test_a_demo_whose_servers_are_killed_says_so_and_fails(start, tmp_path, part, sign, program, message):
    demo = start(tmp_path, "--part", part)
    for line in demo.stdout:
        if sign in line:
            break
    (victim,) = (
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if program in command_line(process)
        if f"DEMO_UNDER_TEST={tmp_path}".encode() in (process / "environ").read_bytes()
    )

    os.kill(victim, signal.SIGKILL)
    output, _ = demo.communicate(timeout=120)

    assert demo.returncode == 1, output
    assert f"error: {message}" in output
    assert "Traceback" not in output
    assert still_left(tmp_path) == []


def test_a_consumer_that_ends_by_itself_ends_the_demo_with_its_words():
    consumer = Instance("consumer 1", {"EVENTHUB_RATELIMIT": "fast"})
    deadline = time.monotonic() + 30
    try:
        with pytest.raises(
            ProcessError, match=r"consumer 1 ended by itself:\n.*EVENTHUB_RATELIMIT is 'fast'"
        ):
            while time.monotonic() < deadline:
                consumer.check()
                time.sleep(0.05)
    finally:
        asyncio.run(consumer.stop())
    assert consumer.status == SettingsError.exit_status


def test_a_consumer_that_was_killed_has_the_status_of_the_signal():
    consumer = Instance("consumer 1", {})

    consumer.kill()
    asyncio.run(consumer.stop())

    assert (consumer.state, consumer.status) == ("killed", -signal.SIGKILL)


def command_line(process):
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""  # it ended


def test_a_report_that_cannot_be_written_is_refused_before_the_run(start, tmp_path):
    (tmp_path / "file").touch()
    demo = start(tmp_path / "file" / "report")

    output, _ = demo.communicate(timeout=120)

    assert demo.returncode == 2, output
    assert "the report cannot be written there" in output
    assert "dashboard:" not in output


def test_a_second_local_stack_names_the_port_that_is_in_use():
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 8445))
            other.listen()
        except OSError:
            pass  # somebody listens there already: just what is needed
        answer = subprocess.run(
            [sys.executable, "-m", "devstack", "start"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert answer.returncode == 1
    assert "8445 (Resource Manager)" in answer.stdout
    assert "Traceback" not in answer.stdout + answer.stderr
