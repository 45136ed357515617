"""The pending action of a target: who is carrying it out, what forbids it, and what has to be done about it. Pure."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from scaling.config.policy import Policy
from scaling.decision.effects import asked_since, found_effect, record_effect
from scaling.decision.orders import active_pause
from scaling.model import (
    Capacity,
    Controls,
    Delivery,
    Direction,
    Effect,
    EffectOutcome,
    Reason,
    ScaleAction,
    TargetState,
    effect_of,
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
        given_up = msgspec.structs.replace(
            state, pending=None, pending_level=None, pending_accepted=None, delivery=None
        )
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
