"""The Cosmos sink against the local Cosmos DB: routes, faults, and what happens without the SDK's private parts."""

import asyncio
import json

import pytest
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import CustomHookPolicy
from azure.core.pipeline.transport import HttpRequest
from azure.cosmos import PartitionKey
from azure.cosmos._routing.aio.routing_map_provider import PartitionKeyRangeCache
from msgspec.structs import replace

from consumer.core.charging import is_capped
from consumer.mapping.documents import MappingOptions
from consumer.model import Batch, Event, Outcome, Routes, Write
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.sinks.cosmos.client import FOLLOW_FOR, CosmosContainer, _Exchange, _Pattern
from consumer.sinks.cosmos.options import request_headers
from devstack.cosmos import CosmosServer
from devstack.servers.faults import Fault
from tidemark.foundation.azure.cosmos import cosmos_client
from tidemark.foundation.errors import SettingsError, UnavailableError

pytestmark = pytest.mark.wire

WRITTEN, RETRY, REJECT = Outcome.WRITTEN, Outcome.RETRY, Outcome.REJECT


@pytest.fixture
async def server():
    async with CosmosServer() as server:
        server.create_container("db", "flights", "/dest", throughput=20_000)
        server.create_container("db", "one", "/dest", throughput=10_000)
        server.create_container("db", "tenants", ["/tenant", "/dest"], throughput=30_000)
        server.create_container("db", "old", "/dest", version=1)
        yield server


@pytest.fixture
async def opened(server):
    sinks = []

    async def open_sink(container="one", **options):
        settings = {"CosmosConnection": options.pop("connection", server.connection_string)}
        mapping = MappingOptions("hub")
        sink = CosmosBulkSink(settings, database="db", container=container, mapping=mapping, **options)
        sinks.append(sink)
        routes = await sink.open()
        return sink, routes

    yield open_sink
    for sink in sinks:
        await sink.aclose()


def records(sink, count, **more):
    bodies = [{"id": f"f{n}", "dest": f"D{n}", "tenant": n, **more} for n in range(count)]
    return [
        sink.prepare(Write(Event("0", n, str(n), 0.0, json.dumps(body).encode())))
        for n, body in enumerate(bodies)
    ]


def prepared(sink, bodies):
    return [
        sink.prepare(Write(Event("0", n, str(n), 0.0, json.dumps(body).encode())))
        for n, body in enumerate(bodies)
    ]


async def write(sink, found, lane="0", *, within=30.0):
    deadline = asyncio.get_running_loop().time() + within
    return list(await sink.write(Batch(1, lane, tuple(found)), deadline=deadline))


def outcomes(results):
    return [result.outcome for result in results]


def sent(server, point="docs.bulk"):
    return server.stats().requests.get(point, 0)


def ids(server, container="one"):
    return {document["id"] for document in server.documents("db", container)}


async def test_the_lanes_are_the_ranges_of_the_container(server, opened):
    _, routes = await opened("flights")
    ranges = server.container("db", "flights").map.ranges

    assert routes == Routes(tuple(each.minimum for each in ranges), tuple(each.id for each in ranges))
    assert len(ranges) == 2


@pytest.mark.parametrize("container", ["flights", "tenants"])
async def test_a_hundred_documents_of_a_range_are_one_request(server, opened, container):
    sink, routes = await opened(container)
    before, lanes = sent(server), {}
    for record in records(sink, 150):
        lanes.setdefault(routes.lane_of(record), []).append(record)
    for lane, found in lanes.items():
        assert outcomes(await write(sink, found, lane)) == [WRITTEN] * len(found)

    assert len(lanes) == len(routes.lanes)
    assert sent(server) - before == len(lanes)
    assert len(ids(server, container)) == 150


async def test_more_than_a_request_takes_goes_in_several(server, opened):
    sink, _ = await opened()
    before = sent(server)
    results = await write(sink, records(sink, 250))

    assert outcomes(results) == [WRITTEN] * 250
    assert sent(server) - before == 3
    assert all(result.request_units > 0 for result in results)
    await write(sink, records(sink, 50, text="x" * 10_000))
    assert sent(server) - before == 6


