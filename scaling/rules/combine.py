"""What several rules say together, and how rules, of which some may be the user's, are asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import structs

from scaling.model import Reason, Verdict
from scaling.rules.answers import fault_of, is_ours, make_storable
from scaling.rules.view import LevelLine, MetricsView, Rule
from tidemark.foundation.sanitize import sanitize_line

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

MAX_MEMORY = 131_072
"""Bytes that the rules of a target may remember. Chosen: as Base64 in UTF-16 they take 350 KB of its row of 1 MiB, beside 480 KB of samples at most. A rule `service_level`
takes 12 KB.
"""

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
        sources = problems
        reason = problems[0].reason if problems else Reason.WITHIN_TARGET
    elif chosen.desired is not None and chosen.desired > current:
        desired, reason = chosen.desired, chosen.reason
        # All of them are named, the winner first: only if none of them asked would the outcome be another.
        sources = [chosen, *(v for v in votes if v is not chosen and (v.desired or 0) > current)]
    elif problems:
        desired, reason, sources = None, problems[0].reason, problems
    else:
        desired, reason = chosen.desired, chosen.reason
        sources = votes if reason is Reason.SCALE_IN else [v for v in votes if v.desired == desired]
    return _merged(verdicts, desired, reason, sources)


def _merged(
    verdicts: Sequence[Verdict], desired: int | None, reason: Reason, sources: Sequence[Verdict]
) -> Verdict:
    floor = max((v.floor for v in verdicts if v.floor is not None), default=None)
    ceiling = min((v.ceiling for v in verdicts if v.ceiling is not None), default=None)
    out_ceiling = min((v.out_ceiling for v in verdicts if v.out_ceiling is not None), default=None)
    evidence = tuple(e for v in sources for e in v.evidence)
    flips = tuple(f for v in sources for f in v.flips)
    blocked = any(v.blocks_out for v in verdicts)
    notes = dict.fromkeys(v.note for v in verdicts if v.note and (v in sources or v.desired is None))
    sentence = "; ".join(v.sentence for v in sources if v.sentence)
    return Verdict(
        desired, reason, evidence, flips, floor, ceiling, blocked, "; ".join(notes), out_ceiling, sentence
    )


def safe_evaluate(rule: Rule, view: MetricsView) -> Verdict:
    """The rule's verdict; whatever it raises, or a verdict that is none, becomes RULE_FAILED.

    The reason of a vote is always the direction of the vote, whatever the rule said; only one to stay may
    say that more was wanted (AT_CAP).
    """
    try:
        ours = is_ours(type(rule))
        verdict = rule.evaluate(view if ours else _shown(rule, view))
        fault = fault_of(verdict)
        if fault is None:
            verdict = make_storable(verdict, ours=ours)
    except Exception as error:  # user code may raise anything
        verdict, fault = _NO_VOTE, words_of_repr(error)
    if fault is not None:
        return Verdict(
            None, Reason.RULE_FAILED, note=sanitize_line(f"{type(rule).__name__}: {fault}"[:1000])[:500]
        )
    desired, current = verdict.desired, view.current
    if desired is None:
        return verdict
    reason = direction_reason(desired, current)
    if verdict.reason is reason or (reason is _STAY and verdict.reason is Reason.AT_CAP):
        return verdict
    return structs.replace(verdict, reason=reason)


def _shown(rule: Rule, view: MetricsView) -> MetricsView:
    ours = is_ours(type(rule)) or not isinstance(view, MetricsView)
    return view if ours else view.copied()


def safe_learn(
    rule: Rule, memories: Mapping[str, bytes], view: MetricsView, faults: dict[str, str] | None = None
) -> Mapping[str, bytes]:
    """The memories after a report, with that of this rule, if it is one that learns. One that raises, or returns what is
    no memory or too large a one, keeps what it knows: its next verdict is made from that, and `faults` says so.
    """
    learn = getattr(rule, "learn", None)
    if learn is None:
        return memories
    name, faults = memory_name(rule), {} if faults is None else faults
    known = memories.get(name)
    try:
        after = learn(known, _shown(rule, view))
    except Exception as error:  # user code may raise anything
        faults[name] = sanitize_line(f"its learn() failed: {words_of_repr(error)}"[:1000])[:500]
        return memories
    if after is None or after == known:
        return memories
    if type(after) is not bytes:
        faults[name] = f"its learn() returned {type(after).__name__[:100]}, where bytes are accepted"
        return memories
    if len(after) > MAX_MEMORY:
        faults[name] = f"its learn() returned {len(after)} bytes, where at most {MAX_MEMORY} are kept"
        return memories
    others = {other: memory for other, memory in memories.items() if other != name}
    return {**others, name: after}  # the one written last stands last


def memory_name(rule: Rule) -> str:
    """By which the memory of a rule is found; that of its class for a user's rule that has none of its own."""
    try:
        return str(getattr(rule, "name", type(rule).__name__))[:200].encode("utf-8", "replace").decode()
    except Exception:  # user code may raise anything
        return type(rule).__name__


def words_of_repr(error: BaseException) -> str:
    """`ValueError('...')`; its kind alone where that fails."""
    try:
        return repr(error)
    except Exception:  # an exception of the user's own
        return type(error).__name__


def objection_of(rules: Sequence[Rule], view: MetricsView, capacity: int) -> str | None:
    """The first objection to a change to `capacity`, of all rules that have the question; None when there is none.

    A rule that raises objects: what it would have said is not known.
    """
    for rule in rules:
        ask = getattr(rule, "objection", None)
        try:
            text = None if ask is None else ask(_shown(rule, view), capacity)
            words = sanitize_line(str(text)[:1000])[:500] if text else ""
        except Exception as error:  # user code may raise anything
            return sanitize_line(f"rule {type(rule).__name__} failed: {words_of_repr(error)}"[:1000])[:500]
        if words:
            return words
    return None


def direction_reason(desired: int, current: int) -> Reason:
    """SCALE_OUT, SCALE_IN or WITHIN_TARGET, as `desired` is above, below or at `current`."""
    if desired > current:
        return _OUT
    return _IN if desired < current else _STAY


def metrics_of(rule: Rule) -> tuple[str, ...]:
    """The metrics a rule says it reads; none for a user's rule without that method."""
    metrics = getattr(rule, "metrics", None)
    return tuple(metrics()) if metrics is not None else ()


def levels_of(rules: Sequence[Rule], current: int) -> tuple[LevelLine, ...]:
    """The levels to draw at an instance count, of all rules that have some. Drawing must not fail: a rule
    that raises has no lines.
    """
    lines: list[LevelLine] = []
    for rule in rules:
        levels = getattr(rule, "levels", None)
        if levels is not None:
            with suppress(Exception):
                lines.extend(line for line in levels(current) if isinstance(line, LevelLine))
    return tuple(lines)
