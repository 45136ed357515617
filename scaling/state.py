"""How the stored state of a target changes: on a report, a decision, an effect, a check. Pure.

report    -> absorb()         windows and capacity as known now
decision  -> advance()        what must be remembered of it, the pending action included
effect    -> record_effect()  the pending action is done; cooldowns start here
check     -> review()         is the effect there, did a foreign hand move the target
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from scaling.controls import active_pause
from scaling.model import (
    MOVED,
    Capacity,
    Controls,
    Direction,
    Effect,
    EffectOutcome,
    EffectRecord,
    ForeignHand,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Reason,
    Recommendation,
    ScaleAction,
    TargetState,
)
from scaling.policy import EFFECTS_KEPT, Policy
from scaling.window import EMPTY, Window, observe

REPORTS_REMEMBERED = 32
"""Report times kept to recognise a second delivery; a queue redelivers within minutes, not hours."""

RECOMMENDATIONS_KEPT = 2_000


def already_evaluated(state: TargetState, at: float) -> bool:
    """True for a report that was decided upon, or is older than everything remembered."""
    seen = state.evaluated
    return at in seen or (len(seen) >= REPORTS_REMEMBERED and at < seen[0])


def absorb(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    report: MetricsReport,
    *,
    now: float,
    controls: Controls,
) -> tuple[dict[str, Window], TargetState]:
    """Windows and state after a report: samples at their times, capacity reconciled with what we believe.

    A metric the policy has but the report does not mention counts as failed: unknown is not zero.
    """
    told: dict[str, MetricSample | MetricFailure] = {sample.metric: sample for sample in report.samples}
    told.update((failure.metric, failure) for failure in report.failures)
    updated: dict[str, Window] = {}
    for name, spec in policy.windows.items():
        item = told.get(name) or MetricFailure(name, report.at, "the collector's report does not mention it")
        updated[name] = observe(windows.get(name, EMPTY), item, spec, now=now)
    return updated, _reconciled(policy, state, report, now=now, controls=controls)


def _reconciled(
    policy: Policy, state: TargetState, report: MetricsReport, *, now: float, controls: Controls
) -> TargetState:
    capacity = report.capacity
    if capacity is None:
        if state.capacity is not None and report.at < state.capacity.at:
            return state
        return msgspec.structs.replace(
            state, capacity_error=report.capacity_error or "the capacity is not in the report"
        )
    if state.capacity is not None and capacity.at < state.capacity.at:
        return state  # a late report; a newer reading is already known
    state = msgspec.structs.replace(state, capacity=capacity, capacity_error=None)
    pending = state.pending
    if pending is not None and now >= pending.expires_at and _in_place(pending, capacity):
        state = record_effect(state, found_in_place(pending, capacity.at))
    return believe(policy, state, capacity, now=now, controls=controls)


def believe(
    policy: Policy, state: TargetState, capacity: Capacity, *, now: float, controls: Controls
) -> TargetState:
    """Reconciles a reading with what we expect. Somebody else's change is noted, held on, then adopted."""
    replace = msgspec.structs.replace
    if state.expected is None:
        # As the HPA does: the first capacity seen counts as recommended, so that a start is not a scale-in.
        first = ((now, capacity.current),) if policy.memory > 0 else ()
        return replace(state, expected=capacity.current, recommendations=first, foreign=None)
    if capacity.current == state.expected:
        return replace(state, foreign=None)
    if capacity.pending:
        return state  # on its way, it is not known where to
    if state.effects and capacity.at <= state.effects[-1].at:
        return state  # read before our own last effect
    if state.pending is not None and capacity.current == state.pending.to_capacity:
        return state  # our own action, its effect not recorded yet
    foreign = state.foreign
    if foreign is None or foreign.seen != capacity.current:
        foreign = ForeignHand(capacity.current, state.expected, now)
    cleared = controls.foreign_cleared_at is not None and controls.foreign_cleared_at >= foreign.at
    if cleared or now - foreign.at >= policy.spec.foreign_hold:
        return replace(state, expected=capacity.current, foreign=None)
    return replace(state, foreign=foreign)


