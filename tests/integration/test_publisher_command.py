"""`tidemark publish` against the local Event Hubs."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import typer
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub.aio import _client_base_async as client_base
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typer.testing import CliRunner

from devstack.event_hubs import EventHubsServer
from devstack.servers.faults import Fault
from tests.support.publisher import read
from tests.support.servers.event_hubs import HUB, running_server
from tests.support.servers.threaded import running_in_thread
from tests.support.waiting import until
from tidemark.publisher.cli import publishing_run
from tidemark.publisher.cli.publish import publish as command
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key
from tidemark.publisher.event_hubs.sdk.link_hooks import SdkLink

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
    assert found == (0, "nothing left: 300 lines were published before")
    with file.open("a") as more:
        more.write('{"plane": "N1", "id": "new"}')
    found = publish(server, tmp_path, *options)
    assert found == (0, "1 line published; 300 lines by earlier runs")
    assert len(bodies(server, "0") + bodies(server, "1")) == 301
    # Dealt out by something else, a line would go elsewhere.
    status, said = publish(server, tmp_path, *where)
    assert status == 3
    assert "has partition key plane, now it is None" in said


def test_standard_input_is_published_in_turn_and_at_a_rate(server, tmp_path):
    began = time.monotonic()

    found = publish(server, tmp_path, "--file", "-", "--rate", 50, stdin="\r\n".join(lines_of(60)).encode())

    assert found == (0, "60 lines published")
    assert time.monotonic() - began >= 1.0
    assert sorted(bodies(server, "0") + bodies(server, "1")) == sorted(lines_of(60))
    assert len(bodies(server, "0")) == 30


def test_with_public_names_of_the_sdk_alone_lines_are_published_and_idempotence_is_refused(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("PUBLISHER_SDK_INSIDES", "off")
    file, lines = tmp_path / "events.jsonl", lines_of(300)
    file.write_text("\n".join(lines))
    options = ("--file", file, "--partition-key", "plane", "--max-events", 50)

    assert publish(server, tmp_path, *options) == (0, "300 lines published")
    for id_ in IDS:
        mine = [line for line in lines if partition_of_key(json.loads(line)["plane"], IDS) == id_]
        assert bodies(server, id_) == mine
    status, said = publish(server, tmp_path, *options, "--idempotent")
    assert (status, "PUBLISHER_SDK_INSIDES=off" in said) == (1, True)


def test_a_private_name_that_fails_costs_no_line(server, tmp_path, monkeypatch):
    async def moved(*_):
        raise AttributeError("'Session' object has no attribute 'create_sender_link'")

    monkeypatch.setattr(SdkLink, "attach", moved)
    file, lines = tmp_path / "events.jsonl", lines_of(100)
    file.write_text("\n".join(lines))

    assert publish(server, tmp_path, "--file", file, "--partition", "0")[0] == 0
    assert bodies(server, "0") == lines


def test_rows_of_a_csv_are_json_events_and_are_published_once(server, tmp_path):
    file, state = tmp_path / "planes.CSV", tmp_path / "state.json"
    file.write_text('plane,note\nN1,"two\nlines"\n\nN2,x\n')
    options = ("--file", file, "--partition-key", "plane", "--idempotent", "--state", state)

    assert publish(server, tmp_path, *options) == (0, "2 lines published")
    with file.open("a") as more:
        more.write('N1,"again\n"\n')
    assert publish(server, tmp_path, *options) == (0, "1 line published; 2 lines by earlier runs")

    found = [json.loads(body) for id_ in IDS for body in bodies(server, id_)]
    assert [one["note"] for one in found if one["plane"] == "N1"] == ["two\nlines", "again\n"]
    assert {"plane": "N2", "note": "x"} in found
    with file.open("a") as more:
        more.write("N1\n")
    status, said = publish(server, tmp_path, *options)
    assert (status, "line 8: it has 1 field, the first row 2" in said) == (2, True)


def test_another_input_with_the_state_of_an_earlier_one_is_refused_and_nothing_of_it_is_skipped(
    server, tmp_path
):
    """A file that is rotated every day has the same name and other lines."""
    file, state = tmp_path / "events.jsonl", tmp_path / "state.json"
    file.write_text("".join(f"monday {number}\n" for number in range(100)))
    options = ("--file", file, "--idempotent", "--state", state)
    assert publish(server, tmp_path, *options) == (0, "100 lines published")

    for lines in (140, 40, 0):
        file.write_text("".join(f"tuesday {number}\n" for number in range(lines)))
        status, said = publish(server, tmp_path, *options)
        assert status == 3
        assert f"{file} is not the input of the saved state, of which 100 lines were published" in said
        assert "this one with another --state file" in said
    assert len(bodies(server, "0") + bodies(server, "1")) == 100


def test_after_a_version_with_another_rule_for_keys_no_line_is_lost_or_doubled(server, tmp_path, monkeypatch):
    """Lines up to the furthest bookmark of that version stay where it put them."""
    server.call(lambda: server.server.create_hub("four", 4))
    file, state = tmp_path / "events.jsonl", tmp_path / "state.json"
    options = ("--hub", "four", "--file", file, "--idempotent", "--state", state, "--partition-key", "plane")
    lines = [json.dumps({"id": number, "plane": f"N{number % 40}"}) for number in range(400)]
    ids = ["0", "1", "2", "3"]
    wanted = {id_: [] for id_ in ids}
    for number, line in enumerate(lines, 1):
        key = json.loads(line)["plane"]
        wanted[partition_of_key(key, ids, floored=number <= 100)].append(line)
    assert (
        len(
            {
                partition_of_key(f"N{key}", ids) == partition_of_key(f"N{key}", ids, floored=True)
                for key in range(40)
            }
        )
        == 2
    )

    with monkeypatch.context() as before:
        before.setattr(
            publishing_run, "partition_of_key", lambda *found, **_: partition_of_key(*found, floored=True)
        )
        file.write_text("\n".join(lines[:100]) + "\n")
        assert publish(server, tmp_path, *options) == (0, "100 lines published")
        forget_digests(state)
    for end in (200, 400):  # and that is remembered by later states
        file.write_text("\n".join(lines[:end]) + "\n")
        status, said = publish(server, tmp_path, *options)
        assert status == 0, said

    found = {
        id_: [read(one.message)[0] for one in server.call(lambda id_=id_: server.server.events("four", id_))]
        for id_ in ids
    }
    assert found == wanted


def forget_digests(state):
    """As the state of an earlier version is."""
    text = state.read_text()
    for name in ("digest", "floored"):
        text = re.sub(rf',\\"{name}\\":(\\"\w+\\"|\d+|null)', "", text)
    assert "digest\\" not in text
    state.write_text(text)


def test_a_state_of_an_earlier_version_is_continued_and_it_is_said_that_nothing_was_checked(server, tmp_path):
    file, state = tmp_path / "events.jsonl", tmp_path / "state.json"
    file.write_text("one\ntwo")
    options = ("--file", file, "--idempotent", "--state", state)
    publish(server, tmp_path, *options)
    forget_digests(state)

    file.write_text("one\ntwo\nthree\nfour\n")
    status, said = publish(server, tmp_path, *options)
    assert status == 0
    assert "not checked: an earlier version wrote the saved state" in said
    assert said.endswith("2 lines published; 2 lines by earlier runs")
    assert sorted(bodies(server, "0") + bodies(server, "1")) == ["four", "one", "three", "two"]

    file.write_text("eno\ntwo\nthree\nfour\nfive\n")
    assert publish(server, tmp_path, *options)[0] == 3


def test_an_empty_input_is_told(server, tmp_path):
    assert publish(server, tmp_path, "--file", "-") == (0, "nothing to publish: the input has no lines")


def test_a_hub_that_is_not_there_is_named_with_the_settings_to_look_at(server, tmp_path, monkeypatch):
    monkeypatch.setattr(client_base.asyncio, "sleep", lambda _: asyncio.sleep(0.01))  # nor between two tries
    file = tmp_path / "events.jsonl"
    file.write_text("{}")

    status, said = publish(server, tmp_path, "--hub", "nothub", "--file", file)

    assert status == 1
    assert "asking localhost:" in said
    assert "for the partitions of nothub: " in said
    assert "could not be found" in said
    assert "(amqp:not-found); check the hub's name and the namespace of the connection" in said
    assert "check --hub nothub and the app setting EventHubConnection" in said


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
    assert (status, "line 1 is not JSON" in said) == (2, True)


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


async def test_stopped_without_a_state_it_says_how_many_lines_were_published(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(lines_of(5_000)))
    code = "import typer; from tidemark.publisher.cli.publish import publish; typer.run(publish)"
    options = ("--hub", HUB, "--root", tmp_path, "--file", file, "--rate", "200")
    async with running_server(tmp_path) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, *map(str, options)),
            cwd=ROOT,
            env={**os.environ, "EventHubConnection": server.connection_string()},
            stderr=asyncio.subprocess.PIPE,
        )
        await until(lambda: server.event_count(HUB) > 50)
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()

        assert process.returncode == 130
        assert said.decode().split("\n")[-3:] == [
            f"{server.event_count(HUB):,} lines published",
            "stopped",
            "",
        ]


async def test_spans_are_exported_and_their_contexts_are_in_the_events(tmp_path):
    """In a process of its own, which has one tracer provider."""
    spans = []

    async def take(request):
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        return web.Response()

    collector = web.Application()
    collector.router.add_post("/v1/traces", take)
    (tmp_path / "events.jsonl").write_text("\n".join(lines_of(3)))
    code = "import typer; from tidemark.publisher.cli.publish import publish; typer.run(publish)"
    async with running_server(tmp_path) as server, TestServer(collector) as listening:
        settings = {
            "EventHubConnection": server.connection_string(),
            "TIDEMARK_TRACING": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": str(listening.make_url("")),
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        options = ("--hub", HUB, "--root", tmp_path, "--file", tmp_path / "events.jsonl", "--partition", "0")
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *options, cwd=ROOT)

        assert await process.wait() == 0
        contexts = [
            decode_payload(memoryview(one.message)).application_properties[b"traceparent"][:52].decode()
            for one in server.events(HUB, "0")
        ]

    made = [
        f"00-{span.trace_id.hex()}-{span.span_id.hex()}" for span in spans if span.name == f"create {HUB}"
    ]
    sent = [span for span in spans if span.name == f"send {HUB}"]
    assert contexts == made
    assert [link.span_id.hex() for span in sent for link in span.links] == [each[36:] for each in made]


async def test_a_stop_does_not_wait_for_a_pipe_that_nobody_writes_to(tmp_path):
    code = "import typer; from tidemark.publisher.cli.publish import publish; typer.run(publish)"
    async with running_server(tmp_path) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, "--hub", HUB, "--root", tmp_path, "--file", "-"),
            cwd=ROOT,
            env={**os.environ, "EventHubConnection": server.connection_string()},
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            process.stdin.write(b'{"id": 1}\n{"id": 2}\n{"id": ')
            await until(lambda: server.event_count(HUB) == 2)
            process.send_signal(signal.SIGTERM)
            said = await asyncio.wait_for(process.stderr.read(), 30)
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

        assert (process.returncode, said.decode()) == (130, "2 lines published\nstopped\n")
        assert server.event_count(HUB) == 2


async def test_told_to_stop_it_ends_in_order_and_goes_on_later(tmp_path):
    file, state, lines = tmp_path / "events.jsonl", tmp_path / "state.json", lines_of(2_000)
    file.write_text("\n".join(lines))
    code = "import typer; from tidemark.publisher.cli.publish import publish; typer.run(publish)"
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


def test_properties_and_ids_are_set_and_a_start_with_others_is_refused(server, tmp_path):
    file, state = tmp_path / "planes.csv", tmp_path / "state.json"
    file.write_text("plane;minutes\nN1;5\n")
    options = ("--file", file, "--idempotent", "--state", state, "--content-type", "application/json")
    more = ("--property", "source=archive", "--property-field", "delay=minutes", "--id-field", "plane")

    assert publish(server, tmp_path, *options, *more) == (0, "1 line published")
    (stored,) = [one for id_ in IDS for one in server.call(lambda id_=id_: server.server.events(HUB, id_))]
    message = decode_payload(memoryview(bytes(stored.message)))
    assert message.application_properties == {b"source": b"archive", b"delay": b"5"}
    assert (message.properties.message_id, message.properties.content_type) == (b"N1", b"application/json")
    file.with_suffix(".jsonl").write_text('{"plane":"N2","minutes":1790000000000}\n')
    found = publish(server, tmp_path, "-f", file.with_suffix(".jsonl"), "--partition", 0, *more)
    assert found == (0, "1 line published")
    *_, stored = server.call(lambda: server.server.events(HUB, "0"))
    message = decode_payload(memoryview(bytes(stored.message)))
    assert message.application_properties == {b"source": b"archive", b"delay": 1_790_000_000_000}
    status, said = publish(server, tmp_path, *options, *more[2:])
    assert (status, "--property was source=archive, now it is not given" in said) == (3, True)


@pytest.mark.parametrize("partition", [(), ("--partition", "0")], ids=["in turn", "one partition"])
def test_the_next_start_in_a_world_that_changed(server, tmp_path, partition):
    """P2 and K2: what the service forgot costs nothing, what is another world is refused, and its way on comes true."""
    file, state = tmp_path / "events.jsonl", tmp_path / "state.json"
    lines = lines_of(8)

    def start(last, *more):
        file.write_text("".join(f"{line}\n" for line in lines[:last]))
        return publish(server, tmp_path, "--file", file, "--idempotent", "--state", state, *partition, *more)

    def arrived():
        return sorted(body for id_ in IDS for body in bodies(server, id_))

    assert start(4) == (0, "4 lines published")
    for id_ in IDS:
        server.call(lambda id_=id_: server.server.publishers(HUB, id_).forget())
    assert start(6) == (0, "2 lines published; 4 lines by earlier runs")
    assert arrived() == sorted(lines[:6])

    server.call(lambda: server.server.create_hub("other", 2))
    status, said = start(8, "--hub", "other")
    assert (status, "is the state of a run that published to localhost" in said) == (3, True), said
    status, said = start(8, *(() if partition else ("--partition", "1")))
    assert (status, len(arrived())) == ((0, 8) if partition else (3, 6)), said
    if partition:
        status, said = start(8, "--partition", "1")
        assert (status, "has partition key partition 0" in said) == (3, True), said

    server.call(lambda: server.server.delete_hub(HUB))
    server.call(lambda: server.server.create_hub(HUB, 2))
    status, said = start(8)
    assert (status, "the hub was recreated" in said, arrived()) == (3, True, []), said
    assert "another --state file" in said
    assert start(8, "--state", tmp_path / "another.json") == (0, "8 lines published")
    assert arrived() == sorted(lines)
