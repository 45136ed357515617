"""The lag against its definition: the events that are still there and have not been settled."""

import math

from hypothesis import given
from hypothesis import strategies as st

from scaling.collectors.event_hub.lag import (
    LagState,
    Meanings,
    Partition,
    counts_of,
    flow_of,
    partition_lag,
)
from scaling.model import MetricSample
from scaling.window import EMPTY, WindowSpec, insert
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


# What a hub goes through between two readings: events by partition, how far the consumer settles (a share of what waits), and
# what else happens.
changes = st.tuples(
    st.lists(st.integers(0, 50), min_size=4, max_size=4),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
    st.sampled_from(["", "", "", "partition added", "hub made anew", "failover", "retention", "set back"]),
)


class Hub:
    """Two partitions or more, and the positions of their consumer. `came` and `done` are since the reading before."""

    def __init__(self):
        self.created_at, self.begins = 1000.0, [0, 0]
        self.lasts, self.checkpoints = [10_000, 20_000], [9_000, None]

    def passes(self, events, shares, change):
        self.came = self.done = 0
        if change == "partition added" and len(self.lasts) < 4:
            self.begins, self.lasts = [*self.begins, 0], [*self.lasts, -1]
            self.checkpoints = [*self.checkpoints, None]
        if change == "hub made anew":
            self.lasts, self.begins = [-1] * len(self.lasts), [0] * len(self.lasts)
        if change == "failover":
            self.lasts = [last + 10**9 for last in self.lasts]
        if change in {"hub made anew", "failover"}:
            self.created_at += 1
            self.checkpoints = [None] * len(self.lasts)
        if change == "set back" and self.checkpoints[0] is not None:
            self.checkpoints[0] = max(self.begins[0] - 1, self.checkpoints[0] - 500)
        for at, (count, share) in enumerate(zip(events, shares, strict=True)):
            if at >= len(self.lasts):
                break
            self.lasts[at] += count
            self.came += count
            if change == "retention":
                self.begins[at] = max(self.begins[at], self.lasts[at] - 5)
            before = self.checkpoints[at]
            position = max(self.begins[at] - 1, -1 if before is None else before)
            settled = int(share * (self.lasts[at] - position))
            if settled:
                self.checkpoints[at] = position + settled
                # What retention took from under the consumer within the same minute looks settled.
                self.done += position + settled - (position if before is None else before)

    def flow(self):
        read = zip(self.begins, self.lasts, self.checkpoints, strict=True)
        lags = [
            partition_lag(Partition(str(at), begin, last), checkpoint, Meanings())
            for at, (begin, last, checkpoint) in enumerate(read)
        ]
        return flow_of(lags, self.created_at)


@given(st.lists(changes, min_size=1, max_size=12))
def test_what_came_and_was_settled_is_never_more_than_it_was_whatever_becomes_of_the_hub(world):
    hub, spec = Hub(), WindowSpec(span=6000.0, interval=60.0)
    windows = {"incoming": EMPTY, "outgoing": EMPTY}
    truth = {"incoming": {}, "outgoing": {}}
    for tick, change in enumerate([([0] * 4, [0.0] * 4, ""), *world]):
        hub.passes(*change)
        at, flow = 60.0 * tick, hub.flow()
        truth["incoming"][at], truth["outgoing"][at] = hub.came, hub.done
        for name, value, counter in (
            ("incoming", flow.incoming, flow.hub),
            ("outgoing", flow.settled, flow.checkpoints),
        ):
            if value is not None:
                windows[name] = insert(windows[name], MetricSample(name, at, float(value), counter), spec)

    quiet = all(change in {"", "partition added"} for _, _, change in world)
    for name, window in windows.items():
        for at, value in zip(window.times, window.values, strict=True):
            earlier = [time_ for time_ in window.readings.times if time_ < at]
            came = sum(count for when, count in truth[name].items() if earlier[-1] < when <= at)
            assert value * (at - earlier[-1]) / 60.0 <= came + 1e-6
            assert name == "outgoing" or value * (at - earlier[-1]) / 60.0 == came
        if quiet and name == "incoming":
            assert len(window.times) == len(world)
