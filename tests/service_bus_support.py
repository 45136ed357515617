"""Clients of the local Service Bus as its wire tests use them."""

from contextlib import asynccontextmanager

import pytest
from azure.servicebus.aio import ServiceBusClient

# The SDK drops its socket, open, when the server cuts the connection; the collector finds it at any time.
sdk_drops_its_socket = pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore:loop is closed:ResourceWarning"
)


@asynccontextmanager
async def receiving(server, queue="orders", **options):
    """A receiver of a queue."""
    async with (
        ServiceBusClient.from_connection_string(server.connection_string, keep_alive=0) as client,
        client.get_queue_receiver(queue, **options) as receiver,
    ):
        yield receiver
