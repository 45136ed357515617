"""From recorded counts to seconds, through gaps; and which policy is taken of what replays say."""

from math import log

import numpy as np
import pytest
from msgspec import structs

from benchmarks.autoscaling import ours
from scaling.config.policy import MetricSpec, Pace, PolicySpec, RuleSpec
from scaling.window import WindowSpec
from tidemark.analysis.simulation import load as by_second
from tidemark.analysis.simulation.answer import Recorded, Row, choose, frontier, late_at_maximum, play
from tidemark.analysis.simulation.driving import (
    BACKLOG,
    LATE_BY,
    LATE_INCOMING,
    LATE_OUTGOING,
    OLDEST_ACTIVE_AGE,
    OLDEST_AGE,
)
from tidemark.analysis.simulation.field import OFTENER, TODAY, Entry, Target, field
from tidemark.analysis.simulation.judged import JudgedRun
from tidemark.analysis.simulation.waits import NO_SERIES, waits_of
from tidemark.analysis.simulation.world import Model, Run

NAN = float("nan")


def rng():
    return np.random.default_rng(1)


def target(**changes):
    given = {
        "name": "plan",
        "service_rate": 10.0,
        "concurrency": 16.0,
        "start_up": 90.0,
        "wait": 60.0,
        "late": 0.01,
        "minimum": 1,
        "maximum": 20,
        "interval": 60.0,
        "reads": {"backlog": "backlog"},
    }
    return Target(**{**given, **changes})


def test_the_total_of_each_bin_is_kept_and_messages_come_at_random_within_it():
    bins = np.array([600.0, 0.0, 60.5, 6000.0])
    load = by_second.by_second(bins, 60, rng())

    assert load.parts == ((0, 0),)
    assert load.arrivals.reshape(-1, 60).sum(axis=1) == pytest.approx(bins, rel=1e-5)
    assert load.arrivals[:60].std() > 1.0


def test_counts_by_the_second_stay_as_they_are():
    assert by_second.by_second(np.array([3.0, 0.0, 2.5]), 1, rng()).arrivals.tolist() == [3.0, 0.0, 2.5]


def test_a_gap_is_left_out_and_the_clock_goes_on():
    load = by_second.by_second(np.array([60.0, NAN, NAN, 120.0, 60.0, NAN, 60.0]), 60, rng())

    assert load.parts == ((0, 0), (60, 180), (180, 360))
    assert len(load.arrivals) == 240
    assert load.arrivals.sum() == pytest.approx(300.0, rel=1e-5)


def test_coarse_bins_follow_their_neighbours_also_where_they_are_drawn_in_pieces(monkeypatch):
    bins = np.array([3000.0, 6000.0, 9000.0, 3000.0, 0.0, 600.0])
    whole = by_second.rates(bins, 300)
    pieces = []
    monkeypatch.setattr(by_second, "PIECE", 600)

    class Even:
        def poisson(self, expected):
            pieces.append(expected.ravel())
            return expected

    by_second.by_second(bins, 300, Even())

    assert len(pieces) == 3
    assert np.concatenate(pieces) == pytest.approx(whole)
    assert whole[250] < whole[299]  # on the way to more


class Looks:
    """Holds what there is, and notes when it was asked."""

    interval = 60

    def __init__(self):
        self.at = []

    def see(self, seen):
        self.at.append((seen.t, seen.waiting))
        return seen.total


def test_in_a_gap_nothing_is_evaluated_or_billed_and_the_queue_stays():
    policy = Looks()
    run = Run(np.full(240, 20.0), policy, Model(), 1, ((0, 0), (120, 7200))).replay()

    assert [at for at, _ in policy.at] == [0, 60, 7200, 7260]
    held = Model().concurrency  # the instance began by as many more than it serves
    assert [waiting for _, waiting in policy.at] == pytest.approx([0, 600, 1200, 1800], abs=held)
    assert run.outcome().instance_hours * 3600 == 240
    assert waits_of(run).longest == 240


