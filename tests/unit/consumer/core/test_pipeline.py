"""What the pipeline orders upon what happened."""

import math
from collections import deque
from itertools import pairwise

import pytest
from msgspec import structs

from consumer.core.backlog import Held, pause_reason
from consumer.core.effects import (
    BatchWritten,
    CheckpointSaved,
    DeadLettersStored,
    EventsReceived,
    Fail,
    PartitionClaimed,
    PartitionDrained,
    PartitionDraining,
    PartitionLost,
    PauseReceiving,
    RateChanged,
    ReadRoutes,
    ResumeReceiving,
    RoutesRead,
    SaveCheckpoint,
    StoreDeadLetters,
    Tick,
    WakeAt,
    WriteBatch,
)
from consumer.core.pipeline import Pipeline
from consumer.errors import BacklogError, PoisonError
from consumer.model import (
    Checkpoint,
    Claim,
    Event,
    Operation,
    Outcome,
    Record,
    Rejection,
    Routes,
    WriteResult,
)
from consumer.options import BacklogLimits, BatchLimits
from tests.support.consumer.pipeline_checks import check_pipeline
from tests.support.consumer.sinks import built

WRITTEN = WriteResult(Outcome.WRITTEN, 201, request_units=6.0)
THROTTLED = WriteResult(Outcome.RETRY, 429, "too many requests", retry_after=0.3)
UNKNOWN = WriteResult(Outcome.RETRY, 0, "connection lost")
CONTESTED = WriteResult(Outcome.RETRY, 449, "another writer")
REJECTED = WriteResult(Outcome.REJECT, 400, "bad document")
MOVED = WriteResult(Outcome.RETRY, 410, "split", rerouted=True)


def record(sequence_number, partition="0", key=None, rejection=None, route="", body=b"{}"):
    event = Event(partition, sequence_number, f"o{sequence_number}", 0.0, body)
    return Record(
        event, key if key is not None else f"{partition}/{sequence_number}", body, "[1]", route, rejection
    )


class World:
    """A pipeline and what it has ordered. `now` moves only by hand."""

    def __init__(
        self,
        *,
        limits=None,
        batches=None,
        routes=None,
        rate=None,
        transactional=False,
        chance=None,
        claimed=True,
    ):
        self.now = 0.0
        self.pipeline = Pipeline(
            limits or BacklogLimits(),
            batches or BatchLimits(),
            routes or Routes(),
            transactional=transactional,
            rate=rate,
            now=0.0,
            chance=chance,
        )
        self.effects = []
        self.batches = {}
        if claimed:
            self.claim()

    def tell(self, item, *, at=None):
        self.now = self.now if at is None else at
        effects = self.pipeline.handle(item, now=self.now)
        check_pipeline(self.pipeline)
        self.effects += effects
        self.batches |= {e.batch.batch_id: e.batch for e in effects if isinstance(e, WriteBatch)}
        return [effect for effect in effects if not isinstance(effect, WakeAt)]

    def claim(self, partition="0", epoch=1, checkpoint=None):
        return self.tell(PartitionClaimed(Claim(partition, "me", epoch, checkpoint)))

    def receive(self, *numbers, partition="0", epoch=1, at=None, **fields):
        records = [
            number if isinstance(number, Record) else record(number, partition, **fields)
            for number in numbers
        ]
        return self.tell(EventsReceived(partition, epoch, records, 1000), at=at)

    def tick(self, at):
        return self.tell(Tick(), at=at)

    def answer(self, effect, *results, at=None):
        batch = effect.batch
        if len(results) == 1:
            results *= len(batch.records)
        return self.tell(BatchWritten(batch.batch_id, results), at=at)

    def wake_at(self):
        return next(e.at for e in reversed(self.effects) if isinstance(e, WakeAt))


def numbers(effect):
    return [each.event.sequence_number for each in effect.batch.records]


def only(effects, kind):
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def test_a_batch_leaves_when_its_first_record_waited_for_the_flush_timer():
    world = World()

    assert world.receive(0, 1) == []
    assert world.wake_at() == 1.0
    assert numbers(only(world.tick(1.0), WriteBatch)) == [0, 1]


def test_a_batch_is_cut_at_its_bytes_and_a_larger_record_travels_alone():
    world = World(batches=BatchLimits(bytes=1_000))
    small, large = b"x" * 400, b"x" * 5_000
    first = only(
        world.receive(record(0, body=small), record(1, body=large), record(2, body=small)), WriteBatch
    )
    second = only(world.answer(first, WRITTEN), WriteBatch)

    assert (numbers(first), numbers(second)) == ([0], [1])


def test_the_mark_stops_before_the_first_unsettled_event():
    world = World(batches=BatchLimits(operations=8), limits=BacklogLimits(checkpoint_every=5.0))
    batch = only(world.receive(*range(8)), WriteBatch)
    results = [WRITTEN if n in {0, 1, 2, 5, 6, 7} else UNKNOWN for n in range(8)]
    world.answer(batch, *results, at=0.5)

    again, saved = sorted(world.tick(5.0), key=lambda effect: isinstance(effect, SaveCheckpoint))

    assert (saved.checkpoint.sequence_number, saved.checkpoint.offset) == (2, "o2")
    assert saved.checkpoint.beyond == ((5, 7),)
    world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=True))
    world.answer(again, WRITTEN)
    assert only(world.tick(10.0), SaveCheckpoint).checkpoint == Checkpoint("0", 7, "o7", owner="me", epoch=1)


