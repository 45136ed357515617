"""`tidemark doctor` against the local stack: all is well, then each check is made to fail, and says what to do."""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.data.tables import TableServiceClient
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
from azure.storage.queue import QueueClient

from devstack.resource_manager.resources.store import Resource
from devstack.servers.faults import Fault
from devstack.stack.supervisor import ANY_PORTS, Stack
from scaling.doctor.checks import Case, checks_of
from scaling.doctor.examination import examine
from scaling.doctor.running import run
from scaling.doctor.verdicts import SKEW_WARNED, WAITING_FAILED
from scaling.service.assembly import assemble
from tests.support.servers.threaded import running_in_thread
from tidemark.foundation.checkup import Verdict
from tidemark.foundation.keys import key_of

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]

ANYTHING = {"actions": ["*"], "notActions": []}
NOT_PLANS = {"actions": ["*/read"], "notActions": []}


class World:
    def __init__(self, stack, settings):
        self.stack = stack
        self.settings = settings
        self.server = stack.call(lambda: stack.server.resource_manager)

    def examined(self, clock=time.time, **changed):
        """(check, subject) -> finding."""
        settings = {name: value for name, value in {**self.settings, **changed}.items() if value is not None}
        checkup = asyncio.run(examine(Case(settings, ROOT, clock)))
        return {(finding.check, finding.subject): finding for finding in checkup.findings}

    def fault(self, point, kind, **options):
        self.stack.call(lambda: self.server.faults.add(Fault(point, kind, **options)))

    def with_wrong_key(self):
        return re.sub("AccountKey=[^;]{8}", "AccountKey=AAAAAAAA", self.settings["AzureWebJobsStorage"])


@pytest.fixture(scope="module")
def stack():
    with running_in_thread(lambda: Stack(ANY_PORTS)) as running:
        running.plan_id = running.call(lambda: running.server.add_workload(capacity=1))
        yield running


@pytest.fixture
def world(stack, monkeypatch):
    settings = {
        **stack.call(stack.server.settings),
        "COLLECT_SCHEDULE": "0 * * * * *",
        "VERIFY_SCHEDULE": "30 * * * * *",
        "ORDERS_PLAN_ID": stack.plan_id,
    }
    for name in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER"):
        monkeypatch.setenv(name, settings[name])
    return World(stack, settings)


METRIC = ("metric", "service_bus_subscription:OrdersServiceBus/orders/fulfilment")


def test_a_deployment_in_order_is_healthy(world):
    found = world.examined()

    assert [each.line for each in found.values() if each.verdict.is_bad] == []
    assert {check for check, _ in found} == {
        *("configuration", "identity", "storage", "poison", "clock", "schedule", "versions"),
        *("metric", "capacity", "right", "autoscale", "apps", "calls", "decisions"),
    }
    assert found["decisions", "plan-orders"].verdict is Verdict.WARNING  # nothing has run here yet


def test_nothing_is_written_by_an_examination(world):
    with TableServiceClient.from_connection_string(world.settings["AzureWebJobsStorage"]) as service:
        before = {table.name for table in service.list_tables()}
        world.examined()
        after = {table.name for table in service.list_tables()} - before

    assert after == set()
    assert [e for e in world.stack.call(lambda: list(world.server.ledger)) if e.method != "GET"] == []


def test_an_identity_that_gets_no_token(world):
    world.fault("identity.token", "error", status=400, condition="invalid_request", count=None)
    found = world.examined()
    world.stack.call(world.server.faults.clear)

    told = found["identity", "AzureResourceManager"]
    assert told.verdict is Verdict.FAILED
    assert "managed identity" in told.remedy


@pytest.mark.parametrize(
    ("point", "check", "role"),
    [
        ("arm.get_plan", "capacity", "'Tidemark Plan Scaler'"),
        ("arm.list_autoscale", "autoscale", "'Tidemark Autoscale Reader'"),
    ],
)
def test_a_missing_role_is_named_with_its_place(world, point, check, role):
    world.fault(point, "error", status=403, condition="AuthorizationFailed", count=None)
    found = world.examined()
    world.stack.call(world.server.faults.clear)

    told = found[check, "plan-orders"]
    assert told.verdict is Verdict.FAILED
    assert role in told.remedy


def test_a_role_that_reads_and_does_not_write(world):
    world.stack.call(lambda: world.server.permissions.__setitem__(0, NOT_PLANS))
    found = world.examined()
    world.stack.call(lambda: world.server.permissions.__setitem__(0, ANYTHING))

    told = found["right", "plan-orders"]
    assert told.verdict is Verdict.FAILED
    assert "may not Microsoft.Web/serverfarms/write" in told.found
    assert "'Web Plan Contributor'" in told.remedy
    assert world.settings["ORDERS_PLAN_ID"] in told.remedy


def test_an_identity_that_may_not_ask_what_it_may(world):
    world.fault("arm.get_permissions", "error", status=403, condition="AuthorizationFailed", count=None)
    found = world.examined()
    world.stack.call(world.server.faults.clear)

    assert found["right", "plan-orders"].verdict is Verdict.WARNING
    assert "permissions/read" in found["right", "plan-orders"].remedy


