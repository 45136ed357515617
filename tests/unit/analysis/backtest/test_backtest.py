"""The parts of the backtest: histories, the queue, scores, grids, recommendations, reading, the command."""

import json
import math
import re
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from scaling.config.policy import Budget, Pace, RuleSpec
from scaling.config.toml import as_toml
from scaling.model import Reason
from scaling.service import registry
from spark_jobs import per_target
from spark_jobs.backtest import tasks
from spark_jobs.cli import run_command
from tests.support.analysis import write_files
from tests.support.scaling.runner import NOW, THRESHOLD, metric, policy
from tidemark.analysis import plots
from tidemark.analysis.backtest import charts, local, work
from tidemark.analysis.backtest.analysis import counts
from tidemark.analysis.backtest.candidates.grid import BASELINE, Candidates, Targets, metric_of, read_grid
from tidemark.analysis.backtest.candidates.recommend import (
    VERDICTS,
    Choice,
    Difference,
    Judged,
    Verdict,
    bootstrap,
    choose,
    judge,
    pareto_front,
    verdict_of,
)
from tidemark.analysis.backtest.candidates.variation import GridError
from tidemark.analysis.backtest.page import _interval
from tidemark.analysis.backtest.reading import from_entries, read_arrivals, read_entries, read_log
from tidemark.analysis.backtest.replay.fleet import Fleet, Model
from tidemark.analysis.backtest.replay.history import (
    History,
    HistoryError,
    Reading,
    estimate_service_rate,
    from_arrivals,
    from_backlog,
)
from tidemark.analysis.backtest.replay.load import Load, Waiting
from tidemark.analysis.backtest.replay.quiet import quiet
from tidemark.analysis.backtest.replay.score import Blocks, Row, Score, scores
from tidemark.analysis.backtest.replay.simulate import simulate
from tidemark.analysis.backtest.work import Settings, prepare
from tidemark.analysis.cost.files import read_exports
from tidemark.analysis.errors import InputError
from tidemark.foundation.settings_reader import ConfigError

# Histories


def test_bins_that_are_not_there_are_unknown_not_zero():
    history = from_arrivals("plan", [(0, 5), (60, 7), (240, 1)])

    assert history.step == 60
    assert history.arrivals[:2] == [5, 7]
    assert [math.isnan(value) for value in history.arrivals] == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([], "the history is empty"),
        ([(0, 1)], "one bin, at 1970-01-01 00:00:00Z"),
        (
            [(0, 1), (0, 2)],
            r"1 bin given twice, the first one that of 1970-01-01 00:00:00Z; one row per bin is accepted$",
        ),
        (
            [*((1800.0 * n, 1) for n in range(4)), (0, 2), (1800, 2)],
            "2 bins given twice.*write them with their zone",
        ),
        ([(0, 1), (60, -2)], "-2 arrivals at 60"),
        ([(0, 1), (60, math.inf)], "inf arrivals"),
        ([(0, 1), (60, 1), (150, 1)], "does not lie on the grid of 60 s"),
    ],
)
def test_a_bad_list_of_arrivals_is_told(counts, told):
    with pytest.raises(HistoryError, match=told):
        from_arrivals("plan", counts)


def seen(backlogs, instances=2):
    return [
        Reading(60.0 * index, backlog=value, instances=instances)
        for index, value in enumerate(backlogs)
        if value is not None
    ]


def test_arrivals_are_what_the_backlog_grew_by_and_what_was_served():
    history = from_backlog("plan", seen([100, 400, 300]), step=60, service_rate=2)

    assert history.arrivals == [300 + 240, -100 + 240]
    assert history.backlog == 100
    assert history.instances == 2


def test_idle_bins_need_an_assumption_and_say_it():
    with pytest.raises(HistoryError, match=r"nothing waited in 2 of 3 bins.*Give idle_utilization"):
        from_backlog("plan", seen([0, 0, 300, 100]), step=60, service_rate=2)

    history = from_backlog("plan", seen([0, 0, 300, 100]), step=60, service_rate=2, idle_utilization=0.25)

    assert history.arrivals == [60, 300 + 60, -200 + 240]
    assert "2 of 3 bins" in history.notes[1]


def test_a_reading_that_is_missing_makes_both_of_its_bins_unknown():
    history = from_backlog("plan", seen([9, None, 9, 9]), step=60, service_rate=1)

    assert [math.isnan(value) for value in history.arrivals] == [True, True, False]


def test_the_recovered_arrivals_replay_to_the_same_backlog():
    rng = np.random.default_rng(1)
    arrivals = [float(value) for value in rng.integers(130, 900, 50)]
    fleet = Fleet(3, 500.0, Model(service_rate=2.0), start=0.0, step=60.0)
    fleet.serve(arrivals)

    history = from_backlog("plan", seen(fleet.backlog, 3), step=60, service_rate=2, idle_utilization=0.0)

    again = Fleet(3, 500.0, Model(service_rate=2.0), start=0.0, step=60.0)
    again.serve(history.arrivals)
    assert again.backlog == pytest.approx(fleet.backlog)


