"""Dead letters written again."""

import asyncio
from contextlib import suppress

import pytest
from msgspec import structs

from consumer.decoding.avro import SchemaFormat, avro_reader, by_content_type
from consumer.decoding.json_body import JsonFormat
from consumer.decoding.schemas import Schemas
from consumer.decoding.table import AutoFormat, Guarded
from consumer.formats import AutoOptions, Integers
from consumer.mapping.preparing import Preparation
from consumer.model import (
    DeadLetter,
    Dropped,
    Event,
    Outcome,
    Record,
    Rejection,
    Routes,
    Write,
    WriteResult,
)
from consumer.running.writing.replaying import Replay
from tests.support.consumer.decoding import ID, MemoryRegistry, event, zigzag
from tests.support.virtual_time import in_virtual_time
from tidemark.foundation.errors import UnavailableError

WRITTEN = WriteResult(Outcome.WRITTEN, 200)
THROTTLED = WriteResult(Outcome.RETRY, 429, retry_after=0.0)


class Scripted:
    """Two lanes: keys up to "m" and the others. Answers of a key are taken from `script`, then it is written."""

    transactional = False

    def __init__(self, script):
        self.script = {key: list(answers) for key, answers in script.items()}
        self.batches = []
        self.asked_for_routes = 0

    def prepare(self, write):
        event = write.event
        key = write.document["key"] if write.document else event.body.decode()
        rejection = Rejection("not_json", "bad") if key == "bad" else None
        return Record(event, key, route=key, rejection=rejection)

    async def routes(self):
        self.asked_for_routes += 1
        return Routes(("", "n"), ("left", "right"))

    async def write(self, batch, *, deadline):
        self.batches.append((batch.lane, [record.event.sequence_number for record in batch.records]))
        answers = [
            self.script[record.key].pop(0) if self.script.get(record.key) else WRITTEN
            for record in batch.records
        ]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


async def replayed(sink, *keys, seconds=5.0):
    dead_letters = [
        DeadLetter("h", "g", Event("0", n, "", 0.0, key.encode()), Rejection("r", ""), 1, 0.0)
        for n, key in enumerate(keys)
    ]
    replay = Replay(sink, Routes(("", "n"), ("left", "right")))
    return await replay.write(dead_letters, deadline=asyncio.get_running_loop().time() + seconds)


async def test_a_round_is_a_batch_per_lane_and_one_record_per_key():
    sink = Scripted({})

    results = await replayed(sink, "a", "z", "a", "bad", "b")

    assert [result.outcome for result in results] == ["written", "written", "written", "reject", "written"]
    assert results[3].reason == "not_json: bad"
    assert sink.batches == [("left", [0, 4]), ("right", [1]), ("left", [2])]


@pytest.mark.parametrize(
    "first", [THROTTLED, WriteResult(Outcome.RETRY, 410, retry_after=0.0, rerouted=True)]
)
async def test_what_must_be_retried_is_and_the_next_of_its_key_waits(first):
    sink = Scripted({"a": [first, first]})

    assert {result.outcome for result in await replayed(sink, "a", "a")} == {Outcome.WRITTEN}
    assert sink.batches == [("left", [0]), ("left", [0]), ("left", [0]), ("left", [1])]
    assert sink.asked_for_routes == (2 if first.rerouted else 0)


async def test_routes_that_cannot_be_read_now_are_asked_for_again_and_end_nothing():
    moved = WriteResult(Outcome.RETRY, 410, retry_after=0.0, rerouted=True)
    sink = Scripted({"a": [moved, moved]})
    read = sink.routes

    async def away_once():
        sink.routes = read
        raise UnavailableError("no answer")

    sink.routes = away_once
    results = await replayed(sink, "a", "b")

    assert ([each.outcome for each in results], sink.asked_for_routes) == (["written", "written"], 1)


async def test_what_is_left_to_be_tried_again_holds_later_events_of_its_key_in_the_next_call():
    """Written before it, they would be overwritten by it."""
    sink = Scripted({"a": [THROTTLED] * 300})
    replay = Replay(sink, Routes(("", "n"), ("left", "right")))
    letters = [
        DeadLetter("h", "g", Event("0", n, "", 0.0, key.encode()), Rejection("r", ""), 1, 0.0)
        for n, key in enumerate(["a", "b", "a", "b", "z"])
    ]

    async def write(some):
        return await replay.write(some, deadline=asyncio.get_running_loop().time() + 0.2)

    first, then = await write(letters[:2]), await write(letters[2:])

    assert [each.outcome for each in first] == ["retry", "written"]
    assert [(each.outcome, each.reason) for each in then] == [
        ("retry", "an earlier event of its key was not written"),
        ("written", ""),
        ("written", ""),
    ]
    assert {2} not in [set(numbers) for _, numbers in sink.batches]


