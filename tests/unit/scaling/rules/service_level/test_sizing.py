"""How many instances are needed, and how fast that may change."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaling.rules.service_level import sizing
from scaling.rules.service_level.memory import MAX_NEEDS
from scaling.rules.service_level.sizing import Outlook

CALM = Outlook(expected=80.0, deviation=0.0, service_rate=10.0, start_up=90.0, wait=60.0)

rates, amounts = st.floats(0, 1e4), st.floats(0, 1e5)
outlooks = st.builds(
    Outlook,
    expected=rates,
    deviation=rates,
    service_rate=st.floats(0.01, 1e3),
    start_up=st.floats(1, 3600),
    wait=st.floats(1, 3600),
)


def test_a_calm_load_needs_what_serves_it_with_a_queue_of_a_third_of_the_wait():
    capacity = 8 * 90.0 * 10.0
    assert sizing.instances_needed(CALM, 1.0, 0.0, capacity) == pytest.approx(8.0 * (1 - 20 / 180))
    assert sizing.instances_needed(CALM, 0.0, 80.0 * 20.0, capacity) == pytest.approx(8.0)
    assert sizing.instances_needed(CALM, 0.0, 80.0 * 30.0, capacity) > 8.0


def test_a_queue_near_the_wait_is_served_in_a_hurry():
    capacity = 8 * 90.0 * 10.0
    assert sizing.instances_needed(CALM, 0.0, 80.0 * 90.0, capacity) == pytest.approx(8.0 + 8.0 * 45 / 45)


def test_instances_that_start_count_from_when_they_serve():
    assert sizing.serving_and_seconds([(0.0, 4)], 10, 30.0, 90.0) == (6, 6 * 90.0 + 4 * 30.0)
    assert sizing.serving_and_seconds([(0.0, 4)], 10, 90.0, 90.0) == (10, 10 * 90.0)


def test_those_that_started_last_go_first():
    assert sizing.starting_after_change([(0.0, 2), (15.0, 3)], 10, 6, 30.0) == [(0.0, 1)]
    assert sizing.starting_after_change([(0.0, 2)], 10, 12, 30.0) == [(0.0, 2), (30.0, 2)]


@given(outlooks, st.floats(-0.5, 1.5), amounts, amounts, st.floats(0, 1e5))
def test_need_rises_with_what_waits_and_falls_with_what_there_is(
    outlook, safety_factor, waiting, more, capacity
):
    here = sizing.instances_needed(outlook, safety_factor, waiting, capacity)
    assert sizing.instances_needed(outlook, safety_factor, waiting + more, capacity) >= here
    assert sizing.instances_needed(outlook, safety_factor, waiting, capacity + more) <= here
    assert here * outlook.service_rate * outlook.wait >= waiting * (1 - 1e-9) - 1e-12


@given(st.lists(st.tuples(st.floats(1, 60), st.integers(1, 30)), min_size=1, max_size=60), st.floats(1, 600))
def test_the_highest_need_of_a_time_is_remembered(steps, hold):
    now, needs, all_of_them = 0.0, [], []
    for seconds, wanted in steps:
        now += seconds
        needs = sizing.needs_with(needs, now, wanted)
        all_of_them.append((now, wanted))
    true = max(wanted for at, wanted in all_of_them if at > now - hold)
    assert sizing.highest_need_since(needs, now - hold) == true
    assert len(needs) <= 30


def test_small_steps_are_left():
    now = 1000.0
    assert sizing.next_capacity(21.1, 20, [(now, 21)], now, 90.0) == 20
    assert sizing.next_capacity(21.5, 20, [(now, 22)], now, 90.0) == 22
    assert sizing.next_capacity(17.5, 20, [(now - 300.0, 20), (now, 18)], now, 90.0) == 20
    assert sizing.next_capacity(17.5, 20, [(now, 18)], now, 90.0) == 18
    assert sizing.next_capacity(10.0, 20, [(now - 300.0, 20), (now, 10)], now, 90.0) == 10


def test_scale_in_waits_for_the_hold_time():
    now = 1000.0
    needs = sizing.needs_with([(now - 60.0, 20)], now, 5)
    assert sizing.next_capacity(5.0, 20, needs, now, 90.0) == 20
    assert sizing.next_capacity(5.0, 20, needs, now, 45.0) == 5


def test_from_zero_the_first_one_is_wanted_however_little_it_is_needed():
    now = 1000.0
    assert sizing.next_capacity(0.001, 0, [(now, 1)], now, 90.0) == 1
    assert sizing.next_capacity(1.2, 1, [(now, 1)], now, 90.0) == 1


@given(
    wanted=st.lists(st.integers(1, 60), min_size=1, max_size=120),
    hold=st.sampled_from([30.0, 600.0, 1800.0]),
    step=st.sampled_from([15.0, 60.0]),
)
@example(wanted=list(range(100, 0, -1)), hold=1800.0, step=15.0)
def test_a_list_that_changes_with_the_need_tells_what_one_tells_that_changes_at_each_look(wanted, hold, step):
    """Also where more needs fall within the hold than a list keeps."""
    each, changes, last = [], [], 0
    for index, need in enumerate(wanted):
        now = step * index
        sizing.record_need(each, now, need, hold)
        if last and need != last:
            sizing.record_need_until(changes, now - step, last, need, hold, now)
        last = need
        for since in (now - hold, now - 600.0):
            assert max(sizing.highest_need_since(changes, since), need) == sizing.highest_need_since(
                each, since
            )
    assert len(changes) <= MAX_NEEDS
