"""Fleets whose instances lose the hub or the sink: who gives up, who takes over, and that nothing is passed on and on."""

import asyncio
import itertools

import pytest
from msgspec import json

from consumer.leasing.away import watch_reach
from consumer.leasing.reach import HUB, LONGEST, Reach, sink_named
from consumer.mapping.documents import MappingOptions
from consumer.model import Checkpoint, Event, Outcome, PartitionState, WriteResult
from consumer.sinks.routed import RoutedSink
from consumer.stores.memory import MemoryCheckpointStore, MemoryLeaseStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.ports import Around, started
from tests.support.virtual_time import all_in_virtual_time
from tidemark.foundation.errors import UnavailableError

AFTER = 60.0
SINK = sink_named("")
LOST = WriteResult(Outcome.RETRY, 0, "no route")


@pytest.mark.parametrize(
    ("notes", "others", "after", "gives_up"),
    [
        ([(0.0, SINK, False)], 1, AFTER, True),
        ([(0.1, SINK, False)], 1, AFTER, False),  # not for long enough
        ([(0.0, SINK, False)], 0, AFTER, False),  # nobody would take them
        ([(0.0, SINK, False)], 1, None, False),
        ([(0.0, SINK, False), (30.0, SINK, True)], 1, AFTER, False),
        (
            [(0.0, SINK, False), (30.0, SINK, True), (31.0, SINK, False)],
            1,
            AFTER,
            False,
        ),
        ([(0.0, SINK, False), (30.0, HUB, True)], 1, AFTER, True),  # one of them is enough
        ([(0.0, HUB, False), (30.0, SINK, True)], 1, AFTER, True),
        # one of several sinks is enough, whatever the others answer
        ([(0.0, "the sink 'a'", False), (30.0, "the sink 'b'", True)], 1, AFTER, True),
        ([], 1, AFTER, False),  # who asks nothing knows nothing
    ],
)
def test_an_instance_gives_up_when_a_service_was_not_reached_for_the_time_and_others_are_there(
    notes, others, after, gives_up
):
    reach = Reach(after)
    for now, service, reached in notes:
        reach.note(service, reached=reached, now=now)

    assert reach.gives_up(60.0, others) == gives_up
    assert bool(reach.reason) == gives_up
    assert reach.may_ask(60.0) == gives_up


def test_who_comes_back_and_still_writes_nothing_stays_away_longer_each_time():
    reach, now, waits = Reach(AFTER), 0.0, []
    for turn in range(12):
        reach.note("the sink 'other'", reached=True, now=now)
        if turn == 10:
            reach.note(SINK, reached=True, now=now)
        reach.note(SINK, reached=False, now=now)
        now += AFTER
        assert reach.gives_up(now, 1)
        waits.append(next(s for s in range(0, 5000, 30) if reach.may_ask(now + s)))
        now += waits[-1]
        reach.came_back()

    assert waits == [0, 60, 120, 240, 480, 960, 1920, LONGEST, LONGEST, LONGEST, 0, 60]


class Hub:
    """Partitions as lists of bodies, as one instance sees them; `is_away` says whether it sees them."""

    created_at = None

    def __init__(self, logs, is_away):
        self.logs, self.is_away = logs, is_away

    async def partitions(self):
        if self.is_away():
            raise UnavailableError("no route")
        return sorted(self.logs)

    async def state(self, partition):
        await self.partitions()
        last = len(self.logs[partition]) - 1
        return PartitionState(partition, 0, last, str(last), 0.0, last < 0)

    async def receive(self, partition, start, epoch, on_events, on_expired):
        log, number = (
            self.logs[partition],
            (-1 if start.sequence_number is None else start.sequence_number) + 1,
        )
        while True:
            events = (
                []
                if self.is_away()
                else [Event(partition, n, str(n), 0.0, log[n]) for n in range(number, len(log))]
            )
            number += len(events)
            await on_events(events, len(log) - 1)
            await asyncio.sleep(2.0)

    async def close(self, deadline):
        pass


class Fleet:
    """Instances on one hub and one database; some of them do not reach one of the two."""

    def __init__(self, instances, partitions=6, several=False):
        self.several = several
        self.logs, self.sink = {str(n): [] for n in range(partitions)}, MemorySink(MappingOptions("hub"))
        clock = lambda: asyncio.get_running_loop().time() + 1e9
        self.checkpoints, self.leases = MemoryCheckpointStore(clock=clock), MemoryLeaseStore(clock=clock)
        self.no_hub, self.no_sink, self.no_writes = set(), set(), set()
        self.moves = []
        self.running = {name: self._start(name) for name in instances}

    def _start(self, name):
        async def of_sink(method, found, *arguments, **options):
            if method == "write" and name in self.no_sink | self.no_writes:
                return [LOST] * len(arguments[0].records)
            if method == "routes" and name in self.no_sink:
                raise UnavailableError("no route")
            return await found(*arguments, **options)

        async def noted(method, found, partition, **options):
            if method == "claimed":
                self.moves.append((name, partition, asyncio.get_running_loop().time()))
            return await found(partition, **options)

        hub = Hub(self.logs, lambda: name in self.no_hub)
        sink = Around(self.sink, of_sink)
        if self.several:  # the other one, which gets nothing, can always be reached
            sink = RoutedSink({"": sink, "other": MemorySink(MappingOptions("hub"))})
        ports = hub, sink, self.checkpoints, MemoryDeadLetterStore(), self.leases
        consumer, *rest = started(*ports, name, give_up_after=AFTER)
        consumer.ownership.listener = Around(consumer, noted)
        return consumer, *rest

    async def feed(self, seconds):
        """An event every five seconds into each partition."""
        for _ in range(int(seconds / 5)):
            for name, log in self.logs.items():
                log.append(json.encode({"id": f"{name}-{len(log)}"}))
            await asyncio.sleep(5.0)

    def owned(self):
        return {name: len(consumer.ownership.owned) for name, (consumer, *_) in self.running.items()}

    def events(self):
        return sum(map(len, self.logs.values()))

    async def end(self):
        for _, _, stop in self.running.values():
            stop.set()
        await asyncio.gather(*(task for _, task, _ in self.running.values()))


