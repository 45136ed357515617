"""What forbids a change: bounds reached, guards, plateau, missing metrics, cooldowns, pauses. Pure.

Each blocker comes with the flips that together would lift it.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling import pace
from scaling.controls import active_pause
from scaling.missing import first_missing, missing_flips
from scaling.model import Controls, Direction, Flip, Limit, Pause, Reason, TargetState, Verdict
from scaling.policy import Policy
from scaling.rules.composite import PROBLEMS, combine
from scaling.rules.view import MetricsView

Blocker = tuple[Limit, tuple[Flip, ...]]
"""What forbids a change, and what together would lift it."""

REASON_OF = {Direction.OUT: Reason.SCALE_OUT, Direction.IN: Reason.SCALE_IN}


def time_flip(until: float, outcome: Reason) -> Flip:
    """The same metrics lead to `outcome` from `until` on."""
    return Flip("time", ">=", until, outcome)


class Situation:
    """Everything one decision is made from; the bounds are the policy's, narrowed by schedules and platform."""

    __slots__ = (
        "controls",
        "decision_id",
        "high",
        "high_is",
        "low",
        "now",
        "policy",
        "proposed",
        "state",
        "verdict",
        "verdicts",
        "view",
    )

    def __init__(
        self,
        policy: Policy,
        state: TargetState,
        controls: Controls,
        view: MetricsView,
        verdicts: Sequence[Verdict],
        now: float,
        decision_id: str,
    ) -> None:
        self.policy = policy
        self.state = state
        self.controls = controls
        self.view = view
        self.verdicts = verdicts
        self.verdict = verdict = combine(verdicts, view.current)
        self.now = now
        self.decision_id = decision_id
        self.proposed = verdict.desired
        if verdict.desired is None and verdict.reason not in PROBLEMS:
            self.proposed = view.current
        capacity = state.capacity
        low, high, self.high_is = policy.minimum, policy.maximum, "maximum"
        if verdict.ceiling is not None and verdict.ceiling < high:
            high, self.high_is = verdict.ceiling, "ceiling of the schedule"
        if verdict.floor is not None and verdict.floor > low:
            low = verdict.floor
        if capacity is not None:
            if capacity.ceiling is not None and capacity.ceiling < high:
                high, self.high_is = capacity.ceiling, "ceiling of the platform"
            low = max(low, capacity.floor)
        self.high = max(high, 0)
        self.low = min(low, self.high)  # a maximum protects the bill: it wins over any floor


def blockers_of(case: Situation, direction: Direction, wanted: int) -> list[Blocker]:
    """Everything that forbids a change to `wanted`, in the order it is reported."""
    out = direction is Direction.OUT
    found = (
        _at_bound(case, wanted, out=out),
        _guarded(case, wanted) if out else None,
        _waiting(case, wanted) if out else None,
        _plateaued(case, wanted) if out else None,
        None if out else _unknown(case, wanted),
        _cooling(case, direction, wanted),
        _pause_blocker(case, direction, wanted),
    )
    return [blocker for blocker in found if blocker is not None]


def _at_bound(case: Situation, wanted: int, *, out: bool) -> Blocker | None:
    current = case.view.current
    if out and current >= case.high:
        limit = Limit(Reason.AT_MAXIMUM, wanted, current, f"{case.high_is} {case.high}")
        return limit, (Flip("maximum", ">", float(current), Reason.SCALE_OUT),)
    if not out and current <= case.low:
        limit = Limit(Reason.AT_MINIMUM, wanted, current, f"minimum {case.low}")
        return limit, (Flip("minimum", "<", float(current), Reason.SCALE_IN),)
    return None


