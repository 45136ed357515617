"""Parked events, through a driver: stored, tried again, and in order where that is asked for."""

import asyncio
import itertools
import json
import time

import pytest
from msgspec import structs

from consumer.errors import UnreadableError
from consumer.mapping.documents import MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.model import (
    NOTHING_SETTLED,
    Checkpoint,
    DeadLetter,
    Event,
    Outcome,
    Rejection,
    Routes,
    Write,
    WriteResult,
)
from consumer.options import BacklogLimits, BatchLimits, ParkingRules, ParkOrder
from consumer.running.driver import Driver, DriverSettings
from consumer.sinks.routed import RoutedSink
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.virtual_time import all_in_virtual_time
from tidemark.foundation.errors import SettingsError, UnavailableError

RULES = ParkingRules(("status_404",), ("1m", "10m"), ParkOrder.KEY)


class Sink(MemorySink):
    """Rejects ids while they are in `missing`; notes the numbers that it writes, and when it was asked for what it rejects."""

    def __init__(self):
        super().__init__(MappingOptions("hub"))
        self.missing, self.written, self.asked, self.units = set(), [], [], 0.0

    async def write(self, batch, *, deadline):
        results = []
        for record in batch.records:
            document = json.loads(record.payload)
            if document["id"] in self.missing:
                self.asked.append(now())
                results.append(WriteResult(Outcome.REJECT, 404, "no parent", request_units=self.units))
            else:
                self.written.append(document["n"])
                self.documents[document["id"]] = document["n"]
                results.append(WriteResult(Outcome.WRITTEN, 200, request_units=self.units))
        return results


class World:
    """What outlives a driver."""

    def __init__(self, rules=RULES, **limits):
        self.rules, self.limits, self.sink = rules, limits, Sink()
        self.checkpoints = MemoryCheckpointStore(clock=lambda: 0.0)
        self.dead_letters, self.parked = MemoryDeadLetterStore(), MemoryDeadLetterStore()

    async def start(self, owner="me", **options):
        driver = Driver(
            DriverSettings(
                "hub",
                "group",
                BacklogLimits(**self.limits),
                BatchLimits(flush_after=0.1),
                self.rules,
                request_units=options.pop("request_units", None),
            ),
            options.pop("sink", self.sink),
            self.checkpoints,
            self.dead_letters,
            chance=lambda: 0.0,
            parked=self.parked,
            **options,
        )
        await driver.open()
        claim = await self.checkpoints.claim("0", owner, deadline=now() + 5.0)
        driver.claimed(claim)
        return driver, claim.epoch

    async def letters(self):
        return [
            (each.event.sequence_number, each.rejection.reason) async for each in self.dead_letters.list()
        ]

    async def numbers(self):
        return [each.event.sequence_number async for each in self.parked.list()]

    async def wait(self, seconds):
        """Virtual time does not move the clock that the store keeps; so parked events grow older here."""
        await asyncio.sleep(seconds)
        aged = [
            structs.replace(each, failed_at=each.failed_at - seconds) async for each in self.parked.list()
        ]
        await self.parked.put(aged, deadline=now() + 5.0)


def now():
    return asyncio.get_running_loop().time()


def events(*ids, first=0):
    return [
        Event("0", first + n, str(n), 0.0, json.dumps({"id": name, "n": first + n}).encode())
        for n, name in enumerate(ids)
    ]


async def test_a_parked_event_is_settled_and_written_when_its_cause_is_gone():
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a", "b"))
    await driver.settled("0", epoch)
    assert (await world.numbers(), world.sink.written) == ([0], [1])
    assert driver.statistics().partitions[0].parked == 1
    await asyncio.sleep(70.0)
    world.sink.missing = set()
    await asyncio.sleep(600.0)

    assert [round(at - world.sink.asked[0], -1) for at in world.sink.asked] == [0.0, 60.0]
    assert (world.sink.written, await world.numbers(), await world.letters()) == ([1, 0], [], [])
    totals = driver.statistics().totals
    assert (totals.parked, totals.written, totals.dead_letters) == (1, 2, 0)
    assert driver.statistics().partitions[0].parked == 0
    await driver.aclose()


async def test_after_the_last_delay_it_is_a_dead_letter():
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(800.0)

    assert (await world.letters(), await world.numbers()) == ([(0, "status_404")], [])
    assert len(world.sink.asked) == 3
    assert driver.statistics().totals.dead_letters == 1
    await driver.aclose()