@pytest.mark.parametrize("minute", [60, 100, 119])
def test_a_batch_at_the_end_of_the_load_is_judged_as_one_before_it(minute):
    """600 messages of 300 s, two at a time: 30 instances serve them in 50 minutes, and two hours are allowed."""
    batch = np.zeros(120)
    batch[minute] = 600.0
    asked = target(
        service_rate=2 / 300,
        concurrency=2.0,
        wait=7200.0,
        maximum=30,
        given={"concurrency": 2, "takes": "300s"},
    )
    recorded = Recorded(1_799_625_600.0, 60, batch.tolist(), 1)
    whole = structs.replace(recorded, bins=[*recorded.bins, *[0.0] * 300])
    entries = [each for each in field(asked) if each.name in {"KEDA 1.5", "service_level 2 h, 1 %"}]

    keda, ours_ = [play(asked, recorded, recorded.load("plan"), entry) for entry in entries]
    later = [play(asked, whole, whole.load("plan"), entry) for entry in entries]
    assert [keda.late, ours_.late] == [row.late for row in later] == [0.0, 0.0]
    assert [keda.longest, ours_.longest] == [row.longest for row in later]
    assert late_at_maximum(asked, recorded.load("plan")) == 0.0
    work = 600 * 150 / 3600
    assert work <= min(keda.instance_hours, ours_.instance_hours)
    assert max(keda.instance_hours, ours_.instance_hours) < work + 6.0


def test_decisions_after_the_load_are_neither_billed_nor_counted():
    class Grows(Looks):
        def see(self, seen):
            self.at.append((seen.t, seen.waiting))
            return seen.total + 1

    policy = Grows()
    run = JudgedRun(np.full(120, 400.0), policy, Model(), 1).replay()

    assert len(policy.at) > 2
    assert run.outcome().instance_hours * 3600 == 2 * 60 + 3 * 60
    assert run.outcome().actions == 2


def test_what_scale_ins_after_the_load_stop_is_not_counted():
    class Leaves(Looks):
        def see(self, seen):
            return seen.total if seen.t < 120 else 1

    slow = Model(service_rate=4 / 300, concurrency=4.0)
    run = JudgedRun(np.full(120, 0.1), Leaves(), slow, 5).replay()

    assert run.begun[-1] == pytest.approx(12.0)
    assert run.outcome().aborted == 0.0


def test_what_is_never_served_waits_for_ever():
    run = Run(np.full(4000, 20.0), Looks(), Model(), 1).replay()

    assert waits_of(run).longest == float("inf")


@pytest.mark.parametrize("interval", [15, 30, 60])
def test_metrics_of_a_queue_are_what_they_are_called(interval):
    """Two instances process eight messages of 4 s at once: enough for the first two minutes, too few for the others."""
    arrivals = np.where(np.arange(720) < 120, 0.5, 3.0)
    kinds = (BACKLOG, OLDEST_AGE, OLDEST_ACTIVE_AGE, LATE_INCOMING, LATE_OUTGOING)
    policy = ours.shipped(
        "target_per_unit", {"metric": "backlog", "target": 1e6}, interval=interval, counts=kinds
    )
    reports = []
    policy.report = lambda seen, found, *_: reports.append((int(seen.t), found)) or seen.total
    run = Run(arrivals, policy, Model(service_rate=1.0, concurrency=4.0), 2).replay()

    for now, samples in reports:
        values = {sample.metric: sample.value for sample in samples}
        waiting = np.flatnonzero(run.arrived[: now + 1] > run.begun[now] + 1e-6)
        active = np.flatnonzero(run.arrived[: now + 1] > run.begun[max(now - 4, 0)] + 1e-6)
        assert values[OLDEST_AGE] == pytest.approx(now - waiting[0] if len(waiting) else 0.0, abs=1.0)
        assert (values[OLDEST_AGE] > 0) == (len(waiting) > 0)
        assert values[OLDEST_ACTIVE_AGE] == pytest.approx(now - active[0] if len(active) else 0.0, abs=1.0)
        minute = int(now - LATE_BY) // 60
        assert (LATE_INCOMING in values) == (minute >= 1)
        if minute >= 1:
            assert {sample.at - ours.MONDAY for sample in samples[-2:]} == {60.0 * minute}
            assert values[LATE_INCOMING] == pytest.approx(arrivals[60 * minute - 60 : 60 * minute].sum())
            completed = run.begun[60 * minute - 4] - run.begun[max(60 * minute - 64, 0)]
            assert values[LATE_OUTGOING] == pytest.approx(completed)


