"""The lag against its definition: the events that are still there and have not been settled."""

import math

from hypothesis import given
from hypothesis import strategies as st

from scaling.collectors.event_hub.lag import LagState, Meanings, Partition, counts_of, partition_lag
from tests.oracles import event_hub_lag as others

numbers = st.integers(0, 60)


@given(sent=numbers, expired=numbers, settled=st.one_of(st.none(), numbers))
def test_the_lag_is_the_number_of_events_left_that_are_not_settled(sent, expired, settled):
    expired = min(expired, sent)
    checkpoint = None if settled is None or sent == 0 else min(settled, sent - 1)
    left = range(expired, sent)
    waiting = [event for event in left if checkpoint is None or event > checkpoint]

    found = partition_lag(Partition("0", expired, sent - 1, len(left) == 0), checkpoint, Meanings())

    assert found.lag == len(waiting)
    if checkpoint is not None and left:
        assert found.lost == len([event for event in range(expired) if event > checkpoint])


@given(
    begin=st.integers(0, 2**62),
    kept=st.integers(0, 2**62),
    checkpoint=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    is_empty=st.booleans(),
    foreign=st.booleans(),
)
def test_no_numbers_make_the_lag_negative_or_more_than_is_left(begin, kept, checkpoint, is_empty, foreign):
    partition = Partition("0", begin, begin + kept - 1, is_empty)

    found = partition_lag(partition, checkpoint, Meanings(), foreign=foreign)

    assert 0 <= found.lag <= partition.retained
    assert found.lost >= 0


@given(begin=numbers, kept=st.integers(1, 60), behind=st.integers(0, 60))
def test_where_nothing_is_unusual_all_three_agree(begin, kept, behind):
    last = begin + kept - 1
    checkpoint = max(last - behind, begin - 1, 0)

    found = partition_lag(Partition("0", begin, last), checkpoint, Meanings())

    assert found.state in {LagState.OK, LagState.STALE}
    assert found.lag == others.keda(begin, last, checkpoint) == others.functions(begin, last, checkpoint)


@given(waiting=st.lists(st.integers(0, 10_000), min_size=1, max_size=40), target=st.integers(1, 500))
def test_the_capped_lag_asks_for_the_instances_of_the_raw_one_but_for_no_more_than_partitions(
    waiting, target
):
    lags = [
        partition_lag(Partition(str(number), 0, count - 1, count == 0), None, Meanings())
        for number, count in enumerate(waiting)
    ]

    found = counts_of(lags, target)

    assert found["lag"] == sum(waiting)
    assert math.ceil(found["capped_lag"] / target) == min(math.ceil(found["lag"] / target), len(waiting))
