"""The search for the oldest message that can be received, against all messages looked at at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.collectors.service_bus.ages import (
    ACTIVE,
    DEFERRED,
    PAGE,
    PAGES,
    PARTITION_BITS,
    SCHEDULED,
    Peeked,
    Search,
    UnclearError,
    oldest,
)

NOW = 1_000.0
active, deferred, scheduled = (Peeked(0, state, 7.0) for state in (ACTIVE, DEFERRED, SCHEDULED))
expired = Peeked(0, ACTIVE, 7.0, expires_at=NOW)
expires = Peeked(0, ACTIVE, 7.0, expires_at=NOW + 1)
odd = Peeked(0, "3", 7.0)


def queue(*messages, gap=1, partition=0):
    """The same messages with numbers and times in order."""
    return [
        Peeked((partition << PARTITION_BITS) + 1 + gap * n, each.state, 10.0 * n, each.expires_at)
        for n, each in enumerate(messages)
    ]


def found(messages, *, most=PAGE, **options):
    """What a search finds where a peek returns `most` messages at most; and how many it looked at."""
    search, looked_at = Search(now=NOW, **options), 0
    while search.asks is not None:
        first, count = search.asks
        assert 1 <= count <= PAGE
        page = [message for message in messages if message.number >= first][: min(count, most)]
        looked_at += len(page)
        search.take(page)
    return search.enqueued_at, looked_at


kinds = st.lists(st.sampled_from([active, active, deferred, scheduled, expired, expires]), max_size=60)


@given(kinds=kinds, gap=st.integers(1, 9), most=st.integers(8, PAGE), ahead=st.integers(0, 40))
def test_the_message_found_is_the_first_that_can_be_received_after_those_left_out(kinds, gap, most, ahead):
    messages = queue(*kinds, gap=gap)
    can_be_received = [
        message for message in messages if message.state == ACTIVE and message.expires_at != NOW
    ]

    enqueued_at, looked_at = found(messages, most=most, ahead=ahead)

    expected = can_be_received[ahead].enqueued_at if len(can_be_received) > ahead else None
    assert enqueued_at == expected
    assert looked_at <= len(messages)


@pytest.mark.parametrize(
    ("messages", "options", "expected", "looked_at"),
    [
        ([active] * 100, {}, 0.0, 1),  # one message is moved, not a page
        ([active] * 100, {"ahead": 40}, 400.0, 41),
        ([deferred] * 40 + [active], {}, 400.0, 41),
        ([active] * 300, {"ahead": 255}, 2550.0, 256),
        ([active] + [deferred] * 60 + [active] * 9, {"ahead": 1}, 610.0, 66),
        # A message in front, and too many others behind it: the last one seen is older than the one looked for.
        ([active] + [deferred] * 300 + [active] * 9, {"ahead": 2}, 0.0, None),
    ],
)
def test_no_more_messages_are_moved_than_the_search_needs(messages, options, expected, looked_at):
    enqueued_at, moved = found(queue(*messages), **options)

    assert enqueued_at == expected
    assert looked_at in {moved, None}
    assert moved <= PAGE * PAGES


@pytest.mark.parametrize(
    ("messages", "options", "told"),
    [
        (queue(*[deferred] * 300), {}, "the first 225 messages are scheduled, deferred or expired"),
        (queue(odd), {}, "state 3, which is not known"),
        (queue(deferred, odd, active), {}, "state 3"),
        ([Peeked(1, ACTIVE, None)], {}, "does not say when it came"),
        (queue(active, partition=9), {}, "is of partition 9, but it has no partitions"),
    ],
)
def test_what_cannot_be_told_is_not_zero(messages, options, told):
    with pytest.raises(UnclearError, match=told):
        found(messages, **options)


def test_a_peek_that_goes_back_ends_the_search():
    search = Search(now=NOW)
    search.take(queue(deferred, deferred))

    with pytest.raises(UnclearError, match="from number 3 on returned number 1"):
        search.take(queue(active))


@given(st.dictionaries(st.integers(0, 15), st.lists(st.sampled_from([active, deferred]), max_size=5)))
def test_the_oldest_of_all_partitions_is_found_whatever_its_number(partitions):
    messages, times = [], []
    for number, kinds in sorted(partitions.items()):
        own = [
            Peeked(each.number, each.state, 1_000.0 - 7 * number + each.enqueued_at)
            for each in queue(*kinds, partition=number)
        ]
        messages += own
        times += [each.enqueued_at for each in own if each.state == ACTIVE][:1]

    searches = []
    for partition in range(16):
        search = Search(now=NOW, partition=partition)
        while search.asks is not None:
            search.take([message for message in messages if message.number >= search.asks[0]][:1])
        searches.append(search)

    assert oldest(searches) == min(times, default=None)
