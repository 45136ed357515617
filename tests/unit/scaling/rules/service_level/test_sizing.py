"""How many instances are needed, and how fast that may change."""

from math import log

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from scaling.rules.service_level import sizing
from scaling.rules.service_level.memory import MAX_NEEDS
from scaling.rules.service_level.queue import active_after
from scaling.rules.service_level.sizing import Outlook

CALM = Outlook(expected=80.0, deviation=0.0, service_rate=10.0, concurrency=1e-9, start_up=90.0, wait=60.0)

rates, amounts = st.floats(0, 1e4), st.floats(0, 1e5)
outlooks = st.builds(
    Outlook,
    expected=rates,
    deviation=rates,
    service_rate=st.floats(0.01, 1e3),
    concurrency=st.floats(0.1, 1e3),
    start_up=st.floats(1, 3600),
    wait=st.floats(1, 3600),
)
starts = st.lists(st.tuples(st.floats(-200, 100), st.integers(1, 50)), max_size=5)


def test_a_calm_load_needs_what_serves_it_with_a_queue_of_most_of_the_wait_less_the_age_of_a_report():
    queue = 0.7 * (60.0 - 0.6 * 15.0)
    assert sizing.instances_needed(CALM, 1.0, 0.0, 0.0) == pytest.approx(8.0 * (1 - queue / 180), rel=1e-4)
    assert sizing.instances_needed(CALM, 0.0, 0.0, 80.0 * queue) == pytest.approx(8.0, rel=1e-4)
    assert sizing.instances_needed(CALM, 0.0, 0.0, 80.0 * 40.0) > 8.0


def test_a_queue_near_the_wait_is_served_in_a_hurry():
    assert sizing.instances_needed(CALM, 0.0, 0.0, 80.0 * 90.0) == pytest.approx(8.0 + 8.0 * (90 - 39) / 39)


@pytest.mark.parametrize(
    ("active", "rate", "slots", "takes", "seconds", "after"),
    [
        (0.0, 2.0, 1e9, 30.0, 1e6, 60.0),  # at rest: Little's law
        (160.0, 10.0, 100.0, 10.0, 30.0, 160.0),  # all busy, as much comes as is completed
        (160.0, 4.0, 100.0, 10.0, 5.0, 130.0),
        (
            160.0,
            4.0,
            100.0,
            10.0,
            10.0 + 10.0 * log(2),
            40.0 + 30.0,
        ),  # all busy for 10 s, then half way to rest
        (0.0, 20.0, 100.0, 10.0, 10.0 * log(2) + 7.0, 100.0 + 70.0),  # full after s ln 2, then a queue
        (50.0, 0.0, 0.0, 10.0, 100.0, 50.0),  # nobody serves
    ],
)
def test_the_queue_is_the_fluid_of_its_module(active, rate, slots, takes, seconds, after):
    assert active_after(active, rate, slots, takes, seconds) == pytest.approx(after)


@given(outlooks, amounts, st.integers(0, 50), st.integers(0, 50), starts)
def test_more_messages_now_are_more_later_and_more_instances_make_it_fewer(
    outlook, active, total, more, starting
):
    starting = sorted(starting)
    here = sizing.active_ahead(outlook, active, total, starting, 100.0)
    assert 0.0 <= here <= (active + outlook.expected * outlook.start_up) * (1 + 1e-9)
    assert sizing.active_ahead(outlook, active + 1.0, total, starting, 100.0) >= here * (1 - 1e-9)
    assert sizing.active_ahead(outlook, active, total + more, starting, 100.0) <= here * (1 + 1e-9) + 1e-9


def shipped_formula(outlook, factor, waiting, capacity):
    """The need of messages that take no time, as the rule had it: without the concurrency of new instances."""
    rate, wait = outlook.expected, outlook.wait
    margin = outlook.rate_with_margin(factor)
    left = waiting + rate * outlook.start_up - capacity
    may_wait = 0.7 * max(wait - 0.6 * outlook.interval, 0.0)
    keep_up = margin + (left - margin * may_wait) / outlook.keep_up_time
    hurry = rate + (left - rate * wait * 0.65) / outlook.hurry_time
    return max(keep_up, hurry, waiting / wait) / outlook.service_rate


