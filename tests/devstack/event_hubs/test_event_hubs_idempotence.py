"""Idempotent publishing as the local Event Hubs decides about it: numbers, epochs, duplicates."""

import contextlib
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devstack.amqp.wire.errors import INVALID_FIELD, NOT_ALLOWED, AmqpError
from devstack.amqp.wire.values import Int, Short
from devstack.event_hubs.storage import segments
from devstack.event_hubs.storage.events import SentEvent, encode_body
from devstack.event_hubs.storage.hubs import Hubs
from devstack.event_hubs.storage.idempotence import (
    EPOCH,
    EPOCH_STOLEN,
    MAX_NUMBER,
    NUMBER,
    OUT_OF_ORDER,
    PRODUCER_ID,
    Asked,
    Idempotence,
    Publishers,
    Stamp,
    following,
    read_asked,
    read_batch,
)


def publishers(**options):
    return Publishers(Idempotence(**options), count(100).__next__, {}, lambda note: None)


def claims(producer, *numbers, epoch=None):
    """The annotations of events with these numbers."""
    used = producer.epoch if epoch is None else epoch
    return [
        {PRODUCER_ID: producer.producer_id, EPOCH: Short(used), NUMBER: Int(number)} for number in numbers
    ]


class Partition:
    """Keeps the numbers of what is published to it."""

    def __init__(self, **options):
        self.publishers = publishers(**options)
        self.stored = []

    def publish(self, producer, *numbers, epoch=None):
        """Whether the batch was stored."""
        before = len(self.stored)
        self.publishers.publish(
            claims(producer, *numbers, epoch=epoch), lambda note: self.stored.extend(numbers)
        )
        return len(self.stored) > before


def refused(condition):
    return pytest.raises(AmqpError, match=condition)


def test_every_producer_that_names_no_id_gets_one_of_its_own():
    partition = publishers()

    assert partition.attach(Asked()) == Stamp(100, 0, 0)
    assert partition.attach(Asked(epoch=7)) == Stamp(101, 7, 0)
    assert partition.attach(Asked(number=41)) == Stamp(102, 0, 41)


@pytest.mark.parametrize(
    ("first_number", "accepted"), [("either", {41, 42}), ("same", {41}), ("after", {42})]
)
def test_the_first_number_is_the_one_of_the_attach_or_the_next_as_the_hub_has_it(first_number, accepted):
    taken = set()
    for number in range(39, 45):
        partition = Partition(first_number=first_number)
        producer = partition.publishers.attach(Asked(number=41))
        with contextlib.suppress(AmqpError):
            partition.publish(producer, number)
            taken.add(number)

    assert taken == accepted


def test_batches_go_on_where_the_last_one_ended():
    partition = Partition()
    producer = partition.publishers.attach(Asked())

    partition.publish(producer, 1, 2, 3)
    with refused(OUT_OF_ORDER):
        partition.publish(producer, 5)
    with refused(OUT_OF_ORDER):
        partition.publish(producer, 2, 3, 4)
    partition.publish(producer, 4)

    assert partition.stored == [1, 2, 3, 4]


def test_a_batch_that_was_stored_is_dropped_when_it_comes_again():
    partition = Partition(remembered_batches=2)
    producer = partition.publishers.attach(Asked())
    for numbers in ((1, 2), (3,), (4, 5)):
        assert partition.publish(producer, *numbers)

    assert not partition.publish(producer, 4, 5)
    assert not partition.publish(producer, 3)
    with refused(OUT_OF_ORDER):  # not remembered any more
        partition.publish(producer, 1, 2)
    with refused(OUT_OF_ORDER):  # a part of a batch is not that batch
        partition.publish(producer, 5)
    assert partition.publish(producer, 6)

    assert partition.stored == [1, 2, 3, 4, 5, 6]


def test_a_hub_that_remembers_no_batch_knows_no_duplicate():
    partition = Partition(remembered_batches=0)
    producer = partition.publishers.attach(Asked())
    partition.publish(producer, 1)

    with refused(OUT_OF_ORDER):
        partition.publish(producer, 1)


def test_after_the_highest_number_comes_zero():
    partition = Partition()
    producer = partition.publishers.attach(Asked(number=MAX_NUMBER - 2))

    partition.publish(producer, MAX_NUMBER - 1, MAX_NUMBER, 0)
    assert not partition.publish(producer, MAX_NUMBER - 1, MAX_NUMBER, 0)
    partition.publish(producer, 1)

    assert partition.stored == [MAX_NUMBER - 1, MAX_NUMBER, 0, 1]


def test_a_higher_epoch_begins_anew_and_shuts_out_the_lower_one():
    partition = Partition()
    old = partition.publishers.attach(Asked(epoch=1))
    partition.publish(old, 0, 1, 2)

    new = partition.publishers.attach(Asked(old.producer_id, 2))

    assert new == Stamp(old.producer_id, 2, 0)
    with refused(EPOCH_STOLEN):
        partition.publish(old, 3)
    with refused(EPOCH_STOLEN):
        partition.publishers.attach(Asked(*old))
    assert partition.publish(new, 0)
    assert partition.stored == [0, 1, 2, 0]


