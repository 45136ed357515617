"""The buffered producer, on a service in memory and in virtual time."""

import asyncio
import logging

import pytest

from tests.support.publisher import FakeWorld, event, events
from tests.support.virtual_time import in_virtual_time
from tidemark.publisher.errors import (
    FlushTimeoutError,
    InvalidProducerStateError,
    MessageTooLargeError,
    Outcome,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerDisconnectedError,
    PublishError,
    PublishRefusedError,
    PublishSettingsError,
)
from tidemark.publisher.event_hubs.batch import published_sequence_number
from tidemark.publisher.event_hubs.batching import BufferLimits
from tidemark.publisher.event_hubs.buffered_producer import BufferedProducer
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key
from tidemark.publisher.event_hubs.states.memory import MemoryStateStore
from tidemark.publisher.model import RetryPolicy

STOLEN = "com.microsoft:producer-epoch-stolen"
DENIED = "amqp:unauthorized-access"


class Told:
    """What the callbacks were told."""

    def __init__(self):
        self.published = []
        self.failed = []

    def on_published(self, told):
        self.published.append(
            (told.partition_id, [one.body_as_str() for one in told.events], told.starting_sequence_number)
        )

    def on_unpublished(self, told):
        self.failed += [(told.partition_id, one.event.body_as_str(), one.error) for one in told.failures]

    @property
    def settled(self):
        return sorted(
            [body for _, bodies, _ in self.published for body in bodies]
            + [body for _, body, _ in self.failed]
        )


class Scene:
    def __init__(self, *, stop_on_failure=False, store=None, retry=None, service=None, **limits):
        self.world = FakeWorld()
        self.world.service = service or self.world.service
        self.told = Told()
        options = {"state_store": store} if store is not None else {}
        if retry is not None:
            options["retry"] = retry
        self.buffered = BufferedProducer(
            self.world.producer(**options),
            on_published=self.told.on_published,
            on_unpublished=self.told.on_unpublished,
            limits=BufferLimits(**limits),
            stop_on_failure=stop_on_failure,
        )

    async def fill(self, found, **where):
        for each in found:
            await self.buffered.enqueue(each, **where)


@in_virtual_time
async def test_events_that_come_together_are_sent_together_after_the_wait():
    scene = Scene(max_wait=2.0)
    for body in ("a", "b", "c"):
        await scene.buffered.enqueue(event(body), partition_id="0")
    await asyncio.sleep(1.9)
    assert scene.world.bodies() == []

    await asyncio.sleep(0.2)

    assert scene.told.published == [("0", ["a", "b", "c"], 1)]
    assert scene.world.numbers() == [1, 2, 3]
    assert scene.buffered.buffered_events == scene.buffered.buffered_bytes == 0
    await scene.buffered.close()


@in_virtual_time
async def test_a_full_set_does_not_wait():
    scene = Scene(max_wait=1e6, max_events=2)
    await scene.fill(events("a", "b", "c"), partition_id="0")
    await asyncio.sleep(0.1)

    assert scene.world.bodies() == ["a", "b"]
    assert scene.buffered.buffered_events == 1
    await scene.buffered.close()
    assert scene.world.bodies() == ["a", "b", "c"]


@in_virtual_time
async def test_sets_are_as_large_as_the_link_takes():
    scene = Scene(max_wait=1e6)
    scene.world.service.max_message_size = 1_000
    with pytest.raises(MessageTooLargeError, match="an event takes 11"):
        await scene.buffered.enqueue(event("x" * 1_000), partition_id="0")
    for number in range(5):
        await scene.buffered.enqueue(event(f"{number}" * 300), partition_id="0")
    await scene.buffered.close()

    assert [len(bodies) for _, bodies, _ in scene.told.published] == [2, 2, 1]


@in_virtual_time
async def test_without_partition_or_key_events_go_round():
    scene = Scene()
    await scene.fill(events(*"abcdef"))
    await scene.buffered.flush()

    assert sorted([scene.world.bodies("0"), scene.world.bodies("1")]) == [
        ["a", "c", "e"],
        ["b", "d", "f"],
    ]
    await scene.buffered.close()


