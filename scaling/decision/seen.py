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


def plateau_level(policy: Policy, windows: Mapping[str, Window]) -> float | None:
    """The newest sample of the plateau's metric; None without a plateau or a sample."""
    plateau = policy.spec.plateau
    window = windows.get(plateau.metric) if plateau is not None else None
    return window.values[-1] if window is not None and window.values else None
