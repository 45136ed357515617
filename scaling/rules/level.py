"""A threshold that may depend on the instance count. Pure.

Three forms in tidemark.toml, from simple to free:

- a number: `scale_out_above = 500`;
- a table of steps: `scale_out_above = { 1 = 300, 4 = 1000, 8 = 2500 }`, the entry with the largest count
  not above the current one applies (below the smallest, the smallest);
- an expression of `instances`: `scale_out_above = "250 * instances + 100"`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from math import isfinite

from scaling.rules.expression import Expression
from tidemark.foundation.expressions.parsing import ExpressionError

LevelSpec = float | str | dict[str, float]
Level = Callable[[int], float]


class LevelError(ValueError):
    """The threshold is not in one of the three accepted forms."""


def compile_level(spec: LevelSpec) -> Level:
    """The threshold as a function of the instance count. Raises LevelError."""
    if isinstance(spec, Mapping):
        return _steps(spec)
    if isinstance(spec, str):
        try:
            expression = Expression(spec, allowed=("instances",))
            expression({"instances": 1.0})
        except (ExpressionError, ArithmeticError) as error:
            raise LevelError(str(error)) from None

        def level(instances: int) -> float:
            value = expression({"instances": float(instances)})
            assert value is not None  # nothing it reads can be unknown
            return value

        return level
    number = _finite(spec)
    return lambda _instances: number


def level_problems(options: Mapping[str, LevelSpec | None]) -> dict[str, str]:
    """What is wrong with thresholds, by the name of their option."""
    problems = {}
    for option, spec in options.items():
        try:
            if spec is not None:
                compile_level(spec)
        except ValueError as error:
            problems[option] = str(error)
    return problems


def step_problems(**steps: int | None) -> dict[str, str]:
    """What is wrong with steps, by the name of their option."""
    wrong = {option: step for option, step in steps.items() if step is not None and step < 1}
    return {option: f"found {step}; a step is 1 or more" for option, step in wrong.items()}


def _finite(value: float) -> float:
    number = float(value)
    if not isfinite(number):
        raise LevelError(f"found {number}; accepted are finite numbers")
    return number


def _steps(spec: Mapping[str, float]) -> Level:
    try:
        entries = sorted((int(count), _finite(value)) for count, value in spec.items())
    except LevelError:
        raise
    except ValueError:
        raise LevelError(
            f"keys {', '.join(map(repr, spec))} must be instance counts, for example {{ 1 = 300, 4 = 1000 }}"
        ) from None
    if not entries or entries[0][0] < 0:
        raise LevelError("a table of thresholds needs at least one instance count of 0 or more")
    counts = [count for count, _ in entries]
    values = [value for _, value in entries]
    return lambda instances: values[max(bisect_right(counts, instances) - 1, 0)]
