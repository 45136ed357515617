"""One consumer, and everything that can happen to it while it stays alive.

All tests share the consumer, as faults in production share one; each heals what it broke. A watcher looks at the
checkpoints all the time: none may fall, and none may cover an event whose document or dead letter is not there.
"""

import asyncio
import contextlib
import gc
import gzip
import time

import msgspec
import pytest
import pytest_asyncio
from azure.eventhub.amqp import AmqpAnnotatedMessage

from consumer.config import read_config
from consumer.running.process import ConsumerProcess
from devstack.cosmos.protocol.errors import CosmosError
from devstack.servers.faults import Fault
from tests.faults.consumer_processes import Ledger, Stores, blob_port, covers, soon, through
from tests.support.consumer.stack import HUB, consumer_world
from tests.support.servers.event_hubs import producing
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.waiting import until

pytestmark = [
    pytest.mark.wire,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
    # The SDK of Event Hubs forgets the sockets of connections that were cut or went silent; collected, they are closed.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

LETTERS = "letters"
HIGH = 400


class Steady:
    """The consumer, its world, and the watcher."""

    def __init__(self, world, proxy, process, stores):
        self.world, self.proxy, self.process, self.stores = world, proxy, process, stores
        self.ledger = Ledger(world)
        self.violations = []
        self._marks = {}
        self._kept_letters = set()
        self._count = 0

    @property
    def cosmos(self):
        return self.world.cosmos

    @property
    def hub(self):
        return self.world.event_hubs

    @property
    def partitions(self):
        return self.hub.hubs.hub(HUB).partition_ids

    @property
    def totals(self):
        return self.process.driver.statistics().totals

    def send(self, count=40, *, partitions=4, origin=None):
        """Documents of their own, dealt to the partitions."""
        self._count += count
        for partition in range(partitions):
            ids = [f"d{self._count - number}" for number in range(partition, count, partitions)]
            self.ledger.send(str(partition), ids, origin=origin)

    def dead_letters(self):
        """Positions of the dead letters."""
        stored = (document["id"].split("~")[-2:] for document in self.cosmos.documents("db", LETTERS))
        return {(partition, int(number)) for partition, number in stored} | self._kept_letters

    def remember(self):
        """What is durable now, although a test is about to take it away."""
        self.ledger.remember()
        self._kept_letters = self.dead_letters()

    def missing(self):
        return self.ledger.missing(self.dead_letters())

    def story(self):
        found = self.process.driver.statistics()
        return f"missing {sorted(self.missing())[:9]}; {self.process.consumer.receiver.statistics()}; {found}; {self.cosmos.stats().statuses}"

    async def settles(self, within=100.0):
        """Everything sent is a document or a dead letter, and the checkpoints say so."""
        await until(
            lambda: not self.missing(), within=within, what=lambda: f"everything is stored: {self.story()}"
        )
        await until(self._saved, within=60.0, what="everything is in a checkpoint")
        assert not self.violations

    async def _saved(self):
        found = await self.stores.checkpoints()
        return all(
            partition in found and covers(found[partition], number) for partition, number in self.ledger.sent
        )

    def at_home(self):
        """Every partition is owned and received."""
        consumer = self.process.consumer
        return all(
            id_ in consumer.ownership.owned and self.process.driver.pipeline.epoch(id_) is not None
            for id_ in self.partitions
        )

    async def epochs(self):
        return {name: each.epoch for name, each in (await self.stores.checkpoints()).items()}

    async def watch(self):
        while True:
            found = await self.stores.checkpoints()
            with contextlib.suppress(CosmosError):  # a test has deleted the database; it remembers
                missing = self.missing()
                for name, checkpoint in found.items():
                    self._compare(name, checkpoint, missing)
            await asyncio.sleep(0.2)

    def _compare(self, name, checkpoint, missing):
        lies = [number for partition, number in missing if partition == name and covers(checkpoint, number)]
        if lies:
            self.violations.append(f"C: partition {name} at {checkpoint}: {lies[:5]} are not stored")
        if checkpoint.sequence_number < self._marks.get(name, -1):
            self.violations.append(f"M: partition {name} fell to {checkpoint} from {self._marks[name]}")
        self._marks[name] = checkpoint.sequence_number

    def inject(self, where, kind="error", **more):
        self.cosmos.inject(Fault(where, kind, **more))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def the_one(azurite, tmp_path_factory):
    async with (
        consumer_world(azurite, tmp_path_factory.mktemp("hub"), throughput=20_000) as world,
        TcpProxy(blob_port(azurite)) as proxy,
    ):
        world.cosmos.create_container("db", LETTERS, "/partition", throughput=10_000)
        settings = {
            **world.settings,
            # As in production, but for looking more often: a loaded machine may be without an answer for some seconds.
            "CONSUMER_LEASE_INTERVAL": "4s",
            "CONSUMER_LEASE_EXPIRY": "30s",
            "CONSUMER_DEAD_LETTERS": "cosmos",
            "CONSUMER_DEAD_LETTER_CONTAINER": LETTERS,
            "CONSUMER_HIGH_EVENTS": str(HIGH),
        }
        proxied = {**settings, "AzureWebJobsStorage": through(proxy, azurite)}
        stop = asyncio.Event()
        process = ConsumerProcess(read_config(proxied), proxied)
        process.consumer.receiver.options = msgspec.structs.replace(
            process.consumer.receiver.options, stuck_after=2.0
        )
        running = asyncio.create_task(process.run(stop))
        async with Stores(settings) as stores:
            one = Steady(world, proxy, process, stores)
            watching = asyncio.create_task(one.watch())
            one.send()
            await one.settles()
            yield one
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            stop.set()
            await asyncio.wait_for(running, 30)
    gc.collect()  # here, and not in a test that knows nothing of them


@pytest_asyncio.fixture(loop_scope="module")
async def one(the_one):
    # A partition that a test before gave up may still be on its way back: its epoch is about to rise.
    await until(the_one.at_home, what="every partition is received again")
    yield the_one
    the_one.cosmos.faults.clear()
    the_one.hub.faults.clear()


# --- Cosmos refuses, or does not answer

REFUSALS = {
    "a timeout (408)": Fault("docs.bulk", "error", status=408),
    "an item on its way out (404)": Fault("docs.bulk", "error", status=404),
    "a range that moved (410/1002)": Fault("docs.bulk", "error", status=410, condition="1002"),
    "a split under way (410/1007)": Fault("docs.bulk", "error", status=410, condition="1007"),
    "a concurrent write (449)": Fault("docs.bulk", "error", status=449),
    "a defect (500)": Fault("docs.bulk", "error", status=500),
    "a service that is down (503)": Fault("docs.bulk", "error", status=503),
    "a rotated key (401)": Fault("docs.bulk", "error", status=401),
    "a firewall (403)": Fault("docs.bulk", "error", status=403),
    "a write region that moved (403/3)": Fault("docs.bulk", "error", status=403, condition="3"),
    "an unknown status (599)": Fault("docs.bulk", "error", status=599),
    "a reset connection": Fault("docs.bulk", "drop_connection"),
    "a lost acknowledgement": Fault("docs.bulk", "drop_ack"),
    "an error although it was written": Fault("docs.bulk", "error_after", status=500),
    "no answer at all": Fault("docs.bulk", "hang", seconds=0.5),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_what_the_service_refuses_or_leaves_open_is_tried_again_and_never_a_dead_letter(one, refusal):
    dead_letters = one.dead_letters()
    one.inject(
        refusal.where,
        refusal.kind,
        count=3,
        status=refusal.status,
        condition=refusal.condition,
        seconds=refusal.seconds,
        retry_after=0.05,
    )

    one.send()

    await one.settles()
    assert not one.cosmos.faults.list(), "each was met"
    assert one.dead_letters() == dead_letters


async def test_a_storm_of_429_pauses_receiving_and_holds_everything_until_it_is_over(one):
    dead_letters, marks = one.dead_letters(), await one.stores.marks()
    one.inject("docs.bulk", status=429, count=None, retry_after=0.1)
    throttled = one.totals.throttled

    one.send(6_000)

    await until(lambda: one.process.driver.statistics().paused, what="receiving is paused")
    await until(lambda: one.totals.throttled > throttled + 20)
    held = one.process.driver.statistics()
    await until(lambda: one.totals.throttled > throttled + 60)
    later = one.process.driver.statistics()
    assert HIGH <= held.backlog_count <= HIGH + 4 * 500  # the batches that were being handed over
    assert (later.backlog_count, later.backlog_bytes) == (held.backlog_count, held.backlog_bytes)
    assert await one.stores.marks() == marks
    one.cosmos.faults.clear()
    await one.settles()
    assert one.dead_letters() == dead_letters


async def test_updates_of_one_document_arrive_in_order_though_the_first_is_throttled(one):
    one.inject("op.upsert.same", status=429, retry_after=0.3)

    one.ledger.send("2", ["same"] * 30)

    await one.settles()
    last = max(
        version for event in one.ledger.sent.values() if event for id_, version in [event] if id_ == "same"
    )
    assert one.ledger.versions()["same"] == last


async def test_a_hot_range_slows_no_other_and_only_its_partitions_wait(one):
    container = one.cosmos.container("db", "flights")
    by_range = {}
    for number in range(97):
        by_range.setdefault(container.partition(f'["O{number}"]').range.id, f"O{number}")
    hot, cold = (by_range[name] for name in sorted(by_range)[:2])
    one.inject(f"range.{min(by_range)}.docs.bulk", status=429, count=None, retry_after=0.1)
    one.ledger.send("0", [f"cold-{number}" for number in range(200)], origin=cold)
    one.ledger.send("1", ["hot"], origin=hot)
    one.ledger.send("1", [f"cool-{number}" for number in range(200)], origin=cold)
    held = max(number for partition, number in one.ledger.sent if partition == "1") - 200

    await until(lambda: one.missing() == {("1", held)}, what="all but the hot one is written")
    last = max(number for partition, number in one.ledger.sent if partition == "0")
    await until(lambda: _marks_are(one, {"0": last, "1": held - 1}), what="the checkpoints")
    await until(lambda: _covers(one, "1", held + 200), what="the checkpoint says what is written beyond")
    assert not await _covers(one, "1", held)

    one.cosmos.faults.clear()
    await one.settles()


async def _marks_are(one, wanted):
    return (await one.stores.marks()).items() >= wanted.items()


async def _covers(one, partition, number):
    return covers((await one.stores.checkpoints())[partition], number)


async def test_a_split_during_load_loses_nothing(one):
    dead_letters, ranges = one.dead_letters(), len(one.cosmos.container("db", "flights").map.ranges)
    one.inject("docs.bulk", "split", count=1, condition="db/flights")

    one.send(800)

    await one.settles()
    assert len(one.cosmos.container("db", "flights").map.ranges) == ranges + 1
    assert one.dead_letters() == dead_letters


async def test_a_container_made_anew_gets_what_comes_after_and_nothing_becomes_a_dead_letter(one):
    dead_letters = one.dead_letters()
    one.remember()
    one.cosmos.recreate_container("db", "flights")

    one.send()

    await one.settles()
    assert one.dead_letters() == dead_letters
    assert one.cosmos.document_count("db", "flights") == 40


async def test_a_deleted_database_is_waited_for(one):
    one.remember()
    retried = one.totals.retried
    one.cosmos.delete_database("db")
    one.send()
    await until(lambda: one.totals.retried > retried)
    assert one.totals.dead_letters == len(one._kept_letters)

    one.cosmos.create_container("db", "flights", "/origin", throughput=20_000)
    one.cosmos.create_container("db", LETTERS, "/partition", throughput=10_000)

    await one.settles()
    assert not one.cosmos.documents("db", LETTERS)


# --- poison

POISON = {
    b"not json": "json",
    b"": "empty",
    gzip.compress(b'{"id": "zipped"}')[:12]: "encoding",
    b'{"id": "bad \xff utf-8"}': "encoding",
    b'{"id": "n", "v": NaN}': "number",
    b'{"id": "n", "v": 1e400}': "number",
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000: "nesting",
    b"[1, 2]": "not_object",
    b'{"origin": "without id"}': "id",
    b'{"id": "a/b", "origin": "x"}': "id",
    b'{"id": "k", "origin": {"not": "a key"}}': "partition_key",
    b'{"id": "large", "origin": "x", "pad": "%s"}' % (b"x" * 900_000): None,  # below the limit: a neighbour
}


async def test_poison_of_every_kind_is_a_dead_letter_with_its_reason_and_the_partition_goes_on(one):
    poison = [body for body, reason in POISON.items() if reason]
    one.ledger.send_poison("0", poison)
    first = max(number for partition, number in one.ledger.sent if partition == "0") - len(poison) + 1
    async with producing(one.hub) as producer:
        value = AmqpAnnotatedMessage(value_body={"id": "value", "origin": "x"})
        await producer.send_batch([value], partition_id="0")
    one.ledger.sent["0", one.hub.last_sequence_number(HUB, "0")] = None
    one.send()

    await one.settles()
    found = {
        letter.event.sequence_number: letter
        for letter in await one.stores.dead_letters()
        if letter.event.partition == "0" and letter.event.sequence_number >= first
    }
    assert [found[first + index].rejection.reason for index in range(len(poison) + 1)] == [
        *(reason for reason in POISON.values() if reason),
        "unreadable",
    ]
    assert [found[first + index].event.body for index in range(len(poison))] == poison


async def test_an_event_too_large_for_a_document_is_a_dead_letter_and_its_neighbours_are_written(one):
    one.ledger.send("1", ["before"])
    one.inject("op.upsert.too-large", status=413)
    one.ledger.send("1", ["too-large"])
    too_large = max(number for partition, number in one.ledger.sent if partition == "1")
    one.ledger.send("1", ["after"])

    await one.settles()
    assert ("1", too_large) in one.dead_letters()
    assert {"before", "after"} <= one.ledger.versions().keys()


async def test_without_a_store_for_dead_letters_no_checkpoint_passes_the_poison(one):
    one.inject("docs.upsert", status=503, count=None)
    one.ledger.send_poison("0", [b"poison"])
    poison = max(number for partition, number in one.ledger.sent if partition == "0")
    one.send()
    await until(lambda: one.missing() == {("0", poison)})
    await until(lambda: _covers(one, "0", poison + 1), what="the checkpoint says what is written beyond")
    assert (await one.stores.marks())["0"] == poison - 1

    one.cosmos.faults.clear()

    await one.settles()
    assert ("0", poison) in one.dead_letters()


# --- the checkpoint store


async def test_while_the_checkpoint_store_is_away_writing_goes_on_and_the_checkpoint_follows(one):
    epochs = await one.epochs()
    marks = await one.stores.marks()
    await one.proxy.refuse()

    one.send()

    await until(lambda: not one.missing())
    assert await one.stores.marks() == marks
    await one.proxy.accept()
    await one.settles()
    assert await one.epochs() == epochs


async def test_a_store_away_for_longer_than_a_lease_costs_the_partitions_and_nothing_else(one):
    ownership = one.process.consumer.ownership
    epochs = await one.epochs()
    await one.proxy.refuse()
    one.send()
    await until(lambda: not ownership.owned, what="every partition is given up before its lease expires")

    await one.proxy.accept()

    await one.settles()
    one.send()
    await one.settles()
    later = await one.epochs()
    assert all(later[name] > epoch for name, epoch in epochs.items())


async def test_a_slow_checkpoint_store_holds_up_no_write(one):
    one.proxy.delay = 0.3

    one.send()

    await until(lambda: not one.missing(), within=5.0)
    await one.settles()
    one.proxy.delay = 0.0


async def test_a_deleted_checkpoint_is_written_anew(one):
    container = one.process._stored._container
    names = [name async for name in container.list_blob_names() if "/checkpoint/0" in name]
    await container.delete_blob(names[0])

    one.send()

    await one.settles()


# --- Event Hubs


async def test_events_delivered_again_are_written_once_and_missing_numbers_hold_nothing_up(one):
    attempts = one.totals.attempts
    one.hub.rewind(HUB, "1", 0)
    one.hub.skip_sequence_numbers(HUB, "2", 1_000)

    one.send()

    await one.settles()
    assert one.totals.attempts == attempts + 40


async def test_a_receiver_with_a_higher_epoch_takes_the_partition_without_a_hot_loop(one):
    refused = len(one.hub.refused)
    one.hub.steal(HUB, "0", 10_000)
    one.send()
    await until(lambda: {partition for partition, _ in one.missing()} == {"0"}, what="the others go on")
    await until(lambda: len(one.hub.refused) > refused, what="it tries again")

    attempts, began = len(one.hub.refused), time.monotonic()
    await until(lambda: len(one.hub.refused) > attempts)
    assert time.monotonic() - began > 1.0
    one.hub.release_intruders()

    await one.settles()


@contextlib.asynccontextmanager
async def kept(leases, lease, owner):
    """The lease is renewed by its owner, and released in the end."""

    async def renew():
        nonlocal lease
        while True:
            await asyncio.sleep(1)
            lease = await leases.claim(lease, owner, deadline=soon())

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewing
        await leases.release(lease, deadline=soon())


async def test_a_stolen_lease_ends_the_claim_and_the_thief_is_not_disturbed(one):
    stolen = None
    while stolen is None:  # the owner renews at the same time
        leases, _ = await one.stores.leases.list(deadline=soon())
        lease = next(each for each in leases if each.partition == "3")
        stolen = await one.stores.leases.claim(lease, "thief", deadline=soon())
    claim = await one.stores.store.claim("3", "thief", deadline=soon())
    async with kept(one.stores.leases, stolen, "thief"):
        one.send()

        ownership = one.process.consumer.ownership
        await until(lambda: "3" not in ownership.owned)
        # One more is given up for a fair share; it may have been before its events came.
        await until(lambda: not {partition for partition, _ in one.missing()} & set(ownership.owned))
        assert len(ownership.owned) >= 2
        left = (await one.stores.checkpoints())["3"]
        assert (left.epoch, left.sequence_number) == (claim.epoch, claim.checkpoint.sequence_number)
    await one.settles()
    assert (await one.stores.checkpoints())["3"].epoch > claim.epoch


async def test_a_stall_of_the_event_loop_shorter_than_a_lease_costs_no_partition(one):
    epochs = await one.epochs()
    one.send(400)
    time.sleep(1.5)  # noqa: ASYNC251 - the stall

    await one.settles()
    assert await one.epochs() == epochs


async def test_partitions_that_are_added_are_picked_up(one):
    one.hub.add_partitions(HUB, 1)
    await one.process.consumer.ownership._ask_partitions()  # the minute between two looks is over

    one.ledger.send("4", ["from the new partition"])

    await one.settles()