# -- the choice -------------------------------------------------------------------------------------------


def row(policy, hours, late, objective=None):
    spent = late / 0.01
    score = log(3600 * hours) + 0.08 * spent + 0.08 * max(spent - 0.75, 0)
    ours, oftener = policy != TODAY and not policy.startswith("KEDA"), "every" in policy
    return Row(policy, hours, late, 10.0, 5.0, 1.0, 0.0, score, objective, NO_SERIES, ours, oftener)


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (
            [("lax", 100.0, 0.05, 0.1), ("asked", 110.0, 0.009, 0.01), ("strict", 150.0, 0.004, 0.001)],
            "asked",
        ),
        (
            [("lax", 50.0, 0.0, 0.1), ("asked", 110.0, 0.009, 0.01)],
            "asked",
        ),  # nothing laxer than what is asked for
        # Of several that are as good, the one that is asked for.
        ([("lax", 100.0, 0.0001, 0.1), ("asked", 101.0, 0.0, 0.01), ("strict", 100.5, 0.0, 0.001)], "asked"),
        ([("asked", 150.0, 0.0, 0.01), ("strict", 100.0, 0.0, 0.001)], "strict"),
    ],
)
def test_the_best_trade_off_is_where_more_instances_stop_to_help(rows, chosen):
    found = choose(target(), [row(name, hours, late, (60.0, share)) for name, hours, late, share in rows])

    assert (found.best_trade_off, found.taken) == (chosen, chosen)


def test_todays_policy_stays_where_it_is_as_good():
    asked = row("asked", 100.0, 0.001, (60.0, 0.01))

    assert choose(target(), [row(TODAY, 100.5, 0.001), asked]).taken == TODAY
    found = choose(target(), [row(TODAY, 130.0, 0.001), asked])
    assert found.taken == "asked"
    assert "23.1 % fewer instance-hours" in found.why


KEDA, UNITS, UNITS_OFTEN = "KEDA 12", "target_per_unit 12", "target_per_unit 12, every 15 s"


@pytest.mark.parametrize(
    ("others", "taken", "said"),
    [
        ([(UNITS, 300.0, 0.0)], UNITS, "the best trade-off is target_per_unit 12"),
        ([(UNITS, 300.0, 0.02), (UNITS_OFTEN, 400.0, 0.0)], UNITS_OFTEN, "the setting COLLECT_SCHEDULE"),
        ([(KEDA, 300.0, 0.0)], KEDA, "only KEDA 12 keeps the objective, and no rule of Tidemark does"),
        ([(TODAY, 300.0, 0.0)], TODAY, "only today's policy keeps the objective: stay with it"),
        (
            [(TODAY, 300.0, 0.0), (KEDA, 200.0, 0.0)],
            KEDA,
            "no rule of Tidemark but today's policy keeps the objective; of those that do KEDA 12 is the best trade-off, better than today's",
        ),
        (
            [(TODAY, 200.0, 0.0), (KEDA, 300.0, 0.0)],
            TODAY,
            "no rule of Tidemark but today's policy keeps the objective; of those that do today's policy is the best trade-off: stay",
        ),
        (
            [(KEDA, 300.0, 0.0), ("KEDA 5", 400.0, 0.0)],
            KEDA,
            "no rule of Tidemark keeps the objective; of the others that do KEDA 12 is",
        ),
        (
            [(TODAY, 300.0, 0.02), (UNITS, 400.0, 0.0)],
            UNITS,
            "keeps the objective where today's policy does not",
        ),
        ([(TODAY, 90.0, 0.97)], None, "asked is late least: 95 % late of 1 % allowed"),
        ([(KEDA, 300.0, 0.94)], None, "KEDA 12 is late least: 94 % late of 1 % allowed"),
        ([(UNITS_OFTEN, 300.0, 0.5)], None, "every 15 s (the setting COLLECT_SCHEDULE) is late least"),
    ],
)
def test_what_misses_the_objective_is_never_taken(others, taken, said):
    found = choose(target(), [row("asked", 100.0, 0.95, (60.0, 0.01)), *(row(*each) for each in others)])

    assert found.taken == taken
    assert said in found.why
    assert ("none is recommended" in found.why) == (taken is None)


