"""A metric that is made to measure something else: another queue, namespace or query, between two starts of the app.

What the former queue's samples say must decide nothing any more: no scale-in rests on them, and no rule has learned from them.
"""

import msgspec
import pytest

from scaling.config.policy_file import load_config
from scaling.drains.draining import EVERY_WORKER
from scaling.log_entry import LogKind
from scaling.measuring.memories import with_own_memories
from scaling.model import Controls, EffectRecord, MetricsReport, Reason, TargetState
from scaling.notice import Acknowledged
from scaling.rules.service_level import memory as service_level
from scaling.service import messages, registry
from scaling.shadow import memory as shadows
from scaling.window import EMPTY, Origin, Window
from tests.support.scaling.runner import MINUTE, World
from tests.support.scaling.runner import full as samples

SETTINGS = {
    "Orders": "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=a2V5;EndpointSuffix=core.windows.net",
    "QUEUE": "orders",
}

TOML = """
[targets.plan]
scaler = "advice"
minimum = 1
maximum = 10

[targets.plan.metrics.backlog]
collector = "storage_queue"
connection = "Orders"
queue = "orders"
window = "5m"
"""

THRESHOLD = """
[[targets.plan.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = 100
"""

SERVICE_LEVEL = """
[[targets.plan.rules]]
type = "service_level"
backlog = "backlog"
concurrency = 16
"""


def configured(text: str = TOML + THRESHOLD, **settings: str):
    """The policy of a file."""
    config = load_config(text, name="tidemark.toml", settings=SETTINGS | settings, plug_ins=registry)
    return config.policies["plan"]


def of(queue: str, rest: str = THRESHOLD, **settings: str):
    return configured(TOML.replace('"orders"', f'"{queue}"') + rest, **settings)


async def minutes(world: World, count: int, backlog: float) -> None:
    world.backlog = backlog
    for _ in range(count):
        await world.minute()


async def last(world: World):
    return (await world.state()).last


async def lines(world: World) -> list[str]:
    return [entry.line for entry in await world.entries()]


async def window(world: World):
    return (await world.states.load("plan")).windows["backlog"]


class Versions(World):
    """An app of which two versions run side by side: which one collects, and which one decides, is chosen for each report."""

    def __init__(self, old, new, **world):
        super().__init__(old, **world)
        self.old, self.new = old, new

    async def report(self, collects, decides, backlog: float):
        self.clock.now += MINUTE
        self.backlog, self.policy = backlog, collects
        await self.tick()
        self.policy = decides
        outcome = await self.decide()
        self.actions += outcome.messages
        return outcome


async def test_no_scale_in_rests_on_samples_of_a_queue_that_is_no_longer_asked():
    world = World(of("orders"), capacity=5)
    await minutes(world, 3, 0.0)
    world.policy = of("bills")
    await minutes(world, 2, 60.0)

    made = await last(world)
    assert (made.reason, made.current, made.desired) == (Reason.INCOMPLETE_WINDOW, 5, 5)


async def test_once_the_window_is_full_of_the_new_queue_it_is_scaled_in():
    world = World(of("orders"), capacity=5)
    await minutes(world, 5, 200.0)
    world.policy = of("bills")
    await minutes(world, 5, 60.0)

    assert world.platform.capacity == 4


async def test_it_is_said_once_since_when_a_metric_measures_something_else():
    world = World(of("orders"), capacity=5)
    await minutes(world, 3, 0.0)
    world.policy = of("bills")
    await minutes(world, 3, 60.0)

    assert [line for line in await lines(world) if "something else" in line] == [
        "scaling plan: backlog measures something else since 2027-01-15 08:04:00Z, and is collected anew"
    ]
    assert (await last(world)).note == "collecting backlog, 3 of 5 min"
    assert [entry.reason for entry in await world.entries(LogKind.VERIFY)] == [Reason.INCOMPLETE_WINDOW]


def full(value: float, *, of: str) -> Window:
    return msgspec.structs.replace(samples(value), origin=Origin(of))


OTHERS = {
    "a setting in place of its name": of("%QUEUE%", QUEUE="bills"),
    "another account": of("orders", Orders=SETTINGS["Orders"].replace("acme", "other")),
    "a pattern": of("orders-*"),
    "another count": configured(TOML + 'count = "visible"' + THRESHOLD),
}
THE_SAME = {
    "a setting in place of its name": of("%QUEUE%"),
    "a new key": of("orders", Orders=SETTINGS["Orders"].replace("a2V5", "bmV3")),
    "an identity": of("orders", Orders="", Orders__accountName="acme"),
    "a default, and how it is read": configured(
        TOML + 'count = "total"\ncombine = "sum"\nprocessed_within = "2h"\nunit = "orders"' + THRESHOLD
    ),
    "another threshold": of("orders", THRESHOLD.replace("100", "150")),
}


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
async def test_whatever_is_read_instead_begins_anew(changed):
    world = World(of("orders"), capacity=5)
    await minutes(world, 3, 0.0)
    world.policy = changed
    await minutes(world, 1, 60.0)

    assert (await window(world)).values == [60.0]


