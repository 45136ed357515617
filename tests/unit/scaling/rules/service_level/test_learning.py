"""What the rule service_level learns from what it sees, and what it makes of gaps, clocks and nonsense."""

from math import isfinite
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from scaling.rules.service_level import (
    candidates,
    estimates,
    forecast,
    instances,
    learning,
    memory,
    queue,
    report,
    seasonality,
    service_time,
    sizing,
)
from scaling.rules.service_level.estimates import Objective
from tests.support.scaling.service_level import NOW, ONE_PER_CENT, STEP, learned, observation

HOUR, DAY = 240, 5760  # observations
SIXTEEN_AT_ONCE = Objective(wait=60.0, late=0.01, concurrency=16.0)


def test_a_steady_load_is_expected_to_go_on_without_a_margin():
    known = learned([80.0] * DAY)
    assert known.expected_rate == pytest.approx(80.0, rel=0.02)
    assert estimates.outlook(known, ONE_PER_CENT).rate_with_margin(1.0) == pytest.approx(80.0, rel=0.02)


def test_a_load_that_rises_is_expected_to_rise():
    known = learned([40.0 + 0.05 * index for index in range(4 * HOUR)])
    assert known.expected_rate > known.rates[0]


def test_a_wild_load_gets_a_margin():
    chance = Random(1)
    known = learned([chance.choice([20.0, 20.0, 20.0, 300.0]) for _ in range(2 * HOUR)])
    assert estimates.outlook(known, ONE_PER_CENT).rate_with_margin(1.0) > 1.3 * known.expected_rate


def test_bursts_out_of_nothing_are_worth_a_margin_before_one_comes_and_not_while_it_is_there():
    def rate(index):
        return 400.0 if index % 80 >= 60 else 40.0  # five minutes in every twenty

    known = learned([rate(index) for index in range(DAY + 55)])
    quiet = estimates.outlook(known, ONE_PER_CENT).deviation
    known = learned([400.0] * 15, start=NOW + (DAY + 55) * STEP, memory=known)
    assert known.expected_rate > 2 * known.usual_now
    assert known.level_variances[3] < known.level_variances[1] / 5
    assert estimates.outlook(known, ONE_PER_CENT).deviation < quiet


def test_a_level_that_was_never_reached_has_the_margin_of_all():
    chance = Random(1)
    known = learned([chance.choice([70.0, 90.0, 110.0]) for _ in range(DAY)])
    usual = estimates.outlook(known, ONE_PER_CENT).deviation
    known = replace(known, expected_rate=3 * known.usual_now)
    assert 0 in known.level_counts
    assert estimates.outlook(known, ONE_PER_CENT).deviation > usual / 2


@pytest.mark.parametrize("early", [0.25, -0.25])
def test_a_forecast_is_judged_by_the_report_that_is_nearest_to_its_end(early):
    known = learned([80.0] * HOUR)
    due, judged = known.forecasts[0], sum(known.level_counts)

    forecast.score_forecasts(known, due.until - early * STEP, STEP)

    assert (due in known.forecasts, sum(known.level_counts)) == (False, judged + 1)


def test_a_busy_instance_tells_what_it_serves():
    known = learned([70.0] * 40, backlog=900.0, current=10, outgoing=70.0 * STEP, objective=SIXTEEN_AT_ONCE)
    assert instances.service_rate(known.learned, 16.0) == pytest.approx(7.0, rel=0.02)


def test_a_service_rate_that_halves_is_noticed_within_minutes():
    known = learned([100.0] * 40, backlog=900.0, objective=SIXTEEN_AT_ONCE)
    assert instances.service_rate(known.learned, 16.0) == pytest.approx(10.0, rel=0.02)
    known = learned(
        [50.0] * 30, backlog=900.0, start=NOW + 40 * STEP, memory=known, objective=SIXTEEN_AT_ONCE
    )
    assert instances.service_rate(known.learned, 16.0) == pytest.approx(5.0, rel=0.1)


def test_before_all_were_busy_the_rate_follows_from_what_one_holds():
    known = learned([80.0] * 40, service=8.0, current=20)
    assert instances.service_rate(known.learned, 16.0) == pytest.approx(8.0)


