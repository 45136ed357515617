"""After a gap in what is known, the present capacity counts as recommended for the stabilization window."""

import pytest

from scaling.config.policy import HPA_IN, HPA_OUT, Pace, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.pending_action import record_effect
from scaling.decision.transitions import absorb, advance
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    EffectOutcome,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Reason,
    TargetState,
    effect_of,
)
from tests.support.scaling.runner import MINUTE, NOW, metric, policy
from tests.support.scaling.shadow import Target, shadowed

UNIT = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 100.0})
STEP = RuleSpec(
    type="threshold",
    name="step",
    options={"metric": "backlog", "scale_out_above": 700.0, "scale_in_below": 100.0, "step": 5},
)
SERVED = RuleSpec(type="service_level", name="sla", options={"backlog": "backlog", "concurrency": 16.0})
EXPRESSION = RuleSpec(type="composite", name="each", options={"desired": "ceil(backlog / 100)"})
RULES = {rule.type: rule for rule in (UNIT, STEP, SERVED, EXPRESSION)}
SAMPLED = {"span": MINUTE, "min_samples": 1}
HPA = {"out": HPA_OUT, "inward": HPA_IN}
SLOW = {"out": Pace(), "inward": Pace(stabilization=300.0)}


def minutes(made, told, *, current=6, state=None, begin=0):
    """What is decided, a minute each: of (backlog or None, capacity is read), or of None, where no report comes."""
    windows, state, found = {}, state or TargetState(), []
    for minute, each in enumerate(told, start=begin):
        if each is None:
            continue
        now, (backlog, read) = NOW + MINUTE * minute, each
        here = current if state.expected is None else state.expected
        sample = () if backlog is None else (MetricSample("backlog", now, float(backlog)),)
        failed = (MetricFailure("backlog", now, "no"),) if backlog is None else ()
        seen = Capacity(here, now) if read else None
        report = MetricsReport("plan", now, sample, failed, seen, None if read else "403")
        windows, state = absorb(made, windows, state, report, now=now, controls=NO_CONTROLS)
        decided = decide(made, windows, state, now=now, decision_id=f"plan@{minute}")
        state, action = advance(made, state, decided, report_at=now, level=None)
        if action is not None:
            done = effect_of(action, EffectOutcome.APPLIED, now, "", action.to_capacity)
            state = record_effect(state, done)
        found.append((minute, decided))
    return found, state


HIGH, LOW = (600, True), (40, True)
GAPS = {
    "reads that failed": [(None, True)] * 10,
    "one read that failed": [(None, True)],
    "a capacity that could not be read while the backlog was high": [(600, False)] * 6,
    "neither read": [(None, False)] * 6,
    "no report": [None] * 60,
    "one report lost": [None],
    "reads that failed, then no report": [(None, True)] * 3 + [None] * 7,
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize("pace", [HPA, SLOW], ids=["hpa", "stabilization"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_nothing_is_scaled_in_within_the_stabilization_window_after_a_gap(rule, pace, gap):
    made = policy(metrics={"backlog": metric(**SAMPLED)}, rules=(rule,), maximum=6, **pace)

    found, _ = minutes(made, [HIGH] * 3 + gap + [LOW] * 10)

    last = 3 + len(gap) - 1  # the last minute of which nothing was known
    moved = [minute for minute, each in found if each.reason is Reason.SCALE_IN]
    assert not [minute for minute in moved if minute < last + 5]
    assert moved or rule is SERVED  # which still learns


@pytest.mark.parametrize("gap", [gap for gap in GAPS.values() if len(gap) > 1])
def test_a_service_level_without_a_stabilization_window_holds_after_a_gap_too(gap):
    """By what it remembers of its own needs; one report that is lost is within what it looks back on."""
    made = policy(metrics={"backlog": metric(**SAMPLED)}, rules=(SERVED,))

    found, _ = minutes(made, [HIGH] * 30 + gap + [LOW] * 5)

    last = 30 + len(gap) - 1
    assert not [minute for minute, each in found if minute > last and each.reason is Reason.SCALE_IN]


def test_a_policy_that_gets_a_stabilization_window_begins_with_the_present_capacity():
    made = policy(metrics={"backlog": metric(**SAMPLED)}, rules=(UNIT,))
    _, state = minutes(made, [HIGH] * 3)

    found, _ = minutes(
        policy(metrics={"backlog": metric(**SAMPLED)}, rules=(UNIT,), **HPA), [LOW] * 6, state=state, begin=3
    )

    assert [each.reason for _, each in found] == [Reason.STABILIZING] * 5 + [Reason.SCALE_IN]


def test_what_is_not_known_ends_no_wish_for_more():
    made = policy(
        metrics={"backlog": metric(**SAMPLED)}, rules=(UNIT,), out=Pace(stabilization=180.0), inward=HPA_IN
    )

    found, _ = minutes(
        made, [(300, True)] * 2 + [(900, True)] * 2 + [(None, True)] + [(900, True)], current=3
    )

    assert found[-1][1].reason is Reason.SCALE_OUT


def test_an_uneven_schedule_has_no_gap_where_nothing_is_due():
    """Twice in a row, then a pause of 29 minutes: :00, :01, :30."""
    made = policy(
        metrics={"backlog": metric(span=1800.0, min_samples=1, schedule="0 0,1,30 * * * *", max_age=3600.0)},
        rules=(UNIT,),
        **HPA,
    )
    begin = int(-(NOW % 3600) // 60) + 60
    told = [HIGH if minute % 60 == 0 else LOW if minute % 60 in {1, 30} else None for minute in range(61)]

    found, _ = minutes(made, told[:1] + [LOW if each else None for each in told[1:]], begin=begin)

    assert [each.reason for _, each in found][-2:] == [Reason.SCALE_IN, Reason.WITHIN_TARGET]


def test_the_simulated_rules_hold_after_a_gap_as_well():
    pace = Pace(stabilization=300.0)
    unit = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 10.0})
    target = Target(shadowed(unit, inward=pace), rate=40.0)
    target.steps(60)
    high = target.shadow.capacity
    target.now += 900.0
    target.rate, target.waiting = lambda _: 0.0, 0.0
    target.steps(19)

    assert target.shadow.capacity >= high > 1
