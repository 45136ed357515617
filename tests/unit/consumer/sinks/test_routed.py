"""Several sinks as one: lanes, outages, marks and dead letters, through a driver."""

import asyncio
import json

import pytest

from consumer.errors import FencedError
from consumer.mapping.documents import MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.model import (
    Claim,
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
from consumer.options import BacklogLimits, BatchLimits
from consumer.running.driver import Driver, DriverSettings
from consumer.running.writing.replaying import Replay
from consumer.sinks.routed import RoutedSink, prepare_for_only
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.virtual_time import all_in_virtual_time
from tidemark.foundation.errors import SettingsError, UnavailableError


class ByKey(MemorySink):
    """Documents by id; `error` is raised while it is set."""

    def __init__(self):
        super().__init__(MappingOptions("hub"))
        self.error = None
        self.numbers = []

    async def write(self, batch, *, deadline):
        if self.error:
            raise self.error
        self.numbers += [record.event.sequence_number for record in batch.records]
        return await super().write(batch, deadline=deadline)


class Rows:
    """Appends rows once, by a mark in `table`, which outlives the sink. It refuses the numbers in `refused`."""

    transactional = False

    def __init__(self, table, refused=()):
        self.table, self.refused, self.attached, self.error = table, set(refused), {}, None

    async def open(self):
        return Routes(by_partition=True)

    async def routes(self):
        return await self.open()

    def prepare(self, write):
        rejection = Rejection("bad", "no row") if write.document.get("no row") else None
        return Record(write.event, f"{write.event.sequence_number}", b"row", rejection=rejection)

    def attach(self, claim):
        self.attached[claim.partition] = claim.epoch
        self.table.setdefault("owner", {})[claim.partition] = claim.epoch

    def detach(self, partition):
        self.attached.pop(partition, None)

    async def write(self, batch, *, deadline):
        partition = batch.records[0].event.partition
        if self.attached.get(partition) != self.table["owner"][partition]:
            raise FencedError("another owner")
        if self.error:
            raise self.error
        results = []
        for record in batch.records:
            number = record.event.sequence_number
            if results and results[-1].outcome is not Outcome.WRITTEN:
                results.append(WriteResult(Outcome.RETRY, retry_after=0.0))
            elif number <= self.table.get("mark", -1):
                results.append(WriteResult(Outcome.WRITTEN))
            elif number in self.refused:
                rejection = Rejection("refused", "the table")
                results.append(WriteResult(Outcome.REJECT, rejection=rejection))
            else:
                self.table.setdefault("rows", []).append(number)
                self.table["mark"] = number
                results.append(WriteResult(Outcome.WRITTEN))
        return results

    async def aclose(self):
        """Nothing to close."""


def to(*sinks):
    """A mapping: every document to these sinks, unless it names its own."""
    return lambda event, documents: [
        Write(event, documents[0], index=index, sink=sink)
        for index, sink in enumerate(documents[0].get("to", sinks))
    ]


class Stores:
    def __init__(self):
        self.checkpoints, self.dead_letters = (
            MemoryCheckpointStore(clock=lambda: 0.0),
            MemoryDeadLetterStore(),
        )

    async def start(self, sinks, mapping, owner="me", **limits):
        sink = RoutedSink(sinks)
        driver = Driver(
            DriverSettings("hub", "group", BacklogLimits(**limits), BatchLimits(flush_after=0.1)),
            sink,
            self.checkpoints,
            self.dead_letters,
            chance=lambda: 0.0,
            preparation=Preparation(sink.prepare, mapping=mapping),
        )
        await driver.open()
        claim = await self.checkpoints.claim("0", owner, deadline=now() + 5.0)
        driver.claimed(claim)
        return driver, claim

    async def letters(self):
        return [(each.event.sequence_number, each.rejection) async for each in self.dead_letters.list()]

    async def position(self):
        stored = (await self.checkpoints.load_all(deadline=now() + 5.0)).get("0")
        return -1 if stored is None else stored.sequence_number


def now():
    return asyncio.get_running_loop().time()


def events(*numbers, **fields):
    return [
        Event("0", n, str(n), 0.0, json.dumps({"id": f"d{n % 3}", "n": n, **fields}).encode())
        for n in numbers
    ]


async def test_a_sink_that_is_down_holds_its_own_records_until_the_backlog_is_full_and_is_named(caplog):
    caplog.set_level("INFO")
    stores, up, down = Stores(), ByKey(), ByKey()
    down.error = OSError("down")
    driver, claim = await stores.start({"up": up, "down": down}, to("up", "down"), high_count=50)

    await driver.receive("0", claim.epoch, events(*range(40)))
    await asyncio.sleep(30.0)
    receiving = asyncio.create_task(driver.receive("0", claim.epoch, events(*range(40, 60))))
    await asyncio.sleep(30.0)

    assert len(up.numbers) == 50
    assert not receiving.done()
    assert "sink 'down' holds 50 of 60 records" in caplog.text  # ten were on their way to the other
    statistics = driver.statistics()
    assert statistics.pause_reason.endswith("sink 'down' holds 50 of 50 records")
    assert statistics.cause.startswith("sink 'down': UnavailableError")
    down.error = None
    await receiving
    await driver.settled("0", claim.epoch)
    await driver.aclose()
    assert sorted(up.documents.values()) == sorted(down.documents.values())
    assert len(up.documents) == 3


async def test_equal_keys_of_two_sinks_do_not_wait_for_each_other_nor_replace_each_other():
    stores, one, other = Stores(), ByKey(), ByKey()
    driver, claim = await stores.start({"one": one, "other": other}, to("one", "other"))
    await driver.receive("0", claim.epoch, events(0))
    await driver.settled("0", claim.epoch)
    await driver.aclose()

    assert [[json.loads(text)["id"] for text in sink.documents.values()] for sink in (one, other)] == [
        ["d0"]
    ] * 2


async def test_an_event_with_a_rejected_record_is_one_dead_letter_and_its_other_records_are_written():
    stores, documents, table = Stores(), ByKey(), {}
    driver, claim = await stores.start(
        {"documents": documents, "rows": Rows(table, refused=[2])}, to("documents", "rows", "nowhere")
    )
    await driver.receive("0", claim.epoch, [*events(0, 1, to=["documents", "rows"]), *events(2)])
    await driver.receive("0", claim.epoch, events(3, to=["rows"]))
    await driver.settled("0", claim.epoch)
    await driver.aclose()

    [(number, rejection)] = await stores.letters()
    assert number == 2
    assert "record 2" in rejection.detail
    assert "record 1 for rows: the table" in rejection.detail
    assert (table["rows"], documents.numbers) == ([0, 1, 3], [0, 1, 2])


@pytest.mark.parametrize("body", [{"no row": True}, {"to": ["nowhere"]}])
async def test_no_mark_passes_an_event_whose_dead_letter_is_not_stored(body):
    stores, table = Stores(), {}
    stores.dead_letters.error = UnavailableError("down")
    put = stores.dead_letters.put

    async def refuse(*_, **__):
        raise UnavailableError("down")

    stores.dead_letters.put = refuse
    driver, claim = await stores.start({"rows": Rows(table), "documents": ByKey()}, to("rows"))
    await driver.receive("0", claim.epoch, [*events(0), *events(1, **body), *events(2)])
    await asyncio.sleep(30.0)
    assert table["rows"] == [0]

    stores.dead_letters.put = put
    await driver.settled("0", claim.epoch)
    await driver.aclose()
    assert table["rows"] == [0, 2]
    assert [number for number, _ in await stores.letters()] == [1]


async def test_killed_at_any_moment_no_sink_lacks_an_event_and_rows_are_there_once():
    for moment in range(0, 60, 3):
        stores, documents, table = Stores(), {}, {}
        for attempt in range(4):
            by_key = ByKey()
            by_key.documents = documents
            rows = Rows(table, refused=[4])
            driver, claim = await stores.start(
                {"documents": by_key, "rows": rows}, to("documents", "rows"), checkpoint_after=2
            )
            position = claim.checkpoint.sequence_number + 1 if claim.checkpoint else 0
            if attempt == 1:
                rows.error = OSError("down")  # for as long as this process lives
            feeding = asyncio.create_task(driver.receive("0", claim.epoch, events(*range(position, 9))))
            if attempt < 3:
                await asyncio.sleep(0.01 * moment)
            else:
                await feeding
                await driver.settled("0", claim.epoch)
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await driver.aclose()

        assert table["rows"] == [0, 1, 2, 3, 5, 6, 7, 8]
        assert {json.loads(text)["n"] for text in documents.values()} == {6, 7, 8}
        assert [number for number, _ in await stores.letters()] == [4]


async def test_a_zombie_is_fenced_by_the_sink_that_has_a_mark():
    stores, table = Stores(), {}
    old, first = await stores.start({"rows": Rows(table), "documents": ByKey()}, to("rows"), "old")
    await old.receive("0", first.epoch, events(0))
    await old.settled("0", first.epoch)
    new, second = await stores.start({"rows": Rows(table), "documents": ByKey()}, to("rows"), "new")

    await old.receive("0", first.epoch, events(1, 2))
    await new.receive("0", second.epoch, events(1, 2))
    with pytest.raises(FencedError):
        await old.settled("0", first.epoch)
    await new.settled("0", second.epoch)
    await old.aclose()
    await new.aclose()

    assert table["rows"] == [0, 1, 2]


async def test_stopped_in_order_and_started_with_other_sinks_a_new_sink_gets_what_is_not_settled_yet():
    stores, table = Stores(), {}
    driver, claim = await stores.start({"documents": ByKey(), "rows": Rows(table)}, to("documents", "rows"))
    await driver.receive("0", claim.epoch, events(0, 1))
    await driver.settled("0", claim.epoch)
    assert await driver.drain("0", claim.epoch, deadline=now() + 9.0)
    await driver.aclose()
    assert await stores.position() == 1

    added, documents = ByKey(), ByKey()
    driver, claim = await stores.start({"documents": documents, "added": added}, to("documents", "added"))
    await driver.receive("0", claim.epoch, events(0, 1, 2))
    await driver.settled("0", claim.epoch)
    await driver.aclose()

    assert (documents.numbers, added.numbers, table["rows"]) == ([2], [2], [0, 1])


async def test_errors_at_the_start_name_the_sink_and_an_open_sink_is_not_opened_twice():
    class Once(ByKey):
        opened = 0

        async def open(self):
            self.opened += 1
            return await super().open()

    class Late(ByKey):
        async def open(self):
            if self.error:
                raise self.error
            return await super().open()

    first, late = Once(), Late()
    late.error = UnavailableError("no answer", 3.0)
    sink = RoutedSink({"first": first, "late": late})
    with pytest.raises(UnavailableError, match="sink 'late': no answer") as raised:
        await sink.open()
    late.error = SettingsError("no such container")
    with pytest.raises(SettingsError, match="sink 'late'"):
        await sink.open()
    late.error = None
    await sink.open()

    assert (raised.value.retry_after, first.opened) == (3.0, 1)


async def test_a_dead_letter_that_is_dropped_by_now_is_written_nowhere_and_may_go():
    table = {}
    sink = RoutedSink({"rows": Rows(table), "documents": ByKey()})
    preparation = Preparation(sink.prepare, mapping=lambda event, documents: Dropped("stale"))
    replay = Replay(sink, await sink.open(), preparation)
    letter = DeadLetter("hub", "group", events(4)[0], Rejection("refused", ""), 1, 0.0)

    [result] = await replay.write([letter], deadline=now() + 5.0)

    assert (result.outcome, table) == (Outcome.WRITTEN, {})


async def test_a_sink_that_keeps_the_checkpoint_is_no_sink_among_others():
    class Transactional(ByKey):
        transactional = True

    with pytest.raises(SettingsError, match="sink 'sql' stores the consumer's checkpoint"):
        RoutedSink({"sql": Transactional(), "other": ByKey()})


async def test_a_sink_whose_partitions_cannot_be_read_keeps_those_it_had(caplog):
    class Moving(ByKey):
        async def routes(self):
            if self.error:
                raise self.error
            return Routes(("", "8"), ("b", "c"))

    still, moving = ByKey(), Moving()
    sink = RoutedSink({"still": still, "moving": moving})
    before = await sink.open()
    moving.error = UnavailableError("down")
    assert await sink.routes() == before
    moving.error = None

    assert (await sink.routes()).of_sinks["moving"].lanes == ("b", "c")
    assert "sink 'moving'" in caplog.text


@pytest.mark.parametrize(("named", "reason"), [("", None), ("documents", None), ("audit", "no_sink")])
def test_an_only_sink_does_not_get_what_is_for_another(named, reason):
    prepare = prepare_for_only("documents", MemorySink(MappingOptions("hub")).prepare)
    rejection = prepare(Write(events(1)[0], {"id": "a"}, sink=named)).rejection

    assert (rejection and rejection.reason) == reason


def test_the_claim_of_a_sink_with_a_mark_is_attached_and_detached():
    table = {}
    rows = Rows(table)
    sink = RoutedSink({"rows": rows, "documents": ByKey()})
    asyncio.run(sink.open())
    sink.attach(Claim("0", "me", 3))
    assert rows.attached == {"0": 3}
    sink.detach("0")
    assert rows.attached == {}


all_in_virtual_time(globals())


class Appended(Rows):
    """Rows that a replay wrote, apart from those of the stream."""

    async def open(self):
        return Routes(by_partition=True, appends=True)

    async def replay(self, records, *, deadline):
        if self.error == "silent":
            await asyncio.sleep(deadline - now())
            raise UnavailableError("no answer")
        if self.error:
            raise self.error
        self.table.setdefault("again", []).extend(record.index for record in records)
        return [WriteResult(Outcome.WRITTEN)] * len(records)


@pytest.mark.parametrize(
    ("bodies", "error", "outcome", "left"),
    [
        ("rdd", None, Outcome.WRITTEN, None),
        ("rbd", None, Outcome.REJECT, ["documents:1"]),
        ("Rdd", None, Outcome.REJECT, ["rows:0"]),
        ("rRd", None, Outcome.REJECT, ["rows:1"]),
        ("bbb", None, Outcome.REJECT, None),  # nothing is written: the letter stays as it is
        ("rdd", UnavailableError("down"), Outcome.RETRY, ["rows:0"]),
        ("rbd", UnavailableError("down"), Outcome.REJECT, ["documents:1", "rows:0"]),
        ("rdd", "silent", Outcome.RETRY, ["rows:0"]),
    ],
)
async def test_what_can_be_written_of_a_dead_letter_is_and_the_letter_names_what_is_left(
    bodies, error, outcome, left
):
    class Slow(ByKey):
        async def write(self, batch, *, deadline):
            async with asyncio.timeout_at(deadline):
                await asyncio.sleep(0.01)
            return await super().write(batch, deadline=deadline)

    table, documents = {}, Slow()
    rows = Appended(table)
    rows.error = error
    sink = RoutedSink({"rows": rows, "documents": documents})

    def mapping(event, _):
        made = []
        for index, kind in enumerate(bodies):
            document = {"id": f"{index}", "no row": kind == "R"}
            if kind == "b":
                document["id"] = None
            made.append(Write(event, document, index, sink="rows" if kind in "rR" else "documents"))
        return made

    replay = Replay(sink, await sink.open(), Preparation(sink.prepare, mapping=mapping))
    letter = DeadLetter("hub", "group", events(4)[0], Rejection("refused", ""), 1, 0.0)
    [result] = await replay.write([letter], deadline=now() + 0.1)

    assert result.outcome is outcome
    assert (sorted(result.left.records), result.left.of) == (left, 3) if left else result.left is None
    written = {f"rows:{n}" for n in table.get("again", [])} | {
        f"documents:{record}"
        for record in range(3)
        if any(f'"{record}"' in key for key in documents.documents)
    }
    names = {f"{'rows' if kind in 'rR' else 'documents'}:{n}" for n, kind in enumerate(bodies)}
    assert written == (names - set(left) if left else names if outcome is Outcome.WRITTEN else set())
    assert len(table.get("again", [])) == len(set(table.get("again", [])))
