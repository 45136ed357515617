"""A shadow in the whole autoscaler: one row of the log, one row of state, orders over HTTP, and replay as before."""

import json
import threading

import msgspec
import pytest
from msgspec import structs

from scaling.analysis.replay import decode_inputs, replay, same
from scaling.config.policy import RuleSpec, ShadowSpec
from scaling.model import Controls, Reason, Verdict
from scaling.shadow.memory import decode
from scaling.storage.rows import controls_row, read_controls, target_row
from scaling.web import api
from tests.support.scaling.runner import World, changed, policy
from tests.support.scaling.shadow import fixed
from tidemark.foundation.keys import TooLargeError

TRIED = ShadowSpec(rules=(fixed(6),), minimum=1, maximum=10)


@pytest.fixture
def world():
    return World(policy(shadow=TRIED))


async def ordered(world, on, *, target="plan"):
    body = msgspec.json.encode({"on": on, "by": "kim"})
    return await api.control(world.autoscaler(), api.Order(target, "promote", body))


async def test_a_decision_and_what_was_decided_beside_it_are_one_row(world):
    await world.pass_minutes(6)

    *_, entry = await world.entries("decision")
    assert (entry.desired, entry.shadow.desired, entry.shadow.current) == (2, 6, 6)
    assert entry.shadow.line.startswith("shadow plan hold 6")
    shown = json.loads((await api.log(world.autoscaler(), {})).body)["entries"][0]
    assert shown["shadow"] == msgspec.to_builtins(entry.shadow)


async def test_a_shadow_is_never_carried_out(world):
    await world.pass_minutes(8)

    assert world.platform.capacity == 2
    assert not world.actions
    assert (await world.entries("effect")) == []


async def test_decisions_with_a_shadow_replay_byte_for_byte_and_hold_nothing_of_it(world):
    await world.pass_minutes(6)

    entries = await world.entries("decision")
    for entry in entries:
        row = await world.log.get("plan", entry.at, "decision")
        inputs = decode_inputs(row.inputs)
        assert (inputs.state.shadow, inputs.policy.shadow) == (b"", None)
        assert same(entry.recommendation, replay(inputs))


async def test_a_second_delivery_writes_what_was_said_beside_it_too(world):
    await world.pass_minutes(6)
    await world.tick()
    message = world.metrics[-1]
    await world.drain()
    *_, entry = await world.entries("decision")
    world.log.rows.clear()

    await world.autoscaler().evaluate(message)

    (again,) = await world.entries("decision")
    assert again.shadow == entry.shadow is not None


async def test_a_promoted_shadow_decides_and_the_order_stands_in_the_log(world):
    await world.pass_minutes(6)

    answer = await ordered(world, True)

    assert answer.status == 200
    shown = json.loads(answer.body)["shadow"]
    assert (shown["simulated"], shown["promoted_by"]) == ("configured", "kim")
    assert "tidemark.toml should follow" in shown["notes"][0]
    (control,) = await world.entries("control")
    assert (control.by, control.reason) == ("kim", "promote")
    assert control.line.startswith(
        "control plan: shadow promoted, its rules decide; tidemark.toml should follow"
    )
    await world.pass_minutes(3)
    assert world.platform.capacity == 6
    row = await world.log.get("plan", (await world.entries("decision"))[-1].at, "decision")
    assert same(row.recommendation, replay(decode_inputs(row.inputs)))
    assert row.shadow.promoted


async def test_that_a_budget_will_not_last_is_told_by_the_rules_that_decide(world, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "scaling.service.evaluation.budget_warning", lambda policy, *_, **__: asked.append(policy)
    )
    await world.pass_minutes(1)
    await ordered(world, True)
    await world.pass_minutes(1)

    assert asked == [world.policy, world.policy.promoted]


async def test_a_promotion_is_undone_by_the_same_order(world):
    await world.pass_minutes(6)
    await ordered(world, True)
    await world.pass_minutes(2)
    world.backlog = 0.0

    answer = await ordered(world, False)

    assert json.loads(answer.body)["shadow"]["simulated"] == "shadow"
    await world.pass_minutes(9)
    assert world.platform.capacity == 1


async def test_status_warns_while_a_promotion_stands(world):
    await world.pass_minutes(2)
    before = json.loads((await api.status(world.autoscaler())).body)["problems"]

    await ordered(world, True)

    after = json.loads((await api.status(world.autoscaler())).body)["problems"]
    (problem,) = [text for text in after if text not in before]
    assert problem.startswith("warning: targets.plan: its shadow decides, promoted by kim")
    assert [text for text in after if text != problem] == before


@pytest.mark.parametrize(
    ("on", "text"),
    [(None, "on: is missing; accepted are true and false"), ("yes", "on: found 'yes'; accepted are")],
)
async def test_a_promotion_says_what_it_is(world, on, text):
    answer = await ordered(world, on)

    assert answer.status == 400
    assert text in answer.body.decode()


async def test_there_is_nothing_to_promote_without_a_shadow():
    world = World()

    answer = await ordered(world, True)

    assert answer.status == 400
    assert "tidemark.toml has no usable [targets.plan.shadow]" in answer.body.decode()
    assert (await ordered(world, False)).status == 200


