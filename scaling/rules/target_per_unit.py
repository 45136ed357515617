"""Proportional scaling as the Kubernetes Horizontal Pod Autoscaler v2 defines it. Pure.

Formulas: pkg/controller/podautoscaler/replica_calculator.go. Stabilization windows and rate policies are
the policy's (`[targets.X.out]`, `[targets.X.in]`, or `behavior = "hpa"`), since they hold for any rule.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from math import ceil, inf, nextafter
from typing import Literal

from msgspec import Struct, structs

from scaling.flip import Flip
from scaling.model import Reason, Verdict
from scaling.rules.combine import direction_reason
from scaling.rules.level import LevelSpec, compile_level
from scaling.rules.view import GAP, LevelLine, MetricsView, StatisticOption
from scaling.window import Summary

_COUNTS_CHECKED = 100
"""Instance counts at which a target must be above 0; no App Service Plan grows larger."""

_ROUNDING_STEPS = 8  # floats; the inverse of the formula is off by one or two


def desired_units(
    value: float, target: float, current: int, ready: int, *, tolerance: float, mode: str
) -> int:
    """The capacity the HPA formula asks for.

    `average_value`: ratio = value / (target * current); within `tolerance` of 1 keep, else
    ceil(value / target). `value`: ratio = value / target; within tolerance keep, else ceil(ratio * ready),
    or ceil(ratio) from zero; units that are not ready never turn "too much" into fewer units.
    """
    if mode == "average_value":
        if current and abs(1.0 - value / (target * current)) <= tolerance:
            return current
        return ceil(value / target)
    ratio = value / target
    if current == 0:
        return ceil(ratio)
    if abs(1.0 - ratio) <= tolerance:
        return current
    desired = ceil(ratio * ready)
    return current if (desired < current) == (ratio > 1.0) else desired


class TargetPerUnitRule:
    """Keep `metric / capacity` near a target: queue length per instance, for example."""

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Never more units than the latest value of `cap_metric`: the partitions of an event hub, of which
        one instance each can be at work, say.
        """

        metric: str
        target: LevelSpec
        statistic: StatisticOption = "latest"
        mode: Literal["average_value", "value"] = "average_value"
        tolerance: float = 0.1  # --horizontal-pod-autoscaler-tolerance of kube-controller-manager
        cap_metric: str | None = None

        def problems(self) -> dict[str, str]:
            problems: dict[str, str] = {}
            if not 0 <= self.tolerance < 1:
                problems["tolerance"] = f"found {self.tolerance}; accepted are 0 to below 1"
            try:
                level = compile_level(self.target)
                if any(level(instances) <= 0 for instances in range(1, _COUNTS_CHECKED + 1)):
                    problems["target"] = "the target must be above 0 for every instance count"
            except (ValueError, ArithmeticError) as error:
                problems["target"] = str(error)
            return problems

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._params = params
        self._target = compile_level(params.target)

    def metrics(self) -> tuple[str, ...]:
        params = self._params
        return (params.metric,) if params.cap_metric is None else (params.metric, params.cap_metric)

    @property
    def cap_metric(self) -> str | None:
        """The metric that bounds the answer, but asks for nothing by itself."""
        return self._params.cap_metric

    def levels(self, current: int) -> tuple[LevelLine, ...]:
        """Where the formula, tolerance included, asks for one unit more or less, all units being ready."""
        params, target = self._params, self._target(current)
        if current == 0:  # from zero, anything at all asks for a unit
            return (LevelLine(params.metric, params.statistic, "out", 0.0),)
        out, inward = self._boundaries(current, current, target)
        return (
            LevelLine(params.metric, params.statistic, "out", out),
            LevelLine(params.metric, params.statistic, "in", inward),
        )

    def breakpoints(self, current: int, maximum: int, *, rounded: bool = False) -> tuple[float, ...]:
        """Values of the metric at which the answer changes by a unit, all units being ready.

        Empty where the target is the same at every count: the answer then leads to a count that keeps it, unless it is
        `rounded` to what the platform can be set to.
        """
        if isinstance(self._params.target, float | int) and not rounded:
            return ()
        target = self._target(current)
        units = max(current, 1) if self._params.mode == "value" else 1
        return tuple(target * count / units for count in range(maximum + 1))

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Needs a complete window; scaling in also needs it free of gaps. So for the cap's, where it bounds."""
        cap = self._cap(view)
        verdict = self._uncapped(view)
        if cap is None or verdict.desired is None:
            return verdict
        if cap.problem is not None:
            return Verdict(None, cap.problem)
        if int(cap.latest) < max(verdict.desired, view.current) or int(cap.latest) == view.current:
            return self._capped(view, verdict, cap)
        return verdict

    def _uncapped(self, view: MetricsView) -> Verdict:
        params, current = self._params, view.current
        summary = view.metric(params.metric)
        if summary.problem is not None:
            return Verdict(None, summary.problem)
        value, target = summary.statistic(params.statistic), self._target(current)
        desired = desired_units(
            value, target, current, view.ready, tolerance=params.tolerance, mode=params.mode
        )
        # What one unit more or less would compare with, in the metric's own unit.
        whole = target * current if params.mode == "average_value" else target
        comparator = ">" if desired > current else "<" if desired < current else "~"
        evidence = view.evidence(self._name, params.metric, params.statistic, comparator, whole)
        if desired < current and summary.gap:
            return Verdict(None, Reason.INCOMPLETE_WINDOW, (evidence,), note=GAP)
        flips = self._flips(view, desired, target) if view.wants_flips else ()
        return Verdict(desired, direction_reason(desired, current), (evidence,), flips)

    def _flips(self, view: MetricsView, desired: int, target: float) -> tuple[Flip, ...]:
        """The values of the metric at which the vote changes."""
        current, quantity = view.current, f"{self._params.statistic} {self._params.metric}"
        out, inward = self._boundaries(current, view.ready, target)
        if desired > current:
            return (Flip.at(quantity, "<=", out, Reason.WITHIN_TARGET),)
        if desired < current:
            return (Flip.at(quantity, ">", inward, Reason.WITHIN_TARGET),)
        flips = (
            Flip.at(quantity, ">", out, Reason.SCALE_OUT),
            Flip.at(quantity, "<=", inward, Reason.SCALE_IN),
        )
        return flips if current else flips[:1]

    def _cap(self, view: MetricsView) -> Summary | None:
        name = self._params.cap_metric
        return None if name is None else view.metric(name)

    def _capped(self, view: MetricsView, verdict: Verdict, cap: Summary) -> Verdict:
        """The verdict where the cap is below what is wanted, or at or below what there is."""
        name, current, limit = str(self._params.cap_metric), view.current, int(cap.latest)
        wanted = verdict.desired or 0
        quantity = f"latest {name}"
        evidence = verdict.evidence
        if wanted > limit:
            evidence = (*evidence, view.evidence(self._name, name, "latest", "<", float(wanted)))
        if limit > current:
            return Verdict(limit, Reason.SCALE_OUT, evidence, verdict.flips)
        more = Flip.at(quantity, ">=", float(current + 1), Reason.SCALE_OUT)
        if limit == current and wanted > current:
            return Verdict(current, Reason.AT_CAP, evidence, (more, *verdict.flips))
        if limit == current:  # only what would scale out is another outcome now
            reasons = (
                structs.replace(flip, outcome=Reason.AT_CAP) if flip.outcome is Reason.SCALE_OUT else flip
                for flip in verdict.flips
            )
            return structs.replace(verdict, flips=tuple(reasons))
        if cap.gap:
            return Verdict(None, Reason.INCOMPLETE_WINDOW, evidence, note=GAP)
        outcome = Reason.AT_CAP if wanted > current else Reason.WITHIN_TARGET
        enough = Flip.at(quantity, ">=", float(current), outcome)
        flips = verdict.flips if wanted < current else ()
        return Verdict(min(wanted, limit), Reason.SCALE_IN, evidence, (*flips, enough))

    def _boundaries(self, current: int, ready: int, target: float) -> tuple[float, float]:
        params = self._params
        return _boundaries(current, ready, target, params.tolerance, params.mode)


