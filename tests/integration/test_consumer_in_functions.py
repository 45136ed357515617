"""The consumer inside the function host, between local servers: in slices on a timer, and behind the trigger."""

import asyncio
import importlib
import logging
import sys
import time

import azure.functions as func
import pytest
from azure.storage.blob.aio import ContainerClient
from sqlalchemy import create_engine, text

from consumer.config import read_config
from consumer.model import Checkpoint
from consumer.running.process import ConsumerProcess
from devstack.function_host import FunctionHost
from devstack.function_host.event_hubs import CHECKPOINTS
from devstack.servers.faults import Fault
from tests.support.consumer.stack import HUB, consumer_world

pytestmark = [pytest.mark.wire, pytest.mark.timeout(90)]

SLICE = 4.0
HOST_JSON = {"version": "2.0", "extensions": {"eventHubs": {"maxEventBatchSize": 200}}}


@pytest.fixture
async def world(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=2) as world:
        yield world


@pytest.fixture
def hosting(monkeypatch, world, caplog):
    """Makes a host of the app's consumer functions, its settings in the environment as in Azure."""

    caplog.set_level(logging.INFO, logger="tidemark.consumer")

    def host(hosting, **settings):
        settings = {
            **world.settings,
            "CONSUMER_HOSTING": hosting,
            "CONSUMER_SLICE": f"{SLICE}s" if hosting == "slices" else "20s",
            "CONSUME_SCHEDULE": "0 0 0 1 1 *",
            "EVENTHUB_CONSUMERGROUP": "$Default",
            **settings,
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delitem(sys.modules, "consumer.web.functions", raising=False)
        app = func.FunctionApp()
        app.register_functions(importlib.import_module("consumer.web.functions").blueprint)
        del sys.modules[
            "consumer.web.functions"
        ]  # not by monkeypatch, which would put it back for later tests
        return FunctionHost(app, settings=settings, host_json=HOST_JSON)

    return host


@pytest.fixture(autouse=True)
async def no_consumer_is_left(monkeypatch):
    """In Azure the trigger's consumer lives as long as the process; here until the end of the test."""
    hosted = importlib.import_module("consumer.running.hosted")
    monkeypatch.setattr(hosted, "_hosted", {})
    yield
    for consumer in hosted._hosted.values():
        await consumer.aclose()


async def checkpoints(world):
    process = ConsumerProcess(read_config(world.settings), world.settings)
    try:
        found = await process.driver.checkpoints.load_all(deadline=asyncio.get_running_loop().time() + 10)
        leases, _ = await process.consumer.leases.list(deadline=asyncio.get_running_loop().time() + 10)
    finally:
        await process._aclose()
        await process.consumer.receiver.close(asyncio.get_running_loop().time() + 5)
    numbers = {name: each.sequence_number for name, each in found.items() if isinstance(each, Checkpoint)}
    return numbers, [lease.owner for lease in leases if lease.owner]


def versions(world):
    """Each write of a document gives it another ETag."""
    return {document["id"]: document["_etag"] for document in world.cosmos.documents("db", "flights")}


async def test_slices_go_on_where_the_last_one_stopped_and_leave_no_lease(world, hosting):
    world.produce(400, partitions=2)
    async with hosting("slices") as host:
        began = time.monotonic()
        first = await host.run_function("consume_slice")
        took = time.monotonic() - began
        assert (first.succeeded, first.error) == (True, "")
        written = versions(world)
        assert len(written) == 400
        assert await checkpoints(world) == ({"0": 199, "1": 199}, [])
        assert took < SLICE + 5.0
        assert any("partition 0: claimed" in line for line in first.log)
        assert any("partition 1: checkpointed at sequence number 199" in line for line in first.log)
        assert any("400 successes, 0 failures, 0 retries" in line for line in first.log)

        world.produce(100, first=400, partitions=2)
        second = await host.run_function("consume_slice")
        assert second.succeeded
        assert versions(world).items() > written.items()
        assert len(world.ids()) == 500

        await spoil_a_checkpoint(world)
        third = await host.run_function("consume_slice")
        assert not third.succeeded
        assert "partition 1: the checkpoint cannot be read" in third.error
        assert (await checkpoints(world))[1] == []


async def spoil_a_checkpoint(world):
    storage, name = world.settings["AzureWebJobsStorage"], world.settings["BLOB_CONTAINER"]
    async with ContainerClient.from_connection_string(storage, name) as container:
        async for blob in container.list_blobs():
            if blob.name.endswith("/checkpoint/1"):
                metadata = {"sequencenumber": "many", "offset": "0"}
                await container.get_blob_client(blob.name).set_blob_metadata(metadata)


async def test_a_slice_run_by_hand_beside_the_scheduled_one_does_no_harm(world, hosting):
    world.produce(600, partitions=2)
    async with hosting("slices") as host:
        records = await asyncio.gather(*(host.run_function("consume_slice") for _ in range(2)))
        written = versions(world)
        records.append(
            await host.run_function("consume_slice")
        )  # a partition may have changed hands too late
    assert [record.error for record in records] == ["", "", ""]
    assert len(world.ids()) == 600
    assert versions(world).items() >= written.items()
    assert await checkpoints(world) == ({"0": 299, "1": 299}, [])


@pytest.mark.parametrize(
    ("settings", "story"),
    [
        ({"CONSUMER_SLICE": "soon"}, "CONSUMER_SLICE is 'soon'; accepted: seconds above 0"),
        ({"EVENTHUB_NAME": "none"}, "none"),
        ({"COSMOS_CONTAINER": "none"}, "container 'none'"),
    ],
)
async def test_a_slice_with_a_wrong_setting_fails_alone_and_says_which(world, hosting, settings, story):
    async with hosting("slices", **settings) as host:
        record = await host.run_function("consume_slice")
    assert not record.succeeded
    assert story in record.error


async def test_the_trigger_writes_every_event_and_a_restarted_host_none_again(world, hosting):
    bodies = [b"poison", b'{"id": "extra", "origin": "X"}']
    world.produce(300, partitions=2)
    world.event_hubs.append(HUB, "0", bodies)
    async with hosting("trigger") as host:
        await world.until(lambda: len(world.ids()) == 301 and all_ended(host))
        assert all(record.succeeded for record in host.invocations), host.invocations[0].error
        assert len(host.invocations) >= 2  # at least one for each partition
    async with hosting("trigger") as again:
        world.produce(10, first=300, partitions=2)
        await world.until(lambda: len(world.ids()) == 311 and all_ended(again))
        assert sum(int(record.reason.split()[0]) for record in again.invocations) == 10


def all_ended(host):
    return host.invocations and all(record.succeeded is not None for record in host.invocations)


async def test_while_the_sink_is_down_the_retry_policy_brings_the_batch_again(world, hosting):
    world.produce(100, partitions=2)
    world.cosmos.inject(Fault("docs.*", "error", count=None, status=429, condition="3200", retry_after=0.2))
    async with hosting("trigger", CONSUMER_SLICE="2s") as host:
        await world.until(lambda: len([r for r in host.invocations if r.succeeded is False]) >= 2)
        assert "429" in next(r.error for r in host.invocations if r.succeeded is False)
        world.cosmos.faults.clear()
        await world.until(lambda: len(world.ids()) == 100)


async def test_a_batch_that_comes_twice_is_in_the_database_once(world, hosting, tmp_path):
    url = f"sqlite:///{tmp_path / 'events.db'}"
    world.produce(40, partitions=2)
    settings = {"CONSUMER_SINK": "sql", "CONSUMER_SQL_URL": url, "CONSUMER_SQL_CREATE_TABLES": "true"}
    storage = world.settings["AzureWebJobsStorage"]
    for _ in range(2):  # without its checkpoints, the host begins anew
        async with hosting("trigger", **settings) as host:
            await world.until(lambda host=host: all_ended(host) and counted(host) >= 40)
            assert all(record.succeeded for record in host.invocations), host.invocations[0].error
        async with ContainerClient.from_connection_string(storage, CHECKPOINTS) as container:
            async for blob in container.list_blobs(f"{world.event_hubs.endpoint.lower()}/"):
                await container.delete_blob(blob.name)
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(text("select * from Events")).all()
    engine.dispose()
    assert len(rows) == len(set(rows)) == 40


def counted(host):
    return sum(int(record.reason.split()[0]) for record in host.invocations)
