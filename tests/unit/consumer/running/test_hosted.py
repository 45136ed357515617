"""Batches of a trigger, settled in virtual time with everything around in memory."""

import asyncio
import contextvars
import itertools
import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.config import ConsumerConfig
from consumer.errors import BacklogError, FencedError
from consumer.mapping.documents import MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.model import DeadLetter, Event, Outcome, Rejection, WriteResult
from consumer.options import BacklogLimits, ParkingRules
from consumer.running.hosted import HostedConsumer, share_of
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.next_starts import Hub, Receiver
from tests.support.failures import exceptions
from tests.support.virtual_time import all_in_virtual_time, in_virtual_time
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.foundation.tracing.spans import NO_SPANS

BUDGET = 45.0
BUSY = WriteResult(Outcome.RETRY, 503, "busy")
INVOCATION = contextvars.ContextVar("invocation", default="none")


class Sink(MemorySink):
    """Refuses the records whose ids are in `refused`, and counts what it is asked for."""

    def __init__(self):
        super().__init__(MappingOptions("hub"))
        self.refused = set()
        self.attempts = []
        self.invocations = []
        self.open_now = 0

    async def open(self):
        self.open_now += 1
        return await super().open()

    async def write(self, batch, *, deadline):
        self.invocations.append(INVOCATION.get())
        await asyncio.sleep(0.05)
        written = await super().write(batch, deadline=deadline)
        ids = [msgspec.json.decode(record.payload)["id"] for record in batch.records]
        self.attempts += ids
        return [BUSY if name in self.refused else one for name, one in zip(ids, written, strict=True)]

    async def aclose(self):
        self.open_now -= 1


class World:
    """A hosted consumer; stands in for its parts."""

    def __init__(self, **config):
        self.config = ConsumerConfig("hub", **config)
        self.settings = {}
        self.memory = Sink()
        self.stored_letters, self.stored_parked = MemoryDeadLetterStore(), MemoryDeadLetterStore()
        self.hub, self.is_away = Hub(1000.0, 4), False
        self.positions = MemoryCheckpointStore()
        self.made = 0
        self.hosted = HostedConsumer(self.config, {}, self._parts)

    def _parts(self, config, settings):
        self.made += 1
        self.config = config
        return self

    def sink(self):
        return self.memory

    def spans(self):
        return NO_SPANS

    def preparation(self, sink):
        return Preparation(sink.prepare)

    def dead_letters(self):
        return self.stored_letters

    def receiver(self):
        return Receiver(self)

    def known_hubs(self):
        return self.positions

    def parked_untried(self, *, behind_trigger):
        assert behind_trigger
        yield "by a start without the trigger. Run", self.stored_parked

    async def invoke(self, events, *, budget=BUDGET):
        """One invocation, with a context of its own as the worker gives it."""
        deadline = asyncio.get_running_loop().time() + budget
        await self.hosted.settle(events[0].partition, events, deadline=deadline)

    async def close(self):
        await self.hosted.aclose()
        assert self.memory.open_now == 0
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def batch(count, *, first=0, partition="0", at=0.0):
    numbers = range(first, first + count)
    return [Event(partition, n, str(n), at, msgspec.json.encode({"id": f"d{n}"})) for n in numbers]


def names(*numbers):
    return [f"d{n}" for n in numbers]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [("memory", "open"), ("memory", "write"), ("stored_letters", "open"), ("stored_letters", "put")]
    ),
    st.integers(1, 2),
    exceptions(),
)
@in_virtual_time
async def test_whatever_any_call_raises_the_batch_is_settled_by_the_host_s_second_attempt_at_the_latest(
    where, nth, failure
):
    world = World()
    port, method = where
    call, calls = getattr(getattr(world, port), method), itertools.count(1)

    async def failing(*args, **options):
        answer = await call(*args, **options)
        if next(calls) == nth:  # it did what it was to do, and nobody learns of it
            raise failure
        return answer

    setattr(getattr(world, port), method, failing)
    events = [*batch(3), Event("0", 3, "3", 0.0, b"poison")]
    [told] = await asyncio.gather(world.invoke(events), return_exceptions=True)
    if told is not None:  # the host brings the batch again
        assert type(failure).__name__ in repr(told)
        await world.invoke(events)

    assert sorted(each["id"] for each in map(msgspec.json.decode, world.memory.documents.values())) == names(
        0, 1, 2
    )
    assert len([dead_letter async for dead_letter in world.stored_letters.list()]) == 1
    await world.close()


