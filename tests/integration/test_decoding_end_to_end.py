"""From the official encoder and producer to documents: the registry down at the start, a kill, and what does not decode."""

import json
import logging
import time
from contextlib import asynccontextmanager

import pytest
from azure.core.credentials import AccessToken
from azure.eventhub import EventData, TransportType
from azure.eventhub.aio import EventHubProducerClient
from azure.schemaregistry.aio import SchemaRegistryClient
from azure.schemaregistry.encoder.avroencoder.aio import AvroEncoder

from devstack.resource_manager import ResourceManagerServer
from devstack.schema_registry import SchemaRegistryServer
from devstack.servers.certificates import ensure_certificate
from devstack.servers.faults import Fault
from tests.faults.consumer_processes import QUICK_LEASES, Stores, consumer_process
from tests.support.consumer.stack import consumer_world, flight
from tests.support.servers.event_hubs import HUB
from tests.support.waiting import until

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120)]

FLIGHT = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "origin", "type": "string"},
            {"name": "carrier", "type": "string"},
            {"name": "delay", "type": "long"},
        ],
    }
)
DOWN = Fault("registry.get", "error", None, status=503)
UNKNOWN = "avro/binary+" + "f" * 32


class Token:
    async def get_token(self, *scopes, **options):
        return AccessToken("any", int(time.time()) + 3600)


@asynccontextmanager
async def running(azurite, folder):
    """A world with a registry; `send` is the way of the official SDKs, into one partition."""
    certificate = ensure_certificate(folder / "certificate")
    async with (
        consumer_world(azurite, folder, partitions=2) as world,
        ResourceManagerServer(certificate=certificate) as arm,
        SchemaRegistryServer(certificate) as registry,
    ):
        world.registry = registry
        world.settings |= {
            "CONSUMER_SCHEMA_REGISTRY": "SchemaRegistry",
            "SchemaRegistry__fullyQualifiedNamespace": registry.namespace,
            "TIDEMARK_CA_BUNDLE": str(registry.ca_path),
            "IDENTITY_ENDPOINT": arm.identity_endpoint,
            "IDENTITY_HEADER": arm.identity_header,
        }
        client = SchemaRegistryClient(registry.namespace, Token(), connection_verify=str(registry.ca_path))
        producer = EventHubProducerClient.from_connection_string(
            world.settings["EventHubConnection"],
            eventhub_name=HUB,
            transport_type=TransportType.Amqp,
        )
        async with (
            client,
            producer,
            AvroEncoder(client=client, group_name="g", auto_register=True) as encoder,
        ):

            async def send(numbers, *more):
                batch = await producer.create_batch(partition_id="0")
                for number in numbers:
                    batch.add(await encoder.encode(flight(number), schema=FLIGHT, message_type=EventData))
                for each in more:
                    batch.add(each)
                await producer.send_batch(batch)

            world.send = send
            yield world


def unreadable(content_type, body):
    event = EventData(body)
    event.content_type = content_type
    return event


def documents(world):
    found = world.cosmos.documents("db", "flights")
    return {each["id"]: {name: each[name] for name in flight(0)} for each in found}


async def test_events_of_the_official_encoder_wait_for_their_registry_and_become_documents(
    azurite, tmp_path, caplog
):
    async with running(azurite, tmp_path) as world:
        await world.send(range(100), unreadable(UNKNOWN, b"\x01\xff"))
        schema_of = world.registry.schemas[0].id
        await world.send([], unreadable(f"avro/binary+{schema_of}", b"\x02a"))
        world.registry.faults.add(DOWN)
        world.event_hubs.append(HUB, "1", [json.dumps(flight(n)).encode() for n in range(100, 200)])

        with caplog.at_level(logging.WARNING, "tidemark.consumer"):
            async with world.consuming(), Stores(world.settings) as stores:
                await until(lambda: len(world.ids()) == 100, what="the partition without schemas goes on")
                await until(lambda: "partition 0 waits" in caplog.text, what="the other one waits")
                assert f"the schema registry {world.registry.namespace}" in caplog.text
                assert await stores.dead_letters() == []
                world.registry.faults.clear()
                await until(lambda: len(world.ids()) == 200, what="all are written")
                await until(lambda: _two(stores), what="what does not decode is kept")
                letters = {each.rejection.reason: each for each in await stores.dead_letters()}

        assert documents(world) == {f"f{n}": flight(n) for n in range(200)}
        unknown, broken = letters["schema_unknown"], letters["avro"]
        assert (unknown.event.body, unknown.event.content_type) == (b"\x01\xff", UNKNOWN)
        assert "f" * 32 in unknown.rejection.detail
        assert (broken.event.body, schema_of in broken.rejection.detail) == (b"\x02a", True)


async def _two(stores):
    return len(await stores.dead_letters()) == 2


async def test_a_consumer_that_is_killed_while_it_waits_for_the_registry_loses_nothing(azurite, tmp_path):
    async with running(azurite, tmp_path) as world:
        await world.send(range(300))
        world.registry.faults.add(DOWN)
        settings = {**world.settings, **QUICK_LEASES}
        async with (
            consumer_process(settings, tmp_path / "c") as killed,
            Stores(settings) as stores,
        ):
            await until(lambda: "partition 0 waits" in killed.said(), within=40, what=killed.said)
            await killed.kill()
            await stores.free_leases()
            assert world.ids() == set()
        async with world.consuming(**QUICK_LEASES), Stores(settings) as stores:
            world.registry.faults.clear()
            await until(lambda: len(world.ids()) == 300, within=40, what="the next consumer writes all")
            assert await stores.dead_letters() == []
        assert documents(world) == {f"f{n}": flight(n) for n in range(300)}