def test_many_settled_events_are_saved_before_their_time_but_not_in_haste():
    world = World(batches=BatchLimits(operations=1), limits=BacklogLimits(checkpoint_after=2))

    def settle(number, at):
        return world.answer(only(world.receive(number, at=at), WriteBatch), WRITTEN)

    assert settle(0, 0.1) == []
    saved = only(settle(1, 0.2), SaveCheckpoint)
    assert saved.checkpoint.sequence_number == 1
    world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=True))
    assert [settle(2, 0.3), settle(3, 0.4)] == [[], []]
    refused = only(world.tick(0.8), SaveCheckpoint)
    world.tell(CheckpointSaved("0", 1, refused.checkpoint, saved=False))
    assert [settle(4, 1.5), settle(5, 2.5)] == [[], []]  # the store does not answer: no haste
    assert only(world.tick(5.0), SaveCheckpoint).checkpoint.sequence_number == 5


def test_a_checkpoint_of_unknown_outcome_is_saved_again():
    world = World(batches=BatchLimits(operations=1))
    world.answer(only(world.receive(0), WriteBatch), WRITTEN)
    saved = only(world.tick(5.0), SaveCheckpoint)

    assert world.tick(10.0) == []  # one at a time
    world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=False))
    assert only(world.tick(15.0), SaveCheckpoint).checkpoint == saved.checkpoint


def test_a_throttled_record_is_tried_again_when_the_service_said_and_only_it():
    world = World(batches=BatchLimits(operations=2))
    batch = only(world.receive(0, 1), WriteBatch)
    world.answer(batch, WRITTEN, THROTTLED, at=1.0)

    assert world.tick(1.29) == []
    assert numbers(only(world.tick(1.3), WriteBatch)) == [1]


def test_an_unknown_outcome_is_tried_again_for_ever():
    world = World(batches=BatchLimits(operations=1), limits=BacklogLimits(backlog_to=math.inf))
    batch = only(world.receive(0), WriteBatch)
    for wait in [2.0, 4.0, 8.0, *[10.0] * 50]:
        assert world.answer(batch, UNKNOWN) == []
        batch = only(world.tick(world.now + wait), WriteBatch)
    world.answer(batch, WRITTEN)

    assert world.pipeline.statistics(world.now).backlog_count == 0


def test_a_throttled_lane_waits_while_the_others_go_on():
    routes = Routes(("", "8"), ("low", "high"))
    world = World(batches=BatchLimits(operations=1), routes=routes)
    hot = only(world.receive(record(0, route="9")), WriteBatch)
    world.answer(hot, THROTTLED)

    effects = world.receive(record(1, route="9"), record(2, route="1"))

    assert numbers(only(effects, WriteBatch)) == [2]


def test_records_of_one_key_are_never_on_the_way_together():
    world = World(batches=BatchLimits(operations=1))
    first = only(world.receive(0, 1, key="same"), WriteBatch)

    assert numbers(first) == [0]
    assert world.answer(first, THROTTLED) == []
    second = only(world.tick(0.3), WriteBatch)
    assert numbers(second) == [0]
    assert numbers(only(world.answer(second, WRITTEN), WriteBatch)) == [1]


def test_of_several_that_wait_only_the_last_is_written_when_coalescing():
    world = World(batches=BatchLimits(operations=1, coalesce=True))
    first = only(world.receive(0, 1, 2, 3, key="same"), WriteBatch)
    last = only(world.answer(first, WRITTEN), WriteBatch)

    assert numbers(last) == [3]
    world.answer(last, WRITTEN)
    assert only(world.tick(5.0), SaveCheckpoint).checkpoint.sequence_number == 3


def test_records_that_may_be_two_documents_are_never_coalesced():
    world = World(batches=BatchLimits(operations=1, coalesce=True))
    spellings = [
        structs.replace(record(n, key="same"), partition_key=text)
        for n, text in enumerate(["[1]", "[1]", "[1.0]", "[1.0]"])
    ]
    first = only(world.receive(*spellings), WriteBatch)
    second = only(world.answer(first, WRITTEN), WriteBatch)
    third = only(world.answer(second, WRITTEN), WriteBatch)

    assert [numbers(each) for each in (first, second, third)] == [[0], [1], [3]]


def test_what_a_sink_appends_or_sends_is_never_coalesced():
    """Two messages of one session, and two requests of one key, are in order and no changes of one document."""
    world = World(routes=Routes(appends=True), batches=BatchLimits(operations=1, coalesce=True))
    first = only(world.receive(0, 1, 2, key="same"), WriteBatch)
    second = only(world.answer(first, WRITTEN), WriteBatch)
    third = only(world.answer(second, WRITTEN), WriteBatch)

    assert [numbers(each) for each in (first, second, third)] == [[0], [1], [2]]


