"""What the design proposal for idempotent publishing requires, requirement by requirement: docs/publishing.md has the
table. The same tests on a service in memory and on the local Event Hubs, for the producer and the one that blocks.
"""

import asyncio

import pytest
from azure.eventhub._pyamqp.aio._sender_async import SenderLink

from devstack.servers.faults import Fault
from tests.support.publisher import (
    QUICK,
    FakeWorld,
    SyncFakeWorld,
    SyncWireWorld,
    event,
    events,
    methods,
    wire_world,
)
from tidemark.publisher.cancellation import CANCEL_GRACE
from tidemark.publisher.errors import (
    AlreadyPublishedError,
    InvalidProducerStateError,
    MessageTooLargeError,
    Outcome,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerDisconnectedError,
    PublishError,
    PublishRefusedError,
    PublishSettingsError,
    PublishUnavailableError,
    UnsupportedPublishingError,
)
from tidemark.publisher.event_hubs.batch import published_sequence_number
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.event_hubs.sdk import single_frames
from tidemark.publisher.event_hubs.sync_producer import SyncIdempotentProducer
from tidemark.publisher.model import PartitionPublishingOptions, RetryPolicy

OUT_OF_ORDER = "com.microsoft:out-of-order-sequence"
ONCE = RetryPolicy(max_attempts=1, attempt_timeout=0.4)
STOLEN = "com.microsoft:producer-epoch-stolen"


async def batch_of(producer, *bodies, partition="0"):
    batch = await producer.create_batch(partition_id=partition)
    for body in bodies:
        batch.add(event(body))
    return batch


async def last_number(producer, partition="0"):
    return (await producer.get_partition_publishing_properties(partition)).last_published_sequence_number


async def accounts_after(world, monkeypatch, largest):
    """How many sets went the SDK's own way, and the accounts of link and session after sets of several sizes, one sent twice."""
    monkeypatch.setattr(single_frames, "LARGEST", largest)
    own, send_transfer = [], SenderLink.send_transfer

    def counting(*args, **kwargs):
        own.append(kwargs.get("send_async", False))  # which that of a token has not
        return send_transfer(*args, **kwargs)

    monkeypatch.setattr(SenderLink, "send_transfer", counting)
    producer = world.producer()
    for number, size in enumerate((1, 20_000, 5, 200_000, 7)):
        if number == 2:
            world.fault("error", condition="com.microsoft:server-busy")
        await producer.send_events(events("x" * size), partition_id="0")
    link = producer._partitions["0"]._link._sender._link
    session = link._session
    return sum(own), (
        *(link.delivery_count, link.current_link_credit, link._pending_deliveries),
        *(session.next_outgoing_id, session.remote_incoming_window, session.outgoing_window),
    )


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def producer(world):
    return world.producer()


