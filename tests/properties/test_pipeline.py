"""The pipeline against a naive model, through all its inputs in any order."""

import itertools
import math
from collections import defaultdict, deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import structs

from consumer.core.backlog import high_count
from consumer.core.effects import (
    BatchWritten,
    CheckpointSaved,
    DeadLettersStored,
    EventsReceived,
    Fail,
    ParkedEnded,
    PartitionClaimed,
    PartitionDrained,
    PartitionDraining,
    PartitionLost,
    PauseReceiving,
    RateChanged,
    ReadRoutes,
    RequestUnitsChanged,
    ResumeReceiving,
    RoutesRead,
    SaveCheckpoint,
    StoreDeadLetters,
    Tick,
    WakeAt,
    WriteBatch,
)
from consumer.core.pipeline import Pipeline
from consumer.core.work import OPERATION_OVERHEAD
from consumer.model import Claim, Dropped, Event, Outcome, Record, Rejection, Routes, WriteResult
from consumer.options import NO_PARKING, BacklogLimits, BatchLimits, ParkingRules, ParkOrder
from tests.support.consumer.pipeline_checks import check_pipeline, works_of

PARTITIONS = ("0", "1")
PARKING = (
    NO_PARKING,
    ParkingRules(("not_json", "status_400"), most=2),
    ParkingRules(("status_400",), order=ParkOrder.KEY),
)
PARTS = 3  # records of an event at most
ROUTES = (
    Routes(("",), ("a",)),
    Routes(("", "8"), ("b", "c")),
    Routes(("", "4", "8", "c"), ("d", "e", "f", "c")),
)
WRITTEN = WriteResult(Outcome.WRITTEN, 201, request_units=5.0)
ANSWERS = {
    "written": WRITTEN,
    "throttled": WriteResult(Outcome.RETRY, 429, "throttled", retry_after=0.3, request_units=1.5),
    "unknown": WriteResult(Outcome.RETRY, 0, "connection lost"),
    "moved": WriteResult(Outcome.RETRY, 410, "split", rerouted=True),
    "rejected": WriteResult(Outcome.REJECT, 400, "bad"),
}
LETTER = WriteResult(Outcome.WRITTEN, reason="not_json")
"""What a transactional sink says of an event that it kept as a dead letter."""


class Given:
    """One record of an event as it was received once."""

    def __init__(self, record, event, arrival):
        self.record, self.event, self.arrival = record, event, arrival
        self.claim = event.claim
        self.attempts = 0
        self.rejected = record.rejection is not None
        self.rejected_as = record.rejection.reason if record.rejection else ""
        self.behind = False  # parked behind an earlier record of its key
        self.tried_again = False
        self.buried = False  # in a stored dead letter, or parked
        self.done = False  # written, or not to be written
        event.parts.append(self)

    @property
    def number(self):
        return self.record.event.sequence_number


class Received:
    """One event."""

    def __init__(self, claim, *, transactional):
        self.claim, self.parts = claim, []
        self.transactional = transactional

    @property
    def rejected(self):
        return any(part.rejected for part in self.parts)

    @property
    def begun(self):
        """Whether a record was sent, or rejected while the event has others."""
        at_once = len(self.parts) > 1 and not self.transactional
        return any(part.attempts or (at_once and part.rejected) for part in self.parts)

    @property
    def settled(self):
        return all(part.done or part.buried for part in self.parts)


parts = st.tuples(
    st.sampled_from("abcdef"),  # key
    st.sampled_from("159d"),  # route
    st.sampled_from([None] * 6 + [Rejection("not_json", "no"), Dropped("stale")]),
    st.sampled_from([2, 2, 2, 500]),  # size
)


def records_of(event, drawn, sinks="by key"):
    return [
        Record(
            event,
            key if sinks in {"by key", "routed"} else f"{event.partition}~{event.sequence_number}",
            b"x" * size,
            "[1]",
            route,
            rejection=kind if isinstance(kind, Rejection) else None,
            dropped=kind if isinstance(kind, Dropped) else None,
            sink=("ordered" if key in "ace" else "by key") if sinks == "routed" else "",
            index=index,
            of=len(drawn),
        )
        for index, (key, route, kind, size) in enumerate(drawn)
    ]