async def test_an_event_whose_reason_is_not_named_is_a_dead_letter_at_once():
    world = World(ParkingRules(("status_409",)))
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    await driver.aclose()

    assert (await world.letters(), await world.numbers()) == ([(0, "status_404")], [])


@pytest.mark.parametrize(
    ("order", "written"), [(ParkOrder.KEY, [2, 0, 1, 3]), (ParkOrder.NONE, [1, 2, 3, 0])]
)
async def test_with_order_by_key_later_events_of_a_parked_key_follow_it(order, written):
    world = World(structs.replace(RULES, order=order))
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    world.sink.missing = set()
    await driver.receive("0", epoch, events("a", "b", "a", first=1))
    await driver.settled("0", epoch)
    await asyncio.sleep(70.0)
    await driver.aclose()

    assert world.sink.written == written
    assert await world.numbers() == []


async def test_what_waits_for_the_key_of_an_event_that_is_parked_is_parked_behind_it():
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a", "a", "a"))
    await driver.settled("0", epoch)
    assert (await world.numbers(), len(world.sink.asked)) == ([0, 1, 2], 1)
    world.sink.missing = set()
    await asyncio.sleep(70.0)
    await driver.receive("0", epoch, events("a", first=3))
    await driver.settled("0", epoch)
    await driver.aclose()

    assert world.sink.written == [0, 1, 2, 3]


async def test_killed_at_any_moment_no_parked_event_is_lost_and_order_holds():
    for moment in range(0, 80, 4):
        world = World(structs.replace(RULES, delays=("1s", "2s", "1h")))
        world.sink.missing = {"a"}
        for attempt in range(4):
            driver, epoch = await world.start(f"owner {attempt}")
            stored = (await world.checkpoints.load_all(deadline=now() + 5.0)).get("0")
            position = stored.sequence_number + 1 if stored else 0
            feeding = asyncio.create_task(
                driver.receive("0", epoch, events(*"abacab"[position:], first=position))
            )
            if attempt == 2:
                world.sink.missing = set()
            if attempt < 3:
                await world.wait(0.05 * moment)
            else:
                await feeding
                await driver.settled("0", epoch)
                await asyncio.sleep(4000.0)
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await driver.aclose()

        assert world.sink.documents == {"a": 4, "b": 5, "c": 3}, moment
        assert (await world.numbers(), await world.letters()) == ([], [])
        # Each process writes in order what no checkpoint covered.
        of_a = [number for number in world.sink.written if number in {0, 2, 4}]
        assert sum(later < earlier for earlier, later in itertools.pairwise(of_a)) <= 3, moment


async def test_a_successor_writes_what_is_parked_and_the_owner_before_does_not_bring_it_back():
    world = World()
    world.sink.missing = {"a"}
    old, epoch = await world.start("old")
    await old.receive("0", epoch, events("a"))
    await old.settled("0", epoch)
    [parked] = [each async for each in world.parked.list()]
    await world.parked.put([structs.replace(parked, failed_at=time.time() - 61.0)], deadline=now() + 5.0)
    world.sink.missing = set()
    new, second = await world.start("new")  # the old one does not know yet
    await new.receive("0", second, events("a", first=1))
    await new.settled("0", second)
    await asyncio.sleep(1.0)
    assert world.sink.written == [0, 1]
    await asyncio.sleep(700.0)
    await old.aclose()
    await new.aclose()

    assert (world.sink.written, await world.numbers()) == ([0, 1], [])


class Late(Sink):
    """Rejects when it is let, as the sink of an instance that was frozen."""

    def __init__(self):
        super().__init__()
        self.missing, self.let = {"a"}, asyncio.Event()

    async def write(self, batch, *, deadline):
        await self.let.wait()
        return await super().write(batch, deadline=deadline)


@pytest.mark.parametrize("order", list(ParkOrder))
async def test_an_owner_of_before_parks_nothing_that_a_later_owner_would_write_over_what_is_newer(order):
    world = World(structs.replace(RULES, order=order))
    frozen = Late()
    at = await world.checkpoints.claim("0", "first", deadline=now() + 5.0)
    await world.checkpoints.save(at, Checkpoint("0", NOTHING_SETTLED, ""), deadline=now() + 5.0)
    old, epoch = await world.start("old", sink=frozen)
    first, later = events("a", "a")
    await old.receive("0", epoch, [first])
    await asyncio.sleep(1.0)
    new, second = await world.start("new")
    await new.receive("0", second, [first, later])
    await new.settled("0", second)
    frozen.let.set()
    await asyncio.sleep(5.0)
    await new.aclose()  # long before it lists again what is parked
    third, _ = await world.start("third")
    await asyncio.sleep(70.0)
    await third.aclose()
    await old.aclose()

    assert (world.sink.written, await world.numbers(), await world.letters()) == ([0, 1], [], [])