def test_the_start_up_time_is_learned_from_the_instances_that_become_ready():
    known = learned([80.0] * 10, current=5)
    at = NOW + 10 * STEP
    for index in range(40):  # asked for at the observation before the first, ready twelve later
        ready = 5 if index < 12 else 9
        known = learning.learn(known, observation(at + STEP * index, current=9, ready=ready), ONE_PER_CENT)
    assert known.learned.start_up_count == 1
    assert estimates.start_up_time(known, ONE_PER_CENT) > instances.FIRST_START_UP
    assert not known.starting


def test_an_instance_that_is_called_ready_but_serves_later_is_found_out():
    known = learned(
        [50.0] * 60, current=5, backlog=900.0, objective=SIXTEEN_AT_ONCE
    )  # all busy: an instance serves 10/s
    at = NOW + 60 * STEP
    for index in range(20):  # four more: ready two reports later, serving six reports later
        ready, serving = (5 if index < 2 else 9), (5 if index < 6 else 9)
        seen = observation(
            at + STEP * index,
            rate=90.0,
            backlog=2000.0 + index,
            current=9,
            ready=ready,
            outgoing=10.0 * serving * STEP,
        )
        known = learning.learn(known, seen, SIXTEEN_AT_ONCE)
    learnt = known.learned
    assert learnt.warm_up_count == 1
    assert learnt.warm_up == pytest.approx(4 * STEP, abs=STEP)
    assert instances.service_rate(learnt, 16.0) == pytest.approx(10.0, rel=0.05)
    assert estimates.start_up_time(known, SIXTEEN_AT_ONCE) == pytest.approx(learnt.start_up + learnt.warm_up)


@pytest.mark.parametrize(
    ("takes", "warm_up", "learned_before", "found"),
    [
        (4, 0, 0.0, 0.0),  # the first messages are completed when they have taken as long as they take
        (4, 0, 60.0, 0.7**3 * 60.0),  # an older version took that for a warm-up: three scale-outs show
        (20, 0, 300.0, 0.7**3 * 300.0),
        (4, 8, 0.0, 8 * STEP),  # a warm-up shows all the same
    ],
)
def test_messages_that_take_long_are_no_warm_up(takes, warm_up, learned_before, found):
    """`takes` and `warm_up` in reports."""
    of_one = 16.0 / takes  # completed in a report
    known = learned([5 * of_one / STEP] * 60, current=5, backlog=900.0, objective=SIXTEEN_AT_ONCE)
    if learned_before:
        known = replace(known, learned=replace(known.learned, warm_up=learned_before, warm_up_count=3))
    at, current = NOW + 60 * STEP, 5
    for _ in range(12):  # scale-outs by four, ready six reports after they were asked for
        for index in range(40):
            serving = current if index < 6 + warm_up + takes else current + 4
            seen = observation(
                at + STEP * index,
                rate=50.0,
                backlog=5000.0 + index,
                current=current + 4,
                ready=current if index < 6 else current + 4,
                outgoing=of_one * serving,
            )
            known = learning.learn(known, seen, SIXTEEN_AT_ONCE)
        at, current = at + 40 * STEP, current + 4
    learnt = known.learned
    assert learnt.warm_up_count >= 3
    assert learnt.warm_up == pytest.approx(found, abs=STEP)


def test_instances_that_never_serve_as_much_are_slow_ones_after_a_quarter_of_an_hour():
    known = learned([50.0] * 60, current=5, backlog=900.0, objective=SIXTEEN_AT_ONCE)
    at = NOW + 60 * STEP
    for index in range(120):
        seen = observation(at + STEP * index, rate=60.0, backlog=2000.0, current=10, outgoing=50.0 * STEP)
        known = learning.learn(known, seen, SIXTEEN_AT_ONCE)
    assert not known.warming
    assert instances.service_rate(known.learned, 16.0) == pytest.approx(5.0, rel=0.05)


def test_until_instances_were_seen_to_serve_the_start_up_time_is_no_less_than_assumed():
    known = learned([10.0] * 10, current=5)
    at = NOW + 10 * STEP
    for index in range(20):
        seen = observation(at + STEP * index, rate=10.0, current=9, ready=5 if index < 1 else 9)
        known = learning.learn(known, seen, ONE_PER_CENT)
    assert known.learned.start_up < instances.FIRST_START_UP
    assert estimates.start_up_time(known, ONE_PER_CENT) == instances.FIRST_START_UP