def test_the_service_rate_is_estimated_from_bins_in_which_nobody_was_idle():
    arrivals = [400.0 if index % 40 < 25 else 0.0 for index in range(120)]
    fleet = Fleet(2, 0.0, Model(service_rate=1.5), start=0.0, step=60.0)
    fleet.serve(arrivals)
    history = History("plan", 0.0, 60.0, arrivals)

    found = estimate_service_rate("plan", history, seen(fleet.backlog))

    assert (found.rate, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.bins >= 20
    with pytest.raises(HistoryError, match=r"all instances were busy in 0 bins, 20 are needed"):
        estimate_service_rate("plan", history, seen([0.0] * 121))


# The fleet and the load


def test_added_instances_are_billed_at_once_and_serve_after_scaling_and_start_up():
    fleet = Fleet(1, 1000.0, Model(service_rate=1.0, scaling_time=30.0, start_up=60.0), start=0.0, step=60.0)

    assert fleet.order(0.0, 3) == 30.0
    fleet.serve([0.0] * 3)

    assert fleet.billed == [(0.0, 1), (0.0, 3)]
    assert fleet.backlog == [1000.0, 940.0, 940.0 - 30 - 90, 820.0 - 180]


def test_an_instance_that_starts_before_the_effect_of_a_later_order_serves_at_its_own_time():
    fleet = Fleet(1, 1000.0, Model(service_rate=1.0, scaling_time=0.0, start_up=90.0), start=0.0, step=60.0)
    fleet.order(0.0, 2)
    fleet.arrive(2)
    fleet.model = Model(service_rate=1.0, scaling_time=200.0, start_up=90.0)
    fleet.order(60.0, 1)

    fleet.serve([0.0] * 3)

    assert fleet.backlog == [1000.0, 940.0, 940.0 - 30 - 2 * 30, 850.0 - 2 * 60]


def test_removed_instances_serve_and_are_billed_until_the_effect_and_starting_ones_go_first():
    fleet = Fleet(2, 1000.0, Model(service_rate=1.0, scaling_time=30.0, start_up=600.0), start=0.0, step=60.0)
    fleet.order(0.0, 3)
    fleet.arrive(3)
    fleet.order(60.0, 1)

    fleet.serve([0.0] * 3)

    assert fleet.backlog == [1000.0, 880.0, 880.0 - 60 - 30, 790.0 - 60]
    assert fleet.billed[-1] == (90.0, 1)


def test_steps_fit_bins_and_ticks_and_a_tick_after_a_gap_is_not_reported():
    load = Load(History("plan", NOW, 90.0, [90.0, math.nan, 90.0, 90.0]), 60.0)

    assert load.step == 30.0
    assert load.ticks == 6
    assert load.reported == [1, 2, 0, 0, 1, 2, 3]


def test_a_history_shorter_than_an_interval_is_refused():
    with pytest.raises(HistoryError, match="at least one collection interval of 300 s"):
        Load(History("plan", NOW, 60.0, [1.0, 1.0]), 300.0)


# Replays


def test_a_gap_makes_windows_incomplete_so_that_nothing_is_scaled_in_until_they_are_whole():
    """Idle at 3 instances: the first scale-in comes after five minutes, and again five minutes after the gap."""
    history = History("plan", NOW, 60.0, [0.0] * 3 + [math.nan] * 4 + [0.0] * 12)
    run = simulate(
        Load(history, 60.0), policy(), Model(service_rate=1.0), metric="backlog", initial=3, keep=True
    )

    held = [d for d in run.decisions if d.reason is Reason.INCOMPLETE_WINDOW]

    assert run.changes[0].decided_at == NOW + (3 + 4 + 1 + 4) * 60
    assert len(held) == 4 + 4
    assert run.ticks == 4 + 12


def test_a_metric_that_the_history_lacks_is_named():
    made = policy(metrics={"backlog": metric(), "load": metric()})

    with pytest.raises(
        HistoryError, match=r"reads the metric 'load', which the history does not have \(backlog\)"
    ):
        simulate(Load(HISTORY, 60.0), made, Model(service_rate=1.0), metric="backlog", initial=1)


def test_another_recorded_metric_guards_and_where_it_is_unknown_it_is_a_failed_read():
    guarded = policy(
        metrics={"backlog": metric(), "load": metric(min_samples=1)},
        rules=(
            THRESHOLD,
            msg_rule("guard", metric="load", block_out_above=0.5),
        ),
    )
    loads = [0.9] * 20 + [0.1] * 20
    history = History("plan", NOW, 60.0, [900.0] * 40, metrics={"load": loads})

    run = simulate(Load(history, 60.0), guarded, Model(service_rate=1.0), metric="backlog", initial=1)

    assert quiet(guarded, "backlog") is None
    assert quiet(policy(budget=Budget(amount=48.0)), "backlog") is None
    assert run.changes[0].decided_at > NOW + 20 * 60


def msg_rule(kind, **options):
    return RuleSpec(type=kind, name=kind, options=options)


def test_an_action_that_would_expire_before_its_effect_is_refused():
    with pytest.raises(HistoryError, match="action_ttl gives an action up after 600 s"):
        simulate(
            Load(HISTORY, 60.0),
            policy(),
            Model(service_rate=1.0, scaling_time=600.0),
            metric="backlog",
            initial=1,
        )


HISTORY = History("plan", NOW, 60.0, [30.0] * 60)


def test_what_was_proposed_before_an_effect_was_the_capacity_of_then():
    """Quiet ticks while an action is under way propose the old capacity; so scaling in waits for no more than the
    scale-out's own proposal to leave the window.
    """
    made = policy(metrics={"backlog": metric(span=60.0, min_samples=1)}, inward=Pace(stabilization=300.0))
    load = Load(History("plan", NOW, 60.0, [2100.0, 600.0, 1200.0, 1200.0] + [0.0] * 10), 60.0)
    given_model = Model(service_rate=10.0, scaling_time=200.0, start_up=0.0)

    run = simulate(load, made, given_model, metric="backlog", initial=2)

    assert run.backlog[1:5] == [900.0, 300.0, 300.0, 300.0]
    assert [(c.decided_at - NOW, c.to_capacity) for c in run.changes[:2]] == [(60, 3), (360, 2)]


def test_long_quiet_stretches_are_not_decided():
    run = simulate(
        Load(History("plan", NOW, 60.0, [30.0] * 5000), 60.0),
        policy(out=Pace(cooldown=600.0), inward=Pace(cooldown=600.0)),
        Model(service_rate=1.0),
        metric="backlog",
        initial=1,
    )

    assert run.ticks == 5001
    assert run.decided < 10


# Scores


def test_a_burst_that_takes_three_minutes_to_drain_makes_two_thirds_of_it_late():
    """180 messages in the first second, 1 per second served, an objective of 60 s: the first 60 are in time."""
    history = History("plan", NOW, 1.0, [180.0] + [0.0] * 299)
    made = policy(
        metrics={"backlog": metric(span=5.0, interval=1.0)},
        rules=(msg_rule("threshold", metric="backlog", scale_out_above=1e9),),
        maximum=1,
    )
    given_model = Model(service_rate=1.0, slo=60.0, price=0.1)
    load = Load(history, 1.0)
    waiting = Waiting(load, given_model.slo)
    run = simulate(load, made, given_model, metric="backlog", initial=1)

    (found,) = scores(load, waiting, run, given_model, (NOW, NOW + 300))

    assert found.messages == 180
    assert found.late == pytest.approx(120, abs=1.5)
    assert found.missed == pytest.approx(120, abs=1.5)
    assert found.oldest == pytest.approx(179, abs=1.5)
    assert found.instance_hours == pytest.approx(300 / 3600)
    assert found.cost == pytest.approx(0.1 * 300 / 3600)
    assert found.actions == found.flaps == 0


def test_an_instance_is_paid_in_the_part_in_which_it_ran():
    """One instance for the first 600 s, two from then on, in three parts of which the second holds the change."""
    load = Load(History("plan", NOW, 60.0, [30.0] * 20), 60.0)
    run = simulate(load, policy(maximum=1), SLOW, metric="backlog", initial=1)
    grown = msgspec.structs.replace(run, billed=[(NOW, 1), (NOW + 600, 2)])
    edges = (NOW, NOW + 300, NOW + 900, NOW + 1200)

    found = scores(load, Waiting(load, SLOW.slo), grown, SLOW, edges)

    assert [score.instance_hours * 3600 for score in found] == pytest.approx([300, 300 + 2 * 300, 2 * 300])


def test_gaps_count_for_nothing():
    bins = [30.0] * 10
    whole = History("plan", NOW, 60.0, bins)
    gappy = History("plan", NOW, 60.0, [*bins[:5], math.nan, math.nan, *bins[5:]])

    assert score_of(whole) == score_of(gappy)


SLOW = Model(service_rate=0.4, slo=60.0)


def score_of(history):
    load = Load(history, 60.0)
    run = simulate(load, policy(maximum=1), SLOW, metric="backlog", initial=1)
    return scores(load, Waiting(load, SLOW.slo), run, SLOW, (history.start, history.end))[0]


# Recommendations


def a_score(late, cost, out=0, messages=1000.0):
    return Score(messages, late, 0.0, 0.0, cost, cost, out, 0, 0, 24.0)


def rows(**by_name):
    return [
        Row("plan", name, part, score)
        for name, (training, held_out) in by_name.items()
        for part, score in (("training", training), ("held_out", held_out))
    ]


def test_the_cheapest_within_the_budget_is_recommended_by_the_training_part_alone():
    found = choose(
        rows(
            baseline=(a_score(5, 10), a_score(5, 10)),
            cheap_and_late=(a_score(50, 2), a_score(0, 1)),
            cheaper=(a_score(9, 7), a_score(900, 99)),
            calmer=(a_score(9, 8), a_score(0, 1)),
        ),
        late_budget=0.01,
    )["plan"]

    assert found.ranking == ("cheaper", "calmer", "baseline", "cheap_and_late")


def test_where_none_keeps_the_budget_the_least_late_is_recommended():
    found = choose(
        rows(baseline=(a_score(300, 1), a_score(0, 1)), slow=(a_score(200, 9), a_score(0, 9))),
        late_budget=0.01,
    )

    assert found["plan"].recommended == "slow"


def test_of_equals_the_running_policy_stays():
    same = (a_score(0, 5), a_score(0, 5))

    assert choose(rows(aaa=same, baseline=same), late_budget=0.01)["plan"].recommended == BASELINE


def test_the_front_has_whom_nobody_beats_in_all_three():
    front = pareto_front(
        {
            "a": a_score(1, 9, 3),
            "b": a_score(9, 1, 3),
            "c": a_score(9, 9, 1),
            "d": a_score(9, 9, 3),
            "e": a_score(1, 9, 3),
        }
    )

    assert front == {"a", "b", "c", "e"}


def test_a_difference_that_is_chance_is_no_difference():
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 10, 48)
    noise = list(noise - noise.mean())
    theirs = Blocks([50.0] * 48, [1.0] * 48)

    chance = judge("x", Blocks([50 + n for n in noise], [1.0] * 48), theirs, np.random.default_rng(0))
    better = judge("x", Blocks([20 + n for n in noise], [1.0] * 48), theirs, np.random.default_rng(0))
    mixed = judge("x", Blocks([20 + n for n in noise], [2.0] * 48), theirs, np.random.default_rng(0))

    assert chance.verdict is Verdict.NO_DIFFERENCE
    assert better.verdict is Verdict.BETTER
    assert better.late.low < better.late.mean < better.late.high < 0
    assert mixed.verdict is Verdict.TRADE_OFF
    short = Blocks([1.0] * 7, [1.0] * 7)
    assert judge("x", short, short, np.random.default_rng(0)).verdict is Verdict.TOO_SHORT
    assert judge(BASELINE, theirs, theirs, np.random.default_rng(0)).verdict is Verdict.SAME
    assert verdict_of(1, 0) is verdict_of(1, 1) is Verdict.WORSE


