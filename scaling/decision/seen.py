"""What rules are shown of a target: the one way from windows and state to a view, for deciding and for learning. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from scaling.config.policy import Policy
from scaling.model import Capacity, TargetState
from scaling.rules.view import MetricsView
from scaling.window import Window


def view_of(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    capacity: Capacity,
    current: int,
    *,
    now: float,
) -> MetricsView:
    """The view at `now`: `current` is the capacity believed in, `capacity` the platform's reading."""
    return MetricsView(
        windows,
        policy.windows,
        current,
        ready=current if capacity.ready is None else capacity.ready,
        minimum=policy.minimum,
        maximum=policy.maximum,
        now=now,
        told_ready=capacity.ready,
        memories=state.memories,
        last_effect=state.effects[-1] if state.effects else None,
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