@pytest.mark.parametrize(("method", "written"), [("POST", [[1], [2]]), ("PATCH", [[1], [2]]), ("PUT", [[2]])])
async def test_of_requests_to_a_web_service_those_that_replace_are_coalesced(method, written):
    sink = built("http", {}, url="https://api.example.com/{$.id}", key="$.id", method=method, requests=1)
    world = World(routes=await sink.routes(), batches=BatchLimits(coalesce=True))
    await sink.aclose()
    batch, found = only(world.receive(0, 1, 2, key="same"), WriteBatch), []
    for _ in written:
        batch = only(world.answer(batch, WRITTEN), WriteBatch)
        found.append(numbers(batch))

    assert found == written


@pytest.mark.parametrize("operation", [Operation.PATCH, Operation.CREATE, Operation.REPLACE])
def test_what_depends_on_the_document_before_it_is_never_coalesced(operation):
    world = World(batches=BatchLimits(operations=1, coalesce=True))
    records = [structs.replace(record(n, key="same"), operation=operation) for n in range(3)]
    first = only(world.receive(*records), WriteBatch)
    second = only(world.answer(first, WRITTEN), WriteBatch)
    third = only(world.answer(second, WRITTEN), WriteBatch)

    assert [numbers(each) for each in (first, second, third)] == [[0], [1], [2]]


def test_what_a_later_event_superseded_is_settled_and_counted_by_that_reason():
    world = World(batches=BatchLimits(operations=1))
    batch = only(world.receive(0), WriteBatch)
    world.answer(batch, WriteResult(Outcome.WRITTEN, 200, "superseded", request_units=2.0))
    totals = world.pipeline.totals

    assert (totals.written, totals.dropped, totals.request_units) == (0, {"superseded": 1}, 2.0)
    assert only(world.tick(5.0), SaveCheckpoint).checkpoint.sequence_number == 0


def test_a_rejected_coalescing_record_gives_way_to_the_one_before_it():
    world = World(batches=BatchLimits(operations=1, coalesce=True))
    first = only(world.receive(0, 1, 2, key="same"), WriteBatch)
    last = only(world.answer(first, WRITTEN), WriteBatch)

    effects = world.answer(last, REJECTED)

    assert [each.record.event.sequence_number for each in only(effects, StoreDeadLetters).rejected] == [2]
    assert numbers(only(effects, WriteBatch)) == [1]


def test_a_rejected_record_settles_only_when_its_dead_letter_is_stored():
    world = World(batches=BatchLimits(operations=1))
    dead_letters = only(world.answer(only(world.receive(0), WriteBatch), REJECTED), StoreDeadLetters)
    assert dead_letters.rejected[0].rejection == Rejection("status_400", "bad document")
    assert dead_letters.rejected[0].attempts == 1

    world.tell(DeadLettersStored(dead_letters.lot_id, stored=False))
    assert world.tick(1.9) == []
    again = only(world.tick(2.0), StoreDeadLetters)
    world.tell(DeadLettersStored(again.lot_id, stored=True))

    assert only(world.tick(5.0), SaveCheckpoint).checkpoint.sequence_number == 0
    assert world.pipeline.totals.dead_letters == 1


def test_a_transactional_sink_gets_the_rejected_in_order_and_one_batch_at_a_time():
    world = World(transactional=True, routes=Routes(by_partition=True), batches=BatchLimits(operations=2))
    effects = world.receive(0, record(1, rejection=Rejection("not_json", "no")), 2, 3)
    first = only(effects, WriteBatch)

    assert (first.batch.lane, numbers(first)) == ("0", [0, 1])
    assert world.answer(first, UNKNOWN) == []
    again = only(world.tick(2.0), WriteBatch)
    assert numbers(again) == [0, 1]
    assert numbers(only(world.answer(again, WRITTEN), WriteBatch)) == [2, 3]
    assert not any(isinstance(effect, SaveCheckpoint) for effect in world.tick(10.0))


def test_a_transactional_sink_gets_an_event_that_came_late_at_its_place():
    world = World(transactional=True, routes=Routes(by_partition=True), batches=BatchLimits(operations=3))

    first = only(world.receive(0, 1, 6), WriteBatch)
    assert not world.receive(8, 4)
    assert not world.answer(first, WRITTEN, WRITTEN, UNKNOWN)
    second = only(world.tick(world.wake_at()), WriteBatch)

    assert (numbers(first), numbers(second)) == ([0, 1, 6], [4, 6, 8])


def test_a_transactional_sink_never_waits_for_a_checkpoint_of_ours():
    world = World(
        transactional=True,
        routes=Routes(by_partition=True),
        batches=BatchLimits(operations=2),
        limits=BacklogLimits(unsaved=3),
    )

    for first in range(0, 8, 2):
        effects = world.receive(first, first + 1)
        assert world.answer(only(effects, WriteBatch), WRITTEN) == []


