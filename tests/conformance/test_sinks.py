"""What every sink does: the public suite, on each sink of Tidemark."""

import json
import shutil
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from consumer.mapping.documents import MappingOptions
from consumer.model import Stream
from consumer.sinks.types import SinkContext, find_sink_type, read_options
from devstack.cosmos import CosmosServer
from devstack.servers.faults import Fault
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.sql import World, soon
from tidemark.testing import SinkContract, SinkTarget, event, flight, write

HUB = "flights"
STREAM = Stream("acme.servicebus.windows.net", HUB, "$Default")


def built(kind, settings, **options):
    """A sink as the consumer builds it from a file."""
    found = find_sink_type(kind)
    context = SinkContext(settings, HUB, STREAM, "target")
    return found.build(read_options(found, options, "sinks.target"), context)


class LargeDocuments:
    """For targets that keep one document per id."""

    async def test_a_record_larger_than_a_request_is_written_beside_small_ones(self, target, sinks):
        sink = await sinks.open()
        events = [event(n, flight(n, text="x" * size)) for n, size in enumerate([10, 300_000, 10])]
        results = await write(sink, events)

        assert {str(result.outcome) for result in results} == {"written"}
        assert sorted(len(document["text"]) for document in await target.stored()) == [10, 10, 300_000]


class MemoryTarget(SinkTarget):
    def __init__(self):
        self.unwritable = {"dest": ["a list is no partition key"]}
        self.kept = MemorySink(MappingOptions(HUB), ("/dest",))

    def sink(self):
        return self.kept

    async def stored(self):
        return [json.loads(text) for text in self.kept.documents.values()]


class TestMemorySink(LargeDocuments, SinkContract):
    @pytest.fixture
    def target(self):
        return MemoryTarget()


class CosmosTarget(SinkTarget):
    def __init__(self, server, *, bulk=True, **options):
        self.unwritable = {"dest": ["a list is no partition key"]}
        self.server, self.bulk, self.options = server, bulk, options

    def sink(self):
        settings = {"CosmosConnection": self.server.connection_string}
        sink = built("cosmos", settings, database="db", container="flights", **self.options)
        sink._bulk_wanted = self.bulk
        return sink

    async def stored(self):
        return self.server.documents("db", "flights")

    async def remove(self):
        self.server.delete_database("db")

    @asynccontextmanager
    async def unreachable(self):
        self.server.inject(Fault("docs.*", "latency", count=None, seconds=10.0))
        yield
        self.server.faults.clear()


@pytest.mark.wire
class TestCosmosBulkSink(LargeDocuments, SinkContract):
    """Four physical partitions, and requests for each of them."""

    version = 2
    bulk = True
    guard = "none"

    @pytest.fixture
    async def target(self):
        async with CosmosServer() as server:
            server.create_container("db", "flights", "/dest", throughput=40_000, version=self.version)
            yield CosmosTarget(server, bulk=self.bulk, guard=self.guard)

    async def test_the_container_is_written_to_as_its_kind_allows(self, sinks):
        sink = await sinks.open()

        assert sink.bulk is self.bulk


class TestCosmosSinkWithoutBulk(TestCosmosBulkSink):
    """Requests for one partition key value each."""

    bulk = False


class TestCosmosSinkOfHashVersion1(TestCosmosBulkSink):
    version = 1


class TestCosmosSinkUnderTheGuard(TestCosmosBulkSink):
    guard = "number"


class SqlTarget(SinkTarget):
    """A table of the user's without a key, so that an event that is written twice is two rows."""

    appends = True

    def __init__(self, url):
        self.world = World(url)
        self.settings = {"CONSUMER_SQL_URL": url}

    def sink(self):
        columns = {"id": "$.id", "dest": "$.dest", "text": "$.text", "gate": "$.gate"}
        return built("sql", self.settings, table="kept", columns=columns)

    async def claim(self, mark=-1):
        return await self.world.store.claim("0", "a", deadline=soon())

    async def stored(self):
        rows = await self.world.run("SELECT id, dest, text, gate FROM kept ORDER BY number")
        return [dict(zip(("id", "dest", "text", "gate"), row, strict=True)) for row in rows]

    async def remove(self):
        await self.world.run("DROP TABLE kept")


class TestSqlSink(SinkContract):
    @pytest.fixture
    async def target(self, tmp_path):
        target = SqlTarget(f"sqlite:///{tmp_path}/kept.db")
        table = "CREATE TABLE kept (number INTEGER PRIMARY KEY, id TEXT, dest TEXT, text TEXT, gate INTEGER)"
        async with target.world:
            await target.world.run(table)
            yield target


class DeltaTarget(SinkTarget):
    appends = True
    columns = ("id", "dest", "text", "gate")

    def __init__(self, uri):
        self.uri = uri
        self.unwritable = {"dest": 1}

    def sink(self):
        columns = {
            "id": "string not null",
            "dest": "string",
            "text": "string",
            "gate": "long",
            "number": "long",
        }
        return built("delta", {}, uri=self.uri, columns=columns, sources={"number": "@sequence_number"})

    async def stored(self):
        return DeltaTable(self.uri).to_pyarrow_table().sort_by("number").to_pylist()

    async def remove(self):
        shutil.rmtree(self.uri)


class TestDeltaSink(SinkContract):
    @pytest.fixture
    def target(self, tmp_path):
        target = DeltaTarget(f"{tmp_path}/flights")
        schema = pa.schema(
            [pa.field("id", pa.string(), nullable=False), ("dest", pa.string()), ("number", pa.int64())]
        )
        schema = schema.append(pa.field("text", pa.string())).append(pa.field("gate", pa.int64()))
        DeltaTable.create(target.uri, Schema.from_arrow(schema))
        return target
