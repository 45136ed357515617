"""Recommendations in words. Pure.

A decision becomes one line that a person can read in the portal's log stream without a manual, for example

    scaling plan-orders out 3 -> 4: average backlog 812 > 500 over 10 min (10 samples) [plan-orders@...]
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10

from scaling.flip import Condition, Conditions, Flip
from scaling.model import REPORTED, Effect, EffectOutcome, Evidence, Limit, Reason, Recommendation
from tidemark.foundation.wording import count_text, duration_text, number_text, time_text

_BEFORE_RULES = {Reason.OVERRIDDEN, Reason.BELOW_MINIMUM, Reason.ABOVE_MAXIMUM, Reason.FALLBACK}
_BLOCKED = {Reason.CAPACITY_UNKNOWN, Reason.EXTERNAL_CHANGE, Reason.ACTION_PENDING, Reason.STATE_CORRUPT}
_ALONE = _BEFORE_RULES | _BLOCKED
"""Reasons the rules' numbers had no part in."""


COLLECTING = "collecting"
"""How the note on windows that only have to fill begins. After a start, all have to: nothing is wrong."""


def evidence_text(evidence: Evidence) -> str:
    """`average backlog 812 > 500 over 10 min (10 samples)`; never `500 > 500` for 500.4 > 500.

    A number that the capacity follows from is compared with itself (`~`), and is only named.
    """
    samples = count_text(evidence.samples, "sample")
    over = f" over {duration_text(evidence.span)} ({samples})" if evidence.samples else ""
    value, threshold = number_text(evidence.value), number_text(evidence.threshold)
    if value == threshold and evidence.value != evidence.threshold:
        value, threshold = repr(evidence.value), repr(evidence.threshold)
    head = f"{evidence.statistic} {evidence.metric}"
    itself = evidence.comparator == "~" and evidence.value == evidence.threshold
    if evidence.comparator in {"<", "<=", ">", ">=", "~"} and not itself:
        return f"{head} {value} {evidence.comparator} {threshold}{over}"
    return f"{head} {number_text(evidence.value)}{over}"


def flip_text(flip: Flip) -> str:
    """One sentence: the outcome, and all that it takes: `scale out to 4 if average backlog > 500 and minimum <= 3`."""
    if not flip.conditions:
        return "no single value changes this"
    what = " and ".join(_condition_texts(flip.conditions))
    if not flip.possible:
        outcome = "a change" if flip.outcome is None else flip.outcome.replace("_", " ")
        return f"no {outcome} is possible: it takes {what}"
    return f"{_outcome_text(flip)} if {what}"


def flip_texts(r: Recommendation) -> tuple[str, ...]:
    """A sentence for each flip of a decision. That at the minimum nothing can scale in, nor out at the maximum, nobody asks."""
    bounds = {Reason.SCALE_IN: r.minimum, Reason.SCALE_OUT: r.maximum}
    shown = (
        f for f in r.flips if f.possible or f.outcome is None or bounds.get(Reason(f.outcome)) != r.current
    )
    return tuple(map(flip_text, shown))


def _outcome_text(flip: Flip) -> str:
    if flip.outcome is None:
        return "decide anew"
    reason = flip.outcome.replace("_", " ")
    if flip.to is None:
        return f"hold ({reason})"
    if flip.outcome in {Reason.SCALE_OUT, Reason.SCALE_IN}:
        further = " or more" if flip.outcome is Reason.SCALE_OUT else " or fewer"
        return f"{reason} to {flip.to}{further if flip.beyond else ''}"
    return f"go to {flip.to}{' or further' if flip.beyond else ''} ({reason})"


def _condition_texts(conditions: Conditions) -> Iterator[str]:
    """Each in words; two borders of one quantity as a range."""
    upper = {c.quantity: c for c in conditions if c.comparator.startswith("<")}
    lower = {c.quantity: c for c in conditions if c.comparator.startswith(">")}
    both = upper.keys() & lower.keys()
    for condition in conditions:
        if condition.quantity not in both:
            yield condition_text(condition)
        elif condition is lower[condition.quantity]:
            end = upper[condition.quantity]
            begin = {">": "<", ">=": "<="}[condition.comparator]
            ends = _border_text(condition), _border_text(end)
            if float(ends[0]) >= float(ends[1]):
                ends = repr(condition.value), repr(end.value)
            yield f"{ends[0]} {begin} {condition.quantity} {end.comparator} {ends[1]}"


def condition_text(condition: Condition) -> str:
    """One condition: `average backlog > 500`, `not before 2027-01-15 08:05:24Z`."""
    quantity, value = condition.quantity, condition.value
    kind, _, metric = quantity.partition(" ")
    if quantity in _WORDS:
        return _WORDS[quantity]
    if quantity == "time":
        return f"not before {time_text(ceil(value))}"
    if kind == "failures":
        return f"{metric} can be read again, and is as it was"
    if kind == "receiving":
        return f"the queue or subscription of {metric} is enabled again, and is as it was"
    if kind == "age":
        return f"the newest sample of {metric} is at most {duration_text(value)} old, and as the one before"
    if kind == "span":
        return f"the samples of {metric} cover {duration_text(value)}, and are like those there are"
    if kind == "samples":
        return f"{metric} has {count_text(ceil(value), 'sample')}, all like those there are"
    return f"{quantity} {condition.comparator} {_border_text(condition)}"


def _border_text(condition: Condition) -> str:
    """A border in few digits, rounded so that what is said of the values beyond it stays true."""
    value = condition.value
    text = number_text(value)
    if float(text) == value:
        return text
    upward = condition.comparator.startswith(">")
    digits = 0 if abs(value) >= 100 else 2 if abs(value) >= 0.1 else 1 - floor(log10(abs(value)))
    unit = 10.0**-digits
    rounded = (ceil if upward else floor)(value / unit) * unit
    text = f"{rounded:.{digits}f}"
    return text if (float(text) >= value) == upward else repr(value)


_WORDS = {
    "capacity": "the capacity can be read",
    "disabled in": "scaling in is not disabled",
    "disabled out": "scaling out is not disabled",
    "dry-run": "dry-run is off",
    "failures": "the rule works again",
    "other controller": "no other controller scales it",
    "pause in": "scaling in is not paused",
    "pause out": "scaling out is not paused",
    "platform change": "the platform is not changing it any more",
    "rates in": "no rate policy limits scaling in",
    "rates out": "no rate policy limits scaling out",
}
"""Conditions that are compared with nothing."""


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
    if not r.acts:
        parts.append("; or ".join(flip_texts(r)))
    return f"{head}: {'; '.join(part for part in parts if part)} [{r.decision_id}]"


def _way(r: Recommendation) -> str:
    out = r.desired is not None and r.current is not None and r.desired > r.current
    return f"{'out' if out else 'in'} {r.current} -> {r.desired}"


def _why(r: Recommendation) -> str:
    compared = [e for e in r.evidence if not (r.sentence and e.comparator == REPORTED)]
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
        if detail.startswith(COLLECTING):
            head = detail
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
