"""The whole product on the local stack: functions in their own process, real SDKs, real sockets, faults.

One stack for all tests of this file. They run in the order of the file, as one story of a plan's life.
"""

import base64
import json
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from azure.data.tables import TableClient
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.storage.queue import QueueClient
from typer.testing import CliRunner

from devstack.servers.faults import Fault
from devstack.stack.supervisor import ANY_PORTS, FunctionsProcess, Stack
from scaling.notices.payloads import Message, key_bytes, signed
from tests.support.servers.threaded import running_in_thread
from tests.support.servers.webhooks import KEY, receiving
from tidemark.commands.autoscaler import app as command_line

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 40.0

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]


class World:
    """The running stack as a test sees it."""

    def __init__(self, stack, functions, plan_id, settings, told):
        self.stack = stack
        self.told = told
        self.functions = functions
        self.plan_id = plan_id
        self.settings = settings

    @property
    def capacity(self):
        return self.stack.call(lambda: self.stack.server.resource_manager.plan(self.plan_id).capacity)

    def set_capacity(self, capacity):
        self.stack.call(lambda: self.stack.server.resource_manager.plan(self.plan_id).set_capacity(capacity))

    def sent_capacities(self):
        """Every capacity that was asked of the management API, with the status it answered."""
        ledger = self.stack.call(lambda: list(self.stack.server.resource_manager.ledger))
        return [(entry.capacity, entry.status) for entry in ledger if entry.method == "PUT"]

    def get(self, path, key="function-key"):
        request = urllib.request.Request(f"{self.functions.url}/{path}", headers={"x-functions-key": key})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def post(self, path, body, key="admin-key"):
        request = urllib.request.Request(
            f"{self.functions.url}/{path}",
            data=json.dumps(body).encode(),
            headers={"x-functions-key": key, "content-type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def run(self, function):
        """As the portal does it."""
        url = f"{self.functions.url.removesuffix('/api')}/admin/functions/{function}"
        headers = {"x-functions-key": "admin-key", "content-type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(url, b'{"input": ""}', headers), timeout=10
        ) as answer:
            assert answer.status == 202

    @property
    def target(self):
        return self.get("scaling/status")["targets"][0]

    def log(self, kind=None):
        """All entries of a kind, oldest first."""
        entries = self.get("scaling/log?limit=1000")["entries"][::-1]
        return [entry for entry in entries if kind in (None, entry["kind"])]

    def until(self, condition, what):
        deadline = time.monotonic() + DEADLINE
        while not (found := condition()):
            assert self.functions.running, self.functions.output_tail(60)
            assert time.monotonic() < deadline, f"never {what}: {self.target['line']}"
            time.sleep(0.2)
        return found

    def send(self, count):
        with (
            ServiceBusClient.from_connection_string(self.settings["OrdersServiceBus"]) as client,
            client.get_topic_sender("orders") as sender,
        ):
            sender.send_messages([ServiceBusMessage("x") for _ in range(count)])

    def drain(self):
        with (
            ServiceBusClient.from_connection_string(self.settings["OrdersServiceBus"]) as client,
            client.get_subscription_receiver("orders", "fulfilment") as receiver,
        ):
            while messages := receiver.receive_messages(max_message_count=200, max_wait_time=1):
                for message in messages:
                    receiver.complete_message(message)


@pytest.fixture(scope="module")
def world():
    silent = socket.create_server(("127.0.0.1", 0))  # a webhook that takes connections and says nothing
    with silent, receiving() as (port, told), running_in_thread(lambda: Stack(ANY_PORTS)) as stack:
        silence = silent.getsockname()[1]
        plan_id = stack.call(lambda: stack.server.add_workload(capacity=1, conflict_retry_after=1))
        settings = {
            **stack.call(stack.server.settings),
            "TIDEMARK_CONFIG": "tests/integration/end_to_end.toml",
            "COLLECT_SCHEDULE": "* * * * * *",
            "VERIFY_SCHEDULE": "*/2 * * * * *",
            "ORDERS_PLAN_ID": plan_id,
            "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
            "AzureFunctionsJobHost__extensions__queues__visibilityTimeout": "00:00:05",
            "FUNCTION_HOST_ADMIN_KEY": "admin-key",
            "FUNCTION_HOST_FUNCTION_KEY": "function-key",
            "OPS_URL": f"http://localhost:{port}/hook",
            "OPS_KEY": KEY,
            "SILENT_URL": f"http://localhost:{silence}/",
            "TIDEMARK_TRUSTED_HOSTS": f"localhost:{port},localhost:{silence}",
        }
        functions = FunctionsProcess(settings)
        functions.start()
        try:
            yield World(stack, functions, plan_id, settings, told)
        finally:
            functions.stop()


def run_cli(world, *arguments):
    return CliRunner().invoke(
        command_line, [*arguments, "--root", str(ROOT)], env=world.settings, catch_exceptions=False
    )


def test_a_backlog_scales_the_plan_out_through_the_management_api(world):
    world.until(lambda: world.target["reason"] == "within_target", "settled at first")
    world.send(80)

    world.until(lambda: world.capacity == 3, "scaled to 3")

    entry = next(e for e in world.log("decision") if e["reason"] == "scale_out")
    assert "scaling plan-orders out 1 -> 3: average backlog" in entry["line"]
    effect = world.until(lambda: world.log("effect"), "logged the effect")[0]
    assert (effect["effect"]["outcome"], effect["effect"]["reached"]) == ("applied", 3)
    assert world.sent_capacities() == [(3, 200)]


def test_a_logged_decision_replays_byte_for_byte(world):
    entry = next(e for e in world.log("decision") if e["reason"] == "scale_out")

    result = run_cli(world, "replay", entry["decision_id"])

    assert result.exit_code == 0, result.output
    assert "identical, byte for byte" in result.output


def test_the_change_is_told_to_a_webhook_and_one_that_does_not_answer_slows_nobody(world):
    world.run("send_notices")

    _, _, headers, body = world.until(lambda: world.told, "told the webhook")[0]
    decided = len(world.log("decision"))
    world.until(lambda: len(world.log("decision")) > decided + 1, "decided on")

    event = json.loads(body)
    entry = next(e for e in world.log("decision") if e["reason"] == "scale_out")
    assert (event["type"], event["subject"]) == ("tidemark.scaling.scaled", "plan-orders")
    assert event["id"] == headers["webhook-id"] == f"scaled:{entry['decision_id']}"
    assert [event["data"][name] for name in ("current", "desired", "reached")] == [1, 3, 3]
    message = Message(body, {})
    expected = signed(message, event["id"], key_bytes(KEY), float(headers["webhook-timestamp"]))
    assert headers["webhook-signature"] == expected["webhook-signature"]


def test_a_refused_change_is_retried_until_it_is_through(world):
    faults = world.stack.server.resource_manager.faults
    world.stack.call(lambda: faults.add(Fault(where="arm.put_plan", kind="conflict", count=2)))
    world.send(120)

    world.until(lambda: world.capacity == 5, "scaled to 5")

    statuses = [status for capacity, status in world.sent_capacities() if capacity == 5]
    assert statuses[-1] in {200, 201, 202}
    assert len(statuses) == 3


def test_a_backlog_that_cannot_be_read_holds_and_never_scales_in(world):
    world.stack.call(
        lambda: world.stack.server.service_bus.faults.add(
            Fault(where="admin.get:*", kind="error", status=500, count=None)
        )
    )
    world.drain()

    world.until(lambda: world.target["reason"] == "collect_failed", "noticed the failure")
    time.sleep(3)  # time in which a wrong zero would have scaled in

    assert world.capacity == 5
    world.stack.call(world.stack.server.service_bus.faults.clear)


def test_an_empty_queue_scales_in_step_by_step_once_its_workers_have_acknowledged(world):
    path, said = "scaling/plan-orders", {"worker": "*", "by": "worker"}
    while (before := world.capacity) > 3:
        # The plan has its capacity before the notice of the last step has ended: that one is not meant.
        notice = world.until(
            lambda at=before: (
                (found := world.get(f"{path}/drain"))["state"] == "draining"
                and found["from_capacity"] == at
                and found
            ),
            "announced",
        )
        assert (notice["needed"], world.capacity) == (before, before)
        with TableClient.from_connection_string(
            world.settings["AzureWebJobsStorage"], "ScalingState"
        ) as table:
            assert table.get_entity("plan-orders", "drain")["State"] in {"draining", "unanswered"}
        assert world.post(f"{path}/acknowledge", said | {"notice": "plan-orders@0"})[0] == 409
        world.post(f"{path}/acknowledge", said | {"notice": notice["notice"]})
        world.until(
            lambda: world.capacity < before or world.get(f"{path}/drain")["state"] == "unanswered",
            "carried out",
        )

    entry = next(e for e in world.log("decision") if e["reason"] == "scale_in")
    assert "maximum backlog 0 < 80" in entry["line"]


def test_a_pause_holds_and_resume_lifts_it(world):
    status, body = world.post("scaling/plan-orders/pause", {"direction": None, "for": "1h", "by": "anna"})
    assert (status, body["pauses"][0]["by"]) == (200, "anna")
    held = world.capacity
    world.send(200)

    world.until(lambda: world.target["reason"] == "paused", "held by the pause")
    assert world.capacity <= held
    assert world.post("scaling/plan-orders/resume", {"by": "ben"})[0] == 200

    world.until(lambda: world.capacity > held, "scaled out after resume")
    lines = [entry["line"] for entry in world.log("control") if "acknowledged" not in entry["line"]]
    assert lines == [
        "control plan-orders: scaling paused for 1 h, by anna",
        "control plan-orders: resumed; pauses and override lifted, by ben",
    ]


def test_an_override_decides_until_it_is_lifted(world):
    assert world.post("scaling/plan-orders/override", {"capacity": 6, "for": "10m", "by": "anna"})[0] == 200

    world.until(lambda: world.capacity == 6, "set to 6 by the override")
    world.until(lambda: world.target["reason"] == "overridden", "holding the override")
    world.post("scaling/plan-orders/resume", {"by": "anna"})


def test_a_change_by_hand_is_reported_and_then_taken_over(world):
    world.drain()
    world.until(lambda: world.target["pending"] is None, "at rest")
    world.post("scaling/plan-orders/pause", {"direction": None, "for": None, "by": "test"})
    world.until(lambda: world.target["reason"] == "paused", "paused")
    world.set_capacity(2)

    world.until(lambda: world.target["reason"] == "external_change", "held for the external change")
    world.until(lambda: world.target["expected"] == 2, "taken over")
    # Whichever looks first tells it: the check, or the decision upon the next report.
    assert any("somebody else" in entry["line"] for entry in world.log())
    world.post("scaling/plan-orders/resume", {"by": "test"})


def test_a_poison_message_is_kept_and_shown(world):
    with QueueClient.from_connection_string(world.settings["AzureWebJobsStorage"], "metrics") as queue:
        queue.send_message(base64.b64encode(b"no report at all").decode())

    poison = world.until(lambda: world.get("scaling/status")["poison"]["messages"], "poisoned")

    assert [(m["queue"], m["body"]) for m in poison] == [("metrics-poison", "no report at all")]


@pytest.mark.parametrize(
    ("path", "body", "key", "status", "text"),
    [
        ("scaling/plan-orders/pause", {}, "wrong", 401, ""),
        ("scaling/plan-orders/pause", {}, "", 401, ""),
        ("scaling/plan-orders/pause", {}, "function-key", 400, "by: is missing"),
        ("scaling/plan-orders/pause", {"by": "x"}, "function-key", 400, "direction: is missing"),
        ("scaling/nobody/pause", {}, "admin-key", 404, "configured are plan-orders"),
        (
            "scaling/plan-orders/explode",
            {},
            "admin-key",
            404,
            "accepted are acknowledge, dry-run, override, pause, promote, resume",
        ),
        (
            "scaling/plan-orders/pause",
            {"direction": None, "for": "soon", "by": "x"},
            "admin-key",
            400,
            "durations such as",
        ),
        ("scaling/plan-orders/override", {"capacity": 7, "by": "x"}, "admin-key", 400, "1 to 6"),
    ],
)
def test_wrong_orders_are_refused_with_what_is_accepted(world, path, body, key, status, text):
    answered, said = world.post(path, body, key)

    assert answered == status
    assert text in str(said)


def test_the_command_line_shows_status_and_log(world):
    status, log = run_cli(world, "status"), run_cli(world, "log", "--since", "7d", "--changes")

    assert (status.exit_code, log.exit_code) == (0, 0)
    assert "plan-orders" in status.output
    assert "scaling plan-orders out 1 -> 3" in log.output


def test_every_applied_action_was_sent_once_and_every_report_decided_once(world):
    applied = [e["effect"] for e in world.log("effect") if e["effect"]["outcome"] == "applied"]
    accepted = [capacity for capacity, status in world.sent_capacities() if status < 300]
    assert [effect["reached"] for effect in applied] == accepted
    ids = [entry["decision_id"] for entry in world.log("decision")]
    assert len(ids) == len(set(ids))
