"""Between zero and one: nothing is started before a metric is above its threshold, and the last one stays while it is. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from scaling.flip import Condition, Flip
from scaling.model import Reason, Verdict
from scaling.rules.combine import PROBLEMS
from scaling.rules.view import LevelLine, MetricsView


class ActivationRule:
    """From zero the first one is started when any of the metrics is above its threshold, by its newest sample. The last one
    goes only when all of them are known, and were at or below it throughout their windows; how many there are beyond the
    first is up to the other rules, and so is wanting none.
    """

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`metric`, or several `metrics`; `above` is the activation threshold of each, 0 as KEDA's default."""

        metric: str = ""
        metrics: tuple[str, ...] = ()
        above: Annotated[float, Meta(ge=0)] = 0.0

        def problems(self) -> dict[str, str]:
            if bool(self.metric) == bool(self.metrics):
                return {"metric": "give either metric or metrics"}
            return {}

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._above = params.above
        self._metrics = params.metrics or (params.metric,)

    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def levels(self, current: int) -> tuple[LevelLine, ...]:
        """The threshold, where it is what counts: from zero to one and back. Nothing is below a threshold of 0."""
        if current > 1 or (current == 1 and not self._above):
            return ()
        way: Literal["out", "in"] = "out" if current == 0 else "in"
        statistic = "latest" if current == 0 else "maximum"
        return tuple(LevelLine(metric, statistic, way, self._above) for metric in self._metrics)

    def evaluate(self, view: MetricsView, /) -> Verdict:
        return self._of_none(view) if view.current == 0 else self._of_some(view)

    def _of_none(self, view: MetricsView) -> Verdict:
        """A vote for the first one; or nothing is started, also where some of the metrics cannot be read."""
        active, unknown = self._active(view, "latest")
        if active:
            evidence = view.evidence(self._name, active[0], "latest", ">", self._above)
            return Verdict(
                1, Reason.SCALE_OUT, (evidence,), (self._quiet(active, "latest", Reason.NOT_ACTIVE),)
            )
        if unknown is not None:
            return Verdict(None, unknown, blocks_out=True)
        evidences = tuple(view.evidence(self._name, m, "latest", "<=", self._above) for m in self._metrics)
        flips = tuple(Flip.at(f"latest {m}", ">", self._above, Reason.SCALE_OUT) for m in self._metrics)
        return Verdict(None, Reason.NOT_ACTIVE, evidences, flips, blocks_out=True)

    def _of_some(self, view: MetricsView) -> Verdict:
        """Nothing to say where all is quiet; else one stays."""
        active, unknown = self._active(view, "maximum")
        if active:
            evidence = view.evidence(self._name, active[0], "maximum", ">", self._above)
            flips = (self._quiet(active, "maximum", Reason.SCALE_IN),)
            return Verdict(None, Reason.STILL_ACTIVE, (evidence,), flips, floor=1)
        if unknown is not None:
            assert unknown in PROBLEMS  # which forbids every scale-in
            return Verdict(None, unknown, floor=1)
        return Verdict(None, Reason.WITHIN_TARGET)

    def _active(self, view: MetricsView, statistic: str) -> tuple[list[str], Reason | None]:
        """The metrics above the threshold, and why one is not known, where there is such."""
        summaries = [(metric, view.metric(metric)) for metric in self._metrics]
        unknown = next((s.problem for _, s in summaries if s.problem is not None), None)
        known = [(metric, s) for metric, s in summaries if s.problem is None]
        return [metric for metric, s in known if s.statistic(statistic) > self._above], unknown

    def _quiet(self, active: list[str], statistic: str, outcome: Reason) -> Flip:
        """What would have them all at the threshold or below."""
        return Flip(
            outcome, tuple(Condition(f"{statistic} {metric}", "<=", self._above) for metric in active)
        )
