"""A process that forwards to another hub: stopped in order and started again in a changed world, and without the store of its states."""

import asyncio
import contextlib
import json
import os
import random
import uuid

import pytest

from devstack.servers.faults import Fault
from tests.faults.consumer_processes import (
    QUICK_LEASES,
    Stores,
    blob_port,
    consumer_process,
    is_covered,
    through,
)
from tests.support.consumer.messaging import decoded
from tests.support.consumer.stack import HUB, consumer_world
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.waiting import until

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]

EVENTS = 120
"""Of each partition at a time."""
KEYS = 7
IS_LONG = bool(os.environ.get("TORTURE"))
LONG = 40.0 if IS_LONG else 3.0
"""Seconds without the store of the states. With TORTURE=1 several leases, and two attempts of a write."""
SEEDS = int(os.environ.get("TORTURE_KILLS", "50")) // 10
DOCUMENTS = '[sinks.documents]\ntype = "cosmos"\ndatabase = "db"\ncontainer = "flights"\nid = "position"'


class Forwarding:
    """A source, a target, and consumers between them."""

    def __init__(self, world, folder, states):
        self.world, self.folder = world, folder
        self.states = f"states-{uuid.uuid4().hex}"
        self.settings = {**world.settings, **QUICK_LEASES, "States": states}
        self.era, self.key, self.beside = 0, "$.key", False
        self.sent = {}  # by partition and number: the document

    def consumer(self, **settings):
        """One of the present file."""
        also = "also = true" if self.beside else ""
        lines = [
            f'version = 1\n[hubs.h]\nhub = "{HUB}"',
            f"steps = [{{ set = {{ '/era' = {self.era} }} }}]" * bool(self.era),
            f'[[hubs.h.routes]]\nto = "copy"\n{also}',
            '[[hubs.h.routes]]\nto = "documents"' * self.beside,
            f'[sinks.copy]\ntype = "event_hubs"\nhub = "copies"\nconnection = "EventHubConnection"\nkey = "{self.key}"',
            f'state_connection = "States"\nstate_container = "{self.states}"',
            DOCUMENTS * self.beside,
        ]
        file = self.folder / "consumer.toml"
        file.write_text("\n".join(lines))
        settings = {**self.settings, "CONSUMER_FILE": str(file), **settings}
        return consumer_process(settings, self.folder / "consumers")

    def send(self):
        for partition in self.world.event_hubs.hubs.hub(HUB).partition_ids:
            documents = [{"key": f"k{n % KEYS}", "n": len(self.sent) + n} for n in range(EVENTS)]
            bodies = [json.dumps(document).encode() for document in documents]
            first = self.world.event_hubs.append(HUB, partition, bodies)
            self.sent |= {(partition, first + n): each for n, each in enumerate(documents)}

    def copies(self):
        """By partition of the target: partition, number and document of each event."""
        found = {}
        for id_ in self.world.event_hubs.hubs.hub("copies").partition_ids:
            found[id_] = []
            for one in self.world.event_hubs.events("copies", id_):
                message = decoded(one.message)
                said = message.application_properties
                place = said[b"tidemark-partition"].decode(), said[b"tidemark-sequence-number"]
                found[id_].append((place, json.loads(b"".join(message.data))))
        return found

    def places(self):
        return [place for log in self.copies().values() for place, _ in log]

    def check(self):
        """Each event is there once, as one of the files makes it, and those of a partition are in order."""
        assert sorted(self.places()) == sorted(self.sent)
        for log in self.copies().values():
            for (partition, number), document in log:
                sent = self.sent[partition, number]
                assert document in [sent, *({**sent, "era": era} for era in range(1, self.era + 1))]
            for partition in {place[0] for place, _ in log}:
                own = [place for place, _ in log if place[0] == partition]
                assert own == sorted(own)

    async def has_more(self, consumer, count=1):
        """Waits for so many more copies, or for all."""
        wanted = min(len(self.places()) + count, len(self.sent))
        await self.seen(consumer, lambda: len(self.places()) >= wanted)

    async def seen(self, consumer, condition):
        def holds():
            assert consumer.running, consumer.said()[-3000:]
            return condition()

        await until(holds, what=lambda: consumer.said()[-3000:])

    async def lies(self):
        """Events that a checkpoint covers, and that were not forwarded."""
        async with Stores({**self.settings, "EVENTHUB_NAME": HUB}) as stores:
            checkpoints = await stores.checkpoints()
            assert not await stores.dead_letters()
        return [place for place in self.sent.keys() - set(self.places()) if is_covered(checkpoints, place)]

    async def free_leases(self):
        async with Stores({**self.settings, "EVENTHUB_NAME": HUB}) as stores:
            await stores.free_leases()

    def documents(self):
        return len(self.world.cosmos.documents("db", "flights"))


