"""The border at which one number changes an outcome, found by asking again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

from scaling.flip import Condition
from scaling.window import MAX_VALUE

FINE, COARSE = 1e-10, 8e-3
"""Relative width down to which a border is enclosed. An expression is cheap to ask. A rule that learns takes a fifth of a
millisecond (November 2026), so its border is within a percent: each halving asks once more.
"""

STRIDE = 4.0
"""Each value tried is so many times further from the start than the one before it."""

FIRST, FIRST_COARSE = 0.01, 0.5
"""Share of the start at which the first value is tried, and its least distance."""

DIGITS = 12


def values_ahead(start: float, *, upward: bool, first: float = FIRST) -> list[float]:
    """Values to try, from near to far: up to the largest that is believed, or down to 0."""
    distance, borders = max(abs(start) * first, first), []
    most = MAX_VALUE - start if upward else start
    while distance < most:
        borders.append(start + distance if upward else start - distance)
        distance *= STRIDE
    return [*borders, MAX_VALUE if upward else 0.0] if most > 0 else []


def border_of(
    reaches: Callable[[float], bool], start: float, quantity: str, *, upward: bool, width: float = FINE
) -> Condition | None:
    """The condition that begins where `reaches` begins to hold, ahead of `start`, where it does not; None where it
    holds nowhere that was tried.
    """
    last = start
    values = values_ahead(start, upward=upward, first=FIRST if width == FINE else FIRST_COARSE)
    # A rule that learns wants more the more there is: what the last value does not reach, no value does.
    if width != FINE and values and not reaches(values[-1]):
        return None
    for value in values:
        if reaches(value):
            if last == start and width != FINE and reaches(start):
                return _end_of(reaches, start, quantity, upward=upward)
            return _enclosed(reaches, last, value, quantity, upward=upward, width=width)
        last = value
    return None


def _end_of(reaches: Callable[[float], bool], start: float, quantity: str, *, upward: bool) -> Condition:
    """The border, where the next report reaches the outcome even with the value of now, because time has passed: behind `start`."""
    last = start
    for value in values_ahead(start, upward=not upward, first=FIRST_COARSE):
        if not reaches(value):
            return _enclosed(reaches, value, last, quantity, upward=upward, width=COARSE)
        last = value
    return Condition(quantity, ">=" if upward else "<=", last)


def _enclosed(
    reaches: Callable[[float], bool],
    outside: float,
    inside: float,
    quantity: str,
    *,
    upward: bool,
    width: float,
) -> Condition:
    while abs(inside - outside) > width * max(abs(inside), abs(outside), width):
        low, high = sorted((inside, outside))
        middle = sqrt(low * high) if low > 0.0 and high > STRIDE * low else (low + high) / 2
        if middle in {low, high}:
            break
        if reaches(middle):
            inside = middle
        else:
            outside = middle
    value = shortest(*sorted((inside, outside)))
    if width == FINE and not reaches(value):
        return Condition(quantity, ">" if upward else "<", value)
    return Condition(quantity, ">=" if upward else "<=", value if width == FINE else inside)


def shortest(low: float, high: float) -> float:
    """The number with the fewest digits from `low` to `high`."""
    for digits in range(1, DIGITS):
        for value in (low, high, (low + high) / 2):
            short = float(f"{value:.{digits}g}")
            if low <= short <= high:
                return short
    return low if low > -inf else high