def test_a_split_strands_records_until_the_routes_are_read():
    world = World(batches=BatchLimits(operations=2), routes=Routes(("",), ("0",)))
    batch = only(world.receive(record(0, route="9"), record(1, route="1")), WriteBatch)

    assert world.answer(batch, MOVED) == [ReadRoutes()]
    assert world.tell(RoutesRead(None)) == []
    assert world.wake_at() == 2.0
    assert world.tick(2.0) == [ReadRoutes()]
    moved = world.tell(RoutesRead(Routes(("", "8"), ("1", "2"))))
    assert sorted((each.batch.lane, numbers(each)) for each in moved) == [("1", [1]), ("2", [0])]


def test_at_most_the_rate_starts_and_retries_are_free():
    world = World(batches=BatchLimits(operations=100, flush_after=0.0), rate=10)
    first = only(world.receive(*range(30)), WriteBatch)
    assert numbers(first) == [0]
    world.answer(first, THROTTLED)
    started = {0}
    while world.now < 2.0:
        orders = world.tick(world.wake_at())
        while orders:
            effect = orders.pop()
            started |= set(numbers(effect))
            orders += world.answer(effect, WRITTEN)

    assert len(started) == 19  # 0 s to 2 s inclusive, but for 0.1 and 0.2: the lane was throttled
    begun = [numbers(effect) for effect in world.tell(RateChanged(None)) if isinstance(effect, WriteBatch)]
    assert sum(map(len, begun)) > 1


def test_partitions_without_events_take_nothing_of_the_rate():
    world = World(batches=BatchLimits(operations=100, flush_after=0.0), rate=10, claimed=False)
    for partition in range(32):
        world.claim(str(partition))
    orders = world.receive(*range(40), partition="7")
    started = set()
    while world.now < 2.0:
        while orders:
            effect = orders.pop()
            if isinstance(effect, WriteBatch):
                started |= set(numbers(effect))
                orders += world.answer(effect, WRITTEN)
        orders = world.tick(world.wake_at())

    assert len(started) >= 19  # 10 a second, the first at 0 s


def test_receiving_pauses_at_the_high_mark_and_resumes_at_half():
    world = World(limits=BacklogLimits(high_count=10), batches=BatchLimits(operations=10, flush_after=100.0))

    effects = world.receive(*range(10))

    assert only(effects, PauseReceiving).reason == "10 events wait, the high mark is 10"
    assert only(world.answer(only(effects, WriteBatch), WRITTEN), ResumeReceiving)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (Held(1, 0, 0, 0, None), "1 event waits, the high mark is 1"),
        (Held(0, 1, 0, 0, None), "1 byte waits, the high mark is 1"),
        (Held(0, 0, 1, 0, None), "1 settled event is in no checkpoint: the checkpoint store does not answer"),
        (Held(0, 0, 0, 1, None), "1 event is settled beyond one that is not; that one is retried first"),
    ],
)
def test_why_receiving_pauses_is_in_the_singular_of_one(held, text):
    assert pause_reason(BacklogLimits(high_count=1, high_bytes=1, unsaved=1), held) == text


def test_receiving_pauses_when_no_checkpoint_can_be_saved():
    world = World(limits=BacklogLimits(unsaved=2), batches=BatchLimits(operations=2))
    effects = world.answer(only(world.receive(0, 1), WriteBatch), WRITTEN)
    assert "checkpoint store" in only(effects, PauseReceiving).reason

    saved = only(world.tick(5.0), SaveCheckpoint)

    assert world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=True)) == [ResumeReceiving()]


def test_a_backlog_older_than_allowed_ends_the_process_and_names_the_oldest():
    world = World(batches=BatchLimits(operations=1))
    batch = only(world.receive(7), WriteBatch)
    world.answer(batch, WriteResult(Outcome.RETRY, 503, "unavailable"))
    for at in range(2, 602, 2):
        for effect in world.tick(float(at)):
            world.answer(effect, WriteResult(Outcome.RETRY, 503, "unavailable"))

    failed = [effect for effect in world.tick(601.9) if isinstance(effect, Fail)]
    assert isinstance(failed[0].error, BacklogError)
    text = str(failed[0].error)
    assert "ALLOW_BACKLOG_TO, 600 s" in text
    assert "sequence number 7 of partition 0" in text
    assert "status 503: unavailable" in text


def test_a_backlog_larger_than_allowed_ends_the_process():
    world = World(limits=BacklogLimits(backlog_of=3), batches=BatchLimits(flush_after=100.0))

    error = only(world.receive(*range(4)), Fail).error

    assert str(error).startswith("4 events wait, ALLOW_BACKLOG_OF is 3; none of them was attempted")
    assert str(error).endswith(
        "all of them are received again; or raise ALLOW_BACKLOG_OF, and they wait longer"
    )
    raised = World(limits=BacklogLimits(backlog_of=4), batches=BatchLimits(flush_after=100.0))
    assert not [effect for effect in raised.receive(*range(4)) if isinstance(effect, Fail)]


def test_nothing_but_poison_ends_the_process():
    world = World(limits=BacklogLimits(poison=3))
    poison = [record(n, rejection=Rejection("not_json", "no")) for n in range(3)]
    dead_letters = only(world.receive(*poison), StoreDeadLetters)

    error = only(world.tell(DeadLettersStored(dead_letters.lot_id, stored=True)), Fail).error

    assert isinstance(error, PoisonError)