def test_an_interval_is_in_numbers_that_people_read():
    """It said `+5154 late messages (+154.5 to +1.419e+04)`."""
    found = Difference(5154.2, 154.5, 14_190.0)

    assert _interval(found, "late messages") == "+5,154 late messages (+154.5 to +14,190)"
    assert _interval(Difference(-0.0889, -0.1367, 0.0), "cost") == "-0.0889 cost (-0.1367 to +0)"


def test_costs_that_are_all_alike_have_labels_that_do_not_touch():
    score = Score(
        cost=2.88,
        hours=14.4,
        **{name: 0 for name in Score.__struct_fields__ if name not in {"cost", "hours"}},
    )
    scores = {BASELINE: score, "a": score}
    choice = Choice("orders", ("a", BASELINE), frozenset({"a"}), scores, scores, 2)

    figure = charts.pareto(choice, budget=0.01)
    plots.show_few_points(figure)
    figure.draw_without_rendering()

    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(boxes) >= 3
        assert all(before.x1 + 8 < after.x0 for before, after in pairwise(boxes))
    plots.drawn(figure)


@pytest.mark.parametrize("signs", [(0, -1), (-1, 0), (0, 1), (1, 0)])
def test_of_a_difference_that_may_be_chance_no_verdict_says_which_way_it_went(signs):
    """Beside `better` stood 0.12 % of late messages where the running policy had none, and `neither got worse`."""
    text = VERDICTS[verdict_of(*signs)]

    assert re.search("neither is proven (worse|better)", text)


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says():
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(120):
        found = bootstrap(rng.normal(3.0, 5.0, 40), rng, run=1)
        held += found.low <= 3.0 <= found.high

    assert 0.86 <= held / 120 <= 1.0


