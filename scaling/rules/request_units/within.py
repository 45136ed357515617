"""No more consumers than the throughput that is there suffices for. Pure.

The other half of the lock step is `request_units_for_rate`, which raises the throughput for the consumers that
are wanted; when it is there, they may come (docs/adr/0007).
"""

from __future__ import annotations

from scaling.flip import Flip
from scaling.model import Reason, Verdict
from scaling.rules.request_units.sizing import DemandParams, UnknownError, known
from scaling.rules.view import LevelLine, MetricsView


class WithinRequestUnitsRule:
    """Bounds scaling out; never asks for a change itself, and never for less than there is."""

    class Params(DemandParams, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`request_units`: the metric of what is reached, RU/s. The rest as in `request_units_for_rate`."""

        request_units: str

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._params = params

    def metrics(self) -> tuple[str, ...]:
        return (self._params.request_units, *self._params.metrics())

    def levels(self, current: int) -> tuple[LevelLine, ...]:  # see below
        """None: what it bounds by depends on a charge that is measured."""
        return ()

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Unknown is not enough: with any of its metrics missing, nothing is added."""
        name = self._params.request_units
        try:
            unit, there = self._params.of(view, self._name), known(view, name).latest
        except UnknownError as error:
            return Verdict(None, Reason.LOCK_STEP, out_ceiling=view.current, note=str(error))
        more = float(unit.needed(view.current + 1))
        evidence = view.evidence(self._name, name, "latest", "<" if there < more else ">=", more)
        flips = (Flip.at(f"latest {name}", ">=", more, Reason.SCALE_OUT),) if there < more else ()
        allowed = max(unit.affordable(there), view.current)
        return Verdict(None, Reason.LOCK_STEP, (evidence,), flips, out_ceiling=allowed)

    def objection(self, view: MetricsView, capacity: int) -> str | None:
        """Why consumers must not be added up to `capacity` now; None when they may, or none is added."""
        if capacity <= view.current:
            return None
        try:
            unit, there = self._params.of(view, self._name), known(view, self._params.request_units).latest
        except UnknownError as error:
            return str(error)
        if capacity <= unit.affordable(there):
            return None
        return f"{capacity} x {unit.text} = {unit.needed(capacity)} RU/s are needed, {there:g} are there"
