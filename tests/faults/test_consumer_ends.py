"""What a consumer must not go on with, and where it begins: real parts, a consumer of its own for each situation."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from consumer.config import read_config
from consumer.errors import PositionError
from consumer.model import Checkpoint
from consumer.running.process import ConsumerProcess
from devstack.servers.faults import Fault
from tests.faults.consumer_processes import Ledger, Stores, blob_port, consumer_process, soon, through
from tests.support.consumer.stack import HUB, consumer_world
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.waiting import until

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120)]


@pytest.fixture
async def world(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=2, throughput=20_000) as world:
        world.ledger = Ledger(world)
        yield world


@asynccontextmanager
async def running(world, **settings):
    """A consumer's task; it may end by itself, else it is stopped in order."""
    settings = {**world.settings, **settings}
    stop = asyncio.Event()
    process = ConsumerProcess(read_config(settings), settings)
    task = asyncio.create_task(process.run(stop))
    task.consumer = process
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task}, timeout=30)
    if not task.cancelled() and task.exception() is None:
        await task


def all_written(world):
    return lambda: not world.ledger.missing()


async def has_marks(stores, **wanted):
    found = {name: mark for name, mark in (await stores.marks()).items() if mark >= 0}
    return found == {name.removeprefix("p"): mark for name, mark in wanted.items()}


# --- where it begins


@pytest.mark.parametrize(
    ("problem", "setting", "message"),
    [
        (
            "ahead of the hub",
            "CONSUMER_ON_FOREIGN_CHECKPOINT",
            "it reaches to 5000, the hub's last event is 19",
        ),
        ("corrupt", "CONSUMER_ON_UNREADABLE_CHECKPOINT", "cannot be read"),
    ],
)
async def test_a_checkpoint_that_cannot_be_trusted_is_refused_until_the_operator_decides(
    world, problem, setting, message
):
    world.ledger.send("0", [f"d{number}" for number in range(20)])
    async with Stores(world.settings) as stores:
        number = 5_000 if problem == "ahead of the hub" else 5
        await stores.store.put(Checkpoint("0", number, str(number)), deadline=soon())
        if problem == "corrupt":
            await spoil(stores)

        async with running(world) as task:
            with pytest.raises(PositionError, match=message) as caught:
                await asyncio.wait_for(task, 30)
        assert caught.value.exit_status == 3
        assert world.cosmos.document_count("db", "flights") == 0

        async with running(world, **{setting: "earliest"}):
            await until(all_written(world))
            await until(lambda: has_marks(stores, p0=19))


async def spoil(stores):
    container = stores.store._container
    [name] = [name async for name in container.list_blob_names() if name.endswith("/checkpoint/0")]
    async with container.get_blob_client(name) as blob:
        found = (await blob.get_blob_properties()).metadata
        await blob.set_blob_metadata({**found, "sequencenumber": "seven"})


async def test_events_that_retention_took_are_counted_and_the_rest_is_read_or_the_consumer_stops(world):
    world.ledger.send("0", [f"d{number}" for number in range(20)])
    async with Stores(world.settings) as stores:
        await stores.store.put(
            Checkpoint("0", 4, world.event_hubs.events(HUB, "0")[4].offset), deadline=soon()
        )
    world.event_hubs.expire(HUB, "0", 10)

    async with running(world, CONSUMER_ON_RETENTION_GAP="fail") as task:
        with pytest.raises(PositionError, match="retention took 5 unsettled events"):
            await asyncio.wait_for(task, 30)
    async with running(world) as task:
        await until(lambda: world.cosmos.document_count("db", "flights") == 10)

    assert task.consumer.driver.statistics().totals.expired == 5
    assert world.ledger.missing() == {("0", number) for number in range(10)}


