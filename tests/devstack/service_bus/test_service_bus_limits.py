"""What the local Service Bus takes: sizes, duplicates, sessions, partitions."""

import pytest

from devstack.amqp.wire.errors import AmqpError
from devstack.amqp.wire.messages import DATA, PROPERTIES, encode_section
from devstack.service_bus import EntityLimits, QueueSettings
from devstack.service_bus.broker import Broker
from devstack.service_bus.messages.messages import Sent, identity
from devstack.service_bus.sessions import Sessions
from devstack.service_bus.transfers import check_transfer
from tests.support.virtual_time import Clock
from tidemark.publisher.service_bus.sdk.message_sizes import plain_message


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def broker(clock):
    return Broker(clock)


def message(message_id="m", session_id=None):
    return plain_message(b"body", message_id, session_id)


def send(entity, *args):
    entity.send(Sent.parse(message(*args)))


def test_the_ids_of_a_message_are_read_where_they_are():
    assert identity(message("m", "s")).message_id == "m"
    assert identity(message("m", "s")).session_id == "s"
    assert identity(encode_section(PROPERTIES, []) + encode_section(DATA, b"x")).message_id is None
    assert identity(encode_section(DATA, b"x")).session_id is None


def test_a_duplicate_is_dropped_within_the_window_and_taken_after_it(broker, clock):
    queue = broker.create_queue("orders", QueueSettings(duplicate_window=60.0))
    for _ in range(3):
        send(queue, "a")
    send(queue, "b")
    assert queue.counts().active == 2
    clock.now += 61
    send(queue, "a")
    send(queue, "a")

    assert queue.counts().active == 3


def test_without_detection_duplicates_are_taken(broker):
    queue = broker.create_queue("orders")
    send(queue, "a")
    send(queue, "a")

    assert queue.counts().active == 2


def test_a_topic_detects_duplicates_for_all_its_subscriptions(broker):
    topic = broker.create_topic("news", duplicate_window=60.0)
    broker.create_subscription("news", "all")
    send(topic, "a")
    send(topic, "a")

    assert broker.counts("news/subscriptions/all").active == 1


def test_a_scheduled_message_is_no_duplicate_of_itself(broker, clock):
    queue = broker.create_queue("orders", QueueSettings(duplicate_window=60.0))
    sent = Sent.parse(message("a"))
    object.__setattr__(sent, "scheduled_for", clock.now + 10)
    queue.send(sent)
    queue.send(sent)
    assert queue.counts().scheduled == 1
    clock.now += 10

    assert queue.counts().active == 1


def check(entity, *parts, size=100, limit=1000):
    check_transfer(entity, parts, size, 3, limit)


def test_what_is_over_the_limit_is_refused_in_the_words_of_the_service(broker):
    queue = broker.create_queue("orders", QueueSettings(limits=EntityLimits(header=10)))
    check(queue, message(), size=990)
    words = (
        r"\(delivery-id:3, size:1001 bytes\) exceeds the limit \(1000 bytes\) currently allowed on the link"
    )
    with pytest.raises(AmqpError, match=words):
        check(queue, message(), size=991)


def test_a_limit_that_is_not_announced_refuses_without_figures(broker):
    queue = broker.create_queue("orders", QueueSettings(limits=EntityLimits(unannounced=500)))
    check(queue, message(), size=500)
    with pytest.raises(AmqpError, match=r"message-size-exceeded: The message is too large\."):
        check(queue, message(), size=501)


def test_a_batch_of_too_many_messages_is_refused(broker):
    queue = broker.create_queue("orders")
    check(queue, *[message()] * 4500)
    with pytest.raises(AmqpError, match="a batch of 4501 messages, accepted: up to 4500"):
        check(queue, *[message()] * 4501)


def test_a_partitioned_entity_takes_one_session_in_a_batch(broker):
    queue = broker.create_queue("orders", QueueSettings(limits=EntityLimits(partitioned=True)))
    check(queue, message("a", "s"), message("b", "s"))
    with pytest.raises(AmqpError, match="distinct SessionId or PartitionKey is not supported"):
        check(queue, message("a", "s"), message("b", "t"))


def test_a_queue_with_sessions_refuses_a_message_without_one(broker):
    queue = broker.create_queue("orders", QueueSettings(requires_session=True))
    check(queue, message("a", "s"))
    with pytest.raises(AmqpError, match="requires sessions"):
        check(queue, message("a", "s"), message("b"))


def test_messages_are_received_by_session_in_order(broker):
    queue = broker.create_queue("orders", QueueSettings(requires_session=True))
    for message_id, session in (("a", "s"), ("b", "t"), ("c", "s")):
        send(queue, message_id, session)
    first, second = queue.receive("s"), queue.receive("s")

    assert [identity(each.sent.bare).message_id for each in (first, second)] == ["a", "c"]
    assert queue.receive("s") is None
    assert queue.sessions_with_messages() == ["t"]
    queue.abandon(second.lock_token)
    assert queue.sessions_with_messages() == ["t", "s"]


def test_dead_letters_of_a_queue_with_sessions_have_none(broker):
    queue = broker.create_queue("orders", QueueSettings(requires_session=True))
    send(queue, "a", "s")
    queue.dead_letter(queue.receive("s").lock_token, "why", "")

    assert queue.dead_letters.receive() is not None


def test_a_session_has_one_holder_at_a_time():
    sessions = Sessions()
    assert sessions.lock("s", []) == "s"
    assert sessions.lock(None, ["s", "t"]) == "t"
    with pytest.raises(AmqpError, match="session-cannot-be-locked"):
        sessions.lock("s", [])
    with pytest.raises(AmqpError, match="no session with messages that is not locked"):
        sessions.lock(None, ["s", "t"])
    sessions.unlock("s")

    assert sessions.lock(None, ["s", "t"]) == "s"
    with pytest.raises(AmqpError, match="session-lock-lost"):
        sessions.check_locked("u")