@pytest.mark.parametrize("changed", THE_SAME.values(), ids=THE_SAME)
async def test_the_same_queue_goes_on(changed):
    world = World(of("orders"), capacity=5)
    await minutes(world, 3, 0.0)
    world.policy = changed
    await minutes(world, 1, 60.0)

    assert (await window(world)).values == [0.0, 0.0, 0.0, 60.0]


async def test_the_other_metrics_of_a_target_go_on():
    two = TOML + THRESHOLD + TOML.partition("maximum = 10")[2].replace("backlog", "other")
    world = World(configured(two), capacity=5)
    await minutes(world, 3, 0.0)
    world.policy = configured(two.replace('"orders"', '"bills"', 1))
    await minutes(world, 1, 60.0)

    windows = (await world.states.load("plan")).windows
    assert (len(windows["backlog"].times), len(windows["other"].times)) == (1, 4)


# -- two versions of the app at once


async def test_a_sample_that_was_under_way_at_the_change_is_dropped_with_a_line():
    world = Versions(of("orders"), of("bills"), capacity=5)
    await world.report(world.old, world.old, 0.0)
    world.clock.now += MINUTE
    await world.tick()  # of the old version, and it waits in the queue
    late = world.metrics.pop()
    await world.report(world.new, world.new, 60.0)
    outcome = await world.autoscaler().evaluate(late)

    text = "it measures something else than is configured here"
    assert f"scaling plan: a sample of backlog is dropped: {text}" in outcome.warnings
    assert (await window(world)).values == [60.0]


async def test_the_new_version_decides_nothing_by_reports_of_the_old_one():
    world = Versions(of("orders"), of("bills"), capacity=5)
    for _ in range(5):
        await world.report(world.old, world.new, 0.0)
    made = await last(world)

    assert (made.reason, made.desired, made.note) == (
        Reason.INCOMPLETE_WINDOW,
        5,
        "collecting backlog, 0 of 5 min",
    )


async def test_the_new_version_says_why_it_decides_nothing_by_what_is_there():
    world = Versions(of("orders"), of("bills"), capacity=5)
    await world.report(world.old, world.old, 0.0)
    outcome = await world.report(world.old, world.new, 0.0)

    text = "the samples under its name measure something else than is configured here"
    assert f"scaling plan: backlog is not known here: {text}" in outcome.warnings


async def test_the_old_version_decides_nothing_by_the_new_window():
    world = Versions(of("orders"), of("bills"), capacity=5)
    for _ in range(6):
        await world.report(world.new, world.new, 200.0)
    for _ in range(6):
        await world.report(world.new, world.old, 0.0)
    made = await last(world)

    assert (made.reason, made.desired) == (Reason.INCOMPLETE_WINDOW, 5)
    assert (await window(world)).values == [0.0] * 5


async def test_the_old_version_goes_on_until_the_new_one_has_decided_on_a_report_of_its_own():
    world = Versions(of("orders"), of("bills"), capacity=5)
    await world.report(world.old, world.old, 0.0)
    outcome = await world.report(world.new, world.old, 60.0)

    assert any("sample of backlog is dropped" in line for line in outcome.warnings)
    assert (await window(world)).values == [0.0]


async def test_two_versions_side_by_side_empty_the_window_once_and_not_in_turns():
    world = Versions(of("orders"), of("bills"), capacity=5)
    for _ in range(5):
        await world.report(world.old, world.old, 0.0)
    await world.report(world.new, world.new, 60.0)
    begun = (await window(world)).origin
    for collects in (world.old, world.new, world.old, world.new):
        for decides in (world.old, world.new):
            await world.report(collects, decides, 0.0 if collects is world.old else 60.0)

    assert (await window(world)).origin == begun
    assert set((await window(world)).values) == {60.0}
    assert sum("collected anew" in line for line in await lines(world)) == 1
    assert world.platform.capacity == 5


async def test_a_version_that_is_rolled_back_counts_again_when_the_other_one_is_gone():
    world = Versions(of("orders"), of("bills"), capacity=5)
    for collects in (world.old, world.new, world.old, world.old, world.old, world.old):
        await world.report(collects, collects, 0.0 if collects is world.old else 60.0)

    kept = await window(world)
    assert (kept.values, kept.origin.fingerprint) == ([0.0], world.old.spec.metrics["backlog"].fingerprint)