def test_that_looking_more_often_would_help_is_said_where_it_would():
    asked = row("asked", 100.0, 0.005, (60.0, 0.01))

    assert "COLLECT_SCHEDULE" not in choose(target(), [asked, row(OFTENER, 100.0, 0.005)]).why
    late = choose(target(), [asked, row(OFTENER, 50.0, 0.011)])  # cheaper, and late more often
    assert "COLLECT_SCHEDULE" not in late.why
    assert "would be better still" in choose(target(), [asked, row(OFTENER, 90.0, 0.004)]).why


def test_what_looking_more_often_would_bring_is_told_of_what_is_taken():
    asked, often = row("asked", 100.0, 0.001, (60.0, 0.01)), row(OFTENER, 85.0, 0.001)

    found = choose(target(), [row(TODAY, 90.0, 0.001), asked, often])

    assert found.taken == TODAY
    hint = f"{OFTENER} (the setting COLLECT_SCHEDULE) would be better still"
    assert f"stay with it. {hint}: 5.56 % fewer" in found.why
    assert "better still: 15 % fewer" in choose(target(), [row(TODAY, 130.0, 0.001), asked, often]).why


def test_the_frontier_has_those_that_none_beats_in_both():
    rows = [row("a", 1.0, 0.5), row("b", 2.0, 0.6), row("c", 3.0, 0.1), row("d", 3.0, 0.2)]

    assert [each.policy for each in frontier(rows)] == ["a", "c"]


# -- the field --------------------------------------------------------------------------------------------


def todays():
    window = WindowSpec(span=300.0, interval=60.0)
    return PolicySpec(
        target="plan",
        scaler="app_service_plan",
        scaler_options={},
        minimum=1,
        maximum=20,
        metrics={
            "backlog": MetricSpec(collector="service_bus_queue", options={}, count="active", window=window)
        },
        rules=(
            RuleSpec(
                type="threshold",
                name="t",
                options={"metric": "backlog", "scale_out_above": 500, "scale_in_below": 100},
            ),
        ),
        out=Pace(cooldown=300.0),
    )


def test_the_field_is_of_today_the_peers_and_the_curve():
    entries = list(field(target(policy=todays())))
    names = [entry.name for entry in entries]

    assert names[:5] == [TODAY, "Azure Monitor 100/10", "Azure Monitor 14/8", "KEDA 5 (default)", "KEDA 12"]
    assert "service_level 60 s, 1 %" in names
    assert names[-5:] == [
        *("target_per_unit 8", "target_per_unit 12", OFTENER),
        *("target_per_unit 8, every 15 s", "target_per_unit 12, every 15 s"),
    ]
    assert len(set(names)) == len(names)
    curve = [entry for entry in entries if entry.objective is not None]
    assert {entry.spec.out for entry in curve} == {Pace()}  # its cooldown would only delay the rule
    assert entries[0].spec.out == Pace(cooldown=300.0)


def test_a_target_that_is_looked_at_often_needs_no_further_row():
    assert not any("every" in entry.name for entry in field(target(interval=15.0)))


@pytest.mark.parametrize("entry", list(field(target(policy=todays()))), ids=lambda entry: entry.name)
def test_every_policy_answers_the_load_and_keeps_to_the_bounds(entry):
    minutes = 3000.0 + 2400.0 * np.sin(np.arange(240) / 40.0)
    recorded = Recorded(1_799_625_600.0, 60, minutes.tolist(), 5)
    asked = target(policy=todays())
    one, two = (play(asked, recorded, recorded.load("plan"), entry) for _ in range(2))

    assert one == two
    assert 4.0 * 1 < one.instance_hours <= 4.0 * 20
    assert one.instance_hours >= 0.9 * minutes.sum() / 10.0 / 3600.0 or one.late > 0.1


def test_an_entry_is_one_of_ours_or_a_peer():
    assert Entry("k", peer="keda", numbers=(12.0,)).policy(target(), 0.0).target == 12.0
