"""A hub and a queue in memory, as one process of a simulated fleet reaches them with the product's own publisher and sender."""

import asyncio
import json
import math
from types import SimpleNamespace

from azure.eventhub._pyamqp._decode import decode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from consumer.sinks.messaging.event_hubs import RETRIES
from consumer.sinks.messaging.service_bus import POLICY
from tests.support.publisher import FakeLink, FakeLinks, FakeService
from tidemark.foundation.errors import UnavailableError
from tidemark.publisher import BigBatchSender, IdempotentProducer, MemoryStateStore
from tidemark.publisher.cancellation import finish_before_cancelling
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import LinkError

LARGE = 10_000
"""Bytes in an event that a hub or queue of small messages does not take, whose limit is below; all others are far smaller."""


class Targets:
    """What all processes see: the hub, its producers' states, and a queue that knows each message by its id."""

    def __init__(self, rng):
        self.hub, self.states, self.queue = FakeService(3), MemoryStateStore(), {}
        self.hub.max_message_size = rng.choice([8_000, 1_000_000])
        self.message_size = rng.choice([8_000, 256_000])

    def refuses(self, sink, event):
        """Whether an event is too large, with its body as a property."""
        limits = {"hub": self.hub.max_message_size, "queue": self.message_size}
        return len(event.properties["plain"]) > LARGE > limits.get(sink, math.inf)

    def of_hub(self):
        """By partition of the hub what it has, as `_place` says it, in its order."""
        return {id_: [_place(message) for message in log] for id_, log in self.hub.stored.items()}

    def of_queue(self):
        return [_place(message) for message in self.queue.values()]


def _place(message):
    """(partition of the source, sequence number, document)"""
    decoded = decode_payload(memoryview(bytes(message)))
    said = decoded.application_properties
    return (
        said[b"tidemark-partition"].decode(),
        said[b"tidemark-sequence-number"],
        json.loads(b"".join(decoded.data)),
    )


class Links(FakeLinks):
    def __init__(self, consumer):
        super().__init__(consumer.life.targets.hub)
        self.hub, self.namespace, self.consumer = "copies", "two.servicebus.windows.net", consumer

    async def partition_ids(self):
        return await self.ask(super().partition_ids, 60.0)

    async def created_at(self):
        return await self.ask(super().created_at, 60.0)

    async def open(self, partition_id, claims, *, timeout):
        attach = super().open
        link = await self.ask(lambda: attach(partition_id, claims, timeout=timeout), timeout)
        return Link(self, partition_id, link.claims)

    async def ask(self, work, timeout, otherwise=FailureKind.NOT_STORED):
        try:
            async with asyncio.timeout(timeout):
                return await self.consumer.call(work)
        except (UnavailableError, TimeoutError) as error:
            raise LinkError(otherwise, f"{error}", link_lost=True) from error


class Link(FakeLink):
    def __init__(self, links, partition_id, claims):
        super().__init__(links.service, partition_id, claims)
        self._links, self._life = links, links.consumer.life

    async def transfer(self, encoded, stamp, *, timeout):
        work = self._links.ask(lambda: self._take(encoded, stamp), timeout, FailureKind.UNKNOWN)
        await finish_before_cancelling(work)

    def _take(self, encoded, stamp):
        if self._life.fails(0.05):
            raise LinkError(FailureKind.BUSY, "com.microsoft:server-busy", link_lost=False)
        self._store(encoded, stamp)


class States:
    """The store of the producers' states."""

    def __init__(self, consumer):
        self._consumer, self._whole = consumer, consumer.life.targets.states

    async def load(self, key, *, deadline):
        return await self._ask(lambda: self._whole.load(key, deadline=deadline), deadline)

    async def save(self, key, record, token, *, deadline):
        return await self._ask(lambda: self._whole.save(key, record, token, deadline=deadline), deadline)

    async def _ask(self, work, deadline):
        try:
            async with asyncio.timeout_at(deadline):
                return await self._consumer.call(work)
        except TimeoutError as error:
            raise UnavailableError("no answer by the deadline") from error

    async def aclose(self):
        """Keeps everything."""


class QueueSender:
    """What is used of an SDK's sender."""

    entity_name, fully_qualified_namespace = "orders", "two.servicebus.windows.net"
    _amqp_transport = PyamqpTransport
    _running = False

    def __init__(self, consumer):
        self._consumer, self._targets = consumer, consumer.life.targets
        self._max_message_size_on_link = self._max_batch_size_on_link = self._targets.message_size
        self._config = SimpleNamespace(retry_total=3)

    async def __aenter__(self):
        await self._consumer.call(lambda: None)

    async def send_messages(self, batch, *, timeout):
        async with asyncio.timeout(timeout):
            await self._consumer.call(lambda: self._take([bytes(each) for each in batch._message[5]]))

    def _take(self, messages):
        for message in messages:
            id_ = decode_payload(memoryview(message)).properties.message_id
            self._targets.queue.setdefault(id_, message)

    async def _close_handler(self):
        """Nothing is open."""


def connect(sink, name, consumer):
    """Has a sink of the product write to what its process reaches."""
    if name == "hub":
        sink._make = lambda producer: IdempotentProducer.over(
            Links(consumer), state_store=States(consumer), producer_name=producer, retry=RETRIES
        )
    if name == "queue":
        sink._make = lambda: BigBatchSender(QueueSender(consumer), policy=POLICY)
