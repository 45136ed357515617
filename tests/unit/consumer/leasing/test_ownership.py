"""Instances that share the partitions of a hub through one lease store, in virtual time."""

import asyncio
from contextlib import suppress

import pytest

from consumer.errors import PositionError
from consumer.leasing.ownership import Ownership, unique_owner
from consumer.model import Lease
from consumer.stores.memory import MemoryLeaseStore
from tests.support.virtual_time import all_in_virtual_time
from tidemark.foundation.errors import UnavailableError

PARTITIONS = [str(number) for number in range(8)]


def loop_time():
    return asyncio.get_running_loop().time()


async def hang():
    await asyncio.Event().wait()


class Store(MemoryLeaseStore):
    """The store's clock is not the loop's; it can be away or slow, and it can swallow answers."""

    def __init__(self):
        super().__init__(clock=lambda: loop_time() + 1e9 + self.step)
        self.step = 0.0
        self.away = self.swallows = False
        self.takes = 0.0
        self.hangs = {}  # what of it does not answer: of the name of a call and a partition

    async def _met(self, call, partition=""):
        await asyncio.sleep(self.takes)
        if self.hangs and self.hangs(call, partition):
            await asyncio.create_task(hang())
        if isinstance(self.away, Exception):
            raise self.away
        if self.away:
            raise UnavailableError("the store is away")

    async def list(self, *, deadline):
        await self._met("list")
        return await super().list(deadline=deadline)

    async def claim(self, lease, owner, *, deadline):
        await self._met("claim", lease.partition)
        written = await super().claim(lease, owner, deadline=deadline)
        if self.swallows:
            raise UnavailableError("no answer")
        return written

    async def release(self, lease, *, deadline):
        await self._met("release", lease.partition)
        await super().release(lease, deadline=deadline)


class Instance:
    """A listener with its ownership. `story` is what it was told, with times since the start."""

    def __init__(self, store, name, *, drains_for=0.5, partitions=PARTITIONS):
        self.story = []
        self.drains_for = drains_for
        self.mine = set()
        self.partitions = list(partitions)
        self.trouble = None
        self.asking = None
        self.asked = 0
        self.began = loop_time()
        self.ownership = Ownership(store, name, self._list, self)
        self.task = asyncio.create_task(self.ownership.run())

    async def _list(self):
        self.asked += 1
        if self.asking is not None:
            await self.asking()
        if self.trouble:
            raise self.trouble
        return self.partitions

    async def claimed(self, partition):
        assert partition not in self.mine
        self.mine.add(partition)
        self.story.append(("claimed", partition, loop_time() - self.began))

    async def lost(self, partition, *, deadline, stolen):
        self.story.append(("stolen" if stolen else "lost", partition, loop_time() - self.began))
        self.deadline = deadline
        await asyncio.sleep(0 if stolen else self.drains_for)
        self.mine.discard(partition)
        self.story.append(("finished", partition, loop_time() - self.began))

    async def kill(self):
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        for held in self.ownership._held.values():
            if held.giving_up:
                held.giving_up.cancel()

    async def leave(self, within=25.0):
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.ownership.release_all(loop_time() + within)


def shares(*instances):
    return [len(instance.mine) for instance in instances]


async def owners(store):
    leases, _ = await store.list(deadline=0.0)
    return {lease.partition: lease.owner for lease in leases}


async def test_partitions_move_only_after_they_were_finished():
    store = Store()
    one = Instance(store, "a", drains_for=3.0)
    await asyncio.sleep(1)
    two = Instance(store, "b")
    for _ in range(400):
        await asyncio.sleep(0.1)
        assert not one.mine & two.mine
    assert shares(one, two) == [4, 4]
    moved = max(at for word, _, at in two.story if word == "claimed")
    assert moved <= 10 + 3 + 2 + 1, "one round to see, the drain, one short round to claim"
    await asyncio.gather(one.leave(), two.leave())


async def test_from_one_to_eight_to_three_instances():
    store = Store()
    every = [Instance(store, "0")]
    await asyncio.sleep(1)
    every += [Instance(store, str(number)) for number in range(1, 8)]
    await asyncio.sleep(21)
    assert shares(*every) == [1] * 8

    await asyncio.gather(*(instance.leave() for instance in every[3:]))
    await asyncio.sleep(11)
    assert sorted(shares(*every[:3])) == [2, 3, 3]
    assert set(await owners(store)) == {*PARTITIONS, "~0", "~1", "~2"}
    await asyncio.gather(*(instance.leave() for instance in every[:3]))


async def test_a_killed_instance_is_replaced_within_forty_seconds():
    store = Store()
    one, two = Instance(store, "a"), Instance(store, "b")
    await asyncio.sleep(30)
    assert shares(one, two) == [4, 4]

    await one.kill()
    await asyncio.sleep(40)
    assert shares(two) == [8]
    await two.leave()


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
async def test_a_clock_of_the_store_that_is_set_by_hours_moves_no_partition_and_keeps_none_of_a_dead_instance(
    step,
):
    store = Store()
    one, two = Instance(store, "a"), Instance(store, "b")
    await asyncio.sleep(33)
    before = set(one.mine), set(two.mine)
    store.step = step
    for _ in range(600):
        await asyncio.sleep(0.1)
        assert (one.mine, two.mine) == before

    store.step = 0.0
    await asyncio.sleep(33)
    store.step = step
    await one.kill()
    await asyncio.sleep(60)
    assert shares(two) == [8]
    await two.leave()