# Grids

CONFIG = """
version = 1
[defaults]
scaler = "app_service_plan"
resource_id = "%PLAN_ID%"
[targets.plan]
maximum = 10
[targets.plan.metrics.backlog]
collector = "service_bus_queue"
connection = "Bus"
queue = "orders"
window = "5m"
[[targets.plan.rules]]
type = "threshold"
name = "queue"
metric = "backlog"
scale_out_above = 500
scale_in_below = 100
[targets.plan.out]
cooldown = "3m"
"""
MODEL = "[model]\nservice_rate = 2\n"


def targets(text=CONFIG):
    return Targets(text, name="tidemark.toml", settings={}, plug_ins=registry)


def candidates(grid):
    return targets().candidates("plan", read_grid(MODEL + grid, name="grid.toml"))


def test_every_combination_becomes_a_policy_of_the_products_own_reader():
    found = candidates(
        '[vary]\nrules.queue.scale_out_above = [300, "90 * instances"]\nout.cooldown = ["1m", "5m"]\n'
    )

    assert [c.name for c in found] == [
        "baseline",
        "scale_out_above=300 cooldown=1m",
        "scale_out_above=300 cooldown=5m",
        'scale_out_above="90 * instances" cooldown=1m',
        'scale_out_above="90 * instances" cooldown=5m',
    ]
    assert found[0].spec.out.cooldown == 180
    assert [c.spec.out.cooldown for c in found[1:]] == [60, 300, 60, 300]
    assert found[3].spec.rules[0].options["scale_out_above"] == "90 * instances"
    assert found[3].spec.rules[0].options["scale_in_below"] == 100
    assert found[1].changes == {"rules.queue.scale_out_above": 300, "out.cooldown": "1m"}


