"""The host runs an app against Azurite over real sockets, delivering as the real host does."""

import asyncio
import base64
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import typing
import uuid

import aiohttp
import azure.functions as func
import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue.aio import QueueClient

from devstack.function_host import FunctionHost
from devstack.processes.child import ChildProcess, free_ports, port_is_free
from tests.support.waiting import until

pytestmark = pytest.mark.wire

CONNECTION = "AzureWebJobsStorage"
QUEUES = {"maxPollingInterval": "00:00:01", "visibilityTimeout": "00:00:01", "maxDequeueCount": 2}
HOST_JSON = {"version": "2.0", "extensions": {"queues": QUEUES}}


@pytest.fixture
def names():
    """Queue names of this test's own, as settings."""
    own = uuid.uuid4().hex[:8]
    return {"WORK_QUEUE": f"work-{own}", "DONE_QUEUE": f"done-{own}"}


def queue(azurite, name):
    return QueueClient.from_connection_string(azurite, name)


async def send(azurite, name, *texts):
    async with queue(azurite, name) as client:
        await client.create_queue()
        for text in texts:
            await client.send_message(base64.b64encode(text.encode()).decode())


async def peek(azurite, name):
    async with queue(azurite, name) as client:
        try:
            return [base64.b64decode(m.content).decode() for m in await client.peek_messages(max_messages=32)]
        except ResourceNotFoundError:
            return []


async def messages(azurite, name, count):
    async def enough():
        found = await peek(azurite, name)
        return found if len(found) >= count else None

    return await until(enough)


async def request(host, method, path, **options):
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{host.port}{path}", **options) as response,
    ):
        return response.status, await response.text(), response.headers


async def test_a_timer_feeds_a_queue_whose_function_feeds_the_next_queue(azurite, names):
    app = func.FunctionApp()

    @app.timer_trigger("timer", "%TICK%")
    @app.queue_output("work", "%WORK_QUEUE%", CONNECTION)
    def tick(timer: func.TimerRequest, work: func.Out[typing.List[str]]) -> None:  # noqa: UP006 - the worker asks for it
        assert not timer.schedule_status
        work.set(['{"n": 1}', '["é"]'])

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    @app.queue_output("$return", "%DONE_QUEUE%", CONNECTION)
    async def work(message: func.QueueMessage, context: func.Context) -> str:
        assert context.function_name == "work"
        assert message.insertion_time < message.expiration_time
        assert message.pop_receipt
        return f"{message.id and 'id'}:{message.dequeue_count}:{message.get_body().decode()}"

    settings = {**names, "TICK": "* * * * * *"}
    async with FunctionHost(app, settings=settings, host_json=HOST_JSON, storage_connection=azurite) as host:
        done = await messages(azurite, names["DONE_QUEUE"], 4)

    assert {'id:1:{"n": 1}', 'id:1:["é"]'} == set(done)
    assert all(record.succeeded for record in host.invocations)
    ticks = [record.started_at for record in host.invocations if record.function == "tick"]
    # One for each second: a loaded machine may be late for one, and two may then stand close together.
    assert len(ticks) <= (ticks[-1] - ticks[0]).total_seconds() + 2
    assert await peek(azurite, names["WORK_QUEUE"]) == []


async def test_a_message_that_fails_each_time_moves_to_poison_and_others_pass(azurite, names):
    app, attempts = func.FunctionApp(), []

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    @app.queue_output("done", "%DONE_QUEUE%", CONNECTION)
    def work(message: func.QueueMessage, done: func.Out[str]) -> None:
        done.set("not sent when the function raises")
        if message.get_body() == b"bad":
            attempts.append((message.dequeue_count, time.monotonic()))
            raise RuntimeError("cannot be processed")
        done.set("good one")

    await send(azurite, names["WORK_QUEUE"], "bad", "good")
    async with FunctionHost(app, settings=names, host_json=HOST_JSON, storage_connection=azurite) as host:
        poisoned = await messages(azurite, names["WORK_QUEUE"] + "-poison", 1)

    assert poisoned == ["bad"]
    assert [count for count, _ in attempts] == [1, 2]
    assert attempts[1][1] - attempts[0][1] > 0.9, "the retry waits for visibilityTimeout"
    assert await peek(azurite, names["DONE_QUEUE"]) == ["good one"]
    failures = [record for record in host.invocations if not record.succeeded]
    assert [record.error for record in failures] == ["RuntimeError('cannot be processed')"] * 2


