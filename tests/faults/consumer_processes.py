"""What the fault tests of the consumer share: a ledger of what was sent, a checker, and consumers as processes."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
import zlib
from pathlib import Path

import msgspec

from consumer.__main__ import run
from consumer.config import read_config
from consumer.model import Checkpoint
from consumer.running.assembly import Parts
from tests.support.consumer.stack import HUB
from tests.support.forking import start_forked

ROOT = Path(__file__).parents[2]

QUICK_LEASES = {"CONSUMER_LEASE_INTERVAL": "2s", "CONSUMER_LEASE_EXPIRY": "8s"}


def through(proxy, connection_string):
    """A storage connection whose blobs are reached by a proxy."""
    return re.sub(r"(BlobEndpoint=http://127\.0\.0\.1:)\d+", rf"\g<1>{proxy.port}", connection_string)


def blob_port(connection_string):
    return int(re.search(r"BlobEndpoint=http://127\.0\.0\.1:(\d+)", connection_string)[1])


class Ledger:
    """Everything sent, and the checker: what is lost, what a checkpoint covers without its being stored.

    An event is durable when its document is there in its version or a later one, or its dead letter is.
    """

    def __init__(self, world):
        self.world = world
        self.sent = {}  # (partition, sequence number) -> (id, version), or None for poison
        self.remembered = {}  # versions of documents that a test is about to remove
        self._versions = 0

    def send(self, partition, ids, *, origin=None, hub=HUB, fields=(), kept=True):
        """Events with these ids, each a later version of its document; `kept`: the documents are in the container."""
        sent, bodies = [], []
        for id_, more in itertools.zip_longest(ids, fields, fillvalue={}):
            self._versions += 1
            document = {
                "id": id_,
                "origin": origin or f"O{zlib.crc32(id_.encode()) % 97}",
                "version": self._versions,
                **more,
            }
            bodies.append(msgspec.json.encode(document))
            sent.append((id_, self._versions))
        first = self.world.event_hubs.append(hub, partition, bodies)
        if not kept:
            return
        for number, event in enumerate(sent, first):
            self.sent[partition, number] = event

    @property
    def newest(self):
        return self._versions

    def send_poison(self, partition, bodies):
        first = self.world.event_hubs.append(HUB, partition, bodies)
        for number in range(first, first + len(bodies)):
            self.sent[partition, number] = None

    def versions(self):
        stored = {
            document["id"]: document["version"] for document in self.world.cosmos.documents("db", "flights")
        }
        return {id_: max(stored.get(id_, 0), self.remembered.get(id_, 0)) for id_ in stored | self.remembered}

    def remember(self):
        self.remembered = self.versions()

    def missing(self, dead_letters=frozenset()):
        """What is neither a document nor a dead letter, as (partition, sequence number)."""
        versions = self.versions()
        return {
            position
            for position, event in self.sent.items()
            if position not in dead_letters and (event is None or versions.get(event[0], 0) < event[1])
        }

    def written(self):
        """Whether every document is there in its last version."""
        versions = self.versions()
        return all(versions.get(event[0], 0) >= event[1] for event in self.sent.values() if event)


def covers(checkpoint, number):
    return number <= checkpoint.sequence_number or any(
        first <= number <= last for first, last in checkpoint.beyond
    )


def is_covered(checkpoints, position):
    """Whether the checkpoints, by partition, say that the event at (partition, sequence number) is settled."""
    partition, number = position
    return partition in checkpoints and covers(checkpoints[partition], number)


def soon():
    return asyncio.get_running_loop().time() + 10.0


class Stores:
    """The checkpoints, leases and dead letters of a world, looked at from outside."""

    def __init__(self, settings):
        parts = Parts(read_config(settings), settings)
        self.store, self.leases, self._dead_letters = (
            parts.checkpoints(),
            parts.leases(),
            parts.dead_letters(),
        )
        self._is_open = False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for part in (self.store, self.leases, self._dead_letters):
            await part.aclose()

    async def checkpoints(self):
        found = await self.store.load_all(deadline=soon())
        return {name: each for name, each in found.items() if isinstance(each, Checkpoint)}

    async def marks(self):
        return {name: each.sequence_number for name, each in (await self.checkpoints()).items()}

    async def dead_letters(self):
        if not self._is_open:
            await self._dead_letters.open()
            self._is_open = True
        return [dead_letter async for dead_letter in self._dead_letters.list()]

    async def letter_positions(self):
        return {
            (letter.event.partition, letter.event.sequence_number) for letter in await self.dead_letters()
        }

    async def free_leases(self):
        """What the operator of a killed consumer may do instead of waiting for its leases to expire."""
        leases, _ = await self.leases.list(deadline=soon())
        for lease in leases:
            if lease.owner:
                await self.leases.release(lease, deadline=soon())

    async def owners(self):
        """Partition -> owner, without presences and free leases."""
        leases, _ = await self.leases.list(deadline=soon())
        return {lease.partition: lease.owner for lease in leases if lease.owner and lease.partition[0] != "~"}


class ConsumerInProcess:
    """A consumer with a process of its own, and what it said on standard error."""

    def __init__(self, process, log):
        self.process = process
        self._log = log

    @property
    def pid(self):
        return self.process.pid

    @property
    def running(self):
        return self.process.exitcode is None

    def said(self):
        return self._log.read_text()

    def signal(self, number):
        os.kill(self.pid, number)

    async def ended(self, within=30.0):
        """The exit status."""
        async with asyncio.timeout(within):
            while self.running:
                await asyncio.sleep(0.02)
            return self.process.exitcode

    async def kill(self):
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self, within=30.0):
        self.signal(signal.SIGTERM)
        return await self.ended(within)


def run_consumer(*arguments):
    """`python -m consumer`, in a process that was forked for it."""
    sys.argv = ["consumer", *arguments]
    run()


@contextlib.asynccontextmanager
async def consumer_process(settings, folder, *arguments):
    """A consumer in a process of its own; killed at the end if it still runs."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "COV_"))
    }
    folder.mkdir(exist_ok=True)
    log = folder / f"consumer-{len(list(folder.glob('consumer-*')))}.log"
    log.touch()
    process = start_forked(
        run_consumer, "--root", str(folder), *arguments, environment={**environment, **settings}, log=log
    )
    running = ConsumerInProcess(process, log)
    try:
        yield running
    finally:
        if running.running:
            running.signal(signal.SIGCONT)
            await running.kill()
