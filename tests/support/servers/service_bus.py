"""Clients of the local Service Bus as its wire tests use them."""

from contextlib import asynccontextmanager

import pytest
from azure.servicebus import _servicebus_receiver as receivers
from azure.servicebus import _servicebus_sender as senders
from azure.servicebus._pyamqp import client as amqp_client
from azure.servicebus._pyamqp.aio import _client_async as async_amqp_client
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio import _servicebus_receiver_async as async_receivers
from azure.servicebus.aio import _servicebus_sender_async as async_senders

from devstack.service_bus import ServiceBusServer
from tests.support.servers.threaded import running_in_thread
from tests.support.waiting import look_sooner

look_sooner(receivers, senders, amqp_client, async_receivers, async_senders, async_amqp_client)

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


@pytest.fixture(scope="module")
def threaded(tmp_path_factory):
    """A Service Bus in a thread of its own, for the tests of a file."""
    folder = tmp_path_factory.mktemp("certificate")
    with running_in_thread(lambda: ServiceBusServer(ca_dir=folder)) as running:
        yield running
