"""What a user writes with the bare SDKs. Nobody checkpoints here, nobody retries, dead-letters or keeps an order:
each peer does less than the consumer.

"Tuned" clients have the two public options that halve the CPU of a request: no documents in the answers, and no
look at the environment for proxies before each one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient

from benchmarks.consumer.meter import Meter
from benchmarks.consumer.world import CONTAINER, DATABASE, HUB, World
from consumer.receiving.receiver import ReceiverOptions

RECORDS_ONE_BY_ONE, RECORDS_CONCURRENT, RECORDS_BATCHES = 2_000, 4_000, 20_000
CONCURRENCY = 128
BATCHES_AT_ONCE = 8
GATHERED = 5_000  # 50 of each partition key

OnBatch = Callable[[ContainerProxy, Sequence[EventData]], Awaitable[int]]
"""Gives the number of events written by now."""


async def one_by_one(world: World, meter: Meter, **client: Any) -> None:
    async def write(container: ContainerProxy, events: Sequence[EventData]) -> int:
        for event in events:
            await container.upsert_item(event.body_as_json())
        return len(events)

    await _loop(world, meter, write, RECORDS_ONE_BY_ONE, client)


async def one_by_one_tuned(world: World, meter: Meter) -> None:
    await one_by_one(world, meter, **_tuned())


async def concurrent(world: World, meter: Meter, **client: Any) -> None:
    free = asyncio.Semaphore(CONCURRENCY)

    async def upsert(container: ContainerProxy, event: EventData) -> None:
        async with free:
            await container.upsert_item(event.body_as_json())

    async def write(container: ContainerProxy, events: Sequence[EventData]) -> int:
        await asyncio.gather(*(upsert(container, event) for event in events))
        return len(events)

    await _loop(world, meter, write, RECORDS_CONCURRENT, client)


async def concurrent_tuned(world: World, meter: Meter) -> None:
    await concurrent(world, meter, **_tuned())


async def batches(world: World, meter: Meter) -> None:
    """The public transactional batch; tuned client.

    The SDK hands over whatever it has, often ten events: they are gathered first, so that batches are worth it.
    """
    free = asyncio.Semaphore(BATCHES_AT_ONCE)
    gathered: list[EventData] = []

    async def send(container: ContainerProxy, key: str, documents: Sequence[dict[str, Any]]) -> None:
        async with free:
            operations = [("upsert", (document,)) for document in documents]
            await container.execute_item_batch(operations, partition_key=key)

    async def write(container: ContainerProxy, events: Sequence[EventData]) -> int:
        gathered.extend(events)
        if len(gathered) < GATHERED:
            return 0
        ready = gathered.copy()
        gathered.clear()
        by_key = defaultdict(list)
        for event in ready:
            document = json.loads(event.body_as_str())
            by_key[document["device"]].append(document)
        await asyncio.gather(
            *(
                send(container, key, documents[start : start + 100])
                for key, documents in by_key.items()
                for start in range(0, len(documents), 100)
            )
        )
        return len(ready)

    await _loop(world, meter, write, RECORDS_BATCHES, _tuned(), {"prefetch": 3_000, "max_batch_size": 500})


async def receiving_by_default(world: World, meter: Meter) -> None:
    await _receive(world, meter, {})


async def receiving_as_we_do(world: World, meter: Meter) -> None:
    options = ReceiverOptions()
    await _receive(world, meter, {"prefetch": options.prefetch, "max_batch_size": options.batch})


def _tuned() -> dict[str, Any]:
    return {"no_response_on_write": True, "transport": AioHttpTransport(use_env_settings=False)}


async def _loop(
    world: World,
    meter: Meter,
    write: OnBatch,
    records: int,
    cosmos: dict[str, Any],
    received: dict[str, Any] | None = None,
) -> None:
    """Receives from all partitions and writes until so many are written."""
    written = 0
    meter.begin()
    async with CosmosClient.from_connection_string(world.cosmos_connection, **cosmos) as client:
        container = client.get_database_client(DATABASE).get_container_client(CONTAINER)
        everything: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def on_batch(_context: object, events: Sequence[EventData]) -> None:
            nonlocal written
            meter.first()
            try:
                more = await write(container, events)
            except Exception as error:
                everything.set_exception(error)
                raise
            written += more
            if written >= records:
                if not everything.done():
                    meter.done(written)
                    everything.set_result(None)
                await asyncio.Event().wait()  # no work beyond what is measured

        async with _receiving(world, on_batch, received or {}):
            await everything


async def _receive(world: World, meter: Meter, received: dict[str, Any]) -> None:
    count = 0
    everything = asyncio.Event()

    async def on_batch(_context: object, events: Sequence[EventData]) -> None:
        nonlocal count
        meter.first()
        count += len(events)
        if count >= world.records:
            everything.set()

    meter.begin()
    async with _receiving(world, on_batch, received):
        await everything.wait()
        meter.done(count)


@asynccontextmanager
async def _receiving(
    world: World, on_batch: Callable[..., Awaitable[None]], received: dict[str, Any]
) -> AsyncIterator[None]:
    client = EventHubConsumerClient.from_connection_string(world.event_hubs, "$Default", eventhub_name=HUB)
    task = asyncio.create_task(client.receive_batch(on_batch, starting_position="-1", **received))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
        await client.close()
