"""How fast a target may move: stabilization windows, cooldowns, steps, rate policies, plateau. Pure.

Stabilization and rate policies are the HPA's (pkg/controller/podautoscaler/horizontal.go, functions
stabilizeRecommendationWithBehaviors and calculateScale{Up,Down}LimitWithScalingRules), with the time as an
argument. `effects` are always ascending by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from scaling.config.policy import Pace, Plateau
from scaling.model import Direction, EffectRecord, Limit, Reason, TargetState

TICK = 0.001
"""Added to the moment something leaves a window, so that rounding of large epoch times cannot keep it in."""


def apply_stabilization(
    wanted: int,
    current: int,
    recommendations: Sequence[tuple[float, int]],
    out: Pace,
    inward: Pace,
    now: float,
) -> int:
    """Out: no more than the lowest recommendation of its window; in: no less than the highest of its own."""
    if wanted == current or not recommendations:
        return wanted
    up = down = wanted
    up_cutoff, down_cutoff = now - out.stabilization, now - inward.stabilization
    for at, recommended in recommendations:
        if at > up_cutoff and recommended < up:
            up = recommended
        if at > down_cutoff and recommended > down:
            down = recommended
    if current < up:
        return up
    if current > down:
        return down
    return current


def stable_until(
    wanted: int, current: int, recommendations: Sequence[tuple[float, int]], out: Pace, inward: Pace
) -> float:
    """When the last recommendation that holds `wanted` back at `current` has left its window."""
    up = wanted > current
    holding = (at for at, seen in recommendations if (seen <= current if up else seen >= current))
    return max(holding) + ((out if up else inward).stabilization + TICK)


def cooldown_until(
    effects: Sequence[EffectRecord], direction: Direction, out: Pace, inward: Pace
) -> float | None:
    """When the cooldown for a change in `direction` ends; None when there is nothing to cool down from.

    A scale-out waits for the last scale-out only; a scale-in for the last change of either kind.
    """
    if not effects:
        return None
    if direction is Direction.IN:
        return effects[-1].at + inward.cooldown
    for effect in reversed(effects):
        if effect.to_capacity > effect.from_capacity:
            return effect.at + out.cooldown
    return None


def _moved(effects: Sequence[EffectRecord], period: float, now: float, *, out: bool) -> int:
    """Units added (or removed) by the effects of the last `period` seconds, its begin excluded."""
    total = 0
    for effect in reversed(effects):
        if effect.at + period <= now:  # the sum that `rate_free_at` names as the moment
            break
        change = effect.to_capacity - effect.from_capacity
        if (change > 0) == out:
            total += abs(change)
    return total


def rate_bound(current: int, effects: Sequence[EffectRecord], pace: Pace, now: float, *, out: bool) -> float:
    """The furthest capacity the rate policies allow now; without policies infinite (out) or 0 (in)."""
    if pace.select == "disabled":
        return current
    if not pace.rates:
        return inf if out else 0
    bounds: list[float] = []
    sign, whole = (1, ceil) if out else (-1, int)
    for rate in pace.rates:
        start = current - sign * _moved(effects, rate.period, now, out=out)
        change = sign * rate.amount
        bounds.append(start + change if rate.kind == "units" else whole(start * (1 + change / 100)))
    most_change = pace.select == "max"
    return max(bounds) if most_change == out else min(bounds)


def apply_pace(
    wanted: int, current: int, effects: Sequence[EffectRecord], pace: Pace, now: float
) -> tuple[int, list[Limit]]:
    """`wanted` after the step limit and the rate policies, with each limit that bit. Never reverses."""
    out, desired = wanted > current, wanted
    limits: list[Limit] = []
    if pace.step is not None and abs(desired - current) > pace.step:
        allowed = current + pace.step if out else current - pace.step
        limits.append(Limit(Reason.RATE_LIMITED, desired, allowed, f"step {pace.step}"))
        desired = allowed
    if pace.rates or pace.select == "disabled":
        bound = rate_bound(current, effects, pace, now, out=out)
        bound = max(bound, current) if out else min(bound, current)
        allowed = int(min(desired, bound) if out else max(desired, bound))
        if allowed != desired:
            limits.append(Limit(Reason.RATE_LIMITED, desired, allowed, describe_rates(pace)))
            desired = allowed
    return desired, limits


def describe_rates(pace: Pace) -> str:
    """The rate policies in words: `max of 4 units per 15 s, 100 % per 15 s`."""
    if pace.select == "disabled":
        return "this direction is disabled"
    texts = [
        f"{rate.amount:g} {'units' if rate.kind == 'units' else '%'} per {rate.period:g} s"
        for rate in pace.rates
    ]
    return texts[0] if len(texts) == 1 else f"{pace.select} of {', '.join(texts)}"


def rate_free_at(
    current: int, effects: Sequence[EffectRecord], pace: Pace, now: float, *, out: bool
) -> float | None:
    """The first moment at which the rate policies allow a change, if nothing else happens; None for never."""
    moments = sorted(
        at for rate in pace.rates for effect in effects if (at := effect.at + rate.period + TICK) > now
    )
    for at in moments:
        bound = rate_bound(current, effects, pace, at, out=out)
        if bound >= current + 1 if out else bound <= current - 1:
            return at
    return None


def level_of_plateau(
    effects: Sequence[EffectRecord], level: float, plateau: Plateau, now: float
) -> float | None:
    """The level the metric should have fallen below, when the last scale-outs had no effect; else None.

    Looks at the newest run of scale-outs: with `plateau.effects` of them, the level now is compared with
    the level at the first of these. An effect without a known level ends the run.
    """
    run: list[float] = []
    for effect in reversed(effects):
        if effect.to_capacity < effect.from_capacity or effect.level is None:
            break
        run.append(effect.level)
        if len(run) == plateau.effects:
            break
    if len(run) < plateau.effects or not effects or now - effects[-1].at >= plateau.hold:
        return None
    needed = run[-1] * (1 - plateau.fall)
    return None if level < needed else needed


HOUR = 3600.0
"""The time within which platforms limit changes; it slides: "within the past hour" (App Service's own words)."""


def changes_reserved_for_out(changes_per_hour: int) -> int:
    """How many of an hour's changes are for scaling out only: a quarter, with which the HPA's doubling goes from 1 to 32."""
    return max(changes_per_hour // 4, 1)


def changes_of_hour(state: TargetState, now: float, *, without: str = "") -> list[float]:
    """When the capacity was changed within the last hour, by us and by others, ascending.

    A change that was sent counts whatever became of it: when its effect was there, or else when it was sent. An action
    whose id is `without` does not count.
    """
    ours = {identity: at for identity, at in state.sent if identity != without}
    unnamed = [effect.at for effect in state.effects if not effect.action_id]  # of a test, or an old row
    ours.update((effect.action_id, effect.at) for effect in state.effects if effect.action_id)
    return sorted(at for at in (*ours.values(), *unnamed, *state.others_changes) if at > now - HOUR)


def change_free_at(changes: Sequence[float], allowed: int) -> float | None:
    """When so few changes of the hour are left that one more is allowed; None where it is now."""
    if len(changes) < allowed:
        return None
    return changes[len(changes) - max(allowed, 1)] + HOUR + TICK
