"""One dependency hangs, or fails at once: whoever does not need it keeps its pace, leases are renewed, a stop ends in time.

A consumer of 8 partitions with two lanes of its sink, everything around it in memory, in virtual time.
"""

import asyncio
from collections import defaultdict

import msgspec
import pytest

from consumer.errors import ShutdownError
from consumer.mapping.documents import MappingOptions
from consumer.model import Event, PartitionState, Routes
from consumer.stores.memory import MemoryCheckpointStore, MemoryLeaseStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.ports import Around, started
from tidemark.foundation.errors import UnavailableError

PARTITIONS = [str(number) for number in range(8)]
RATE = 4  # events per second and partition
POISONED = "3"
SHUTDOWN = 10.0
LONG = 150
"""Seconds of trouble: five lives of a lease."""


def now():
    return asyncio.get_running_loop().time()


async def hang():
    await asyncio.Event().wait()


async def refuse():
    raise UnavailableError("refused")


async def break_():
    raise ValueError("what nobody thought of")


TROUBLES = [hang, refuse, break_]


class Hub:
    created_at = None

    def __init__(self):
        self.began = now()

    async def partitions(self):
        return list(PARTITIONS)

    def last(self):
        return int((now() - self.began) * RATE) - 1

    async def state(self, partition):
        last = self.last()
        return PartitionState(partition, 0, last, str(last), 0.0, last < 0)

    async def receive(self, partition, start, epoch, on_events, on_expired=None):
        number = 0 if start.sequence_number is None else start.sequence_number + 1
        while True:
            last = self.last()
            events = [Event(partition, n, str(n), 0.0, body(partition, n)) for n in range(number, last + 1)]
            number = last + 1
            await on_events(events, last)
            await asyncio.sleep(1.0)

    async def close(self, deadline):
        pass


def body(partition, number):
    if partition == POISONED and number % 10 == 0:
        return b"no JSON"
    return msgspec.json.encode({"id": f"{partition}-{number}"})


class Sink(MemorySink):
    """Two lanes: partition 0's documents go to the one, all others to the other."""

    def __init__(self):
        super().__init__(MappingOptions("hub"))
        self.written = defaultdict(list)  # partition -> times

    async def open(self):
        return Routes(("", "8"), ("all", "of partition 0"))

    def prepare(self, write):
        record = super().prepare(write)
        return msgspec.structs.replace(record, route="9" if record.event.partition == "0" else "1")

    async def write(self, batch, *, deadline):
        await asyncio.sleep(0.005)
        for record in batch.records:
            self.written[record.event.partition].append(now())
        return await super().write(batch, deadline=deadline)


class Leases(MemoryLeaseStore):
    """Notes when each lease was renewed."""

    def __init__(self):
        super().__init__(clock=lambda: now() + 1e9)
        self.renewed = defaultdict(list)

    async def claim(self, lease, owner, *, deadline):
        written = await super().claim(lease, owner, deadline=deadline)
        if written is not None:
            self.renewed[lease.partition].append(now())
        return written


class World:
    def __init__(self):
        self.trouble = {}
        self.sink, self.leases, self.hub = Sink(), Leases(), Hub()
        self.checkpoints = MemoryCheckpointStore(clock=lambda: now() + 1e9)
        self.dead_letters = MemoryDeadLetterStore()

    def start(self, owner="a"):
        ports = ("hub", "sink", "checkpoints", "dead_letters", "leases")
        return started(*map(self._troubled, ports), owner, shutdown=SHUTDOWN)

    def _troubled(self, port):
        """Calls of it that `trouble` names are in trouble: a name -> (which arguments, what happens)."""

        async def call(name, found, *arguments, **options):
            concerns, trouble = self.trouble.get(f"{port}.{name}", (None, None))
            if trouble is not None and concerns(*arguments):
                await trouble()
            return await found(*arguments, **options)

        return Around(getattr(self, port), call)

    def in_trouble(self, trouble, *calls, concerns=lambda *_: True):
        self.trouble = dict.fromkeys(calls, (concerns, trouble))

    def slowest(self, begin, end, partitions=PARTITIONS):
        """The fewest events per second that any of the partitions wrote in any five seconds between two times."""
        return min(
            sum(at <= time < at + 5 for time in self.sink.written[partition]) / 5
            for partition in partitions
            for at in range(int(begin), int(end) - 5, 5)
        )

    def longest_unrenewed(self):
        return max(
            later - earlier
            for times in self.leases.renewed.values()
            for earlier, later in zip(times, [*times[1:], now()], strict=True)
        )

    async def keeps_pace(self, seconds=LONG, partitions=PARTITIONS):
        """Nobody is slowed down, and every lease is renewed."""
        began = now()
        await asyncio.sleep(seconds)
        assert self.slowest(began, now(), partitions) >= RATE * 0.9
        assert self.longest_unrenewed() < 20

    async def is_well_again(self):
        self.trouble.clear()
        await asyncio.sleep(45)
        assert self.slowest(now() - 10, now()) >= RATE * 0.9

    async def catches_up(self, partition):
        self.trouble.clear()
        await asyncio.sleep(70)
        assert (await self.marks())[partition] > LONG * RATE, "its checkpoint follows"

    async def marks(self):
        return {p: c.sequence_number for p, c in (await self.checkpoints.load_all(deadline=0)).items()}


