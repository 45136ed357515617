"""What became of an action, and what is remembered of that. Pure."""

from __future__ import annotations

import msgspec

from scaling.config.policy import EFFECTS_KEPT
from scaling.model import (
    MOVED,
    Capacity,
    Effect,
    EffectOutcome,
    EffectRecord,
    ForeignHand,
    Refused,
    ScaleAction,
    TargetState,
    effect_of,
)

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
