"""Non-atomic bulk: by requests as the .NET and JavaScript SDKs make them, and by the JavaScript SDK itself."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import CosmosBatchOperationError, CosmosHttpResponseError

from devstack.cosmos import CosmosServer
from devstack.cosmos.batches import MAX_REQUEST
from devstack.servers.faults import Fault
from tests.support.servers.threaded import running_in_thread
from tests.support.waiting import until

pytestmark = pytest.mark.wire

NODE_MODULES = Path(__file__).parents[3] / "devstack" / "node_modules"


@pytest.fixture
async def server():
    async with CosmosServer() as running:
        running.create_container("flights", "flights", "/origin", throughput=10_000)
        yield running


@pytest.fixture
async def container(server):
    client = CosmosClient(server.endpoint, server.key, retry_total=0, retry_throttle_total=-1)
    async with client:
        yield client.get_database_client("flights").get_container_client("flights")


async def bulk(container, operations, *, range_id="0", minimal=True, body=None):
    """Sends operations as they are, through the SDK's own pipeline; returns one result for each."""
    content = body if body is not None else json.dumps(operations)

    def rewrite(request):
        headers = request.http_request.headers
        headers["x-ms-cosmos-batch-atomic"] = "False"
        headers["x-ms-cosmos-batch-continue-on-error"] = "True"
        headers["x-ms-documentdb-partitionkeyrangeid"] = range_id
        headers.pop("x-ms-documentdb-partitionkey", None)
        request.http_request.set_text_body(content)

    try:
        return await container.execute_item_batch(
            [], partition_key=None, raw_request_hook=rewrite, no_response=minimal
        )
    except CosmosBatchOperationError as error:
        return error.operation_responses


def upsert(name, origin="JFK", **more):
    document = {"id": name, "origin": origin, **more}
    return {"operationType": "Upsert", "partitionKey": json.dumps([origin]), "resourceBody": document}


async def test_bulk_writes_documents_of_many_keys_in_one_request(container, server):
    results = await bulk(container, [upsert(str(number), f"o{number % 7}") for number in range(100)])

    assert [result["statusCode"] for result in results] == [201] * 100
    assert all(result["eTag"] and "resourceBody" not in result for result in results)
    assert server.document_count("flights", "flights") == 100
    assert (server.stats().requests["docs.bulk"], server.stats().operations) == (1, 100)
    read = await container.read_item("8", "o1")
    assert read["id"] == "8"


async def test_each_operation_of_a_bulk_request_stands_for_itself(container, server):
    await container.create_item({"id": "old", "origin": "JFK"})
    key = '["JFK"]'
    results = await bulk(
        container,
        [
            {"operationType": "Create", "partitionKey": key, "resourceBody": {"id": "old", "origin": "JFK"}},
            {"operationType": "Read", "partitionKey": key, "id": "old"},
            {"operationType": "Read", "partitionKey": key, "id": "nowhere"},
            {"operationType": "Delete", "partitionKey": key, "id": "old"},
            upsert("new"),
            upsert("bad/id"),
            {"operationType": "Upsert", "partitionKey": key, "resourceBody": {"id": "x", "origin": "LGA"}},
            {
                "operationType": "Replace",
                "partitionKey": key,
                "id": "new",
                "ifMatch": '"stale"',
                "resourceBody": {"id": "new", "origin": "JFK"},
            },
            {
                "operationType": "Patch",
                "partitionKey": key,
                "id": "new",
                "resourceBody": {"operations": [{"op": "set", "path": "/n", "value": 1}]},
            },
        ],
        minimal=False,
    )

    assert [result["statusCode"] for result in results] == [409, 200, 404, 204, 201, 400, 400, 412, 200]
    assert results[6]["subStatusCode"] == 1001
    assert results[1]["resourceBody"]["id"] == "old"
    assert [(found["id"], found["n"]) for found in server.documents("flights", "flights")] == [("new", 1)]


async def test_an_exhausted_range_refuses_the_operations_that_come_too_late(container, server):
    server.replace_throughput("flights", "flights", throughput=400)
    results = await bulk(container, [upsert(str(number)) for number in range(100)])

    statuses = [result["statusCode"] for result in results]
    assert statuses == [201] * 80 + [429] * 20
    assert all(0 < result["retryAfterMilliseconds"] <= 1000 for result in results[80:])
    assert results[80]["subStatusCode"] == 3200
    assert server.stats().ranges["flights/flights/0"].throttled == 20


