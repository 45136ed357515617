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

from scaling.decision.orders import active_pause
from scaling.model import (
    MOVED,
    Capacity,
    Controls,
    Delivery,
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
    Refused,
    ScaleAction,
    TargetState,
)
from scaling.policy import EFFECTS_KEPT, Policy
from scaling.window import EMPTY, Window, observe

REPORTS_REMEMBERED = 32
"""Report times kept to recognise a second delivery; a queue redelivers within minutes, not hours."""

RECOMMENDATIONS_KEPT = 2_000

STILL_OPEN = frozenset({EffectOutcome.FAILED, EffectOutcome.ACCEPTED})
"""Outcomes after which an action stays pending."""


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

    A metric the policy has but the report does not mention counts as failed: unknown is not zero. Metrics of
    disabled entities are not missing: while nothing else failed, the time of the fallback does not run.
    """
    told: dict[str, MetricSample | MetricFailure] = {sample.metric: sample for sample in report.samples}
    told.update((failure.metric, failure) for failure in report.failures)
    updated: dict[str, Window] = {}
    for name, spec in policy.windows.items():
        item = told.get(name) or MetricFailure(name, report.at, "the collector's report does not mention it")
        updated[name] = observe(windows.get(name, EMPTY), item, spec, now=now)
    reasons = {item.reason for item in told.values() if isinstance(item, MetricFailure)}
    if reasons == {Reason.ENTITY_DISABLED}:
        state = msgspec.structs.replace(state, missing_since=None)
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
    # Read ahead of this clock, it would outrank every true reading until then.
    capacity = msgspec.structs.replace(capacity, at=min(capacity.at, now))
    if state.capacity is not None and capacity.at < state.capacity.at:
        return state  # a late report; a newer reading is already known
    state = msgspec.structs.replace(state, capacity=capacity, capacity_error=None)
    pending = state.pending
    if pending is not None and now >= pending.expires_at and (found := _found(state, pending, capacity)):
        state = record_effect(state, found)  # before that it is left to the check, which also logs it
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
    if state.pending is not None and _is_ours(state, state.pending, capacity.current):
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
    now, pending = recommendation.at, state.pending
    # An override is decided upon while an action is pending only where it wants another capacity: see `decide`.
    superseded = pending is not None and recommendation.reason is Reason.OVERRIDDEN
    action = _action(policy, recommendation) if recommendation.acts else None
    if action is not None and pending is not None and superseded:
        # Of several overrides in a row the first one's predecessor may be what was carried out after all.
        never_left = pending.replaces is not None and _asked_since(state) is None
        led_to = pending.replaces if never_left else pending.to_capacity
        action = msgspec.structs.replace(action, replaces=led_to)
    recommendations = state.recommendations
    if recommendation.proposed is not None and policy.memory > 0:
        cutoff = now - policy.memory
        recommendations = (
            *(r for r in recommendations[-RECOMMENDATIONS_KEPT:] if r[0] > cutoff),
            (now, recommendation.proposed),
        )
    given_up = pending is not None and now >= pending.expires_at
    if superseded or (
        given_up and recommendation.reason not in {Reason.ACTION_PENDING, Reason.CAPACITY_UNKNOWN}
    ):
        pending = None  # otherwise the platform may still be at it
    delivery = Delivery(now + policy.spec.effect_timeout) if action else state.delivery if pending else None
    return (
        msgspec.structs.replace(
            state,
            evaluated=tuple(sorted((*state.evaluated, report_at)))[-REPORTS_REMEMBERED:],
            pending=action or pending,
            pending_level=level if action else state.pending_level if pending else None,
            pending_accepted=state.pending_accepted if pending and not action else None,
            delivery=delivery,
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
    pending, to be tried again; so does one the platform has accepted and not finished, which is noted. A refusal
    of the platform is remembered. A change that was really made is recorded even when its action was given up in
    the meantime; any other news of an action that is not pending changes nothing.
    """
    pending = state.pending
    mine = pending is not None and pending.action_id == effect.action_id
    made = effect.outcome in {EffectOutcome.APPLIED, EffectOutcome.LIMITED}
    known = any(record.action_id == effect.action_id for record in state.effects)
    if effect.outcome is EffectOutcome.FAILED or known or not (mine or made):
        return state
    replace = msgspec.structs.replace
    if effect.outcome is EffectOutcome.ACCEPTED:
        return state if state.pending_accepted is not None else replace(state, pending_accepted=effect.at)
    level = None
    if mine:
        effect = as_ours(state, effect)
        level = state.pending_level
        state = replace(state, pending=None, pending_level=None, pending_accepted=None, delivery=None)
    return state if effect.reached is None else _with_effect(state, effect, effect.reached, level)


