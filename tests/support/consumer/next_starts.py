"""A consumer that ends, a world that changes, and the next start: real runtimes and triggers, all around in memory.

A `Story` sends events to a hub that can be created anew, moved and emptied, runs consumers on the same stores one after
the other, and judges what is there: each event that was due is a document, no document of an earlier hub was replaced, and
what was written twice is no more than a kill may repeat.
"""

import asyncio
import contextlib
import functools

import msgspec

from consumer.config import ConsumerConfig
from consumer.decoding.avro import SchemaFormat, by_content_type
from consumer.decoding.schemas import Schemas
from consumer.decoding.table import Guarded
from consumer.errors import PositionError
from consumer.formats import AvroOptions
from consumer.mapping.documents import MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.model import Event, Origin, Outcome, PartitionState, WriteResult
from consumer.options import BacklogLimits, PositionPolicy
from consumer.running.hosted import HostedConsumer
from consumer.stores.memory import MemoryCheckpointStore, MemoryLeaseStore
from tests.support.consumer.decoding import MemoryRegistry
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.ports import started
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.tracing.spans import NO_SPANS

BUSY = WriteResult(Outcome.RETRY, 503, "busy")


class Hub:
    """One creation of a hub. Bodies tell which event of which hub they are."""

    def __init__(self, created_at, partitions):
        self.created_at = created_at
        self.logs = {str(n): [] for n in range(partitions)}  # of (body, enqueued at)
        self.begin = dict.fromkeys(self.logs, 0)

    def send(self, partition, count, now):
        log = self.logs[partition]
        for _ in range(count):
            log.append((msgspec.json.encode({"id": f"{self.created_at:.3f}/{partition}/{len(log)}"}), now))

    def add_partition(self):
        name = str(len(self.logs))
        self.logs[name], self.begin[name] = [], 0

    def expire(self, partition, before):
        self.begin[partition] = max(self.begin[partition], min(before, len(self.logs[partition])))

    def event(self, partition, number):
        body, at = self.logs[partition][number]
        schema = f"avro/binary+{number // 10:032x}"
        return Event(partition, number, str(number), at, body, content_type=schema)


class AnyText(dict):
    """Schemas of every id."""

    def get(self, schema_id):
        return schema_id


class Body:
    """What the story's decoder makes of every schema: a reader of JSON, so that a body still says which event it is."""

    def decode(self, body, start):
        return msgspec.json.decode(body[start:])


class Receiver:
    """A process's view: it knows the hub that it asked first, as `consumer.receiving` does."""

    def __init__(self, story):
        self.story, self.created_at, self.is_dead = story, None, False
        self.reached = {}  # what each partition was received up to

    def _hub(self):
        if self.is_dead or self.story.is_away:
            raise UnavailableError("the hub is away")
        return self.story.hub

    async def partitions(self):
        hub = self._hub()
        if self.created_at not in {None, hub.created_at}:
            raise PositionError("the hub was created anew")
        self.created_at = hub.created_at
        return list(hub.logs)

    async def state(self, partition):
        hub = self._hub()
        log, begin = hub.logs[partition], hub.begin[partition]
        at = log[-1][1] if log else 0.0
        last = len(log) - 1
        return PartitionState(partition, begin, last, str(last), at, begin > last)

    async def states(self):
        return {name: await self.state(name) for name in await self.partitions()}

    async def receive(self, partition, start, epoch, on_events, on_expired):
        number = 0 if start.sequence_number is None else start.sequence_number + (not start.inclusive)
        while True:
            hub = self._hub()
            if hub.created_at != self.created_at:
                raise PositionError("the hub was created anew")
            number = max(number, hub.begin[partition])
            ready = [
                hub.event(partition, n) for n in range(number, min(len(hub.logs[partition]), number + 7))
            ]
            number += len(ready)
            wanted = [each for each in ready if start.time is None or each.enqueued_at >= start.time]
            await on_events(wanted, len(hub.logs[partition]) - 1)
            self.reached[partition] = number
            await asyncio.sleep(0.5)

    async def close(self, deadline=None):
        """There are no connections."""