@given(outlooks, st.floats(-0.5, 1.5), st.integers(0, 50))
def test_of_fast_messages_only_the_queue_counts(outlook, factor, total):
    fast = replace(outlook, concurrency=1e-9 * outlook.service_rate)
    mu, start_up = fast.service_rate, fast.start_up
    waiting = (total * mu + 1.0) * start_up  # enough to keep all of them busy until then
    ahead = sizing.active_ahead(fast, waiting, total, [], 0.0)
    expected = shipped_formula(fast, factor, waiting, total * mu * start_up)
    assert sizing.instances_needed(fast, factor, waiting, ahead) == pytest.approx(expected, rel=1e-3)


@given(outlooks, st.floats(-0.5, 1.5), amounts, amounts)
def test_of_endless_messages_the_need_is_what_processes_all_that_will_be_there(
    outlook, factor, active, later
):
    endless = replace(outlook, expected=0.0, deviation=0.0, service_rate=1e-9 * outlook.concurrency)
    needed = sizing.instances_needed(endless, factor, active, later)
    assert needed == pytest.approx(max(active, later) / outlook.concurrency, rel=1e-3)


PATIENT = replace(CALM, concurrency=16.0, service_rate=1.0, wait=1200.0, hurry_time=0.0)


@pytest.mark.parametrize(
    ("due", "total", "starting", "needed"),
    [
        ([(960.0, 0.0)], 3, [], 0.0),
        ([(960.0, 960.0)], 3, [], 1.0),  # present instances suffice
        (
            [(960.0, 12_000.0)],
            1,
            [],
            1 + (12_000 - 960) / (16 + 870),
        ),  # new ones serve after 90 s, and begin 16 at once
        ([(30.0, 300.0)], 1, [], 1 + (300 - 60) / (16 + 22.5)),  # sooner than anything starts: in a hurry
        ([(-50.0, 300.0)], 1, [], 1 + (300 - 60) / (16 + 22.5)),  # too late already
        ([(960.0, 9600.0), (480.0, 9600.0)], 10, [], 10 + 4800 / (16 + 390)),  # the earliest deadline decides
        (
            [(960.0, 4 * 960 + 6 * 906)],
            10,
            [(0.0, 6)],
            10.0,
        ),  # six start, serve for 890 s and begin 16 at once
        ([(30.0, 300.0)], 9, [(0.0, 8)], 1 + 240 / (16 + 22.5)),  # those that start are not asked for again
    ],
)
def test_what_waits_for_long_has_to_be_begun_by_its_deadline(due, total, starting, needed):
    assert sizing.instances_by_deadline(PATIENT, due, total, starting, 20.0) == pytest.approx(
        needed, rel=0.01
    )


@given(
    outlooks,
    st.lists(st.tuples(st.floats(-100, 4000), amounts), min_size=1),
    st.integers(0, 50),
    starts,
    amounts,
)
def test_more_messages_by_a_deadline_never_need_fewer_instances(outlook, due, total, starting, more):
    patient = replace(outlook, wait=outlook.start_up * 20, begin_within=outlook.start_up * 16)
    here = sizing.instances_by_deadline(patient, due, total, starting, 100.0)
    busier = [(within, messages + more) for within, messages in due]
    sooner = [(within - 10.0, messages) for within, messages in due]
    assert 0.0 <= here <= sizing.instances_by_deadline(patient, busier, total, starting, 100.0)
    assert here <= sizing.instances_by_deadline(patient, sooner, total, starting, 100.0) * (1 + 1e-9)


