"""Profiles of an Azure Monitor autoscale setting: when each is in force, as periods of the rule `schedule`. Pure.

A profile of a fixed date is in force from its start to its end. One with a recurrence begins at each of its times, and is in force
until the next one begins; it has no end of its own. Another one is the default, in force where no other is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct, structs

from scaling.rules.schedule import DAYS
from tidemark.commands.importing.azure_monitor.windows_zones import iana_of
from tidemark.commands.importing.common.given import Given, UnreadableError
from tidemark.commands.importing.common.imported import Imported
from tidemark.commands.importing.common.weeks import DAY, WEEK, periods, ranges_between_begins
from tidemark.foundation.sanitize import one_line

MOST_BEGINS = 200
"""Begins of a profile in a week. Chosen: more than one an hour is no schedule that people wrote."""


class Profile(Struct, frozen=True):
    """`begins` are minutes of the week; `fixed` is from when to when, by the clock of `zone`."""

    name: str
    given: Given
    minimum: int
    maximum: int
    default: int
    zone: str = "UTC"
    begins: tuple[int, ...] = ()
    fixed: tuple[datetime, datetime] | None = None
    recurs: bool = False

    @property
    def rules(self) -> list[Given]:
        return self.given.tables("rules")


def read_profile(given: Given, made: Imported) -> Profile:
    """Raises UnreadableError."""
    capacity = given.at("capacity")
    minimum = capacity.whole("minimum", 1)
    maximum = capacity.whole("maximum", max(minimum, 1))
    if not capacity.has("maximum") or minimum > maximum:
        raise UnreadableError(f"{capacity.path}: accepted is a minimum that is not above the maximum")
    profile = Profile(
        _name(given.raw("name")), given, minimum, maximum, min(max(capacity.whole("default", minimum), minimum), maximum)
    )  # fmt: skip
    if given.has("fixedDate"):
        return _fixed(profile, given.at("fixedDate"), made)
    if given.has("recurrence"):
        return _recurring(profile, given.at("recurrence"), made)
    return profile


def _name(text: str) -> str:
    """The portal names the end of a recurrence by JSON: {"name": "Auto created default ...", "for": "Weekend"}."""
    try:
        named = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        named = None
    if isinstance(named, Mapping) and named.get("for"):
        return one_line(f"default after {named['for']}")[:100]
    return text[:100] or "default"


def _zone(name: str, path: str, made: Imported) -> str:
    try:
        return iana_of(name)
    except ValueError:
        made.note(f"{path}.timeZone", f"'{name}' is not known here, so UTC is written; correct time_zone")
        return "UTC"


def _fixed(profile: Profile, given: Given, made: Imported) -> Profile:
    begin, end = (_moment(given, name) for name in ("start", "end"))
    if end.second:
        end = end.replace(second=0) + timedelta(minutes=1)
    begin = begin.replace(second=0)
    if begin >= end:
        raise UnreadableError(f"{given.path}: the end is not after the start")
    zone = _zone(given.text("timeZone"), given.path, made)
    for name, time in (("start", begin), ("end", end)):
        _note_offset(given, name, time.replace(tzinfo=ZoneInfo(zone)), made)
    return structs.replace(profile, zone=zone, fixed=(begin, end), recurs=False)


def _note_offset(given: Given, name: str, time: datetime, made: Imported) -> None:
    """Notes an offset that is not the zone's. One of 0 is written with every time, whatever the zone is."""
    try:
        offset = datetime.fromisoformat(given.text(name)).utcoffset()
    except ValueError:  # more digits of a second than are read
        return
    if offset and offset != time.utcoffset():
        made.note(
            f"{given.path}.{name}",
            f"the offset in {given.text(name)} is not that of {time.tzinfo} and is left out, so it is {time:%Y-%m-%d %H:%M} there",
        )


def _moment(given: Given, name: str) -> datetime:
    """A time of the zone: an offset that is written with it means nothing."""
    try:
        time = datetime.fromisoformat(given.text(name)[:19])
        if not 1970 <= time.year < 9999:
            raise ValueError
    except ValueError:
        raise given.unreadable(name, "a time such as 2026-12-24T18:00:00 is accepted") from None
    return time.replace(tzinfo=None, microsecond=0)