def test_a_target_that_follows_another_one_has_candidates_too():
    text = (
        CONFIG
        + """
[targets.follower]
resource_id = "%OTHER_ID%"
maximum = 10
[targets.follower.metrics.backlog]
collector = "service_bus_queue"
connection = "Bus"
queue = "orders"
[targets.follower.metrics.others]
collector = "target_capacity"
target = "plan"
[[targets.follower.rules]]
type = "threshold"
metric = "others"
scale_out_above = 5
scale_in_below = 2
"""
    )
    plan = read_grid(MODEL + "[vary]\nminimum = [2, 3]\n", name="grid.toml")

    found = targets(text).candidates("follower", plan)

    assert [each.name for each in found] == ["baseline", "minimum=2", "minimum=3"]


def test_what_is_sent_to_workers_has_the_settings_that_decide_and_no_others():
    text = CONFIG.replace("above = 500", 'above = "%LIMIT%"')
    settings = {"LIMIT": "70 * instances", "COLLECT_SCHEDULE": "*/30 * * * * *", "BUS_KEY": "a secret"}
    plan = read_grid(MODEL + "[vary]\nminimum = [2, 3]\n", name="grid.toml")
    found = Targets(text, name="tidemark.toml", settings=settings, plug_ins=registry)
    found.baseline("plan")

    sent = cloudpickle.dumps((found, plan))
    there = Candidates(*cloudpickle.loads(sent))

    assert b"secret" not in sent
    assert there.some("plan") == found.candidates("plan", plan)
    assert there.some("plan", 1, 2) == found.candidates("plan", plan)[1:2]
    assert there.named("plan", "minimum=3").spec.minimum == 3
    limits = [each.spec.rules[0].options["scale_out_above"] for each in there.some("plan")]
    assert limits == ["70 * instances"] * 3
    assert there.some("plan")[0].spec.metrics["backlog"].window.interval == 30


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ("[vary]\nrules.queue.scale_out_above = [1, 'x +']\n", "candidate 'scale_out_above=\"x \\+\"'"),
        ("[candidates.odd]\nremove = ['metrics']\nrules = []\nmetrics.a = {}\n", "candidate 'odd'"),
        ("[vary]\nmaximum = [3]\n", None),
    ],
)
def test_a_task_tells_of_candidates_that_cannot_be(grid, told):
    plan = read_grid(MODEL + grid, name="grid.toml")
    settings = work.Settings(plan.rules, plan.model)
    task = tasks.Task(settings=settings, metric="backlog", interval=60.0, base="plan")
    readings = [{"at": 60.0 * n, "arrivals": 5.0, "instances": 1, "metrics": None} for n in range(9)]
    row = {"target": "plan", "work": msgspec.msgpack.encode(task), "block": 0, "readings": readings}
    check = partial(tasks.checked, source=(targets(), plan))

    [found] = per_target._outcomes([pa.RecordBatch.from_pylist([row])], work=check, kind=tasks.Task)

    [outcome] = found.to_pylist()
    assert bool(re.search(told, outcome["problem"])) if told else outcome["problem"] is None


def test_defaults_reach_into_the_tables_of_a_target_as_in_the_product():
    text = CONFIG.replace("[targets.plan]", "[defaults.out]\nstep = 7\n[targets.plan]")
    found = targets(text).candidates(
        "plan", read_grid(MODEL + '[vary]\nout.cooldown = ["1m"]\n', name="grid.toml")
    )

    assert (found[0].spec.out.cooldown, found[0].spec.out.step) == (180, 7)


