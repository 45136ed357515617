"""Names that nothing in Azure can have are found before anything is read; those that something may have are not refused."""

import pytest

from scaling.collectors.consumer_telemetry import ConsumerTelemetryCollector
from scaling.collectors.event_hub.collector import EventHubLagCollector
from scaling.collectors.service_bus.collector import ServiceBusQueueCollector, ServiceBusSubscriptionCollector
from scaling.collectors.storage_queue import StorageQueueCollector

STORAGE = StorageQueueCollector, {"connection": "C"}
QUEUE = ServiceBusQueueCollector, {"connection": "C"}
SUBSCRIPTION = ServiceBusSubscriptionCollector, {"connection": "C", "topic": "sales"}
TOPIC = ServiceBusSubscriptionCollector, {"connection": "C", "subscription": "billing"}
HUB = EventHubLagCollector, {"connection": "C"}
OF_HUB = EventHubLagCollector, {"connection": "C", "event_hub": "flights"}
CONSUMER = ConsumerTelemetryCollector, {"connection": "C", "consumer": "c"}
MANAGED = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/r/providers/Microsoft.EventHub/namespaces/n"


def problems(kind, option, name):
    cls, options = kind
    more = {"namespace_id": MANAGED} if kind is HUB and {"*", "?"} & set(name) else {}
    return cls.Params(**options, **{option: name}, **more).problems()


@pytest.mark.parametrize(
    ("kind", "option", "names"),
    [
        (STORAGE, "queue", ["a b", "Orders", "or", "a--b", "-ab", "ab-", "orders-[ab]", "x" * 64, "a_b", ""]),
        (STORAGE, "queue", ["orders_*", "[ab]*", "orders\n"]),
        (
            QUEUE,
            "queue",
            ["a b", "orders-[ab]", "x" * 300, "/a", "a/", "a@b", "a#b", "a\\b", "orders\n", "/$x"],
        ),
        (QUEUE, "queue", ["[ab]*", "a b*", "*" * 300]),
        (SUBSCRIPTION, "subscription", ["a b", "a/b", "x" * 51, "é è", "a/*"]),
        (TOPIC, "topic", ["sa les", "x" * 261, "sales*"]),
        (HUB, "event_hub", ["a b", "a/b", "x" * 257, "hub-[ab]", "a/*"]),
        (OF_HUB, "consumer_group", ["a b", "x" * 51, ""]),
        (OF_HUB, "age_group", ["a b"]),
        (OF_HUB, "container", ["A", "my container", "$x"]),
        (CONSUMER, "table", ["my-table", "1x", "ab"]),
    ],
)
def test_what_nothing_can_be_called_is_refused_by_the_option_with_what_is_accepted(kind, option, names):
    for name in names:
        found = problems(kind, option, name)
        assert list(found) == [option], name
        assert "accepted are" in found[option] or name == "sales*"
        assert name == "sales*" or found[option].startswith("found '")
        assert len(found[option]) < 260


@pytest.mark.parametrize(
    ("kind", "option", "names"),
    [
        (STORAGE, "queue", ["orders", "a-b-c", "orders-poison", "007", "x" * 63, "*", "ORDERS-?", "or*"]),
        (
            QUEUE,
            "queue",
            ["orders", "Sales/Orders.v2_x", "a", "x" * 260, "Bestellungen_ü", "a~1", "*", "O?d/*"],
        ),
        (
            QUEUE,
            "queue",
            ["orders/$DeadLetterQueue", "orders/$Transfer/$DeadLetterQueue", "x" * 260 + "/$deadletterqueue"],
        ),
        (
            SUBSCRIPTION,
            "subscription",
            ["billing", "client$shared$D", "a.b_c-d", "b*", "billing/$deadletterqueue"],
        ),
        (TOPIC, "topic", ["Sales/2026"]),
        (HUB, "event_hub", ["Orders", "a", "a.b_c-d", "x" * 256, "or*"]),
        (OF_HUB, "consumer_group", ["$Default", "ages"]),
        (OF_HUB, "age_group", ["", "ages"]),
        (OF_HUB, "container", ["eventhub-checkpoints", "$web"]),
        (CONSUMER, "table", ["ConsumerStats"]),
    ],
)
def test_what_something_may_be_called_is_accepted(kind, option, names):
    for name in names:
        assert problems(kind, option, name) == {}, name
