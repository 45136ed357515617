"""A downstream metric that blocks scaling out: more workers would only hurt a struggling database. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from scaling.flip import Flip
from scaling.model import Reason, Verdict
from scaling.rules.level import LevelSpec, compile_level, level_problems
from scaling.rules.view import LevelLine, MetricsView, StatisticOption


class GuardRule:
    """Blocks scaling out while a statistic is above a level; never asks for a change itself."""

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        metric: str
        block_out_above: LevelSpec
        statistic: StatisticOption = "average"
        # Unknown is not zero: a database that cannot be read may be the one that is down.
        when_missing: Literal["block", "allow"] = "block"

        def problems(self) -> dict[str, str]:
            return level_problems({"block_out_above": self.block_out_above})

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._params = params
        self._level = compile_level(params.block_out_above)

    def metrics(self) -> tuple[str, ...]:
        return (self._params.metric,)

    def levels(self, current: int) -> tuple[LevelLine, ...]:
        """The level above which scaling out is blocked, at an instance count."""
        return (LevelLine(self._params.metric, self._params.statistic, "guard", self._level(current)),)

    def evaluate(self, view: MetricsView, /) -> Verdict:
        params = self._params
        summary = view.metric(params.metric)
        level = self._level(view.current)
        flips = (Flip.at(f"{params.statistic} {params.metric}", "<=", level, Reason.SCALE_OUT),)
        if summary.problem is not None:
            if params.when_missing == "allow":
                return Verdict(None, Reason.WITHIN_TARGET)
            note = f"{params.metric} unknown ({summary.problem})"
            return Verdict(None, Reason.GUARDED, (), flips, blocks_out=True, note=note)
        if summary.statistic(params.statistic) <= level:
            return Verdict(None, Reason.WITHIN_TARGET)
        evidence = view.evidence(self._name, params.metric, params.statistic, ">", level)
        return Verdict(None, Reason.GUARDED, (evidence,), flips, blocks_out=True)
