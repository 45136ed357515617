"""Two worlds to publish to: a service in memory, and the local Event Hubs over real sockets. Tests see no difference."""

import asyncio
import inspect
import itertools
from contextlib import asynccontextmanager

from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload

from devstack.event_hubs import Idempotence
from devstack.servers.faults import Fault
from tests.support.servers.event_hubs import HUB, running_server
from tidemark.publisher.cancellation import finish_before_cancelling
from tidemark.publisher.event_hubs.core import failures
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import LinkError
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.event_hubs.sdk.event_encoding import measured_event, stamped_events
from tidemark.publisher.event_hubs.sync_producer import SyncIdempotentProducer
from tidemark.publisher.model import Claims, RetryPolicy, last_of, next_number

QUICK = RetryPolicy(max_attempts=4, attempt_timeout=0.6, delay=0.01, max_delay=0.05, busy_delay=0.02)
NUMBER = b"com.microsoft:producer-sequence-number"
GROUP = b"com.microsoft:producer-id"


def event(body):
    return EventData(body)


def events(*bodies):
    return [EventData(body) for body in bodies]


def read(message):
    """Body, number and producer of a stored event."""
    decoded = decode_payload(memoryview(bytes(message)))
    annotations = decoded.message_annotations or {}
    return b"".join(decoded.data).decode(), annotations.get(NUMBER), annotations.get(GROUP)


class RefusedError(Exception):
    """By the service, with its condition."""


class Producers:
    """What a partition knows of its producers; written down apart from the local Event Hubs, so that the two can
    disagree.
    """

    def __init__(self, ids):
        self._ids = ids
        self._known = {}  # id -> [epoch, last number, (first, count) of the last sets, whether it has published]

    def attach(self, claims):
        id_, epoch, number = claims
        if id_ is None:
            id_ = next(self._ids)
            self._known[id_] = [epoch or 0, number or 0, [], False]
            return Claims(id_, epoch or 0, number or 0)
        if id_ not in self._known:
            raise RefusedError("amqp:not-allowed")
        current = self._known[id_]
        if epoch < current[0]:
            raise RefusedError("com.microsoft:producer-epoch-stolen")
        if epoch > current[0]:
            current[:] = [epoch, number or 0, [], False]
        elif number is not None and not current[3]:
            current[1] = number
        return Claims(id_, current[0], current[1] if number is None else number)

    def is_new(self, stamp, count):
        if stamp.producer_group_id not in self._known:
            raise RefusedError("amqp:not-allowed")
        epoch, last, sets, _ = current = self._known[stamp.producer_group_id]
        if stamp.owner_level < epoch:
            raise RefusedError("com.microsoft:producer-epoch-stolen")
        if (stamp.first, count) in sets:
            return False
        if stamp.first != next_number(last):
            raise RefusedError("com.microsoft:out-of-order-sequence")
        current[1:] = last_of(stamp.first, count), [*sets[-4:], (stamp.first, count)], True
        return True

    def fence(self):
        for current in self._known.values():
            current[0] += 1

    def forget(self):
        self._known.clear()


class FakeService:
    """Partitions in memory. `transfers` are the first numbers (None: without) of all that was tried."""

    def __init__(self, partitions=2):
        self.offered = True
        self.created_at = "2026-01-01T00:00:00.000+00:00"
        self.stored, self.producers, self._producer_ids = {}, {}, itertools.count(1)
        for number in range(partitions):
            self.add_partition(str(number))
        self.faults = []
        self.transfers = []
        self.attaches = []
        self.max_message_size = 1024 * 1024
        self.in_flight = {}
        self.most_in_flight = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()

    def add_partition(self, name):
        self.stored[name], self.producers[name] = [], Producers(self._producer_ids)

    def take(self, where):
        for fault in self.faults:
            if fault[0] == where:
                self.faults.remove(fault)
                return fault
        return None


class FakeLinks:
    namespace = "local"
    encode = staticmethod(measured_event)

    def __init__(self, service):
        self.service = service
        self.hub = HUB

    async def partition_ids(self):
        return list(self.service.stored)

    async def created_at(self):
        return self.service.created_at

    async def open(self, partition_id, claims, *, timeout):
        service = self.service
        service.attaches.append((partition_id, claims))
        if fault := service.take("attach"):
            with_state = claims is not None and claims.producer_group_id is not None
            raise LinkError(failures.of_attach(fault[1], with_state=with_state), fault[1], link_lost=True)
        said = Claims()
        if claims is not None and service.offered:
            try:
                said = service.producers[partition_id].attach(claims)
            except RefusedError as error:
                kind = failures.of_attach(str(error), with_state=claims.producer_group_id is not None)
                raise LinkError(kind, str(error), link_lost=True) from None
        return FakeLink(service, partition_id, said)

    async def close(self):
        pass


