"""The defects of the implementation this product came from, one test each, so that none comes back.

That is mikhailshilkov/mikhailio-samples, customautoscaling/servicebussubscription-to-appserviceplan.
"""

import asyncio
import time

import pytest

from scaling.config.policy import Pace, RuleSpec
from scaling.decision.transitions import absorb, advance
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    NO_CONTROLS,
    Direction,
    EffectOutcome,
    EffectRecord,
    MetricSample,
    MetricsReport,
    Reason,
)
from scaling.window import EMPTY, observe
from tests.support.scaling.fakes_azure import FakePlatform
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, World, at, full, metric, policy, report
from tidemark.foundation.errors import ConflictError

COOL = {"out": Pace(cooldown=600.0), "inward": Pace(cooldown=600.0)}
QUICK = {"metrics": {"backlog": metric(span=120.0, min_samples=2)}}
HIGH, LOW = 900.0, 20.0


async def busy(minutes: int = 2, *, backlog: float = HIGH, **changes) -> World:
    world = World(policy(**(QUICK | changes)), capacity=changes.pop("capacity", 2))
    world.backlog = backlog
    await world.pass_minutes(minutes)
    return world


async def test_the_capacity_never_leaves_its_bounds_however_long_the_backlog_stays_high_or_empty() -> None:
    world = await busy(20, maximum=4)
    assert world.platform.ledger == [3, 4]

    world.backlog = 0.0
    await world.pass_minutes(20)

    assert world.platform.ledger == [3, 4, 3, 2, 1]


async def test_a_redelivered_order_does_not_scale_twice() -> None:
    world = World(policy(**QUICK), capacity=2)
    world.backlog = HIGH
    for _ in range(2):
        await world.tick()
        outcome = await world.decide()
        world.clock.now += MINUTE
    (message,) = outcome.messages

    for _ in range(3):
        await world.autoscaler().apply(message)

    assert world.platform.capacity == 3
    assert world.platform.ledger == [3]


async def test_a_redelivered_report_does_not_decide_twice() -> None:
    world = World(policy(**QUICK), capacity=2)
    world.backlog = HIGH
    for _ in range(2):
        await world.tick()
        message = world.metrics.pop()
        await world.autoscaler().evaluate(message)
        world.clock.now += MINUTE
    again = await world.autoscaler().evaluate(message)
    world.actions = [*again.messages, *again.messages]
    await world.drain()

    assert world.platform.ledger == [3]
    assert len(await world.entries("decision")) == 2


TWO = {
    "metrics": {"backlog": metric(), "other": metric()},
    "rules": (
        THRESHOLD,
        RuleSpec(
            type="threshold",
            name="other",
            options={"metric": "other", "scale_out_above": 500.0, "scale_in_below": 100.0},
        ),
    ),
}


def both(backlog: float, other: float, state=None, **changes):
    windows = {"backlog": full(backlog), "other": full(other)}
    return decide(policy(**(TWO | changes)), windows, state or at(3), now=NOW)


def test_two_metrics_of_one_target_make_one_change() -> None:
    assert both(HIGH, HIGH).desired == 4


def test_two_metrics_of_one_target_never_oppose_each_other() -> None:
    assert both(HIGH, LOW).desired == 4
    assert both(LOW, HIGH).desired == 4


@pytest.mark.parametrize(("backlog", "other"), [(HIGH, 300.0), (300.0, HIGH)])
def test_the_cooldown_after_one_metrics_change_holds_for_the_other_metric_too(
    backlog: float, other: float
) -> None:
    state = at(3, effects=(EffectRecord(NOW - 60, 2, 3),))

    assert both(backlog, other, state, **COOL).reason is Reason.COOLING_DOWN


def test_the_cooldown_is_kept_per_direction() -> None:
    after_in = at(3, effects=(EffectRecord(NOW - 60, 4, 3),))
    after_out = at(3, effects=(EffectRecord(NOW - 60, 2, 3),))

    assert both(HIGH, HIGH, after_in, **COOL).reason is Reason.SCALE_OUT
    assert both(LOW, LOW, after_in, **COOL).reason is Reason.COOLING_DOWN
    assert both(LOW, LOW, after_out, **COOL).reason is Reason.COOLING_DOWN


async def test_a_failed_action_does_not_burn_the_cooldown() -> None:
    world = World(policy(**(QUICK | COOL)), capacity=2)
    world.backlog = HIGH
    await world.pass_minutes(1)
    world.platform.unreachable = True
    world.actions = list((await evaluate_next(world)).messages)
    await world.drain()
    failed = await world.state()

    assert failed.effects == ()
    assert failed.pending is not None

    world.platform.unreachable = False
    world.clock.now += 30.0
    await world.verify()
    await world.drain()

    (effect,) = (await world.state()).effects
    assert (effect.at, effect.to_capacity) == (world.clock.now, 3)


async def evaluate_next(world: World):
    capacity, world.platform.unreachable = world.platform.unreachable, False
    await world.tick()
    world.platform.unreachable = capacity
    return await world.decide()


