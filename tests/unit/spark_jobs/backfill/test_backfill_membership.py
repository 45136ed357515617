"""One budget for a consumer and backfills: a simulated fleet whose readers are late, fall silent, start and end."""

import contextlib
import random

import pytest

from consumer.config import ConsumerConfig
from consumer.telemetry.rate_orders import RateOrder, Rates
from consumer.telemetry.shared_budget import EXPIRES, Part, Parts, left_for_consumer, share_of
from spark_jobs.backfill.budget.membership import SILENT_AFTER, Membership
from spark_jobs.backfill.budget.shares import Shares
from tests.support.consumer.telemetry import MemoryRateStore, following
from tidemark.foundation.consumer_stats import ConsumerStats, PartitionStats
from tidemark.foundation.errors import StoreUnavailableError

BUDGET = 1_000.0


@pytest.mark.parametrize(
    ("wants", "shares"),
    [
        ({"a": 300.0}, {"a": 300.0}),
        ({"a": 900.0}, {"a": 500.0}),  # half is the consumer's
        ({"a": 400.0, "b": 600.0}, {"a": 200.0, "b": 300.0}),
        ({"a": 100.0, "b": 200.0}, {"a": 100.0, "b": 200.0}),
        ({"a": 0.0}, {"a": 0.0}),
    ],
)
def test_backfills_get_what_they_want_or_their_proportion_of_half_the_budget(wants, shares):
    assert {name: share_of(BUDGET, name, wants) for name in wants} == shares


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ([], 1_000.0),
        ([Part("a", 300.0, 0.0, 1.0)], 700.0),  # room is made before it takes anything
        ([Part("a", 300.0, 450.0, 1.0)], 550.0),  # what it still holds counts
        ([Part("a", 900.0, 0.0, 1.0), Part("b", 900.0, 0.0, 1.0)], 500.0),
        ([Part("a", 300.0, 2_000.0, 1.0)], 100.0),
    ],
)
def test_the_consumer_leaves_shares_and_what_is_held(parts, left):
    assert left_for_consumer(BUDGET, parts) == left


def test_a_part_that_does_not_change_expires_by_the_readers_own_clock():
    parts = Parts()
    one, two = Part("a", 1.0, 1.0, 7.0), Part("a", 1.0, 1.0, 8.0)

    assert parts.note([one], 0.0) == [one]
    assert parts.note([one], EXPIRES - 1) == [one]
    assert parts.note([one], EXPIRES) == []
    assert parts.note([two], EXPIRES + 1) == [two]
    assert parts.note([], EXPIRES + 2) == []


class Table(MemoryRateStore):
    def __init__(self):
        super().__init__()
        self.shared = {}
        self.cut_off = set()  # who does not reach it
        self.stats = {}

    def seen_by(self, name):
        return _Seen(self, name)


class _Seen:
    """The tables as one program reaches them."""

    def __init__(self, table, name):
        self.table, self.name = table, name

    def _meet(self):
        if self.name in self.table.cut_off:
            raise StoreUnavailableError("no route")

    async def load(self, consumer, unit):
        self._meet()
        return await self.table.load(consumer, unit)

    async def parts(self, consumer):
        self._meet()
        return list(self.table.shared.values())

    async def save_part(self, consumer, part):
        self._meet()
        self.table.shared[part.name] = part

    async def remove_part(self, consumer, name):
        self._meet()
        self.table.shared.pop(name, None)

    async def load_all(self, since):
        self._meet()
        return [row for row in self.table.stats.values() if row.at >= since]

    async def aclose(self):
        pass


class Instance:
    def __init__(self, world, name):
        self.world, self.name, self.limit = world, name, 0.0
        calls = self
        self.follower = following(world.table.seen_by(name), units=Rates(fleet_rate=BUDGET), calls=calls)

    def append(self, call):
        """As `Consumer.set_fleet_request_units`: the share of an instance of two."""
        unit, kind, rate = call
        if (unit, kind) == ("request_units", "fleet"):
            self.limit = rate / 2

    async def report(self, now):
        world = self.world
        if self.name not in world.table.cut_off:
            world.table.stats[self.name] = ConsumerStats(
                consumer="flights",
                instance=self.name,
                at=now,
                ru_limit=self.limit,
                lag=(PartitionStats("0"),),
            )
        with contextlib.suppress(StoreUnavailableError):
            await self.follower.poll()