async def test_a_message_that_is_not_base64_goes_to_poison_as_it_is_without_running_the_function(
    azurite, names
):
    app = func.FunctionApp()

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    def work(message: func.QueueMessage) -> None:
        raise AssertionError("must not run")

    async with queue(azurite, names["WORK_QUEUE"]) as client:
        await client.create_queue()
        await client.send_message("plain <text>")
    async with (
        FunctionHost(app, settings=names, host_json=HOST_JSON, storage_connection=azurite) as host,
        queue(azurite, names["WORK_QUEUE"] + "-poison") as poison,
    ):

        async def content():
            with contextlib.suppress(ResourceNotFoundError):
                return [message.content for message in await poison.peek_messages()]

        assert await until(content) == ["plain <text>"]
    assert list(host.invocations) == []


async def test_a_message_whose_attempts_are_used_up_moves_to_poison_without_another(azurite, names):
    """As when its processes died before they could settle it."""
    app = func.FunctionApp()

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    def work(message: func.QueueMessage) -> None:
        raise AssertionError("must not run")

    await send(azurite, names["WORK_QUEUE"], "deadly")
    async with queue(azurite, names["WORK_QUEUE"]) as client:
        for _ in range(QUEUES["maxDequeueCount"]):
            message = await client.receive_message()
            await client.update_message(message, visibility_timeout=0)
    async with FunctionHost(app, settings=names, host_json=HOST_JSON, storage_connection=azurite) as host:
        assert await messages(azurite, names["WORK_QUEUE"] + "-poison", 1) == ["deadly"]

    assert list(host.invocations) == []


async def test_a_poison_queue_has_no_poison_queue_of_its_own(azurite, names):
    app, attempts = func.FunctionApp(), []
    poison = names["WORK_QUEUE"] + "-poison"

    @app.queue_trigger("message", poison, CONNECTION)
    def work(message: func.QueueMessage) -> None:
        attempts.append(message.dequeue_count)
        raise RuntimeError("again")

    await send(azurite, poison, "stays")
    async with FunctionHost(app, settings=names, host_json=HOST_JSON, storage_connection=azurite):
        await until(lambda: len(attempts) == 2)

    assert attempts == [1, 2]
    assert await messages(azurite, poison, 1) == ["stays"]
    assert await peek(azurite, poison + "-poison") == []


async def test_up_to_a_batch_and_the_threshold_are_at_work_at_once(azurite, names):
    app, gate = func.FunctionApp(), asyncio.Event()
    at_work = set()

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    async def work(message: func.QueueMessage) -> None:
        at_work.add(message.get_body())
        await gate.wait()

    await send(azurite, names["WORK_QUEUE"], *(str(n) for n in range(8)))
    host_json = {
        "version": "2.0",
        "extensions": {"queues": {**QUEUES, "batchSize": 2, "newBatchThreshold": 3}},
    }
    async with FunctionHost(app, settings=names, host_json=host_json, storage_connection=azurite):
        # 2 at work are not above 3, so 2 more are taken: 4, which is above.
        await until(lambda: len(at_work) == 4)
        await asyncio.sleep(0.5)
        assert len(at_work) == 4
        gate.set()
        await until(lambda: len(at_work) == 8)


async def test_a_message_at_work_longer_than_its_lease_is_not_given_out_again(azurite, names):
    app, runs = func.FunctionApp(), []

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    async def work(message: func.QueueMessage) -> None:
        runs.append(message.dequeue_count)
        await asyncio.sleep(2.5)

    await send(azurite, names["WORK_QUEUE"], "slow")
    async with FunctionHost(app, settings=names, host_json=HOST_JSON, storage_connection=azurite) as host:
        await until(lambda: any(record.succeeded for record in host.invocations))

    assert runs == [1]
    assert await peek(azurite, names["WORK_QUEUE"]) == []