@in_virtual_time
async def test_events_of_one_key_stay_together_and_in_order():
    scene = Scene()
    for number in range(20):
        await scene.buffered.enqueue(event(f"k{number % 5}-{number}"), partition_key=f"k{number % 5}")
    await scene.buffered.flush()

    for key in range(5):
        id_ = partition_of_key(f"k{key}", ["0", "1"])
        assert await scene.buffered.partition_for(f"k{key}") == id_
        mine = [body for body in scene.world.bodies(id_) if body.startswith(f"k{key}-")]
        assert mine == [f"k{key}-{number}" for number in range(20) if number % 5 == key]
    with pytest.raises(PublishSettingsError, match="accepted: one of them"):
        await scene.buffered.enqueue(event("x"), partition_key="k", partition_id="0")
    await scene.buffered.close()


@pytest.mark.parametrize("limits", [{"max_buffered_events": 3}, {"max_buffered_bytes": 450}])
@in_virtual_time
async def test_enqueue_waits_for_room_in_events_and_in_bytes(limits):
    scene = Scene(max_wait=1e6, **limits)
    scene.world.service.gate.clear()  # the service takes events, and does not answer
    filling = asyncio.create_task(scene.fill(events(*"abcdefgh"), partition_id="0"))
    await asyncio.sleep(1.0)

    assert not filling.done()
    assert scene.buffered.buffered_events == 3

    scene.world.service.gate.set()
    await filling
    await scene.buffered.close()
    assert scene.world.bodies() == list("abcdefgh")


@in_virtual_time
async def test_a_cancelled_wait_for_room_leaves_the_others_their_turn():
    scene = Scene(max_wait=1e6, max_buffered_events=1)
    scene.world.service.gate.clear()
    await scene.buffered.enqueue(event("a"), partition_id="0")
    waiting = [asyncio.create_task(scene.buffered.enqueue(event(body), partition_id="0")) for body in "bcd"]
    await asyncio.sleep(1.0)

    waiting[0].cancel()
    scene.world.service.gate.set()
    await asyncio.gather(*waiting[1:])
    await scene.buffered.close()

    assert scene.world.bodies() == ["a", "c", "d"]


@in_virtual_time
async def test_events_that_wait_for_room_are_let_in_soon_and_in_the_order_of_arrival():
    scene = Scene(max_wait=1e6, max_buffered_events=3)
    scene.world.service.gate.clear()
    await scene.fill(events("a", "b", "c"), partition_id="0")
    tasks = [
        asyncio.create_task(scene.fill(events(*bodies), partition_id="0")) for bodies in ("dg", "eh", "fi")
    ]
    await asyncio.sleep(1.0)

    scene.world.service.gate.set()
    async with asyncio.timeout(10.0):  # nothing waits for more events while some wait for room
        await asyncio.gather(*tasks)
    await scene.buffered.close()

    assert scene.world.bodies() == list("abcdefghi")


@in_virtual_time
async def test_one_set_at_a_time_is_sent_to_a_partition_and_partitions_do_not_wait_for_each_other():
    scene = Scene(max_events=1)
    await scene.fill(events(*"abcdefgh"))
    await scene.buffered.flush()

    assert scene.world.service.most_in_flight == {"0": 1, "1": 1}
    await scene.buffered.close()


@in_virtual_time
async def test_flush_sends_at_once_and_returns_when_all_is_settled():
    scene = Scene(max_wait=1e6)
    await scene.fill(events("a", "b"), partition_id="0")

    await scene.buffered.flush(timeout=1.0)

    assert scene.world.bodies() == ["a", "b"]
    await scene.buffered.flush(timeout=0.1)
    await scene.buffered.close()


