"""A consumer with everything around it in memory, in virtual time."""

import asyncio
import gc
import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from consumer.errors import FencedError, PoisonError, PositionError, ShutdownError
from consumer.leasing.start_position import Expired
from consumer.mapping.documents import MappingOptions
from consumer.model import Checkpoint, Event, Outcome, PartitionState, Write, WriteResult
from consumer.options import BacklogLimits, OnGap, PositionPolicy
from consumer.running.writing.replaying import Replay
from consumer.stores.memory import MemoryCheckpointStore, MemoryLeaseStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.ports import Around, started
from tests.support.failures import exceptions
from tests.support.virtual_time import all_in_virtual_time, in_virtual_time
from tidemark.foundation.errors import SettingsError, UnavailableError


class Hub:
    """Partitions as lists of bodies; receivers follow them."""

    created_at = None

    def __init__(self, *logs):
        self.logs = {str(index): list(log) for index, log in enumerate(logs)}
        self.intruders = {}  # partition -> how often a receiver is refused
        self.starts = []
        self.expired = {}  # partition -> what retention takes before the first event that is received
        self.closed = False
        self.enqueued_at = 0.0  # the last event of each partition

    async def partitions(self):
        return sorted(self.logs)

    async def state(self, partition):
        last = len(self.logs[partition]) - 1
        return PartitionState(partition, 0, last, str(last), self.enqueued_at, last < 0)

    async def receive(self, partition, start, epoch, on_events, on_expired):
        self.starts.append((partition, start.sequence_number, epoch))
        if self.intruders.get(partition, 0):
            self.intruders[partition] -= 1
            raise FencedError("a receiver with a higher epoch")
        number = 0 if start.sequence_number is None else start.sequence_number + 1
        if partition in self.expired:
            gone = self.expired[partition]
            await on_events(
                [Event(partition, n, str(n), 0.0, self.logs[partition][n]) for n in range(gone.first)], None
            )
            await asyncio.sleep(5)  # those before it are written meanwhile
            on_expired(gone)
            number = gone.last + 1
        while True:
            log = self.logs[partition]
            events = [
                Event(partition, n, str(n), 0.0, log[n]) for n in range(number, min(len(log), number + 7))
            ]
            number += len(events)
            await on_events(events, len(log) - 1)
            await asyncio.sleep(0.01)

    async def close(self, deadline):
        self.closed = True


class Sink(MemorySink):
    """Answers as `answer` says for a while."""

    def __init__(self):
        super().__init__(MappingOptions("hub"))
        self.answer = None
        self.attempts = 0

    async def write(self, batch, *, deadline):
        self.attempts += len(batch.records)
        await asyncio.sleep(0.005)
        if self.answer is not None:
            return [self.answer] * len(batch.records)
        return await super().write(batch, deadline=deadline)


class World:
    def __init__(self, *logs, limits=None):
        self.hub = Hub(*logs)
        self.sink = Sink()
        self.dead_letters = MemoryDeadLetterStore()
        self.clock = lambda: asyncio.get_running_loop().time() + 1e9
        self.checkpoints = MemoryCheckpointStore(clock=self.clock)
        self.leases = MemoryLeaseStore(clock=self.clock)
        self.limits = limits or BacklogLimits()

    def start(self, owner="a", **settings):
        """A consumer's task and the event that stops it."""
        ports = self.hub, self.sink, self.checkpoints, self.dead_letters, self.leases
        return started(*ports, owner, limits=self.limits, **settings)

    async def run_until(self, condition, **settings):
        """A consumer that is stopped in order when the condition holds."""
        consumer, task, stop = self.start(**settings)
        await self.until(condition)
        await ended((task, stop))
        return consumer

    async def until(self, condition, within=200.0):
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(0.05)


async def ended(*running):
    """Consumers' tasks, told to stop by their events."""
    for _, stop in running:
        stop.set()
    await asyncio.gather(*(task for task, _ in running))


def bodies(count, first=0):
    return [msgspec.json.encode({"id": f"d{n}"}) for n in range(first, first + count)]


async def test_a_stop_that_cannot_finish_in_time_says_so_and_saves_only_what_is_settled():
    world = World(bodies(10))
    _, task, stop = world.start(shutdown=5.0)
    await world.until(lambda: len(world.sink.documents) == 10)
    world.sink.answer = WriteResult(Outcome.RETRY, 429, retry_after=1.0)
    world.hub.logs["0"] += bodies(10, 10)
    await world.until(lambda: world.sink.attempts > 10)
    stop.set()

    with pytest.raises(ShutdownError, match="partitions 0"):
        await task
    assert (await world.checkpoints.load_all(deadline=0))["0"].sequence_number == 9


