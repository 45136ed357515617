"""Forwarding into another hub under lost answers, kills, stale checkpoints and two consumers: each event is there once, in order."""

import asyncio
import json
import re
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from consumer.errors import FencedError
from consumer.model import Batch, Checkpoint, Claim, Event, Origin, Outcome, Seek, Stream, Write
from consumer.sinks.messaging.event_hubs import EventHubsSink
from consumer.sinks.messaging.forwarding import Forwarding
from tests.support.publisher import FakeLinks, FakeService, read
from tidemark.publisher import IdempotentProducer, MemoryStateStore, RetryPolicy

EVENTS = 14
KEYS = ("a", "b", "c")
STREAM = Stream("ns", "flights", "$Default")
QUICK = RetryPolicy(max_attempts=1, delay=0.0, busy_delay=0.0, attempt_timeout=5, open_timeout=5)


def flight(number):
    return Event("0", number, "", 0.0, str(number).encode(), partition_key=KEYS[number * 7 % 5 % 3])


class World:
    def __init__(self):
        self.service, self.store = FakeService(2), MemoryStateStore()
        self.checkpoint, self.beyond, self.epochs, self.owner = -1, set(), count(1), 0

    def make(self, name):
        links = FakeLinks(self.service)
        links.hub = "copies"
        return IdempotentProducer.over(links, state_store=self.store, producer_name=name, retry=QUICK)

    def stored(self):
        return {id_: [int(read(each)[0]) for each in log] for id_, log in self.service.stored.items()}


class Consumer:
    """Writes from its first event on that is not written, as an ordered lane does. An event is settled when the other sinks have
    written it as well; what is settled is not written again by the next process.
    """

    def __init__(self, world):
        self._world = world
        self.sinks = []
        self.start()

    def start(self):
        world = self._world
        self.claim = world.owner = next(world.epochs)
        self.written = {*range(world.checkpoint + 1), *world.beyond}
        self.settled = {*self.written}
        runs = tuple((n, n) for n in sorted(world.beyond))
        is_saved = world.checkpoint >= 0 or runs
        checkpoint = Checkpoint("0", world.checkpoint, "", runs) if is_saved else None
        self.sinks.append(
            EventHubsSink(Forwarding("ns/copies", STREAM, "@partition_key", "event"), "copy", world.make)
        )
        self.sinks[-1].attach(Claim("0", "me", self.claim, checkpoint))

    async def step(self, action, amount):
        world = self._world
        if action == "restart":  # killed: nothing is closed
            self.start()
        elif action == "save" and world.owner == self.claim:
            world.checkpoint = next(n for n in count() if n not in self.settled) - 1
            world.beyond = {n for n in self.settled if n > world.checkpoint}
        elif action == "others":
            self.settled |= {n for n in self.written if n % 6 < amount}
        elif action != "save":
            await self.write(amount, "" if action == "write" else action)

    async def write(self, amount, fault=""):
        open_ = [n for n in range(EVENTS) if n not in self.written][:amount]
        if not open_:
            return
        if fault:
            self._world.service.faults.append(("send", fault, ""))
        sink = self.sinks[-1]
        records = tuple(sink.prepare(Write(flight(number))) for number in open_)
        try:
            results = await sink.write(Batch(1, "0", records), deadline=asyncio.get_running_loop().time() + 5)
        except FencedError:
            self.start()
            return
        assert Outcome.REJECT not in {result.outcome for result in results}
        self.written |= {
            n for n, result in zip(open_, results, strict=True) if result.outcome is Outcome.WRITTEN
        }


@settings(max_examples=30)
@given(st.integers(600, 3_000), st.booleans())
def test_every_document_of_an_event_is_there_once_and_in_order(most, is_killed):
    """Two routes into the target: each element takes both before the next one does, so that indexes do not ascend."""
    indexes = [element + (route << 60) for element in range(6) for route in range(2)]

    async def play():
        world = World()
        world.service.max_message_size = most
        for _ in range(2 if is_killed else 1):
            if is_killed:
                world.service.faults.append(("send", "no_answer", ""))
            sink = EventHubsSink(Forwarding("ns/copies", STREAM, "", "document"), "copy", world.make)
            sink.attach(Claim("0", "me", 1, None))
            records = tuple(
                structs.replace(sink.prepare(Write(flight(1), {"n": n}, n)), of=len(indexes)) for n in indexes
            )
            for _ in range(4):
                await sink.write(Batch(1, "0", records), deadline=asyncio.get_running_loop().time() + 5)
        await sink.aclose()
        return [json.loads(read(each)[0])["n"] for log in world.service.stored.values() for each in log]

    assert asyncio.run(play()) == indexes


