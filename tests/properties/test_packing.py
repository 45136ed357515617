"""Packing: never over a limit, in order, and as few batches as contiguous runs can be."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.publisher.service_bus.core.packing import (
    Lanes,
    Limits,
    learn_from_refusal,
    learn_from_single_refusal,
)


@dataclass(frozen=True)
class Sized:
    index: int
    cost: int
    envelope: int = 0
    key: str | None = None

    @property
    def size(self):
        return self.cost


def packed(items, limits, *, mixed=True, ordered=True):
    lanes = Lanes(mixed=mixed, ordered=ordered)
    for item in items:
        lanes.add(item, limits)
    batches = []
    while batch := lanes.take(limits):
        batches.append(batch)
    return batches


def fewest_runs(costs, limit):
    """The optimum over all cuttings into contiguous runs, by trying them all."""
    best = [0] + [len(costs) + 1] * len(costs)
    for end in range(1, len(costs) + 1):
        total = 0
        for start in range(end - 1, -1, -1):
            total += costs[start]
            if total > limit:
                break
            best[end] = min(best[end], best[start] + 1)
    return best[-1]


limits_and_costs = st.integers(1, 60).flatmap(
    lambda limit: st.tuples(st.just(limit), st.lists(st.integers(1, limit), max_size=40))
)


@given(limits_and_costs)
def test_no_cutting_into_contiguous_runs_needs_fewer_batches(drawn):
    limit, costs = drawn
    items = [Sized(index, cost) for index, cost in enumerate(costs)]
    batches = packed(items, Limits(limit, limit))

    assert [item for batch in batches for item in batch] == items
    assert all(sum(item.cost for item in batch) <= limit for batch in batches)
    assert len(batches) == fewest_runs(costs, limit)


@given(
    st.integers(200, 2000).flatmap(
        lambda limit: st.tuples(
            st.just(limit), st.lists(st.integers(1, limit // 4), min_size=1, max_size=400)
        )
    )
)
def test_batches_are_within_one_of_the_lower_bound_while_the_sizes_allow_it(drawn):
    limit, costs = drawn
    total, largest = sum(costs), max(costs)
    count = len(packed([Sized(i, cost) for i, cost in enumerate(costs)], Limits(limit, limit)))

    assert count <= total // (limit - largest + 1) + 1
    if total * largest <= limit * (limit - largest):
        assert count <= -(-total // limit) + 1


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), max_size=40),
    st.integers(0, 5),
    st.integers(1, 6),
)
def test_a_batch_never_exceeds_limit_or_count_whatever_envelopes_and_headers_are(drawn, header, count):
    limits = Limits(batch=80, message=80, header=header, count=count)
    batches = packed([Sized(i, cost, envelope) for i, (cost, envelope) in enumerate(drawn)], limits)

    assert sum(len(batch) for batch in batches) == len(drawn)
    for batch in batches:
        assert len(batch) <= count
        assert limits.of_run(batch) <= 80
    for batch, after in pairwise(batches):  # and none is cut short
        assert len(batch) == count or limits.of_run([*batch, after[0]]) > 80


@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from([None, "a", "b"])), max_size=40))
def test_each_batch_has_one_key_and_each_key_keeps_its_order(drawn):
    items = [Sized(i, cost, key=key) for i, (cost, key) in enumerate(drawn)]
    batches = packed(items, Limits(60, 60), mixed=False)

    assert all(len({item.key for item in batch}) == 1 for batch in batches)
    for key in (None, "a", "b"):
        sent = [item for batch in batches for item in batch if item.key == key]
        assert sent == [item for item in items if item.key == key]


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(0, 5), st.integers(1, 6))
def test_without_order_a_batch_leaves_out_nothing_that_would_have_fitted(costs, header, count):
    limits = Limits(batch=80, message=80, header=header, count=count)
    batches = packed([Sized(i, cost, 4) for i, cost in enumerate(costs)], limits, ordered=False)

    assert sorted(item.index for batch in batches for item in batch) == list(range(len(costs)))
    for position, batch in enumerate(batches):
        assert len(batch) <= count
        assert limits.of_run(batch) <= 80
        later = [item for after in batches[position + 1 :] for item in after]
        assert len(batch) == count or all(limits.of_run([*batch, item]) > 80 for item in later)


def test_a_session_that_fills_a_batch_goes_before_one_that_came_earlier_and_does_not():
    items = [Sized(0, 10, key="a"), *(Sized(i, 30, key="b") for i in (1, 2, 3)), Sized(4, 10, key="a")]
    batches = packed(items, Limits(60, 60), mixed=False)

    assert [[item.index for item in batch] for batch in batches] == [[1, 2], [0, 4], [3]]


def test_without_order_messages_of_odd_sizes_need_fewer_batches():
    sizes = [60, 60, 60, 40, 40, 40] * 5
    items = [Sized(i, cost) for i, cost in enumerate(sizes)]

    assert len(packed(items, Limits(100, 100))) == 20
    assert len(packed(items, Limits(100, 100), ordered=False)) == 15


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 40))
def test_what_is_put_back_comes_first_again_and_is_formed_anew(costs, smaller):
    items = [Sized(i, cost) for i, cost in enumerate(costs)]
    before, after = Limits(60, 60), Limits(max(smaller, 30), 60)
    lanes = Lanes(mixed=True)
    for item in items:
        lanes.add(item, before)
    lanes.put_back(lanes.take(before), after)
    batches = []
    while batch := lanes.take(after):
        batches.append(batch)

    assert [item for batch in batches for item in batch] == items
    assert all(after.of_run(batch) <= after.batch for batch in batches)
    assert lanes.size == len(lanes) == 0


@given(
    st.integers(1, 10_000),
    st.integers(1, 50),
    st.integers(0, 10),
    st.one_of(st.none(), st.integers(1, 20_000)),
    st.one_of(st.none(), st.integers(1, 20_000)),
)
def test_a_refused_batch_is_never_formed_again(measured, count, header, said, allowed):
    limit = measured + header * count  # it was formed, so it did fit
    limits = learn_from_refusal(
        Limits(limit, limit, header), count=count, measured=measured, counted=said, allowed=allowed
    )

    assert limits.header >= header
    assert limits.batch <= limit
    assert measured + limits.header * count > limits.batch or limits.batch == 1


def test_the_larger_header_is_remembered_and_else_the_limit_shrinks_to_95_percent():
    limits = Limits(1000, 1000)

    assert learn_from_refusal(limits, count=10, measured=950, counted=1050, allowed=1000) == Limits(
        1000, 1000, header=10
    )
    assert learn_from_refusal(limits, count=10, measured=1000, counted=None, allowed=None) == Limits(
        950, 1000
    )
    assert learn_from_refusal(limits, count=10, measured=1000, counted=1000, allowed=800) == Limits(800, 1000)


def test_a_message_refused_singly_lowers_the_limit_for_single_messages_only():
    assert learn_from_single_refusal(Limits(100, 1000), size=800, allowed=None) == Limits(100, 760)
    assert learn_from_single_refusal(Limits(100, 1000), size=800, allowed=500) == Limits(100, 500)


def test_limits_that_take_nothing_are_refused():
    with pytest.raises(ValueError, match="limits are 0 and 5 bytes"):
        Limits(0, 5)


def test_a_lane_that_was_emptied_in_part_is_not_full_for_what_has_left():
    limits = Limits(batch=100, message=100)
    lanes = Lanes(mixed=False)
    for item in (Sized(0, 60, key="a"), Sized(1, 10, key="b"), Sized(2, 60, key="a"), Sized(3, 10, key="a")):
        lanes.add(item, limits)

    batches = [[item.index for item in lanes.take(limits)] for _ in range(3)]

    assert batches == [[0], [1], [2, 3]]  # the lane that has waited longest, once none is full


def test_the_header_that_explains_a_refusal_is_rounded_up():
    limits = Limits(batch=1000, message=1000)

    learned = learn_from_refusal(limits, count=2, measured=997, counted=1000, allowed=1000)

    assert (learned.header, learned.batch) == (2, 1000)
