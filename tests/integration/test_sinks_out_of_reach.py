"""Sinks behind a network that is cut: by its answers, and by what it says when it is asked, an instance gives its partitions up and
takes part again (`CONSUMER_GIVE_UP_AFTER`).
"""

import asyncio
import re
import uuid
from contextlib import asynccontextmanager

import psycopg
import pytest
from aiohttp import web

from consumer.model import Claim, Outcome
from consumer.sinks.routed import ask_target
from devstack.event_hubs import EventHubsServer
from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tests.faults.consumer_processes import blob_port, through
from tests.support.consumer.lake import COLUMNS, NUMBER
from tests.support.consumer.sinks import built
from tests.support.servers.event_hubs import abandon_sockets
from tests.support.servers.postgres import new_database
from tests.support.servers.service_bus import sdk_drops_its_socket
from tests.support.servers.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tidemark.foundation.azure.connections import blob_container
from tidemark.testing import event, write

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120), sdk_drops_its_socket]

WITHIN = 3.0
"""Seconds for an answer. The consumer waits for 30 (consumer.leasing.away), and clients of storage try again for most of them."""


def port_of(connection_string):
    return int(re.search(r"Endpoint=sb://[^:;/]+:(\d+)", connection_string)[1])


def moved(connection_string, port):
    """The connection string of a namespace whose port is the proxy's."""
    return re.sub(r"(Endpoint=sb://[^:;/]+:)\d+", rf"\g<1>{port}", connection_string)


@asynccontextmanager
async def event_hubs(azurite, folder):
    async with EventHubsServer(ca_dir=folder) as server:
        server.create_hub("copies", 3)
        connection = server.connection_string()
        async with TcpProxy(port_of(connection)) as proxy:
            yield proxy, *_hub(moved(connection, proxy.port), azurite)
    await abandon_sockets()


@asynccontextmanager
async def states(azurite, folder):
    """The hub answers; the storage account of its producers' states does not."""
    async with EventHubsServer(ca_dir=folder) as server, TcpProxy(blob_port(azurite)) as proxy:
        server.create_hub("copies", 3)
        yield proxy, *_hub(server.connection_string(), through(proxy, azurite))
    await abandon_sockets()


def _hub(hub, storage):
    options = {"hub": "copies", "connection": "Target", "state_container": f"states-{uuid.uuid4().hex}"}
    return "event_hubs", {"Target": hub, "AzureWebJobsStorage": storage}, options


@asynccontextmanager
async def service_bus(_azurite, folder):
    async with ServiceBusServer(ca_dir=folder) as server:
        server.create_queue("copies", QueueSettings(limits=STANDARD, duplicate_window=600.0))
        async with TcpProxy(port_of(server.connection_string)) as proxy:
            settings = {"Target": moved(server.connection_string, proxy.port)}
            yield proxy, "service_bus", settings, {"connection": "Target", "queue": "copies"}
    await abandon_sockets()


@asynccontextmanager
async def parquet(azurite, _folder):
    async with lake(azurite) as (proxy, settings, name):
        yield proxy, "parquet", settings, {"container": name, "columns": COLUMNS, "sources": NUMBER}


@asynccontextmanager
async def delta(azurite, _folder):
    async with lake(azurite) as (proxy, settings, name):
        options = {"uri": f"az://{name}/flights", "columns": COLUMNS, "sources": NUMBER, "create": True}
        yield proxy, "delta", settings, options


@asynccontextmanager
async def lake(azurite):
    name = f"lake-{uuid.uuid4().hex}"
    async with TcpProxy(blob_port(azurite)) as proxy:
        settings = {"AzureWebJobsStorage": through(proxy, azurite)}
        async with blob_container(settings, "AzureWebJobsStorage", name) as container:
            await container.create_container()
        yield proxy, settings, name


@asynccontextmanager
async def http(_azurite, _folder):
    async def handle(_request):
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{name:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with TcpProxy(site._server.sockets[0].getsockname()[1]) as proxy:
        settings = {"TIDEMARK_TRUSTED_HOSTS": "127.0.0.1"}
        yield proxy, "http", settings, {"url": f"http://127.0.0.1:{proxy.port}/flights"}
    await runner.cleanup()


@asynccontextmanager
async def sql(url, _folder):
    url = new_database(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE flights (id TEXT)")
    folder = re.search(r"host=(.*)", url)[1]
    async with TcpProxy(f"{folder}/.s.PGSQL.5432") as proxy:
        url = re.sub(r"@/(\w+)\?.*", rf"@127.0.0.1:{proxy.port}/\1", url)
        options = {"table": "flights", "columns": {"id": "$.id"}, "create_tables": True}
        yield proxy, "sql", {"CONSUMER_SQL_URL": url}, options


@pytest.mark.parametrize("target", [event_hubs, states, service_bus, parquet, delta, http, sql])
async def test_a_target_out_of_reach_is_told_by_the_answers_and_by_the_question_until_it_is_back(
    request, tmp_path, target
):
    backend = request.getfixturevalue("postgres" if target is sql else "azurite")
    async with target(backend, tmp_path) as (proxy, kind, settings, options):
        sink = built(kind, settings, alone=False, **options)
        if (await sink.open()).by_partition:
            sink.attach(Claim("0", "me", 1))
        assert {result.outcome for result in await write(sink, [event(1)])} == {Outcome.WRITTEN}
        await ask_target(sink)
        await proxy.refuse()
        with pytest.raises(Exception):  # noqa: B017 - or no answer in time
            await asyncio.wait_for(ask_target(sink), WITHIN)
        results = await write(sink, [event(2)], asyncio.get_running_loop().time() + 2.0)

        assert [(result.outcome, result.reached) for result in results] == [(Outcome.RETRY, False)]
        await proxy.accept()
        await asyncio.wait_for(ask_target(sink), 2 * WITHIN)

        async def is_written():
            found = await write(sink, [event(2)])
            return {result.outcome for result in found} == {Outcome.WRITTEN}

        await until(is_written)
        await sink.aclose()
