"""What is learned of the instances while the whole rule scales a queue: right again whatever happens to it."""

from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.autoscaling import ours
from benchmarks.autoscaling.worlds import CLEAR, Sight, run
from scaling.rules.service_level import estimates, instances, learning, memory
from tidemark.analysis.simulation.times import FIXED, LOGNORMAL
from tidemark.analysis.simulation.world import Model, Run

HOUR = 3600
BURSTS = np.tile(np.repeat([60.0, 30.0, 250.0, 40.0], [1200, 600, 300, 1500]), 6)  # six hours


def lived(load, model=None, sight=CLEAR, *, counts=ours.METRICS):
    """The memory after each hour of a load, and what became of its messages."""
    model = model or Model()
    policy = ours.service_level(model=model, counts=counts)
    kept = []

    def known():
        return memory.decode(policy.state.memories["service_level"])

    class Kept:
        interval = policy.interval

        def see(self, seen):
            wanted = policy.see(seen)
            if seen.t % HOUR == 0:
                kept.append(known())
            return wanted

        def miss(self, seen):
            policy.miss(seen)

    outcome = run(load, Kept(), model, 6, sight)
    return kept, known(), outcome


def rate_of(known):
    return instances.service_rate(known.learned, 16.0)


@pytest.fixture(scope="module")
def lived_once():
    return lived(BURSTS)


@pytest.fixture
def truthful(lived_once):
    return lived_once[2]


@pytest.fixture
def known(lived_once):
    """The memory of it, to be changed."""
    return deepcopy(lived_once[1])


@pytest.mark.parametrize("early", [30, 60, 90])
def test_instances_called_ready_before_they_serve_cost_hardly_more(truthful, early):
    _, known, outcome = lived(BURSTS, sight=Sight(early=early))

    assert rate_of(known) == pytest.approx(10.0, rel=0.1)
    assert estimates.start_up_time(known, ours_objective()) == pytest.approx(90.0, abs=20.0)
    assert outcome.instance_hours < 1.1 * truthful.instance_hours


def ours_objective():
    return estimates.Objective(wait=60.0, late=0.01)