async def test_orders_that_cannot_be_read_do_not_end_a_promotion(world):
    await world.pass_minutes(3)
    await ordered(world, True)
    await world.pass_minutes(2)
    before = (await world.state()).shadow
    etag, row = world.states.rows["plan"]["controls"]
    world.states.rows["plan"]["controls"] = (etag, {**row, "Data00": "{"})

    await world.tick()
    outcome = await world.decide()

    assert (await world.state()).shadow == before
    assert decode(before).promoted
    assert any("controls" in warning for warning in outcome.warnings)


async def test_where_the_row_has_no_room_the_shadow_is_what_goes(world, monkeypatch):
    await world.pass_minutes(6)
    assert (await world.state()).shadow

    def full(target, state, windows):
        if state.shadow:
            raise TooLargeError("the row is full")
        return target_row(target, state, windows)

    monkeypatch.setattr("tests.support.scaling.fakes.target_row", full)
    await world.tick()
    outcome = await world.decide()

    assert outcome.warnings == ("shadow plan: the row is full; it begins anew",)
    state = await world.state()
    assert state.shadow == b""
    assert state.last.reason is Reason.WITHIN_TARGET


async def test_a_misbehaving_shadow_is_a_warning_of_the_function(world, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("scaling.shadow.beside.decide", broken)
    await world.tick()
    outcome = await world.decide()

    assert outcome.warnings == ("shadow plan: ZeroDivisionError: broken; it begins anew",)
    assert (await world.entries("decision"))[-1].shadow is None


class Stuck:
    """A rule that waits until it is let go, or tries to end the process."""

    free = threading.Event()

    def __init__(self, *, how):
        self.how = how

    def evaluate(self, view):
        if self.how == "exit":
            raise SystemExit(3)
        assert self.free.wait(60.0)
        return Verdict(view.current + 1, Reason.SCALE_OUT)


def trying(how):
    rule = RuleSpec(type=f"{__name__}:Stuck", name="stuck", options={"how": how})
    return World(policy(shadow=ShadowSpec(rules=(rule,), minimum=1, maximum=10)))


async def test_a_simulated_rule_that_hangs_is_left_out_until_it_answers_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("scaling.service.own_code.SHADOW_DEADLINE", 0.05)
    Stuck.free.clear()
    world, alone = trying("hang"), World(policy())
    process = world.autoscaler()
    told = []

    async def minute():
        alone.clock.now = world.clock.now = world.clock.now + 60.0
        await alone.tick()
        await alone.decide()
        (message,) = (await process.collect()).messages
        return (await process.evaluate(message)).warnings

    try:
        for _ in range(6):
            told += await minute()
    finally:
        Stuck.free.set()

    assert told == ["shadow plan: no answer within 0.05 s; left out until it answers"]
    made = [entry.recommendation for entry in await world.entries("decision")]
    assert made == [entry.recommendation for entry in await alone.entries("decision")]
    assert len(made) == 6

    for thread in threading.enumerate():
        if thread.name == "shadow plan":
            thread.join(60.0)
    monkeypatch.setattr("scaling.service.own_code.SHADOW_DEADLINE", 60.0)
    assert await minute() == ()
    assert (await world.entries("decision"))[-1].shadow is not None


async def test_a_simulated_rule_that_ends_the_process_ends_nothing():
    world = trying("exit")

    await world.tick()
    outcome = await world.decide()

    assert outcome.warnings == ("shadow plan: RuntimeError: it raised SystemExit(3); it begins anew",)
    assert len(await world.entries("decision")) == 1


@pytest.mark.parametrize(
    ("how", "why"), [("hang", "no answer of its rules within 0.05 s"), ("exit", "SystemExit")]
)
async def test_a_rule_that_never_answers_the_checks_does_not_keep_the_status_back(monkeypatch, how, why):
    monkeypatch.setattr("scaling.service.autoscaler.LINT_DEADLINE", 0.05 if how == "hang" else 60.0)
    Stuck.free.clear()
    process = trying(how).autoscaler()
    try:
        answer = await api.status(process)
    finally:
        Stuck.free.set()

    (problem,) = json.loads(answer.body)["problems"]
    assert problem.startswith("error: targets.plan: cannot be checked: ")
    assert why in problem
    await process.aclose()


async def test_the_log_tells_when_the_file_ends_a_promotion_and_when_it_brings_it_back(world):
    await world.pass_minutes(4)
    await ordered(world, True)
    await world.pass_minutes(3)
    assert await world.entries("verify") == []

    for tried in (structs.replace(TRIED, rules=(fixed(7),)), TRIED, None):
        world.policy = changed(world.policy, shadow=tried)
        await world.pass_minutes(2)

    assert [(entry.reason, entry.line) for entry in await world.entries("verify")] == [
        (
            "promote",
            "scaling plan: the shadow that kim promoted has other rules now: the configured rules decide",
        ),
        ("promote", "scaling plan: tidemark.toml has the shadow again that kim promoted: its rules decide"),
        (
            "promote",
            "scaling plan: the shadow that kim promoted is not in tidemark.toml any more: the configured rules decide",
        ),
    ]


def test_orders_of_earlier_releases_are_read():
    assert read_controls(controls_row(Controls())) == Controls()
    old = msgspec.json.decode(msgspec.json.encode(Controls()))
    del old["promoted"]
    assert msgspec.convert(old, Controls) == Controls()


def test_a_shadow_whose_class_is_gone_leaves_the_policy_usable():
    broken = structs.replace(TRIED, rules=(structs.replace(fixed(6), type="nowhere:Rule"),))

    made = changed(policy(), shadow=broken)

    assert (made.shadow, made.promoted) == (None, None)