def _recurring(profile: Profile, given: Given, made: Imported) -> Profile:
    frequency = given.text("frequency", "Week")
    schedule = given.at("schedule")
    zone = _zone(schedule.text("timeZone"), schedule.path, made)
    days = [str(day)[:3].casefold() for day in schedule.listed("days")]
    if frequency.casefold() != "week" or not days or not set(days) <= set(DAYS):
        made.note(
            f"{given.path} of profile '{profile.name}'",
            "only weekly recurrences on named days are known, so the profile is left out; write its times as a period of a schedule",
        )
        return structs.replace(profile, zone=zone, begins=(), recurs=True)
    hours, minutes = (_numbers(schedule, name, most) for name, most in (("hours", 23), ("minutes", 59)))
    begins = [
        DAYS.index(day) * DAY + 60 * hour + minute for day in days for hour in hours for minute in minutes
    ]
    if len(begins) > MOST_BEGINS:
        raise UnreadableError(f"{schedule.path}: {len(begins)} begins a week; accepted are {MOST_BEGINS}")
    return structs.replace(profile, zone=zone, begins=tuple(begins), recurs=True)


def _numbers(given: Given, name: str, most: int) -> list[int]:
    try:
        numbers = [int(value) for value in given.listed(name)] or [0]
    except (ValueError, OverflowError):
        numbers = [-1]
    if not all(0 <= number <= most for number in numbers):
        raise given.unreadable(name, f"numbers of 0 to {most} are accepted")
    return numbers


def schedules(profiles: Sequence[Profile], made: Imported) -> list[dict[str, Any]]:
    """The rules `schedule` that bound the target as the profiles do, within the lowest minimum and the highest maximum."""
    low, high = min(profile.minimum for profile in profiles), max(profile.maximum for profile in profiles)
    weekly = [profile for profile in profiles if profile.begins]
    fixed = [profile for profile in profiles if profile.fixed is not None]
    zone = weekly[0].zone if weekly else fixed[0].zone if fixed else "UTC"
    for other in weekly:
        if other.zone != zone:
            made.note(
                f"the time zone {other.zone} of profile '{other.name}'",
                f"profiles end where the next one begins, which is read in one zone; its times are written as those of {zone}: correct them",
            )
    first_at: dict[int, Profile] = {}
    for other in weekly:
        for minute in other.begins:
            first = first_at.setdefault(minute, other)
            if first is not other:
                made.note(
                    f"profile '{other.name}'",
                    f"it begins at a minute at which profile '{first.name}' begins, which counts there as the first of the two",
                )
    ranges = ranges_between_begins([(minute, profile) for profile in weekly for minute in profile.begins])
    if not ranges:
        ranges = [(0, WEEK, profile) for profile in profiles if profile.fixed is None and not profile.recurs][
            :1
        ]
    excepted = [_range_text(profile, zone) for profile in fixed]
    bounded = [(begin, end, _options(profile, low, high)) for begin, end, profile in ranges]
    weekly_periods = periods([bounds for bounds in bounded if bounds[2].keys() - {"label"}])
    weekly_periods = [{**period, **({"not_on": excepted} if excepted else {})} for period in weekly_periods]
    for index, profile in enumerate(fixed):
        before = excepted[:index]
        options = _options(profile, low, high)
        if options.keys() - {"label"}:
            dates = {"on": [excepted[index]], **({"not_on": before} if before else {})}
            label = {"label": options.pop("label")}
            weekly_periods.append({**label, **dates, **options})
    return [{"type": "schedule", "time_zone": zone, "periods": weekly_periods}] if weekly_periods else []


def _options(profile: Profile, low: int, high: int) -> dict[str, Any]:
    floor = {"floor": profile.minimum} if profile.minimum > low else {}
    ceiling = {"ceiling": profile.maximum} if profile.maximum < high else {}
    return {"label": profile.name, **floor, **ceiling}


def _range_text(profile: Profile, zone: str) -> str:
    """When a fixed profile is in force, by the clock of the schedule."""
    assert profile.fixed is not None
    if profile.zone == zone:
        begin, end = profile.fixed
    else:
        begin, end = (
            time.replace(tzinfo=ZoneInfo(profile.zone)).astimezone(ZoneInfo(zone)) for time in profile.fixed
        )
    end = max(
        end, begin + timedelta(minutes=1), key=lambda time: time.replace(tzinfo=None)
    )  # a repeated hour
    return f"{begin:%Y-%m-%d %H:%M}..{end:%Y-%m-%d %H:%M}"
