"""Dead letters of a transactional sink: written and removed in one transaction, exactly once."""

import pytest
from msgspec import structs

from consumer.mapping.preparing import Preparation
from consumer.model import DeadLetter, Outcome, Rejection, Write
from consumer.running.writing.replaying import Replay, ReplayingSink
from tests.support.consumer.sql import FLIGHTS, T0, World, flight, soon

TABLE = "CREATE TABLE flights (carrier TEXT NOT NULL, number INTEGER, seq INTEGER)"


def dead_letter(event):
    return DeadLetter("flights", "$Default", event, Rejection("constraint", ""), 1, T0)


@pytest.fixture
async def world(tmp_path):
    async with World(f"sqlite:///{tmp_path}/tidemark.db", FLIGHTS, table=TABLE) as world:
        yield world


async def test_a_letter_becomes_a_row_once_however_often_it_is_replayed(world):
    assert isinstance(world.sink, ReplayingSink)
    event = flight(7)
    await world.dead_letters.put([dead_letter(event)], deadline=soon())
    record = world.sink.prepare(Write(event))

    outcomes = [(await world.sink.replay([record], deadline=soon())).outcome for _ in range(2)]

    assert outcomes == [Outcome.WRITTEN, Outcome.WRITTEN]
    assert await world.written() == [7]
    assert await world.dead() == []


async def test_of_an_event_of_several_rows_the_letter_names_those_that_are_not_there(world):
    event = flight(7)
    records = [
        structs.replace(world.sink.prepare(Write(event, {"carrier": carrier, "number": 1}, n)), index=n, of=3)
        for n, carrier in enumerate(("AA", None, "UA"))
    ]
    await world.claim()
    await world.write_records(*records)
    [letter] = [each async for each in world.dead_letters.list()]
    assert (letter.records, letter.of) == (("1",), 3)
    mended = Preparation(
        world.sink.prepare,
        mapping=lambda event, _: [
            Write(event, {"carrier": carrier, "number": 1}, n) for n, carrier in enumerate("ABC")
        ],
    )
    replay = Replay(world.sink, await world.sink.routes(), mended)
    for _ in range(2):
        [result] = await replay.write([letter], deadline=soon())
        assert result.outcome is Outcome.WRITTEN

    rows = await world.run("SELECT carrier FROM flights ORDER BY carrier")
    assert [row[0] for row in rows] == ["AA", "B", "UA"]
    assert await world.dead() == []


async def test_what_the_database_still_refuses_keeps_its_letter(world):
    event = flight(7, carrier=None)
    await world.dead_letters.put([dead_letter(event)], deadline=soon())

    result = await world.sink.replay([world.sink.prepare(Write(event))], deadline=soon())

    assert (result.outcome, "constraint" in result.reason) == (Outcome.REJECT, True)
    assert await world.written() == []
    assert await world.dead() == [(7, "constraint")]