class Sink(MemorySink):
    """Ids are made of positions. Counts writes, and keeps what a document was before it was replaced."""

    def __init__(self):
        super().__init__(MappingOptions("hub", "position"))
        self.writes, self.replaced, self.is_busy = {}, [], False

    async def write(self, batch, *, deadline):
        await asyncio.sleep(0.01)
        if self.is_busy:
            return [BUSY] * len(batch.records)
        for record in batch.records:
            before = self.documents.get(record.key)
            if before is not None and _named(before) != _named(record.event.body):
                self.replaced.append((_named(before), _named(record.event.body)))
            name = _named(record.event.body)
            self.writes[name] = self.writes.get(name, 0) + 1
            # the document's own id is its position: what event it is of is kept beside
            self.documents[record.key] = record.event.body
        return [WriteResult(Outcome.WRITTEN, 200)] * len(batch.records)


def _named(body):
    return msgspec.json.decode(body)["id"]


class Positions(MemoryCheckpointStore):
    """Of one namespace; which hub has plain keys is known to all."""

    def __init__(self, story):
        super().__init__(clock=story.clock)
        self.story = story

    async def hub_with_plain_keys(self, hub, *, deadline):
        self.story.plain = hub if self.story.plain is None else self.story.plain
        return self.story.plain


class Mortal:
    """A dependency as a process sees it: one that was killed reaches nothing any more."""

    def __init__(self, whole):
        self.whole, self.is_dead = whole, False

    def __getattr__(self, name):
        found = getattr(self.whole, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        async def call(*args, **options):
            if self.is_dead:
                raise UnavailableError("killed")
            return await found(*args, **options)

        return call


class Story:
    """The world that outlives consumers. Times are the loop's, from 1e9 on; `skew` moves the clocks of machines."""

    def __init__(self, partitions=2, *, schemas=False):
        """With `schemas` every tenth event needs a new one, of a registry that `registry.down` takes away."""
        self.registry = MemoryRegistry(AnyText()) if schemas else None
        self.skew, self.is_away, self.plain = 0.0, False, None
        self.sink, self.dead_letters = Sink(), MemoryDeadLetterStore()
        self.hub = Hub(self.service_time(), partitions)
        self.hubs = [self.hub]
        self.namespaces = {"one": self._stores()}
        self.namespace = "one"

    def _stores(self):
        return Positions(self), MemoryLeaseStore(clock=self.service_time), Positions(self)

    @staticmethod
    def service_time():
        return asyncio.get_running_loop().time() + 1e9

    def clock(self):
        return self.service_time() + self.skew

    # -- what changes

    def send(self, count):
        for partition in self.hub.logs:
            self.hub.send(partition, count, self.service_time())

    async def recreate(self, partitions=None):
        await asyncio.sleep(2.0)
        self.hub = Hub(self.service_time(), partitions or len(self.hub.logs))
        self.hubs.append(self.hub)

    async def move(self):
        """The settings name another namespace, which has a hub of the same name."""
        await self.recreate()
        self.namespace = f"namespace {len(self.namespaces)}"
        self.namespaces[self.namespace] = self._stores()

    def delete(self, *partitions, note=False):
        """Somebody deletes checkpoints (of all partitions, where none is named), and which hub has plain keys."""
        store, _, recognized = self.namespaces[self.namespace]
        for each in (store, recognized):
            for partition in partitions or tuple(each._epochs):
                each._checkpoints.pop(partition, None)
                each._epochs.pop(partition, None)
        self.plain = None if note else self.plain

    def forget_origins(self):
        """As an older version stored its checkpoints."""
        for store, _, recognized in self.namespaces.values():
            for each in (store, recognized):
                for partition, found in each._checkpoints.items():
                    each._checkpoints[partition] = msgspec.structs.replace(found, origin=Origin())
        if len(self.hubs) == 1:  # else a newer version was there before the older one
            self.plain = None

    # -- who runs

    def decoder(self):
        """Of a process: it knows no schema yet."""
        if self.registry is None:
            return None
        schemas = Schemas(self.registry, lambda schema_id, definition: Body(), self.clock)
        return Guarded(SchemaFormat(by_content_type, schemas), AvroOptions())

    def start(self, **policy):
        return Process(self, PositionPolicy(**policy))

    async def run(self, **policy):
        """A process from its start until everything is settled, and it is stopped in order."""
        process = self.start(**policy)
        await process.idle()
        await process.stop()

    # -- what must hold

    def names(self, since=0):
        """Of all events of the present hub from a number on, as `begin` has them."""
        return {
            _named(body)
            for partition, log in self.hub.logs.items()
            for body, _ in log[max(since, self.hub.begin[partition]) :]
        }

    def written(self):
        return set(map(_named, self.sink.documents.values()))

    def check_old(self):
        assert self.sink.replaced == [], self.sink.replaced[:3]


class Process:
    """A consumer process."""

    def __init__(self, story, policy):
        self.story = story
        positions, leases, _ = story.namespaces[story.namespace]
        self.parts = [Mortal(each) for each in (story.sink, positions, story.dead_letters, leases)]
        sink, checkpoints, dead_letters, leases = self.parts
        self.receiver = Receiver(story)
        self.consumer, self.task, self._stop = started(
            *(self.receiver, sink, checkpoints, dead_letters, leases, f"owner {id(self)}"),
            limits=BacklogLimits(checkpoint_every=3.0),
            policy=policy,
            shutdown=5.0,
            decoder=story.decoder(),
        )
        self.driver = self.consumer.driver

    @property
    def claims(self):
        return (
            {partition.partition for partition in self.driver.statistics().partitions}
            if self.driver.is_open
            else set()
        )

    async def claimed_all(self):
        await self._until(lambda: self.claims >= set(self.story.hub.logs))

    async def idle(self, seconds=4.0):
        """Everything there is came and was settled, and that is saved."""
        await self.claimed_all()
        ends = {partition: len(log) for partition, log in self.story.hub.logs.items()}
        await self._until(lambda: ends.items() <= self.receiver.reached.items())
        await self._until(lambda: not self.driver.statistics().backlog_count)
        await asyncio.sleep(seconds)

    async def _until(self, condition):
        async with asyncio.timeout(300.0):
            while not condition():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.1)

    async def refused(self):
        """The PositionError that it ends with."""
        [outcome] = await asyncio.gather(asyncio.wait_for(self.task, 120.0), return_exceptions=True)
        assert isinstance(outcome, PositionError), repr(outcome)
        return str(outcome)

    async def stop(self):
        self._stop.set()
        with contextlib.suppress(TidemarkError):  # what was begun may not end in time
            await self.task

    async def kill(self):
        for part in (*self.parts, self.receiver):
            part.is_dead = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Trigger:
    """The Functions host with a consumer inside it: the host keeps the position, and knows hubs by name alone."""

    def __init__(self, story):
        self.story, self.position = story, {}
        self.hosted = None

    def _parts(self, config, settings):
        self.config, self.settings = config, settings
        return self

    def sink(self):
        return self.story.sink

    def preparation(self, sink):
        return Preparation(sink.prepare)

    def spans(self):
        return NO_SPANS

    def dead_letters(self):
        return self.story.dead_letters

    def receiver(self):
        return Receiver(self.story)

    def parked_untried(self, *, behind_trigger):
        return ()

    def known_hubs(self):
        return self.story.namespaces[self.story.namespace][2]

    def restart(self, **policy):
        self.hosted = HostedConsumer(ConsumerConfig("hub", policy=PositionPolicy(**policy)), {}, self._parts)

    async def run(self, tries=2):
        """Brings everything there is; raises what the last try of a batch raised."""
        hub = self.story.hub
        for partition, log in hub.logs.items():
            while (first := max(self.position.get(partition, 0), hub.begin[partition])) < len(log):
                events = [hub.event(partition, n) for n in range(first, min(len(log), first + 10))]
                await self._bring(partition, events, tries)
                self.position[partition] = events[-1].sequence_number + 1

    async def _bring(self, partition, events, tries):
        for left in reversed(range(tries)):
            deadline = asyncio.get_running_loop().time() + 45.0
            try:
                await self.hosted.settle(partition, events, deadline=deadline)
            except TidemarkError:
                if not left:
                    raise
                await asyncio.sleep(5.0)
            else:
                return

    async def stop(self):
        await self.hosted.aclose()
