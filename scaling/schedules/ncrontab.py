"""Timer schedules as the timer trigger of Azure Functions reads them.

Three spellings are accepted, as by the platform:

* six fields, ``{second} {minute} {hour} {day} {month} {day-of-week}``
* five fields, the same without seconds (second 0)
* a time span, ``[d.]hh:mm:ss``: one firing each such interval

A field is a comma-separated list of ``*``, ``n``, ``n-m``, each with an optional ``/step`` (``n/step`` runs from n to
the end of the field). Months and weekdays also go by name, by three letters or more, in any case; Sunday is 0 and
there is no 7. The day of the month *and* the day of the week must match, unlike in Unix cron.

Two spellings the platform accepts are refused here because it silently gives them another meaning: a range whose ends
are reversed (it swaps them, so FRI-MON becomes MON-FRI) and a step of 0 (it reads 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import pairwise, product
from typing import Self

_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SHORTEST_NAME = 3  # letters; the platform takes fewer and then picks the first match (J is January)

_TIME_SPAN = re.compile(r"(?:(?P<days>\d+)\.)?(?P<hours>\d+):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_SECONDS_PER_DAY = 86_400

# 29 February falls on each weekday once in 28 years: twice 28 years show any calendar schedule firing at least twice.
_REPRESENTATIVE_START = date(2000, 1, 1)
_REPRESENTATIVE_END = date(2057, 1, 1)


def parse(text: str) -> Schedule:
    """Read a schedule.

    Raises ValueError naming the field at fault, what was found there and what is accepted; also for a calendar
    pattern no date can match (31 February).
    """
    return Interval.from_time_span(text) if ":" in text else Calendar.from_fields(text)


@dataclass(frozen=True, slots=True)
class Interval:
    """Fires ``every`` after the moment asked about; the caller passes the previous firing to keep the rhythm."""

    every: timedelta

    @classmethod
    def from_time_span(cls, text: str) -> Self:
        match = _TIME_SPAN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"schedule {text!r}: a time span is written hh:mm:ss or d.hh:mm:ss")
        parts = {name: int(value or 0) for name, value in match.groupdict().items()}
        if parts["hours"] > 23:
            raise ValueError(
                f"schedule {text!r}: hours {parts['hours']} is outside 0-23; "
                "write whole days as d.hh:mm:ss (the platform reads 24:00:00 as 24 days)"
            )
        every = timedelta(**parts)
        if not every:
            raise ValueError(f"schedule {text!r}: the time span must be longer than zero")
        return cls(every)

    def next_after(self, moment: datetime) -> datetime:
        return moment + self.every

    def smallest_interval(self) -> float:
        return self.every.total_seconds()

    def is_even(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Calendar:
    """Fires at each second whose six fields are in these sorted, non-empty sets of values."""

    seconds: Sequence[int]
    minutes: Sequence[int]
    hours: Sequence[int]
    days: Sequence[int]
    months: Sequence[int]
    weekdays: Sequence[int]

    @classmethod
    def from_fields(cls, text: str) -> Self:
        parts = text.split()
        if len(parts) not in {5, 6}:
            raise ValueError(
                f"schedule {text!r} has {len(parts)} fields; accepted are 6 "
                f"({' '.join(field.name for field in _FIELDS)}), 5 (without second), or a time span hh:mm:ss"
            )
        if len(parts) == 5:
            parts.insert(0, "0")
        try:
            schedule = cls(*(field.parse(part) for field, part in zip(_FIELDS, parts, strict=True)))
        except ValueError as error:
            raise ValueError(f"schedule {text!r}: {error}") from None
        if all(min(schedule.days) > _LONGEST_MONTH[month - 1] for month in schedule.months):
            raise ValueError(
                f"schedule {text!r} never fires: day {parts[3]} does not exist in month {parts[4]}"
            )
        return schedule

    def next_after(self, moment: datetime) -> datetime:
        """The first firing strictly later than ``moment``, in the clock of ``moment`` (same tzinfo).

        Fields are compared with that wall clock, without correction for daylight saving time: pass UTC, as the
        platform does unless WEBSITE_TIME_ZONE is set. Raises OverflowError past the year 9999.
        """
        earliest = moment.replace(microsecond=0) + timedelta(seconds=1)
        today = self._first_time(earliest.time()) if self._fires_on(earliest.date()) else None
        if today is not None:
            return datetime.combine(earliest.date(), today, tzinfo=moment.tzinfo)
        day = earliest.date() + timedelta(days=1)
        while not self._fires_on(day):
            day += timedelta(days=1)
        return datetime.combine(day, time(*next(self._times())), tzinfo=moment.tzinfo)

    def smallest_interval(self) -> float:
        """The smallest gap between two consecutive firings, in seconds."""
        return float(min(self._intervals(self._smallest_day_gap())))

    def is_even(self) -> bool:
        """True when the gap between two consecutive firings is always the same."""
        every_day = (len(self.days), len(self.months), len(self.weekdays)) == (31, 12, 7)
        return every_day and len(set(self._intervals(1))) == 1

    def _intervals(self, day_gap: int) -> list[int]:
        """The seconds between the firings of one day, and over night to those `day_gap` days later."""
        times = [3600 * hour + 60 * minute + second for hour, minute, second in self._times()]
        over_night = day_gap * _SECONDS_PER_DAY - times[-1] + times[0]
        return [over_night, *(later - earlier for earlier, later in pairwise(times))]

    def _fires_on(self, day: date) -> bool:
        return day.month in self.months and day.day in self.days and day.isoweekday() % 7 in self.weekdays

    def _first_time(self, earliest: time) -> time | None:
        floor = (earliest.hour, earliest.minute, earliest.second)
        candidates = (
            time(hour, minute, second)
            for hour in self.hours
            if hour >= floor[0]
            for minute in self.minutes
            if (hour, minute) >= floor[:2]
            for second in self.seconds
            if (hour, minute, second) >= floor
        )
        return next(candidates, None)

    def _times(self) -> Iterator[tuple[int, int, int]]:
        """The firings of one day as (hour, minute, second), in order."""
        return product(self.hours, self.minutes, self.seconds)

    def _smallest_day_gap(self) -> int:
        span = (_REPRESENTATIVE_END - _REPRESENTATIVE_START).days
        days = (_REPRESENTATIVE_START + timedelta(days=offset) for offset in range(span))
        smallest = span
        for earlier, later in pairwise(day for day in days if self._fires_on(day)):
            smallest = min(smallest, (later - earlier).days)
            if smallest == 1:
                break
        return smallest


Schedule = Interval | Calendar


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of the pattern: its name in messages, its bounds (both included) and the names of its values."""

    name: str
    low: int
    high: int
    names: Sequence[str] = ()

    def parse(self, text: str) -> tuple[int, ...]:
        values: set[int] = set()
        for item in text.split(","):
            values.update(self._parse_item(item))
        return tuple(sorted(values))

    def _parse_item(self, item: str) -> range:
        base, slash, step_text = item.partition("/")
        if slash and (not _is_number(step_text) or int(step_text) == 0):
            raise ValueError(
                f"{self.name} {item!r} has the step {step_text!r}; a step is a whole number from 1"
            )
        step = int(step_text) if slash else 1
        if base == "*":
            return range(self.low, self.high + 1, step)
        first_text, dash, last_text = base.partition("-")
        first = self._parse_value(item, first_text)
        open_end = self.high if slash else first
        last = self._parse_value(item, last_text) if dash else open_end
        if first > last:
            raise ValueError(
                f"{self.name} {item!r} is a range from high to low; write it as two ranges with a comma"
            )
        return range(first, last + 1, step)

    def _parse_value(self, item: str, text: str) -> int:
        if _is_number(text) and self.low <= int(text) <= self.high:
            return int(text)
        if len(text) >= _SHORTEST_NAME:
            for value, name in enumerate(self.names, start=self.low):
                if name.startswith(text.lower()):
                    return value
        names = f" or {self.names[0][:3].upper()}-{self.names[-1][:3].upper()}" if self.names else ""
        raise ValueError(f"{self.name} {item!r}: found {text!r}, accepted is {self.low}-{self.high}{names}")


def _is_number(text: str) -> bool:
    """Tell plain decimal digits from signs, blanks and the other numerals int() and isdigit() take."""
    return text.isascii() and text.isdigit()


_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day-of-week", 0, 6, _WEEKDAYS),
)
