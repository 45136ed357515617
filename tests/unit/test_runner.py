"""The shell: reading, deciding, applying and checking over fakes, with every refusal and every failure."""

import asyncio

import msgspec
import pytest

from scaling import reading
from scaling.codec import MessageError, decode_report, encode_action, encode_report
from scaling.config import Config
from scaling.model import (
    Capacity,
    Controls,
    EffectOutcome,
    LogEntry,
    LogKind,
    Override,
    Pause,
    Reason,
    ScaleAction,
)
from scaling.policy import RuleSpec
from scaling.ports import CollectError, ConflictError, Reading, ScalerError, StoreUnavailableError
from scaling.reading import MetricSource
from scaling.runner import CLOCK_TOLERANCE, Autoscaler
from tests.fakes import controls_row
from tests.fakes_azure import FakeCollector, FakePlatform, FakeScaler
from tests.runner_support import MINUTE, NOW, Clock, World, metric, policy, report

QUICK = {"metrics": {"backlog": metric(span=120.0, min_samples=2)}}


async def deciding(**changes) -> World:
    """A world whose next report scales out from 2 to 3."""
    world = World(policy(**(QUICK | changes)), capacity=2)
    world.backlog = 900.0
    await world.tick()
    await world.drain()
    world.clock.now += MINUTE
    await world.tick()
    return world


async def pending(**changes) -> tuple[World, ScaleAction]:
    world = await deciding(**changes)
    outcome = await world.autoscaler().evaluate(world.metrics.pop())
    world.actions = list(outcome.messages)
    return world, (await world.state()).pending


async def effects(world: World) -> list[EffectOutcome]:
    return [entry.effect.outcome for entry in await world.entries(LogKind.EFFECT)]


async def order(world: World, controls: Controls) -> None:
    await world.controls.save("plan", controls, (await world.controls.load("plan"))[1])


# Collecting


async def test_what_lint_finds_is_told_with_the_first_report_and_never_again() -> None:
    options = {"metric": "backlog", "scale_out_above": "200 * instances", "scale_in_below": "150 * instances"}
    world = World(policy(rules=(RuleSpec(type="threshold", name="threshold", options=options),)))
    made = world.autoscaler()

    first, second = await made.collect(), await made.collect()

    assert [w for w in first.warnings if w.startswith("lint: targets.plan: ")]
    assert not [w for w in second.warnings if w.startswith("lint:")]


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
    return {r.target: r for r in map(decode_report, outcome.messages)}, outcome


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
    outcome = await World().autoscaler().evaluate(encode_report(report(1.0, 1, target="gone")))

    assert outcome.warnings == ("scaling gone: not in the configuration; report dropped",)


async def test_an_unreadable_message_raises_so_that_it_ends_in_the_poison_queue() -> None:
    for work in (World().autoscaler().evaluate, World().autoscaler().apply):
        with pytest.raises(MessageError, match="not a"):
            await work("{")


@pytest.mark.parametrize("when", [NOW + CLOCK_TOLERANCE + 1, 1e300, -1.0])
async def test_a_report_that_is_not_of_the_present_changes_nothing(when: float) -> None:
    world = World()
    before = await world.state()
    outcome = await world.autoscaler().evaluate(encode_report(report(900.0, 3, now=when)))

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
    outcome = await world.autoscaler().evaluate(world.metrics.pop())

    assert corrupt.corrupt == ("state",)
    assert outcome.warnings == ("scaling plan: stored 'state' was unreadable",)
    assert outcome.messages == ()
    assert (await world.state()).last.reason is Reason.STATE_CORRUPT


async def test_unreadable_orders_count_as_a_pause() -> None:
    world = await deciding()
    world.states.rows["plan"]["controls"] = ("tag", {**controls_row(Controls()), "Data00": "{"})
    assert (await world.states.load("plan")).corrupt == ("controls",)

    await world.autoscaler().evaluate(world.metrics.pop())

    assert (await world.state()).last.reason is Reason.PAUSED


# Applying


async def test_an_action_of_a_target_no_longer_configured_is_dropped() -> None:
    _, action = await pending()
    outcome = await World().autoscaler().apply(encode_action(msgspec.structs.replace(action, target="gone")))

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
    await order(world, controls)
    told = await world.autoscaler().apply(encode_action(msgspec.structs.replace(action, **changes)))

    (entry,) = await world.entries(LogKind.EFFECT)
    assert (entry.effect.outcome, world.platform.ledger) == (outcome, [])
    assert text in told.warnings[0]
    assert ((await world.state()).pending is None) == (name != "superseded")
    assert (await world.state()).effects == ()


async def test_an_override_is_carried_out_during_a_pause() -> None:
    world = await deciding()
    await order(world, Controls((Pause("kim", NOW),), Override(7, "kim", NOW, NOW + 3600)))
    await world.drain()

    assert world.platform.ledger == [7]


@pytest.mark.parametrize("error", [ScalerError("429"), RuntimeError("of the user")])
async def test_a_scaler_that_raises_is_logged_and_the_action_stays_pending(error: Exception) -> None:
    world, action = await pending()

    async def fail(*_, **__):
        raise error

    world.scaler.inner.apply = fail
    with pytest.raises(type(error)):
        await world.drain()

    assert await effects(world) == [EffectOutcome.FAILED]
    assert (await world.state()).pending == action
    assert (await world.state()).effects == ()


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
    outcome = await world.autoscaler().apply(encode_action(action))

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

    assert world.actions == [encode_action(action)]
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


async def test_a_foreign_hand_is_flagged_once_and_taken_over_after_its_hold() -> None:
    world = World(capacity=2)
    await world.tick()
    await world.drain()
    world.platform.move(6)
    for _ in range(3):
        world.clock.now += MINUTE
        await world.verify()
    flagged = await world.entries(LogKind.VERIFY)
    world.clock.now += world.policy.spec.foreign_hold
    await world.verify()

    assert [entry.reason for entry in flagged] == [Reason.FOREIGN_HAND]
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

    assert outcome.lines == ("scaling log: 1 entries older than the retention removed",)
    assert [entry.at for entry in await world.entries()] == [young]


async def test_closing_closes_every_port_even_if_one_fails() -> None:
    world = World()

    async def fail() -> None:
        raise OSError("gone")

    world.states.aclose = fail
    with pytest.raises(OSError, match="gone"):
        await world.autoscaler().aclose()

    assert all(
        port.closed for port in (world.scaler, world.collector, world.log, world.poison, world.controls)
    )
