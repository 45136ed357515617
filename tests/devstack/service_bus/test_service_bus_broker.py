import pytest

from devstack.amqp.wire.decoder import decode
from devstack.amqp.wire.errors import AmqpError
from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_section,
    sections,
)
from devstack.amqp.wire.values import Symbol, Timestamp, UInt
from devstack.service_bus import atom
from devstack.service_bus.broker import ENTITY_DISABLED, Broker, EntityExistsError
from devstack.service_bus.messages.messages import Sent
from devstack.service_bus.messages.schedule import MESSAGE_NOT_FOUND
from devstack.service_bus.queue import LOCK_LOST, Counts
from devstack.service_bus.settings import EntityLimits, QueueSettings
from tests.support.virtual_time import Clock

START = 1_700_000_000.0


@pytest.fixture
def clock():
    return Clock(START)


@pytest.fixture
def broker(clock):
    return Broker(clock)


def sent(body="x", *, ttl=None, due=None):
    payload = b""
    if ttl is not None:
        payload += encode_section(HEADER, [None, None, UInt(ttl * 1000)])
    if due is not None:
        annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(int(due * 1000))}
        payload += encode_section(MESSAGE_ANNOTATIONS, annotations)
    return Sent.parse(payload + encode_section(DATA, body.encode()))


def parts(payload):
    return {code: decode(payload, value_start)[0] for code, _, value_start, _ in sections(payload)}


def body(message):
    return parts(message.encode())[DATA].decode()


def test_a_partitioned_entity_numbers_messages_by_partition_and_shows_one_at_a_time(broker):
    queue = broker.create_queue("parts", QueueSettings(limits=EntityLimits(partitioned=True)))
    keyed = encode_section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): "k"})
    numbers = [queue.send(sent(str(n))) for n in range(20)]
    own = [queue.send(Sent.parse(keyed + encode_section(DATA, b"k"))) for _ in range(3)]

    assert {number >> 48 for number in numbers} == set(range(16))
    assert len({number >> 48 for number in own}) == 1
    assert [body(message) for message in queue.peek(1, 9)] == ["15"]
    assert [message.sequence_number for message in queue.peek((7 << 48) + 1, 9)] == [(7 << 48) + 7]


def test_sessions_are_listed_with_messages_in_any_state_or_a_stored_state_alone(broker):
    queue = broker.create_queue("talks", QueueSettings(requires_session=True))
    for session in ("b", "a", "b"):
        properties = encode_section(PROPERTIES, [None] * 10 + [session])
        queue.send(Sent.parse(properties + encode_section(DATA, b"x")))
    queue.defer(queue.receive("a").lock_token)
    queue.sessions.states["c"] = b"{}"

    assert queue.sessions_listed() == ["a", "b", "c"]
    with pytest.raises(AmqpError, match="has no sessions"):
        broker.create_queue("orders").sessions_listed()


def drain(queue):
    received = []
    while (message := queue.receive()) is not None:
        received.append(body(message))
        queue.complete(message.lock_token)
    return received


def test_messages_come_out_in_the_order_they_went_in_and_abandoned_ones_keep_their_place(broker):
    queue = broker.create_queue("orders")
    for name in "abc":
        queue.send(sent(name))
    first, second = queue.receive(), queue.receive()

    queue.abandon(second.lock_token)
    queue.abandon(first.lock_token)

    assert drain(queue) == ["a", "b", "c"]


def test_locked_and_deferred_messages_count_as_active(broker):
    queue = broker.create_queue("orders")
    for name in "abc":
        queue.send(sent(name))
    queue.receive()
    queue.defer(queue.receive().lock_token)

    assert queue.counts() == Counts(active=3)


def test_a_lock_that_runs_out_makes_the_message_available_again_and_is_lost_for_its_holder(broker, clock):
    announced = []
    queue = broker.create_queue("orders", QueueSettings(lock_duration=30))
    queue.send(sent())
    queue.available = lambda: announced.append(clock.now)
    token = queue.receive().lock_token

    clock.now += 29.9
    broker.advance()
    assert announced == []
    clock.now += 0.1
    broker.advance()

    assert announced == [START + 30]
    with pytest.raises(AmqpError) as lost:
        queue.complete(token)
    assert lost.value.condition == LOCK_LOST
    assert queue.receive().delivery_count == 1


def test_an_old_deadline_does_not_end_a_renewed_lock_nor_the_lock_of_a_later_delivery(broker, clock):
    queue = broker.create_queue("orders", QueueSettings(lock_duration=30))
    queue.send(sent())
    first = queue.receive()
    clock.now += 20
    assert queue.renew(first.lock_token) == START + 50
    clock.now += 15
    queue.abandon(first.lock_token)
    second = queue.receive()
    clock.now += 29

    broker.advance()
    queue.complete(second.lock_token)

    assert queue.counts() == Counts()


