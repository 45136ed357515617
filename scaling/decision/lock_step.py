"""Two targets in step: what one may do depends on where the other one stands. Pure.

Rules see the other target as a metric (collector `target_capacity`), which is up to a collection old. That is
good enough to decide by, not to rely on: both might move at once, each trusting what it saw of the other. So
before an action is carried out its rules are asked again (`objection`), with the other target as its stored
state and its platform have it at that moment. The action itself stands in the store as pending by then, and
counts. Of two targets that each write first and read second, at least one sees the other: they never both go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs

from scaling.config.policy import TARGET_CAPACITY, Policy
from scaling.model import Capacity, MetricFailure, Reason, ScaleAction, TargetState
from scaling.rules.combine import objection_of
from scaling.rules.view import MetricsView
from scaling.window import Window

COUNTS = ("current", "reached", "ready", "wanted")

_WILL_NOT_ACT = frozenset({Reason.DRY_RUN, Reason.PAUSED, Reason.CAPACITY_UNKNOWN})


class Neighbour(Struct, frozen=True):
    """Another target whose `count` is a metric of this one."""

    target: str
    count: str


def capacities(state: TargetState) -> dict[str, float] | None:
    """Where a target stands, on the safe side for either use; None where that is not known.

    `current`  what it is believed to have
    `reached`  what it has for sure: the least of that, of what was read, and of a change under way, or of one that was
               withdrawn and that the platform may still carry out
    `ready`    how many of these work already, where the platform counts them
    `wanted`   what it may come to have next: the most of these, and of what its last decision moves to, or would
               if only the other target allowed it. What a guard, a cooldown or a step keeps from coming is not
               wanted yet: nobody has to pay for it
    """
    if state.expected is None or state.capacity is None or state.capacity_error is not None:
        return None
    pending: tuple[int, ...] = ()
    if state.pending is not None:  # and what it took the place of: what became of that may not be known
        action = state.pending
        pending = tuple(there for there in (action.to_capacity, action.replaces) if there is not None)
    gone = state.withdrawn  # it may still take effect, until a reading is newer than the end of its time
    if gone is not None and gone.may_lead_to is not None and state.capacity.at < gone.expires_at:
        pending = (*pending, gone.may_lead_to)
    here = (state.expected, state.capacity.current, *pending)
    wanted, last = list(here), state.last
    if last is not None and last.reason not in _WILL_NOT_ACT:
        if last.desired is not None:
            wanted.append(last.desired)
        waiting = [limit.wanted for limit in last.limits if limit.reason is Reason.LOCK_STEP]
        if last.acts or len(waiting) == len(last.limits):
            wanted += [min(capacity, last.maximum) for capacity in waiting]
    reached = float(min(here))
    ready = reached if state.capacity.ready is None else min(reached, float(state.capacity.ready))
    return {
        "current": float(state.expected),
        "reached": reached,
        "ready": ready,
        "wanted": float(max(wanted)),
    }


def as_of(state: TargetState) -> float:
    """The time of the newest that is known there: of a reading, a decision or an effect."""
    last, effects = state.last, state.effects
    return max(
        state.capacity.at if state.capacity is not None else 0.0,
        last.at if last is not None else 0.0,
        effects[-1].at if effects else 0.0,
    )


def neighbours(policy: Policy) -> dict[str, Neighbour]:
    """The metrics of a target that are capacities of others."""
    return {
        name: Neighbour(str(spec.options["target"]), spec.count)
        for name, spec in policy.spec.metrics.items()
        if spec.collector == TARGET_CAPACITY
    }


def as_seen(state: TargetState, seen: Capacity | str) -> TargetState:
    """A stored state with what its platform says now, or why that could not be read."""
    if isinstance(seen, str):
        return structs.replace(state, capacity_error=seen)
    return structs.replace(state, capacity=seen, capacity_error=None)


def objection(
    policy: Policy,
    windows: Mapping[str, Window],
    action: ScaleAction,
    others: Mapping[str, TargetState],
    *,
    now: float,
) -> str | None:
    """Why an action must wait for another target, or None. `others` by target, as they are now."""
    fresh = dict(windows)
    for metric, neighbour in neighbours(policy).items():
        fresh[metric] = _as_of(now, metric, others.get(neighbour.target), neighbour.count, policy)
    here, low, high = action.from_capacity, policy.minimum, policy.maximum
    view = MetricsView(fresh, policy.windows, here, ready=here, minimum=low, maximum=high, now=now)
    return objection_of(policy.rules, view, action.to_capacity)


def _as_of(now: float, metric: str, state: TargetState | None, count: str, policy: Policy) -> Window:
    """A whole window of the one value that counts."""
    known = None if state is None else capacities(state)
    if known is None:
        return Window(failure=MetricFailure(metric, now, "the state of the other target is not known"))
    spec = policy.windows[metric]
    samples = max(spec.min_samples, round(spec.span / spec.interval), 1)
    times = [now - spec.interval * index for index in reversed(range(samples))]
    return Window(times, [known[count]] * samples)