def test_an_event_settled_before_a_restart_is_skipped():
    world = World(batches=BatchLimits(operations=1), claimed=False)
    world.claim(checkpoint=Checkpoint("0", 4, "o4", beyond=((6, 7),)))

    assert numbers(only(world.receive(3, 4, 5, 6, 7), WriteBatch)) == [5]
    assert world.pipeline.totals.skipped == 4


def test_draining_starts_nothing_more_and_saves_the_last_checkpoint():
    world = World(batches=BatchLimits(operations=2))
    batch = only(world.receive(0, 1, 2), WriteBatch)

    assert world.tell(PartitionDraining("0", 1)) == []
    saved = only(world.answer(batch, WRITTEN), SaveCheckpoint)
    assert saved.checkpoint.sequence_number == 1
    assert world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=True)) == [PartitionDrained("0", 1)]
    assert world.receive(3) == []
    assert World().tell(PartitionDraining("0", 1)) == [PartitionDrained("0", 1)]  # an idle one at once


def test_draining_stores_no_further_dead_letters_of_events_that_come_again():
    world = World()
    poison = [record(number, rejection=Rejection("not_json", "no")) for number in range(150)]
    first = only(world.receive(*poison), StoreDeadLetters)

    world.tell(PartitionDraining("0", 1))
    effects = world.tell(DeadLettersStored(first.lot_id, stored=True))

    assert not [effect for effect in effects if isinstance(effect, StoreDeadLetters)]
    saved = only(effects, SaveCheckpoint)
    assert saved.checkpoint.sequence_number == len(first.rejected) - 1
    assert world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=True)) == [PartitionDrained("0", 1)]


def test_what_comes_of_a_lost_claim_changes_nothing():
    world = World(batches=BatchLimits(operations=1))
    batch = only(world.receive(0, 1, 2), WriteBatch)
    world.tell(PartitionLost("0", 1))
    world.claim(epoch=2)

    assert world.answer(batch, WRITTEN) == []
    assert world.receive(1, epoch=1) == []
    assert world.tick(5.0) == []
    assert numbers(only(world.receive(0, epoch=2), WriteBatch)) == [0]


def test_an_older_claim_that_comes_late_changes_nothing():
    world = World(batches=BatchLimits(operations=1), claimed=False)
    world.claim(epoch=2)

    world.claim(epoch=1, checkpoint=Checkpoint("0", 7, "o7"))

    assert numbers(only(world.receive(0, epoch=2), WriteBatch)) == [0]


def test_congestion_control_adds_one_a_second_and_halves_when_throttled():
    world = World(batches=BatchLimits(operations=1))
    batches = [only(world.receive(*range(200)), WriteBatch)]
    allowed = []
    for second in range(1, 8):
        world.now = second + 0.01
        done, batches = batches, []
        for effect in done:
            batches += [e for e in world.answer(effect, WRITTEN) if isinstance(e, WriteBatch)]
        allowed.append(world.pipeline.statistics(world.now).concurrency["all"])
    assert allowed == [2, 3, 4, 5, 6, 7, 8]

    world.now = 9.0
    for effect in batches:
        world.answer(effect, THROTTLED)
    assert world.pipeline.statistics(world.now).concurrency["all"] == 4


TROUBLE = [
    UNKNOWN,
    *(WriteResult(Outcome.RETRY, status, "no") for status in (401, 403, 408, 429, 500, 502, 503, 504, 599)),
]


@pytest.mark.parametrize("answer", TROUBLE, ids=lambda answer: str(answer.status))
def test_a_service_in_trouble_is_asked_ever_more_seldom_by_ever_fewer(answer):
    world = World(batches=BatchLimits(operations=1))
    flight = [only(world.receive(*range(200)), WriteBatch)]
    for second in range(1, 6):  # six at once
        done, flight = flight, []
        for effect in done:
            flight += [
                e for e in world.answer(effect, WRITTEN, at=second + 0.01) if isinstance(e, WriteBatch)
            ]
    assert len(flight) == 6

    world.now, sent = 7.0, []
    for effect in flight:
        world.answer(effect, answer)
    world.batches.clear()
    while world.now < 40.0:
        world.tick(world.wake_at())
        while world.batches:
            _, batch = world.batches.popitem()
            sent.append(world.now)
            world.answer(WriteBatch(batch), answer, at=world.now + 0.05)

    assert world.pipeline.statistics(world.now).concurrency == {"all": 1}
    rounds = sorted({round(at, 0) for at in sent})
    gaps = [later - earlier for earlier, later in pairwise(rounds)]
    assert rounds[0] == 9
    assert gaps == sorted(gaps)
    assert gaps[0] >= 3
    assert gaps[-1] == 10


def test_once_it_answers_everything_goes_at_its_full_pace_again():
    world = World(batches=BatchLimits(operations=1))
    batch = only(world.receive(0, 1), WriteBatch)
    for wait in (2.0, 4.0, 8.0, 10.0, 10.0):
        assert world.answer(batch, UNKNOWN) == []
        assert world.wake_at() <= world.now + 5.0  # for the checkpoint at the latest
        assert [e for e in world.tick(world.now + wait - 0.01) if isinstance(e, WriteBatch)] == []
        batch = only(world.tick(world.now + 0.01), WriteBatch)
    batch = only(world.answer(batch, WRITTEN), WriteBatch)

    world.answer(batch, UNKNOWN)
    assert only(world.tick(world.now + 2.0), WriteBatch)


