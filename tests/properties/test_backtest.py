"""The replay against production's own path, against an independent simulator, and with nothing skipped."""

import asyncio
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from scaling.config.policy import HPA_IN, HPA_OUT, Budget, Fallback, Pace, Plateau, RateLimit, RuleSpec
from scaling.model import Effect, EffectOutcome
from tests.support.examples import examples
from tests.support.scaling.runner import NOW, World, metric, policy
from tidemark.analysis.backtest.replay.fleet import Model
from tidemark.analysis.backtest.replay.history import History
from tidemark.analysis.backtest.replay.load import Load, Waiting
from tidemark.analysis.backtest.replay.score import scores
from tidemark.analysis.backtest.replay.simulate import simulate

RATE = 2.0  # messages per second of one instance


def model(**changes):
    return Model(**({"service_rate": RATE, "scaling_time": 30.0, "start_up": 60.0} | changes))


def threshold(above, below, **options):
    return RuleSpec(
        type="threshold",
        name="t",
        options={"metric": "backlog", "scale_out_above": above, "scale_in_below": below, **options},
    )


STATISTICS = st.sampled_from(["average", "maximum", "minimum", "latest"])

thresholds = st.builds(
    threshold,
    st.sampled_from([50.0, 200.0, "150 * instances", {"1": 80.0, "4": 900.0}]),
    st.sampled_from([10.0, 100.0, "60 * (instances - 1)"]),
    out_statistic=STATISTICS,
    in_statistic=STATISTICS,
    step_out=st.integers(1, 3),
)
proportional = st.builds(
    lambda target, statistic, mode: RuleSpec(
        type="target_per_unit",
        name="h",
        options={"metric": "backlog", "target": target, "statistic": statistic, "mode": mode},
    ),
    st.sampled_from([60.0, 200.0, "100 + 10 * instances"]),
    STATISTICS,
    st.sampled_from(["average_value", "value"]),
)
nested = st.builds(
    lambda first, second: RuleSpec(
        type="composite",
        name="c",
        options={"rules": [{"type": r.type, **r.options} for r in (first, second)]},
    ),
    thresholds,
    thresholds | proportional,
)
guard = st.just(RuleSpec(type="guard", name="g", options={"metric": "backlog", "block_out_above": 4000.0}))
schedule = st.just(
    RuleSpec(
        type="schedule",
        name="s",
        options={"periods": [{"from": "09:00", "to": "10:00", "floor": 3}]},
    )
)
expression = st.just(RuleSpec(type="composite", name="e", options={"desired": "max(1, backlog / 200)"}))
paces = st.builds(
    Pace,
    cooldown=st.sampled_from([0.0, 120.0, 600.0]),
    stabilization=st.sampled_from([0.0, 0.0, 180.0]),
    step=st.sampled_from([None, 2]),
    rates=st.sampled_from([(), (RateLimit(kind="percent", amount=50, period=120.0),)]),
)


@st.composite
def policies(draw):
    rules = draw(st.lists(thresholds | proportional | nested, min_size=1, max_size=2))
    rules += draw(st.lists(guard | schedule | expression, max_size=1))
    out, inward = draw(st.tuples(paces, paces) | st.just((HPA_OUT, HPA_IN)))
    return policy(
        metrics={"backlog": metric(span=draw(st.sampled_from([60.0, 300.0, 150.0])), min_samples=1)},
        rules=tuple(rules),
        out=out,
        inward=inward,
        plateau=draw(st.none() | st.just(Plateau(metric="backlog", effects=2))),
        fallback=draw(st.none() | st.just(Fallback(capacity=4, after=120.0))),
        minimum=draw(st.integers(1, 2)),
        maximum=draw(st.integers(3, 9)),
        budget=draw(st.sampled_from([None, None, None, Budget(amount=60.0)])),
    )


