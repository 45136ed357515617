"""One metric of many entities, where they take longer than a read may: what was found out is kept for the next one."""

import asyncio

import pytest
from msgspec import Struct

from scaling.collectors.azure_entity import GoneError
from scaling.collectors.matching import AT_ONCE, Matching, MatchingCollector
from scaling.collectors.service_bus.peeks import OldestAgeCollector, SessionsCollector
from scaling.ports import CollectError, Reading


class World:
    """Queues of names that are listed, of which `gone` do not exist. Each read takes a permit."""

    def __init__(self, names):
        self.names = list(names)
        self.gone: set[str] = set()
        self.ageless: set[str] = set()
        self.permits = asyncio.Semaphore(1_000)


class Params(Struct, Matching, frozen=True):
    queue: str
    combine: str = "sum"
    empty: float | None = 0.0
    NAMED = "queue"
    LISTING_ROLE = "Reader"

    def lister(self, settings):
        return settings["world"]

    async def listed(self, client):
        return [(name, None) for name in client.names]


class Member:
    COUNTS = ("active",)
    endpoint = "bus"

    def __init__(self, params, settings):
        self.world, self.label, self._name = settings["world"], f"queue '{params.queue}'", params.queue

    def describe(self, about, now):
        pass

    async def collect(self, *, now):
        await self.world.permits.acquire()
        if self._name in self.world.gone:
            raise GoneError(f"{self.label}: does not exist")
        if self._name in self.world.ageless:
            return Reading(now, {"active": 1.0}, unknown={"oldest_age": f"{self.label}: no age"})
        return Reading(now, {"active": 1.0} | ({"oldest_age": 9.0} if self.world.ageless else {}))

    async def aclose(self):
        pass


def matching(world):
    return MatchingCollector(Member, Params("q*"), {"world": world}, deadline=0.05)


async def test_how_many_answered_in_time_is_said():
    world = World(f"q{n:03}" for n in range(100))
    world.permits = asyncio.Semaphore(40)

    with pytest.raises(
        CollectError, match=r"40 of 100 answered within 0.05 s, so divide them among more patterns"
    ):
        await matching(world).collect(now=1.0)


async def test_many_that_are_gone_leave_though_no_read_has_time_for_all_of_them():
    world = World(f"q{n:03}" for n in range(100))
    queues = matching(world)
    assert (await queues.collect(now=1.0)).values == {"active": 100.0}
    world.gone, world.names = set(world.names[:90]), world.names[90:]
    for now in (100.0, 101.0, 102.0):
        world.permits = asyncio.Semaphore(2 * AT_ONCE)
        with pytest.raises(CollectError, match="answered within"):
            await queues.collect(now=now)
    world.permits = asyncio.Semaphore(2 * AT_ONCE)

    assert (await queues.collect(now=103.0)).values == {"active": 10.0}


async def test_one_that_did_not_exist_and_is_listed_after_that_is_kept():
    world = World(["q1", "q2"])
    queues = matching(world)
    world.gone = {"q2"}
    with pytest.raises(CollectError, match="1 of 2 cannot be read"):
        await queues.collect(now=1.0)
    world.gone = set()

    assert (await queues.collect(now=2.0)).values == {"active": 2.0}


async def test_a_count_that_one_of_them_does_not_tell_is_missing_with_the_reason_of_the_first():
    world = World(f"q{n}" for n in range(9))
    world.ageless = {"q3", "q5"}

    reading = await matching(world).collect(now=0.0)

    assert reading == Reading(0.0, {"active": 9.0}, {}, {"oldest_age": "queue 'q3': no age"})


@pytest.mark.parametrize(("of_class", "at_once"), [(None, AT_ONCE), (64, 64)])
async def test_a_class_says_how_many_of_its_reads_run_at_the_same_time(of_class, at_once):
    running = [0, 0]

    class Slow(Member):
        async def collect(self, *, now):
            running[0] += 1
            running[1] = max(running)
            await asyncio.sleep(0)
            running[0] -= 1
            return Reading(now, {"active": 1.0})

    if of_class:
        Slow.AT_ONCE = of_class
    world = World(f"q{n}" for n in range(200))
    await MatchingCollector(Slow, Params("q*"), {"world": world}).collect(now=0.0)

    assert running == [0, at_once]


def test_ages_and_sessions_of_many_queues_wait_for_the_sdk_together():
    assert OldestAgeCollector.AT_ONCE == SessionsCollector.AT_ONCE == 64