class FakeLink:
    def __init__(self, service, partition_id, claims):
        self.service = service
        self.partition_id = partition_id
        self.claims = claims
        self.max_message_size = service.max_message_size

    async def transfer(self, encoded, stamp, *, timeout):
        service, partition = self.service, self.partition_id
        now = service.in_flight[partition] = service.in_flight.get(partition, 0) + 1
        service.most_in_flight[partition] = max(now, service.most_in_flight.get(partition, 0))
        try:
            await finish_before_cancelling(self._transfer(encoded, stamp))
        finally:
            service.in_flight[partition] -= 1

    async def _transfer(self, encoded, stamp):
        service = self.service
        service.transfers.append(None if stamp is None else stamp.first)
        service.arrived.set()
        await asyncio.sleep(0)
        fault = service.take("send")
        kind, condition = fault[1:] if fault else ("", "")
        if kind == "error":
            raise LinkError(failures.of_rejection(condition), condition, link_lost=False)
        if kind in {"no_answer", "detach", "drop_connection"}:
            raise LinkError(FailureKind.UNKNOWN, kind, link_lost=True)
        self._store(encoded, stamp)
        await service.gate.wait()
        if kind:
            raise LinkError(FailureKind.UNKNOWN, kind, link_lost=True)

    def _store(self, encoded, stamp):
        log = self.service.stored[self.partition_id]
        found = stamped_events(encoded, stamp)
        if stamp is None:
            log += found
            return
        try:
            if self.service.producers[self.partition_id].is_new(stamp, len(encoded)):
                log += found
        except RefusedError as error:
            raise LinkError(failures.of_rejection(str(error)), str(error), link_lost=False) from None

    async def close(self):
        pass


class World:
    """What tests of producers see. `fault` is one of devstack.servers.faults of the point `send`."""

    def __init__(self):
        self._open = []

    def producer(self, **options):
        producer = self._create(**{"retry": QUICK, **options})
        self._open.append(producer)
        return producer

    def bodies(self, partition="0"):
        return [read(message)[0] for message in self.messages(partition)]

    def numbers(self, partition="0"):
        return [read(message)[1] for message in self.messages(partition)]

    def groups(self, partition="0"):
        return {read(message)[2] for message in self.messages(partition)}

    async def aclose(self):
        for producer in self._open:
            await producer.close()


class FakeWorld(World):
    on_the_wire = False

    def __init__(self):
        super().__init__()
        self.service = FakeService()

    def _create(self, **options):
        return IdempotentProducer.over(FakeLinks(self.service), **options)

    def messages(self, partition):
        return self.service.stored[partition]

    def fault(self, kind, *, condition="", count=1):
        self.service.faults += [("send", kind, condition)] * count

    def refuse_attach(self, condition, *, count=1):
        self.service.faults += [("attach", condition)] * count

    def fence(self, partition):
        self.service.producers[partition].fence()

    def forget(self, partition):
        self.service.producers[partition].forget()

    def offer(self, offered):
        self.service.offered = offered


class WireWorld(World):
    on_the_wire = True

    def __init__(self, server):
        super().__init__()
        self.server = server

    def _create(self, **options):
        return IdempotentProducer.from_connection_string(self.server.connection_string(HUB), **options)

    def messages(self, partition):
        return [stored.message for stored in self.server.events(HUB, partition)]

    def fault(self, kind, *, condition="", count=1):
        self.server.faults.add(Fault("send:*", kind, count=count, condition=condition))

    def refuse_attach(self, condition, *, count=1):
        self.server.faults.add(Fault("attach:*", "error", count=count, condition=condition))

    def fence(self, partition):
        self.server.publishers(HUB, partition).fence()

    def forget(self, partition):
        self.server.publishers(HUB, partition).forget()

    def offer(self, offered):
        self.server.delete_hub(HUB)
        self.server.create_hub(HUB, 2, idempotence=Idempotence(offered=offered))


class Awaitable:
    """A SyncIdempotentProducer as if it were the other one: each call in a thread."""

    def __init__(self, producer):
        vars(self)["_producer"] = producer

    def __setattr__(self, name, value):
        setattr(self._producer, name, value)

    def __getattr__(self, name):
        found = getattr(self._producer, name)
        if not callable(found):
            return found

        async def call(*arguments, **options):
            return await asyncio.to_thread(found, *arguments, **options)

        return call


class SyncFakeWorld(FakeWorld):
    def _create(self, **options):
        create = lambda: IdempotentProducer.over(FakeLinks(self.service), **options)
        return Awaitable(SyncIdempotentProducer.around(create))


class SyncWireWorld(WireWorld):
    def _create(self, **options):
        connection = self.server.connection_string(HUB)
        return Awaitable(SyncIdempotentProducer.from_connection_string(connection, **options))


@asynccontextmanager
async def wire_world(folder, kind=WireWorld):
    async with running_server(folder) as server:
        world = kind(server)
        yield world
        await world.aclose()


def methods(kind):
    """The parameters of what is public of a class, by name."""
    return {
        name: list(inspect.signature(found).parameters)
        for name, found in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