ACTIONS = st.sampled_from(["write", "write", "drop_ack", "no_answer", "detach", "others", "save", "restart"])
STEPS = st.lists(st.tuples(st.integers(0, 1), ACTIONS, st.integers(1, 6)), max_size=25)


@example([(1, "write", 6), (1, "others", 3), (1, "save", 1), (1, "restart", 1)])
@example(
    [
        (1, "write", 6),
        (1, "others", 3),
        (1, "save", 1),
        (1, "restart", 1),
        (1, "no_answer", 6),
        (1, "restart", 1),
    ]
)
@given(STEPS)
@pytest.mark.parametrize("by_old", [False, True])
def test_every_event_is_there_once_and_in_order_of_its_key(by_old, steps):
    async def play():
        world = World()
        consumers = [Consumer(world), Consumer(world)]
        for who, action, amount in steps:
            await consumers[who].step(action, amount)
            if by_old:
                written_by_an_older_version(world)
        world.service.faults.clear()
        last = Consumer(world)
        for _ in range(4 * EVENTS):
            await last.write(8)
        for sink in (*consumers[0].sinks, *consumers[1].sinks, *last.sinks):
            await sink.aclose()
        return world.stored()

    stored = asyncio.run(play())
    assert sorted(number for log in stored.values() for number in log) == list(range(EVENTS))
    assert all(log == sorted(log) for log in stored.values())


def written_by_an_older_version(world):
    """Leaves out of the saved states what an older version did not keep."""
    states = world.store._states
    for name, (record, token) in states.items():
        if record.pending is not None:
            pending = structs.replace(record.pending, events=None)
            states[name] = structs.replace(record, pending=pending), token


FAULTS = st.sampled_from(["drop_ack", "no_answer"])


@given(
    st.lists(st.tuples(FAULTS, st.integers(1, EVENTS)), min_size=1, max_size=4),
    st.integers(1, EVENTS),
    st.booleans(),
)
async def test_after_kills_what_a_killed_process_was_sending_is_waited_for_by_nothing(kills, until, changed):
    """The rest of a set may never be received, or become something else: each event is there as one of the two made it."""
    world = World()
    consumer = Consumer(world)
    for fault, amount in kills:  # nothing is saved of the position
        await consumer.write(amount, fault)
        consumer.start()
    world.service.faults.clear()
    body = "document" if changed else "event"
    last = EventHubsSink(Forwarding("ns/copies", STREAM, "@partition_key", body), "copy", world.make)
    last.attach(Claim("0", "me", 99, None))
    records = tuple(last.prepare(Write(flight(n), {"n": n} if changed else None)) for n in range(until))
    results = await last.write(Batch(1, "0", records), deadline=asyncio.get_running_loop().time() + 5)
    for sink in (*consumer.sinks, last):
        await sink.aclose()

    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    stored = [
        [int(re.sub(r"\D", "", read(each)[0])) for each in log] for log in world.service.stored.values()
    ]
    numbers = sorted(number for log in stored for number in log)
    assert numbers == sorted({*numbers, *range(until)})
    assert all(log == sorted(log) for log in stored)


@given(st.sampled_from(["drop_ack", "no_answer"]), st.integers(1, EVENTS), st.integers(1, EVENTS))
async def test_another_key_after_a_kill_loses_no_event(fault, amount, at_once):
    """What goes to a partition by the new key was never in the set that was being sent to it, whatever numbers that has."""
    world = World()
    consumer = Consumer(world)
    world.service.faults += [("send", fault, "")] * 2
    await consumer.write(amount)
    consumer.start()
    world.service.faults.clear()
    last = EventHubsSink(Forwarding("ns/copies", STREAM, "@partition_key", "event"), "copy", world.make)
    last.attach(Claim("0", "me", 99, None))
    others = [structs.replace(flight(number), partition_key="") for number in range(EVENTS)]  # as steps may
    records = [last.prepare(Write(event)) for event in others]
    for first in range(0, EVENTS, at_once):
        some = tuple(records[first : first + at_once])
        results = await last.write(Batch(1, "0", some), deadline=asyncio.get_running_loop().time() + 5)
        assert {result.outcome for result in results} == {Outcome.WRITTEN}
    for sink in (*consumer.sinks, last):
        await sink.aclose()

    assert {number for log in world.stored().values() for number in log} == set(range(EVENTS))


