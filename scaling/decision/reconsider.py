"""Whether a pending action is still wanted, and how far it is on its way. Pure.

Nothing that was decided is carried out only because it was decided. Until a scaler begins it, a pending action is asked
again: at every evaluation, before it is sent again, and when its message is delivered. What is being carried out is
waited for, checked, and then corrected. docs/architecture.md has the table of outcomes.
"""

from __future__ import annotations

from scaling.drains.draining import open_drain
from scaling.model import Direction, Reason, Recommendation, ScaleAction, TargetState
from scaling.window import CLOCK_TOLERANCE


def action_text(action: ScaleAction) -> str:
    """`3 -> 4 [plan-orders@...]`."""
    return f"{action.from_capacity} -> {action.to_capacity} [{action.action_id}]"


def under_way(state: TargetState, now: float) -> bool:
    """True while a scaler is at the pending action; the time of one that died runs out."""
    return state.pending is not None and under_way_until(state, now, state.pending.action_id) is not None


def under_way_until(state: TargetState, now: float, action_id: str) -> float | None:
    """When the scaler that is at this action is over with it; None where the action is not pending, or none is at it."""
    until = state.delivery.carried_until if state.delivery is not None else None
    mine = state.pending is not None and state.pending.action_id == action_id
    return until if mine and until is not None and now < until else None


def asked_since(state: TargetState) -> float | None:
    """Since when the platform may have the pending action; None while no delivery of it has begun, or all that have
    were handed back. A delivery that is at it, or died, has its end for that: what it did was done by then.
    """
    if state.pending_accepted is not None:
        return state.pending_accepted
    return None if state.delivery is None else state.delivery.carried_until


def was_tried(state: TargetState) -> bool:
    """True when a scaler has begun the pending action at least once, whatever came of it."""
    return asked_since(state) is not None or (state.delivery is not None and state.delivery.tried)


NOT_BEGUN = "found in place before it was begun: somebody else may have set it"
"""Of a capacity that the pending action would have led to."""


def is_perhaps_ours(state: TargetState, reached: int) -> bool:
    """False where a capacity seems to be set by somebody else: no scaler has begun the pending action, nor one before it that leads there. Rows of
    earlier releases do not say whether one has.
    """
    gone = state.withdrawn
    return was_tried(state) or state.delivery is None or (gone is not None and gone.may_lead_to == reached)


def is_begun(state: TargetState, now: float) -> bool:
    """True while a scaler or the platform carries out the pending action, or may have, and nobody has looked since."""
    capacity, accepted = state.capacity, state.pending_accepted
    if state.pending is None:
        return False
    if under_way(state, now):
        return True
    return capacity is not None and (capacity.pending or (accepted is not None and capacity.at <= accepted))


def may_have_led_to(state: TargetState) -> int | None:
    """The capacity that may turn up though the pending action is withdrawn; None where no scaler ever began it.

    An action of which the platform knows nothing for sure may itself have taken the place of one of which it may.
    """
    pending = state.pending
    if pending is None:
        return None
    if asked_since(state) is None and pending.replaces is not None:
        return pending.replaces
    return pending.to_capacity if was_tried(state) else None


def held_until(state: TargetState, reason: Reason, now: float) -> float | None:
    """Until when an action waits because the platform asked to wait, also where another action was asked for; None where
    it does not. An override goes at once, for an operator wants it now.
    """
    asked = state.asked_to_wait
    if asked is None or reason is Reason.OVERRIDDEN:
        return None
    return asked.until if asked.at - CLOCK_TOLERANCE <= now < asked.until else None


def may_be_sent(state: TargetState, now: float) -> bool:
    """True where there is a pending action, nobody is at it or waited for, and the platform does not ask to wait."""
    pending = state.pending
    announced = open_drain(state) is not None and not was_tried(
        state
    )  # `pursue` sends it, once workers let it
    free = pending is not None and held_until(state, pending.reason, now) is None
    return free and not announced and not under_way(state, now)


def is_turned(action: ScaleAction) -> bool:
    """True for an action that would go the other way from where the action may have led that it took the place of.

    Nobody decided that: a scale-in needs rules that see every metric, and cooldowns. An override is exact.
    """
    start, to = action.replaces, action.to_capacity
    if start is None or to == start or action.reason is Reason.OVERRIDDEN:
        return False
    return (to > start) != (to > action.from_capacity)


def is_still_wanted(
    state: TargetState, pending: ScaleAction, fresh: Recommendation, highest: int | None
) -> bool:
    """True while the pending action is what would be decided now. `fresh` is decided as if nothing were pending.

    A scale-in needs the rules to want it now. A scale-out stays, too, while they have no vote for lack of data, or while it
    waits for another target: `highest` is then the most that may be asked for, and None in all other cases.
    """
    out, to, wanted = pending.direction is Direction.OUT, pending.to_capacity, fresh.desired
    if fresh.current != pending.from_capacity:
        return False
    if not fresh.acts or wanted is None:
        return out and highest is not None and to <= highest and pending.reason is not Reason.OVERRIDDEN
    if wanted == to:
        return True
    exact = Reason.OVERRIDDEN in {pending.reason, fresh.reason}
    further = wanted > to if out else wanted < to
    # Or a wish that grows with every report would replace each action before its message is delivered.
    replacement = state.withdrawn is not None and state.withdrawn.at == pending.decided_at
    # Nor would what was announced to workers ever be carried out, if ever less were needed: the rest follows.
    announced = fresh.reason is pending.reason and open_drain(state) is not None
    return further and not exact and (replacement or announced) and not was_tried(state)


def stays_pending(state: TargetState, made: Recommendation) -> bool:
    """True where the pending action outlives this decision."""
    pending = state.pending
    if pending is None or made.acts:
        return False
    if made.reason is Reason.ACTION_PENDING:
        return True
    if made.at >= pending.expires_at:
        return made.reason is Reason.CAPACITY_UNKNOWN
    if made.reason is Reason.CAPACITY_UNKNOWN and pending.direction is Direction.OUT:
        return True
    return is_begun(state, made.at)