def test_what_is_given_is_not_learned():
    given = Objective(wait=60.0, late=0.01, concurrency=4.0, start_up=200.0)
    known = learned([80.0] * 40, objective=given)
    assert (estimates.concurrency(known, given), estimates.start_up_time(known, given)) == (4.0, 200.0)


UNCOUNTED = {"incoming": None, "outgoing": None}


@pytest.mark.parametrize(
    ("options", "changes", "reports", "sense", "identified", "since"),
    [
        ({"takes": 2.0}, UNCOUNTED, 5, "given", True, 0),
        ({}, UNCOUNTED, 5, "backlog", False, 0),
        ({}, {}, 5, "counts", True, 1),
        ({"concurrency": None}, {}, 1, "", True, 0),  # the first report: counted, and nothing learned yet
        ({"concurrency": None}, {}, 5, "counts", True, 0),
    ],
)
def test_the_view_says_by_what_the_time_of_a_message_is_known_and_since_when(
    options, changes, reports, sense, identified, since
):
    objective = Objective(**{"wait": 60.0, "late": 0.01, "concurrency": 16.0} | options)
    known = learned([80.0] * reports, objective=objective, **changes)

    shown = report.view_of("r", known, objective).message_time

    assert (shown.sense, shown.identified, shown.since) == (sense, identified, NOW + since * STEP)
    assert shown.seconds == estimates.service_time(known, objective)


def test_messages_that_waited_too_long_are_counted_on_the_day_they_were_begun():
    known = learned([80.0] * 10, current=10)
    # 80/s arrive, 40/s are served: after 2 min the oldest is older than a minute
    at, waiting = NOW + 10 * STEP, 0.0
    for index in range(20):
        waiting += 40.0 * STEP
        seen = observation(
            at + STEP * index, rate=80.0, backlog=160.0 + waiting, outgoing=40.0 * STEP, ready=10
        )
        known = learning.learn(known, seen, ONE_PER_CENT)
    assert 0 < known.day_late < known.day_begun
    late = known.day_late
    known = learned([80.0], start=NOW + 86_400.0 + 5, memory=known)  # a gap, and another day
    known = learned([80.0], start=NOW + 86_400.0 + 20, memory=known)
    assert late
    assert known.day_late == 0


def test_arrivals_follow_from_the_backlog_where_nothing_is_counted():
    given = Objective(wait=60.0, late=0.01, takes=1.0)
    known = learned([80.0] * HOUR, incoming=None, outgoing=None, current=10, service=16.0, objective=given)
    assert known.rates[3] == pytest.approx(80.0, rel=0.05)


def test_without_counts_the_service_rate_follows_from_how_a_backlog_is_drained():
    known, backlog, current, at = None, 40.0, 4, NOW
    given = Objective(wait=60.0, late=0.01, concurrency=16.0, start_up=1.0)
    for index in range(
        6 * HOUR
    ):  # every half hour 200/s for five minutes, else 25/s; an instance serves 10/s
        rate = 200.0 if index % 120 < 20 else 25.0
        free = backlog <= 16.0 * current
        backlog = (
            1.6 * rate
            if free and rate <= 10.0 * current
            else max(backlog + (rate - 10.0 * current) * STEP, 1.6 * rate)
        )
        current = 30 if rate > 100.0 or backlog > 16.0 * 30 else 4
        seen = observation(at, backlog=backlog, current=current, incoming=None, outgoing=None)
        known = learning.learn(known, seen, given)
        at += STEP
    assert known.time.drains > 5
    assert (known.time.sense, known.time.identified) == ("drain", True)
    assert estimates.service_rate(known, given) == pytest.approx(10.0, rel=0.25)


def test_what_is_completed_follows_from_the_other_two():
    known = learned([80.0] * 40, backlog=900.0, current=8, outgoing=None, objective=SIXTEEN_AT_ONCE)
    assert instances.service_rate(known.learned, 16.0) == pytest.approx(10.0, rel=0.02)


def test_the_shape_of_the_hour_is_learned_and_trusted_within_a_day():
    def rate(index):
        minute = index * STEP // 60 % 60
        return 240.0 if minute == 33 else 80.0

    known = learned([rate(index) for index in range(DAY)])
    assert seasonality.shape_trust(known.minute_shape) > 0.9
    before, after = NOW + DAY * STEP + 32 * 60, NOW + DAY * STEP + 40 * 60
    assert seasonality.shape_factor(known.minute_shape, before, 105.0, STEP) > 1.5
    assert seasonality.shape_factor(known.minute_shape, after, 105.0, STEP) == pytest.approx(1.0, abs=0.05)