async def late_park(world, record, epoch):
    """An owner of before parks an event under its claim, when its successor has written it long ago."""
    letter = DeadLetter(
        *("hub", "group~parked", record, Rejection("status_404", "no parent"), 1, time.time() - 61.0),
        epoch=epoch,
    )
    await world.parked.put([letter], deadline=now() + 5.0)


@pytest.mark.parametrize("order", list(ParkOrder))
@pytest.mark.parametrize("epoch", [1, 0])  # 0: of an older version, which says nothing
async def test_what_an_owner_of_before_parks_too_late_is_removed_and_not_written_over_what_is_newer(
    order, epoch
):
    world = World(structs.replace(RULES, order=order))
    await world.checkpoints.claim("0", "old", deadline=now() + 5.0)
    new, second = await world.start("new")
    first, later = events("a", "a")
    await new.receive("0", second, [first, later])
    await new.settled("0", second)
    await late_park(world, first, epoch)
    await asyncio.sleep(700.0)
    await new.aclose()

    assert world.sink.written == ([0, 1] if epoch else [0, 1, 0])
    assert await world.numbers() == []


async def test_what_was_parked_before_the_claim_is_written_even_if_a_list_showed_it_late():
    world = World()
    [event] = events("a")
    old = await world.checkpoints.claim("0", "old", deadline=now() + 5.0)
    await world.checkpoints.save(old, Checkpoint("0", 0, "0"), deadline=now() + 5.0)
    new, _ = await world.start("new")
    await asyncio.sleep(1.0)
    await late_park(world, event, 1)
    await asyncio.sleep(700.0)
    await new.aclose()

    assert world.sink.written == [0]


async def test_when_epochs_begin_anew_because_checkpoints_were_deleted_what_is_parked_goes_on():
    world = World(structs.replace(RULES, order=ParkOrder.NONE))
    world.sink = OneOfTwo()
    driver, epoch = await world.start(preparation=Preparation(world.sink.prepare, mapping=twice))
    [event] = events("a")
    await driver.receive("0", epoch, [event])
    await asyncio.sleep(5.0)
    await driver.aclose()
    parked = [structs.replace(each, epoch=7) async for each in world.parked.list()]
    await world.parked.put(parked, deadline=now() + 5.0)
    world.checkpoints = MemoryCheckpointStore(clock=lambda: 0.0)
    world.sink.answers = [Outcome.REJECT] * 2
    driver, epoch = await world.start(preparation=Preparation(world.sink.prepare, mapping=twice))
    await driver.receive("0", epoch, [event])
    await driver.settled("0", epoch)
    [letter] = [each async for each in world.parked.list()]
    assert (epoch, letter.epoch, letter.records) == (1, 7, ("0", "1"))
    world.sink.answers = [Outcome.WRITTEN] * 2
    await asyncio.sleep(80.0)
    await driver.aclose()

    assert (sorted(world.sink.indices), await world.numbers()) == ([0, 1], [])


async def test_what_a_later_owner_parked_stays_when_one_of_before_ends_its_own():
    world = World(structs.replace(RULES, order=ParkOrder.NONE))
    world.sink.missing = {"a"}
    old, epoch = await world.start("old")
    [event] = events("a")
    await old.receive("0", epoch, [event])
    await old.settled("0", epoch)
    world.sink.missing = set()
    await late_park(world, event, epoch + 1)
    await asyncio.sleep(70.0)
    await old.aclose()

    assert (world.sink.written, await world.numbers()) == ([0], [0])


@pytest.mark.parametrize("order", list(ParkOrder))
async def test_a_parked_event_that_comes_again_after_a_kill_is_not_written_twice_over_a_later_one(order):
    world = World(structs.replace(RULES, order=order))
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    await driver.aclose()  # before its checkpoint is saved
    assert await world.numbers() == [0]
    world.sink.missing = set()
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    assert world.sink.written == []
    await asyncio.sleep(70.0)
    await driver.receive("0", epoch, events("a", first=1))
    await driver.settled("0", epoch)
    await asyncio.sleep(700.0)
    await driver.aclose()

    assert (world.sink.written, await world.numbers()) == ([0, 1], [])