def test_a_named_candidate_replaces_tables_and_may_vary_its_own():
    found = candidates(
        '[candidates.hpa]\nbehavior = "hpa"\nremove = ["out"]\n'
        'rules = [{ type = "target_per_unit", metric = "backlog", target = 9 }]\n'
        'vary = { rules.target_per_unit.target = [5, 50], COLLECT_SCHEDULE = ["*/15 * * * * *"] }\n'
    )

    assert [c.name for c in found] == [
        "baseline",
        'hpa: target=5 COLLECT_SCHEDULE="*/15 * * * * *"',
        'hpa: target=50 COLLECT_SCHEDULE="*/15 * * * * *"',
    ]
    assert found[1].spec.inward.stabilization == 300
    assert found[1].spec.metrics["backlog"].window.interval == 15
    assert found[0].spec.metrics["backlog"].window.interval == 60
    assert found[2].spec.rules[0].options["target"] == 50


def test_problems_of_candidates_are_told_in_the_words_of_the_configuration():
    with pytest.raises(ConfigError) as told:
        candidates(
            '[vary]\nrules.queue.step_oat = [1]\nrules.queue.scale_out_above = [1, "x +"]\nmaximum = [0, 5]\n'
        )

    text = str(told.value)
    assert "did you mean 'step_out'?" in text
    assert "targets.plan.maximum: found 0; accepted are whole numbers of 1 or more" in text
    assert "candidate 'step_oat=1 scale_out_above=1 maximum=0'" in text


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ("", "nothing to try"),
        ("[vary]\nout.cooldown = 5\n", r"out.cooldown: found 5; a list of values to try"),
        ("[candidates.baseline]\nmaximum = 3\n", "not called 'baseline'"),
        ("[vary]\nmaximum = [1]\n[grids]\n", "grids: is not a setting here"),
        (
            f"[vary]\nmaximum = {list(range(200))}\nminimum = {list(range(200))}\n",
            "40,000 combinations; at most 10,000",
        ),
    ],
)
def test_bad_grids_are_told(grid, told):
    with pytest.raises(ConfigError, match=told):
        read_grid(MODEL + grid, name="grid.toml")


