"""The model behind benchmarks/autoscaling: that its figures are what they are called."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import ceil

import numpy as np
import pytest

from benchmarks.autoscaling import bound, cells, field, grid, ours, peers, picture, report, traces
from benchmarks.autoscaling.worlds import Sight, run
from tidemark.analysis.simulation import times
from tidemark.analysis.simulation.peers import AzureMonitor, Keda
from tidemark.analysis.simulation.world import Fleet, Model, Run, Seen

QUICK = Model(service_rate=2.0, concurrency=4.0, start_up=10, wait=5, maximum=20)


class Scripted:
    """Asks for what is written, by the second of the observation."""

    def __init__(self, script, interval=5):
        self.interval, self.script, self.seen = interval, script, []

    def see(self, seen):
        self.seen.append(seen)
        return self.script.get(int(seen.t), seen.total)

    def miss(self, seen):
        self.seen.append(seen.t)


def one_by_one(arrivals, totals, model):
    """The same by whole messages, first in, first out; classes evenly spread. The shares of late and of aborted ones."""
    events = dict(totals)
    serving, starting, queue, busy = events.pop(0), [], [], []
    late, aborted, began = 0, 0.0, [0] * len(model.times)
    for second in range(1, len(arrivals) + 500):
        if (wanted := events.get(second - 1)) is not None:
            starting += [second - 1 + model.start_up] * (wanted - serving - len(starting))
            excess = max(serving + len(starting) - wanted, 0)
            starting, excess = starting[: max(len(starting) - excess, 0)], max(excess - len(starting), 0)
            aborted += sum(end > second - 1 for end in busy) * excess / serving
            serving -= excess
        serving += sum(at < second for at in starting)
        starting = [at for at in starting if at >= second]
        queue += [second] * int(arrivals[second - 1] if second <= len(arrivals) else 0)
        busy = [end for end in busy if end > second]
        while queue and len(busy) < model.concurrency * serving:
            due = [share * (sum(began) + 1) - had for (share, _), had in zip(model.times, began, strict=True)]
            kind = due.index(max(due))
            began[kind] += 1
            busy.append(second + model.times[kind][1] * model.concurrency / model.service_rate)
            late += second - queue.pop(0) > model.wait
    return late / sum(began), aborted / sum(began)


MIXED = ((0.75, 0.5), (0.25, 2.5))


@pytest.mark.parametrize(
    ("model", "scale", "off"),
    [
        (QUICK, 1, 1e-9),
        (replace(QUICK, service_rate=1.0, concurrency=20.0), 1, 1e-9),
        (replace(QUICK, service_rate=0.75, concurrency=10.0), 1, 0.02),
        (replace(QUICK, service_rate=2.0, concurrency=40.0, times=MIXED), 2, 0.03),
        (replace(QUICK, service_rate=2.0, concurrency=80.0, times=times.LOGNORMAL), 2, 0.03),
        (replace(QUICK, service_rate=2.0, concurrency=80.0, times=times.EXPONENTIAL), 2, 0.03),
    ],
)
def test_late_messages_are_those_that_begin_too_late(model, scale, off):
    arrivals = np.zeros(300)
    arrivals[:60], arrivals[100:160], arrivals[150:155] = 2.0 * scale, 6.0 * scale, 30.0 * scale
    script = {30: 4, 80: 2, 150: 8, 165: 5, 250: 1}
    found = run(arrivals, Scripted(script), model, first=1)

    late, aborted = one_by_one(arrivals, [(0, 1), *script.items()], model)
    assert 0.1 < found.late < 0.95
    assert found.late == pytest.approx(late, abs=off)
    assert found.aborted == pytest.approx(aborted, abs=off)


@pytest.mark.parametrize(("service_rate", "ahead"), [(40.0, 0.0), (2.5, 12.0), (1e18, 0.0)])
def test_instances_take_up_what_they_hold_and_then_serve_their_rate(service_rate, ahead):
    lived = Run(np.full(60, 1000.0), Scripted({}), replace(QUICK, service_rate=service_rate), 3).replay()

    served = np.minimum(3 * service_rate, 1000.0) * np.arange(1.0, 61.0)  # no more than arrive
    beyond = lived.begun[1:61] - served
    assert (
        -1e-9 <= beyond.min() <= beyond.max() <= ahead + 1e-9
    )  # messages of less than a second: at the rate alone


def test_instances_are_billed_from_when_they_are_asked_for():
    found = run(np.ones(100), Scripted({20: 5, 60: 2}), QUICK, first=1)

    assert found.instance_hours * 3600 == 20 * 1 + 40 * 5 + 40 * 2
    assert (found.actions, found.flaps) == (2, 1)


def test_those_that_start_go_first_and_the_newest_before_the_others():
    fleet = Fleet(2, 10)
    fleet.scale_to(5, 0)
    fleet.scale_to(7, 4)
    fleet.scale_to(4, 5)
    assert (fleet.total, fleet.ready, fleet.starting) == (4, 2, [[10, 2]])
    fleet.start_due(10)
    fleet.scale_to(1, 11)
    assert (fleet.total, fleet.ready) == (1, 1)


def test_active_messages_wait_or_are_processed():
    policy = Scripted({})
    run(np.full(100, 2.0), policy, QUICK, first=2)

    assert policy.seen[10].waiting == 0
    assert policy.seen[10].active == pytest.approx(2.0 * 4.0 / 2.0)


def test_what_reaches_the_policy_may_be_old_lost_or_wrong():
    old, lost, wrong = Scripted({}), Scripted({}), Scripted({})
    load = np.arange(200.0)
    run(load, old, QUICK, first=2, sight=Sight(age=10))
    run(load, lost, QUICK, first=2, sight=Sight(lost=0.3))
    run(load, wrong, QUICK, first=2, sight=Sight(noise=0.1))

    assert old.seen[10].arrived == load[:40].sum()
    assert 2 < sum(isinstance(each, float) for each in lost.seen) < 25
    right = Scripted({})
    run(load, right, QUICK, first=2)
    for noisy, true in (
        ([seen.active for seen in wrong.seen], [seen.active for seen in right.seen]),
        *((increments(wrong.seen, name), increments(right.seen, name)) for name in ("arrived", "completed")),
    ):
        off = [one / other for one, other in zip(noisy, true, strict=True) if other]
        assert 0.9 <= min(off) < 0.97
        assert 1.03 < max(off) <= 1.1


def increments(seen, name):
    return [getattr(later, name) - getattr(earlier, name) for earlier, later in pairwise(seen)]


def test_a_service_that_drifts_takes_longer_for_each_message():
    policy = Scripted({})
    slow = replace(QUICK, drift=lambda second: 1.0 if second < 100 else 0.5)
    run(np.full(200, 1.0), policy, slow, first=4)

    assert policy.seen[15].active == pytest.approx(1.0 * 4.0 / 2.0)
    assert policy.seen[35].active == pytest.approx(1.0 * 4.0 / 1.0)


def test_no_policy_without_late_messages_is_cheaper_than_the_clairvoyant():
    load = np.concatenate([np.full(1800, 5.0), np.full(900, 60.0), np.full(1800, 5.0)])
    model = Model()
    lowest = bound.instance_hours(load, model)
    best = min(
        found.instance_hours
        for ahead in range(0, 600, 30)
        if (found := run(load, Scripted({1800 - ahead: 6, 2730: 1}, 30), model, first=1)).late == 0
    )

    assert lowest <= best <= 1.15 * lowest


@pytest.mark.parametrize("name", ["aws_elb_requests", "nasa95_web"])
def test_a_trace_keeps_its_shape_and_is_scaled_to_a_fleet(name):
    load = traces.load(traces.FOLDER, name, 10.0)
    again = traces.load(traces.FOLDER, name, 10.0)
    minutes = load.arrivals[: len(load.arrivals) // 60 * 60].reshape(-1, 60).mean(axis=1)

    assert (load.arrivals == again.arrivals).all()
    assert load.arrivals.mean() == pytest.approx(80.0, rel=0.01) or minutes.max() == pytest.approx(
        900, rel=0.1
    )


def seen(active, total, t=0.0, ready=None):
    return Seen(t, active, 0.0, total if ready is None else ready, total, 0.0, 0.0)


def test_the_peers_do_as_their_documents_say():
    keda = Keda(12.0)
    assert keda.see(seen(100.0, 8)) == 8  # within the tolerance of a tenth
    assert keda.see(seen(500.0, 8, 15.0)) == 16  # twice as many at most
    assert keda.see(seen(12.0, 16, 30.0)) == 16  # the highest recommendation of five minutes
    assert keda.see(seen(12.0, 16, 316.0)) == 1
    functions = peers.TargetBased()
    assert [functions.see(seen(active, 8)) for active in (0.0, 129.0, 1000.0)] == [7, 9, 12]
    azure = AzureMonitor(100, 10, 600, 300, 1)
    assert azure.see(seen(900.0, 8, 0.0)) == 9
    assert azure.see(seen(9000.0, 9, 60.0)) == 9  # the cooldown
    classic = peers.ClassicRule(500, 100)
    assert [classic.see(seen(600.0, 3, 60.0 * minute)) for minute in range(6)] == [3, 3, 3, 3, 4, 3]


def test_every_policy_of_the_field_runs_and_gives_the_same_twice():
    load = traces.load(traces.FOLDER, "fb_hadoop_2010", 10.0).arrivals[:2400]
    for entry in field.FIELD:
        one, two = (run(load, entry.make(load, Model()), Model(), first=8) for _ in range(2))
        assert one == two
        assert one.instance_hours > 0


def test_bursts_by_the_clock_are_met_once_they_are_known():
    second = np.arange(2 * 86_400)
    load = np.where((second % 3600 >= 1980) & (second % 3600 < 2100), 320.0, 60.0)
    model = Model()
    policy = ours.service_level()
    lived = Run(load, policy, model, 8).replay()
    due = np.minimum(np.arange(1, len(load) + 1) + model.wait, lived.end)
    late = np.clip(
        lived.arrived[1 : len(load) + 1] - np.maximum(lived.begun[due], lived.arrived[: len(load)]), 0, None
    )
    first, second_day = late[:86_400].sum(), late[86_400:].sum()

    assert first > 0
    assert second_day < first / 5


@pytest.mark.parametrize(
    ("size", "rate", "takes", "wait", "counts", "most", "hours"),
    [
        (
            12_000,
            1.0,
            16.0,
            1200,
            ("backlog",),
            15,
            7.4,
        ),  # it was 100 instances, and a fifth of the messages late
        (12_000, 1.0, 16.0, 1200, ours.METRICS, 15, 7.4),
        (
            600,
            2 / 300,
            300.0,
            7200,
            ("backlog",),
            16,
            64.0,
        ),  # 22.7 % late, by arrivals that lumps of messages hide
    ],
)
def test_a_burst_with_a_long_wait_is_begun_in_time_by_few_instances(
    size, rate, takes, wait, counts, most, hours
):
    model = Model(service_rate=rate, concurrency=rate * takes, wait=wait)
    load = np.zeros(2400 + 2 * wait)
    load[2000] = size
    policy = ours.service_level(
        model=model, counts=counts, wait=f"{wait}s", concurrency=model.concurrency, takes=f"{takes:g}s"
    )
    found = run(load, policy, model, 1)

    assert found.late == 0.0
    assert max(total for _, total in found.totals) <= most
    assert found.instance_hours <= hours
    assert found.aborted < 0.005


@cache
def three_hours():
    return traces.load(traces.FOLDER, "nasa95_web", 10.0).arrivals[9 * 3600 : 12 * 3600]


@pytest.mark.parametrize("condition", field.CONDITIONS, ids=lambda condition: condition.name)
def test_no_condition_makes_the_rule_collapse(condition):
    load = three_hours()
    found = run(load, condition.policy(), Model(), ceil(load.mean() / 10.0), condition.sight)

    assert found.instance_hours < 2.6 * load.sum() / 10.0 / 3600.0
    assert found.late < 0.1


@pytest.mark.parametrize(
    ("world", "latest"),
    [
        *((Model(concurrency=concurrency), 0.1) for concurrency in (1, 4, 64)),
        (Model(drift=cells.halves), 0.1),
        *((Model(start_up=seconds), 0.25 if seconds > 120 else 0.1) for seconds in (30, 180, 300)),
        *((Model(wait=seconds), 0.25 if seconds < 30 else 0.1) for seconds in (10, 600)),
    ],
)
def test_no_world_makes_the_rule_collapse(world, latest):
    load, policy = three_hours(), ours.service_level(model=world, wait=f"{world.wait}s")
    found = run(load, policy, world, ceil(load.mean() / 10.0))

    assert found.instance_hours < 2.6 * load.sum() / 10.0 / 3600.0
    assert found.late < latest


def test_the_picture_of_the_docs_is_what_the_rule_does():
    assert picture.FILE.read_text(encoding="utf-8") == picture.draw()


def test_no_observation_counts_fewer_than_no_messages():
    """Sums of floats are off by a little: windows refuse a count of -3e-11, and a replay would lack that sample."""
    watched = Scripted({}, interval=15)
    arrivals = np.random.default_rng(2).exponential(1.0, 4000) * (np.arange(4000) % 200 < 40) * 31.7
    run(arrivals, watched, Model(maximum=30), 30)

    assert min(seen.active for seen in watched.seen) >= 0.0


def test_a_burst_of_slow_messages_is_waited_for_each_time_it_comes_back():
    """Messages of 300 s looked like a start-up of 390 s: then 20 min were no long wait, and a forecast stopped what was processed."""
    arrivals = np.zeros(17 * 3600)
    arrivals[3600 :: 4 * 3600] = 200.0
    policy = cells.Cell("(1/150)/2", sense="exact counts", wait=1200).made()
    found = run(arrivals, policy, Model(1 / 150, 2.0, wait=1200), first=1)

    assert (found.late, found.aborted) == (0.0, 0.0)


def test_a_target_makes_no_more_changes_within_an_hour_than_its_platform_takes():
    load = cells.arrivals_of(cells.Loads(hours=6), "aws_elb_requests", 10.0).arrivals
    most = {}
    for limit in (0, 20):
        cell = cells.Cell(sense="exact counts", start_up=30, limit=limit)
        at = np.array([at for at, _ in run(load, cell.made(), cell.model, first=1).totals[1:]])
        most[limit] = max(np.count_nonzero((at > each - 3600) & (at <= each)) for each in at)

    assert most[20] <= 20 < most[0]


# -- the grid


def test_a_cell_is_replayed_kept_and_not_replayed_again_until_the_code_changes(tmp_path, capsys, monkeypatch):
    path = tmp_path / "rows.csv"
    asked = ["--world", "1/16", "0.5/16", "--policy", "KEDA 0.75", "--hours", "1", "--file", str(path)]
    asked += ["--only", "fb_hadoop_2010"]
    grid.main(asked)
    first = capsys.readouterr().out
    rows = grid.read(path)

    assert [grid.describe(cell) for cell in rows] == ["0.5/16, fixed, KEDA 0.75", "1/16, fixed, KEDA 0.75"]
    assert first.count("% aborted") == 2
    grid.main(asked)
    assert capsys.readouterr().out == ""
    assert grid.read(path) == rows
    monkeypatch.setattr(grid, "code", lambda _: "other")
    grid.main(asked)
    assert capsys.readouterr().out == first


def test_the_whole_grid_has_each_cell_by_a_name_of_its_own_and_can_be_restricted():
    names = Counter(map(grid.describe, set(grid.whole())))
    assert [name for name, count in names.items() if count > 1] == []
    asked = grid.parser().parse_args(["--whole", "--wait", "10", "--policy", "KEDA 0.9"])
    assert {(cell.wait, cell.policy) for cell in grid.chosen(asked)} == {(10, "KEDA 0.9")}
    asked = grid.parser().parse_args(["--whole", "--halves"])
    assert all(cell.halves for cell in grid.chosen(asked))


def test_picture_and_table_of_the_docs_are_drawn_from_the_file_of_results():
    rows = grid.read(grid.RESULTS)

    assert report.FILE.read_text(encoding="utf-8") == report.draw(rows)
    for page, table in ((report.README, report.table(rows)), (report.FRONT, report.front_table(rows))):
        text = page.read_text(encoding="utf-8")
        assert report.with_table(text, table) == text


def test_a_peer_is_shown_with_its_cheapest_target_that_keeps_the_objective():
    rows = {
        cells.Cell(policy=f"KEDA {share}"): grid.Row(5, 24, 1.0, work, late, 0.0, 5, 1.0, 0.0, "")
        for share, work, late in (("0.6", 3.0, 0.2), ("0.75", 2.0, 0.9), ("0.9", 1.5, 1.2))
    }

    assert report.best_target(rows, cells.Cell(), "KEDA").work == 2.0
    assert report.best_target({}, cells.Cell(), "KEDA") is None
    assert report.text_of(None) == ""


@pytest.mark.parametrize("load", cells.BURSTS)
def test_a_burst_is_served_by_those_who_hold_what_is_there(load):
    world = "(1/150)/2" if load.startswith("600") else "1/16"
    cell = cells.Cell(world, policy="KEDA 0.9", load=load, wait=1200)
    found = cells.play(cell, cells.Loads(), load)

    assert found.late < 0.2
    assert found.work > 1.0