@st.composite
def histories(draw, *, gaps=True, step=60.0):
    """Load that rises and falls over a wide range, with idle stretches and gaps."""
    levels = st.sampled_from([0.0, 60.0, 119.0, 120.0, 300.0, 900.0, 1500.0])
    pieces = st.lists(
        st.tuples(levels | (st.just(math.nan) if gaps else st.nothing()), st.integers(1, 25)),
        min_size=2,
        max_size=9,
    )
    bins = [level for level, count in draw(pieces) for _ in range(count)]
    if all(map(math.isnan, bins)):
        bins.append(60.0)
    bins = [0.0, *bins]
    noise = draw(st.integers(0, 7))
    bins = [value + (index * noise) % 5 if value else value for index, value in enumerate(bins)]
    return History("plan", NOW, step, bins, backlog=draw(st.sampled_from([0.0, 500.0])))


@examples(30)
@given(histories(), policies(), st.integers(1, 9), st.sampled_from([0.0, 30.0, 60.0, 200.0]), st.booleans())
def test_what_is_skipped_changes_no_action_no_backlog_and_no_decision_that_is_made(
    history, made, initial, scaling_time, busy
):
    load = Load(history, 60.0)
    given_model = model(scaling_time=scaling_time, service_time=5.0 if busy else 0.0)

    whole = simulate(load, made, given_model, metric="backlog", initial=initial, every_tick=True, keep=True)
    fast = simulate(load, made, given_model, metric="backlog", initial=initial, keep=True)

    assert whole.changes == fast.changes
    assert whole.backlog == fast.backlog
    assert whole.billed == fast.billed
    assert whole.ticks == fast.ticks == whole.decided
    by_time = {decision.at: decision for decision in whole.decisions}
    assert fast.decisions == [by_time[decision.at] for decision in fast.decisions]
    skipped = by_time.keys() - {decision.at for decision in fast.decisions}
    assert not any(by_time[at].acts for at in skipped)


@examples(8)
@given(histories(), policies(), st.sampled_from([0.0, 30.0, 200.0]))
async def test_the_decisions_are_those_of_the_production_function_path(history, made, scaling_time):
    load = Load(history, 60.0)
    run = simulate(
        load, made, model(scaling_time=scaling_time), metric="backlog", initial=2, every_tick=True, keep=True
    )

    world = World(made, capacity=2)
    world.scaler.deadline = made.spec.action_ttl
    carry_out = world.scaler.inner.apply
    due: list[tuple[float, asyncio.Event, asyncio.Task]] = []

    begun = asyncio.Semaphore(0)

    async def slowly(action, *, now):
        begun.release()
        await due[-1][1].wait()
        return await carry_out(action, now=now)

    world.scaler.inner.apply = slowly
    for tick in range(load.ticks + 1):
        now = load.time(tick)
        while due and due[0][0] <= now:
            world.clock.now, arrived, delivery = due[0]
            arrived.set()
            await delivery
            due.pop(0)
        world.clock.now = now
        if not load.reported[tick]:
            continue
        world.backlog = run.backlog[tick * load.per_tick]
        await world.tick()
        while world.metrics:
            outcome = await world.autoscaler().evaluate(world.metrics.pop(0))
            for message in outcome.messages:
                delivery = asyncio.create_task(world.autoscaler().apply(message))
                due.append((now + scaling_time, asyncio.Event(), delivery))
                await begun.acquire()

    for _, _, delivery in due:
        delivery.cancel()
    entries = await world.entries("decision")
    # A replay of months works out no flips, which nobody reads there.
    assert [structs.replace(entry.recommendation, flips=()) for entry in entries] == run.decisions
    effects = [entry.effect for entry in await world.entries("effect")]
    assert [
        (e.at, e.from_capacity, e.to_capacity) for e in effects if e.outcome is EffectOutcome.APPLIED
    ] == [(change.at, change.from_capacity, change.to_capacity) for change in run.changes]
    assert all(isinstance(effect, Effect) for effect in effects)