class Backfill:
    def __init__(self, world, name, wants):
        self.world, self.name = world, name
        self.shares = Shares(wants, lease=15.0)
        self.shares.budget = 0.0
        table = world.table.seen_by(name)
        clocks = {"clock": lambda: world.now, "wall": lambda: world.now}
        config = ConsumerConfig("hub", name="flights", fleet_request_units=BUDGET)
        self.membership = Membership(name, config, self.shares, table, table, wants, **clocks)
        self.number = 0

    async def look(self):
        await self.membership.follow()

    def renew(self):
        self.number = self.shares.renew("t", "0", holds=self.number, now=self.world.now).number

    def used(self):
        return self.shares.held(self.world.now)


class World:
    def __init__(self, monkeypatch, chance):
        self.now, self.chance = 0.0, chance
        monkeypatch.setattr("consumer.telemetry.rate_orders.time.monotonic", lambda: self.now)
        self.table = Table()
        self.instances = [Instance(self, f"i{n}") for n in range(2)]
        self.backfills = []

    async def run(self, seconds):
        """Everybody acts at times of its own; checks the sum after each step."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for instance in self.instances:
                if self.chance.random() < 0.1:
                    await instance.report(self.now)
            for backfill in self.backfills:
                if self.chance.random() < 0.25:
                    await backfill.look()
                backfill.renew()
            assert self.total() <= BUDGET * (1 + 1e-9), self.state()

    def total(self):
        return sum(each.limit for each in self.instances) + sum(each.used() for each in self.backfills)

    def state(self):
        return [each.limit for each in self.instances], [each.used() for each in self.backfills]


@pytest.mark.parametrize("seed", range(8))
async def test_the_budget_is_never_exceeded_whoever_starts_ends_or_falls_silent(monkeypatch, seed):
    world = World(monkeypatch, random.Random(seed))
    await world.run(30)
    assert world.state() == ([500.0, 500.0], [])
    world.backfills.append(Backfill(world, "b0", 300.0))
    await world.run(60)
    assert world.state() == ([350.0, 350.0], [300.0])
    world.backfills.append(Backfill(world, "b1", 700.0))
    await world.run(90)
    assert world.state() == ([250.0, 250.0], pytest.approx([150.0, 350.0]))

    world.table.cut_off.add("b1")
    await world.run(SILENT_AFTER + 40)
    assert world.state()[1][1] == 0.0, "it stops by itself before it expires"
    await world.run(EXPIRES + 30)
    assert world.state() == ([350.0, 350.0], [300.0, 0.0])
    world.table.cut_off.clear()
    await world.run(90)
    assert world.state() == ([250.0, 250.0], pytest.approx([150.0, 350.0]))

    for backfill in world.backfills:
        await backfill.membership.leave()
    world.backfills.clear()
    await world.run(60)
    assert world.state() == ([500.0, 500.0], [])


async def test_an_instance_that_starts_begins_with_what_backfills_leave_at_least(monkeypatch):
    world = World(monkeypatch, random.Random(1))
    await world.run(30)
    world.backfills.append(Backfill(world, "b0", 900.0))
    await world.run(60)
    world.instances[0] = Instance(world, "i2")  # in the place of the other, before it has read anything

    assert world.instances[0].limit == 250.0
    assert world.total() <= BUDGET


async def test_an_ordered_budget_is_shared_too_and_without_a_budget_a_backfill_has_its_own(monkeypatch):
    world = World(monkeypatch, random.Random(1))
    world.table.unit_orders["flights"] = RateOrder(fleet_rate=400.0, by="ann")
    world.backfills.append(Backfill(world, "b0", 900.0))
    await world.run(60)
    assert world.state() == ([100.0, 100.0], [200.0])
    world.table.unit_orders["flights"] = RateOrder(rate=0.0, by="ann")
    await world.backfills[0].look()
    assert world.backfills[0].shares.budget == 900.0


async def test_two_backfills_that_raise_at_once_look_again_before_they_use_what_they_announced(monkeypatch):
    world = World(monkeypatch, random.Random(1))
    world.instances.clear()
    world.backfills += [Backfill(world, "b0", 900.0), Backfill(world, "b1", 900.0)]
    table, reads = world.table, []

    async def parts_late(consumer):  # b1 reads before b0 has written
        return reads.pop(0) if reads else list(table.shared.values())

    world.backfills[1].membership._orders.parts = parts_late
    reads += [[], [], []]
    granted = []
    for _ in range(6):
        world.now += 2.0
        table.stats["i"] = ConsumerStats(
            consumer="flights", instance="i", at=world.now, ru_limit=500.0, lag=(PartitionStats("0"),)
        )
        for backfill in world.backfills:
            await backfill.look()
        granted.append([backfill.shares.budget for backfill in world.backfills])

    assert max(map(sum, granted)) <= 500.0
    assert granted[-1] == [250.0, 250.0]
