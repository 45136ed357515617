"""`tidemark discover` against Resource Manager over the wire: what it writes passes `tidemark lint`."""

import asyncio
import json
import os
from contextlib import aclosing

import pytest
from typer.testing import CliRunner

from devstack.cosmos import CosmosServer
from devstack.event_hubs import EventHubsServer
from devstack.servers.faults import Fault
from devstack.service_bus import ServiceBusServer
from devstack.stack.catalogue import publish
from scaling.scalers.arm.clients import open_resources
from scaling.service.assembly import assemble
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager
from tidemark.__main__ import command_line
from tidemark.commands.discover.reading import SubscriptionReader
from tidemark.commands.discover.writing import written

pytestmark = pytest.mark.wire

GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg"


@pytest.fixture
async def server(tmp_path_factory, monkeypatch):
    async with resource_manager(tmp_path_factory, monkeypatch) as started:
        started.add_plan(SUBSCRIPTION, "rg", "plan-orders", sku="P1v3", capacity=2)
        started.add_plan(SUBSCRIPTION, "rg", "plan-free", sku="EP1")
        add = lambda rest, **document: started.add_resource(f"{GROUP}/providers/{rest}", document)
        bus = "Microsoft.ServiceBus/namespaces/sb"
        add(bus, sku={"name": "Premium", "capacity": 2})
        add(f"{bus}/queues/invoices")
        add(f"{bus}/topics/orders")
        add(f"{bus}/topics/orders/subscriptions/fulfilment")
        store = "Microsoft.Storage/storageAccounts/store"
        add(store, properties={"primaryEndpoints": {"queue": "https://store.queue.core.windows.net/"}})
        add(f"{store}/queueServices/default/queues/work")
        add("Microsoft.App/containerApps/shop", properties={"template": {"scale": {"minReplicas": 1}}})
        yield started


async def read(server):
    async with open_resources(arm_settings(server), patient=True) as client:
        return await SubscriptionReader(client, SUBSCRIPTION).read()


async def test_all_that_can_be_scaled_or_read_is_found(server):
    found = await read(server)

    assert {(each.kind, each.name, each.size) for each in found.targets} == {
        ("app_service_plan", "plan-orders", 2),
        ("container_app_minimum", "shop", 1),
        ("service_bus_messaging_units", "sb", 2),
    }
    assert {(each.kind, each.path, each.host) for each in found.sources} == {
        ("service_bus_queue", ("invoices",), "sb.servicebus.windows.net"),
        ("service_bus_subscription", ("orders", "fulfilment"), "sb.servicebus.windows.net"),
        ("storage_queue", ("work",), "store.queue.core.windows.net"),
    }
    assert [each[:23] for each in found.left_out] == ["plan plan-free: SKU EP1"]
    assert found.unread == ()


async def test_what_may_not_be_read_is_told_and_the_rest_is_found(server):
    server.faults.add(Fault("arm.list_plans", "error", status=403, count=None))

    found = await read(server)

    assert [each.name for each in found.targets] == ["shop", "sb"]
    assert len(found.unread) == 1
    assert "Microsoft.Web/serverfarms: 403" in found.unread[0]


async def test_the_local_stack_is_read_as_a_subscription(server, tmp_path):
    bus, hubs = ServiceBusServer(ca_dir=tmp_path), EventHubsServer(ca_dir=tmp_path)
    async with bus, hubs:
        cosmos = CosmosServer()
        bus.create_topic("orders")
        bus.create_subscription("orders", "fulfilment")
        hubs.ensure_hub("flights", 2, consumer_groups=["tidemark"])
        cosmos.create_container("flights", "flights", "/origin", throughput=400)
        cosmos.create_container("flights", "with odd names", "/origin", throughput=1000)
        publish(server, GROUP, service_bus=bus, event_hubs=hubs, cosmos=cosmos)

        found = await read(server)

        assert {each.path for each in found.sources if each.host == bus.endpoint} == {
            ("orders", "fulfilment")
        }
        assert ("flights", "tidemark") in {each.path for each in found.sources if each.host == hubs.endpoint}
        targets = {each.name: each for each in found.targets}
        flights = targets["flights-flights"]
        assert (flights.kind, flights.size, flights.least) == ("cosmos_throughput", 400, 400)
        assert flights.labels == (("DatabaseName", "flights"), ("CollectionName", "flights"))
        assert flights.note == "container of Cosmos DB account local, 400 RU/s"
        assert targets["flights-with odd names"].size == 1000
        assert targets["local"].kind == "event_hubs_throughput_units"
        assert "flights" not in targets  # the database has no throughput of its own
        assert found.unread == ()
        assert await capacities(found, server, tmp_path) == [each.size for each in found.targets]


async def capacities(found, server, folder):
    """What the scalers of the written file read of each target."""
    made = written(found, {})
    (folder / "tidemark.toml").write_text(made.text, encoding="utf-8")
    settings = {"AzureWebJobsStorage": "UseDevelopmentStorage=true", **arm_settings(server), **made.settings}
    autoscaler = assemble(settings, root=folder)
    scalers = autoscaler.ports.scalers
    async with aclosing(autoscaler):
        return [(await scalers[name].current(name, now=0.0)).current for name in made.targets]


async def test_the_file_that_is_written_passes_lint(server, tmp_path, monkeypatch):
    identity = {name: os.environ[name] for name in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER")}
    values = {"AzureWebJobsStorage": "UseDevelopmentStorage=true", **arm_settings(server), **identity}
    settings, out = tmp_path / "local.settings.json", tmp_path / "tidemark.toml"
    settings.write_text(json.dumps({"Values": values}), encoding="utf-8")
    for name in ("AZURE_SUBSCRIPTION_ID", "AzureWebJobsStorage", *identity):  # a shell has none of them
        monkeypatch.delenv(name, raising=False)

    def run(*words):
        result = CliRunner().invoke(command_line(), [*words, "--root", str(tmp_path)])
        return result.exit_code, " ".join(result.output.split())

    ask = ("discover", "--settings", str(settings), "--subscription", SUBSCRIPTION)
    first = await asyncio.to_thread(run, *ask)
    again = await asyncio.to_thread(run, *ask)
    linted = await asyncio.to_thread(run, "lint")

    assert first[0] == 0
    assert "3 targets in dry-run" in first[1]
    assert f"{out}: 3 targets" in first[1]
    assert first[1].endswith(f"Next: tidemark lint --root {tmp_path}")
    assert again[0] == 1
    assert "is there already" in again[1]
    assert linted[0] == 0, linted[1]
    assert "3 targets checked" in linted[1]
    added = json.loads(settings.read_text(encoding="utf-8"))["Values"]
    assert added == values | {"Sb__fullyQualifiedNamespace": "sb.servicebus.windows.net"} | {
        name: value for name, value in added.items() if name.startswith("Store__")
    }
