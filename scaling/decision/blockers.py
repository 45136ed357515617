"""What forbids a change: bounds reached, guards, plateau, missing metrics, cooldowns, pauses. Pure.

Each blocker comes with what would lift it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.budget.allowance import Allowance, allowance_of
from scaling.config.policy import Policy
from scaling.decision import pacing as pace
from scaling.decision.missing import first_missing, missing_conditions
from scaling.decision.orders import active_pause
from scaling.drains.draining import announced_again_at
from scaling.flip import Condition, Conditions, Lifts, all_lifted, lifted_at, lifted_by
from scaling.model import (
    Controls,
    Direction,
    Limit,
    Override,
    Pause,
    Reason,
    Refused,
    ScaleAction,
    TargetState,
    Verdict,
)
from scaling.rules.combine import PROBLEMS, combine
from scaling.rules.view import MetricsView
from scaling.target_facts import settable_of

Blocker = tuple[Limit, Lifts]
"""What forbids a change, and what would lift it."""

PLATFORM_FLOOR = "platform floor"

REFUSAL_REMEMBERED = 900.0
"""Seconds until a change that the platform refused is tried again though nothing changed that can be seen. Chosen,
as the default of `external_hold`: a role that was granted meanwhile, or an hourly limit of changes, shows nowhere.
"""


@dataclass(eq=False)
class Situation:
    """Everything one decision is made from; the bounds are the policy's, narrowed by schedules and platform.

    A maximum protects the bill, so it wins over any floor; only what the platform itself cannot go below does not
    yield to it.
    """

    policy: Policy
    state: TargetState
    controls: Controls
    view: MetricsView
    verdicts: Sequence[Verdict]
    now: float
    decision_id: str
    replaces: bool = False
    """Whether this is decided in place of the pending action, which then counts among the changes of the hour."""

    def __post_init__(self) -> None:
        self.verdict = combine(self.verdicts, self.view.current)
        self.proposed = self.verdict.desired
        if self.proposed is None and self.verdict.reason not in PROBLEMS:
            self.proposed = self.view.current
        self._narrow_bounds()

    def _narrow_bounds(self) -> None:
        """The narrowest of the bounds of policy, schedule and platform; a floor of the platform holds above them all."""
        policy, view, verdict, capacity = self.policy, self.view, self.verdict, self.state.capacity
        low, high, self.low_is, self.high_is = policy.minimum, policy.maximum, "minimum", "maximum"
        self.allowance = allowance_of(policy, self.state, now=self.now)
        self.unpaid_floor: int | None = None
        if verdict.ceiling is not None and verdict.ceiling < high:
            high, self.high_is = verdict.ceiling, "ceiling of the schedule"
        if verdict.floor is not None and verdict.floor > low:
            low = self._affordable_floor(verdict.floor)
        self.settable = settable_of(capacity)
        if capacity is not None:
            if capacity.ceiling is not None and capacity.ceiling < high:
                high, self.high_is = capacity.ceiling, "ceiling of the platform"
            if capacity.floor > low:
                low, self.low_is = capacity.floor, PLATFORM_FLOOR
            if view.current > high and capacity.floor > high:
                high, self.high_is = self.round_to_step(capacity.floor), PLATFORM_FLOOR
        # Bounds between two steps are met from within, but move nothing that is within them.
        current = view.current
        self.high = max(self.settable.down(high), current if current <= high else 0, 0)
        if self.high < current:
            first = self.settable.up(
                max(capacity.floor if capacity is not None else 0, min(policy.minimum, 1))
            )
            if self.high < first <= current:  # below its first step the platform can be set to nothing
                self.high, self.high_is = first, "first step of the platform"
        self.low = min(self.round_to_step(low), current) if current >= low else self.round_to_step(low)
        self.low = min(self.low, self.high)

    def _affordable_floor(self, floor: int) -> int:
        """The floor of a schedule as far as the budget pays for it; the minimum it always pays for."""
        allowance, current = self.allowance, self.view.current
        if allowance is None:
            return floor
        paid = max(min(floor, max(allowance.out, min(current, allowance.keep))), self.policy.minimum)
        self.unpaid_floor = floor if paid < floor else None
        return paid

    def lower_bounds_above(self, most: int) -> Conditions:
        """What together keeps no lower bound above `most`."""
        capacity = self.state.capacity
        bounds = (
            ("minimum", self.policy.minimum),
            ("schedule floor", max((v.floor or 0 for v in self.verdicts if is_scheduled(v)), default=None)),
            (PLATFORM_FLOOR, None if capacity is None else capacity.floor),
        )
        return tuple(Condition(n, "<=", float(most)) for n, b in bounds if b is not None and b > most)

    def upper_bounds_below(self, least: int) -> Conditions:
        """What together keeps no upper bound below `least`."""
        capacity = self.state.capacity
        bounds = (
            ("maximum", self.policy.maximum),
            ("schedule ceiling", self.verdict.ceiling),
            ("platform ceiling", None if capacity is None else capacity.ceiling),
        )
        return tuple(Condition(n, ">=", float(least)) for n, b in bounds if b is not None and b < least)

    def round_to_step(self, wanted: int) -> int:
        """`wanted` rounded up to what the platform can be set to: too little is throttled, too much costs a step."""
        return self.settable.up(wanted)

    def is_overridden(self, pending: ScaleAction) -> bool:
        """True when an operator's override asks for another capacity than the pending action leads to."""
        override = self.controls.override
        if override is None or self.now >= override.until:
            return False
        return self.override_capacity(override) != pending.to_capacity

    def override_capacity(self, override: Override) -> int:
        """The capacity of an override, as a step of the platform within the bounds."""
        return min(max(self.round_to_step(override.capacity), self.low), self.high)

    @property
    def changes_allowed(self) -> int:
        """Changes that may be made within an hour; 0 where nothing limits them."""
        return self.policy.spec.facts.changes_per_hour or 0

    def override_limits(self, override: Override) -> tuple[Limit, ...]:
        """What makes the capacity of an override another one than was ordered."""
        asked, wanted = override.capacity, self.override_capacity(override)
        limits, stepped = [], self.round_to_step(asked)
        if stepped != asked:
            limits.append(Limit(Reason.BETWEEN_STEPS, asked, stepped, self.settable.words))
        if wanted < stepped:
            limits.append(Limit(Reason.AT_MAXIMUM, stepped, wanted, f"{self.high_is} {self.high}"))
        if wanted > stepped:
            limits.append(Limit(Reason.AT_MINIMUM, stepped, wanted, f"{self.low_is} {self.low}"))
        return tuple(limits)

    def policy_ceiling(self) -> int:
        """The most that the policy and its schedules allow, whatever the platform does."""
        ceiling = self.verdict.ceiling
        return self.policy.maximum if ceiling is None else min(ceiling, self.policy.maximum)

    def loses_direction(self, exact: int, stepped: int) -> bool:
        """True when rounding up to a step of the platform leaves nothing of a change, or turns it round."""
        current = self.view.current
        return stepped == current or (stepped > current) != (exact > current)


