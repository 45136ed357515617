"""The driver alone: a sink and stores that answer when the test says, in virtual time."""

import asyncio
import itertools

import pytest
from hypothesis import given

from consumer.errors import FencedError
from consumer.mapping.documents import MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.model import Claim, Event, Outcome, Record, Rejection, Routes, WriteResult
from consumer.options import BacklogLimits, BatchLimits, DriverSettings
from consumer.running.driver import PREPARED_BYTES, Driver
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.failures import exceptions
from tests.support.virtual_time import all_in_virtual_time, in_virtual_time
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.pacing.retry_delay import LEAST_DELAY

WRITTEN = WriteResult(Outcome.WRITTEN, 200)


class Sink(MemorySink):
    """Writes when `gate` is open, raises `error`, or gives `answer`."""

    def __init__(self):
        super().__init__(MappingOptions("hub"))
        self.gate = asyncio.Event()
        self.gate.set()
        self.error = self.answer = None
        self.prepared = []

    def prepare(self, write):
        self.prepared.append(write.event)
        return super().prepare(write)

    async def write(self, batch, *, deadline):
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            return [self.answer] * len(batch.records)
        return await super().write(batch, deadline=deadline)


class Transactional(Sink):
    """Keeps what is attached."""

    transactional = True

    def __init__(self):
        super().__init__()
        self.attached = {}

    async def open(self):
        return Routes(by_partition=True)

    def prepare(self, write):
        event = write.event
        return Record(event, f"{event.partition}~{event.sequence_number}")

    def attach(self, claim):
        self.attached[claim.partition] = claim.epoch

    def detach(self, partition):
        self.attached.pop(partition, None)


