"""A whole fleet in virtual time: hub, consumers, sink and stores, with faults from a seed, and the checker's rules.

Every consumer is a real Pipeline; hub, sink, checkpoint store and leases are the plainest models of themselves, with
answers that come late, are lost, or say no. The checker is in the shape of Jepsen's Kafka workload: after
quiescence and at every step it asserts

L  lost: every event is in the sink or in the dead letters
O  order: the final document of a key is its highest version
M  checkpoints of a partition never decrease
C  a checkpoint never passes an event that is not durable
B  the backlog stays within its limit
R  starts stay within the rate, in every second
P  progress: after the last fault everything is settled in bounded time
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from itertools import count

from consumer.core.effects import (
    BatchWritten,
    CheckpointSaved,
    DeadLettersStored,
    EventsReceived,
    Fail,
    PartitionClaimed,
    PartitionDrained,
    PartitionDraining,
    PauseReceiving,
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
from consumer.model import Batch, Checkpoint, Claim, Event, Outcome, Record, Rejection, Routes, WriteResult
from consumer.options import BacklogLimits, BatchLimits
from consumer.sinks.cosmos.steps import Known, Step, first_step
from consumer.versions import Change, Stamp
from tests.support.consumer.guarded_documents import GuardedDocuments, next_or_result
from tests.support.consumer.pipeline_checks import check_pipeline

TWO_LANES = Routes(("", "8"), ("low", "high"))
FOUR_LANES = Routes(("", "4", "8", "c"), ("low-1", "low-2", "high-1", "high-2"))


@dataclass
class Plan:
    """What a seed decides."""

    seed: int
    partitions: int = 3
    events: int = 400
    keys: int = 150
    poison: float = 0.02
    rate: float | None = None
    coalesce: bool = False
    consumers: int = 2
    calm: bool = False
    zombies: bool = False
    """Processes are stopped and robbed while their requests are on the way: then only the guard keeps the order."""
    guard: bool = False
    """The version guard is on: each write takes several steps, between which anything may happen."""

    @classmethod
    def of(cls, seed: int) -> Plan:
        rng = random.Random(seed)
        return cls(
            seed,
            partitions=rng.randint(1, 4),
            events=rng.randint(50, 500),
            keys=rng.choice([1, 5, 50, 100_000]),
            poison=rng.choice([0.0, 0.02, 0.2]),
            rate=rng.choice([None, None, 20.0, 100.0]),
            coalesce=rng.random() < 0.3,
            consumers=rng.randint(1, 3),
            calm=rng.random() < 0.1,
            zombies=rng.random() < 0.5,
            guard=rng.random() < 0.5,
        )


@dataclass
class Instance:
    """A process: dead ones do nothing, paused ones (SIGSTOP) do everything late."""

    name: str
    pipeline: Pipeline
    owned: dict[str, int] = field(default_factory=dict)  # partition -> epoch
    position: dict[str, int] = field(default_factory=dict)  # next sequence number to receive
    receiving: bool = True
    alive: bool = True
    stopped_until: float = 0.0
    wake: float = math.inf
    draining: dict[str, float] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed * 7919 + 1)
        self.now = 0.0
        self.queue: list[tuple[float, int, object]] = []
        self.numbers = count()
        self.names = count(1)
        self.fed = count()
        self.logs: dict[str, list[Record]] = {}
        self.documents: dict[str, int] = {}  # key -> version: the sequence number
        self.guarded = GuardedDocuments()
        self.durable: dict[str, set[int]] = {}
        self.dead_letters: set[tuple[str, int]] = set()
        self.checkpoints: dict[str, Checkpoint] = {}
        self.epochs: dict[str, int] = {}
        self.owners: dict[str, Instance | None] = {}
        self.routes = TWO_LANES
        self.instances: list[Instance] = []
        self.starts: dict[str, list[tuple[float, int]]] = {}
        self.trouble_until = 0.0 if plan.calm else 60.0
        self.sink_down_until = 0.0
        self.replayed = 0
        self._fill()

    def _fill(self) -> None:
        rng, plan = self.rng, self.plan
        for index in range(plan.partitions):
            partition, number = str(index), 0
            log = self.logs[partition] = []
            self.durable[partition] = set()
            self.epochs[partition] = 0
            self.owners[partition] = None
            for _ in range(plan.events):
                number += 1 if rng.random() < 0.97 else rng.randint(2, 5)  # gaps in the numbers
                key = f"{partition}/{rng.randrange(plan.keys)}"
                rejection = Rejection("poison", "no") if rng.random() < plan.poison else None
                event = Event(partition, number, f"o{number}", 0.0, b"{}")
                change = Change(key, Stamp(number, float(number), partition)) if plan.guard else None
                route = rng.choice("0123456789abcdef")
                log.append(Record(event, key, b"{}", "[]", route, rejection, change=change))

    # -- time

    def at(self, delay: float, what: object) -> None:
        heapq.heappush(self.queue, (self.now + delay, next(self.numbers), what))

    def run(self, until: float = 2_000.0) -> None:
        for _ in range(self.plan.consumers):
            self.start()
        self.at(0.0, self.balance)
        if not self.plan.calm:
            self.at(self.rng.uniform(0, 3), self.fault)
        while self.queue and not self.finished:
            self.now, _, what = heapq.heappop(self.queue)
            assert self.now < until, f"P: no progress, {self.story()}"
            what()  # type: ignore[operator]
        assert self.finished, f"P: ended with work left, {self.story()}"

    @property
    def finished(self) -> bool:
        if self.now < self.trouble_until:
            return False
        return all(
            {r.event.sequence_number for r in log} <= self.durable[p]
            and p in self.checkpoints
            and self.checkpoints[p].sequence_number == log[-1].event.sequence_number
            for p, log in self.logs.items()
        )

    def story(self) -> str:
        left = {p: len(log) - len(self.durable[p]) for p, log in self.logs.items()}
        return f"seed {self.plan.seed} at {self.now:.1f}: left {left}, checkpoints {self.checkpoints}"

    # -- instances

    def start(self) -> None:
        name = f"c{next(self.names)}"
        share = self.plan.rate
        pipeline = Pipeline(
            BacklogLimits(
                backlog_of=10_000, backlog_to=math.inf, high_count=60, poison=10_000, checkpoint_every=5.0
            ),
            BatchLimits(operations=10, coalesce=self.plan.coalesce),
            self.routes,
            transactional=False,
            rate=share,
            now=self.now,
        )
        instance = Instance(name, pipeline)
        self.instances.append(instance)
        self.starts[name] = []
        self.pump(instance)

    def kill(self, instance: Instance) -> None:
        instance.alive = False

    def stop(self, instance: Instance, seconds: float) -> None:
        instance.stopped_until = max(instance.stopped_until, self.now + seconds)

    def feed(self, instance: Instance, item: object, number: int | None = None) -> None:
        """A stopped process gets what came meanwhile afterwards, in the order of the numbers it came with."""
        if not instance.alive:
            return
        if instance.stopped_until > self.now:
            came = next(self.numbers) if number is None else number
            heapq.heappush(
                self.queue, (instance.stopped_until, came, lambda: self.feed(instance, item, came))
            )
            return
        for effect in instance.pipeline.handle(item, now=self.now):
            self.perform(instance, effect)
        if next(self.fed) % 20 == 0:  # it walks everything
            check_pipeline(instance.pipeline)
        assert instance.pipeline.statistics(self.now).backlog_count <= 60 + 25, f"B: {self.story()}"

    def perform(self, instance: Instance, effect: object) -> None:
        match effect:
            case WriteBatch():
                self.write(instance, effect)
            case StoreDeadLetters():
                self.store(instance, effect)
            case SaveCheckpoint():
                self.save(instance, effect)
            case ReadRoutes():
                routes = None if self.rng.random() < 0.2 else self.routes
                self.at(self.delay(), lambda: self.feed(instance, RoutesRead(routes)))
            case PauseReceiving():
                instance.receiving = False
            case ResumeReceiving():
                instance.receiving = True
            case PartitionDrained():
                self.drained(instance, effect.partition, effect.epoch)
            case WakeAt():
                if effect.at != instance.wake:
                    instance.wake = effect.at
                    if effect.at < math.inf:
                        self.at(max(0.0, effect.at - self.now), lambda: self.wake(instance, effect.at))
            case Fail():
                raise AssertionError(f"{effect.error}: {self.story()}")

    def wake(self, instance: Instance, at: float) -> None:
        if instance.wake == at:
            instance.wake = math.inf
            self.feed(instance, Tick())

    def delay(self) -> float:
        return self.rng.expovariate(20.0)

    def pump(self, instance: Instance) -> None:
        """Events come in pieces of any size, sometimes again."""
        if not instance.alive:
            return
        if instance.receiving and instance.stopped_until <= self.now:
            for partition, epoch in list(instance.owned.items()):
                if partition in instance.draining or not instance.receiving:
                    continue
                log = self.logs[partition]
                start = instance.position[partition]
                if self.rng.random() < 0.05:
                    start = max(0, start - self.rng.randint(1, 10))  # delivered again
                piece = log[start : start + self.rng.randint(1, 25)]
                if piece:
                    instance.position[partition] = max(instance.position[partition], start + len(piece))
                    self.feed(instance, EventsReceived(partition, epoch, piece))
        self.at(self.rng.uniform(0.02, 0.2), lambda: self.pump(instance))

    # -- leases: an abstract, always correct arbiter; zombies come from SIGSTOP

    def balance(self) -> None:
        alive = [instance for instance in self.instances if instance.alive]
        for partition, owner in self.owners.items():
            if alive and (owner is None or not owner.alive or owner.stopped_until > self.now + 30.0):
                self.claim(self.rng.choice(alive), partition)
            elif (
                owner is not None
                and len(alive) > 1
                and self.rng.random() < 0.05
                and self.now < self.trouble_until
            ):
                if self.rng.random() < 0.5 or not self.plan.zombies:
                    self.drain(owner, partition)
                else:
                    self.claim(self.rng.choice(alive), partition)  # stolen
        self.at(2.0, self.balance)

    def claim(self, instance: Instance, partition: str) -> None:
        self.epochs[partition] += 1
        epoch = self.epochs[partition]
        stored = self.checkpoints.get(partition)
        self.owners[partition] = instance
        instance.owned[partition] = epoch
        instance.draining.pop(partition, None)
        log = self.logs[partition]
        mark = stored.sequence_number if stored else -1
        instance.position[partition] = next(
            (i for i, record in enumerate(log) if record.event.sequence_number > mark), len(log)
        )
        self.feed(instance, PartitionClaimed(Claim(partition, instance.name, epoch, stored)))

    def drain(self, instance: Instance, partition: str) -> None:
        epoch = instance.owned.get(partition)
        if epoch is None:
            return
        instance.draining[partition] = self.now
        self.feed(instance, PartitionDraining(partition, epoch))

    def drained(self, instance: Instance, partition: str, epoch: int) -> None:
        if instance.owned.get(partition) == epoch and self.epochs[partition] == epoch:
            del instance.owned[partition]
            instance.draining.pop(partition, None)
            self.owners[partition] = None

    # -- sink

    def write(self, instance: Instance, effect: WriteBatch) -> None:
        fresh = sum(work.attempts == 1 for work in instance.pipeline._lanes.batch(effect.batch.batch_id))
        if fresh:
            self.starts[instance.name].append((self.now, fresh))
            self.check_rate(instance)
        applied = self.delay()
        answered = applied + self.delay()
        lost = self.troubled(0.05)
        hang = self.troubled(0.02)
        batch = effect.batch
        results = [WriteResult(Outcome.RETRY, 0, "no connection")] * len(batch.records)

        def apply() -> None:
            for index, record in enumerate(batch.records):
                if self.plan.guard:
                    step = first_step(record, instance.known.get(record.key))
                    self.advance(instance, batch, index, step, results)
                else:
                    results[index] = self.apply(record, batch.lane)

        until = self.now + 30.0

        def answer() -> None:
            unfinished = any(result.reason == "no connection" for result in results)
            if self.plan.guard and unfinished and arrives and not lost and self.now < until:
                self.at(0.05, answer)
                return
            told = [WriteResult(Outcome.RETRY, 0, "lost")] * len(batch.records) if lost else results
            self.feed(instance, BatchWritten(batch.batch_id, list(told)))

        arrives = not self.troubled(0.03)
        if arrives:
            self.at(applied, apply)
        # A guarded write whose answer is lost goes on all the same, as a request that is on its way does.
        self.at(answered + (60.0 if hang else 0.0), answer)

    def advance(
        self, instance: Instance, batch: Batch, index: int, step: Step, results: list[WriteResult]
    ) -> None:
        """One step arrives at the service; the next one leaves when the process is awake."""
        record = batch.records[index]
        refusal = self.refusal(batch.lane)
        answer = self.guarded.answer(record, step) if refusal is None else {}
        found = refusal or next_or_result(record, step, answer)
        instance.known.pop(record.key, None)
        if isinstance(found, WriteResult):
            results[index] = found
            if found.outcome is Outcome.WRITTEN:
                self.note_durable(record)
                if step.verb != "Read" and record.change is not None:
                    instance.known[record.key] = Known(answer["eTag"], record.change.stamp)
            return

        def go_on() -> None:
            if instance.alive:
                self.advance(instance, batch, index, found, results)

        asleep = max(0.0, instance.stopped_until - self.now)
        self.at(asleep + self.delay(), go_on)

    def troubled(self, chance: float) -> bool:
        return self.now < self.trouble_until and self.rng.random() < chance

    def refusal(self, lane: str) -> WriteResult | None:
        if lane not in self.routes.lanes:
            return WriteResult(Outcome.RETRY, 410, "split", rerouted=True)
        if self.now < self.sink_down_until:
            return WriteResult(Outcome.RETRY, 503, "down")
        if self.troubled(0.1):
            return WriteResult(Outcome.RETRY, 429, "throttled", retry_after=self.rng.uniform(0.01, 0.5))
        return None

    def apply(self, record: Record, lane: str) -> WriteResult:
        refusal = self.refusal(lane)
        if refusal is not None:
            return refusal
        self.documents[record.key] = record.event.sequence_number
        self.note_durable(record)
        return WriteResult(Outcome.WRITTEN, 201)

    def note_durable(self, record: Record) -> None:
        event = record.event
        if event.sequence_number in self.durable[event.partition]:
            self.replayed += 1
        settled = {event.sequence_number}
        if self.plan.coalesce:  # the earlier versions of the document are in it
            settled |= {
                log.event.sequence_number
                for log in self.logs[event.partition]
                if log.key == record.key and log.rejection is None
                if log.event.sequence_number < event.sequence_number
            }
        self.durable[event.partition] |= settled

    def store(self, instance: Instance, effect: StoreDeadLetters) -> None:
        stored = not self.troubled(0.2)
        arrived = stored or self.rng.random() < 0.5

        def done() -> None:
            if arrived:
                for each in effect.rejected:
                    event = each.record.event
                    self.dead_letters.add((event.partition, event.sequence_number))
                    self.durable[event.partition].add(event.sequence_number)
            self.feed(instance, DeadLettersStored(effect.lot_id, stored))

        self.at(self.delay(), done)

    def save(self, instance: Instance, effect: SaveCheckpoint) -> None:
        claim, checkpoint = effect.claim, effect.checkpoint
        fails = self.troubled(0.2)
        arrives = not fails or self.rng.random() < 0.5

        def done() -> None:
            if self.epochs[claim.partition] != claim.epoch:  # fenced
                return
            if arrives:
                self.check_checkpoint(checkpoint)
                self.checkpoints[claim.partition] = checkpoint
            self.feed(instance, CheckpointSaved(claim.partition, claim.epoch, checkpoint, not fails))

        self.at(self.delay(), done)

    # -- faults

    def fault(self) -> None:
        alive = [instance for instance in self.instances if instance.alive]
        kinds = ["kill", "split", "down", "join", *(["stop"] if self.plan.zombies else [])]
        kind = self.rng.choice(kinds)
        if kind == "kill" and alive:
            self.kill(self.rng.choice(alive))
            self.start()
        elif kind == "stop" and alive:
            self.stop(self.rng.choice(alive), self.rng.choice([1.0, 10.0, 50.0]))
        elif kind == "split":
            self.routes = FOUR_LANES
        elif kind == "down":
            self.sink_down_until = self.now + self.rng.uniform(0, 10)
        elif kind == "join" and len(alive) < 4:
            self.start()
        if self.now < self.trouble_until:
            self.at(self.rng.uniform(0, 6), self.fault)

    # -- rules that hold at every step

    def check_checkpoint(self, checkpoint: Checkpoint) -> None:
        partition = checkpoint.partition
        before = self.checkpoints.get(partition)
        if before is not None:
            assert checkpoint.sequence_number >= before.sequence_number, f"M: {self.story()}"
        said = {
            record.event.sequence_number
            for record in self.logs[partition]
            if record.event.sequence_number <= checkpoint.sequence_number
            or any(first <= record.event.sequence_number <= last for first, last in checkpoint.beyond)
        }
        assert said <= self.durable[partition], (
            f"C: {sorted(said - self.durable[partition])[:5]} {self.story()}"
        )

    def check_rate(self, instance: Instance) -> None:
        if self.plan.rate is None:
            return
        window = [n for at, n in self.starts[instance.name] if at > self.now - 1.0 + 1e-6]
        assert sum(window) <= math.ceil(self.plan.rate), f"R: {sum(window)} in a second, {self.story()}"

    # -- rules that hold at the end

    def check_end(self) -> None:
        for partition, log in self.logs.items():
            for record in log:
                number = record.event.sequence_number
                assert number in self.durable[partition], f"L: {partition}/{number} {self.story()}"
                if record.rejection is not None:
                    assert (partition, number) in self.dead_letters, f"L: no letter of {partition}/{number}"
        documents = self.guarded.versions() if self.plan.guard else self.documents
        if self.plan.guard or not self.plan.zombies:
            for key, version in documents.items():
                partition = key.partition("/")[0]
                highest = max(
                    r.event.sequence_number
                    for r in self.logs[partition]
                    if r.key == key and r.rejection is None
                )
                assert version == highest, f"O: {key} is {version}, not {highest}: {self.story()}"
