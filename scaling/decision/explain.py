"""Recommendations in words. Pure.

A decision becomes one line that a person can read in the portal's log stream without a manual, for example

    scaling plan-orders out 3 -> 4: average backlog 812 > 500 over 10 min (10 samples) [plan-orders@...]
"""

from __future__ import annotations

from foundation.wording import count_text, duration_text, number_text, time_text
from scaling.model import Effect, EffectOutcome, Evidence, Flip, Limit, Reason, Recommendation

_BEFORE_RULES = {Reason.OVERRIDDEN, Reason.BELOW_MINIMUM, Reason.ABOVE_MAXIMUM, Reason.FALLBACK}
_CHANGES = _BEFORE_RULES | {Reason.SCALE_OUT, Reason.SCALE_IN}
"""Outcomes that change the capacity."""
_BLOCKED = {Reason.CAPACITY_UNKNOWN, Reason.FOREIGN_HAND, Reason.ACTION_PENDING, Reason.STATE_CORRUPT}
_ALONE = _BEFORE_RULES | _BLOCKED
"""Reasons the rules' numbers had no part in."""


TOLD = "told"
"""Comparator of evidence that is compared with nothing: the rule's own sentence tells it."""


def evidence_text(evidence: Evidence) -> str:
    """`average backlog 812 > 500 over 10 min (10 samples)`; never `500 > 500` for 500.4 > 500."""
    samples = count_text(evidence.samples, "sample")
    over = f" over {duration_text(evidence.span)} ({samples})" if evidence.samples else ""
    value, threshold = number_text(evidence.value), number_text(evidence.threshold)
    if value == threshold and evidence.value != evidence.threshold:
        value, threshold = repr(evidence.value), repr(evidence.threshold)
    head = f"{evidence.statistic} {evidence.metric}"
    if evidence.comparator in {"<", "<=", ">", ">=", "~"}:
        return f"{head} {value} {evidence.comparator} {threshold}{over}"
    return f"{head} {number_text(evidence.value)}{over}"


def flip_text(flip: Flip) -> str:
    """What would have changed the outcome: `scale out if average backlog > 500`."""
    outcome = flip.outcome.replace("_", " ")
    # What only ends a wait does not make anything else come true: metrics go on changing meanwhile.
    possible = f"{outcome if flip.outcome in _CHANGES else 'a decision is'} possible"
    kind, _, metric = flip.quantity.partition(" ")
    if flip.quantity in _ALONE_WORDS:
        return f"{outcome} {_ALONE_WORDS[flip.quantity]}"
    if flip.quantity in _WAITS:
        return f"{possible} {_WAITS[flip.quantity]}"
    if flip.quantity == "time":
        return f"{possible} from {time_text(flip.value)}"
    if kind == "failures" and metric:
        return f"{possible} once {metric} can be read again"
    if kind in {"age", "span"} and metric:
        what = "the newest sample is at most" if kind == "age" else "the samples cover"
        return (
            f"{possible} once {what} {duration_text(flip.value)}{' old' if kind == 'age' else ''} ({metric})"
        )
    if kind == "samples" and metric:
        return f"{possible} with {count_text(int(flip.value), 'sample')} of {metric}"
    return f"{outcome} if {flip.quantity} {flip.comparator} {number_text(flip.value)}"


_ALONE_WORDS = {
    "expression": "if the expression gave another value",
    "step": "if the rate limits allowed a step",
}
_WAITS = {
    "capacity": "once the capacity can be read",
    "control": "once it is lifted",
    "failures": "once the rule works again",
    "pending": "once the effect is there",
}


def limit_text(limit: Limit) -> str:
    """One constraint: `rate limited (step 2): 12 wanted, 5 allowed`."""
    detail = f" ({limit.detail})" if limit.detail else ""
    counts = f"{limit.wanted} wanted" + (
        f", {limit.allowed} allowed" if limit.wanted != limit.allowed else ""
    )
    return f"{limit.reason.replace('_', ' ')}{detail}: {counts}"


def line(recommendation: Recommendation) -> str:
    """The one readable line of a decision."""
    r = recommendation
    if r.reason is Reason.DRY_RUN:
        verb = f"would go {_way(r)}" if r.desired != r.current else f"hold {r.current}"
        head = f"scaling {r.target} dry-run, {verb}"
    elif r.acts:
        head = f"scaling {r.target} {_way(r)}"
    else:
        head = f"scaling {r.target} hold {'?' if r.current is None else r.current}"
    parts = [_why(r)]
    if r.flips and not r.acts:
        parts.append("; ".join(flip_text(flip) for flip in r.flips))
    return f"{head}: {'; '.join(part for part in parts if part)} [{r.decision_id}]"


def _way(r: Recommendation) -> str:
    out = r.desired is not None and r.current is not None and r.desired > r.current
    return f"{'out' if out else 'in'} {r.current} -> {r.desired}"


def _why(r: Recommendation) -> str:
    compared = [e for e in r.evidence if not (r.sentence and e.comparator == TOLD)]
    numbers = ", ".join([*([r.sentence] if r.sentence else []), *map(evidence_text, compared)])
    limits = ", ".join(limit_text(limit) for limit in r.limits)
    if r.reason in (Reason.SCALE_OUT, Reason.SCALE_IN, Reason.DRY_RUN):
        why = numbers or r.note or r.reason.words
        return f"{why}; {limits}" if limits else why
    name = r.reason.replace("_", " ")
    if r.reason is Reason.WITHIN_TARGET:
        return numbers or r.note or r.reason.words
    if r.limits and r.limits[0].reason is r.reason:
        said = [limits]
    else:
        detail = r.note or ("" if limits or numbers else r.reason.words)
        head = f"{name}, {detail}" if detail else name
        said = [head, limits] if limits else [head]
    if numbers and r.reason not in _ALONE:
        said.append(numbers)
    return "; ".join(said)


def effect_line(effect: Effect) -> str:
    """The one readable line of what became of an action."""
    where = f"{effect.from_capacity} -> {effect.to_capacity}"
    reached = "" if effect.reached is None else f", now {effect.reached}"
    detail = f": {effect.detail}" if effect.detail else ""
    name = effect.outcome.replace("_", " ")
    verb = "scaled" if effect.outcome is EffectOutcome.APPLIED else name
    return f"scaler {effect.target} {verb} {where}{reached}{detail} [{effect.action_id}]"
