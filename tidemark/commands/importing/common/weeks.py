"""What begins at minutes of the week and lasts until the next one begins, as periods of the rule `schedule`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from scaling.rules.schedule import days_text

DAY = 1_440
"""Minutes."""

WEEK = 7 * DAY

_Value = TypeVar("_Value")


def ranges_between_begins(begins: Sequence[tuple[int, _Value]]) -> list[tuple[int, int, _Value]]:
    """From when to when each value holds, in minutes of the week: until the next begin. Of two at one minute the first counts."""
    at: dict[int, _Value] = {}
    for minute, value in begins:
        at.setdefault(minute % WEEK, value)
    ordered = sorted(at)
    return [(begin, end, at[begin]) for begin, end in pairwise([*ordered, ordered[0] + WEEK])] if at else []


def periods(ranges: Iterable[tuple[int, int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A period for each part of a day with the same options, on all of its days."""
    days: dict[tuple[int, int, int], set[int]] = {}
    options: list[dict[str, Any]] = []
    for begin, end, wanted in ranges:
        if wanted not in options:
            options.append(wanted)
        for day, first, last in _days_of(begin, end):
            days.setdefault((options.index(wanted), first, last), set()).add(day)
    rows = sorted(
        ((min(same_days), first, last, index, same_days) for (index, first, last), same_days in days.items())
    )
    return [
        {
            **_label(options[index]),
            "days": days_text(same_days),
            **_times(first, last),
            **_bounds(options[index]),
        }
        for _, first, last, index, same_days in rows
    ]


def _days_of(begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The parts of days (Monday 0) that a range has."""
    while begin < end:
        day, first = divmod(begin, DAY)
        last = min(end - day * DAY, DAY)
        yield day % 7, first, last
        begin = day * DAY + last


def _times(first: int, last: int) -> dict[str, str]:
    return {} if (first, last) == (0, DAY) else {"from": clock_text(first), "to": clock_text(last)}


def _label(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("label",) if options.get(key)}


def _bounds(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "label"}


def clock_text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
