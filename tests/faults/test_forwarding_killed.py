"""SIGKILL to a consumer that writes each event to a Delta table, to Parquet files, to another hub and to a queue."""

import asyncio
import json
import os
import random
from collections import Counter

import msgspec
import pytest
from deltalake.exceptions import TableNotFoundError

from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.faults.consumer_processes import QUICK_LEASES, Stores, consumer_process
from tests.support.consumer.lake import delta_rows, parquet_rows
from tests.support.consumer.messaging import decoded
from tests.support.consumer.stack import consumer_world
from tests.support.servers.event_hubs import HUB
from tests.support.waiting import until
from tidemark.foundation.azure.connections import blob_container

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]

FILE = f"""
version = 1

[hubs.flights]
hub = "{HUB}"

[[hubs.flights.routes]]
to = "rows"
also = true
[[hubs.flights.routes]]
to = "files"
also = true
[[hubs.flights.routes]]
to = "copy"
also = true
[[hubs.flights.routes]]
to = "orders"

[sinks.rows]
type = "delta"
uri = "TABLE"
create = true
columns = {{ id = "string not null", delay = "long", number = "long", partition = "string" }}
sources = {{ number = "@sequence_number", partition = "@partition" }}
commit_every = 0.3

[sinks.files]
type = "parquet"
container = "CONTAINER"
create = true
columns = {{ id = "string not null", number = "long" }}
sources = {{ number = "@sequence_number" }}
commit_every = 0.3

[sinks.copy]
type = "event_hubs"
hub = "copies"
connection = "EventHubConnection"
state_container = "CONTAINER"
key = "$.carrier"

[sinks.orders]
type = "service_bus"
queue = "orders"
connection = "Orders"
"""
PARTITIONS = 2
EVENTS = 120
KILLS = int(os.environ.get("TORTURE_KILLS", "20"))


class World:
    def __init__(self, world, queues, folder, container):
        self.world, self.queues, self.container, self.folder = world, queues, container, folder
        self.table = str(folder / "rows")
        text = FILE.replace("TABLE", self.table).replace("CONTAINER", container.container_name)
        (folder / "consumer.toml").write_text(text)
        names = {name: value for name, value in world.settings.items() if name != "EVENTHUB_NAME"}
        file = {"CONSUMER_FILE": str(folder / "consumer.toml"), "Orders": queues.connection_string}
        self.settings = {**names, **QUICK_LEASES, **file}
        self.sent, self.rejected = [], []

    def send(self, count):
        """Events dealt to the partitions; the first one of each has no whole number as `delay`, which the table refuses."""
        for partition in range(PARTITIONS):
            bodies = []
            for place in range(count // PARTITIONS):
                name = f"e{len(self.sent)}"
                self.sent.append(name)
                self.rejected += [name] * (place == 0)
                fields = {"id": name, "carrier": f"C{place % 5}", "delay": "late" if place == 0 else place}
                bodies.append(msgspec.json.encode(fields))
            self.world.event_hubs.append(HUB, str(partition), bodies)

    def consumer(self):
        return consumer_process(self.settings, self.folder / "consumers")

    async def rows(self):
        try:
            return [row["id"] for row in await asyncio.to_thread(delta_rows, self.table)]
        except TableNotFoundError:  # the consumer creates it
            return []

    async def files(self):
        return (
            [row["id"] for row in await parquet_rows(self.container)] if await self.container.exists() else []
        )

    def copies(self):
        stored = [one for id_ in ("0", "1", "2") for one in self.world.event_hubs.events("copies", id_)]
        return [json.loads(b"".join(decoded(one.message).data))["id"] for one in stored]

    def orders(self):
        messages = self.queues.broker.queues["orders"].peek(0, 1_000_000)
        return [json.loads(b"".join(decoded(each.sent.bare).data))["id"] for each in messages]

    async def letters(self):
        async with Stores({**self.settings, "EVENTHUB_NAME": HUB}) as stores:
            return [json.loads(letter.event.body)["id"] for letter in await stores.dead_letters()]


@pytest.fixture
async def world(azurite, tmp_path):
    async with (
        consumer_world(azurite, tmp_path, partitions=PARTITIONS) as world,
        ServiceBusServer(ca_dir=tmp_path) as queues,
    ):
        world.event_hubs.create_hub("copies", 3)
        queues.create_queue("orders", QueueSettings(limits=STANDARD, duplicate_window=3600.0))
        name = f"lake-{os.urandom(6).hex()}"
        async with blob_container(world.settings, "AzureWebJobsStorage", name) as container:
            yield World(world, queues, tmp_path, container)


async def kill_once(world, rng):
    world.send(EVENTS)
    begun = len(world.copies()) + rng.randint(0, EVENTS - 10)
    async with world.consumer() as consumer:
        await until(
            lambda: len(world.copies()) > begun or not consumer.running,
            within=60,
            what=lambda: consumer.said()[-3000:],
        )
        await asyncio.sleep(rng.random())
        await consumer.kill()
    async with Stores({**world.settings, "EVENTHUB_NAME": HUB}) as stores:
        await stores.free_leases()


async def kill_again_and_again(world, kills, seed):
    rng = random.Random(seed)
    for _ in range(kills):
        await kill_once(world, rng)
    async with world.consumer() as consumer:

        async def all_there():
            assert consumer.running, consumer.said()[-3000:]
            counts = len(set(world.copies())), len(set(world.orders())), len(set(await world.files()))
            return set(counts) == {len(world.sent)} and len(await world.rows()) >= len(world.sent) - len(
                world.rejected
            )

        await until(all_there, within=60, what=lambda: consumer.said()[-3000:])
        assert await consumer.stop() == 0, consumer.said()
    once = Counter(world.sent)

    assert Counter(await world.rows()) == once - Counter(world.rejected), f"seed {seed}"
    assert Counter(await world.files()) == once, f"seed {seed}"
    assert Counter(world.copies()) == once, f"seed {seed}"
    assert Counter(world.orders()) == once, f"seed {seed}"
    assert sorted(await world.letters()) == sorted(world.rejected), f"seed {seed}"


async def test_each_sink_has_each_event_once_after_a_kill(world):
    await kill_again_and_again(world, 1, seed=1)


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_each_sink_has_each_event_once_after_many_kills(world):
    await kill_again_and_again(world, KILLS, seed=random.SystemRandom().randint(0, 1 << 30))