def advance(
    policy: Policy,
    state: TargetState,
    recommendation: Recommendation,
    *,
    report_at: float,
    level: float | None,
) -> tuple[TargetState, ScaleAction | None]:
    """The state to save after a decision, and the action to emit once it is saved.

    `level` is the plateau metric now (None when unknown or unused). The action stays pending until its
    effect is recorded, so it can be emitted again, with the same id, should it be lost.
    """
    now = recommendation.at
    action = _action(policy, recommendation) if recommendation.acts else None
    recommendations = state.recommendations
    if recommendation.proposed is not None and policy.memory > 0:
        cutoff = now - policy.memory
        recommendations = (
            *(r for r in recommendations[-RECOMMENDATIONS_KEPT:] if r[0] > cutoff),
            (now, recommendation.proposed),
        )
    pending = state.pending
    given_up = pending is not None and now >= pending.expires_at
    if given_up and recommendation.reason not in {Reason.ACTION_PENDING, Reason.CAPACITY_UNKNOWN}:
        pending = None  # otherwise the platform may still be at it
    return (
        msgspec.structs.replace(
            state,
            evaluated=tuple(sorted((*state.evaluated, report_at)))[-REPORTS_REMEMBERED:],
            pending=action or pending,
            pending_level=level if action else state.pending_level if pending else None,
            recommendations=recommendations,
            missing_since=_missing_since(state, recommendation),
            corrupt_since=state.corrupt_since if recommendation.reason in _STILL_CORRUPT else None,
            last=recommendation,
        ),
        action,
    )


_STILL_CORRUPT = frozenset({Reason.STATE_CORRUPT, Reason.CAPACITY_UNKNOWN})


def _missing_since(state: TargetState, r: Recommendation) -> float | None:
    """Since when the rules could not propose anything, whatever else held the decision back meanwhile."""
    if r.reason is Reason.CAPACITY_UNKNOWN:
        return state.missing_since  # the rules were not asked
    if r.proposed is not None:
        return None
    return r.at if state.missing_since is None else state.missing_since


def _action(policy: Policy, r: Recommendation) -> ScaleAction:
    assert r.current is not None and r.desired is not None  # noqa: S101, PT018 - `acts` implies both
    return ScaleAction(
        action_id=r.decision_id,
        target=r.target,
        from_capacity=r.current,
        to_capacity=r.desired,
        decided_at=r.at,
        expires_at=r.at + policy.spec.action_ttl,
        reason=r.reason,
    )


def record_effect(state: TargetState, effect: Effect) -> TargetState:
    """The state after an effect.

    Only effects that left the target where they say start a cooldown; a failed action burns none and stays
    pending, to be tried again; so does one the platform has accepted and not finished. A change that was really made is recorded even when its action was given up
    in the meantime; any other news of an action that is not pending changes nothing.
    """
    pending = state.pending
    mine = pending is not None and pending.action_id == effect.action_id
    made = effect.outcome in {EffectOutcome.APPLIED, EffectOutcome.LIMITED}
    known = any(record.action_id == effect.action_id for record in state.effects)
    open_still = effect.outcome in {EffectOutcome.FAILED, EffectOutcome.ACCEPTED}
    if open_still or known or not (mine or made):
        return state
    replace = msgspec.structs.replace
    level = state.pending_level if mine else None
    if mine:
        state = replace(state, pending=None, pending_level=None)
    if effect.outcome in MOVED and effect.reached is not None:
        record = EffectRecord(effect.at, effect.from_capacity, effect.reached, level, effect.action_id)
        moved = state.effects
        if effect.reached != effect.from_capacity:
            moved = (*moved, record)
            if len(moved) > 1 and record.at < moved[-2].at:  # clocks of instances differ
                moved = tuple(sorted(moved, key=lambda known: known.at))
        return replace(state, expected=effect.reached, effects=moved[-EFFECTS_KEPT:], foreign=None)
    if effect.outcome is EffectOutcome.FOREIGN_HAND and effect.reached is not None:
        expected = state.expected if state.expected is not None else effect.from_capacity
        if effect.reached != expected:
            return replace(state, foreign=ForeignHand(effect.reached, expected, effect.at))
    return state


def refusal(
    policy: Policy, state: TargetState, controls: Controls, action: ScaleAction, *, now: float
) -> Effect | None:
    """Why an action must not reach the platform any more, as its effect; None when it may."""
    pending = state.pending
    if pending is None or pending.action_id != action.action_id:
        return without_change(action, EffectOutcome.SUPERSEDED, now, "not the pending action of this target")
    if now >= action.expires_at:
        age = now - action.decided_at
        return without_change(action, EffectOutcome.EXPIRED, now, f"decided {age:.0f} s ago")
    text = _forbidden(policy, controls, action, now)
    return without_change(action, EffectOutcome.REFUSED, now, text) if text else None


