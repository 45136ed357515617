"""The WorkList against a naive set, and the completion map there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.core.settled.completion_map import decode, encode
from consumer.core.settled.low_water import WorkList
from consumer.model import Checkpoint
from tests.support.consumer.pipeline_checks import check_work_list

steps = st.lists(st.tuples(st.sampled_from(["receive", "next", "settle", "restart"]), st.integers(0, 60)))


class Naive:
    """All numbers received in this claim, and which were ever settled."""

    def __init__(self):
        self.received, self.settled, self.base = set(), set(), -1

    def mark(self):
        below = [n for n in self.received if all(m in self.settled for m in self.received if m <= n)]
        return max([self.base, *below])


@given(steps)
def test_it_is_a_set_of_numbers_with_a_mark(steps):
    work, naive, generation = WorkList("0", None), Naive(), 0
    for step, choice in steps:
        if step in {"receive", "next"}:
            number = choice if step == "receive" else work.received + 1 + choice % 3
            fresh = number not in naive.received | naive.settled and number > naive.mark()
            known = number <= naive.mark() or number in naive.received
            taken = work.receive(number, str(number))
            assert taken == fresh or (
                taken and number in naive.settled
            )  # settled, out of order: written again
            if taken:
                naive.settled.discard(number)
            if not known:
                naive.received.add(number)
        elif step == "settle" and (open_ := sorted(naive.received - naive.settled)):
            chosen = open_[choice % len(open_)]
            work.settle(chosen)
            naive.settled.add(chosen)
        elif step == "restart":
            generation += 1
            checkpoint = work.checkpoint(0.0, "", generation)
            beyond = {n for first, last in checkpoint.beyond for n in range(first, last + 1)}
            assert beyond <= {n for n in naive.settled if n > naive.mark()}
            assert {n for n in naive.received & naive.settled if n > naive.mark()} <= beyond
            naive.base, naive.received, naive.settled = naive.mark(), set(), beyond
            work = WorkList("0", checkpoint)
        check_work_list(work)
        assert work.mark == (naive.mark(), str(naive.mark()) if naive.mark() >= 0 else "")
        assert work.unsettled == len(naive.received - naive.settled)


@given(st.sets(st.integers(0, 300)), st.integers(0, 10))
def test_a_checkpoint_of_nothing_new_is_the_checkpoint_it_came_from(numbers, gap):
    work = WorkList("0", None)
    for number in range(301):
        work.receive(number, "")
    for number in numbers:
        work.settle(number)
    checkpoint = work.checkpoint(1.0, "a", 1)

    assert WorkList("0", checkpoint).checkpoint(1.0, "a", 1) == checkpoint
    covered = {n for first, last in checkpoint.beyond for n in range(first, last + 1)}
    assert covered | set(range(checkpoint.sequence_number + 1)) == numbers


@given(st.sets(st.integers(0, 12)), st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=4)))
def test_events_that_are_received_at_once_are_received_as_one_by_one(settled, pieces):
    before = WorkList("0", None)
    for number in range(13):
        before.receive(number, str(number))
    before.settle_all(settled)
    at_once, single = (WorkList("0", before.checkpoint(1.0, "a", 1)) for _ in range(2))

    for piece in pieces:
        taken = [single.receive(number, str(number)) for number in piece]
        if at_once.receive_all([(number, str(number)) for number in piece]):
            assert all(taken)
        else:
            assert [at_once.receive(number, str(number)) for number in piece] == taken
        check_work_list(at_once)
        assert vars(at_once) == vars(single)


@given(
    st.integers(-1, 2**62),
    st.lists(st.tuples(st.integers(2, 5000), st.integers(0, 5000)), max_size=200),
    st.integers(0, 4096),
)
def test_a_map_comes_back_whole_or_without_its_furthest_runs(mark, pieces, limit):
    runs, last = [], mark
    for gap, length in pieces:
        runs.append((last + gap, last + gap + length))
        last = runs[-1][1]
    text = encode(runs, mark, limit)
    back = decode(text, mark)

    assert len(text) <= limit
    assert back == tuple(runs[: len(back)])
    assert decode(encode(runs, mark, 10**6), mark) == tuple(runs)


@given(st.text(), st.integers(-1, 2**62))
def test_no_text_decodes_to_anything_but_runs_or_a_clear_refusal(text, mark):
    if text:
        with pytest.raises(ValueError, match="completion map"):
            decode(text, mark)
    else:
        assert decode(text, mark) == ()


@given(st.integers(0, 10))
def test_checkpoints_given_by_hand_may_touch_the_mark(extra):
    checkpoint = Checkpoint("0", 5, "o", ((6, 6 + extra),))

    assert decode(encode(checkpoint.beyond, 5, 4096), 5) == checkpoint.beyond
