"""decide(): from windows, state and operators' orders to one explained recommendation. Pure.

Order of the steps, each with its own Reason:

1. What forbids a decision: unknown capacity, corrupt state, another controller, a pending action that is being
   carried out. Any other pending action is asked again: it waits while it is what would be decided now, and is
   withdrawn, or replaced, when it is not. An external change holds what would scale in, but for bounds.
2. What the operator or the rules want: an override, else the rules combined any-out/all-in, else the
   fallback for metrics missing long.
3. What bounds always enforce: minimum and maximum (with schedules and the platform's own limits), and the budget of
   the day.
4. What holds a wanted change back: less than a step of the platform, stabilization, the bound already reached,
   the budget of the day, guards and plateau (out), missing metrics (in), cooldown, a pause. All of them are reported, the first one is the
   reason.
5. What reduces it: step, rate policies, bounds.
6. Dry-run turns an action into a note; one the platform has just refused is not ordered again.

A scale-out beats a scale-in; no rule and no bound ever scales in while any metric is missing. What would have
led to another outcome is worked out from the same steps, where it is reported: `scaling.flips`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from msgspec import structs

from scaling.config.policy import Policy
from scaling.decision.missing import verdicts_of
from scaling.decision.pacing import HOUR
from scaling.decision.reconsider import (
    action_text,
    held_until,
    is_begun,
    is_still_wanted,
    under_way_until,
    was_tried,
)
from scaling.decision.seen import view_of
from scaling.decision.steps import Steps
from scaling.drains.draining import drain_text
from scaling.flip import lifted_at, lifted_by
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Direction,
    ExternalChange,
    Limit,
    Reason,
    Recommendation,
    ScaleAction,
    TargetState,
)
from scaling.rules.combine import PROBLEMS
from scaling.window import Window


def decide(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    *,
    now: float,
    controls: Controls = NO_CONTROLS,
    decision_id: str = "",
) -> Recommendation:
    """The recommendation for one target at `now`, without flips. Never raises for any windows, state or controls."""
    case = case_of(policy, windows, state, now=now, controls=controls, decision_id=decision_id, flips=False)
    if case is not None:
        return case.decide()
    return unknown_capacity(policy, state, now=now, decision_id=decision_id)


def unknown_capacity(policy: Policy, state: TargetState, *, now: float, decision_id: str) -> Recommendation:
    """The decision where there is no case: nothing can be decided while the capacity is not known."""
    return Recommendation(
        decision_id=decision_id,
        target=policy.target,
        at=now,
        current=state.expected,
        proposed=None,
        desired=state.expected,
        minimum=policy.minimum,
        maximum=policy.maximum,
        reason=Reason.CAPACITY_UNKNOWN,
        note=state.capacity_error or "the capacity has never been read",
    )


def no_longer_wanted(
    policy: Policy, windows: Mapping[str, Window], state: TargetState, *, now: float, controls: Controls
) -> str | None:
    """Why the pending action would not be decided now, in words; None when it would, or when nothing is pending."""
    pending, capacity = state.pending, state.capacity
    if pending is None:
        return None
    case = case_of(policy, windows, state, now=now, controls=controls, decision_id="", flips=False)
    if case is None or capacity is None:
        unseen = pending.direction is Direction.IN
        return f"not wanted any more: {Reason.CAPACITY_UNKNOWN.words}" if unseen else None
    if capacity.held_by is not None:
        return f"held by {capacity.held_by}"
    fresh = case.decide_afresh()
    return None if case.still_wants(pending, fresh) else f"not wanted any more: {fresh.reason.words}"


def case_of(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    *,
    now: float,
    controls: Controls,
    decision_id: str,
    flips: bool = True,
) -> Case | None:
    """The case as it stands, from the capacity that runs where somebody else has set it; None while that is not known. Only
    with `flips` it knows what would lift a hold (`Case.lifts`) and what would change a rule's vote.
    """
    capacity = state.capacity
    if capacity is None or state.capacity_error is not None or state.expected is None:
        return None
    view = view_of(
        policy, windows, state, capacity, capacity_in_force(state, state.expected), now=now, flips=flips
    )
    return Case(policy, state, controls, view, verdicts_of(policy, view), now, decision_id)


def capacity_in_force(state: TargetState, expected: int) -> int:
    """The capacity that it is decided from: the one that somebody else has set, where one did."""
    return state.external_change.seen if state.external_change is not None else expected


def _unknown_state(capacity: Capacity) -> str:
    return f"the platform reports the state '{capacity.unknown_state}', which is not known here"


class Case(Steps):
    """One decision in the making, step 1 included."""

    def decide(self) -> Recommendation:
        """Step 1, and then the others: with a pending action as if nothing were pending, to compare the two."""
        state, capacity = self.state, self.state.capacity
        calm = state.pending is None and state.external_change is None and state.corrupt_since is None
        calm = calm and state.asked_to_wait is None and (capacity is None or not capacity.unknown_state)
        if calm and capacity is not None and capacity.held_by is None and not capacity.pending:
            return super().decide_afresh()  # as nearly always: none of step 1 can say anything
        return (
            self._hold_corrupt_state()
            or self._follow_other_controllers()
            or self._hold_while_changing()
            or self._reconsider_pending()
        )

    def _reconsider_pending(self) -> Recommendation:
        fresh, pending, capacity = self.decide_afresh(), self.state.pending, self.state.capacity
        over = pending is not None and self.now >= pending.expires_at
        if pending is not None and was_tried(self.state) and (over or not self.still_wants(pending, fresh)):
            fresh = self._in_place_of_pending()
        if capacity is not None and capacity.unknown_state:
            rest = f"{_unknown_state(capacity)}: taken for at rest"
            fresh = structs.replace(fresh, note=f"{fresh.note}; {rest}" if fresh.note else rest)
        if fresh.acts and (asked := self._wait_text(fresh.reason)):
            fresh = structs.replace(fresh, note=f"{fresh.note}{asked}".removeprefix("; "))
        if pending is None or over:
            return fresh
        if self.still_wants(pending, fresh):
            waits = self._wait_text(pending.reason) + drain_text(self.state, self.controls, self.now)
            note = f"{action_text(pending)}{waits}"
            return self.hold(Reason.ACTION_PENDING, lifted_at(pending.expires_at), note)
        text = f"it takes the place of {action_text(pending)}"
        if not fresh.acts:
            text = f"{action_text(pending)} is withdrawn"
        return structs.replace(fresh, note=f"{fresh.note}; {text}" if fresh.note else text)

    def _in_place_of_pending(self) -> Recommendation:
        """The decision where the pending action, which a scaler has begun, may be one of the hour's changes as well."""
        replacing = copy(self)
        replacing.replaces = True
        made = replacing.decide_afresh()
        self.lifts = replacing.lifts
        return made

    def _wait_text(self, reason: Reason) -> str:
        """That the platform takes no change yet, in words to be added to others."""
        until = held_until(self.state, reason, self.now)
        return "" if until is None else f"; sent in {until - self.now:.0f} s, for the platform asked to wait"

    def still_wants(self, pending: ScaleAction, fresh: Recommendation) -> bool:
        """True while a pending action that nobody carries out is what would be decided now."""
        highest, blind = None, fresh.proposed is None and fresh.reason in PROBLEMS
        problems = {summary.problem for summary in self.view.metrics().values()}
        if blind and not Reason.ENTITY_DISABLED in problems <= {None, Reason.ENTITY_DISABLED}:
            paid = self.high if self.allowance is None else self.settable.down(self.allowance.out)
            highest = min(self.high, max(paid, self.low))
        waits = [limit.wanted for limit in fresh.limits if limit.reason is Reason.LOCK_STEP]
        if waits and len(waits) == len(fresh.limits):  # the scaler asks for the other target at each delivery
            highest = min(self.high, max(waits))
        return is_still_wanted(self.state, pending, fresh, highest)

    def _hold_corrupt_state(self) -> Recommendation | None:
        since, spec = self.state.corrupt_since, self.policy.spec
        if since is None:
            return None
        # What was forgotten: effects (for cooldowns), recommendations (for stabilization).
        until = since + max(spec.out.cooldown, spec.inward.cooldown, self.policy.memory, 60.0)
        if self.now >= until:
            return None
        return self.hold(Reason.STATE_CORRUPT, lifted_at(until), "stored state was unreadable")

    def _follow_other_controllers(self) -> Recommendation | None:
        capacity, external = self.state.capacity, self.state.external_change
        if capacity is not None and capacity.held_by is not None:
            lifts = lifted_by("other controller")
            return self.hold(Reason.EXTERNAL_CHANGE, lifts, f"held by {capacity.held_by}")
        if external is not None and is_begun(self.state, self.now):
            return self.decide_afresh()
        return None

    def _hold_while_changing(self) -> Recommendation | None:
        pending, capacity = self.state.pending, self.state.capacity
        live = pending if pending is not None and self.now < pending.expires_at else None
        if live is not None and is_begun(self.state, self.now):
            note, until = action_text(live), live.expires_at
            if self.is_overridden(live):
                note = f"the override waits for {note}, which is being carried out"
            over = under_way_until(self.state, self.now, live.action_id)
            later = None if over is None else self.at_later_time(over)
            if over is not None and later is not None and not later.still_wants(live, later.decide_afresh()):
                until = min(over, until)
            return self.hold(Reason.ACTION_PENDING, lifted_at(until), note)
        if capacity is not None and capacity.pending:
            note, lifts = "the platform is still changing the capacity", lifted_by("platform change")
            if (since := capacity.unknown_since) is not None:
                note = f"{_unknown_state(capacity)}: it may be changing the capacity"
                lifts = (*lifts, *lifted_at(since + self.policy.spec.action_ttl))
            return self.hold(Reason.ACTION_PENDING, lifts, note)
        return None

    def decide_afresh(self) -> Recommendation:
        made, external = super().decide_afresh(), self.state.external_change
        return made if external is None else self._restrict_to_safe_changes(made, external)

    def _restrict_to_safe_changes(self, made: Recommendation, external: ExternalChange) -> Recommendation:
        """What is decided while an external change stands: bounds are kept, more is added, and nothing is taken away
        but by an order given since.
        """
        note = f"set to {external.seen} by somebody else, expected {external.expected}"
        gone = self.state.withdrawn
        if gone is not None and gone.may_lead_to == external.seen and external.at < gone.expires_at + HOUR:
            note = f"{note}; or it is the late effect of [{gone.action_id}], which was given up"
        current, wanted = self.view.current, made.desired if made.desired is not None else self.view.current
        reason = made.limits[-1].reason if made.reason is Reason.DRY_RUN else made.reason
        override = self.controls.override
        ordered = reason is Reason.OVERRIDDEN and override is not None and override.at >= external.at
        more = (made.proposed or 0) > current and reason is not Reason.OVERRIDDEN
        if not is_begun(self.state, self.now) and (
            wanted > current or more or ordered or reason is Reason.ABOVE_MAXIMUM
        ):
            return structs.replace(made, note=f"{made.note}; {note}" if made.note else note)
        limits = (Limit(Reason.EXTERNAL_CHANGE, wanted, current, note),) if wanted != current else ()
        return self.hold(
            Reason.EXTERNAL_CHANGE,
            lifted_at(external.at + self.policy.spec.external_hold),
            note,
            limits=limits,
        )