@in_virtual_time
async def test_flush_ends_by_its_deadline_and_drops_nothing():
    scene = Scene(max_wait=1e6)
    scene.world.service.gate.clear()
    await scene.fill(events("a", "b"), partition_id="0")

    with pytest.raises(FlushTimeoutError, match="2 events were not settled within 3 s and stayed buffered"):
        await scene.buffered.flush(timeout=3.0)

    assert asyncio.get_running_loop().time() < 1010
    scene.world.service.gate.set()
    await scene.buffered.close()
    assert scene.world.bodies() == ["a", "b"]
    assert scene.told.failed == []


@in_virtual_time
async def test_failures_are_told_per_event_and_the_next_sets_go_on():
    scene = Scene(max_events=2)
    scene.world.fault("error", condition=DENIED)
    sent = events("a", "b", "c")
    await scene.fill(sent, partition_id="0")
    await scene.buffered.close()

    assert [(id_, body, type(error)) for id_, body, error in scene.told.failed] == [
        ("0", "a", PublishRefusedError),
        ("0", "b", PublishRefusedError),
    ]
    assert scene.world.bodies() == ["c"]
    assert [published_sequence_number(one) for one in sent] == [None, None, 1]


@in_virtual_time
async def test_an_unknown_outcome_is_told_and_costs_no_other_event():
    scene = Scene(max_events=1, retry=RetryPolicy(max_attempts=1))
    scene.world.fault("drop_ack")
    await scene.fill(events("a", "b"), partition_id="0")
    await scene.buffered.close()

    (told,) = scene.told.failed
    assert (told[1], type(told[2]), told[2].outcome) == ("a", OutcomeUnknownError, Outcome.UNKNOWN)
    assert scene.world.bodies() == ["a", "b"]


@in_virtual_time
async def test_a_partition_that_was_taken_over_fails_at_once_from_then_on():
    scene = Scene(max_events=1)
    scene.world.fault("error", condition=STOLEN)
    await scene.fill(events("a", "b"), partition_id="0")
    await scene.buffered.flush()

    assert [body for _, body, error in scene.told.failed if isinstance(error, ProducerDisconnectedError)] == [
        "a",
        "b",
    ]
    with pytest.raises(ProducerDisconnectedError):
        await scene.buffered.enqueue(event("c"), partition_id="0")
    await scene.buffered.enqueue(event("d"), partition_id="1")
    await scene.buffered.close()
    assert scene.world.bodies("1") == ["d"]


@in_virtual_time
async def test_stopping_on_failure_leaves_no_gap_in_the_order():
    scene = Scene(max_events=1, stop_on_failure=True)
    await scene.buffered.enqueue(event("a"), partition_id="0")
    await scene.buffered.flush()
    scene.world.fault("error", condition=DENIED)
    await scene.fill(events("b", "c"), partition_id="0")
    await scene.buffered.close()

    assert scene.world.bodies() == ["a"]
    assert [body for _, body, _ in scene.told.failed] == ["b", "c"]


@in_virtual_time
async def test_closing_without_flush_gives_back_what_was_not_sent():
    scene = Scene(max_wait=1e6)
    await scene.fill(events("a", "b"), partition_id="0")

    await scene.buffered.close(flush=False)

    assert [(body, type(error), error.outcome) for _, body, error in scene.told.failed] == [
        ("a", ProducerClosedError, Outcome.NOT_STORED),
        ("b", ProducerClosedError, Outcome.NOT_STORED),
    ]
    with pytest.raises(ProducerClosedError):
        await scene.buffered.enqueue(event("c"), partition_id="0")


@in_virtual_time
async def test_closing_by_a_deadline_tells_of_every_event_once():
    scene = Scene(max_events=1)
    scene.world.service.gate.clear()
    await scene.fill(events("a", "b"), partition_id="0")
    waiting = asyncio.create_task(asyncio.sleep(0))

    with pytest.raises(FlushTimeoutError):
        await scene.buffered.close(timeout=1.0)

    await waiting
    assert scene.told.settled == ["a", "b"]
    outcomes = {body: error.outcome for _, body, error in scene.told.failed}
    assert outcomes == {"a": Outcome.UNKNOWN, "b": Outcome.NOT_STORED}


