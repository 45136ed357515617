"""Dead letters of a transactional sink: written and removed in one transaction, exactly once."""

import pytest
from msgspec import structs

from consumer.mapping.preparing import Preparation
from consumer.model import DeadLetter, Outcome, Rejection, Write
from consumer.running.writing.replaying import Replay
from consumer.sinks.sql.beside import SqlSinkBeside
from tests.support.consumer.sql import FLIGHTS, SCOPE, T0, World, flight, soon

TABLE = "CREATE TABLE flights (carrier TEXT NOT NULL, number INTEGER, seq INTEGER)"


def dead_letter(event):
    return DeadLetter("flights", "$Default", event, Rejection("constraint", ""), 1, T0)


@pytest.fixture
async def world(tmp_path):
    async with World(f"sqlite:///{tmp_path}/tidemark.db", FLIGHTS, table=TABLE) as world:
        yield world


async def test_a_letter_becomes_a_row_once_however_often_it_is_replayed(world):
    event = flight(7)
    await world.dead_letters.put([dead_letter(event)], deadline=soon())
    record = world.sink.prepare(Write(event))

    outcomes = [(await world.sink.replay([record], deadline=soon()))[0].outcome for _ in range(2)]

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


@pytest.mark.parametrize("stored", [(("0", "1", "2"), 3), ((), 1)])  # () by an older version
async def test_what_the_database_takes_is_written_and_the_letter_names_the_rest(world, stored):
    event, carriers = flight(7), ["AA", None, "UA"]
    letter = structs.replace(dead_letter(event), records=stored[0], of=stored[1])
    await world.dead_letters.put([letter], deadline=soon())
    mapped = Preparation(
        world.sink.prepare,
        mapping=lambda event, _: [
            Write(event, {"carrier": carrier, "number": 1}, n) for n, carrier in enumerate(carriers)
        ],
    )
    replay = Replay(world.sink, await world.sink.routes(), mapped)
    for _ in range(2):  # with the letter as it was read before, too
        [result] = await replay.write([letter], deadline=soon())
        assert (result.outcome, result.left.records, result.left.of) == (Outcome.REJECT, ("1",), 3)
        [left] = [each async for each in world.dead_letters.list()]
        assert (left.records, left.of) == (("1",), 3)
    carriers[1] = "BB"
    [result] = await replay.write([left], deadline=soon())

    assert result.outcome is Outcome.WRITTEN
    assert sorted(row[0] for row in await world.run("SELECT carrier FROM flights")) == ["AA", "BB", "UA"]
    assert await world.dead() == []


async def test_beside_other_sinks_a_row_without_a_key_is_written_once_however_often_it_is_replayed(world):
    sink = SqlSinkBeside(world.database, SCOPE, FLIGHTS, name="rows")
    event, carriers = flight(7), ["AA", None, "UA"]
    mapped = Preparation(
        sink.prepare,
        mapping=lambda event, _: [
            Write(event, {"carrier": carrier, "number": 1}, n) for n, carrier in enumerate(carriers)
        ],
    )
    replay = Replay(sink, await sink.open(), mapped)
    letter = structs.replace(dead_letter(event), records=("0", "1", "2"), of=3)
    for carrier, outcome in ((None, Outcome.REJECT), ("BB", Outcome.WRITTEN), ("BB", Outcome.WRITTEN)):
        carriers[1] = carrier  # killed before the letter's names are stored
        [result] = await replay.write([letter], deadline=soon())
        assert result.outcome is outcome

    assert sorted(row[0] for row in await world.run("SELECT carrier FROM flights")) == ["AA", "BB", "UA"]


async def test_what_the_database_still_refuses_keeps_its_letter(world):
    event = flight(7, carrier=None)
    await world.dead_letters.put([dead_letter(event)], deadline=soon())

    [result] = await world.sink.replay([world.sink.prepare(Write(event))], deadline=soon())

    assert (result.outcome, "constraint" in result.reason) == (Outcome.REJECT, True)
    assert await world.written() == []
    assert await world.dead() == [(7, "constraint")]
