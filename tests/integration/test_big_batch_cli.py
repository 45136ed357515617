"""`tidemark send` against the local Service Bus."""

import csv
import fcntl
import json
import signal
import subprocess
import sys
import termios
import time
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from devstack.servers.faults import Fault
from devstack.service_bus import STANDARD, QueueSettings
from devstack.service_bus.messages.messages import identity
from tidemark.__main__ import command_line

pytestmark = pytest.mark.wire


@pytest.fixture
def queue(threaded, request):
    settings = QueueSettings(limits=STANDARD, duplicate_window=600.0)
    threaded.call(lambda: threaded.server.create_queue(request.node.name, settings))
    yield request.node.name
    threaded.call(threaded.server.faults.clear)


@pytest.fixture
def send(threaded, queue, tmp_path, monkeypatch):
    monkeypatch.setenv("ServiceBusConnection", threaded.server.connection_string)

    def run(*options, **more):
        arguments = ["send", "--queue", queue, "--root", str(tmp_path), "--json", "--quiet", *options]
        result = CliRunner().invoke(command_line(), arguments, **more)
        lines = result.stdout.splitlines()
        return result, json.loads(lines[-1]) if lines else None

    return run


def stored(threaded, queue):
    return threaded.call(lambda: [m.sent.bare for m in threaded.server.broker.queues[queue].peek(0, 100_000)])


def test_a_file_of_lines_arrives_in_order(threaded, queue, send, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {n}\n" for n in range(10_000)))
    result, summary = send("-f", str(file))

    assert result.exit_code == 0
    assert summary["complete"]
    assert summary["messages"] == 10_000
    assert summary["batches"] == 3
    assert [body.rpartition(b"line ")[2] for body in stored(threaded, queue)] == [
        b"%d" % n for n in range(10_000)
    ]


def test_json_lines_from_a_pipe_get_session_and_message_id(threaded, queue, send):
    text = b'{"id": 1, "customer": "a"}\n{"id": 2, "customer": "b"}\n'
    result, summary = send(
        "-f", "-", "--format", "jsonl", "--session-field", "customer", "--id-field", "id", input=text
    )
    ids = [identity(bare) for bare in stored(threaded, queue)]

    assert result.exit_code == 0
    assert summary["batches"] == 2
    assert [(id_.message_id, id_.session_id) for id_ in ids] == [("1", "a"), ("2", "b")]


def test_rows_of_a_csv_are_json_messages_and_what_is_left_of_them_is_sent_later(
    threaded, queue, send, tmp_path
):
    file, left = tmp_path / "rows.csv", tmp_path / "left.json"
    rows = [{"id": str(n), "note": f"a\n{n:0300}"} for n in range(1000)]
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, ["id", "note"])
        writer.writeheader()
        writer.writerows(rows)
    threaded.call(lambda: threaded.server.faults.add(Fault(f"send:{queue}", "drop_ack")))
    options = ("-f", str(file), "--id-field", "id", "--timeout", "1")
    result, _ = send(*options, "--resume-file", str(left))
    assert result.exit_code == 3
    assert "unknown, the first of them line 3" in result.stderr  # the first row has lines 2 and 3

    result, _ = send(*options, "--resume", str(left), "--resend-unknown")
    assert result.exit_code == 0
    found = stored(threaded, queue)
    assert [identity(bare).message_id for bare in found] == [row["id"] for row in rows]
    for bare, row in zip(found, rows, strict=True):
        assert json.dumps(row, separators=(",", ":")).encode() in bare

    file.write_text("id,note\n1\n")
    result, _ = send(*options)
    assert (result.exit_code, "rows.csv, line 2: it has 1 field," in result.stderr) == (2, True)


def test_a_queue_that_is_not_there_is_named_with_the_settings_to_look_at(threaded, queue, send):
    result, _ = send("-f", "-", "--queue", "nothing", input=b"a\n")
    said = " ".join(result.stderr.split())

    assert result.exit_code == 1
    assert "cannot send to 'nothing' of localhost:" in said
    assert "could not be found (amqp:not-found); check the name, and the namespace of the connection;" in said
    assert "Error condition" not in said
    assert "check --queue nothing and the app setting ServiceBusConnection" in said


def test_what_is_left_is_sent_with_the_resume_file(threaded, queue, send, tmp_path):
    file, left = tmp_path / "lines.txt", tmp_path / "left.json"
    file.write_text("".join(f"{n:0200}\n" for n in range(3000)))
    threaded.call(lambda: threaded.server.faults.add(Fault(f"send:{queue}", "drop_ack")))
    result, summary = send("-f", str(file), "--resume-file", str(left), "--timeout", "1")
    assert result.exit_code == 3
    assert summary["unknown"] > 1000
    assert "unknown, the first of them line 1" in result.stderr
    assert f"send the rest with --resume {left}" in " ".join(result.stderr.split())

    result, summary = send("-f", str(file), "--resume", str(left), "--resume-file", str(left))
    assert result.exit_code == 3
    assert f"the others were sent; --resume {left} --resend-unknown" in " ".join(result.stderr.split())
    assert len(stored(threaded, queue)) == 3000

    result, summary = send("-f", str(file), "--resume", str(left), "--resend-unknown")
    assert result.exit_code == 0
    assert not left.exists()
    assert len(stored(threaded, queue)) == 3000  # the ids are the same: the queue dropped what it had