def test_a_plan_that_is_not_there(world):
    found = world.examined(ORDERS_PLAN_ID=world.settings["ORDERS_PLAN_ID"] + "-gone")

    assert found["capacity", "plan-orders"].verdict is Verdict.FAILED
    assert "correct the name" in found["capacity", "plan-orders"].remedy
    assert found["right", "plan-orders"].verdict is Verdict.FAILED


def test_another_autoscaler_on_the_plan(world):
    made = world.stack.call(lambda: world.server.add_autoscale_setting(world.stack.plan_id, "cpu-rule"))
    found = world.examined()
    world.stack.call(lambda: world.server._api.settings.pop(made.lower()))

    told = found["autoscale", "plan-orders"]
    assert told.verdict is Verdict.FAILED
    assert "az monitor autoscale update --name cpu-rule" in told.remedy
    assert world.examined()["autoscale", "plan-orders"].verdict is Verdict.OK


def test_the_platforms_sign_in_against_the_apps(world):
    subscription = world.stack.plan_id.split("/")[2]
    key = f"/subscriptions/{subscription}/resourcegroups/local/providers/microsoft.web/sites/func/config/authsettingsv2"
    resources = world.stack.call(lambda: world.server._api.resources.resources)
    resources[key] = Resource(key, {"properties": {"platform": {"enabled": True}}})
    settings = {
        "WEBSITE_SITE_NAME": "func",
        "WEBSITE_RESOURCE_GROUP": "local",
        "WEBSITE_OWNER_NAME": f"{subscription}+webspace",
        "TIDEMARK_SIGN_IN": "true",
        "WEBSITE_AUTH_ENABLED": "True",
    }
    found = world.examined(**settings)
    world.fault("arm.get_resource", "error", status=403, condition="AuthorizationFailed", count=None)
    refused = world.examined(**settings)
    world.stack.call(world.server.faults.clear)
    del resources[key]

    assert found["sign-in", "TIDEMARK_SIGN_IN"].verdict is Verdict.OK
    assert found["sign-in", "authsettingsV2"].verdict is Verdict.FAILED
    assert "no Microsoft Entra ID" in found["sign-in", "authsettingsV2"].found
    assert "may not read" in refused["sign-in", "authsettingsV2"].found


def test_a_backlog_that_may_not_be_read(world):
    broken = re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", world.settings["OrdersServiceBus"])
    found = world.examined(OrdersServiceBus=broken)

    assert found[METRIC].verdict is Verdict.FAILED
    assert "Azure Service Bus Data Owner" in found[METRIC].remedy


def test_a_service_that_is_not_there(world):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    found = world.examined(AZURE_RESOURCE_MANAGER_ENDPOINT=f"https://localhost:{port}")

    for check in ("capacity", "right", "autoscale", "apps"):
        told = found[check, "plan-orders"]
        assert told.verdict is Verdict.FAILED
        assert "firewall" in told.remedy


STORED = [
    ("storage", "table ScalingState", "Storage Table Data Contributor"),
    ("storage", "table ScalingLog", "Storage Table Data Contributor"),
    ("storage", "queue metrics", "Storage Queue Data Contributor"),
    ("storage", "queue actions", "Storage Queue Data Contributor"),
    ("storage", "container azure-webjobs-hosts", "Storage Blob Data Owner"),
    ("poison", "queues", "Storage Queue Data Reader"),
    ("decisions", "targets", "Storage Table Data Contributor"),
]


def test_storage_that_refuses(world):
    found = world.examined(AzureWebJobsStorage=world.with_wrong_key())

    for check, subject, role in STORED:
        assert found[check, subject].verdict is Verdict.FAILED, subject
        assert role in found[check, subject].remedy


def test_storage_that_may_be_read_and_not_written(world):
    """What a reader's role is in Azure, a signature for reading is here."""
    found = world.examined(AzureWebJobsStorage=for_readers(world.settings["AzureWebJobsStorage"]))

    for check, subject, role in STORED:
        if check == "storage":
            assert found[check, subject].verdict is Verdict.FAILED, subject
            assert role in found[check, subject].remedy
    assert found["poison", "queues"].verdict is Verdict.OK
    assert ("decisions", "targets") not in found  # read, a finding for each target


