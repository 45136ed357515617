"""Claim checks over the wire: the body goes to a blob, the receiver gets it back."""

import asyncio
import inspect
import uuid
from functools import partial
from types import SimpleNamespace
from typing import get_type_hints

import pytest
from azure.servicebus import ServiceBusClient as SyncServiceBusClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.storage.blob.aio import ContainerClient

from devstack.demo import large_messages
from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.support.servers.service_bus import receiving
from tests.support.servers.threaded import running_in_thread
from tidemark.publisher.service_bus.claim_check import ClaimCheck, SyncClaimCheck
from tidemark.publisher.service_bus.claim_receiver import (
    ClaimPolicy,
    ClaimReceiver,
    Processed,
    SyncClaimReceiver,
    restores_claims,
)
from tidemark.publisher.service_bus.core.claims import ClaimSettings
from tidemark.publisher.service_bus.core.errors import (
    ClaimDamagedError,
    ClaimMissingError,
    PartiallySentError,
)
from tidemark.publisher.service_bus.core.sending import SendPolicy
from tidemark.publisher.service_bus.sender import BigBatchSender
from tidemark.publisher.service_bus.sync_sender import SyncBigBatchSender

pytestmark = pytest.mark.wire

BIG = bytes(range(256)) * 2000  # 512 000 bytes


@pytest.fixture
async def server(tmp_path):
    async with ServiceBusServer(ca_dir=tmp_path) as running:
        running.create_queue("orders", QueueSettings(limits=STANDARD))
        yield running


@pytest.fixture
def place():
    return f"claims-{uuid.uuid4().hex}"


def sender_to(server, claim_check, **options):
    return BigBatchSender.from_connection_string(
        server.connection_string,
        queue_name="orders",
        claim_check=claim_check,
        client_options={"keep_alive": 0},
        policy=SendPolicy(attempts=2, retry_delay=0.01),
        **options,
    )


async def blobs(connection, place):
    async with ContainerClient.from_connection_string(connection, place) as container:
        return [blob.name async for blob in container.list_blobs()]


async def test_a_body_too_large_travels_by_blob_and_is_deleted_with_its_message(server, azurite, place):
    async with ClaimCheck.from_connection_string(azurite, place) as claim_check:
        await claim_check.ensure_container()
        await claim_check.ensure_container()
        messages = [b"small", ServiceBusMessage(BIG, message_id="big", subject="kept"), b"last"]
        async with sender_to(server, claim_check) as sender:
            report = await sender.send(messages)
        stored = await blobs(azurite, place)
        async with receiving(server) as receiver:
            received = await receiver.receive_messages(5, max_wait_time=2)
            bodies = [await claim_check.restore(message) for message in received]
            for message in received:
                await claim_check.complete(receiver, message)

    assert report.complete
    assert (report.batches, report.claims) == (1, 1)
    assert bodies == [b"small", BIG, b"last"]
    assert received[1].subject == "kept"
    assert len(stored) == 1
    assert await blobs(azurite, place) == []
    assert server.counts("orders").active == 0


async def test_a_missing_or_changed_blob_is_told_apart(server, azurite, place):
    async with ClaimCheck.from_connection_string(azurite, place) as claim_check:
        await claim_check.ensure_container()
        async with sender_to(server, claim_check) as sender:
            await sender.send([BIG])
        (name,) = await blobs(azurite, place)
        async with (
            receiving(server) as receiver,
            ContainerClient.from_connection_string(azurite, place) as container,
        ):
            (message,) = await receiver.receive_messages(1, max_wait_time=2)
            await container.upload_blob(name, b"something else", overwrite=True)
            with pytest.raises(ClaimDamagedError, match="holds 14 bytes"):
                await claim_check.restore(message)
            await container.delete_blob(name)
            with pytest.raises(ClaimMissingError, match="does not exist: it has expired"):
                await claim_check.restore(message)
            await claim_check.complete(receiver, message)


async def test_equal_bodies_share_a_blob_that_no_receiver_deletes(server, azurite, place):
    settings = ClaimSettings(above=1000, naming="content")
    async with ClaimCheck.from_connection_string(azurite, place, settings) as claim_check:
        await claim_check.ensure_container()
        async with sender_to(server, claim_check) as sender:
            report = await sender.send([bytes(2000), bytes(2000)])
        async with receiving(server) as receiver:
            for message in await receiver.receive_messages(5, max_wait_time=2):
                assert await claim_check.restore(message) == bytes(2000)
                await claim_check.complete(receiver, message)

    assert report.claims == 2
    assert len(await blobs(azurite, place)) == 1


