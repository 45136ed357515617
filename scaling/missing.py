"""What is missing from a target's metrics, and what would end that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from scaling.model import Flip, Reason
from scaling.rules.view import MetricsView
from scaling.window import COVERAGE_SLACK, Summary, WindowSpec


def first_missing(view: MetricsView) -> tuple[str, Reason] | None:
    """The first metric that is not whole, with the reason; a gap is an incomplete window.

    Not only what the rules read: nothing is scaled in while anything configured to be watched is unknown.
    """
    for name, summary in view.metrics().items():
        if summary.problem is not None:
            return name, summary.problem
        if summary.gap:
            return name, Reason.INCOMPLETE_WINDOW
    return None


def missing_flips(
    view: MetricsView, specs: Mapping[str, WindowSpec], outcome: Reason, *, gaps: bool
) -> tuple[Flip, ...]:
    """What every metric that is not whole still needs; together they change the outcome.

    A gap counts only where it forbids something (`gaps`). With no metric to blame, a rule failed.
    """
    found: list[Flip] = []
    for name, spec in specs.items():
        summary = view.metric(name)
        if summary.problem is not None or (gaps and summary.gap):
            found.append(_flip(name, summary, spec, outcome))
    return tuple(found) or (Flip("failures", "==", 0.0, outcome),)


def _flip(name: str, summary: Summary, spec: WindowSpec, outcome: Reason) -> Flip:
    if summary.problem is Reason.STALE_METRIC:
        return Flip(f"age {name}", "<=", spec.stale_after, outcome)
    if summary.problem not in {None, Reason.INCOMPLETE_WINDOW}:
        return Flip(f"failures {name}", "==", 0.0, outcome)
    if summary.gap and summary.count:
        whole = max(ceil(spec.span / spec.interval), spec.min_samples)
        return Flip(f"samples {name}", ">=", float(whole), outcome)
    if summary.count < spec.min_samples:
        return Flip(f"samples {name}", ">=", float(spec.min_samples), outcome)
    return Flip(f"span {name}", ">=", spec.span - COVERAGE_SLACK * spec.interval, outcome)
