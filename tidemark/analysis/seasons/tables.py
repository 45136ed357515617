"""The tables of the profiles, and their rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Any

from scaling.rules.schedule import DAYS
from tidemark.analysis.seasons.periods import schedule
from tidemark.analysis.seasons.profile import Profile

FLOORS = "target text, day text, hour long, floor long, usual double"
"""One row per target and hour of the week, by the clock of its time zone; `usual` is the median need of the weeks that taught."""

SCHEDULES = """
    target text, time_zone text, weeks long, held_out long, mean_error double, flat_error double, skill double,
    short double, idle double, worth flag, toml text
"""
"""One row per target: the rule to paste, empty where it is not worth it, and its error on the held-out weeks, in instances."""

ALL = {"floors": FLOORS, "schedules": SCHEDULES}

LIMITED = {"worth": "targets", "quarantined": "targets"}
"""What --allow knows: `worth` are targets whose load comes by the clock."""

NOT_WORTH = "no schedule: the load does not come by the clock, or never needs more than the minimum; one floor for all hours is as good"


def text_of(profile: Profile) -> str:
    """The rule to paste; empty where it is not worth it."""
    return schedule(profile) if profile.worth else ""


def rows_of(profile: Profile) -> dict[str, list[dict[str, Any]]]:
    error = profile.error
    return {
        "floors": [
            {
                "target": profile.target,
                "day": DAYS[hour // 24],
                "hour": hour % 24,
                "floor": floor,
                "usual": None if isnan(usual) else usual,
            }
            for hour, (floor, usual) in enumerate(zip(profile.floors, profile.usual, strict=True))
        ],
        "schedules": [
            {
                "target": profile.target,
                "time_zone": profile.zone,
                "weeks": profile.weeks,
                "held_out": len(profile.held_out),
                "mean_error": error.mean,
                "flat_error": error.flat,
                "skill": error.skill,
                "short": error.short,
                "idle": error.idle,
                "worth": profile.worth,
                "toml": text_of(profile),
            }
        ],
    }


def totals(profiles: Iterable[Profile]) -> dict[str, float]:
    """The counts that --allow may limit."""
    known = list(profiles)
    return {"targets": len(known), "worth": sum(profile.worth for profile in known)}