async def test_of_a_mixed_answer_only_the_throttled_operation_is_tried_again(server, opened):
    sink, _ = await opened()
    server.inject(Fault("op.upsert.f3", "error", status=429, condition="3200", retry_after=0.25))
    results = await write(sink, records(sink, 5))

    assert outcomes(results) == [WRITTEN, WRITTEN, WRITTEN, RETRY, WRITTEN]
    assert (results[3].throttled, results[3].retry_after) == (True, 0.25)
    assert ids(server) == {"f0", "f1", "f2", "f4"}


@pytest.mark.parametrize("bulk", [True, False])
async def test_a_throttled_request_is_sent_once_and_says_how_long_to_wait(server, opened, bulk):
    sink, _ = await opened(bulk=bulk)
    point = "docs.bulk" if bulk else "docs.batch"
    server.inject(Fault(point, "error", status=429, condition="3200", retry_after=1.5))
    [result] = await write(sink, records(sink, 1))

    assert (result.outcome, result.throttled, result.retry_after) == (RETRY, True, 1.5)
    assert ids(server) == set()  # the fault was for one request: a second one would have been carried out


@pytest.mark.parametrize(
    ("status", "sub_status", "reason"),
    [
        (401, "", "unauthorized"),
        (403, "", "forbidden"),
        (404, "", "not_found"),
        (404, "1003", "container_missing"),
        (408, "", "timeout"),
        (410, "1007", "range_moved"),
        (410, "1008", "range_moved"),
        (410, "1000", "container_recreated"),
        (413, "3402", "response_too_large"),
        (449, "", "concurrent_write"),
        (500, "", "server_error"),
    ],
)
async def test_a_refused_request_is_sent_once_and_its_records_are_tried_again(
    server, opened, status, sub_status, reason
):
    sink, _ = await opened()
    server.inject(Fault("docs.bulk", "error", status=status, condition=sub_status))
    results = await write(sink, records(sink, 3))

    assert [(result.outcome, result.status, result.reason) for result in results] == [
        (RETRY, status, reason)
    ] * 3
    assert ids(server) == set()  # the fault was for one request: a second one would have been carried out
    assert outcomes(await write(sink, records(sink, 3))) == [WRITTEN] * 3


async def test_where_the_sdk_itself_looks_for_another_region_a_request_may_be_sent_twice(server, opened):
    """Unavailable, and no longer the write region: that is failover, which the SDK knows how to do."""
    sink, _ = await opened()
    sink._container._pattern = None
    server.inject(Fault("docs.bulk", "error", count=2, status=503))
    assert [(result.outcome, result.status) for result in await write(sink, records(sink, 1))] == [
        (RETRY, 503)
    ]
    server.inject(Fault("docs.bulk", "error", status=403, condition="3"))
    assert outcomes(await write(sink, records(sink, 1))) == [WRITTEN]


class CountsSdk:
    """Counts what the SDK sends itself."""

    def __init__(self, container, monkeypatch):
        self.count, send = 0, container._send

        async def counted(*arguments, **options):
            self.count += 1
            return await send(*arguments, **options)

        monkeypatch.setattr(container, "_send", counted)


@pytest.mark.parametrize(
    ("fault", "asks_sdk"),
    [
        *[
            ((status, sub), True)
            for status, sub in [(401, ""), (403, "3"), (403, "1008"), (404, "1003"), (410, "1000")]
        ],
        *[((status, ""), True) for status in (408, 449, 500, 503)],
        (("drop_connection", ""), True),
        (("hang", ""), False),  # the deadline passes; the request after it would notice
        *[((status, sub), False) for status, sub in [(400, ""), (413, ""), (429, "3200")]],
    ],
)
async def test_what_may_be_of_the_address_or_the_credential_makes_the_sdk_look_for_itself(
    server, opened, monkeypatch, fault, asks_sdk
):
    sink, _ = await opened()
    by_sdk = CountsSdk(sink._container, monkeypatch)
    assert outcomes(await write(sink, records(sink, 250))) == [WRITTEN] * 250
    assert by_sdk.count == 0, "the first request is followed, which was the trial at the start"

    status, sub_status = fault
    if isinstance(status, int):
        server.inject(Fault("docs.bulk", "error", status=status, condition=sub_status))
    else:
        server.inject(Fault("docs.bulk", status))
    await write(sink, records(sink, 1), within=0.5)
    assert by_sdk.count == 0
    assert outcomes(await write(sink, records(sink, 1))) == [WRITTEN]
    assert by_sdk.count == asks_sdk
    assert outcomes(await write(sink, records(sink, 1))) == [WRITTEN]
    assert by_sdk.count == asks_sdk, "and the answered one is followed again"


