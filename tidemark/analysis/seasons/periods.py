"""Floors of the hours of a week as the rule `schedule`, to paste into tidemark.toml. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil
from typing import Any

from scaling.rules.schedule import days_text
from tidemark.analysis.advise.snippet import as_text
from tidemark.analysis.seasons.profile import Profile

DAY = 1440
"""Minutes."""


def schedule(profile: Profile) -> str:
    """The rule as TOML, beside the target's others; empty where the minimum says as much."""
    periods = periods_of(profile.floors, profile.minimum, ceil(profile.lead / 60.0))
    if not periods:
        return ""
    rule = {"type": "schedule", "time_zone": profile.zone, "periods": periods}
    return as_text(profile.target, {"rules": [rule]})


def periods_of(floors: Sequence[int], minimum: int, lead: int) -> list[dict[str, Any]]:
    """Periods that hold at least these floors in each hour, and `lead` minutes before one that is higher than the hour before."""
    days_of: dict[tuple[int, int, int], set[int]] = {}
    for day, begin, end, floor in _pieces(floors, minimum, lead):
        days_of.setdefault((begin, end, floor), set()).add(day)
    rows = sorted((min(days), begin, end, floor, days) for (begin, end, floor), days in days_of.items())
    return [
        {"days": days_text(days), "from": _clock(begin), "to": _clock(end), "floor": floor}
        for _, begin, end, floor, days in rows
    ]


def _pieces(floors: Sequence[int], minimum: int, lead: int) -> Iterator[tuple[int, int, int, int]]:
    """Day, minutes and floor of each time range of a day with one floor above the minimum."""
    for day in range(7):
        hours = range(24 * day, 24 * day + 24)
        for floor, hours_of_floor in groupby(hours, key=floors.__getitem__):
            same = list(hours_of_floor)
            if floor <= minimum:
                continue
            begin, end = 60 * (same[0] % 24), 60 * (same[-1] % 24) + 60
            rises = lead > 0 and floor > floors[same[0] - 1]  # before Monday's first hour is Sunday's last
            if rises and begin < lead:
                yield (day - 1) % 7, DAY + begin - lead, DAY, floor
            yield day, max(begin - lead, 0) if rises else begin, end, floor


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