def test_one_record_that_the_service_fails_at_slows_no_other_and_narrows_nothing():
    world = World(batches=BatchLimits(operations=10))
    batch = only(world.receive(*range(10)), WriteBatch)
    world.receive(*range(10, 20))
    failing = WriteResult(Outcome.RETRY, 503, "only this one")

    again = only(world.answer(batch, failing, *[WRITTEN] * 9, at=1.5), WriteBatch)

    assert numbers(again) == list(range(10, 20))
    assert world.pipeline.statistics(world.now).concurrency == {"all": 2}


def test_retries_are_spread_by_chance_over_a_quarter_more():
    chances = iter([0.0, 0.5, 0.9])
    world = World(batches=BatchLimits(operations=3), chance=lambda: next(chances))
    batch = only(world.receive(0, 1, 2), WriteBatch)
    world.answer(batch, CONTESTED)

    for number, due in enumerate([2.0, 2.25, 2.45]):
        assert [e for e in world.tick(due - 0.01) if isinstance(e, WriteBatch)] == []
        batch = only(world.tick(due), WriteBatch)
        assert numbers(batch) == [number]
        world.answer(batch, WRITTEN)


@pytest.mark.parametrize("written", [2, 20, 99])
def test_a_throttled_batch_limits_the_next_one_to_what_was_written(written):
    world = World()
    batch = only(world.receive(*range(100)), WriteBatch)
    world.answer(batch, *([WRITTEN] * written + [THROTTLED] * (100 - written)))

    again = only(world.tick(0.3), WriteBatch)

    assert len(again.batch.records) == min(written, 100 - written)


def test_a_record_that_is_throttled_again_and_again_does_not_hold_up_the_others():
    world = World(batches=BatchLimits(operations=10))
    batch = only(world.receive(*range(10)), WriteBatch)
    world.receive(*range(10, 14))
    world.answer(batch, *[THROTTLED] * 10)
    refused, written, at = {0, 1, 2}, set(), 0.0

    while len(written) < 11:
        at += 0.5
        assert at < 60.0, f"only {sorted(written)} are written"
        effects = deque(world.tick(at))
        while effects:
            effect = effects.popleft()
            if isinstance(effect, WriteBatch):
                sent = [each.event.sequence_number for each in effect.batch.records]
                answers = [THROTTLED if each in refused else WRITTEN for each in sent]
                effects += world.tell(BatchWritten(effect.batch.batch_id, answers))
                written |= set(sent) - refused

    assert written == set(range(14)) - refused


KEPT = WriteResult(Outcome.WRITTEN, reason="not_json")


def test_a_letter_that_a_transactional_sink_kept_counts_as_one_and_toward_the_breaker():
    world = World(
        transactional=True,
        routes=Routes(by_partition=True),
        batches=BatchLimits(operations=3),
        limits=BacklogLimits(poison=3),
    )
    second = only(world.answer(only(world.receive(*range(6)), WriteBatch), KEPT, WRITTEN, KEPT), WriteBatch)
    assert (world.pipeline.totals.dead_letters, world.pipeline.totals.written) == (2, 1)

    assert isinstance(only(world.answer(second, KEPT), Fail).error, PoisonError)


@pytest.mark.parametrize("of", [1, 7])
def test_poison_does_not_end_the_process_while_the_sink_is_away_and_others_wait(of):
    world = World(limits=BacklogLimits(poison=3), batches=BatchLimits(operations=1))
    batch = only(world.receive(100, record(101, partition="0")), WriteBatch)
    world.answer(batch, UNKNOWN)
    poison = [record(n, rejection=Rejection("not_json", "no")) for n in range(200, 210)]
    dead_letters = only(
        world.receive(*(structs.replace(each, of=of) for each in poison for _ in range(of))), StoreDeadLetters
    )

    assert world.tell(DeadLettersStored(dead_letters.lot_id, stored=True)) == []
    assert world.pipeline.totals.dead_letters == 10


def test_every_attempt_of_a_retry_counts_also_in_a_batch_cut_at_its_bytes():
    world = World(batches=BatchLimits(operations=2, bytes=1_000, flush_after=0.0))
    large = b"x" * 800
    batch = only(world.receive(record(0, body=large), record(1, body=large)), WriteBatch)
    batch = only(world.answer(batch, CONTESTED), WriteBatch)
    world.answer(batch, CONTESTED)
    again = only(world.tick(2.0), WriteBatch)

    dead_letters = only(world.answer(again, REJECTED), StoreDeadLetters)
    assert [each.attempts for each in dead_letters.rejected] == [2]


