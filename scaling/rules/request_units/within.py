"""No more consumers than the throughput that is there suffices for. Pure.

The other half of the lock step is `request_units_for_rate`, which raises the throughput for the consumers that
are wanted; when it is there, they may come (docs/adr/0007).
"""

from __future__ import annotations

from scaling.model import Evidence, Flip, Reason, Verdict
from scaling.rules.request_units.sizing import DemandParams, Unknown
from scaling.rules.view import LevelLine, MetricsView


class WithinRequestUnitsRule:
    """Bounds scaling out; never asks for a change itself, and never for less than there is."""

    class Params(DemandParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`request_units`: the metric of what is reached, RU/s. The rest as in `request_units_for_rate`."""

        request_units: str

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._metric = params.request_units
        self._demand = params

    def metrics(self) -> tuple[str, ...]:
        return (self._metric, *self._demand.metrics())

    def levels(self, current: int) -> tuple[LevelLine, ...]:  # noqa: ARG002 - see below
        """None: what it bounds by depends on a charge that is measured."""
        return ()

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Unknown is not enough: with any of its metrics missing, nothing is added."""
        unit, summary = self._demand.of(view, self._name), view.metric(self._metric)
        if isinstance(unit, Unknown) or summary.problem is not None:
            missing = unit.metric if isinstance(unit, Unknown) else self._metric
            return Verdict(None, Reason.LOCK_STEP, out_ceiling=view.current, note=f"{missing} is not known")
        there, more = summary.latest, unit.needed(view.current + 1)
        name, sign, span = self._metric, "<" if there < more else ">=", view.span(self._metric)
        evidence = Evidence(self._name, name, "latest", there, sign, float(more), span, summary.count)
        flips = (Flip(f"latest {self._metric}", ">=", float(more), Reason.SCALE_OUT),) if there < more else ()
        return Verdict(
            None, Reason.LOCK_STEP, (evidence,), flips, out_ceiling=max(unit.affordable(there), view.current)
        )

    def objection(self, view: MetricsView, capacity: int) -> str | None:
        """Why consumers must not be added up to `capacity` now; None when they may, or none is added."""
        if capacity <= view.current:
            return None
        unit, summary = self._demand.of(view, self._name), view.metric(self._metric)
        if isinstance(unit, Unknown) or summary.problem is not None:
            return f"{unit.metric if isinstance(unit, Unknown) else self._metric} is not known"
        if capacity <= unit.affordable(summary.latest):
            return None
        return f"{capacity} x {unit.text} = {unit.needed(capacity)} RU/s are needed, {summary.latest:g} are there"
