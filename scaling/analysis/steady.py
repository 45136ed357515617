"""What a policy does, count by count, while the load does not change. Pure; the ground `scaling.analysis.lint` stands on.

A load is the value of one metric at every count or, for a metric that falls as instances are added
(`per_instance`), its total over all instances. Between two neighbouring levels of the rules nothing
changes: these ranges, and the levels themselves, are the pieces that are tried, one load for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from msgspec import Struct

from scaling.config.policy import Policy
from scaling.decision import pacing as pace
from scaling.model import Reason
from scaling.rules.combine import combine, levels_of, metrics_of, safe_evaluate
from scaling.rules.composite import CompositeRule
from scaling.rules.request_units.for_rate import RequestUnitsForRateRule
from scaling.rules.target_per_unit import TargetPerUnitRule
from scaling.rules.view import LevelLine, MetricsView, Rule
from scaling.target_facts import Settable
from scaling.window import MAX_VALUE, Summary

MAX_COUNTS = 1_000
"""Capacities tried one by one. Request units, of which there may be a hundred thousand, are not."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_GRID = tuple(base * 10.0**power for power in range(6) for base in (1.0, 3.0))


class Piece(Struct, frozen=True):
    """Loads that lead to the same steps: one load (`low == high`), or all strictly between the two."""

    low: float
    high: float

    @property
    def sample(self) -> float:
        if self.high == inf:
            return 2 * self.low + 1
        return (self.low + self.high) / 2


class SteadyView(MetricsView):
    """A view whose windows are complete and hold one value; metrics that are not named are 0, or so much
    that they bound nothing where they are a cap.
    """

    __slots__ = ("_caps", "_values")

    def __init__(self, policy: Policy, current: int, values: dict[str, float]) -> None:
        low, high = policy.minimum, policy.maximum
        super().__init__({}, policy.windows, current, ready=current, minimum=low, maximum=high, now=0.0)
        self._values = values
        rules = policy.flat_rules
        self._caps = {rule.cap_metric for rule in rules if isinstance(rule, TargetPerUnitRule)}

    def metric(self, name: str) -> Summary:
        spec = self.specs[name]
        value = self._values.get(name, MAX_VALUE if name in self._caps else 0.0)
        return Summary(spec.min_samples, value, value, value, value, spec.span, 0.0, gap=False, problem=None)


class Steps:
    """The next count after every count from the minimum to the maximum, under a steady load of some metrics.

    `metrics` share the load, all others are 0. `rows[count][i]` is the count after `count` under the loads
    of `pieces[i]`. `exact` is False where a rule has no levels; the pieces are then samples.
    """

    def __init__(
        self, policy: Policy, metrics: Sequence[str], levels: Mapping[int, Sequence[LevelLine]]
    ) -> None:
        self._policy = policy
        self._metrics = tuple(metrics)
        self._rules = policy.flat_rules
        self.per_instance = policy.spec.metrics[metrics[0]].per_instance
        self.exact = not any(_is_opaque(rule) for rule in self._rules)
        values = {count: self._critical_values(count, lines) for count, lines in levels.items()}
        points = sorted(
            {self._load(value, count) for count, critical in values.items() for value in critical}
        )
        self.pieces = tuple(_pieces(points))
        index = {point: 2 * position for position, point in enumerate(points)}
        self.rows = {count: self._row(count, critical, index) for count, critical in values.items()}

    def _critical_values(self, count: int, lines: Iterable[LevelLine]) -> list[float]:
        """The metric values at which some rule may change its mind at `count`, ascending, 0 included."""
        values = {0.0}
        # Beside another rule, or steps of the platform, the count it leads to is not the one that keeps it.
        rounded = self._policy.spec.facts.settable != Settable() or len(self._rules) > 1
        for line in lines:
            if line.metric in self._metrics:
                values.add(line.value)
            elif line.metric not in self._policy.windows:  # a combination, such as sum(a, b)
                values.update((line.value, line.value / len(self._metrics)))
        for rule in self._rules:
            if isinstance(rule, TargetPerUnitRule):
                with suppress(ArithmeticError):  # reported as a rule that fails
                    values.update(rule.breakpoints(count, self._policy.maximum, rounded=rounded))
        if not self.exact:
            values.update(_guesses(self._rules, count))
        return sorted(value for value in values if isfinite(value) and 0 <= value <= MAX_VALUE)

    def _load(self, value: float, count: int) -> float:
        """The load that makes the metric `value` at `count`; rounded, so that equal loads are equal."""
        return float(f"{value * max(count, 1):.9g}") if self.per_instance else value

    def value_at(self, load: float, count: int) -> float:
        return load / max(count, 1) if self.per_instance else load

    def _row(self, count: int, values: Sequence[float], index: Mapping[float, int]) -> list[int]:
        """One evaluation for each level of `count` and one between each two; samples: one for each piece."""
        if not self.exact:
            return [self._next(count, self.value_at(piece.sample, count)) for piece in self.pieces]
        row: list[int] = []
        distinct = {
            self._load(value, count): value for value in reversed(values)
        }  # of equal loads the lowest
        for value, higher in pairwise((*reversed(distinct.values()), inf)):
            begin = index[self._load(value, count)]
            end = index[self._load(higher, count)] if higher != inf else len(self.pieces)
            between = self.value_at(self.pieces[begin + 1].sample, count)
            row += [self._next(count, value), *[self._next(count, between)] * (end - begin - 1)]
        return row

    def _next(self, count: int, value: float) -> int:
        return step(self._policy, count, dict.fromkeys(self._metrics, value))

    def cycles(self) -> Iterator[tuple[Piece, tuple[int, ...]]]:
        """Every ring of counts that follow each other, smallest count first, with the piece it is true for."""
        known: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for piece, column in zip(self.pieces, zip(*self.rows.values(), strict=True), strict=True):
            if column not in known:
                known[column] = list(rings_of(dict(zip(self.rows, column, strict=True))))
            for ring in known[column]:
                if self._follow(piece.sample, ring):
                    yield piece, ring

    def _follow(self, load: float, ring: tuple[int, ...]) -> bool:
        """Whether these counts do follow each other under one load: rows are worked out for loads near each other."""
        after = {count: self._next(count, self.value_at(load, count)) for count in ring}
        return all(after[count] == later for count, later in zip(ring, (*ring[1:], ring[0]), strict=True))


