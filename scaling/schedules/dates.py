"""Dates as a schedule names them, and from when to when a clock shows a time. Pure."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from msgspec import Struct

ACCEPTED = (
    "accepted are days '2026-12-25', yearly days '12-25', ranges '2026-12-24..2027-01-02' and '12-24..01-02', times "
    "'2026-12-24 18:00..2027-01-02 06:00', a file 'holidays.ics', and the name of a metric"
)
_LEAP_YEAR = 2000
_DAY = re.compile(r"(?:(\d{4})-)?(\d{2})-(\d{2})")
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}) ([01]\d|2[0-3]):([0-5]\d)")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)|24:00")
_TICK = timedelta(microseconds=1)


def parse_clock(text: str) -> int:
    """Minutes after midnight of `HH:MM` (00:00 to 24:00). Raises ValueError."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"found '{text}'; accepted are times such as '08:00', '17:30' and '24:00'")
    hours, minutes = text.strip().split(":")
    return int(hours) * 60 + int(minutes)


class Days(Struct, frozen=True):
    """Days from `first` to `last`, both included: of one year, or (month, day) of every year, also over its end."""

    first: date | tuple[int, int]
    last: date | tuple[int, int]

    def covers(self, day: date) -> bool:
        if isinstance(self.first, date):
            return isinstance(self.last, date) and self.first <= day <= self.last
        assert not isinstance(self.last, date)
        key = (day.month, day.day)
        if self.first <= self.last:
            return self.first <= key <= self.last
        return key >= self.first or key <= self.last


class Times(Struct, frozen=True):
    """From `begin` up to but without `end`, as the clock of the time zone shows them."""

    begin: datetime
    end: datetime


def parse_dates(text: str) -> Days | Times | None:
    """What an entry of `on` or `not_on` says; None where it is the name of a file or of a metric. Raises ValueError."""
    if text.isidentifier() or text.endswith(".ics"):
        return None
    first, dots, last = (part.strip() for part in text.partition(".."))
    if " " in first and dots:
        begin, end = _moment(first, text), _moment(last, text)
        if begin >= end:
            raise ValueError(f"found '{text}', which ends before it begins")
        return Times(begin, end)
    days = Days(_day(first, text), _day(last if dots else first, text))
    if isinstance(days.first, date) != isinstance(days.last, date):
        raise ValueError(f"found '{text}', with a year at one end only; {ACCEPTED}")
    if isinstance(days.first, date) and isinstance(days.last, date) and days.first > days.last:
        raise ValueError(f"found '{text}', which ends before it begins")
    return days


def _day(text: str, whole: str) -> date | tuple[int, int]:
    match = _DAY.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        year, month, day = int(match[1] or _LEAP_YEAR), int(match[2]), int(match[3])
        day_found = date(year, month, day)
    except ValueError:
        raise ValueError(f"found '{whole}'; {ACCEPTED}") from None
    return day_found if match[1] else (month, day)


def _moment(text: str, whole: str) -> datetime:
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        return datetime.combine(date.fromisoformat(match[1]), time(int(match[2]), int(match[3])))
    except ValueError:
        raise ValueError(f"found '{whole}'; {ACCEPTED}") from None


class Clock:
    """What the clock of a time zone shows at a time.

    A time range runs from the first instant at which the clock shows its begin, or later, to the last one at which it shows less
    than its end. So a begin in an hour that is skipped counts when that hour would have begun, and a range holds without a break
    through an hour that is repeated.
    """

    __slots__ = ("_first", "_now", "_second", "_zone", "wall")

    def __init__(self, now: float, zone: ZoneInfo) -> None:
        """Raises OverflowError, ValueError or OSError for a time that no calendar has."""
        local = datetime.fromtimestamp(now, zone)
        self._now, self._zone = now, zone
        self.wall = local.replace(tzinfo=None, fold=0)
        self._second = local.fold == 1
        """The clock shows this time for the second time."""
        self._first = not self._second and local.replace(fold=1).utcoffset() != local.utcoffset()
        """The clock will show it again."""

    def begin_days(self) -> tuple[date, ...]:
        """The days on which a range that is no longer than a day may have begun."""
        today = self.wall.date()
        days = (today, today - timedelta(days=1))
        return (*days, today + timedelta(days=1)) if self._second else days

    def within(self, begin: datetime, end: datetime) -> bool:
        """Whether it is between two times that the clock shows."""
        begun = self.wall >= begin or (self._second and self._instant(begin, 0) <= self._now)
        return begun and (self.wall < end or (self._first and self._instant(end - _TICK, 1) >= self._now))

    def _instant(self, wall: datetime, fold: int) -> float:
        return wall.replace(tzinfo=self._zone, fold=fold).timestamp()