class ClaimModel:
    def __init__(self, claim):
        self.claim = claim
        self.open = True
        self.draining = False
        self.drained = False
        self.given = {}  # sequence number -> Received
        checkpoint = claim.checkpoint
        self.base = checkpoint.sequence_number if checkpoint else -1
        self.beyond = {n for a, b in (checkpoint.beyond if checkpoint else ()) for n in range(a, b + 1)}
        self.seen_settled = set()  # of `beyond`, received again

    def mark(self):
        done = {n for n, each in self.given.items() if each.settled} | self.seen_settled
        open_ = [n for n, each in self.given.items() if not each.settled]
        lowest = min(open_, default=math.inf)
        return max([self.base, *(n for n in done if n < lowest)])


class PipelineMachine(RuleBasedStateMachine):
    sound = False

    @initialize(
        sinks=st.sampled_from(["transactional", "by key", "ordered", "routed", "routed"]),
        coalesce=st.booleans(),
        rate=st.sampled_from([None, None, 3.0, 20.0]),
        units=st.sampled_from([None, None, 4.0, 100.0]),
        operations=st.integers(1, 4),
        size=st.sampled_from([220_201, 3 * OPERATION_OVERHEAD]),
        high=st.sampled_from([6, 15, 1000]),
        unsaved=st.sampled_from([5, 1000]),
        parking=st.sampled_from(PARKING),
    )
    def begin(self, sinks, coalesce, rate, units, operations, size, high, unsaved, parking):
        self.parking = NO_PARKING if sinks == "transactional" else parking
        self.parked = {}  # (partition, sequence number) -> parts that are stored to be tried again
        self.now = 100.0
        self.sinks = sinks
        self.transactional = sinks == "transactional"
        self.limits = BacklogLimits(10**9, math.inf, high, high_bytes=2_000, unsaved=unsaved, poison=10**9)
        self.batch_limits = BatchLimits(operations, size, coalesce=coalesce)
        self.rate = self.first_rate = rate
        self.first_units = units
        self.first_routes = self.routes_of(ROUTES[0])
        self.pipeline = self.make()
        self.history = []  # (input, now, effects)
        self.inputs_of = {}  # id of a record -> Given
        self.claims = {}  # partition -> ClaimModel
        self.epochs = defaultdict(int)
        self.stored = {}
        self.next = defaultdict(int)
        self.arrivals = 0
        self.batches, self.dead_letters, self.saves = {}, {}, []
        self.parks = {}  # by lot whether it is to be parked
        self.reading = False
        self.paused = False
        self.wake = self.now + self.limits.checkpoint_every
        self.newest = {}  # key -> arrival of the last write that arrived, or was on its way
        self.documents = {}
        self.starts = []

    def routes_of(self, by_key):
        if self.sinks == "routed":
            return Routes(of_sinks={"by key": by_key, "ordered": Routes(by_partition=True)})
        return by_key if self.sinks == "by key" else Routes(by_partition=True)

    def is_ordered(self, record):
        return self.sinks in {"transactional", "ordered"} or record.sink == "ordered"

    def make(self):
        return Pipeline(
            self.limits,
            self.batch_limits,
            self.first_routes,
            transactional=self.transactional,
            rate=self.first_rate,
            request_units=self.first_units,
            now=100.0,
            parking=self.parking,
        )

    # -- every input goes through here

    def tell(self, item):
        self.sound = False
        effects = list(self.pipeline.handle(item, now=self.now))
        self.history.append((item, self.now, effects))
        check_pipeline(self.pipeline)
        assert [type(each) for each in effects].count(WakeAt) == 1
        for effect in effects:
            self.perform(effect)
        assert self.wake > self.now, "what is due was not done: a busy loop"
        self.check()
        self.sound = True
        return [each for each in effects if not isinstance(each, WakeAt)]

    def perform(self, effect):
        match effect:
            case WriteBatch():
                self.check_batch(effect.batch)
                self.batches[effect.batch.batch_id] = effect.batch
            case StoreDeadLetters():
                assert effect.park not in self.parks.values(), "lots are stored one after the other"
                self.parks[effect.lot_id] = effect.park
                covered = []
                for each in effect.rejected:
                    given_ = self.inputs_of[id(each.record)]
                    assert given_.claim.open, "a letter of a claim that is over"
                    assert each.attempts == given_.attempts
                    rejected = [
                        part
                        for part in given_.event.parts
                        if part.rejected and self.is_parkable(part) is effect.park
                    ]
                    assert given_ in rejected
                    told = [f"record {part.record.index}" for part in rejected if part.record.of > 1]
                    assert all(words in each.rejection.detail for words in told)
                    covered += rejected
                assert len({id(part.event) for part in covered}) == len(effect.rejected), "two letters of one"
                self.dead_letters[effect.lot_id] = covered
            case SaveCheckpoint():
                self.check_checkpoint(effect)
                self.saves.append(effect)
            case ReadRoutes():
                assert not self.reading
                self.reading = True
            case PauseReceiving():
                assert not self.paused
                self.paused = True
            case ResumeReceiving():
                assert self.paused
                stats = self.pipeline.statistics(self.now)
                assert stats.backlog_count <= high_count(self.limits, stats.rate_limit) // 2
                assert stats.backlog_bytes <= self.limits.high_bytes // 2
                self.paused = False
            case PartitionDrained():
                claim = self.claims[effect.partition]
                assert claim.claim.epoch == effect.epoch
                assert claim.draining
                assert not claim.drained
                claim.drained = True
                begun = [each for each in claim.given.values() if each.begun and not each.settled]
                assert not begun, "drained with work begun"
            case WakeAt():
                self.wake = effect.at
            case Fail():
                raise AssertionError(str(effect.error))

    def is_parkable(self, part):
        if not self.parking.reasons or self.is_ordered(part.record):
            return False
        return part.behind or (part.rejected_as in self.parking.reasons)

    def is_behind(self, claim, record):
        """Whether an earlier record of its key is parked, or about to be."""
        if not self.parking.by_key or self.is_ordered(record):
            return False
        return any(
            part.record.key == record.key
            and part.rejected
            and self.is_parkable(part)
            and not part.tried_again
            for event in claim.given.values()
            for part in event.parts
            if part.record is not record
        )

    def check_batch(self, batch):
        records = [self.inputs_of[id(record)] for record in batch.records]
        ordered = self.is_ordered(batch.records[0])
        assert len({record.sink for record in batch.records}) == 1
        alone = ordered and len({record.number for record in records}) == 1
        assert alone or 1 <= len(records) <= self.batch_limits.operations
        size = sum(len(record.record.payload) + len("[1]") + OPERATION_OVERHEAD for record in records)
        assert alone or len(records) == 1 or size <= self.batch_limits.bytes
        on_the_way = {record.key for each in self.batches.values() for record in each.records}
        if ordered:
            self.check_order(batch, records)
        else:
            keys = [record.record.key for record in records]
            assert len(set(keys)) == len(keys)
            assert not on_the_way & set(keys), "two records of a key on the way"
        for each in records:
            assert each.claim.open, "a write of a claim that is over"
            assert not each.done
            if not each.event.begun and not self.batch_limits.coalesce:
                assert not each.claim.draining, "a start of a claim that ends"
            each.attempts += 1
            if not ordered and not self.batch_limits.coalesce:
                assert each.arrival >= self.newest.get(each.record.key, 0), "a key's order"
                self.newest[each.record.key] = each.arrival
        if self.rate is not None:
            fresh = sum(record.attempts == 1 for record in records)
            self.starts.append((self.now, fresh))
            window = sum(count for at, count in self.starts if at + 1.0 > self.now)
            # All records of an event start together where its position is stored with them.
            assert window <= math.ceil(self.rate) + (PARTS - 1) * (self.sinks != "by key")

    def check_order(self, batch, records):
        assert batch.lane not in {each.lane for each in self.batches.values()}
        claim, sink = records[0].claim, batch.records[0].sink
        numbers = [record.number for record in records]
        assert numbers == sorted(numbers)
        open_ = [
            part
            for event in claim.given.values()
            for part in event.parts
            if part.record.sink == sink and not part.done and (self.transactional or not part.rejected)
        ]
        assert claim.draining or numbers[0] == min(part.number for part in open_)
        of_events = {id(part) for part in open_ if part.number in numbers}
        assert of_events == {id(part) for part in records}, "an event in two batches"
        if not self.transactional:
            passed = [part for n, event in claim.given.items() if n <= numbers[-1] for part in event.parts]
            assert all(part.buried for part in passed if part.rejected), (
                "it passed an event without its letter"
            )

    def check_checkpoint(self, effect):
        claim = self.claims[effect.claim.partition]
        assert claim.claim == effect.claim
        checkpoint = effect.checkpoint
        assert checkpoint.sequence_number == claim.mark()
        if checkpoint.sequence_number >= 0:
            assert checkpoint.offset == f"o{checkpoint.sequence_number}"
        said = {n for a, b in checkpoint.beyond for n in range(a, b + 1)}
        done = {n for n, each in claim.given.items() if each.settled} | claim.beyond
        assert said & set(claim.given) <= done
        assert {n for n in done & set(claim.given) if n > claim.mark()} <= said
        assert said - set(claim.given) <= claim.beyond

    def check(self):
        stats = self.pipeline.statistics(self.now)
        assert {partition.partition for partition in stats.partitions} == set(self.claims)
        for partition in stats.partitions:
            claim = self.claims[partition.partition]
            assert partition.epoch == claim.claim.epoch
            assert partition.low_water == claim.mark()
            assert partition.unsettled == sum(not one.settled for one in claim.given.values())
            begun = [one for one in claim.given.values() if one.begun and not one.settled]
            assert stats.backlog_count >= len(begun)
        assert stats.paused == self.paused
        high = high_count(self.limits, stats.rate_limit)
        if stats.backlog_count >= high or stats.backlog_bytes >= self.limits.high_bytes:
            assert self.paused
        if stats.backlog_count == 0 and not self.saves and not self.dirty():
            assert not self.paused
        dead_letters = sum(
            one.settled and one.rejected for claim in self.claims.values() for one in claim.given.values()
        )
        assert stats.totals.dead_letters >= dead_letters

    def dirty(self):
        return any(claim.mark() > self.stored_mark(name) for name, claim in self.claims.items())

    def stored_mark(self, name):
        return self.stored[name].sequence_number if name in self.stored else -1

    # -- inputs

    @rule(name=st.sampled_from(PARTITIONS))
    def claim(self, name):
        self.epochs[name] += 1
        made = Claim(name, "me", self.epochs[name], self.stored.get(name))
        if name in self.claims:
            self.claims[name].open = False
        self.claims[name] = ClaimModel(made)
        self.next[name] = made.checkpoint.sequence_number + 1 if made.checkpoint else 0
        self.tell(PartitionClaimed(made))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def old_claim(self, data):
        name = data.draw(st.sampled_from(sorted(self.claims)))
        epoch = self.epochs[name] - data.draw(st.integers(0, 2))
        before = self.pipeline.statistics(self.now)
        self.tell(PartitionClaimed(Claim(name, "me", epoch)))
        assert self.pipeline.statistics(self.now).partitions == before.partitions

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        back=st.sampled_from([0, 0, 0, 3]),
        events=st.lists(
            st.tuples(
                st.sampled_from([1, 1, 1, 3]),  # the step of the sequence number
                st.just([]) | st.lists(parts, min_size=2, max_size=PARTS),
                parts,
            ),
            max_size=6,
        ),
    )
    def receive(self, data, back, events):
        name = data.draw(st.sampled_from(sorted(self.claims)))
        claim = self.claims[name]
        number = max(0, self.next[name] - back) - 1
        records = []
        for step, several, one in events:
            number += step
            event = Event(name, number, f"o{number}", 0.0, b"{}")
            records += records_of(event, several or [one], self.sinks)
        self.next[name] = max(self.next[name], number + 1)
        self.hand_over(claim, records)
        self.tell(EventsReceived(name, claim.claim.epoch, records, number))

    def hand_over(self, claim, records):
        highest = max([claim.base, *claim.given, *claim.seen_settled])
        for record in records:
            number = record.event.sequence_number
            self.arrivals += 1
            if not record.index:
                event = Received(claim, transactional=self.transactional)
            one = self.inputs_of[id(record)] = Given(record, event, self.arrivals)
            one.done = record.dropped is not None and not self.transactional
            if claim.draining or (record.index and claim.given.get(number) is not event):
                continue  # decided with the first one
            one.behind = not (one.rejected or one.done) and self.is_behind(claim, record)
            if record.index:
                one.rejected |= one.behind
                continue
            if (
                claim.draining
                or number in claim.given
                or number in claim.seen_settled
                or number <= claim.mark()
            ):
                continue
            if number > highest and number in claim.beyond:
                claim.seen_settled.add(number)
            else:
                claim.given[number] = event
                one.rejected |= one.behind
            highest = max(highest, number)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def receive_late(self, data):
        """Events that an older claim, or none, received."""
        name = data.draw(st.sampled_from(PARTITIONS))
        epoch = self.epochs[name] - (name in self.claims)
        record = Record(Event(name, self.next[name], "o", 0.0, b""), "a", b"", "[1]", "1")
        before = self.pipeline.statistics(self.now)
        self.tell(EventsReceived(name, epoch, [record]))
        assert self.pipeline.statistics(self.now).partitions == before.partitions

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def written(self, data):
        batch = self.batches[data.draw(st.sampled_from(sorted(self.batches)))]
        if self.is_ordered(batch.records[0]):
            kind = data.draw(st.sampled_from(["written", "written", "unknown"]))
            kinds = [kind] * len(batch.records)
            if not self.transactional and data.draw(st.booleans()):
                numbers = [record.event.sequence_number for record in batch.records]
                at = data.draw(st.sampled_from(range(len(numbers))))  # whose event is not written at all
                kinds = ["written" if n < numbers[at] else "unknown" for n in numbers]
                kinds[at] = "rejected"
        else:
            usual = ["written"] * 4 + sorted(ANSWERS)
            kinds = [data.draw(st.sampled_from(usual)) for _ in batch.records]
        self.answer(batch, kinds)

    def answer(self, batch, kinds):
        del self.batches[batch.batch_id]
        results = []
        for record, kind in zip(batch.records, kinds, strict=True):
            one, result = self.inputs_of[id(record)], ANSWERS[kind]
            if result.outcome is Outcome.WRITTEN:
                if self.transactional and one.rejected:
                    result = LETTER
                self.write(one)
            elif result.outcome is Outcome.REJECT:
                one.rejected, one.rejected_as = True, "status_400"
                self.park_behind(one)
            results.append(result)
        self.tell(BatchWritten(batch.batch_id, results))

    def write(self, one):
        if not self.is_ordered(one.record):
            assert one.arrival > self.documents.get(one.record.key, 0), "an older version over a newer"
            self.documents[one.record.key] = one.arrival
        self.settle(one)
        if self.batch_limits.coalesce and not self.is_ordered(one.record):
            for claim in self.claims.values():
                for other in [part for event in claim.given.values() for part in event.parts]:
                    if self.superseded(other, one):
                        self.settle(other)

    def superseded(self, other, one):
        if other.claim.draining and not self.pipeline_holds(other):
            return False  # it was dropped: the next owner writes it
        return other.record.key == one.record.key and other.arrival < one.arrival and not other.rejected

    def pipeline_holds(self, other):
        return any(work.record is other.record for work in self.held)

    @property
    def held(self):
        return works_of(self.pipeline._lanes)

    def settle(self, one):
        if one.claim.open:
            one.done = True

    @precondition(lambda self: self.dead_letters)
    @rule(stored=st.booleans())
    def letters_stored(self, stored):
        lot_id, covered = self.dead_letters.popitem()
        if stored:
            self.settle_letters(covered)
        self.note_parked(lot_id, covered, stored=stored)
        self.tell(DeadLettersStored(lot_id, stored))

    def note_parked(self, lot_id, covered, *, stored):
        if self.parks.pop(lot_id) and stored:
            for part in covered:
                if part.claim.open:
                    self.parked.setdefault((part.record.event.partition, part.number), []).append(part)
        for name, claim in self.claims.items():
            count = sum(
                partition == name and parts[0].claim is claim for (partition, _), parts in self.parked.items()
            )
            assert count <= self.parking.most

    def park_behind(self, one):
        """What waits for the key of a record that is parked."""
        if self.parking.by_key and self.is_parkable(one) and one.claim.open:
            for event in one.claim.given.values():
                for part in event.parts:
                    same = part.record.key == one.record.key and not self.is_ordered(part.record)
                    if same and part.arrival > one.arrival and not (part.done or part.rejected):
                        part.rejected, part.behind = True, True

    @precondition(lambda self: any(parts[0].claim.open for parts in self.parked.values()))
    @rule(data=st.data())
    def try_again(self, data):
        """The shell has written a parked event, the first of its keys."""
        open_ = sorted(key for key, parts in self.parked.items() if parts[0].claim.open)
        self.end_parked(data.draw(st.sampled_from(open_)))

    def end_parked(self, key):
        parts = self.parked.pop(key)
        for part in parts[0].event.parts:
            part.tried_again |= part in parts
        self.tell(ParkedEnded(key[0], parts[0].claim.claim.epoch, key[1], len(parts), is_dead_letter=False))

    def settle_letters(self, covered):
        for part in covered:
            part.buried |= part.claim.open

    @precondition(lambda self: self.saves)
    @rule(data=st.data(), saved=st.booleans(), arrived=st.booleans())
    def checkpoint_saved(self, data, saved, arrived):
        effect = self.saves.pop(data.draw(st.integers(0, len(self.saves) - 1)))
        name = effect.claim.partition
        current = name in self.claims and self.claims[name].claim == effect.claim
        if current and (saved or arrived):
            self.stored[name] = effect.checkpoint
        orders = self.tell(CheckpointSaved(name, effect.claim.epoch, effect.checkpoint, saved))
        if not saved:
            again = [order for order in orders if isinstance(order, SaveCheckpoint)]
            assert not any(each.claim == effect.claim for each in again), "a hot loop"

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def drain(self, data):
        name = data.draw(st.sampled_from(sorted(self.claims)))
        self.claims[name].draining = True
        self.tell(PartitionDraining(name, self.claims[name].claim.epoch))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def lose(self, data):
        name = data.draw(st.sampled_from(sorted(self.claims)))
        epoch = self.claims[name].claim.epoch
        self.tell(PartitionLost(name, epoch - 1))  # of an older claim: nothing
        self.claims.pop(name).open = False
        self.tell(PartitionLost(name, epoch))

    @rule(units=st.sampled_from([None, 3.0, 60.0]))
    def change_request_units(self, units):
        self.tell(RequestUnitsChanged(units))

    @rule(rate=st.sampled_from([None, 2.0, 7.5, 50.0]))
    def change_rate(self, rate):
        self.rate = rate
        self.starts.clear()
        self.tell(RateChanged(rate))

    @precondition(lambda self: self.reading)
    @rule(routes=st.sampled_from([None, *ROUTES]))
    def routes_read(self, routes):
        self.reading = False
        self.tell(RoutesRead(routes and self.routes_of(routes)))

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.3, 1.0, 2.0, 10.0]))
    def wait(self, seconds):
        self.now += seconds
        self.tell(Tick())

    @rule()
    def wait_for_the_wake(self):
        self.now = self.wake
        self.tell(Tick())

    # -- at the end

    def teardown(self):
        if not self.sound:  # before the first step, or after a step that failed
            return
        self.quiesce()
        self.replay()

    def quiesce(self):
        """With a sink and stores that say yes, everything received is settled, and soon."""
        works = sum(len(event.parts) for claim in self.claims.values() for event in claim.given.values())
        began = self.now
        for _ in range(200 + 30 * works):
            if self.batches:
                batch = next(iter(self.batches.values()))
                self.answer(batch, ["written"] * len(batch.records))
            elif self.dead_letters:
                self.do_letters()
            elif self.saves:
                self.do_save()
            elif ready := [key for key, parts in self.parked.items() if parts[0].claim.open]:
                self.end_parked(min(ready))
            elif self.reading:
                self.reading = False
                self.tell(RoutesRead(self.routes_of(ROUTES[1])))
            elif self.quiet():
                break
            else:
                self.now = self.wake
                self.tell(Tick())
        assert self.quiet(), "not everything was settled"
        assert self.now - began < 60.0 + works
        for claim in self.claims.values():
            assert claim.drained == claim.draining
        assert not self.paused
        stats = self.pipeline.statistics(self.now)
        assert (stats.backlog_count, stats.backlog_bytes, stats.oldest_age) == (0, 0, 0.0)
        assert not self.pipeline._lanes._keys

    def do_letters(self):
        lot_id, covered = self.dead_letters.popitem()
        self.settle_letters(covered)
        self.note_parked(lot_id, covered, stored=True)
        self.tell(DeadLettersStored(lot_id, stored=True))

    def do_save(self):
        effect = self.saves.pop(0)
        name = effect.claim.partition
        if name in self.claims and self.claims[name].claim == effect.claim:
            self.stored[name] = effect.checkpoint
        self.tell(CheckpointSaved(name, effect.claim.epoch, effect.checkpoint, saved=True))

    def quiet(self):
        return (
            all(
                all(one.settled for one in claim.given.values())
                and (self.transactional or self.stored_mark(name) == claim.mark())
                for name, claim in self.claims.items()
                if not claim.draining
            )
            and all(claim.drained for claim in self.claims.values() if claim.draining)
            and not self.paused
        )

    def replay(self):
        """What a pipeline orders depends on its inputs alone."""
        again = self.make()
        for item, now, effects in self.history:
            assert list(again.handle(item, now=now)) == effects