class PublisherContract:
    # --- creating a producer, and what it is for

    async def test_a_producer_is_created_for_idempotent_publishing(self, producer):
        found = await producer.get_partition_publishing_properties("0")

        assert found.is_idempotent_publishing_enabled
        assert (found.partition_id, found.owner_level, found.last_published_sequence_number) == ("0", 0, 0)
        assert found.producer_group_id > 0

    async def test_idempotence_cannot_be_switched_off_or_on_later(self, world):
        for enabled in (True, False):
            producer = world.producer(enable_idempotent_partitions=enabled)

            with pytest.raises(AttributeError):
                producer.is_idempotent = not enabled

            assert producer.is_idempotent is enabled

    async def test_without_idempotence_events_have_no_numbers_and_there_is_no_state(self, world):
        producer = world.producer(enable_idempotent_partitions=False)
        sent = events("a", "b")

        await producer.send_events(sent, partition_id="0")

        assert world.bodies() == ["a", "b"]
        assert world.numbers() == [None, None]
        assert published_sequence_number(sent[0]) is None
        found = await producer.get_partition_publishing_properties("0")
        assert not found.is_idempotent_publishing_enabled
        assert found.producer_group_id is None
        with pytest.raises(PublishSettingsError, match="enable_idempotent_partitions"):
            world.producer(
                enable_idempotent_partitions=False, partition_options={"0": PartitionPublishingOptions()}
            )

    async def test_publishing_to_the_gateway_is_refused(self, producer):
        with pytest.raises(UnsupportedPublishingError, match="partition_id is missing"):
            await producer.create_batch()
        with pytest.raises(UnsupportedPublishingError, match="partition_id is missing"):
            await producer.send_events(events("a"))

    async def test_publishing_by_partition_key_is_refused(self, world, producer):
        with pytest.raises(UnsupportedPublishingError, match="partition_key='k'"):
            await producer.create_batch(partition_key="k")
        with pytest.raises(UnsupportedPublishingError, match="partition_key='k'"):
            await producer.send_events(events("a"), partition_id="0", partition_key="k")
        assert world.bodies() == []

    async def test_a_service_without_the_capability_is_an_unsupported_one(self, world):
        world.offer(False)
        producer = world.producer()

        with pytest.raises(UnsupportedPublishingError, match="does not offer idempotent publishing"):
            await producer.send_events(events("a"), partition_id="0")
        assert world.bodies() == []

    # --- events and batches

    async def test_events_in_a_batch_have_no_numbers_before_it_is_sent(self, producer):
        batch = await batch_of(producer, "a", "b")

        assert batch.starting_published_sequence_number is None
        assert len(batch) == 2

    async def test_batches_are_sent_in_any_order_and_numbered_in_that(self, world, producer):
        first, second = await batch_of(producer, "a", "b"), await batch_of(producer, "c")

        await producer.send_batch(second)
        await producer.send_batch(first)

        assert world.bodies() == ["c", "a", "b"]
        assert world.numbers() == [1, 2, 3]
        assert (second.starting_published_sequence_number, first.starting_published_sequence_number) == (1, 2)

    async def test_whether_an_event_fits_is_measured_with_room_for_the_highest_number(self, world):
        """The same batch is full at the same event, whatever its numbers will be; and the service takes a full one."""
        low = world.producer()
        high = world.producer(
            partition_options={"0": PartitionPublishingOptions(starting_sequence_number=2**31 - 10)}
        )
        counts = []
        for producer in (low, high):
            batch = await producer.create_batch(partition_id="0")
            while batch.try_add(event("x" * 9_000)):
                pass
            counts.append((len(batch), batch.size_in_bytes))
            await producer.send_batch(batch)

        assert counts[0] == counts[1]
        assert batch.max_size_in_bytes - batch.size_in_bytes < 9_200
        assert len(world.bodies()) == 2 * counts[0][0]
        with pytest.raises(ValueError, match="is full"):
            full = await low.create_batch(partition_id="0", max_size_in_bytes=200)
            full.add(event("x" * 30))
            full.add(event("x" * 30))

    async def test_an_event_or_a_set_larger_than_a_message_is_refused_before_anything_is_sent(
        self, world, producer
    ):
        batch = await producer.create_batch(partition_id="0")

        with pytest.raises(MessageTooLargeError, match="an event takes 2000"):
            batch.try_add(event("x" * 2_000_000))
        with pytest.raises(MessageTooLargeError, match="the 3 events take"):
            await producer.send_events(events(*["x" * 400_000] * 3), partition_id="0")
        assert world.bodies() == []

    # --- publishing

    async def test_a_published_batch_tells_its_starting_number(self, world, producer):
        await producer.send_batch(await batch_of(producer, "a", "b", "c"))
        batch = await batch_of(producer, "d", "e")

        await producer.send_batch(batch)

        assert batch.starting_published_sequence_number == 4
        assert world.numbers() == [1, 2, 3, 4, 5]

    async def test_each_event_of_a_published_set_tells_its_number(self, world, producer):
        sent = events("a", "b", "c")

        await producer.send_events(sent, partition_id="0")

        assert [one.published_sequence_number for one in sent] == [1, 2, 3] == world.numbers()

    async def test_partitions_are_independent_and_published_to_at_the_same_time(self, world, producer):
        await asyncio.gather(
            *(
                producer.send_events(events(f"{partition}{number}"), partition_id=partition)
                for number in range(3)
                for partition in ("0", "1")
            )
        )

        assert sorted(world.bodies("0")) == ["00", "01", "02"]
        assert world.numbers("0") == world.numbers("1") == [1, 2, 3]
        assert world.groups("0").isdisjoint(world.groups("1"))

    async def test_the_state_of_a_partition_can_be_queried(self, world, producer):
        await producer.send_events(events("a", "b"), partition_id="0")

        found = await producer.get_partition_publishing_properties("0")

        assert {found.producer_group_id} == world.groups()
        assert (found.owner_level, found.last_published_sequence_number) == (0, 2)

    async def test_one_operation_at_a_time_goes_to_a_partition(self, world, producer):
        """Batches sent at the same time wait for each other, and one that is lost does not mix with the next."""
        batches = [await batch_of(producer, f"{number}a", f"{number}b") for number in range(5)]
        world.fault("no_answer", count=1)

        await asyncio.gather(*map(producer.send_batch, batches))

        assert sorted(batch.starting_published_sequence_number for batch in batches) == [1, 3, 5, 7, 9]
        assert world.numbers() == list(range(1, 11))
        by_number = sorted(batches, key=lambda batch: batch.starting_published_sequence_number)
        assert world.bodies() == [f"{batches.index(batch)}{letter}" for batch in by_number for letter in "ab"]

    async def test_a_published_batch_is_no_new_request_and_is_locked(self, world, producer):
        batch = await batch_of(producer, "a")
        await producer.send_batch(batch)

        with pytest.raises(AlreadyPublishedError, match="with the numbers from 1 on") as caught:
            await producer.send_batch(batch)
        with pytest.raises(AlreadyPublishedError, match="no events can be added"):
            batch.try_add(event("b"))

        assert caught.value.outcome is Outcome.STORED
        assert world.bodies() == ["a"]

    async def test_a_set_with_a_published_event_is_refused(self, world, producer):
        old, new = events("old", "new")
        await producer.send_events([old], partition_id="0")

        with pytest.raises(
            AlreadyPublishedError, match="event 1 of 2 was published before, with the number 1"
        ):
            await producer.send_events([new, old], partition_id="1")

        assert world.bodies("1") == []
        assert published_sequence_number(new) is None

    async def test_a_batch_sent_twice_at_the_same_time_is_published_once(self, world, producer):
        batch = await batch_of(producer, "a")

        found = await asyncio.gather(
            producer.send_batch(batch), producer.send_batch(batch), return_exceptions=True
        )

        assert [type(one) for one in found] == [type(None), AlreadyPublishedError]
        assert world.bodies() == ["a"]

    async def test_an_empty_batch_or_set_is_sent_without_effect(self, producer):
        await producer.send_batch(await producer.create_batch(partition_id="0"))
        await producer.send_events([], partition_id="0")

        assert await last_number(producer) == 0

    # --- retries and failures

    @pytest.mark.parametrize(
        "fault", ["drop_ack", "no_answer", "drop_ack_and_link", "drop_ack_and_connection", "drop_connection"]
    )
    async def test_transient_failures_are_retried_with_the_same_numbers(self, world, producer, fault):
        world.fault(fault)

        await producer.send_events(events("a", "b"), partition_id="0")
        await producer.send_events(events("c"), partition_id="0")

        assert world.bodies() == ["a", "b", "c"]
        assert world.numbers() == [1, 2, 3]

    async def test_a_busy_service_is_asked_again(self, world, producer):
        world.fault("error", condition="com.microsoft:server-busy", count=2)

        await producer.send_events(events("a"), partition_id="0")

        assert world.bodies() == ["a"]

    async def test_a_transient_failure_beyond_all_attempts_is_a_meaningful_error(self, world, producer):
        world.fault("error", condition="com.microsoft:server-busy", count=QUICK.max_attempts)

        with pytest.raises(
            PublishUnavailableError, match=r"partition 0: .*server-busy.*\(4 attempts\)"
        ) as caught:
            await producer.send_events(events("a"), partition_id="0")

        assert caught.value.outcome is Outcome.NOT_STORED
        assert world.bodies() == []

    async def test_a_fatal_failure_is_not_retried(self, world, producer):
        world.fault("error", condition="amqp:unauthorized-access", count=1)

        with pytest.raises(PublishRefusedError, match="unauthorized-access") as caught:
            await producer.send_events(events("a"), partition_id="0")
        await producer.send_events(events("b"), partition_id="0")
        assert caught.value.outcome is Outcome.NOT_STORED

        assert world.bodies() == ["b"]
        assert world.numbers() == [1]

    async def test_a_failed_batch_has_no_number_can_be_edited_and_is_sent_as_a_new_request(
        self, world, producer
    ):
        batch = await batch_of(producer, "a")
        world.fault("error", condition="amqp:unauthorized-access")
        with pytest.raises(PublishRefusedError):
            await producer.send_batch(batch)
        assert batch.starting_published_sequence_number is None
        assert await last_number(producer) == 0

        await producer.send_events(events("first"), partition_id="0")
        batch.add(event("b"))
        await producer.send_batch(batch)

        assert batch.starting_published_sequence_number == 2
        assert world.bodies() == ["first", "a", "b"]
        assert world.numbers() == [1, 2, 3]

    async def test_failed_events_have_no_numbers_and_are_sent_again_in_other_sets(self, world, producer):
        a, b, c = events("a", "b", "c")
        world.fault("error", condition="amqp:unauthorized-access")
        with pytest.raises(PublishRefusedError):
            await producer.send_events([a, b], partition_id="0")
        assert published_sequence_number(a) is None

        await producer.send_events([b, c], partition_id="0")
        await producer.send_events([a], partition_id="0")

        assert world.bodies() == ["b", "c", "a"]
        assert world.numbers() == [1, 2, 3]

    async def test_a_sequence_that_the_service_refuses_is_an_invalid_state_for_good(self, world, producer):
        world.fault("error", condition=OUT_OF_ORDER)

        with pytest.raises(InvalidProducerStateError, match="close the producer and create it anew"):
            await producer.send_events(events("a"), partition_id="0")
        with pytest.raises(InvalidProducerStateError, match="close the producer and create it anew"):
            await producer.send_events(events("b"), partition_id="0")
        await producer.send_events(events("c"), partition_id="1")

        assert (world.bodies("0"), world.bodies("1")) == ([], ["c"])

    async def test_a_producer_that_is_fenced_is_disconnected_for_good(self, world, producer):
        await producer.send_events(events("a"), partition_id="0")
        world.fence("0")

        with pytest.raises(ProducerDisconnectedError, match="must not publish"):
            await producer.send_events(events("b"), partition_id="0")
        with pytest.raises(ProducerDisconnectedError):
            await producer.send_events(events("b"), partition_id="0")

        assert world.bodies() == ["a"]

    async def test_errors_of_a_disconnected_producer_and_of_an_invalid_state_are_told_apart(self, world):
        assert not issubclass(ProducerDisconnectedError, InvalidProducerStateError)
        assert not issubclass(InvalidProducerStateError, ProducerDisconnectedError)
        for condition, error in (
            (STOLEN, ProducerDisconnectedError),
            (OUT_OF_ORDER, InvalidProducerStateError),
        ):
            world.fault("error", condition=condition)
            with pytest.raises(error, match=condition):
                await world.producer().send_events(events("a"), partition_id="0")

    # --- an unknown outcome

    async def test_an_unknown_outcome_is_told_and_the_same_batch_keeps_its_numbers(self, world):
        producer = world.producer(retry=ONCE)
        batch = await batch_of(producer, "a", "b")
        world.fault("drop_ack")

        with pytest.raises(OutcomeUnknownError, match="send the same batch again") as caught:
            await producer.send_batch(batch)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert batch.starting_published_sequence_number is None
        await producer.send_batch(batch)
        await producer.send_events(events("c"), partition_id="0")

        assert batch.starting_published_sequence_number == 1
        assert world.bodies() == ["a", "b", "c"]
        assert len(world.groups()) == 1

    async def test_where_no_more_events_go_an_unknown_outcome_stays_unknown_and_no_other_becomes_it(
        self, world
    ):
        producer = world.producer(retry=ONCE)
        sent, other, outcomes = await batch_of(producer, "a"), await batch_of(producer, "b"), []
        world.fault("drop_ack")
        with pytest.raises(OutcomeUnknownError):
            await producer.send_batch(sent)
        world.fence("0")

        for each in (sent, sent, other):
            with pytest.raises(ProducerDisconnectedError) as caught:
                await producer.send_batch(each)
            outcomes.append(caught.value.outcome)

        assert outcomes == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.NOT_STORED]

    async def test_after_an_unknown_outcome_the_same_events_keep_their_numbers(self, world):
        producer = world.producer(retry=ONCE)
        sent = events("a", "b")
        world.fault("drop_ack")
        with pytest.raises(OutcomeUnknownError):
            await producer.send_events(sent, partition_id="0")

        await producer.send_events(sent, partition_id="0")

        assert world.bodies() == ["a", "b"]

    @pytest.mark.parametrize(("fault", "there"), [("drop_ack", ["lost", "next"]), ("no_answer", ["next"])])
    async def test_what_is_sent_after_an_unknown_outcome_is_never_taken_for_it(self, world, fault, there):
        """With the numbers of the lost set, or the ones after it, the service would drop it or refuse it."""
        producer = world.producer(retry=ONCE)
        world.fault(fault)
        with pytest.raises(OutcomeUnknownError):
            await producer.send_events(events("lost"), partition_id="0")

        await producer.send_events(events("next"), partition_id="0")

        assert world.bodies() == there
        assert len(world.groups()) == len(there)

    async def test_an_identity_that_the_options_fix_is_not_changed_after_an_unknown_outcome(self, world):
        first = world.producer()
        group = (await first.get_partition_publishing_properties("0")).producer_group_id
        producer = world.producer(
            retry=ONCE,
            partition_options={"0": PartitionPublishingOptions(producer_group_id=group, owner_level=0)},
        )
        batch = await batch_of(producer, "lost")
        world.fault("drop_ack")
        with pytest.raises(OutcomeUnknownError):
            await producer.send_batch(batch)

        with pytest.raises(InvalidProducerStateError, match="events 1 to 1 were stored"):
            await producer.send_events(events("next"), partition_id="0")
        await producer.send_batch(batch)
        await producer.send_events(events("next"), partition_id="0")

        assert world.bodies() == ["lost", "next"]

    async def test_a_timeout_bounds_all_attempts(self, world):
        producer = world.producer(retry=RetryPolicy(max_attempts=4, busy_delay=30.0))
        await producer.get_partition_publishing_properties("0")
        world.fault("error", condition="com.microsoft:server-busy", count=50)

        with pytest.raises(PublishUnavailableError, match="1 attempt"):  # a second would come too late
            await producer.send_events(events("a"), partition_id="0", timeout=20.0)

        assert world.bodies() == []

    # --- links

    async def test_a_link_is_opened_with_the_capability_and_the_service_decides_the_state(self, world):
        one, other = world.producer(), world.producer()

        mine = await one.get_partition_publishing_properties("0")
        theirs = await other.get_partition_publishing_properties("0")

        assert mine.producer_group_id != theirs.producer_group_id

    async def test_a_link_is_created_anew_with_the_state_it_had(self, world, producer):
        await producer.send_events(events("a", "b"), partition_id="0")
        world.fault("drop_connection")

        await producer.send_events(events("c"), partition_id="0")

        found = await producer.get_partition_publishing_properties("0")
        assert world.groups() == {found.producer_group_id}
        assert world.numbers() == [1, 2, 3]

    async def test_a_link_that_cannot_be_opened_for_now_is_tried_again(self, world):
        world.refuse_attach("com.microsoft:server-busy", count=2)

        await world.producer().send_events(events("a"), partition_id="0")

        assert world.bodies() == ["a"]

    async def test_state_that_the_service_does_not_accept_is_an_invalid_state(self, world, producer):
        await producer.send_events(events("a"), partition_id="0")
        world.forget("0")
        world.fault("drop_connection")

        with pytest.raises(InvalidProducerStateError, match="not-allowed"):
            await producer.send_events(events("b"), partition_id="0")

    async def test_options_override_the_state_of_the_service(self, world):
        first = world.producer()
        await first.send_events(events("a", "b"), partition_id="0")
        was = await first.get_partition_publishing_properties("0")

        heir = world.producer(
            partition_options={
                "0": PartitionPublishingOptions(was.producer_group_id, 3, was.last_published_sequence_number)
            }
        )
        await heir.send_events(events("c"), partition_id="0")

        assert (await heir.get_partition_publishing_properties("0")).owner_level == 3
        assert world.numbers() == [1, 2, 3]
        with pytest.raises(ProducerDisconnectedError, match="epoch-stolen"):
            await first.send_events(events("d"), partition_id="0")

    async def test_sequencing_starts_after_the_number_of_the_options(self, world):
        producer = world.producer(
            partition_options={"0": PartitionPublishingOptions(starting_sequence_number=121)}
        )

        await producer.send_events(events("a"), partition_id="0")
        await producer.send_events(events("b"), partition_id="1")

        assert (world.numbers("0"), world.numbers("1")) == ([122], [1])

    async def test_after_the_highest_number_comes_zero(self, world):
        start = 2**31 - 3
        producer = world.producer(
            partition_options={"0": PartitionPublishingOptions(starting_sequence_number=start)}
        )

        await producer.send_events(events("a", "b", "c", "d"), partition_id="0")
        await producer.send_events(events("e"), partition_id="0")

        assert world.numbers() == [2**31 - 2, 2**31 - 1, 0, 1, 2]
        assert await last_number(producer) == 2

    # --- ends

    async def test_a_closed_producer_says_so(self, world, producer):
        batch = await batch_of(producer, "a")

        await producer.close()
        await producer.close()

        with pytest.raises(ProducerClosedError):
            await producer.send_batch(batch)
        assert world.bodies() == []

    async def test_every_error_says_what_became_of_the_events(self, world):
        for error in PublishError.__subclasses__():
            if (
                error.__module__ == PublishError.__module__
            ):  # those of the big-batch sender carry a report instead
                assert "outcome" in vars(error("story"))