def test_a_last_checkpoint_that_fails_is_saved_again_without_haste():
    world = World(batches=BatchLimits(operations=1))
    world.answer(only(world.receive(0), WriteBatch), WRITTEN)
    saved = only(world.tell(PartitionDraining("0", 1)), SaveCheckpoint)

    assert world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=False)) == []
    assert world.wake_at() == 0.5
    again = only(world.tick(0.5), SaveCheckpoint)
    assert world.tell(CheckpointSaved("0", 1, again.checkpoint, saved=True)) == [PartitionDrained("0", 1)]


def test_a_drain_that_begins_after_a_failed_checkpoint_saves_at_once():
    world = World(batches=BatchLimits(operations=1))
    world.answer(only(world.receive(0), WriteBatch), WRITTEN)
    saved = only(world.tick(5.0), SaveCheckpoint)
    world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=False))

    assert only(world.tell(PartitionDraining("0", 1)), SaveCheckpoint)


@pytest.mark.parametrize("answer", [UNKNOWN, REJECTED])
def test_of_a_lost_claim_nothing_is_retried_kept_or_written_in_an_earlier_version(answer):
    """Somebody may have written later versions."""
    world = World(batches=BatchLimits(operations=1, coalesce=True))
    first = only(world.receive(0, 1, 2, key="same"), WriteBatch)
    last = only(world.answer(first, WRITTEN), WriteBatch)
    world.tell(PartitionLost("0", 1))

    assert world.answer(last, answer) == []
    assert world.tick(10.0) == []
    assert world.pipeline.statistics(10.0).backlog_count == 0


def test_letters_of_a_lost_claim_are_not_stored_again():
    world = World(batches=BatchLimits(operations=1))
    dead_letters = only(world.answer(only(world.receive(0), WriteBatch), REJECTED), StoreDeadLetters)
    world.tell(PartitionLost("0", 1))

    world.tell(DeadLettersStored(dead_letters.lot_id, stored=False))
    assert world.tick(10.0) == []
    assert world.pipeline.statistics(10.0).backlog_count == 0


def test_what_is_settled_while_a_checkpoint_is_saved_counts_as_unsaved():
    world = World(limits=BacklogLimits(unsaved=3), batches=BatchLimits(operations=1))
    batch = only(world.receive(*range(5)), WriteBatch)
    batch = only(world.answer(batch, WRITTEN), WriteBatch)
    orders = world.tick(5.0)
    for _ in range(2):
        batch = next(
            write_batch for write_batch in world.answer(batch, WRITTEN) if isinstance(write_batch, WriteBatch)
        )
    world.tell(CheckpointSaved("0", 1, only(orders, SaveCheckpoint).checkpoint, saved=True))

    assert any(isinstance(each, PauseReceiving) for each in world.answer(batch, WRITTEN))


def test_receiving_pauses_when_too_much_is_settled_beyond_one_event_that_is_not():
    world = World(limits=BacklogLimits(unsaved=3), batches=BatchLimits(operations=4))
    effects = world.answer(only(world.receive(0, 1, 2, 3), WriteBatch), UNKNOWN, *[WRITTEN] * 3)
    saved = only(world.tick(5.0), SaveCheckpoint)
    assert only(effects, PauseReceiving)

    world.tell(CheckpointSaved("0", 1, saved.checkpoint, saved=True))
    assert world.pipeline.statistics(5.0).paused
    again = [effect for effect in world.effects if isinstance(effect, WriteBatch)][-1]
    assert ResumeReceiving() in world.answer(again, WRITTEN)


def test_one_that_waited_for_its_key_does_not_wait_for_the_flush_timer_again():
    world = World()
    world.receive(0, 1, 2, key="same")
    batch = only(world.tick(1.0), WriteBatch)
    for _ in range(2):
        batch = only(world.answer(batch, WRITTEN, at=world.now + 0.01), WriteBatch)
    assert numbers(batch) == [2]


def test_receiving_pauses_before_the_backlog_ends_the_process():
    world = World(limits=BacklogLimits(backlog_of=10), batches=BatchLimits(flush_after=100.0))

    assert only(world.receive(*range(5)), PauseReceiving)
    assert world.pipeline.room == 0


def test_routes_are_read_again_for_a_further_split_but_not_in_a_loop():
    world = World(batches=BatchLimits(operations=1), routes=Routes(("",), ("0",)))
    batch = only(world.receive(record(0, route="9")), WriteBatch)
    world.answer(batch, MOVED)
    again = only(world.tell(RoutesRead(Routes(("", "8"), ("1", "2")))), WriteBatch)

    assert world.answer(again, MOVED) == []
    assert world.wake_at() == 1.0
    assert only(world.tick(1.0), ReadRoutes)


def test_a_transactional_sink_gets_one_batch_of_a_partition_at_a_time_however_well_it_goes():
    world = World(transactional=True, routes=Routes(by_partition=True), batches=BatchLimits(operations=1))
    batch = only(world.receive(*range(10)), WriteBatch)
    for second in range(1, 6):
        batch = only(world.answer(batch, WRITTEN, at=second * 1.1), WriteBatch)


def test_the_oldest_of_a_lane_leaves_first_also_when_it_waited_for_its_key():
    world = World()
    world.receive(0, 1, key="same")
    first = only(world.tick(1.0), WriteBatch)
    assert world.receive(2, at=1.5) == []

    assert numbers(only(world.answer(first, WRITTEN), WriteBatch)) == [1, 2]