async def test_leaving_finishes_everything_and_leaves_no_trace():
    store = Store()
    one = Instance(store, "a", drains_for=2.0)
    await asyncio.sleep(5)
    before = loop_time()
    await one.leave()

    assert loop_time() - before == pytest.approx(2.0)
    assert [word for word, _, _ in one.story[8:]] == ["lost"] * 8 + ["finished"] * 8
    assert await owners(store) == dict.fromkeys(PARTITIONS, "")


async def test_leaving_cuts_short_what_was_being_finished_already():
    one = Instance(Store(), "a", drains_for=1000.0)
    one.ownership.drain = 500.0
    await asyncio.sleep(1)
    one.partitions = ["0"]
    await asyncio.sleep(75)
    assert sum(word == "lost" for word, _, _ in one.story) == 7
    before = loop_time()
    await one.leave(within=5.0)

    assert loop_time() - before <= 7.0


async def test_leases_are_renewed_while_a_long_leave_goes_on():
    store = Store()
    one = Instance(store, "a", drains_for=45.0)
    await asyncio.sleep(1)
    leaving = asyncio.create_task(one.leave(within=50.0))
    two = Instance(store, "b")
    await asyncio.sleep(44)
    assert shares(one, two) == [8, 0]

    await leaving
    await asyncio.sleep(11)
    assert shares(one, two) == [0, 8]
    await two.leave()


async def test_a_process_that_stood_still_for_longer_than_an_expiry_gives_up_first_and_begins_anew():
    store = Store()
    one = Instance(store, "a", drains_for=0.5)
    await asyncio.sleep(5)
    asyncio.get_running_loop()._virtual.now += 60
    await asyncio.sleep(0.1)
    assert [word for word, _, _ in one.story[8:]] == ["lost"] * 8
    await asyncio.sleep(15)

    assert [word for word, _, _ in one.story[16:]] == ["finished"] * 8 + ["claimed"] * 8
    await one.leave()


@pytest.mark.parametrize("after", [0.05, 0.15, 0.25, 0.35])
async def test_who_leaves_while_it_claims_keeps_nothing_and_comes_back(after):
    """The partitions of another that has left just now are being claimed, as in an outage of all."""
    store = Store()
    store.takes = 0.1
    one = Instance(store, "a")
    await asyncio.sleep(after)
    await one.ownership.leave()
    await asyncio.sleep(60)

    assert (one.mine, one.ownership.holds_any) == (set(), False)
    assert set((await owners(store)).values()) <= {""}
    one.ownership.come_back()
    await asyncio.sleep(11)
    assert shares(one) == [8]
    await one.leave()


async def test_a_stolen_lease_is_told_as_stolen():
    store = Store()
    one = Instance(store, "a")
    await asyncio.sleep(1)
    leases, _ = await store.list(deadline=0.0)
    theirs = next(lease for lease in leases if lease.partition == "3")
    await store.claim(theirs, "foreign", deadline=0.0)
    await asyncio.sleep(10)

    assert ("stolen", "3") in [(word, partition) for word, partition, _ in one.story]
    assert "3" not in one.mine
    assert (await owners(store))["3"] == "foreign"
    await one.leave()


async def test_the_excess_of_a_foreign_consumer_is_taken_after_two_expiry_times():
    store = Store()
    theirs = [
        await store.claim(Lease(partition, "", 0.0, ""), "sdk", deadline=0.0) for partition in PARTITIONS
    ]
    one = Instance(store, "a")
    for _ in range(9):
        await asyncio.sleep(10)
        theirs = [await store.claim(lease, "sdk", deadline=0.0) for lease in theirs if lease]

    assert shares(one) == [4]
    assert min(at for _, _, at in one.story) >= 60.0
    await one.leave()


async def test_a_claim_whose_answer_never_came_is_found_by_the_next_round():
    store = Store()
    store.swallows = True
    one = Instance(store, "a")
    await asyncio.sleep(1)
    assert one.mine == set()

    store.swallows = False
    await asyncio.sleep(3)
    assert shares(one) == [8]
    assert all(word == "claimed" for word, _, _ in one.story)
    await one.leave()


async def test_new_partitions_are_picked_up_and_vanished_ones_finished():
    one = Instance(Store(), "a")
    await asyncio.sleep(1)
    one.partitions = [str(number) for number in range(2, 12)]
    await asyncio.sleep(71)

    assert one.mine == set(one.partitions)
    await one.leave()


