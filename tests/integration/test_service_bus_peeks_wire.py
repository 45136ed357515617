"""Ages and sessions of Service Bus by the unmodified SDK, at the local Service Bus."""

import asyncio
import time
from contextlib import aclosing

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from devstack.amqp.wire.messages import DATA, MESSAGE_ANNOTATIONS, VALUE, encode_section
from devstack.amqp.wire.values import Symbol
from devstack.servers.faults import Fault
from devstack.service_bus import EntityLimits, QueueSettings, ServiceBusServer
from devstack.service_bus.messages.messages import Sent
from scaling.collectors.service_bus.collector import ServiceBusQueueCollector, ServiceBusSubscriptionCollector
from scaling.collectors.target_capacity import TargetCapacityCollector
from scaling.model import Reason
from scaling.ports import CollectError, Reading
from scaling.service.registry import reader_class
from tests.support.servers.service_bus import sdk_drops_its_socket

pytestmark = [pytest.mark.wire, sdk_drops_its_socket]

QUEUE = ServiceBusQueueCollector, {"queue": "orders"}
SUBSCRIPTION = ServiceBusSubscriptionCollector, {"topic": "sales", "subscription": "billing"}
PARTITIONED = QueueSettings(limits=EntityLimits(partitioned=True))


class World:
    """A namespace whose clock runs `behind` ours, so that messages are sent in the past."""

    def __init__(self, folder) -> None:
        self.behind = 0.0
        self.server = ServiceBusServer(ca_dir=folder, clock=lambda: time.time() - self.behind)
        self.server.create_topic("sales")
        self.server.create_subscription("sales", "billing")
        self.server.create_queue("orders")
        self.server.create_queue("parts", PARTITIONED)
        self.server.create_queue("talks", QueueSettings(requires_session=True))
        self.asked: list[str] = []
        take = self.server.faults.take
        self.server.faults.take = lambda where: (self.asked.append(where), take(where))[1]

    def put(self, name, age, *sections, key=None):
        """A message that came so many seconds ago."""
        self.behind = age
        annotations = (
            encode_section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): key}) if key else b""
        )
        body = b"".join(sections) or encode_section(DATA, b"work")
        self.server.broker.target(name).send(Sent.parse(annotations + body))
        self.behind = 0.0

    async def read(self, count, kind=QUEUE, settings=None, deadline=5.0, **options):
        """The count, and the requests that the read took."""
        cls, names = kind
        own = settings or {"Orders": self.server.connection_string}
        params = cls.Params(connection="Orders", **{**names, **options})
        collector = reader_class(cls, count)(
            params, {**own, "TIDEMARK_CA_BUNDLE": str(self.server.ca_path)}, deadline=deadline
        )
        self.asked.clear()
        async with aclosing(collector):
            return (await collector.collect(now=time.time())).values[count]

    def requests(self, beginning):
        return sum(where.startswith(beginning) for where in self.asked)


@pytest.fixture
async def world(tmp_path_factory):
    world = World(tmp_path_factory.getbasetemp() / "certificate")
    async with world.server:
        yield world


@pytest.mark.parametrize(
    ("kind", "name", "path"), [(QUEUE, "orders", "orders"), (SUBSCRIPTION, "sales", None)]
)
async def test_the_age_counts_what_is_processed_and_nothing_that_nobody_can_receive(world, kind, name, path):
    assert await world.read("oldest_age", kind) == 0.0
    world.put(name, 900)
    async with ServiceBusClient.from_connection_string(world.server.connection_string) as client:
        receiver = (
            client.get_queue_receiver("orders")
            if path
            else client.get_subscription_receiver("sales", "billing")
        )
        async with receiver:
            [message] = await receiver.receive_messages(1, max_wait_time=2)
            await receiver.defer_message(message)
            world.put(name, 300)
            world.put(name, 200)
            await receiver.receive_messages(1, max_wait_time=2)  # and is being processed

            assert await world.read("oldest_age", kind) == pytest.approx(300, abs=3)
            assert world.requests("manage:") == 2  # the deferred one, then a page
            assert await world.read("oldest_age", kind, held=1) == pytest.approx(200, abs=3)
            assert await world.read("oldest_age", kind, held=2) == 0.0
    source = world.server.broker.source(path or "sales/subscriptions/billing")
    assert [each.delivery_count for each in source.peek(1, 9)[1:]] == [0, 0]  # a peek takes nothing