async def test_a_batch_that_cannot_be_written_raises_in_time_and_goes_on_where_it_stopped():
    world = World()
    world.memory.refused = {"d1"}
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(
        TidemarkError, match=r"partition 0: .* did not suffice to settle 3 events from .*503: busy"
    ):
        await world.invoke(batch(3))
    assert BUDGET - 5.0 <= loop.time() - began < BUDGET + 0.1
    assert world.memory.attempts.count("d1") > 3
    world.memory.refused.clear()
    world.memory.attempts.clear()

    await asyncio.sleep(5.0)  # the retry policy's delay
    await world.invoke(batch(3))
    assert world.memory.attempts == names(1)
    await world.close()


@pytest.mark.parametrize("changed", ["enqueued later", "a minute later"])
async def test_progress_counts_for_the_very_same_batch_and_for_a_minute(changed):
    world = World()
    world.memory.refused = {"d1"}
    with pytest.raises(TidemarkError):
        await world.invoke(batch(3))
    world.memory.refused.clear()
    world.memory.attempts.clear()

    await asyncio.sleep(61.0 if changed == "a minute later" else 5.0)
    await world.invoke(batch(3, at=1.0 if changed == "enqueued later" else 0.0))
    assert world.memory.attempts == names(0, 1, 2)
    await world.close()


async def test_a_batch_that_comes_again_after_it_was_settled_is_written_again():
    world = World()
    world.memory.refused = {"d1"}
    first = asyncio.create_task(world.invoke(batch(2)))
    await asyncio.sleep(12.0)  # the progress is saved meanwhile
    world.memory.refused.clear()
    await first
    world.memory.attempts.clear()

    await world.invoke(batch(2))
    assert world.memory.attempts == names(0, 1)
    await world.close()


async def test_a_batch_that_takes_longer_than_an_invocation_is_written_once_over_several():
    world = World(rate=10.0)
    loop = asyncio.get_running_loop()
    began, failures = loop.time(), 0
    while True:
        try:
            await world.invoke(batch(1_000))
            break
        except TidemarkError:
            failures += 1
            await asyncio.sleep(5.0)
    assert failures == 2
    assert world.memory.attempts == names(*range(1_000))
    assert loop.time() - began < 120.0
    await world.close()


async def test_partitions_are_settled_side_by_side_by_one_driver_at_one_rate():
    world = World(rate=10.0)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(world.invoke(batch(50, first=50 * n, partition=str(n))) for n in range(4)))
    assert sorted(world.memory.attempts) == sorted(names(*range(200)))
    assert 19.0 <= asyncio.get_running_loop().time() - began <= 22.0
    assert world.made == 1
    await world.close()


async def test_a_partition_given_out_again_meanwhile_fails_the_earlier_invocation():
    """It must not return: the host would checkpoint what it does not know to be written."""

    world = World()
    world.memory.refused = {"d1"}
    earlier = asyncio.create_task(world.invoke(batch(3)))
    await asyncio.sleep(3.0)
    later = asyncio.create_task(world.invoke(batch(3)))
    with pytest.raises(FencedError, match="partition 0"):
        await earlier
    world.memory.refused.clear()
    await later
    await world.close()


async def test_a_driver_that_gave_up_fails_its_invocations_and_is_replaced_by_the_next():
    world = World(limits=BacklogLimits(backlog_to=20.0))
    world.memory.refused = {"d1", "d9"}
    loop = asyncio.get_running_loop()
    began = loop.time()
    two = (batch(2), batch(1, first=9, partition="1"))
    outcomes = await asyncio.gather(*(world.invoke(each) for each in two), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BacklogError, BacklogError]
    assert loop.time() - began < 30.0
    world.memory.refused.clear()

    await world.invoke(two[1])
    assert world.made == 2
    await world.close()


async def test_what_the_driver_does_belongs_to_an_invocation_that_still_runs():
    """The host drops log lines of invocations that ended, and OpenTelemetry has no span for them."""

    world = World()

    async def invocation(name, events):
        INVOCATION.set(name)
        await world.invoke(events)

    world.memory.refused = {"d1"}
    slow = asyncio.create_task(invocation("slow", batch(2)))
    await asyncio.sleep(3.0)
    await asyncio.create_task(invocation("quick", batch(1, first=7, partition="1")))
    retries = len(world.memory.invocations)
    await asyncio.sleep(10.0)
    assert set(world.memory.invocations[retries:]) == {"slow"}
    world.memory.refused.clear()
    await slow
    await asyncio.sleep(30.0)
    await asyncio.create_task(invocation("last", batch(1, first=2)))
    assert world.memory.invocations[-1] == "last"
    await world.close()


