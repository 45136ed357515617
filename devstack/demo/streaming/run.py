"""The demo's second scene, records that stream through consumers: its world, what was measured, what is done to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from azure.core.exceptions import AzureError
from msgspec import Struct

from devstack.demo.common import flights
from devstack.demo.common.functions_api import FunctionsApi
from devstack.demo.common.run import SAMPLE_EVERY, Run
from devstack.demo.streaming.world import Blobs, Position, Sent, Written
from devstack.processes.child import ChildProcess, ProcessError
from devstack.stack.supervisor import (
    CONSUMER_GROUP,
    COSMOS_CONTAINER,
    COSMOS_DATABASE,
    EVENT_HUB,
    ROOT,
    FunctionsProcess,
    Stack,
)

TARGET = "flights"  # of demo.toml, as the name of the consumer
POISON = 20
SEND_RATE = 2_000.0  # records per second
AT_ONCE = 250  # records in a batch: sending shares this process with the servers
CONSUMER_RATE = (
    700  # records per second each; two of them need 8,400 RU/s at 5 RU a flight and 20 % of headroom
)
KILL_AT = 0.5  # of all records settled
REPLACE_AFTER = 3.0
DRAIN_WITHIN = 300.0
LOWER_WITHIN = 30.0
SMOOTHED = 4  # samples that a rate is taken over: two seconds, for request units come by whole seconds
STOP_WITHIN = 20.0

SETTINGS = {
    "EVENTHUB_NAME": EVENT_HUB,
    "EVENTHUB_CONSUMERGROUP": CONSUMER_GROUP,
    "EVENTHUB_RATELIMIT": str(CONSUMER_RATE),
    "COSMOS_DATABASE": COSMOS_DATABASE,
    "COSMOS_CONTAINER": COSMOS_CONTAINER,
    "CONSUMER_NAME": TARGET,
    "CONSUMER_LEASE_INTERVAL": "2s",
    "CONSUMER_LEASE_EXPIRY": "8s",
    "CONSUMER_SHUTDOWN": "15s",
    "CONSUMER_TELEMETRY_EVERY": "1s",
    "CONSUMER_TELEMETRY_LAND": "1s",
}


class StreamSample(Struct, frozen=True):
    """The world at one moment, `at` seconds after the start. Totals since the start; lag by partition."""

    at: float
    lag: tuple[int, ...]
    sent: int
    documents: int
    letters: int
    writes: int
    throttled: int
    spent: float
    provisioned: int
    running: int


class Instance:
    """A consumer in a process of its own."""

    def __init__(self, name: str, settings: dict[str, str]) -> None:
        self.name = name
        self.state = "starting"
        self.partitions: tuple[str, ...] = ()
        self.status: int | None = None
        self._process = ChildProcess(name, [sys.executable, "-m", "consumer"], cwd=ROOT, env=settings)
        self._process.start()
        self.pid = self._process.pid

    @property
    def leaving(self) -> bool:
        return self.state in {"killed", "stopping", "stopped"}

    def check(self) -> None:
        """Raises ProcessError if it ended by itself."""
        if not self.leaving and not self._process.running:
            raise ProcessError(f"{self.name} ended by itself:\n{self._process.output_tail(40)}")

    def kill(self) -> None:
        self.state = "killed"
        self._process.kill()

    async def stop(self) -> None:
        """In order: it finishes what it has begun, and gives its partitions back. Idempotent."""
        if self.status is not None:
            return
        if self.state != "killed":
            self.state = "stopping"
        self.status = await self._process.stop_async(grace_s=STOP_WITHIN)
        if self.state != "killed":
            self.state = "stopped"


class StreamingRun(Run):
    """The records, their consumers and the database."""

    def __init__(self, stack: Stack, functions: FunctionsProcess, records: int, telemetry: Path) -> None:
        """`telemetry` is the folder of what the consumers tell of themselves."""
        super().__init__(stack, functions)
        self.records = records
        self.settings = {**stack.settings(), **SETTINGS, "CONSUMER_TELEMETRY_FOLDER": str(telemetry)}
        self.hub = stack.event_hubs.hubs.hub(EVENT_HUB)
        self.container = stack.cosmos.container(COSMOS_DATABASE, COSMOS_CONTAINER)
        self.blobs = Blobs(stack.azurite.connection_string)
        self.sent = Sent()
        self.written = Written()
        self.letters: dict[Position, str] = {}
        self.instances: list[Instance] = []
        self.samples: list[StreamSample] = []
        self.killed_at: float | None = None
        self.taken_over: float | None = None
        self.drained_at: float | None = None
        self._looked = asyncio.Condition()

    @property
    def settled(self) -> int:
        return self.written.total + len(self.letters)

    @property
    def provisioned(self) -> int:
        return self.stack.cosmos.offer(COSMOS_DATABASE, COSMOS_CONTAINER).level.ru

    async def aclose(self) -> None:
        """Ends at once the consumers that are still there: they are made for that."""
        for instance in self.instances:
            if instance.status is None:
                instance.kill()
        await asyncio.gather(*(instance.stop() for instance in self.instances))
        await self.blobs.aclose()

    # -- what is done to it

    async def send(self) -> None:
        """Flights at a steady rate, and between them, evenly, records that are none."""
        bodies = await asyncio.to_thread(_bodies, self.records)
        self.note(f"{self.records:,} records begin to stream, {POISON} of them no JSON")
        connection = self.stack.event_hubs.connection_string(EVENT_HUB)
        await flights.send(
            connection, EVENT_HUB, bodies, at_once=AT_ONCE, rate=SEND_RATE, unless=self.stop.is_set
        )

    async def direct(self) -> None:
        """Two consumers; one is killed halfway and replaced; when all is written one leaves, and its units go."""
        self._start()
        self._start()
        if await self._reached(lambda: self.settled >= self.records * KILL_AT, DRAIN_WITHIN):
            await self._kill_one()
        if await self._reached(lambda: self.settled >= self.records, DRAIN_WITHIN - self.elapsed):
            self.drained_at = self.elapsed
            self.note("every record is written or a dead letter; one consumer leaves")
            peak = self.provisioned
            await next(instance for instance in self.instances if not instance.leaving).stop()
            await self._reached(lambda: self.provisioned < peak, LOWER_WITHIN)
        await asyncio.gather(*(instance.stop() for instance in self.instances))
        self.stop.set()

    async def _kill_one(self) -> None:
        victim = max(self.instances, key=lambda instance: len(instance.partitions))
        victim.kill()
        self.killed_at = self.elapsed
        self.note(f"{victim.name} is killed: SIGKILL to process {victim.pid}", at=self.killed_at)
        await asyncio.sleep(REPLACE_AFTER)
        self._start()

    def _start(self) -> None:
        instance = Instance(f"consumer {len(self.instances) + 1}", self.settings)
        self.instances.append(instance)
        self.note(f"{instance.name} starts, process {instance.pid}")

    async def _reached(self, condition: Callable[[], bool], within: float) -> bool:
        """Whether a look at the world finds it so in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(within, 0.0)), self._looked:
                return await self._looked.wait_for(condition)
        return False

    def note(self, text: str, *, at: float | None = None) -> None:
        """Something happened that no decision tells."""
        self.events.append((self.elapsed if at is None else at, text))

    # -- what is seen of it

    def check(self) -> None:
        """Raises ProcessError when a server is gone, or a consumer that should be there."""
        super().check()
        for instance in self.instances:
            instance.check()

    async def watch(self, show: Callable[[], None]) -> None:
        """Samples the world and reads the functions' own API until the run is over."""
        async with FunctionsApi(self.functions.url, TARGET) as api:
            while not self.stop.is_set():
                await self._look(api)
                show()
                await asyncio.sleep(SAMPLE_EVERY)
            await self._look(api)
            self.log = await api.log(self.began_at)
            show()

    async def _look(self, api: FunctionsApi) -> None:
        # What fails now, the next look will show.
        with contextlib.suppress(AzureError):
            self.letters = await self.blobs.letters()
            self._assign(await self.blobs.owners())
        await self.read(api)
        self.sent.follow(self.hub)
        self.written.follow(self.container, self.sent)
        self.samples.append(self._sample())
        async with self._looked:
            self._looked.notify_all()

    def _assign(self, owners: dict[str, str]) -> None:
        for instance in self.instances:
            # The name of an owner is "host~process~token".
            mine = (
                partition
                for partition, owner in owners.items()
                if owner.split("~")[1:2] == [str(instance.pid)]
            )
            instance.partitions = tuple(sorted(mine))
            if instance.state == "starting" and instance.partitions:
                instance.state = "running"
        orphans = [orphan for orphan in self.instances if orphan.state == "killed" and orphan.partitions]
        if self.killed_at is not None and self.taken_over is None and not orphans:
            self.taken_over = self.elapsed - self.killed_at
            self.note("its leases have run out: others have its partitions")

    def _sample(self) -> StreamSample:
        buried = [partition for partition, _ in self.letters]
        lag = (
            self.sent.events.get(id_, 0) - self.written.by_partition.get(id_, 0) - buried.count(id_)
            for id_ in self.hub.partition_ids
        )
        ranges = self.container.map.history
        return StreamSample(
            at=self.elapsed,
            lag=tuple(lag),
            sent=self.sent.total,
            documents=self.written.total,
            letters=len(self.letters),
            writes=sum(key_range.lsn - 1 for key_range in ranges),
            throttled=sum(key_range.throttled for key_range in ranges),
            spent=sum(key_range.budget.spent for key_range in ranges),
            provisioned=self.provisioned,
            running=sum(not instance.leaving for instance in self.instances),
        )


def _bodies(records: int) -> list[bytes]:
    return flights.with_poison(list(flights.bodies(records - POISON)), POISON)


class Rates:
    """What happened between two samples, per second; `at` is the middle, `throttled` the share of the operations tried."""

    def __init__(self, before: StreamSample, after: StreamSample) -> None:
        seconds = max(after.at - before.at, 1e-9)
        writes, refused = after.writes - before.writes, after.throttled - before.throttled
        self.at = (before.at + after.at) / 2
        self.written = (after.documents - before.documents) / seconds
        self.used = (after.spent - before.spent) / seconds
        self.throttled = refused / (writes + refused) if refused else 0.0


def rates_of(samples: Sequence[StreamSample]) -> list[Rates]:
    """The rates at each sample, over the SMOOTHED ones before it."""
    earlier = itertools.chain(itertools.repeat(samples[0], SMOOTHED), samples)
    return [Rates(before, after) for before, after in zip(earlier, samples, strict=False)]
