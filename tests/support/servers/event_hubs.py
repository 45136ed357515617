"""Clients of the local Event Hubs as its wire tests use them."""

import asyncio
import contextlib
from contextlib import asynccontextmanager

from azure.eventhub import _client_base as client_base
from azure.eventhub._pyamqp import client as amqp_client
from azure.eventhub._pyamqp.aio import _client_async as async_amqp_client
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.aio import _client_base_async as async_client_base
from azure.eventhub.aio._eventprocessor import event_processor

from devstack.event_hubs import EventHubsServer
from tests.support.waiting import look_sooner, until

HUB, GROUP = "flights", "$Default"
FAST = {"retry_backoff_factor": 0.05, "retry_backoff_max": 0.2}

look_sooner(client_base, amqp_client, async_client_base, async_amqp_client, event_processor)


@asynccontextmanager
async def running_server(folder, *, partitions=2, **options):
    async with EventHubsServer(ca_dir=folder, **options) as server:
        server.ensure_hub(HUB, partitions, consumer_groups=["tidemark"])
        yield server
    await abandon_sockets()


async def abandon_sockets():
    """Closes what the SDK dropped: its socket, open, when the server cuts the connection."""
    for transport in list(asyncio.get_running_loop()._transports.values()):
        transport.abort()
    await asyncio.sleep(0)


@asynccontextmanager
async def producing(server, **options):
    """A producer client."""
    async with EventHubProducerClient.from_connection_string(
        server.connection_string(HUB), **{**FAST, **options}
    ) as client:
        yield client


class Receiving:
    """What a consumer of one or all partitions got so far."""

    def __init__(self):
        self.events = []
        self.errors = []
        self.closed = []
        self.contexts = {}
        self.gate = asyncio.Event()
        self.gate.set()

    def sequence_numbers(self, partition="0"):
        return [event.sequence_number for id_, event in self.events if id_ == partition]

    def bodies(self):
        return [event.body_as_str() for _, event in self.events]

    async def take(self, number):
        """The first events once there are so many."""
        await until(lambda: len(self.events) >= number)
        return [event for _, event in self.events]

    async def on_batch(self, context, events):
        self.contexts[context.partition_id] = context
        self.events += [(context.partition_id, event) for event in events]
        await self.gate.wait()

    async def on_error(self, _context, error):
        self.errors.append(error)

    async def on_close(self, _context, reason):
        self.closed.append(reason)


@asynccontextmanager
async def receiving(server, *, partition="0", start="-1", client_options=None, **options):
    """A consumer at work; with partition None, of all partitions."""
    received = Receiving()
    client = EventHubConsumerClient.from_connection_string(
        server.connection_string(HUB), options.pop("group", GROUP), **{**FAST, **(client_options or {})}
    )
    if partition is not None:
        options["partition_id"] = partition
    task = asyncio.create_task(
        client.receive_batch(
            received.on_batch,
            on_error=received.on_error,
            on_partition_close=received.on_close,
            starting_position=start,
            **options,
        )
    )
    try:
        yield received
    finally:
        received.gate.set()
        await client.close()
        task.cancel()  # it would go on for seconds
        with contextlib.suppress(asyncio.CancelledError):
            await task
