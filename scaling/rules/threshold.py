"""The rule the product came from: average above one threshold scales out, maximum below another in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from scaling.flip import Condition, Flip
from scaling.model import Evidence, Reason, Statistic, Verdict
from scaling.rules.level import LevelSpec, compile_level, level_problems, step_problems
from scaling.rules.view import GAP, LevelLine, MetricsView, StatisticOption
from scaling.window import Summary

# Named here because looking a member up in its enum is slow before Python 3.12, and this is the hot path.
_OUT, _IN, _STAY = Reason.SCALE_OUT, Reason.SCALE_IN, Reason.WITHIN_TARGET

_COMBINED: dict[str, Callable[[list[float]], float]] = {"sum": sum, "maximum": max, "minimum": min}


def _highest(readings: Sequence[tuple[str, Summary]], statistic: str) -> tuple[str, Summary, float]:
    """The reading with the highest value, the first of equals; with that value."""
    metric, summary = readings[0]
    value = summary.statistic(statistic)
    if len(readings) == 1:
        return metric, summary, value
    for other, reading in readings[1:]:
        if (observed := reading.statistic(statistic)) > value:
            metric, summary, value = other, reading, observed
    return metric, summary, value


class ThresholdRule:
    """Scale out while a statistic of the window is above a threshold, in while one is below another.

    Several metrics combine as `each` (any above: out; all below: in) or as their `sum`, `maximum` or
    `minimum`. The sum of the windows' maxima is at least the maximum of their sum, so a scale-in by `sum`
    is never early. Thresholds may depend on the instance count (`scaling.rules.level`).
    """

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Defaults are the rule of the first article (Shilkov 2017): average out, maximum in, steps of 1."""

        metric: str | None = None
        metrics: tuple[str, ...] = ()
        combine: Literal["each", "sum", "maximum", "minimum"] = "each"
        scale_out_above: LevelSpec | None = None
        scale_in_below: LevelSpec | None = None
        out_statistic: StatisticOption = "average"
        in_statistic: StatisticOption = "maximum"
        step: int = 1
        step_out: int | None = None
        step_in: int | None = None

        def problems(self) -> dict[str, str]:
            problems = step_problems(step=self.step, step_out=self.step_out, step_in=self.step_in)
            if (self.metric is None) == (not self.metrics):
                problems["metric"] = "name one metric, or several in 'metrics'"
            if self.scale_out_above is None and self.scale_in_below is None:
                problems["scale_out_above"] = "give 'scale_out_above', 'scale_in_below' or both"
            levels = {"scale_out_above": self.scale_out_above, "scale_in_below": self.scale_in_below}
            return {**problems, **level_problems(levels)}

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._params = params
        self._metrics = params.metrics or ((params.metric,) if params.metric else ())
        self._above = compile_level(params.scale_out_above) if params.scale_out_above is not None else None
        self._below = compile_level(params.scale_in_below) if params.scale_in_below is not None else None
        self._step_out = params.step_out or params.step
        self._step_in = params.step_in or params.step

    def metrics(self) -> tuple[str, ...]:
        return self._metrics

    def levels(self, current: int) -> tuple[LevelLine, ...]:
        """Both thresholds at an instance count, for every metric or for their combination."""
        params, names = self._params, self._metrics
        if params.combine != "each" and len(names) > 1:
            names = (self._combined_name(),)
        lines: list[LevelLine] = []
        if self._above is not None:
            above = self._above(current)
            lines.extend(LevelLine(name, params.out_statistic, "out", above) for name in names)
        if self._below is not None:
            below = self._below(current)
            lines.extend(LevelLine(name, params.in_statistic, "in", below) for name in names)
        return tuple(lines)

    def _combined_name(self) -> str:
        return f"{self._params.combine}({', '.join(self._metrics)})"

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Out needs complete windows; in also needs them free of gaps. Out is tested first."""
        names = self._metrics
        readings = [(name, view.metric(name)) for name in names]
        if len(names) == 1:
            span = view.span(names[0])
        else:
            span = max(view.span(name) for name in names)
            if self._params.combine != "each":
                readings = [self._combined(readings)]
        if self._above is not None:
            verdict = self._out(view, readings, self._above(view.current), span)
            if verdict is not None:
                return verdict
        for metric, summary in readings:
            if summary.problem is not None:
                return self._held(view, metric, summary, span)
        return self._in_or_stay(view, readings, span)

    def _combined(self, readings: Sequence[tuple[str, Summary]]) -> tuple[str, Summary]:
        fold = _COMBINED[self._params.combine]
        summaries = [summary for _, summary in readings]
        values = {
            statistic: float(fold([summary.statistic(statistic) for summary in summaries]))
            for statistic in Statistic
        }
        summary = Summary(
            count=min(s.count for s in summaries),
            covered=min(s.covered for s in summaries),
            age=max(s.age for s in summaries),
            gap=any(s.gap for s in summaries),
            missing=max(s.missing for s in summaries),
            problem=next((s.problem for s in summaries if s.problem is not None), None),
            lacking=next((s.lacking for s in summaries if s.lacking is not None), None),
            **values,
        )
        return self._combined_name(), summary

    def _out(
        self, view: MetricsView, readings: Sequence[tuple[str, Summary]], above: float, span: float
    ) -> Verdict | None:
        statistic = self._params.out_statistic
        for metric, summary in readings:  # a loop, for this is the hot path and mostly finds nothing
            value = summary.statistic(statistic)
            if value > above and summary.problem is None:
                evidence = Evidence(self._name, metric, statistic, value, ">", above, span, summary.count)
                flips = self._back(readings, above) if view.wants_flips else ()
                return Verdict(view.current + self._step_out, _OUT, (evidence,), flips)
        return None

    def _back(self, readings: Sequence[tuple[str, Summary]], above: float) -> tuple[Flip]:
        statistic = self._params.out_statistic
        high = (
            n for n, summary in readings if summary.statistic(statistic) > above and summary.problem is None
        )
        return (Flip(_STAY, tuple(Condition(f"{statistic} {name}", "<=", above) for name in high)),)

    def _held(self, view: MetricsView, metric: str, summary: Summary, span: float) -> Verdict:
        assert summary.problem is not None  # the caller's condition, restated for the type checker
        threshold = self._above(view.current) if self._above is not None else 0.0
        statistic = self._params.out_statistic
        evidence = Evidence(
            self._name, metric, statistic, summary.statistic(statistic), "?", threshold, span, summary.count
        )
        return Verdict(None, summary.problem, (evidence,) if summary.count else ())

    def _in_or_stay(self, view: MetricsView, readings: Sequence[tuple[str, Summary]], span: float) -> Verdict:
        current, statistic = view.current, self._params.in_statistic
        below = self._below(current) if self._below is not None and current > 0 else None
        if below is not None:
            metric, summary, value = _highest(readings, statistic)
            if value < below:
                evidence = Evidence(self._name, metric, statistic, value, "<", below, span, summary.count)
                if any(reading.gap for _, reading in readings):
                    return Verdict(None, Reason.INCOMPLETE_WINDOW, (evidence,), note=GAP)
                kept = tuple(Flip.at(f"{statistic} {name}", ">=", below, _STAY) for name, _ in readings)
                return Verdict(max(current - self._step_in, 0), _IN, (evidence,), kept)
        above = self._above(current) if self._above is not None else None
        flips = self._ways(readings, above, below) if view.wants_flips else ()
        if above is None:
            return Verdict(current, _STAY, (), flips)
        metric, summary, value = _highest(readings, self._params.out_statistic)
        evidence = Evidence(
            self._name, metric, self._params.out_statistic, value, "<=", above, span, summary.count
        )
        return Verdict(current, _STAY, (evidence,), flips)

    def _ways(
        self, readings: Sequence[tuple[str, Summary]], above: float | None, below: float | None
    ) -> tuple[Flip, ...]:
        """The flips of a vote to stay: any metric above, or all below."""
        flips: list[Flip] = []
        if above is not None:
            statistic = self._params.out_statistic
            flips += (Flip.at(f"{statistic} {name}", ">", above, _OUT) for name, _ in readings)
        if below is not None:
            statistic = self._params.in_statistic
            high = (name for name, reading in readings if not reading.statistic(statistic) < below)
            flips.append(Flip(_IN, tuple(Condition(f"{statistic} {name}", "<", below) for name in high)))
        return tuple(flips)