def reference(bins, *, above, below, cooldown, initial, maximum, window=5, minute=60.0):
    """A threshold rule and its queue, written anew without anything of the product: effects at once, no start-up."""
    waiting, capacity, seen, last_out, last_any = 0.0, initial, [], -math.inf, -math.inf
    actions, backlog = [], [0.0]
    for tick in range(len(bins) + 1):
        now = NOW + tick * minute
        if tick:
            waiting = max(0.0, waiting + bins[tick - 1] - capacity * RATE * minute)
            backlog.append(waiting)
        seen.append(waiting)
        recent = seen[-window:]
        if len(recent) < window:
            continue
        if sum(recent) / window > above:
            if capacity < maximum and now - last_out >= cooldown:
                capacity, last_out, last_any = capacity + 1, now, now
                actions.append((now, capacity))
        elif max(recent) < below and capacity > 1 and now - last_any >= cooldown:
            capacity, last_any = capacity - 1, now
            actions.append((now, capacity))
    return actions, backlog


@examples(30)
@given(
    st.lists(st.integers(0, 1500), min_size=30, max_size=200),
    st.sampled_from([100.0, 500.0]),
    st.sampled_from([50.0, 90.0]),
    st.sampled_from([0.0, 180.0, 600.0]),
    st.integers(1, 5),
)
def test_a_threshold_rule_and_its_queue_equal_an_independent_simulator(bins, above, below, cooldown, initial):
    made = policy(
        rules=(threshold(above, below),), out=Pace(cooldown=cooldown), inward=Pace(cooldown=cooldown)
    )
    load = Load(History("plan", NOW, 60.0, [float(value) for value in bins]), 60.0)

    run = simulate(load, made, model(scaling_time=0.0, start_up=0.0), metric="backlog", initial=initial)

    actions, backlog = reference(
        bins, above=above, below=below, cooldown=cooldown, initial=initial, maximum=10
    )
    assert [(change.at, change.to_capacity) for change in run.changes] == actions[: len(run.changes)]
    assert len(actions) - len(run.changes) in {0, 1}  # an action of the last tick has no effect any more
    assert run.backlog == pytest.approx(backlog, abs=1e-6)


def late_one_by_one(arrivals, backlog, *, slo_steps):
    """Messages one by one, first in, first out: which still wait at the moment they reach the age of the objective.

    A step's messages come and are served evenly over it.
    """
    late = due = 0
    came = 0
    for step, count in enumerate(arrivals):
        reached = step + slo_steps
        if reached >= len(arrivals):
            break
        served, later = (sum(arrivals[:end]) - backlog[end] for end in (reached, reached + 1))
        due += count
        for number in range(count):
            moment = (number + 0.5) / count  # of its step, and of the step in which it reaches the age
            late += came + number + 0.5 > served + moment * (later - served) + 1e-6
        came += count
    return late, due


@examples(30)
@given(st.lists(st.integers(0, 40), min_size=12, max_size=80), st.integers(1, 4))
@example([0, 35, 40, 16, 15, 15, 15, 15, 15, 0, 0, 0], 3)
def test_late_messages_equal_a_count_of_single_messages(arrivals, slo_steps):
    load = Load(History("plan", NOW, 1.0, [float(value) for value in arrivals]), 1.0)
    given_model = model(service_rate=15.0, slo=float(slo_steps))
    waiting = Waiting(load, given_model.slo)
    backlog = [0.0]
    for value in arrivals:
        backlog.append(max(backlog[-1] + value - 15.0, 0.0))
    run = simulate(load, still(), given_model, metric="backlog", initial=1)

    (found,) = scores(load, waiting, run, given_model, (NOW, NOW + len(arrivals)))

    late, due = late_one_by_one(arrivals, backlog, slo_steps=slo_steps)
    assert run.backlog == pytest.approx(backlog)
    assert found.messages == due
    assert abs(found.late - late) <= 0.5 * len(arrivals)  # of a step in part late, half a message is rounded


def still():
    """A policy that never acts."""
    return policy(
        metrics={"backlog": metric(span=5.0, interval=1.0)},
        rules=(threshold(1e9, 0.0),),
        minimum=1,
        maximum=1,
    )