class CancellationContract:
    """Of the producer that can be cancelled."""

    async def test_cancelled_before_it_was_sent_nothing_is_published(self, world, producer):
        await producer.get_partition_publishing_properties("0")
        batch = await batch_of(producer, "a")
        world.fault("error", condition="com.microsoft:server-busy", count=3)
        slow = RetryPolicy(max_attempts=4, busy_delay=30.0)
        patient = world.producer(retry=slow)
        waiting = asyncio.create_task(patient.send_batch(batch))
        await until_locked(batch)
        await asyncio.sleep(0.3)  # it was refused, and waits for the next attempt

        await cancelled(waiting)

        assert batch.starting_published_sequence_number is None
        assert world.bodies() == []
        batch.add(event("b"))  # it is not locked any more

    async def test_cancelled_between_two_attempts_the_producer_can_go_on(self, world):
        producer = world.producer(retry=RetryPolicy(max_attempts=4, busy_delay=30.0))
        batch = await batch_of(producer, "a")
        world.fault("error", condition="com.microsoft:server-busy")
        sending = asyncio.create_task(producer.send_batch(batch))
        await until_locked(batch)
        await asyncio.sleep(0.3)

        await cancelled(sending)
        await producer.send_batch(batch)

        assert (world.bodies(), world.numbers()) == (["a"], [1])

    async def test_cancelled_while_another_operation_is_under_way_nothing_is_sent(self, world, producer):
        first, second = await batch_of(producer, "a"), await batch_of(producer, "b")
        world.fault("no_answer")
        under_way = asyncio.create_task(producer.send_batch(first))
        await until_locked(first)
        waiting = asyncio.create_task(producer.send_batch(second))
        await asyncio.sleep(0)

        await cancelled(waiting)
        await under_way

        assert world.bodies() == ["a"]
        await producer.send_batch(second)
        assert world.numbers() == [1, 2]

    async def test_cancelled_after_the_service_has_taken_the_events_they_are_published(self, world, producer):
        await producer.get_partition_publishing_properties("0")
        batch = await batch_of(producer, "a", "b")
        sending = asyncio.create_task(producer.send_batch(batch))
        await until_locked(batch)
        await asyncio.sleep(0)  # the transfer is asked for

        await cancelled(sending)

        if world.bodies():  # it had gone out: as a success
            assert batch.starting_published_sequence_number == 1
            assert await last_number(producer) == 2
        else:  # it had not: as a failure
            assert batch.starting_published_sequence_number is None
        await producer.send_events(events("c"), partition_id="0")
        assert world.numbers() in ([1, 2, 3], [1])

    async def test_cancelled_without_an_answer_the_outcome_is_unknown_and_nothing_is_lost(
        self, world, producer
    ):
        await producer.get_partition_publishing_properties("0")
        batch = await batch_of(producer, "a")
        world.fault("drop_ack")
        sending = asyncio.create_task(producer.send_batch(batch))
        while not world.bodies():
            await asyncio.sleep(0)

        await cancelled(sending)
        assert batch.starting_published_sequence_number is None

        await producer.send_batch(batch)
        await producer.send_events(events("b"), partition_id="0")
        assert world.bodies() == ["a", "b"]


