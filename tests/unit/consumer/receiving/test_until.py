"""When a job that stops at a position is done."""

import asyncio
from types import SimpleNamespace

import pytest

from consumer.core.statistics import PartitionStatistics
from consumer.model import Checkpoint, PartitionState
from consumer.receiving.until import EndAt
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.virtual_time import all_in_virtual_time


class World:
    """Partition 1 of two is at event 9 and is to stop at 12; an event behind that comes while partition 0 is looked at."""

    created_at = None

    def __init__(self, unsettled, low_water, *, draining=False):
        self.last, self.passed = {"0": 5, "1": 12}, set()
        self.own = PartitionStatistics("1", 1, None, 9, 9, 0, draining=False)
        self.then = PartitionStatistics("1", 1, None, 12, low_water, unsettled, draining=draining)
        self.store = MemoryCheckpointStore()

    async def state(self, name):
        if name == "0":  # which is done, whoever wrote it
            self.passed.add("1")
            self.own = self.then
            return PartitionState(name, 6, 9, "9", 0.0, empty=False)
        return PartitionState(name, 0, 20, "20", 0.0, empty=False)

    async def is_done(self):
        await self.store.put(Checkpoint("1", 9, "9"), deadline=0.0)
        statistics = lambda: SimpleNamespace(partitions=[self.own])
        return await EndAt("", self, self.store, statistics)._is_done()

    async def position(self):
        return (await self.store.load_all(deadline=0.0))["1"].sequence_number


@pytest.mark.parametrize(
    ("unsettled", "low_water", "draining", "position"),
    [
        (0, 9, False, 12),  # none of 10 to 12 is there
        (3, 9, False, 9),  # they have come just now
        (0, 11, False, 9),  # 11 is settled, and not saved
        (0, 9, True, 9),  # what came then was not taken in
    ],
)
async def test_a_position_is_stored_over_numbers_that_the_hub_lacks_and_over_no_event(
    unsettled, low_water, draining, position
):
    world = World(unsettled, low_water, draining=draining)

    assert await world.is_done() is (position == 12)
    assert await world.position() == position


class Odd(MemoryCheckpointStore):
    """Does what nobody thought of at the looks after the first: raises, and then hangs."""

    looks = 0

    async def load_all(self, *, deadline):
        self.looks += 1
        if self.looks == 2:
            raise ValueError("what nobody thought of")
        if self.looks == 3:
            await asyncio.Event().wait()
        return await super().load_all(deadline=deadline)


async def test_a_job_ends_though_a_look_at_the_positions_raises_what_nobody_thought_of_or_hangs():
    hub = SimpleNamespace(last={"0": 5}, passed=set(), created_at=None)

    async def state(name):
        return PartitionState(name, 0, 20, "20", 0.0, empty=False)

    hub.state, store = state, Odd()
    ending = EndAt("", hub, store, lambda: None)

    async def consume(stop):
        await store.put(Checkpoint("0", 5, "5"), deadline=0.0)
        await stop.wait()

    async with asyncio.timeout(300.0):
        await ending.run(asyncio.Event(), consume)
    assert store.looks == 4


all_in_virtual_time(globals())
