"""How a batch is cut into requests, and how a request that is refused as a whole is halved."""

import asyncio

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from consumer.mapping.documents import MappingOptions
from consumer.model import Batch, Event, Operation, Outcome, Record
from consumer.sinks.cosmos.answers import NO_ANSWER, Answer
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.sinks.cosmos.client import ContainerDefinition
from consumer.sinks.cosmos.requests import MAX_BYTES, MAX_OPERATIONS
from consumer.sinks.cosmos.writing import RecordWriter

sizes = st.one_of(st.integers(2, 40), st.integers(1_000, 300_000))


def records(lengths):
    event = Event("0", 0, "0", 0.0, b"")
    return [
        Record(event, str(n), b'{"id":"%d","text":"%s"}' % (n, b"x" * length), f'["{n}"]')
        for n, length in enumerate(lengths)
    ]


class Service:
    """Answers as the service: refuses a whole request for one poisoned operation, or for its size."""

    def __init__(self, poisoned, limit):
        self.poisoned, self.limit = poisoned, limit
        self.written, self.requests = [], []

    async def send_bulk(self, rid, range_id, body):
        operations = msgspec.json.decode(body)
        found = [int(operation["resourceBody"]["id"]) for operation in operations]
        self.requests.append((len(found), len(body)))
        if self.poisoned & set(found):
            return Answer(status=400, message="poison")
        if len(body) > self.limit:
            return Answer(status=413)
        self.written += found
        return Answer([{"statusCode": 200, "requestCharge": 1.0}] * len(found))


def sink_on(service):
    sink = CosmosBulkSink({}, database="d", container="c", mapping=MappingOptions("h"))
    sink._container, sink._definition, sink.bulk = (
        service,
        ContainerDefinition("rid", ("/id",), "Hash", 2),
        True,
    )
    return sink


@given(
    st.lists(sizes, max_size=250),
    st.sets(st.integers(0, 250), max_size=4),
    st.sampled_from([MAX_BYTES, 20_000]),
)
@example([221_082], {0}, MAX_BYTES)  # both at once
def test_only_what_is_poisoned_or_too_large_by_itself_is_rejected(lengths, poisoned, limit):
    service = Service(poisoned, limit + 1_000)
    found = records(lengths)
    results = asyncio.run(sink_on(service).write(Batch(1, "0", tuple(found)), deadline=1e12))

    refused = {n for n, result in enumerate(results) if result.outcome is Outcome.REJECT}
    alone_too_large = {n for n, record in enumerate(found) if len(record.payload) > limit + 900}
    assert refused - alone_too_large == (poisoned & set(range(len(lengths)))) - alone_too_large
    assert sorted(service.written) == [n for n in range(len(lengths)) if n not in refused]
    assert all(result.outcome in {Outcome.WRITTEN, Outcome.REJECT} for result in results)


@given(st.lists(sizes, max_size=250))
def test_requests_keep_the_limits_and_the_order(lengths):
    service = Service(set(), 10**9)
    asyncio.run(sink_on(service).write(Batch(1, "0", tuple(records(lengths))), deadline=1e12))

    assert service.written == list(range(len(lengths)))
    assert all(
        count == 1 or (count <= MAX_OPERATIONS and size <= MAX_BYTES) for count, size in service.requests
    )


@given(st.lists(st.integers(2, 40), min_size=100, max_size=100), st.integers(0, 99))
def test_one_culprit_in_a_hundred_costs_few_requests(lengths, culprit):
    service = Service({culprit}, 10**9)
    asyncio.run(sink_on(service).write(Batch(1, "0", tuple(records(lengths))), deadline=1e12))

    assert len(service.requests) <= 15


class Answering:
    """Answers each operation with the next status, then all of them with 200."""

    def __init__(self, statuses):
        self.statuses, self.sent = list(statuses), []

    async def __call__(self, operations):
        self.sent.append([(record.key, step.verb) for record, step in operations])
        answers = []
        for _ in operations:
            status = self.statuses.pop(0) if self.statuses else 200
            answers.append({} if status is None else {"statusCode": status, "requestCharge": 0.5})
        return Answer(answers)


@given(
    operations=st.lists(st.sampled_from([*[Operation.UPSERT] * 30, *Operation]), min_size=1, max_size=6),
    statuses=st.lists(
        st.sampled_from([*[200, 201] * 4, 204, 400, 404, 409, 412, 424, 429, 418, 500, None]), max_size=24
    ),
    suspects=st.sets(st.integers(0, 6)),
    rounds=st.integers(1, 3),
)
def test_upserts_that_all_took_place_have_the_results_that_each_would_have(
    operations, statuses, suspects, rounds
):
    """Results, requests and evidence are those of the way that takes answers one by one."""

    async def write(is_hot):
        writer, service = RecordWriter("container"), Answering(statuses)
        if not is_hot:
            writer._take_upserts = lambda *_: False
        for number in suspects:
            writer._evidence.failed(("0", number), "418/0")
        found = []
        for _ in range(rounds):
            event = [Event("0", number, "", 0.0, b"") for number in range(len(operations))]
            mine = [
                Record(event[n], str(n), b'{"id":"a"}', '["k"]', operation=operation)
                for n, operation in enumerate(operations)
            ]
            results = [NO_ANSWER] * len(mine)
            await writer.write(mine, range(len(mine)), service, results, atomic=False)
            found.append(results)
        evidence = writer._evidence
        suspected = {key: (suspect.errors, suspect.times) for key, suspect in evidence._suspects.items()}
        return found, service.sent, suspected, evidence._latest_pass

    assert asyncio.run(write(True)) == asyncio.run(write(False))
