"""A target that others scale: what is advised counts as done, and is told over HTTP, or nothing is."""

import json

import msgspec
import pytest

from scaling.config.policy import Pace, RuleSpec
from scaling.model import Controls, EffectOutcome, Override, Pause, Reason
from scaling.scalers.advice import AdviceScaler
from scaling.web import api
from tests.support.scaling.runner import MINUTE, World, policy

PER_UNIT = RuleSpec(type="target_per_unit", name="backlog", options={"metric": "backlog", "target": 100.0})


class AdvisedWorld(World):
    def __init__(self, **changes):
        options = {name: changes.pop(name) for name in ("initial", "allowed") if name in changes}
        params = AdviceScaler.Params(**options)
        made = policy(rules=(PER_UNIT,), **{"minimum": 0, **changes})
        super().__init__(type(made)(msgspec.structs.replace(made.spec, facts=AdviceScaler.facts(params))))
        self.scaler = AdviceScaler(params, {})

    @property
    def ports_hooked(self):
        return (self.collector, self.states, self.log)

    async def recommendation(self, target="plan"):
        answer = await api.recommendation(self.autoscaler(), target)
        return answer.status, json.loads(answer.body)


async def advised(backlog, minutes=6, **changes):
    world = AdvisedWorld(**changes)
    world.backlog = backlog
    await world.pass_minutes(minutes)
    return world


async def test_what_is_advised_is_taken_for_done_and_nobody_is_a_external_change():
    world = await advised(730.0)
    await world.verify()
    state = await world.state()

    assert (state.expected, state.pending, state.external_change) == (8, None, None)
    assert [entry.effect.outcome for entry in await world.entries("effect")] == [EffectOutcome.APPLIED]
    assert state.last.reason is Reason.WITHIN_TARGET


async def test_the_answer_has_what_the_metrics_api_scaler_of_keda_reads():
    """`valueLocation: desired` is a path of GJSON: a number at the top of the object."""
    status, body = await (await advised(730.0)).recommendation()

    assert (status, body["desired"], body["unit"]) == (200, 8, "replicas")
    assert type(body["desired"]) is int
    assert {
        "target",
        "current",
        "minimum",
        "maximum",
        "reason",
        "line",
        "decided_at",
        "decision_id",
        "dry_run",
    } <= set(body)


async def test_zero_is_advised_only_where_it_was_decided():
    status, body = await (await advised(0.0)).recommendation()

    assert (status, body["desired"]) == (200, 0)


async def test_in_a_dry_run_nothing_is_advised_but_what_there_is():
    _, body = await (await advised(730.0, dry_run=True)).recommendation()

    assert (body["desired"], body["dry_run"]) == (1, True)
    assert "would go out 1 -> 8" in body["line"]


async def test_bounds_cooldowns_orders_and_allowed_values_hold_as_for_any_other_target():
    world = await advised(730.0, maximum=6, allowed=(1, 2, 4, 6), inward=Pace(cooldown=3600.0))
    world.backlog = 0.0
    await world.pass_minutes(6)
    held = (await world.recommendation())[1]
    await world.order(Controls(override=Override(3, "kim", world.clock(), world.clock() + 600)))
    await world.pass_minutes(2)
    ordered = (await world.recommendation())[1]
    await world.order(Controls(pauses=(Pause("kim", world.clock()),)))
    await world.pass_minutes(2)

    assert (held["desired"], held["reason"]) == (6, Reason.COOLING_DOWN)
    assert ordered["desired"] == 4
    assert (await world.recommendation())[1]["desired"] == 4


async def test_while_there_is_nothing_to_go_by_there_is_an_error_and_no_number():
    world = AdvisedWorld()
    before = await world.recommendation()
    world.backlog = 730.0
    await world.pass_minutes(6)
    world.clock.now += 10 * MINUTE
    late = await world.recommendation()
    unknown = await world.recommendation("nobody")

    assert [status for status, _ in (before, late, unknown)] == [503, 503, 404]
    assert "no decision yet" in before[1]["error"]
    assert "the last decision is 11 min old" in late[1]["error"]


@pytest.mark.parametrize("asked", ["asked plan: 8 are advised, and taken for done"])
async def test_by_hand_it_says_what_is_advised(asked):
    world = await advised(730.0)

    outcome = await world.autoscaler().apply("plan")

    assert outcome.lines[0].startswith(asked)
