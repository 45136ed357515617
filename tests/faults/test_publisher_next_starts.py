"""The next start: a run is stopped in order, killed, or ends before it saved anything; the world changes; it is started again.

`tidemark publish` in memory, with each kind of store, over random histories; `tidemark send` on the local Service Bus.
"""

import json
import os
import random
from collections import Counter
from io import BytesIO

import pytest
from typer.testing import CliRunner

from devstack.servers.faults import Fault
from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.support.publisher import FakeLinks, FakeService, Producers, read
from tests.support.servers.threaded import running_in_thread
from tidemark.__main__ import command_line
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sql.database import SqlDatabase
from tidemark.publisher.cli.publishing_run import LineOptions, PublishingRun
from tidemark.publisher.errors import InvalidProducerStateError, PublishError
from tidemark.publisher.event_hubs.batching import BufferLimits
from tidemark.publisher.event_hubs.core.failures import ANEW
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import LinkError
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.event_hubs.states.file import FileStateStore
from tidemark.publisher.event_hubs.states.memory import MemoryStateStore
from tidemark.publisher.event_hubs.states.sql import SqlStateStore
from tidemark.publisher.model import RetryPolicy

pytestmark = pytest.mark.timeout(300)

RETRY = RetryPolicy(max_attempts=2, delay=0.001, max_delay=0.001, busy_delay=0.001)
SET = 3
SPELLINGS = ["acme.example", "ACME.example", "acme.example.", "acme.example:5671"]


class World:
    """Partitions, a namespace, an input that grows, and what the command is told."""

    def __init__(self, chance):
        self.chance = chance
        self.service = FakeService(partitions=2)
        self.spelling = SPELLINGS[0]
        self.lines = []
        self.given = {"--property": "a=1"}

    def grow(self):
        for _ in range(self.chance.randint(0, 12)):
            number = len(self.lines)
            self.lines.append(json.dumps({"n": number, "k": f"k{number % 5}"}))

    def arrived(self):
        return [read(one)[0] for log in self.service.stored.values() for one in log]

    def forget(self):
        for producers in self.service.producers.values():
            producers.forget()

    def add_partition(self):
        name = str(len(self.service.stored))
        self.service.stored[name] = []
        self.service.producers[name] = Producers(iter(range(1000 * int(name), 10**9)))


class Life:
    """A process until it is killed, `calls` calls of the store and the service from now. Then nothing answers any more."""

    def __init__(self, calls):
        self.calls = calls

    def count(self):
        self.calls -= 1
        return self.calls < 0


class MortalStore:
    def __init__(self, store, life):
        self.store, self.life = store, life

    async def load(self, key, *, deadline):
        if self.life.count():
            raise UnavailableError("killed")
        return await self.store.load(key, deadline=deadline)

    async def save(self, key, record, token, *, deadline):
        if self.life.count():
            raise UnavailableError("killed")
        return await self.store.save(key, record, token, deadline=deadline)

    async def aclose(self):
        pass


class MortalLinks(FakeLinks):
    def __init__(self, world, life):
        super().__init__(world.service)
        self.namespace, self.life = world.spelling, life

    async def open(self, partition_id, claims, *, timeout):
        link = await super().open(partition_id, claims, timeout=timeout)
        transfer = link.transfer

        async def until_killed(events, stamp, *, timeout):
            if self.life.count():
                raise LinkError(FailureKind.UNKNOWN, "killed", link_lost=True)
            await transfer(events, stamp, timeout=timeout)
            if self.life.count():
                raise LinkError(FailureKind.UNKNOWN, "killed", link_lost=True)

        link.transfer = until_killed
        return link


async def start(world, store, *, calls=10**9, resend=False, text=None, given=None):
    """One run of the command over all of the input; None or the error that ended it."""
    life = Life(calls)
    producer = IdempotentProducer.over(
        MortalLinks(world, life), state_store=MortalStore(store, life), retry=RETRY, resend_unknown=resend
    )
    text = "".join(f"{line}\n" for line in world.lines) if text is None else text
    options = LineOptions("k", saves=True, given=given or world.given)
    run = PublishingRun(BytesIO(text.encode()), producer, options, limits=BufferLimits(0.001, SET))
    try:
        await run.carry_out()
    except PublishError as error:
        return error
    return None


STORES = {
    "memory": lambda _: MemoryStateStore(),
    "file": lambda folder: FileStateStore(folder / "state.json"),
    "sql": lambda folder: SqlStateStore(SqlDatabase(f"sqlite:///{folder / 'state.db'}", create_tables=True)),
}
CHANGES = [
    "forgotten",
    "forgotten",
    "forgotten",
    "nothing",
    "forgotten",
    "partition added",
    "respelled",
    "hub made anew",
    "another input",
    "other options",
]


async def refused(world, store, *words, **changed):
    """And nothing is sent or forgotten, whatever is allowed to be sent again."""
    before = Counter(world.arrived())
    error = await start(world, store, resend=world.chance.random() < 0.5, **changed)
    assert isinstance(error, InvalidProducerStateError), error
    assert [word for word in words if word not in str(error)] == [], error
    assert Counter(world.arrived()) == before


async def change(world, store, what):
    """What happens between two starts. What is refused was changed by mistake, and is as before afterwards."""
    if what == "forgotten":
        world.forget()
    elif what == "partition added" and len(world.service.stored) < 4:
        world.add_partition()
    elif what == "respelled":
        world.spelling = world.chance.choice(SPELLINGS)
    elif not world.arrived():
        return
    elif what == "hub made anew":
        service, world.service = world.service, FakeService(partitions=len(world.service.stored))
        world.service.created_at = "2026-03-03T00:00:00.000+00:00"
        await refused(world, store, "the hub was recreated", ANEW)
        world.service = service
    elif what == "another input":
        await refused(world, store, "is not the input", "which publishes all lines", text="another\n" * 500)
    elif what == "other options":
        await refused(world, store, "--property was a=1, now it is a=2", ANEW, given={"--property": "a=2"})