async def test_a_read_that_fails_keeps_the_new_queue_the_one_that_counts():
    world = Versions(of("orders"), of("bills"), capacity=5)
    await world.report(world.old, world.old, 0.0)
    await world.report(world.new, world.new, 60.0)

    def fail():
        raise OSError("no answer")

    for _ in range(5):
        world.collector.read = fail
        await world.report(world.new, world.new, 0.0)
        world.collector.read = lambda: 0.0
        await world.report(world.old, world.old, 0.0)

    assert (await window(world)).values == [60.0]


async def test_a_misspelt_queue_that_is_put_right_counts_at_once():
    world = Versions(of("orders"), of("odrers"), capacity=5)
    await world.report(world.old, world.old, 60.0)
    read = world.collector.read

    def fail():
        raise OSError("does not exist")

    world.collector.read = fail
    await world.report(world.new, world.new, 0.0)
    world.collector.read = read
    await world.report(world.old, world.old, 70.0)

    assert (await window(world)).values == [70.0]


# -- what 0.2.0 stored and sent


def without_fingerprints(message: str) -> str:
    report = messages.decode(MetricsReport, message)
    return messages.encode(msgspec.structs.replace(report, fingerprints={}))


async def test_rows_and_reports_of_0_2_0_are_taken_for_what_is_there():
    world = World(of("orders"), capacity=5)
    for _ in range(3):
        world.clock.now += MINUTE
        await world.tick()
        world.metrics = [without_fingerprints(message) for message in world.metrics]
        await world.drain()
    assert (await window(world)).origin == Origin()
    await minutes(world, 1, 60.0)
    world.clock.now += MINUTE
    await world.tick()
    world.metrics = [without_fingerprints(message) for message in world.metrics]
    await world.drain()

    kept = await window(world)
    assert kept.values == [300.0, 300.0, 300.0, 60.0, 60.0]
    assert kept.origin == Origin(world.policy.spec.metrics["backlog"].fingerprint)


async def test_where_the_first_report_that_says_it_is_of_another_version_the_window_begins_anew():
    world = Versions(of("orders"), of("bills"), capacity=5)
    world.clock.now += MINUTE
    await world.tick()
    world.metrics = [without_fingerprints(message) for message in world.metrics]
    await world.drain()
    await world.report(world.new, world.old, 60.0)

    assert (await window(world)).values == [60.0]


# -- what rules have learned


async def learned(world: World):
    return service_level.decode((await world.state()).memories["service_level"])


RENAMED = (
    (TOML.replace('"orders"', '"bills"') + SERVICE_LEVEL)
    .replace("metrics.backlog", "metrics.bills")
    .replace('backlog = "backlog"', 'backlog = "bills"')
)


@pytest.mark.parametrize(
    "other", [of("bills", SERVICE_LEVEL), configured(RENAMED)], ids=["queue", "name, too"]
)
async def test_a_rule_learns_anew_of_another_queue(other):
    world = World(of("orders", SERVICE_LEVEL), capacity=5)
    await minutes(world, 9, 100.0)
    world.policy = other
    await minutes(world, 1, 60.0)

    assert (await learned(world)).since == world.clock.now


async def test_a_rule_forgets_nothing_for_a_misspelt_queue_that_was_never_read():
    world = World(of("orders", SERVICE_LEVEL), capacity=5)
    await minutes(world, 9, 100.0)
    read, known = world.collector.read, (await world.state()).memories

    def fail():
        raise OSError("does not exist")

    world.policy, world.collector.read = of("odrers", SERVICE_LEVEL), fail
    await minutes(world, 2, 0.0)
    assert (await world.state()).memories == known
    world.policy, world.collector.read = of("orders", SERVICE_LEVEL), read
    await minutes(world, 1, 100.0)

    assert (await learned(world)).observations == service_level.decode(
        known["service_level"]
    ).observations + 1


BOTH = ("orders", "age")


@pytest.mark.parametrize(
    ("before", "backlog", "age", "is_kept", "after"),
    [
        (BOTH, full(1.0, of="orders"), full(1.0, of="age"), True, BOTH),
        (BOTH, full(1.0, of="bills"), full(1.0, of="age"), False, ("bills", "age")),
        (BOTH, full(1.0, of="orders"), full(1.0, of="other"), False, ("orders", "other")),
        (BOTH, full(1.0, of="bills"), EMPTY, False, ("bills",)),
        (BOTH, EMPTY, full(1.0, of="age"), True, BOTH),
        (BOTH, full(1.0, of="orders"), EMPTY, True, BOTH),
        (("orders",), full(1.0, of="orders"), full(1.0, of="age"), True, BOTH),
        ((), full(1.0, of="orders"), full(1.0, of="age"), True, BOTH),
    ],
)
def test_what_a_rule_has_learned_goes_with_what_it_was_learned_from(before, backlog, age, is_kept, after):
    """A metric without samples was not read, and says nothing; one more or one fewer changes nothing."""
    second = TOML.partition("maximum = 10")[2].replace("backlog", "age") + 'count = "oldest_age"\n'
    rules = configured(TOML + second + SERVICE_LEVEL + 'oldest_age = "age"\n')
    state = TargetState(
        memories={"service_level": b"known"}, learned_from={"service_level": before} if before else {}
    )
    left = with_own_memories(rules, {"backlog": backlog, "age": age}, state)

    assert ("service_level" in left.memories) is is_kept
    assert left.learned_from == {"service_level": after}


