"""Dead letters of a transactional sink: written and removed in one transaction, exactly once."""

import pytest

from consumer.model import DeadLetter, Outcome, Rejection, Write
from consumer.running.writing.replaying import ReplayingSink
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


async def test_what_the_database_still_refuses_keeps_its_letter(world):
    event = flight(7, carrier=None)
    await world.dead_letters.put([dead_letter(event)], deadline=soon())

    result = await world.sink.replay([world.sink.prepare(Write(event))], deadline=soon())

    assert (result.outcome, "constraint" in result.reason) == (Outcome.REJECT, True)
    assert await world.written() == []
    assert await world.dead() == [(7, "constraint")]