@in_virtual_time
async def test_an_event_that_waits_for_room_when_the_producer_is_closed_is_refused():
    scene = Scene(max_buffered_events=1)
    scene.world.service.gate.clear()
    await scene.buffered.enqueue(event("a"), partition_id="0")
    waiting = asyncio.create_task(scene.buffered.enqueue(event("b"), partition_id="0"))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(scene.buffered.close())
    await asyncio.sleep(0.1)

    with pytest.raises(ProducerClosedError, match="waited for room"):
        await waiting
    scene.world.service.gate.set()
    await closing
    assert scene.world.bodies() == ["a"]


@in_virtual_time
async def test_a_callback_that_fails_is_logged_and_stops_nothing(caplog):
    scene = Scene(max_events=1)
    scene.buffered.on_published = lambda told: 1 / 0
    with caplog.at_level(logging.ERROR):
        await scene.fill(events("a", "b"), partition_id="0")
        await scene.buffered.close()
    assert scene.world.bodies() == ["a", "b"]

    assert "a callback of the buffered producer failed" in caplog.text


@in_virtual_time
async def test_callbacks_may_be_coroutines_and_the_next_set_waits_for_them():
    scene = Scene(max_events=1)
    seen = []

    async def slow(told):
        seen.append(f"begin {told.starting_sequence_number}")
        await asyncio.sleep(1.0)
        seen.append(f"end {told.starting_sequence_number}")

    scene.buffered.on_published = slow
    await scene.fill(events("a", "b"), partition_id="0")
    await scene.buffered.close()
    assert seen == ["begin 1", "end 1", "begin 2", "end 2"]


@in_virtual_time
async def test_after_a_crash_the_first_set_is_the_pending_one():
    store = MemoryStateStore()
    died = Scene(store=store, max_events=3)
    for number, body in enumerate("abcde", 1):
        await died.buffered.enqueue(event(body), partition_id="0", bookmark=str(number))
    await died.buffered.flush()  # and nothing was saved after it

    heir = Scene(store=store, service=died.world.service, max_events=10)
    state = await heir.buffered.resume("0")
    assert (state.bookmark, state.pending.count, state.pending.bookmark) == ("3", 2, "5")
    for number, body in list(enumerate("abcdefg", 1))[3:]:
        await heir.buffered.enqueue(event(body), partition_id="0", bookmark=str(number))
    await heir.buffered.close()

    assert died.world.bodies() == list("abcdefg")
    with pytest.raises(PublishError, match="call resume before enqueue"):
        await died.buffered.resume("0")


@pytest.mark.parametrize(
    "room", [{"max_buffered_events": 2}, {"max_buffered_bytes": 20}, {"max_events": 1}, {}]
)
@in_virtual_time
async def test_after_a_crash_the_pending_sets_are_waited_for_however_little_room_there_is(room):
    """Of both partitions a set is pending, whose events take turns in the input and are more than may be buffered."""

    store = MemoryStateStore()
    inputs = [(str(number % 2), f"e{number:02}", str(number)) for number in range(30)]
    died = Scene(store=store, max_events=9)
    for id_, body, bookmark in inputs[:18]:
        await died.buffered.enqueue(event(body), partition_id=id_, bookmark=bookmark)
    await died.buffered.flush()  # and nothing was saved after it

    for _ in range(2):  # the same input comes at every start
        heir = Scene(store=store, service=died.world.service, max_wait=0.01, **room)
        states = {id_: await heir.buffered.resume(id_) for id_ in "01"}
        for id_, body, bookmark in inputs:
            if int(bookmark) > int(states[id_].bookmark or -1):
                await heir.buffered.enqueue(event(body), partition_id=id_, bookmark=bookmark)
                await asyncio.sleep(0.02)
        await heir.buffered.close()

        assert heir.told.failed == []
        assert heir.buffered.buffered_events == heir.buffered.buffered_bytes == 0
    for id_ in "01":
        assert died.world.bodies(id_) == [body for where, body, _ in inputs if where == id_]