def _guarded(case: Situation, wanted: int) -> Blocker | None:
    guards = [v for v in case.verdicts if v.blocks_out]
    if not guards:
        return None
    told = [v for v in guards if v.reason is Reason.GUARDED]
    evidence = next((e for v in told for e in v.evidence), None)
    flips = tuple(f for v in told for f in v.flips)
    unread = any(summary.problem is not None for summary in case.view.metrics().values())
    if not flips or (unread and not all(v.evidence for v in told)):  # it has to be read, and to be low
        flips += missing_flips(case.view, case.policy.windows, Reason.SCALE_OUT, gaps=False)
    note = next((v.note for v in guards if v.note), "")
    text = f"{evidence.metric} {evidence.value:g} > {evidence.threshold:g}" if evidence else note
    return Limit(Reason.GUARDED, wanted, case.view.current, text), flips


def _waiting(case: Situation, wanted: int) -> Blocker | None:
    """Scaling out has to wait for another target."""
    allowed = case.verdict.out_ceiling
    if allowed is None or allowed > case.view.current:
        return None
    told = [v for v in case.verdicts if v.out_ceiling is not None and v.out_ceiling <= case.view.current]
    flips = tuple(f for v in told for f in v.flips)
    if not flips or any(v.note for v in told):
        flips += missing_flips(case.view, case.policy.windows, Reason.SCALE_OUT, gaps=False)
    return Limit(Reason.LOCK_STEP, wanted, case.view.current, out_ceiling_text(case)), flips


def out_ceiling_text(case: Situation) -> str:
    """What bounds scaling out, in words."""
    lowest = min((v for v in case.verdicts if v.out_ceiling is not None), key=lambda v: v.out_ceiling or 0)
    if lowest.note or not lowest.evidence:
        return lowest.note
    seen = lowest.evidence[0]
    return f"{seen.metric} {seen.value:g} suffices for {lowest.out_ceiling}"


def _unknown(case: Situation, wanted: int) -> Blocker | None:
    """A missing metric forbids scaling in, also where the rules did not need it."""
    missing = first_missing(case.view)
    if missing is None:
        return None
    name, reason = missing
    flips = missing_flips(case.view, case.policy.windows, Reason.SCALE_IN, gaps=True)
    return Limit(reason, wanted, case.view.current, name), flips


def _plateaued(case: Situation, wanted: int) -> Blocker | None:
    plateau = case.policy.spec.plateau
    if plateau is None:
        return None
    summary = case.view.metric(plateau.metric)
    if summary.problem is not None:
        return None
    level = summary.latest
    found = pace.plateaued(case.state.effects, level, plateau, case.now)
    if found is None:
        return None
    text = f"{plateau.metric} {level:g} did not fall below {found:g} over {plateau.effects} scale-outs"
    flip = Flip(f"latest {plateau.metric}", "<", found, Reason.SCALE_OUT)
    return Limit(Reason.PLATEAU, wanted, case.view.current, text), (flip,)


def _cooling(case: Situation, direction: Direction, wanted: int) -> Blocker | None:
    spec = case.policy.spec
    until = pace.cooldown_until(case.state.effects, direction, spec.out, spec.inward)
    if until is None or case.now >= until:
        return None
    limit = Limit(Reason.COOLING_DOWN, wanted, case.view.current, f"{until - case.now:.0f} s left")
    return limit, (time_flip(until, REASON_OF[direction]),)


def _pause_blocker(case: Situation, direction: Direction, wanted: int) -> Blocker | None:
    paused = active_pause(case.controls, direction, case.now)
    return pause_limit(case, paused, wanted, REASON_OF[direction]) if paused is not None else None


def pause_limit(case: Situation, paused: Pause, wanted: int, outcome: Reason) -> Blocker:
    limit = Limit(Reason.PAUSED, wanted, case.view.current, f"paused by {paused.by}")
    direction = Direction.OUT if wanted > case.view.current else Direction.IN
    ends = [p.until for p in case.controls.pauses if p.direction in {None, direction}]
    if None in ends:
        return limit, (Flip("control", "!=", 0.0, outcome),)
    return limit, (time_flip(max(end for end in ends if end is not None), outcome),)
