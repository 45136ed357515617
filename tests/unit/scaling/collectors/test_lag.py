"""What counts as lag, case by case, beside what two widely used autoscalers make of the same numbers."""

import math

import pytest
from msgspec import structs

from scaling.collectors.event_hub.lag import (
    CheckpointsAhead,
    LagState,
    Meanings,
    Partition,
    by_number,
    counts_of,
    flow_of,
    is_of_earlier_hub,
    partition_lag,
)
from tests.oracles import event_hub_lag as others

UNKNOWN = 10**18
"""Far more than any hub holds: a count beyond it is an accident of arithmetic."""


def lag(begin, last, checkpoint, *, is_empty=False, foreign=False, jitter=10_000, **meanings):
    partition = Partition("0", begin, last, is_empty)
    return partition_lag(partition, checkpoint, Meanings(**meanings), jitter=jitter, foreign=foreign)


@pytest.mark.parametrize(
    ("case", "begin", "last", "checkpoint", "is_empty", "right", "state", "keda", "functions"),
    [
        ("checkpoint slightly ahead", 0, 10, 15, False, 0, "stale", 0, 0),
        ("hub created anew", 0, 10, 50_010, False, 11, "hub_recreated", "absurd", 0),
        ("all expired by retention", 1000, 1000, 900, True, 0, "empty", 100, 0),
        ("all expired, the first number told as the next", 1001, 1000, 900, True, 0, "empty", 100, 0),
        ("partly expired", 990, 1000, 900, False, 11, "expired", 100, 100),
        ("never used", 0, -1, None, True, 0, "empty", 0, 0),
        ("no checkpoint", 5, 14, None, False, 10, "no_checkpoint", 10, 10),
        ("no checkpoint, the first event ever", 0, 0, None, False, 1, "no_checkpoint", 1, 1),
        ("no checkpoint, one event that is not the first", 7, 7, None, False, 1, "no_checkpoint", 0, 1),
        ("behind", 0, 1000, 900, False, 100, "ok", 100, 100),
        ("caught up", 0, 1000, 1000, False, 0, "ok", 0, 0),
        ("read up to where retention stopped", 901, 1000, 900, False, 100, "ok", 100, 100),
    ],
)
def test_the_lag_is_right_where_others_err(
    case, begin, last, checkpoint, is_empty, right, state, keda, functions
):
    found = lag(begin, last, checkpoint, is_empty=is_empty)

    assert (found.lag, found.state) == (right, state)
    theirs = others.keda(begin, last, checkpoint, is_empty)
    assert theirs > UNKNOWN if keda == "absurd" else theirs == keda
    assert others.functions(begin, last, checkpoint, is_empty) == functions


def test_the_cap_asks_for_no_instance_beyond_the_partitions_where_others_do():
    """4 partitions, 64 events an instance, 319 waiting: KEDA's integer division lets a fifth replica through."""
    lasts = (80, 80, 80, 79)
    found = counts_of([partition_lag(Partition("0", 0, last), 0, Meanings()) for last in lasts], 64)

    assert found["lag"] == 319
    assert others.keda_replicas(319, 4, 64) == 5
    assert others.functions_instances(319, 4, 64) == 4
    assert found["capped_lag"] == 256
    assert math.ceil(found["capped_lag"] / 64) == 4


def test_functions_rounds_up_to_counts_that_share_the_partitions_evenly():
    steps = {others.functions_instances(total, 32, 1) for total in range(33)}

    assert steps == {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 32}


@pytest.mark.parametrize(
    ("numbers", "option", "values"),
    [
        ((5, 14, None), "no_checkpoint", {"earliest": 10, "zero": 0}),
        ((0, 10, 50_010), "hub_recreated", {"earliest": 11, "zero": 0}),
        ((990, 1000, 900), "expired", {"earliest": 11}),
        ((0, 10, 15), "stale", {"zero": 0}),
    ],
)
def test_what_a_state_means_is_a_setting(numbers, option, values):
    for value, expected in values.items():
        found = lag(*numbers, **{option: value})
        assert (found.state, found.lag, found.held) == (option, expected, False)

    assert lag(*numbers, **{option: "hold"}).held