def is_scheduled(verdict: Verdict) -> bool:
    """True where a floor belongs to a time; that of an activation belongs to the load."""
    return verdict.reason not in _LOADED


def find_blockers(case: Situation, direction: Direction, wanted: int) -> list[Blocker]:
    """Everything that forbids a change to `wanted`, in the order it is reported."""
    out, paused = direction is Direction.OUT, active_pause(case.controls, direction, case.now)
    holds = (
        _bound_blocker(case, wanted, out=out),
        _budget_blocker(case, wanted) if out else None,
        _guard_blocker(case, wanted) if out else None,
        _lock_step_blocker(case, wanted) if out else None,
        _plateau_blocker(case, wanted) if out else None,
        None if out else _missing_metric_blocker(case, wanted),
        _cooldown_blocker(case, direction, wanted),
        None if out else _unanswered_blocker(case, wanted),
        changes_blocker(case, wanted, kept=0 if out else pace.changes_reserved_for_out(case.changes_allowed)),
        None if paused is None else pause_limit(case, paused, wanted),
    )
    return [blocker for blocker in holds if blocker is not None]


def _bound_blocker(case: Situation, wanted: int, *, out: bool) -> Blocker | None:
    current = case.view.current
    if out and current >= case.high:
        limit = Limit(Reason.AT_MAXIMUM, wanted, current, f"{case.high_is} {case.high}")
        return limit, (case.upper_bounds_below(case.settable.after(current)),)
    if not out and current <= case.low:
        if (kept := _still_active(case)) is not None:
            limit = Limit(Reason.STILL_ACTIVE, wanted, current, _compared(kept))
            return limit, tuple(flip.conditions for flip in kept.flips)
        limit = Limit(Reason.AT_MINIMUM, wanted, current, f"{case.low_is} {case.low}")
        below = case.settable.down(current - 1) if current else -1
        active = [v for v in case.verdicts if not is_scheduled(v) and (v.floor or 0) > below]
        quiet = [tuple(flip.conditions for flip in v.flips) for v in active]
        return limit, all_lifted(((case.lower_bounds_above(below),), *quiet)) if below >= 0 else ()
    return None