async def test_an_event_that_is_held_holds_by_the_keys_of_what_it_would_write_alone():
    sink = Scripted({"a": [THROTTLED] * 300})
    keys = iter(["a", "a_", "_b", "_"])
    preparation = Preparation(sink.prepare, mapping=lambda event, _: parts(event, next(keys)))

    def parts(event, own):
        return [Dropped("r") if key == "_" else Write(event, {"key": key}) for key in own]

    replay = Replay(sink, Routes(("", "n"), ("left", "right")), preparation)
    results = []
    for n in range(4):
        letter = DeadLetter("h", "g", Event("0", n, "", 0.0, b"{}"), Rejection("r", ""), 1, 0.0)
        results += await replay.write([letter], deadline=asyncio.get_running_loop().time() + 0.2)

    assert [each.outcome for each in results] == ["retry", "retry", "written", "written"]


async def test_an_event_waits_for_one_before_it_that_has_any_of_its_keys():
    class Together(Scripted):
        async def replay(self, records, *, deadline):
            self.batches.append([record.key for record in records])
            return self.script["a"].pop(0) if records[0].key == "a" and self.script["a"] else WRITTEN

    sink = Together({"a": [THROTTLED]})
    keys = iter(["ab", "b", "c"])
    preparation = Preparation(
        sink.prepare, mapping=lambda event, documents: several(next(keys))(event, documents)
    )
    letters = [
        DeadLetter("h", "g", Event("0", n, "", 0.0, b"{}"), Rejection("r", ""), 1, 0.0) for n in range(3)
    ]
    results = await Replay(sink, Routes(by_partition=True), preparation).write(
        letters, deadline=asyncio.get_running_loop().time() + 5.0
    )

    assert {result.outcome for result in results} == {Outcome.WRITTEN}
    assert sink.batches == [["a", "b"], ["c"], ["a", "b"], ["b"]]


def several(keys):
    return lambda event, documents: [
        Dropped("stale") if key == "drop" else Write(event, {"key": key}, index)
        for index, key in enumerate(keys)
    ]


@pytest.mark.parametrize(
    ("keys", "outcome", "batches"),
    [
        ("ab", Outcome.WRITTEN, [("left", [0, 0])]),
        (["a", "bad"], Outcome.REJECT, [("left", [0])]),  # the others are written again
        (["a", "drop"], Outcome.WRITTEN, [("left", [0])]),
        (["drop"], Outcome.WRITTEN, []),
    ],
)
async def test_an_event_of_several_records_is_written_when_all_of_them_are(keys, outcome, batches):
    sink = Scripted({})
    preparation = Preparation(sink.prepare, mapping=several(keys))
    event = Event("0", 0, "", 0.0, b"{}")
    replay = Replay(sink, Routes(("", "n"), ("left", "right")), preparation)

    [result] = await replay.write(
        [DeadLetter("h", "g", event, Rejection("r", ""), 1, 0.0)],
        deadline=asyncio.get_running_loop().time() + 5.0,
    )

    assert (result.outcome, sink.batches) == (outcome, batches)


@pytest.mark.parametrize(
    ("names", "of", "options", "written"),
    [
        (("1",), 3, {}, "b"),
        (("0", "2"), 3, {}, "ac"),
        (("1",), 1, {}, "b"),  # a parked event of an older version
        (("1",), 2, {}, "abc"),  # the settings make other records of it now
        (("1", "7"), 3, {}, "abc"),
        ((), 3, {}, "abc"),  # a dead letter of an older version
        (("1",), 3, {"whole": True}, "abc"),
    ],
)
async def test_only_the_records_that_the_dead_letter_names_are_written_while_they_are_known(
    names, of, options, written
):
    sink, event = Scripted({}), Event("0", 0, "", 0.0, b"{}")
    tried = []

    async def write(batch, *, deadline):
        tried.extend(record.key for record in batch.records)
        return [WriteResult(Outcome.WRITTEN)] * len(batch.records)

    sink.write = write
    preparation = Preparation(sink.prepare, mapping=several("abc"))
    replay = Replay(sink, Routes(), preparation, **options)
    letter = DeadLetter("h", "g", event, Rejection("r", ""), 1, 0.0, names, of)
    [result] = await replay.write([letter], deadline=asyncio.get_running_loop().time() + 5.0)

    assert (result.outcome, "".join(sorted(tried))) == (Outcome.WRITTEN, written)


async def test_an_exception_is_a_retry_and_at_the_deadline_it_is_given_up():
    sink = Scripted({"a": [OSError("reset")] * 99})

    first, second = await replayed(sink, "a", "a", seconds=0.1)

    assert (first.outcome, first.reason) == (Outcome.RETRY, "reset")
    assert (second.outcome, second.reason) == (Outcome.RETRY, "no time was left to try it")


@pytest.mark.parametrize("answer", [[], None, [WRITTEN] * 2])
@in_virtual_time
async def test_a_sink_that_does_not_answer_for_each_record_is_asked_again(answer):
    class Sink(Scripted):
        async def write(self, batch, *, deadline):
            answered = await super().write(batch, deadline=deadline)
            return answer if len(self.batches) == 1 else answered

    [result] = await replayed(Sink({}), "a")

    assert result.outcome is Outcome.WRITTEN