def test_noise_has_no_shape():
    chance = Random(5)
    known = learned([chance.expovariate(1 / 80.0) for _ in range(DAY)])
    assert seasonality.shape_trust(known.minute_shape) < 0.1


def test_the_usual_rate_is_that_of_the_time_of_the_day():
    def rate(index):
        return 200.0 if 8 <= index * STEP // 3600 % 24 < 18 else 10.0

    known = learned([rate(index) for index in range(3 * DAY)])
    midnight = NOW + 3 * DAY * STEP
    noon, night = (
        seasonality.usual_rate(known.usual_rates, midnight + hour * 3600, known.usual_rate)
        for hour in (12, 3)
    )
    assert noon > 2 * night
    assert seasonality.usual_rate(
        known.usual_rates, midnight + 7.5 * 3600, known.usual_rate
    ) == pytest.approx(noon)


def test_a_weekday_is_told_from_a_sunday_once_each_was_seen_twice():
    calendar = memory.UsualRates()
    hour = memory.MinuteShape()
    for hours in range(24 * 21):
        at = NOW + hours * 3600.0
        seasonality.record_rate(hour, calendar, 5.0 if hours // 24 % 7 == 6 else 100.0, at, at + 15.0)
    monday, sunday = NOW + 21 * 86_400 + 6 * 3600, NOW + 27 * 86_400 + 6 * 3600
    assert seasonality.usual_rate(calendar, monday, 50.0) == pytest.approx(75.0)
    assert seasonality.usual_rate(calendar, sunday, 50.0) == pytest.approx(27.5)


def test_a_smooth_load_is_served_without_care_and_a_wild_one_with_care():
    chance = Random(3)
    smooth = learned([80.0] * DAY)
    wild = learned([80.0 * chance.choice([0.2] * 30 + [8.0]) for _ in range(DAY // 8) for _ in range(8)])
    assert estimates.safety_factor(smooth) < estimates.safety_factor(wild)


def test_an_observation_that_is_not_newer_changes_nothing():
    known = learned([80.0] * 20)
    before = memory.encode(known)
    at = NOW + 19 * STEP
    for seconds in (0.0, -15.0, -600.0, 1.0):
        known = learning.learn(known, observation(at + seconds, rate=500.0), ONE_PER_CENT)
        assert memory.encode(known) == before


@pytest.mark.parametrize("seconds", [600.0, 86_400.0 * 40, -3600.0, -86_400.0 * 40])
def test_after_a_gap_or_a_jump_of_the_clock_what_was_learned_stays(seconds):
    known = learned([80.0] * HOUR * 2)
    blend, since_then = known.weights, known.at - known.since
    known = learned([80.0], start=known.at + seconds, memory=known)
    assert known.weights == blend
    assert known.at - known.since == since_then
    assert (known.forecasts, known.starting, known.needs) == ([], [], [(known.at, known.current)])
    known = learned([80.0] * 20, start=known.at + STEP, memory=known)
    assert known.expected_rate == pytest.approx(80.0, rel=0.05)
    assert known.day_late == 0


def test_a_forecast_that_is_no_number_is_found_out():
    known = learned([80.0] * 40)
    known.weights[0] = float("nan")

    known = learned([80.0], start=known.at + STEP, memory=known)

    assert known.restart_reason == learning.UNUSABLE
    assert all(map(isfinite, known.weights))


def test_a_memory_stays_small_whatever_the_intervals():
    chance = Random(2)
    for objective in (
        ONE_PER_CENT,
        Objective(wait=3600.0, late=0.2, start_up=1800.0),
        Objective(wait=1.0, late=0.001, start_up=1.0),
    ):
        known, at = None, NOW
        for _ in range(1500):
            at += STEP * chance.uniform(0.3, 3.0)
            current = chance.randint(1, 100)
            seen = observation(
                at, rate=chance.expovariate(0.01), current=current, ready=chance.randint(0, current)
            )
            known = learning.learn(known, seen, objective)
        data = memory.encode(known)
        assert len(data) < memory.MAX_BYTES
        assert memory.decode(data) == known


@pytest.mark.parametrize("field", ["usual_rate", "interval", "arrived", "scored_arrivals"])
def test_a_memory_with_a_number_that_is_none_is_not_read_also_by_the_process_that_wrote_it(field):
    known = learned([80.0] * 3)
    setattr(known, field, float("nan"))

    assert memory.decode(memory.encode(known)) is None


def test_a_memory_with_a_text_that_is_none_is_not_read():
    known = learned([80.0] * 3)
    known.unkept = "é"

    assert memory.decode(memory.encode(known).replace("é".encode(), b"\xc3(")) is None


def test_a_number_that_is_not_finite_any_more_starts_the_memory_anew():
    known = learned([80.0] * 20)
    known.arrived = float("inf")
    known = learned([80.0], start=NOW + 20 * STEP, memory=known)
    assert known.restart_reason
    assert isfinite(known.arrived)


def test_the_best_candidate_is_the_cheapest_where_nothing_is_late():
    simulated = [
        memory.Candidate(cost=1000.0 + 10 * index) for index in range(len(candidates.SAFETY_FACTORS))
    ]
    assert candidates.choose_best(simulated, 1e6, 0.01, 1e9, candidates.TRADES["balanced"]) == 0


def test_late_messages_are_worth_money_and_beyond_the_budget_more():
    cheap, dear = memory.Candidate(cost=1000.0, late=20_000.0), memory.Candidate(cost=1200.0, late=1_000.0)
    trade = candidates.TRADES["balanced"]
    assert candidates.score(cheap, 1e6, 0.01, trade) > candidates.score(dear, 1e6, 0.01, trade)
    assert candidates.score(cheap, 1e6, 0.1, trade) < candidates.score(dear, 1e6, 0.1, trade)


@pytest.mark.parametrize(
    ("waiting", "oldest_age", "due"),
    [
        (300.0, None, [(700.0, 100.0), (900.0, 250.0), (1000.0, 300.0)]),  # the newest 300 of 900
        (120.0, None, [(900.0, 70.0), (1000.0, 120.0)]),
        (
            300.0,
            200.0,
            [(900.0, 300 * 75 / 125), (1000.0, 300.0)],
        ),  # of 200 s, in which 125 are taken to have come
        (300.0, 0.0, [(1000.0, 300.0)]),  # the oldest one came just now
        (300.0, 5000.0, [(-4000.0, 300.0)]),  # older than all marks: nobody knows what is newer
        (0.0, None, [(1000.0, 0.0)]),
    ],
)
def test_the_ages_of_what_waits_follow_from_the_arrivals_or_are_measured(waiting, oldest_age, due):
    known = learned([80.0] * 2)
    known.at, known.arrived, known.waiting = NOW, 900.0, waiting
    known.marks = [(NOW - 800, 200.0), (NOW - 600, 400.0), (NOW - 300, 700.0), (NOW - 100, 850.0)]
    known.oldest_age = -1.0 if oldest_age is None else oldest_age

    found = queue.deadlines(known, waiting, 1000.0)

    assert [count for _, count in found] == pytest.approx([count for _, count in due])
    assert [seconds for seconds, _ in found] == pytest.approx([seconds for seconds, _ in due])


def test_messages_that_end_together_are_no_arrivals_and_no_debt_without_end():
    """A fall of the backlog beyond what is taken as served is made up for by later arrivals: 600 messages stay 600."""
    objective = Objective(wait=7200.0, late=0.01, concurrency=2.0, start_up=90.0, takes=300.0)
    known, backlog = None, 600.0
    for index in range(240):
        if index and index % 20 == 0:
            backlog = max(backlog - 20.0, 0.0)
        seen = observation(NOW + STEP * index, backlog=backlog, current=10, incoming=None, outgoing=None)
        before, known = known, learning.learn(known, seen, objective)
        assert before is None or known.arrived >= before.arrived
    assert known.arrived <= 20.0  # what ten instances process at once; 600 were there at the beginning
    purged = learning.learn(known, replace(seen, at=seen.at + STEP, backlog=0.0), objective)
    assert purged.owed >= -20.0


def test_candidates_that_served_at_a_rate_of_the_past_begin_again_from_what_is_there():
    """Nine instances serve half as much all at once, and what waits grows by 35 messages a second."""
    steady = learned([80.0] * 2 * HOUR, objective=SIXTEEN_AT_ONCE, current=9)
    known = steady
    for report_number in range(1, 5):
        seen = observation(
            steady.at + report_number * STEP,
            backlog=128.0 + 35.0 * report_number * STEP,
            outgoing=45.0 * STEP,
            current=9,
        )
        known = learning.learn(known, seen, SIXTEEN_AT_ONCE)

    assert estimates.service_time(known, SIXTEEN_AT_ONCE) == pytest.approx(3.2, rel=0.1)
    assert [each.active for each in known.candidates] == pytest.approx([known.backlog] * 8, rel=0.2)
    assert min(each.total for each in known.candidates) > 16


def test_scale_in_does_not_follow_what_a_slower_service_needed():
    steady = learned([80.0] * 2 * HOUR, objective=SIXTEEN_AT_ONCE, current=18, service=5.0)
    assert 13 <= steady.last_need <= 17

    known = learned([80.0] * 3, start=steady.at + STEP, memory=steady, objective=SIXTEEN_AT_ONCE, current=18)
    held = sizing.highest_need_since(known.needs, known.at - sizing.SMALL_STEP_IN_TIME)
    assert max(held, known.last_need) <= 10
    assert max(each.last_need for each in known.candidates) <= 10


def test_until_messages_are_counted_the_usual_rate_is_half_of_what_the_first_instances_are_assumed_to_serve():
    """Nothing comes for a while, and then messages of 32 s: a burst out of nothing is no surprise of ten times the usual rate."""
    idle = learned([0.0] * 8, objective=SIXTEEN_AT_ONCE)
    assert not idle.time.identified
    assert idle.usual_rate == pytest.approx(0.5 * 160.0, rel=0.1)

    known = learned(
        [5.0] * 8, start=idle.at + STEP, memory=idle, objective=SIXTEEN_AT_ONCE, backlog=160.0, service=0.5
    )
    assert estimates.service_time(known, SIXTEEN_AT_ONCE) == pytest.approx(32.0, rel=0.2)
    assert 2.0 < known.usual_rate < 6.0


def test_where_messages_are_counted_what_is_there_counts_and_no_average():
    """Until the first count the averages are of a message that takes an hour."""
    known = learned([80.0] * 2, objective=SIXTEEN_AT_ONCE)
    known.time.identified = False
    outlook = estimates.outlook(known, SIXTEEN_AT_ONCE)
    assert estimates.messages_to_hold(known, outlook, 128.0, 10.0) == 128.0


def test_how_much_is_spent_orders_what_is_chosen():
    simulated = [memory.Candidate(cost=1e6 * 1.15**index, late=4e4 * 0.7**index) for index in range(8)]
    trades = [candidates.TRADES[spend] for spend in ("keep", "balanced", "least")]
    chosen = [candidates.choose_best(simulated, 1e6, 0.01, 1e9, trade) for trade in trades]
    assert chosen == sorted(chosen, reverse=True)
    assert len({*chosen}) == 3


@pytest.mark.parametrize(
    ("at_once", "sense", "share"),
    [
        (1.0, service_time.DRAIN, 1.0),
        (16.0, service_time.DRAIN, candidates.BACKLOG_SHARE),
        (16.0, service_time.BACKLOG, candidates.BACKLOG_SHARE),
        (16.0, service_time.AGE, candidates.INFERRED_SHARE),
        (16.0, service_time.GIVEN, candidates.INFERRED_SHARE),
    ],
)
def test_inferred_arrivals_take_less_margin_but_where_messages_come_one_at_a_time(at_once, sense, share):
    known = learned([80.0] * 3, objective=SIXTEEN_AT_ONCE)
    known.flow_counted, known.time.sense, known.time.used = False, sense, 1.6
    known.learned.service_rate = at_once / 1.6
    inferred = estimates.safety_factors(known)
    assert inferred == pytest.approx([share * factor for factor in candidates.SAFETY_FACTORS])


@pytest.mark.parametrize(
    ("interval", "spend", "price", "over"),
    [
        (5.0, "balanced", 0.10, 0.12),
        (15.0, "balanced", 0.10, 0.12),
        (30.0, "balanced", 0.05, 0.06),
        (60.0, "balanced", 0.025, 0.03),
        (600.0, "balanced", 0.02, 0.02),
        (60.0, "least", 0.02, 0.02),
        (60.0, "keep", 0.15, 0.15),
    ],
)
def test_less_is_paid_for_a_late_message_where_reports_are_rare(interval, spend, price, over):
    trade = candidates.trade_at(spend, interval)
    assert (trade.price, trade.over) == pytest.approx((price, over))


def test_a_rare_report_chooses_a_smaller_margin():
    """Of candidates of which each costs a fifth more than the one before, and has half of its late messages."""
    simulated = [
        memory.Candidate(total=1, waiting=0.0, active=0.0, cost=1e6 * 1.2**index, late=4e4 * 0.5**index)
        for index in range(8)
    ]
    trades = [candidates.trade_at("balanced", interval) for interval in (15.0, 60.0)]
    often, rare = (candidates.choose_best(simulated, 1e6, 0.01, 1e9, trade) for trade in trades)
    assert often > rare


def test_where_more_is_late_than_was_foreseen_a_late_message_costs_more():
    """Of candidates of which each costs a fifth more than the one before, and has half of its late messages."""
    known = learned([80.0] * 3)
    known.scored_arrivals, known.late_foreseen = 1e6, 1000.0
    for index, candidate in enumerate(known.candidates):
        candidate.cost, candidate.late = 1e6 * 1.2**index, 1e4 * 0.5**index
    chosen = []
    for seen in (0.0, 1000.0, 3000.0, 6000.0, 1e9):
        known.late_seen = seen
        candidates.choose(known, 0.01)
        chosen.append(known.chosen)
    assert chosen[0] == chosen[1] < chosen[3]
    assert chosen == sorted(chosen)
    assert candidates.optimism(known, 0.01) == candidates.MOST_OPTIMISTIC


@pytest.mark.parametrize(
    ("current", "is_followed", "seen"), [(10, True, 30.0), (9, True, 0.0), (10, False, 0.0), (12, True, 30.0)]
)
def test_what_is_late_counts_against_a_candidate_only_where_the_target_had_as_many_instances(
    current, is_followed, seen
):
    known = learned([80.0] * 3)
    known.current, known.candidates[known.chosen].total = current, 10
    outlook = estimates.outlook(known, ONE_PER_CENT)
    passed = candidates.Interval(
        now=known.at,
        seconds=STEP,
        keep=0.5,
        arrived=1200.0,
        arrived_before=known.arrived,
        old_before=0.0,
        old_now=0.0,
        late=30.0,
        is_followed=is_followed,
    )
    known.late_seen = known.late_foreseen = 4.0
    candidates.follow(known, candidates.SAFETY_FACTORS, outlook, passed, least=1, most=100)
    assert (known.late_seen, known.late_foreseen) == (2.0 + seen, 2.0)


def test_what_is_late_is_held_against_what_was_foreseen_after_the_first_half_hour():
    """Messages take twice as long as is given, so half of them are late, which no candidate foresees."""
    wrong = Objective(wait=60.0, late=0.01, concurrency=16.0, takes=0.8)
    calm = learned([80.0] * 100, objective=wrong, backlog=40.0)
    assert calm.late_seen == 0.0
    late = learned([80.0] * 40, start=calm.at + STEP, memory=calm, objective=wrong, backlog=9000.0)
    assert late.late_seen > 1000.0
    assert late.late_seen > 2.0 * late.late_foreseen


def test_forecasts_are_judged_alike_however_many_messages_an_instance_serves():
    """A load of messages that are processed sixteen at once, and of a sixteenth of them that are processed one at a time."""
    chance = Random(2)
    busy = [chance.choice([6.0, 8.0, 24.0]) for _ in range(2 * HOUR)]
    found = []
    for at_once in (16.0, 1.0):
        objective, rate = Objective(wait=60.0, late=0.01, concurrency=at_once, takes=32.0), at_once / 32.0
        known = learned([each * rate for each in busy], service=rate, held=at_once, objective=objective)
        found.append(estimates.outlook(known, objective).deviation / rate)
    assert found[1] == pytest.approx(found[0], rel=0.001)


@pytest.mark.parametrize(
    ("counted", "identified", "takes", "within"),
    [
        (False, True, 1.6, 59.6),
        (False, True, 20.0, 55.0),
        (False, True, 300.0, 52.5),
        (True, True, 20.0, 60.0),
        (False, False, 20.0, 60.0),
    ],
)
def test_a_slow_message_whose_arrival_is_inferred_counts_as_late_before_the_wait_is_over(
    counted, identified, takes, within
):
    known = learned([80.0] * 3, objective=SIXTEEN_AT_ONCE)
    known.flow_counted, known.time.identified, known.time.used = counted, identified, takes
    assert estimates.begun_within(known, SIXTEEN_AT_ONCE) == pytest.approx(within)


def test_another_trade_begins_its_scores_anew_and_is_remembered():
    known = learned([80.0] * 100, objective=SIXTEEN_AT_ONCE)
    careful = learning.learn(known, observation(known.at + STEP), replace(SIXTEEN_AT_ONCE, spend="keep"))
    assert (known.spend, careful.spend) == ("balanced", "keep")
    assert careful.scored_arrivals < known.scored_arrivals / 50
    assert estimates.safety_factors(careful) == candidates.CAREFUL_FACTORS


@pytest.mark.parametrize(
    ("apart", "changes", "stated", "why"),
    [
        (217, {}, {"late": 0.5}, ""),
        (217, {"most": 9}, {}, "maximum"),
        (217, {"interval": 60.0}, {}, "interval"),
        (217, {}, {"start_up": 300.0}, "start_up"),
    ],
)
def test_what_no_margin_keeps_is_said_once_a_day_with_what_is_in_the_way(apart, changes, stated, why):
    interval, begin = changes.get("interval", STEP), NOW + 16 * 3600.0
    objective, known, said = replace(SIXTEEN_AT_ONCE, takes=1.6, **stated), None, []
    for index in range(int(2400 * STEP / interval)):  # ten hours of bursts that do not come by the clock
        rate = 800.0 if index * interval / STEP % apart < 20 else 80.0
        counts = {"incoming": rate * interval, "outgoing": rate * interval, "most": 1000}
        seen = observation(begin + interval * index, rate=rate, current=8, **(counts | changes))
        known = learning.learn(known, seen, objective)
        if known.unkept and known.unkept_at == known.at:
            said.append((known.at - NOW) // 86_400)
    assert known.unkept == why
    assert said == ([0, 1] if why else [])


@pytest.mark.parametrize(("gap", "within"), [(180.0, 1000.0 - 280.0), (1300.0, 1000.0)])
def test_what_waited_before_a_gap_gets_no_fresh_wait(gap, within):
    """But for a gap longer than the wait, after which nobody knows what is left of it."""
    objective = Objective(wait=1250.0, late=0.01, concurrency=16.0, start_up=90.0, takes=16.0)
    known = learned([0.0] * 40, objective=objective, backlog=0.0, current=1, incoming=None, outgoing=None)
    begun, backlog = known.at, 2000.0
    while known.at < begun + 100.0:  # a burst, and 100 s of it
        known = learning.learn(
            known,
            observation(
                known.at + 5.0, backlog=backlog, current=1, interval=5.0, incoming=None, outgoing=None
            ),
            objective,
        )
    after = learning.learn(
        known,
        observation(known.at + gap, backlog=backlog, current=1, interval=5.0, incoming=None, outgoing=None),
        objective,
    )
    assert after.resumed_at == after.at
    soonest, count = max(
        queue.deadlines(after, after.waiting, 1000.0), key=lambda due: due[1] / max(due[0], 1.0)
    )
    assert soonest <= within + 1250.0 / 16
    assert count >= 0.75 * after.waiting


def test_a_memory_of_an_older_version_goes_on_from_what_it_holds():
    """Of version 0.2, which ended with the reason of a restart, and whose candidates kept only what waits."""
    known = learned([80.0] * 100, objective=SIXTEEN_AT_ONCE)
    for candidate in known.candidates:
        candidate.waiting = 50.0
    fields = memory.Memory.__struct_fields__
    old = msgspec.msgpack.decode(memory.encode(known))[: fields.index("restart_reason") + 1]
    place = fields.index("candidates")
    old[place] = [candidate[:7] for candidate in old[place]]

    read = memory.decode(msgspec.msgpack.encode(old))
    after = learning.learn(read, observation(known.at + STEP), SIXTEEN_AT_ONCE)

    assert after.observations == known.observations + 1
    assert (after.spend, after.restart_reason) == ("balanced", "")
    assert after.scored_arrivals >= known.scored_arrivals
    assert after.candidates[0].active > 0.0