@pytest.mark.parametrize("asking", [lambda: asyncio.sleep(15), lambda: asyncio.sleep(55), hang])
async def test_a_hub_that_answers_late_or_never_costs_no_partition(asking):
    store = Store()
    one, other = Instance(store, "a"), Instance(store, "b")
    await asyncio.sleep(15)
    one.asking = other.asking = asking
    known = len(one.story), len(other.story)
    await asyncio.sleep(600)

    assert shares(one, other) == [4, 4]
    assert (len(one.story), len(other.story)) == known, "none was given up, and none moved"
    assert one.asked > 5, "and it is asked again"
    assert await timed(one.leave()) < 5
    await other.leave()


async def test_a_hub_that_answers_late_at_the_start_is_waited_for_and_one_that_hangs_is_asked_again():
    one = Instance(Store(), "a")
    one.asking = hang
    await asyncio.sleep(5)
    one.asking = lambda: asyncio.sleep(15)
    await asyncio.sleep(60)

    assert shares(one) == [8]
    await one.leave()


@pytest.mark.parametrize("answer", [[], ValueError("what nobody thought of")])
async def test_a_hub_that_names_no_partitions_takes_none_away(answer):
    one = Instance(Store(), "a")
    await asyncio.sleep(5)
    one.partitions, one.trouble = (answer, None) if answer == [] else (PARTITIONS, answer)
    await asyncio.sleep(200)

    assert shares(one) == [8]
    await one.leave()


async def test_a_hub_that_does_not_answer_is_logged_ever_less_often_and_anew_after_an_answer(caplog):
    def lines():
        return sum(
            "nothing can begin" in each.message or "are kept" in each.message for each in caplog.records
        )

    one = Instance(Store(), "a")
    one.trouble = UnavailableError("no such host")
    one.asking = None
    await asyncio.sleep(3700)
    assert lines() <= 13
    one.trouble = None
    await asyncio.sleep(100)
    before, one.trouble = lines(), UnavailableError("no such host")
    await asyncio.sleep(100)

    assert lines() > before
    await one.leave()


async def test_a_store_of_leases_that_is_slow_costs_no_partition():
    store = Store()
    one = Instance(store, "a")
    await asyncio.sleep(5)
    store.takes = 4.5  # each call
    await asyncio.sleep(300)

    assert [word for word, _, _ in one.story] == ["claimed"] * 8
    store.takes = 0.0
    await one.leave()


@pytest.mark.parametrize("what", ["claim of the presence", "release of what is forgotten"])
async def test_one_call_to_the_store_that_hangs_keeps_no_lease_from_being_renewed(what):
    store = Store()
    dead = Instance(store, "dead")
    await asyncio.sleep(1)
    await dead.kill()
    one = Instance(store, "a")
    await asyncio.sleep(100)
    store.hangs = lambda call, partition: partition[:1] == "~" and what.startswith(call)
    known = len(one.story)
    await asyncio.sleep(400)

    assert shares(one) == [8]
    assert len(one.story) == known
    store.hangs = None
    await one.leave()


@pytest.mark.parametrize("asks", [0.001, 300.0])
async def test_a_store_that_asks_for_time_is_asked_neither_at_once_nor_when_the_leases_are_over(asks):
    store = Store()
    one = Instance(store, "a")
    await asyncio.sleep(1.0)
    calls = []
    store.hangs = lambda call, _: calls.append(call)  # only counts
    store.away = UnavailableError("throttled", asks)
    await asyncio.sleep(12.0)
    store.away = False
    await asyncio.sleep(60.0)

    assert [kind for kind, _, _ in one.story] == ["claimed"] * 8
    assert calls.count("list") <= 20
    await one.leave()


async def test_a_store_that_hangs_or_raises_what_nobody_thought_of_is_a_store_that_is_away():
    for trouble in ("hangs", "raises"):
        store = Store()
        one = Instance(store, "a")
        await asyncio.sleep(5)
        if trouble == "hangs":
            store.hangs = lambda call, partition: True
        else:
            store.away = ValueError("whatever")
        await asyncio.sleep(60)
        assert shares(one) == [0], "given up before the leases expire"
        assert max(at for word, _, at in one.story if word == "finished") < 30.0

        store.hangs, store.away = None, False
        await asyncio.sleep(30)
        assert shares(one) == [8]
        store.hangs = lambda call, partition: True
        assert await timed(one.leave(within=5.0)) <= 7.5, trouble


async def timed(work):
    began = loop_time()
    await work
    return loop_time() - began


@pytest.mark.parametrize("where", ["partitions", "claimed", "lost"])
async def test_what_is_beyond_repair_ends_the_run(where):
    store = Store()
    one = Instance(store, "a")

    async def refuse(*_args, **_options):
        raise PositionError("the hub was created anew")

    if where == "partitions":
        one.trouble = PositionError("the hub was created anew")
    else:
        setattr(one, where, refuse)
        await asyncio.sleep(1)
        if where == "lost":
            one.partitions = ["0"]
    with pytest.raises(PositionError, match="created anew"):
        await asyncio.wait_for(one.task, 90)
    one.lost = Instance.lost.__get__(one)
    await one.ownership.release_all(loop_time() + 5)


def test_owners_have_names_of_their_own():
    first, second = unique_owner(), unique_owner()

    assert first != second
    assert first == first.lower()
    assert first.count("~") == 2


all_in_virtual_time(globals())