def test_a_model_without_a_service_rate_and_impossible_shares_are_told_at_once():
    with pytest.raises(ConfigError) as told:
        read_grid("holdout = 1\nlate_budget = 2\n[model]\nslo = 0\n[vary]\nmaximum = [3]\n", name="g.toml")

    text = str(told.value)
    assert "g.toml:1 holdout: found 1; accepted are shares above 0 and below 1" in text
    assert "late_budget" in text
    assert "model.service_rate: is missing" in text
    assert "model.slo" in text


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ("[vary]\nrules.other.step = [2]\n", "0 rules are called 'other'; the target has queue"),
        ('[vary]\n"rules[3].step" = [2]\n', r"there is no rules\[3\]; the target has 1"),
        ("[vary]\nmaximum.step = [2]\n", "maximum is 10, no table"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(grid, told):
    with pytest.raises(ConfigError, match=told):
        candidates(grid)


def test_the_queue_among_several_metrics_has_to_be_named():
    two = policy(
        metrics={"a": metric(), "b": metric()}, rules=(msg_rule("threshold", metric="a", scale_out_above=1),)
    )

    assert metric_of(two.spec, "b") == "b"
    assert metric_of(policy().spec, None) == "backlog"
    with pytest.raises(GridError, match="no single metric; set `metric` to the one that counts"):
        metric_of(two.spec, None)


def test_changes_are_written_as_toml():
    assert as_toml({"a b": [1, 2.5, "x"], "c": True}) == '{ "a b" = [1, 2.5, "x"], c = true }'


# Reading


LAYOUT = {
    "one.csv": "t,arrivals,backlog\n0,5,100\n60,,\n",
    "two.csv": "t,backlog,arrivals\n0,300,7\n",
    "three.CSV": "t,instances,arrivals,target\n0,3.0,9,north\n60,4,8,south\n",
    "four.csv.gz": "backlog,timestamp,arrivals\n,1970-01-01T00:00:00Z,4\n",
    "five.parquet": "arrivals,t\n6,0\n",
    "six/part-0.parquet": "target,t,arrivals\neast,0,3\n",
    "target=we%20st/part-0.parquet": "t,arrivals\n0,2\n",
    "seven.csv": "at,arrivals,target\n2026-11-21T00:00:00Z,5,south\n",
    "marked.csv": "\ufefft,arrivals\n\ufeff0,1\n",
    "readme.txt": "t,arrivals\n0,99\n",
    "_temporary.csv": "t,arrivals\n0,99\n",
    "_temporary/0/part.csv": "t,arrivals\n0,99\n",
}


def test_each_file_of_arrivals_is_read_by_its_own_header(tmp_path):
    found = read_arrivals(write_files(tmp_path / "arrivals", LAYOUT))

    assert found == {
        "one": [Reading(0.0, 5.0, 100.0)],
        "two": [Reading(0.0, 7.0, 300.0)],
        "north": [Reading(0.0, 9.0, None, 3)],
        "south": [Reading(1_795_219_200, 5), Reading(60.0, 8.0, None, 4)],
        "four": [Reading(0.0, 4.0)],
        "five": [Reading(0.0, 6.0)],
        "east": [Reading(0.0, 3.0)],
        "we st": [Reading(0.0, 2.0)],
        "marked": [Reading(0.0, 1.0)],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("t,arrivals,arrivals\n0,1,2\n", "the column arrivals twice"),
        ("t,arrivals,backlog\n0,1\n", "fewer cells than the file has columns: 2 for 3"),
        ("t,arrivals,target\n0,1,\n", "column target: found ''; accepted is a name"),
        ("t,arrivals,instances\n0,1,2.5\n", "column instances: found '2.5'; accepted is a whole number"),
        ("t,arrivals\nnan,1\n", "column t: found 'nan'"),
        ("t,arrivals\n1788220800000,1\n", "column t: found '1788220800000'; accepted is a time: seconds"),
        ('t,arrivals\n0,"1\n', "cannot be read: unexpected end of data"),
        ("when,many\n1,2\n", "a.csv has no column arrivals: found when, many; accepted are t or at"),
        ("when,arrivals\n1,2\n", "a.csv has no column t or at or time or timestamp: found when, arrivals"),
        ("t;arrivals\n1;2\n", "found t;arrivals; accepted are .*, with commas between them"),
        ("", "a.csv is empty; accepted is a first line with the names t and arrivals"),
        ("t,arrivals\n", "no arrivals"),
        ("t,arrivals\n0,5\nsoon,5\n", r"a\.csv, line 3, column t: found 'soon'; accepted is a time"),
        ("t,arrivals\n0,x\n", "line 2, column arrivals: found 'x'; accepted is a number of 0 or more"),
        ("t,arrivals\n0,-5\n", "column arrivals: found '-5'"),
        ("t,arrivals\n0,inf\n", "column arrivals: found 'inf'"),
        ("t,arrivals,instances\n0,5,two\n", "column instances: found 'two'; accepted is a whole number"),
    ],
)
def test_a_file_of_arrivals_that_may_mean_something_else_is_refused(tmp_path, text, told):
    (tmp_path / "a.csv").write_text(text)

    with pytest.raises(InputError, match=told):
        read_arrivals(tmp_path)
    (tmp_path / "a.csv").rename(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet cannot be read"):
        read_arrivals(tmp_path)


def test_a_file_that_spark_would_not_take_is_refused_by_its_ending(tmp_path):
    files = write_files(tmp_path, {"arrivals.txt": "t,arrivals\n0,1\n", "log.ndjson": ""})

    for read in (read_arrivals, read_entries, lambda path: read_exports(path, (), None)):
        with pytest.raises(InputError, match=r"arrivals\.txt does not end in \.\w+ or .*; rename it"):
            read(files / "arrivals.txt")
    assert read_entries(files) == read_entries(files / "log.ndjson") == []


def test_the_files_of_a_delta_table_are_no_arrivals(tmp_path):
    write_files(tmp_path, {"a.csv": "t,arrivals\n0,1\n", "_delta_log/0.json": "{}"})

    with pytest.raises(InputError, match="is a Delta table"):
        read_arrivals(tmp_path)


def test_a_decision_that_could_not_read_its_metric_says_nothing_of_that_time(tmp_path):
    entries = [
        {"target": "p", "at": 60.0 * i, "kind": kind, "key": "decision", "line": "", "reason": reason,
         "current": 2, "metrics": {"backlog": 5.0, "age": 1.0}}
        for i, (kind, reason) in enumerate(
            [("decision", "scale_out"), ("decision", "collect_failed"), ("effect", "applied"), ("decision", "cooling_down")]
        )
    ]  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps(entries))

    found = read_log(tmp_path / "log.json", None)

    assert [r.at for r in found["p"]] == [0.0, 180.0]
    assert found["p"][0] == Reading(0.0, backlog=5.0, instances=2, metrics={"age": 1.0})
    assert from_entries([], None) == {}
    entries[0]["metrics"] = {"backlog": 5.0, "age": None}  # as NaN is written
    (tmp_path / "log.json").write_text(json.dumps(entries))
    assert read_log(tmp_path / "log.json", None)["p"][0] == Reading(0.0, backlog=5.0, instances=2)
    (tmp_path / "log.json").write_text("[{}]")
    with pytest.raises(InputError, match="is not a scaling log"):
        read_log(tmp_path / "log.json", None)


