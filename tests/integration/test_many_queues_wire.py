"""One metric of all queues, or subscriptions, whose names match a pattern, over real sockets."""

import time

import pytest
from azure.storage.queue.aio import QueueServiceClient

from devstack.amqp.wire.messages import DATA, encode_section
from devstack.servers.faults import Fault
from devstack.service_bus import QueueSettings, ServiceBusServer
from devstack.service_bus.messages.messages import Sent
from scaling.collectors.matching import MatchingCollector
from scaling.collectors.service_bus.collector import ServiceBusQueueCollector, ServiceBusSubscriptionCollector
from scaling.collectors.storage_queue import StorageQueueCollector
from scaling.model import Reason
from scaling.ports import CollectError
from scaling.service.registry import reader_class
from tests.support.servers.service_bus import sdk_drops_its_socket

pytestmark = [pytest.mark.wire, sdk_drops_its_socket]

NOW = 1_700_000_000.0


class World:
    """Queues `orders-0` to `orders-4` with 0 to 4 messages, and one called `other`; the topic `sales` has the like."""

    def __init__(self, server) -> None:
        self.server = server
        self.settings = {"Bus": server.connection_string, "TIDEMARK_CA_BUNDLE": str(server.ca_path)}
        server.create_topic("sales")
        for n, name in enumerate([*(f"Orders-{n}" for n in range(5)), "other"]):
            server.create_queue(name)
            server.create_subscription("sales", name)
            self.put(name, n, age=100 * n)
        self.open: list[MatchingCollector] = []
        self.asked: list[str] = []
        take = server.faults.take
        server.faults.take = lambda where: (self.asked.append(where), take(where))[1]

    def put(self, name, count, *, age=0.0):
        for address in (name, f"sales/subscriptions/{name}"):
            queue = self.server.broker.source(address)
            queue.clock = lambda: time.time() - age
            for _ in range(count):
                queue.send(Sent.parse(encode_section(DATA, b"work")))
            queue.clock = time.time

    def collector(self, pattern="orders-*", *, count="active", kind=ServiceBusQueueCollector, **options):
        names = (
            {"queue": pattern}
            if kind is ServiceBusQueueCollector
            else {"topic": "sales", "subscription": pattern}
        )
        params = kind.Params(connection="Bus", **names, **options)
        assert params.problems() == {}
        self.open.append(MatchingCollector(reader_class(kind, count), params, self.settings))
        return self.open[-1]


@pytest.fixture
async def world(tmp_path_factory):
    async with ServiceBusServer(ca_dir=tmp_path_factory.getbasetemp() / "certificate") as server:
        world = World(server)
        yield world
        for each in world.open:
            await each.aclose()


async def read(collector, count="active", now=NOW):
    return (await collector.collect(now=now)).values[count]


@pytest.mark.parametrize("kind", [ServiceBusQueueCollector, ServiceBusSubscriptionCollector])
@pytest.mark.parametrize(
    ("pattern", "options", "expected"),
    [
        ("orders-*", {}, 10),
        ("ORDERS-?", {"combine": "max"}, 4),
        ("*-1", {}, 1),
        ("*", {}, 15),
    ],
)
async def test_counts_of_all_that_match_are_summed_or_the_highest(world, kind, pattern, options, expected):
    assert await read(world.collector(pattern, kind=kind, **options)) == expected


async def test_they_are_read_by_lists(world):
    queues = world.collector()
    await read(queues)
    world.asked.clear()

    assert await read(queues, now=NOW + 15) == 10
    assert len(world.asked) == 2  # counts and settings of all
    world.asked.clear()
    assert await read(queues, now=NOW + 60) == 10
    assert len(world.asked) == 3  # and their names


async def test_new_ones_are_found_and_gone_ones_leave(world):
    queues = world.collector()
    assert await read(queues) == 10
    world.server.create_queue("orders-new")
    world.server.create_subscription("sales", "orders-new")
    world.put("orders-new", 7)
    world.server.broker.delete("orders-4")

    assert await read(queues, now=NOW + 60) == 13


async def test_no_match_is_missing_unless_it_has_matched_and_empty_says_what_it_counts(world):
    without, given, other = (
        world.collector(),
        world.collector(empty=0.0),
        world.collector("nothing*", empty=0.0),
    )
    with pytest.raises(CollectError, match=r"'nothing\*'.*nothing matches.*empty counts only once"):
        await read(other)
    assert await read(without) == await read(given) == 10
    for n in range(5):
        world.server.broker.delete(f"orders-{n}")

    with pytest.raises(CollectError, match="any more; give empty = 0"):
        await read(without, now=NOW + 60)
    assert await read(given, now=NOW + 60) == 0.0


async def test_a_part_is_not_taken_for_the_whole_and_disabled_ones_have_nothing_to_do(world):
    queues = world.collector()
    world.server.update_queue("orders-4", QueueSettings(status="Disabled"))
    assert await read(queues) == 6
    world.server.faults.add(Fault("admin.get:*", "error", status=500, count=None))
    with pytest.raises(
        CollectError, match=r"'orders-\*'.*5 of 5 cannot be read, the first one: .*Orders-0.*500"
    ):
        await read(queues, now=NOW + 15)
    world.server.faults.clear()
    for n in range(5):
        world.server.update_queue(f"orders-{n}", QueueSettings(status="ReceiveDisabled"))

    with pytest.raises(CollectError, match="all 5 matches are disabled") as raised:
        await read(queues, now=NOW + 2_000)
    assert raised.value.reason is Reason.ENTITY_DISABLED


async def test_ages_are_never_summed_and_take_no_settings_one_by_one(world):
    ages = world.collector(count="oldest_age", combine="sum")

    assert await read(ages, "oldest_age", time.time()) == pytest.approx(400, abs=3)
    assert [where for where in world.asked if where.startswith("admin.")] == ["admin.get:/$Resources/queues"]


async def test_whoever_may_not_list_is_told_the_role(world):
    world.server.faults.add(Fault("admin.get:*", "error", status=401))

    with pytest.raises(CollectError, match=r"access refused.*Azure Service Bus Data Owner"):
        await read(world.collector(count="oldest_age"), "oldest_age")


async def test_storage_queues_are_found_by_their_names(azurite):
    params = StorageQueueCollector.Params(connection="Work", queue=f"many{time.time_ns()}-*")
    async with QueueServiceClient.from_connection_string(azurite) as service:
        for n in range(3):
            queue = await service.create_queue(params.queue.replace("*", str(n)))
            for _ in range(n):
                await queue.send_message("work")
        collector = MatchingCollector(StorageQueueCollector, params, {"Work": azurite})

        found = await collector.collect(now=time.time())
        await service.delete_queue(params.queue.replace("*", "2"))

        assert (found.values["total"], found.values["visible"]) == (3.0, 3.0)
        assert await read(collector, "total", time.time() + 60) == 1.0
        await collector.aclose()
