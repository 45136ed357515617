"""The shell: reading, deciding, applying and checking over fakes, with every refusal and every failure."""

import asyncio
import threading

import msgspec
import pytest

from scaling.analysis.lint import lint
from scaling.analysis.replay import decode_inputs, replay, same
from scaling.config.policy import Budget, Fallback, RuleSpec
from scaling.config.policy_file import Config
from scaling.log_entry import LogEntry, LogKind
from scaling.model import (
    Capacity,
    Controls,
    EffectOutcome,
    MetricsReport,
    Override,
    Pause,
    Reason,
    ScaleAction,
)
from scaling.ports import CollectError, Reading, ScalerError
from scaling.service import autoscaler as runner
from scaling.service import reading
from scaling.service.autoscaler import Autoscaler
from scaling.service.deliveries import DELIVERY_MARGIN, DELIVERY_SECONDS
from scaling.service.messages import MessageError, decode, encode
from scaling.service.reading import MetricSource
from scaling.window import CLOCK_TOLERANCE
from tests.support.scaling.fakes import controls_row
from tests.support.scaling.fakes_azure import FakeCollector, FakePlatform, FakeScaler
from tests.support.scaling.runner import MINUTE, NOW, Crash, World, metric, policy, report
from tests.support.virtual_time import Clock
from tests.unit.scaling.analysis.test_lint import Unfinished
from tidemark.foundation.errors import ConflictError, StoreUnavailableError

QUICK = {"metrics": {"backlog": metric(span=120.0, min_samples=2)}}


async def deciding(**changes) -> World:
    """A world whose next report scales out from 2 to 3."""
    world = World(policy(**(QUICK | changes)), capacity=2)
    world.backlog = 900.0
    await world.pass_minutes(1)
    await world.tick()
    return world


async def pending(**changes) -> tuple[World, ScaleAction]:
    world = await deciding(**changes)
    outcome = await world.decide()
    world.actions = list(outcome.messages)
    return world, (await world.state()).pending


async def effects(world: World) -> list[EffectOutcome]:
    return [entry.effect.outcome for entry in await world.entries(LogKind.EFFECT)]


# Collecting


async def test_a_target_with_an_interval_of_its_own_is_looked_at_then_only_and_its_entities_with_it() -> None:
    world = World()
    often, rarely = FakeCollector(), FakeCollector()
    plans = {name: FakeScaler(FakePlatform(capacity=2)) for name in ("often", "rarely")}
    ports = world.autoscaler().ports
    ports = msgspec.structs.replace(
        ports,
        collectors={"a": often, "b": rarely},
        sources=[
            MetricSource(name, "backlog", entity, "active")
            for name, entity in (("often", "a"), ("rarely", "b"))
        ],
        scalers=plans,
    )
    policies = {"often": policy(target="often"), "rarely": policy(target="rarely", interval=300.0)}
    made = Autoscaler(Config(policies, MINUTE, 86_400.0), ports, clock=world.clock)
    told = []
    lateness = (0.0, 53.1, 0.4, 0.0, 0.0, -5.0, 3.0, 0.0, 0.0, 0.0)  # a timer fires late, or a little early
    for late in lateness:
        world.clock.now += late
        told.append([decode(MetricsReport, message).target for message in (await made.collect()).messages])
        world.clock.now += MINUTE - late

    assert told == [["often", "rarely"], *[["often"]] * 4] * 2
    assert (len(often.reads), len(rarely.reads)) == (10, 2)


FLAPPING = RuleSpec(
    type="threshold",
    name="threshold",
    options={"metric": "backlog", "scale_out_above": "200 * instances", "scale_in_below": "150 * instances"},
)


def lint_warnings(outcome) -> list[str]:
    return [warning for warning in outcome.warnings if warning.startswith("lint: ")]


