"""A local Cosmos DB with its log, an Azurite, and the consumer's settings for them."""

import asyncio
import json
import uuid
from datetime import UTC, datetime, timedelta

from consumer.config import read_config
from consumer.running.assembly import Parts
from devstack.cosmos import CosmosServer

START = datetime(2026, 11, 21, 8, tzinfo=UTC)
HUB = "Endpoint=sb://orders.servicebus.windows.net/;SharedAccessKeyName=listen;SharedAccessKey=c2VjcmV0"


def server():
    """A CosmosServer with the container db/flights."""
    made = CosmosServer()
    made.create_container("db", "flights", "/origin", throughput=1_000_000)
    return made


def settings(connection_string, azurite):
    """The app settings of a consumer, its places in the storage its own."""
    return {
        "EventHubConnection": HUB,
        "CosmosConnection": connection_string,
        "AzureWebJobsStorage": azurite,
        "EVENTHUB_NAME": "flights",
        "COSMOS_DATABASE": "db",
        "COSMOS_CONTAINER": "flights",
        "BLOB_CONTAINER": f"checkpoints-{uuid.uuid4().hex[:12]}",
        "CONSUMER_DEAD_LETTER_CONTAINER": f"letters-{uuid.uuid4().hex[:12]}",
    }


def documents(cosmos):
    """By id, without system properties. On the server's loop."""
    return {
        document["id"]: {name: value for name, value in document.items() if not name.startswith("_")}
        for document in cosmos.documents("db", "flights")
    }


async def dead_letters(environment):
    store = Parts(read_config(environment), environment).dead_letters()
    try:
        return [dead_letter async for dead_letter in store.list()]
    finally:
        await store.aclose()


class Log:
    """What a server did, noted every ten milliseconds: (time, operations, request units)."""

    def __init__(self, cosmos):
        self._cosmos = cosmos
        self.samples = []

    async def keep(self):
        """Until cancelled, on the server's loop."""
        while True:
            stats = self._cosmos.stats()
            units = sum(each.request_units for each in stats.ranges.values())
            self.samples.append((asyncio.get_running_loop().time(), stats.operations, units))
            await asyncio.sleep(0.01)

    def most_within_a_second(self, column):
        most, first = 0.0, 0
        for sample in self.samples:
            while self.samples[first][0] <= sample[0] - 1.0:
                first += 1
            most = max(most, sample[column] - self.samples[first][column])
        return most


def row(number, partition, body, *, hub="flights"):
    """As schema EVENTS."""
    at = START + timedelta(seconds=number)
    kept = None if body is None else bytearray(body)
    return (hub, partition, number, str(number * 100), at, kept, {"source": "test"}, {}, "a.avro")


def flights(partitions=3, count=400, documents=150):
    """Rows of several versions of each document; a document's are in one partition."""
    for partition in range(partitions):
        for number in range(count):
            name = f"p{partition}-{number % documents}"
            body = json.dumps({"id": name, "origin": f"O{sum(name.encode()) % 7}", "version": number})
            yield row(number, str(partition), body.encode())


def latest(rows):
    """Independently: the last version of each document in the order of sequence numbers."""
    found = {}
    for each in sorted(rows, key=lambda each: (each[1], each[2])):
        document = json.loads(bytes(each[5]))
        found[document["id"]] = document
    return found