@example(writes=[(["", "no_answer"], 6)], is_closed=True, key="", partitions=2, at_once=EVENTS)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(["", "drop_ack", "no_answer"]), max_size=2), st.integers(1, 6)),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
    st.sampled_from(["", "@partition_key"]),
    st.integers(2, 4),
    st.integers(1, EVENTS),
)
async def test_without_a_checkpoint_another_key_or_more_partitions_lose_no_event(
    writes, is_closed, key, partitions, at_once
):
    """What a partition has of before says nothing of an event that went to another one then."""
    world = World()
    consumer = Consumer(world)
    for faults, amount in writes:
        world.service.faults[:] = [("send", fault, "") for fault in faults]
        await consumer.write(amount)
    if is_closed:  # its last state is saved, and no checkpoint
        await consumer.sinks[-1].aclose()
    world.service.faults.clear()
    for number in range(2, partitions):
        world.service.add_partition(str(number))
    for _ in range(2):  # killed once more, before any checkpoint
        last = EventHubsSink(Forwarding("ns/copies", STREAM, key, "event"), "copy", world.make)
        last.attach(Claim("0", "me", 99, None))
        consumer.sinks.append(last)
        for first in range(0, EVENTS, at_once):
            some = tuple(last.prepare(Write(flight(n))) for n in range(first, min(first + at_once, EVENTS)))
            results = await last.write(Batch(1, "0", some), deadline=asyncio.get_running_loop().time() + 5)
            assert {result.outcome for result in results} == {Outcome.WRITTEN}
    for sink in consumer.sinks:
        await sink.aclose()

    stored = world.stored()
    assert {number for log in stored.values() for number in log} == set(range(EVENTS))
    if key and partitions == 2:  # nothing was changed
        assert sum(map(len, stored.values())) == EVENTS


async def test_what_an_operator_leaves_out_is_not_sent_although_a_killed_process_was_sending_it():
    world = World()
    consumer = Consumer(world)
    await consumer.write(EVENTS, "no_answer")
    seek = Seek("me", 0.0, -1, EVENTS - 1)
    consumer.start()
    sink = consumer.sinks[-1]
    sink.attach(Claim("0", "me", 99, Checkpoint("0", EVENTS - 1, "", (), origin=Origin(seeks=(seek,)))))
    records = tuple(sink.prepare(Write(structs.replace(flight(n), body=b"99"))) for n in range(90, 98))
    world.service.faults.clear()
    stored = world.stored()
    results = await sink.write(Batch(1, "0", records), deadline=asyncio.get_running_loop().time() + 5)
    for each in consumer.sinks:
        await each.aclose()

    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    added = [number for id_, log in world.stored().items() for number in log[len(stored[id_]) :]]
    assert set(added) == {99}


async def test_of_an_older_version_a_set_that_is_another_one_after_a_kill_is_sent_as_it_is_and_told(caplog):
    world = World()
    consumer = Consumer(world)
    await consumer.write(4, "drop_ack")  # stored, and nobody knows
    written_by_an_older_version(world)
    consumer.start()
    consumer.sinks[-1].detach("0")
    changed = EventHubsSink(Forwarding("ns/copies", STREAM, "@partition_key", "document"), "copy", world.make)
    changed.attach(Claim("0", "me", 9, None))
    records = tuple(changed.prepare(Write(flight(n), {"n": n})) for n in range(EVENTS))
    results = await changed.write(Batch(1, "0", records), deadline=asyncio.get_running_loop().time() + 5)
    for sink in (*consumer.sinks, changed):
        await sink.aclose()
    bodies = {read(each)[0] for log in world.service.stored.values() for each in log}

    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    assert {f'{{"n":{n}}}' for n in range(EVENTS)} <= bodies
    assert "the mapping has changed" in caplog.text


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 3)), st.sampled_from(["", "drop_ack", "no_answer"])), max_size=5
    ),
    st.booleans(),
)
def test_each_record_of_a_replayed_event_is_there_once_with_whichever_others_it_is_replayed(steps, by_old):
    async def play():
        world = World()
        sink = EventHubsSink(Forwarding("ns/copies", STREAM, "", "document"), "copy", world.make)
        records = [
            structs.replace(sink.prepare(Write(flight(3), {"n": n}, n)), index=n, of=4) for n in range(4)
        ]
        if by_old:  # an older version was killed after one set for all records of the event
            name = f"copy~{records[0].event.place}~again~3"
            old = sink._again(records[0].event, name)
            await old.write(records)
            await old.aclose()
        for numbers, fault in [*steps, (set(range(4)), "")]:
            world.service.faults += [("send", fault, "")] if fault else []
            if some := [records[n] for n in sorted(numbers)]:
                await sink.replay(some, deadline=asyncio.get_running_loop().time() + 5)
        world.service.faults.clear()
        results = await sink.replay(records, deadline=asyncio.get_running_loop().time() + 5)
        await sink.aclose()
        assert {result.outcome for result in results} == {Outcome.WRITTEN}
        return sorted(json.loads(read(each)[0])["n"] for log in world.service.stored.values() for each in log)

    assert asyncio.run(play()) == [0, 1, 2, 3]
