import time
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from devstack.amqp.wire.messages import DATA, encode_section
from devstack.service_bus import Counts, QueueSettings, ServiceBusServer
from devstack.service_bus.messages.messages import Sent
from tests.support.servers.threaded import running_in_thread

pytestmark = pytest.mark.wire

_names = count()


class SteppedClock:
    """The real time plus what a test adds to it."""

    def __init__(self):
        self.offset = 0.0

    def __call__(self):
        return time.time() + self.offset


class Namespace:
    """The server of this module and one client, each test with entities of its own."""

    def __init__(self, threaded, clock, client):
        self.threaded, self.clock, self.client = threaded, clock, client

    def queue(self, **settings):
        name = f"queue-{next(_names)}"
        self.threaded.call(lambda: self.threaded.server.create_queue(name, QueueSettings(**settings)))
        return name

    def set_status(self, name, status):
        self.threaded.call(
            lambda: self.threaded.server.broker.queues[name].update(QueueSettings(status=status))
        )

    def counts(self, entity):
        return self.threaded.call(lambda: self.threaded.server.counts(entity))

    # Without keep_alive=0 the SDK waits up to a second for its keep-alive thread at every close.

    def sender(self, name):
        return self.client.get_queue_sender(name, keep_alive=0)

    def receiver(self, name, **options):
        return self.client.get_queue_receiver(name, keep_alive=0, **options)

    def send(self, name, *bodies, **properties):
        with self.sender(name) as sender:
            sender.send_messages([ServiceBusMessage(body, **properties) for body in bodies])

    def put(self, name, *bodies):
        """Enqueue behind the server's back: opening a sender takes the SDK half a second."""
        messages = [Sent.parse(encode_section(DATA, body.encode())) for body in bodies]
        for message in messages:
            self.threaded.call(lambda sent=message: self.threaded.server.broker.target(name).send(sent))

    def pass_time(self, seconds):
        self.clock.offset += seconds
        self.threaded.call(self.threaded.server.broker.advance)


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    clock = SteppedClock()
    folder = tmp_path_factory.mktemp("certificate")
    with (
        running_in_thread(lambda: ServiceBusServer(ca_dir=folder, clock=clock)) as threaded,
        ServiceBusClient.from_connection_string(threaded.server.connection_string, retry_total=0) as client,
    ):
        yield Namespace(threaded, clock, client)


def bodies(messages):
    return [str(message) for message in messages]


def test_what_is_sent_one_by_one_and_in_a_batch_arrives_in_order_and_is_gone_once_completed(namespace):
    name = namespace.queue()
    with namespace.sender(name) as sender:
        sender.send_messages(
            ServiceBusMessage(
                "one",
                message_id="id-1",
                subject="s",
                application_properties={"k": 1},
                content_type="text/plain",
            )
        )
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("two"))
        batch.add_message(ServiceBusMessage("three"))
        sender.send_messages(batch)

    with namespace.receiver(name) as receiver:
        received = receiver.receive_messages(3, max_wait_time=3)
        while len(received) < 3:
            received += receiver.receive_messages(3 - len(received), max_wait_time=3)
        assert namespace.counts(name).active == 3
        for message in received:
            receiver.complete_message(message)

    assert bodies(received) == ["one", "two", "three"]
    first = received[0]
    assert (first.message_id, first.subject, first.content_type) == ("id-1", "s", "text/plain")
    assert first.application_properties == {b"k": 1}
    assert [message.sequence_number for message in received] == [1, 2, 3]
    assert abs(first.enqueued_time_utc - datetime.now(UTC)) < timedelta(seconds=30)
    assert namespace.counts(name) == Counts()


def test_a_large_message_crosses_the_wire_in_many_frames_both_ways(namespace):
    name = namespace.queue()
    body = bytes(range(256)) * 3000
    with namespace.sender(name) as sender:
        sender.send_messages(ServiceBusMessage(body))
    with namespace.receiver(name) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=5)
        assert b"".join(message.body) == body
        receiver.complete_message(message)