def test_a_message_that_failed_as_often_as_allowed_is_a_dead_letter_with_the_reason(broker):
    queue = broker.create_queue("orders", QueueSettings(max_delivery_count=2))
    queue.send(sent("poison"))
    queue.abandon(queue.receive().lock_token)
    assert queue.counts() == Counts(active=1)

    queue.abandon(queue.receive().lock_token)

    assert queue.counts() == Counts(dead_letter=1)
    dead = broker.source("orders/$DeadLetterQueue").receive()
    assert parts(dead.encode())[APPLICATION_PROPERTIES]["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert body(dead) == "poison"


def test_releasing_a_message_is_not_a_failed_delivery(broker):
    queue = broker.create_queue("orders", QueueSettings(max_delivery_count=1))
    queue.send(sent())

    queue.release(queue.receive().lock_token)

    assert queue.receive().delivery_count == 0


def test_dead_letters_are_never_buried_again(broker):
    queue = broker.create_queue("orders", QueueSettings(max_delivery_count=1))
    queue.send(sent())
    queue.abandon(queue.receive().lock_token)
    dead = queue.dead_letters
    for _ in range(5):
        dead.abandon(dead.receive().lock_token)

    with pytest.raises(AmqpError, match="holds dead letters already"):
        dead.dead_letter(dead.receive().lock_token, "r", "d")
    assert dead.counts() == Counts(active=1)


@pytest.mark.parametrize(("dead_letter", "counts"), [(False, Counts()), (True, Counts(dead_letter=1))])
def test_an_expired_message_is_dropped_or_buried_as_the_queue_is_set(broker, clock, dead_letter, counts):
    queue = broker.create_queue(
        "orders", QueueSettings(default_ttl=60, dead_letter_on_expiration=dead_letter)
    )
    queue.send(sent(ttl=10))
    clock.now += 9
    assert queue.counts() == Counts(active=1)

    clock.now += 1

    assert queue.counts() == counts


def test_a_locked_message_expires_only_when_its_lock_ends(broker, clock):
    queue = broker.create_queue("orders")
    queue.send(sent(ttl=10))
    message = queue.receive()
    clock.now += 11
    assert queue.counts() == Counts(active=1)

    queue.abandon(message.lock_token)

    assert queue.counts() == Counts()


def test_a_scheduled_message_is_enqueued_when_it_is_due_with_a_new_number(broker, clock):
    queue = broker.create_queue("orders")
    number = queue.send(sent("later", due=START + 60))
    queue.send(sent("now"))
    assert queue.counts() == Counts(active=1, scheduled=1)
    assert drain(queue) == ["now"]

    clock.now += 60

    assert queue.counts() == Counts(active=1)
    [message] = queue.peek(0, 10)
    assert (body(message), message.sequence_number > number, message.enqueued_at) == (
        "later",
        True,
        START + 60,
    )


def test_cancelling_takes_all_numbers_or_none(broker):
    queue = broker.create_queue("orders")
    numbers = [queue.send(sent(due=START + 60)) for _ in range(2)]

    with pytest.raises(AmqpError) as refused:
        queue.cancel_scheduled([*numbers, 99])
    assert refused.value.condition == MESSAGE_NOT_FOUND
    assert queue.counts() == Counts(scheduled=2)

    queue.cancel_scheduled(numbers)
    assert queue.counts() == Counts()


def test_a_topic_holds_back_scheduled_messages_and_copies_them_to_its_subscriptions_when_due(broker, clock):
    topic = broker.create_topic("news")
    subscriptions = [broker.create_subscription("news", name) for name in ("a", "b")]
    topic.send(sent("flash", due=START + 5))
    assert broker.counts("news") == Counts(scheduled=1)

    clock.now += 5
    broker.advance()

    assert broker.counts("news") == Counts()
    assert [drain(subscription) for subscription in subscriptions] == [["flash"], ["flash"]]


def test_addresses_are_case_insensitive_and_unknown_ones_are_not_found(broker):
    queue = broker.create_queue("Orders")
    broker.create_topic("News")
    subscription = broker.create_subscription("news", "All")

    assert broker.source("ORDERS") is queue
    assert broker.source("orders/$DeadLetterQueue") is queue.dead_letters
    assert broker.source("news/Subscriptions/all") is subscription
    for address in (
        "other",
        "news/subscriptions/other",
        "other/$deadletterqueue",
        "orders/subscriptions/all",
    ):
        with pytest.raises(AmqpError, match="could not be found"):
            broker.source(address)
    with pytest.raises(AmqpError, match="receive from one of its subscriptions"):
        broker.source("news")


def test_a_name_is_taken_once(broker):
    broker.create_queue("orders")
    with pytest.raises(EntityExistsError):
        broker.create_topic("ORDERS")

    broker.delete("orders")
    broker.create_topic("orders")
    broker.create_subscription("orders", "all")
    with pytest.raises(EntityExistsError):
        broker.create_subscription("orders", "ALL")


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        ("Active", True, True),
        ("Disabled", False, False),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
    ],
)
def test_the_status_of_a_queue_says_which_way_messages_go(broker, status, sends, receives):
    broker.create_queue("orders", QueueSettings(status=status))

    for check, allowed in ((broker.check_sends, sends), (broker.check_receives, receives)):
        if allowed:
            check("orders")
        else:
            with pytest.raises(AmqpError) as refused:
                check("orders")
            assert refused.value.condition == ENTITY_DISABLED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lock_duration": 0}, "lock_duration is 0"),
        ({"max_delivery_count": 0}, "max_delivery_count is 0"),
        ({"status": "Off"}, "status is 'Off', accepted: Active"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        QueueSettings(**settings)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT1M", 60), ("P1DT2H3M4.5S", 93784.5), ("PT0.5S", 0.5), ("P10675199DT2H48M5.4775807S", None)],
)
def test_durations_are_read_as_the_administration_client_writes_them(text, seconds):
    assert atom.parse_duration(text) == seconds
    assert atom.parse_duration(atom.format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1M", "P1Y"])
def test_other_durations_are_refused(text):
    with pytest.raises(ValueError, match="duration"):
        atom.parse_duration(text)
