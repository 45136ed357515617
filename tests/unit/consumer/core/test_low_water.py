"""The work list of unsettled events, with what it must also know: gaps, redelivery, and what is settled beyond the mark."""

import pytest

from consumer.core.settled.low_water import WorkList
from consumer.model import Checkpoint
from tests.support.consumer.pipeline_checks import check_work_list


def received(numbers, checkpoint=None):
    work = WorkList("0", checkpoint)
    for number in numbers:
        work.receive(number, f"o{number}")
    return work


def settled(work, numbers):
    for number in numbers:
        work.settle(number)
        check_work_list(work)
    return work


def test_the_mark_follows_a_table_of_settled_events():
    work = settled(received(range(8)), [0, 1, 2, 5, 6, 7])

    assert work.mark == (2, "o2")
    assert work.checkpoint(9.0, "me", 4) == Checkpoint("0", 2, "o2", ((5, 7),), 9.0, "me", 4)
    settled(work, [4, 3])
    assert work.mark == (7, "o7")
    assert work.checkpoint(9.0, "me", 4).beyond == ()


def test_sequence_numbers_that_never_came_do_not_hold_the_mark():
    work = settled(received([10, 13, 14, 90]), [13, 10, 14])

    assert (work.mark, work.unsettled, work.received) == ((14, "o14"), 1, 90)


def test_what_the_checkpoint_settled_is_skipped_and_carries_the_mark():
    work = WorkList("0", Checkpoint("0", 2, "o2", ((5, 7),)))
    taken = [number for number in range(9) if work.receive(number, f"o{number}")]

    assert taken == [3, 4, 8]
    settled(work, [4, 3])
    assert work.mark == (7, "o7")


def test_what_the_checkpoint_settled_and_has_not_come_again_yet_stays_in_the_next_checkpoint():
    work = WorkList("0", Checkpoint("0", 2, "o2", ((5, 7), (9, 9))))
    for number in (3, 4, 5):
        work.receive(number, f"o{number}")
    settled(work, [4])

    assert work.checkpoint(0.0, "", 0).beyond == ((4, 7), (9, 9))


def test_a_skipped_event_after_the_settled_ones_moves_the_mark_by_itself_and_must_be_saved():
    work = settled(received([3], Checkpoint("0", 2, "o2", ((4, 4),))), [3])
    work.note_saved(work.checkpoint(0.0, "", 0))
    assert not work.dirty

    assert not work.receive(4, "o4")
    assert (work.mark, work.dirty) == ((4, "o4"), True)


def test_a_second_delivery_is_skipped_whether_settled_or_not():
    work = settled(received([0, 1, 2]), [0, 2])

    assert [work.receive(number, "") for number in (0, 1, 2)] == [False, False, False]
    assert work.unsettled == 1


def test_an_event_that_comes_late_is_worked_on_and_holds_the_mark():
    work = received([0, 2, 3])

    assert work.receive(1, "o1")
    settled(work, [0, 2, 3])
    assert (work.mark, work.unsettled) == ((0, "o0"), 1)


@pytest.mark.parametrize("again", [True, False], ids=["an older one is saved", "the last one is saved"])
def test_what_settles_while_a_checkpoint_is_saved_leaves_the_list_dirty(again):
    work = settled(received(range(5)), [0])
    first = work.checkpoint(0.0, "me", 1)
    work.settle(1)
    second = work.checkpoint(0.0, "me", 1) if again else None
    work.note_saved(first)
    assert work.dirty

    work.note_saved(second or work.checkpoint(0.0, "me", 1))
    assert not work.dirty


@pytest.mark.parametrize("number", [1, 7])
def test_settling_what_is_not_unsettled_is_an_error_that_names_it(number):
    work = settled(received([0, 1]), [1])

    with pytest.raises(ValueError, match=f"event {number} of partition 0"):
        work.settle(number)


def test_a_run_settled_before_that_ends_at_what_was_received_is_no_run_beyond_it():
    work = WorkList("0", Checkpoint("0", 4, "o4", ((6, 7),)))
    taken = [number for number in (5, 6, 7) if work.receive(number, f"o{number}")]
    settled(work, [5])

    assert taken == [5]
    assert work.mark == (7, "o7")
    assert work.checkpoint(0.0, "", 0).beyond == ()
