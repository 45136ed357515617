"""The process dies before and after each and every port call, once each; then the queues deliver again."""

import pytest

from scaling.analysis.replay import decode_inputs, replay, same
from scaling.config.policy import DrainSpec, Pace
from scaling.log_entry import LogKind
from scaling.model import Controls
from scaling.notice import Acknowledged
from tests.support.scaling.runner import MINUTE, Crash, World, metric, policy

LOAD = (300.0, 900.0, 900.0, 300.0, 20.0, 20.0, 20.0)
"""Backlog by the minute; the mean of two minutes scales out three times, their maximum in twice."""


def world() -> World:
    fast = policy(
        metrics={"backlog": metric(span=120.0, min_samples=2)},
        out=Pace(cooldown=60.0),
        inward=Pace(cooldown=60.0),
    )
    return World(fast, capacity=2)


def is_crash(error: BaseException) -> bool:
    """A crash in one of several reads at once comes out of them as a group."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_crash, error.exceptions))
    return isinstance(error, Crash)


async def surviving(work, *, lives: list[int]) -> None:
    """Runs `work` again after a crash, as a queue or a timer would."""
    while True:
        try:
            await work()
        except BaseException as error:
            if not is_crash(error):
                raise
            lives.append(1)
        else:
            return


async def play(world: World) -> int:
    """The whole loop over the scripted load; every crash is followed by a new process. Returns the crashes."""
    lives: list[int] = []
    for backlog in LOAD:
        world.backlog = backlog
        await surviving(world.tick, lives=lives)
        await surviving(world.drain, lives=lives)
        await surviving(world.verify, lives=lives)
        await surviving(world.drain, lives=lives)
        world.clock.now += MINUTE
    return len(lives)


class CrashAt:
    """Raises Crash at one position of the stream of hook calls."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.seen: list[str] = []

    def before(self, name: str) -> None:
        self._count(f"before {name}")

    def after(self, name: str) -> None:
        self._count(f"after {name}")

    def _count(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) - 1 == self.position:
            raise Crash(name)


async def positions() -> tuple[list[str], list[int]]:
    quiet, clean = CrashAt(-1), world()
    clean.hook(quiet.before, quiet.after)
    await play(clean)
    return quiet.seen, clean.platform.ledger


async def test_the_load_scales_out_and_in_several_times() -> None:
    _, ledger = await positions()

    assert ledger == [3, 4, 5, 4, 3]


async def test_a_crash_at_any_step_neither_repeats_nor_loses_a_change_and_leaves_the_log_complete() -> None:
    steps, ledger = await positions()
    assert len(steps) > 150

    for position, step in enumerate(steps):
        crash, crashed = CrashAt(position), world()
        crashed.hook(crash.before, crash.after)
        lives = await play(crashed)

        where = f"crash at {position}: {step}"
        assert lives == 1, where
        assert crashed.platform.ledger == ledger, where
        await check_settled(crashed, where)
        await check_log(crashed, where)


DRAINED = (20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 900.0, 300.0)
"""Backlog by the minute: an announced scale-in is acknowledged in the second one; the next one gives way to a scale-out."""


async def play_drained(crashed: World) -> tuple[int, list[str]]:
    """The same with a drain notice before each scale-in, of which all workers acknowledge the first."""
    lives, first, seen = [], "", {}
    for minute, backlog in enumerate(DRAINED):
        crashed.backlog = backlog
        await surviving(crashed.tick, lives=lives)
        await surviving(crashed.drain, lives=lives)
        await surviving(crashed.verify, lives=lives)
        await surviving(crashed.drain, lives=lives)
        before, after = crashed.states.before, crashed.states.after
        crashed.states.before = crashed.states.after = None  # what is asked here is no step of the app
        drain = (await crashed.state()).drain
        if minute >= 1 and drain is not None and not first:
            first = drain.notice
            await crashed.order(Controls(acknowledged=Acknowledged(first, ("*",))))
        if drain is not None:
            seen[drain.notice] = str(drain.end)
        assert first or not crashed.platform.ledger
        crashed.states.before, crashed.states.after = before, after
        crashed.clock.now += MINUTE
    return len(lives), list(seen.values())