async def test_what_a_killed_owner_parked_is_written_after_the_earlier_events_that_come_again():
    world = World()
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a", "a"))
    await driver.settled("0", epoch)
    world.sink.missing = {"a"}
    await driver.receive("0", epoch, events("a", first=2))
    await driver.settled("0", epoch)
    await driver.aclose()
    world.sink.missing = set()
    await world.wait(70.0)
    driver, epoch = await world.start("another")
    await asyncio.sleep(10.0)  # it is due, and nothing was received again yet
    await driver.receive("0", epoch, events("a", "a", "a", "b"))
    await asyncio.sleep(10.0)

    assert [n for n in world.sink.written if n != 3] == [0, 1, 0, 1, 2]
    assert (world.sink.documents["a"], await world.numbers()) == (2, [])
    await driver.aclose()


async def test_what_waits_before_events_that_a_killed_owner_parked_may_be_parked_beyond_the_limit():
    """Else it waits for room, and what takes the room waits for it."""
    world = World(structs.replace(RULES, most=1))
    world.sink.missing = {"a", "b"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("b", first=2))
    await driver.settled("0", epoch)
    await driver.aclose()
    driver, epoch = await world.start("another")
    await driver.receive("0", epoch, events("a", "a", "b"))
    await asyncio.sleep(10.0)
    assert driver.statistics().partitions[0].parked == 3
    world.sink.missing = set()
    await asyncio.sleep(100.0)

    assert (world.sink.documents, await world.numbers()) == ({"a": 1, "b": 2}, [])
    await driver.aclose()


async def test_what_a_killed_owner_parked_is_written_although_the_hub_does_not_have_it_any_more():
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a", first=2))
    await driver.settled("0", epoch)
    await driver.aclose()
    world.sink.missing = set()
    driver, epoch = await world.start("another")
    await asyncio.sleep(1300.0)

    assert (world.sink.documents, await world.numbers()) == ({"a": 2}, [])
    await driver.aclose()


async def test_a_partition_waits_with_as_many_parked_events_as_it_may_have_and_says_so():
    world = World(structs.replace(RULES, most=2, order=ParkOrder.NONE), high_count=5)
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    receiving = asyncio.create_task(driver.receive("0", epoch, events(*"aaaaaaaa")))
    await asyncio.sleep(30.0)
    assert await world.numbers() == [0, 1]
    assert (
        driver.statistics().cause == "partition 0 has 2 parked events, as many as CONSUMER_PARK_MOST allows"
    )
    assert not receiving.done()
    world.sink.missing = set()
    await asyncio.sleep(200.0)
    await receiving
    await asyncio.sleep(600.0)
    await driver.aclose()

    assert sorted(world.sink.written) == list(range(8))


async def test_nothing_is_received_before_the_parked_events_of_a_claim_are_known():
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    await driver.aclose()
    world.sink.missing = set()
    list_, tries = world.parked.list, []

    def refuse(**options):
        tries.append(now())
        if len(tries) < 3:
            raise UnavailableError("down")
        return list_(**options)

    world.parked.list = refuse
    driver, epoch = await world.start()
    receiving = asyncio.create_task(driver.receive("0", epoch, events("a", first=1)))
    await asyncio.sleep(15.0)
    assert (world.sink.written, receiving.done()) == ([], False)
    await asyncio.sleep(100.0)
    await driver.aclose()

    assert world.sink.written == [0, 1]


async def test_of_an_event_of_several_records_only_those_that_were_rejected_are_written_again():
    world = World()

    def two(event, documents):
        return [Write(event, {**documents[0], "id": name}, index) for index, name in enumerate(("x", "a"))]

    world.sink.missing = {"a"}
    preparation = Preparation(world.sink.prepare, mapping=two)
    driver, epoch = await world.start(preparation=preparation)
    await driver.receive("0", epoch, events("-"))
    await driver.settled("0", epoch)
    await driver.aclose()
    world.sink.missing = set()
    await world.wait(61.0)
    driver, epoch = await world.start(preparation=preparation)
    await driver.receive("0", epoch, events("-"))
    await asyncio.sleep(3.0)
    await driver.aclose()

    assert world.sink.written == [0, 0, 0]  # what was written is so again: no checkpoint was saved
    assert world.sink.documents == {"x": 0, "a": 0}