async def test_the_sdk_sends_every_thirty_seconds_so_that_its_view_of_regions_and_tokens_is_followed(
    server, opened, monkeypatch
):
    sink, _ = await opened()
    by_sdk = CountsSdk(sink._container, monkeypatch)
    sink._container._pattern.until -= FOLLOW_FOR
    for _ in range(3):
        assert outcomes(await write(sink, records(sink, 1))) == [WRITTEN]

    assert by_sdk.count == 1


@pytest.mark.parametrize(
    "key", ["upsert", "read", "mixed", "documents", 400, 401, 403, 404, 410, 413, 429, 500]
)
async def test_the_service_is_understood_as_by_the_sdk(server, opened, monkeypatch, key):
    """The same request by both ways has the same answer, and the same headers but for ids and times."""
    sink, _ = await opened()
    container, rid = sink._container, sink._definition.rid
    bodies = {
        "upsert": [
            {"operationType": "Upsert", "partitionKey": '["ü"]', "resourceBody": {"id": "a", "dest": "ü"}}
        ],
        "read": [{"operationType": "Read", "id": "a", "partitionKey": '["b"]'}],
    }
    bodies["mixed"] = bodies["upsert"] + bodies["read"]
    body = json.dumps(bodies.get(key, bodies["mixed"]), ensure_ascii=False).encode()
    requests, answer, answers = [], server.service.answer, []
    monkeypatch.setattr(
        server.service, "answer", lambda request: (requests.append(request), answer(request))[1]
    )
    server.inject(Fault("nowhere", "error"))  # with any fault in force, requests pass through `answer`
    await container.send_bulk(rid, "0", json.dumps(bodies["upsert"]).encode())
    requests.clear()
    for pattern in (container._pattern, None):
        container._pattern = pattern
        if isinstance(key, int):
            server.inject(Fault("docs.bulk", "error", status=key, condition="7", retry_after=1.5))
        answers.append(await container.send_bulk(rid, "0", body, minimal=key != "documents"))

    followed, by_sdk = answers
    if followed.operations is None:
        assert followed == by_sdk
    else:
        assert [each.keys() for each in followed.operations] == [each.keys() for each in by_sdk.operations]
        assert [each["statusCode"] for each in followed.operations] == [
            each["statusCode"] for each in by_sdk.operations
        ]
        posts = [request for request in requests if request.method == "POST"]
        headers = [
            {name: value for name, value in post.headers.items() if name not in OF_ONE_REQUEST}
            for post in posts
        ]
        assert headers[0] == headers[1]
        assert [post.body for post in posts] == [body, body]


OF_ONE_REQUEST = {"x-ms-activity-id", "x-ms-date", "authorization", "accept-encoding"}


def test_what_belongs_to_one_request_of_the_sdk_is_not_followed():
    kept = {"authorization": "a", "x-ms-date": "d", "x-ms-consistency-level": "Session"}
    own = {"traceparent": "00-1-2-01", "X-Ms-Session-Token": "0:1", "Prefer": "x", "Content-Length": "9"}
    pattern = _Pattern(HttpRequest("POST", "https://h/docs/", headers=kept | own), until=1.0)

    assert pattern.headers == {**kept, "Accept-Encoding": "identity"}
    assert (str(pattern.url), pattern.verifies) == ("https://h/docs/", True)
    assert _Pattern(HttpRequest("POST", "https://localhost:1/"), until=1.0).verifies is False


async def test_a_request_above_a_megabyte_and_an_odd_answer_are_followed_too(
    server, opened, monkeypatch, caplog
):
    sink, _ = await opened()
    by_sdk = CountsSdk(sink._container, monkeypatch)
    assert outcomes(await write(sink, records(sink, 1, text="x" * 1_500_000))) == [WRITTEN]
    for odd in (b"", b"{}", b'[{"status":1}]', b"[]", b"not json", b"[1]", b'["\xff"]', b"[" * 100_000):
        sink._container._pattern.until += 1
        pattern = sink._container._pattern
        with monkeypatch.context() as patch:
            patch.setattr(
                server.service, "handle", lambda *_, odd=odd: (200, {"content-type": "application/json"}, odd)
            )
            assert outcomes(await write(sink, records(sink, 2))) == [RETRY, RETRY], odd
        sink._container._pattern = pattern

    assert by_sdk.count == 0
    assert "what was sent is tried again" in caplog.text
    assert "type%3Dmaster" not in repr(vars(sink._container))


