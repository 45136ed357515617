"""Our consumer: whole, and its parts."""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import structs
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.consumer.decoders import READING, as_avro, avro_decoder
from benchmarks.consumer.meter import Meter
from benchmarks.consumer.world import CONTAINER, DATABASE, HUB, PARTITIONS, World, bodies
from consumer.config import read_config
from consumer.core.statistics import Totals
from consumer.leasing.start_position import Start
from consumer.mapping.documents import MappingOptions
from consumer.mapping.operations import WriteOptions
from consumer.mapping.preparing import Preparation
from consumer.model import Batch, Event, Operation, Outcome, Record, Routes, Write
from consumer.options import DriverSettings
from consumer.receiving.receiver import HubReceiver
from consumer.running.driver import Driver
from consumer.running.process import ConsumerProcess
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tidemark.foundation.tracing.spans import NO_SPANS, Spans

SINK_RECORDS = 40_000
SINK_REQUESTS = 8  # at once, as the JavaScript cells
_LOOK = 0.02  # seconds between two looks whether all is done


def settings(world: World) -> dict[str, str]:
    """Only names and addresses: everything else is left at our defaults."""
    return {
        "EventHubConnection": world.event_hubs,
        "CosmosConnection": world.cosmos_connection,
        "AzureWebJobsStorage": world.storage,
        "EVENTHUB_NAME": HUB,
        "COSMOS_DATABASE": DATABASE,
        "COSMOS_CONTAINER": CONTAINER,
        "BLOB_CONTAINER": f"checkpoints-{uuid.uuid4().hex[:12]}",
        "CONSUMER_DEAD_LETTER_CONTAINER": f"letters-{uuid.uuid4().hex[:12]}",
    }


async def end_to_end(world: World, meter: Meter) -> None:
    """The consumer process as it is run: leases, checkpoints in blobs, dead letters, everything."""
    names = settings(world)
    gc.freeze()  # as `consume` does
    meter.begin()
    stop = asyncio.Event()
    process = ConsumerProcess(read_config(names), names)
    task = asyncio.create_task(process.run(stop))
    while not task.done():
        await asyncio.sleep(_LOOK)
        totals = totals_of(process.driver)
        if totals.received:
            meter.first()
        if totals.written >= world.records:
            break
    meter.done(world.records)
    stop.set()
    await task


async def without_hub(
    world: World, meter: Meter, *, avro: bool = False, traced: bool = False, limited: bool = False
) -> None:
    """The same from the moment an event is received."""
    events = _events(as_avro if avro else None)
    if traced:
        events = {
            partition: [_with_context(event) for event in of_partition]
            for partition, of_partition in events.items()
        }
    meter.begin()
    meter.first()
    checkpoints = MemoryCheckpointStore()
    sink = _sink(world)
    preparation = Preparation(sink.prepare, decoder=avro_decoder(READING) if avro else None)
    driver = Driver(
        DriverSettings(HUB, "$Default", request_units=1e9 if limited else None),
        sink,
        checkpoints,
        MemoryDeadLetterStore(),
        spans=_spans() if traced else NO_SPANS,
        preparation=preparation,
    )
    await driver.open()
    for partition in events:
        driver.claimed(await checkpoints.claim(partition, "benchmark", deadline=0.0))
    await asyncio.gather(
        *(_receive(driver, partition, of_partition) for partition, of_partition in events.items())
    )
    meter.done(sum(map(len, events.values())))
    await driver.aclose()
    await sink.aclose()


async def without_hub_avro(world: World, meter: Meter) -> None:
    """The same readings in Avro, with the id of a schema that is known."""
    await without_hub(world, meter, avro=True)


async def without_hub_traced(world: World, meter: Meter) -> None:
    """Each event with a trace context, and spans that are recorded and exported to nowhere."""
    await without_hub(world, meter, traced=True)


async def without_hub_limited(world: World, meter: Meter) -> None:
    """With a limit of request units that holds nothing back."""
    await without_hub(world, meter, limited=True)


def _with_context(event: Event) -> Event:
    context = f"00-{event.sequence_number + 1:032x}-{event.sequence_number + 1:016x}-01"
    return structs.replace(event, properties={"traceparent": context})


class _Nowhere(SpanExporter):
    """Takes spans and keeps none."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _spans() -> Spans:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
    return Spans(provider.get_tracer("benchmark"), HUB, "$Default")


async def _receive(driver: Driver, partition: str, events: Sequence[Event]) -> None:
    for start in range(0, len(events), 500):
        await driver.receive(partition, 1, events[start : start + 500])
    await driver.settled(partition, 1)


async def sink_alone(world: World, meter: Meter) -> None:
    """From the event's body to the answer, in batches of 100 per physical partition: what a bulk API does."""
    events = _all_events()
    sink = _sink(world)
    meter.begin()
    meter.first()
    await _write_all(sink, await sink.open(), events)
    meter.done(len(events))
    await sink.aclose()