def as_ours(state: TargetState, effect: Effect) -> Effect:
    """A foreign hand on the way of the pending action is our own, where the platform may have had it before."""
    pending, reached = state.pending, effect.reached
    foreign = effect.outcome is EffectOutcome.FOREIGN_HAND and state.pending_accepted is not None
    if not foreign or pending is None or reached is None or not _is_part(pending, reached):
        return effect
    text = "an earlier delivery got this far"
    return msgspec.structs.replace(effect, outcome=EffectOutcome.LIMITED, detail=text)


def _with_effect(state: TargetState, effect: Effect, reached: int, level: float | None) -> TargetState:
    """What is remembered of an effect after which the target was seen at `reached`."""
    replace = msgspec.structs.replace
    if effect.outcome in MOVED:
        record = EffectRecord(effect.at, effect.from_capacity, reached, level, effect.action_id)
        moved = state.effects
        if reached != effect.from_capacity:
            moved = (*moved, record)
            if len(moved) > 1 and record.at < moved[-2].at:  # clocks of instances differ
                moved = tuple(sorted(moved, key=lambda known: known.at))
        return replace(state, expected=reached, effects=moved[-EFFECTS_KEPT:], foreign=None)
    if effect.outcome is EffectOutcome.FOREIGN_HAND:
        expected = state.expected if state.expected is not None else effect.from_capacity
        if reached != expected:
            return replace(state, foreign=ForeignHand(reached, expected, effect.at))
    if effect.outcome is EffectOutcome.REFUSED:  # by the platform: other refusals have not looked at it
        return replace(state, refused=_refused(state, effect))
    return state


def _refused(state: TargetState, effect: Effect) -> Refused:
    limits = state.capacity or Capacity(effect.from_capacity, effect.at)
    return Refused(
        effect.from_capacity, effect.to_capacity, effect.at, effect.detail, limits.floor, limits.ceiling
    )


def being_carried_out(state: TargetState, *, now: float, until: float) -> TargetState:
    """The state while a scaler is at the pending action, which is not sent again meanwhile.

    Of an earlier delivery that has not said what came of it the platform may have accepted the action.
    """
    accepted = state.pending_accepted
    if accepted is None and state.delivery is not None and state.delivery.carried_until is not None:
        accepted = now
    return msgspec.structs.replace(state, delivery=Delivery(until, until), pending_accepted=accepted)


def perhaps_accepted(state: TargetState, action_id: str, since: float) -> TargetState:
    """The state where the platform may have the pending action since then: what becomes of that is ours."""
    pending = state.pending
    if pending is None or pending.action_id != action_id or state.pending_accepted is not None:
        return state
    return msgspec.structs.replace(state, pending_accepted=since)


def handed_back(
    state: TargetState, action_id: str, *, due_at: float, carried_until: float | None = None
) -> TargetState:
    """The state after a scaler gave an action back that is still to be carried out: it is sent again at `due_at`,
    and not before `carried_until`, by which another scaler is over with it.
    """
    if state.pending is None or state.pending.action_id != action_id:
        return state
    return msgspec.structs.replace(state, delivery=Delivery(due_at, carried_until))


def under_way(state: TargetState, now: float) -> bool:
    """True while a scaler is at the pending action; the time of one that died runs out."""
    return state.pending is not None and under_way_until(state, now, state.pending.action_id) is not None


