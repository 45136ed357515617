"""What is known of a target: the one way from windows and state to what rules are shown, for deciding and for learning; and
what is made of a reading of its capacity. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from scaling.config.policy import Policy
from scaling.model import Capacity, Effect, EffectOutcome, TargetState
from scaling.rules.view import MetricsView
from scaling.window import GAP_INTERVALS, Window


def view_of(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    capacity: Capacity,
    current: int,
    *,
    now: float,
    flips: bool = True,
) -> MetricsView:
    """The view at `now`: `current` is the capacity believed in, `capacity` the platform's reading. With `flips` rules name what
    would change their vote.
    """
    return MetricsView(
        windows,
        policy.windows,
        current,
        ready=current if capacity.ready is None else capacity.ready,
        minimum=policy.minimum,
        maximum=policy.maximum,
        now=now,
        counted_ready=capacity.ready,
        memories=state.memories,
        last_effect=state.effects[-1] if state.effects else None,
        changes_per_hour=policy.spec.facts.changes_per_hour,
        wants_flips=flips,
    )


def known_values(policy: Policy, windows: Mapping[str, Window], *, now: float) -> dict[str, float]:
    """The newest sample of every metric that is read: not of one whose newest read failed, whose queue is disabled, or whose
    newest sample is too old, for what is logged of a metric is taken for its value at that time.
    """
    return {
        name: window.values[-1]
        for name, window in windows.items()
        if name in policy.windows
        and window.values
        and window.failure is None
        and now - window.times[-1] <= policy.windows[name].stale_after
    }


def plateau_level(policy: Policy, windows: Mapping[str, Window], *, now: float) -> float | None:
    """The plateau's metric as it is now; None without a plateau, or while the metric is not read."""
    plateau = policy.spec.plateau
    return None if plateau is None else known_values(policy, windows, now=now).get(plateau.metric)


def as_advised(state: TargetState, capacity: Capacity) -> Capacity:
    """The reading; where the platform reports none, what was advised last."""
    if not capacity.advised or state.expected is None:
        return capacity
    return structs.replace(capacity, current=state.expected)


def bounded_doubt(policy: Policy, before: Capacity | None, capacity: Capacity) -> Capacity:
    """The reading; a state that nobody knows counts as a change for as long as an action may take (`action_ttl`), and is then
    taken for rest: a platform that is changing refuses the next order itself.
    """
    if not capacity.unknown_state:
        return capacity
    since = before.unknown_since if before is not None and before.unknown_state else None
    since = capacity.at if since is None or since > capacity.at else since
    doubted = capacity.at - since < policy.spec.action_ttl
    return structs.replace(capacity, pending=doubted, unknown_since=since)


def is_from_before(policy: Policy, state: TargetState, current: int, at: float) -> bool:
    """True for a reading that our own changes explain: it was taken before the last of them, or shows where a change of the
    last minutes began or led. The platform's API may answer from a cache for a while; what stays is noticed after that.
    """
    effects = state.effects
    if effects and at <= effects[-1].at:
        return True
    grace = max(
        policy.spec.effect_timeout, GAP_INTERVALS * policy.interval
    )  # the next reading, however rare they are
    recent = (effect for effect in effects if at - effect.at < grace)
    return any(current in {effect.from_capacity, effect.to_capacity} for effect in recent)


def as_asked_too_early(policy: Policy, state: TargetState, effect: Effect) -> Effect:
    """A change by somebody else that only a reading from before our own last change shows is none: tried again."""
    reached = effect.reached
    if effect.outcome is not EffectOutcome.EXTERNAL_CHANGE or reached is None:
        return effect
    if reached == effect.from_capacity or not is_from_before(policy, state, reached, effect.at):
        return effect
    text = f"the platform still shows {reached}, as before our last change"
    return structs.replace(effect, outcome=EffectOutcome.FAILED, detail=text)