async def test_a_container_that_is_missing_stops_the_call_before_the_message_is_sent(server, azurite, place):
    async with (
        ClaimCheck.from_connection_string(azurite, place, retry_total=0) as claim_check,
        sender_to(server, claim_check) as sender,
    ):
        with pytest.raises(
            PartiallySentError, match=r"answered 404 ContainerNotFound.*1 not sent"
        ) as failure:
            await sender.send([BIG])
        await claim_check.ensure_container()
        report = await sender.resume(failure.value.report)

    assert report.complete
    assert report.claims == 1


def test_the_blocking_side_does_the_same(tmp_path, azurite, place):
    with (
        running_in_thread(lambda: ServiceBusServer(ca_dir=tmp_path)) as threaded,
        SyncClaimCheck.from_connection_string(azurite, place) as claim_check,
    ):
        server = threaded.server
        threaded.call(lambda: server.create_queue("orders", QueueSettings(limits=STANDARD)))
        claim_check.ensure_container()
        with SyncBigBatchSender.from_connection_string(
            server.connection_string,
            queue_name="orders",
            claim_check=claim_check,
            client_options={"keep_alive": 0},
        ) as sender:
            sender.send([b"small", BIG])
        with (
            SyncServiceBusClient.from_connection_string(server.connection_string, keep_alive=0) as client,
            client.get_queue_receiver("orders") as receiver,
        ):
            received = receiver.receive_messages(5, max_wait_time=2)
            bodies = [claim_check.restore(message) for message in received]
            for message in received:
                claim_check.complete(receiver, message)
        assert bodies == [b"small", BIG]

        sender = partial(
            SyncBigBatchSender.from_connection_string, server.connection_string, claim_check=claim_check
        )
        with sender(queue_name="orders", client_options={"keep_alive": 0}) as sending:
            sending.send([b"small", ServiceBusMessage(BIG, message_id="big")])
            sending.send([ServiceBusMessage(BIG, message_id="big")])
        bodies.clear()
        with (
            SyncServiceBusClient.from_connection_string(server.connection_string, keep_alive=0) as client,
            client.get_queue_receiver("orders", max_wait_time=1) as receiver,
        ):
            counts = SyncClaimReceiver(receiver, claim_check).process_all(lambda _, body: bodies.append(body))

    assert bodies == [b"small", BIG]
    assert {what: count for what, count in counts.items() if count} == {
        Processed.COMPLETED: 2,
        Processed.DUPLICATE: 1,
    }


async def test_every_subscription_of_a_topic_gets_the_body_unless_a_policy_takes_it(server, azurite, place):
    """The copies of a message share its blob."""
    server.create_topic("news", limits=STANDARD)
    for name in ("a", "b"):
        server.create_subscription("news", name)
    bodies = []
    async with ClaimCheck.from_connection_string(azurite, place) as claim_check:
        await claim_check.ensure_container()
        sender = BigBatchSender.from_connection_string(
            server.connection_string,
            topic_name="news",
            claim_check=claim_check,
            client_options={"keep_alive": 0},
        )
        async with sender:
            await sender.send([ServiceBusMessage(BIG, message_id="big")])
        found = []
        async with ServiceBusClient.from_connection_string(server.connection_string, keep_alive=0) as client:
            for name in ("a", "b"):
                async with client.get_subscription_receiver("news", name, max_wait_time=2) as receiver:
                    (message,) = await receiver.receive_messages(1)
                    claims = ClaimReceiver(receiver, claim_check)
                    found.append(await claims.process(message, lambda _, body: bodies.append(body)))

    assert (found, bodies) == ([Processed.COMPLETED] * 2, [BIG] * 2)


async def test_the_demo_sends_messages_of_any_size_and_processes_each_once(server, azurite):
    outcome = await large_messages.carry_out(server, azurite)

    assert outcome.holds, outcome
    assert outcome.batches == 2


async def sent(server, claim_check, count=1):
    """Each time the same message: the sender doubles what was sent without an answer."""
    for _ in range(count):
        async with sender_to(server, claim_check) as sender:
            await sender.send([ServiceBusMessage(BIG, message_id="big")])


async def deliver(server, claim_check, handler, policy, **faults):
    async with receiving(server) as receiver:
        for name, error in faults.items():
            setattr(receiver, name, error)
        (message,) = await receiver.receive_messages(1, max_wait_time=2)
        outcome = await ClaimReceiver(receiver, claim_check, policy).process(message, handler)
        if outcome is Processed.UNSETTLED:
            await receiver.abandon_message(message)  # as if its lock had expired
        return outcome


