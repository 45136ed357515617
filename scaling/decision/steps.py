"""The steps of a decision for which nothing is pending: what is wanted, what bounds enforce, what holds it back. Pure.

`scaling.decision.decide` says in which order, and what comes before them.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Self

from scaling.decision import blockers
from scaling.decision import pacing as pace
from scaling.decision.blockers import PLATFORM_FLOOR, REASON_OF, Situation, time_flip
from scaling.decision.missing import first_missing, missing_flips, unread_keeps_from_voting, verdicts_of
from scaling.decision.orders import active_pause
from scaling.model import (
    Direction,
    Evidence,
    Flip,
    Limit,
    Reason,
    Recommendation,
)
from scaling.rules.combine import PROBLEMS, objection_of


class Steps(Situation):
    """One decision in the making, from step 2 on. Each step returns a recommendation, or None to go on."""

    def free(self) -> Recommendation:
        """Steps 2 to 6."""
        return self.ordered() or self.bounded() or self.budgeted() or self.ruled()

    def after(self, until: float) -> Reason:
        """What the same metrics would lead to at `until`, nothing blocking any more."""
        return self.later(until).free().reason

    def later(self, until: float) -> Self:
        """The same case at `until`."""
        later = copy(self)
        later.now = until
        if later.allowance is not None:
            later._bound()  # noqa: SLF001 - a copy of this one
        return later

    def ordered(self) -> Recommendation | None:
        """Step 2a: an operator's override. It stands above a pause: both are orders, and it is the exact one."""
        override = self.controls.override
        if override is None or self.now >= override.until:
            return None
        wanted, limits = self.as_ordered(override), self.order_limits(override)
        note = f"override to {override.capacity} by {override.by}"
        flips = (time_flip(override.until, self.after(override.until)),)
        if wanted == self.view.current:
            return self.hold(Reason.OVERRIDDEN, flips, note, limits=limits)
        return self._act(wanted, Reason.OVERRIDDEN, limits, note, flips=flips)

    def bounded(self) -> Recommendation | None:
        """Step 3: a capacity outside its bounds goes to the bound, without cooldown. Where the rules may go
        further than the minimum, they decide.
        """
        current = self.view.current
        if current < self.low:
            ruled = self.ruled()
            if ruled.desired is not None and ruled.desired > self.low:
                return ruled
            wanted, reason = self.low, Reason.BELOW_MINIMUM
            flips = self.lower_flips("<=", ruled.reason)
        elif current > self.high and first_missing(self.view) is None:
            wanted, reason = self.high, Reason.ABOVE_MAXIMUM
            flips = (Flip("maximum", ">=", float(current), self.ruled().reason),)
        elif current == self.high and self.high_is == PLATFORM_FLOOR:
            below = Limit(Reason.AT_MINIMUM, self.allowed(), current, f"{PLATFORM_FLOOR} {current}")
            flip = Flip(PLATFORM_FLOOR, "<", float(current), Reason.ABOVE_MAXIMUM)
            return self.hold(Reason.AT_MINIMUM, (flip,), self.verdict.note, limits=(below,))
        else:
            return None
        unpaid = self.unpaid_floor
        return self._to_bound(wanted, reason, flips, () if unpaid is None else (self._unpaid(unpaid),))

    def budgeted(self) -> Recommendation | None:
        """Step 3b: capacity that the budget of the day does not pay for any more goes, without cooldown, as with any bound;
        where the rules go further, they decide. The floor of a schedule is held as far as it is paid for.
        """
        allowance, current = self.allowance, self.view.current
        if allowance is None:
            return None
        flips: tuple[Flip, ...]
        kept = max(self.settable.down(allowance.keep), self.low)
        if kept < current and first_missing(self.view) is None:
            ruled = self.ruled()
            if ruled.desired is not None and ruled.desired <= kept:
                return ruled
            if ruled.reason is Reason.OVER_BUDGET:  # the rules want more still
                flips = blockers.budget_flips(self, allowance, Reason.SCALE_OUT)
            else:
                flips = (Flip("budget", ">=", allowance.takes_keep(current), ruled.reason),)
            limit = Limit(Reason.OVER_BUDGET, current, kept, allowance.text())
            # It would be asked before the action is carried out, too: an order that must not be is none.
            if needed := objection_of(self.policy.rules, self.view, kept):
                if ruled.acts:
                    return ruled
                both = (limit, Limit(Reason.LOCK_STEP, kept, current, needed))
                return self.hold(Reason.OVER_BUDGET, flips, self.verdict.note, limits=both)
            return self._to_bound(kept, Reason.OVER_BUDGET, flips, (limit,))
        if self.unpaid_floor is not None and current == self.low:
            flips = blockers.budget_flips(self, allowance, Reason.BELOW_MINIMUM)
            limits = (self._unpaid(self.unpaid_floor),)
            return self.hold(Reason.OVER_BUDGET, flips, self.verdict.note, limits=limits)
        return None

    def _unpaid(self, floor: int) -> Limit:
        """The floor of a schedule that the budget does not pay for."""
        text = self.allowance.text() if self.allowance is not None else ""
        return Limit(Reason.OVER_BUDGET, floor, self.low, text)

    def _to_bound(
        self, wanted: int, reason: Reason, flips: tuple[Flip, ...], limits: tuple[Limit, ...]
    ) -> Recommendation:
        """To a bound, unless that direction is paused."""
        direction = Direction.OUT if wanted > self.view.current else Direction.IN
        paused = active_pause(self.controls, direction, self.now)
        if paused is not None:
            limit, flips = blockers.pause_limit(self, paused, wanted, reason)
            return self.hold(Reason.PAUSED, flips, limits=(limit,))
        return self._act(wanted, reason, limits, self.verdict.note, flips=flips)

    def ruled(self) -> Recommendation:
        """Steps 2b, 4, 5 and 6: what the rules want, held back and reduced."""
        wanted, reason = self._wanted()
        current, spec = self.view.current, self.policy.spec
        if wanted is None:
            flips, evidence = self._pointed(gaps=True)
            return self.hold(reason, flips, self.verdict.note, evidence=evidence)
        if wanted == current:
            return self.hold(reason, self.verdict.flips, self.verdict.note)
        wanted, exact = self.stepped(wanted), wanted
        if self.turned(exact, wanted):
            return self._between_steps(exact, ())
        stable = pace.stabilized(wanted, current, self.state.recommendations, spec.out, spec.inward, self.now)
        if stable == current:
            return self._stabilizing(wanted)
        direction = Direction.OUT if stable > current else Direction.IN
        if found := blockers.blockers_of(self, direction, stable):
            limits, flips = (
                tuple(limit for limit, _ in found),
                tuple(flip for _, own in found for flip in own),
            )
            return self.hold(limits[0].reason, flips, self.verdict.note, limits=limits)
        return self._reduced(wanted, stable, direction, reason)

    def _stabilizing(self, wanted: int) -> Recommendation:
        current, spec = self.view.current, self.policy.spec
        until = pace.stable_until(wanted, current, self.state.recommendations, spec.out, spec.inward)
        text = f"the {'lowest' if wanted > current else 'highest'} recommendation of the window"
        limit = Limit(Reason.STABILIZING, wanted, current, text)
        flip = time_flip(until, self._reason_of(wanted))
        return self.hold(Reason.STABILIZING, (flip,), self.verdict.note, limits=(limit,))

    def _wanted(self) -> tuple[int | None, Reason]:
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

    def _pointed(self, *, gaps: bool) -> tuple[tuple[Flip, ...], tuple[Evidence, ...] | None]:
        """What is missing, with what would come of the same case were the samples that are there all there is to
        know, and the numbers of that; without them where they are too little.
        """
        view = self.view.as_far_as_known()
        verdicts = verdicts_of(self.policy, view)
        case = type(self)(self.policy, self.state, self.controls, view, verdicts, self.now, self.decision_id)
        outcome, evidence = Reason.WITHIN_TARGET, None
        if case.verdict.desired is not None or case.verdict.reason not in PROBLEMS:
            outcome, evidence = case.free().reason, case.verdict.evidence
        return missing_flips(self.view, self.policy.windows, outcome, gaps=gaps), evidence

    @cached_property
    def unread(self) -> bool:
        """Whether a metric that is not read keeps the rules from voting."""
        silent = self.verdict.desired is None and self.verdict.reason in PROBLEMS
        return silent and unread_keeps_from_voting(self.policy, self.view)

    def _reduced(self, wanted: int, stable: int, direction: Direction, reason: Reason) -> Recommendation:
        """Step 5: step and rate limits, then the bounds. None of them can reverse the direction."""
        current, spec = self.view.current, self.policy.spec
        limits: list[Limit] = []
        if stable != wanted:
            limits.append(Limit(Reason.STABILIZING, wanted, stable, "the most cautious recommendation"))
        mine = spec.out if direction is Direction.OUT else spec.inward
        desired, rate_limits = pace.reduced(stable, current, self.state.effects, mine, self.now)
        limits.extend(rate_limits)
        if desired != current:
            desired, exact = self.stepped(desired), desired
            if self.turned(exact, desired):
                return self._between_steps(exact, tuple(limits))
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
            outcome = REASON_OF[direction]
            flip = Flip("step", ">", 0.0, outcome) if until is None else time_flip(until, outcome)
            return self.hold(limits[-1].reason, (flip,), self.verdict.note, limits=tuple(limits))
        if reason is Reason.FALLBACK:
            # With nothing else missing, it was a gap that kept the rules from voting.
            whole = all(summary.problem is None for summary in self.view.metrics().values())
            gaps = whole and self.verdict.reason is Reason.INCOMPLETE_WINDOW
            flips, _ = self._pointed(gaps=gaps)
        else:
            flips = self.verdict.flips
        return self._act(clamped, reason, tuple(limits), self.verdict.note, flips=flips)

    def _between_steps(self, wanted: int, limits: tuple[Limit, ...]) -> Recommendation:
        current = self.view.current
        flip = Flip("platform step", "<=", float(abs(wanted - current)), self._reason_of(wanted))
        limit = Limit(Reason.BETWEEN_STEPS, wanted, current, self.settable.words)
        return self.hold(Reason.BETWEEN_STEPS, (flip,), self.verdict.note, limits=(*limits, limit))

    def _reason_of(self, wanted: int) -> Reason:
        return REASON_OF[Direction.OUT if wanted > self.view.current else Direction.IN]

    # Building the answer.

    def hold(
        self,
        reason: Reason,
        flips: tuple[Flip, ...],
        note: str = "",
        *,
        limits: tuple[Limit, ...] = (),
        evidence: tuple[Evidence, ...] | None = None,
    ) -> Recommendation:
        """`evidence` in place of the verdict's, where there is any."""
        return self._made(self.view.current, reason, evidence or self.verdict.evidence, flips, limits, note)

    def _act(
        self, desired: int, reason: Reason, limits: tuple[Limit, ...], note: str, *, flips: tuple[Flip, ...]
    ) -> Recommendation:
        """Step 6 included: in dry-run the desired capacity is shown, but the reason is DRY_RUN."""
        dry_run = self.policy.spec.dry_run if self.controls.dry_run is None else self.controls.dry_run
        if dry_run:
            limits = (*limits, Limit(reason, desired, desired, "dry-run"))
            reason, flips = Reason.DRY_RUN, (Flip("control", "==", 0.0, reason),)
        elif (refused := blockers.known_refusal(self, desired)) is not None:
            until = refused.at + blockers.REFUSAL_REMEMBERED
            limits = (*limits, Limit(Reason.REFUSED, desired, self.view.current, refused.detail))
            return self.hold(Reason.REFUSED, (time_flip(until, self.after(until)),), note, limits=limits)
        return self._made(desired, reason, self.verdict.evidence, flips, limits, note)

    def _made(
        self,
        desired: int,
        reason: Reason,
        evidence: tuple[Evidence, ...],
        flips: tuple[Flip, ...],
        limits: tuple[Limit, ...],
        note: str,
    ) -> Recommendation:
        # By place, which is faster than by name: every decision comes through here.
        case = (self.decision_id, self.policy.target, self.now, self.view.current, self.proposed)
        bounds = (self.low, self.high)
        return Recommendation(
            *case, desired, *bounds, reason, evidence, flips, limits, note, self.verdict.sentence, self.unread
        )