@contextlib.asynccontextmanager
async def forwarding(azurite, folder):
    async with (
        consumer_world(azurite, folder, partitions=2, throughput=20_000) as world,
        TcpProxy(blob_port(azurite)) as proxy,
    ):
        world.event_hubs.create_hub("copies", 3)
        found = Forwarding(world, folder, through(proxy, azurite))
        found.proxy = proxy
        yield found


def change(world, what):
    """What is different when the next process starts."""
    match what:
        case "mapping":
            world.era += 1
        case "partitions of the target":
            world.world.event_hubs.add_partitions("copies", 2)
        case "partitions of the source":
            world.world.event_hubs.add_partitions(HUB, 1)
        case "another sink beside it":
            world.beside = not world.beside
        case "key":
            world.key = "" if world.key else "$.key"


CHANGES = (
    "mapping",
    "partitions of the target",
    "another sink beside it",
    "partitions of the source",
    "key",
)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(1, SEEDS + 1))]
)
async def test_a_forwarder_that_is_stopped_in_order_doubles_and_loses_nothing_whatever_changes_meanwhile(
    azurite, tmp_path, seed
):
    rng = random.Random(seed)
    lives = [rng.sample(CHANGES, rng.randint(0, 3)) for _ in range(8)] if seed else [CHANGES[:2], CHANGES[2:]]
    async with forwarding(azurite, tmp_path) as world:
        for place, changes in enumerate([[], *lives]):
            for what in changes:
                change(world, what)
            world.send()
            async with world.consumer() as consumer:
                is_last = place == len(lives)
                await world.has_more(consumer, len(world.sent) if is_last else rng.randint(1, EVENTS))
                assert await consumer.stop() == 0, consumer.said()
            assert not await world.lies()
        world.check()


@pytest.mark.parametrize(
    ("answer", "is_changed"),
    [
        ("drop_ack", True),
        *(
            pytest.param(answer, is_changed, marks=pytest.mark.torture)
            for answer, is_changed in [("drop_ack", False), ("no_answer", False), ("no_answer", True)]
        ),
    ],
)
async def test_after_a_kill_nothing_waits_for_events_that_do_not_come(azurite, tmp_path, answer, is_changed):
    """A job that stops in the middle of the sets that a killed process was sending, which its steps may make others of."""
    async with forwarding(azurite, tmp_path) as world:
        faults = world.world.event_hubs.faults
        faults.add(Fault("send:copies*", answer, count=100))
        world.send()
        async with world.consumer() as consumer:
            await world.seen(consumer, lambda: faults.list()[0].count <= 96)  # two sets of each partition
            await consumer.kill()
        faults.clear()
        await world.free_leases()
        if is_changed:
            change(world, "mapping")
        async with world.consumer(CONSUMER_UNTIL="0=30,1=30") as job:
            assert await job.ended() == 0, job.said()
        assert not await world.lies()
        assert {place for place in world.sent if place[1] <= 30} <= set(world.places())
        world.send()
        async with world.consumer() as consumer:
            await world.has_more(consumer, len(world.sent))
            assert await consumer.stop() == 0, consumer.said()
        world.check()


@pytest.mark.parametrize(
    "end", ["none", *(pytest.param(end, marks=pytest.mark.torture) for end in ("stopped", "killed"))]
)
async def test_without_the_store_of_its_states_a_forwarder_says_so_waits_and_goes_on(azurite, tmp_path, end):
    """Whatever else the process writes goes on. A process may end meanwhile, and the next one start."""
    async with forwarding(azurite, tmp_path) as world:
        world.beside = True
        world.send()
        async with contextlib.AsyncExitStack() as running:
            consumer = await running.enter_async_context(world.consumer())
            await world.has_more(consumer, len(world.sent) // 2)
            await world.proxy.refuse()
            world.send()
            await world.seen(consumer, lambda: world.documents() == len(world.sent))
            await asyncio.sleep(LONG)
            assert len(world.places()) < len(world.sent)
            assert not await world.lies()
            assert "account 'devstoreaccount1' (connection States)" in consumer.said() or not IS_LONG
            if end != "none":
                status = await (consumer.stop() if end == "stopped" else consumer.kill())
                assert status == (6 if end == "stopped" else None), consumer.said()
                await world.free_leases()
                consumer = await running.enter_async_context(world.consumer())
                await asyncio.sleep(LONG / 4)
            assert consumer.running, consumer.said()
            await world.proxy.accept()
            await world.has_more(consumer, len(world.sent))
            assert await consumer.stop() == 0, consumer.said()
        assert not await world.lies()
        world.check()