def _forbidden(policy: Policy, controls: Controls, action: ScaleAction, now: float) -> str:
    """What changed since the decision that forbids its action; orders and bounds may."""
    out, to = action.direction is Direction.OUT, action.to_capacity
    # A ceiling (of a schedule, of the platform) may lie under the minimum; rules never go below either.
    if (out and to > policy.maximum) or (action.reason is Reason.SCALE_IN and to < policy.minimum):
        return f"outside the configured {policy.minimum}..{policy.maximum}"
    paused = active_pause(controls, action.direction, now)
    if paused is not None and action.reason is not Reason.OVERRIDDEN:
        return f"paused by {paused.by}"
    dry_run = policy.spec.dry_run if controls.dry_run is None else controls.dry_run
    return "dry-run is on" if dry_run else ""


def without_change(action: ScaleAction, outcome: EffectOutcome, now: float, detail: str) -> Effect:
    """The effect of an action that changed nothing, as far as is known."""
    return Effect(
        action.action_id, action.target, outcome, action.from_capacity, action.to_capacity, None, now, detail
    )


class Review(Struct, frozen=True):
    """What a check of one target found: the state to save, an action to emit again, lines for the log."""

    state: TargetState
    emit: ScaleAction | None = None
    effect: Effect | None = None
    findings: tuple[tuple[Reason, str], ...] = ()


def review(
    policy: Policy, state: TargetState, capacity: Capacity, *, now: float, controls: Controls
) -> Review:
    """Compares what was requested with what was reached.

    A pending action whose effect is there gets it recorded (and told as `effect`); one without effect after
    `effect_timeout` is emitted again until it expires, then given up (it burns no cooldown), unless the
    platform is still at it. A capacity nobody here asked for is a foreign hand.
    """
    pending = state.pending
    if pending is not None:
        return _review_pending(policy, state, pending, capacity, now)
    before = state.foreign
    after = believe(
        policy,
        msgspec.structs.replace(state, capacity=capacity, capacity_error=None),
        capacity,
        now=now,
        controls=controls,
    )
    if after.foreign is not None and (before is None or before.seen != after.foreign.seen):
        text = f"expected {after.foreign.expected}, found {after.foreign.seen}: somebody else changed it"
        return Review(after, findings=((Reason.FOREIGN_HAND, text),))
    if before is not None and after.foreign is None:
        text = f"capacity {after.expected} is taken over after somebody else set it"
        return Review(after, findings=((Reason.FOREIGN_HAND, text),))
    return Review(after)


def _in_place(pending: ScaleAction, capacity: Capacity) -> bool:
    """True when a reading made since the decision shows what was asked for."""
    return (
        capacity.current == pending.to_capacity and not capacity.pending and capacity.at >= pending.decided_at
    )


def found_in_place(action: ScaleAction, at: float) -> Effect:
    """The effect of an action nobody lived to record."""
    return Effect(
        action.action_id,
        action.target,
        EffectOutcome.ALREADY_THERE,
        action.from_capacity,
        action.to_capacity,
        action.to_capacity,
        at,
        "found in place",
    )


def _review_pending(
    policy: Policy, state: TargetState, pending: ScaleAction, capacity: Capacity, now: float
) -> Review:
    where = f"{pending.from_capacity} -> {pending.to_capacity} [{pending.action_id}]"
    if _in_place(pending, capacity):
        effect = found_in_place(pending, capacity.at)
        text = f"effect of {where} found in place and recorded"
        return Review(record_effect(state, effect), None, effect, ((Reason.ACTION_PENDING, text),))
    if capacity.pending or capacity.at < pending.decided_at:
        return Review(state)
    if now >= pending.expires_at:
        state = msgspec.structs.replace(state, pending=None, pending_level=None)
        text = f"{where} expired without effect; the capacity is {capacity.current}"
        return Review(state, findings=((Reason.ACTION_PENDING, text),))
    if now - pending.decided_at >= policy.spec.effect_timeout:
        text = f"{where} has no effect after {now - pending.decided_at:.0f} s; emitted again"
        return Review(state, pending, findings=((Reason.ACTION_PENDING, text),))
    return Review(state)
