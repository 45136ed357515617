"""Many queues of a namespace, and subscriptions of a topic, cost a few requests a minute. Over real sockets."""

import asyncio

import pytest
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from devstack.servers.faults import Fault
from devstack.service_bus.server import ServiceBusServer
from scaling.collectors.service_bus.collector import ServiceBusQueueCollector, ServiceBusSubscriptionCollector
from scaling.model import Reason
from scaling.ports import CollectError

pytestmark = pytest.mark.wire

NOW = 1_700_000_000.0


class World:
    """Six queues, and a topic with six subscriptions; the collectors of all of them, which know each other."""

    def __init__(self, server: ServiceBusServer) -> None:
        self.server = server
        settings = {"Orders": server.connection_string, "TIDEMARK_CA_BUNDLE": str(server.ca_path)}
        names = [f"Entity{n}" for n in range(6)]
        server.create_topic("sales")
        for name in names:
            server.create_queue(name)
            server.create_subscription("sales", name)
        queue, subscription = ServiceBusQueueCollector, ServiceBusSubscriptionCollector
        self.queues = [queue(queue.Params(connection="Orders", queue=name), settings) for name in names]
        self.subscriptions = [
            subscription(subscription.Params(connection="Orders", topic="Sales", subscription=name), settings)
            for name in names
        ]
        self.requests: list[str] = []
        take = server.faults.take
        server.faults.take = lambda where: (self.requests.append(where), take(where))[1]

    async def read(self, collectors, now: float = NOW) -> list[float | CollectError]:
        async def one(collector):
            try:
                return (await collector.collect(now=now)).values["active"]
            except CollectError as error:
                return error

        self.requests.clear()
        return await asyncio.gather(*map(one, collectors))

    async def aclose(self) -> None:
        for each in [*self.queues, *self.subscriptions]:
            await each.aclose()


@pytest.fixture
async def world(tmp_path_factory):
    async with ServiceBusServer(ca_dir=tmp_path_factory.getbasetemp() / "certificate") as server:
        world = World(server)
        ServiceBusQueueCollector.together([*world.queues, *world.subscriptions])
        yield world
        await world.aclose()


async def test_queues_and_subscriptions_are_read_by_lists_through_one_client(world):
    assert await world.read(world.queues) == [0.0] * 6
    assert len(world.requests) == 2
    assert await world.read(world.subscriptions) == [0.0] * 6
    assert len(world.requests) == 3
    assert await world.read(world.queues, NOW + 60) == [0.0] * 6
    assert len(world.requests) == 2
    assert len({id(await each._client.get()) for each in [*world.queues, *world.subscriptions]}) == 1


async def test_what_is_listed_is_told_as_what_is_read_alone(world):
    async with _administration(world) as client:
        queue = await client.get_queue("Entity1")
        queue.status = "ReceiveDisabled"
        await client.update_queue(queue)
        await client.delete_queue("Entity2")

    read = await world.read(world.queues)

    assert [each for each in read if each == 0.0] == [0.0] * 4
    assert "the queue has the status ReceiveDisabled" in str(read[1])
    assert read[1].reason is Reason.ENTITY_DISABLED
    assert "does not exist" in str(read[2])


async def test_where_nothing_can_be_listed_each_is_read_by_itself(world):
    world.server.faults.add(Fault("admin.get:/$Resources/*", "error", status=401, count=None))

    assert await world.read(world.queues) == [0.0] * 6
    assert await world.read(world.queues, NOW + 60) == [0.0] * 6
    assert len(world.requests) == 12


async def test_a_busy_namespace_is_left_alone(world):
    world.server.faults.add(
        Fault("admin.get:/$Resources/*", "error", status=503, condition="busy", retry_after=30)
    )

    read = await world.read(world.queues)
    assert all("asked to wait; again in" in str(each) for each in read)
    assert len(world.requests) == 1
    read = await world.read(world.subscriptions)
    assert all("asked to wait; again in" in str(each) for each in read)
    assert world.requests == []


async def test_a_namespace_of_more_pages_than_are_worth_it_is_not_listed(world, monkeypatch):
    monkeypatch.setattr("scaling.collectors.service_bus.collector.PAGE", 0)

    assert await world.read(world.queues) == [0.0] * 6
    assert len(world.requests) == 1 + 12


def _administration(world):
    return ServiceBusAdministrationClient.from_connection_string(
        world.server.connection_string, connection_verify=str(world.server.ca_path)
    )