@pytest.mark.parametrize(("kind", "stored"), [("drop_connection", set()), ("drop_ack", {"f0", "f1"})])
async def test_a_lost_connection_is_an_unknown_outcome_and_not_sent_again(server, opened, kind, stored):
    sink, _ = await opened()
    server.inject(Fault("docs.bulk", kind))
    results = await write(sink, records(sink, 2))

    assert [(result.outcome, result.status) for result in results] == [(RETRY, 0)] * 2
    assert results[0].reason
    assert ids(server) == stored
    assert outcomes(await write(sink, records(sink, 2))) == [WRITTEN] * 2


async def test_what_was_answered_before_the_deadline_stands(server, opened):
    sink, _ = await opened()
    found = records(sink, 150)
    assert outcomes(await write(sink, found[:100])) == [WRITTEN] * 100
    server.inject(Fault("docs.bulk", "latency", seconds=0.0))
    server.inject(Fault("docs.bulk", "hang"))
    results = await write(sink, found, within=0.5)

    assert outcomes(results) == [WRITTEN] * 100 + [RETRY] * 50
    assert {result.reason for result in results[100:]} == {"no_answer"}


async def test_one_operation_that_sinks_the_whole_request_is_found_and_rejected_alone(server, opened):
    sink, _ = await opened()
    found = records(sink, 60)
    found[41] = replace(found[41], partition_key='["unfinished"')
    results = await write(sink, found)

    assert [index for index, result in enumerate(results) if result.outcome is not WRITTEN] == [41]
    assert (results[41].outcome, results[41].status) == (REJECT, 400)
    assert results[41].reason.startswith("bad_request: ")
    assert len(ids(server)) == 59


async def test_a_request_too_large_is_halved_and_a_single_record_too_large_rejected(server, opened):
    sink, _ = await opened()
    found = records(sink, 3)
    found[1] = replace(found[1], payload=b'{"id":"f1","dest":"D1","text":"%s"}' % (b"x" * 2**21))
    results = await write(sink, found)

    assert outcomes(results) == [WRITTEN, REJECT, WRITTEN]
    assert (results[1].status, results[1].reason.partition(":")[0]) == (413, "too_large")
    server.inject(Fault("docs.bulk", "error", status=413))
    assert outcomes(await write(sink, found[::2])) == [WRITTEN, WRITTEN]


async def test_an_operation_refused_for_itself_carries_the_words_of_the_service(server, opened):
    sink, _ = await opened()
    server.inject(Fault("op.upsert.f1", "error", status=400))
    results = await write(sink, records(sink, 3))

    assert outcomes(results) == [WRITTEN, REJECT, WRITTEN]
    assert results[1].reason == "bad_request: Injected fault at op.upsert.f1"


async def test_after_a_split_the_records_are_sent_where_they_belong_now(server, opened):
    sink, routes = await opened()
    server.split("db", "one")
    results = await write(sink, records(sink, 20))
    assert [(result.outcome, result.rerouted) for result in results] == [(RETRY, True)] * 20

    now = await sink.routes()
    assert len(now.lanes) == 2
    assert set(now.lanes).isdisjoint(routes.lanes)
    for lane in now.lanes:
        here = [record for record in records(sink, 20) if now.lane_of(record) == lane]
        assert here
        assert outcomes(await write(sink, here, lane)) == [WRITTEN] * len(here)


@pytest.mark.parametrize("bulk", [True, False])
async def test_a_container_made_anew_is_noticed_before_anything_is_written_to_it(server, opened, bulk):
    sink, _ = await opened(bulk=bulk)
    server.recreate_container("db", "one")
    [result] = await write(sink, records(sink, 1))
    assert (result.outcome, result.reason, result.rerouted) == (RETRY, "container_recreated", True)
    assert ids(server) == set()

    routes = await sink.routes()
    assert outcomes(await write(sink, records(sink, 1), routes.lanes[0])) == [WRITTEN]


