"""Carries out the effects of a pipeline. Each effect runs as a task of the driver; its result is the next input.

A Driver knows a sink and stores, but neither Event Hubs nor leases, so that processes, timer slices and trigger-hosted
functions share it. It belongs to one event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

from msgspec import structs

from consumer.core import effects
from consumer.core.pipeline import Pipeline
from consumer.core.statistics import PipelineStatistics
from consumer.errors import FencedError
from consumer.mapping.preparing import Preparation
from consumer.model import Batch, Checkpoint, Claim, Event, Outcome, Routes, WriteResult
from consumer.options import NO_PARKING, DriverSettings
from consumer.ports import CheckpointStore, DeadLetterBox, DeadLetterStore, OrderedSink, Sink
from consumer.running.other_positions import are_left
from consumer.running.writing.calls import Calls, again
from consumer.running.writing.parking import Parking
from consumer.running.writing.replaying import Replay
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.foundation.pacing.retry_delay import Backoff, Chance, asked_pause
from tidemark.foundation.tracing.spans import NO_SPANS, Spans, failed

log = logging.getLogger("tidemark.consumer")

PREPARED_AT_ONCE = 500
"""Events prepared before other tasks of the loop run: about ten milliseconds."""
PREPARED_BYTES = 1 << 20
"""Bytes prepared before other tasks of the loop run: about ten milliseconds at 100 MB/s."""


@dataclass(eq=False)
class Driver:
    """`failed` gets the error that ends the consumer; `receiving` is cleared while the pipeline takes no events.

    `on_claim` is called with each claim, `on_checkpoint` with each saved checkpoint and the number of events that are unsettled then, `on_fenced`
    with a partition and an epoch that another consumer replaced, `on_answer` after each write with the name of the sink and whether it was
    reached. `chance` spreads retries in time. Without a `preparation` the sink reads the bodies of events itself.
    """

    settings: DriverSettings
    sink: Sink
    checkpoints: CheckpointStore
    dead_letters: DeadLetterBox
    _: KW_ONLY
    on_claim: Callable[[Claim], None] | None = None
    on_checkpoint: Callable[[Checkpoint, int], None] | None = None
    on_fenced: Callable[[str, int], None] | None = None
    on_answer: Callable[[str, bool], object] | None = None
    chance: Chance = random.random
    spans: Spans = NO_SPANS
    preparation: Preparation | None = None
    parked: DeadLetterStore | None = None
    """Where rejected events are stored that are tried again; see consumer/running/writing/parking.py."""

    def __post_init__(self) -> None:
        self._preparation = self.preparation or Preparation(self.sink.prepare)
        settings = self.settings
        self._calls = Calls(
            self.sink,
            self.checkpoints,
            self.dead_letters,
            (settings.hub, settings.consumer_group),
            settings.call_timeout,
            settings.dry_run,
            lambda sink, reached: self.on_answer and self.on_answer(sink, reached),
            lambda partition: self.pipeline.epoch(partition),
        )
        self._parking: Parking | None = None
        self._routes: Routes | None = None  # as the sink returned them when it was opened
        self._pipeline: Pipeline | None = None
        # By partition and epoch, of claims whose hub was created anew.
        self._incarnations: dict[tuple[str, int], str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._drains: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._changed: asyncio.Future[None] | None = None
        self._closed = False
        self.context: Context | None = None
        """The context in which tasks and timers run; None means that of their caller. The Functions host attributes log lines
        by it."""
        self.receiving = asyncio.Event()
        self.receiving.set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        """Opens the sink and the dead-letter store. Raises SettingsError, and UnavailableError: then call it again."""
        if self._routes is None:
            self._routes = await self.sink.open()
        if not self.settings.dry_run:
            await self.dead_letters.open()
        await self._open_parking(self._routes)
        self._pipeline = Pipeline(
            self.settings.limits,
            self.settings.batches,
            self._routes,
            transactional=self.sink.transactional,
            rate=self.settings.rate,
            request_units=self.settings.request_units,
            now=self._now(),
            chance=self.chance,
            parking=self.settings.parking if self._parking else NO_PARKING,
        )

    async def _open_parking(self, routes: Routes) -> None:
        rules, is_set = self.settings.parking, bool(self.settings.parking.reasons)
        ordered = all(of_sink.by_partition for of_sink in routes.of_sinks.values() or [routes])
        if self.parked is None or self.settings.dry_run:
            return
        for problem in rules.problems(ordered=ordered):
            raise SettingsError(problem)
        await self.parked.open()
        if self._parking is None and (is_set or await are_left(self.parked, ordered=ordered)) and not ordered:
            replay = Replay(self.sink, routes, self._preparation)
            self._parking = Parking(
                self.parked, rules, self._calls, self._preparation, replay, self._feed, self.statistics
            )
            self._start_task(self._parking.run())

    @property
    def pipeline(self) -> Pipeline:
        if self._pipeline is None:
            raise RuntimeError("the driver is not open")
        return self._pipeline

    def statistics(self) -> PipelineStatistics:
        """Raises RuntimeError before `open`."""
        found = self.pipeline.statistics(self._now())
        return found if self._parking is None else self._parking.with_problems(found)

    @property
    def _attaches(self) -> bool:
        return self._routes is not None and self._routes.is_ordered

    @property
    def is_open(self) -> bool:
        return self._pipeline is not None

    def set_rate(self, rate: float | None) -> None:
        """Sets the rate in records per second; None means no limit."""
        self._feed(effects.RateChanged(rate))

    def set_request_units(self, rate: float | None) -> None:
        """Sets the request units per second, also before `open`; None means no limit."""
        self.settings = structs.replace(self.settings, request_units=rate)
        if self._pipeline is not None:
            self._feed(effects.RequestUnitsChanged(rate))

    # -- partitions

    def claimed(self, claim: Claim) -> None:
        """Takes in a claim. It replaces an earlier claim of the partition; an older one changes nothing."""
        if self._attaches and claim.epoch > (self.pipeline.epoch(claim.partition) or 0):
            cast("OrderedSink", self.sink).attach(claim)
        if claim.origin.incarnation:
            self._incarnations[claim.partition, claim.epoch] = claim.origin.incarnation
        is_new = claim.epoch > (self.pipeline.epoch(claim.partition) or 0)
        self._feed(effects.PartitionClaimed(claim))
        if self._parking is not None and is_new:
            self._parking.claimed(claim)
        if self.on_claim is not None:
            self.on_claim(claim)

    def expired(self, partition: str, epoch: int, count: int) -> None:
        """Counts events that retention removed before they were received."""
        if count:
            self._feed(effects.EventsReceived(partition, epoch, (), expired=count))

    async def receive(
        self, partition: str, epoch: int, events: Sequence[Event], last_enqueued: int | None = None
    ) -> None:
        """Takes events in, in order, and waits while receiving is paused."""
        if not events:
            self._feed(effects.EventsReceived(partition, epoch, (), last_enqueued))
        incarnation = self._incarnations.get((partition, epoch))
        if incarnation:
            events = [structs.replace(event, incarnation=incarnation) for event in events]
        start = 0
        while start < len(events):
            while not self.receiving.is_set():  # several wait: the first to resume may have filled it again
                await self.receiving.wait()
            end = self._end_of_turn(events, start)
            turn = events[start:end]
            if not await self._ready(partition, epoch, turn):
                return
            with self.spans.span("receive", partition, len(turn), (event.properties for event in turn)):
                records, taken = self._preparation.records_within(turn, PREPARED_BYTES)
            self._feed(effects.EventsReceived(partition, epoch, records, last_enqueued))
            start += taken
            await asyncio.sleep(0)

    async def _ready(self, partition: str, epoch: int, events: Sequence[Event]) -> bool:
        """Waits until the events can be decoded. False when the claim ends or drains before: they are not received then."""
        if self._parking is not None:
            await self._parking.ready(partition, epoch)
        backoff, decoder = Backoff(self.chance), self._preparation.decoder
        while decoder is not None and (ids := decoder.missing(events)):
            try:
                loading = decoder.load(ids, deadline=self._calls.deadline())
                await self._calls.answered("the decoder", loading)
            except TidemarkError as error:
                pause = asked_pause(getattr(error, "retry_after", None), backoff.failed())
                log.warning("partition %s waits %.0f s, then asks again: %s", partition, pause, error)
                await asyncio.sleep(pause)
            else:
                break
            if self.pipeline.epoch(partition) != epoch or (partition, epoch) in self._drains:
                return False
        return True

    def _end_of_turn(self, events: Sequence[Event], start: int) -> int:
        """The index after the last event that is prepared in this turn of the loop."""
        end, size = start, 0
        last = min(len(events), start + max(1, min(PREPARED_AT_ONCE, self.pipeline.room)))
        while end < last and size < PREPARED_BYTES:
            size += events[end].size
            end += 1
        return end

    async def drain(self, partition: str, epoch: int, *, deadline: float) -> bool:
        """Starts no more events of a claim and waits for those that were attempted.

        True when all of them are settled and the checkpoint is saved; False when the claim or the time ends before.
        """
        if self._parking is not None:
            await self._parking.finish(partition, epoch, deadline=deadline)
        drained = self._drains.setdefault((partition, epoch), asyncio.get_running_loop().create_future())
        self._feed(effects.PartitionDraining(partition, epoch))
        if self.pipeline.epoch(partition) != epoch:
            self._drains.pop((partition, epoch), None)
            return False
        await asyncio.wait((drained,), timeout=max(0.0, deadline - self._now()))
        return drained.done() and not drained.cancelled()

    def lost(self, partition: str, epoch: int) -> None:
        """Ends a claim: later results under it are ignored."""
        drained = self._drains.pop((partition, epoch), None)
        if drained is not None:
            drained.cancel()
        self._incarnations.pop((partition, epoch), None)
        if self._parking is not None:
            self._parking.forget(partition, epoch)
        current = self.pipeline.epoch(partition) == epoch
        self._feed(effects.PartitionLost(partition, epoch))
        if current and self._attaches:  # otherwise a later claim is attached, which must stay
            cast("OrderedSink", self.sink).detach(partition)

    async def settled(self, partition: str, epoch: int) -> None:
        """Waits until every event of a claim is settled. Several tasks may wait.

        Raises FencedError when the claim ends before, and the error in `failed`.
        """
        while (unsettled := self.pipeline.unsettled(partition, epoch)) != 0:
            if self.failed.done():
                self.failed.result()
            if unsettled is None:
                raise FencedError(f"partition {partition} was claimed anew before its events were settled")
            if self._changed is None or self._changed.done():  # otherwise another task waits for it already
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._changed, self.failed), return_when=asyncio.FIRST_COMPLETED)

    async def aclose(self) -> None:
        """Cancels all tasks and waits for their end. Calls in flight have an unknown outcome, so their events stay unsettled."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            if self.failed.done() and not self.failed.cancelled():
                self.failed.exception()  # marks it as retrieved, so that asyncio does not log it
            self.failed.cancel()

    # -- effects

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _feed(self, item: effects.Input) -> None:
        if self._closed:
            return
        for effect in self.pipeline.handle(item, now=self._now()):
            self._perform(effect)
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.WriteBatch():
                partition = effect.batch.records[0].event.partition
                self._start_task(self._write(effect.batch, self.pipeline.epoch(partition)))
            case effects.WakeAt():
                self._wake_at(effect.at)
            case effects.StoreDeadLetters():
                self._start_task(self._store(effect))
            case effects.SaveCheckpoint():
                self._start_task(self._save(effect.claim, effect.checkpoint))
            case effects.ReadRoutes():
                self._start_task(self._read_routes())
            case effects.PartitionDrained():
                drained = self._drains.get((effect.partition, effect.epoch))
                if drained is not None and not drained.done():
                    drained.set_result(None)
            case effects.Fail():
                self._fail(effect.error)
            case effects.PauseReceiving() | effects.ResumeReceiving():
                self._pause(effect)

    def _pause(self, effect: effects.PauseReceiving | effects.ResumeReceiving) -> None:
        if isinstance(effect, effects.PauseReceiving):
            log.info("receiving pauses: %s", effect.reason)
            self.receiving.clear()
        else:
            log.info("receiving resumes")
            self.receiving.set()

    def _fail(self, error: TidemarkError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        context = None if self.context is None else self.context.copy()
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a task of the consumer failed", exc_info=error)
            self._fail(TidemarkError(f"internal error: {error!r}"))

    def _wake_at(self, at: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if loop.time() < self._timer.when() == at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(max(at, loop.time()), self._feed, effects.Tick(), context=self.context)

    async def _write(self, batch: Batch, epoch: int | None) -> None:
        """`epoch` is that of the claim of an ordered lane, whose records are of one partition."""
        try:
            results = await self._write_traced(batch)
        except FencedError as error:
            self.fenced(batch.records[0].event.partition, epoch, error)
            results = again(batch, str(error))
        self._feed(effects.BatchWritten(batch.batch_id, results))

    async def _write_traced(self, batch: Batch) -> Sequence[WriteResult]:
        contexts = (record.event.properties for record in batch.records)
        partitions = (record.event.partition for record in batch.records)
        with self.spans.span("process", partitions, len(batch.records), contexts) as span:
            results = await self._calls.write(batch)
            if span is not None and all(result.outcome is Outcome.RETRY for result in results):
                failed(span, str(results[0].status or "no_answer"))
            return results

    def fenced(self, partition: str, epoch: int | None, error: FencedError) -> None:
        """Ends a claim that a store refused: another consumer claimed the partition, or an operator set its position."""
        if epoch is None or self.pipeline.epoch(partition) != epoch:
            return  # that claim has ended already
        log.warning("partition %s was claimed by another consumer: %s", partition, error)
        self.lost(partition, epoch)
        if self.on_fenced is not None:
            self.on_fenced(partition, epoch)

    async def _store(self, order: effects.StoreDeadLetters) -> None:
        parking = self._parking if order.park else None
        stored = await (self._calls.bury if parking is None else parking.park)(order.rejected)
        self._feed(effects.DeadLettersStored(order.lot_id, stored))

    async def _save(self, claim: Claim, checkpoint: Checkpoint) -> None:
        try:
            with self.spans.span("checkpoint", claim.partition, 0):
                saved = await self._calls.save(claim, checkpoint)
        except FencedError as error:
            self.fenced(claim.partition, claim.epoch, error)
            return
        self._feed(effects.CheckpointSaved(claim.partition, claim.epoch, checkpoint, saved))
        if saved and self.on_checkpoint is not None:
            self.on_checkpoint(checkpoint, self.pipeline.unsettled(claim.partition, claim.epoch) or 0)

    async def _read_routes(self) -> None:
        self._feed(effects.RoutesRead(await self._calls.read_routes()))
