"""The data source "eventhubs" against the local Event Hubs: each event exactly once, over gaps and limits."""

import asyncio

import pytest
from azure.eventhub import EventData
from msgspec import structs

from consumer.receiving.receiver import HubReceiver
from spark_jobs.platform.consumer_hub import hub_on_cosmos
from spark_jobs.sources.event_hubs.positions import Range
from spark_jobs.sources.event_hubs.reading import batches_of
from spark_jobs.sources.event_hubs.settings import HubSettings, created_at
from tests.support.servers.event_hubs import HUB, producing, running_server
from tidemark.analysis.errors import InputError

pytestmark = [pytest.mark.wire, pytest.mark.timeout(1500)]


@pytest.fixture
async def server(tmp_path):
    async with running_server(tmp_path) as running:
        yield running


async def send(server, partition, first, count, **properties):
    async with producing(server) as producer:
        batch = await producer.create_batch(partition_id=partition)
        for number in range(first, first + count):
            event = EventData(b"%s-%d" % (partition.encode(), number))
            event.properties = {"n": number, **properties}
            batch.add(event)
        await producer.send_batch(batch)


def options(server, **more):
    return {"hub": HUB, "secretConnectionString": server.connection_string(), **more}


def task(server, partition, first, last, **more):
    """What one Spark task reads."""
    batches = batches_of(HubSettings.of(options(server, **more)), Range(partition, first, last))
    return [row for batch in batches for row in batch.to_pylist()]


async def test_a_task_reads_its_range_exactly(server):
    await send(server, "0", 0, 1200, half=0.5, flag=True, raw=b"\xff")

    rows = await asyncio.to_thread(task, server, "0", 700, 899)
    stored = server.events(HUB, "0")

    assert [row["sequence_number"] for row in rows] == list(range(700, 900))
    assert [row["body"] for row in rows] == [b"0-%d" % number for number in range(700, 900)]
    assert {(row["hub"], row["partition"], row["file"]) for row in rows} == {(HUB, "0", None)}
    assert dict(rows[0]["properties"]) == {"n": "700", "half": "0.5", "flag": "true", "raw": "/w=="}
    assert [row["offset"] for row in rows] == [str(each.offset) for each in stored[700:900]]


async def test_when_the_hub_was_created_is_what_the_consumer_would_store_of_it(server):
    """By it a reconciliation knows whether checkpoints are of the hub that it reads."""
    settings = {
        "EventHubConnection": server.connection_string(),
        "EVENTHUB_NAME": HUB,
        "COSMOS_DATABASE": "db",
        "COSMOS_CONTAINER": "c",
        "CosmosConnection__accountEndpoint": "https://x.documents.azure.com",
    }
    hub = hub_on_cosmos(settings, "a test reads")
    receiver = HubReceiver(settings, "EventHubConnection", HUB, "$Default")
    await receiver.partitions()
    await receiver.close()

    assert await asyncio.to_thread(created_at, hub, "tidemark") == receiver.created_at
    elsewhere = structs.replace(hub, config=structs.replace(hub.config, hub="another"))
    with pytest.raises(InputError, match="there is no event hub 'another'"):
        await asyncio.to_thread(created_at, elsewhere, "tidemark")


async def test_what_retention_took_fails_the_task_or_is_left_out(server):
    await send(server, "0", 0, 50)
    server.expire(HUB, "0", 20)

    with pytest.raises(InputError, match="partition 0: events 10 to 19 were removed by retention"):
        await asyncio.to_thread(task, server, "0", 10, 29)
    rows = await asyncio.to_thread(task, server, "0", 10, 29, failOnDataLoss="false")
    assert [row["sequence_number"] for row in rows] == list(range(20, 30))
    server.skip_sequence_numbers(HUB, "0", 5)
    await send(server, "0", 50, 5)
    behind = await asyncio.to_thread(task, server, "0", 48, 58, failOnDataLoss="false")
    assert [row["sequence_number"] for row in behind] == [48, 49, 55, 56, 57, 58]
    server.expire(HUB, "0", 60)
    gone = await asyncio.to_thread(task, server, "0", 10, 29, failOnDataLoss="false", receiveTimeout="1")
    assert gone == []


async def test_a_reader_that_owns_the_partition_is_named_as_what_shuts_others_out(server):
    await send(server, "0", 0, 5)
    server.steal(HUB, "0", 7)

    with pytest.raises(InputError, match="give consumerGroup one of its own"):
        await asyncio.to_thread(task, server, "0", 0, 4)
    server.release_intruders()


async def test_of_a_consumer_group_that_is_not_there_is_told_though_the_sdk_says_nothing(server):
    await send(server, "0", 0, 5)

    with pytest.raises(
        InputError, match=r"2 connections in a row gave nothing: .*does the consumer group 'nobody' exist"
    ):
        await asyncio.to_thread(task, server, "0", 0, 4, consumerGroup="nobody", receiveTimeout="1")
