"""Random batches, failures, lost answers and take-overs of two owners: each event has its effect exactly once."""

import asyncio
import contextlib
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from consumer.errors import FencedError
from consumer.model import Dropped, Outcome, Record, Write
from consumer.sinks.sql.transactional import SqlTransactionalSink
from tests.support.consumer.sql import FLIGHTS, SCOPE, World, event, flight, next_commit

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

    def __init__(self, world, name, log, several):
        self.world, self.name, self.log, self.several = world, name, log, several
        self.sink = SqlTransactionalSink(world.database, SCOPE, FLIGHTS)
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


@settings(max_examples=60)
@given(STEPS, POISON, SEVERAL)
def test_every_event_is_a_row_or_a_dead_letter_exactly_once_and_the_position_never_falls(
    steps, poison, several
):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(folder, steps, poison, several))