@pytest.mark.parametrize(("ready", "age"), [(1, 70), (2, 50), (500, 0)])
async def test_what_the_instances_of_a_target_hold_is_left_out(world, monkeypatch, ready, age):
    since = 0.0

    async def collect(self, *, now):
        assert self._target == "plan"
        return Reading(now - since, {"reached": 500.0, "ready": ready})

    monkeypatch.setattr(TargetCapacityCollector, "collect", collect)
    for each in (90, 70, 60, 50):
        world.put("orders", each)

    found = await world.read("oldest_age", concurrency=1.5, instances_of="plan")

    assert found == pytest.approx(age, abs=3)
    since = 10_800.0
    with pytest.raises(CollectError, match=r"of 'plan' are ready was read 3 h ago"):
        await world.read("oldest_age", concurrency=1.5, instances_of="plan")


async def test_a_peek_asks_for_no_counts_and_counts_take_no_peek(world):
    world.put("orders", 60)

    assert await world.read("oldest_age") == pytest.approx(60, abs=3)
    assert (world.requests("manage:"), world.requests("admin.")) == (1, 1)  # its settings, once an hour
    assert await world.read("active") == 1.0
    assert world.requests("manage:") == 0


@pytest.mark.parametrize(
    ("name", "may_read_settings", "peeks"), [("orders", True, 1), ("parts", True, 16), ("parts", False, 16)]
)
async def test_all_partitions_are_asked_where_there_are_any_or_may_be(world, name, may_read_settings, peeks):
    kind = ServiceBusQueueCollector, {"queue": name}
    if not may_read_settings:
        world.server.faults.add(Fault("admin.get:*", "error", status=401, count=None))

    assert await world.read("oldest_age", kind) == 0.0
    assert world.requests("manage:") == peeks
    for age, key in ((500, "b"), (30, "a"), (20, "c"), (40, "d")):
        world.put(name, age, key=key)

    assert await world.read("oldest_age", kind) == pytest.approx(500, abs=5)
    if name == "parts":
        with pytest.raises(
            CollectError, match=r"behind 2 messages cannot be known: it .* partitioned.*without held"
        ):
            await world.read("oldest_age", kind, held=2)


REFUSALS = {
    "sessions": ("oldest_age", {"queue": "talks"}, None, "requires sessions.*count = 'sessions'"),
    "no entity": ("oldest_age", {"queue": "none"}, None, "'none'.*does not exist"),
    "sessions of no entity": ("sessions", {"queue": "none"}, None, "'none'.*does not exist"),
    "no sessions": ("sessions", {"queue": "orders"}, None, "has no sessions"),
    "busy": (
        "oldest_age",
        {"queue": "orders"},
        Fault("manage:*", "error", condition="com.microsoft:server-busy"),
        "throttles",
    ),
    "sessions of a busy one": (
        "sessions",
        {"queue": "talks"},
        Fault("manage:*", "error", condition="com.microsoft:server-busy"),
        "throttles",
    ),
    "settings throttled": (
        "oldest_age",
        {"queue": "orders"},
        Fault("admin.get:*", "error", status=429, condition="50009"),
        "throttles",
    ),
    "silent": (
        "oldest_age",
        {"queue": "orders"},
        Fault("manage:*", "latency", seconds=9.0),
        "no answer within 0.4 s",
    ),
    "cut off": ("oldest_age", {"queue": "orders"}, Fault("manage:*", "drop_connection"), "queue 'orders'"),
}


