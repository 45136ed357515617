import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ServiceRequestError, ServiceResponseError, ServiceResponseTimeoutError
from azure.cosmos import ThroughputProperties
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError

from devstack.cosmos import CosmosServer
from devstack.servers.certificates import ensure_certificate
from devstack.servers.faults import Fault

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parents[3]
DOCUMENT = {"id": "1", "origin": "JFK"}


@pytest.fixture
async def server():
    async with CosmosServer(split_delay=0.2) as running:
        running.create_container("flights", "flights", "/origin", throughput=10_000)
        yield running


@pytest.fixture
async def client(server):
    # retry_total alone leaves the retries of 429 on.
    async with CosmosClient(server.endpoint, server.key, retry_total=0, retry_throttle_total=-1) as connected:
        yield connected


def stored(server):
    return server.document_count("flights", "flights")


@pytest.mark.parametrize(
    ("status", "substatus"),
    [
        (401, 0),
        (403, 0),
        (404, 1003),
        (408, 0),
        (410, 1007),
        (413, 0),
        (429, 3200),
        (449, 0),
        (500, 0),
        (503, 0),
    ],
)
async def test_an_error_is_answered_as_asked_and_nothing_is_written(server, container, status, substatus):
    await container.read()
    server.inject(Fault("docs.upsert", "error", count=None, status=status, condition=str(substatus)))
    with pytest.raises(CosmosHttpResponseError) as caught:
        await container.upsert_item(DOCUMENT)

    assert (caught.value.status_code, caught.value.sub_status or 0) == (status, substatus)
    assert stored(server) == 0
    server.faults.clear()
    await container.upsert_item(DOCUMENT)
    assert stored(server) == 1


async def test_a_throttled_request_is_told_when_to_come_back(server, container):
    server.inject(Fault("docs.*", "error", status=429, condition="3200", retry_after=0.25))
    with pytest.raises(CosmosHttpResponseError) as caught:
        await container.upsert_item(DOCUMENT)

    assert caught.value.headers["x-ms-retry-after-ms"] == "250"


async def test_an_error_afterwards_hides_that_the_document_was_written(server, container):
    server.inject(Fault("docs.upsert", "error_after", status=408))
    with pytest.raises(CosmosHttpResponseError):
        await container.upsert_item(DOCUMENT)

    assert stored(server) == 1


@pytest.mark.parametrize(("kind", "written"), [("drop_connection", 0), ("drop_ack", 1)])
async def test_a_lost_connection_leaves_the_outcome_unknown(server, container, kind, written):
    await container.read()
    server.inject(Fault("docs.upsert", kind, count=None))
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        await container.upsert_item(DOCUMENT)

    assert stored(server) == written
    assert server.stats().requests["docs.upsert"] >= 1


def answering():
    return [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "HttpConnection._later"]


async def test_a_server_that_hangs_writes_nothing_and_forgets_a_client_that_leaves(server, container):
    await container.read()
    server.inject(Fault("docs.upsert", "hang", count=None))
    with pytest.raises((ServiceRequestError, ServiceResponseError, ServiceResponseTimeoutError)):
        await container.upsert_item(DOCUMENT, read_timeout=0.2)

    assert stored(server) == 0
    deadline = time.monotonic() + 5
    while answering():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_latency_delays_the_answer(server, container):
    await container.read()
    server.inject(Fault("docs.upsert", "latency", seconds=0.2))
    before = time.monotonic()
    await container.upsert_item(DOCUMENT)

    assert time.monotonic() - before >= 0.2


async def test_a_hot_range_refuses_while_the_others_go_on(server, container):
    server.split("flights", "flights")
    map_of = server.container("flights", "flights")
    origins = [f"o{number}" for number in range(12)]
    hot = {origin for origin in origins if map_of.partition_of((origin,)).range.id == "1"}
    server.inject(Fault("range.1.*", "error", count=None, status=429, condition="3200"))
    refused = set()
    for origin in origins:
        try:
            await container.upsert_item({"id": "1", "origin": origin})
        except CosmosHttpResponseError as error:
            refused.add((error.status_code, origin))

    assert refused == {(429, origin) for origin in hot}
    assert 0 < len(hot) < len(origins)


async def test_a_range_really_runs_out_of_request_units_and_recovers_when_told(server, container):
    server.replace_throughput("flights", "flights", throughput=400)
    refusals = []
    for number in range(200):  # 1000 RU, more than any two seconds have
        try:
            await container.upsert_item({"id": str(number), "origin": "JFK"})
        except CosmosHttpResponseError as error:
            refusals.append((error.status_code, error.sub_status))
            await asyncio.sleep(int(error.headers["x-ms-retry-after-ms"]) / 1000 + 0.01)
            await container.upsert_item({"id": str(number), "origin": "JFK"})

    statistics = server.stats().ranges["flights/flights/0"]
    assert stored(server) == 200
    assert set(refusals) == {(429, 3200)}
    assert len(refusals) == statistics.throttled
    assert (statistics.operations, statistics.request_units) == (200, 1000)