def test_each_interval_the_invocation_itself_tells_what_was_done(run, caplog):
    async def main():
        world = World()
        world.memory.refused = {"d1"}
        task = asyncio.create_task(world.invoke(batch(3)))
        await asyncio.sleep(16.0)
        world.memory.refused.clear()
        await task
        await world.close()

    with caplog.at_level(logging.INFO, logger="tidemark.consumer"):
        run(main())
    assert sum("throttled" in record.getMessage() for record in caplog.records) >= 3


@pytest.mark.parametrize(
    ("config", "story", "ways"),
    [
        ({"dry_run": True}, "COSMOS_WRITE is false", [{"dry_run": False}]),
        (
            {"parking": ParkingRules(("x",))},
            "CONSUMER_PARK is set: .* nothing runs between two batches",
            [{"parking": ParkingRules()}],
        ),
        (
            {"fleet_rate": 5.0},
            "CONSUMER_FLEET_RATELIMIT is set, and CONSUMER_MAXIMUM_INSTANCES is not",
            [{"most_processes": 4}, {"fleet_rate": None, "rate": 5.0}],
        ),
        (
            {"fleet_request_units": 5.0},
            "CONSUMER_FLEET_RU_PER_SECOND is set, and CONSUMER_MAXIMUM_INSTANCES is not",
            [{"most_processes": 4}, {"fleet_request_units": None, "request_units": 5.0}],
        ),
    ],
)
def test_what_a_trigger_cannot_do_is_refused_until_one_way_out_is_taken(config, story, ways):
    with pytest.raises(SettingsError, match=story):
        HostedConsumer(ConsumerConfig("hub", **config), {})
    for way in ways:
        assert HostedConsumer(ConsumerConfig("hub", **config | way), {})


def test_a_fleets_rate_is_divided_by_the_most_processes_there_can_be(run):
    async def main(world):
        began = asyncio.get_running_loop().time()
        await world.invoke(batch(21))
        took = asyncio.get_running_loop().time() - began
        await world.close()
        return took

    took = run(main(World(fleet_rate=200.0, most_processes=40)))

    assert 4.0 <= took < 6.0  # 5 records per second


@pytest.mark.parametrize(
    ("config", "story"),
    [
        (
            {"rate": 100.0, "most_processes": 40},
            "100 records/s of this process, of which there may be 40: 4,000 together",
        ),
        ({"rate": 100.0}, "100 records/s of this process; how many processes there may be is not known"),
        (
            {"fleet_rate": 200.0, "most_processes": 40},
            "200 records/s of all processes, 40 at most: 5 of this one",
        ),
        ({}, "rate: no limit"),
    ],
)
def test_the_first_batch_says_what_the_rate_comes_to(run, caplog, config, story):
    async def main():
        world = World(**config)
        await world.invoke(batch(1))
        await world.invoke(batch(1, first=1))
        await world.close()

    with caplog.at_level(logging.INFO, logger="tidemark.consumer"):
        run(main())

    assert sum(story in record.getMessage() for record in caplog.records) == 1


def test_a_fleets_rate_ordered_at_run_time_is_divided_too(caplog):
    rates = []

    share_of(ConsumerConfig("hub", most_processes=40), rates.append)(200.0)
    share_of(ConsumerConfig("hub", most_processes=40), rates.append)(None)
    share_of(ConsumerConfig("hub"), rates.append)(200.0)

    assert rates == [5.0]
    assert "CONSUMER_MAXIMUM_INSTANCES" in caplog.text


async def test_events_that_are_parked_and_that_a_trigger_does_not_try_again_are_told(caplog):
    world = World()
    letter = DeadLetter("hub", "$Default~parked", batch(1)[0], Rejection("status_404", ""), 1, 0.0)
    await world.stored_parked.put([letter], deadline=0.0)
    await world.invoke(batch(2))
    notices = world.hosted._working._reporter.notices
    await world.close()

    told = (
        "events are parked by a start without the trigger. Run `tidemark dead-letters replay --parked --all`"
    )
    assert told in caplog.text
    assert told in notices["parked"]


async def test_a_silent_store_of_parked_events_holds_no_batch(caplog):
    world = World()

    async def silent():
        await asyncio.sleep(3600.0)

    world.stored_parked.open = silent
    began = asyncio.get_running_loop().time()
    await world.invoke(batch(2))
    took = asyncio.get_running_loop().time() - began
    await world.close()

    assert took < 10.0


all_in_virtual_time(globals())