@pytest.mark.parametrize("name", ["backlog", "orders"])
async def test_a_rule_goes_on_with_the_same_queue_and_with_one_more_metric(name):
    world = World(of("orders", SERVICE_LEVEL), capacity=5)
    await minutes(world, 9, 100.0)
    since = (await learned(world)).since
    age = TOML.partition("maximum = 10")[2].replace("backlog", "age") + 'count = "oldest_age"\n'
    text = TOML.replace("metrics.backlog", f"metrics.{name}") + age + SERVICE_LEVEL + 'oldest_age = "age"\n'
    world.policy = configured(text.replace('backlog = "backlog"', f'backlog = "{name}"'))
    await minutes(world, 1, 60.0)

    assert (await learned(world)).since == since


async def test_a_version_that_still_runs_makes_the_rule_learn_nothing_and_forget_nothing():
    world = Versions(of("orders", SERVICE_LEVEL), of("bills", SERVICE_LEVEL), capacity=5)
    for _ in range(3):
        await world.report(world.old, world.old, 100.0)
    for _ in range(3):
        await world.report(world.new, world.new, 60.0)
    known = (await world.state()).memories
    for collects, decides in ((world.old, world.old), (world.new, world.old), (world.old, world.old)):
        await world.report(collects, decides, 60.0)

    assert (await world.state()).memories == known


SHADOW = """
[targets.plan.shadow]
rules = [{ type = "threshold", metric = "backlog", scale_out_above = 50, scale_in_below = 10 }]
"""


async def test_the_comparison_with_a_shadow_begins_anew():
    world = World(of("orders", THRESHOLD + SHADOW), capacity=5)
    await minutes(world, 3, 100.0)
    before = (await world.state()).shadow
    world.policy = of("bills", THRESHOLD + SHADOW)
    await minutes(world, 1, 60.0)
    after = shadows.decode((await world.state()).shadow)

    assert before
    assert (after.tally.decisions, after.tally.since) == (1, world.clock.now)


PLATEAU = """
[targets.plan.plateau]
metric = "backlog"
"""


async def test_a_plateau_of_another_queue_holds_nothing_back():
    world = World(of("orders", THRESHOLD + PLATEAU), capacity=5)
    await minutes(world, 1, 100.0)
    effects = tuple(EffectRecord(world.clock.now - 60 * age, 5 - age, 6 - age, 100.0) for age in (3, 2, 1))
    loaded = await world.states.load("plan")
    await world.states.save(loaded, msgspec.structs.replace(loaded.state, effects=effects))
    world.policy = of("bills", THRESHOLD + PLATEAU)
    await minutes(world, 1, 900.0)

    after = (await world.state()).effects
    assert [effect.level for effect in after] == [None] * 3
    assert [effect.at for effect in after] == [effect.at for effect in effects]


# -- a scale-in that is on its way


DRAIN = TOML.replace("maximum = 10", 'maximum = 10\n[targets.plan.drain]\nnotice = "10m"\n') + THRESHOLD


@pytest.mark.parametrize("asks", ["evaluation", "check", "delivery"])
async def test_an_announced_scale_in_of_the_former_queue_is_withdrawn(asks):
    world = World(configured(DRAIN), capacity=5)
    await minutes(world, 5, 0.0)
    action = (await world.state()).pending
    assert action.to_capacity == 4
    await world.order(Controls(acknowledged=Acknowledged(action.action_id, (EVERY_WORKER,))))
    world.policy = configured(DRAIN.replace('"orders"', '"bills"'))
    world.clock.now += 1
    if asks == "evaluation":
        await minutes(world, 1, 60.0)
    elif asks == "check":
        await world.verify()
        assert world.actions == []
        await minutes(world, 1, 60.0)
    else:
        world.actions.append(messages.encode(action))
        await world.deliver()
    await world.drain()

    assert world.platform.capacity == 5
    assert (await world.state()).pending is None


async def test_an_acknowledged_scale_in_of_the_same_queue_is_carried_out():
    world = World(configured(DRAIN), capacity=5)
    await minutes(world, 5, 0.0)
    action = (await world.state()).pending
    await world.order(Controls(acknowledged=Acknowledged(action.action_id, (EVERY_WORKER,))))
    world.clock.now += 1
    await world.verify()
    await world.drain()

    assert world.platform.capacity == 4
