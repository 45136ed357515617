"""An action that depends on another target is carried out only when that target is where it has to be."""

import asyncio

import pytest

from scaling.config.policy import Policy, RuleSpec
from scaling.config.policy_file import Config
from scaling.model import Capacity, EffectOutcome, Reason, ScaleAction, TargetState, Verdict
from scaling.service import messages as codec
from scaling.service.autoscaler import Autoscaler
from scaling.service.shell import Ports
from scaling.window import Window
from tests.properties.test_lock_step import SIZING, START, UNIT, plan_policy, ru_policy
from tests.support.scaling.fakes import MemoryDecisionLog, MemoryPoisonQueues, MemoryStateStore
from tests.support.scaling.fakes_azure import FakePlatform, FakeScaler
from tests.support.scaling.runner import changed


class World:
    """A plan of 4 instances and 24,000 RU/s, both as their platforms have them, and an autoscaler of both."""

    def __init__(self, plan: Policy | None = None) -> None:
        self.platforms = {"plan": FakePlatform(4), "ru": FakePlatform(4 * UNIT, ceiling=None)}
        self.states = MemoryStateStore()
        self.log = MemoryDecisionLog()
        self.now = START + 10
        self.scalers = {name: FakeScaler(platform) for name, platform in self.platforms.items()}
        ports = Ports(
            collectors={},
            sources=[],
            scalers=self.scalers,
            states=self.states,
            log=self.log,
            poison=MemoryPoisonQueues(),
        )
        policies = {"plan": plan or plan_policy(), "ru": ru_policy()}
        self.autoscaler = Autoscaler(Config(policies, 60.0, 86_400.0), ports, clock=lambda: self.now)

    async def store(self, target: str, windows=None, **changes) -> None:
        here = self.platforms[target].capacity
        state = TargetState(**{"expected": here, "capacity": Capacity(here, START), **changes})
        await self.states.save(await self.states.load(target), state, windows or {})

    async def order(self, target: str, to: int) -> str:
        """An action that its target's state has as pending, delivered."""
        start = self.platforms[target].capacity
        reason = Reason.SCALE_OUT if to > start else Reason.SCALE_IN
        action = ScaleAction(f"{target}@1", target, start, to, START, START + 600, reason)
        asks_for_it = {"backlog": 100.0 * to, "there": self.platforms["ru"].capacity, "instances": to / UNIT}
        windows = {name: Window([START], [float(value)]) for name, value in asks_for_it.items()}
        await self.store(target, windows, pending=action)
        outcome = await self.autoscaler.apply(codec.encode(action))
        return "".join((*outcome.lines, *outcome.warnings))


@pytest.fixture
async def world() -> World:
    world = World()
    for name in world.platforms:
        await world.store(name)
    return world


async def test_instances_go_out_where_the_request_units_suffice(world):
    world.platforms["ru"].move(5 * UNIT)
    await world.store("ru")

    await world.order("plan", 5)

    assert world.platforms["plan"].capacity == 5


async def test_instances_wait_for_request_units_and_stay_pending(world):
    line = await world.order("plan", 5)

    assert world.platforms["plan"].ledger == []
    assert "waits: 5 x 1000 records/s x 6 RU = 30000 RU/s are needed, 24000 are there" in line
    assert (await world.states.load("plan")).state.pending is not None
    entry = (await world.log.read("plan")).entries[0]
    assert entry.effect.outcome is EffectOutcome.FAILED


async def test_a_decrease_of_request_units_under_way_counts_as_done(world):
    world.platforms["ru"].move(5 * UNIT)
    await world.store(
        "ru", pending=ScaleAction("ru@1", "ru", 5 * UNIT, 4 * UNIT, START, START + 600, Reason.SCALE_IN)
    )

    await world.order("plan", 5)

    assert world.platforms["plan"].ledger == []


async def test_request_units_are_not_lowered_under_instances_that_are_coming(world):
    await world.store("plan", pending=ScaleAction("p@1", "plan", 4, 5, START, START + 600, Reason.SCALE_OUT))
    world.platforms["ru"].move(6 * UNIT)

    line = await world.order("ru", 4 * UNIT)

    assert "5 x 1000 records/s x 6 RU = 30000 RU/s are needed still" in line
    assert world.platforms["ru"].ledger == []
    assert "are needed still" not in await world.order("ru", 5 * UNIT)


async def test_the_platform_counts_where_the_state_never_heard_of_a_change(world):
    world.platforms["plan"].move(6)  # an effect nobody lived to record
    world.platforms["ru"].move(7 * UNIT)

    line = await world.order("ru", 5 * UNIT)

    assert "6 x 1000" in line
    assert world.platforms["ru"].ledger == []


async def test_what_the_other_platform_does_not_tell_is_unknown(world):
    world.platforms["ru"].move(9 * UNIT)
    await world.store("ru")
    world.platforms["ru"].unreachable = True

    assert "there is not known" in await world.order("plan", 5)
    assert world.platforms["plan"].ledger == []


async def test_what_needs_nothing_of_the_other_goes_on_whatever_the_other_is(world):
    world.platforms["ru"].unreachable = True

    await world.order("plan", 3)

    assert world.platforms["plan"].capacity == 3


async def test_an_order_does_not_outlive_its_action(world):
    world.platforms["ru"].move(9 * UNIT)
    await world.store("ru")
    world.now = START + 599.99
    scaler = world.scalers["plan"]
    carry_out = scaler.apply

    async def slowly(action, *, now):
        await asyncio.sleep(5)
        return await carry_out(action, now=now)

    scaler.apply = slowly

    assert "what became of it is not known" in await world.order("plan", 5)

    assert world.platforms["plan"].ledger == []


def within(*rules: RuleSpec) -> Policy:
    """The plan's policy with its lock step two composites deep, or with another rule in its place."""
    inner = {"type": "within_request_units", "request_units": "there", **SIZING}
    nested = {"type": "composite", "rules": [inner]}
    deep = RuleSpec(type="composite", name="all", options={"rules": [nested]})
    return changed(plan_policy(), rules=(plan_policy().spec.rules[0], *(rules or (deep,))))


async def test_a_rule_nested_in_composites_is_asked_too():
    world = World(within())
    await world.store("ru")

    line = await world.order("plan", 5)

    assert "waits: 5 x 1000 records/s x 6 RU = 30000 RU/s are needed, 24000 are there" in line
    assert world.platforms["plan"].ledger == []


class Raising:
    """A user's rule whose question raises what nobody thought of."""

    def evaluate(self, view):
        return Verdict(None, Reason.WITHIN_TARGET)

    def metrics(self):
        return ("there",)

    def objection(self, view, capacity):
        raise LookupError("no such thing")


async def test_a_question_that_raises_is_not_a_consent():
    world = World(within(RuleSpec(type=f"{__name__}:Raising", name="mine", options={})))
    await world.store("ru")

    line = await world.order("plan", 5)

    assert "waits: rule Raising failed: LookupError('no such thing')" in line
    assert world.platforms["plan"].ledger == []
