"""Where a day begins and ends. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAY = 86_400.0


def day_of(at: float, time_zone: str) -> tuple[float, float]:
    """The day that holds a moment, from midnight to midnight of the time zone: 23 or 25 hours where its clock is changed.

    The day of UTC for a moment that no calendar has, and a time zone that this machine does not know.
    """
    if time_zone != "UTC":
        try:
            local = datetime.fromtimestamp(at, ZoneInfo(time_zone))
            midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
            day, end = midnight.timestamp(), (midnight + timedelta(days=1)).timestamp()
        except (ZoneInfoNotFoundError, ValueError, OverflowError, OSError):
            pass
        else:
            return day, end
    day = at // DAY * DAY
    return day, day + DAY