def under_way_until(state: TargetState, now: float, action_id: str) -> float | None:
    """When the scaler that is at this action is over with it; None where the action is not pending, or none is at it."""
    until = state.delivery.carried_until if state.delivery is not None else None
    mine = state.pending is not None and state.pending.action_id == action_id
    return until if mine and until is not None and now < until else None


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

    A capacity nobody here asked for is a foreign hand. For a pending action see `pursue`.
    """
    if state.pending is not None:
        return pursue(policy, state, capacity, now=now, controls=controls)
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


def _is_ours(state: TargetState, pending: ScaleAction, current: int) -> bool:
    """True for a capacity that the pending action leads to, or the one it took the place of, or a part of it."""
    if current in {pending.to_capacity, pending.replaces}:
        return True
    return _asked_since(state) is not None and _is_part(pending, current)


def _asked_since(state: TargetState) -> float | None:
    """Since when the platform may have the pending action; None while no delivery of it has begun, or all that have
    were handed back. A delivery that is at it, or died, has its end for that: what it did was done by then.
    """
    if state.pending_accepted is not None:
        return state.pending_accepted
    return None if state.delivery is None else state.delivery.carried_until


def _is_part(pending: ScaleAction, current: int) -> bool:
    """True for a capacity on the way of an action."""
    low, high = sorted((pending.from_capacity, pending.to_capacity))
    return low < current < high


def _found(state: TargetState, pending: ScaleAction, capacity: Capacity) -> Effect | None:
    """The effect that a reading shows: all that was asked for, or the part at which the platform has ended."""
    if _in_place(pending, capacity):
        return found_in_place(pending, capacity.at)
    since = _asked_since(state)
    if since is None or capacity.at <= since or capacity.pending or not _is_part(pending, capacity.current):
        return None
    text = "the platform has ended with a part of it"
    found = without_change(pending, EffectOutcome.LIMITED, capacity.at, text)
    return msgspec.structs.replace(found, reached=capacity.current)


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


def pursue(
    policy: Policy, state: TargetState, capacity: Capacity | None, *, now: float, controls: Controls
) -> Review:
    """What has to be done about the pending action, if there is one, by a reading of the capacity.

    An effect that is there is recorded (and told as `effect`). An action without one is left alone while a scaler
    or the platform is at it; it is cancelled when orders or bounds forbid it by now, sent again when it is due,
    and given up when it expires (it burns no cooldown). The checks and every evaluation ask this, whichever
    comes first: what they send is saved as sent before it leaves.
    """
    pending, spec = state.pending, policy.spec
    if pending is None or capacity is None:
        return Review(state)
    where = f"{pending.from_capacity} -> {pending.to_capacity} [{pending.action_id}]"
    if (effect := _found(state, pending, capacity)) is not None:
        text = f"effect of {where} found in place and recorded"
        if effect.outcome is EffectOutcome.LIMITED:
            text = f"the platform has ended {where} at {capacity.current}; recorded"
        return _told(record_effect(state, effect), text, effect=effect)
    if capacity.pending or capacity.at < pending.decided_at or under_way(state, now):
        return Review(state)
    forbidden = _forbidden(policy, controls, pending, now)
    if forbidden:
        effect = without_change(pending, EffectOutcome.REFUSED, now, forbidden)
        return _told(record_effect(state, effect), f"{where} is cancelled: {forbidden}", effect=effect)
    if now >= pending.expires_at:
        given_up = msgspec.structs.replace(
            state, pending=None, pending_level=None, pending_accepted=None, delivery=None
        )
        return _told(given_up, f"{where} expired without effect; the capacity is {capacity.current}")
    due_at = state.delivery.due_at if state.delivery is not None else pending.decided_at + spec.effect_timeout
    if now < due_at:
        return Review(state)
    asked = _asked_since(state)
    known = state if asked is None else perhaps_accepted(state, pending.action_id, asked)
    sent = handed_back(known, pending.action_id, due_at=now + spec.effect_timeout)
    text = f"{where} has no effect after {now - pending.decided_at:.0f} s; emitted again"
    return _told(sent, text, emit=pending)


def _told(
    state: TargetState, text: str, *, emit: ScaleAction | None = None, effect: Effect | None = None
) -> Review:
    return Review(state, emit, effect, ((Reason.ACTION_PENDING, text),))