def updates(*, unknown: float = 0.0, **writing: Any) -> Callable[[World, Meter], Awaitable[None]]:
    """A cell in which every document is written again, by a later event. `unknown` is the share of documents whose ETag the
    sink has not remembered.
    """

    async def cell(world: World, meter: Meter) -> None:
        sink = _sink(world, WriteOptions(source=HUB, **writing))
        routes = await sink.open()
        first = time.time_ns() // 1000  # above all numbers of the cells before, whose documents are there
        await _write_all(sink, routes, _all_events(after=first))
        later = _all_events(after=first + SINK_RECORDS)
        known = sink._writer._known  # noqa: SLF001 - as another instance has it, which has not written them
        for key in list(known)[: round(len(known) * unknown)]:
            del known[key]
        meter.begin()
        meter.first()
        await _write_all(sink, routes, later)
        meter.done(len(later))
        await sink.aclose()

    return cell


async def _write_all(sink: CosmosBulkSink, routes: Routes, events: Sequence[Event]) -> None:
    free = asyncio.Semaphore(SINK_REQUESTS)
    waiting: dict[str, list[Record]] = defaultdict(list)

    async def write(lane: str, records: list[Record]) -> None:
        results = await sink.write(
            Batch(0, lane, tuple(records)), deadline=asyncio.get_running_loop().time() + 60
        )
        free.release()
        if any(result.outcome is not Outcome.WRITTEN or result.reason for result in results):
            raise RuntimeError(f"not written: {results}")

    async with asyncio.TaskGroup() as tasks:
        for event in events:
            record = sink.prepare(Write(event))
            lane = routes.lane_of(record)
            waiting[lane].append(record)
            if len(waiting[lane]) == 100:
                await free.acquire()
                tasks.create_task(write(lane, waiting.pop(lane)))
        for lane, records in waiting.items():
            await free.acquire()
            tasks.create_task(write(lane, records))


async def receiving(world: World, meter: Meter) -> None:
    """Our receiver with nothing behind it."""
    received = 0
    everything = asyncio.Event()

    async def on_events(events: Sequence[Event], _last_enqueued: int | None) -> None:
        nonlocal received
        if events:
            meter.first()
        received += len(events)
        if received >= world.records:
            everything.set()

    names = settings(world)
    meter.begin()
    receiver = HubReceiver(names, "EventHubConnection", HUB, "$Default")
    start = Start(note="from the first event")
    tasks = [asyncio.create_task(receiver.receive(str(n), start, 1, on_events)) for n in range(PARTITIONS)]
    waiting = asyncio.create_task(everything.wait())
    await asyncio.wait((waiting, *tasks), return_when=asyncio.FIRST_COMPLETED)
    meter.done(received)
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    await receiver.close()
    if received < world.records:
        raise RuntimeError(f"receiving ended: {ends}")


def totals_of(driver: Driver) -> Totals:
    try:
        return driver.statistics().totals
    except RuntimeError:  # not open yet
        return Totals()


def _sink(world: World, writing: WriteOptions | None = None) -> CosmosBulkSink:
    mapping = MappingOptions(HUB, writing=writing or WriteOptions())
    return CosmosBulkSink(settings(world), database=DATABASE, container=CONTAINER, mapping=mapping)


def _all_events(*, after: int = 0) -> list[Event]:
    return [event for of_partition in _events(after=after).values() for event in of_partition]


def _events(made: Callable[[Event], Event] | None = None, *, after: int = 0) -> dict[str, list[Event]]:
    """As JSON, or what `made` makes of that."""
    now = time.time()
    by_partition: dict[str, list[Event]] = {}
    for partition in range(PARTITIONS):
        mine = range(SINK_RECORDS)[partition::PARTITIONS]
        by_partition[str(partition)] = [
            Event(str(partition), after + number, str(number * 1100), now, body)
            for number, body in enumerate(bodies(mine))
        ]
        if made is not None:
            by_partition[str(partition)] = [made(event) for event in by_partition[str(partition)]]
    return by_partition


UPDATES = {
    "ours: sink alone, updates": updates(),
    "ours: guard, all known": updates(guard="number"),
    "ours: guard, one in ten unknown": updates(guard="number", unknown=0.1),
    "ours: guard, none known": updates(guard="number", unknown=1.0),
    "ours: patches": updates(operation=Operation.PATCH),
}
"""Every document again, without the guard and under it."""