async def test_a_fleet_rate_is_shared_by_the_partitions_owned():
    world = World(*[[] for _ in range(4)])
    first, task, stop = world.start("a", fleet_rate=100.0)
    await world.until(lambda: len(first.ownership.owned) == 4)
    assert first.driver.statistics().rate_limit == 100.0
    second, other, stop_other = world.start("b", fleet_rate=100.0)
    await world.until(lambda: len(second.ownership.owned) == 2)

    assert first.driver.statistics().rate_limit == 50.0
    assert second.driver.statistics().rate_limit == 50.0
    await ended((task, stop), (other, stop_other))


async def test_while_a_hub_grows_the_fleet_s_rate_is_not_exceeded_and_new_partitions_are_received_in_the_end():
    world = World(*[[] for _ in range(4)])
    first, task, stop = world.start("a", fleet_rate=1_000.0)
    await world.until(lambda: len(first.ownership.owned) == 4)
    await asyncio.sleep(33.0)  # they ask the hub at other times
    second, other, stop_other = world.start("b", fleet_rate=1_000.0)
    await world.until(lambda: len(first.ownership.owned) == len(second.ownership.owned) == 2)
    world.hub.logs |= {"4": [], "5": []}
    third, another, stop_another = None, None, None
    rates = []

    def everything():
        running = [each for each in (first, second, third) if each is not None and each.driver.is_open]
        rates.append(sum(each.driver.statistics().rate_limit for each in running if each.ownership.owned))
        return {p for each in running for p in each.ownership.owned} == set(world.hub.logs)

    for _ in range(20):
        everything()
        await asyncio.sleep(0.5)
    third, another, stop_another = world.start("c", fleet_rate=1_000.0)
    await world.until(everything, within=300.0)
    await asyncio.sleep(60.0)
    everything()
    for each in (stop, stop_other, stop_another):
        each.set()
    await asyncio.gather(task, other, another)

    assert max(rates) <= 1_000.0 + 1e-6
    assert rates[-1] == pytest.approx(1_000.0)


class Held(MemoryLeaseStore):
    """Another instance has the lease of partition 1 for a while."""

    is_held = True

    async def claim(self, lease, owner, *, deadline):
        is_taken = self.is_held and lease.partition == "1"
        return None if is_taken else await super().claim(lease, owner, deadline=deadline)


async def test_with_latest_nothing_that_came_since_is_skipped_though_this_machine_s_clock_is_ahead():
    """By decades: the clock of hub and lease store is that of the virtual time."""
    world = World(bodies(3), bodies(3, 3))
    world.leases = Held(clock=world.clock)
    _, *running = world.start(policy=PositionPolicy(start="latest"))
    await world.until(lambda: world.hub.starts)
    await asyncio.sleep(5.0)
    world.hub.logs["1"] += bodies(1, 6)
    world.hub.enqueued_at = world.clock()
    world.leases.is_held = False
    await world.until(lambda: len(world.hub.starts) == 2)
    await asyncio.sleep(5.0)
    await ended(running)

    assert '["d6"]d6' in world.sink.documents


async def test_with_latest_what_came_before_is_left_out_though_the_lease_store_s_clock_is_hours_behind():
    """The hub's own time of the latest event bounds it. By decades: this machine's clock is ahead of both."""
    world = World(bodies(3), bodies(3, 3))
    world.hub.enqueued_at = world.clock()
    world.leases = Held(clock=lambda: world.clock() - 7200.0)
    _, *running = world.start(policy=PositionPolicy(start="latest"))
    await world.until(lambda: world.hub.starts)
    world.leases.is_held = False
    await world.until(lambda: len(world.hub.starts) == 2)
    [stored] = {each.origin.since for each in (await world.checkpoints.load_all(deadline=1e12)).values()}
    await ended(running)

    assert world.hub.enqueued_at - 60.0 < stored < world.hub.enqueued_at


class OneByOne(MemoryLeaseStore):
    """A store that writes leases one after the other."""

    async def claim(self, lease, owner, *, deadline):
        await asyncio.sleep(0.2 * int(lease.partition) if lease.partition.isdecimal() else 0.0)
        return await super().claim(lease, owner, deadline=deadline)