def _still_active(case: Situation) -> Verdict | None:
    """What keeps the last one, where nothing but its activation does."""
    capacity = case.state.capacity
    if case.policy.minimum or case.view.current != 1 or (capacity is not None and capacity.floor):
        return None
    return next((v for v in case.verdicts if v.reason is Reason.STILL_ACTIVE), None)


def _compared(verdict: Verdict) -> str:
    """The first numbers of a verdict, for example `backlog 7 > 5`."""
    evidence = next(iter(verdict.evidence), None)
    if evidence is None:
        return verdict.note
    return f"{evidence.metric} {evidence.value:g} {evidence.comparator} {evidence.threshold:g}"


def _budget_blocker(case: Situation, wanted: int) -> Blocker | None:
    allowance, current = case.allowance, case.view.current
    if allowance is None or case.settable.down(allowance.out) > current:
        return None
    limit = Limit(Reason.OVER_BUDGET, wanted, current, allowance.text())
    return limit, budget_lifts(case, allowance)


def budget_lifts(case: Situation, allowance: Allowance) -> Lifts:
    """The budget that would pay for a step more; and the end of the day, where the next one begins with enough."""
    step = case.settable.after(case.view.current)
    more = lifted_by("budget", ">=", allowance.takes(step, allowance.out_side))
    tomorrow = allowance_of(case.policy, case.state, now=allowance.ends)
    enough = tomorrow is not None and tomorrow.out >= step
    return (*more, *lifted_at(allowance.ends)) if enough else more


def _guard_blocker(case: Situation, wanted: int) -> Blocker | None:
    # Where the rules could not vote it is the fallback that scales out: what is unknown at zero does not hold that, but a
    # disabled entity does, from which the first one would receive nothing.
    unknown = PROBLEMS - {Reason.ENTITY_DISABLED} if case.verdict.desired is None else frozenset()
    guards = [v for v in case.verdicts if v.blocks_out and v.reason not in unknown]
    if not guards:
        return None
    # At zero the activation is what counts; whoever else blocks does so as a guard.
    inactive = all(v.reason in _INACTIVE for v in guards)
    reason = guards[0].reason if inactive else Reason.GUARDED
    blocking = [v for v in guards if v.reason is reason]
    lifts = _lifts_of(blocking)
    unread = any(summary.problem is not None for summary in case.view.metrics().values())
    if not lifts or (unread and not all(v.evidence for v in blocking)):  # it has to be read, and to be low
        lifts = _when_read(case, lifts)
    note = next((v.note for v in guards if v.note), "")
    text = next((_compared(v) for v in blocking if v.evidence), note)
    return Limit(reason, wanted, case.view.current, text), lifts


def _when_read(case: Situation, lifts: Lifts) -> Lifts:
    """The same once every metric is read again."""
    whole = missing_conditions(case.view, case.policy.windows, gaps=False)
    return all_lifted((lifts or ((),), (whole,)))


def _lifts_of(verdicts: Iterable[Verdict]) -> Lifts:
    """What makes all of them allow more."""
    conditions = (
        tuple(flip.conditions for flip in verdict.flips if flip.outcome is Reason.SCALE_OUT)
        for verdict in verdicts
    )
    known = [lifts for lifts in conditions if lifts]
    return all_lifted(known) if known else ()


_LOADED = PROBLEMS | {Reason.STILL_ACTIVE}
_INACTIVE = PROBLEMS | {Reason.NOT_ACTIVE}


def _lock_step_blocker(case: Situation, wanted: int) -> Blocker | None:
    """Scaling out has to wait for another target; for what it waits is the next step that the limits allow."""
    allowed = case.verdict.out_ceiling
    if allowed is None or allowed > case.view.current:
        return None
    waiting = [v for v in case.verdicts if v.out_ceiling is not None and v.out_ceiling <= case.view.current]
    lifts = _lifts_of(waiting)
    if not lifts or any(v.note for v in waiting):
        lifts = _when_read(case, lifts)
    # How far the step and rate limits let it come at once.
    reached, _ = pace.apply_pace(
        wanted, case.view.current, case.state.effects, case.policy.spec.out, case.now
    )
    return Limit(
        Reason.LOCK_STEP, case.round_to_step(reached), case.view.current, out_ceiling_text(case)
    ), lifts


