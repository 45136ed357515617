import asyncio
import contextlib
import time

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from devstack.amqp.wire.messages import DATA, encode_section
from devstack.servers.faults import Fault
from devstack.service_bus import Counts, QueueSettings, ServiceBusServer
from devstack.service_bus.messages.messages import Sent
from tests.support.servers.event_hubs import abandon_sockets
from tests.support.servers.service_bus import sdk_drops_its_socket

pytestmark = pytest.mark.wire


@pytest.fixture
async def server(tmp_path):
    async with ServiceBusServer(ca_dir=tmp_path) as running:
        running.create_queue("orders")
        yield running


@pytest.fixture
async def client(server):
    async with ServiceBusClient.from_connection_string(
        server.connection_string, retry_total=2, retry_backoff_factor=0.05
    ) as connected:
        yield connected
    await abandon_sockets()  # those that the collector has not found yet


@pytest.fixture
async def sender(client):
    async with client.get_queue_sender("orders", keep_alive=0) as opened:
        yield opened


@pytest.fixture
async def receiver(client):
    async with client.get_queue_receiver("orders", keep_alive=0) as opened:
        yield opened


def put(server, body):
    """Enqueue behind the server's back: opening a sender takes the SDK half a second."""
    server.broker.target("orders").send(Sent.parse(encode_section(DATA, body.encode())))


async def receive(receiver, number):
    received = []
    deadline = time.monotonic() + 15
    while len(received) < number:
        assert time.monotonic() < deadline, f"only {len(received)} of {number} messages came"
        received += await receiver.receive_messages(number - len(received), max_wait_time=3)
    return received


async def send_once(client):
    """As `async with` does it, but closing the sender when opening it fails: the SDK then leaks the socket."""
    sender = client.get_queue_sender("orders", keep_alive=0)
    try:
        await sender.send_messages(ServiceBusMessage("x"))
    finally:
        await sender.close()


async def test_the_async_client_sends_receives_and_settles(server, sender, receiver):
    await sender.send_messages([ServiceBusMessage(str(number)) for number in range(4)])
    done, back, dead, kept = await receive(receiver, 4)

    await receiver.complete_message(done)
    await receiver.abandon_message(back)
    await receiver.dead_letter_message(dead, reason="r")
    await receiver.renew_message_lock(kept)

    [again] = await receive(receiver, 1)
    assert (str(again), again.delivery_count) == ("1", 1)
    assert server.counts("orders") == Counts(active=2, dead_letter=1)


@sdk_drops_its_socket
async def test_a_server_that_is_killed_and_comes_back_is_found_again_by_the_same_clients(
    server, sender, receiver
):
    await sender.send_messages(ServiceBusMessage("before"))
    await receiver.complete_message((await receive(receiver, 1))[0])

    await server.stop()
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("meanwhile"), timeout=1)
    await server.start()
    await sender.send_messages(ServiceBusMessage("after"))
    [message] = await receive(receiver, 1)
    await receiver.complete_message(message)

    assert str(message) == "after"
    assert server.counts("orders") == Counts()


async def test_stopping_releases_the_port_and_leaves_no_connection_open(tmp_path):
    server = ServiceBusServer(ca_dir=tmp_path)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"AMQP\x03\x01\x00\x00")
    assert await reader.readexactly(8) == b"AMQP\x03\x01\x00\x00"

    await server.stop()

    with contextlib.suppress(ConnectionResetError):
        await reader.read()
        await silent_reader.read()
    again = ServiceBusServer(ca_dir=tmp_path, port=server.port)
    await again.start()
    await again.stop()
    for each in (writer, silent_writer):
        each.close()
        with contextlib.suppress(ConnectionError):
            await each.wait_closed()


@sdk_drops_its_socket
@pytest.mark.parametrize("kind", ["drop_connection", "detach"])
async def test_a_link_that_breaks_under_a_message_is_opened_anew_and_the_message_stored_once(
    server, sender, kind
):
    await sender.send_messages(ServiceBusMessage("a"))
    server.faults.add(Fault("send:orders", kind))

    await sender.send_messages(ServiceBusMessage("b"))

    assert server.faults.list() == []
    assert server.counts("orders") == Counts(active=2)


