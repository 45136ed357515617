"""What several rules say together, and how rules, of which some may be the user's, are asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite

from msgspec import structs

from foundation.sanitize import leaving
from scaling.model import Reason, Verdict
from scaling.rules.view import LevelLine, MetricsView, Rule

# Named here because looking a member up in its enum is slow before Python 3.12, and this is the hot path.
_OUT, _IN, _STAY = Reason.SCALE_OUT, Reason.SCALE_IN, Reason.WITHIN_TARGET

PROBLEMS = frozenset(
    {
        Reason.INCOMPLETE_WINDOW,
        Reason.STALE_METRIC,
        Reason.COLLECT_FAILED,
        Reason.INVALID_METRIC,
        Reason.ENTITY_DISABLED,
        Reason.RULE_FAILED,
    }
)
"""Reasons of a verdict that could not be reached; any of them makes scaling in impossible."""

_NO_VOTE = Verdict(None, Reason.WITHIN_TARGET)


def combine(verdicts: Sequence[Verdict], current: int) -> Verdict:
    """Any-out/all-in: the highest of the proposals above `current`; else, if every rule voted for less and
    none is missing data, the highest of those; else stay. Floors, ceilings and blocks of all are kept.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    votes = [v for v in verdicts if v.desired is not None]
    problems = [v for v in verdicts if v.desired is None and v.reason in PROBLEMS]
    # Of equal wishes the one that was bounded: it says more.
    chosen = max(votes, key=lambda v: (v.desired or 0, v.reason is Reason.AT_CAP), default=None)
    if chosen is None:
        desired: int | None = None
        told = problems
        reason = problems[0].reason if problems else Reason.WITHIN_TARGET
    elif chosen.desired is not None and chosen.desired > current:
        desired, reason = chosen.desired, chosen.reason
        # All of them are told, the winner first: only if none of them asked would the outcome be another.
        told = [chosen, *(v for v in votes if v is not chosen and (v.desired or 0) > current)]
    elif problems:
        desired, reason, told = None, problems[0].reason, problems
    else:
        desired, reason = chosen.desired, chosen.reason
        told = votes if reason is Reason.SCALE_IN else [v for v in votes if v.desired == desired]
    return _merged(verdicts, desired, reason, told)


def _merged(
    verdicts: Sequence[Verdict], desired: int | None, reason: Reason, told: Sequence[Verdict]
) -> Verdict:
    floor = max((v.floor for v in verdicts if v.floor is not None), default=None)
    ceiling = min((v.ceiling for v in verdicts if v.ceiling is not None), default=None)
    out_ceiling = min((v.out_ceiling for v in verdicts if v.out_ceiling is not None), default=None)
    evidence, flips = tuple(e for v in told for e in v.evidence), tuple(f for v in told for f in v.flips)
    blocked = any(v.blocks_out for v in verdicts)
    notes = dict.fromkeys(v.note for v in verdicts if v.note and (v in told or v.desired is None))
    sentence = "; ".join(v.sentence for v in told if v.sentence)
    return Verdict(
        desired, reason, evidence, flips, floor, ceiling, blocked, "; ".join(notes), out_ceiling, sentence
    )


def safe_evaluate(rule: Rule, view: MetricsView) -> Verdict:
    """The rule's verdict; whatever it raises, or a verdict that is none, becomes RULE_FAILED.

    The reason of a vote is always the direction of the vote, whatever the rule said; only one to stay may
    say that more was wanted (AT_CAP).
    """
    try:
        verdict = rule.evaluate(view)
        fault = _fault(verdict)
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it must not stop the loop
        verdict, fault = _NO_VOTE, repr(error)
    if fault is not None:
        return Verdict(None, Reason.RULE_FAILED, note=leaving(f"{type(rule).__name__}: {fault}")[:500])
    desired, current = verdict.desired, view.current
    if desired is None:
        return verdict
    reason = direction_reason(desired, current)
    if verdict.reason is reason or (reason is _STAY and verdict.reason is Reason.AT_CAP):
        return verdict
    return structs.replace(verdict, reason=reason)


def safe_learn(rule: Rule, memories: Mapping[str, bytes], view: MetricsView) -> Mapping[str, bytes]:
    """The memories after a report, with that of this rule, if it is one that learns. One that raises, or returns what is
    no memory, keeps what it knows: its next verdict is made from that.
    """
    learn = getattr(rule, "learn", None)
    if learn is None:
        return memories
    name = str(getattr(rule, "name", type(rule).__name__))
    known = memories.get(name)
    try:
        after = learn(known, view)
    except Exception:  # noqa: BLE001 - user code may raise anything; its verdict will tell
        return memories
    if not isinstance(after, bytes) or after == known:
        return memories
    others = {other: memory for other, memory in memories.items() if other != name}
    return {**others, name: after}  # the one written last stands last


def objection_of(rules: Sequence[Rule], view: MetricsView, capacity: int) -> str | None:
    """The first objection to a change to `capacity`, of all rules that have the question; None when there is none.

    A rule that raises objects: what it would have said is not known.
    """
    for rule in rules:
        ask = getattr(rule, "objection", None)
        try:
            text = None if ask is None else ask(view, capacity)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            return f"rule {type(rule).__name__} failed: {error!r}"[:500]
        if text:
            return str(text)
    return None


def direction_reason(desired: int, current: int) -> Reason:
    """SCALE_OUT, SCALE_IN or WITHIN_TARGET, as `desired` is above, below or at `current`."""
    if desired > current:
        return _OUT
    return _IN if desired < current else _STAY


def _fault(verdict: Verdict) -> str | None:
    """What makes a verdict unusable, or None. Numbers that are not finite could not be stored."""
    if not isinstance(verdict, Verdict):
        return f"returned {verdict!r}, not a Verdict"
    for value in (verdict.desired, verdict.floor, verdict.ceiling, verdict.out_ceiling):
        if value is not None and (type(value) is not int or value < 0):
            return f"{value!r} (desired, floor or a ceiling) is not a whole number of 0 or more"
    for evidence in verdict.evidence:
        if not (isfinite(evidence.value) and isfinite(evidence.threshold)):
            return f"{evidence.statistic} {evidence.metric} in its evidence is not finite"
    for flip in verdict.flips:
        if not isfinite(flip.value):
            return f"{flip.quantity} in its flips is not finite"
    return None


def metrics_of(rule: Rule) -> tuple[str, ...]:
    """The metrics a rule says it reads; none for a user's rule without that method."""
    metrics = getattr(rule, "metrics", None)
    return tuple(metrics()) if metrics is not None else ()


def levels_of(rules: Sequence[Rule], current: int) -> tuple[LevelLine, ...]:
    """The levels to draw at an instance count, of all rules that tell theirs. Drawing must not fail: a rule
    that raises has no lines.
    """
    lines: list[LevelLine] = []
    for rule in rules:
        levels = getattr(rule, "levels", None)
        if levels is not None:
            with suppress(Exception):
                lines.extend(line for line in levels(current) if isinstance(line, LevelLine))
    return tuple(lines)