async def test_a_hub_created_anew_while_it_is_read_ends_the_consumer_before_anything_is_skipped(world):
    world.ledger.send("0", [f"old{number}" for number in range(20)])
    async with running(world) as task:
        await until(all_written(world))
        world.event_hubs.recreate_hub(HUB)
        world.ledger.send("0", [f"new{number}" for number in range(50)])  # more than the old one had

        with pytest.raises(PositionError, match="created anew"):
            await asyncio.wait_for(task, 60)

    assert not any(id_.startswith("new") for id_ in world.ids())


@pytest.mark.parametrize("count", [30, 15])
async def test_a_hub_created_anew_between_two_starts_is_refused_until_told_and_replaces_nothing(world, count):
    settings = {"CONSUMER_ID": "position"}
    world.ledger.send("0", [f"old{number}" for number in range(19)])
    world.event_hubs.append(HUB, "0", ["poison"])
    async with running(world, **settings) as task:
        await until(lambda: world.cosmos.document_count("db", "flights") == 19)
        await until(lambda: task.consumer.driver.statistics().backlog_count == 0)
    world.event_hubs.recreate_hub(HUB)
    for _ in range(2):  # the second time its numbers are beyond those of the old one
        world.ledger.send("0", [f"new{number}" for number in range(count)])
        async with running(world, **settings) as task:
            with pytest.raises(PositionError, match="CONSUMER_ON_FOREIGN_CHECKPOINT"):
                await asyncio.wait_for(task, 30)
    world.event_hubs.append(HUB, "0", ["poison"])
    assert world.cosmos.document_count("db", "flights") == 19

    async with running(world, CONSUMER_ON_FOREIGN_CHECKPOINT="earliest", **settings):
        await until(lambda: world.cosmos.document_count("db", "flights") == 19 + 2 * count)
        await until(lambda: has_marks_of(world, 2 * count))
    async with Stores(world.settings) as stores:
        assert len(await stores.dead_letters()) == 2
    async with running(world, **settings):
        world.ledger.send("0", ["last"])
        await until(lambda: world.cosmos.document_count("db", "flights") == 20 + 2 * count)


async def has_marks_of(world, mark):
    async with Stores(world.settings) as stores:
        return (await stores.marks()).get("0") == mark


async def test_what_comes_between_a_start_at_the_latest_and_the_next_one_is_not_lost(world):
    world.ledger.send("0", [f"before{number}" for number in range(20)])
    async with running(world, CONSUMER_START="latest") as task:
        await until(lambda: task.consumer.driver.is_open)
        await until(lambda: len(task.consumer.driver.statistics().partitions) == 2)
    world.ledger.send("0", [f"d{number}" for number in range(30)])
    async with running(world, CONSUMER_START="latest"):
        await until(lambda: world.cosmos.document_count("db", "flights") == 30)

    assert world.ids() == {f"d{number}" for number in range(30)}


async def test_a_position_set_while_a_partition_is_idle_is_gone_to_by_the_consumer_at_work(world):
    world.ledger.send("0", [f"d{number}" for number in range(20)])
    async with running(world) as task:
        await until(all_written(world))
        await until(lambda: task.consumer.driver.statistics().backlog_count == 0)
        async with Stores(world.settings) as stores:
            await until(lambda: has_marks_of(world, 19))
            stored = (await stores.store.load_all(deadline=soon()))["0"]
            await stores.store.put(structs.replace(stored, sequence_number=9, offset=""), deadline=soon())
        await until(lambda: task.consumer.driver.statistics().totals.written == 30)


async def test_without_its_store_at_the_start_it_waits_and_never_begins_at_the_latest(world, azurite, caplog):
    caplog.set_level(logging.INFO, "azure.core.pipeline.policies.http_logging_policy")
    world.ledger.send("0", [f"d{number}" for number in range(20)])
    async with TcpProxy(blob_port(azurite)) as proxy:
        await proxy.refuse()
        async with running(world, AzureWebJobsStorage=through(proxy, azurite)) as task:
            await until(lambda: f"127.0.0.1:{proxy.port}/" in caplog.text)  # it has asked
            world.ledger.send("0", [f"later{number}" for number in range(20)])
            await asyncio.wait({task}, timeout=1.0)
            assert not task.done()
            await proxy.accept()

            await until(all_written(world), within=60.0)


