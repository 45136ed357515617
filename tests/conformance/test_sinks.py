"""What every sink does: the public suite, on each sink of Tidemark."""

import asyncio
import json
import uuid
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web
from deltalake import DeltaTable, Schema

from consumer.mapping.documents import MappingOptions
from consumer.sinks.lake.columns import parse_schema
from consumer.sinks.lake.storage import storage_options
from consumer.sinks.routed import RoutedSink, ask_target
from devstack.cosmos import CosmosServer
from devstack.event_hubs import EventHubsServer
from devstack.servers.faults import Fault
from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.support.consumer.lake import COLUMNS, DeltaTarget, ParquetTarget
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.messaging import HubTarget, QueueTarget
from tests.support.consumer.sinks import HUB, built
from tests.support.consumer.sql import World, soon
from tests.support.servers.event_hubs import abandon_sockets
from tests.support.servers.service_bus import sdk_drops_its_socket
from tidemark.foundation.azure.connections import blob_container
from tidemark.foundation.errors import UnavailableError
from tidemark.testing import SinkContract, SinkTarget, event, flight, write


class LargeDocuments:
    """For targets that keep one document per id."""

    async def test_a_record_larger_than_a_request_is_written_beside_small_ones(self, target, sinks):
        sink = await sinks.open()
        events = [event(n, flight(n, text="x" * size)) for n, size in enumerate([10, 300_000, 10])]
        results = await write(sink, events)

        assert {str(result.outcome) for result in results} == {"written"}
        assert sorted(len(document["text"]) for document in await target.stored()) == [10, 10, 300_000]


class Troubled:
    """For targets whose service may be in trouble: `troubles`, one after the other, by `cause`."""

    async def test_whatever_the_service_refuses_or_leaves_open_each_event_is_stored_once(self, target, sinks):
        sink, ids = await sinks.open(), []
        for number, trouble in enumerate(target.troubles):
            target.cause(trouble)
            events = [event(3 * number + n) for n in (1, 2, 3)]
            await self.expect_written(target, sink, events, ids)
            ids += [f"f{each.sequence_number}" for each in events]

        assert not target.appends or [each["id"] for each in await target.stored()] == ids


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
    troubles = (
        *(
            {"kind": "error", "status": status, "retry_after": 0.05}
            for status in (401, 403, 408, 410, 429, 449, 500, 503)
        ),
        *({"kind": "error_after", "status": status, "retry_after": 0.05} for status in (408, 500, 503)),
        *({"kind": kind} for kind in ("drop_connection", "drop_ack")),
    )

    def cause(self, trouble):
        for point in ("docs.bulk", "docs.batch"):
            self.server.inject(Fault(point, **trouble))

    def __init__(self, server, *, bulk=True, **options):
        self.unwritable = {"dest": ["a list is no partition key"]}
        self.server, self.bulk, self.options = server, bulk, options

    def sink(self):
        settings = {"CosmosConnection": self.server.connection_string}
        sink = built("cosmos", settings, database="db", container="flights", **self.options)
        sink._bulk_wanted = self.bulk
        return sink

    async def stored(self):
        return [each for each in self.server.documents("db", "flights") if "_deleted" not in each]

    async def remove(self):
        self.server.delete_database("db")

    @asynccontextmanager
    async def unreachable(self):
        self.server.inject(Fault("docs.*", "latency", count=None, seconds=10.0))
        yield
        self.server.faults.clear()


@pytest.mark.wire
class TestCosmosBulkSink(LargeDocuments, Troubled, SinkContract):
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

    is_slow = True

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


class TestDeltaSink(SinkContract):
    @pytest.fixture
    def target(self, tmp_path):
        target = DeltaTarget(f"{tmp_path}/flights")
        DeltaTable.create(target.uri, Schema.from_arrow(parse_schema(COLUMNS)))
        return target


class LakeTarget(DeltaTarget):
    async def remove(self):
        self.create = False


@pytest.mark.wire
class TestDeltaSinkInBlobStorage(SinkContract):
    """A table that the sink creates itself."""

    is_slow = True

    @pytest.fixture
    async def target(self, azurite):
        settings = {"AzureWebJobsStorage": azurite}
        name = f"lake-{uuid.uuid4().hex}"
        async with blob_container(settings, "AzureWebJobsStorage", name) as container:
            await container.create_container()
        uri = f"az://{name}/flights"
        return LakeTarget(uri, settings, storage_options(uri, settings, "AzureWebJobsStorage"))


@pytest.mark.wire
class TestParquetSink(SinkContract):
    @pytest.fixture
    async def target(self, azurite):
        target = ParquetTarget(azurite)
        async with target.client:
            await target.client.create_container()
            yield target


