"""The platform takes so many changes an hour: the last ones are for scaling out, whoever made the others."""

import msgspec
import pytest

from scaling.config.policy import HPA_IN, HPA_OUT, Pace, RuleSpec
from scaling.config.policy_file import load_config
from scaling.decision.explain import line
from scaling.decision.pacing import changes_of_hour
from scaling.decision.pending_action import being_carried_out, hand_back, record_effect
from scaling.decision.transitions import absorb, advance, reconcile_capacity, review
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    EffectOutcome,
    EffectRecord,
    MetricSample,
    MetricsReport,
    Override,
    Reason,
    ScaleAction,
    TargetState,
    effect_of,
)
from scaling.ports import ScalerError
from scaling.scalers.app_service.scaler import CHANGES_PER_HOUR
from scaling.service import registry
from scaling.storage.rows import read_target, target_row
from scaling.target_facts import TargetFacts
from tests.support.scaling.runner import MINUTE, NOW, World, at, full, metric, policy

UNIT = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 10.0})
SPEC = {
    "metrics": {"backlog": metric(span=MINUTE, min_samples=1)},
    "rules": (UNIT,),
    "maximum": 30,
    "facts": TargetFacts(changes_per_hour=CHANGES_PER_HOUR),
}


def effects(count, *, last=60.0, every=120.0):
    """So many changes, the newest so long ago."""
    times = sorted(NOW - last - every * index for index in range(count))
    return tuple(EffectRecord(when, 3 + index % 2, 4 - index % 2) for index, when in enumerate(times))


def decided(backlog, *, known=(), others=(), current=10, controls=NO_CONTROLS, **changes):
    state = at(current, effects=known, others_changes=others)
    return decide(
        policy(**(SPEC | changes)), {"backlog": full(backlog, count=1)}, state, now=NOW, controls=controls
    )


LOW, HIGH = 20.0, 290.0


@pytest.mark.parametrize(
    ("backlog", "known", "others", "reason"),
    [
        (LOW, effects(14), (), Reason.SCALE_IN),
        (LOW, effects(15), (), Reason.CHANGES_SPENT),
        (HIGH, effects(15), (), Reason.SCALE_OUT),
        (HIGH, effects(19), (), Reason.SCALE_OUT),
        (HIGH, effects(20), (), Reason.CHANGES_SPENT),
        (LOW, effects(14), (NOW - 5.0,), Reason.CHANGES_SPENT),  # somebody else's counts as well
        (HIGH, effects(14), tuple(NOW - 9.0 * n for n in range(6)), Reason.CHANGES_SPENT),
        (LOW, effects(14), (NOW - 3601.0,), Reason.SCALE_IN),
        (LOW, effects(20, last=3600.0), (), Reason.SCALE_IN),
    ],
)
def test_the_last_changes_of_the_hour_are_for_scaling_out(backlog, known, others, reason):
    assert decided(backlog, known=known, others=others).reason is reason


@pytest.mark.parametrize(("backlog", "count"), [(LOW, 15), (LOW, 18), (HIGH, 20), (HIGH, 25)])
def test_it_says_how_many_there_were_and_from_when_on_one_more_is_possible(backlog, count):
    found = decided(backlog, known=effects(count))

    (limit,) = found.limits
    (flip,) = found.flips
    out = backlog == HIGH
    words = "" if out else ", of which the last 5 are for scaling out"
    assert limit.detail == f"{count} of 20 changes in the last hour{words}"
    assert limit.detail in line(found)
    (condition,) = flip.conditions
    for moment, reason in ((condition.value, flip.outcome), (condition.value - 0.01, Reason.CHANGES_SPENT)):
        windows = {"backlog": full(backlog, count=1, now=moment)}
        state = at(10, now=moment, effects=effects(count))
        assert decide(policy(**SPEC), windows, state, now=moment).reason is reason


OVERRIDE = Controls(override=Override(3, "kim", NOW - 1, NOW + 600))


