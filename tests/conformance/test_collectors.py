"""What every collector promises, checked on the fake and on real queues over the wire."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.storage.queue.aio import QueueClient

from devstack.servers.faults import Fault
from devstack.service_bus.server import ServiceBusServer
from scaling.collectors.service_bus.collector import ServiceBusQueueCollector, ServiceBusSubscriptionCollector
from scaling.collectors.storage_queue import StorageQueueCollector
from scaling.model import Reason
from scaling.ports import CollectError
from tests.support.scaling.fakes_azure import FakeCollector

NOW = 1_700_000_000.0


class CollectorConformance:
    """Subclasses give `world`: `collector`, `name` of the entity, and ways to change it from outside."""

    TOTAL = "total"
    """The count that all the work is in."""
    SIZES: frozenset[str] = frozenset()
    """Counts that tell how large the entity is, which work does not change."""
    AGE = 0.0
    """Seconds that a reading is older than the time it was asked for."""

    async def test_the_class_tells_the_counts_it_reports(self, world):
        cls = type(world.collector)

        assert cls.DEFAULT_COUNT in cls.COUNTS
        assert set((await world.collector.collect(now=NOW)).values) <= set(cls.COUNTS)

    async def test_an_empty_entity_is_a_reading_of_zeros_at_the_given_time(self, world):
        reading = await world.collector.collect(now=NOW)

        assert reading.at == NOW - self.AGE
        assert {count for name, count in reading.values.items() if name not in self.SIZES} == {0.0}
        assert all(type(value) is float for value in reading.values.values())

    async def test_waiting_messages_are_counted(self, world):
        await world.put(3)

        reading = await world.collector.collect(now=NOW)

        assert reading.values[type(world.collector).DEFAULT_COUNT] == 3
        assert reading.values[self.TOTAL] == 3

    async def test_each_read_is_a_fresh_one(self, world):
        before = await world.collector.collect(now=NOW)
        await world.put(2)
        after = await world.collector.collect(now=NOW + 60)

        assert (before.values[self.TOTAL], after.values[self.TOTAL]) == (0, 2)
        assert (before.at, after.at) == (NOW - self.AGE, NOW + 60 - self.AGE)

    async def test_a_missing_entity_is_an_error_that_names_it_not_a_zero(self, world):
        await world.remove()

        with pytest.raises(CollectError) as raised:
            await world.collector.collect(now=NOW)

        assert raised.value.reason is Reason.COLLECT_FAILED
        assert world.name in str(raised.value)
        assert "does not exist" in str(raised.value)

    async def test_closing_twice_or_unused_is_allowed(self, world):
        await world.collector.aclose()
        await world.collector.aclose()


class FakeWorld:
    name = "fake"

    def __init__(self) -> None:
        self.collector = FakeCollector()

    async def put(self, count: int) -> None:
        for key in ("active", "total"):
            self.collector.counts[key] += count

    async def remove(self) -> None:
        self.collector.missing = True


class TestFakeCollector(CollectorConformance):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()


class ServiceBusWorld:
    """A namespace with the queue `orders`, and the topic `sales` with the subscription `billing`."""

    def __init__(self, server: ServiceBusServer, kind: str) -> None:
        self.server = server
        server.create_queue("orders")
        server.create_topic("sales")
        server.create_subscription("sales", "billing")
        self.settings = {"Orders": server.connection_string, "TIDEMARK_CA_BUNDLE": str(server.ca_path)}
        self.sends_to, self.name, self.path = {
            "queue": ("orders", "orders", "orders"),
            "subscription": ("sales", "billing", "sales/subscriptions/billing"),
        }[kind]
        self.kind = kind
        self.collector = self.new_collector(self.settings)

    def new_collector(self, settings: dict[str, str], **options):
        if self.kind == "queue":
            params = ServiceBusQueueCollector.Params(connection="Orders", queue="orders")
            return ServiceBusQueueCollector(params, settings, **options)
        params = ServiceBusSubscriptionCollector.Params(
            connection="Orders", topic="sales", subscription="billing"
        )
        return ServiceBusSubscriptionCollector(params, settings, **options)

    def administration(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.server.connection_string, connection_verify=str(self.server.ca_path)
        )

    async def put(self, count: int) -> None:
        async with (
            ServiceBusClient.from_connection_string(self.server.connection_string) as client,
            client.get_queue_sender(self.sends_to)
            if self.kind == "queue"
            else client.get_topic_sender(self.sends_to) as sender,
        ):
            await sender.send_messages([ServiceBusMessage(f"order {n}") for n in range(count)])

    async def remove(self) -> None:
        async with self.administration() as client:
            if self.kind == "queue":
                await client.delete_queue("orders")
            else:
                await client.delete_subscription("sales", "billing")

    async def set_status(self, status: str, *, topic: bool = False) -> None:
        async with self.administration() as client:
            if topic:
                entity = await client.get_topic("sales")
                entity.status = status
                await client.update_topic(entity)
            elif self.kind == "queue":
                entity = await client.get_queue("orders")
                entity.status = status
                await client.update_queue(entity)
            else:
                entity = await client.get_subscription("sales", "billing")
                entity.status = status
                await client.update_subscription("sales", entity)

    def fault(self, kind: str, **options) -> None:
        self.server.faults.add(Fault("admin.get:*", kind, **options))


class ServiceBusConformance(CollectorConformance):
    KIND: str

    @pytest.fixture
    async def world(self, tmp_path_factory) -> AsyncIterator[ServiceBusWorld]:
        async with ServiceBusServer(ca_dir=tmp_path_factory.getbasetemp() / "certificate") as server:
            world = ServiceBusWorld(server, self.KIND)
            yield world
            await world.collector.aclose()

    async def test_dead_letters_are_counted_apart(self, world):
        await world.put(3)
        async with ServiceBusClient.from_connection_string(world.server.connection_string) as client:
            receiver = (
                client.get_queue_receiver("orders")
                if world.kind == "queue"
                else client.get_subscription_receiver("sales", "billing")
            )
            async with receiver:
                [message] = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
                await receiver.dead_letter_message(message, reason="unreadable")

        values = (await world.collector.collect(now=NOW)).values

        assert (values["active"], values["dead_letter"], values["total"]) == (2, 1, 3)

    @pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
    async def test_an_entity_that_hands_nothing_out_is_named_with_its_status(self, world, status):
        await world.set_status(status)

        with pytest.raises(CollectError) as raised:
            await world.collector.collect(now=NOW)

        assert raised.value.reason is Reason.ENTITY_DISABLED
        assert world.name in str(raised.value)
        assert status in str(raised.value)

    async def test_a_status_that_only_stops_sending_can_still_be_drained(self, world):
        await world.put(2)
        await world.set_status("SendDisabled")

        assert (await world.collector.collect(now=NOW)).values["active"] == 2

    async def test_throttling_is_told_with_the_time_to_wait(self, world):
        world.fault("error", status=429, condition="50002: the namespace is throttled", retry_after=42)

        with pytest.raises(CollectError, match="throttles these requests; it asks to wait 42 s"):
            await world.collector.collect(now=NOW)

    async def test_a_busy_server_is_not_asked_again_within_one_read(self, world):
        world.fault("error", status=503, condition="ServerBusy: try later")

        with pytest.raises(CollectError, match="throttles"):
            await world.collector.collect(now=NOW)
        assert (await world.collector.collect(now=NOW)).values["active"] == 0

    async def test_an_answer_that_is_late_ends_at_the_deadline(self, world):
        world.fault("latency", seconds=1.5)
        hurried = world.new_collector(world.settings, deadline=0.3)

        with pytest.raises(CollectError, match=r"no answer within 0\.3 s"):
            await hurried.collect(now=NOW)
        await hurried.aclose()

    async def test_one_broken_connection_does_not_spoil_a_read(self, world):
        world.fault("drop_connection")

        assert (await world.collector.collect(now=NOW)).values["active"] == 0

    async def test_a_wrong_key_is_an_error_that_names_the_right_needed(self, world):
        text = world.server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
        stranger = world.new_collector({**world.settings, "Orders": text})

        with pytest.raises(CollectError, match="Azure Service Bus Data Owner") as raised:
            await stranger.collect(now=NOW)
        await stranger.aclose()

        assert "AAAA" not in str(raised.value)

    async def test_a_missing_connection_setting_is_named(self, world):
        stranger = world.new_collector({})

        with pytest.raises(CollectError, match="Orders"):
            await stranger.collect(now=NOW)

    async def test_a_read_takes_as_few_requests_as_it_can(self, world):
        seen: list[str] = []
        take = world.server.faults.take
        world.server.faults.take = lambda where: (seen.append(where), take(where))[1]

        await world.collector.collect(now=NOW)

        assert len(seen) == (2 if world.kind == "queue" else 3)


@pytest.mark.wire
class TestServiceBusQueueOnTheWire(ServiceBusConformance):
    KIND = "queue"

    async def test_scheduled_messages_are_not_active_until_due(self, world):
        async with (
            ServiceBusClient.from_connection_string(world.server.connection_string) as client,
            client.get_queue_sender("orders") as sender,
        ):
            due = datetime.now(UTC) + timedelta(hours=1)
            await sender.schedule_messages([ServiceBusMessage("later")], due)

        values = (await world.collector.collect(now=NOW)).values

        assert (values["active"], values["scheduled"]) == (0, 1)


@pytest.mark.wire
class TestServiceBusSubscriptionOnTheWire(ServiceBusConformance):
    KIND = "subscription"

    async def test_a_disabled_topic_disables_its_subscriptions(self, world):
        await world.set_status("Disabled", topic=True)

        with pytest.raises(CollectError, match="its topic has the status Disabled") as raised:
            await world.collector.collect(now=NOW)

        assert raised.value.reason is Reason.ENTITY_DISABLED

    async def test_a_managed_identity_reads_the_counts_too(self, world, monkeypatch):
        monkeypatch.setattr("tidemark.foundation.azure.connections.IdentityCredential", StaticCredential)
        settings = {
            "Orders__fullyQualifiedNamespace": world.server.endpoint,
            "TIDEMARK_CA_BUNDLE": str(world.server.ca_path),
        }
        collector = world.new_collector(settings)

        reading = await collector.collect(now=NOW)
        await collector.aclose()

        assert reading.values["active"] == 0


class StaticCredential:
    """An identity whose tokens come from nowhere; the local server takes any bearer token."""

    def __init__(self, **_options: object) -> None: ...

    async def get_token(self, *_scopes: str, **_options: object):
        return AccessToken("token", 4_000_000_000)


class StorageWorld:
    def __init__(self, connection_string: str, client: QueueClient) -> None:
        self.client = client
        self.name = client.queue_name
        params = StorageQueueCollector.Params(connection="Work", queue=self.name)
        self.collector = StorageQueueCollector(params, {"Work": connection_string})

    async def put(self, count: int) -> None:
        await asyncio.gather(*(self.client.send_message(f"order {n}") for n in range(count)))

    async def take(self, count: int) -> None:
        """A worker takes messages and holds them."""
        taken = [message async for message in self.client.receive_messages(max_messages=count)]
        assert len(taken) == count

    async def remove(self) -> None:
        await self.client.delete_queue()


@pytest.mark.wire
class TestStorageQueueOnTheWire(CollectorConformance):
    @pytest.fixture
    async def world(self, azurite) -> AsyncIterator[StorageWorld]:
        async with QueueClient.from_connection_string(azurite, f"collect-{uuid4().hex[:12]}") as client:
            await client.create_queue()
            world = StorageWorld(azurite, client)
            yield world
            await world.collector.aclose()

    async def test_messages_a_worker_holds_are_total_but_not_visible(self, world):
        await world.put(5)
        await world.take(2)

        counts = (await world.collector.collect(now=NOW)).values
        assert (counts["total"], counts["visible"], counts["invisible"]) == (5.0, 3.0, 2.0)

    async def test_beyond_a_peek_visible_is_the_total_and_invisible_is_not_made_up(self, world):
        await world.put(36)
        await world.take(4)

        counts = (await world.collector.collect(now=NOW)).values
        assert counts["total"] == counts["visible"] == 36.0
        assert "invisible" not in counts

    async def test_the_age_is_that_of_what_waits_and_not_of_what_a_worker_holds(self, world):
        await world.put(1)
        await world.take(1)
        inserted = time.time()

        assert (await world.collector.collect(now=inserted + 30)).values["oldest_age"] == 0.0
        await world.put(2)
        assert (await world.collector.collect(now=inserted + 30)).values["oldest_age"] == pytest.approx(
            30, abs=5
        )

    async def test_a_wrong_key_is_an_error_that_names_the_role(self, world, azurite):
        wrong = azurite.replace("AccountKey=", "AccountKey=AAAA")
        params = StorageQueueCollector.Params(connection="Work", queue=world.name)
        stranger = StorageQueueCollector(params, {"Work": wrong})

        with pytest.raises(CollectError, match="Storage Queue Data Reader"):
            await stranger.collect(now=NOW)
        await stranger.aclose()