def test_an_epoch_that_nobody_attached_with_publishes_nothing():
    partition = Partition()
    producer = partition.publishers.attach(Asked())

    with refused(NOT_ALLOWED):
        partition.publish(producer, 1, epoch=5)


def test_equal_epochs_share_the_numbers():
    partition = Partition()
    one = partition.publishers.attach(Asked())
    partition.publish(one, 1, 2)

    other = partition.publishers.attach(Asked(one.producer_id, one.epoch))
    assert other.number == 2
    partition.publish(other, 3)
    partition.publish(one, 4)

    assert partition.stored == [1, 2, 3, 4]


@pytest.mark.parametrize(("echo", "replied"), [(True, 1), (False, 3)])
def test_a_producer_that_attaches_again_hears_its_own_number_or_the_one_of_the_partition(echo, replied):
    partition = Partition(echo=echo)
    producer = partition.publishers.attach(Asked())
    partition.publish(producer, 1)
    partition.publish(producer, 2, 3)  # of which the producer never hears

    again = partition.publishers.attach(Asked(producer.producer_id, 0, 1))

    assert again.number == replied
    assert not partition.publish(producer, 2, 3)
    assert partition.publish(producer, 4)


def test_what_a_producer_says_when_it_attaches_again_moves_nothing_once_it_has_published():
    partition = Partition()
    producer = partition.publishers.attach(Asked())
    partition.publish(producer, 1)

    partition.publishers.attach(Asked(producer.producer_id, 0, 50))

    with refused(OUT_OF_ORDER):
        partition.publish(producer, 51)


def test_a_producer_that_has_published_nothing_may_still_choose_where_it_begins():
    partition = Partition()
    producer = partition.publishers.attach(Asked())

    assert partition.publishers.attach(Asked(producer.producer_id, 0, 120)).number == 120

    assert partition.publish(producer, 121)


def test_unknown_producers_neither_attach_nor_publish():
    partition = Partition()

    with refused(f"{NOT_ALLOWED}.*12345"):
        partition.publishers.attach(Asked(12345, 0, 0))
    with refused(NOT_ALLOWED):
        partition.publish(Stamp(12345, 0, 0), 1)


def test_producers_that_are_forgotten_are_unknown_and_fenced_ones_are_too_old():
    partition = Partition()
    producer = partition.publishers.attach(Asked())

    partition.publishers.fence()
    with refused(EPOCH_STOLEN):
        partition.publish(producer, 1)

    partition.publishers.forget()
    with refused(NOT_ALLOWED):
        partition.publish(producer, 1)


def test_a_batch_that_could_not_be_stored_may_come_again():
    partition = Partition()
    producer = partition.publishers.attach(Asked())

    def full_disk(_note):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        partition.publishers.publish(claims(producer, 1), full_disk)

    assert partition.publish(producer, 1)


def test_counts_tell_what_was_stored_dropped_and_rejected():
    partition = Partition()
    producer = partition.publishers.attach(Asked())
    partition.publish(producer, 1, 2)
    partition.publish(producer, 1, 2)
    with refused(OUT_OF_ORDER):
        partition.publish(producer, 9)

    assert partition.publishers.describe() == {
        "producers": [{"id": 100, "epoch": 0, "number": 2, "published": True}],
        "batches_accepted": 1,
        "events_accepted": 2,
        "batches_dropped": 1,
        "events_dropped": 2,
        f"rejected:{OUT_OF_ORDER}": 1,
    }


# --- the values of the wire ---

ONE = Stamp(1, 0, 0)