@pytest.mark.parametrize(("count", "options", "fault", "told"), REFUSALS.values(), ids=REFUSALS)
async def test_what_a_peek_cannot_tell_fails_and_says_why(world, count, options, fault, told):
    if fault is not None:
        world.server.faults.add(fault)

    with pytest.raises(CollectError, match=told) as raised:
        await world.read(
            count, (ServiceBusQueueCollector, options), deadline=0.4 if "no answer" in told else 5.0
        )

    assert raised.value.reason is Reason.COLLECT_FAILED
    assert world.requests("manage:") <= 1  # the next collection is the retry


async def test_a_message_that_the_sdk_refuses_to_decode_is_not_an_empty_queue(world):
    nested = []
    for _ in range(80):
        nested = [nested]
    world.put("orders", 900)
    queue = world.server.broker.target("orders")
    queue.defer(queue.receive().lock_token)
    world.put("orders", 90)
    world.put("orders", 60, encode_section(VALUE, nested))
    world.put("orders", 30)

    assert await world.read("oldest_age") == pytest.approx(90, abs=3)
    with pytest.raises(CollectError, match="oldest_age cannot be known: a message cannot be decoded"):
        await world.read("oldest_age", held=2)


@pytest.mark.parametrize("count", ["oldest_age", "sessions"])
async def test_a_disabled_queue_is_named_as_disabled_and_a_wrong_key_with_the_role(world, count):
    kind = ServiceBusQueueCollector, {"queue": "talks" if count == "sessions" else "orders"}
    if count == "oldest_age":
        world.server.update_queue("orders", QueueSettings(status="ReceiveDisabled"))
        with pytest.raises(CollectError, match="is disabled") as raised:
            await world.read(count, kind)
        assert raised.value.reason is Reason.ENTITY_DISABLED
    wrong = world.server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")

    with pytest.raises(
        CollectError, match=f"reading {count} needs the 'Azure Service Bus Data Receiver'"
    ) as raised:
        await world.read(count, kind, {"Orders": wrong})

    assert "AAAA" not in str(raised.value)


async def test_sessions_are_counted_once_each_over_pages_with_those_that_have_a_state_alone(world):
    talks = {"queue": "talks"}
    assert await world.read("sessions", (ServiceBusQueueCollector, talks)) == 0.0
    queue = world.server.broker.source("talks")
    async with (
        ServiceBusClient.from_connection_string(world.server.connection_string) as client,
        client.get_queue_sender("talks") as sender,
    ):
        await sender.send_messages([ServiceBusMessage("m", session_id=f"s{n % 230}") for n in range(300)])
    queue.sessions.states["only a state"] = b"{}"
    listed = queue.sessions_listed
    queue.sessions_listed = lambda: [*listed()[:150], *listed()[140:]]  # as where a page moved

    assert await world.read("sessions", (ServiceBusQueueCollector, talks)) == 231.0
    assert world.requests("manage:") == 3


async def test_an_age_is_that_of_the_moment_of_the_peek(world):
    world.put("orders", 60)
    world.server.faults.add(Fault("manage:*", "latency", seconds=0.5))

    assert await world.read("oldest_age") >= 60.5


async def test_a_clock_that_is_off_gives_no_age(world):
    world.put("orders", -60)

    with pytest.raises(CollectError, match=r"cannot be known: the message came (60|59) s after now by"):
        await world.read("oldest_age")


async def test_the_collectors_of_a_connection_share_their_clients(world):
    cls = reader_class(ServiceBusQueueCollector, "oldest_age")
    settings = {"Orders": world.server.connection_string, "TIDEMARK_CA_BUNDLE": str(world.server.ca_path)}
    params = [
        ServiceBusQueueCollector.Params(connection="Orders", queue=name) for name in ("orders", "parts")
    ]
    both = [cls(each, settings) for each in params]
    cls.together(both)

    await asyncio.gather(*(each.collect(now=time.time()) for each in both))

    assert both[0]._client is both[1]._client
    for each in both:
        await each.aclose()