@lru_cache(maxsize=1024)  # a target stands at few capacities, and is decided upon every minute
def _boundaries(current: int, ready: int, target: float, tolerance: float, mode: str) -> tuple[float, float]:
    """The largest values of the metric that do not scale out, and that scale in: the ends of keeping.

    Computed from the formula's inverse, then moved by the last bits until the formula itself agrees.
    """
    high, low = 1 + tolerance, 1 - tolerance
    if mode == "average_value":
        out = target * current * high
        inward = min(target * (current - 1), target * current * low)
    else:
        units = max(ready, 1)
        out = max(target * high, target * current / units)
        inward = min(target * (current - 1) / units, target * low)

    def desired(value: float) -> int:
        return desired_units(value, target, current, ready, tolerance=tolerance, mode=mode)

    return (
        _last(out, lambda value: desired(value) <= current),
        _last(inward, lambda value: desired(value) < current),
    )


def _last(near: float, holds: Callable[[float], bool]) -> float:
    """The largest float within rounding of `near` for which `holds`, which is true below and false above it;
    the smallest one where it holds for none.
    """
    if near <= 0:
        return near
    around = [near]
    for _ in range(_ROUNDING_STEPS):
        around = [nextafter(around[0], -inf), *around, nextafter(around[-1], inf)]
    return around[max(bisect_left(around, 1, key=lambda value: not holds(value)) - 1, 0)]
