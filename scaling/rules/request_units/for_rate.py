"""Throughput from what the consumers write: consumers x records per second x RU per record x headroom. Pure.

For example 4 x 1,000 x 6 = 24,000 RU/s. The other half of the lock step is `within_request_units`: request units
are raised before consumers are added, and lowered after they are gone (docs/adr/0007).
"""

from __future__ import annotations

from math import ceil
from typing import Annotated

from msgspec import Meta, Struct

from scaling.flip import Condition, Conditions, Flip
from scaling.model import Evidence, Reason, Verdict
from scaling.rules.request_units.sizing import DemandParams, Source, Unit, UnknownError, known
from scaling.rules.view import GAP, MetricsView


class RequestUnitsForRateRule:
    """Keeps the throughput at what all consumers need, those still to come included.

    It raises as soon as more is needed, and lowers only past `tolerance`, so that a charge that wavers does
    not make it flap. While records are throttled it raises by `throttled_raise` of what there is, and
    does not lower before a whole window without throttling has passed.
    """

    class Params(DemandParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`consumers`: a number, a metric, or several metrics of which the highest counts."""

        consumers: Source | tuple[str, ...]
        tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.1  # as the HPA's
        step: Annotated[int, Meta(ge=1)] = 100  # of manual throughput; autoscale has 1,000
        throttled_share: str | None = None
        throttled_above: Annotated[float, Meta(ge=0, le=1)] = 0.01
        throttled_raise: Annotated[float, Meta(gt=0, le=10)] = 0.2

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._params = params
        consumers = params.consumers
        self._names: tuple[str, ...] = ()  # the metrics that count consumers; none for a fixed number
        if not isinstance(consumers, float):
            self._names = (consumers,) if isinstance(consumers, str) else consumers

    def metrics(self) -> tuple[str, ...]:
        share = () if self._params.throttled_share is None else (self._params.throttled_share,)
        return (*self._names, *self._params.metrics(), *share)

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Needs every metric it names, but for the charge where there is a first one; lowering also needs
        them free of gaps.
        """
        try:
            load = self._load(view)
            throttling = self._throttling(view)
        except UnknownError as error:
            return Verdict(None, error.reason, note=str(error))
        judged = self._relieved if throttling.now else self._sized
        return judged(view, load, throttling)

    def objection(self, view: MetricsView, capacity: int) -> str | None:
        """Why the throughput must not be lowered to `capacity` now; None when it may, or is not lowered."""
        if capacity >= view.current:
            return None
        try:
            load = self._load(view)
        except UnknownError as error:
            return str(error)
        return None if load.needed <= capacity else f"{load.text} are needed still"

    def _sized(self, view: MetricsView, load: _Load, throttling: _Throttling) -> Verdict:
        current, step, limit = view.current, self._params.step, view.current / load.unit.request_units
        desired, lowest = self._rounded(load.needed), current * (1 - self._params.tolerance)
        enough = (ceil(lowest / step) - 1) * step / load.unit.request_units
        if load.needed > current:
            flips = tuple(Flip(Reason.WITHIN_TARGET, c) for c in (self._all("<=", limit),) if c)
            evidence = self._evidence(view, ">", limit, load)
            return Verdict(desired, Reason.SCALE_OUT, evidence, flips, note=load.text)
        if desired < lowest and not throttling.lately:
            evidence = self._evidence(view, "<", limit, load)
            if load.gap or throttling.gap:
                return Verdict(None, Reason.INCOMPLETE_WINDOW, evidence, note=GAP)
            flips = tuple(Flip(Reason.WITHIN_TARGET, (c,)) for c in self._all(">", enough))
            return Verdict(desired, Reason.SCALE_IN, evidence, flips, note=load.text)
        flips = self._stay_flips(throttling, limit, enough)
        evidence = self._evidence(view, "~", limit, load)
        return Verdict(current, Reason.WITHIN_TARGET, evidence, flips, note=load.text)

    def _relieved(self, view: MetricsView, load: _Load, throttling: _Throttling) -> Verdict:
        """More than there is, whatever the sizing says: the records themselves are refused."""
        params, current = self._params, view.current
        raised = ceil(current * (1 + params.throttled_raise))
        desired = max(self._rounded(raised), self._rounded(load.needed))
        conditions = [Condition(f"latest {params.throttled_share}", "<=", params.throttled_above)]
        if load.needed > current:
            conditions += self._all("<=", current / load.unit.request_units)
        flips = (Flip(Reason.WITHIN_TARGET, tuple(conditions)),)
        evidence = (*throttling.evidence, *load.unit.evidence)
        return Verdict(desired, Reason.SCALE_OUT, evidence, flips, note=f"throttled, though {load.text}")

    def _rounded(self, request_units: int) -> int:
        return ceil(request_units / self._params.step) * self._params.step

    def _evidence(
        self, view: MetricsView, comparator: str, limit: float, load: _Load
    ) -> tuple[Evidence, ...]:
        counted = (view.evidence(self._name, name, "latest", comparator, limit) for name in self._names)
        return (*counted, *load.unit.evidence)

    def _stay_flips(self, throttling: _Throttling, limit: float, enough: float) -> tuple[Flip, ...]:
        """What would raise, of which the highest metric of consumers counts alone; and what together would lower."""
        params = self._params
        more = [Flip(Reason.SCALE_OUT, (condition,)) for condition in self._all(">", limit)]
        less = list(self._all("<=", enough))
        if params.throttled_share is not None:
            more.append(
                Flip.at(f"latest {params.throttled_share}", ">", params.throttled_above, Reason.SCALE_OUT)
            )
            if throttling.lately:
                less.append(Condition(f"maximum {params.throttled_share}", "<=", params.throttled_above))
        return (*more, Flip(Reason.SCALE_IN, tuple(less))) if less else tuple(more)

    def _all(self, comparator: str, limit: float) -> Conditions:
        """What the metrics of consumers would have to be."""
        return tuple(Condition(f"latest {name}", comparator, limit) for name in self._names)

    def _load(self, view: MetricsView) -> _Load:
        """What a consumer needs, and how many there are to serve: the highest of the metrics, each as it is now."""
        unit = self._params.of(view, self._name)
        if isinstance(self._params.consumers, float):
            return _Load(unit, self._params.consumers, unit.gap)
        seen = [known(view, name) for name in self._names]
        gap = unit.gap or any(summary.gap for summary in seen)
        return _Load(unit, max(summary.latest for summary in seen), gap)

    def _throttling(self, view: MetricsView) -> _Throttling:
        name, above = self._params.throttled_share, self._params.throttled_above
        if name is None:
            return _Throttling()
        summary = known(view, name)
        evidence = view.evidence(self._name, name, "latest", ">", above)
        return _Throttling(summary.latest > above, summary.maximum > above, summary.gap, (evidence,))


class _Load(Struct, frozen=True):
    """The consumers to serve, with what one of them needs; `gap` in any metric of either."""

    unit: Unit
    consumers: float
    gap: bool

    @property
    def needed(self) -> int:
        return self.unit.needed(self.consumers)

    @property
    def text(self) -> str:
        return f"{self.consumers:g} x {self.unit.text} = {self.needed} RU/s"


class _Throttling(Struct, frozen=True):
    """Whether records are throttled now, and whether any sample of the window was."""

    now: bool = False
    lately: bool = False
    gap: bool = False
    evidence: tuple[Evidence, ...] = ()