async def test_after_a_split_the_old_range_is_gone_and_the_new_ones_take_their_own(container, server):
    origins = [f"o{number}" for number in range(20)]
    await bulk(container, [upsert("1", origin) for origin in origins])
    server.split("flights", "flights")
    with pytest.raises(CosmosHttpResponseError) as caught:
        await bulk(container, [upsert("1", "o1")])
    found = server.container("flights", "flights")
    owner = {origin: found.map.of(found.definition.effective([origin])).id for origin in origins}
    for range_id in ("1", "2"):
        mine = [upsert("1", origin) for origin in origins if owner[origin] == range_id]
        assert {result["statusCode"] for result in await bulk(container, mine, range_id=range_id)} == {200}
        other = [upsert("2", origin) for origin in origins if owner[origin] != range_id]
        assert {result["statusCode"] for result in await bulk(container, other, range_id=range_id)} == {400}
    server.merge("flights", "flights")
    again = await bulk(container, [upsert("1", origin) for origin in origins], range_id="3")

    assert (caught.value.status_code, caught.value.sub_status) == (410, 1002)
    assert {result["statusCode"] for result in again} == {200}
    assert server.document_count("flights", "flights") == 20


@pytest.mark.parametrize(
    ("operations", "status", "named"),
    [
        ([upsert(str(number)) for number in range(101)], 400, "101"),
        ([], 400, "0 operations"),
        ([upsert("1"), upsert("2", "x" * 2049)], 400, "2048"),
        ([{"operationType": "Upsert", "partitionKey": "JFK", "resourceBody": {}}], 400, "JSON"),
    ],
)
async def test_one_impossible_operation_fails_the_whole_request(container, server, operations, status, named):
    with pytest.raises(CosmosHttpResponseError, match=named) as caught:
        await bulk(container, operations)

    assert caught.value.status_code == status
    assert server.document_count("flights", "flights") == 0


# aiohttp warns of any body above 1 MiB.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_too_large_a_request_is_refused_as_a_whole(container):
    operations = [upsert(str(number), blob="x" * 300_000) for number in range(8)]
    assert len(json.dumps(operations)) > MAX_REQUEST

    with pytest.raises(CosmosHttpResponseError) as caught:
        await bulk(container, operations)
    assert caught.value.status_code == 413


async def test_a_fault_hits_only_the_operations_it_names(container, server):
    server.inject(Fault("op.upsert.2*", "error", count=3, status=429, condition="3200", retry_after=0.02))
    results = await bulk(container, [upsert(str(number)) for number in range(30)])

    refused = {
        index: result["retryAfterMilliseconds"]
        for index, result in enumerate(results)
        if result["statusCode"] == 429
    }
    assert refused == {2: 20, 20: 20, 21: 20}
    assert server.document_count("flights", "flights") == 27


async def test_a_container_made_anew_is_not_taken_for_the_old_one(container, server):
    await container.upsert_item({"id": "1", "origin": "JFK"})
    server.recreate_container("flights", "flights")
    await container.upsert_item({"id": "2", "origin": "JFK"})
    server.recreate_container("flights", "flights")
    await bulk(container, [upsert("3")])

    # The SDK heals itself from 400/1024: it reads the container anew and sends once more.
    assert server.stats().statuses["400"] == 2
    assert [document["id"] for document in server.documents("flights", "flights")] == ["3"]