def http_app():
    app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)

    @app.route("things/{thing}/{part?}", methods=["GET"])
    def read(req: func.HttpRequest) -> func.HttpResponse:
        body = json.dumps([dict(req.route_params), dict(req.params), req.headers.get("x-mine")])
        return func.HttpResponse(
            body, status_code=206, mimetype="application/json", headers={"x-answer": "42"}
        )

    @app.route("things/special", methods=["GET", "POST"])
    async def special(req: func.HttpRequest) -> str:
        return f"{req.method} {req.get_body().decode()}"

    @app.route("broken")
    def broken(req: func.HttpRequest) -> func.HttpResponse:
        raise RuntimeError("inside")

    @app.route("speechless")
    def speechless(req: func.HttpRequest) -> func.HttpResponse:
        return None

    @app.route("protected", auth_level=func.AuthLevel.FUNCTION)
    def protected(req: func.HttpRequest) -> str:
        return "for key holders"

    @app.route("ruled", auth_level=func.AuthLevel.ADMIN)
    def ruled(req: func.HttpRequest) -> str:
        return "for admins"

    return app


async def test_http_requests_reach_the_function_of_their_route_and_method(azurite):
    async with FunctionHost(http_app(), settings={}, host_json=HOST_JSON, storage_connection=azurite) as host:
        status, text, headers = await request(
            host, "GET", "/api/Things/a%20b/wheel?q=1", headers={"X-Mine": "yes"}
        )
        assert (status, json.loads(text)) == (206, [{"thing": "a b", "part": "wheel"}, {"q": "1"}, "yes"])
        assert (headers["content-type"], headers["x-answer"]) == ("application/json", "42")
        _, text, _ = await request(host, "GET", "/api/things/bike")
        assert json.loads(text)[0] == {"thing": "bike"}
        status, text, headers = await request(host, "POST", "/api/things/special", data="hi")
        assert (status, text) == (200, "POST hi")
        assert headers["content-type"] == "text/plain; charset=utf-8"
        for method, path in [("GET", "/api/nothing"), ("GET", "/things/bike"), ("GET", "/api/things/a/b/c")]:
            assert (await request(host, method, path))[0] == 404
        assert (await request(host, "DELETE", "/api/things/bike"))[0] == 404  # as the real host, not 405
        assert (await request(host, "GET", "/api/broken"))[0] == 500
        assert (await request(host, "GET", "/api/speechless"))[0] == 500
        assert "HttpResponse or str, but returned NoneType" in host.invocations[-1].error


async def test_keys_are_enforced_by_level_once_there_is_one(azurite):
    app = http_app()
    options = {"settings": {}, "storage_connection": azurite, "admin_key": "master", "function_key": "guest"}
    async with FunctionHost(app, **options) as host:

        async def status(path, key=None, method="GET", code=None):
            headers = {"x-functions-key": key} if key else {}
            params = {"code": code} if code else {}
            return (await request(host, method, path, headers=headers, params=params, json={"input": ""}))[0]

        assert await status("/api/things/special") == 200
        assert [await status("/api/protected", key) for key in (None, "wrong", "guest", "master")] == [
            401,
            401,
            200,
            200,
        ]
        assert [await status("/api/ruled", key) for key in (None, "guest", "master")] == [401, 401, 200]
        assert await status("/api/protected", code="guest") == 200
        for path in ("/admin/functions", "/admin/host/status"):
            assert [await status(path, key) for key in (None, "guest", "master")] == [401, 401, 200]
        assert [await status("/admin/functions/ruled", key, "POST") for key in ("guest", "master")] == [
            401,
            202,
        ]


async def test_without_keys_nothing_is_enforced(azurite):
    async with FunctionHost(http_app(), settings={}, storage_connection=azurite) as host:
        assert [(await request(host, "GET", f"/api/{path}"))[0] for path in ("protected", "ruled")] == [
            200,
            200,
        ]


