"""Two function instances at once: interleaved at every await, over shared stores with ETags."""

import asyncio
from collections.abc import Coroutine, Iterator
from itertools import combinations, islice
from typing import Any

import msgspec
import pytest

from scaling.analysis.replay import decode_inputs, replay, same
from scaling.log_entry import LogKind
from scaling.model import Controls, Pause
from scaling.service.messages import encode
from tests.support.scaling.runner import MINUTE, NOW, World, metric, policy

PORT_CALLS = ("load", "append", "save", "apply", "current")


class Interleaver:
    """Lets the callers of the ports go on one at a time, in the order of a schedule of instance numbers.

    Every port call first waits for its instance's turn. A schedule that names an instance which is done is
    followed by the others'; after the schedule, everybody runs in the order of arrival.
    """

    def __init__(self, schedule: tuple[int, ...]) -> None:
        self.schedule = list(schedule)
        self.waiting: dict[int, asyncio.Event] = {}
        self.running: set[int] = set()

    async def run(self, *jobs: Coroutine[Any, Any, Any]) -> list[Any]:
        self.running = set(range(len(jobs)))
        tasks = [asyncio.create_task(self._job(number, job)) for number, job in enumerate(jobs)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def _job(self, number: int, job: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await job
        finally:
            self.running.discard(number)
            self._release()

    async def turn(self, number: int) -> None:
        event = self.waiting[number] = asyncio.Event()
        self._release()
        await event.wait()

    def _release(self) -> None:
        """When all that still run wait, the next one of the schedule goes on."""
        if not self.waiting or set(self.waiting) != self.running:
            return
        while self.schedule and self.schedule[0] not in self.waiting:
            self.schedule.pop(0)
        number = self.schedule.pop(0) if self.schedule else min(self.waiting)
        self.waiting.pop(number).set()


class Turned:
    """A port whose calls wait for the turn of their instance."""

    def __init__(self, inner: Any, number: int, sequence: Interleaver) -> None:
        self._inner, self._number, self._sequence = inner, number, sequence

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in PORT_CALLS:
            return found

        async def waits(*args: Any, **kwargs: Any) -> Any:
            await self._sequence.turn(self._number)
            result = await found(*args, **kwargs)
            if name == "apply":
                await self._sequence.turn(self._number)  # the answer takes its time, too
            return result

        return waits


def instance(world: World, number: int, sequence: Interleaver):
    made = world.autoscaler()
    ports = made.ports
    made.ports = type(ports)(
        collectors=ports.collectors,
        sources=ports.sources,
        scalers={"plan": Turned(world.scaler, number, sequence)},
        states=Turned(world.states, number, sequence),
        log=Turned(world.log, number, sequence),
        poison=ports.poison,
    )
    return made


async def loaded_world(backlog: float = 900.0) -> World:
    """A world whose next report scales out from 2 to 3."""
    made = World(policy(metrics={"backlog": metric(span=120.0, min_samples=2)}), capacity=2)
    made.backlog = 300.0
    await made.tick()
    await made.drain()
    made.clock.now += MINUTE
    made.backlog = backlog
    return made


def schedules(steps: int) -> Iterator[tuple[int, ...]]:
    """Every way to interleave two instances of `steps` port calls each."""
    for ours in combinations(range(2 * steps), steps):
        yield tuple(0 if position in ours else 1 for position in range(2 * steps))


async def settled(world: World, outcomes: list[Any], expected: list[int]) -> None:
    for outcome in outcomes:
        assert not isinstance(outcome, BaseException), outcome
        world.actions += outcome.messages
    await world.drain()
    await world.verify()
    state = await world.state()

    assert world.platform.ledger == expected
    assert state.pending is None
    assert [effect.to_capacity for effect in state.effects] == expected
    assert state.external_change is None
    for entry in await world.entries(LogKind.DECISION):
        kept = await world.log.get("plan", entry.at, "decision")
        assert same(entry.recommendation, replay(decode_inputs(kept.inputs)))


@pytest.mark.parametrize("tick", [0.0, 45.0])
async def test_one_report_on_two_instances_is_decided_once_and_its_row_is_the_decision_that_was_saved(
    tick: float,
) -> None:
    for schedule in schedules(4):
        world = await loaded_world()
        await world.tick()
        message = world.metrics.pop()
        sequence = Interleaver(schedule)
        one, two = instance(world, 0, sequence), instance(world, 1, sequence)
        two.clock = lambda late=world.clock.now + tick: late

        outcomes = await sequence.run(one.evaluate(message), two.evaluate(message))

        rows = await world.entries(LogKind.DECISION)
        saved = (await world.state()).last
        assert same(rows[-1].recommendation, saved), schedule
        await settled(world, outcomes, [3])


async def test_an_order_given_between_two_evaluations_of_a_report_cannot_leave_a_row_that_was_not_decided() -> (
    None
):
    """One instance saw no pause and was saved, the other saw one and wrote its row last."""
    for schedule in schedules(4):
        world = await loaded_world()
        await world.tick()
        message = world.metrics.pop()
        sequence = Interleaver(schedule)
        one, two = instance(world, 0, sequence), instance(world, 1, sequence)
        real, given = two.ports.states.load, Controls(pauses=(Pause("kim", NOW),))

        async def seen_paused(target: str, real=real, given=given) -> Any:
            return msgspec.structs.replace(await real(target), controls=given)

        two.ports.states.__dict__["load"] = seen_paused
        outcomes = await sequence.run(one.evaluate(message), two.evaluate(message))

        saved = (await world.state()).last
        row = (await world.entries(LogKind.DECISION))[-1]
        assert not [o for o in outcomes if isinstance(o, BaseException)]
        assert same(row.recommendation, saved), schedule
        assert (saved.desired == 3) == bool(world.actions or any(o.messages for o in outcomes)), schedule


async def test_two_reports_at_once_make_one_action() -> None:
    for schedule in schedules(4):
        world = await loaded_world()
        await world.tick()
        world.clock.now += 1.0
        await world.tick()
        first, second = world.metrics
        world.metrics.clear()
        sequence = Interleaver(schedule)

        outcomes = await sequence.run(
            instance(world, 0, sequence).evaluate(first), instance(world, 1, sequence).evaluate(second)
        )

        assert len(await world.entries(LogKind.DECISION)) == 3
        await settled(world, outcomes, [3])


async def pending_world() -> tuple[World, str]:
    world = await loaded_world()
    await world.tick()
    outcome = await world.decide()
    return world, outcome.messages[0]


async def test_one_action_on_two_instances_scales_once_and_is_recorded_once() -> None:
    for schedule in islice(schedules(5), 0, None, 3):
        world, message = await pending_world()
        sequence = Interleaver(schedule)

        outcomes = await sequence.run(
            instance(world, 0, sequence).apply(message), instance(world, 1, sequence).apply(message)
        )

        await settled(world, outcomes, [3])


async def test_the_check_and_the_scaler_at_once_record_one_effect() -> None:
    for schedule in islice(schedules(5), 0, None, 3):
        world, message = await pending_world()
        world.clock.now += world.policy.spec.effect_timeout
        sequence = Interleaver(schedule)

        outcomes = await sequence.run(
            instance(world, 0, sequence).verify(), instance(world, 1, sequence).apply(message)
        )

        await settled(world, outcomes, [3])


async def test_the_check_and_an_evaluation_at_once_lose_nothing() -> None:
    for schedule in schedules(4):
        world, message = await pending_world()
        world.clock.now += world.policy.spec.effect_timeout
        await world.tick()
        report = world.metrics.pop()
        sequence = Interleaver(schedule)

        outcomes = await sequence.run(
            instance(world, 0, sequence).verify(), instance(world, 1, sequence).evaluate(report)
        )

        assert message not in {
            m for o in outcomes if not isinstance(o, BaseException) for m in o.messages[1:]
        }
        await settled(world, outcomes, [3])


async def test_a_surge_that_is_evaluated_while_a_scale_in_is_delivered_ends_with_more() -> None:
    """Whichever is first, the action is withdrawn before it began, or carried out and then corrected."""
    seen = set()
    for schedule in islice(schedules(5), 0, None, 9):
        world = World(policy(metrics={"backlog": metric(span=60.0, min_samples=1)}), capacity=6)
        world.backlog = 20.0
        await world.tick()
        await world.decide()
        pending = (await world.state()).pending
        assert pending.to_capacity == 5
        world.backlog = 9000.0
        world.clock.now += MINUTE
        await world.tick()
        report = world.metrics.pop()
        sequence = Interleaver(schedule)

        outcomes = await sequence.run(
            instance(world, 0, sequence).evaluate(report),
            instance(world, 1, sequence).apply(encode(pending)),
        )

        for outcome in outcomes:
            assert not isinstance(outcome, BaseException), outcome
            world.actions += outcome.messages
        await world.drain()
        seen.add(tuple(world.platform.ledger))
        for _ in range(2):
            await world.minute()
        state = await world.state()
        assert world.platform.capacity > 6
        assert (state.pending, state.external_change, state.expected) == (None, None, world.platform.capacity)
    assert {ledger[0] for ledger in seen if ledger} == {5, 7}
