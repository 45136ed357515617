"""How a batch is cut into requests, and how a request that is refused as a whole is halved."""

import asyncio

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from consumer.mapping.documents import MappingOptions
from consumer.model import Batch, Event, Outcome, Record
from consumer.sinks.cosmos.answers import Answer
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.sinks.cosmos.client import ContainerDefinition
from consumer.sinks.cosmos.requests import MAX_BYTES, MAX_OPERATIONS

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