@pytest.mark.parametrize(("service", "several"), [(HUB, False), (SINK, False), (SINK, True)])
async def test_who_alone_is_cut_off_gives_its_partitions_to_the_others_and_takes_part_when_it_is_back(
    service, several
):
    fleet = Fleet("abc", several=several)
    await fleet.feed(60)
    assert fleet.owned() == {"a": 2, "b": 2, "c": 2}
    cut_off = fleet.no_hub if service == HUB else fleet.no_sink
    cut_off.add("c")
    await fleet.feed(AFTER + 60)
    assert fleet.owned() == {"a": 3, "b": 3, "c": 0}
    assert str(service) in fleet.running["c"][0].waits_for
    await fleet.feed(300)
    assert fleet.owned() == {"a": 3, "b": 3, "c": 0}, "it claims nothing before it is back"
    assert len(fleet.sink.documents) >= fleet.events() - 12, "nothing waits for it"
    moved = len(fleet.moves)
    cut_off.clear()
    await fleet.feed(90)
    assert fleet.owned() == {"a": 2, "b": 2, "c": 2}
    assert fleet.running["c"][0].waits_for == ""
    assert len(fleet.moves) == moved + 2
    await fleet.end()
    assert len(fleet.sink.documents) == fleet.events()


@pytest.mark.parametrize("service", [HUB, SINK])
async def test_when_all_are_cut_off_nothing_is_passed_on_and_on_and_all_goes_on_afterwards(service):
    fleet = Fleet("abc")
    await fleet.feed(60)
    before = len(fleet.moves)
    cut_off = fleet.no_hub if service == HUB else fleet.no_sink
    cut_off.update("abc")
    cut_at = asyncio.get_running_loop().time()
    await fleet.feed(500)
    assert len(fleet.moves) - before <= 2 * 6, "each instance gives up once, to those who have not"
    assert max(at for *_, at in fleet.moves) < cut_at + 4 * AFTER, "and then nothing moves any more"
    cut_off.clear()
    await fleet.feed(120)
    assert fleet.owned() == {"a": 2, "b": 2, "c": 2}
    await fleet.end()
    assert len(fleet.sink.documents) == fleet.events()


async def test_a_write_that_nobody_waits_for_any_more_is_no_sign_that_the_sink_is_away():
    """The partition of the only failed write is set past it by an operator, and then nothing is to be written."""
    fleet = Fleet("ab")
    await fleet.feed(60)
    name = fleet.running["b"][0].ownership.owned[0]
    fleet.no_sink.add("b")
    fleet.logs[name].append(json.encode({"id": "late"}))
    await asyncio.sleep(5.0)
    skipped = Checkpoint(name, len(fleet.logs[name]) - 1, "", owner="operator")
    await fleet.checkpoints.put(skipped, deadline=asyncio.get_running_loop().time() + 5.0)
    await asyncio.sleep(30.0)
    fleet.no_sink.clear()
    moved = len(fleet.moves)
    await asyncio.sleep(300.0)

    assert (fleet.owned(), len(fleet.moves) - moved) == ({"a": 3, "b": 3}, 0)
    await fleet.end()


async def test_an_instance_comes_back_also_after_an_error_that_nobody_foresaw():
    class Failing:
        others, holds_any, back = 1, False, 0

        async def leave(self):
            raise RuntimeError("a bug")

        def come_back(self):
            self.back += 1

    async def answers():
        return None

    reach, ownership = Reach(AFTER), Failing()
    reach.note(HUB, reached=False, now=asyncio.get_running_loop().time())
    watching = asyncio.create_task(
        watch_reach(reach, ownership, lambda _: [("the hub", answers())], lambda: 1, every=2.0)
    )
    await asyncio.sleep(AFTER + 10)
    watching.cancel()

    assert (ownership.back, reach.reason) == (1, "")


async def test_an_instance_alone_keeps_its_partitions():
    fleet = Fleet("a")
    await fleet.feed(30)
    fleet.no_sink.add("a")
    await fleet.feed(400)
    assert fleet.owned() == {"a": 6}
    fleet.no_sink.clear()
    await fleet.feed(60)
    await fleet.end()
    assert len(fleet.sink.documents) == fleet.events()


async def test_an_instance_whose_questions_are_answered_while_its_writes_fail_comes_back_ever_more_seldom():
    fleet = Fleet("ab", partitions=2)
    await fleet.feed(60)
    fleet.no_writes.add("b")
    await fleet.feed(3600)
    claims = [at for name, _, at in fleet.moves if name == "b"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(claims)]
    assert 4 <= len(claims) <= 8
    assert gaps[-1] > 2 * gaps[1]
    await fleet.end()


all_in_virtual_time(globals())