async def scenes_with_a_pending_set():
    """Of a producer that died with the set abcde of partition 0 pending, and of its heir, who has resumed."""
    store = MemoryStateStore()
    died = Scene(store=store, max_events=9)
    for number, body in enumerate("abcde", 1):
        await died.buffered.enqueue(event(body), partition_id="0", bookmark=str(number))
    await died.buffered.flush()
    heir = Scene(store=store, service=died.world.service)
    await heir.buffered.resume("0")
    return died, heir


@in_virtual_time
async def test_a_flush_neither_cuts_a_pending_set_short_nor_waits_for_it():
    died, heir = await scenes_with_a_pending_set()

    for number, body in enumerate("abc", 1):
        await heir.buffered.enqueue(event(body), partition_id="0", bookmark=str(number))
    await heir.buffered.enqueue(event("x"), partition_id="1")
    with pytest.raises(
        FlushTimeoutError, match=r"partition 0: 3 buffered events wait for the others of the set"
    ):
        await heir.buffered.flush()
    assert heir.told.settled == ["x"]
    for number, body in enumerate("defg", 4):
        await heir.buffered.enqueue(event(body), partition_id="0", bookmark=str(number))
    await heir.buffered.flush()
    assert heir.told.failed == []
    assert died.world.bodies() == list("abcdefg")
    await heir.buffered.close()


@in_virtual_time
async def test_an_input_that_ends_within_the_pending_set_is_told_with_what_to_do():
    died, heir = await scenes_with_a_pending_set()
    await heir.buffered.enqueue(event("a"), partition_id="0", bookmark="1")
    await heir.buffered.close(timeout=None)

    assert [(body, type(error)) for _, body, error in heir.told.failed] == [("a", InvalidProducerStateError)]
    assert "send exactly these events first, or give them up" in str(heir.told.failed[0][2])
    assert died.world.bodies() == list("abcde")


@pytest.mark.parametrize("wrong", [{"max_wait": -1}, {"max_events": 0}, {"max_buffered_events": 0}])
def test_impossible_limits_are_refused(wrong):
    with pytest.raises(PublishSettingsError, match=next(iter(wrong))):
        BufferLimits(**wrong)


class BrokenStore(MemoryStateStore):
    """Its saves end in an error that nobody thought of, once they are let go."""

    def __init__(self):
        super().__init__()
        self.saving, self.may_end = asyncio.Event(), asyncio.Event()

    async def save(self, key, record, token, *, deadline):
        self.saving.set()
        await self.may_end.wait()
        raise RuntimeError("the store broke")


@in_virtual_time
async def test_closing_ends_although_what_was_under_way_ends_in_an_unexpected_error():
    """The order to end is not forgotten over the error: attempts of an hour would go on, and nobody would stop the lane."""

    store = BrokenStore()
    scene = Scene(
        store=store, retry=RetryPolicy(max_attempts=1_000, delay=60.0, max_delay=60.0), max_wait=0.0
    )
    await scene.buffered.enqueue(event("a"), partition_id="0")
    await store.saving.wait()

    closing = asyncio.create_task(scene.buffered.close(flush=False))
    await asyncio.sleep(0.1)
    store.may_end.set()
    await asyncio.wait({closing}, timeout=60.0)

    assert closing.done()
    assert scene.told.settled == ["a"]


@in_virtual_time
async def test_an_event_whose_partition_is_opened_while_the_producer_is_closed_is_refused():
    """Nobody would stop the lane, and whoever enqueued would take the event for buffered."""

    scene = Scene(max_wait=0.0)
    opened = asyncio.Event()
    ask = scene.buffered.producer.max_message_size

    async def late(partition_id):
        size = await ask(partition_id)
        await opened.wait()
        return size

    scene.buffered.producer.max_message_size = late
    enqueuing = asyncio.create_task(scene.buffered.enqueue(event("a"), partition_id="0"))
    await asyncio.sleep(0.1)
    await scene.buffered.close()
    opened.set()

    with pytest.raises(ProducerClosedError):
        await enqueuing
    await asyncio.sleep(1.0)
    assert scene.told.settled == []
    assert not scene.buffered._lanes
