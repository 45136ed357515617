"""Changes nothing: what is decided is told (`GET /api/scaling/{target}/recommendation`), and somebody else carries it out.

Nobody here can see what became of that. So what was advised last is taken for done, and the next decision begins there; bounds,
cooldowns, guards, orders, schedules and budgets hold as for any other target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from scaling.model import Capacity, Effect, EffectOutcome, ScaleAction, effect_of
from scaling.target_facts import Settable, TargetFacts

Value = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class AdviceScaler:
    """The scaler of a target that others scale."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`initial` is what there is before the first advice. `unit`, and `step` or `allowed` values, are those of whoever
        carries it out.
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
