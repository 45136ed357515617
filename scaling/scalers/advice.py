"""The scaler of a target that another controller scales: it reads the decisions (`GET /api/scaling/{target}/recommendation`).

Tidemark cannot see what became of the advice, so it assumes that the last one was carried out, and decides from there. Bounds,
cooldowns, guards, orders, schedules and budgets apply as to any other target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from scaling.model import Capacity, Effect, EffectOutcome, ScaleAction, effect_of
from scaling.target_facts import Settable, TargetFacts

Value = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class AdviceScaler:
    """Changes nothing."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`initial` is the capacity before the first advice. `unit`, and `step` or `allowed` values, are those of the controller
        that carries it out.
        """

        initial: Value = 1
        unit: Annotated[str, msgspec.Meta(max_length=40)] = "replicas"
        step: Annotated[int, msgspec.Meta(ge=1)] = 1
        allowed: tuple[Value, ...] = ()

        def problems(self) -> dict[str, str]:
            both = bool(self.allowed) and self.step > 1
            return {"step": "give either allowed values or a step"} if both else {}

    def __init__(self, params: Params, settings: Mapping[str, str]) -> None:  # there is nothing to reach
        self._params = params

    @staticmethod
    def facts(params: Params) -> TargetFacts:
        return TargetFacts(params.unit, Settable(params.step, tuple(sorted(set(params.allowed)))))

    async def current(self, target: str, *, now: float) -> Capacity:  # nothing is asked
        params = self._params
        return Capacity(
            current=params.initial, at=now, step=params.step, allowed=tuple(params.allowed), advised=True
        )

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        """Advice is given as soon as it is decided."""
        return effect_of(
            action, EffectOutcome.APPLIED, now, "advised; nothing was changed here", action.to_capacity
        )

    async def aclose(self) -> None:
        """Does nothing: nothing was opened."""
