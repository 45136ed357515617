"""The platform takes so many changes an hour: the last ones are for scaling out, whoever made the others."""

import msgspec
import pytest

from scaling.config.policy import HPA_IN, HPA_OUT, Pace, RuleSpec
from scaling.decision.explain import line
from scaling.decision.pending_action import record_effect
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
    TargetState,
    effect_of,
)
from scaling.scalers.app_service.scaler import CHANGES_PER_HOUR, AppServicePlanScaler
from scaling.storage.rows import read_target, target_row
from scaling.target_facts import TargetFacts
from tests.support.scaling.runner import MINUTE, NOW, at, full, metric, policy

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


def test_bounds_and_orders_are_carried_out_all_the_same():
    override = Controls(override=Override(3, "kim", NOW - 1, NOW + 600))

    assert decided(LOW, known=effects(18), controls=override).reason is Reason.OVERRIDDEN
    assert decided(LOW, known=effects(18), current=40).reason is Reason.ABOVE_MAXIMUM


def test_other_kinds_of_targets_have_no_such_limit():
    assert decided(LOW, known=effects(40, every=60.0), facts=TargetFacts()).reason is Reason.SCALE_IN


def test_the_limit_of_a_plan_is_a_setting_of_its_scaler():
    plan = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Web/serverfarms/p"
    params = AppServicePlanScaler.Params(resource_id=plan)

    assert AppServicePlanScaler.facts(params).changes_per_hour == 20
    more = msgspec.structs.replace(params, changes_per_hour=40)
    assert AppServicePlanScaler.facts(more).changes_per_hour == 40


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