async def test_instances_that_start_while_the_first_leases_are_written_share_the_partitions_at_once():
    world = World(*[[] for _ in range(8)])
    world.leases = OneByOne(clock=world.clock)
    first, task, stop = world.start("a", fleet_rate=1_000.0)
    await asyncio.sleep(0.5)  # three of the leases are there
    second, other, stop_other = world.start("b", fleet_rate=1_000.0)

    await world.until(lambda: len(first.ownership.owned) == len(second.ownership.owned) == 4, within=30.0)
    await ended((task, stop), (other, stop_other))


def failing_once(port, method, nth, failure, *, after):
    """A port one of whose calls raises once: before what it does, or after."""
    left = [nth]

    async def call(name, found, *arguments, **options):
        left[0] -= name == method
        is_due = name == method and left[0] == 0
        if is_due and not after:
            raise failure
        answer = await found(*arguments, **options)
        if is_due:
            raise failure
        return answer

    return Around(port, call)


AWAITS = {
    "hub": ["partitions", "state", "receive"],
    "sink": ["open", "write"],
    "dead_letters": ["open", "put"],
    "checkpoints": ["load_all", "claim", "save"],
    "leases": ["list", "claim"],
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(port, method) for port, methods in AWAITS.items() for method in methods]),
    st.integers(1, 3),
    exceptions() | st.builds(asyncio.CancelledError),  # a library's own: nobody has cancelled the caller
    st.booleans(),
)
@in_virtual_time
async def test_whatever_any_call_raises_everything_is_settled_all_the_same(where, nth, failure, after):
    world = World([*bodies(10), b"poison", *bodies(10, 10)], bodies(10, 20))
    port, method = where
    setattr(world, port, failing_once(getattr(world, port), method, nth, failure, after=after))
    _, task, stop = world.start()

    async def everything():
        found = await checkpoints.load_all(deadline=0)
        return {name: each.sequence_number for name, each in found.items()} == {"0": 20, "1": 9}

    checkpoints = getattr(world.checkpoints, "port", world.checkpoints)
    async with asyncio.timeout(150.0):
        while not task.done() and not await everything():
            await asyncio.sleep(0.5)
    if not task.done():
        await ended((task, stop))

    assert len(world.sink.documents) == 30
    assert len([dead_letter async for dead_letter in world.dead_letters.list()]) == 1


async def test_a_refused_receiver_comes_again_without_haste():
    world = World(bodies(3))
    world.hub.intruders["0"] = 2
    _, task, stop = world.start()
    began = asyncio.get_running_loop().time()
    await world.until(lambda: len(world.sink.documents) == 3)
    took = asyncio.get_running_loop().time() - began
    await ended((task, stop))

    assert [epoch for _, _, epoch in world.hub.starts] == [1, 2, 3]
    assert 30.0 <= took < 40.0  # twice one and a half intervals


async def test_a_checkpoint_that_somebody_else_took_over_is_claimed_again_while_the_lease_is_ours():
    world = World(bodies(20))
    _, task, stop = world.start()
    await world.until(lambda: len(world.sink.documents) == 20)
    await world.checkpoints.claim("0", "intruder", deadline=0)
    world.hub.logs["0"] += bodies(10, 20)
    await world.until(lambda: len(world.hub.starts) == 2)
    world.hub.logs["0"] += bodies(10, 30)
    await world.until(lambda: len(world.sink.documents) == 40)
    await ended((task, stop))

    assert (await world.checkpoints.load_all(deadline=0))["0"].sequence_number == 39


async def test_a_store_that_asks_for_a_millisecond_is_not_asked_a_thousand_times_a_second():
    world = World(bodies(3))
    asked = []

    async def throttled(*, deadline):
        asked.append(deadline)
        raise UnavailableError("throttled", 0.001)

    world.checkpoints.load_all = throttled
    _, task, stop = world.start()
    await asyncio.sleep(30.0)
    await ended((task, stop))

    assert len(asked) <= 16


async def test_a_sink_and_dead_letters_that_are_away_at_the_start_are_waited_for_and_opened_once_each():
    world = World(bodies(3))
    opened = []
    open_sink, open_letters = world.sink.open, world.dead_letters.open

    async def opening(name, succeed, failures):
        opened.append(name)
        if opened.count(name) <= failures:
            raise UnavailableError(f"{name} is away")
        return await succeed()

    world.sink.open = lambda: opening("sink", open_sink, 3)
    world.dead_letters.open = lambda: opening("letters", open_letters, 2)
    await world.run_until(lambda: len(world.sink.documents) == 3)

    assert opened == ["sink"] * 4 + ["letters"] * 3


