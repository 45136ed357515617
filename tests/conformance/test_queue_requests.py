"""Requests of queues made by hand against the SDK of queues: each takes what the other put, on the wire."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import ResourceNotFoundError, ServiceRequestError, ServiceResponseError
from azure.storage.queue import QueueSasPermissions, generate_queue_sas
from azure.storage.queue.aio import QueueClient

from devstack.function_host.queue_requests import QueueRequests
from tests.conformance.test_table_requests import BUSY, LOST, Scripted
from tidemark.foundation.azure.storage_requests import StorageWire

TEXT = "<a> & \"b\" 'ä€😀'\n"


@pytest.fixture
async def world(azurite):
    """Ours and the SDK's client of one queue, which is not there yet."""
    async with QueueClient.from_connection_string(azurite, f"queue-{uuid.uuid4().hex}") as sdk:
        wire = StorageWire({})
        yield QueueRequests(sdk, wire, 0), sdk
        await wire.aclose()


@pytest.mark.wire
async def test_each_takes_what_the_other_put(world):
    ours, sdk = world
    with pytest.raises(ResourceNotFoundError):
        await ours.take(1, hidden_s=30)
    await ours.create()
    await ours.create()
    await ours.put(TEXT)
    await sdk.send_message("plain")

    [first] = await ours.take(1, hidden_s=30)
    [second] = [message async for message in sdk.receive_messages(visibility_timeout=30)]

    assert {first.content, second.content} == {TEXT, "plain"}
    assert await ours.take(32, hidden_s=30) == []
    assert (first.dequeue_count, first.inserted_on <= datetime.now(UTC) < first.expires_on) == (1, True)


@pytest.mark.wire
async def test_a_message_is_put_back_and_settled_by_the_newest_receipt(world):
    ours, _ = world
    await ours.create()
    await ours.put(TEXT)
    [message] = await ours.take(32, hidden_s=300)
    stale = message.pop_receipt

    await ours.hide(message, 0)
    [again] = await ours.take(32, hidden_s=300)
    await ours.delete(again)

    assert stale not in {message.pop_receipt, again.pop_receipt}
    assert (again.content, again.dequeue_count) == (TEXT, 2)
    with pytest.raises(ResourceNotFoundError):
        await ours.delete(again)


@pytest.mark.wire
async def test_a_shared_access_signature_opens_a_queue(azurite, world):
    ours, sdk = world
    await ours.create()
    await ours.put("seen")
    signature = generate_queue_sas(
        sdk.account_name,
        sdk.queue_name,
        sdk.credential.account_key,
        permission=QueueSasPermissions(process=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    wire = StorageWire({})
    reader = QueueRequests(QueueClient.from_queue_url(sdk.url, signature), wire, 0)

    assert [message.content for message in await reader.take(1, hidden_s=1)] == ["seen"]
    await wire.aclose()


def scripted(*script, retries=3):
    wire = Scripted(*script)
    text = "AccountName=acme;AccountKey=c2VjcmV0;QueueEndpoint=https://acme.queue.core.windows.net"
    return QueueRequests(QueueClient.from_connection_string(text, "metrics"), wire, retries), wire


UNREACHED = ServiceRequestError("no connection")


async def test_a_message_is_put_again_where_it_was_not_taken_only():
    queue, wire = scripted(UNREACHED, BUSY, (201,), LOST)

    await queue.put("x")
    with pytest.raises(ServiceResponseError):
        await queue.put("x")

    assert [method for method, _, _ in wire.sent] == ["POST"] * 4
    assert wire.waited == [0.5, 0.0]


async def test_what_is_no_list_of_messages_is_an_error_that_says_so():
    for body in (
        b"",
        b"<html>",
        b"<QueueMessagesList><QueueMessage><MessageId>1</MessageId></QueueMessage></QueueMessagesList>",
    ):
        queue, _ = scripted((200, {}, body))
        with pytest.raises(ServiceResponseError, match="not a list of messages"):
            await queue.take(1, hidden_s=1)