def test_a_message_over_the_maximum_size_is_refused(namespace):
    with (
        namespace.sender(namespace.queue()) as sender,
        pytest.raises(MessageSizeExceededError),
    ):
        sender.send_messages(ServiceBusMessage(b"x" * (1024 * 1024 + 1)))


def test_an_abandoned_message_comes_back_with_a_higher_delivery_count(namespace):
    name = namespace.queue()
    namespace.put(name, "again")
    with namespace.receiver(name) as receiver:
        [first] = receiver.receive_messages(1, max_wait_time=3)
        receiver.abandon_message(first)
        [second] = receiver.receive_messages(1, max_wait_time=3)
        receiver.complete_message(second)

    assert (str(first), first.delivery_count) == ("again", 0)
    assert (str(second), second.delivery_count) == ("again", 1)


def test_a_dead_lettered_message_is_found_in_the_dead_letter_queue_with_its_reason(namespace):
    name = namespace.queue()
    namespace.send(name, "poison", application_properties={"kept": "yes"})
    with namespace.receiver(name) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=3)
        receiver.dead_letter_message(message, reason="bad", error_description="very bad")
    assert namespace.counts(name) == Counts(dead_letter=1)

    with namespace.receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [dead] = receiver.receive_messages(1, max_wait_time=3)
        receiver.complete_message(dead)
    assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == (
        "poison",
        "bad",
        "very bad",
    )
    assert dead.application_properties[b"kept"] == b"yes"
    assert namespace.counts(name) == Counts()


def test_a_message_that_fails_too_often_becomes_a_dead_letter(namespace):
    name = namespace.queue(max_delivery_count=2)
    namespace.put(name, "poison")
    with namespace.receiver(name) as receiver:
        for _ in range(2):
            [message] = receiver.receive_messages(1, max_wait_time=3)
            receiver.abandon_message(message)
    assert namespace.counts(name) == Counts(dead_letter=1)


def test_a_lock_that_runs_out_delivers_the_message_again_and_loses_the_decision_that_comes_late(
    namespace,
):
    name = namespace.queue()
    namespace.put(name, "slow")
    with namespace.receiver(name) as receiver:
        [first] = receiver.receive_messages(1, max_wait_time=3)
        namespace.pass_time(61)
        [second] = receiver.receive_messages(1, max_wait_time=3)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(first)
        receiver.complete_message(second)

    assert (str(second), second.delivery_count) == ("slow", 1)
    assert namespace.counts(name) == Counts()


def test_a_renewed_lock_holds_past_its_first_end(namespace):
    name = namespace.queue()
    namespace.put(name, "kept")
    with namespace.receiver(name) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=3)
        first_end = message.locked_until_utc
        namespace.pass_time(40)
        renewed = receiver.renew_message_lock(message)
        namespace.pass_time(40)
        receiver.complete_message(message)

    assert renewed - first_end > timedelta(seconds=39)
    assert namespace.counts(name) == Counts()


def test_peeking_shows_messages_without_taking_them(namespace):
    name = namespace.queue()
    namespace.put(name, "a", "b", "c")
    with namespace.receiver(name) as receiver:
        assert bodies(receiver.peek_messages(2)) == ["a", "b"]
        assert bodies(receiver.peek_messages(5, sequence_number=3)) == ["c"]
        assert receiver.peek_messages(5, sequence_number=4) == []
    assert namespace.counts(name) == Counts(active=3)


def test_receive_and_delete_removes_messages_without_a_lock(namespace):
    name = namespace.queue()
    namespace.put(name, "a", "b")
    with namespace.receiver(
        name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, max_wait_time=0.3
    ) as receiver:
        assert bodies(receiver) == ["a", "b"]
    assert namespace.counts(name) == Counts()


def test_a_prefetching_receiver_takes_up_to_its_credit_and_gives_the_rest_back_on_close(namespace):
    name = namespace.queue()
    namespace.put(name, *map(str, range(8)))
    with namespace.receiver(name, prefetch_count=5) as receiver:
        [first] = receiver.receive_messages(1, max_wait_time=3)
        receiver.complete_message(first)

    queue = namespace.threaded.server.broker.queues[name]
    rest = [namespace.threaded.call(queue.receive) for _ in range(7)]
    assert [message.sequence_number for message in rest] == list(range(2, 9))
    assert {message.delivery_count for message in rest} == {0}


