"""What every Sink does. Another sink: a subclass of SinkContract, or DocumentSinkContract, with its own `place`."""

import asyncio
import json

import pytest

from consumer.mapping.documents import MappingOptions
from consumer.model import Batch, Event, Outcome, Write
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from devstack.cosmos import CosmosServer
from tests.support.consumer.memory_sink import MemorySink

HUB = "flights"


def soon():
    return asyncio.get_running_loop().time() + 30


def event(sequence_number, body=None, partition="0"):
    document = {"id": f"f{sequence_number}", "dest": "LGA"} if body is None else body
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Event(partition, sequence_number, str(sequence_number * 64), 1_795_000_000.0, raw)


class SinkContract:
    @pytest.fixture
    async def place(self):
        """Yields an empty place with two methods, and closes at the end what it gave.

        `sink()` gives an open sink that is ready to write events of partition "0" (attached, if it is transactional).
        `await documents()` is what is stored, as {id: {"id", "dest", ...}}, of documents as `event` makes them.
        """
        raise NotImplementedError

    @pytest.fixture
    async def sink(self, place):
        return await place.sink()

    async def write(self, sink, events, **options):
        """Prepares and writes the events lane by lane, each lane in their order; results in the order of events."""
        routes = await sink.routes()
        lanes = {}
        for index, each in enumerate(events):
            record = sink.prepare(Write(each))
            lanes.setdefault(routes.lane_of(record), []).append((index, record))
        results = {}
        for lane, found in lanes.items():
            batch = Batch(1, lane, tuple(record for _, record in found))
            answers = await sink.write(batch, **{"deadline": soon(), **options})
            assert len(answers) == len(found)
            results |= {index: answer for (index, _), answer in zip(found, answers, strict=True)}
        return [results[index] for index in range(len(events))]

    async def test_what_is_answered_as_written_is_stored(self, place, sink):
        events = [event(n, {"id": f"f{n}", "dest": f"D{n % 7}", "text": "Köln ✈"}) for n in range(250)]
        results = await self.write(sink, events)

        assert {result.outcome for result in results} == {Outcome.WRITTEN}
        stored = await place.documents()
        assert {name: (found["dest"], found["text"]) for name, found in stored.items()} == {
            f"f{n}": (f"D{n % 7}", "Köln ✈") for n in range(250)
        }

    async def test_an_event_that_comes_again_is_stored_once(self, place, sink):
        await self.write(sink, [event(1), event(2)])
        results = await self.write(sink, [event(1), event(2)])

        assert [result.outcome for result in results] == [Outcome.WRITTEN] * 2
        assert (await place.documents()).keys() == {"f1", "f2"}

    async def test_every_prepared_record_has_a_lane(self, sink):
        routes = await sink.routes()
        records = [sink.prepare(Write(event(n, {"id": f"f{n}", "dest": str(n)}))) for n in range(100)]

        assert all(routes.lane_of(record) for record in records)
        assert len({record.key for record in records}) == 100

    @pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"id":"\xff"}', b'{"a":' * 5000])
    async def test_what_cannot_be_written_is_prepared_with_its_rejection(self, sink, body):
        record = sink.prepare(Write(event(1, body)))

        assert record.rejection is not None
        assert record.rejection.detail
        assert record.event.body == body

    async def test_an_empty_batch_has_no_results(self, sink):
        lane = (await sink.routes()).lanes[0]

        assert list(await sink.write(Batch(1, lane, ()), deadline=soon())) == []

    async def test_a_passed_deadline_is_an_unknown_outcome_and_no_exception(self, place, sink):
        results = await self.write(sink, [event(1)], deadline=asyncio.get_running_loop().time() - 1)

        assert results[0].outcome in {Outcome.RETRY, Outcome.WRITTEN}
        if results[0].outcome is Outcome.WRITTEN:
            assert (await place.documents()).keys() == {"f1"}

    async def test_a_sink_may_be_closed_twice(self, sink):
        await sink.aclose()
        await sink.aclose()


class DocumentSinkContract(SinkContract):
    """For sinks that keep one document per id: the last one written."""

    async def test_a_later_event_replaces_the_document(self, place, sink):
        await self.write(sink, [event(1, {"id": "f1", "dest": "LGA", "gate": 1})])
        await self.write(sink, [event(2, {"id": "f1", "dest": "LGA", "gate": 2})])

        assert (await place.documents())["f1"]["gate"] == 2

    async def test_a_record_larger_than_a_request_is_written_beside_small_ones(self, place, sink):
        bodies = [
            {"id": f"f{n}", "dest": "LGA", "text": "x" * size} for n, size in enumerate([10, 300_000, 10])
        ]
        results = await self.write(sink, [event(n, body) for n, body in enumerate(bodies)])

        assert [result.outcome for result in results] == [Outcome.WRITTEN] * 3
        assert len((await place.documents())["f1"]["text"]) == 300_000


class MemoryPlace:
    def __init__(self):
        self.found = MemorySink(MappingOptions(HUB), ("/dest",))

    async def sink(self):
        await self.found.open()
        return self.found

    async def documents(self):
        documents = [json.loads(text) for text in self.found.documents.values()]
        return {document["id"]: document for document in documents}


class TestMemorySink(DocumentSinkContract):
    @pytest.fixture
    async def place(self):
        return MemoryPlace()


class ContainerConnection:
    def __init__(self, server):
        self.server = server
        self.sinks = []

    async def sink(self):
        settings = {"CosmosConnection": self.server.connection_string}
        sink = CosmosBulkSink(settings, database="db", container="flights", mapping=MappingOptions(HUB))
        self.sinks.append(sink)
        await sink.open()
        return sink

    async def documents(self):
        return {found["id"]: found for found in self.server.documents("db", "flights")}


@pytest.mark.wire
class TestCosmosBulkSink(DocumentSinkContract):
    """Four physical partitions, and requests for each of them."""

    version = 2
    bulk = True

    @pytest.fixture
    async def place(self):
        async with CosmosServer() as server:
            server.create_container("db", "flights", "/dest", throughput=40_000, version=self.version)
            place = ContainerConnection(server)
            yield place
            for sink in place.sinks:
                assert sink.bulk is self.bulk
                await sink.aclose()


class TestCosmosSinkWithoutBulk(TestCosmosBulkSink):
    """A container of hash version 1: requests for one partition key value each."""

    version = 1
    bulk = False
