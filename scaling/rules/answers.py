"""What a rule of the user's own may answer: what can be stored, sent and shown, whatever its code makes of it. Pure."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite

import msgspec
from msgspec import structs

from scaling.model import Verdict
from tidemark.foundation.sanitize import sanitize_line

MOST = 1_000_000_000
"""No capacity is larger: the columns of tables hold 32 bits, and no kind of target has as many units."""

TEXT_CHARS = 500
"""Characters kept of a rule's note or sentence; of the names in its numbers, 200. Chosen: they fit
into a log line and a row beside everything else.
"""

NUMBERS_KEPT = 32
"""Pieces of evidence, and flips, kept of one verdict: the rules of this package give four at most. Chosen: eight
times that.
"""

_OURS = "scaling.rules."


def fault_of(verdict: object) -> str | None:
    """What makes a verdict unusable, or None. Numbers that are not finite could not be stored."""
    if not isinstance(verdict, Verdict):
        return f"returned {_short(verdict)}, not a Verdict"
    for value in (verdict.desired, verdict.floor, verdict.ceiling, verdict.out_ceiling):
        if value is not None and (type(value) is not int or value < 0):
            return f"{_short(value)} (desired, floor or a ceiling) is not a whole number of 0 or more"
    for evidence in verdict.evidence:
        if not (isfinite(evidence.value) and isfinite(evidence.threshold) and isfinite(evidence.span)):
            return f"{evidence.statistic} {evidence.metric} in its evidence is not finite"
    for flip in verdict.flips:
        for condition in flip.conditions:
            if not isfinite(condition.value):
                return f"{condition.quantity} in its flips is not finite"
    return None


def make_storable(verdict: Verdict, *, ours: bool) -> Verdict:
    """A usable verdict as it can be stored: counts of MOST at most, and of rules of the user's own no more text and numbers
    than a row has room for. Raises what msgspec does for fields of another type.
    """
    for count in (verdict.desired, verdict.floor, verdict.ceiling, verdict.out_ceiling):
        if count is not None and count > MOST:
            verdict = _bounded(verdict)
            break
    if ours:
        return verdict
    verdict = msgspec.convert(msgspec.to_builtins(verdict), Verdict)
    return structs.replace(
        verdict,
        evidence=tuple(
            structs.replace(
                evidence,
                rule=_name(evidence.rule),
                metric=_name(evidence.metric),
                statistic=_name(evidence.statistic),
                comparator=_name(evidence.comparator),
                samples=min(max(evidence.samples, 0), MOST),
            )
            for evidence in verdict.evidence[:NUMBERS_KEPT]
        ),
        flips=tuple(
            structs.replace(
                flip,
                conditions=tuple(
                    structs.replace(c, quantity=_name(c.quantity), comparator=_name(c.comparator))
                    for c in flip.conditions[:NUMBERS_KEPT]
                ),
            )
            for flip in verdict.flips[:NUMBERS_KEPT]
        ),
        note=sanitize_line(verdict.note[: 2 * TEXT_CHARS])[:TEXT_CHARS],
        sentence=sanitize_line(verdict.sentence[: 2 * TEXT_CHARS])[:TEXT_CHARS],
    )


@lru_cache(maxsize=256)
def is_ours(kind: type) -> bool:
    """True for a rule of this package; any other is the user's."""
    return kind.__module__.startswith(_OURS)


def _bounded(verdict: Verdict) -> Verdict:
    names = ("desired", "floor", "ceiling", "out_ceiling")
    counts = {name: MOST for name in names if (getattr(verdict, name) or 0) > MOST}
    return structs.replace(verdict, **counts)


def _name(text: str) -> str:
    return sanitize_line(text[:400])[:200]


def _short(value: object) -> str:
    """`repr` as far as it is of use; it may be a user's, or of a number that has no end."""
    try:
        return repr(value)[:200]
    except Exception:  # a class of the user's own may fail to give its text
        return f"a {type(value).__name__}"