@pytest.mark.parametrize(
    ("count", "changes", "reason"),
    [
        (19, {"current": 40}, Reason.ABOVE_MAXIMUM),  # a bound needs no reserve
        (20, {"current": 40}, Reason.CHANGES_SPENT),  # what the platform would refuse is not asked for
        (20, {"current": 1, "minimum": 3}, Reason.CHANGES_SPENT),
        (25, {"controls": OVERRIDE}, Reason.OVERRIDDEN),  # an order stands above it
    ],
)
def test_bounds_may_spend_the_reserve_and_orders_stand_above_it(count, changes, reason):
    assert decided(LOW, known=effects(count), **changes).reason is reason


def test_other_kinds_of_targets_have_no_such_limit():
    assert decided(LOW, known=effects(40, every=60.0), facts=TargetFacts()).reason is Reason.SCALE_IN


PLAN = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/r/providers/Microsoft.Web/serverfarms/p"
FILE = """version = 1
[targets.plan]
scaler = "{scaler}"
maximum = 5
{options}
[targets.plan.metrics.backlog]
collector = "storage_queue"
connection = "AzureWebJobsStorage"
queue = "orders"
[[targets.plan.rules]]
type = "target_per_unit"
metric = "backlog"
target = 5
"""


@pytest.mark.parametrize(
    ("scaler", "options", "limit", "found"),
    [
        ("app_service_plan", f'resource_id = "{PLAN}"', 20, ()),
        ("app_service_plan", f'resource_id = "{PLAN}"\nchanges_per_hour = 6', 6, ()),
        ("app_service_plan", f'resource_id = "{PLAN}"\nchanges_per_hour = 40', 40, ("changes_refused",)),
        ("advice", "", None, ()),
        ("advice", "changes_per_hour = 6", 6, ()),
    ],
)
def test_the_limit_is_the_platforms_or_that_of_the_target(scaler, options, limit, found):
    text, settings = (
        FILE.format(scaler=scaler, options=options),
        {"AzureWebJobsStorage": "UseDevelopmentStorage=true"},
    )
    config = load_config(text, name="tidemark.toml", settings=settings, plug_ins=registry)

    assert config.policies["plan"].spec.facts.changes_per_hour == limit
    assert tuple(finding.kind for finding in config.findings) == found


PENDING = ScaleAction("plan@1", "plan", 10, 29, NOW - 30.0, NOW + 570.0, Reason.SCALE_OUT)
STARTED = at(10, pending=PENDING, effects=effects(19))


def test_a_change_counts_once_it_is_sent_and_only_once_whatever_becomes_of_it():
    begun = being_carried_out(STARTED, now=NOW, until=NOW + 60.0)
    again = being_carried_out(begun, now=NOW + 20.0, until=NOW + 80.0)
    there = record_effect(again, effect_of(PENDING, EffectOutcome.APPLIED, NOW + 30.0, "", 29))
    refused = record_effect(again, effect_of(PENDING, EffectOutcome.REFUSED, NOW + 30.0, "no", 10))

    assert again.sent == (("plan@1", NOW),)
    for state, newest in ((again, NOW), (there, NOW + 30.0), (refused, NOW)):
        assert changes_of_hour(state, NOW + 40.0)[-1] == newest
        assert len(changes_of_hour(state, NOW + 40.0)) == 20
        kept, _, corrupt = read_target(target_row("plan", state, {}))
        assert (kept.sent, corrupt) == (state.sent, ())


@pytest.mark.parametrize(
    ("backlog", "expected"),
    [(HIGH, Reason.ACTION_PENDING), (220.0, Reason.CHANGES_SPENT)],
    ids=["what is pending", "another change"],
)
def test_a_pending_change_that_was_begun_is_not_held_by_itself_but_what_takes_its_place_is(backlog, expected):
    state = hand_back(being_carried_out(STARTED, now=NOW - 20.0, until=NOW), "plan@1", due_at=NOW + 30.0)
    windows = {"backlog": full(backlog, count=1)}

    assert decide(policy(**SPEC), windows, state, now=NOW).reason is expected


