"""decide(): from windows, state and operators' orders to one explained recommendation. Pure.

Order of the steps, each with its own Reason:

1. What forbids a decision: unknown capacity, corrupt state, a foreign hand, a pending action.
2. What the operator or the rules want: an override, else the rules combined any-out/all-in, else the
   fallback for metrics missing long.
3. What bounds always enforce: minimum and maximum (with schedules and the platform's own limits).
4. What holds a wanted change back: the bound already reached, stabilization, guards, plateau, cooldown,
   a pause.
5. What reduces it: step, rate policies, bounds.
6. Dry-run turns an action into a note.

A scale-out beats a scale-in; nothing is ever scaled in while any metric is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling import pace
from scaling.controls import active_pause
from scaling.model import (
    NO_CONTROLS,
    Controls,
    Direction,
    Flip,
    Limit,
    Pause,
    Reason,
    Recommendation,
    TargetState,
    Verdict,
)
from scaling.policy import Policy
from scaling.rules.composite import PROBLEMS, combine, safe_evaluate
from scaling.rules.view import MetricsView
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
    """The recommendation for one target at `now`. Never raises for any windows, state or controls."""
    capacity = state.capacity
    if capacity is None or state.capacity_error is not None or state.expected is None:
        return Recommendation(
            decision_id,
            policy.target,
            now,
            state.expected,
            None,
            state.expected,
            policy.minimum,
            policy.maximum,
            Reason.CAPACITY_UNKNOWN,
            note=state.capacity_error or "the capacity has never been read",
        )
    current = state.expected
    view = MetricsView(
        windows=windows,
        specs=policy.windows,
        current=current,
        ready=capacity.ready if capacity.ready is not None else current,
        minimum=policy.minimum,
        maximum=policy.maximum,
        now=now,
    )
    verdict = combine([safe_evaluate(rule, view) for rule in policy.rules], current)
    case = _Case(policy, state, controls, view, verdict, now, decision_id)
    return case.blocked() or case.ordered() or case.bounded() or case.ruled()


class _Case:
    """One decision in the making: the inputs of the steps, and the limits met so far."""

    __slots__ = ("controls", "decision_id", "high", "low", "now", "policy", "state", "verdict", "view")

    def __init__(
        self,
        policy: Policy,
        state: TargetState,
        controls: Controls,
        view: MetricsView,
        verdict: Verdict,
        now: float,
        decision_id: str,
    ) -> None:
        self.policy = policy
        self.state = state
        self.controls = controls
        self.view = view
        self.verdict = verdict
        self.now = now
        self.decision_id = decision_id
        capacity = state.capacity
        high = policy.maximum
        low = policy.minimum
        if verdict.ceiling is not None and verdict.ceiling < high:
            high = verdict.ceiling
        if verdict.floor is not None and verdict.floor > low:
            low = verdict.floor
        if capacity is not None:
            if capacity.ceiling is not None and capacity.ceiling < high:
                high = capacity.ceiling
            low = max(low, capacity.floor)
        self.high = high
        self.low = min(low, high)  # a maximum protects the bill: it wins over any floor

    # Steps 1 to 4: each returns a recommendation, or None to go on.

    def blocked(self) -> Recommendation | None:
        """Step 1: nothing may be changed whatever the rules say."""
        state, capacity = self.state, self.state.capacity
        if state.corrupt_since is not None:
            until = state.corrupt_since + max(
                self.policy.spec.out.cooldown, self.policy.spec.inward.cooldown, 60.0
            )
            if self.now < until:
                return self._hold(Reason.STATE_CORRUPT, (self._time(until),), "stored state was unreadable")
        if capacity is not None and capacity.held_by is not None:
            return self._hold(Reason.FOREIGN_HAND, (), f"held by {capacity.held_by}")
        if state.foreign is not None:
            until = state.foreign.at + self.policy.spec.foreign_hold
            note = f"set to {state.foreign.seen} by somebody else, expected {state.foreign.expected}"
            return self._hold(Reason.FOREIGN_HAND, (self._time(until, Reason.WITHIN_TARGET),), note)
        pending = state.pending
        if pending is not None and self.now < pending.expires_at:
            note = f"{pending.from_capacity} -> {pending.to_capacity} [{pending.action_id}]"
            return self._hold(Reason.ACTION_PENDING, (self._time(pending.expires_at),), note)
        if capacity is not None and capacity.pending:
            return self._hold(Reason.ACTION_PENDING, (), "the platform is still changing the capacity")
        return None

    def ordered(self) -> Recommendation | None:
        """Step 2a: an operator's override."""
        override = self.controls.override
        if override is None or self.now >= override.until:
            return None
        wanted = min(max(override.capacity, self.low), self.high)
        note = f"override to {override.capacity} by {override.by}"
        if wanted == self.view.current:
            return self._hold(Reason.OVERRIDDEN, (self._time(override.until, Reason.WITHIN_TARGET),), note)
        return self._act(wanted, Reason.OVERRIDDEN, (), note)

    def bounded(self) -> Recommendation | None:
        """Step 3: a capacity outside its bounds goes to the bound, without cooldown."""
        current = self.view.current
        if current < self.low:
            wanted, reason = self.low, Reason.BELOW_MINIMUM
            if self.verdict.desired is not None:
                wanted = min(max(wanted, self.verdict.desired), self.high)
        elif current > self.high and self.verdict.reason not in PROBLEMS:
            wanted, reason = self.high, Reason.ABOVE_MAXIMUM
        else:
            return None
        direction = Direction.OUT if wanted > current else Direction.IN
        paused = active_pause(self.controls, direction, self.now)
        if paused is not None:
            limit, flip = self._pause_limit(paused, wanted)
            return self._hold(Reason.PAUSED, (flip,), "", limits=(limit,), proposed=wanted)
        return self._act(wanted, reason, (), self.verdict.note)

    def ruled(self) -> Recommendation:
        """Steps 2b, 4, 5 and 6: what the rules want, held back and reduced."""
        wanted, reason = self._wanted()
        current = self.view.current
        if wanted is None:
            return self._hold(reason, self._missing_flips(), self.verdict.note)
        stable = pace.stabilized(
            wanted,
            current,
            self.state.recommendations,
            self.policy.spec.out,
            self.policy.spec.inward,
            self.now,
        )
        if stable == current:
            if wanted == current:
                return self._hold(
                    Reason.WITHIN_TARGET, self.verdict.flips, self.verdict.note, proposed=wanted
                )
            limit = Limit(
                Reason.STABILIZING, wanted, current, "the most cautious recommendation of the window"
            )
            return self._hold(Reason.STABILIZING, (), self.verdict.note, limits=(limit,), proposed=wanted)
        direction = Direction.OUT if stable > current else Direction.IN
        blockers = [b for b in self._blockers(direction, stable) if b is not None]
        if blockers:
            return self._hold(
                blockers[0][0].reason,
                tuple(flip for _, flip in blockers if flip is not None),
                self.verdict.note,
                limits=tuple(limit for limit, _ in blockers),
                proposed=wanted,
            )
        return self._reduced(wanted, stable, direction, reason)

    def _wanted(self) -> tuple[int | None, Reason]:
        """What the rules ask for, or the fallback when metrics have been missing for long."""
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
        ):
            return fallback.capacity, Reason.FALLBACK
        return None, verdict.reason

    def _blockers(self, direction: Direction, wanted: int) -> Sequence[tuple[Limit, Flip | None] | None]:
        """Step 4: everything that forbids the change, in the order it is reported."""
        out = direction is Direction.OUT
        return (
            self._at_bound(wanted, out=out),
            self._guarded(wanted) if out else None,
            self._plateaued(wanted) if out else None,
            self._cooling(direction, wanted),
            self._pause_blocker(direction, wanted),
        )

    def _at_bound(self, wanted: int, *, out: bool) -> tuple[Limit, Flip | None] | None:
        current = self.view.current
        if out and current >= self.high:
            limit = Limit(Reason.AT_MAXIMUM, wanted, current, f"maximum {self.high}")
            return limit, Flip("maximum", ">", float(self.high), Reason.SCALE_OUT)
        if not out and current <= self.low:
            limit = Limit(Reason.AT_MINIMUM, wanted, current, f"minimum {self.low}")
            return limit, Flip("minimum", "<", float(self.low), Reason.SCALE_IN)
        return None

    def _guarded(self, wanted: int) -> tuple[Limit, Flip | None] | None:
        if not self.verdict.blocks_out:
            return None
        # `combine` keeps only the winning rule's evidence, so the guard is asked again for its own numbers.
        guards = [v for v in (safe_evaluate(r, self.view) for r in self.policy.rules) if v.blocks_out]
        evidence = next((e for v in guards for e in v.evidence), None)
        flip = next((f for v in guards for f in v.flips), None)
        note = next((v.note for v in guards if v.note), "")
        text = f"{evidence.metric} {evidence.value:g} > {evidence.threshold:g}" if evidence else note
        return Limit(Reason.GUARDED, wanted, self.view.current, text), flip

    def _plateaued(self, wanted: int) -> tuple[Limit, Flip | None] | None:
        plateau = self.policy.spec.plateau
        if plateau is None:
            return None
        summary = self.view.metric(plateau.metric)
        if summary.problem is not None:
            return None
        level = summary.latest
        found = pace.plateaued(self.state.effects, level, plateau, self.now)
        if found is None:
            return None
        text = f"{plateau.metric} {level:g} did not fall below {found:g} over {plateau.effects} scale-outs"
        flip = Flip(f"latest {plateau.metric}", "<", found, Reason.SCALE_OUT)
        return Limit(Reason.PLATEAU, wanted, self.view.current, text), flip

    def _cooling(self, direction: Direction, wanted: int) -> tuple[Limit, Flip | None] | None:
        spec = self.policy.spec
        until = pace.cooldown_until(self.state.effects, direction, spec.out, spec.inward)
        if until is None or self.now >= until:
            return None
        limit = Limit(Reason.COOLING_DOWN, wanted, self.view.current, f"{until - self.now:.0f} s left")
        return limit, self._time(until, _REASON_OF[direction])

    def _pause_blocker(self, direction: Direction, wanted: int) -> tuple[Limit, Flip | None] | None:
        paused = active_pause(self.controls, direction, self.now)
        return self._pause_limit(paused, wanted) if paused is not None else None

    def _pause_limit(self, paused: Pause, wanted: int) -> tuple[Limit, Flip]:
        limit = Limit(Reason.PAUSED, wanted, self.view.current, f"paused by {paused.by}")
        outcome = Reason.SCALE_OUT if wanted > self.view.current else Reason.SCALE_IN
        if paused.until is not None:
            return limit, self._time(paused.until, outcome)
        return limit, Flip("control", "!=", 0.0, outcome)

    def _reduced(self, wanted: int, stable: int, direction: Direction, reason: Reason) -> Recommendation:
        """Step 5: step and rate limits, then the bounds. None of them can reverse the direction."""
        current, spec = self.view.current, self.policy.spec
        limits: list[Limit] = []
        if stable != wanted:
            limits.append(Limit(Reason.STABILIZING, wanted, stable, "the most cautious recommendation"))
        mine = spec.out if direction is Direction.OUT else spec.inward
        desired, rate_limits = pace.reduced(stable, current, self.state.effects, mine, self.now)
        limits.extend(rate_limits)
        clamped = min(max(desired, self.low), self.high)
        if clamped != desired:
            bound = Reason.AT_MAXIMUM if clamped < desired else Reason.AT_MINIMUM
            limits.append(Limit(bound, desired, clamped, f"{self.low}..{self.high}"))
        if clamped == current:
            until = pace.rate_free_at(
                current, self.state.effects, mine, self.now, out=direction is Direction.OUT
            )
            flips = (self._time(until, _REASON_OF[direction]),) if until is not None else ()
            return self._hold(
                limits[-1].reason, flips, self.verdict.note, limits=tuple(limits), proposed=wanted
            )
        return self._act(clamped, reason, tuple(limits), self.verdict.note, proposed=wanted)

    # Building the answer.

    def _time(self, until: float, outcome: Reason = Reason.WITHIN_TARGET) -> Flip:
        return Flip("time", ">=", until, outcome)

    def _missing_flips(self) -> tuple[Flip, ...]:
        """What an incomplete window still needs."""
        if self.verdict.reason is not Reason.INCOMPLETE_WINDOW:
            return ()
        for name, spec in self.policy.windows.items():
            summary = self.view.metric(name)
            if summary.problem is Reason.INCOMPLETE_WINDOW:
                if summary.count < spec.min_samples:
                    return (Flip(f"samples {name}", ">=", float(spec.min_samples), Reason.WITHIN_TARGET),)
                return (Flip(f"span {name}", ">=", spec.span, Reason.WITHIN_TARGET),)
        return ()

    def _hold(
        self,
        reason: Reason,
        flips: tuple[Flip, ...],
        note: str = "",
        *,
        limits: tuple[Limit, ...] = (),
        proposed: int | None = None,
    ) -> Recommendation:
        current = self.view.current
        return Recommendation(
            self.decision_id,
            self.policy.target,
            self.now,
            current,
            proposed if proposed is not None else self.verdict.desired,
            current,
            self.low,
            self.high,
            reason,
            self.verdict.evidence,
            flips,
            limits,
            note,
        )

    def _act(
        self,
        desired: int,
        reason: Reason,
        limits: tuple[Limit, ...],
        note: str,
        *,
        proposed: int | None = None,
    ) -> Recommendation:
        """Step 6 included: in dry-run the desired capacity is shown, but the reason is DRY_RUN."""
        dry_run = self.policy.spec.dry_run if self.controls.dry_run is None else self.controls.dry_run
        if dry_run:
            limits = (*limits, Limit(reason, desired, desired, "dry-run"))
        return Recommendation(
            self.decision_id,
            self.policy.target,
            self.now,
            self.view.current,
            proposed if proposed is not None else desired,
            desired,
            self.low,
            self.high,
            Reason.DRY_RUN if dry_run else reason,
            self.verdict.evidence,
            self.verdict.flips if not dry_run else (Flip("control", "==", 0.0, reason),),
            limits,
            note,
        )


_REASON_OF = {Direction.OUT: Reason.SCALE_OUT, Direction.IN: Reason.SCALE_IN}