def for_readers(connection_string):
    parts = dict(part.split("=", 1) for part in connection_string.split(";") if part)
    signature = generate_account_sas(
        account_name=parts["AccountName"],
        account_key=parts["AccountKey"],
        resource_types=ResourceTypes(service=True, container=True, object=True),
        permission=AccountSasPermissions(read=True, list=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
        services="bqt",
    )
    places = ";".join(f"{name}={value}" for name, value in parts.items() if name.endswith("Endpoint"))
    return f"{places};SharedAccessSignature={signature}"


def test_a_queue_that_nobody_empties(world):
    with QueueClient.from_connection_string(world.settings["AzureWebJobsStorage"], "metrics") as queue:
        with contextlib.suppress(ResourceExistsError):
            queue.create_queue()
        queue.send_message("e30=")
        fresh = world.examined()
        stale = world.examined(clock=lambda: time.time() + WAITING_FAILED + 5)
        queue.clear_messages()

    assert fresh["queue", "metrics"].verdict is Verdict.OK
    assert stale["queue", "metrics"].verdict is Verdict.FAILED
    assert "scaling_logic" in stale["queue", "metrics"].remedy


def test_a_message_that_the_host_gave_up_on(world):
    with QueueClient.from_connection_string(world.settings["AzureWebJobsStorage"], "actions-poison") as queue:
        queue.create_queue()
        queue.send_message("eyJhIjogMX0=")
        found = world.examined()
        queue.delete_queue()

    told = found["poison", "queues"]
    assert told.verdict is Verdict.WARNING
    assert '{"a": 1}' in told.found
    assert "actions-poison" in told.remedy


def test_a_clock_schedules_and_a_host_that_are_not_as_they_should_be(world):
    found = world.examined(
        clock=lambda: time.time() + SKEW_WARNED + 5,
        COLLECT_SCHEDULE=None,
        VERIFY_SCHEDULE="0 61 * * * *",
        WEBSITE_TIME_ZONE="Europe/Paris",
        FUNCTIONS_WORKER_RUNTIME="node",
    )
    (clock,) = (each for (check, _), each in found.items() if check == "clock")

    assert (clock.verdict, "ahead of" in clock.found) == (Verdict.WARNING, True)
    assert found["schedule", "COLLECT_SCHEDULE"].found == "not set"
    assert "61" in found["schedule", "VERIFY_SCHEDULE"].found
    assert found["schedule", "WEBSITE_TIME_ZONE"].verdict is Verdict.WARNING
    assert found["versions", "FUNCTIONS_WORKER_RUNTIME"].remedy == "set it to python"


def test_a_state_that_a_newer_release_wrote(world):
    row = {"PartitionKey": key_of("plan-orders"), "RowKey": "state", "Schema": 99, "Data00": "{}"}
    with TableServiceClient.from_connection_string(world.settings["AzureWebJobsStorage"]) as service:
        table = service.create_table_if_not_exists("ScalingState")
        table.upsert_entity(row)
        found = world.examined()
        table.delete_entity(row["PartitionKey"], row["RowKey"])

    assert found["versions", "state"].verdict is Verdict.FAILED
    assert "newer release" in found["versions", "state"].remedy


def test_decisions_that_stopped(world):
    async def one_minute():
        autoscaler = assemble(world.settings, root=ROOT)
        async with contextlib.aclosing(autoscaler):
            for message in (await autoscaler.collect()).messages:
                await autoscaler.evaluate(message)

    asyncio.run(one_minute())
    fresh = world.examined()
    later = world.examined(clock=lambda: time.time() + 600)

    assert fresh["decisions", "plan-orders"].verdict is Verdict.OK
    assert later["decisions", "plan-orders"].verdict is Verdict.FAILED
    assert "collect_metrics" in later["decisions", "plan-orders"].remedy


def test_one_check_that_hangs_holds_no_other(world):
    world.fault("arm.get_permissions", "latency", seconds=60.0)
    settings = {**world.settings}

    async def main():
        begun = time.monotonic()
        checkup = await run(checks_of(Case(settings, ROOT, time.time)), deadline=8.0)
        return checkup, time.monotonic() - begun

    checkup, took = asyncio.run(main())
    world.stack.call(world.server.faults.clear)
    silent = [finding for finding in checkup.findings if finding.verdict is Verdict.UNKNOWN]

    assert [(each.check, each.found) for each in silent] == [("right", "no answer within 8 s")]
    assert checkup.left == 1
    assert took < 20


def test_of_named_targets_only_they_are_examined(world):
    settings = {
        **world.settings,
        "EVENTHUB_NAME": "flights",
        "COSMOS_DATABASE": "flights",
        "COSMOS_CONTAINER": "flights",
    }
    checkup = asyncio.run(examine(Case(settings, ROOT, time.time, ("plan-orders",))))

    assert "receive" not in {finding.check for finding in checkup.findings}


def test_the_command_tells_what_failed_and_ends_with_status_1(world):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    broken = re.sub(r"localhost:\d+", f"localhost:{port}", world.settings["OrdersServiceBus"])
    answer = subprocess.run(
        [sys.executable, "-m", "tidemark", "doctor", "--json"],
        cwd=ROOT,
        env={**os.environ, **world.settings, "OrdersServiceBus": broken, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    told = json.loads(answer.stdout)
    verdicts = {(check["check"], check["subject"]): check["verdict"] for check in told["checks"]}
    assert (answer.returncode, told["healthy"]) == (1, False)
    assert verdicts[METRIC] == "failed"
    assert verdicts["capacity", "plan-orders"] == "ok"
    assert verdicts["write", "container flights/flights"] == "ok"  # the consumer's, of local.settings.json
