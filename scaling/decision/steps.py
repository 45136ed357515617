"""The steps of a decision for which nothing is pending: what is wanted, what bounds enforce, what holds it back. Pure.

`scaling.decision.decide` says in which order, and what comes before them.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Self

from scaling.decision import blockers
from scaling.decision import pacing as pace
from scaling.decision.blockers import PLATFORM_FLOOR, Situation
from scaling.decision.missing import (
    collecting,
    first_missing,
    missing_conditions,
    unread_keeps_from_voting,
    verdicts_of,
)
from scaling.decision.orders import active_pause
from scaling.flip import Lifts, all_lifted, lifted_at, lifted_by
from scaling.model import (
    Direction,
    Evidence,
    Limit,
    Reason,
    Recommendation,
)
from scaling.rules.combine import PROBLEMS, combine, objection_of


class Steps(Situation):
    """One decision in the making, from step 2 on. Each step returns a recommendation, or None to go on."""

    cases_decided: int = 0
    """How many other cases were decided to explain this one."""

    lifts: Lifts = ()
    """What would end the hold decided last, or undo the change where the rules are not what it follows from."""

    def decide_afresh(self) -> Recommendation:
        """Steps 2 to 6."""
        return self.follow_override() or self.enforce_bounds() or self.enforce_budget() or self.follow_rules()

    def at_later_time(self, until: float) -> Self:
        """The same case at `until`."""
        later = copy(self)
        later.now = until
        if later.allowance is not None:
            later._narrow_bounds()  # noqa: SLF001 - a copy of this one
        return later

    def follow_override(self) -> Recommendation | None:
        """Step 2a: an operator's override. It stands above a pause: both are orders, and it is the exact one."""
        override = self.controls.override
        if override is None or self.now >= override.until:
            return None
        wanted, limits = self.override_capacity(override), self.override_limits(override)
        note = f"override to {override.capacity} by {override.by}"
        lifts = lifted_at(override.until)
        if wanted == self.view.current:
            return self.hold(Reason.OVERRIDDEN, lifts, note, limits=limits)
        return self._act(wanted, Reason.OVERRIDDEN, limits, note, lifts=lifts)

    def enforce_bounds(self) -> Recommendation | None:
        """Step 3: a capacity outside its bounds goes to the bound, without cooldown. Where the rules may go
        further than the minimum, they decide.
        """
        current = self.view.current
        if current < self.low:
            ruled = self.follow_rules()
            if ruled.desired is not None and ruled.desired > self.low:
                return ruled
            wanted, reason = self.low, Reason.BELOW_MINIMUM
            lifts: Lifts = (self.lower_bounds_above(current),)
        elif current > self.high and first_missing(self.view) is None:
            wanted, reason = self.high, Reason.ABOVE_MAXIMUM
            lifts = (self.upper_bounds_below(current),)
        elif current == self.high and self.high_is == PLATFORM_FLOOR:
            below = Limit(Reason.AT_MINIMUM, self.policy_ceiling(), current, f"{PLATFORM_FLOOR} {current}")
            lifts = lifted_by(PLATFORM_FLOOR, "<=", float(max(self.settable.down(current - 1), 0)))
            return self.hold(Reason.AT_MINIMUM, lifts, self.verdict.note, limits=(below,))
        else:
            return None
        unpaid = self.unpaid_floor
        return self._move_to_bound(
            wanted, reason, lifts, () if unpaid is None else (self._unpaid_floor_limit(unpaid),)
        )

    def enforce_budget(self) -> Recommendation | None:
        """Step 3b: capacity that the budget of the day does not pay for any more goes, without cooldown, as with any bound;
        where the rules go further, they decide. The floor of a schedule is held as far as it is paid for.
        """
        allowance, current = self.allowance, self.view.current
        if allowance is None:
            return None
        kept = max(self.settable.down(allowance.keep), self.low)
        if kept < current and first_missing(self.view) is None:
            ruled = self.follow_rules()
            if ruled.desired is not None and ruled.desired <= kept:
                return ruled
            if ruled.reason is Reason.OVER_BUDGET:  # the rules want more still
                lifts = blockers.budget_lifts(self, allowance)
            else:
                lifts = lifted_by("budget", ">=", allowance.takes(current, allowance.keep_side))
            limit = Limit(Reason.OVER_BUDGET, current, kept, allowance.text())
            # It would be asked before the action is carried out, too: an order that must not be is none.
            if needed := objection_of(self.policy.rules, self.view, kept):
                if ruled.acts:
                    return ruled
                both = (limit, Limit(Reason.LOCK_STEP, kept, current, needed))
                return self.hold(Reason.OVER_BUDGET, lifts, self.verdict.note, limits=both)
            return self._move_to_bound(kept, Reason.OVER_BUDGET, lifts, (limit,))
        if self.unpaid_floor is not None and current == self.low:
            lifts = blockers.budget_lifts(self, allowance)
            limits = (self._unpaid_floor_limit(self.unpaid_floor),)
            return self.hold(Reason.OVER_BUDGET, lifts, self.verdict.note, limits=limits)
        return None

    def _unpaid_floor_limit(self, floor: int) -> Limit:
        text = self.allowance.text() if self.allowance is not None else ""
        return Limit(Reason.OVER_BUDGET, floor, self.low, text)

    def _move_to_bound(
        self, wanted: int, reason: Reason, lifts: Lifts, limits: tuple[Limit, ...]
    ) -> Recommendation:
        """To a bound, unless that direction is paused, or the hour's changes are all spent: none is kept from a bound."""
        direction = Direction.OUT if wanted > self.view.current else Direction.IN
        paused = active_pause(self.controls, direction, self.now)
        if paused is not None:
            limit, lifts = blockers.pause_limit(self, paused, wanted)
            return self.hold(Reason.PAUSED, lifts, limits=(limit,))
        if (spent := blockers.changes_blocker(self, wanted, kept=0)) is not None:
            limit, lifts = spent
            return self.hold(Reason.CHANGES_SPENT, lifts, self.verdict.note, limits=(*limits, limit))
        return self._act(wanted, reason, limits, self.verdict.note, lifts=lifts)

    def follow_rules(self) -> Recommendation:
        """Steps 2b, 4, 5 and 6: what the rules want, held back and reduced."""
        wanted, reason = self._wanted_by_rules()
        current, spec = self.view.current, self.policy.spec
        lifts: Lifts = ()
        if wanted is None:
            lifts = (missing_conditions(self.view, self.policy.windows, gaps=True),)
            fills = collecting(self.view, self.policy.windows) if reason is Reason.INCOMPLETE_WINDOW else ""
            return self.hold(reason, lifts, fills or self.verdict.note, evidence=self._evidence_so_far())
        if wanted == current:
            if reason is not Reason.WITHIN_TARGET:  # a cap, or samples that are missing
                ways = {Reason.SCALE_OUT, Reason.SCALE_IN}
                lifts = tuple(flip.conditions for flip in self.verdict.flips if flip.outcome in ways)
            return self.hold(reason, lifts, self.verdict.note)
        wanted, exact = self.round_to_step(wanted), wanted
        if self.loses_direction(exact, wanted):
            return self._hold_between_steps(exact, ())
        stable = pace.apply_stabilization(
            wanted, current, self.state.recommendations, spec.out, spec.inward, self.now
        )
        if stable == current:
            return self._hold_stabilizing(wanted)
        direction = Direction.OUT if stable > current else Direction.IN
        if holds := blockers.find_blockers(self, direction, stable):
            limits, lifts = tuple(limit for limit, _ in holds), all_lifted(lifted for _, lifted in holds)
            return self.hold(limits[0].reason, lifts, self.verdict.note, limits=limits)
        return self._reduce_change(wanted, stable, direction, reason)

    def _hold_stabilizing(self, wanted: int) -> Recommendation:
        current, spec = self.view.current, self.policy.spec
        until = pace.stable_until(wanted, current, self.state.recommendations, spec.out, spec.inward)
        text = f"the {'lowest' if wanted > current else 'highest'} recommendation of the window"
        limit = Limit(Reason.STABILIZING, wanted, current, text)
        return self.hold(Reason.STABILIZING, lifted_at(until), self.verdict.note, limits=(limit,))

    def _wanted_by_rules(self) -> tuple[int | None, Reason]:
        """What the rules ask for, or the fallback when metrics have not been read for long."""
        verdict, fallback = self.verdict, self.policy.spec.fallback
        since = self.state.missing_since
        if verdict.desired is not None:
            return verdict.desired, verdict.reason
        if verdict.reason not in PROBLEMS:
            return self.view.current, Reason.WITHIN_TARGET
        if (
            fallback is not None
            and since is not None
            and self.now - since >= fallback.after
            and self.view.current < fallback.capacity
            and self.unread
        ):
            return fallback.capacity, Reason.FALLBACK
        return None, verdict.reason

    def _evidence_so_far(self) -> tuple[Evidence, ...] | None:
        """The numbers that the samples point to, were those that are there all there is to know; None where they are too
        little.
        """
        view = self.view.as_far_as_known()
        said = combine(verdicts_of(self.policy, view), view.current)
        return said.evidence if said.desired is not None or said.reason not in PROBLEMS else None

    @cached_property
    def unread(self) -> bool:
        """Whether a metric that is not read keeps the rules from voting."""
        silent = self.verdict.desired is None and self.verdict.reason in PROBLEMS
        return silent and unread_keeps_from_voting(self.policy, self.view)

    def _reduce_change(
        self, wanted: int, stable: int, direction: Direction, reason: Reason
    ) -> Recommendation:
        """Step 5: step and rate limits, then the bounds. None of them can reverse the direction."""
        current, spec = self.view.current, self.policy.spec
        limits: list[Limit] = []
        if stable != wanted:
            limits.append(Limit(Reason.STABILIZING, wanted, stable, "the most cautious recommendation"))
        mine = spec.out if direction is Direction.OUT else spec.inward
        desired, rate_limits = pace.apply_pace(stable, current, self.state.effects, mine, self.now)
        limits.extend(rate_limits)
        if desired != current:
            desired, exact = self.round_to_step(desired), desired
            if self.loses_direction(exact, desired):
                return self._hold_between_steps(exact, tuple(limits))
        within = self.verdict.out_ceiling
        if direction is Direction.OUT and within is not None and within < desired:
            limits.append(Limit(Reason.LOCK_STEP, desired, within, blockers.out_ceiling_text(self)))
            desired = within
        if direction is Direction.OUT and self.allowance is not None and self.allowance.out < desired:
            # As in lock step: with nothing allowed, a blocker holds.
            paid = max(self.settable.down(self.allowance.out), current)
            limits.append(Limit(Reason.OVER_BUDGET, desired, paid, self.allowance.text()))
            desired = paid
        clamped = min(max(desired, self.low), self.high)
        if clamped != desired:
            bound = Reason.AT_MAXIMUM if clamped < desired else Reason.AT_MINIMUM
            limits.append(Limit(bound, desired, clamped, f"{self.low}..{self.high}"))
        if clamped == current:
            until = pace.rate_free_at(
                current, self.state.effects, mine, self.now, out=direction is Direction.OUT
            )
            free = "disabled" if mine.select == "disabled" else "rates"
            lifts = lifted_by(f"{free} {direction}") if until is None else lifted_at(until)
            return self.hold(limits[-1].reason, lifts, self.verdict.note, limits=tuple(limits))
        lifts = ()
        if reason is Reason.FALLBACK:
            # With nothing else missing, it was a gap that kept the rules from voting.
            whole = all(summary.problem is None for summary in self.view.metrics().values())
            gaps = whole and self.verdict.reason is Reason.INCOMPLETE_WINDOW
            lifts = (missing_conditions(self.view, self.policy.windows, gaps=gaps),)
        return self._act(clamped, reason, tuple(limits), self.verdict.note, lifts=lifts)

    def _hold_between_steps(self, wanted: int, limits: tuple[Limit, ...]) -> Recommendation:
        current = self.view.current
        lifts = lifted_by("platform step", "<=", float(abs(wanted - current)))
        limit = Limit(Reason.BETWEEN_STEPS, wanted, current, self.settable.words)
        return self.hold(Reason.BETWEEN_STEPS, lifts, self.verdict.note, limits=(*limits, limit))

    # Building the answer.

    def hold(
        self,
        reason: Reason,
        lifts: Lifts,
        note: str = "",
        *,
        limits: tuple[Limit, ...] = (),
        evidence: tuple[Evidence, ...] | None = None,
    ) -> Recommendation:
        """`evidence` in place of the verdict's, where there is any."""
        self.lifts = lifts
        return self._recommendation(
            self.view.current, reason, evidence or self.verdict.evidence, limits, note
        )

    def _act(
        self, desired: int, reason: Reason, limits: tuple[Limit, ...], note: str, *, lifts: Lifts
    ) -> Recommendation:
        """Step 6 included: in dry-run the desired capacity is shown, but the reason is DRY_RUN."""
        dry_run = self.policy.spec.dry_run if self.controls.dry_run is None else self.controls.dry_run
        if dry_run:
            limits = (*limits, Limit(reason, desired, desired, "dry-run"))
            reason, lifts = Reason.DRY_RUN, lifted_by("dry-run")
        elif (refused := blockers.known_refusal(self, desired)) is not None:
            until = refused.at + blockers.REFUSAL_REMEMBERED
            limits = (*limits, Limit(Reason.REFUSED, desired, self.view.current, refused.detail))
            return self.hold(Reason.REFUSED, lifted_at(until), note, limits=limits)
        self.lifts = lifts
        return self._recommendation(desired, reason, self.verdict.evidence, limits, note)

    def _recommendation(
        self,
        desired: int,
        reason: Reason,
        evidence: tuple[Evidence, ...],
        limits: tuple[Limit, ...],
        note: str,
    ) -> Recommendation:
        # By place, which is faster than by name: every decision comes through here.
        case = (self.decision_id, self.policy.target, self.now, self.view.current, self.proposed)
        bounds, unread = (self.low, self.high), self.verdict.desired is None and self.unread
        return Recommendation(
            *case, desired, *bounds, reason, evidence, (), limits, note, self.verdict.sentence, unread
        )