async def test_the_ranges_of_a_container_made_anew_are_not_those_that_the_old_one_had_after_a_split(
    server, opened
):
    sink, _ = await opened()
    server.split("db", "one")
    await sink.routes()
    server.recreate_container("db", "one")

    routes = await sink.routes()

    assert list(routes.lanes) == [each.id for each in server.container("db", "one").map.ranges]


async def test_a_container_made_anew_with_another_partition_key_is_never_written_to(server, opened):
    sink, _ = await opened()
    del server.account.database("db").containers["one"]
    server.create_container("db", "one", "/id")
    for _ in range(2):
        [result] = await write(sink, records(sink, 1))
        assert (result.outcome, result.reason) == (RETRY, "container_recreated")
        with pytest.raises(UnavailableError, match="another partition key, /id: restart the consumer"):
            await sink.routes()
    assert ids(server) == set()


async def test_a_deleted_database_is_waited_for(server, opened):
    sink, _ = await opened()
    server.delete_database("db")
    [result] = await write(sink, records(sink, 1))

    assert (result.outcome, result.reason, result.rerouted) == (RETRY, "container_missing", True)
    with pytest.raises(UnavailableError, match="there is no container 'one'"):
        await sink.routes()


async def test_with_create_a_document_that_exists_stays_and_counts_as_written(server, opened):
    sink, _ = await opened(mode="create")
    await write(sink, records(sink, 2, gate=1))
    results = await write(sink, records(sink, 3, gate=2))

    assert outcomes(results) == [WRITTEN] * 3
    assert [result.reason for result in results] == ["exists", "exists", ""]
    assert sorted((found["id"], found["gate"]) for found in server.documents("db", "one")) == [
        ("f0", 1),
        ("f1", 1),
        ("f2", 2),
    ]


@pytest.mark.parametrize("bulk", [True, False])
async def test_with_create_a_document_that_conflicts_by_a_unique_key_is_rejected_and_not_taken_for_written(
    server, opened, bulk
):
    client = await cosmos_client({"CosmosConnection": server.connection_string}, "CosmosConnection")
    async with client:
        policy = {"uniqueKeys": [{"paths": ["/tail"]}]}
        await client.get_database_client("db").create_container(
            "tails", PartitionKey(path="/dest"), unique_key_policy=policy
        )
    sink, _ = await opened("tails", mode="create", bulk=bulk)
    first = [{"id": "a", "dest": "D", "tail": 1}, {"id": "b", "dest": "D", "tail": 2}]
    second = [{"id": "a", "dest": "D", "tail": 1}, {"id": "c", "dest": "D", "tail": 2}]
    assert outcomes(await write(sink, prepared(sink, first))) == [WRITTEN] * 2

    results = []
    for each in prepared(
        sink, second
    ):  # by key, one conflict fails the others of its request: they come again
        results += await write(sink, [each])

    assert outcomes(results) == [WRITTEN, REJECT]
    assert [result.reason.partition(":")[0] for result in results] == ["exists", "unique_key"]
    assert ids(server, "tails") == {"a", "b"}


async def test_without_bulk_records_of_one_key_are_one_request_and_one_bad_record_is_rejected_alone(
    server, opened
):
    sink, routes = await opened("old", bulk=False)
    assert (sink.bulk, routes) == (False, Routes())
    before = sent(server, "docs.batch")
    found = [replace(record, partition_key='["LGA"]') for record in records(sink, 4, dest="LGA")]
    found[2] = replace(found[2], payload=b'{"id":"a/b","dest":"LGA"}')
    results = await write(sink, found, "all")

    assert sent(server, "docs.batch") - before == 1
    assert outcomes(results) == [RETRY, RETRY, REJECT, RETRY]
    assert (results[0].reason, results[0].retry_after) == ("failed_dependency", 0.0)
    assert outcomes(await write(sink, [found[0], found[1], found[3]], "all")) == [WRITTEN] * 3
    assert ids(server, "old") == {"f0", "f1", "f3"}


