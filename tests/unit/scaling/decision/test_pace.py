"""Stabilization, cooldowns, steps, rate policies and the plateau, with the time as an argument."""

import math

import pytest

from scaling.config.policy import Pace, Plateau, RateLimit
from scaling.decision.pacing import (
    apply_pace,
    apply_stabilization,
    change_free_at,
    changes_of_hour,
    cooldown_until,
    describe_rates,
    level_of_plateau,
    rate_bound,
    rate_free_at,
)
from scaling.model import Direction, EffectRecord, Reason, TargetState

NOW = 10_000.0
FREE = Pace()


def effects(*changes):
    """(seconds ago, from, to) or (seconds ago, from, to, level)."""
    return tuple(EffectRecord(NOW - ago, *rest) for ago, *rest in changes)


def units(amount, period):
    return RateLimit(kind="units", amount=amount, period=period)


def percent(amount, period):
    return RateLimit(kind="percent", amount=amount, period=period)


@pytest.mark.parametrize(
    ("wanted", "history", "expected"),
    [
        (2, (), 2),
        (2, ((299, 4),), 4),  # a recent higher recommendation holds a scale-in back
        (2, ((300, 4),), 2),  # the begin of the window is not in it
        (2, ((299, 9),), 5),  # but never turns it into a scale-out
        (9, ((59, 7), (30, 8)), 7),
        (9, ((60, 7),), 9),
        (9, ((59, 3),), 5),
        (5, ((59, 9), (299, 1)), 5),
    ],
)
def test_the_most_cautious_recommendation_of_the_window_decides(wanted, history, expected):
    recent = tuple((NOW - ago, count) for ago, count in history)

    assert (
        apply_stabilization(wanted, 5, recent, Pace(stabilization=60), Pace(stabilization=300), NOW)
        == expected
    )


def test_without_a_window_recommendations_hold_nothing_back():
    assert apply_stabilization(2, 5, ((NOW, 9),), FREE, FREE, NOW) == 2


def test_a_scale_out_waits_for_the_last_scale_out_only():
    out, inward = Pace(cooldown=100), Pace(cooldown=1_000)

    assert cooldown_until(effects((500, 2, 3), (50, 3, 2)), Direction.OUT, out, inward) == NOW - 400
    assert cooldown_until(effects((50, 3, 2)), Direction.OUT, out, inward) is None


def test_a_scale_in_waits_for_the_last_change_of_either_kind():
    out, inward = Pace(cooldown=100), Pace(cooldown=1_000)

    assert cooldown_until(effects((500, 3, 2), (50, 2, 3)), Direction.IN, out, inward) == NOW + 950
    assert cooldown_until((), Direction.IN, out, inward) is None


@pytest.mark.parametrize(
    ("rates", "select", "out", "inward"),
    [
        ((), "max", math.inf, 0),
        ((units(4, 60),), "max", 14, 6),
        ((percent(100, 60),), "max", 20, 0),
        ((units(4, 60), percent(100, 60)), "max", 20, 0),
        ((units(4, 60), percent(100, 60)), "min", 14, 6),
        ((percent(15, 60),), "max", 12, 8),  # out is rounded up, in down
        ((units(4, 60),), "disabled", 10, 10),
    ],
)
def test_rate_policies_bound_both_directions(rates, select, out, inward):
    pace = Pace(rates=rates, select=select)

    assert rate_bound(10, (), pace, NOW, out=True) == out
    assert rate_bound(10, (), pace, NOW, out=False) == inward


def test_changes_of_the_period_count_against_it_and_only_those_of_the_direction():
    pace = Pace(rates=(units(4, 60),))
    moved = effects((61, 1, 5), (60, 5, 7), (59, 7, 8), (30, 8, 6))

    assert rate_bound(6, moved, pace, NOW, out=True) == 6 - 1 + 4
    assert rate_bound(6, moved, pace, NOW, out=False) == 6 + 2 - 4