def test_no_setting_holds_a_partition_that_is_in_order():
    everything = dict.fromkeys(("no_checkpoint", "hub_recreated", "expired", "stale"), "hold")

    assert not lag(0, 10, 5, **everything).held
    assert not lag(0, -1, None, **everything).held


def test_a_checkpoint_of_an_earlier_hub_counts_nothing_even_where_it_lies_within_the_events():
    """The new hub has outgrown the old checkpoint: by the numbers alone, 9,990 of 60,001 would be told."""
    found = lag(0, 60_000, 50_010, foreign=True)

    assert (found.state, found.lag) == (LagState.HUB_RECREATED, 60_001)


def test_a_checkpoint_of_an_earlier_hub_is_nothing_that_was_settled_where_no_event_is_left_either():
    new = [lag(0, -1, 500, foreign=True), lag(0, 9, 4)]

    assert [one.state for one in new] == [LagState.EMPTY, LagState.OK]
    assert flow_of(new, 1000.0).settled == 5
    assert flow_of([lag(0, 9, 14)], 1000.0).settled == 10  # never more than came


def test_a_checkpoint_that_stays_ahead_for_a_minute_is_of_another_hub_until_it_changes():
    ahead, partition = CheckpointsAhead(), Partition("0", 0, 29)
    reads = [(0.0, 29, 89), (59.0, 29, 89), (60.0, 40, 89), (75.0, 110, 89), (90.0, 110, 5)]
    reads += [(105.0, 110, 111), (170.0, 200, 205), (171.0, 300, 205), (300.0, 300, 205), (301.0, 300, 400)]

    found = [
        ahead.is_foreign(structs.replace(partition, last=last), number, now) for now, last, number in reads
    ]

    assert found == [False, False, True, True, False] + [False] * 5
    assert not ahead.is_foreign(partition, 400, 200.0)  # the clock was set back
    assert not ahead.is_foreign(partition, None, 400.0)


def test_a_checkpoint_belongs_to_an_earlier_hub_when_it_was_written_before_the_hub_was_created():
    assert is_of_earlier_hub(1000.0, 1001.5)
    assert not is_of_earlier_hub(
        1000.0, 1000.9
    )  # written in the same second, of which storage tells the start
    assert not is_of_earlier_hub(2000.0, 1000.0)


def test_events_that_retention_took_unread_are_counted_as_lost():
    assert lag(990, 1000, 900).lost == 89
    assert lag(0, 10, 5).lost == 0


def test_jitter_is_how_far_ahead_a_checkpoint_may_be():
    assert lag(0, 10, 20, jitter=10).state is LagState.STALE
    assert lag(0, 10, 21, jitter=10).state is LagState.HUB_RECREATED
    assert lag(0, 10, 11, jitter=0).state is LagState.HUB_RECREATED


def test_the_partitions_of_a_hub_are_summed():
    found = counts_of(
        [
            partition_lag(Partition("1", 0, 9), None, Meanings()),
            partition_lag(Partition("2", 0, 9), 4, Meanings()),
            partition_lag(Partition("10", 0, 9), 9, Meanings()),
        ]
    )

    assert (found["lag"], found["max_partition_lag"], found["partitions_with_lag"]) == (15, 10, 2)
    assert (found["partitions"], found["no_checkpoint"], found["stale"]) == (3, 1, 0)
    assert counts_of([])["max_partition_lag"] == 0


def test_partitions_are_ordered_by_number():
    assert sorted(["10", "2", "odd", "1"], key=by_number) == ["1", "2", "10", "odd"]


def test_a_partition_says_what_is_unusual_about_it():
    assert str(lag(990, 1000, 900)) == (
        "partition 0 is expired: checkpoint 900, events 990 to 1000, 89 of them lost"
    )
    assert str(lag(5, 14, None)) == "partition 0 is no_checkpoint: no checkpoint, events 5 to 14"