def test_a_line_too_large_stops_with_status_1_or_goes_by_claim_check(
    threaded, queue, send, tmp_path, azurite, monkeypatch
):
    monkeypatch.setenv("AzureWebJobsStorage", azurite)
    file = tmp_path / "lines.txt"
    file.write_text("small\n" + "x" * 300_000 + "\nlast\n")
    result, _ = send("-f", str(file))
    assert result.exit_code == 1
    assert "accepted: up to 262,144" in result.stderr
    assert "send the rest with --resume" in " ".join(
        result.stderr.split()
    )  # without the one that is too large
    assert stored(threaded, queue) == []

    result, summary = send("-f", str(file), "--claim-check", "claims-of-the-command-line")
    assert result.exit_code == 0
    assert summary["messages"] == 3


def test_messages_are_scheduled(threaded, queue, send):
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    result, summary = send("-f", "-", "--schedule-at", at, input=b"a\nb\n")

    assert result.exit_code == 0
    assert len(summary["scheduled"]) == 2
    assert threaded.call(lambda: threaded.server.counts(queue)).scheduled == 2


def test_a_run_that_is_stopped_leaves_a_resume_file(threaded, queue, send, tmp_path):
    file, left = tmp_path / "lines.txt", tmp_path / "left.json"
    file.write_text("".join(f"{n:0200}\n" for n in range(20_000)))
    threaded.call(
        lambda: threaded.server.faults.add(Fault(f"send:{queue}", "latency", seconds=1.0, count=None))
    )
    arguments = [
        "send",
        "--queue",
        queue,
        "-f",
        str(file),
        "--resume-file",
        str(left),
        "--root",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemark", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not stored(threaded, queue) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "send the rest with --resume" in said

    threaded.call(threaded.server.faults.clear)
    result, _ = send("-f", str(file), "--resume", str(left), "--resend-unknown")
    assert result.exit_code == 0
    assert len(stored(threaded, queue)) == 20_000


def test_a_stop_does_not_wait_for_a_pipe_that_nobody_writes_to(threaded, queue, send, tmp_path):
    arguments = ["send", "--queue", queue, "-f", "-", "--root", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemark", *arguments, "--resume-file", str(tmp_path / "left.json")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        until_read(process.stdin)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    finally:
        process.kill()
    said = process.stderr.read().decode()
    process.stdin.close()
    process.stderr.close()

    assert (process.returncode, said.splitlines()[-1]) == (130, "stopped")


def until_read(pipe):
    """Waits until somebody has read all that was written to a pipe."""
    deadline = time.monotonic() + 60
    while fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4) != b"\0" * 4 and time.monotonic() < deadline:
        time.sleep(0.05)


def test_with_public_names_of_the_sdk_alone_everything_is_sent_claimed_and_scheduled(
    threaded, queue, send, tmp_path, azurite, monkeypatch
):
    monkeypatch.setenv("PUBLISHER_SDK_INSIDES", "off")
    monkeypatch.setenv("AzureWebJobsStorage", azurite)
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {n}\n" for n in range(6_000)) + "line " + "x" * 300_000)
    result, summary = send("-f", str(file), "--claim-check", "claims-of-the-command-line")

    assert result.exit_code == 0, result.stderr
    assert (summary["messages"], summary["batches"]) == (6_001, 2)
    assert [body.rpartition(b"line ")[2] for body in stored(threaded, queue)][:-1] == [
        b"%d" % n for n in range(6_000)
    ]
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    result, summary = send("-f", "-", "--schedule-at", at, input=b"a\nb\n")
    assert (result.exit_code, len(summary["scheduled"])) == (0, 2)
    result, _ = send("-f", "-", "--queue", "nothing", input=b"a\n")
    assert (result.exit_code, "cannot send to 'nothing'" in " ".join(result.stderr.split())) == (1, True)
    threaded.call(lambda: threaded.server.faults.add(Fault(f"send:{queue}", "drop_ack")))
    result, _ = send("-f", "-", "--timeout", "1", "--resume-file", str(tmp_path / "left"), input=b"a\n")
    assert result.exit_code == 3


@pytest.mark.parametrize("name", ["Link._attached", "outgoing"], ids=["attached", "outgoing"])
def test_a_private_name_that_fails_costs_no_message(threaded, queue, send, tmp_path, monkeypatch, name):
    def moved(*_):
        raise AttributeError("'ServiceBusSender' object has no attribute '_max_batch_size_on_link'")

    monkeypatch.setattr(f"tidemark.publisher.service_bus.sdk.link.{name}", moved)
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {n}\n" for n in range(5_000)))
    result, summary = send("-f", str(file))

    assert result.exit_code == 0, result.stderr
    assert summary["messages"] == len(stored(threaded, queue)) == 5_000


def test_a_file_of_one_line_that_is_too_large_says_of_no_other_that_it_was_sent(
    threaded, queue, send, tmp_path
):
    file = tmp_path / "lines.txt"
    file.write_text("x" * 300_000 + "\n")
    result, _ = send("-f", str(file))
    assert result.exit_code == 1
    assert "no other was sent; " in " ".join(result.stderr.split())
    assert result.stderr.count("accepted: up to 262,144") == 1
