"""When a policy's decision is known before it is made: no rule asks for a change, or none could be carried out. Pure.

Nothing is decided here. `Quiet` finds at which tick decide() has to be asked next; until then it would have answered
with a hold that changes nothing it remembers but that the capacity was proposed. What the rules compare is what they
say of themselves (`levels`); near a level decide() is asked, so rounding is of no matter. tests/properties compares
replays with and without this, decision by decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import ceil, inf

from msgspec import Struct

from scaling.config.policy import Policy
from scaling.decision.pacing import cooldown_until
from scaling.model import Direction, TargetState
from scaling.rules.composite import CompositeRule
from scaling.rules.guard import GuardRule
from scaling.rules.target_per_unit import TargetPerUnitRule
from scaling.rules.threshold import ThresholdRule
from scaling.rules.view import LevelLine, Rule
from scaling.window import Window, WindowSpec, summarize
from tidemark.analysis.backtest.replay.load import Load

MARGIN = 1e-9
"""Relative distance from a level within which decide() is asked: a sum of 20,000 floats is off by less."""


class Side(Struct, frozen=True):
    """What could make a rule act in one direction: a statistic beyond a level, the nearest first."""

    out: tuple[tuple[str, float], ...]
    inward: tuple[tuple[str, float], ...]
    ceiling: float  # no window without a value above this leads to a scale-out
    floor: float  # no window without a value below this leads to a scale-in


class Quiet:
    """The quiet ticks of one policy over one metric."""

    def __init__(self, policy: Policy, metric: str) -> None:
        self._policy = policy
        self.metric = metric
        spec = policy.windows[metric]
        self.length = ceil(spec.span / spec.interval - 1e-9)
        self.side = cache(partial(_side, policy.rules, metric))
        """Where rules act at a capacity."""

    def first(
        self, values: Sequence[float], begin: int, tick: int, load: Load, state: TargetState, current: int
    ) -> int | None:
        """Index of the first of `values` from `begin` on at which decide() has to be asked; None for none of them.

        `values` are the samples of consecutive ticks from `tick` on, those of the window before `begin` included.
        While an action is pending its effect must lie after the last of them.
        """
        side = self.side(current)
        out_from, in_from = self._free(state, current)
        if not self._policy.minimum <= current <= self._policy.maximum:
            return begin
        ceiling = side.ceiling if out_from < inf else inf
        floor = side.floor if in_from < inf else -inf
        if max(values) <= ceiling and min(values) >= floor:
            return None
        length = self.length
        for index in range(begin, len(values)):
            window = values[index - length + 1 : index + 1]
            now = load.time(tick + index)
            if now >= out_from and max(window) > ceiling and _beyond(window, side.out, 1):
                return index
            if now >= in_from and min(window) < floor and _beyond(window, side.inward, -1):
                return index
        return None

    def _free(self, state: TargetState, current: int) -> tuple[float, float]:
        """From when on a change out, and one in, could be carried out; infinite for never at this capacity.

        Where recommendations are remembered (stabilization), what is asked for matters at every tick.
        """
        policy = self._policy
        if policy.memory > 0:
            return -inf, -inf
        if state.pending is not None:
            return inf, inf
        spec, effects = policy.spec, state.effects
        out = cooldown_until(effects, Direction.OUT, spec.out, spec.inward)
        inward = cooldown_until(effects, Direction.IN, spec.out, spec.inward)
        return (
            inf if current >= policy.maximum else -inf if out is None else out,
            inf if current <= policy.minimum else -inf if inward is None else inward,
        )


def quiet(policy: Policy, metric: str) -> Quiet | None:
    """None for a policy whose decisions cannot be foretold: it has other metrics, rules that do not say when they act, or
    a budget, which allows less by the hour.
    """
    if policy.spec.budget is not None:
        return None
    if set(policy.windows) != {metric} or not all(map(_foretold, policy.rules)):
        return None
    candidate = Quiet(policy, metric)
    return candidate if _complete(policy.windows[metric], candidate.length) else None


def _foretold(rule: Rule) -> bool:
    """True for rules that vote by their levels alone. Exactly these classes: one derived of them may do anything."""
    if type(rule) is CompositeRule:
        return bool(rule.nested) and all(map(_foretold, rule.nested))
    if type(rule) is TargetPerUnitRule:
        return rule.cap_metric is None
    return type(rule) in {ThresholdRule, GuardRule}


def _complete(spec: WindowSpec, length: int) -> bool:
    """True when a window with every sample lets rules act, scaling in included."""
    times = [index * spec.interval for index in range(length)]
    summary = summarize(Window(times, [0.0] * length), spec, now=times[-1])
    return summary.problem is None and not summary.gap


def _side(rules: Sequence[Rule], metric: str, current: int) -> Side:
    try:
        lines = [line for rule in rules for line in _lines(rule, current)]
    except Exception:  # what a rule cannot tell here, it may tell decide() differently
        return _ASK
    if any(line.metric != metric for line in lines):
        return _ASK
    out = tuple((line.statistic, _near(line.value, -1)) for line in lines if line.direction == "out")
    inward = tuple((line.statistic, _near(line.value, 1)) for line in lines if line.direction == "in")
    ceiling = min((level for _, level in out), default=inf)
    return Side(out, inward, ceiling, floor=max((level for _, level in inward), default=-inf))


_ASK = Side((("latest", -inf),), (("latest", inf),), -inf, inf)
"""Every tick has to be asked."""


def _lines(rule: Rule, current: int) -> Sequence[LevelLine]:
    if isinstance(rule, CompositeRule):
        return [line for nested in rule.nested for line in _lines(nested, current)]
    lines: Sequence[LevelLine] = rule.levels(current)  # type: ignore[attr-defined]  # all that `_foretold` lets in have it
    return lines


def _near(level: float, towards: int) -> float:
    return level + towards * MARGIN * max(abs(level), 1.0)


_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "average": lambda window: sum(window) / len(window),
    "maximum": max,
    "minimum": min,
    "latest": lambda window: window[-1],
}


def _beyond(window: Sequence[float], lines: Sequence[tuple[str, float]], towards: int) -> bool:
    return any((_STATISTICS[statistic](window) - level) * towards > 0 for statistic, level in lines)