def test_a_deferred_message_comes_back_only_by_its_number(namespace):
    name = namespace.queue()
    namespace.put(name, "later", "now")
    with namespace.receiver(name) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=3)
        receiver.defer_message(message)
        [other] = receiver.receive_messages(1, max_wait_time=3)
        receiver.complete_message(other)
        assert namespace.counts(name) == Counts(active=1)
        [deferred] = receiver.receive_deferred_messages([message.sequence_number])
        receiver.complete_message(deferred)

    assert (str(other), str(deferred)) == ("now", "later")
    assert namespace.counts(name) == Counts()


def test_scheduled_messages_count_apart_until_their_time_comes_and_can_be_cancelled(namespace):
    name = namespace.queue()
    due = datetime.fromtimestamp(namespace.clock(), UTC) + timedelta(minutes=5)
    with namespace.sender(name) as sender:
        numbers = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], due)
        sender.send_messages(ServiceBusMessage("c", scheduled_enqueue_time_utc=due))
        assert namespace.counts(name) == Counts(scheduled=3)
        # L1: Azure lists them, as what they are.
        with namespace.receiver(name) as receiver:
            peeked = receiver.peek_messages(10)
        assert [(str(one), one.state, one.sequence_number) for one in peeked] == [
            (body, ServiceBusMessageState.SCHEDULED, number)
            for body, number in zip("abc", [*numbers, numbers[1] + 1], strict=True)
        ]
        assert {one.scheduled_enqueue_time_utc.replace(microsecond=0) for one in peeked} == {
            due.replace(microsecond=0)
        }
        sender.cancel_scheduled_messages(numbers[0])
        with pytest.raises(ServiceBusError):
            sender.cancel_scheduled_messages(numbers[0])
    assert namespace.counts(name) == Counts(scheduled=2)

    namespace.pass_time(301)

    assert namespace.counts(name) == Counts(active=2)
    with namespace.receiver(name) as receiver:
        assert bodies(receiver.peek_messages(5)) == ["b", "c"]


def test_a_message_that_outlives_its_time_to_live_is_dropped(namespace):
    name = namespace.queue()
    namespace.send(name, "old", time_to_live=timedelta(seconds=30))
    assert namespace.counts(name) == Counts(active=1)

    namespace.pass_time(31)

    assert namespace.counts(name) == Counts()


def test_every_subscription_of_a_topic_gets_its_own_copy(namespace):
    server = namespace.threaded.server
    namespace.threaded.call(lambda: server.create_topic("news"))
    for subscription in ("all", "audit"):
        namespace.threaded.call(lambda name=subscription: server.create_subscription("news", name))
    with namespace.client.get_topic_sender("news", keep_alive=0) as sender:
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])

    with namespace.client.get_subscription_receiver(
        "news", "all", keep_alive=0, max_wait_time=0.3
    ) as receiver:
        received = []
        for message in receiver:
            receiver.complete_message(message)
            received.append(str(message))
    assert received == ["a", "b"]
    assert namespace.counts("news/subscriptions/all") == Counts()
    assert namespace.counts("news/subscriptions/audit") == Counts(active=2)


def test_a_waiting_receiver_gets_a_message_as_soon_as_it_is_sent(namespace):
    name = namespace.queue()
    with namespace.receiver(name) as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.2) == []
        namespace.put(name, "fresh")
        started = time.monotonic()
        [message] = receiver.receive_messages(1, max_wait_time=20)
        assert time.monotonic() - started < 10
        receiver.complete_message(message)


