"""What a new position does, and how positions are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.cli.positions import Effect, effect_of
from consumer.model import Checkpoint, Origin, PartitionState
from consumer.receiving.until import read_numbers


def state(begin, last, *, empty=False):
    return PartitionState("0", begin, last, "x", 0.0, empty)


@pytest.mark.parametrize(
    ("mark", "beyond", "to", "hub", "skipped", "again"),
    [
        (99, (), 49, state(0, 199), 0, 50),
        (99, (), 149, state(0, 199), 50, 0),
        (99, (), 99, state(0, 199), 0, 0),
        (None, (), 49, state(0, 199), 50, 0),  # nothing was settled
        (99, (), -1, state(80, 199), 0, 20),  # the hub has 80 on
        (10, (), 99, state(50, 199), 50, 0),  # retention took 11 to 49 before
        (99, ((110, 119),), 49, state(0, 199), 0, 60),  # what is settled beyond the mark comes again, too
        (99, ((110, 119),), 149, state(0, 199), 40, 0),
        (99, ((110, 119),), 99, state(0, 199), 0, 10),
        (99, (), 49, state(200, 199, empty=True), 0, 0),
        ("unreadable", (), 49, state(0, 199), 50, 0),
    ],
)
def test_what_an_order_skips_and_writes_again_is_counted(mark, beyond, to, hub, skipped, again):
    stored = Checkpoint("0", mark, "", beyond) if isinstance(mark, int) else mark
    assert effect_of(stored, Checkpoint("0", to, ""), hub) == Effect(skipped, again)


@pytest.mark.parametrize(("to", "skipped"), [(49, 0), (99, 0), (149, 50)])
def test_where_nothing_is_settled_yet_what_is_before_the_start_is_not_skipped_by_an_order(to, skipped):
    stored = Checkpoint("0", -1, "", origin=Origin(number=100))

    assert effect_of(stored, Checkpoint("0", to, ""), state(0, 199)) == Effect(skipped, 0)


@given(st.integers(-1, 60), st.sets(st.integers(0, 60)), st.integers(-1, 60), st.integers(0, 40))
def test_the_counts_are_those_of_the_events_one_by_one(mark, others, to, begin):
    beyond = sorted(number for number in others if number > mark + 1)
    runs = tuple(
        (number, number) for number in beyond if number - 1 not in beyond and number + 1 not in beyond
    )
    settled = set(range(mark + 1)) | {first for first, _ in runs}
    there = set(range(begin, 61))

    found = effect_of(Checkpoint("0", mark, "", runs), Checkpoint("0", to, ""), state(begin, 60))

    passed = set(range(to + 1))
    assert found == Effect(len((passed - settled) & there), len((settled - passed) & there))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0=5", {"0": 5}),
        ("0=5, 1=-1", {"0": 5, "1": -1}),
        ("0=5,0=6", None),
        ("0", None),
        ("0=-2", None),
        ("=1", None),
    ],
)
def test_numbers_of_partitions_are_read(text, numbers):
    if numbers is None:
        with pytest.raises(ValueError):
            read_numbers(text)
    else:
        assert read_numbers(text) == numbers