async def test_a_run_through_the_admin_api_answers_at_once_and_may_overlap_another(azurite, names):
    app, gate, runs = func.FunctionApp(), threading.Event(), []

    @app.timer_trigger("timer", "0 0 0 1 1 *")
    def yearly(timer: func.TimerRequest) -> None:
        runs.append(timer.past_due)
        assert gate.wait(10)

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    async def work(message: func.QueueMessage) -> None:
        runs.append(message.get_json())

    try:
        async with FunctionHost(app, settings=names, storage_connection=azurite) as host:
            for _ in range(2):
                assert (await request(host, "POST", "/admin/functions/YEARLY", json={"input": ""}))[0] == 202
            await until(lambda: runs == [False, False])
            assert [record.succeeded for record in host.invocations] == [None, None]
            gate.set()
            await request(host, "POST", "/admin/functions/work", json={"input": '{"a": 1}'})
            await until(lambda: {"a": 1} in runs)
            assert (await request(host, "POST", "/admin/functions/none", json={"input": ""}))[0] == 404
            for bad in ('{"input": 3}', "[]", "text"):
                assert (await request(host, "POST", "/admin/functions/work", data=bad))[0] == 400
            _, text, _ = await request(host, "GET", "/admin/functions")
            listed = {entry["name"]: entry["config"]["bindings"] for entry in json.loads(text)}
            assert listed["yearly"][0]["schedule"] == "0 0 0 1 1 *"
            assert (await request(host, "GET", "/admin/host/status"))[
                1
            ] == '{"state": "Running", "functions": 2}'
    finally:
        gate.set()


async def test_stopping_waits_for_what_runs_and_releases_the_port(azurite, names):
    app, started, finished = func.FunctionApp(), threading.Event(), []

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    def work(message: func.QueueMessage) -> None:
        started.set()
        time.sleep(0.5)
        finished.append(message.get_body())

    await send(azurite, names["WORK_QUEUE"], "last")
    host = FunctionHost(app, settings=names, host_json=HOST_JSON, storage_connection=azurite)
    await host.start()
    await until(started.is_set)
    handlers = logging.getLogger().handlers.copy()
    await host.stop()
    await host.stop()

    assert finished == [b"last"]
    assert await peek(azurite, names["WORK_QUEUE"]) == []
    assert port_is_free(host.port)
    assert len(handlers) - 1 == len(logging.getLogger().handlers)


async def test_what_outlasts_the_grace_is_cancelled_and_its_message_comes_again(azurite, names):
    app = func.FunctionApp()

    @app.queue_trigger("message", "%WORK_QUEUE%", CONNECTION)
    async def work(message: func.QueueMessage) -> None:
        await asyncio.Event().wait()

    await send(azurite, names["WORK_QUEUE"], "again")
    host = FunctionHost(app, settings=names, host_json=HOST_JSON, storage_connection=azurite, grace_s=0.2)
    async with host:
        await until(lambda: host.invocations)

    assert [record.error for record in host.invocations] == ["stopped with the host"]
    assert await messages(azurite, names["WORK_QUEUE"], 1) == ["again"]


APP_FILE = """
import logging, os
import azure.functions as func
app = func.FunctionApp()
PLACE = os.environ["PLACE"]  # read at import, as apps do

@app.queue_trigger("message", "%WORK_QUEUE%", "AzureWebJobsStorage")
def work(message: func.QueueMessage) -> None:
    logging.info("attempt %d in %s", message.dequeue_count, PLACE)
    if message.dequeue_count == 1:
        os.kill(os.getpid(), 9)
"""


async def test_a_message_whose_process_died_comes_again_after_the_visibility_timeout(
    azurite, names, tmp_path
):
    """Through the command line: settings file, environment, log lines, and a clean end on Ctrl-C."""
    (tmp_path / "function_app.py").write_text(APP_FILE)
    (tmp_path / "host.json").write_text(json.dumps(HOST_JSON))
    values = {
        "PLACE": "the file",
        "WORK_QUEUE": names["WORK_QUEUE"],
        CONNECTION: "overruled by the environment",
    }
    (tmp_path / "local.settings.json").write_text(json.dumps({"IsEncrypted": False, "Values": values}))
    command = [
        sys.executable,
        "-m",
        "devstack.function_host",
        "--root",
        tmp_path,
        "--port",
        str(free_ports(1)[0]),
    ]
    await send(azurite, names["WORK_QUEUE"], "deadly")

    first = ChildProcess("host", command, env={CONNECTION: azurite})
    first.start()
    await until(lambda: not first.running)
    first.stop()
    second = ChildProcess("host", command, env={CONNECTION: azurite})
    second.start()
    try:
        await until(lambda: "Executed 'Functions.work' (Succeeded" in second.output_tail())
        os.kill(second.pid, signal.SIGINT)
        await until(lambda: not second.running)
        output = second.output_tail()
    finally:
        second.stop()

    assert "attempt 2 in the file" in output
    assert "Traceback" not in output
    assert await peek(azurite, names["WORK_QUEUE"]) == []
