"""What the Service Bus and storage collectors make of answers that are odd."""

import asyncio
import re
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from azure.servicebus.exceptions import ServiceBusServerBusyError

from scaling.calls.limiter import CallRefusedError, limiter_of
from scaling.calls.turns import collecting
from scaling.collectors.event_hub.collector import EventHubLagCollector
from scaling.collectors.service_bus.collector import ServiceBusQueueCollector, ServiceBusSubscriptionCollector
from scaling.collectors.service_bus.peeks import DataPlane, OldestAgeCollector, SessionsCollector
from scaling.collectors.storage_queue import StorageQueueCollector
from scaling.model import Reason
from scaling.ports import CollectError
from scaling.service.reading import MetricSource, make_report
from tidemark.foundation.settings_reader import parse_params

QUEUE = ServiceBusQueueCollector.Params(connection="Orders", queue="orders")


class StubClient:
    """Answers each method with what `answers` holds for it; an exception is raised."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.calls: list[str] = []
        self.closed = 0

    def __getattr__(self, name: str):
        async def call(*_args: object, **_options: object):
            self.calls.append(name)
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    async def close(self) -> None:
        self.closed += 1


class StubbedQueue(ServiceBusQueueCollector):
    def __init__(self, client: StubClient) -> None:
        super().__init__(QUEUE, {})
        self.stub = client

    def _open(self):
        return self.stub


class StubbedStorage(StorageQueueCollector):
    def __init__(self, client: StubClient, **options) -> None:
        super().__init__(StorageQueueCollector.Params(connection="Work", queue="work", **options), {})
        self.stub = client

    def _open(self):
        return self.stub


def counts(**changes: int | None):
    values = {
        "active": 5,
        "scheduled": 1,
        "dead_letter": 2,
        "transfer": 3,
        "transfer_dead_letter": 4,
        "total": 15,
    }
    return SimpleNamespace(**{f"{name}_message_count": n for name, n in {**values, **changes}.items()})


def queue_client(status: object = "Active", **changes: int | None) -> StubClient:
    return StubClient(
        get_queue=SimpleNamespace(status=status), get_queue_runtime_properties=counts(**changes)
    )


async def test_each_count_keeps_its_name():
    reading = await StubbedQueue(queue_client()).collect(now=1.0)

    assert reading.values == {
        "active": 5.0,
        "scheduled": 1.0,
        "dead_letter": 2.0,
        "transfer": 3.0,
        "transfer_dead_letter": 4.0,
        "total": 15.0,
    }


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("active", "active"),
        ("scheduled", "scheduled"),
        ("dead_letter", "dead-letter"),
        ("transfer_dead_letter", "transfer dead-letter"),
        ("total", "total"),
    ],
)
async def test_an_answer_without_a_count_is_an_error_not_a_zero(missing, told):
    with pytest.raises(CollectError, match=rf"queue 'orders'.*the answer holds no {told} count") as raised:
        await StubbedQueue(queue_client(**{missing: None})).collect(now=1.0)

    assert raised.value.reason is Reason.COLLECT_FAILED


@pytest.mark.parametrize("status", ["disabled", "RECEIVEDISABLED"])
async def test_a_status_counts_whatever_its_case_and_saves_the_next_request(status):
    client = queue_client(status)

    with pytest.raises(CollectError) as raised:
        await StubbedQueue(client).collect(now=1.0)

    assert raised.value.reason is Reason.ENTITY_DISABLED
    assert client.calls == ["get_queue"]


@pytest.mark.parametrize("status", ["Restoring", "Creating", "Unknown", "Paused", None])
async def test_counts_under_a_status_of_which_nobody_knows_are_not_believed(status):
    with pytest.raises(
        CollectError, match=rf"the queue has the status '{status}'.*accepted are Active"
    ) as raised:
        await StubbedQueue(queue_client(status)).collect(now=1.0)

    assert raised.value.reason is Reason.COLLECT_FAILED


async def test_whatever_an_sdk_raises_names_the_entity():
    broken = StubClient(get_queue=AttributeError("'NoneType' object has no attribute 'content'"))

    with pytest.raises(CollectError, match=r"queue 'orders' \(connection Orders\): 'NoneType'"):
        await StubbedQueue(broken).collect(now=1.0)


async def test_the_client_is_opened_once_and_closed_once():
    client = queue_client()
    collector = StubbedQueue(client)

    await collector.collect(now=1.0)
    await collector.collect(now=2.0)
    await collector.aclose()
    await collector.aclose()

    assert client.closed == 1


def peeked_messages(*ages, now=1_000.0):
    """Visible messages that were inserted so many seconds ago; None: the answer does not say when."""
    times = (None if age is None else datetime.fromtimestamp(now - age, UTC) for age in ages)
    return [SimpleNamespace(inserted_on=time) for time in times]


def storage_client(total, *ages):
    return StubClient(
        get_queue_properties=SimpleNamespace(approximate_message_count=total),
        peek_messages=peeked_messages(*ages),
    )


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ((), 0.0),
        ((10, 40, 20), 40.0),  # nearly in order
        ((None, 40), 40.0),
        ((-3,), 0.0),  # as clocks differ
    ],
)
async def test_the_age_of_a_storage_queue_is_that_of_the_oldest_visible_message(ages, expected):
    values = (await StubbedStorage(storage_client(40, *ages)).collect(now=1_000.0)).values

    assert values["oldest_age"] == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize(
    ("ages", "why"),
    [
        ((None,), "no message says when it came"),
        ((-95, -90), "the message came 90 s after now by this machine's clock, so one of the clocks is off"),
    ],
)
async def test_an_age_that_cannot_be_told_is_missing_with_the_reason_and_counts_are_there(ages, why, caplog):
    readings = {"jobs": await StubbedStorage(storage_client(40, *ages)).collect(now=1_000.0)}

    report = make_report(
        "plan",
        1_000.0,
        [MetricSource("plan", count, "jobs", count) for count in ("total", "oldest_age")],
        readings,
        "not read",
    )

    assert [(sample.metric, sample.value) for sample in report.samples] == [("total", 40.0)]
    assert [failure.metric for failure in report.failures] == ["oldest_age"]
    assert report.failures[0].message.endswith(f": oldest_age cannot be known: {why}")
    assert not caplog.text  # a tick logs each failure, so a pattern of 1,000 queues one line


async def test_a_message_that_came_while_the_read_waited_for_its_turn_is_no_clock_that_is_off(monkeypatch):
    seconds = iter((0.0, 12.0))
    monkeypatch.setattr("scaling.calls.turns.time", SimpleNamespace(monotonic=lambda: next(seconds)))

    with collecting():
        values = (await StubbedStorage(storage_client(40, -11)).collect(now=1_000.0)).values

    assert values["oldest_age"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("total", "peeked", "expected"),
    [
        (0, 0, {"total": 0.0, "visible": 0.0, "invisible": 0.0}),
        (40, 31, {"total": 40.0, "visible": 31.0, "invisible": 9.0}),
        (40, 32, {"total": 40.0, "visible": 40.0}),
        (1, 3, {"total": 1.0, "visible": 3.0, "invisible": 0.0}),  # three arrived between the requests
        (30, 32, {"total": 30.0, "visible": 32.0}),
    ],
)
async def test_visible_messages_are_exact_below_a_full_peek(total, peeked, expected):
    values = (await StubbedStorage(storage_client(total, *[0] * peeked)).collect(now=1_000.0)).values

    assert {name: value for name, value in values.items() if name != "oldest_age"} == expected


STANDS = [(7, 0)] * 70
LOOKED_AT = {  # (total, peeked) a minute each; from which minute on the total counts as 0, if ever
    "it stands with nothing visible": (STANDS, {}, 61),
    "it stands for longer than messages take here": (STANDS, {"processed_within": "10m"}, 11),
    "it moves": ([(7 + minute // 30, 0) for minute in range(70)], {}, None),
    "it moves, then stands": ([(9, 0)] * 30 + STANDS, {}, 91),
    "a message becomes visible again": ([(7, 0)] * 50 + [(7, 1)] + [(7, 0)] * 50, {}, None),
    "something is visible": ([(7, 2)] * 70, {}, None),
    "it is empty": ([(0, 0)] * 70, {}, 0),
}


@pytest.mark.parametrize(("looks", "options", "empty_from"), LOOKED_AT.values(), ids=LOOKED_AT)
async def test_a_count_that_stands_with_nothing_visible_is_believed_for_as_long_as_a_message_takes(
    looks, options, empty_from, caplog
):
    client = StubClient()
    collector = StubbedStorage(client, **options)
    totals = []
    for minute, (total, peeked) in enumerate(looks):
        client.answers = {
            "get_queue_properties": SimpleNamespace(approximate_message_count=total),
            "peek_messages": peeked_messages(*[60] * peeked),
        }
        totals.append((await collector.collect(now=1_000.0 + 60.0 * minute)).values["total"])

    empty = [minute for minute, total in enumerate(totals) if total == 0.0]
    assert empty == ([] if empty_from is None else list(range(empty_from, len(looks))))
    told = [record for record in caplog.records if "none visible" in record.message]
    assert len(told) == (1 if empty_from else 0)


async def test_a_clock_that_jumps_makes_no_standing_count_an_old_one():
    client = StubClient(get_queue_properties=SimpleNamespace(approximate_message_count=7), peek_messages=[])
    collector = StubbedStorage(client)

    found = [(await collector.collect(now=now)).values["total"] for now in (9_000.0, 90_000.0, 5.0, 65.0)]

    assert found == [7.0] * 4


@pytest.mark.parametrize("processed_within", ["soon", "0s", "8d", -1])
def test_a_time_that_messages_take_is_a_duration_of_up_to_seven_days(processed_within):
    params = StorageQueueCollector.Params(connection="W", queue="work", processed_within=processed_within)

    assert list(params.problems()) == ["processed_within"]


async def test_a_storage_answer_without_a_count_is_an_error():
    client = StubClient(get_queue_properties=SimpleNamespace(approximate_message_count=None))

    with pytest.raises(CollectError, match=r"storage queue 'work'.*no message count"):
        await StubbedStorage(client).collect(now=1.0)


def test_metrics_share_a_read_exactly_when_they_mean_the_same_entity():
    keys = [
        ServiceBusQueueCollector.entity(QUEUE),
        ServiceBusQueueCollector.entity(ServiceBusQueueCollector.Params(connection="Other", queue="orders")),
        StorageQueueCollector.entity(StorageQueueCollector.Params(connection="Orders", queue="orders")),
        ServiceBusSubscriptionCollector.entity(
            ServiceBusSubscriptionCollector.Params(connection="Orders", topic="orders", subscription="a")
        ),
    ]

    assert len(set(keys)) == len(keys)
    assert keys[0] == ServiceBusQueueCollector.entity(
        ServiceBusQueueCollector.Params(connection="Orders", queue="orders")
    )


@pytest.mark.parametrize("option", ["connection", "topic", "subscription"])
def test_an_empty_option_is_reported_under_its_name(option):
    options = {"connection": "C", "topic": "t", "subscription": "s", option: ""}

    _, problems = parse_params(ServiceBusSubscriptionCollector.Params, options)

    assert list(problems) == [option]


QUEUES = ServiceBusQueueCollector.Params, {"connection": "C", "queue": "orders"}
SUBSCRIPTIONS = (
    ServiceBusSubscriptionCollector.Params,
    {"connection": "C", "topic": "t", "subscription": "s"},
)
HUBS = EventHubLagCollector.Params, {"connection": "C", "event_hub": "orders"}
NAMESPACE = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/g/providers/Microsoft.EventHub/namespaces/n"
STORED = StorageQueueCollector.Params, {"connection": "C", "queue": "orders"}


@pytest.mark.parametrize(
    ("of", "options", "wrong"),
    [
        (QUEUES, {"every": "1m"}, {}),
        (QUEUES, {"every": "2h"}, {"every": "found '2h'; accepted is up to 1h"}),
        (QUEUES, {"held": 4}, {}),
        (QUEUES, {"concurrency": 4, "instances_of": "plan"}, {}),
        (QUEUES, {"concurrency": 4}, {"instances_of": "is missing"}),
        (QUEUES, {"instances_of": "plan"}, {"concurrency": "is missing"}),
        (
            QUEUES,
            {"held": 4, "concurrency": 4, "instances_of": "plan"},
            {"held": "either held, or concurrency"},
        ),
        (QUEUES, {"held": 256}, {"held": "a whole number from 0 up to 255"}),
        (QUEUES, {"combine": "max"}, {"combine": "is for a pattern, and queue has no"}),
        (STORED, {"empty": 0}, {"empty": "is for a pattern, and queue has no"}),
        (QUEUES, {"queue": "orders-*", "combine": "max", "empty": 0}, {}),
        (QUEUES, {"queue": "orders-*", "combine": "mean"}, {"combine": "accepted: "}),
        (QUEUES, {"queue": "orders-*", "held": 4}, {"held": "'orders-\\*' is a pattern"}),
        (QUEUES, {"queue": "orders-[ab]*"}, {"queue": r"in a pattern also \* for any of them"}),
        (STORED, {"queue": "orders-?{1,2}"}, {"queue": r"in a pattern also \* for any of them"}),
        (HUBS, {}, {}),
        (HUBS, {"namespace_id": NAMESPACE}, {"namespace_id": "is for a pattern"}),
        (HUBS, {"event_hub": "orders-*", "namespace_id": NAMESPACE}, {}),
        (HUBS, {"event_hub": "orders-*"}, {"namespace_id": "accepted is the full resource id"}),
        (
            HUBS,
            {"event_hub": "o*", "namespace_id": NAMESPACE.replace("EventHub", "ServiceBus")},
            {"namespace_id": "of type 'Microsoft.ServiceBus/namespaces'"},
        ),
        (SUBSCRIPTIONS, {"subscription": "billing-*"}, {}),
        (SUBSCRIPTIONS, {"topic": "sales-*"}, {"topic": "is one topic: only subscription may be a pattern"}),
    ],
)
def test_options_that_make_no_sense_are_named(of, options, wrong):
    params, usual = of

    _, problems = parse_params(params, usual | options)

    assert problems.keys() == wrong.keys()
    for name, words in wrong.items():
        assert re.search(words, problems[name])


@pytest.mark.parametrize(
    ("story", "waits"),
    [
        ("The namespace 'b' is being throttled. Error code : 50009. Please wait 2 seconds", True),
        ("The entity is busy. Error code : 50004.", False),
    ],
)
def test_a_namespace_without_credits_gets_no_reads_of_counts_meanwhile(story, waits):
    settings = {"Bus": "Endpoint=sb://b.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b"}
    params = ServiceBusQueueCollector.Params(connection="Bus", queue="orders")
    limiter, lists = limiter_of(settings), "https://b.servicebus.windows.net/$Resources/queues"

    text = OldestAgeCollector(params, settings)._explain(ServiceBusServerBusyError(message=story))

    assert text.startswith("queue 'orders' (connection Bus): the service throttles these requests")
    with pytest.raises(CallRefusedError, match="again in 2 s") if waits else nullcontext():
        asyncio.run(limiter.enter("GET", lists, "service_bus", patience=0.0))


async def test_an_older_sdk_is_named_with_the_release_that_lists_sessions():
    class Older(SessionsCollector):
        def _open(self):
            return DataPlane(StubMessages(), StubClient())

    class StubMessages:
        async def close(self) -> None: ...

    collector = Older(ServiceBusQueueCollector.Params(connection="Bus", queue="talks"), {})

    with pytest.raises(CollectError, match=r"azure-servicebus 7\.15 and later, and .* is installed"):
        await collector.collect(now=1.0)
    await collector.aclose()


async def test_an_age_is_not_peeked_for_while_its_namespace_asks_to_wait():
    client = StubClient(get_queue=CallRefusedError("b.servicebus.windows.net asks to wait", 9.0))

    class Waits(OldestAgeCollector):
        def _open(self):
            return DataPlane(client, client)

    collector = Waits(ServiceBusQueueCollector.Params(connection="Bus", queue="orders"), {})

    with pytest.raises(CollectError, match=r"not asked: .* asks to wait; again in 9 s"):
        await collector.collect(now=1.0)
    assert client.calls == ["get_queue"]


async def test_counts_are_read_every_so_often_and_are_the_last_ones_in_between():
    client = queue_client()
    collector = StubbedQueue(client)
    collector._every = 60.0

    times = [(await collector.collect(now=now)).at for now in (100.0, 115.0, 145.0, 158.0, 173.0, 90.0)]

    assert times == [
        100.0,
        100.0,
        100.0,
        158.0,
        158.0,
        90.0,
    ]  # timers fire early and late, and clocks are put back
    assert client.calls.count("get_queue") == 3
    client.answers["get_queue"] = OSError("no network")
    for now in (190.0, 205.0):  # what failed is tried again at the next collection
        with pytest.raises(CollectError, match="no network"):
            await collector.collect(now=now)
