"""The pending action of a target: who is carrying it out, what forbids it, what became of it, and what has to be done
about it. Pure.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from scaling.config.policy import EFFECTS_KEPT, Policy
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
    Reason,
    Refused,
    ScaleAction,
    TargetState,
    effect_of,
)

# -- its effect

STILL_OPEN = frozenset({EffectOutcome.FAILED, EffectOutcome.ACCEPTED})
"""Outcomes after which an action stays pending."""


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
    return replace(effect, outcome=EffectOutcome.LIMITED, detail=text)


def _with_effect(state: TargetState, effect: Effect, reached: int, level: float | None) -> TargetState:
    """What is remembered of an effect after which the target was seen at `reached`."""
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


def leads_to(state: TargetState, pending: ScaleAction, current: int) -> bool:
    """True for a capacity that the pending action leads to, or the one it took the place of, or a part of it."""
    if current in {pending.to_capacity, pending.replaces}:
        return True
    return asked_since(state) is not None and _is_part(pending, current)


def asked_since(state: TargetState) -> float | None:
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


def found_effect(state: TargetState, pending: ScaleAction, capacity: Capacity) -> Effect | None:
    """The effect that a reading shows: all that was asked for, or the part at which the platform has ended."""
    at, reached = capacity.at, capacity.current
    if reached == pending.to_capacity and not capacity.pending and at >= pending.decided_at:
        return effect_of(pending, EffectOutcome.ALREADY_THERE, at, "found in place", reached)
    since = asked_since(state)
    if since is None or at <= since or capacity.pending or not _is_part(pending, reached):
        return None
    return effect_of(pending, EffectOutcome.LIMITED, at, "the platform has ended with a part of it", reached)


# -- on its way


def being_carried_out(state: TargetState, *, now: float, until: float) -> TargetState:
    """The state while a scaler is at the pending action, which is not sent again meanwhile.

    Of an earlier delivery that has not said what came of it the platform may have accepted the action.
    """
    accepted = state.pending_accepted
    if accepted is None and state.delivery is not None and state.delivery.carried_until is not None:
        accepted = now
    return replace(state, delivery=Delivery(until, until), pending_accepted=accepted)


def perhaps_accepted(state: TargetState, action_id: str, since: float) -> TargetState:
    """The state where the platform may have the pending action since then: what becomes of that is ours."""
    pending = state.pending
    if pending is None or pending.action_id != action_id or state.pending_accepted is not None:
        return state
    return replace(state, pending_accepted=since)


def handed_back(
    state: TargetState, action_id: str, *, due_at: float, carried_until: float | None = None
) -> TargetState:
    """The state after a scaler gave an action back that is still to be carried out: it is sent again at `due_at`,
    and not before `carried_until`, by which another scaler is over with it.
    """
    if state.pending is None or state.pending.action_id != action_id:
        return state
    return replace(state, delivery=Delivery(due_at, carried_until))


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
        return effect_of(action, EffectOutcome.SUPERSEDED, now, "not the pending action of this target")
    if now >= action.expires_at:
        age = now - action.decided_at
        return effect_of(action, EffectOutcome.EXPIRED, now, f"decided {age:.0f} s ago")
    text = _forbidden(policy, controls, action, now)
    return effect_of(action, EffectOutcome.REFUSED, now, text) if text else None


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


class Review(Struct, frozen=True):
    """What a check of one target found: the state to save, an action to emit again, lines for the log."""

    state: TargetState
    emit: ScaleAction | None = None
    effect: Effect | None = None
    findings: tuple[tuple[Reason, str], ...] = ()


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
    if (effect := found_effect(state, pending, capacity)) is not None:
        text = f"effect of {where} found in place and recorded"
        if effect.outcome is EffectOutcome.LIMITED:
            text = f"the platform has ended {where} at {capacity.current}; recorded"
        return _told(record_effect(state, effect), text, effect=effect)
    if capacity.pending or capacity.at < pending.decided_at or under_way(state, now):
        return Review(state)
    forbidden = _forbidden(policy, controls, pending, now)
    if forbidden:
        effect = effect_of(pending, EffectOutcome.REFUSED, now, forbidden)
        return _told(record_effect(state, effect), f"{where} is cancelled: {forbidden}", effect=effect)
    if now >= pending.expires_at:
        given_up = replace(state, pending=None, pending_level=None, pending_accepted=None, delivery=None)
        return _told(given_up, f"{where} expired without effect; the capacity is {capacity.current}")
    due_at = state.delivery.due_at if state.delivery is not None else pending.decided_at + spec.effect_timeout
    if now < due_at:
        return Review(state)
    asked = asked_since(state)
    known = state if asked is None else perhaps_accepted(state, pending.action_id, asked)
    sent = handed_back(known, pending.action_id, due_at=now + spec.effect_timeout)
    text = f"{where} has no effect after {now - pending.decided_at:.0f} s; emitted again"
    return _told(sent, text, emit=pending)


def _told(
    state: TargetState, text: str, *, emit: ScaleAction | None = None, effect: Effect | None = None
) -> Review:
    return Review(state, emit, effect, ((Reason.ACTION_PENDING, text),))