async def test_a_crash_at_any_step_carries_out_no_scale_in_without_its_workers_and_tells_them_how_it_ended() -> (
    None
):
    def drained() -> World:
        fast = policy(metrics={"backlog": metric(span=60.0, min_samples=1)}, drain=DrainSpec(notice=300.0))
        return World(fast, capacity=3)

    quiet, clean = CrashAt(-1), drained()
    clean.hook(quiet.before, quiet.after)
    assert await play_drained(clean) == (0, ["done", "withdrawn"])
    assert clean.platform.ledger == [2, 3]

    writes = [
        each for each in enumerate(quiet.seen) if any(word in each[1] for word in ("save", "append", "apply"))
    ]
    for position, step in writes:
        crash, crashed = CrashAt(position), drained()
        crashed.hook(crash.before, crash.after)
        lives, ends = await play_drained(crashed)

        where = f"crash at {position}: {step}"
        assert lives == 1, where
        assert (crashed.platform.ledger, ends) == ([2, 3], ["done", "withdrawn"]), where


async def check_settled(crashed: World, where: str) -> None:
    state = await crashed.state()

    assert not crashed.metrics, where
    assert not crashed.actions, where
    assert state.pending is None, where
    assert state.expected == crashed.platform.capacity, where
    assert state.external_change is None, where
    assert [effect.to_capacity for effect in state.effects] == crashed.platform.ledger, where


async def check_log(crashed: World, where: str) -> None:
    decisions = await crashed.entries(LogKind.DECISION)
    effects = await crashed.entries(LogKind.EFFECT)
    state = await crashed.state()

    assert {entry.at for entry in decisions} >= set(state.evaluated), where
    assert len({entry.at for entry in decisions}) == len(decisions), where
    acted = {entry.recommendation.decision_id for entry in decisions if entry.recommendation.acts}
    told = {entry.effect.action_id for entry in effects if entry.effect.reached is not None}
    assert acted == told, where
    assert acted == {effect.action_id for effect in state.effects}, where
    for entry in decisions:
        kept = await crashed.log.get("plan", entry.at, "decision")
        assert same(entry.recommendation, replay(decode_inputs(kept.inputs))), where


@pytest.mark.parametrize("extra", [1, 2])
async def test_every_message_delivered_more_than_once_changes_nothing(extra: int) -> None:
    _, ledger = await positions()
    repeated = world()
    for backlog in LOAD:
        repeated.backlog = backlog
        await repeated.tick()
        repeated.metrics *= 1 + extra
        deliveries = list(repeated.metrics)
        repeated.metrics.clear()
        for message in deliveries:
            repeated.actions += (await repeated.autoscaler().evaluate(message)).messages
        repeated.actions *= 1 + extra
        await repeated.drain()
        repeated.clock.now += MINUTE

    assert repeated.platform.ledger == ledger
    await check_settled(repeated, "repeated")
    await check_log(repeated, "repeated")


async def test_an_action_whose_message_was_lost_is_found_by_the_check_and_carried_out_once() -> None:
    lost = world()
    lost.backlog = 900.0
    for _ in range(2):
        await lost.tick()
        lost.metrics, messages = [], lost.metrics
        for message in messages:
            await lost.autoscaler().evaluate(message)  # what it puts out is lost
        lost.clock.now += MINUTE
    assert (await lost.state()).pending is not None

    lost.clock.now += lost.policy.spec.effect_timeout
    await lost.verify()
    await lost.drain()

    assert lost.platform.ledger == [3]
    assert (await lost.state()).pending is None


async def test_a_report_that_arrives_after_a_newer_one_still_gets_its_row_and_scales_nothing_twice() -> None:
    mixed = world()
    mixed.backlog = 900.0
    reports = []
    for _ in range(3):
        await mixed.tick()
        reports.append(mixed.metrics.pop())
        mixed.clock.now += MINUTE
    mixed.metrics = [reports[2], reports[0], reports[1], reports[0], reports[2]]
    await mixed.drain()
    await mixed.drain()

    assert mixed.platform.ledger == [3]
    assert len(await mixed.entries(LogKind.DECISION)) == 3