@pytest.mark.parametrize(
    ("events", "condition"),
    [
        ([{}], f"{INVALID_FIELD}.*event 0.*{PRODUCER_ID}.*{EPOCH}.*{NUMBER}"),
        ([*claims(ONE, 1), {"x": 1}], f"{INVALID_FIELD}.*event 1"),
        ([{PRODUCER_ID: 1, EPOCH: Short(0)}], f"{INVALID_FIELD}.*no {NUMBER}"),
        (
            [{PRODUCER_ID: Int(1), EPOCH: Short(0), NUMBER: Int(1)}],
            f"{INVALID_FIELD}.*{PRODUCER_ID} is 1 .Int",
        ),
        ([{PRODUCER_ID: 1, EPOCH: 0, NUMBER: Int(1)}], f"{INVALID_FIELD}.*{EPOCH}.*a short"),
        ([{PRODUCER_ID: 1, EPOCH: Short(0), NUMBER: Int(-1)}], f"{INVALID_FIELD}.*{NUMBER} is -1"),
        ([*claims(ONE, 1), *claims(Stamp(2, 0, 0), 2)], f"{INVALID_FIELD}.*two producers"),
        (claims(ONE, 1, 3), f"{OUT_OF_ORDER}.*1 is followed by 3"),
        (claims(ONE, 1, 1), OUT_OF_ORDER),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused_by_name(events, condition):
    with refused(condition):
        read_batch(events)


def test_a_link_may_leave_everything_to_the_service():
    assert read_asked(None) == Asked()
    assert read_asked({PRODUCER_ID: None, EPOCH: Short(3), NUMBER: None, "other": 1}) == Asked(epoch=3)
    with refused(f"{INVALID_FIELD}.*{NUMBER}"):
        read_asked({NUMBER: 5})


def test_a_negative_depth_is_refused():
    with pytest.raises(ValueError, match="remembered_batches is -1, accepted: 0 or more"):
        Idempotence(remembered_batches=-1)


# --- properties ---

ATTEMPTS = st.sampled_from(["ok", "request lost", "ack lost", "reconnect"])


@settings(max_examples=60)
@given(
    start=st.sampled_from([0, 7, MAX_NUMBER - 5, MAX_NUMBER]),
    batches=st.lists(st.tuples(st.integers(1, 4), st.lists(ATTEMPTS, max_size=4)), max_size=12),
)
def test_a_client_that_keeps_its_numbers_publishes_everything_once_whatever_is_lost(start, batches):
    partition = Partition()
    producer = partition.publishers.attach(Asked(number=start))
    last, intended = start, []
    for size, attempts in batches:
        numbers = []
        for _ in range(size):
            numbers.append(following(numbers[-1] if numbers else last))
        intended += numbers
        for attempt in attempts:
            if attempt == "ack lost":
                partition.publish(producer, *numbers)
            elif attempt == "reconnect":
                again = partition.publishers.attach(Asked(producer.producer_id, producer.epoch, last))
                assert again == producer._replace(number=last)
        partition.publish(producer, *numbers)
        last = numbers[-1]

    assert partition.stored == intended


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3)), max_size=25))
def test_whatever_anyone_sends_the_partition_holds_consecutive_numbers(sent):
    partition = Partition(remembered_batches=2)
    producer = partition.publishers.attach(Asked())
    batches = []
    for first, size in sent:
        numbers = list(range(first, first + size))
        with contextlib.suppress(AmqpError):
            if partition.publish(producer, *numbers):
                batches.append(numbers)
            else:
                assert numbers in batches[-2:]

    if partition.stored:
        assert partition.stored[0] in (0, 1)
        first = partition.stored[0]
        assert partition.stored == list(range(first, first + len(partition.stored)))


# --- over restarts ---


class Stored:
    """A hub whose folder outlives its process."""

    def __init__(self, folder, *, now=1000.0):
        self.folder, self.now = folder, now
        hubs = Hubs(lambda: self.now, folder)
        if "flights" not in hubs:
            hubs.create("flights", 1)
        self.hubs = hubs
        self.partition = hubs.hub("flights").partition("0")
        self.publishers = self.partition.publishers

    def restarted(self):
        self.hubs.close()
        return Stored(self.folder, now=self.now)

    def publish(self, producer, *numbers):
        """Whether the batch was stored."""
        before = len(self.partition.log)
        events = [SentEvent(encode_body("x" * 100)) for _ in numbers]
        self.publishers.publish(
            claims(producer, *numbers), lambda note: self.partition.append(events, note=note)
        )
        return len(self.partition.log) > before


def test_producers_are_known_after_a_restart_with_their_last_batches(tmp_path):
    before = Stored(tmp_path)
    producer = before.publishers.attach(Asked())
    before.publish(producer, 1, 2)
    before.publish(producer, 3)

    after = before.restarted()

    assert after.publishers.attach(Asked(producer.producer_id)).number == 3
    assert not after.publish(producer, 1, 2)
    assert after.publish(producer, 4)
    assert after.publishers.attach(Asked()).producer_id > producer.producer_id
    after.hubs.close()


def test_producers_outlive_the_segment_that_they_were_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_SIZE", 300)
    before = Stored(tmp_path)
    producer = before.publishers.attach(Asked())
    before.publish(producer, 1)
    for _ in range(20):
        before.partition.append([SentEvent(encode_body("x" * 100))])
    before.partition.log.expire(21)
    assert not list(tmp_path.rglob(f"{0:020}.segment"))

    after = before.restarted()

    assert not after.publish(producer, 1)
    assert after.publish(producer, 2)
    after.hubs.close()


def test_who_was_shut_out_or_forgotten_stays_so_after_a_restart(tmp_path):
    before = Stored(tmp_path)
    fenced, forgotten = before.publishers.attach(Asked()), Stamp(1, 0, 0)
    before.publishers.attach(Asked(fenced.producer_id, 1))
    after = before.restarted()
    with refused(EPOCH_STOLEN):
        after.publish(fenced, 1)

    after.publishers.forget()
    last = after.restarted()
    for producer in (fenced, forgotten):
        with refused(NOT_ALLOWED):
            last.publish(producer, 1)
    last.hubs.close()


def test_the_settings_of_a_hub_outlive_a_restart(tmp_path):
    before = Stored(tmp_path)
    before.hubs.hub("flights").set_idempotence(Idempotence(offered=False, remembered_batches=2))

    after = before.restarted()

    assert after.hubs.hub("flights").idempotence == Idempotence(offered=False, remembered_batches=2)
    assert after.publishers.settings.remembered_batches == 2
    after.hubs.close()
