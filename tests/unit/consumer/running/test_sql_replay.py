"""Dead letters of a transactional sink: written and removed in one transaction, exactly once."""

import asyncio
from contextlib import suppress
from inspect import iscoroutinefunction
from itertools import count
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from msgspec import structs

from consumer.cli.replay import Task
from consumer.cli.selecting import Selection
from consumer.mapping.preparing import Preparation
from consumer.model import NOTHING_SETTLED, DeadLetter, Outcome, Record, Rejection, Write, WriteResult
from consumer.options import BatchLimits
from consumer.running.writing.replaying import Replay
from consumer.sinks.appending import AppendingSink, RefusedError
from consumer.sinks.routed import RoutedSink
from consumer.sinks.sql.beside import SqlSinkBeside
from consumer.sinks.sql.transactional import SqlTransactionalSink
from consumer.stores.sql.dead_letters import SqlDeadLetterStore
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


class KilledError(BaseException):
    """The process is gone: nothing catches it."""


class Process:
    """One process after the other: the first dies at its step number `kill_at`, which counts before and after each call."""

    def __init__(self, kill_at):
        self.left = kill_at

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise KilledError

    def watch(self, whole, *names):
        for name in names:
            setattr(whole, name, self._watched(getattr(whole, name)))
        return whole

    def _watched(self, call):
        if not iscoroutinefunction(call):

            def watched(*given):
                self.step()
                result = call(*given)
                self.step()
                return result

            return watched

        async def awaited(*given, **named):
            self.step()
            result = await call(*given, **named)
            self.step()
            return result

        return awaited


class Log:
    def __init__(self, logs, name):
        self._logs, self._name = logs, name
        self.mark = logs.get(name, NOTHING_SETTLED)

    async def append(self, records, last):
        if any(record.payload == b"refused" for record in records):
            raise RefusedError("no such row")
        self._logs["commits"] = self._logs.get("commits", 0) + 1
        self.mark = last
        self._logs["rows"] += [(record.event.sequence_number, record.payload.decode()) for record in records]
        self._logs[self._name] = last


class Rows(AppendingSink):
    """Rows of a lake in `logs`, which outlive the process."""

    def __init__(self, logs):
        super().__init__(BatchLimits())
        self._logs = logs

    async def open(self):
        return await self.routes()

    def prepare(self, write):
        carrier, event = write.document["carrier"], write.event
        bad = Rejection("bad", "no carrier") if carrier is None else None
        key = f"{event.sequence_number}~{write.index}"
        return Record(event, key, payload=str(carrier).encode(), rejection=bad)

    async def load(self, claim):
        raise NotImplementedError

    async def load_event(self, event, part=""):
        return Log(self._logs, (event.sequence_number, part))


async def replay_all(world, sinks, logs, documents, process):
    """What the command does, started again when it is killed. `documents` are carriers, each for a sink; None is rejected."""

    def mapping(event, _):
        return [
            Write(event, {"carrier": carrier, "number": 1}, n, sink)
            for n, (sink, carrier) in enumerate(documents)
        ]

    def sink_of():
        watched = ("_try_to_replay", "replay")
        if set(sinks) == {""}:
            return process.watch(SqlTransactionalSink(world.database, SCOPE, FLIGHTS), *watched)
        beside = process.watch(SqlSinkBeside(world.database, SCOPE, FLIGHTS, name="rows"), *watched)
        beside.aclose = AsyncMock()  # the world closes its database
        return RoutedSink({"lake": process.watch(Rows(logs), "replay", "load_event"), "rows": beside})

    def preparation(sink):
        sink.aclose = AsyncMock()
        return Preparation(sink.prepare, mapping=mapping)

    while True:
        store = process.watch(SqlDeadLetterStore(world.database, SCOPE), "get", "put", "delete")
        task = Task(
            SimpleNamespace(sink=sink_of, preparation=preparation), Selection(), parked=False, whole=False
        )
        with suppress(KilledError):
            return await task.run(store)


async def rows_of(world, logs, number):
    rows = await world.run(f"SELECT carrier FROM flights WHERE seq = {number}")
    return sorted([row[0] for row in rows] + [key for at, key in logs["rows"] if at == number])


@pytest.mark.parametrize("sinks", [("", ""), ("lake", "rows")], ids=["transactional", "several"])
async def test_a_replay_that_is_killed_at_any_step_loses_nothing_and_doubles_nothing(world, sinks):
    logs = {"rows": []}
    mended = [(sink, f"{n}{part}") for n, sink in enumerate(sinks) for part in ("good", "bad")]
    documents = [(sink, carrier if carrier.endswith("good") else None) for sink, carrier in mended]
    for kill_at in count(1):
        process = Process(kill_at)
        await world.dead_letters.put([dead_letter(flight(kill_at))], deadline=soon())
        await replay_all(world, sinks, logs, documents, process)
        [letter] = [each async for each in world.dead_letters.list()]
        assert (len(letter.records), letter.of) == (2, 4), f"killed at step {kill_at}"
        assert await rows_of(world, logs, kill_at) == ["0good", "1good"], f"killed at step {kill_at}"
        assert await replay_all(world, sinks, logs, mended, process) == []
        assert await rows_of(world, logs, kill_at) == ["0bad", "0good", "1bad", "1good"]
        assert await world.dead() == []
        if process.left > 0:
            break
    assert kill_at > 20


@pytest.mark.parametrize("sinks", [("",), ("lake",), ("rows",)])
async def test_a_record_that_the_settings_make_besides_is_written_where_another_had_its_number(world, sinks):
    [sink], logs, process = sinks, {"rows": []}, Process(0)
    await world.dead_letters.put([dead_letter(flight(7))], deadline=soon())
    await replay_all(world, sinks, logs, [(sink, "a"), (sink, None)], process)
    more = [(sink, "new"), (sink, "a"), (sink, "b")]

    assert await replay_all(world, sinks, logs, more, process) == []
    assert set(await rows_of(world, logs, 7)) == {"a", "b", "new"}


async def test_rows_of_one_event_are_appended_together_and_in_halves_around_one_that_is_refused():
    logs, event = {"rows": []}, flight(7)

    async def replay(carriers):
        sink = Rows(logs)
        writes = [Write(event, {"carrier": carrier}, n) for n, carrier in enumerate(carriers)]
        records = [structs.replace(sink.prepare(write), index=write.index, of=70) for write in writes]
        results = await sink.replay(records, deadline=soon())
        return [n for n, result in enumerate(results) if result.outcome is not Outcome.WRITTEN]

    carriers = [str(n) for n in range(70)]
    assert await replay(["refused" if n == 40 else carrier for n, carrier in enumerate(carriers)]) == [40]
    assert logs["commits"] <= 7
    logs["commits"] = 0
    assert await replay(carriers) == []

    assert (logs["commits"], sorted(int(row) for _, row in logs["rows"])) == (1, list(range(70)))


async def test_what_is_written_when_the_time_is_over_does_not_come_again():
    class Slow(Rows):
        async def write_again(self, records):
            yield [WriteResult(Outcome.WRITTEN)]
            await asyncio.sleep(60)

    sink, event = Slow({"rows": []}), flight(7)
    records = [sink.prepare(Write(event, {"carrier": "UA"}, n)) for n in range(3)]
    results = await sink.replay(records, deadline=soon(0.05))

    assert [result.outcome for result in results] == [Outcome.WRITTEN, Outcome.RETRY, Outcome.RETRY]