@pytest.mark.parametrize("outcome", ["busy", "lost"])
async def test_what_the_platform_is_known_not_to_have_begun_is_no_change(outcome):
    world = World(policy(facts=TargetFacts(changes_per_hour=4), out=Pace(), inward=Pace()), capacity=2)
    world.backlog = 900.0

    async def refuse(action, *, now):
        raise ScalerError(outcome, unknown=outcome == "lost")

    world.scaler.apply = refuse
    for _ in range(6):
        await world.tick()
        await world.drain()
        world.clock.now += MINUTE

    assert len((await world.state()).sent) == (0 if outcome == "busy" else 1)


def test_somebody_else_s_change_counts_once_whoever_sees_it_and_is_stored():
    made, state = policy(**SPEC), at(4)
    seen = Capacity(6, NOW + 1)
    first = reconcile_capacity(
        made, msgspec.structs.replace(state, capacity=seen), seen, now=NOW + 1, controls=NO_CONTROLS
    )
    again = review(made, first, Capacity(6, NOW + 60), now=NOW + 60, controls=NO_CONTROLS).state
    other = review(made, again, Capacity(7, NOW + 90), now=NOW + 90, controls=NO_CONTROLS).state
    later = review(made, other, Capacity(8, NOW + 3650), now=NOW + 3650, controls=NO_CONTROLS).state

    assert first.others_changes == again.others_changes == (NOW + 1,)
    assert other.others_changes == (NOW + 1, NOW + 90)
    assert later.others_changes == (NOW + 90, NOW + 3650)
    kept, _, corrupt = read_target(target_row("plan", other, {}))
    assert (kept.others_changes, corrupt) == (other.others_changes, ())


def day(made, backlogs):
    """A plan that refuses what is above its limit, a decision a minute: what was refused, and capacities by minute."""
    windows, state, capacity, changes = {}, TargetState(), 4, []
    refused, found = [], []
    for minute, backlog in enumerate(backlogs):
        now = NOW + MINUTE * minute
        report = MetricsReport(
            "plan", now, (MetricSample("backlog", now, backlog),), (), Capacity(capacity, now)
        )
        windows, state = absorb(made, windows, state, report, now=now, controls=NO_CONTROLS)
        made_now = decide(made, windows, state, now=now, decision_id=f"plan@{minute}")
        state, action = advance(made, state, made_now, report_at=now, level=None)
        if action is not None:
            if sum(change > now - 3600.0 for change in changes) >= CHANGES_PER_HOUR:
                refused.append(minute)
                effect = effect_of(action, EffectOutcome.REFUSED, now, "limit is 20", capacity)
            else:
                capacity = action.to_capacity
                changes.append(now)
                effect = effect_of(action, EffectOutcome.APPLIED, now, "", capacity)
            state = record_effect(state, effect)
        found.append(capacity)
    return refused, found


@pytest.mark.parametrize("begin", range(40, 60, 3))
@pytest.mark.parametrize(
    "pace",
    [
        {"out": HPA_OUT, "inward": msgspec.structs.replace(HPA_IN, stabilization=60.0)},
        {"out": HPA_OUT, "inward": HPA_IN},
        {"out": Pace(), "inward": Pace()},
    ],
    ids=["hpa, less stabilized", "hpa", "no limits"],
)
def test_a_surge_after_an_hour_of_ripples_waits_for_nothing(pace, begin):
    ripples = [30.0 if minute // 2 % 2 else 60.0 for minute in range(begin)]

    refused, capacities = day(policy(**(SPEC | pace)), ripples + [300.0] * 10)

    assert refused == []
    assert capacities[begin + 4] == 30  # as fast as the HPA doubles