class OneOfTwo(Sink):
    """Of two records of one document: how the first and the second are answered, and what was written of them."""

    def __init__(self):
        super().__init__()
        self.answers, self.indices, self.takes = [Outcome.REJECT, Outcome.RETRY], [], 0.0
        self.status = 404

    async def write(self, batch, *, deadline):
        results = []
        for record in batch.records:
            outcome = self.answers[record.index]
            if outcome is Outcome.WRITTEN:
                await asyncio.sleep(self.takes)
                self.indices.append(record.index)
            results.append(WriteResult(outcome, self.status, "no parent"))
        return results


def apart(event, documents):
    return [Write(event, {**documents[0], "id": name}, index) for index, name in enumerate("xy")]


def twice(event, documents):
    return [Write(event, documents[0], index) for index in range(2)]


@pytest.mark.parametrize("is_missing", [False, True])
async def test_without_the_setting_what_is_parked_is_tried_when_it_is_due_and_nothing_else_is_parked(
    is_missing, caplog
):
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    await driver.aclose()
    world.rules = ParkingRules()
    await world.wait(61.0)
    world.sink.missing = {"a", "b"} if is_missing else {"b"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a", "b"))
    await driver.settled("0", epoch)
    await asyncio.sleep(5.0)
    await driver.aclose()

    letters = [(0, "status_404"), (1, "status_404")]
    assert (await world.numbers(), await world.letters()) == ([], letters if is_missing else letters[1:])
    assert world.sink.written == ([] if is_missing else [0])
    assert "CONSUMER_PARK is not set, but events are parked" in caplog.text


async def test_what_parked_events_are_charged_is_paid_back_from_the_budget_of_request_units():
    world = World()
    world.sink.missing, world.sink.units = {"a"}, 50.0
    driver, epoch = await world.start(request_units=10.0)
    await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(60.5)
    assert len(world.sink.asked) == 2
    await driver.receive("0", epoch, events("b", first=1))
    await asyncio.sleep(3.0)
    assert world.sink.written == []
    await asyncio.sleep(10.0)
    assert world.sink.written == [1]
    assert driver.statistics().totals.request_units == 150.0
    await driver.aclose()


async def test_of_two_records_of_one_document_the_one_that_was_not_parked_is_written_after_a_kill():
    world = World(structs.replace(RULES, order=ParkOrder.NONE))
    world.sink = OneOfTwo()
    preparation = Preparation(world.sink.prepare, mapping=twice)
    driver, epoch = await world.start(preparation=preparation)
    await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(5.0)
    assert await world.numbers() == [0]
    await driver.aclose()
    world.sink.answers = [Outcome.WRITTEN] * 2
    driver, epoch = await world.start(preparation=preparation)
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    assert world.sink.indices == [1]
    await asyncio.sleep(70.0)
    await driver.aclose()

    assert (world.sink.indices, await world.numbers()) == ([1, 0], [])


async def test_a_second_record_that_is_parked_while_the_first_is_tried_again_is_not_lost():
    world = World(structs.replace(RULES, order=ParkOrder.NONE))
    world.sink = OneOfTwo()
    driver, epoch = await world.start(preparation=Preparation(world.sink.prepare, mapping=twice))
    await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(5.0)
    assert await world.numbers() == [0]
    world.sink.answers[0], world.sink.takes = Outcome.WRITTEN, 20.0
    await asyncio.sleep(56.0)
    world.sink.answers[1] = Outcome.REJECT  # while the first one is written
    await driver.settled("0", epoch)
    assert driver.statistics().partitions[0].parked == 1
    world.sink.answers[1] = Outcome.WRITTEN
    await asyncio.sleep(120.0)
    statistics = driver.statistics()
    await driver.aclose()

    assert (sorted(set(world.sink.indices)), await world.numbers()) == ([0, 1], [])
    assert statistics.partitions[0].parked == 0


@pytest.mark.parametrize("call", ["get", "delete", "write"])
async def test_a_call_that_never_ends_holds_up_one_attempt_and_no_other(call):
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    world.sink.missing = set()
    of = world.sink if call == "write" else world.parked
    real = getattr(of, call)

    async def hangs(*arguments, **options):
        setattr(of, call, real)
        await asyncio.Event().wait()

    setattr(of, call, hangs)
    await asyncio.sleep(240.0)

    assert (set(world.sink.written), await world.numbers()) == ({0}, [])
    await driver.aclose()


async def test_parked_events_are_known_after_a_list_that_failed_in_the_middle():
    world = World(structs.replace(RULES, order=ParkOrder.NONE))
    world.sink.missing = {"a", "b"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a", "b"))
    await driver.settled("0", epoch)
    await driver.aclose()  # before its checkpoint is saved
    list_, tries = world.parked.list, []

    async def breaks(**options):
        tries.append(now())
        async for each in list_(**options):
            yield each
            if len(tries) == 1:
                raise UnavailableError("down")

    world.parked.list, world.sink.missing = breaks, set()
    driver, epoch = await world.start()
    receiving = asyncio.create_task(driver.receive("0", epoch, events("a", "b")))
    await asyncio.sleep(15.0)
    await receiving
    assert (world.sink.written, driver.statistics().partitions[0].parked) == ([], 2)
    await asyncio.sleep(70.0)
    await driver.aclose()

    assert (sorted(world.sink.written), await world.numbers()) == ([0, 1], [])


async def test_a_record_that_is_parked_in_a_stop_takes_nothing_from_those_of_its_event_that_are_parked_already():
    def two(event, documents):
        return [Write(event, {**documents[0], "id": name}, index) for index, name in enumerate(("x", "a"))]

    world = World()
    world.sink = OneOfTwo()  # the second one is tried again
    preparation = Preparation(world.sink.prepare, mapping=two)
    driver, epoch = await world.start(preparation=preparation)
    await driver.receive("0", epoch, events("-"))
    await asyncio.sleep(1.0)
    assert await world.numbers() == [0]
    world.sink.answers = [Outcome.REJECT] * 2
    assert await driver.drain("0", epoch, deadline=now() + 60.0)
    await driver.aclose()
    world.sink.answers = [Outcome.WRITTEN] * 2
    await world.wait(61.0)
    driver, epoch = await world.start(preparation=preparation)
    await asyncio.sleep(10.0)
    await driver.aclose()

    assert (sorted(world.sink.indices), await world.numbers()) == ([0, 1], [])


@pytest.mark.parametrize(("passes", "written"), [(True, [0, 1]), (False, [1])])
async def test_of_one_event_a_record_is_written_after_an_earlier_one_of_its_key_that_is_parked(
    passes, written
):
    world = World()
    world.sink = OneOfTwo()
    world.sink.answers = [Outcome.REJECT, Outcome.WRITTEN]
    driver, epoch = await world.start(preparation=Preparation(world.sink.prepare, mapping=twice))
    await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(100.0)
    assert world.sink.indices == []
    world.sink.answers[0] = Outcome.WRITTEN if passes else Outcome.REJECT
    await asyncio.sleep(800.0)
    await driver.aclose()

    assert (world.sink.indices, await world.numbers()) == (written, [])
    assert [each.records async for each in world.dead_letters.list()] == ([] if passes else [("0",)])


async def test_a_record_behind_one_whose_dead_letter_could_not_be_stored_at_once_is_written_all_the_same():
    class Failing(MemoryDeadLetterStore):
        left = 1

        async def put(self, dead_letters, *, deadline):
            self.left -= 1
            if self.left == 0:
                raise UnavailableError("no answer")
            await super().put(dead_letters, deadline=deadline)

    world = World()
    world.sink, world.dead_letters = OneOfTwo(), Failing()
    world.sink.answers = [Outcome.REJECT, Outcome.WRITTEN]
    driver, epoch = await world.start(preparation=Preparation(world.sink.prepare, mapping=twice))
    await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(900.0)
    await driver.aclose()

    assert (world.sink.indices, await world.numbers()) == ([1], [])
    assert [each.records async for each in world.dead_letters.list()] == [("0",)]


async def test_a_dead_letter_that_arrives_late_takes_no_record_from_that_of_a_later_owner():
    class Late(MemoryDeadLetterStore):
        """The first request is on its way for long."""

        late = ()

        async def put(self, dead_letters, *, deadline):
            if not self.late:
                self.late = dead_letters
                await asyncio.Event().wait()
            await super().put(dead_letters, deadline=deadline)

    world = World(ParkingRules())
    world.sink, world.dead_letters = OneOfTwo(), Late()
    preparation = Preparation(world.sink.prepare, mapping=apart)
    driver, epoch = await world.start(preparation=preparation)
    await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(5.0)
    await driver.aclose()
    world.sink.answers[1] = Outcome.REJECT
    driver, epoch = await world.start("other", preparation=preparation)
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    await driver.aclose()
    await world.dead_letters.put(world.dead_letters.late, deadline=now() + 5.0)

    assert [each.records for each in world.dead_letters.late] == [("0",)]
    assert [each.records async for each in world.dead_letters.list()] == [("0", "1")]


async def test_without_checkpoints_a_dead_letter_of_several_records_replaces_one_of_a_higher_epoch():
    world = World(ParkingRules())
    world.sink = OneOfTwo()
    world.sink.answers = [Outcome.REJECT, Outcome.REJECT]
    [event] = events("a")
    letter = DeadLetter("hub", "group", event, Rejection("status_404", "no parent"), 1, 0.0, ("0",), 2, 57)
    await world.dead_letters.put([letter], deadline=now() + 5.0)
    driver, epoch = await world.start(preparation=Preparation(world.sink.prepare, mapping=apart))
    await driver.receive("0", epoch, [event])
    await driver.settled("0", epoch)
    await driver.aclose()

    assert [each.records async for each in world.dead_letters.list()] == [("0", "1")]


async def test_a_parked_record_whose_last_attempt_fails_joins_the_dead_letter_of_its_event():
    class Refusing(OneOfTwo):
        async def write(self, batch, *, deadline):
            return [
                WriteResult(Outcome.REJECT, 404 if record.index else 400, "refused")
                for record in batch.records
            ]

    world = World(structs.replace(RULES, order=ParkOrder.NONE))
    world.sink = Refusing()
    driver, epoch = await world.start(preparation=Preparation(world.sink.prepare, mapping=twice))
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    [early] = [each async for each in world.dead_letters.list()]
    await asyncio.sleep(800.0)
    await driver.aclose()
    [letter] = [each async for each in world.dead_letters.list()]

    assert (early.records, early.of) == (("0",), 2)
    assert (letter.records, letter.of, letter.epoch) == (("0", "1"), 2, epoch)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_the_dead_letter_of_a_record_keeps_one_of_its_event_that_was_parked_and_is_a_dead_letter(
    is_killed,
):
    world = World(structs.replace(RULES, delays=("1m",), order=ParkOrder.NONE))
    world.sink = OneOfTwo()  # the second one is tried again
    preparation = Preparation(world.sink.prepare, mapping=twice)
    driver, epoch = await world.start(preparation=preparation)
    await driver.receive("0", epoch, events("a"))
    if is_killed:
        await asyncio.sleep(5.0)
        await driver.aclose()
        driver, epoch = await world.start(preparation=preparation)
        await driver.receive("0", epoch, events("a"))
    await asyncio.sleep(100.0)
    assert [each.records async for each in world.dead_letters.list()] == [("0",)]
    world.sink.answers[1] = Outcome.REJECT
    world.sink.status = 400
    await driver.settled("0", epoch)
    await driver.aclose()

    assert [each.records async for each in world.dead_letters.list()] == [("0", "1")]


async def test_after_a_change_of_the_settings_a_record_that_was_written_is_not_written_with_the_next_attempt():
    world = World(structs.replace(RULES, order=ParkOrder.NONE))
    world.sink = OneOfTwo()
    world.sink.answers = [Outcome.WRITTEN, Outcome.REJECT, Outcome.WRITTEN]
    [event] = events("a")
    letter = DeadLetter(
        *("hub", "group~parked", event, Rejection("status_404", "no parent"), 1, time.time() - 61.0),
        *(("1",), 2),
    )
    await world.parked.put([letter], deadline=now() + 5.0)
    thrice = lambda event, documents: [Write(event, documents[0], index) for index in range(3)]
    driver, _ = await world.start(preparation=Preparation(world.sink.prepare, mapping=thrice))
    await asyncio.sleep(5.0)
    assert world.sink.indices == [0, 2]
    world.sink.answers = [Outcome.WRITTEN] * 3
    await asyncio.sleep(700.0)
    await driver.aclose()

    assert (world.sink.indices, await world.numbers()) == ([0, 2, 1], [])


async def test_what_an_operator_removed_is_noticed_with_the_next_list_long_before_it_is_due():
    world = World(structs.replace(RULES, delays=("5h",)))
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a", "a"))
    await driver.settled("0", epoch)
    await world.parked.delete([each.id for each in [each async for each in world.parked.list()]])
    world.sink.missing = set()
    await asyncio.sleep(700.0)
    await driver.receive("0", epoch, events("a", first=2))
    await driver.settled("0", epoch)
    parked = driver.statistics().partitions[0].parked
    await driver.aclose()

    assert (world.sink.written, parked) == ([2], 0)


async def test_what_an_older_version_parked_names_its_records_in_the_detail():
    world = World()
    [event] = events("-")
    letter = DeadLetter(
        "hub", "group~parked", event, Rejection("status_404", "no parent [records 1]"), 1, time.time() - 61.0
    )
    await world.parked.put([letter], deadline=now() + 5.0)
    world.sink = OneOfTwo()
    world.sink.answers = [Outcome.WRITTEN] * 2
    world.rules = structs.replace(RULES, order=ParkOrder.NONE)
    driver, _ = await world.start(preparation=Preparation(world.sink.prepare, mapping=twice))
    await asyncio.sleep(5.0)
    await driver.aclose()

    assert (world.sink.indices, await world.numbers()) == ([1], [])


@pytest.mark.parametrize("several", [False, True])
async def test_where_all_sinks_write_in_the_order_of_partitions_parking_is_refused(several):
    class Ordered(Sink):
        async def open(self):
            return Routes(by_partition=True)

    sink = RoutedSink({"a": Ordered(), "b": Ordered()}) if several else Ordered()
    with pytest.raises(SettingsError, match=r"CONSUMER_PARK is set.*\. Unset CONSUMER_PARK: "):
        await World().start(sink=sink)


async def test_what_is_left_parked_for_sinks_that_cannot_try_it_is_named_with_the_way_on(caplog):
    class Ordered(Sink):
        async def open(self):
            return Routes(by_partition=True)

        def attach(self, claim):
            pass

    world = World(ParkingRules())
    await late_park(world, *events("a"), 1)
    driver, _ = await world.start(sink=Ordered())
    await driver.aclose()

    assert "`tidemark dead-letters replay --parked`" in caplog.text
    assert await world.numbers() == [0]


@pytest.mark.parametrize(
    ("rules", "problem"),
    [(ParkingRules(("x",), ("soon",)), "CONSUMER_PARK_DELAYS: found 'soon'"), (RULES, "")],
)
def test_a_delay_that_is_no_duration_is_refused(rules, problem):
    assert "".join(rules.problems(ordered=False)).startswith(problem)


class Damaged(MemoryDeadLetterStore):
    """Cannot read one of its documents, as BlobDeadLetterStore, until it is repaired."""

    is_repaired = False

    async def list(self, *, partition=None, reason=None):
        async for each in super().list(partition=partition, reason=reason):
            if not self.is_repaired:
                raise UnreadableError(f"blob 'dead/0/7.json' is no parked event: purge '{each.id}'")
            yield each


@pytest.mark.parametrize("rules", [RULES, ParkingRules()], ids=["set", "no longer set"])
async def test_what_a_damaged_parked_event_holds_up_is_told_with_its_name_until_it_is_repaired(rules):
    world = World(rules)
    world.parked = Damaged()
    await world.parked.put([parked_letter(7)], deadline=now() + 5.0)
    driver, epoch = await world.start()
    receiving = asyncio.create_task(driver.receive("0", epoch, events("b", first=8)))
    await asyncio.sleep(60.0)

    [partition] = driver.statistics().partitions
    assert partition.problem.startswith(
        "it waits for its parked events: blob 'dead/0/7.json' is no parked event"
    )
    assert not receiving.done()
    world.parked.is_repaired = True
    await asyncio.sleep(60.0)
    assert (receiving.done(), driver.statistics().partitions[0].problem) == (True, "")
    await driver.aclose()


async def test_that_a_parked_event_cannot_be_read_any_more_when_it_is_due_is_told():
    world = World()
    world.sink.missing = {"a"}
    driver, epoch = await world.start()
    await driver.receive("0", epoch, events("a"))
    await driver.settled("0", epoch)
    get, world.parked.get = world.parked.get, damaged
    await asyncio.sleep(75.0)

    assert driver.statistics().partitions[0].problem == "its parked events wait: it is damaged"
    world.parked.get, world.sink.missing = get, set()
    await asyncio.sleep(30.0)
    assert (driver.statistics().partitions[0].problem, world.sink.written) == ("", [0])
    await driver.aclose()


async def damaged(_):
    raise UnreadableError("it is damaged")


def parked_letter(number):
    [event] = events("a", first=number)
    return DeadLetter("hub", "group~parked", event, Rejection("status_404", ""), 1, time.time(), epoch=1)


all_in_virtual_time(globals())