TestPipeline = PipelineMachine.TestCase
TestPipeline.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def settled_by(pieces, coalesce):
    """Documents, letters and the last checkpoint, with a sink that always writes what it can."""
    pipeline = Pipeline(
        BacklogLimits(), BatchLimits(3, coalesce=coalesce), ROUTES[1], transactional=False, rate=None, now=0.0
    )
    documents, dead_letters, checkpoints = {}, set(), {}
    inputs = deque([PartitionClaimed(Claim("0", "me", 1))])
    inputs += [EventsReceived("0", 1, piece) for piece in pieces]
    now, wake = 0.0, 0.0
    while inputs or now < 30.0:
        now = now if inputs else max(now, wake)
        for effect in pipeline.handle(inputs.popleft() if inputs else Tick(), now=now):
            match effect:
                case WriteBatch():
                    documents |= {
                        record.key: (record.event.sequence_number, record.index)
                        for record in effect.batch.records
                    }
                    inputs.append(BatchWritten(effect.batch.batch_id, [WRITTEN] * len(effect.batch.records)))
                case StoreDeadLetters():
                    dead_letters |= {each.record.event.sequence_number for each in effect.rejected}
                    inputs.append(DeadLettersStored(effect.lot_id, stored=True))
                case SaveCheckpoint():
                    checkpoints["0"] = effect.checkpoint
                    inputs.append(CheckpointSaved("0", 1, effect.checkpoint, saved=True))
                case WakeAt():
                    wake = effect.at
    return documents, dead_letters, checkpoints