@pytest.mark.parametrize("first", [[], [THROTTLED]], ids=["", "and one of its own is throttled once"])
@in_virtual_time
async def test_a_lane_that_asks_for_an_hour_holds_no_other(first):
    sink = Scripted({"z": [WriteResult(Outcome.RETRY, 429, retry_after=3600.0)] * 9, "a": list(first)})

    results = await replayed(sink, "z", "a", "a", "z")

    assert [result.outcome for result in results] == ["retry", "written", "written", "retry"]
    left = [numbers for lane, numbers in sink.batches if lane == "left"]
    assert left == [[1]] * len(first) + [[1], [2]]


@in_virtual_time
async def test_a_lane_that_asks_for_minutes_is_left_alone_by_later_calls_until_then():
    sink = Scripted({"z": [WriteResult(Outcome.RETRY, 429, "slow down", retry_after=60.0)]})
    replay, clock = Replay(sink, Routes(("", "n"), ("left", "right"))), asyncio.get_running_loop().time
    letters = [
        DeadLetter("h", "g", Event("0", n, "", 0.0, key.encode()), Rejection("r", ""), 1, 0.0)
        for n, key in enumerate("zyax")
    ]

    await replay.write(letters[:1], deadline=clock() + 5.0)
    held, other = await replay.write(letters[1:3], deadline=clock() + 5.0)
    later = await replay.write(letters[3:], deadline=clock() + 120.0)

    assert (held.outcome, held.status, held.reason, other.outcome) == ("retry", 429, "slow down", "written")
    assert later[0].outcome is Outcome.WRITTEN
    assert sink.batches == [("right", [0]), ("left", [2]), ("right", [3])]


async def test_a_rejected_record_does_not_hold_the_next_of_its_key():
    sink = Scripted({"a": [WriteResult(Outcome.REJECT, 400)]})

    assert [result.outcome for result in await replayed(sink, "a", "a")] == ["reject", "written"]


async def test_a_dead_letter_whose_schema_cannot_be_fetched_remains_and_the_others_are_written():
    sink = Scripted({})
    registry = MemoryRegistry({ID: '{"type":"record","name":"R","fields":[{"name":"key","type":"string"}]}'})
    schemas = Schemas(registry, avro_reader(Integers.SAFE), lambda: 0.0)
    decoder = Guarded(AutoFormat({}, SchemaFormat(by_content_type, schemas), JsonFormat()), AutoOptions())
    replay = Replay(sink, Routes(), Preparation(sink.prepare, decoder=decoder))
    events = [
        event(zigzag(1) + b"a", f"avro/binary+{ID}"),
        event(b'{"key":"b"}'),
        event(b"{}", f"avro/binary+{'f' * 32}"),
    ]
    letters = [DeadLetter("h", "g", each, Rejection("r", ""), 1, 0.0) for each in events]

    async def outcomes():
        results = await replay.write(letters, deadline=asyncio.get_running_loop().time() + 5.0)
        return [(result.outcome, result.reason) for result in results]

    registry.down = True
    late = (Outcome.RETRY, "the registry does not answer")
    assert await outcomes() == [late, (Outcome.WRITTEN, ""), late]
    registry.down = False
    written, again, unknown = await outcomes()
    assert written == again == (Outcome.WRITTEN, "")
    assert (unknown[0], unknown[1].partition(":")[0]) == (Outcome.REJECT, "schema_unknown")


@in_virtual_time
async def test_a_registry_that_lets_a_question_wait_is_not_asked_again_for_as_long():
    class Silent:
        asked, after = 0, 600.0

        def missing(self, events):
            return ["5"] if any(each.body == b"{}" for each in events) else []

        async def load(self, ids, *, deadline):
            self.asked += 1
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(self.after)
            raise UnavailableError("no answer")

        def decode(self, event):
            return [{"key": "a"}]

    class Slow(Scripted):
        async def write(self, batch, *, deadline):
            async with asyncio.timeout_at(deadline):
                await asyncio.sleep(5.0)
            return await super().write(batch, deadline=deadline)

    registry, sink = Silent(), Slow({})
    replay = Replay(sink, Routes(), Preparation(sink.prepare, decoder=registry))
    letter = DeadLetter("h", "g", event(b"{}"), Rejection("r", ""), 1, 0.0)
    both = [letter, structs.replace(letter, event=event(b"a"))]
    results = await replay.write(both, deadline=asyncio.get_running_loop().time() + 90.0)
    assert [result.outcome for result in results] == [Outcome.RETRY, Outcome.WRITTEN]
    for _ in range(1000):
        [result] = await replay.write([letter], deadline=asyncio.get_running_loop().time() + 90.0)
        assert (result.outcome, result.reason) == (Outcome.RETRY, "no answer")
    assert registry.asked == 1

    await asyncio.sleep(60.0)
    registry.after = 0.0  # what refuses at once is asked each time
    for _ in range(3):
        await replay.write([letter], deadline=asyncio.get_running_loop().time() + 90.0)
    assert registry.asked == 4