async def test_a_stop_before_the_sink_was_ever_there_says_what_was_missing():
    world = World(bodies(3))

    async def away():
        raise UnavailableError("the sink is away")

    world.sink.open = away
    _, task, stop = world.start()
    await asyncio.sleep(30.0)
    stop.set()

    with pytest.raises(UnavailableError, match="the sink is away"):
        await task


def test_a_storm_of_429_at_the_start_is_logged_ever_less_often_and_not_answered_with_a_storm(run, caplog):
    async def main():
        world, tries = World(bodies(3)), []

        async def throttled():
            tries.append(asyncio.get_running_loop().time())
            raise UnavailableError(f"429, try {len(tries)}", retry_after=0.1)

        world.sink.open = throttled
        _, task, stop = world.start()
        await asyncio.sleep(60.0)
        stop.set()
        with pytest.raises(UnavailableError):
            await task
        return len(tries)

    tries = run(main())

    told = [record.getMessage() for record in caplog.records if "cannot begin yet" in record.getMessage()]
    assert tries <= 31
    assert len(told) == 3, "at once, after 10 s and after 30 s"
    assert told[0] == "cannot begin yet, 1 try so far: 429, try 1"
    assert "tries so far" in told[-1]


async def test_poison_becomes_dead_letters_and_nothing_but_poison_ends_the_consumer():
    world = World([b"poison", *bodies(3)], limits=BacklogLimits(poison=5))
    _, task, _ = world.start()
    await world.until(lambda: len(world.sink.documents) == 3)
    dead_letters = [dead_letter async for dead_letter in world.dead_letters.list()]
    assert [(letter.event.sequence_number, letter.event.body) for letter in dead_letters] == [(0, b"poison")]
    world.hub.logs["0"] += [b"poison"] * 10

    with pytest.raises(PoisonError):
        await task
    kept = [dead_letter.event.sequence_number async for dead_letter in world.dead_letters.list()]
    assert (await world.checkpoints.load_all(deadline=0))["0"].sequence_number == max(kept) < 13

    # The error's advice: the cause is mended, the consumer is started again, and the letters are replayed.
    read = world.sink.prepare

    def prepare_all(write):
        event = write.event
        return read(Write(structs.replace(event, body=b'{"id": "%d"}' % event.sequence_number)))

    world.sink.prepare = prepare_all
    _, task, stop = world.start()
    await world.until(lambda: len(world.sink.documents) == 3 + 14 - max(kept) - 1)
    stop.set()
    await task
    results = await Replay(world.sink, await world.sink.open()).write(
        [dead_letter async for dead_letter in world.dead_letters.list()], deadline=30.0
    )
    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    assert len(world.sink.documents) == 14


