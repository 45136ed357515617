"""Random batches, failures, lost answers and take-overs of two owners: each event has its effect exactly once."""

import asyncio
import contextlib
import tempfile
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from consumer.errors import FencedError
from consumer.model import Dropped, Outcome, Record, Write
from consumer.sinks.sql.beside import SqlSinkBeside
from consumer.sinks.sql.transactional import SqlTransactionalSink
from tests.support.consumer.sql import FLIGHTS, SCOPE, World, event, flight, next_commit
from tests.support.examples import examples

TABLE = "CREATE TABLE flights (carrier VARCHAR(3) NOT NULL, number INTEGER CHECK (number < 1000), seq BIGINT)"
EVENTS = 24

OWNERS = st.sampled_from("ab")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), OWNERS, st.none(), st.none()),
        st.tuples(
            st.just("write"), OWNERS, st.integers(1, 7), st.sampled_from([None, None, "before", "after"])
        ),
    ),
    max_size=25,
)
POISON = st.sets(st.integers(0, EVENTS - 1), max_size=6)
SEVERAL = st.sets(st.integers(0, EVENTS - 1), max_size=6)


class Owner:
    """A consumer as the pipeline would be: what is not settled is written again, in batches of any size."""

    def __init__(self, world, name, log, several, *, beside=False):
        self.world, self.name, self.log, self.several = world, name, log, several
        kind = partial(SqlSinkBeside, name="rows") if beside else SqlTransactionalSink
        self.sink = kind(world.database, SCOPE, FLIGHTS)
        self.cursor = None

    async def claim(self):
        claim = await self.world.claim(self.name, sink=self.sink)
        self.cursor = claim.checkpoint.sequence_number + 1 if claim.checkpoint else 0

    async def write(self, size, cut):
        if self.cursor is None or not (events := self.log[self.cursor : self.cursor + size]):
            return
        with next_commit(self.world, cut) if cut else contextlib.nullcontext():
            try:
                records = [record for each in events for record in self.records_of(each)]
                results = await self.world.write_records(*records, sink=self.sink)
            except FencedError:
                self.cursor = None
                return
        if {outcome for outcome, _ in results} == {Outcome.WRITTEN}:
            self.cursor += len(events)

    def records_of(self, each):
        """Some events have a row more, and something that is not to be written."""
        own = self.sink.prepare(Write(each))
        if each.sequence_number not in self.several:
            return [own]
        more = self.sink.prepare(Write(each, {"carrier": "LH", "number": 1}, index=2))
        records = [own, Record(each, "", dropped=Dropped("stale"), index=1), more]
        return [structs.replace(record, index=index, of=3) for index, record in enumerate(records)]


def events_of(poison):
    """Every other poisonous event is no JSON, the others violate a constraint."""
    return [
        (event(n, b"{") if n % 2 else flight(n, number=5000)) if n in poison else flight(n, number=1)
        for n in range(EVENTS)
    ]


async def play(folder, steps, poison, several):
    log = events_of(poison)
    async with World(f"sqlite:///{folder}/tidemark.db", FLIGHTS, table=TABLE) as world:
        owners = {name: Owner(world, name, log, several) for name in "ab"}
        last = -1
        for kind, name, size, cut in steps:
            await (owners[name].claim() if kind == "claim" else owners[name].write(size, cut))
            position = -1 if (stored := await world.position()) is None else stored
            assert position >= last
            rows = [*range(position + 1), *(n for n in several if n <= position)]
            assert sorted(await world.written() + [n for n, _ in await world.dead()]) == sorted(rows)
            last = position
        await owners["a"].claim()
        while owners["a"].cursor < EVENTS:
            await owners["a"].write(7, None)  # one more than are poisonous: some must pass
        for owner in owners.values():
            await owner.sink.aclose()

        assert await world.written() == sorted([*(set(range(EVENTS)) - poison), *several])
        assert [n for n, _ in await world.dead()] == sorted(poison)


class OwnerBeside(Owner):
    """The same with another sink beside: checkpoints are saved now and then, and dead letters are the pipeline's."""

    def __init__(self, world, name, log, several, letters):
        super().__init__(world, name, log, several, beside=True)
        self.letters = letters

    async def write(self, size, cut):
        if self.cursor is None or not (events := self.log[self.cursor : self.cursor + size]):
            return
        prepared = [record for each in events for record in self.records_of(each)]
        records, number = [], events[0].sequence_number
        for record in prepared:
            if record.rejection is not None:
                self.letters.add(record.event.sequence_number)
                break  # what is behind it waits for the letter
            if record.dropped is None:
                records.append(record)
        results = []
        if records:
            with next_commit(self.world, cut) if cut else contextlib.nullcontext():
                try:
                    results = await self.world.sink_results(records, self.sink)
                except FencedError:
                    self.cursor = None
                    return
        states = [result.outcome for result in results]
        assert states == sorted(states, key=[Outcome.WRITTEN, Outcome.REJECT, Outcome.RETRY].index) or (
            Outcome.REJECT in states
        )
        for record, state in zip(records, states, strict=True):
            number = record.event.sequence_number
            if state is Outcome.REJECT:
                self.letters.add(number)
            if state is not Outcome.WRITTEN:
                break
        done = {r.event.sequence_number for r, s in zip(records, states, strict=True) if s is Outcome.WRITTEN}
        while self.cursor < len(self.log) and (self.cursor in done or self.cursor in self.letters):
            self.cursor += 1


async def play_beside(folder, steps, poison, saved):
    log = events_of(poison)
    async with World(f"sqlite:///{folder}/tidemark.db", FLIGHTS, table=TABLE) as world:
        letters = set()
        owners = {name: OwnerBeside(world, name, log, set(), letters) for name in "ab"}
        for step, (kind, name, size, cut) in enumerate(steps):
            if kind == "claim":
                await owners[name].claim()
                owners[name].cursor = min(owners[name].cursor, step // 2 if saved else 0)
            else:
                await owners[name].write(size, cut)
            assert len(await world.written()) == len(set(await world.written()))
        await owners["a"].claim()
        owners["a"].cursor = 0  # the checkpoint is older than the mark
        while owners["a"].cursor < EVENTS:
            await owners["a"].write(7, None)
        for owner in owners.values():
            await owner.sink.aclose()

        assert await world.written() == [n for n in range(EVENTS) if n not in poison]
        assert letters >= poison
        assert await world.dead() == []


@examples(20)
@given(STEPS, POISON, st.booleans())
def test_a_sql_sink_among_others_writes_each_row_once_and_no_mark_passes_a_rejected_event(
    steps, poison, saved
):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play_beside(folder, steps, poison, saved))


@examples(30)
@given(STEPS, POISON, SEVERAL)
def test_every_event_is_a_row_or_a_dead_letter_exactly_once_and_the_position_never_falls(
    steps, poison, several
):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(folder, steps, poison, several))
