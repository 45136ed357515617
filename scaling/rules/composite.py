"""Several rules or several metrics in one rule: any-out/all-in, or expressions over named metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import ceil, isfinite
from typing import Any

from msgspec import Struct, structs

from foundation.sanitize import leaving
from scaling.model import Evidence, Flip, Reason, Statistic, Verdict
from scaling.rules.expression import Expression, ExpressionError
from scaling.rules.view import LevelLine, MetricsView, Rule

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

CAPACITY_NAMES = ("instances", "ready", "minimum", "maximum")
_STATISTICS = tuple(Statistic)
# Named here because looking a member up in its enum is slow before Python 3.12, and this is the hot path.
_OUT, _IN, _STAY = Reason.SCALE_OUT, Reason.SCALE_IN, Reason.WITHIN_TARGET

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
    floors = [v.floor for v in verdicts if v.floor is not None]
    ceilings = [v.ceiling for v in verdicts if v.ceiling is not None]
    out_ceilings = [v.out_ceiling for v in verdicts if v.out_ceiling is not None]
    notes = dict.fromkeys(v.note for v in verdicts if v.note and (v in told or v.desired is None))
    return Verdict(
        desired,
        reason,
        tuple(e for v in told for e in v.evidence),
        tuple(f for v in told for f in v.flips),
        max(floors, default=None),
        min(ceilings, default=None),
        any(v.blocks_out for v in verdicts),
        "; ".join(notes),
        min(out_ceilings, default=None),
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


class CompositeRule:
    """Nested rules (`rules`), or expressions: `desired`, or `scale_out_when` / `scale_in_when` with a step.

    Expressions read `metric.statistic`, a bare metric name (its latest value), and `instances`, `ready`,
    `minimum`, `maximum`. While any metric an expression reads is missing, the rule does not vote; with a
    gap in one of them it does not vote for less.
    """

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        rules: tuple[dict[str, Any], ...] = ()
        desired: str | None = None
        scale_out_when: str | None = None
        scale_in_when: str | None = None
        step: int = 1

        def problems(self) -> dict[str, str]:
            """Cross-field errors by option name."""
            found: dict[str, str] = {}
            forms = [
                bool(self.rules),
                self.desired is not None,
                bool(self.scale_out_when or self.scale_in_when),
            ]
            if sum(forms) != 1:
                found["rules"] = "give exactly one of 'rules', 'desired', or 'scale_out_when'/'scale_in_when'"
            if self.step < 1:
                found["step"] = f"found {self.step}; a step is 1 or more"
            for option in ("desired", "scale_out_when", "scale_in_when"):
                text = getattr(self, option)
                if text is not None:
                    try:
                        Expression(text)
                    except ExpressionError as error:
                        found[option] = str(error)
            return found

    def __init__(self, params: Params, *, name: str, rules: Sequence[Rule] = ()) -> None:
        self._name = name
        self._rules = tuple(rules)
        self._step = params.step
        self._desired, self._out, self._in = (
            Expression(text) if text is not None else None
            for text in (params.desired, params.scale_out_when, params.scale_in_when)
        )
        self._names = tuple(
            dict.fromkeys(
                name
                for expression in (self._desired, self._out, self._in)
                if expression is not None
                for name in expression.names
                if name not in CAPACITY_NAMES
            )
        )

    def metrics(self) -> tuple[str, ...]:
        own = (name.partition(".")[0] for name in self._names)
        nested = (name for rule in self._rules for name in metrics_of(rule))
        return tuple(dict.fromkeys((*own, *nested)))

    def levels(self, current: int) -> tuple[LevelLine, ...]:
        """The levels of the nested rules; an expression has none that could be drawn."""
        return levels_of(self._rules, current)

    def objection(self, view: MetricsView, capacity: int) -> str | None:
        """That of the nested rules; an expression has none."""
        return objection_of(self._rules, view, capacity)

    @property
    def nested(self) -> tuple[Rule, ...]:
        """The nested rules; empty when the rule is made of expressions."""
        return self._rules

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions as written; empty when the rule is made of nested rules."""
        return tuple(e.text for e in (self._desired, self._out, self._in) if e is not None)

    def unknown_statistics(self) -> tuple[str, ...]:
        """Names such as `backlog.median` whose statistic does not exist; configuration refuses them."""
        return tuple(n for n in self._names if "." in n and n.partition(".")[2] not in _STATISTICS)

    def evaluate(self, view: MetricsView, /) -> Verdict:
        if self._rules:
            return combine([safe_evaluate(rule, view) for rule in self._rules], view.current)
        environment = {name: float(getattr(view, name)) for name in CAPACITY_NAMES if name != "instances"}
        environment["instances"] = float(view.current)
        gap = False
        for name in self._names:
            metric, _, statistic = name.partition(".")
            summary = view.metric(metric)
            if summary.problem is not None:
                return Verdict(None, summary.problem, note=f"{self._name}: {metric} {summary.problem}")
            gap = gap or summary.gap
            environment[name] = summary.statistic(statistic or Statistic.LATEST)
        desired = self._wanted(environment, view.current)
        if desired < view.current and gap:
            return Verdict(None, Reason.INCOMPLETE_WINDOW, note="a sample is missing in the window")
        return self._verdict(desired, view, environment)

    def _wanted(self, environment: dict[str, float], current: int) -> int:
        if self._desired is not None:
            return max(ceil(self._desired(environment)), 0)
        if self._out is not None and self._out(environment):
            return current + self._step
        if self._in is not None and self._in(environment):
            return max(current - self._step, 0)
        return current

    def _verdict(self, desired: int, view: MetricsView, environment: dict[str, float]) -> Verdict:
        current = view.current
        evidence = tuple(
            Evidence(
                self._name,
                name.partition(".")[0],
                name.partition(".")[2] or Statistic.LATEST,
                environment[name],
                "in",
                0.0,
                view.span(name.partition(".")[0]),
                view.metric(name.partition(".")[0]).count,
            )
            for name in self._names
        )
        flips = (
            (Flip("expression", "!=", float(desired), Reason.WITHIN_TARGET),) if desired != current else ()
        )
        return Verdict(
            desired,
            direction_reason(desired, current),
            evidence,
            flips,
            note=f"{self._name}: {' | '.join(self.texts)}",
        )


def flattened(rules: Iterable[Rule]) -> Iterator[Rule]:
    """All rules, those nested in composites in place of these: any-out/all-in of any-out/all-in is the same again,
    and what each of them says keeps its own numbers.
    """
    for rule in rules:
        if isinstance(rule, CompositeRule) and rule.nested:
            yield from flattened(rule.nested)
        else:
            yield rule