# The command


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tidemark.toml").write_text(CONFIG)
    (tmp_path / "grid.toml").write_text(
        'base = "plan"\n'
        + MODEL
        + 'slo = "2m"\n[vary]\nrules.queue.scale_out_above = [200, 900]\nout.cooldown = ["1m", "9m"]\n'
    )
    (tmp_path / "arrivals").mkdir()
    for name, scale in (("north", 1.0), ("south", 0.5)):
        lines = [f"{NOW + 60 * m:.0f},{(700 if m // 90 % 2 else 50) * scale + m % 9}" for m in range(1800)]
        (tmp_path / "arrivals" / f"{name}.csv").write_text("\n".join(["t,arrivals", *lines]))
    return tmp_path


def ours(folder, **changes):
    plan, found = local.read_settings(folder / "grid.toml", folder / "tidemark.toml", {})
    return local.backtest(read_arrivals(folder / "arrivals"), plan, found, **({"processes": 1} | changes))


def test_the_replay_begins_with_the_instances_that_ran(folder):
    (folder / "arrivals" / "north.csv").write_text("t,arrivals,instances\n0,5,7\n60,9,3\n120,,2\n180,4,\n")
    plan, _ = local.read_settings(folder / "grid.toml", folder / "tidemark.toml", {})
    readings = read_arrivals(folder / "arrivals")
    model = Settings(plan.rules, plan.model)

    recorded = prepare("north", readings["north"], model, metric="queue", interval=60.0)
    unrecorded = prepare("south", readings["south"], model, metric="queue", interval=60.0)

    assert (recorded.history.instances, unrecorded.history.instances) == (7, None)


def test_the_number_of_processes_changes_nothing(folder):
    alone, rows_alone = ours(folder)
    together, rows_together = ours(folder, processes=2)

    assert rows_alone == rows_together
    assert alone.judged == together.judged
    assert alone.comparisons == together.comparisons


def test_the_two_parts_are_all_of_the_history(folder):
    _, rows = ours(folder)

    baseline = [row.score.hours for row in rows if row.target == "north" and row.candidate == BASELINE]

    assert sum(baseline) == pytest.approx(1800 / 60)


def test_the_check_counts_bins_without_arrivals_and_what_the_held_out_part_says(folder):
    path = folder / "arrivals" / "north.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:300], f"{lines[300].partition(',')[0]},", *lines[303:]]))
    found, _ = ours(folder)
    verdicts = dict(zip(found.judged, (Verdict.BETTER, Verdict.TOO_SHORT), strict=True))
    told = {name: Judged(verdict) for name, verdict in verdicts.items()}

    counted = counts(msgspec.structs.replace(found, judged=told))

    assert counted == {
        "targets": 2, "decisions": found.evaluations, "bins": 3600, "unknown": 3, "better": 1, "undecided": 1,
    }  # fmt: skip


def invoke(*arguments):
    """The exit status of `tidemark backtest`."""
    with pytest.raises(SystemExit) as ended:
        run_command(local.command, list(map(str, arguments)))
    return ended.value.code


def test_the_command_writes_scores_recommendations_and_a_report_with_pictures_and_then_fails_its_check(
    folder, capsys
):
    out = folder / "out"
    with (folder / "arrivals" / "north.csv").open("a") as file:
        file.write(f"\n{NOW + 60 * 1801:.0f},5")  # after a minute that nobody knows

    status = invoke(
        folder / "grid.toml", "--arrivals", folder / "arrivals", "--config", folder / "tidemark.toml", "--output", out,
        "--processes", 1, "--allow", "unknown=0", "--allow", "better=2",
    )  # fmt: skip

    assert status == 3
    assert "check failed: unknown 1, allowed 0; report: " in capsys.readouterr().err
    page = (out / "backtest.html").read_text()
    assert {p.name for p in out.iterdir()} >= {
        "scores.parquet",
        "recommendations.parquet",
        "pareto-0.png",
        "over-time-0.png",
    }
    assert "rules.queue.scale_out_above" in page
    assert "held-out part" in page
    assert "One setting for all targets" in page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no history: give --arrivals, --log or both"),
        (["--arrivals", "nowhere"], "nowhere does not exist; a file or a folder is accepted"),
        (
            ["--config", "nowhere.toml"],
            "nowhere.toml cannot be read: No such file or directory",
        ),
    ],
)
def test_what_is_missing_is_one_line_and_status_1(folder, arguments, told, capsys):
    status = invoke(folder / "grid.toml", "--config", folder / "tidemark.toml", *arguments)

    assert status == 1
    assert capsys.readouterr().err == f"error: {told}\n"


def test_targets_without_a_policy_are_named(folder):
    text = (folder / "grid.toml").read_text().replace('base = "plan"\n', "")
    (folder / "grid.toml").write_text(text)

    with pytest.raises(InputError, match=r"north, south: not in the configuration, which has plan.*set base"):
        ours(folder)