async def until_locked(batch):
    while "being sent" not in repr(batch):
        await asyncio.sleep(0)


class TestOnAServiceInMemory(PublisherContract, CancellationContract):
    @pytest.fixture
    async def world(self):
        world = FakeWorld()
        yield world
        await world.aclose()

    async def test_one_transfer_at_a_time_is_in_flight_per_partition(self, world, producer):
        await asyncio.gather(
            *(producer.send_events(events("x"), partition_id=id_) for _ in range(4) for id_ in ("0", "1"))
        )

        assert world.service.most_in_flight == {"0": 1, "1": 1}

    async def test_a_producer_asks_again_with_all_three_claims(self, world, producer):
        await producer.send_events(events("a"), partition_id="0")
        world.fault("drop_connection")

        await producer.send_events(events("b"), partition_id="0")

        known = await producer.get_partition_publishing_properties("0")
        assert [tuple(claims) for _, claims in world.service.attaches] == [
            (None, None, None),
            (known.producer_group_id, 0, 1),
        ]

    async def test_every_attempt_has_the_same_numbers(self, world, producer):
        world.fault("no_answer", count=2)
        world.fault("error", condition="com.microsoft:server-busy")

        await producer.send_events(events("a", "b"), partition_id="0")

        assert world.service.transfers == [1, 1, 1, 1]

    async def test_cancelled_in_the_middle_of_a_transfer_its_answer_is_waited_for(self, world, producer):
        world.service.gate.clear()
        batch = await batch_of(producer, "a")
        sending = asyncio.create_task(producer.send_batch(batch))
        await world.service.arrived.wait()
        sending.cancel()
        await asyncio.sleep(0.01)
        assert not sending.done()

        world.service.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await sending

        assert batch.starting_published_sequence_number == 1
        assert await last_number(producer) == 1

    async def test_cancelled_twice_the_answer_is_not_waited_for_and_the_numbers_are_kept(
        self, world, producer
    ):
        world.service.gate.clear()
        batch = await batch_of(producer, "a")
        sending = asyncio.create_task(producer.send_batch(batch))
        await world.service.arrived.wait()
        while not world.bodies():
            await asyncio.sleep(0)

        sending.cancel()
        await asyncio.sleep(0.01)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(CANCEL_GRACE - 1):
                await sending
        world.service.gate.set()
        await producer.send_batch(batch)

        assert (world.bodies(), world.numbers()) == (["a"], [1])