def test_per_cent_is_of_the_count_at_the_begin_of_the_period():
    pace = Pace(rates=(percent(50, 60),))

    assert rate_bound(12, effects((30, 8, 12)), pace, NOW, out=True) == 12
    assert rate_bound(9, effects((30, 8, 9)), pace, NOW, out=True) == 12


def test_a_step_and_a_rate_are_told_one_by_one():
    desired, limits = apply_pace(20, 10, (), Pace(step=5, rates=(units(2, 60),)), NOW)

    assert desired == 12
    assert [(limit.reason, limit.wanted, limit.allowed, limit.detail) for limit in limits] == [
        (Reason.RATE_LIMITED, 20, 15, "step 5"),
        (Reason.RATE_LIMITED, 15, 12, "2 units per 60 s"),
    ]


def test_a_step_holds_in_both_directions():
    assert apply_pace(1, 10, (), Pace(step=3), NOW)[0] == 7


def test_more_moved_than_the_rate_allows_stays_and_never_reverses():
    pace = Pace(rates=(units(2, 60),))

    assert apply_pace(20, 10, effects((30, 3, 10)), pace, NOW)[0] == 10
    assert apply_pace(1, 10, effects((30, 20, 10)), pace, NOW)[0] == 10


def test_nothing_is_limited_that_is_within_the_limits():
    assert apply_pace(12, 10, (), Pace(step=2, rates=(units(2, 60),)), NOW) == (12, [])


def test_the_moment_a_rate_is_free_again_is_when_it_allows_a_change():
    pace = Pace(rates=(units(2, 60),))
    moved = effects((50, 4, 5), (20, 5, 8))

    free = rate_free_at(8, moved, pace, NOW, out=True)

    assert free == pytest.approx(NOW + 40, abs=0.1)  # the first to leave frees nothing yet: 3 of 2 remain
    assert rate_bound(8, moved, pace, free, out=True) > 8
    assert rate_bound(8, moved, pace, free - 1, out=True) <= 8


def test_a_disabled_direction_is_never_free():
    assert (
        rate_free_at(8, effects((20, 5, 8)), Pace(rates=(units(2, 60),), select="disabled"), NOW, out=True)
        is None
    )


def test_rates_are_described_as_they_are_combined():
    assert (
        describe_rates(Pace(rates=(units(4, 15), percent(100, 15))))
        == "max of 4 units per 15 s, 100 % per 15 s"
    )
    assert describe_rates(Pace(rates=(units(4, 15),))) == "4 units per 15 s"
    assert describe_rates(Pace(select="disabled")) == "this direction is disabled"


PLATEAU = Plateau(metric="backlog", effects=3, fall=0.1, hold=600)
CLIMB = ((180, 1, 2, 1_000.0), (120, 2, 3, 1_000.0), (60, 3, 4, 990.0))


def test_three_scale_outs_without_a_fall_are_a_plateau():
    assert level_of_plateau(effects(*CLIMB), 950.0, PLATEAU, NOW) == 900.0


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        (CLIMB, 899.0),  # it fell
        (CLIMB[1:], 950.0),  # too few
        ((*CLIMB[:1], (150, 2, 1, 1_000.0), *CLIMB[1:]), 950.0),  # a scale-in ends the run
        ((*CLIMB[:1], (120, 2, 3, None), *CLIMB[2:]), 950.0),  # so does an unknown level
        ((), 950.0),
    ],
)
def test_otherwise_there_is_none(changes, level):
    assert level_of_plateau(effects(*changes), level, PLATEAU, NOW) is None


def test_after_the_hold_one_more_attempt_is_allowed():
    assert level_of_plateau(effects(*CLIMB), 950.0, PLATEAU, NOW + 539) is not None
    assert level_of_plateau(effects(*CLIMB), 950.0, PLATEAU, NOW + 540) is None


def test_a_change_is_free_again_where_the_hour_no_longer_counts_the_oldest():
    """At 0.1 s, which 3600.1 - 3600 is below."""
    changes = [0.1, 50.0]

    free = change_free_at(changes, 2)

    assert changes_of_hour(TargetState(others_changes=tuple(changes)), free) == [50.0]
    assert change_free_at(changes, 3) is None
