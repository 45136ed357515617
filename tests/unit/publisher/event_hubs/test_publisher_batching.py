"""The buffer of one partition: which events make up a set, and when it is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.event_hubs.batching import PartitionBuffer, SetLimits

LIMITS = SetLimits(max_bytes=100, max_events=4, max_wait=1.0)


def buffer(*sizes, limits=LIMITS, first_set=None, now=0.0):
    found = PartitionBuffer(limits, first_set=first_set)
    for number, size in enumerate(sizes):
        found.add(number, size, now)
    return found


def test_a_set_without_room_is_refused():
    with pytest.raises(PublishSettingsError, match="max_bytes is 0"):
        SetLimits(max_bytes=0, max_events=4, max_wait=1.0)


def test_an_empty_buffer_is_never_ready():
    assert not buffer().is_ready(1e9, hurry=True)
    assert buffer().ready_at() is None


def test_an_event_waits_for_others_but_not_for_ever():
    waiting = buffer(10, now=5.0)

    assert not waiting.is_ready(5.9)
    assert waiting.ready_at() == 6.0
    assert waiting.is_ready(6.0)
    assert waiting.is_ready(5.0, hurry=True)


def test_a_set_is_full_by_its_number_of_events():
    assert not buffer(1, 1, 1).is_ready(0.0)
    full = buffer(1, 1, 1, 1, 1)

    assert full.is_ready(0.0)
    assert full.take() == ([0, 1, 2, 3], 4)
    assert not full.is_ready(0.0)
    assert len(full) == 1


def test_a_set_is_full_by_its_bytes_when_the_next_event_does_not_fit():
    full = buffer(60, 40, 1)

    assert full.is_ready(0.0)
    assert full.take() == ([0, 1], 100)
    assert full.take() == ([2], 1)


def test_the_wait_is_that_of_the_oldest_event_left():
    waiting = PartitionBuffer(LIMITS)
    waiting.add("a", 60, 1.0)
    waiting.add("b", 60, 2.0)

    waiting.take()

    assert waiting.ready_at() == 3.0


def test_the_first_set_after_a_restart_has_exactly_the_events_it_had():
    waiting = buffer(1, 1, first_set=6)
    assert not waiting.is_ready(1e9), "it does not get smaller by waiting"
    assert not waiting.is_ready(1e9, hurry=True), "nor by haste"
    assert waiting.ready_at() is None

    for number in range(2, 8):
        waiting.add(number, 1, 0.0)

    assert waiting.is_ready(0.0)
    assert waiting.take() == ([0, 1, 2, 3, 4, 5], 6)
    assert waiting.ready_at() == 1.0


def test_what_is_left_can_be_taken_out():
    left = buffer(60, 60, 60)

    assert left.drain() == [0, 1, 2]
    assert not left.is_ready(1e9, hurry=True)


@given(sizes=st.lists(st.integers(1, 100)), first=st.none() | st.integers(1, 5))
def test_every_event_is_in_one_set_in_order_and_no_set_is_too_large(sizes, first):
    waiting = buffer(*sizes, first_set=first)
    sets = []
    while waiting.is_ready(0.0, hurry=True):
        sets.append(waiting.take())
    assert not waiting.is_short or (sets == [] and len(sizes) < first)
    waiting.expect_no_more()
    while waiting.is_ready(0.0, hurry=True):
        sets.append(waiting.take())

    assert [event for events, _ in sets for event in events] == list(range(len(sizes)))
    for number, (events, size) in enumerate(sets):
        assert size == sum(sizes[event] for event in events) <= LIMITS.max_bytes
        assert len(events) <= (first if first and not number else LIMITS.max_events)