def fails(*_, **__):
    raise OSError("the connection is lost")


@pytest.mark.parametrize(
    ("after", "wanted", "calls", "left"),
    [
        ("mark", [Processed.UNSETTLED, Processed.DUPLICATE, Processed.DUPLICATE], 1, 1),
        ("delete", [Processed.UNSETTLED, Processed.COMPLETED, Processed.DEAD_LETTERED], 2, 0),
        ("keep", [Processed.UNSETTLED, Processed.COMPLETED, Processed.COMPLETED], 3, 1),
    ],
)
async def test_a_message_is_completed_after_its_handler_and_another_delivery_or_copy_is_known_by_the_mark(
    server, azurite, place, after, wanted, calls, left
):
    """The first completion is lost, so the message is delivered again; then comes a copy that the sender sent twice."""
    bodies = []
    async with ClaimCheck.from_connection_string(azurite, place) as claim_check:
        await claim_check.ensure_container()
        await sent(server, claim_check)
        policy = ClaimPolicy(after=after)

        def handle(_, body):
            bodies.append(body)

        found = [await deliver(server, claim_check, handle, policy, complete_message=fails)]
        async with receiving(server) as receiver:
            (again,) = await receiver.receive_messages(1, max_wait_time=2)
            await receiver.abandon_message(again)
        found.append(await deliver(server, claim_check, handle, policy))
        if after == "delete":  # the sender's second copy was sent before the blob was gone
            async with sender_to(server, None) as sender:
                await sender.send([again])
        else:
            await sent(server, claim_check)
        found.append(await deliver(server, claim_check, handle, policy))

    assert found == wanted
    assert bodies == [BIG] * calls
    assert len(await blobs(azurite, place)) == left


@pytest.mark.parametrize(
    ("gone", "wanted"), [("dead_letter", Processed.DEAD_LETTERED), ("abandon", Processed.ABANDONED)]
)
async def test_a_message_without_its_blob_and_one_whose_handler_fails_are_settled_by_the_policy(
    server, azurite, place, gone, wanted
):
    async with ClaimCheck.from_connection_string(azurite, place) as claim_check:
        await claim_check.ensure_container()
        await sent(server, claim_check)
        policy = ClaimPolicy(gone=gone)
        assert await deliver(server, claim_check, fails, policy) is Processed.ABANDONED
        (name,) = await blobs(azurite, place)
        async with ContainerClient.from_connection_string(azurite, place) as container:
            await container.delete_blob(name)
        assert await deliver(server, claim_check, fails, policy) is wanted
    counts = server.counts("orders")
    assert (counts.dead_letter if gone == "dead_letter" else counts.active) == 1


async def test_a_function_gets_the_body_once_and_another_delivery_returns_without_a_call(
    server, azurite, place
):
    calls = []
    async with ClaimCheck.from_connection_string(azurite, place) as claim_check:
        await claim_check.ensure_container()
        await sent(server, claim_check)

        @restores_claims(claim_check)
        async def function(msg: SimpleNamespace, body: bytes, context: str = "") -> int:
            calls.append((msg.message_id, body, context))
            return len(body)

        async with receiving(server) as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=2)
            of_functions = SimpleNamespace(
                get_body=bytes,
                message_id=message.message_id,
                application_properties=message.application_properties,
            )
            assert await function(msg=of_functions, context="c") == len(BIG)
            assert await function(of_functions) is None

    assert list(inspect.signature(function).parameters) == ["msg", "context"]
    assert set(get_type_hints(function)) == {"msg", "context", "return"}
    assert calls == [("big", BIG, "c")]


async def test_a_blocking_function_gets_the_body_by_a_blocking_claim_check(server, azurite, place):
    async with ClaimCheck.from_connection_string(azurite, place) as claim_check:
        await claim_check.ensure_container()
        await sent(server, claim_check)
    async with receiving(server) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=2)
    bodies = []

    def work():
        with SyncClaimCheck.from_connection_string(azurite, place) as blocking:

            @restores_claims(blocking, after="delete")
            def function(message, body):
                bodies.append(body)

            function(message)
            with pytest.raises(ClaimMissingError):
                function(message)

    await asyncio.to_thread(work)
    assert bodies == [BIG]
    assert await blobs(azurite, place) == []
