"""What becomes of a pending action when the world changes before it is carried out.

docs/architecture.md has the table; here every cell of it is run: an action is decided, the world changes, the next
evaluation and the deliveries follow.
"""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from scaling.config.policy import Budget, RuleSpec
from scaling.log_entry import LogKind
from scaling.model import MOVED, Controls, EffectOutcome, Override, Pause, Reason
from scaling.ports import CollectError, ScalerError
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, World, changed, metric, policy

ARCHITECTURE = Path(__file__).parents[4] / "docs/architecture.md"
PER_UNIT = RuleSpec(type="target_per_unit", name="per", options={"metric": "backlog", "target": 100.0})
STAGES = ("not begun", "handed back", "begun")


def read_table() -> dict[tuple[str, str, str], str]:
    """The outcomes by change, direction and stage, as docs/architecture.md has them."""
    text = ARCHITECTURE.read_text(encoding="utf-8").partition("### A pending action is asked again")[2]
    text = text.partition("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    heads, *cells = rows
    columns = [tuple(head.split(", ")) for head in heads[1:]]
    return {
        (cell[0], direction, stage): outcome
        for cell in cells
        for (direction, stage), outcome in zip(columns, cell[1:], strict=True)
    }


TABLE = read_table()


def order(**orders):
    async def give(world: World) -> None:
        await world.order(Controls(**orders))

    return give


def configure(**changes):
    async def change(world: World) -> None:
        world.policy = changed(world.policy, **changes)

    return change


def hours(**bounds) -> tuple[RuleSpec, ...]:
    """The rules with a schedule from the minute after the decision on."""
    period = {"days": "mon-sun", "from": "08:02", "to": "18:00", **bounds}
    options = {"periods": [period], "time_zone": "UTC"}
    return (THRESHOLD, RuleSpec(type="schedule", name="hours", options=options))


def read_metrics(value: float | Exception):
    async def change(world: World) -> None:
        if isinstance(value, Exception):

            async def refuse(*, now):
                raise value

            world.collector.collect = refuse
        else:
            world.backlog = value

    return change


def set_capacity(capacity: int):
    async def move(world: World) -> None:
        world.platform.move(capacity)

    return move


async def appear(world: World) -> None:
    world.platform.held_by = "autoscale"


async def hide_capacity(world: World) -> None:
    """For one evaluation."""
    read, until = world.scaler.inner.current, world.clock.now + MINUTE

    async def current(target, *, now):
        if world.clock.now <= until:
            raise ScalerError("no answer")
        return await read(target, now=now)

    world.scaler.inner.current = current


async def lift_override(world: World) -> None:
    await world.order(Controls(external_cleared_at=world.clock.now))


async def nothing(world: World) -> None:
    """The override runs out, or the schedule begins, by itself."""


DISABLED = CollectError("disabled", reason=Reason.ENTITY_DISABLED)
ABOVE_AND_BELOW = {"out": 3, "in": 9}

CHANGES = {
    "nothing": nothing,
    "metrics rise": read_metrics(9000.0),
    "metrics come to rest within the target": read_metrics(300.0),
    "metrics fall": read_metrics(10.0),
    "metrics go missing": read_metrics(CollectError("no answer")),
    "the queue is disabled": read_metrics(DISABLED),
    "the capacity cannot be read": hide_capacity,
    "an override comes": None,
    "its override is lifted": lift_override,
    "its override runs out": nothing,
    "a pause comes": order(pauses=(Pause("kim", NOW),)),
    "dry-run comes": order(dry_run=True),
    "the minimum is raised above it": configure(minimum=8),
    "the maximum is lowered below it": configure(maximum=4),
    "a schedule's floor above it begins": nothing,
    "a schedule's ceiling below it begins": nothing,
    "the day's budget is used up": configure(budget=Budget(amount=10.0)),
    "somebody else sets less": set_capacity(3),
    "somebody else sets more": set_capacity(9),
    "an autoscale setting appears": appear,
}


async def decided(change: str, direction: str) -> World:
    """A world with 6 instances whose action to 7, or to 5, is pending and has not left its queue."""
    quick = {"metrics": {"backlog": metric(span=60.0, min_samples=1)}}
    schedules = {
        "a schedule's floor above it begins": {"rules": hours(floor=8)},
        "a schedule's ceiling below it begins": {"rules": hours(ceiling=4)},
    }
    world = World(policy(**quick, **schedules.get(change, {})), capacity=6)
    to = 7 if direction == "out" else 5
    await world.tick()
    await world.decide()
    if change.startswith("its override"):
        await world.order(Controls(override=Override(to, "kim", NOW, NOW + 90.0)))
    else:
        world.backlog = 900.0 if direction == "out" else 20.0
    world.clock.now += MINUTE
    await world.tick()
    world.actions = list((await world.decide()).messages)
    pending = (await world.state()).pending
    assert (pending.from_capacity, pending.to_capacity) == (6, to)
    return world


async def change_world(world: World, change: str, direction: str) -> None:
    if change == "an override comes":
        wanted = ABOVE_AND_BELOW[direction]
        await world.order(Controls(override=Override(wanted, "kim", world.clock.now, NOW + 7200.0)))
    else:
        await CHANGES[change](world)


async def next_minute(world: World) -> None:
    """The next evaluation; then every message is delivered, those of before first."""
    world.clock.now += MINUTE
    await world.tick()
    world.actions += (await world.decide()).messages
    while world.actions:
        await world.autoscaler().apply(world.actions.pop(0))


async def begun(world: World, change: str, direction: str) -> None:
    """The world changes, and is evaluated, while a scaler is at the action."""
    (message,), carry_out = world.actions, world.scaler.inner.apply
    world.actions = []
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(action, *, now):
        started.set()
        await go_on.wait()
        world.scaler.inner.apply = carry_out
        return await carry_out(action, now=world.clock.now)

    world.scaler.inner.apply = slowly
    delivery = asyncio.create_task(world.autoscaler().apply(message))
    await started.wait()
    await change_world(world, change, direction)
    world.clock.now += MINUTE
    await world.tick()
    assert (await world.decide()).messages == ()
    go_on.set()
    await delivery


async def outcome(world: World, action_id: str, to: int) -> str:
    """What became of the action, in the words of the table."""
    rows = [entry.effect for entry in await world.entries(LogKind.EFFECT)]
    done = [row for row in rows if row.action_id == action_id and row.outcome in MOVED]
    ledger = world.platform.ledger
    if not done:
        return "replaced" if ledger else "withdrawn"
    assert ledger[0] == to
    turned = any((later > earlier) != (to > 6) for earlier, later in pairwise(ledger))
    return "carried out, then corrected" if turned else "carried out"


@pytest.mark.parametrize(("change", "direction", "stage"), TABLE)
async def test_what_becomes_of_a_pending_action_is_what_the_table_says(
    change: str, direction: str, stage: str
) -> None:
    world = await decided(change, direction)
    action = (await world.state()).pending
    if stage == "begun":
        await begun(world, change, direction)
    else:
        if stage == "handed back":
            world.platform.conflicts = 1
            await world.deliver()
            assert (await world.state()).delivery.tried
        await change_world(world, change, direction)
    for _ in range(3):
        await next_minute(world)

    assert await outcome(world, action.action_id, action.to_capacity) == TABLE[change, direction, stage]
    state = await world.state()
    assert state.pending is None or state.pending.action_id != action.action_id
    effects = [entry.effect for entry in await world.entries(LogKind.EFFECT)]
    assert [e.action_id for e in effects if e.outcome in MOVED].count(action.action_id) <= 1


def test_the_table_has_every_change_in_both_directions_at_every_stage() -> None:
    assert set(TABLE) == {(c, d, s) for c in CHANGES for d in ("out", "in") for s in STAGES}


@pytest.mark.parametrize(
    "change", ["a pause comes", "its override is lifted", "the minimum is raised above it"]
)
@pytest.mark.parametrize("direction", ["out", "in"])
async def test_a_message_that_is_delivered_late_is_asked_again_though_nothing_was_evaluated(
    change: str, direction: str
) -> None:
    world = await decided(change, direction)
    await change_world(world, change, direction)
    world.clock.now += MINUTE
    await world.deliver()

    assert world.platform.ledger == []
    (entry,) = await world.entries(LogKind.EFFECT)
    assert entry.effect.outcome in {EffectOutcome.WITHDRAWN, EffectOutcome.REFUSED}


@pytest.mark.parametrize(("direction", "ledger"), [("out", [7]), ("in", [])])
async def test_a_message_that_is_delivered_when_its_metrics_are_stale_scales_out_only(
    direction: str, ledger: list[int]
) -> None:
    world = await decided("nothing", direction)
    world.clock.now += 300.0
    await world.deliver()

    assert world.platform.ledger == ledger


def refusing(world: World, *waits: float | None, unknown: bool = False) -> list[tuple[float, int]]:
    """The orders that reach the platform, which refuses the first ones with these waits."""
    answers, orders, carry_out = list(waits), [], world.scaler.inner.apply

    async def apply(action, *, now):
        orders.append((now - NOW, action.to_capacity))
        if answers:
            raise ScalerError("busy", retry_after=answers.pop(0), unknown=unknown)
        return await carry_out(action, now=now)

    world.scaler.inner.apply = apply
    return orders


async def test_what_takes_the_place_of_an_action_waits_as_long_as_the_platform_asked() -> None:
    world = await decided("nothing", "in")
    orders = refusing(world, 1200.0)
    await world.deliver()
    world.backlog = 9000.0
    for _ in range(21):
        await next_minute(world)

    assert orders == [(60.0, 5), (1260.0, 7), (1320.0, 8)]
    rows = [entry.recommendation for entry in await world.entries(LogKind.DECISION)]
    assert "for the platform asked to wait" in rows[2].note


async def test_an_override_is_sent_though_the_platform_asked_to_wait() -> None:
    world = await decided("nothing", "in")
    orders = refusing(world, 1200.0)
    await world.deliver()
    await world.order(Controls(override=Override(9, "kim", world.clock.now, NOW + 7200.0)))
    await next_minute(world)

    assert orders == [(60.0, 5), (120.0, 9)]


async def test_nothing_is_scaled_in_because_a_withdrawn_scale_out_went_further_than_the_next_one() -> None:
    world = await decided("nothing", "out")
    world.policy = changed(world.policy, rules=(PER_UNIT,))
    world.backlog = 900.0  # 9 instances
    world.clock.now += MINUTE
    await world.tick()
    world.actions = list((await world.decide()).messages)
    refusing(world, None, unknown=True)
    await world.deliver()
    world.backlog = 700.0
    world.clock.now += 150.0
    await world.tick()
    world.actions = list((await world.decide()).messages)
    assert (await world.state()).pending.to_capacity == 7
    await read_metrics(CollectError("no answer"))(world)
    world.platform.move(9)  # the withdrawn one turns up
    for _ in range(3):
        await next_minute(world)

    state = await world.state()
    assert (world.platform.ledger, state.expected, state.external_change) == ([], 9, None)
    assert state.effects[-1].to_capacity == 9


@pytest.mark.parametrize(
    ("minutes", "note"), [(0, ""), (6, "or it is the late effect of ["), (90, "by somebody")]
)
async def test_the_late_effect_of_an_action_that_expired_is_our_own(minutes: int, note: str) -> None:
    world = await decided("nothing", "out")
    carry_out = world.scaler.inner.apply
    orders = refusing(world, *[120.0] * 5, unknown=True)
    await world.deliver()
    for _ in range(9):
        await next_minute(world)
    action = (await world.state()).pending
    world.scaler.inner.apply = carry_out
    world.backlog = 300.0
    await next_minute(world)
    assert action is not None
    for _ in range(minutes):
        await next_minute(world)
    world.platform.move(7)
    await next_minute(world)

    state = await world.state()
    assert len(orders) > 1
    assert (state.expected, state.external_change is None) == ((6, False) if minutes else (7, True))
    assert note in state.last.note
    assert ("late effect" in state.last.note) is ("late effect" in note)


@pytest.mark.parametrize("is_begun", [False, True])
async def test_what_is_found_before_a_scaler_began_it_is_not_called_an_effect_of_ours(is_begun: bool) -> None:
    """Somebody else sets what an action was to set; or nobody knows who, for a scaler has begun it and handed it back."""
    world = await decided("nothing", "in")
    if is_begun:
        world.platform.conflicts = 1
        await world.deliver()
    world.platform.capacity = 5
    world.clock.now += MINUTE
    await world.verify()

    lines = [entry.line for entry in await world.entries() if entry.kind != LogKind.DECISION]
    found = "found in place before it was begun: somebody else may have set it"
    assert sum(found in line for line in lines) == (0 if is_begun else 2)
    assert sum("effect of" in line for line in lines) == (1 if is_begun else 0)