def test_instances_asked_for_ahead_of_this_clock_serve_within_one_start_up_time():
    due = [(960.0, 4 * 960 + 8 * 906)]

    now, ahead = (sizing.instances_by_deadline(PATIENT, due, 10, [(at, 6)], 20.0) for at in (20.0, 200.0))

    assert now == ahead > 10.0


def test_scale_in_is_held_for_a_start_and_a_message_or_for_a_tenth_of_a_long_wait():
    assert CALM.hold == pytest.approx(90.0)
    assert replace(CALM, concurrency=4.0, service_rate=4 / 300, service_time=0.0).hold == pytest.approx(390.0)
    bounded = replace(CALM, concurrency=4.0, service_rate=4 / 3600, service_time=0.0, identified=False)
    assert bounded.hold == 90.0
    assert PATIENT.hold == 120.0


def test_instances_that_start_count_from_when_they_serve():
    assert sizing.serving_instances([(0.0, 4)], 10, 30.0, 90.0) == 6
    assert sizing.serving_instances([(0.0, 4)], 10, 90.0, 90.0) == 10
    busy = replace(CALM, expected=0.0)
    assert sizing.active_ahead(busy, 1e4, 10, [(0.0, 4)], 30.0) == pytest.approx(1e4 - 6 * 900.0 - 4 * 300.0)


def test_those_that_started_last_go_first():
    assert sizing.starting_after_change([(0.0, 2), (15.0, 3)], 10, 6, 30.0) == [(0.0, 1)]
    assert sizing.starting_after_change([(0.0, 2)], 10, 12, 30.0) == [(0.0, 2), (30.0, 2)]


@given(outlooks, st.floats(-0.5, 1.5), amounts, amounts, amounts)
def test_need_rises_with_what_is_there_and_what_will_be(outlook, safety_factor, active, later, more):
    here = sizing.instances_needed(outlook, safety_factor, active, later)
    assert sizing.instances_needed(outlook, safety_factor, active + more, later) >= here
    assert sizing.instances_needed(outlook, safety_factor, active, later + more) >= here
    assert here * (outlook.concurrency + outlook.service_rate * outlook.wait) >= active * (1 - 1e-9)


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
    assert sizing.next_capacity(21.9, 20, [(now, 22)], now, 90.0) == 20
    assert sizing.next_capacity(22.1, 20, [(now, 22)], now, 90.0) == 22
    assert sizing.next_capacity(104.1, 100, [(now, 104)], now, 90.0) == 104
    assert sizing.next_capacity(16.5, 20, [(now - 300.0, 20), (now, 17)], now, 90.0) == 20
    assert sizing.next_capacity(16.5, 20, [(now, 17)], now, 90.0) == 17
    assert sizing.next_capacity(10.0, 20, [(now - 300.0, 20), (now, 10)], now, 90.0) == 10


@pytest.mark.parametrize(
    ("limited", "concurrency", "step"), [(False, 16.0, 0.1), (True, 16.0, 0.2), (False, 160.0, 0.2)]
)
def test_a_step_in_may_be_smaller_where_any_number_of_changes_is_taken_and_messages_are_fast(
    limited, concurrency, step
):
    now, step_in = 1000.0, replace(CALM, limited=limited, concurrency=concurrency).step_in

    assert step_in == step
    wanted = 17 if step == 0.1 else 20
    assert sizing.next_capacity(16.5, 20, [(now - 300.0, 20), (now, 17)], now, 90.0, step_in) == wanted


def test_scale_in_waits_for_the_hold_time():
    now = 1000.0
    needs = sizing.needs_with([(now - 60.0, 20)], now, 5)
    assert sizing.next_capacity(5.0, 20, needs, now, 90.0) == 20
    assert sizing.next_capacity(5.0, 20, needs, now, 45.0) == 5


def test_a_scale_in_goes_as_far_as_the_next_report_does_not_take_it_back():
    assert sizing.capacity_that_stays(5, 20, 5.2) == 5
    assert sizing.capacity_that_stays(5, 20, 8.1) == 8
    assert sizing.capacity_that_stays(5, 20, 1e9) == 20


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
