"""Two consumers of one partition, lost answers, kills and stale checkpoints: every row is there once, in order."""

import asyncio
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from consumer.errors import FencedError
from consumer.model import Batch, Checkpoint, Claim, Event, Outcome, Record, Routes, Write
from consumer.options import BatchLimits
from consumer.sinks.appending import Appender, AppendingSink, MovedError, RefusedError

EVENTS = 12
REFUSED = {4, 5, 9}
"""Events with a row that the table refuses for ever."""


class LostError(Exception):
    """The answer of the target is lost."""


class Table:
    """Rows and mark of one partition. `fault` befalls the next append."""

    def __init__(self):
        self.rows, self.mark, self.fault = [], -1, ""


class MemoryLog:
    def __init__(self, table):
        self._table, self.mark = table, table.mark

    async def append(self, records, last):
        fault, self._table.fault = self._table.fault, ""
        if fault == "before":
            raise LostError
        if self._table.mark != self.mark or fault == "refused":
            raise MovedError
        if REFUSED & {record.event.sequence_number for record in records}:
            raise RefusedError("bad")
        self._table.rows += [record.event.sequence_number for record in records]
        self._table.mark = self.mark = last
        if fault == "after":
            raise LostError
        if fault == "repeated":  # a client that repeats a request by itself is refused by its own first one
            self.mark = -1
            raise MovedError


class TableSink(AppendingSink):
    def __init__(self, table):
        super().__init__(BatchLimits())
        self._table = table

    async def open(self):
        return Routes(by_partition=True)

    def prepare(self, write):
        return Record(write.event, str(write.event.sequence_number))

    async def load(self, claim):
        return MemoryLog(self._table)

    async def load_event(self, event, part=""):
        raise NotImplementedError


class Consumer:
    """What the consumer does with an ordered sink: it writes from its first unsettled event on."""

    def __init__(self, world):
        self._world = world
        self._start()

    def _start(self):
        world = self._world
        self.sink, self.next, self.claim = TableSink(world.table), world.checkpoint + 1, next(world.epochs)
        checkpoint = Checkpoint("0", world.checkpoint, "") if world.checkpoint >= 0 else None
        self.sink.attach(Claim("0", "me", self.claim, checkpoint))
        world.owner = self.claim

    async def step(self, action, amount):
        world = self._world
        if action == "restart":
            self._start()
            return
        if action == "save":
            if world.owner == self.claim:  # the checkpoint store fences the others
                world.checkpoint = max(world.checkpoint, self.next - 1)
            return
        await self.write(amount, "" if action == "write" else action)

    async def write(self, amount, fault=""):
        events = [Event("0", n, "", 0.0, b"") for n in range(self.next, min(EVENTS, self.next + amount))]
        records = tuple(self.sink.prepare(Write(event)) for event in events)
        if not records:
            return
        self._world.table.fault = fault
        try:
            results = await self.sink.write(
                Batch(1, "0", records), deadline=asyncio.get_running_loop().time() + 5
            )
        except FencedError:
            self._start()
            return
        decided = 0
        for event, result in zip(events, results, strict=True):
            if result.outcome is Outcome.RETRY:
                break
            decided += 1
            if result.outcome is Outcome.REJECT:
                self._world.letters.add(event.sequence_number)  # the lane is held until it is stored
                break
            assert event.sequence_number in {*self._world.table.rows, *self._world.letters}
        assert {result.outcome for result in results[decided:]} <= {Outcome.RETRY}
        self.next += decided


class World:
    def __init__(self):
        self.table, self.checkpoint, self.epochs, self.owner = Table(), -1, count(1), 0
        self.letters = set()


ACTIONS = st.sampled_from(["write", "write", "before", "after", "refused", "repeated", "save", "restart"])
STEPS = st.lists(st.tuples(st.integers(0, 1), ACTIONS, st.integers(1, 4)), max_size=30)


@given(STEPS)
def test_every_row_is_there_once_and_in_order_whatever_happens(steps):
    async def play():
        world = World()
        consumers = [Consumer(world), Consumer(world)]
        for who, action, amount in steps:
            await consumers[who].step(action, amount)
        last = Consumer(world)
        for _ in range(2 * EVENTS):
            await last.write(3)
        return world.table.rows, world.letters

    rows, letters = asyncio.run(play())
    assert rows == [number for number in range(EVENTS) if number not in REFUSED]
    assert letters == REFUSED


def test_rows_whose_answer_was_lost_are_found_written_by_the_consumer_that_wrote_them():
    """Its own mark is no sign of another consumer: the claim goes on."""
    table = Table()
    table.fault = "after"

    async def load(claim):
        return MemoryLog(table)

    async def written_twice():
        appender = Appender(Claim("0", "me", 1), load)
        records = [Record(Event("0", number, str(number), 0.0, b"{}"), str(number)) for number in (1, 2)]
        try:
            await appender.write(records)
        except LostError:
            return await appender.write(records)

    results = asyncio.run(written_twice())

    assert [result.outcome for result in results] == [Outcome.WRITTEN] * 2
    assert table.rows == [1, 2]
