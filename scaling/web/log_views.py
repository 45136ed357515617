"""What the HTTP API shows of the scaling log: its pages, as typed JSON. Pure.

A number that is not known is null, never NaN.
"""

from __future__ import annotations

from math import isfinite

from msgspec import Struct

from scaling.decision import explain
from scaling.log_entry import LogEntry
from scaling.model import Evidence, Recommendation
from scaling.ports import LogPage


class EvidenceView(Struct, frozen=True):
    text: str
    rule: str
    metric: str
    statistic: str
    value: float | None
    comparator: str
    threshold: float | None
    span: float
    samples: int


class EffectView(Struct, frozen=True):
    outcome: str
    reached: int | None
    detail: str


class EntryView(Struct, frozen=True):
    """One row of the scaling log. (`target`, `at`, `kind`, `key`) identify it; a row seen again replaces."""

    target: str
    at: float
    kind: str
    key: str
    line: str
    reason: str
    current: int | None
    desired: int | None
    by: str | None
    metrics: dict[str, float]
    decision_id: str | None
    proposed: int | None
    minimum: int | None
    maximum: int | None
    evidence: tuple[EvidenceView, ...]
    flips: tuple[str, ...]
    limits: tuple[str, ...]
    effect: EffectView | None


class LogView(Struct, frozen=True):
    """Newest first; `continuation` is null at the end."""

    entries: tuple[EntryView, ...]
    continuation: str | None


def log_view(page: LogPage) -> LogView:
    """A page of the log as JSON."""
    return LogView(tuple(_entry(entry) for entry in page.entries), page.continuation)


def _entry(entry: LogEntry) -> EntryView:
    decided, effect = entry.recommendation, entry.effect
    return EntryView(
        target=entry.target,
        at=entry.at,
        kind=entry.kind,
        key=entry.key,
        line=entry.line,
        reason=entry.reason,
        current=entry.current,
        desired=entry.desired,
        by=entry.by,
        metrics={name: value for name, value in entry.metrics.items() if isfinite(value)},
        decision_id=decided.decision_id if decided else effect.action_id if effect else None,
        proposed=decided.proposed if decided else None,
        minimum=decided.minimum if decided else None,
        maximum=decided.maximum if decided else None,
        evidence=tuple(_evidence(e) for e in decided.evidence) if decided else (),
        flips=flips_of(decided),
        limits=limits_of(decided),
        effect=EffectView(effect.outcome, effect.reached, effect.detail) if effect else None,
    )


def _evidence(evidence: Evidence) -> EvidenceView:
    return EvidenceView(
        explain.evidence_text(evidence),
        evidence.rule,
        evidence.metric,
        evidence.statistic,
        finite(evidence.value),
        evidence.comparator,
        finite(evidence.threshold),
        evidence.span,
        evidence.samples,
    )


def flips_of(decided: Recommendation | None) -> tuple[str, ...]:
    return tuple(explain.flip_text(flip) for flip in decided.flips) if decided else ()


def limits_of(decided: Recommendation | None) -> tuple[str, ...]:
    return tuple(explain.limit_text(limit) for limit in decided.limits) if decided else ()


def finite(value: float) -> float | None:
    return value if isfinite(value) else None
