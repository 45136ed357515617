"""Session receivers of the unmodified SDK at the local Service Bus."""

import asyncio
from datetime import UTC, datetime

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, SessionCannotBeLockedError

from devstack.service_bus import QueueSettings, ServiceBusServer

pytestmark = pytest.mark.wire


@pytest.fixture
async def server(tmp_path):
    async with ServiceBusServer(ca_dir=tmp_path) as running:
        running.create_queue("orders", QueueSettings(requires_session=True))
        yield running


@pytest.fixture
async def client(server):
    async with ServiceBusClient.from_connection_string(
        server.connection_string, retry_total=0, keep_alive=0
    ) as connected:
        async with connected.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(f"{n}", session_id="s") for n in range(3)])
            await sender.send_messages([ServiceBusMessage("other", session_id="t")])
        yield connected


async def test_a_session_is_received_in_order_by_one_receiver_at_a_time(server, client):
    async with client.get_queue_receiver("orders", session_id=NEXT_AVAILABLE_SESSION) as first:
        assert first.session.session_id == "s"
        received = await first.receive_messages(5, max_wait_time=2)
        for message in received:
            await first.complete_message(message)
        with pytest.raises(SessionCannotBeLockedError):
            async with client.get_queue_receiver("orders", session_id="s"):
                pass
        async with client.get_queue_receiver("orders", session_id=NEXT_AVAILABLE_SESSION) as second:
            assert second.session.session_id == "t"

    assert [str(message) for message in received] == ["0", "1", "2"]
    assert server.counts("orders").active == 1


async def test_a_session_has_a_state_and_a_lock_to_renew(client):
    async with client.get_queue_receiver("orders", session_id="s") as receiver:
        assert await receiver.session.get_state() is None
        await receiver.session.set_state(b"half way")
        assert await receiver.session.get_state() == b"half way"
        assert receiver.session.locked_until_utc > datetime.now(UTC)
        assert await receiver.session.renew_lock() > datetime.now(UTC)


async def test_a_receiver_without_a_session_and_a_message_without_one_are_refused(client):
    with pytest.raises(ServiceBusError, match="receive with a session id"):
        async with client.get_queue_receiver("orders"):
            pass
    async with client.get_queue_sender("orders") as sender:
        with pytest.raises(ServiceBusError, match="without a session id"):
            await sender.send_messages(ServiceBusMessage("no session"))


async def test_the_next_session_is_waited_for_as_long_as_the_client_says(server):
    """L1: it ended in 0.1 s, so that clients asked in a hot loop."""
    loop = asyncio.get_running_loop()
    async with ServiceBusClient.from_connection_string(
        server.connection_string, retry_total=0, keep_alive=0
    ) as client:
        began = loop.time()
        with pytest.raises(OperationTimeoutError):
            async with client.get_queue_receiver(
                "orders", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1.5
            ):
                pass
        assert 1.2 < loop.time() - began < 10

        waiting = asyncio.create_task(take_next(client, seconds=20))
        also = asyncio.create_task(take_next(client, seconds=20))
        await asyncio.sleep(0.7)
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("late", session_id="s"))
            await sender.send_messages(ServiceBusMessage("later", session_id="t"))
        assert sorted(await asyncio.gather(waiting, also)) == [("s", ["late"]), ("t", ["later"])]


async def take_next(client, *, seconds):
    async with client.get_queue_receiver(
        "orders", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=seconds
    ) as receiver:
        received = await receiver.receive_messages(1)
        for message in received:
            await receiver.complete_message(message)
        return receiver.session.session_id, [str(message) for message in received]


async def test_a_session_that_becomes_free_is_given_to_who_waits(client):
    first = client.get_queue_receiver("orders", session_id="s")
    async with first, client.get_queue_receiver("orders", session_id="t"):
        waiting = asyncio.create_task(take_next(client, seconds=20))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await first.close()
        assert await waiting == ("s", ["0"])