async def test_what_lint_finds_is_told_once_and_no_report_waits_for_it(monkeypatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(runner, "lint", lambda subject: go_on.wait(30) and lint(subject))
    made = World(policy(rules=(FLAPPING,))).autoscaler()

    first = await asyncio.wait_for(made.collect(), 10)
    second = await asyncio.wait_for(made.collect(), 10)
    go_on.set()
    await made.findings()
    third, fourth = await made.collect(), await made.collect()

    assert len(first.messages) == len(second.messages) == 1
    assert lint_warnings(first) == lint_warnings(second) == lint_warnings(fourth) == []
    assert lint_warnings(third)[0].startswith("lint: targets.plan: between ")


async def test_a_rule_that_breaks_lint_is_a_finding_and_every_target_is_collected() -> None:
    world = World()
    world.policy.rules = (Unfinished(),)
    made = world.autoscaler()

    first = await made.collect()
    await made.findings()

    assert len(first.messages) == 1
    (told,) = lint_warnings(await made.collect())
    assert "rule 'backlog' cannot be checked: TypeError: " in told


async def test_lint_that_was_cancelled_with_its_loop_is_begun_again() -> None:
    made = World(policy(rules=(FLAPPING,))).autoscaler()
    await made.collect()
    made._findings.cancel()
    await asyncio.wait([made._findings])

    assert (await made.collect()).messages
    assert await made.findings()


class Odd:
    """A collector or a scaler of the user's own."""

    def __init__(self, answer) -> None:
        self.answer = answer

    async def collect(self, *, now):
        return await self._answer()

    async def current(self, target, *, now):
        return await self._answer()

    async def _answer(self):
        if isinstance(self.answer, BaseException):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
        return self.answer


def collecting(first, second, scaler=None) -> Autoscaler:
    """Two targets: `one` has `a` (of the first entity) and `b` (of the second), `two` has `b` only."""
    made = World().autoscaler()
    sources = [
        MetricSource("one", "a", "first", "active"),
        MetricSource("one", "b", "second", "active"),
        MetricSource("two", "b", "second", "total"),
    ]
    platform = FakeScaler(FakePlatform(capacity=4))
    made.ports = msgspec.structs.replace(
        made.ports,
        collectors={"first": first, "second": second},
        sources=sources,
        scalers={"one": scaler or platform, "two": platform},
    )
    policies = {name: policy(target=name) for name in ("one", "two")}
    config = Config(policies, MINUTE, 30 * 86_400.0)
    return Autoscaler(config, made.ports, clock=Clock(NOW + 0.0004))


async def reports(made: Autoscaler):
    outcome = await made.collect()
    return {r.target: r for r in (decode(MetricsReport, each) for each in outcome.messages)}, outcome


async def test_an_entity_is_read_once_for_all_targets_and_its_line_shows_what_was_read() -> None:
    first, second = FakeCollector({"active": 7.0}), FakeCollector({"active": 8.0, "total": 9.0})
    made = collecting(first, second)

    found, outcome = await reports(made)

    assert (len(first.reads), len(second.reads)) == (1, 1)
    assert [(s.metric, s.value, s.at) for s in found["one"].samples] == [("a", 7.0, NOW), ("b", 8.0, NOW)]
    assert [s.value for s in found["two"].samples] == [9.0]
    assert found["two"].capacity.current == 4
    assert outcome.lines == ("collector one: a 7, b 8, capacity 4", "collector two: b 9, capacity 4")
    assert outcome.warnings == ()


BAD_READINGS = {
    "refused": (CollectError("403"), Reason.COLLECT_FAILED, "403"),
    "disabled": (CollectError("off", reason=Reason.ENTITY_DISABLED), Reason.ENTITY_DISABLED, "off"),
    "a bug": (KeyError("count"), Reason.COLLECT_FAILED, "KeyError: 'count'"),
    "no reading": (None, Reason.COLLECT_FAILED, "returned None"),
    "no such count": (Reading(NOW, {"dead": 1.0}), Reason.COLLECT_FAILED, "has no 'active'; it has dead"),
    "not a number": (Reading(NOW, {"active": float("nan")}), Reason.INVALID_METRIC, "found active nan"),
    "infinite": (Reading(NOW, {"active": float("inf")}), Reason.INVALID_METRIC, "found active inf"),
    "text": (Reading(NOW, {"active": "7"}), Reason.INVALID_METRIC, "found active '7'"),
    "a time that is none": (Reading(float("nan"), {"active": 7.0}), Reason.INVALID_METRIC, "at nan"),
    "a long message": (CollectError("x" * 90_000), Reason.COLLECT_FAILED, "xxx"),
}


@pytest.mark.parametrize("name", BAD_READINGS)
async def test_a_collector_that_fails_in_any_way_fails_only_its_own_metrics(name: str) -> None:
    answer, reason, message = BAD_READINGS[name]
    found, outcome = await reports(collecting(Odd(answer), FakeCollector({"active": 8.0, "total": 9.0})))

    (failure,) = found["one"].failures
    assert (failure.metric, failure.reason, failure.at) == ("a", reason, NOW)
    assert message in failure.message
    assert [s.metric for s in found["one"].samples] == ["b"]
    assert [s.metric for s in found["two"].samples] == ["b"]
    assert any(w.startswith("collector one: a: ") for w in outcome.warnings)


BAD_CAPACITIES = {
    "refused": (ScalerError("403"), "403"),
    "a bug": (TypeError("oops"), "TypeError: oops"),
    "none": (None, "returned None"),
    "a negative one": (Capacity(-1, NOW), "which is not a capacity"),
}


@pytest.mark.parametrize("name", BAD_CAPACITIES)
async def test_a_capacity_that_cannot_be_read_is_told_and_never_made_up(name: str) -> None:
    answer, message = BAD_CAPACITIES[name]
    found, _ = await reports(
        collecting(FakeCollector(), FakeCollector({"active": 1.0, "total": 1.0}), Odd(answer))
    )

    assert found["one"].capacity is None
    assert message in found["one"].capacity_error
    assert found["two"].capacity.current == 4


async def test_reads_that_do_not_answer_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_DEADLINE", 0.01)
    never = asyncio.Event()
    found, _ = await reports(collecting(Odd(never), FakeCollector({"active": 1.0, "total": 1.0}), Odd(never)))

    assert "no answer within" in found["one"].failures[0].message
    assert "no answer within" in found["one"].capacity_error


# Deciding


async def test_a_report_of_an_unknown_target_is_dropped_with_a_warning() -> None:
    outcome = await World().autoscaler().evaluate(encode(report(1.0, 1, target="gone")))

    assert outcome.warnings == ("scaling gone: not in the configuration; report dropped",)


async def test_an_unreadable_message_raises_so_that_it_ends_in_the_poison_queue() -> None:
    for work in (World().autoscaler().evaluate, World().autoscaler().apply):
        with pytest.raises(MessageError, match="not a"):
            await work("{")


@pytest.mark.parametrize("when", [NOW + CLOCK_TOLERANCE + 1, 1e300, -1.0])
async def test_a_report_that_is_not_of_the_present_changes_nothing(when: float) -> None:
    world = World()
    before = await world.state()
    outcome = await world.autoscaler().evaluate(encode(report(900.0, 3, now=when)))

    assert "is not of the present" in outcome.warnings[0]
    assert await world.state() == before
    assert await world.entries() == []


async def test_state_that_keeps_changing_sends_the_report_back_to_its_queue() -> None:
    world = await deciding()

    async def conflict(*_):
        raise ConflictError

    world.states.save = conflict
    with pytest.raises(ConflictError, match="8 times while deciding"):
        await world.autoscaler().evaluate(world.metrics[0])


async def test_a_corrupt_state_row_is_told_held_on_and_replaced() -> None:
    world = await deciding()
    etag, row = world.states.rows["plan"]["state"]
    world.states.rows["plan"]["state"] = (etag, {**row, "Data00": "{"})
    corrupt = await world.states.load("plan")
    outcome = await world.decide()

    assert corrupt.corrupt == ("state",)
    assert outcome.warnings == ("scaling plan: stored 'state' was unreadable",)
    assert outcome.messages == ()
    assert (await world.state()).last.reason is Reason.STATE_CORRUPT


async def test_unreadable_orders_count_as_a_pause() -> None:
    world = await deciding()
    world.states.rows["plan"]["controls"] = ("tag", {**controls_row(Controls()), "Data00": "{"})
    assert (await world.states.load("plan")).corrupt == ("controls",)

    await world.decide()

    assert (await world.state()).last.reason is Reason.PAUSED


DISABLED = CollectError("queue 'orders' has the status Disabled", reason=Reason.ENTITY_DISABLED)


async def test_a_disabled_queue_never_scales_out_not_even_through_the_fallback_and_not_when_it_is_back() -> (
    None
):
    world = World(policy(**QUICK, fallback=Fallback(capacity=8, after=300.0)), capacity=2)
    read, world.collector.collect = world.collector.collect, refuse(DISABLED)
    await world.pass_minutes(60)
    reasons = {entry.recommendation.reason for entry in await world.entries(LogKind.DECISION)}
    world.collector.collect = read
    await world.pass_minutes(4)

    assert reasons == {Reason.ENTITY_DISABLED}
    assert world.platform.ledger == []


async def test_a_queue_that_cannot_be_read_after_it_was_disabled_gets_its_fallback_in_its_own_time() -> None:
    world = World(policy(**QUICK, fallback=Fallback(capacity=8, after=300.0)), capacity=2)
    moved = []
    for minute in range(20):
        world.collector.collect = refuse(DISABLED if minute < 10 else CollectError("403"))
        await world.tick()
        await world.drain()
        moved += [minute] * (len(world.platform.ledger) - len(moved))
        world.clock.now += MINUTE

    assert (moved, world.platform.ledger) == ([15], [8])  # 300 s after the first read that failed


def refuse(error: Exception):
    async def collect(*, now):
        raise error

    return collect


# Applying


async def test_an_action_of_a_target_no_longer_configured_is_dropped() -> None:
    _, action = await pending()
    outcome = await World().autoscaler().apply(encode(msgspec.structs.replace(action, target="gone")))

    assert outcome.warnings == ("scaler gone: not in the configuration; action dropped",)


REFUSALS = {
    "superseded": (
        {"action_id": "plan@other"},
        Controls(),
        EffectOutcome.SUPERSEDED,
        "not the pending action",
    ),
    "expired": ({"expires_at": NOW}, Controls(), EffectOutcome.EXPIRED, "decided 0 s ago"),
    "paused": ({}, Controls(pauses=(Pause("kim", NOW),)), EffectOutcome.REFUSED, "paused by kim"),
    "dry-run": ({}, Controls(dry_run=True), EffectOutcome.REFUSED, "dry-run is on"),
    "above": ({"to_capacity": 11}, Controls(), EffectOutcome.REFUSED, "outside the configured 1..10"),
    "below": (
        {"to_capacity": 0, "reason": Reason.SCALE_IN},
        Controls(),
        EffectOutcome.REFUSED,
        "outside the configured 1..10",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_an_action_that_may_not_be_carried_out_any_more_is_refused_and_told(name: str) -> None:
    changes, controls, outcome, text = REFUSALS[name]
    world, action = await pending()
    await world.order(controls)
    told = await world.autoscaler().apply(encode(msgspec.structs.replace(action, **changes)))

    (entry,) = await world.entries(LogKind.EFFECT)
    assert (entry.effect.outcome, world.platform.ledger) == (outcome, [])
    assert text in told.warnings[0]
    assert ((await world.state()).pending is None) == (name != "superseded")
    assert (await world.state()).effects == ()


async def test_an_override_is_carried_out_during_a_pause() -> None:
    world = await deciding()
    await world.order(Controls((Pause("kim", NOW),), Override(7, "kim", NOW, NOW + 3600)))
    await world.drain()

    assert world.platform.ledger == [7]


async def sent_again(world: World, before: float, at: float) -> None:
    """The pending action is sent again at `at` seconds from now, and not at `before`; once."""
    begun = world.clock.now
    world.clock.now = begun + before
    await world.verify()
    assert world.actions == []
    world.clock.now = begun + at
    await world.verify()
    await world.verify()
    assert world.actions == [encode((await world.state()).pending)]


@pytest.mark.parametrize(
    ("retry_after", "again"), [(None, 30.0), (7.0, 7.0), (300.0, 300.0), (float("nan"), 30.0), ("soon", 30.0)]
)
async def test_a_scaler_that_fails_hands_its_action_back_and_it_is_sent_again_when_the_platform_asked_for_it(
    retry_after, again
) -> None:
    world, action = await pending()
    carry_out, world.scaler.inner.apply = (
        world.scaler.inner.apply,
        fail(ScalerError("429", retry_after=retry_after)),
    )
    told = await world.deliver()

    assert "429" in told.warnings[0]
    assert await effects(world) == [EffectOutcome.FAILED]
    assert ((await world.state()).pending, (await world.state()).effects) == (action, ())

    world.scaler.inner.apply = carry_out
    await sent_again(world, again - 1.0, again)
    await world.drain()
    assert world.platform.ledger == [3]


async def test_a_scaler_that_raises_what_nobody_thought_of_is_told_to_the_host_and_its_action_stays_pending() -> (
    None
):
    world, action = await pending()
    world.scaler.inner.apply = fail(RuntimeError("of the user"))
    with pytest.raises(RuntimeError, match="of the user"):
        await world.drain()

    assert await effects(world) == [EffectOutcome.FAILED]
    assert ((await world.state()).pending, (await world.state()).effects) == (action, ())
    world.actions.clear()
    await sent_again(world, 29.0, 30.0)


async def test_what_is_no_effect_is_a_bug_of_the_scaler_and_its_action_stays_pending() -> None:
    world, action = await pending()

    async def odd(*_, **__):
        return "done"

    world.scaler.inner.apply = odd
    with pytest.raises(AttributeError):
        await world.drain()

    assert (await world.state()).pending == action


def fail(error: BaseException):
    async def raises(*_, **__):
        raise error

    return raises


async def test_an_action_is_not_sent_again_while_a_scaler_is_at_it_and_again_when_that_one_died() -> None:
    world, _ = await pending()
    world.scaler.inner.apply = fail(Crash())
    with pytest.raises(Crash):
        await world.deliver()
    until = (await world.state()).delivery.carried_until

    assert until == world.clock.now + DELIVERY_SECONDS + DELIVERY_MARGIN
    await sent_again(world, until - world.clock.now - 1.0, until - world.clock.now)


async def overtaken(world: World, second) -> list[str]:
    """Carries out the queued action, another delivery of which comes while a scaler is at it: `second` is what that
    one meets. A minute later an override is decided upon, still before the first one is over. The actions it emits.
    """
    carry_out, other = world.scaler.inner.apply, world.autoscaler()
    (message,), emitted = world.actions, []

    async def first(action, *, now):
        world.scaler.inner.apply = second
        world.clock.now += 1.0
        await other.apply(message)
        world.scaler.inner.apply = carry_out
        await world.order(Controls(override=Override(7, "kim", NOW, NOW + 3600)))
        emitted.extend((await world.later()).messages)
        return await carry_out(action, now=now)

    world.scaler.inner.apply = first
    await world.deliver()
    return emitted


async def test_a_second_delivery_that_is_handed_back_does_not_end_the_first_one() -> None:
    world, _ = await pending()

    assert await overtaken(world, fail(ScalerError("another operation is in progress"))) == []
    assert await effects(world) == [EffectOutcome.FAILED, EffectOutcome.APPLIED]


async def test_a_second_delivery_that_may_not_begin_gives_nothing_up_under_the_hands_of_the_first_one() -> (
    None
):
    world, _ = await pending()

    async def first(action, *, now):
        await world.order(Controls(pauses=(Pause("kim", NOW),)))
        outcome = await other.apply(encode(action))
        assert "paused by kim" in outcome.warnings[0]
        assert (await world.state()).pending == action
        return await carry_out(action, now=now)

    carry_out, other = world.scaler.inner.apply, world.autoscaler()
    world.scaler.inner.apply = first
    await world.deliver()

    assert await effects(world) == [EffectOutcome.APPLIED]


async def test_a_delivery_that_is_handed_back_does_not_end_one_that_began_after_it() -> None:
    world, _ = await pending()
    other, seen = world.autoscaler(), []

    async def first(action, *, now):
        world.clock.now += 1.0
        world.scaler.inner.apply = second
        with pytest.raises(Crash):  # the second one: as its scaler would find it after the first one was over
            await other.apply(encode(action))
        raise ScalerError("another operation is in progress")

    async def second(action, *, now):
        seen.append((await world.state()).delivery)
        raise Crash

    world.scaler.inner.apply = first
    await world.deliver()

    assert [(await world.state()).delivery] == seen


async def test_a_delivery_is_over_when_its_action_expires_however_slowly_its_state_was_saved() -> None:
    world, action = await pending()
    world.clock.now = action.expires_at - 10.0
    save, calls = world.states.save, []

    async def slow(*arguments):
        await save(*arguments)
        world.clock.now += 11.0

    async def apply(action, *, now):
        calls.append(now)

    world.states.save, world.scaler.inner.apply = slow, apply
    outcome = await world.deliver()

    assert calls == []
    assert "its time was over" in outcome.warnings[0]


async def test_an_action_sent_again_is_saved_as_sent_so_that_checks_and_evaluations_send_it_once() -> None:
    world, action = await pending()
    world.actions.clear()
    world.clock.now += world.policy.spec.effect_timeout
    await world.tick()
    (again,) = (await world.decide()).messages
    await world.verify()

    assert again == encode(action)
    assert world.actions == []


async def test_actions_are_sent_again_and_their_effects_found_however_rarely_the_checks_run() -> None:
    world, action = await pending()
    world.actions.clear()  # the message was lost
    for _ in range(2):
        await world.minute()

    assert world.platform.ledger == [3]
    state = await world.state()
    assert (state.pending, state.effects[-1].action_id) == (None, action.action_id)


async def test_an_effect_that_nobody_recorded_is_found_and_logged_by_the_next_evaluation() -> None:
    world, action = await pending()
    world.platform.order(3)
    await world.later()

    assert [effect.action_id for effect in (await world.state()).effects] == [action.action_id]
    assert await effects(world) == [EffectOutcome.ALREADY_THERE]


async def test_a_pause_cancels_what_is_pending_and_says_so() -> None:
    world, action = await pending()
    await world.order(Controls(pauses=(Pause("kim", NOW),)))
    outcome = await world.later()

    assert (await world.state()).pending is None
    assert outcome.messages == ()
    assert f"[{action.action_id}] is cancelled: paused by kim" in outcome.warnings[0]
    assert await effects(world) == [EffectOutcome.REFUSED]


# Overrides


async def stuck(**changes) -> tuple[World, ScaleAction]:
    """A world whose action 2 -> 3 was handed back for ten minutes."""
    world, action = await pending(**changes)
    world.scaler.inner.apply, carry_out = (
        fail(ScalerError("busy", retry_after=590.0)),
        world.scaler.inner.apply,
    )
    await world.deliver()
    world.scaler.inner.apply = carry_out
    return world, action


@pytest.mark.parametrize(("wanted", "ledger"), [(7, [7]), (2, [])])
async def test_an_override_takes_the_place_of_a_stuck_action_whose_later_delivery_is_refused(
    wanted: int, ledger: list[int]
) -> None:
    world, action = await stuck()
    await world.order(Controls(override=Override(wanted, "kim", NOW, NOW + 3600)))
    await world.minute()
    late = await world.autoscaler().apply(encode(action))

    assert world.platform.ledger == ledger
    assert "not the pending action" in late.warnings[0]
    assert ((await world.state()).expected, (await world.state()).pending) == (wanted, None)


async def test_an_override_goes_on_from_where_the_action_whose_place_it_takes_led_after_all() -> None:
    world, _ = await stuck()
    await world.order(Controls(override=Override(7, "kim", NOW, NOW + 3600)))
    world.actions += (await world.later()).messages
    world.platform.order(3)  # what became of the first action was not known
    await world.drain()
    await world.minute()

    state = await world.state()
    assert world.platform.ledger == [3, 7]
    assert (state.expected, state.external_change, state.pending) == (7, None, None)


async def test_a_second_override_goes_on_from_where_the_action_led_whose_place_the_first_one_took() -> None:
    world, _ = await stuck()
    for wanted in (7, 5):
        await world.order(Controls(override=Override(wanted, "kim", world.clock.now, NOW + 3600)))
        world.actions = list((await world.later()).messages)
    world.platform.order(3)  # what became of the first action was not known
    await world.drain()

    state = await world.state()
    assert world.platform.ledger == [3, 5]
    assert (state.expected, state.external_change, state.pending) == (5, None, None)


async def test_an_override_does_not_hurry_past_a_change_in_the_making() -> None:
    world, action = await pending()
    carry_out = world.scaler.inner.apply

    async def meanwhile(action, *, now):
        await world.order(Controls(override=Override(7, "kim", NOW, NOW + 3600)))
        assert (await world.later()).messages == ()
        return await carry_out(action, now=now)

    world.scaler.inner.apply = meanwhile
    await world.deliver()
    world.scaler.inner.apply = carry_out
    await world.minute()

    assert world.platform.ledger == [3, 7]
    assert (await world.state()).effects[0].action_id == action.action_id


async def test_the_cooldown_starts_when_the_change_is_there_not_when_it_was_ordered() -> None:
    world, _ = await pending()
    carry_out = world.scaler.inner.apply

    async def slow(action, *, now):
        world.clock.now += 90.0
        return await carry_out(action, now=now)

    world.scaler.inner.apply = slow
    await world.drain()

    assert (await world.state()).effects[0].at == world.clock.now


async def test_a_second_delivery_of_an_action_says_so_and_adds_nothing_to_the_log() -> None:
    world, action = await pending()
    await world.drain()
    outcome = await world.autoscaler().apply(encode(action))

    assert outcome.lines == (f"scaler plan: already carried out [{action.action_id}]",)
    assert await effects(world) == [EffectOutcome.APPLIED]


# Verifying


async def test_an_action_without_effect_is_emitted_again_with_the_same_id() -> None:
    world, action = await pending()
    world.actions.clear()
    await world.verify()
    assert world.actions == []

    world.clock.now += world.policy.spec.effect_timeout
    await world.verify()

    assert world.actions == [encode(action)]
    (entry,) = await world.entries(LogKind.VERIFY)
    assert "emitted again" in entry.line


async def test_an_effect_nobody_recorded_is_found_recorded_and_logged() -> None:
    world, action = await pending()
    world.platform.order(3)
    world.clock.now += 1.0
    await world.verify()

    (effect,) = (await world.state()).effects
    assert (effect.action_id, (await world.state()).pending) == (action.action_id, None)
    assert await effects(world) == [EffectOutcome.ALREADY_THERE]


async def test_nothing_is_repeated_while_the_platform_is_still_at_it() -> None:
    world, action = await pending()
    world.actions.clear()
    world.platform.pending = True
    world.clock.now += world.policy.spec.action_ttl + 1
    await world.verify()

    assert (await world.state()).pending == action
    assert world.actions == []


async def test_an_expired_action_is_given_up() -> None:
    world, _ = await pending()
    world.clock.now += world.policy.spec.action_ttl
    world.actions.clear()
    await world.verify()

    assert (await world.state()).pending is None
    assert "expired without effect" in (await world.entries(LogKind.VERIFY))[0].line


async def test_a_external_change_is_flagged_once_and_taken_over_after_its_hold() -> None:
    world = World(capacity=2)
    await world.tick()
    await world.drain()
    world.platform.move(6)
    for _ in range(3):
        world.clock.now += MINUTE
        await world.verify()
    flagged = await world.entries(LogKind.VERIFY)
    world.clock.now += world.policy.spec.external_hold
    await world.verify()

    assert [entry.reason for entry in flagged] == [Reason.EXTERNAL_CHANGE]
    assert "expected 2, found 6" in flagged[0].line
    assert "taken over" in (await world.entries(LogKind.VERIFY))[-1].line
    assert (await world.state()).expected == 6


async def test_a_check_that_meets_trouble_is_a_warning_and_never_an_error() -> None:
    world, _ = await pending()
    world.platform.unreachable = True
    unreachable = await world.autoscaler().verify()
    world.platform.unreachable = False

    async def down(*_, **__):
        raise StoreUnavailableError("tables are down")

    world.states.load = world.log.purge = down
    stores = await world.autoscaler().verify()

    assert "the platform does not answer" in unreachable.warnings[0]
    assert len(stores.warnings) == 2
    assert all("tables are down" in warning for warning in stores.warnings)


async def test_entries_beyond_the_retention_are_removed() -> None:
    world = World()
    old, young = NOW - 31 * 86_400.0, NOW - 29 * 86_400.0
    await world.log.append(
        [LogEntry("plan", when, LogKind.DECISION, "decision", "line", "in") for when in (old, young)]
    )
    outcome = await world.autoscaler().verify()

    assert outcome.lines == (
        "scaling log: 1 entries older than the retention removed",
        "verify: 1 target checked, as requested",
    )
    assert [entry.at for entry in await world.entries()] == [young]


async def test_closing_closes_every_port_even_if_one_fails() -> None:
    world = World()

    async def fail() -> None:
        raise OSError("gone")

    world.states.aclose = fail
    with pytest.raises(OSError, match="gone"):
        await world.autoscaler().aclose()

    assert all(port.closed for port in (world.scaler, world.collector, world.log, world.poison))


# A budget of the day


async def test_that_the_budget_will_not_last_is_warned_of_and_logged_once() -> None:
    world = World(policy(**QUICK, budget=Budget(amount=48.0)), capacity=4)
    warnings = []
    for _ in range(90):
        await world.tick()
        outcome = await world.autoscaler().evaluate(world.metrics.pop())
        warnings += outcome.warnings
        world.clock.now += MINUTE

    [told] = [text for text in warnings if "budget" in text]
    assert told.startswith(
        "scaling plan: the budget will not last: 20 of 48 instance-hours spent today; at the pace"
    )
    [entry] = await world.entries(LogKind.VERIFY)
    assert (entry.line, entry.reason) == (told, Reason.OVER_BUDGET)


async def test_a_report_that_is_delivered_twice_is_spent_once_and_replays() -> None:
    world = World(policy(**QUICK, budget=Budget(amount=48.0)), capacity=4)
    world.backlog = 900.0
    for _ in range(3):
        await world.tick()
        report_ = world.metrics.pop()
        first = await world.autoscaler().evaluate(report_)
        spent = (await world.state()).spent
        world.clock.now += 10.0
        await world.autoscaler().evaluate(report_)
        assert (await world.state()).spent == spent
        world.clock.now += 50.0

    assert first.lines
    assert spent.hours == pytest.approx(16.0 + 4 * 2 / 60)
    for entry in await world.entries(LogKind.DECISION):
        row = await world.log.get("plan", entry.at, "decision")
        assert same(row.recommendation, replay(decode_inputs(row.inputs)))


# A pending action is asked again: tests/unit/scaling/service/test_reconsider.py has the whole table


async def going_in(**changes) -> World:
    """A world with 6 instances whose pending action 6 -> 5 the platform answers with 409 for the next hour."""
    world = World(policy(**(QUICK | changes)), capacity=6)
    world.backlog = 20.0
    world.platform.conflicts = 60
    await world.pass_minutes(2)
    assert (await world.state()).pending.to_capacity == 5
    return world


async def test_a_scale_in_that_the_platform_delays_gives_way_to_a_surge() -> None:
    world = await going_in()
    world.backlog = 9000.0
    await world.minute()
    await world.minute()
    world.platform.conflicts = 0
    await world.minute()

    assert world.platform.ledger == [7]
    assert EffectOutcome.WITHDRAWN in await effects(world)


async def test_a_scale_in_that_the_platform_delays_is_not_carried_out_while_its_metric_is_missing() -> None:
    world = await going_in()
    world.collector.collect = refuse(CollectError("no answer"))
    await world.minute()
    world.platform.conflicts = 0
    for _ in range(9):
        await world.minute()

    assert world.platform.ledger == []


async def test_an_action_of_an_override_ends_with_the_override() -> None:
    world = World(policy(**QUICK), capacity=6)
    await world.pass_minutes(2)
    world.platform.conflicts = 60
    await world.order(Controls(override=Override(3, "kim", world.clock.now, world.clock.now + 90)))
    await world.minute()
    assert (await world.state()).pending.to_capacity == 3
    world.platform.conflicts = 0
    await world.order(Controls(external_cleared_at=world.clock.now))
    await world.minute()

    assert world.platform.ledger == []


async def test_a_capacity_below_the_minimum_that_somebody_else_set_is_raised_at_once() -> None:
    world = World(policy(**QUICK, minimum=4), capacity=8)
    await world.pass_minutes(2)
    world.platform.move(2)
    await world.minute()

    assert world.platform.ledger == [4]
    line = (await world.entries(LogKind.DECISION))[-1].line
    assert "out 2 -> 4: below minimum, set to 2 by somebody else, expected 8" in line
