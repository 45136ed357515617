"""`tidemark publish` against the local Event Hubs."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from devstack.event_hubs import EventHubsServer
from devstack.faults import Fault
from devstack.threaded import running_in_thread
from publisher.cli_publish import publish as command
from publisher.event_hubs.event_encoding import partition_of_key
from tests.event_hubs_support import HUB, running_server, until
from tests.publisher_support import read

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
IDS = ["0", "1"]


@pytest.fixture
def server(tmp_path):
    with running_in_thread(lambda: EventHubsServer(ca_dir=tmp_path)) as running:
        running.call(lambda: running.server.ensure_hub(HUB, 2))
        yield running


def publish(server, folder, *arguments, stdin=b""):
    """Exit status, and what it said."""
    app = typer.Typer()
    app.command()(command)
    found = CliRunner().invoke(
        app,
        ["--hub", HUB, "--root", str(folder), *map(str, arguments)],
        env={"EventHubConnection": server.server.connection_string()},
        input=stdin,
    )
    return found.exit_code, " ".join(found.output.split())


def bodies(server, partition):
    return [read(one.message)[0] for one in server.call(lambda: server.server.events(HUB, partition))]


def lines_of(count):
    return [json.dumps({"id": number, "plane": f"N{number % 9}"}) for number in range(count)]


def test_a_file_is_published_by_key_in_order_and_only_once_although_answers_are_lost(server, tmp_path):
    file, state, lines = tmp_path / "events.jsonl", tmp_path / "state.json", lines_of(300)
    file.write_text("\n".join([*lines[:100], "", *lines[100:]]) + "\n")
    server.call(lambda: server.server.faults.add(Fault("send:*", "drop_ack_and_link", count=3)))
    where = ("--file", file, "--idempotent", "--state", state)
    options = (*where, "--partition-key", "plane", "--max-events", 50)

    assert publish(server, tmp_path, *options) == (0, "300 lines published")
    for id_ in IDS:
        mine = [line for line in lines if partition_of_key(json.loads(line)["plane"], IDS) == id_]
        assert bodies(server, id_) == mine

    # Once more: all of it was published before. With another line: that one.
    found = publish(server, tmp_path, *options)
    assert found == (0, "nothing left: all 300 lines were published before")
    with file.open("a") as more:
        more.write('{"plane": "N1", "id": "new"}')
    found = publish(server, tmp_path, *options)
    assert found == (0, "1 line published; 300 lines before, by earlier runs")
    assert len(bodies(server, "0") + bodies(server, "1")) == 301
    # Dealt out by something else, a line would go elsewhere.
    status, said = publish(server, tmp_path, *where)
    assert status == 3
    assert "dealt out by partition key plane, now it is None" in said


def test_standard_input_is_published_in_turn_and_at_a_rate(server, tmp_path):
    began = time.monotonic()

    found = publish(server, tmp_path, "--file", "-", "--rate", 50, stdin="\r\n".join(lines_of(60)).encode())

    assert found == (0, "60 lines published")
    assert time.monotonic() - began >= 1.0
    assert sorted(bodies(server, "0") + bodies(server, "1")) == sorted(lines_of(60))
    assert len(bodies(server, "0")) == 30


def test_rows_of_a_csv_are_json_events_and_are_published_once(server, tmp_path):
    file, state = tmp_path / "planes.CSV", tmp_path / "state.json"
    file.write_text('plane,note\nN1,"two\nlines"\n\nN2,x\n')
    options = ("--file", file, "--partition-key", "plane", "--idempotent", "--state", state)

    assert publish(server, tmp_path, *options) == (0, "2 lines published")
    with file.open("a") as more:
        more.write('N1,"again\n"\n')
    assert publish(server, tmp_path, *options) == (0, "1 line published; 2 lines before, by earlier runs")

    found = [json.loads(body) for id_ in IDS for body in bodies(server, id_)]
    assert [one["note"] for one in found if one["plane"] == "N1"] == ["two\nlines", "again\n"]
    assert {"plane": "N2", "note": "x"} in found
    with file.open("a") as more:
        more.write("N1\n")
    status, said = publish(server, tmp_path, *options)
    assert (status, "line 8: it has 1 fields, the first row 2" in said) == (2, True)


def test_an_empty_input_is_told(server, tmp_path):
    assert publish(server, tmp_path, "--file", "-") == (0, "nothing to publish: the input has no lines")


def test_a_hub_that_is_not_there_is_named_with_the_settings_to_look_at(server, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text("{}")

    status, said = publish(server, tmp_path, "--hub", "nothub", "--file", file)

    assert status == 1
    assert "asking localhost:" in said
    assert "for the partitions of nothub: " in said
    assert "could not be found" in said
    assert "(amqp:not-found); check the hub's name and the namespace of the connection" in said
    assert "look at --hub nothub and at the app setting EventHubConnection" in said


def test_a_line_without_the_key_ends_the_command_and_names_it(server, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text('{"plane": "N1"}\n{"plain": "N1"}\n')
    options = ("--file", file, "--partition-key", "plane")

    status, said = publish(server, tmp_path, *options)

    assert status == 2
    assert """line 2 has no text or number in 'plane', the partition key: {"plain": "N1"}""" in said
    assert bodies(server, "0") + bodies(server, "1") == ['{"plane": "N1"}'], "those before it are published"
    file.write_text("not json\n")
    status, said = publish(server, tmp_path, *options)
    assert (status, "line 1 is no JSON" in said) == (2, True)


@pytest.mark.parametrize(
    ("options", "story"),
    [
        (["--file", "{file}", "--partition-key", "k", "--partition", "0"], "--partition-key and --partition"),
        (["--file", "{file}", "--state", "s.json"], "--state needs --idempotent"),
        (["--file", "{file}.missing"], "No such file"),
        (["--file", "{file}", "--connection", "Nothing"], "set Nothing to a connection string"),
        (["--file", "{file}", "--partition", "9"], "--partition is 9, accepted: 0, 1, the partitions of"),
    ],
)
def test_impossible_options_are_refused_by_name(server, tmp_path, options, story):
    file = tmp_path / "events.jsonl"
    file.write_text("{}")

    status, said = publish(server, tmp_path, *(option.format(file=file) for option in options))

    assert status == 2
    assert story in said


async def test_told_to_stop_it_ends_in_order_and_goes_on_later(tmp_path):
    file, state, lines = tmp_path / "events.jsonl", tmp_path / "state.json", lines_of(2_000)
    file.write_text("\n".join(lines))
    code = "import typer; from publisher.cli_publish import publish; typer.run(publish)"
    options = (
        "--hub",
        HUB,
        "--root",
        tmp_path,
        "--file",
        file,
        "--state",
        state,
        "--idempotent",
        "--partition",
        "0",
    )
    async with running_server(tmp_path) as server:
        for again in (False, True):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, *map(str, options), *([] if again else ["--rate", "500"])),
                cwd=ROOT,
                env={**os.environ, "EventHubConnection": server.connection_string()},
                stderr=asyncio.subprocess.PIPE,
            )
            if not again:
                await until(lambda: server.event_count(HUB) > 100)
                process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
            assert process.returncode == (0 if again else 130), said.decode()
            assert ("start it again with the same --state" in said.decode()) is not again
            assert (server.event_count(HUB) < 2_000) is not again

        assert [read(one.message)[0] for one in server.events(HUB, "0")] == lines
