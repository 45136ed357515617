"""Throughput from what the consumers write: consumers x records per second x RU per record x headroom. Pure.

For example 4 x 1,000 x 6 = 24,000 RU/s. The other half of the lock step is `within_request_units`: request units
are raised before consumers are added, and lowered after they are gone (docs/adr/0007).
"""

from __future__ import annotations

from math import ceil
from typing import Annotated

from msgspec import Meta, Struct

from scaling.model import Evidence, Flip, Reason, Verdict
from scaling.rules.request_units.sizing import DemandParams, Unit, Unknown
from scaling.rules.view import GAP, MetricsView


class RequestUnitsForRateRule:
    """Keeps the throughput at what all consumers need, those still to come included.

    It raises as soon as more is needed, and lowers only past `tolerance`, so that a charge that wavers does
    not make it flap. While records are throttled it raises by `throttled_raise` of what there is, and
    does not lower before a whole window without throttling has passed.
    """

    class Params(DemandParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`consumers`: a number, a metric, or several metrics of which the highest counts."""

        consumers: float | str | tuple[str, ...]
        tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.1  # as the HPA's
        step: Annotated[int, Meta(ge=1)] = 100  # of manual throughput; autoscale has 1,000
        throttled_share: str | None = None
        throttled_above: Annotated[float, Meta(ge=0, le=1)] = 0.01
        throttled_raise: Annotated[float, Meta(gt=0, le=10)] = 0.2

        def problems(self) -> dict[str, str]:
            """Cross-field errors by option name."""
            found = DemandParams.problems(self)
            if isinstance(self.consumers, float | int) and self.consumers <= 0:
                found["consumers"] = f"found {self.consumers:g}; a number above 0, or metrics, are accepted"
            if self.consumers in ("", ()):
                found["consumers"] = "is empty; a number above 0, or metrics, are accepted"
            return found

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._params = params
        self._demand = params
        consumers = params.consumers
        self._counted = (consumers,) if isinstance(consumers, str) else consumers

    def metrics(self) -> tuple[str, ...]:
        counted = self._counted if isinstance(self._counted, tuple) else ()
        share = () if self._params.throttled_share is None else (self._params.throttled_share,)
        return (*counted, *self._demand.metrics(), *share)

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Needs every metric it names, but for the charge where there is a first one; lowering also needs
        them free of gaps.
        """
        unit = self._demand.of(view, self._name)
        counted = self._count(view)
        throttling = self._throttling(view)
        for part in (unit, counted, throttling):
            if isinstance(part, Unknown):
                return Verdict(None, part.reason, note=f"{part.metric} is not known")
        assert isinstance(unit, Unit) and isinstance(counted, _Count)  # noqa: S101, PT018 - or returned above
        assert isinstance(throttling, _Throttling)  # noqa: S101 - as above
        if throttling.now:
            return self._relieved(view.current, unit, counted, throttling)
        return self._sized(view.current, unit, counted, throttling)

    def objection(self, view: MetricsView, capacity: int) -> str | None:
        """Why the throughput must not be lowered to `capacity` now; None when it may, or is not lowered."""
        if capacity >= view.current:
            return None
        unit, counted = self._demand.of(view, self._name), self._count(view)
        if isinstance(unit, Unknown) or isinstance(counted, Unknown):
            missing = unit if isinstance(unit, Unknown) else counted
            return f"{missing.metric} is not known" if isinstance(missing, Unknown) else None
        needed = unit.needed(counted.value)
        return (
            None
            if needed <= capacity
            else f"{counted.value:g} x {unit.text} = {needed} RU/s are needed still"
        )

    def _sized(self, current: int, unit: Unit, counted: _Count, throttling: _Throttling) -> Verdict:
        needed = unit.needed(counted.value)
        desired, lowest = self._rounded(needed), current * (1 - self._params.tolerance)
        note = f"{counted.value:g} x {unit.text} = {needed} RU/s"
        limit = current / unit.request_units
        if needed > current:
            evidence = (*counted.evidence(self._name, ">", limit), *unit.evidence)
            flips = counted.flips("<=", limit, Reason.WITHIN_TARGET)
            return Verdict(desired, Reason.SCALE_OUT, evidence, flips, note=note)
        if desired < lowest and not throttling.lately:
            evidence = (*counted.evidence(self._name, "<", limit), *unit.evidence)
            if unit.gap or counted.gap or throttling.gap:
                return Verdict(None, Reason.INCOMPLETE_WINDOW, evidence, note=GAP)
            step = self._params.step
            enough = (ceil(lowest / step) - 1) * step / unit.request_units
            flips = counted.flips(">", enough, Reason.WITHIN_TARGET)
            return Verdict(desired, Reason.SCALE_IN, evidence, flips, note=note)
        evidence = (*counted.evidence(self._name, "~", limit), *unit.evidence)
        flips = counted.flips(">", limit, Reason.SCALE_OUT)
        return Verdict(current, Reason.WITHIN_TARGET, evidence, flips, note=note)

    def _relieved(self, current: int, unit: Unit, counted: _Count, throttling: _Throttling) -> Verdict:
        """More than there is, whatever the sizing says: the records themselves are refused."""
        params, needed = self._params, unit.needed(counted.value)
        raised = ceil(current * (1 + params.throttled_raise))
        desired = max(self._rounded(raised), self._rounded(needed))
        share = f"latest {params.throttled_share}"
        flips = [Flip(share, "<=", params.throttled_above, Reason.WITHIN_TARGET)]
        if needed > current:
            flips += counted.flips("<=", current / unit.request_units, Reason.WITHIN_TARGET)
        note = f"throttled, though {counted.value:g} x {unit.text} = {needed} RU/s"
        evidence = (*throttling.evidence, *unit.evidence)
        return Verdict(desired, Reason.SCALE_OUT, evidence, tuple(flips), note=note)

    def _rounded(self, request_units: int) -> int:
        return ceil(request_units / self._params.step) * self._params.step

    def _count(self, view: MetricsView) -> _Count | Unknown:
        """How many consumers to serve: the highest of the metrics, each as it is now."""
        if not isinstance(self._counted, tuple):
            return _Count(float(self._counted), gap=False, readings=())
        readings = []
        for name in self._counted:
            summary = view.metric(name)
            if summary.problem is not None:
                return Unknown(name, summary.problem)
            readings.append(_Reading(name, summary.latest, view.span(name), summary.count))
        gap = any(view.metric(name).gap for name in self._counted)
        return _Count(max(reading.value for reading in readings), gap, tuple(readings))

    def _throttling(self, view: MetricsView) -> _Throttling | Unknown:
        name, above = self._params.throttled_share, self._params.throttled_above
        if name is None:
            return _Throttling(now=False, lately=False, gap=False, evidence=())
        summary = view.metric(name)
        if summary.problem is not None:
            return Unknown(name, summary.problem)
        share = summary.latest
        evidence = Evidence(self._name, name, "latest", share, ">", above, view.span(name), summary.count)
        return _Throttling(share > above, summary.maximum > above, summary.gap, (evidence,))


class _Reading(Struct, frozen=True):
    metric: str
    value: float
    span: float
    samples: int


class _Count(Struct, frozen=True):
    """Consumers to serve, and the metrics that say so (none for a fixed number)."""

    value: float
    gap: bool
    readings: tuple[_Reading, ...]

    def evidence(self, rule: str, comparator: str, limit: float) -> tuple[Evidence, ...]:
        return tuple(
            Evidence(rule, one.metric, "latest", one.value, comparator, limit, one.span, one.samples)
            for one in self.readings
        )

    def flips(self, comparator: str, limit: float, outcome: Reason) -> tuple[Flip, ...]:
        """What all of them together would have to be."""
        return tuple(Flip(f"latest {one.metric}", comparator, limit, outcome) for one in self.readings)


class _Throttling(Struct, frozen=True):
    """Whether records are throttled now, and whether any sample of the window was."""

    now: bool
    lately: bool
    gap: bool
    evidence: tuple[Evidence, ...]
