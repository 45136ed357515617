"""A KEDA trigger of the kind cron as periods with a floor: it is inside while its next end comes before its next start. Pure."""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise
from typing import Any

from scaling.schedules.ncrontab import Calendar
from tidemark.commands.importing.common.weeks import DAY, WEEK, clock_text, periods

MOST = 48
"""Starts and ends of a week. Chosen: as many periods are more than a person reads."""


def floors_of(start: str, end: str, floor: int) -> list[dict[str, Any]]:
    """Raises ValueError naming what has no equivalent."""
    if floor < 1:
        raise ValueError(f"found desiredReplicas {floor}; a floor is 1 or more")
    begins, ends = _read(start), _read(end)
    if begins.seconds != (0,) or ends.seconds != (0,):
        raise ValueError("a time of cron has five fields")
    whole = (31, 12)
    if all((len(calendar.days), len(calendar.months)) == whole for calendar in (begins, ends)):
        return _weekly(begins, ends, floor)
    return _yearly(begins, ends, floor, f"'{start}' to '{end}'")


def _read(text: str) -> Calendar:
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"found '{text[:60]}'; a time of cron has five fields")
    if fields[2] not in {"*", "?"} and fields[4] not in {"*", "?"}:
        raise ValueError(f"'{text[:60]}' means either of a day of the month and a day of the week")
    fields = [field.replace("?", "*") for field in fields]
    fields[4] = re.sub(r"\b7\b", "0", fields[4])  # Sunday has two numbers there
    return Calendar.from_fields(" ".join(fields))


def _minutes(calendar: Calendar) -> list[int]:
    """Minutes of the week, Monday first."""
    days = [(day - 1) % 7 for day in calendar.weekdays]
    return [
        day * DAY + 60 * hour + minute
        for day in days
        for hour in calendar.hours
        for minute in calendar.minutes
    ]


def _weekly(begins: Calendar, ends: Calendar, floor: int) -> list[dict[str, Any]]:
    starts, stops = _minutes(begins), _minutes(ends)
    if len(starts) + len(stops) > MOST:
        raise ValueError(f"it starts and ends {len(starts) + len(stops)} times a week; accepted are {MOST}")
    events = sorted({*starts, *stops})
    if not set(stops) - set(starts):
        raise ValueError("its end is never apart from its start")
    ranges = [
        (before, at, {"floor": floor})
        for before, at in pairwise([events[-1] - WEEK, *events])
        if at in stops and at not in starts  # of two at one time, the end does not come first
    ]
    return periods([(begin % WEEK, begin % WEEK + end - begin, wanted) for begin, end, wanted in ranges])


def _yearly(begins: Calendar, ends: Calendar, floor: int, words: str) -> list[dict[str, Any]]:
    """From one day of the year to another."""
    once = [
        calendar
        for calendar in (begins, ends)
        if [*map(len, (calendar.minutes, calendar.hours, calendar.days, calendar.months, calendar.weekdays))]
        == [1, 1, 1, 1, 7]
    ]
    if len(once) < 2:
        raise ValueError(f"{words} are neither times of the week nor a time of the year each")
    (first, begin), (last, end) = (
        (date(2000, calendar.months[0], calendar.days[0]), 60 * calendar.hours[0] + calendar.minutes[0])
        for calendar in once
    )
    if first == last:
        if begin >= end:
            raise ValueError(f"{words} begin and end on one day of the year, in this order")
        return [{"on": [_day(first)], "from": clock_text(begin), "to": clock_text(end), "floor": floor}]
    periods: list[dict[str, Any]] = [
        {"on": [_day(first)], **({"from": clock_text(begin)} if begin else {}), "floor": floor}
    ]
    after, before = date.fromordinal(first.toordinal() + 1), date.fromordinal(last.toordinal() - 1)
    if (after.month, after.day) != (last.month, last.day):
        periods.append({"on": [f"{_day(after)}..{_day(before)}"], "floor": floor})
    if end:
        periods.append({"on": [_day(last)], "to": clock_text(end), "floor": floor})
    return periods


def _day(day: date) -> str:
    return f"{day:%m-%d}"