def test_cancelled_at_any_moment_nothing_is_left_running_and_no_error_goes_unseen(run, caplog):
    async def once(first, second, turns, *, cancelled):
        troubles = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        world = World([*bodies(40), b"poison"], bodies(20, 40))
        world.checkpoints = Around(world.checkpoints, slowly)
        world.leases = Around(world.leases, slowly)
        world.dead_letters = Around(world.dead_letters, slowly)
        _, task, stop = world.start()
        await asyncio.sleep(first)
        task.cancel() if cancelled else stop.set()
        await asyncio.sleep(second)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert world.hub.closed
        gc.collect()
        assert troubles == []

    gc.freeze()  # to look through all that other tests left in the process would take a second each time
    try:
        for step in range(60):
            run(once(step * 0.013, [0.0, 0.011, step * 0.005][step % 3], step // 3 % 9, cancelled=step % 2))
    finally:
        gc.unfreeze()


async def slowly(_name, found, *arguments, **options):
    await asyncio.sleep(0.02)
    return await found(*arguments, **options)


async def test_a_consumer_whose_sink_does_not_open_closes_its_receiver():
    world = World(bodies(3))

    async def refuse():
        raise SettingsError("no such container")

    world.sink.open = refuse
    _, task, _ = world.start()

    with pytest.raises(SettingsError):
        await task
    assert world.hub.closed
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_owner_before_us_that_is_ahead_of_what_we_know_of_the_hub_is_no_other_hub():
    world = World(bodies(10))
    before = await world.checkpoints.claim("0", "before", deadline=0)
    state = world.hub.state

    async def goes_on(partition):
        known = await state(partition)
        if len(world.hub.logs["0"]) == 10:
            world.hub.logs["0"] += bodies(10, 10)
            await world.checkpoints.save(before, Checkpoint("0", 19, "19"), deadline=0)
        return known

    world.hub.state = goes_on
    await world.run_until(lambda: world.hub.starts)

    assert world.hub.starts[0][:2] == ("0", 19)


async def test_a_partition_whose_receiver_does_not_end_in_time_is_forgotten_all_the_same():
    world = World(bodies(3))
    receive = world.hub.receive

    async def clings(*args):
        try:
            await receive(*args)
        finally:
            await asyncio.sleep(60.0)

    world.hub.receive = clings
    consumer, task, stop = world.start(shutdown=5.0)
    await world.until(lambda: len(world.sink.documents) == 3)
    stop.set()

    with pytest.raises(ShutdownError, match="partitions 0"):
        await task
    assert consumer.driver.statistics().partitions == ()


async def test_a_stop_while_a_partition_waits_to_be_claimed_again_ends_in_order():
    world = World(bodies(5))
    consumer, task, stop = world.start()
    await world.until(lambda: len(world.sink.documents) == 5)
    await world.checkpoints.claim("0", "intruder", deadline=0)
    await world.until(lambda: not consumer.driver.statistics().partitions)
    await ended((task, stop))

    assert len(world.hub.starts) == 1


async def test_a_claim_whose_receiver_is_refused_is_over():
    world = World(bodies(3))
    world.hub.intruders["0"] = 1
    consumer, task, stop = world.start()
    await world.until(lambda: world.hub.starts)
    assert consumer.driver.statistics().partitions == ()
    await world.until(lambda: len(world.hub.starts) == 2)
    assert [partition.epoch for partition in consumer.driver.statistics().partitions] == [2]
    await ended((task, stop))


async def test_what_retention_took_is_counted():
    world = World(bodies(20))
    claim = await world.checkpoints.claim("0", "before", deadline=0)
    await world.checkpoints.save(claim, Checkpoint("0", 4, "4"), deadline=0)

    async def state(partition):
        return PartitionState(partition, 10, 19, "19", 0.0, False)

    world.hub.state = state
    consumer = await world.run_until(lambda: world.hub.starts)

    assert consumer.driver.statistics().totals.expired == 5


async def test_what_retention_takes_while_it_runs_is_counted_told_and_passed(caplog):
    world = World(bodies(30))
    world.hub.expired["0"] = Expired(10, 19, 10)
    consumer = await world.run_until(lambda: len(world.sink.documents) == 20)

    assert consumer.driver.statistics().totals.expired == 10
    assert (await world.checkpoints.load_all(deadline=0))["0"].sequence_number == 29

    told = [record.getMessage() for record in caplog.records if "retention took" in record.getMessage()]
    assert len(told) == 1
    assert (
        "partition 0: retention took 10 events before they were received, sequence numbers 10 to 19"
        in told[0]
    )


async def test_what_retention_takes_while_it_runs_ends_the_consumer_where_that_is_the_setting():
    world = World(bodies(30))
    world.hub.expired["0"] = Expired(10, 19, 10)
    _, task, _ = world.start(policy=PositionPolicy(on_retention_gap=OnGap.FAIL))
    with pytest.raises(PositionError, match=r"retention took 10 events.*CONSUMER_ON_RETENTION_GAP") as caught:
        await task

    assert caught.value.exit_status == 3
    assert (await world.checkpoints.load_all(deadline=0))["0"].sequence_number == 9


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("where", ["sink.open", "dead_letters.open", "hub.partitions"])
async def test_a_stop_while_the_start_hangs_ends_by_the_shutdown(where, stubborn, caplog):
    caplog.set_level(logging.INFO)
    world = World(bodies(3))
    released = asyncio.Event()

    async def hanging():
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    part, _, name = where.partition(".")
    setattr(getattr(world, part), name, hanging)
    _, task, stop = world.start(shutdown=5.0)
    try:
        await asyncio.sleep(30.0)
        stop.set()
        told_at = asyncio.get_running_loop().time()
        async with asyncio.timeout(60.0):
            await asyncio.shield(task)

        assert asyncio.get_running_loop().time() - told_at <= 6.0
        assert ("nothing was begun" in caplog.text) is (name == "open")
        assert world.hub.closed
    finally:
        released.set()
        await asyncio.sleep(1.0)


all_in_virtual_time(globals())