@pytest.mark.wire
class TestEventHubsSink(Troubled, SinkContract):
    is_slow = True

    @pytest.fixture
    async def target(self, azurite, tmp_path):
        async with EventHubsServer(ca_dir=tmp_path) as server:
            server.create_hub("copies", 3)
            yield HubTarget(server, azurite)
        await abandon_sockets()


@pytest.mark.wire
async def test_a_target_hub_made_anew_gets_nothing_before_the_sink_has_other_states(azurite, tmp_path):
    async with EventHubsServer(ca_dir=tmp_path) as server:
        server.create_hub("copies", 3)
        target = HubTarget(server, azurite)

        async def tried(numbers):
            async with aclosing(target.sink()) as sink:
                await sink.open()
                sink.attach(await target.claim())
                return await write(sink, [event(number) for number in numbers])

        await tried(range(10))
        server.recreate_hub("copies")
        refused = await tried(range(10, 20))
        assert ({each.outcome for each in refused}, await target.stored()) == ({"retry"}, [])
        assert "the hub was recreated" in refused[0].reason
        assert "another state_container in its options" in refused[0].reason
        target.states += "-2"
        written = await tried(range(10, 20))
        assert ({each.outcome for each in written}, len(await target.stored())) == ({"written"}, 10)
    await abandon_sockets()


@sdk_drops_its_socket
@pytest.mark.wire
class TestServiceBusSink(Troubled, SinkContract):
    """A queue with duplicate detection."""

    is_slow = True

    @pytest.fixture
    async def target(self, tmp_path):
        async with ServiceBusServer(ca_dir=tmp_path) as server:
            server.create_queue("copies", QueueSettings(limits=STANDARD, duplicate_window=600.0))
            yield QueueTarget(server)
        await abandon_sockets()


class ServiceTarget(SinkTarget):
    """A web service that knows each idempotency key once, and refuses what has no text as `dest`."""

    troubles = (
        *(("before", status) for status in (302, 401, 403, 407, 408, 425, 429, 500, 503)),
        *(("after", status) for status in (408, 500, 502, 504)),
        *((kind, 0) for kind in ("cut", "after_cut")),
    )

    def cause(self, trouble):
        self.trouble = trouble

    def __init__(self):
        self.documents, self.keys, self.trouble = {}, set(), None
        self.answering = asyncio.Event()
        self.answering.set()
        self.unwritable = {"dest": 1}

    def sink(self):
        settings = {"TIDEMARK_TRUSTED_HOSTS": "127.0.0.1", "TOKEN": "Bearer secret"}
        secret = {"Authorization": "TOKEN"}
        options = {"url": f"{self.url}/flights/{{$.id}}", "method": "PUT", "key": "$.id"}
        return built("http", settings, **options, secret_headers=secret)

    async def stored(self):
        return list(self.documents.values())

    async def handle(self, request):
        document = json.loads(await request.read())
        assert request.path == f"/flights/{document['id']}"
        assert request.headers["Authorization"] == "Bearer secret"
        await self.answering.wait()
        (when, status), self.trouble = self.trouble or ("", 0), None
        if when == "before":
            return web.Response(status=status, headers={"Retry-After": "0"})
        if when == "cut":
            request.transport.close()
        if not isinstance(document["dest"], str):
            return web.Response(status=422, text="dest is no text")
        if request.headers["Idempotency-Key"] not in self.keys:
            self.keys.add(request.headers["Idempotency-Key"])
            self.documents[document["id"]] = document
        if when == "after_cut":
            request.transport.close()
        return web.Response(status=status if when == "after" else 204)

    @asynccontextmanager
    async def unreachable(self):
        self.answering.clear()
        yield
        self.answering.set()


class TestHttpSink(Troubled, SinkContract):
    is_slow = True

    @pytest.fixture
    async def target(self):
        target = ServiceTarget()
        runner = web.ServerRunner(web.Server(target.handle), shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        target.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        yield target
        await runner.cleanup()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sql", {}),
        ("delta", {"uri": "nowhere"}),
        ("http", {"url": "https://localhost:1/flights/{$.id}"}),
    ],
)
async def test_a_target_that_cannot_be_reached_is_told_to_an_instance_that_asks(kind, options, tmp_path):
    settings = {
        "CONSUMER_SQL_URL": f"sqlite:///{tmp_path}/nowhere/kept.db",
        "TIDEMARK_TRUSTED_HOSTS": "localhost",
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    }
    if kind == "delta":
        options = {"uri": f"{tmp_path}/nowhere"}
    gone = built(kind, settings, **options, alone=False)
    routed = RoutedSink({"there": MemorySink(MappingOptions(HUB)), "gone": gone})
    with pytest.raises(UnavailableError, match="sink 'gone': "):
        await ask_target(routed)
    await routed.aclose()
