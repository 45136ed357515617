"""SIGKILL to real consumers, in every mode, and a stop in order in the middle of their work: what each sink has afterwards, against
what was sent.

`make test` runs one life of a file with every sink; `make torture` runs `TORTURE_KILLS` kills in each mode, from the seed
`TORTURE_SEED` on.
"""

import asyncio
import contextlib
import json
import os
import random
import sqlite3
from collections import Counter

import pytest
from aiohttp import web
from deltalake.exceptions import TableNotFoundError

from devstack.servers.faults import Fault
from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.faults.consumer_processes import (
    QUICK_LEASES,
    Ledger,
    Stores,
    blob_port,
    consumer_process,
    is_covered,
    through,
)
from tests.support.consumer.lake import delta_rows, parquet_rows
from tests.support.consumer.messaging import decoded
from tests.support.consumer.stack import consumer_world
from tests.support.servers.event_hubs import HUB
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tidemark.foundation.azure.connections import blob_container

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]

KILLS = int(os.environ.get("TORTURE_KILLS", "50"))
SEED = int(os.environ.get("TORTURE_SEED", "2"))
PER_TEST = 10
PARTITIONS = 2
BATCH = 10
TROUBLES = 3
EVENTS = 240
IDS = 60
"""Documents of a hub and partition, each changed again and again."""
LATEST = 3.0
"""Seconds for which a request is on its way at most: longer than the next consumer takes until it writes."""

LAKE = """create = true
columns = { id = "string not null", delay = "long", version = "long", number = "long" }
sources = { number = "@sequence_number" }
commit_every = 0.3"""
SINKS = {
    "guarded": 'type = "cosmos"\ndatabase = "db"\ncontainer = "flights"\nguard = "number"',
    "plain": 'type = "cosmos"\ndatabase = "db"\ncontainer = "flights"',
    "table": 'type = "sql"\ntable = "flights"\ncolumns = { version = "$.version" }',
    "delta": f'type = "delta"\nuri = "TABLE"\n{LAKE}',
    "files": f'type = "parquet"\ncontainer = "CONTAINER"\n{LAKE}',
    "copy": 'type = "event_hubs"\nhub = "copies"\nconnection = "EventHubConnection"\nstate_container = "CONTAINER"\nkey = "$.id"',
    "orders": 'type = "service_bus"\nqueue = "orders"\nconnection = "Orders"',
    "web": 'type = "http"\nurl = "http://127.0.0.1:PORT/flights"\nkey = "$.id"',
}
PARK = 'park = "status_400"\npark_delays = "1s,1s,1s,1s,1s,1s"\npark_order = "key"'
MODES = {
    # By mode: the keys of the first hub, its sinks, and those of a second hub.
    "every sink": (PARK, ["guarded", "delta", "files", "copy", "orders", "web"], ["table"]),
    "plain": ("", ["plain"], []),
    "guard": ("", ["guarded"], []),
    "marks": ("", ["guarded", "delta", "table"], []),
    "parking": (PARK, ["guarded"], []),
    "sql": ("", ["table"], []),
    "delta": ("", ["delta"], []),
    "web": ("", ["web"], []),
    "two hubs": ("", ["guarded"], ["table"]),
}
TROUBLE = [
    {"kind": "error", "status": 429, "retry_after": 0.05},
    {"kind": "error", "status": 503, "retry_after": 0.05},
    {"kind": "error_after", "status": 408, "retry_after": 0.05},
    {"kind": "drop_connection"},
    {"kind": "drop_ack"},
    {"kind": "hang", "seconds": 0.3},
]


class Service:
    """A web service that knows its idempotency keys, and is in trouble now and then."""

    def __init__(self, rng):
        self.rng, self.versions = rng, {}

    async def handle(self, request):
        body, trouble = await request.json(), self.rng.random()
        if trouble < 0.03:
            return web.Response(status=self.rng.choice([408, 429, 503]), headers={"Retry-After": "0"})
        if trouble < 0.04:
            request.transport.close()
        self.versions[request.headers["Idempotency-Key"]] = body["version"]
        if trouble > 0.98:
            return web.Response(status=self.rng.choice([408, 500]))  # carried out all the same
        return web.Response()


