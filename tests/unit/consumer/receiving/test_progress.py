"""What of a partition was handed over, and what retention took of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.leasing.start_position import Expired, Start, expired
from consumer.model import Event, PartitionState
from consumer.receiving import receiver
from consumer.receiving.progress import EARLIEST, Progress


def state(begin, last, *, empty=False):
    return PartitionState("0", begin, last, str(last), 0.0, empty)


def events(*numbers):
    return [Event("0", number, f"o{number}", 0.0, b"12") for number in numbers]


def progress(start=Start()):
    return Progress("0", start, lambda _: None)


@pytest.mark.parametrize(
    ("hub", "received", "lost"),
    [
        (state(50_000, 60_000), [50_000], Expired(10, 49_999, 49_990)),
        (state(5, 60_000), [50_000], None),
        (state(100, 200), [10, 11, 30], Expired(12, 29, 18)),
        (state(0, 19, empty=True), [], Expired(10, 19, 10)),
    ],
    ids=[
        "a reader was overtaken",
        "never given",
        "later ones may be on their way",
        "of an empty partition all",
    ],
)
def test_only_what_lay_before_the_oldest_event_and_did_not_come_is_lost(hub, received, lost):
    assert expired(9, hub, received) == lost


@given(
    st.sets(st.integers(0, 60), min_size=1),
    st.integers(-1, 60),
    st.integers(0, 61),
    st.sets(st.integers(0, 60)),
)
def test_every_event_below_the_oldest_one_left_was_received_or_is_counted(given_out, delivered, begin, came):
    last = max(given_out)
    received = sorted(number for number in given_out & came if number > delivered)
    found = expired(delivered, state(begin, last, empty=begin > last), received)

    end = min(begin, last + 1, received[-1] if received else 61)
    never = [number for number in range(delivered + 1, end) if number not in received]
    assert (found.count if found else 0) == len(never)
    assert found is None or (found.first, found.last) == (never[0], never[-1])


def test_only_where_numbers_are_missing_the_hub_is_asked():
    after_nine = progress(Start(sequence_number=9))

    assert not after_nine.skips(events(10, 11, 12))
    assert after_nine.skips(events(10, 12))
    assert after_nine.skips(events(11))


def test_what_is_missing_is_asked_for_once_more_and_then_believed():
    after_nine = progress(Start(sequence_number=9))

    assert after_nine.before_gap(events(10, 11)) is None
    assert after_nine.before_gap(events(10, 11, 13, 15)) == 2
    after_nine.advance(events(11)[0])
    assert after_nine.before_gap(events(12, 15)) == 1, (
        "12 was on its way; the next is missing at another place"
    )
    after_nine.advance(events(12)[0])
    assert after_nine.before_gap(events(15, 16)) is None, "nor did another link bring any"
    assert after_nine.before_gap(events(15, 20)) is None, "such is the log"


def test_what_retention_took_is_not_asked_for():
    after_nine = progress(Start(sequence_number=9))
    after_nine.delivered = 29

    assert after_nine.before_gap(events(10, 11, 30, 31)) is None
    assert after_nine.before_gap(events(10, 30, 32)) == 2


def test_wherever_receiving_begins_what_is_missing_behind_the_first_is_asked_for():
    assert progress().before_gap(events(1_000, 1_001)) is None
    assert progress().before_gap(events(1_000, 1_002)) == 1
    assert progress().skips(events(1_000, 1_002))


@given(
    st.sets(st.integers(0, 30), min_size=1),
    st.lists(st.sets(st.integers(0, 30)), max_size=40),
    st.integers(1, 8),
)
def test_what_a_link_loses_is_handed_over_all_the_same_and_what_is_not_there_holds_up_nothing(
    there, lost, size
):
    """Each link loses other events; in the end one loses none."""
    going, handed, links = progress(Start(sequence_number=0, inclusive=True)), [], 0
    for losing in [*lost, *[set()] * 70]:
        links += 1
        coming = [number for number in sorted(there - losing) if number > going.delivered]
        for begin in range(0, len(coming), size):
            batch = events(*coming[begin : begin + size])
            gap = going.before_gap(batch)
            for event in batch[:gap]:
                handed.append(event.sequence_number)
                going.advance(event)
            if gap is not None:
                break
        else:
            if not losing:
                break

    assert handed == sorted(set(handed))
    if not lost:
        assert handed == sorted(there)
        assert links <= 2


@pytest.mark.parametrize("start", [Start(), Start(time=5.0, inclusive=True)])
def test_where_receiving_begins_wherever_the_hub_does_nothing_is_missing_before_the_first(start):
    beginning = progress(start)
    first = events(1_000, 1_001)

    assert not beginning.skips(first)
    assert beginning.expired(state(1_000, 2_000), first) is None

    beginning.advance(first[-1])
    assert beginning.skips(events(1_003))
    assert beginning.expired(state(1_003, 2_000), events(1_003)) == Expired(1_002, 1_002, 1)


def test_the_next_link_goes_on_behind_what_was_handed_over():
    going = progress()
    assert going.next_position() == (EARLIEST, False)

    going.advance(events(7)[0])
    assert going.next_position() == (7, False)


def test_the_wait_before_the_next_attempt_stays_within_its_bound_after_a_day_of_failures():
    assert all(receiver._backoff(failures) <= 30.0 for failures in (1, 2, 1_024, 1_026, 100_000))


def test_each_silent_link_is_given_twice_as_long_as_the_one_before_but_no_more_than_five_minutes():
    begun = progress()
    begun.began = True
    given_to = []
    for _ in range(2000):
        given_to.append(begun.patience(60.0))
        begun.silent_links += 1
    assert given_to[:5] == [60.0, 120.0, 240.0, 300.0, 300.0]
    assert given_to[-1] == 300.0

    begun.advance(events(7)[0])
    assert begun.patience(60.0) == 60.0
    assert begun.patience(900.0) == 900.0, "as asked for, though it is more"


def test_the_first_event_of_a_partition_is_waited_for_a_quarter_of_a_minute():
    new = progress()

    assert (new.patience(60.0), new.patience(2.0)) == (15.0, 2.0)
    new.silent_links = 1
    assert new.patience(60.0) == 30.0
