"""The Cosmos sink's decisions: when it writes in bulk, and what a conflict is; its container is a fake."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.cosmos.exceptions import CosmosHttpResponseError
from hypothesis import given

from consumer.mapping.documents import MappingOptions
from consumer.model import Batch, Event, Operation, Outcome, Routes, Write
from consumer.sinks.cosmos.answers import Answer
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.sinks.cosmos.client import (
    BulkUnavailableError,
    ContainerDefinition,
    CosmosContainer,
    KeyRange,
)
from tests.support.failures import exceptions
from tests.support.virtual_time import all_in_virtual_time, virtual_time
from tidemark.foundation.errors import UnavailableError

WRITTEN, RETRY, REJECT = Outcome.WRITTEN, Outcome.RETRY, Outcome.REJECT
RANGES = (KeyRange("", "0"), KeyRange("80", "1"))
BULK = Routes(("", "80"), ("0", "1"))
NOT_FOUND = Answer([{"statusCode": 404}])


class Container:
    """Answers a bulk request as `bulk` says, in turn; documents are what is in `there`."""

    def __init__(self, *bulk, unique_keys=False, there=(), refusing=None):
        self.refusing = refusing or {}
        self.whole = []  # answers to requests as a whole, in turn
        self.bulk = list(bulk)
        self.found = ContainerDefinition("rid", ("/id",), "Hash", 2, unique_keys=unique_keys)
        self.there = set(there)
        self.probes = 0
        self.by_key = []
        self.requests = []

    async def open(self):
        return self.found

    async def definition(self):
        return self.found

    async def ranges(self):
        return RANGES

    async def send_bulk(self, _rid, range_id, body):
        operations = msgspec.json.decode(body)
        if operations[0]["operationType"] == "Read" and operations[0]["id"] == "tidemark-probe":
            self.probes += 1
            answer = self.bulk.pop(0) if self.bulk else NOT_FOUND
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.requests.append((range_id, operations))
        if self.whole:
            return self.whole.pop(0)
        return Answer(
            [self._answer(operation["operationType"], self._id(operation)) for operation in operations]
        )

    async def send_batch(self, _rid, _partition_key, operations):
        self.by_key.append(operations)
        return Answer([self._answer(verb.capitalize(), self._id(of)) for verb, (of,) in operations])

    def _id(self, operation):
        return operation if isinstance(operation, str) else operation.get("resourceBody", operation)["id"]

    def _answer(self, kind, id_):
        if kind == "Read":
            return {"statusCode": 200 if id_ in self.there else 404}
        if id_ in self.refusing:
            return dict(zip(("statusCode", "subStatusCode"), self.refusing[id_], strict=False))
        return {"statusCode": 409 if id_ in self.there or id_.startswith("taken") else 201}

    async def aclose(self):
        pass


def sink_of(container, **options):
    sink = CosmosBulkSink({}, database="db", container="c", mapping=MappingOptions("hub"), **options)
    sink._container = container
    return sink


def event(number, id_):
    return Event("0", number, str(number), 0.0, msgspec.json.encode({"id": id_}))


async def write(sink, routes, *ids):
    events = [event(n, id_) for n, id_ in enumerate(ids)]
    lanes, results = {}, {}
    for record in map(sink.prepare, map(Write, events)):
        lanes.setdefault(routes.lane_of(record), []).append(record)
    deadline = asyncio.get_running_loop().time() + 60.0
    for number, (lane, records) in enumerate(lanes.items()):
        answers = await sink.write(Batch(number, lane, tuple(records)), deadline=deadline)
        results |= {
            record.event.sequence_number: answer for record, answer in zip(records, answers, strict=True)
        }
    return [results[number] for number in range(len(ids))]


async def asked(failure, *, bulk=True):
    """What a container answers whose SDK raises this, or answers with nothing."""

    async def execute_item_batch(*_args, **_options):
        if failure is not None:
            raise failure
        return []

    container = CosmosContainer({}, "CosmosConnection", "db", "c")
    container._proxy = SimpleNamespace(execute_item_batch=execute_item_batch)
    if bulk:
        return await container.send_bulk("rid", "0", b"[]")
    return await container.send_batch("rid", ["k"], [("upsert", ({"id": "k"},))])


@pytest.mark.parametrize(
    "failure",
    [ClientAuthenticationError("no token"), ServiceRequestError("no network"), ConnectionResetError("reset")],
)
def test_without_a_network_or_a_token_nobody_said_that_bulk_does_not_work(run, failure):
    answer = run(asked(failure))

    assert (answer.operations, answer.status) == (None, 0)


@pytest.mark.parametrize(
    ("headers", "wait"), [({"Retry-After": "600"}, None), ({"x-ms-retry-after-ms": "250"}, 0.25)]
)
def test_a_request_is_held_for_what_the_database_asks_and_not_for_what_a_gateway_does(run, headers, wait):
    failure = CosmosHttpResponseError(status_code=503, message="busy")
    failure.headers = headers

    answer = run(asked(failure))

    assert (answer.status, answer.retry_after) == (503, wait)


@pytest.mark.parametrize("failure", [None, TypeError("unexpected keyword 'raw_request_hook'")])
def test_an_sdk_that_knows_no_hook_does_no_bulk(run, failure):
    with pytest.raises(BulkUnavailableError, match="through its hook"):
        run(asked(failure))


@given(exceptions())
def test_whatever_the_sdk_raises_is_no_answer(failure):
    with virtual_time() as run:
        answer = run(asked(failure, bulk=False))

    assert (answer.operations, answer.status) == (None, 0)


@pytest.mark.parametrize(
    "outage", [Answer(message="no network"), Answer(status=503), Answer(status=401), Answer(status=429)]
)
async def test_an_outage_at_the_start_is_waited_for_and_bulk_is_on_afterwards(outage):
    sink = sink_of(Container(outage))
    with pytest.raises(UnavailableError):
        await sink.open()

    assert await sink.open() == BULK
    assert sink.bulk


async def test_where_the_service_refuses_bulk_it_is_tried_again_after_ten_minutes(caplog):
    container = Container(Answer(status=400, message="no bulk here"), Answer(message="no network"))
    sink = sink_of(container)
    one_lane = await sink.open()
    assert (one_lane, sink.bulk) == (Routes(), False)
    assert "tried again in 600 s" in caplog.text

    await asyncio.sleep(599.0)
    assert [each.outcome for each in await write(sink, one_lane, "a", "b")] == [WRITTEN] * 2
    assert container.probes == 1

    await asyncio.sleep(2.0)  # now there is no network: nobody knows
    assert [each.outcome for each in await write(sink, one_lane, "c")] == [WRITTEN]
    assert (container.probes, sink.bulk) == (2, False)

    await asyncio.sleep(601.0)
    [result] = await write(sink, one_lane, "d")
    assert (result.outcome, result.rerouted) == (RETRY, True)
    assert await sink.routes() == BULK
    assert [each.outcome for each in await write(sink, BULK, "d")] == [WRITTEN]
    assert len(container.requests) == 1

    # a batch that was cut before names no range
    assert [each.outcome for each in await write(sink, one_lane, "e")] == [WRITTEN]
    assert len(container.requests) == 1


@pytest.mark.parametrize("bulk", [True, False])
async def test_a_create_that_conflicts_counts_only_where_the_document_itself_is_there(bulk):
    sink = sink_of(Container(unique_keys=True, there={"old"}), mode="create", bulk=bulk)
    routes = await sink.open()
    old, new, taken = await write(sink, routes, "old", "new", "taken")

    assert (old.outcome, old.reason) == (WRITTEN, "exists")
    assert (new.outcome, new.reason) == (WRITTEN, "")
    assert (taken.outcome, taken.status) == (REJECT, 409)
    assert taken.reason.startswith("unique_key")


@pytest.mark.parametrize(
    ("operation", "is_left_alone"),
    [("delete", True), ("replace", True), ("patch", True), ("create", False), ("upsert", False)],
)
async def test_mode_create_changes_nothing_that_exists_whatever_a_transform_asks_for(
    operation, is_left_alone
):
    sink = sink_of(Container(), mode="create")
    await sink.open()
    write = Write(Event("0", 1, "", 0.0, b"{}"), {"id": "a", "x": 1}, operation=Operation(operation))

    assert (sink.prepare(write).dropped is not None) is is_left_alone


@pytest.mark.parametrize("answer", [Answer(message="no network"), Answer(status=503), Answer([])])
async def test_a_conflict_that_nobody_can_explain_is_settled_by_nothing(answer):
    container = Container(unique_keys=True, there={"old"})
    sink = sink_of(container, mode="create", bulk=False)
    routes = await sink.open()
    send = container.send_batch

    async def no_reading(rid, key, operations):
        return answer if operations[0][0] == "read" else await send(rid, key, operations)

    container.send_batch = no_reading
    [result] = await write(sink, routes, "old")

    assert result.outcome is RETRY


async def test_where_nothing_but_the_id_is_unique_a_conflict_needs_no_reading():
    container = Container(there={"old"})
    sink = sink_of(container, mode="create")
    routes = await sink.open()
    [result] = await write(sink, routes, "old")

    assert (result.outcome, result.reason) == (WRITTEN, "exists")
    assert len(container.requests) == 1


all_in_virtual_time(globals())


def outcomes(results):
    return [(result.outcome, result.reason.partition(" (")[0]) for result in results]


DONE = (Outcome.WRITTEN, "")


@pytest.mark.parametrize("refusal", [(418,), (422, 7), (400, 9999), (403, 9999)])
@pytest.mark.parametrize("bulk", [True, False])
async def test_a_document_that_is_refused_again_while_others_are_written_is_rejected(refusal, bulk):
    sink = sink_of(Container(refusing={"b": refusal}), bulk=bulk)
    routes = await sink.open()
    code = "/".join(map(str, (*refusal, 0)[:2]))

    assert outcomes(await write(sink, routes, "a", "b"))[1][0] is Outcome.RETRY
    assert outcomes(await write(sink, routes, "a", "b")) == [DONE, (Outcome.REJECT, f"refused: {code}")]


@pytest.mark.parametrize("refusal", [(418,), (400, 9999), (400, 0), (400, 1001)])
async def test_while_every_document_is_refused_alike_none_is_rejected(refusal):
    container = Container(refusing=dict.fromkeys("abc", refusal))
    sink = sink_of(container)
    routes = await sink.open()

    for _ in range(4):
        assert {result.outcome for result in await write(sink, routes, "a", "b", "c")} == {Outcome.RETRY}
    container.refusing = {"a": refusal}
    await write(sink, routes, "a", "b", "c")
    assert [result.outcome for result in await write(sink, routes, "a", "b", "c")] == [
        Outcome.REJECT,
        Outcome.WRITTEN,
        Outcome.WRITTEN,
    ]


async def test_of_bad_requests_one_by_one_the_first_alone_is_believed_until_another_document_passes():
    container = Container(refusing=dict.fromkeys("ab", (400, 0)))
    sink = sink_of(container)
    routes = await sink.open()

    async def one(number, id_):
        record = sink.prepare(Write(event(number, id_)))
        [result] = await sink.write(
            Batch(0, routes.lane_of(record), (record,)), deadline=asyncio.get_running_loop().time() + 60.0
        )
        return result.outcome

    outcomes = [await one(*pair) for pair in ((0, "a"), (1, "b"), (1, "b"), (2, "c"), (1, "b"))]

    assert outcomes == [Outcome.REJECT, Outcome.RETRY, Outcome.RETRY, Outcome.WRITTEN, Outcome.REJECT]


@pytest.mark.parametrize("status", [401, 403, 404, 408, 410, 429, 449, 500, 503])
async def test_what_the_service_answers_about_itself_is_never_a_documents_fault(status):
    sink = sink_of(Container(refusing={"b": (status,)}))
    routes = await sink.open()

    for _ in range(4):
        assert (await write(sink, routes, "a", "b"))[1].outcome is Outcome.RETRY


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            Answer([{"statusCode": 201}, {"statusCode": 201}, {"statusCode": 201}]),
            "3 results for 1 operation",
        ),
        (Answer([{"status": 201}]), r"has no status, but \['status'\]"),
        (
            Answer(message="the answer cannot be read: ValueError('x'); it was HTTP 200", by_sdk=True),
            "HTTP 200",
        ),
    ],
)
async def test_an_answer_that_cannot_be_understood_is_tried_again_and_the_log_says_which(
    answer, said, caplog
):
    container = Container()
    container.whole = [answer, answer]
    sink = sink_of(container)
    routes = await sink.open()

    for _ in range(2):
        assert [result.outcome for result in await write(sink, routes, "a")] == [Outcome.RETRY]
    assert [result.outcome for result in await write(sink, routes, "a")] == [Outcome.WRITTEN]
    [line] = [record.getMessage() for record in caplog.records if "is tried again" in record.getMessage()]
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(line)
