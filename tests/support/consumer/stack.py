"""A local Event Hubs, a local Cosmos DB and Azurite around a real consumer."""

import asyncio
import uuid
from contextlib import asynccontextmanager

import msgspec

from consumer.config import read_config
from consumer.running.process import ConsumerProcess
from devstack.cosmos import CosmosServer
from devstack.event_hubs import EventHubsServer
from tests.support.servers.event_hubs import HUB, abandon_sockets
from tests.support.waiting import until


class ConsumerWorld:
    """The servers run on the test's own loop; documents are read in process."""

    def __init__(self, event_hubs, cosmos, azurite):
        self.event_hubs = event_hubs
        self.cosmos = cosmos
        self.settings = {
            "EventHubConnection": event_hubs.connection_string(),
            "CosmosConnection": cosmos.connection_string,
            "AzureWebJobsStorage": azurite,
            "EVENTHUB_NAME": HUB,
            "COSMOS_DATABASE": "db",
            "COSMOS_CONTAINER": "flights",
            "BLOB_CONTAINER": f"checkpoints-{uuid.uuid4().hex[:12]}",
            "CONSUMER_DEAD_LETTER_CONTAINER": f"letters-{uuid.uuid4().hex[:12]}",
            "CONSUMER_LEASE_INTERVAL": "2s",
            "CONSUMER_LEASE_EXPIRY": "15s",
            "CONSUMER_FLUSH_AFTER": "0.1",
            "CONSUMER_CHECKPOINT_EVERY": "0.5",
            "CONSUMER_SHUTDOWN": "5s",
        }

    def produce(self, count, *, first=0, partitions=4, bodies=None):
        """Flights with the ids `first` to `first + count - 1`, dealt to the partitions."""
        numbers = range(first, first + count)
        for partition in range(partitions):
            mine = [msgspec.json.encode(flight(n)) for n in numbers if n % partitions == partition]
            if mine:
                self.event_hubs.append(HUB, str(partition), mine)

    def ids(self):
        return {document["id"] for document in self.cosmos.documents("db", "flights")}

    def consuming(self, **settings):
        """A consumer at work; stopped in order at the end."""
        return consuming({**self.settings, **settings})

    until = staticmethod(until)


@asynccontextmanager
async def consuming(settings):
    """A consumer at work; stopped in order at the end."""
    stop = asyncio.Event()
    process = ConsumerProcess(read_config(settings), settings)
    task = asyncio.create_task(process.run(stop))
    try:
        yield process
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)


def flight(number):
    return {"id": f"f{number}", "origin": f"O{number % 97}", "carrier": "UA", "delay": number % 60}


@asynccontextmanager
async def consumer_world(azurite, folder, *, partitions=4, throughput=1_000_000):
    async with EventHubsServer(ca_dir=folder) as event_hubs, CosmosServer() as cosmos:
        event_hubs.create_hub(HUB, partitions)
        cosmos.create_container("db", "flights", "/origin", throughput=throughput)
        yield ConsumerWorld(event_hubs, cosmos, azurite)
    await abandon_sockets()