# --- what it must not go on with


async def test_an_event_older_than_allowed_ends_the_process_with_status_4_naming_it_and_the_cause(
    world, tmp_path
):
    world.ledger.send("0", [f"d{number}" for number in range(20)])
    world.cosmos.inject(Fault("op.upsert.d3", "error", count=None, status=503, retry_after=0.2))
    settings = {**world.settings, "ALLOW_BACKLOG_TO": "2s", "CONSUMER_SHUTDOWN": "1s"}

    async with consumer_process(settings, tmp_path / "consumer") as consumer:
        assert await consumer.ended() == 4, consumer.said()

    said = " ".join(consumer.said().split())
    assert "ALLOW_BACKLOG_TO, 2 s; the oldest is sequence number 3 of partition 0" in said
    assert "status 503" in said
    async with Stores(world.settings) as stores:
        assert (await stores.marks()).get("0", -1) < 3


async def test_nothing_but_poison_ends_the_process_with_status_5_before_the_hub_is_drained(world, tmp_path):
    world.event_hubs.append(HUB, "0", ["poison"] * 2_000)

    async with consumer_process(
        {**world.settings, "CONSUMER_POISON_LIMIT": "50"}, tmp_path / "consumer"
    ) as consumer:
        assert await consumer.ended() == 5, consumer.said()

    async with Stores(world.settings) as stores:
        dead_letters = await stores.letter_positions()
        marks = await stores.marks()
    assert 50 <= len(dead_letters) <= 300
    assert all(("0", number) in dead_letters for number in range(marks.get("0", -1) + 1))


async def test_a_dry_run_changes_nothing(world):
    world.ledger.send("0", [f"d{number}" for number in range(20)])
    world.event_hubs.append(HUB, "1", ["poison"])
    async with Stores(world.settings) as stores:
        await stores.store.put(
            Checkpoint("0", 4, world.event_hubs.events(HUB, "0")[4].offset), deadline=soon()
        )
        before = await stores.checkpoints()

        async with running(world, COSMOS_WRITE="false") as task:
            await until(lambda: task.consumer.driver.is_open)
            await until(lambda: task.consumer.driver.statistics().totals.received == 16)
            await until(lambda: task.consumer.driver.statistics().backlog_count == 0)

        assert await stores.checkpoints() == before
        assert await stores.owners() == {}
        assert await stores.dead_letters() == []
    assert world.cosmos.document_count("db", "flights") == 0


async def test_what_is_held_in_memory_is_bounded_by_bytes(world):
    """Events of 100 KB while nothing can be written."""
    world.cosmos.inject(Fault("op.upsert.*", "error", count=None, status=429, retry_after=0.2))
    for partition in ("0", "1"):
        for first in range(0, 60, 5):
            pad = "x" * 100_000
            bodies = [
                f'{{"id":"{partition}-{n}","origin":"x","pad":"{pad}"}}' for n in range(first, first + 5)
            ]
            world.event_hubs.append(HUB, partition, bodies)

    async with running(world, CONSUMER_HIGH_BYTES="4_000_000") as task:
        await until(lambda: task.consumer.driver.is_open)
        await until(lambda: task.consumer.driver.statistics().paused)
        received = task.consumer.driver.statistics().totals.received
        throttled = task.consumer.driver.statistics().totals.throttled
        await until(lambda: task.consumer.driver.statistics().totals.throttled > throttled + 5)
        assert task.consumer.driver.statistics().totals.received == received < 120
        world.cosmos.faults.clear()
        await until(lambda: world.cosmos.document_count("db", "flights") == 120)