class TestBlockingOnAServiceInMemory(PublisherContract):
    @pytest.fixture
    async def world(self):
        world = SyncFakeWorld()
        yield world
        await world.aclose()


@pytest.mark.wire
class TestOnTheWire(PublisherContract, CancellationContract):
    @pytest.fixture
    async def world(self, tmp_path):
        async with wire_world(tmp_path) as world:
            yield world

    @pytest.mark.parametrize("size", [10, 300_000], ids=["small", "of_many_frames"])
    async def test_cancelled_in_the_middle_of_a_transfer_the_link_stays_of_use(self, world, producer, size):
        batch = await batch_of(producer, "x" * size)
        world.server.faults.add(Fault("send:*", "latency", seconds=0.4))
        sending = asyncio.create_task(producer.send_batch(batch))
        await until_locked(batch)
        await asyncio.sleep(0.1)

        await cancelled(sending)
        world.refuse_attach("amqp:not-allowed")  # no link is opened any more
        await producer.send_events(events("b"), partition_id="0")

        assert batch.starting_published_sequence_number == 1
        assert world.numbers() == [1, 2]

    async def test_after_sets_in_one_frame_the_sdk_counts_as_after_its_own(self, world, monkeypatch):
        calls, accounts = await accounts_after(world, monkeypatch, single_frames.LARGEST)
        own_calls, own_accounts = await accounts_after(world, monkeypatch, -1)

        assert (calls, own_calls) == (1, 6)
        assert accounts == own_accounts


@pytest.mark.wire
class TestBlockingOnTheWire:
    """The rest is the same code."""

    @pytest.fixture
    async def world(self, tmp_path):
        async with wire_world(tmp_path, SyncWireWorld) as world:
            yield world

    async def test_what_was_lost_on_the_way_is_stored_once(self, world, producer):
        await PublisherContract().test_transient_failures_are_retried_with_the_same_numbers(
            world, producer, "drop_ack"
        )

    async def test_partitions_are_published_to_at_the_same_time(self, world, producer):
        await PublisherContract().test_partitions_are_independent_and_published_to_at_the_same_time(
            world, producer
        )


def test_the_blocking_producer_has_the_same_methods():
    wanted = methods(IdempotentProducer)
    assert {name: methods(SyncIdempotentProducer)[name] for name in wanted} == wanted
