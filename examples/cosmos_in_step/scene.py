"""A backlog of 4,000 events: request units rise before the instances come, and fall after they are gone."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from azure.core.exceptions import ResourceExistsError
from azure.storage.blob.aio import BlobServiceClient

from devstack.demo.common import flights
from devstack.stack.supervisor import RESOURCE_GROUP, SUBSCRIPTION
from examples.stage import Stage, beside, until

EVENTS = 4_000
CONTAINER = "/providers/Microsoft.DocumentDB/databaseAccounts/local/sqlDatabases/shop/containers/parcels"
RU_OF_AN_INSTANCE = 400 * 5 * 1.2  # as tidemark.toml says


async def play(stage: Stage) -> list[str]:
    stack, stop = stage.stack, asyncio.Event()
    stack.event_hubs.ensure_hub("parcels", 4, consumer_groups=["tidemark"])
    stack.cosmos.create_container("shop", "parcels", "/id", throughput=2_400)
    arm, account = stack.resource_manager, stack.cosmos.account
    plan = arm.plan(arm.add_plan(SUBSCRIPTION, RESOURCE_GROUP, "plan-parcels", capacity=1, start_delay=0.5))
    stage.settings |= {
        "PARCELS_PLAN_ID": plan.id,
        "PARCELS_CONTAINER_ID": f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}{CONTAINER}",
        "EVENTHUB_NAME": "parcels",
        "EVENTHUB_CONSUMERGROUP": "tidemark",
        "COSMOS_DATABASE": "shop",
        "COSMOS_CONTAINER": "parcels",
        "CONSUMER_NAME": "parcels",
    }
    seen = [(plan.capacity, 2_400)]

    async def watch() -> None:
        """Whatever there was at any time, as often as one can look."""
        while not stop.is_set():
            offer = account.find_offer("shop", "parcels")
            if offer and (plan.capacity, offer.level.ru) != seen[-1]:
                seen.append((plan.capacity, offer.level.ru))
            await asyncio.sleep(0.01)

    async def story() -> None:
        bodies = (msgspec.json.encode({"id": f"parcel-{number}"}) for number in range(EVENTS))
        blobs = BlobServiceClient.from_connection_string(stage.settings["AzureWebJobsStorage"])
        async with blobs:  # what the consumer makes at its first start
            with contextlib.suppress(ResourceExistsError):
                await blobs.create_container("eventhub-checkpoints")
        await flights.send(stage.settings["EventHubConnection"], "parcels", bodies, at_once=500)
        async with stage.functions():
            await until(lambda: plan.capacity == 4)
            await stage.tidemark("consume", "--until", "latest")  # stands for the apps of the plan
            await until(lambda: len(seen) > 2 and seen[-1] == seen[0])

    await beside(watch(), stop, story())
    await stage.tidemark("log", "--changes")
    assert all(instances * RU_OF_AN_INSTANCE <= units for instances, units in seen), seen
    documents = sum(1 for _ in stack.cosmos.account.databases["shop"].containers["parcels"].documents())
    assert documents == EVENTS
    return [
        f"instances and RU/s: {', '.join(f'{instances} at {units:,}' for instances, units in seen)}",
        f"at every moment {RU_OF_AN_INSTANCE:,.0f} RU/s or more for each instance",
        f"{documents:,} of {EVENTS:,} events are documents",
    ]
