"""What the HTTP API shows of the scaling log: its pages, as typed JSON. Pure.

A number that is not known is null, never NaN.
"""

from __future__ import annotations

from math import isfinite

import msgspec
from msgspec import Struct, structs

from scaling.decision import explain
from scaling.log_entry import LogEntry
from scaling.model import Evidence, Recommendation
from scaling.ports import LogPage


class EvidenceView(Evidence, frozen=True):
    """The numbers of a rule, with the same in words."""

    text: str = ""


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
    decision_id: str | None = None
    proposed: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    evidence: tuple[EvidenceView, ...] = ()
    flips: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    effect: EffectView | None = None


class LogView(Struct, frozen=True):
    """Newest first; `continuation` is null at the end."""

    entries: tuple[EntryView, ...]
    continuation: str | None


def log_view(page: LogPage) -> LogView:
    """A page of the log as JSON."""
    return LogView(tuple(_entry(entry) for entry in page.entries), page.continuation)


def _entry(entry: LogEntry) -> EntryView:
    decided, effect = entry.recommendation, entry.effect
    shown = structs.replace(
        msgspec.convert(entry, EntryView, from_attributes=True),
        metrics={name: value for name, value in entry.metrics.items() if isfinite(value)},
        decision_id=decided.decision_id if decided else effect.action_id if effect else None,
    )
    if decided is None:
        return shown
    return structs.replace(
        shown,
        proposed=decided.proposed,
        minimum=decided.minimum,
        maximum=decided.maximum,
        evidence=tuple(
            EvidenceView(**structs.asdict(e), text=explain.evidence_text(e)) for e in decided.evidence
        ),
        flips=flips_of(decided),
        limits=limits_of(decided),
    )


def flips_of(decided: Recommendation | None) -> tuple[str, ...]:
    return tuple(explain.flip_text(flip) for flip in decided.flips) if decided else ()


def limits_of(decided: Recommendation | None) -> tuple[str, ...]:
    return tuple(explain.limit_text(limit) for limit in decided.limits) if decided else ()


def finite(value: float) -> float | None:
    return value if isfinite(value) else None
