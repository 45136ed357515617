"""What a target can be set to: rounded up, and never below what is needed."""

import pytest

from scaling.model import Capacity
from scaling.target_facts import Settable, TargetFacts, settable_of


@pytest.mark.parametrize("settable", [Settable(), Settable(7), Settable(allowed=(1, 2, 4, 8, 16))])
def test_up_is_the_least_that_is_enough_and_down_the_most_that_is_not_more(settable):
    values = [n for n in range(17) if n == settable.up(n)]

    for wanted in range(1, 15):
        up, down = settable.up(wanted), settable.down(wanted)
        assert up == min(n for n in (*values, 21) if n >= wanted)
        assert down == max((n for n in values if n <= wanted), default=0)
        assert settable.after(down) > wanted >= down


def test_beyond_the_highest_allowed_value_a_bound_has_to_cut():
    assert Settable(allowed=(1, 2)).up(3) == 3
    assert Settable(allowed=(2, 4)).down(1) == 0


def test_whatever_a_scaler_of_the_users_own_says_can_be_used():
    told = Capacity(3, 0.0, step=0, allowed=(4, -1, 2, 4))

    assert settable_of(None) == Settable()
    assert settable_of(told) == Settable(1, (2, 4))


@pytest.mark.parametrize(
    ("unit", "one"), [("replicas", "replica"), ("throughput units", "throughput unit"), ("RU/s", "RU/s")]
)
def test_one_of_many(unit, one):
    assert [TargetFacts(unit).counted(n) for n in (1, 2)] == [f"1 {one}", f"2 {unit}"]
