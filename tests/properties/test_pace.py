"""Laws of pace: no limit reverses a change, goes beyond what was wanted, or frees itself too early; no hour has too many changes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from scaling.config.policy import Pace, RateLimit, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.pacing import (
    HOUR,
    apply_pace,
    apply_stabilization,
    changes_reserved_for_out,
    rate_bound,
    rate_free_at,
)
from scaling.decision.pending_action import being_carried_out, hand_back, pursue, record_effect
from scaling.decision.transitions import absorb, advance
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    EffectOutcome,
    EffectRecord,
    MetricSample,
    MetricsReport,
    Reason,
    TargetState,
    effect_of,
)
from scaling.storage.rows import read_target, target_row
from scaling.target_facts import TargetFacts
from tests.support.scaling.runner import metric, policy

NOW = 100_000.0
counts = st.integers(0, 60)
rates = st.builds(
    RateLimit,
    kind=st.sampled_from(["units", "percent"]),
    amount=st.integers(1, 200),
    period=st.sampled_from([15.0, 60.0, 300.0]),
)
paces = st.builds(
    Pace,
    cooldown=st.just(0.0),
    stabilization=st.sampled_from([0.0, 60.0, 300.0]),
    step=st.none() | st.integers(1, 10),
    rates=st.lists(rates, max_size=3).map(tuple),
    select=st.sampled_from(["max", "min", "disabled"]),
)
histories = st.lists(st.tuples(st.integers(0, 700).map(lambda ago: NOW - ago), counts), max_size=8).map(
    lambda found: tuple(sorted(found))
)
changes = st.lists(
    st.builds(EffectRecord, st.integers(0, 700).map(lambda ago: NOW - ago), counts, counts), max_size=8
).map(lambda found: tuple(sorted(found, key=lambda effect: effect.at)))


def between(value, one, other):
    return min(one, other) <= value <= max(one, other)


@given(counts, counts, histories, paces, paces)
def test_stabilization_lands_between_the_count_and_what_is_wanted(wanted, current, history, out, inward):
    assert between(apply_stabilization(wanted, current, history, out, inward, NOW), current, wanted)


@given(counts, counts, changes, paces)
def test_limits_land_between_the_count_and_what_is_wanted_and_tell_every_cut(wanted, current, effects, pace):
    if wanted == current:
        return
    desired, limits = apply_pace(wanted, current, effects, pace, NOW)

    assert type(desired) is int
    assert between(desired, current, wanted)
    assert bool(limits) == (desired != wanted)
    if limits:
        assert limits[0].wanted == wanted
        assert limits[-1].allowed == desired
        assert all(a.allowed == b.wanted for a, b in itertools.pairwise(limits))


@given(counts, changes, paces, st.booleans())
def test_a_rate_is_free_when_it_says_and_not_before(current, effects, pace, out):
    free = rate_free_at(current, effects, pace, NOW, out=out)

    def moves(at):
        bound = rate_bound(current, effects, pace, at, out=out)
        return bound > current if out else bound < current

    if free is not None:
        assert free > NOW
        assert moves(free)


@given(counts, counts, changes, paces)
def test_selecting_the_least_change_never_allows_more_than_the_most(wanted, current, effects, pace):
    def allowed(select):
        chosen = Pace(step=pace.step, rates=pace.rates, select=select)
        return abs(apply_pace(wanted, current, effects, chosen, NOW)[0] - current) if wanted != current else 0

    assert allowed("disabled") == 0
    assert allowed("min") <= allowed("max")


UNIT = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 10.0})
minutes = st.lists(
    st.tuples(
        st.integers(0, 12),  # what is wanted; above the maximum of 9 and below the minimum of 2, too
        st.sampled_from(["applied", "applied", "refused", "handed back", "lost", "late"]),
        st.sampled_from([None, None, None, None, 1, 5, 11]),  # what somebody else sets
    ),
    min_size=20,
    max_size=45,
)


@given(st.integers(2, 7), minutes)
def test_no_hour_has_more_changes_than_stated_and_scale_ins_leave_the_rest_to_scale_outs(most, script):
    """Whatever becomes of what was sent, and whatever is wanted next. Reports come every two minutes, and states are stored."""
    made = policy(
        metrics={"backlog": metric(span=120.0, interval=120.0, min_samples=1)},
        rules=(UNIT,),
        minimum=2,
        maximum=9,
        facts=TargetFacts(changes_per_hour=most),
    )
    windows, state, capacity, sent, late = {}, TargetState(), 4, [], None
    for index, (wanted, fate, other) in enumerate(script):
        now = 1_000_000.0 + 120.0 * index
        if late is not None:
            capacity, late = late, None
        capacity = capacity if other is None else other
        report = MetricsReport(
            "plan", now, (MetricSample("backlog", now, 10.0 * wanted),), (), Capacity(capacity, now)
        )
        windows, state = absorb(made, windows, state, report, now=now, controls=NO_CONTROLS)
        review = pursue(made, state, state.capacity, now=now, controls=NO_CONTROLS, windows=windows)
        decision = decide(made, windows, review.state, now=now, decision_id=f"plan@{index}")
        state, action = advance(made, review.state, decision, report_at=now, level=None)
        lasting = [way for at, _, way in sent if at > now - HOUR - 240.0]  # it counts from its effect on
        if decision.reason is Reason.CHANGES_SPENT and (decision.proposed or 0) > (decision.current or 0):
            ins = lasting.count("in")
            assert ins <= most - changes_reserved_for_out(most)
            assert len(lasting) + len(state.others_changes) >= most
        if (action := action or (review.emit if state.pending == review.emit else None)) is None:
            continue
        state = being_carried_out(state, now=now, until=now + 30.0)
        if action.action_id not in [identity for _, identity, _ in sent]:
            sent.append((now, action.action_id, str(action.direction)))
        match fate:
            case "applied":
                capacity = action.to_capacity
                state = record_effect(
                    state, effect_of(action, EffectOutcome.APPLIED, now + 20.0, "", capacity)
                )
            case "refused":
                state = record_effect(
                    state, effect_of(action, EffectOutcome.REFUSED, now + 20.0, "", capacity)
                )
            case "handed back":
                state = hand_back(state, action.action_id, due_at=now + 60.0)
            case "late":
                late = action.to_capacity
        state, _, corrupt = read_target(target_row("plan", state, {}))
        assert not corrupt

    for at, _, _ in sent:
        hour = [way for other, _, way in sent if at - HOUR < other <= at]
        assert len(hour) <= most