async def live(world, store):
    """How often a set was sent again because that was said."""
    resends, chance = 0, world.chance
    for _ in range(chance.randint(2, 6)):
        world.grow()
        await change(world, store, chance.choice(CHANGES))
        resend = False
        for _ in range(chance.choice([1, 1, 2, 4])):
            error = await start(
                world, store, calls=chance.choice([chance.randint(0, 40), 10**9]), resend=resend
            )
            if error is None or "killed" not in str(error):
                break
        resend = error is not None and "--resend-unknown" in str(error)
        resends += resend
        assert error is None or resend or "killed" in str(error), error
        if resend:
            await start(world, store, calls=chance.choice([chance.randint(0, 40), 10**9]), resend=True)
    error = await start(world, store)
    if error is not None:
        assert "--resend-unknown" in str(error), error
        resends += 1
        error = await start(world, store, resend=True)
    assert error is None, error
    return resends


SEEDS = int(os.environ.get("TORTURE_SEEDS", "0")) // 10


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(
    "seeds",
    [
        range(12),
        *(pytest.param(range(at, at + 50), marks=pytest.mark.torture) for at in range(12, SEEDS, 50)),
    ],
    ids=lambda seeds: f"from {seeds[0]}",
)
async def test_whatever_happened_between_two_starts_nothing_is_lost_and_only_a_pending_set_is_doubled(
    tmp_path, seeds, kind
):
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        store, world = STORES[kind](folder), World(random.Random(seed))
        try:
            resends = await live(world, store)
        finally:
            await store.aclose()

        arrived = Counter(world.arrived())
        assert set(arrived) == set(world.lines), f"lost, seed {seed}"
        doubled = arrived.total() - len(world.lines)
        assert doubled <= resends * SET * len(world.service.stored), f"doubled, seed {seed}"
        assert max(arrived.values(), default=1) <= 1 + resends, f"seed {seed}"


QUEUE = "next"


@pytest.fixture
def servers(tmp_path):
    def create():
        return ServiceBusServer(ca_dir=tmp_path)

    with running_in_thread(create) as one, running_in_thread(create) as other:
        for running in (one, other):
            running.call(
                lambda running=running: running.server.create_queue(QUEUE, QueueSettings(limits=STANDARD))
            )
        yield one, other


@pytest.mark.wire
def test_send_goes_on_in_the_namespace_and_with_the_options_it_was_begun_with_or_not_at_all(
    servers, tmp_path, monkeypatch
):
    """P1: with another connection the rest went there and the file was removed, so that each namespace lacked half."""
    one, other = servers
    file, left = tmp_path / "lines.txt", tmp_path / "left.json"
    file.write_text("".join(f"line {number} \n" for number in range(9_000)))

    def send(server, *options, connection=None):
        monkeypatch.setenv("ServiceBusConnection", connection or server.server.connection_string)
        arguments = [
            "send",
            "--queue",
            QUEUE,
            "--root",
            str(tmp_path),
            "-q",
            "-f",
            str(file),
            "--timeout",
            "1",
        ]
        result = CliRunner().invoke(command_line(), [*arguments, *map(str, options)])
        return result.exit_code, " ".join(result.output.split())

    def arrived(server):
        found = server.call(
            lambda: [m.sent.bare for m in server.server.broker.queues[QUEUE].peek(0, 100_000)]
        )
        return Counter(int(bare.rpartition(b"line ")[2].split()[0]) for bare in found)

    one.call(lambda: one.server.faults.add(Fault(f"send:{QUEUE}", "drop_connection", count=1)))
    status, said = send(one, "--resume-file", left)
    assert status == 3, said
    before = arrived(one)
    for server, options, words in (
        (other, (), f"namespace was {host(one)}, now it is {host(other)}"),
        (
            one,
            ("--schedule-at", "2030-01-31T12:00:00Z"),
            "--schedule-at was not given, now it is 2030-01-31T12:00:00+00:00",
        ),
    ):
        status, said = send(server, "--resume", left, *options)
        assert (status, words in said) == (2, True), said
        assert "or leave --resume out and name another --resume-file, which sends all lines" in said
    assert (arrived(one), arrived(other)) == (before, Counter())

    spelled = one.server.connection_string.replace("sb://localhost", "sb://LOCALHOST")
    assert send(one, "--resume", left, "--resend-unknown", connection=spelled)[0] == 0
    assert arrived(one) == Counter(range(9_000))
    assert "SharedAccessKey" not in said
    one.call(lambda: one.server.faults.add(Fault(f"send:{QUEUE}", "drop_connection", count=1)))
    monkeypatch.setenv("TIDEMARK_CA_BUNDLE", str(one.server.ca_path))
    assert send(one, "--resume-file", left)[0] == 3
    one.call(lambda: one.server.broker.delete(QUEUE))
    one.call(lambda: one.server.create_queue(QUEUE, QueueSettings(limits=STANDARD)))
    status, said = send(one, "--resume", left)
    assert (status, "the queue next was recreated: it was created at" in said, arrived(one)) == (
        2,
        True,
        Counter(),
    ), said
    monkeypatch.delenv("TIDEMARK_CA_BUNDLE")
    assert send(other, "--resume-file", tmp_path / "another.json")[0] == 0
    assert arrived(other) == Counter(range(9_000))


def host(server):
    return server.server.connection_string.split("://")[1].split(";")[0].strip("/")