def test_a_service_rate_that_halves_and_comes_back_is_followed_both_ways():
    kept, *_ = lived(BURSTS, Model(drift=lambda second: 0.5 if second // (2 * HOUR) == 1 else 1.0))

    rates = [rate_of(known) for known in kept]
    assert rates[1] == pytest.approx(10.0, rel=0.15)
    assert rates[3] == pytest.approx(5.0, rel=0.2)
    assert rates[-1] == pytest.approx(10.0, rel=0.25)


def test_a_service_rate_learned_too_low_comes_back(known):
    known.learned.service_rate, known.learned.concurrency = 3.0, 16.0
    for second, (before, after) in enumerate(pairwise(np.tile([80.0, 82.0, 79.0], 300))):
        steady = instances.Interval(
            seconds=15.0,
            backlog_before=1.6 * before,
            backlog_after=1.6 * after,
            arrived=after,
            completed=after,
            serving=27.0,
            certain=27,
            present=27,
        )
        instances.learn_from_flow(known.learned, steady, known.at + 15.0 * second)

    assert rate_of(known) > 7.0


@pytest.mark.parametrize("concurrency", [1.0, 4.0, 64.0])
def test_what_an_instance_holds_is_learned_whatever_it_is(truthful, concurrency):
    _, known, outcome = lived(BURSTS, Model(concurrency=concurrency))

    assert rate_of(known) == pytest.approx(10.0, rel=0.2)
    assert known.learned.concurrency == pytest.approx(concurrency, rel=0.3)
    assert outcome.late < 1.2 * truthful.late


def test_lost_observations_do_not_look_like_more_load():
    steady = np.full(2 * HOUR, 60.0)
    _, known, _ = lived(steady, sight=Sight(lost=0.2))

    assert known.rates[3] == pytest.approx(60.0, rel=0.02)


def test_messages_that_vanish_are_not_taken_for_a_fast_service(known):
    before = rate_of(known)
    purged = instances.Interval(
        seconds=15.0,
        backlog_before=90_000.0,
        backlog_after=0.0,
        arrived=50.0,
        completed=6050.0,
        serving=6.0,
        certain=6,
        present=6,
    )
    instances.learn_from_flow(known.learned, purged, known.at + 15.0)

    assert rate_of(known) < 1.1 * before


def test_an_instance_that_the_platform_never_calls_ready_counts_after_half_an_hour():
    known = None
    for index in range(150):
        seen = learning.Observation(
            at=1e9 + 15.0 * index,
            interval=15.0,
            backlog=100.0,
            incoming=900.0,
            outgoing=900.0,
            current=4 if index < 5 else 10,
            ready=4,
            most=20,
        )
        known = learning.learn(known, seen, ours_objective())

    assert known.serving == 10
    assert known.learned.start_up_count == 0


def test_a_fast_service_that_is_always_done_is_scaled_in():
    """Nothing is there at any look, so nothing tells how long a message takes."""
    known = None
    for index in range(400):
        seen = learning.Observation(
            at=1e9 + 15.0 * index,
            interval=15.0,
            backlog=0.0,
            incoming=15.0,
            outgoing=15.0,
            current=10,
            ready=10,
            most=20,
        )
        known = learning.learn(known, seen, ours_objective())

    assert known.last_need == 1


@pytest.mark.parametrize("needed", [0.5, 1.25, 2.25, 4.25])
def test_a_constant_load_is_not_followed_to_and_fro(needed):
    *_, outcome = lived(np.full(8 * HOUR, 10.0 * needed))

    assert outcome.late < 0.01
    assert outcome.actions_per_hour < 5


@pytest.mark.parametrize(
    ("service_time", "concurrency", "given"), [(3.0, 16.0, 16.0), (36.0, 16.0, None), (36.0, 64.0, None)]
)
def test_a_queue_there_from_the_beginning_is_not_taken_for_slow_messages(service_time, concurrency, given):
    rate = concurrency / service_time
    day = 2.0 * rate * (1.0 + 0.5 * np.sin(np.arange(8 * HOUR) / (24 * HOUR) * 2.0 * np.pi))
    load = np.random.default_rng(1).poisson(day).astype(float)
    load[:60] += 5.0 * rate
    options = {} if given is None else {"concurrency": given}
    policy = ours.service_level(model=(model := Model(service_rate=rate, concurrency=concurrency)), **options)
    outcome = run(load, policy, model, 2)

    assert outcome.late < 0.1
    assert rate_of(memory.decode(policy.state.memories["service_level"])) == pytest.approx(rate, rel=0.6)


def test_a_burst_that_is_over_at_the_next_look_tells_nothing_of_how_long_messages_take():
    """Hardly anybody sees its messages, so they seem to take no time, and what takes longer to have waited."""
    learned = memory.LearnedInstance(
        service_rate=80.0,
        service_rate_count=50,
        service_rate_at=1e9,
        concurrency=32.0,
        concurrency_count=50,
        service_time=0.4,
    )
    for second in range(100):
        burst = instances.Interval(
            seconds=15.0,
            backlog_before=1.0,
            backlog_after=20.0,
            arrived=81.0,
            completed=80.0,
            serving=1.0,
            certain=1,
            present=1,
        )
        instances.learn_from_flow(learned, burst, 1e9 + 15.0 * second)

    assert learned.service_time == 0.4


def busy_of(known, *intervals):
    """What the rate becomes: (messages before, after, completed per second) on `present` instances."""
    for second, (before, after, completed, present) in enumerate(intervals):
        one = instances.Interval(
            seconds=15.0,
            backlog_before=before,
            backlog_after=after,
            arrived=completed * 1.2,
            completed=completed,
            serving=float(present),
            certain=present,
            present=present,
        )
        instances.learn_from_flow(known.learned, one, known.at + 15.0 * second)
    return rate_of(known)


def test_fewer_messages_than_instances_keep_none_of_them_busy(known):
    known.learned.service_time = 0.01

    assert busy_of(known, *[(8.0, 8.0, 4.0, 10)] * 200) > 0.8 * 10.0


def test_where_more_come_than_are_completed_all_are_busy_whatever_they_are_said_to_hold():
    learned = memory.LearnedInstance(
        service_rate=12.0, service_rate_count=50, service_rate_at=1e9, concurrency=16.0, service_time=5.0
    )
    growing = instances.Interval(
        seconds=15.0,
        backlog_before=400.0,
        backlog_after=600.0,
        arrived=160.0,
        completed=100.0,
        serving=10.0,
        certain=10,
        present=10,
    )
    instances.learn_from_flow(learned, growing, 1e9)

    assert 10.0 < learned.service_rate < 12.0


@pytest.mark.parametrize("times", [FIXED, LOGNORMAL])
def test_late_messages_are_counted_where_arrivals_are_inferred_and_messages_are_slow(times):
    """Of a day with a burst every half hour, about as many as are late: what a new instance completes is inferred before it comes."""
    load = np.full(86_400, 5.0)
    for second in range(1800, 86_400, 1800):
        load[second : second + 120] += 10.0 * (1 + second % 5400 // 1800)
    model = Model(service_rate=0.5, concurrency=16.0, times=times)
    policy = ours.service_level(
        counts=(ours.BACKLOG,), model=model, concurrency=16.0, takes="32s", wait="60s", late="2%"
    )
    late = Run(load, policy, model, 12).replay().outcome().late
    known = memory.decode(policy.state.memories["service_level"])
    assert late > 0.003
    assert 0.6 * late < known.day_late / known.day_begun < 2.0 * late