async def test_an_action_given_up_does_not_burn_the_cooldown() -> None:
    world = World(policy(**(QUICK | COOL)), capacity=2)
    world.backlog = HIGH
    await world.pass_minutes(1)
    await evaluate_next(world)
    world.clock.now += world.policy.spec.action_ttl
    await world.verify()
    world.actions.clear()

    assert (await world.state()).effects == ()
    assert (await world.state()).pending is None

    await world.pass_minutes(2)
    assert world.platform.ledger == [3]


async def test_an_action_reaches_the_target_of_exactly_its_name() -> None:
    world = await busy(1)
    near = FakePlatform(capacity=2)
    await world.tick()
    outcome = await world.decide()
    (message,) = outcome.messages
    renamed = message.replace('"target":"plan"', '"target":"plan-2"')

    dropped = await world.autoscaler().apply(renamed)

    assert near.ledger == world.platform.ledger == []
    assert "plan-2: not in the configuration" in dropped.warnings[0]


def test_five_points_over_four_minutes_are_not_ten_minutes() -> None:
    spec = metric(span=600.0, min_samples=5)
    windows = {"backlog": full(HIGH, count=5)}

    held = decide(policy(metrics={"backlog": spec}), windows, at(3), now=NOW)
    whole = decide(policy(metrics={"backlog": spec}), {"backlog": full(HIGH, count=10)}, at(3), now=NOW)

    assert held.reason is Reason.INCOMPLETE_WINDOW
    assert held.flips[0].conditions[0].quantity == "span backlog"
    assert whole.reason is Reason.SCALE_OUT


def test_samples_count_at_their_own_time_in_any_order_of_arrival() -> None:
    spec = metric().window
    samples = [MetricSample("backlog", NOW - MINUTE * i, 100.0 * i) for i in (3, 0, 4, 1, 2, 0)]
    window = EMPTY
    for sample in samples:
        window = observe(window, sample, spec, now=NOW)

    assert window.times == [NOW - MINUTE * i for i in (4, 3, 2, 1, 0)]
    assert window.values == [400.0, 300.0, 200.0, 100.0, 0.0]


def test_times_do_not_depend_on_the_machines_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = set()
    for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        windows, state = absorb(
            policy(),
            {"backlog": full(HIGH, now=NOW - MINUTE)},
            at(3),
            report(HIGH, 3),
            now=NOW,
            controls=NO_CONTROLS,
        )
        told.add(repr(decide(policy(), windows, state, now=NOW)))
    monkeypatch.undo()
    time.tzset()

    assert len(told) == 1


async def test_state_changed_by_somebody_else_meanwhile_is_loaded_and_decided_upon_again() -> None:
    world = await busy(1)
    await world.tick()
    stale = await world.states.load("plan")
    await world.autoscaler().evaluate(world.metrics[0])

    with pytest.raises(ConflictError):
        await world.states.save(stale, stale.state, stale.windows)


async def test_decisions_go_on_while_a_change_is_slow() -> None:
    world = await busy(1)
    started, finish = asyncio.Event(), asyncio.Event()
    carry_out = world.scaler.inner.apply

    async def slow(action, *, now):
        started.set()
        await finish.wait()
        return await carry_out(action, now=now)

    world.scaler.inner.apply = slow
    world.actions = list((await evaluate_next(world)).messages)
    applying = asyncio.create_task(world.drain())
    await started.wait()
    lines = []
    for _ in range(3):
        world.clock.now += MINUTE
        lines += (await evaluate_next(world)).lines
    finish.set()
    await applying

    assert len(lines) == 3
    assert all("action pending" in line for line in lines)
    assert world.platform.ledger == [3]


def test_a_change_is_an_absolute_capacity_with_its_start_and_its_end() -> None:
    made = policy()
    recommendation = decide(made, {"backlog": full(HIGH)}, at(3), now=NOW, decision_id="plan@1")
    _, action = advance(made, at(3), recommendation, report_at=NOW, level=None)

    assert (action.from_capacity, action.to_capacity, action.direction) == (3, 4, Direction.OUT)
    assert action.expires_at == NOW + made.spec.action_ttl


async def test_an_order_decided_from_another_capacity_changes_nothing() -> None:
    world = await busy(1)
    world.actions = list((await evaluate_next(world)).messages)
    world.platform.move(7)
    await world.drain()

    (entry,) = await world.entries("effect")
    assert entry.effect.outcome is EffectOutcome.EXTERNAL_CHANGE
    assert world.platform.capacity == 7


def test_a_report_without_the_metric_is_a_failed_read_and_not_a_zero() -> None:
    made = policy()
    windows, state = absorb(
        made,
        {"backlog": full(LOW, now=NOW - MINUTE)},
        at(3),
        MetricsReport("plan", NOW),
        now=NOW,
        controls=NO_CONTROLS,
    )

    assert decide(made, windows, at(3), now=NOW).reason is Reason.COLLECT_FAILED
    assert state.capacity_error is not None