async def ends_in_time(task, stop, *, may_leave_work=False):
    began = now()
    stop.set()
    try:
        await task
    except ShutdownError:
        assert may_leave_work
    assert now() - began <= SHUTDOWN + 3.0


def played(run, story, *, may_leave_work=False):
    """Plays `story(world, consumer)` from the 20th second of an instance on, which then ends in time."""

    async def main():
        world = World()
        consumer, task, stop = world.start("a")
        await asyncio.sleep(20)
        await story(world, consumer)
        await ends_in_time(task, stop, may_leave_work=may_leave_work)

    run(main())


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_hub_s_management_node(run, trouble):
    async def story(world, _):
        world.in_trouble(trouble, "hub.partitions", "hub.state")
        await world.keeps_pace()

    played(run, story)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("call", ["hub.state", "checkpoints.load_all", "checkpoints.claim"])
def test_what_an_instance_that_joins_needs(run, trouble, call):
    async def story(world, first):
        world.in_trouble(trouble, call)
        second, other, stop_other = world.start("b")
        await asyncio.sleep(40)
        kept = first.ownership.owned
        await world.keeps_pace(70, kept)

        assert len(kept) == len(second.ownership.owned) == 4
        await world.is_well_again()
        await ends_in_time(other, stop_other)

    played(run, story)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("whole", [True, False])
def test_the_checkpoint_store(run, trouble, whole):
    async def story(world, _):
        world.in_trouble(
            trouble, "checkpoints.save", concerns=lambda claim, _: whole or claim.partition == "5"
        )
        await world.keeps_pace()

        marks = await world.marks()
        assert marks["5"] <= 23 * RATE
        assert (
            whole
            or min(marks[partition] for partition in PARTITIONS if partition not in {"5", POISONED})
            > LONG * RATE
        )
        await world.catches_up("5")
        world.in_trouble(trouble, "checkpoints.save")

    played(run, story, may_leave_work=True)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_dead_letters(run, trouble):
    async def story(world, _):
        world.in_trouble(trouble, "dead_letters.put")
        await world.keeps_pace()  # the poisoned partition's good events, too

        marks = await world.marks()
        assert marks[POISONED] <= 23 * RATE, "it stands where it was"
        assert min(mark for each, mark in marks.items() if each != POISONED) > LONG * RATE
        await world.catches_up(POISONED)
        world.in_trouble(trouble, "dead_letters.put")

    played(run, story, may_leave_work=True)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_one_lane_of_the_sink(run, trouble):
    async def story(world, _):
        world.in_trouble(trouble, "sink.write", concerns=lambda batch: batch.lane == "of partition 0")
        await world.keeps_pace(partitions=PARTITIONS[1:])
        await world.catches_up("0")
        world.in_trouble(trouble, "sink.write", concerns=lambda batch: batch.lane == "of partition 0")
        await asyncio.sleep(1)

    played(run, story, may_leave_work=True)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_store_of_the_leases_for_less_than_they_last(run, trouble):
    async def story(world, _):
        began = now()
        for _ in range(5):
            world.in_trouble(trouble, "leases.list", "leases.claim", "leases.release")
            await asyncio.sleep(4)  # a call that begins meanwhile gets no answer at all
            world.trouble.clear()
            await asyncio.sleep(15)

        assert world.slowest(began, now()) >= RATE * 0.9

    played(run, story)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_store_of_the_leases_for_longer(run, trouble):
    async def story(world, consumer):
        renewed = max(world.leases.renewed["0"])
        world.in_trouble(trouble, "leases.list", "leases.claim", "leases.release")
        await asyncio.sleep(60)

        assert consumer.ownership.owned == []
        assert max(max(each) for each in world.sink.written.values()) < renewed + 30, "not beyond the leases"
        await world.is_well_again()
        world.in_trouble(trouble, "leases.list", "leases.claim", "leases.release")

    played(run, story)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_one_lease_that_cannot_be_renewed_costs_its_own_partition_only(run, trouble):
    async def story(world, consumer):
        others = [partition for partition in PARTITIONS if partition != "7"]
        world.in_trouble(trouble, "leases.claim", concerns=lambda lease, _: lease.partition == "7")
        began = now()
        await asyncio.sleep(LONG)

        assert sorted(consumer.ownership.owned) == sorted(others)
        assert world.slowest(began, now(), others) >= RATE * 0.9

    played(run, story)