def test_a_retry_that_is_due_in_a_throttled_lane_is_not_woken_for_in_a_loop():
    world = World(batches=BatchLimits(operations=2))
    batch = only(world.receive(0, 1), WriteBatch)
    world.answer(batch, UNKNOWN, WriteResult(Outcome.RETRY, 429, retry_after=3.0))

    assert world.wake_at() == 3.0
    assert world.tick(2.0) == []
    assert world.wake_at() == 3.0


def test_lanes_share_a_scarce_rate():
    world = World(rate=10, batches=BatchLimits(flush_after=0.0), routes=Routes(("", "8"), ("low", "high")))
    orders = world.receive(*(record(n, route="19"[n % 2]) for n in range(40)))
    lanes = []
    while world.now < 1.5:
        while orders:
            effect = orders.pop()
            lanes += [effect.batch.lane] * len(effect.batch.records)
            orders += world.answer(effect, WRITTEN)
        orders = [
            write_batch for write_batch in world.tick(world.wake_at()) if isinstance(write_batch, WriteBatch)
        ]
    assert abs(lanes.count("low") - lanes.count("high")) <= 1


def several(number, *keys):
    return [
        structs.replace(record(number, key=key), of=len(keys), index=place) for place, key in enumerate(keys)
    ]


def test_a_draining_claim_writes_what_is_before_an_event_that_is_written_in_part():
    world = World(batches=BatchLimits(operations=1, concurrency=1))
    first = only(world.receive(record(0, key="a")), WriteBatch)
    world.receive(record(1, key="a"), *several(2, "b", "a"), record(3, key="c"))
    second = only(world.answer(first, WRITTEN), WriteBatch)
    assert [each.key for each in second.batch.records] == ["b"]

    world.tell(PartitionDraining("0", 1))
    written, batch = [], second
    while batch is not None:
        written += [(each.event.sequence_number, each.key) for each in batch.batch.records]
        batch = next((each for each in world.answer(batch, WRITTEN) if isinstance(each, WriteBatch)), None)
    assert written == [(2, "b"), (1, "a"), (2, "a")]


def test_no_mark_of_a_draining_claim_passes_an_event_that_is_not_written():
    """Event 1 has a rejected record, so it is not given up; its row must not be stored before that of event 0."""
    sinks = {"rows": Routes(by_partition=True), "documents": Routes()}
    world = World(routes=Routes(of_sinks=sinks), batches=BatchLimits(flush_after=5.0))
    bad, row = several(1, "x", "y")
    world.receive(
        structs.replace(record(0), sink="rows"),
        structs.replace(bad, rejection=Rejection("bad", "")),
        structs.replace(row, sink="rows"),
    )
    letters = world.effects[-2]
    batch = only(world.tell(PartitionDraining("0", 1)), WriteBatch)
    assert numbers(batch) == [0]
    world.answer(batch, WRITTEN)

    assert numbers(only(world.tell(DeadLettersStored(letters.lot_id, stored=True)), WriteBatch)) == [1]


def test_a_draining_claim_writes_what_is_before_a_mark():
    rows = Routes(by_partition=True, batches=BatchLimits(operations=1))
    world = World(routes=Routes(of_sinks={"rows": rows, "documents": Routes()}))
    first, second = (structs.replace(record(n), sink=sink) for n, sink in enumerate(["documents", "rows"]))
    world.answer(only(world.receive(first, second), WriteBatch), WRITTEN)

    assert numbers(only(world.tell(PartitionDraining("0", 1)), WriteBatch)) == [0]


def test_no_checkpoint_skips_what_is_beyond_an_event_that_is_written_in_part():
    world = World(batches=BatchLimits(operations=3), limits=BacklogLimits(checkpoint_every=5.0))
    first = only(world.receive(*several(0, "a", "b"), record(1, key="a"), record(2, key="c")), WriteBatch)
    assert [each.key for each in first.batch.records] == ["a", "b", "c"]
    world.answer(first, WRITTEN, UNKNOWN, WRITTEN, at=0.5)
    again = only(world.tick(4.0), WriteBatch)
    answers = [WRITTEN if number == 1 else UNKNOWN for number in numbers(again)]
    assert WRITTEN in answers
    world.answer(again, *answers)

    checkpoint = only(world.tick(5.0), SaveCheckpoint).checkpoint
    assert (checkpoint.sequence_number, checkpoint.beyond) == (-1, ())


def test_an_empty_partition_has_no_lag():
    pipeline = Pipeline(BacklogLimits(), BatchLimits(), Routes(), rate=None, transactional=False, now=0.0)
    pipeline.handle(PartitionClaimed(Claim("0", "me", 1)), now=0.0)
    lags = [pipeline.statistics(0.0).partitions[0].lag]
    for newest in (-1, 0, -1):
        pipeline.handle(EventsReceived("0", 1, (), newest), now=1.0)
        lags.append(pipeline.statistics(1.0).partitions[0].lag)

    assert lags == [None, 0, None, None]