async def test_a_rejected_message_raises_the_error_of_its_condition_and_is_not_stored(server):
    server.faults.add(Fault("send:orders", "error"))
    server.faults.add(Fault("send:orders", "error", condition="com.microsoft:entity-disabled"))
    async with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as impatient,
        impatient.get_queue_sender("orders", keep_alive=0) as sender,
    ):
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(MessagingEntityDisabledError):
            await sender.send_messages(ServiceBusMessage("x"))
    assert server.counts("orders") == Counts()


async def test_a_lost_acknowledgement_of_a_send_stores_the_message_and_leaves_the_sender_in_doubt(
    server, sender
):
    server.faults.add(Fault("send:orders", "drop_ack", count=None))

    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("x"), timeout=0.5)

    assert server.counts("orders").active >= 1


async def test_a_lost_acknowledgement_of_a_completion_leaves_the_message_completed(server, client):
    put(server, "x")
    async with client.get_queue_receiver("orders", keep_alive=0) as receiver:
        [message] = await receive(receiver, 1)
        server.faults.add(Fault("settle:orders", "drop_ack"))
        with contextlib.suppress(ServiceBusError, TimeoutError):
            await asyncio.wait_for(receiver.complete_message(message), 1)

    assert server.faults.list() == []
    assert server.counts("orders") == Counts()


@sdk_drops_its_socket
async def test_a_completion_that_loses_its_connection_is_made_good_through_the_lock_token(server, receiver):
    put(server, "x")
    [message] = await receive(receiver, 1)
    server.faults.add(Fault("settle:orders", "drop_connection"))

    await receiver.complete_message(message)
    assert server.faults.list() == []
    # The SDK settles again over $management when the link gives no answer.
    assert server.counts("orders") == Counts()


@sdk_drops_its_socket
async def test_a_delivery_that_breaks_the_connection_is_delivered_again_after_it(server, receiver):
    server.faults.add(Fault("deliver:orders", "drop_connection"))
    put(server, "x")

    [message] = await receive(receiver, 1)

    assert (str(message), message.delivery_count) == ("x", 0)


async def test_a_refused_attach_a_refused_token_and_a_refused_operation_have_the_error_of_the_fault(server):
    async with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        server.faults.add(Fault("attach:orders", "error", condition="amqp:not-found"))
        with pytest.raises(MessagingEntityNotFoundError):
            await send_once(client)
        server.faults.add(Fault("put-token", "error"))
        with pytest.raises(ServiceBusAuthenticationError):
            await send_once(client)
        async with client.get_queue_receiver("orders", keep_alive=0) as receiver:
            server.faults.add(Fault("manage:orders", "error"))
            with pytest.raises(ServiceBusServerBusyError):
                await receiver.peek_messages(1)
            assert await receiver.peek_messages(1) == []


async def test_latency_delays_the_acknowledgement(server, sender):
    server.faults.add(Fault("send:orders", "latency", seconds=0.3))
    started = time.monotonic()

    await sender.send_messages(ServiceBusMessage("x"))

    assert time.monotonic() - started >= 0.3
    assert server.counts("orders") == Counts(active=1)


async def test_disabling_a_queue_detaches_its_receivers(server):
    async with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        server.update_queue("orders", QueueSettings(status="Disabled"))

        with pytest.raises(MessagingEntityDisabledError):
            await receiver.receive_messages(1, max_wait_time=5)


async def test_faults_are_set_and_cleared_over_plain_http_on_the_same_port(server):
    url = f"http://{server.endpoint}/faults"
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json={"where": "send:orders", "kind": "error", "count": 2}) as added:
            assert added.status == 201
        assert server.faults.list() == [Fault("send:orders", "error", count=2)]
        async with session.get(url) as listed:
            assert [each["where"] for each in await listed.json()] == ["send:orders"]
        async with session.post(url, json={"where": "send:orders", "knd": "error"}) as refused:
            assert refused.status == 400
            assert "'knd'" in (await refused.json())["error"]
        async with session.delete(url) as cleared:
            assert cleared.status == 204
    assert server.faults.list() == []