@given(
    st.lists(st.lists(parts, min_size=1, max_size=PARTS)),
    st.sets(st.integers(0, 50)),
    st.booleans(),
)
def test_where_the_events_are_cut_changes_nothing_that_is_settled(events, cuts, coalesce):
    received = [
        records_of(Event("0", number, f"o{number}", 0.0, b"{}"), drawn) for number, drawn in enumerate(events)
    ]
    bounds = sorted({0, len(received), *(cut for cut in cuts if cut < len(received))})
    records = list(itertools.chain(*received))
    pieces = [list(itertools.chain(*received[a:b])) for a, b in itertools.pairwise(bounds)]

    documents, dead_letters, checkpoints = settled_by(pieces, coalesce)

    assert (documents, dead_letters, checkpoints) == settled_by([records], coalesce)
    good = [record for record in records if record.rejection is None and record.dropped is None]
    assert documents == {each.key: (each.event.sequence_number, each.index) for each in good}
    assert dead_letters == {each.event.sequence_number for each in records if each.rejection is not None}
    assert not records or checkpoints["0"].sequence_number == len(received) - 1


@given(data=st.data(), transactional=st.booleans())
def test_whole_pieces_and_batches_are_taken_in_and_settled_as_record_by_record(data, transactional):
    """Two pipelines with the same inputs, one of which never takes the ways for whole pieces and batches."""
    routes = Routes(by_partition=True) if transactional else ROUTES[1]
    hot, slow = (
        Pipeline(
            BacklogLimits(checkpoint_after=3, high_count=20),
            BatchLimits(operations=4, flush_after=0.5, coalesce=True),
            routes,
            transactional=transactional,
            rate=None,
            now=0.0,
        )
        for _ in range(2)
    )
    slow._backlog.settle_written, slow._backlog.receive_all = lambda *_: False, lambda *_: []
    now, numbers, waiting = 0.0, defaultdict(itertools.count), deque()

    def handle(item):
        found = [pipeline.handle(item, now=now) for pipeline in (hot, slow)]
        assert found[0] == found[1]
        waiting.extend(found[0])

    for epoch in (1, 2):
        for name in PARTITIONS if epoch == 2 else ():
            handle(PartitionDraining(name, 1))
        for name in PARTITIONS:
            handle(PartitionClaimed(Claim(name, "me", epoch)))
        for _ in range(data.draw(st.integers(1, 6))):
            name, records = data.draw(st.sampled_from(PARTITIONS)), []
            for key in data.draw(st.lists(st.sampled_from("aab"), max_size=6)):
                again = data.draw(st.sampled_from([0, 0, 0, 0, 1, 2]))  # received before
                number = next(numbers[name]) if not again else max(0, next(numbers[name]) - again)
                event = Event(name, number, f"o{number}", 0.0, b"{}")
                of = data.draw(st.sampled_from([1, 1, 1, 2]))
                made = [Record(event, f"{key}{n}", b"{}", "[1]", key, index=n, of=of) for n in range(of)]
                if data.draw(st.sampled_from([False] * 5 + [True])):
                    kinds = {"rejection": Rejection("not_json", "no")}, {"dropped": Dropped("stale")}
                    made[0] = structs.replace(made[0], **data.draw(st.sampled_from(kinds)))
                records += made
            handle(EventsReceived(name, epoch, tuple(records), None))
            now += data.draw(st.sampled_from([0.0, 0.4, 1.1]))
            handle(Tick())
            while waiting:
                effect = waiting.popleft()
                if isinstance(effect, WriteBatch):
                    answers = data.draw(st.sampled_from([["written"], ["written"], [*ANSWERS]]))
                    results = tuple(
                        ANSWERS[data.draw(st.sampled_from(answers))] for _ in effect.batch.records
                    )
                    if transactional:
                        results = tuple(
                            LETTER if each.outcome is Outcome.REJECT else each for each in results
                        )
                    handle(BatchWritten(effect.batch.batch_id, results))
                elif isinstance(effect, SaveCheckpoint):
                    claim = effect.claim
                    handle(CheckpointSaved(claim.partition, claim.epoch, effect.checkpoint, saved=True))
                elif isinstance(effect, StoreDeadLetters):
                    handle(DeadLettersStored(effect.lot_id, stored=True))
            assert hot.statistics(now) == slow.statistics(now)
            check_pipeline(hot)