async def test_events_come_with_a_request_or_at_once(server, container):
    await container.upsert_item(DOCUMENT)
    server.inject(Fault("docs.upsert", "split"))
    await container.upsert_item(DOCUMENT)
    assert [one.id for one in server.container("flights", "flights").map.ranges] == ["1", "2"]
    server.inject(Fault("now", "merge", condition="flights/flights"))
    assert [one.id for one in server.container("flights", "flights").map.ranges] == ["3"]
    assert [found async for found in container.query_items("SELECT VALUE c.id FROM c")] == ["1"]
    assert server.stats().operations >= 3
    server.inject(Fault("docs.upsert", "merge"))
    with pytest.raises(CosmosHttpResponseError, match="no right neighbour"):
        await container.upsert_item(DOCUMENT)

    with pytest.raises(ValueError, match="range 9 is gone"):
        server.inject(Fault("now", "split", condition="flights/flights/9"))
    server.inject(Fault("now", "recreate_container", condition="flights/flights"))
    assert stored(server) == 0
    server.inject(Fault("now", "delete_database", condition="flights"))
    with pytest.raises(CosmosHttpResponseError) as caught:
        await container.upsert_item(DOCUMENT)
    assert (caught.value.status_code, caught.value.sub_status) == (404, 1003)


async def test_the_sdk_follows_splits_and_merges_of_the_ranges(server, container):
    async def ids():
        [_ async for _ in container.read_feed_ranges(force_refresh=True)]
        provider = container.client_connection._routing_map_provider
        found = await provider.get_routing_map(container.container_link, {})
        return [one["id"] for one in found.get_ordered_partition_key_ranges()]

    assert await ids() == ["0"]
    server.split("flights", "flights")
    server.split("flights", "flights", "2")
    assert await ids() == ["1", "3", "4"]
    server.merge("flights", "flights", "1")
    assert await ids() == ["5", "4"]


async def test_faults_and_statistics_are_reached_from_another_process(server, container):
    async with aiohttp.ClientSession() as session:
        url = f"{server.endpoint}faults"
        fault = {"where": "docs.upsert", "kind": "error", "status": 503, "count": None}
        async with session.post(url, json=fault) as answer:
            assert answer.status == 201
        async with session.get(url) as answer:
            assert [(one["where"], one["status"]) for one in await answer.json()] == [("docs.upsert", 503)]
        with pytest.raises(CosmosHttpResponseError):
            await container.upsert_item(DOCUMENT)
        async with session.delete(url) as answer:
            assert answer.status == 204
        await container.upsert_item(DOCUMENT)
        for wrong in (
            {"where": "docs.*", "kind": "explode"},
            {"where": "now", "kind": "split", "condition": "x/y"},
        ):
            async with session.post(url, json=wrong) as answer:
                assert answer.status == 400
                assert "error" in await answer.json()
        async with session.get(f"{server.endpoint}stats") as answer:
            assert (await answer.json())["ranges"]["flights/flights/0"]["operations"] == 1


async def test_throughput_is_read_and_replaced_and_pends_above_what_partitions_carry(server, container):
    manual = await container.get_throughput()
    await container.replace_throughput(20_000)
    waiting = server.offer("flights", "flights").pending
    deadline = time.monotonic() + 5
    while (await container.get_throughput()).offer_throughput != 20_000:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)

    assert (manual.offer_throughput, manual.auto_scale_max_throughput) == (10_000, None)
    assert waiting is not None
    assert len(server.container("flights", "flights").map) == 2


async def test_what_a_replacement_may_not_ask_is_refused_with_what_it_may(container):
    with pytest.raises(CosmosHttpResponseError, match="between 400 and 1000000") as caught:
        await container.replace_throughput(450)

    assert caught.value.status_code == 400


async def test_autoscale_throughput_is_created_and_replaced(client, server):
    database = await client.create_database(
        "auto", offer_throughput=ThroughputProperties(auto_scale_max_throughput=4000)
    )
    await database.replace_throughput(ThroughputProperties(auto_scale_max_throughput=6000))
    found = await database.get_throughput()

    assert (found.auto_scale_max_throughput, found.offer_throughput) == (6000, None)
    assert found.properties["content"]["offerThroughput"] == 600


class Token:
    async def get_token(self, *_scopes, **_options):
        return AccessToken("token", int(time.time()) + 3600)

    async def close(self):
        """Nothing to close."""


async def test_a_managed_identity_writes_documents_but_may_not_touch_throughput(tmp_path):
    # The SDK sends bearer tokens over TLS alone.
    async with CosmosServer(aad=True, certificate=ensure_certificate(tmp_path)) as server:
        server.create_container("flights", "flights", "/origin")
        async with CosmosClient(server.endpoint, Token()) as client:
            container = client.get_database_client("flights").get_container_client("flights")
            await container.upsert_item(DOCUMENT)
            with pytest.raises(CosmosHttpResponseError) as caught:
                await container.get_throughput()

        assert caught.value.status_code == 403
        assert stored(server) == 1


async def test_a_process_of_its_own_says_when_it_is_ready_and_ends_when_told():
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "devstack.cosmos", "--port", "0", "--database", "d"),
        *("--container", "c:/pk:800", "--container", "deep:/a,/b:400"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().split()
        assert line[0] == "ready"
        key = CosmosServer().key
        async with CosmosClient(line[1], key) as client:
            database = client.get_database_client("d")
            await database.get_container_client("c").upsert_item({"id": "1", "pk": "x"})
            deep = await database.get_container_client("deep").read()
            throughput = await database.get_container_client("c").get_throughput()
    finally:
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), 10)

    assert deep["partitionKey"] == {"paths": ["/a", "/b"], "kind": "MultiHash", "version": 2}
    assert (throughput.offer_throughput, status) == (800, 0)


async def test_the_port_is_free_again_after_a_stop():
    server = CosmosServer()
    await server.start()
    port = server.port
    async with aiohttp.ClientSession() as session, session.get(f"{server.endpoint}stats") as answer:
        assert json.loads(await answer.text())["requests"] == {}
        await server.stop()

    async with CosmosServer(port=port) as again:
        assert again.port == port
