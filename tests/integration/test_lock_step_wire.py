"""Instances and request units in step, with every part real: two scalers, the consumer's rows, the stored state."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.data.tables.aio import TableServiceClient

from devstack.cosmos.server import CosmosServer
from scaling.service.assembly import assemble
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager
from tidemark.foundation.consumer_stats import ConsumerStats, to_row

START = 1_700_000_000.0
POLICY = """
[defaults]
out = {{ cooldown = "0s" }}
in = {{ cooldown = "0s" }}

[targets.{ru}]
scaler = "cosmos_throughput"
connection = "Flights"
database = "demo"
container = "flights"
allow_split = true
minimum = 400
maximum = 100000

[targets.{ru}.metrics.wanted]
collector = "target_capacity"
target = "{plan}"
count = "wanted"
window = "1m"

[targets.{ru}.metrics.charge]
collector = "consumer_telemetry"
connection = "AzureWebJobsStorage"
table = "{table}"
consumer = "flights"
count = "ru_per_record"
window = "1m"

[[targets.{ru}.rules]]
type = "request_units_for_rate"
consumers = "wanted"
rate = 1000
ru_per_record = "charge"
headroom = 1

[targets.{plan}]
scaler = "app_service_plan"
resource_id = "%PLAN_ID%"
poll_interval_seconds = 0.05
maximum = 8

[targets.{plan}.metrics.backlog]
collector = "consumer_telemetry"
connection = "AzureWebJobsStorage"
table = "{table}"
consumer = "flights"
count = "backlog"
window = "1m"

[targets.{plan}.metrics.charge]
collector = "consumer_telemetry"
connection = "AzureWebJobsStorage"
table = "{table}"
consumer = "flights"
count = "ru_per_record"
window = "1m"

[targets.{plan}.metrics.throughput]
collector = "target_capacity"
target = "{ru}"
count = "reached"
window = "1m"

[[targets.{plan}.rules]]
type = "target_per_unit"
metric = "backlog"
target = 1000

[[targets.{plan}.rules]]
type = "within_request_units"
request_units = "throughput"
rate = 1000
ru_per_record = "charge"
headroom = 1
"""

pytestmark = pytest.mark.wire


class World:
    """A plan of 2 instances and a container of 12,000 RU/s, and their autoscaler, a minute at a time."""

    def __init__(self, autoscaler, plan, server: CosmosServer, rows) -> None:
        self.now = START
        self.autoscaler = autoscaler
        self.autoscaler.clock = lambda: self.now
        self.plan = plan
        self.account = server.account
        self.rows = rows
        self.lines: list[str] = []

    @property
    def state(self) -> tuple[int, int]:
        """Instances, and RU/s in units of what one takes."""
        return self.plan.capacity, self.account.find_offer("demo", "flights").level.ru // 6000

    async def minute(self, backlog: int) -> tuple[int, int]:
        self.now += 60
        row = ConsumerStats(
            consumer="flights",
            instance="a",
            at=self.now,
            backlog_count=backlog,
            ru_per_record=6.0,
            written_per_s=900.0,
        )
        await self.rows.upsert_entity(to_row(row))
        collected = await self.autoscaler.collect()
        actions = []
        for report in collected.messages:
            outcome = await self.autoscaler.evaluate(report)
            actions += outcome.messages
            self.lines += outcome.lines
        for action in actions:
            outcome = await self.autoscaler.apply(action)
            self.lines += (*outcome.lines, *outcome.warnings)
        return self.state


@pytest.fixture
async def world(azurite, tmp_path, tmp_path_factory, monkeypatch) -> AsyncIterator[World]:
    unique = uuid4().hex[:8]
    table = f"Stats{unique}"
    (tmp_path / "tidemark.toml").write_text(
        POLICY.format(ru=f"ru-{unique}", plan=f"plan-{unique}", table=table), "utf-8"
    )
    async with (
        resource_manager(tmp_path_factory, monkeypatch) as manager,
        CosmosServer(split_delay=0.0) as server,
        CosmosClient.from_connection_string(server.connection_string) as client,
        TableServiceClient.from_connection_string(azurite) as service,
    ):
        database = await client.create_database("demo")
        await database.create_container("flights", PartitionKey("/id"), offer_throughput=12_000)
        plan_id = manager.add_plan(SUBSCRIPTION, "rg", "plan", sku="S1", capacity=2)
        settings = {
            "AzureWebJobsStorage": azurite,
            "Flights": server.connection_string,
            "PLAN_ID": plan_id,
            **arm_settings(manager),
        }
        rows = await service.create_table(table)
        world = World(assemble(settings, root=tmp_path), manager.plan(plan_id), server, rows)
        yield world
        await world.autoscaler.aclose()


async def test_request_units_rise_before_instances_and_fall_after_them(world):
    seen = [await world.minute(2000), await world.minute(2000)]  # nobody knows of the other at first
    seen += [await world.minute(5000) for _ in range(4)]
    seen += [await world.minute(3000) for _ in range(4)]

    assert all(instances <= affordable for instances, affordable in seen), seen
    assert list(dict.fromkeys(seen)) == [(2, 2), (2, 5), (5, 5), (3, 5), (3, 3)]
    assert any("lock step (throughput 12000 suffices for 2)" in line for line in world.lines)