def rings_of(after: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """The cycles of more than one count in a function from count to count."""
    settled: set[int] = set()
    for start in after:
        path: list[int] = []
        count = start
        while count not in settled:
            settled.add(count)
            path.append(count)
            count = after[count]
        ring = path[path.index(count) :] if count in path else []
        if len(ring) > 1:
            lowest = ring.index(min(ring))
            yield (*ring[lowest:], *ring[:lowest])


def step(policy: Policy, count: int, values: dict[str, float]) -> int:
    """The count after `count` while the metrics have these values: the rules, the step and rate limits, the bounds;
    time plays no part.
    """
    view = SteadyView(policy, count, values)
    verdicts = [safe_evaluate(rule, view) for rule in policy.rules]
    said = combine(verdicts, count)
    wanted = said.desired
    if wanted is None or wanted == count or (said.blocks_out and wanted > count):
        return count
    limits = policy.spec.out if wanted > count else policy.spec.inward
    allowed, _ = pace.apply_pace(wanted, count, (), limits, 0.0)
    # Floors of schedules belong to a time, that of an activation to the load.
    kept = max((v.floor or 0 for v in verdicts if v.reason is Reason.STILL_ACTIVE), default=0)
    settable = policy.spec.facts.settable
    low, high = settable.up(policy.minimum), settable.down(policy.maximum)
    return min(max(settable.up(allowed), low, kept), high)


def _failure(policy: Policy, count: int) -> str | None:
    """How a rule fails at `count` without load, or None."""
    view = SteadyView(policy, count, {})
    for rule in policy.rules:
        said = safe_evaluate(rule, view)
        if said.reason is Reason.RULE_FAILED:
            return said.note
    return None


def _is_opaque(rule: Rule) -> bool:
    """True for a rule that votes by metrics but has no levels: an expression, a user's own class."""
    if isinstance(rule, CompositeRule):
        return True
    return not hasattr(rule, "levels") and bool(getattr(rule, "metrics", lambda: ("unknown",))())


def _guesses(rules: Iterable[Rule], count: int) -> Iterator[float]:
    """Values worth trying at `count` on rules without levels."""
    yield from _GRID
    for rule in rules:
        for text in rule.texts if isinstance(rule, CompositeRule) else ():
            numbers = [float(number) for number in _NUMBER.findall(text)]
            yield from numbers
            if "instances" in text:
                yield from (number * count for number in numbers)


def _pieces(points: Sequence[float]) -> Iterator[Piece]:
    for low, high in pairwise((*points, inf)):
        yield Piece(low, low)
        yield Piece(low, high)


class Subject:
    """A policy with the steps its rules make under every kind of load, worked out once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.paces = (("out", policy.spec.out), ("in", policy.spec.inward))
        self.interval = policy.interval
        """Seconds between two decisions."""
        self.rules = policy.flat_rules
        sizes = any(isinstance(rule, RequestUnitsForRateRule) for rule in self.rules)
        few = not sizes and policy.maximum - policy.minimum < MAX_COUNTS
        settable = policy.spec.facts.settable
        bounds = range(policy.minimum, policy.maximum + 1 if few else 0)
        counts = [count for count in bounds if settable.down(count) == count]
        self.tried = bool(counts)
        self.failures = {count: note for count in counts if (note := _failure(policy, count)) is not None}
        self.levels = {count: levels_of(policy.rules, count) for count in counts}
        self.read = dict.fromkeys(name for rule in self.rules for name in metrics_of(rule))
        singles = [(name,) for name in self.read if name in policy.windows]
        together = [
            names
            for names in map(metrics_of, self.rules)
            if len(names) > 1 and all(name in policy.windows for name in names)
        ]
        self.loads = {
            names: Steps(policy, names, self.levels) for names in dict.fromkeys((*singles, *together))
        }

    def moves(self, sign: int) -> bool:
        """True when some count goes up (sign 1) or down (-1) under some load, or without any, where no rule reads a metric."""
        if not self.loads:
            return any((step(self.policy, count, {}) - count) * sign > 0 for count in self.levels)
        return any(
            any((after - count) * sign > 0 for after in row)
            for steps in self.loads.values()
            for count, row in steps.rows.items()
        )

    def options(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Name and options of every rule of a kind, nested ones included."""
        pending = [(rule.type, rule.name, rule.options) for rule in self.policy.spec.rules]
        while pending:
            rule_kind, name, options = pending.pop(0)
            if rule_kind == kind:
                yield name, options
            inner = options.get("rules", ()) if rule_kind == "composite" else ()
            pending += [(rule["type"], rule.get("name", name), rule) for rule in inner]
