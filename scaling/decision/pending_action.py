"""The pending action of a target: who is carrying it out, what forbids it, what became of it, and what has to be done
about it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from scaling.config.policy import EFFECTS_KEPT, Policy
from scaling.decision.decide import no_longer_wanted
from scaling.decision.orders import active_pause
from scaling.decision.pacing import HOUR
from scaling.decision.reconsider import (
    NOT_BEGUN,
    action_text,
    asked_since,
    is_perhaps_ours,
    is_turned,
    may_have_led_to,
    stays_pending,
    under_way,
    was_tried,
)
from scaling.drains import draining
from scaling.model import (
    MOVED,
    Capacity,
    Controls,
    Delivery,
    Direction,
    Effect,
    EffectOutcome,
    EffectRecord,
    ExternalChange,
    Reason,
    Recommendation,
    Refused,
    ScaleAction,
    TargetState,
    Withdrawn,
    effect_of,
)
from scaling.window import NO_WINDOWS, Window

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
        if effect.outcome is EffectOutcome.WITHDRAWN:
            return withdraw(state, effect.at)
        state = _without_pending(state)
    if state.withdrawn is not None and state.withdrawn.action_id == effect.action_id:
        state = replace(state, withdrawn=None)
    return state if effect.reached is None else _with_effect(state, effect, effect.reached, level)


def withdraw(state: TargetState, at: float) -> TargetState:
    """The state without its pending action, which is remembered: a message of it, or its effect, may still turn up."""
    gone = state.pending
    if gone is None:
        return state
    way, may_lead_to = (gone.from_capacity, gone.to_capacity), may_have_led_to(state)
    withdrawn = Withdrawn(gone.action_id, *way, gone.expires_at, at, may_lead_to)
    return replace(_without_pending(state), withdrawn=withdrawn)


def correct_future_actions(state: TargetState, now: float) -> TargetState:
    """The state in which nothing of actions and of others' changes is later than `now`: a clock that was put right since
    would wait for it.
    """
    if state.pending is not None and state.pending.decided_at > now:
        state = withdraw(state, now)
    gone, external = state.withdrawn, state.external_change
    if gone is not None and gone.expires_at > now:
        gone = replace(gone, at=min(gone.at, now), expires_at=now)
    if external is not None and external.at > now:
        external = replace(external, at=now)
    others = tuple(min(at, now) for at in state.others_changes)
    sent = tuple((identity, min(at, now)) for identity, at in state.sent)
    corrupt = None if state.corrupt_since is None else min(state.corrupt_since, now)
    changes = {"others_changes": others, "sent": sent}
    return replace(state, withdrawn=gone, external_change=external, corrupt_since=corrupt, **changes)


def _without_pending(state: TargetState) -> TargetState:
    return replace(state, pending=None, pending_level=None, pending_accepted=None, delivery=None)


def withdrawal(state: TargetState, made: Recommendation) -> Effect | None:
    """What became of the pending action by a decision, where that withdraws it; None where it does not."""
    pending = state.pending
    if pending is None or made.at >= pending.expires_at or stays_pending(state, made):
        return None
    why = f"not wanted any more: {made.reason.words}"
    if made.acts:
        why = f"{made.current} -> {made.desired} took its place: {made.reason.words}"
    return effect_of(pending, EffectOutcome.WITHDRAWN, made.at, why)


def as_ours(state: TargetState, effect: Effect) -> Effect:
    """An external change on the way of the pending action is our own, where the platform may have had it before."""
    pending, reached = state.pending, effect.reached
    external = effect.outcome is EffectOutcome.EXTERNAL_CHANGE and state.pending_accepted is not None
    if not external or pending is None or reached is None or not _is_part(pending, reached):
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
        kept = moved[-EFFECTS_KEPT:]
        return replace(state, expected=reached, effects=kept, external_change=None, asked_to_wait=None)
    if effect.outcome is EffectOutcome.EXTERNAL_CHANGE:
        expected = state.expected if state.expected is not None else effect.from_capacity
        if reached != expected:
            return note_external_change(state, ExternalChange(reached, expected, effect.at))
    if effect.outcome is EffectOutcome.REFUSED:  # by the platform: other refusals have not asked it
        return replace(state, refused=_refused(state, effect))
    return state


def note_external_change(state: TargetState, external: ExternalChange) -> TargetState:
    """The state with an external change, which counts among those of the hour when it is first seen."""
    known, others = state.external_change, state.others_changes
    if known is None or known.seen != external.seen:
        others = (*(at for at in others if external.at - HOUR < at <= external.at), external.at)[
            -EFFECTS_KEPT:
        ]
    return replace(state, external_change=external, others_changes=others)


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


def _is_part(pending: ScaleAction, current: int) -> bool:
    low, high = sorted((pending.from_capacity, pending.to_capacity))
    return low < current < high


def found_effect(state: TargetState, pending: ScaleAction, capacity: Capacity) -> Effect | None:
    """The effect that a reading shows: all that was asked for, or the part at which the platform has ended."""
    at, reached = capacity.at, capacity.current
    if reached == pending.to_capacity and not capacity.pending and at >= pending.decided_at:
        detail = "found in place" if is_perhaps_ours(state, reached) else NOT_BEGUN
        return effect_of(pending, EffectOutcome.ALREADY_THERE, at, detail, reached)
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
    sent = state.sent
    if state.pending is not None and state.pending.action_id not in dict(sent):
        kept = (known for known in sent if known[1] > now - HOUR)
        sent = (*kept, (state.pending.action_id, now))[-EFFECTS_KEPT:]
    return replace(state, delivery=Delivery(until, until, tried=True), pending_accepted=accepted, sent=sent)


def without_sent(state: TargetState, action_id: str) -> TargetState:
    """The state in which an action is no change of the hour, for the platform is known not to have begun it."""
    if state.pending_accepted is not None:
        return state
    return replace(state, sent=tuple(known for known in state.sent if known[0] != action_id))


def perhaps_accepted(state: TargetState, action_id: str, since: float) -> TargetState:
    """The state where the platform may have the pending action since then: what becomes of that is ours."""
    pending = state.pending
    if pending is None or pending.action_id != action_id or state.pending_accepted is not None:
        return state
    return replace(state, pending_accepted=since)


def hand_back(
    state: TargetState, action_id: str, *, due_at: float, carried_until: float | None = None
) -> TargetState:
    """The state after a scaler gave an action back that is still to be carried out: it is sent again at `due_at`,
    and not before `carried_until`, by which another scaler is over with it.
    """
    if state.pending is None or state.pending.action_id != action_id:
        return state
    tried = state.delivery is not None and state.delivery.tried
    return replace(state, delivery=Delivery(due_at, carried_until, tried))


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


def with_withdrawal(review: Review, made: Recommendation) -> Review:
    """What was found, with the effect of the pending action where the decision that follows withdraws it."""
    gone = withdrawal(review.state, made)
    return review if gone is None else replace(review, effect=gone)


def pursue(
    policy: Policy,
    state: TargetState,
    capacity: Capacity | None,
    *,
    now: float,
    controls: Controls,
    windows: Mapping[str, Window] = NO_WINDOWS,
) -> Review:
    """What has to be done about the pending action, if there is one, by a reading of the capacity.

    An effect that is there is recorded (and returned as `effect`). An action without one is left alone while a scaler
    or the platform is at it; it is cancelled when orders or bounds forbid it by now, sent again when it is due
    and still wanted, and given up when it expires (it burns no cooldown). The checks and every evaluation ask this,
    whichever comes first: what they send is saved as sent before it leaves. Only an evaluation, or the delivery itself,
    withdraws what is not wanted any more: the checks have no new metrics. Without `windows` all metrics are missing.
    """
    pending = state.pending
    if capacity is None:
        return Review(state)
    if pending is None or (is_turned(pending) and capacity.current == pending.replaces):
        turned_up = _turned_up(policy, state, capacity, now=now)
        if pending is None or turned_up.findings:
            return turned_up  # a pending one is decided anew from there
    where = action_text(pending)
    if (effect := found_effect(state, pending, capacity)) is not None:
        text = f"effect of {where} found in place and recorded"
        if effect.outcome is EffectOutcome.LIMITED:
            text = f"the platform has ended {where} at {capacity.current}; recorded"
        elif effect.detail == NOT_BEGUN:
            text = f"{where} {NOT_BEGUN}; recorded"
        return _reviewed(record_effect(state, effect), text, effect=effect)
    if capacity.pending or capacity.at < pending.decided_at or under_way(state, now):
        return Review(state)
    if (ended := _given_up(policy, state, pending, capacity, now=now, controls=controls)) is not None:
        return ended
    seen = replace(state, capacity=capacity, capacity_error=None)
    due = now >= max(_due_at(policy, state, pending), draining.sendable_from(state, controls))
    if not due or no_longer_wanted(policy, windows, seen, now=now, controls=controls) is not None:
        return Review(state)
    return _emitted_again(policy, state, controls, pending, now)


def _given_up(
    policy: Policy,
    state: TargetState,
    pending: ScaleAction,
    capacity: Capacity,
    *,
    now: float,
    controls: Controls,
) -> Review | None:
    """The review of an action that orders, its workers or its time have ended; None of one that goes on."""
    where = action_text(pending)
    if forbidden := _forbidden(policy, controls, pending, now):
        effect = effect_of(pending, EffectOutcome.REFUSED, now, forbidden)
        return _reviewed(record_effect(state, effect), f"{where} is cancelled: {forbidden}", effect=effect)
    if (why := draining.unanswered(state, controls, now)) is not None:
        effect = effect_of(pending, EffectOutcome.WITHDRAWN, now, why)
        gone = draining.end_unanswered(withdraw(state, now), now)
        return _reviewed(gone, f"{where} is withdrawn: {why}", effect=effect)
    if now >= pending.expires_at:
        text = f"{where} expired without effect; the capacity is {capacity.current}"
        return _reviewed(withdraw(state, now), text)  # its effect may still turn up
    return None


def _due_at(policy: Policy, state: TargetState, pending: ScaleAction) -> float:
    if state.delivery is not None:
        return state.delivery.due_at
    return pending.decided_at + policy.spec.effect_timeout


def _emitted_again(
    policy: Policy, state: TargetState, controls: Controls, pending: ScaleAction, now: float
) -> Review:
    """The action as sent once more; for the first time where the platform, or workers, were waited for."""
    if named := draining.instances_to_remove(policy, state, controls):
        pending = replace(pending, instances=pending.instances or named)
        state = replace(state, pending=pending)
    asked, wait = asked_since(state), state.asked_to_wait
    known = state if asked is None else perhaps_accepted(state, pending.action_id, asked)
    sent = hand_back(known, pending.action_id, due_at=now + policy.spec.effect_timeout)
    text = f"{action_text(pending)} has no effect after {now - pending.decided_at:.0f} s; emitted again"
    if not was_tried(state) and wait is not None and _due_at(policy, state, pending) == wait.until:
        text = f"{action_text(pending)} is emitted now, for the platform had asked to wait"
    elif not was_tried(state) and (why := draining.why_sent(state, controls)):
        text = f"{action_text(pending)} is emitted now, for {why}"
    return _reviewed(sent, text, emit=pending)


def _turned_up(policy: Policy, state: TargetState, capacity: Capacity, *, now: float) -> Review:
    """The effect of an action that the platform carried out though it was withdrawn."""
    gone, reached = state.withdrawn, capacity.current
    if gone is None or under_way(state, now) or not may_be_ours(policy, state, capacity, now=now):
        return Review(state)
    outcome = EffectOutcome.APPLIED if reached == gone.to_capacity else EffectOutcome.LIMITED
    way, text = (gone.from_capacity, gone.to_capacity), "found in place after it was withdrawn"
    effect = Effect(gone.action_id, policy.target, outcome, *way, reached, capacity.at, text)
    text = f"{way[0]} -> {way[1]} [{gone.action_id}] was withdrawn, and carried out all the same; recorded"
    return _reviewed(record_effect(state, effect), text, effect=effect)


def may_be_ours(policy: Policy, state: TargetState, capacity: Capacity, *, now: float) -> bool:
    """True for a capacity to which an action may have led that was withdrawn, a short time ago, after a scaler had begun it."""
    withdrawn = state.withdrawn
    if withdrawn is None or withdrawn.may_lead_to is None or capacity.pending or capacity.at <= withdrawn.at:
        return False
    if state.expected == capacity.current or now >= withdrawn.expires_at + policy.spec.effect_timeout:
        return False
    low, high = sorted((withdrawn.from_capacity, withdrawn.may_lead_to))
    return capacity.current == withdrawn.may_lead_to or low < capacity.current < high


def _reviewed(
    state: TargetState, text: str, *, emit: ScaleAction | None = None, effect: Effect | None = None
) -> Review:
    return Review(state, emit, effect, ((Reason.ACTION_PENDING, text),))
