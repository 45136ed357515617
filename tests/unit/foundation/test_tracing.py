"""Trace context from the publisher through events to the sink, with OpenTelemetry's own SDK as the witness."""

import asyncio

import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp._decode import decode_payload
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from consumer.mapping.documents import MappingOptions
from consumer.model import Event, Outcome, WriteResult
from consumer.options import BatchLimits, DriverSettings
from consumer.running.driver import Driver
from consumer.sinks.cosmos.client import _Exchange
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.memory_sink import MemorySink
from tests.support.publisher import FakeWorld
from tests.support.virtual_time import in_virtual_time
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.tracing import names
from tidemark.foundation.tracing.names import Mode
from tidemark.foundation.tracing.spans import NO_SPANS, Spans, current_header, read_mode, spans

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OURS = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def traced():
    """Spans of a hub, and a function that gives the finished ones."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(provider.get_tracer("test"), "flights", "group"), exporter.get_finished_spans


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (OURS, True),
        (OURS.upper(), False),
        (f"01-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        ("|root.1.", False),  # of old .NET senders
        ("", False),
        (b"bytes", False),
        (None, False),
    ],
)
def test_only_a_trace_context_of_version_00_is_taken_for_one(text, is_one):
    assert names.is_traceparent(text) == is_one


@pytest.mark.parametrize(
    ("properties", "links"),
    [
        ([{"traceparent": OURS}], 1),
        ([{b"traceparent": OURS.encode()}], 1),
        ([{"Diagnostic-Id": OURS}], 1),
        ([{"traceparent": "|root.1.", "Diagnostic-Id": OURS}, {}, {"traceparent": 7}], 0),
        ([{"traceparent": OURS}] * 5, 1),  # one message each, of one span
        ([{"traceparent": f"00-{TRACE}-{n:016x}-01"} for n in range(1, 300)], 128),
        ([{"traceparent": OURS, "tracestate": "a=1,b=2"}], 1),
    ],
)
def test_a_span_links_to_each_context_once_and_to_128_at_most(traced, properties, links):
    made, finished = traced
    with made.span("process", "3", len(properties), properties):
        pass
    (span,) = finished()

    assert len(span.links) == links
    if links:
        assert f"{span.links[0].context.trace_id:032x}" == TRACE
        assert span.links[0].context.is_remote
    assert (span.name, span.kind) == ("process flights", SpanKind.CONSUMER)
    assert span.attributes == {
        "messaging.system": "eventhubs",
        "messaging.destination.name": "flights",
        "messaging.consumer.group.name": "group",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.partition.id": "3",
        "messaging.batch.message_count": len(properties),
    }


class Sink(MemorySink):
    """Notes the trace context in which it is called."""

    def __init__(self):
        super().__init__(MappingOptions("hub"))
        self.headers, self.answers = [], []

    async def write(self, batch, *, deadline):
        self.headers.append(dict(current_header()))
        await asyncio.sleep(0.01)
        if self.answers:
            return [self.answers.pop(0)] * len(batch.records)
        return await super().write(batch, deadline=deadline)


@in_virtual_time
async def test_a_driver_makes_a_span_for_each_piece_request_and_checkpoint_none_within_another(traced):
    made, finished = traced
    sink = Sink()
    sink.answers.append(WriteResult(Outcome.RETRY, 429, "throttled", retry_after=0.1))
    driver = Driver(
        DriverSettings("flights", "group", batches=BatchLimits(flush_after=0.1)),
        sink,
        MemoryCheckpointStore(clock=lambda: 0.0),
        MemoryDeadLetterStore(),
        spans=made,
        chance=lambda: 0.0,
    )
    await driver.open()
    driver.claimed(await driver.checkpoints.claim("0", "me", deadline=0.0))
    events = [
        Event(
            "0", n, str(n), 0.0, b'{"id":"%d"}' % n, properties={"traceparent": f"00-{TRACE}-{n + 1:016x}-01"}
        )
        for n in range(3)
    ]
    await driver.receive("0", driver.pipeline.epoch("0"), events)
    await asyncio.sleep(20.0)
    await driver.aclose()

    by_name = {}
    for span in finished():
        by_name.setdefault(span.name.split()[0], []).append(span)
    assert sorted(by_name) == ["checkpoint", "process", "receive"]
    assert all(span.parent is None for found in by_name.values() for span in found)
    refused, *written = by_name["process"]
    assert (refused.status.status_code, refused.attributes["error.type"]) == (StatusCode.ERROR, "429")
    assert {span.status.status_code for span in written} == {StatusCode.UNSET}
    for span in (*by_name["receive"], *by_name["process"]):
        assert len(span.links) == span.attributes["messaging.batch.message_count"]
    assert sum(len(span.links) for span in written) == len(by_name["receive"][0].links) == 3
    assert sink.headers[0]["traceparent"].split("-")[2] == f"{refused.context.span_id:016x}"
    assert len(by_name["checkpoint"][0].links) == 0
    assert by_name["checkpoint"][0].attributes["messaging.operation.type"] == "settle"
    assert "messaging.batch.message_count" not in by_name["checkpoint"][0].attributes


@in_virtual_time
async def test_the_span_of_a_request_names_its_partition_if_all_of_it_is_of_one(traced):
    made, finished = traced
    settings = DriverSettings("flights", "group", batches=BatchLimits(flush_after=1.0))
    checkpoints = MemoryCheckpointStore(clock=lambda: 0.0)
    driver = Driver(settings, Sink(), checkpoints, MemoryDeadLetterStore(), spans=made, chance=lambda: 0.0)
    await driver.open()
    for partition in ("0", "1"):
        driver.claimed(await checkpoints.claim(partition, "me", deadline=0.0))

    async def send(number, *partitions):
        for partition in partitions:
            event = Event(partition, number, str(number), 0.0, b'{"id":"%d %d"}' % (number, int(partition)))
            await driver.receive(partition, driver.pipeline.epoch(partition), [event])
        await asyncio.sleep(20.0)

    await send(0, "0", "1")
    await send(1, "1")
    await driver.aclose()

    found = [span.attributes for span in finished() if span.name.startswith("process")]
    assert [each["messaging.batch.message_count"] for each in found] == [2, 1]
    assert [each.get("messaging.destination.partition.id") for each in found] == [None, "1"]


def test_a_request_that_the_sdk_of_cosmos_sends_carries_the_context_of_its_span(traced):
    with traced[0].span("process", "0", 1):
        headers, context = _Exchange("rid").headers, current_header()

    assert context
    assert headers == {"x-ms-cosmos-intended-collection-rid": "rid", **context}
    assert "traceparent" not in _Exchange("rid").headers


def properties_of(message):
    """The application properties of a message as it went over the wire."""
    found = decode_payload(memoryview(bytes(message))).application_properties or {}
    text = lambda value: value.decode() if isinstance(value, bytes) else value
    return {text(key): text(value) for key, value in found.items()}


async def sent(world, producer, way, events):
    if way == "events":
        await producer.send_events(events, partition_id="0")
    else:
        batch = await producer.create_batch(partition_id="0")
        for event in events:
            batch.add(event)
        await producer.send_batch(batch)
    return [properties_of(message) for message in world.messages("0")]


@pytest.mark.parametrize("way", ["events", "batch"])
async def test_published_events_carry_the_context_of_their_span_and_a_users_own_is_never_overwritten(
    traced, way
):
    made, finished = traced
    world = FakeWorld()
    producer = world.producer(tracing=False)
    producer._spans = made
    own, plain, keyed = EventData(b"own"), EventData(b"plain"), EventData(b"keyed")
    own.properties = {b"traceparent": OURS.encode()}
    keyed.properties = {"colour": "red"}
    found = await sent(world, producer, way, [own, plain, keyed])
    await world.aclose()

    spans_by_id = {f"{span.context.span_id:016x}": span for span in finished()}
    (send,) = [span for span in finished() if span.name == "send flights"]
    assert send.attributes["messaging.batch.message_count"] == 3
    assert found[0]["traceparent"] in (OURS, OURS.encode())
    for properties in found[1:]:
        _, _, span, _ = properties["traceparent"].split("-")
        assert spans_by_id[span].name == ("send flights" if way == "events" else "create flights")
    assert found[2]["colour"] == "red"
    assert len(send.links) == (0 if way == "events" else 2)
    assert plain.properties in (None, {})  # the user's event stays as it was
    if way == "events":
        assert plain.published_sequence_number is not None


async def test_the_digest_of_a_set_is_the_same_with_and_without_tracing(traced):
    """A restart would otherwise take its own pending set for another one."""
    digests = []
    for spans_ in (NO_SPANS, traced[0], traced[0]):
        producer = FakeWorld().producer(tracing=False)
        producer._spans = spans_
        batch = await producer.create_batch(partition_id="0")
        batch.add(EventData(b"body"))
        digests.append(batch.begin(None).digest())

    assert len(set(digests)) == 1


def test_tracing_is_off_unless_asked_for_and_then_costs_nothing_but_a_look():
    assert spans(read_mode({}), "flights") is NO_SPANS
    assert NO_SPANS.span("process", "0", 3, iter([1, 2])) is NO_SPANS.span("receive", "1", 1)
    assert read_mode({"TIDEMARK_TRACING": " OTLP "}) is Mode.OTLP
    with pytest.raises(SettingsError, match="TIDEMARK_TRACING is 'yes'; accepted: off, on, otlp"):
        read_mode({"TIDEMARK_TRACING": "yes"})