def test_a_disabled_queue_refuses_senders_and_receivers_by_its_status(namespace):
    name = namespace.queue()
    with namespace.sender(name) as sender:
        sender.send_messages(ServiceBusMessage("kept"))
        namespace.set_status(name, "SendDisabled")
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage("refused"))
    with namespace.receiver(name) as receiver:
        assert bodies(receiver.receive_messages(1, max_wait_time=3)) == ["kept"]
    with pytest.raises(MessagingEntityDisabledError):
        namespace.send(name, "refused")

    namespace.set_status(name, "ReceiveDisabled")
    with (
        pytest.raises(MessagingEntityDisabledError),
        namespace.receiver(name) as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=3)


def test_an_entity_that_does_not_exist_is_not_found(namespace):
    with pytest.raises(MessagingEntityNotFoundError):
        namespace.send("nowhere", "lost")


def test_a_wrong_key_is_refused_before_anything_is_attached(namespace):
    wrong = namespace.threaded.server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    name = namespace.queue()
    with (
        ServiceBusClient.from_connection_string(wrong, retry_total=0) as client,
        pytest.raises(ServiceBusAuthenticationError),
        client.get_queue_sender(name, keep_alive=0) as sender,
    ):
        sender.send_messages(ServiceBusMessage("refused"))
    assert namespace.counts(name) == Counts()


def test_a_message_without_an_id_is_given_one_and_keeps_its_other_properties(namespace):
    name = namespace.queue()
    with namespace.sender(name) as sender:
        sender.send_messages(
            [ServiceBusMessage("a", subject="order"), ServiceBusMessage("b", message_id="mine")]
        )
        message = ServiceBusMessage("c")
        message.message_id = None
        sender.send_messages(message)

    with namespace.receiver(name) as receiver:
        a, b, c = receiver.receive_messages(max_message_count=3, max_wait_time=5) + receiver.receive_messages(
            max_message_count=1, max_wait_time=1
        )

    assert (a.subject, b.message_id) == ("order", "mine")
    assert len({a.message_id, b.message_id, c.message_id} - {None}) == 3


def modify(receiver, message, **fields):
    """What clients of other languages send for `abandon` and `defer`; this SDK says delivery_failed, too."""
    receiver._handler.settle_messages(message._delivery_id, message._delivery_tag, "modified", **fields)


def test_an_abandoned_message_counts_as_delivered_whatever_the_client_says_of_failure(namespace):
    name = namespace.queue(max_delivery_count=2)
    with namespace.sender(name) as sender, namespace.receiver(name) as receiver:
        sender.send_messages(ServiceBusMessage("poison", application_properties={"kept": 1, "tries": 0}))
        (message,) = receiver.receive_messages(max_wait_time=5)
        modify(receiver, message, undeliverable_here=False, message_annotations={"tries": 1})
        (again,) = receiver.receive_messages(max_wait_time=5)
        assert again.delivery_count == 1
        assert again.application_properties == {b"kept": 1, b"tries": 1}
        modify(receiver, again, undeliverable_here=False)

        assert receiver.receive_messages(max_wait_time=0.5) == []
    assert namespace.counts(name) == Counts(dead_letter=1)


def test_properties_given_with_a_dead_letter_or_a_deferral_are_kept(namespace):
    name = namespace.queue()
    with namespace.sender(name) as sender, namespace.receiver(name) as receiver:
        sender.send_messages([ServiceBusMessage("dead"), ServiceBusMessage("late")])
        dead, late = receiver.receive_messages(max_message_count=2, max_wait_time=5)
        error = AMQPError(
            condition="com.microsoft:dead-letter", info={"DeadLetterReason": "why", "attempt": 3, "tool": "x"}
        )
        receiver._handler.settle_messages(dead._delivery_id, dead._delivery_tag, "rejected", error=error)
        modify(receiver, late, undeliverable_here=True, message_annotations={"set": "aside"})
        (deferred,) = receiver.receive_deferred_messages([late.sequence_number])
        assert deferred.application_properties == {b"set": b"aside"}

    with namespace.receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (letter,) = receiver.receive_messages(max_wait_time=5)
        assert letter.dead_letter_reason == "why"
        assert letter.application_properties[b"attempt"] == 3
        assert letter.application_properties[b"tool"] == b"x"