async def test_of_hash_version_1_only_keys_that_the_sdks_disagree_about_go_one_by_one(server, opened):
    sink, routes = await opened("old")
    assert sink.bulk
    keys = ["LGA", "x" * 100, 7, True, "x" * 101, -7, None, 0]
    found = prepared(sink, [{"id": f"f{n}", "dest": key} for n, key in enumerate(keys)])
    lanes = {}
    for record in found:
        lanes.setdefault(routes.lane_of(record), []).append(record)
    before = sent(server), sent(server, "docs.batch")
    for lane, of_lane in lanes.items():
        assert outcomes(await write(sink, of_lane, lane)) == [WRITTEN] * len(of_lane)

    assert (sent(server) - before[0], sent(server, "docs.batch") - before[1]) == (1, 4)
    assert len(ids(server, "old")) == 8


@pytest.mark.parametrize("value", [None, True, 7, -1.5, "Ü✈"])
@pytest.mark.parametrize("container", ["one", "old"])
async def test_every_kind_of_partition_key_arrives(server, opened, value, container):
    sink, routes = await opened(container)
    assert outcomes(await write(sink, records(sink, 1, dest=value), routes.lanes[0])) == [WRITTEN]
    assert server.documents("db", container)[0]["dest"] == value


@pytest.mark.parametrize("container", ["one", "old"])
async def test_a_document_without_its_partition_key_arrives(server, opened, container):
    sink, routes = await opened(container)
    record = sink.prepare(Write(Event("0", 1, "1", 0.0, b'{"id":"f1"}')))

    assert outcomes(await write(sink, [record], routes.lanes[0])) == [WRITTEN]
    assert ids(server, container) == {"f1"}


@pytest.mark.parametrize("container", ["one", "old"])
async def test_a_document_near_the_size_limit_arrives_unescaped(server, opened, container):
    sink, routes = await opened(container)
    [record] = records(sink, 1, text="é" * 950_000)

    assert outcomes(await write(sink, [record], routes.lanes[0])) == [WRITTEN]
    assert len(server.documents("db", container)[0]["text"]) == 950_000


class TestTheSdksPrivateParts:
    """The contract with the pinned SDK; each part missing, the sink still writes."""

    async def test_the_map_of_ranges_has_their_ids_and_is_read_anew(self, server):
        container = CosmosContainer({"C": server.connection_string}, "C", "db", "flights")
        await container.open()
        try:
            for _ in range(2):
                ranges = server.container("db", "flights").map.ranges
                assert [(key_range.lower, key_range.id) for key_range in await container.ranges()] == [
                    (each.minimum, each.id) for each in ranges
                ]
                server.split("db", "flights", ranges[0].id)
        finally:
            await container.aclose()

    async def test_the_request_is_the_services_bulk_request(self, server, opened, monkeypatch):
        requests, answer = [], server.service.answer
        server.inject(Fault("nowhere", "error"))  # with any fault in force, requests pass through `answer`
        monkeypatch.setattr(
            server.service, "answer", lambda request: (requests.append(request), answer(request))[1]
        )
        sink, _ = await opened()
        requests.clear()
        await write(sink, records(sink, 1))

        [request] = requests
        headers = request.headers
        assert request.body == (
            b'[{"operationType":"Upsert","partitionKey":"[\\"D0\\"]",'
            b'"resourceBody":{"id": "f0", "dest": "D0", "tenant": 0}}]'
        )
        assert (headers["content-length"], headers["prefer"]) == (str(len(request.body)), "return=minimal")
        assert headers["x-ms-cosmos-is-batch-request"] == "True"
        assert headers["x-ms-cosmos-batch-atomic"] == "False"
        assert headers["x-ms-cosmos-batch-continue-on-error"] == "True"
        assert headers["x-ms-documentdb-partitionkeyrangeid"] == "0"
        assert "x-ms-documentdb-partitionkey" not in headers

    async def test_other_requests_that_come_by_the_hook_stay_as_they_are(self):
        request = HttpRequest("GET", "http://localhost/")
        _Exchange("rid", "0", b"[]")(PipelineRequest(request, None))

        assert (dict(request.headers), request.data) == ({}, None)

    async def test_an_answer_that_cannot_be_read_is_an_unknown_outcome(
        self, server, opened, monkeypatch, caplog
    ):
        sink, _ = await opened()
        for odd in (b"", b"{}", b'[{"status":1}]', b"[]", b"not json"):
            with monkeypatch.context() as patch:
                patch.setattr(
                    server.service,
                    "handle",
                    lambda *_, odd=odd: (200, {"content-type": "application/json"}, odd),
                )
                results = await write(sink, records(sink, 2))

            assert outcomes(results) == [RETRY, RETRY], odd
        assert "what was sent is tried again" in caplog.text

    async def test_without_the_hook_documents_go_by_the_public_batch(
        self, server, opened, monkeypatch, caplog
    ):
        monkeypatch.setattr(
            CustomHookPolicy,
            "on_request",
            lambda _, request: request.context.options.pop("raw_request_hook", None),
        )
        sink, routes = await opened("flights")

        assert (sink.bulk, routes) == (False, Routes())
        assert "bulk requests do not work here" in caplog.text
        assert outcomes(await write(sink, records(sink, 30), "all")) == [WRITTEN] * 30
        assert sent(server, "docs.batch") >= 30

    async def test_without_the_map_of_ranges_documents_go_by_the_public_batch(
        self, server, opened, monkeypatch, caplog
    ):
        monkeypatch.delattr(PartitionKeyRangeCache, "get_routing_map")
        sink, _ = await opened("flights")

        assert not sink.bulk
        assert "the SDK's map of partition key ranges" in caplog.text
        assert outcomes(await write(sink, records(sink, 3), "all")) == [WRITTEN] * 3
        assert sent(server) == 0

    async def test_where_the_service_refuses_bulk_documents_go_by_the_public_batch(
        self, server, opened, caplog
    ):
        server.inject(Fault("docs.bulk", "error", status=400))
        sink, _ = await opened("flights")

        assert not sink.bulk
        assert "the service answered 400" in caplog.text

    async def test_the_client_leaves_every_retry_to_its_user(self, server):
        async with await cosmos_client({"C": server.connection_string}, "C") as client:
            policy = client.client_connection.connection_policy

            assert policy.RetryOptions.MaxRetryAttemptCount <= 0
            assert policy.ResponsePayloadOnWriteDisabled is True