SCRIPT = """
const {CosmosClient, BulkOperationType} = require(process.env.COSMOS_SDK);
const [endpoint, key] = process.argv.slice(1);
(async () => {
  const client = new CosmosClient({endpoint, key});
  const container = client.database("flights").container("wide");
  const made = (n) => ({id: `b${n}`, origin: `o${n}`, n});
  const old = await container.items.bulk([...Array(50).keys()].map((n) => ({
    operationType: "Upsert", partitionKey: `o${n}`, resourceBody: made(n)})));
  const many = await container.items.executeBulkOperations([...Array(500).keys()].map((n) => ({
    operationType: BulkOperationType.Upsert, partitionKey: `o${n}`, resourceBody: made(n)})));
  const batch = await container.items.batch(
    [{operationType: "Create", resourceBody: made(1000)}, {operationType: "Upsert", resourceBody: {...made(1001), origin: "o1000"}}],
    "o1000");
  const read = await container.item("b7", "o7").read();
  const scanned = await container.items.query("SELECT * FROM c WHERE c.n < 10").fetchAll();
  const deep = client.database("flights").container("deep");
  const hierarchical = await deep.items.executeBulkOperations([...Array(20).keys()].map((n) => ({
    operationType: BulkOperationType.Create, partitionKey: ["AA", `o${n}`],
    resourceBody: {id: "1", carrier: "AA", origin: `o${n}`}})));
  const offer = await container.readOffer();
  console.log(JSON.stringify({
    old: old.map((one) => one.statusCode), many: many.map((one) => one.response?.statusCode),
    batch: batch.result.map((one) => one.statusCode), read: read.resource.n, scanned: scanned.resources.length,
    hierarchical: hierarchical.map((one) => one.response?.statusCode),
    offer: offer.resource.content.offerThroughput,
  }));
})().catch((error) => { console.error(error); process.exit(1); });
"""


def test_the_javascript_sdk_writes_in_bulk_too():
    with running_in_thread(CosmosServer) as running:

        def prepare():
            running.server.create_container("flights", "wide", "/origin", throughput=50_000)
            running.server.create_container("flights", "deep", ["/carrier", "/origin"], throughput=20_000)
            return running.server.endpoint, running.server.key

        environment = {
            "COSMOS_SDK": str(NODE_MODULES / "@azure" / "cosmos"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        answer = subprocess.run(
            ["node", "-e", SCRIPT, *running.call(prepare)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )
        stored = running.call(lambda: running.server.document_count("flights", "wide"))
        statistics = running.call(running.server.stats)

    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == {
        "old": [201] * 50,
        "many": [200] * 50 + [201] * 450,
        "batch": [201, 201],
        "read": 7,
        "scanned": 10,
        "hierarchical": [201] * 20,
        "offer": 50_000,
    }
    assert stored == 502
    assert statistics.requests["docs.bulk"] < 30


async def test_what_the_state_of_a_document_refuses_is_charged_as_a_read_of_it(container, server):
    stale, key = '"00000000-0000"', '["JFK"]'
    await bulk(container, [upsert("a", text="x" * 2048)])
    before = server.stats().operations
    patch = {"operations": [{"op": "set", "path": "/n", "value": 1}], "condition": "FROM c WHERE c.n = 2"}
    results = await bulk(
        container,
        [
            {"operationType": "Create", "partitionKey": key, "resourceBody": {"id": "a", "origin": "JFK"}},
            {**upsert("a"), "ifMatch": stale},
            {"operationType": "Delete", "id": "a", "partitionKey": key, "ifMatch": stale},
            {"operationType": "Patch", "id": "a", "partitionKey": key, "resourceBody": patch},
            {"operationType": "Delete", "id": "b", "partitionKey": key},
            {
                "operationType": "Replace",
                "id": "b",
                "partitionKey": key,
                "resourceBody": {"id": "b", "origin": "JFK"},
            },
        ],
    )

    assert [result["statusCode"] for result in results] == [409, 412, 412, 412, 404, 404]
    charges = [result["requestCharge"] for result in results]
    assert all(2.0 < charge < 2.2 for charge in charges[:4])
    assert charges[4:] == [1.0, 1.0]
    assert server.stats().operations == before  # nothing was carried out


async def test_a_minimal_answer_has_the_etag_that_the_next_write_may_ask_for(container):
    [created] = await bulk(container, [upsert("a")])
    document = {"id": "a", "origin": "JFK", "n": 2}
    replace = {"operationType": "Replace", "id": "a", "partitionKey": '["JFK"]', "resourceBody": document}
    [replaced] = await bulk(container, [{**replace, "ifMatch": created["eTag"]}])
    [refused] = await bulk(container, [{**replace, "ifMatch": created["eTag"]}])

    assert "resourceBody" not in created
    assert (replaced["statusCode"], refused["statusCode"]) == (200, 412)


async def test_a_late_request_is_carried_out_although_its_client_is_gone(container, server):
    server.inject(Fault("docs.bulk", "late", seconds=0.2))
    sending = asyncio.create_task(bulk(container, [upsert("a")]))
    await until(lambda: not server.faults.list(), what="the request is at the server")
    sending.cancel()

    await until(lambda: server.document_count("flights", "flights") == 1, what="it is carried out")