def out_ceiling_text(case: Situation) -> str:
    """What bounds scaling out, in words."""
    lowest = min((v for v in case.verdicts if v.out_ceiling is not None), key=lambda v: v.out_ceiling or 0)
    if lowest.note or not lowest.evidence:
        return lowest.note
    seen = lowest.evidence[0]
    return f"{seen.metric} {seen.value:g} suffices for {lowest.out_ceiling}"


def _missing_metric_blocker(case: Situation, wanted: int) -> Blocker | None:
    """A missing metric forbids scaling in, also where the rules did not need it."""
    missing = first_missing(case.view)
    if missing is None:
        return None
    name, reason = missing
    needed = missing_conditions(case.view, case.policy.windows, gaps=True)
    return Limit(reason, wanted, case.view.current, name), (needed,)


def _plateau_blocker(case: Situation, wanted: int) -> Blocker | None:
    plateau = case.policy.spec.plateau
    if plateau is None:
        return None
    summary = case.view.metric(plateau.metric)
    # Neither a default nor a sample from before a failed read says what scaling out did.
    if summary.problem is not None or summary.lacking is not None or not summary.count:
        return None
    level = summary.latest
    plateaued = pace.level_of_plateau(case.state.effects, level, plateau, case.now)
    if plateaued is None:
        return None
    text = f"{plateau.metric} {level:g} did not fall below {plateaued:g} over {plateau.effects} scale-outs"
    lifts = lifted_by(f"latest {plateau.metric}", "<", plateaued)
    return Limit(Reason.PLATEAU, wanted, case.view.current, text), lifts


def _cooldown_blocker(case: Situation, direction: Direction, wanted: int) -> Blocker | None:
    spec = case.policy.spec
    until = pace.cooldown_until(case.state.effects, direction, spec.out, spec.inward)
    if until is None or case.now >= until:
        return None
    return _until(case, Reason.COOLING_DOWN, wanted, until)


def _unanswered_blocker(case: Situation, wanted: int) -> Blocker | None:
    until = announced_again_at(case.policy, case.state, case.now)
    return None if until is None else _until(case, Reason.UNANSWERED, wanted, until)


def _until(case: Situation, reason: Reason, wanted: int, until: float) -> Blocker:
    limit = Limit(reason, wanted, case.view.current, f"{until - case.now:.0f} s left")
    return limit, lifted_at(until)


def changes_blocker(case: Situation, wanted: int, *, kept: int) -> Blocker | None:
    """The hour's changes are spent, but for those `kept` for scaling out."""
    most = case.changes_allowed
    if not most:
        return None
    without = case.state.pending.action_id if case.state.pending is not None and not case.replaces else ""
    changes = pace.changes_of_hour(case.state, case.now, without=without)
    until = pace.change_free_at(changes, most - kept)
    if until is None:
        return None
    text = f"{len(changes)} of {most} changes in the last hour"
    text += f", of which the last {kept} are for scaling out" if kept else ""
    return Limit(Reason.CHANGES_SPENT, wanted, case.view.current, text), lifted_at(until)


def pause_limit(case: Situation, paused: Pause, wanted: int) -> Blocker:
    limit = Limit(Reason.PAUSED, wanted, case.view.current, f"paused by {paused.by}")
    direction = Direction.OUT if wanted > case.view.current else Direction.IN
    ends = [p.until for p in case.controls.pauses if p.direction in {None, direction}]
    if None in ends:
        return limit, lifted_by(f"pause {direction}")
    return limit, lifted_at(max(end for end in ends if end is not None))


def known_refusal(case: Situation, desired: int) -> Refused | None:
    """The refusal that this change would meet again: of as much or less, by the same limits, and no order since."""
    refused, current, capacity = case.state.refused, case.view.current, case.state.capacity
    if refused is None or refused.from_capacity != current or capacity is None:
        return None
    out = desired > current
    as_far = desired >= refused.to_capacity if out else desired <= refused.to_capacity
    orders = case.controls
    ordered = max(
        orders.external_cleared_at or 0.0, orders.override.at if orders.override is not None else 0.0
    )
    known = (
        as_far
        and out == (refused.to_capacity > current)
        # The distance, for one of a clock that was far ahead would never end.
        and abs(case.now - refused.at) < REFUSAL_REMEMBERED
        and ordered < refused.at
        and (refused.floor, refused.ceiling) == (capacity.floor, capacity.ceiling)
    )
    return refused if known else None
