"""Several rules or several metrics in one rule: any-out/all-in, or expressions over named metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from msgspec import Struct

from scaling.model import Reason, Statistic, Verdict
from scaling.rules.combine import (
    combine,
    direction_reason,
    levels_of,
    metrics_of,
    objection_of,
    safe_evaluate,
)
from scaling.rules.expression import CAPACITY_NAMES, Expression
from scaling.rules.level import step_problems
from scaling.rules.view import GAP, LevelLine, MetricsView, Rule
from tidemark.foundation.expressions.parsing import ExpressionError

_STATISTICS = tuple(Statistic)


class CompositeRule:
    """Nested rules (`rules`), or expressions: `desired`, or `scale_out_when` / `scale_in_when` with a step.

    Expressions read `metric.statistic`, a bare metric name (its latest value), and `instances`, `ready`,
    `minimum`, `maximum`. While a metric that an expression reads is missing, the rule votes only where the outcome is
    the same whatever its value (`backlog > 100 or cpu > 80`), or where the expression says what then (`known`, `default`);
    with a missing metric, or a gap in one, it never votes for less.
    """

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        rules: tuple[dict[str, Any], ...] = ()
        desired: str | None = None
        scale_out_when: str | None = None
        scale_in_when: str | None = None
        step: int = 1

        def problems(self) -> dict[str, str]:
            problems = step_problems(step=self.step)
            when = self.scale_out_when or self.scale_in_when
            if bool(self.rules) + (self.desired is not None) + bool(when) != 1:
                problems["rules"] = (
                    "give exactly one of 'rules', 'desired', or 'scale_out_when'/'scale_in_when'"
                )
            for option in ("desired", "scale_out_when", "scale_in_when"):
                text = getattr(self, option)
                if text is not None:
                    try:
                        Expression(text)
                    except ExpressionError as error:
                        problems[option] = str(error)
            return problems

    def __init__(self, params: Params, *, name: str, rules: Sequence[Rule] = ()) -> None:
        self._name = name
        self._rules = tuple(rules)
        self._step = params.step
        self._desired, self._out, self._in = (
            Expression(text) if text is not None else None
            for text in (params.desired, params.scale_out_when, params.scale_in_when)
        )
        self._expressions = [e for e in (self._desired, self._out, self._in) if e is not None]
        names = dict.fromkeys(name for e in self._expressions for name in e.names)
        self._names = tuple(name for name in names if name not in CAPACITY_NAMES)

    def metrics(self) -> tuple[str, ...]:
        named = (name.partition(".")[0] for name in self._names)
        nested = (name for rule in self._rules for name in metrics_of(rule))
        return tuple(dict.fromkeys((*named, *nested)))

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
    def names(self) -> tuple[str, ...]:
        """What the expressions read of metrics, such as `backlog.average`."""
        return self._names

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions as written; empty when the rule is made of nested rules."""
        return tuple(e.text for e in self._expressions)

    def unknown_statistics(self) -> tuple[str, ...]:
        """Names such as `backlog.median` whose statistic does not exist; configuration refuses them."""
        return tuple(n for n in self._names if "." in n and n.partition(".")[2] not in _STATISTICS)

    def evaluate(self, view: MetricsView, /) -> Verdict:
        if self._rules:
            return combine([safe_evaluate(rule, view) for rule in self._rules], view.current)
        environment: dict[str, float | None] = {
            name: float(getattr(view, name)) for name in CAPACITY_NAMES if name != "instances"
        }
        environment["instances"] = float(view.current)
        gap, unknown = False, dict[str, Reason]()
        for name in self._names:
            metric, _, statistic = name.partition(".")
            summary = view.metric(metric)
            gap = gap or summary.gap
            if summary.problem is not None:
                unknown[metric] = summary.problem
            environment[name] = summary.statistic(statistic or "latest") if summary.problem is None else None
        desired = self._wanted(environment, view.current)
        if unknown and (desired is None or desired < view.current):
            metric, problem = next(iter(unknown.items()))
            return Verdict(None, problem, note=f"{self._name}: {metric} {problem}")
        if desired is None or (desired < view.current and gap):
            return Verdict(None, Reason.INCOMPLETE_WINDOW, note=GAP)
        return self._verdict(desired, view, unknown)

    def _wanted(self, environment: Mapping[str, float | None], current: int) -> int | None:
        if self._desired is not None:
            value = self._desired(environment)
            return None if value is None else max(ceil(value), 0)
        out = self._out is not None and self._out(environment)
        if out is None:
            return None
        if out:
            return current + self._step
        less = self._in is not None and self._in(environment)
        if less is None:
            return None
        return max(current - self._step, 0) if less else current

    def _verdict(self, desired: int, view: MetricsView, unknown: Mapping[str, Reason]) -> Verdict:
        current = view.current
        evidence = []
        for name in self._names:
            metric, _, statistic = name.partition(".")
            if metric not in unknown:
                evidence.append(view.evidence(self._name, metric, statistic or "latest", "in", 0.0))
        lacking = "".join(f"; {metric} {problem}" for metric, problem in unknown.items())
        return Verdict(
            desired,
            direction_reason(desired, current),
            tuple(evidence),
            note=f"{self._name}: {' | '.join(self.texts)}{lacking}",
        )


def flatten_rules(rules: Iterable[Rule]) -> Iterator[Rule]:
    """All rules, those nested in composites in place of these: any-out/all-in of any-out/all-in is the same again,
    and what each of them says keeps its own numbers.
    """
    for rule in rules:
        if isinstance(rule, CompositeRule) and rule.nested:
            yield from flatten_rules(rule.nested)
        else:
            yield rule