class World:
    def __init__(self, world, mode, folder, *, queues, container, service, port):
        self.world, self.queues, self.container, self.service = world, queues, container, service
        self.hub_keys, *self.sinks = MODES[mode]
        self.hubs = [name for name, sinks in zip((HUB, "others"), self.sinks, strict=True) if sinks]
        self.ledger, self.folder = Ledger(world), folder
        self.events = {name: [] for name in self.hubs}  # versions
        self.rejected = set()  # versions whose `delay` a table refuses
        self.replayable = 0  # events that were in the container at a kill, and in no checkpoint
        self.table, self.database = str(folder / "rows"), folder / "sink.db"
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            connection.execute("CREATE TABLE flights (version INTEGER)")  # no key: nothing hides a duplicate
        text = self.text().replace("TABLE", self.table).replace("PORT", str(port))
        (folder / "consumer.toml").write_text(text.replace("CONTAINER", container.container_name))
        names = {name: value for name, value in world.settings.items() if name != "EVENTHUB_NAME"}
        self.settings = {
            **names,
            **QUICK_LEASES,
            "CONSUMER_FILE": str(folder / "consumer.toml"),
            "CONSUMER_SQL_URL": f"sqlite:///{self.database}",
            "CONSUMER_BATCH_OPERATIONS": str(BATCH),
            "Orders": queues.connection_string,
            "TIDEMARK_TRUSTED_HOSTS": "127.0.0.1",
        }

    def text(self):
        lines = ["version = 1"]
        for place, (hub, sinks) in enumerate(zip(self.hubs, self.sinks, strict=False)):
            lines += [f'[hubs.hub{place}]\nhub = "{hub}"', *[self.hub_keys] * (not place)]
            for name in sinks:
                also = "also = true" if name != sinks[-1] else ""
                lines.append(f'[[hubs.hub{place}.routes]]\nto = "{name}"\n{also}')
        used = [name for sinks in self.sinks for name in sinks]
        return "\n".join([*lines, *(f"[sinks.{name}]\n{SINKS[name]}" for name in used)])

    def send(self):
        """Events dealt to the partitions; the first one of each has no whole number as `delay`."""
        for hub, sinks in zip(self.hubs, self.sinks, strict=False):
            for partition in range(PARTITIONS):
                names = [f"{hub}{partition}-{n % IDS}" for n in range(EVENTS // PARTITIONS)]
                odd = [{"delay": "late" if n == 0 and "delta" in sinks else n} for n in range(len(names))]
                first = self.ledger.newest + 1
                self.ledger.send(str(partition), names, hub=hub, fields=odd, kept=self.has_documents(sinks))
                self.events[hub] += range(first, self.ledger.newest + 1)
                if "delta" in sinks:
                    self.rejected.add(first)

    @staticmethod
    def has_documents(sinks):
        return "guarded" in sinks or "plain" in sinks

    def trouble(self, rng):
        """Faults of the container. Requests of a killed process arrive late under the guard alone: it keeps their order."""
        inject = self.world.cosmos.inject
        for _ in range(TROUBLES):
            if "guarded" in self.sinks[0]:
                inject(Fault("docs.bulk", "late", seconds=rng.uniform(2, LATEST)))
            inject(Fault("docs.bulk", **rng.choice(TROUBLE)))
            if self.hub_keys:
                inject(Fault("op.*", "error", status=400))

    async def stored(self, name):
        """The versions that a sink without an order by key has, with every repetition."""
        match name:
            case "table":
                with contextlib.closing(sqlite3.connect(self.database, timeout=10)) as connection:
                    return [version for (version,) in connection.execute("SELECT version FROM flights")]
            case "delta":
                with contextlib.suppress(TableNotFoundError):  # the consumer creates it
                    return [row["version"] for row in await asyncio.to_thread(delta_rows, self.table)]
                return []
            case "files":
                rows = await parquet_rows(self.container) if await self.container.exists() else []
                return [row["version"] for row in rows]
            case "copy":
                events = [
                    one for id_ in ("0", "1", "2") for one in self.world.event_hubs.events("copies", id_)
                ]
                return [json.loads(b"".join(decoded(one.message).data))["version"] for one in events]
            case "orders":
                messages = self.queues.broker.queues["orders"].peek(0, 1_000_000)
                return [json.loads(b"".join(decoded(one.sent.bare).data))["version"] for one in messages]
            case "web":
                return list(self.service.versions.values())

    def wanted(self, hub, name):
        return [n for n in self.events[hub] if name not in {"delta", "files"} or n not in self.rejected]

    async def is_complete(self):
        for hub, sinks in zip(self.hubs, self.sinks, strict=False):
            for name in sinks:
                if name not in {"guarded", "plain"} and len(await self.stored(name)) < len(
                    self.wanted(hub, name)
                ):
                    return False
        return not self.ledger.missing()

    async def progress(self):
        """How many events the last sink of the first hub has."""
        name = self.sinks[0][-1]
        return (
            max(self.ledger.versions().values(), default=0)
            if self.has_documents([name])
            else len(await self.stored(name))
        )

    def consumer(self, **settings):
        return consumer_process({**self.settings, **settings}, self.folder / "consumers")

    def stores(self, hub):
        return Stores({**self.settings, "EVENTHUB_NAME": hub})

    async def check_checkpoints(self):
        """No checkpoint covers what is in no container. A parked event is in its store."""
        missing = self.ledger.missing()
        async with self.stores(HUB) as stores:
            checkpoints = await stores.checkpoints()
            lies = [each for each in missing if is_covered(checkpoints, each)]
            assert not lies or self.hub_keys, f"{checkpoints} cover {lies[:5]}, which are not stored"
            durable = self.ledger.sent.keys() - missing
            self.replayable += sum(not is_covered(checkpoints, each) for each in durable)

    def written_again(self):
        """Operations of the container beyond one an event; a probe follows each read of its definition."""
        found = self.world.cosmos.stats()
        return found.operations - found.requests.get("containers.read", 0) - len(self.ledger.sent)

    async def free_leases(self):
        for hub in self.hubs:
            async with self.stores(hub) as stores:
                await stores.free_leases()


@contextlib.asynccontextmanager
async def world_of(mode, rng, azurite, folder):
    service, name = Service(rng), f"lake-{os.urandom(6).hex()}"
    app = web.Application()
    app.router.add_post("/flights", service.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with (
        consumer_world(azurite, folder, partitions=PARTITIONS, throughput=20_000) as world,
        ServiceBusServer(ca_dir=folder) as queues,
        blob_container(world.settings, "AzureWebJobsStorage", name) as container,
    ):
        world.event_hubs.create_hub("copies", 3)
        world.event_hubs.create_hub("others", PARTITIONS)
        queues.create_queue("orders", QueueSettings(limits=STANDARD, duplicate_window=3600.0))
        yield World(world, mode, folder, queues=queues, container=container, service=service, port=port)
    await runner.cleanup()


async def no_document_goes_back(ledger):
    """Looks again and again, and never ends; AssertionError for a document whose version is lower than it was."""
    highest = {}
    while True:
        for id_, version in ledger.versions().items():
            assert version >= highest.get(id_, 0), f"{id_} is {version} again, after {highest[id_]}"
            highest[id_] = version
        await asyncio.sleep(0.02)


async def kill_once(world, rng, storage):
    """After a random part of the events was written, in trouble from the first one on."""
    before = await world.progress()
    world.send()
    async with world.consumer(AzureWebJobsStorage=storage) as consumer:
        for begun in (1, rng.randint(1, EVENTS - 20)):

            async def is_begun(least=before + begun):
                assert consumer.running, consumer.said()[-3000:]
                return await world.progress() >= least

            await until(is_begun, within=90, what=lambda: consumer.said()[-3000:])
            if begun == 1:
                world.trouble(rng)
        await asyncio.sleep(rng.uniform(0, 0.3))
        await consumer.kill()
    world.world.cosmos.faults.clear()
    await world.check_checkpoints()
    await world.free_leases()


async def stop_once(world, rng):
    """In order, after a random part of the events was written."""
    least = await world.progress() + rng.randint(1, EVENTS - 20)
    world.send()
    async with world.consumer(
        CONSUMER_SHUTDOWN="40s"
    ) as consumer:  # six sinks, after ten kills, for 2,000 events

        async def is_begun():
            assert consumer.running, consumer.said()[-3000:]
            return await world.progress() >= least

        await until(is_begun, within=90, what=lambda: consumer.said()[-3000:])
        assert await consumer.stop(within=60) == 0, consumer.said()
    await world.check_checkpoints()


@pytest.mark.parametrize(
    ("mode", "kills", "seed"),
    [
        pytest.param("every sink", 1, 1),
        *(
            pytest.param(mode, PER_TEST, seed, marks=[pytest.mark.torture, pytest.mark.timeout(900)])
            for mode in MODES
            for seed in range(SEED, SEED + max(1, KILLS // PER_TEST))
        ),
    ],
)
async def test_a_kill_loses_nothing_doubles_nothing_and_brings_no_older_version_back(
    azurite, tmp_path, mode, kills, seed
):
    rng = random.Random(f"{mode} {seed}")
    async with world_of(mode, rng, azurite, tmp_path) as world, TcpProxy(blob_port(azurite)) as proxy:
        proxy.delay = 0.03  # so that checkpoints are often on their way when the kill comes
        looking = asyncio.create_task(no_document_goes_back(world.ledger))
        for _ in range(kills):
            await kill_once(world, rng, through(proxy, azurite))
            assert not looking.done() or "plain" in world.sinks[0], looking.exception()
        await stop_once(world, rng)
        world.send()
        async with world.consumer() as consumer:

            async def all_there():
                assert consumer.running, consumer.said()[-3000:]
                return await world.is_complete()

            await until(all_there, within=90, what=lambda: consumer.said()[-3000:])
            await asyncio.sleep(LATEST / 2)  # the start of this consumer took the other half
            assert await consumer.stop() == 0, consumer.said()
        assert not world.ledger.missing()
        if (
            mode == "plain"
        ):  # besides what no checkpoint covered, requests whose answers were lost are sent once more
            assert world.written_again() <= world.replayable + kills * TROUBLES * BATCH
        assert not looking.done() or "plain" in world.sinks[0], looking.exception()
        looking.cancel()
        for hub, sinks in zip(world.hubs, world.sinks, strict=False):
            for name in sinks:
                if name not in {"guarded", "plain"}:
                    found, wanted = Counter(await world.stored(name)), Counter(world.wanted(hub, name))
                    assert found == wanted, (
                        f"{name}, seed {seed}: {found - wanted} more, {wanted - found} less"
                    )
        async with world.stores(HUB) as stores:
            letters = [json.loads(letter.event.body)["version"] for letter in await stores.dead_letters()]
        assert sorted(letters) == sorted(world.rejected), f"seed {seed}"