class TestOpening:
    async def test_a_wrong_key_names_the_connection(self, server, opened):
        with pytest.raises(SettingsError, match="CosmosConnection: the account refuses the key"):
            await opened(connection=f"AccountEndpoint={server.endpoint};AccountKey=d3Jvbmc=;")

    async def test_a_missing_container_is_named(self, server, opened):
        with pytest.raises(
            SettingsError, match="there is no container 'nowhere' in database 'db' of connection"
        ):
            await opened("nowhere")

    async def test_no_connection_names_the_setting(self, opened):
        with pytest.raises(SettingsError, match="no Cosmos DB connection 'CosmosConnection'"):
            await opened(connection="")

    async def test_a_server_that_is_away_may_be_back_later(self, server, opened):
        await server.stop()
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await opened()

    async def test_throttling_at_the_probe_is_no_reason_to_do_without_bulk(self, server, opened):
        server.inject(Fault("docs.bulk", "error", status=429, retry_after=0.5))
        with pytest.raises(UnavailableError, match="throttled") as caught:
            await opened()

        assert caught.value.retry_after == 0.5


async def test_bucket_and_priority_are_headers_of_every_request_and_refusals_by_the_bucket_are_told_apart(
    server, opened, monkeypatch
):
    seen, handle = [], server.service.handle

    def noted(method, target, headers, body):
        seen.append((headers.get("x-ms-cosmos-throughput-bucket"), headers.get("x-ms-cosmos-priority-level")))
        return handle(method, target, headers, body)

    monkeypatch.setattr(server.service, "handle", noted)
    sink, _ = await opened(headers=request_headers(3, "low"))
    for _ in range(3):  # the SDK's own request, and those that follow its pattern
        assert [result.outcome for result in await write(sink, records(sink, 2))] == [WRITTEN] * 2
    for where in ("op.upsert.f0", "op.upsert.f1"):
        server.inject(Fault(where, "error", status=429, condition="3212" if where.endswith("0") else "3200"))
    results = await write(sink, records(sink, 2))

    assert len(seen) >= 6
    assert set(seen) == {("3", "Low")}
    assert [result.status for result in results] == [429, 429]
    assert list(map(is_capped, results)) == [True, False]
