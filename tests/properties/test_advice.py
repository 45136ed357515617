"""What advise rests on: a replay keeps its counts, and each sentence of an answer holds."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scaling.config.policy_file import load_config
from scaling.service import registry
from tests.support.analysis import MONDAY
from tests.support.examples import examples
from tests.support.scaling.imports import PLAN
from tidemark.analysis.advise.answered import saved
from tidemark.analysis.advise.local import advised
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.backtest.replay.history import Reading
from tidemark.analysis.simulation.answer import Recorded, causes, choose, play
from tidemark.analysis.simulation.field import TODAY, Target, field, target_per_unit
from tidemark.analysis.simulation.waits import POINTS, series_of, waits_of
from tidemark.analysis.simulation.world import Model, Run


@st.composite
def loads(draw):
    """Arrivals per second in stretches of minutes, and the gaps between some of them."""
    levels = draw(
        st.lists(
            st.tuples(st.sampled_from([0, 1, 20, 60, 200]), st.sampled_from([1, 4, 12, 40])),
            min_size=2,
            max_size=8,
        )
    )
    rng, even = np.random.default_rng(draw(st.integers(0, 9))), draw(st.booleans())
    arrivals = np.concatenate(
        [np.full(60 * m, rate) if even else rng.poisson(rate, 60 * m) for rate, m in levels]
    ).astype(float)
    parts, clock = [(0, 0)], 0
    for begin in sorted(draw(st.sets(st.integers(1, max(len(arrivals) // 30 - 1, 1)), max_size=3))):
        clock += draw(st.sampled_from([10, 60, 200, 4000, 200_000]))
        if begin * 30 < len(arrivals):
            parts.append((begin * 30, begin * 30 + clock))
    return arrivals, tuple(parts)


@examples(20)
@given(loads(), st.integers(1, 12))
def test_waits_and_series_tell_what_the_counters_hold(load, instances):
    arrivals, parts = load

    class Still:
        interval = 60

        def see(self, seen):
            return seen.total

    model = Model(service_rate=10.0, maximum=20)
    run = Run(arrivals, Still(), model, instances, parts).replay()
    waits, series, late = waits_of(run), series_of(run), run.outcome().late

    assert (waits.longest > model.wait) == (late > 0)
    assert waits.slow <= waits.longest
    if late > 0.01:
        assert waits.slow > model.wait
    assert all(earlier < later for earlier, later in pairwise(series.times))
    assert series.times[0] == 0
    assert series.times[-1] <= parts[-1][1] + len(arrivals)
    assert set(series.instances) == {instances}
    width = max(-(-run.length // POINTS), 60)
    lengths = [min(width, run.length - begin) for begin in range(0, run.length, width)]
    assert np.dot(series.arrivals, lengths) == pytest.approx(arrivals.sum())


@st.composite
def questions(draw):
    """Targets with fast and slow messages, few instances and many, and two hours with a burst that may be too large."""
    rate, at_once = draw(st.sampled_from([(10.0, 16.0), (0.5, 16.0), (1.0 / 150.0, 2.0), (1.0 / 30.0, 1.0)]))
    target = Target(
        name="plan",
        service_rate=rate,
        concurrency=at_once,
        start_up=draw(st.sampled_from([30.0, 300.0])),
        wait=draw(st.sampled_from([10.0, 60.0, 1200.0, 7200.0])),
        late=draw(st.sampled_from([0.01, 0.2])),
        minimum=1,
        maximum=draw(st.sampled_from([3, 30])),
        interval=60.0,
        reads={"backlog": "backlog"},
        given={"concurrency": at_once, "takes": f"{at_once / rate:.4g}s"},
    )
    if draw(st.booleans()):
        target = structs.replace(
            target, policy=target_per_unit(target, draw(st.sampled_from([1.0, 12.0])), 60.0)
        )
    bins = np.full(120, 60.0 * rate * draw(st.sampled_from([0.0, 0.5, 5.0])))
    begin = draw(st.integers(0, 119))
    bins[begin : begin + draw(st.sampled_from([1, 20]))] += (
        60.0 * rate * draw(st.sampled_from([2.0, 20.0, 60.0]))
    )
    return target, Recorded(1_799_625_600.0, 60, bins.tolist(), 1)


@pytest.mark.timeout(1800)  # in `make torture`
@examples(7)
@given(questions())
def test_each_sentence_of_an_advice_holds(question):
    target, recorded = question
    entries, load = list(field(target)), recorded.load("plan")
    rows = {entry.name: play(target, recorded, load, entry) for entry in entries}
    choice = choose(target, list(rows.values()))
    kept = [name for name, row in rows.items() if row.late <= target.late]
    if not kept:
        assert (choice.taken, choice.best_trade_off) == (None, None)
        assert choice.why.startswith("no policy of this table keeps the objective")
        assert rows[choice.shown].late == min(row.late for row in rows.values())
        _check_causes(target, recorded, entries, rows, choice.shown)
        return
    taken, today = rows[choice.taken], rows.get(TODAY)

    assert taken.policy in kept
    if "only" in choice.why:
        assert kept == [choice.taken]
    if "no rule of Tidemark" in choice.why:
        assert not any(rows[name].ours for name in kept)
        assert ("but today's" in choice.why) == (TODAY in kept)
    if choice.taken != TODAY and "better than today's" in choice.why:
        assert taken.score < today.score
        assert taken.late <= max(today.late, target.late)
    if "where today's policy does not" in choice.why:
        assert today.late > target.late >= taken.late
    if (
        found := re.search(r"([^.]*) \(the setting COLLECT_SCHEDULE\) would be better still", choice.why)
    ) is not None:
        often = rows[found[1].strip()]
        assert often.score < taken.score
        assert often.late <= target.late


@st.composite
def histories(draw):
    """Rows of minutes, hours or days with gaps, and what the command line says of the queue, which may be nothing."""
    width = draw(st.sampled_from([60, 60, 3600, 86_400]))
    count = {60: 120, 3600: 8, 86_400: 2}[width]
    rate, at_once = draw(st.sampled_from([(10.0, 16.0), (0.5, 16.0), (1.0 / 150.0, 2.0)]))
    low = draw(st.sampled_from([1, 4]))
    level = draw(st.sampled_from([0.0, 0.5, 3.0]))
    readings = [Reading(MONDAY + width * index, width * rate * level) for index in range(count)]
    for _ in range(draw(st.integers(0, 2))):
        place, batch = draw(st.integers(0, count - 1)), draw(st.sampled_from([600.0, 40.0 * rate * width]))
        readings[place] = structs.replace(readings[place], arrivals=batch)
    gone = draw(st.sets(st.integers(1, count - 2), max_size=count // 3)) if count > 2 else set()
    known = draw(st.sampled_from(["takes", "concurrency", "rate"]))
    options = Options(
        service_rate=None if known == "takes" else rate,
        takes=at_once / rate if known == "takes" else None,
        concurrency=None if known == "rate" else at_once,
        start_up=draw(st.sampled_from([None, 30.0, 300.0])),
        wait=draw(st.sampled_from([10.0, 1200.0, 7200.0])),
        late=draw(st.sampled_from([0.001, 0.05])),
        minimum=low,
        maximum=low + draw(st.sampled_from([0, 4, 40])),
    )
    return [each for index, each in enumerate(readings) if index not in gone], options


@pytest.mark.timeout(1800)  # in `make torture`
@examples(5)
@given(histories())
def test_each_sentence_of_an_answer_holds_from_the_rows_of_a_file(history):
    readings, options = history
    question = prepare("plan", readings, options, None)
    found = advised(question, options, None, processes=1)
    kept = [row.policy for row in found.rows if row.late <= options.late]
    least = min(row.late for row in found.rows)

    assert (found.choice.taken in kept) if kept else (found.choice.taken is None)
    if (told := re.search(r"all the time, ([0-9.e+-]+) % of the messages", question.saturated)) is not None:
        assert 100 * least >= 0.95 * float(told[1]) - 1e-6
    if "so no policy keeps" in question.saturated:
        assert not kept
    if (
        told := re.search(r"the maximum, \d+ instances, all the time ([0-9.]+) % would", found.choice.why)
    ) is not None:
        assert 100 * least >= float(told[1]) - 0.01
    if "a higher minimum" in found.choice.why:
        fixed = structs.replace(options, minimum=options.maximum)
        again = advised(prepare("plan", readings, fixed, None), fixed, None, processes=1)
        assert again.choice.taken is not None
    if found.toml:
        config = f"version = 1\n\n{found.toml}"
        spec = (
            load_config(config, name="t.toml", settings={"PLAN_ID": PLAN}, plug_ins=registry)
            .policies["plan"]
            .spec
        )
        assert (spec.minimum, spec.maximum) == (options.minimum, options.maximum)
        taken = next(entry for entry in field(question.target) if entry.name == found.choice.taken)
        assert [rule.type for rule in spec.rules] == [rule.type for rule in taken.spec.rules]
    assert float(saved(found).split()[0].replace(",", "")) == pytest.approx(
        found.shown.instance_hours * 24 / question.hours, abs=0.051
    )


def _check_causes(target, recorded, entries, rows, shown):
    """What would help the policy that is late least."""
    why = causes(target, recorded, next(entry for entry in entries if entry.name == shown))
    if (found := re.search(r"all the time ([0-9.]+) % would", why)) is not None:
        assert all(100 * row.late >= float(found[1]) - 0.1 for row in rows.values())
    assert ("a higher maximum" in why) == (found is not None and float(found[1]) > 100 * target.late)
    assert bool(found) or "within the start-up" not in why