class Checkpoints(MemoryCheckpointStore):
    def __init__(self):
        super().__init__(clock=lambda: 0.0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.error = None
        self.calls = 0

    async def save(self, claim, checkpoint, *, deadline):
        self.calls += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        await super().save(claim, checkpoint, deadline=deadline)


async def opened(sink=None, checkpoints=None, **settings):
    extras = ("on_claim", "on_checkpoint", "on_fenced", "preparation")
    callbacks = {name: settings.pop(name) for name in extras if name in settings}
    settings = {"batches": BatchLimits(flush_after=0.1), **settings}
    driver = Driver(
        DriverSettings("hub", "group", **settings),
        sink or Sink(),
        checkpoints or Checkpoints(),
        MemoryDeadLetterStore(),
        **callbacks,
        chance=lambda: 0.0,
    )
    await driver.open()
    return driver


async def claimed(*ports, **settings):
    driver = await opened(*ports, **settings)
    driver.claimed(Claim("0", "me", 1))
    return driver


async def test_each_claim_is_reported():
    reported = []
    await claimed(on_claim=reported.append)

    assert reported == [Claim("0", "me", 1)]


def events(*numbers, partition="0", size=2):
    return [Event(partition, n, str(n), 0.0, b'{"id":"%d"%s}' % (n, b" " * size)) for n in numbers]


def now():
    return asyncio.get_running_loop().time()


async def test_a_drain_whose_claim_is_lost_meanwhile_is_no_drain():
    sink = Sink()
    driver = await claimed(sink)
    await driver.receive("0", 1, events(0))
    sink.gate.clear()
    await asyncio.sleep(1.0)
    draining = asyncio.create_task(driver.drain("0", 1, deadline=now() + 20.0))
    await asyncio.sleep(1.0)
    driver.lost("0", 1)

    assert await draining is False
    assert await driver.drain("0", 1, deadline=now() + 20.0) is False
    await driver.aclose()
    assert now() < 1003.0  # nobody waited for a claim that is over


async def test_a_drain_is_over_when_the_checkpoint_is_saved_and_waits_out_a_store_that_is_away():
    checkpoints = Checkpoints()
    claim = await checkpoints.claim("0", "me", deadline=0)
    driver = await opened(checkpoints=checkpoints)
    driver.claimed(claim)
    await driver.receive("0", 1, events(0, 1))
    await driver.settled("0", 1)
    checkpoints.error = UnavailableError("away")
    draining = asyncio.create_task(driver.drain("0", 1, deadline=now() + 20.0))
    await asyncio.sleep(5.2)
    assert checkpoints.calls <= 11  # twice a second
    checkpoints.error = None

    assert await draining is True
    assert (await checkpoints.load_all(deadline=0))["0"].sequence_number == 1
    await driver.aclose()


async def test_the_end_of_an_older_claim_leaves_the_later_one_attached():
    sink = Transactional()
    driver = await claimed(sink)
    driver.claimed(Claim("0", "me", 2))
    driver.claimed(Claim("0", "me", 1))
    driver.lost("0", 1)
    assert sink.attached == {"0": 2}

    driver.lost("0", 2)
    assert sink.attached == {}
    await driver.aclose()


async def test_a_refusal_of_an_older_claim_does_not_end_the_later_one():
    checkpoints, told = Checkpoints(), []
    first = await checkpoints.claim("0", "me", deadline=0)
    driver = await opened(checkpoints=checkpoints, on_fenced=lambda *which: told.append(which))
    driver.claimed(first)
    await driver.receive("0", 1, events(0))
    checkpoints.gate.clear()
    await asyncio.sleep(6.0)
    assert checkpoints.calls == 1
    driver.claimed(await checkpoints.claim("0", "me", deadline=0))
    checkpoints.gate.set()
    await driver.receive("0", 2, events(0))
    await driver.settled("0", 2)

    assert told == []
    await driver.aclose()


async def test_a_refused_write_of_an_older_claim_does_not_end_the_later_one():
    sink, told = Transactional(), []
    driver = await claimed(sink, on_fenced=lambda *which: told.append(which))
    await driver.receive("0", 1, events(0))
    sink.gate.clear()
    await asyncio.sleep(1.0)
    driver.claimed(Claim("0", "me", 2))
    sink.error = FencedError("of the first claim")
    sink.gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sink.error = None
    await driver.receive("0", 2, events(0))
    await driver.settled("0", 2)

    assert told == []
    await driver.aclose()


async def test_a_fenced_claim_is_told_once_and_whoever_waits_for_it_learns_of_it():
    sink, told = Transactional(), []
    driver = await opened(sink, on_fenced=lambda *which: told.append(which))
    driver.claimed(Claim("0", "me", 7))
    sink.error = FencedError("somebody else's")
    await driver.receive("0", 7, events(0))

    with pytest.raises(FencedError):
        await driver.settled("0", 7)
    await asyncio.sleep(30.0)
    assert told == [("0", 7)]
    assert sink.attached == {}
    await driver.aclose()


async def test_no_more_is_taken_in_than_there_is_room_for_however_many_partitions_wait():
    sink = Sink()
    sink.gate.clear()
    prepare, rooms = sink.prepare, []

    def watched(write):
        rooms.append(driver.pipeline.room)
        return prepare(write)

    sink.prepare = watched
    driver = await opened(sink, limits=BacklogLimits(high_count=1_000))
    for partition in "0123456789":
        driver.claimed(Claim(partition, "me", 1))
    receiving = [
        asyncio.create_task(driver.receive(p, 1, events(*range(400), partition=p))) for p in "0123456789"
    ]
    most = 0
    for step in range(300):
        await asyncio.sleep(0.05)
        most = max(most, driver.statistics().backlog_count)
        if step == 20:
            sink.gate.set()
    await asyncio.gather(*receiving)

    assert most == 1_000
    assert min(rooms) > 0
    assert driver.statistics().totals.received == 4_000
    await driver.aclose()


@given(failure=exceptions().filter(lambda failure: not isinstance(failure, MemoryError)))
@in_virtual_time
async def test_whatever_preparing_one_event_raises_it_is_a_dead_letter_and_its_neighbours_are_written(
    failure,
):
    class Poisoned(Sink):
        def prepare(self, write):
            if write.event.sequence_number == 1:
                raise failure
            return super().prepare(write)

    driver = await claimed(Poisoned())
    await driver.receive("0", 1, events(0, 1, 2))
    await driver.settled("0", 1)
    [dead_letter] = [each async for each in driver.dead_letters.list()]
    await driver.aclose()

    assert (dead_letter.event.sequence_number, dead_letter.rejection.reason) == (1, "unexpected")
    assert type(failure).__name__ in dead_letter.rejection.detail
    assert len(driver.sink.documents) == 2


async def test_a_machine_out_of_memory_while_an_event_is_prepared_makes_no_dead_letter():
    class Starved(Sink):
        def prepare(self, write):
            raise MemoryError

    driver = await claimed(Starved())
    with pytest.raises(MemoryError):
        await driver.receive("0", 1, events(0))
    await driver.aclose()

    assert [each async for each in driver.dead_letters.list()] == []
    assert driver.pipeline.unsettled("0", 1) == 0  # it was never taken in, so it comes again


async def test_a_sink_that_says_try_at_once_for_ever_is_not_asked_without_a_pause():
    class Refusing(Sink):
        async def write(self, batch, *, deadline):
            self.prepared.append(batch)
            return [WriteResult(Outcome.RETRY, 424, retry_after=0.0)] * len(batch.records)

    driver = await claimed(Refusing())
    await driver.receive("0", 1, events(0))
    del driver.sink.prepared[:]
    await asyncio.sleep(10.0)
    await driver.aclose()

    assert 10 <= len(driver.sink.prepared) <= 10.0 / LEAST_DELAY + 1


class Registry:
    """A decoder whose schemas are there after so many calls."""

    def __init__(self, failures):
        self.failures, self.known = failures, False

    def missing(self, events):
        return () if self.known else ("schema",)

    async def load(self, ids, *, deadline):
        self.failures -= 1
        if self.failures >= 0:
            raise UnavailableError("the registry does not answer")
        self.known = True

    def decode(self, event):
        return [{"id": event.body.decode()}]


async def with_registry(failures):
    sink, registry = Sink(), Registry(failures)
    return await claimed(sink, preparation=Preparation(sink.prepare, decoder=registry))


async def test_events_wait_for_the_schemas_of_their_decoder_and_none_becomes_a_dead_letter(caplog):
    driver = await with_registry(3)
    await driver.receive("0", 1, events(0, 1))
    await driver.settled("0", 1)
    await driver.aclose()

    assert len(driver.sink.documents) == 2
    assert [each async for each in driver.dead_letters.list()] == []
    assert caplog.text.count("partition 0 waits") == 3


@pytest.mark.parametrize("end", ["lost", "drain"])
async def test_a_claim_that_ends_waits_no_longer_for_schemas(end):
    driver = await with_registry(99)
    waiting = asyncio.create_task(driver.receive("0", 1, events(0)))
    await asyncio.sleep(5.0)
    if end == "lost":
        driver.lost("0", 1)
    else:
        assert await driver.drain("0", 1, deadline=now() + 5.0)
    await asyncio.wait_for(waiting, 20.0)
    await driver.aclose()

    assert driver.statistics().totals.received == 0


async def test_the_loop_gets_a_turn_after_a_megabyte():
    sink = Sink()
    driver = await claimed(sink)
    turns = []

    async def other():
        while True:
            turns.append(len(sink.prepared))
            await asyncio.sleep(0)

    watching = asyncio.create_task(other())
    await driver.receive("0", 1, events(*range(40), size=PREPARED_BYTES // 10))
    watching.cancel()

    assert max(b - a for a, b in itertools.pairwise(turns)) <= 10
    await driver.aclose()


async def test_the_loop_gets_a_turn_however_much_becomes_of_small_events():
    class Exploding:
        def decode(self, event):
            return [{"id": f"{event.sequence_number}-{n}"} for n in range(1000)]

        def missing(self, events):
            return ()

    sink = Sink()
    driver = await claimed(sink)
    driver._preparation = Preparation(sink.prepare, decoder=Exploding())
    turns = []

    async def other():
        while True:
            turns.append(len(sink.prepared))
            await asyncio.sleep(0)

    watching = asyncio.create_task(other())
    await driver.receive("0", 1, events(*range(20)))
    watching.cancel()

    assert max(b - a for a, b in itertools.pairwise(turns)) <= 2000
    await driver.aclose()


async def test_closing_cancels_what_is_on_its_way_and_settles_nothing():
    sink, checkpoints = Sink(), Checkpoints()
    driver = await claimed(sink, checkpoints)
    await driver.receive("0", 1, events(0))
    sink.gate.clear()
    await asyncio.sleep(1.0)
    await driver.aclose()

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert driver.statistics().partitions[0].unsettled == 1
    await driver.receive("0", 1, events(1))  # too late: nothing happens
    assert driver.statistics().totals.received == 1


async def test_a_callback_that_breaks_ends_the_consumer_and_is_named(caplog):
    def broken(checkpoint, left):
        raise ValueError("a bug")

    driver = await claimed(on_checkpoint=broken, dry_run=True)
    await driver.receive("0", 1, events(0))

    with pytest.raises(TidemarkError, match="a bug"):
        await driver.failed
    await driver.aclose()

    assert "a bug" in caplog.text


async def test_a_dry_run_settles_everything_and_touches_nothing():
    sink, checkpoints, told = Sink(), Checkpoints(), []
    driver = await claimed(sink, checkpoints, dry_run=True, on_checkpoint=lambda *what: told.append(what))
    bad = [Event("0", 2, "2", 0.0, b"poison")]
    await driver.receive("0", 1, [*events(0, 1), *bad])
    await driver.settled("0", 1)
    await asyncio.sleep(6.0)

    assert sink.documents == {}
    assert checkpoints.calls == 0
    assert [dead_letter async for dead_letter in driver.dead_letters.list()] == []
    assert [(c.sequence_number, left) for c, left in told] == [(2, 0)]
    await driver.aclose()


async def test_a_sink_that_answers_for_too_few_or_with_nothing_is_not_believed():
    sink = Sink()
    write, answers = sink.write, [[], [WRITTEN] * 3, None, ["written"] * 2]

    async def miscounts(batch, *, deadline):
        return answers.pop() if answers else await write(batch, deadline=deadline)

    sink.write = miscounts
    driver = await claimed(sink)
    await driver.receive("0", 1, events(0, 1))
    await driver.settled("0", 1)

    assert len(sink.documents) == 2
    assert driver.statistics().totals.retried == 8
    await driver.aclose()


async def test_routes_that_cannot_be_read_are_asked_for_again():
    sink = Sink()
    write, asked = sink.write, []

    async def moved(batch, *, deadline):
        sink.write = write
        return [WriteResult(Outcome.RETRY, 410, rerouted=True)] * len(batch.records)

    async def routes():
        asked.append(now())
        if len(asked) == 1:
            raise UnavailableError("away")
        return Routes()

    sink.write, sink.routes = moved, routes
    driver = await claimed(sink)
    await driver.receive("0", 1, events(0))
    await driver.settled("0", 1)

    assert [at - asked[0] for at in asked] == [0.0, 2.0]
    await driver.aclose()


async def test_what_an_error_says_is_one_line_without_control_characters(caplog):
    """An error of a sink or of a user's code may show a part of an event."""
    says = "no\r\n2026-11-28 INFO all is well\u2028\x1b[2K\x1b[31mDisk\x1b[0m full"
    shown = "no 2026-11-28 INFO all is well \\x1b[2KDisk full"
    sink = Sink()
    driver = await claimed(sink)
    sink.error = ValueError(says)
    await driver.receive("0", 1, events(0))
    await asyncio.sleep(1)

    assert driver.statistics().cause == f"UnavailableError: the sink: unexpected ValueError: {shown}"
    assert f"failed: UnavailableError: the sink: unexpected ValueError: {shown}" in caplog.text
    sink.error, sink.answer = None, WriteResult(Outcome.RETRY, 503, says)
    await asyncio.sleep(60)
    assert driver.statistics().cause == f"status 503: {shown}"
    await driver.aclose()

    assert Rejection("transform", says).detail == shown


all_in_virtual_time(globals())
