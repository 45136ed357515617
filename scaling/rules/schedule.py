"""Floors and ceilings by day, time and time zone. Pure: the time is the view's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Meta, Struct

from scaling.model import Reason, Verdict
from scaling.rules.view import MetricsView
from scaling.schedules.dates import Clock, Days, Times, parse_clock, parse_dates
from scaling.schedules.icalendar import Event, days_of, last_day

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LEAP_YEAR = 2000
_DAYS_REMEMBERED = 16  # an evaluation asks for two or three
_MOST_NAMED = 366  # days that lint looks at


def parse_days(text: str) -> frozenset[int]:
    """Weekday numbers (Monday 0) of `mon-fri`, `sat,sun`, `daily`. Raises ValueError."""
    if text.strip().lower() == "daily":
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if first not in DAYS or last not in DAYS:
            raise ValueError(
                f"found '{text}'; accepted are 'daily', days {', '.join(DAYS)}, and ranges such as 'mon-fri'"
            )
        start, end = DAYS.index(first), DAYS.index(last)
        days.update((start + offset) % 7 for offset in range((end - start) % 7 + 1))
    return frozenset(days)


def days_text(days: Iterable[int]) -> str:
    """Weekday numbers as `parse_days` reads them: daily, mon-fri, sat, or a list."""
    days = set(days)
    if len(days) == 7:
        return "daily"
    runs: list[list[int]] = []
    for day in sorted(days):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return ",".join(DAYS[run[0]] if len(run) == 1 else f"{DAYS[run[0]]}-{DAYS[run[-1]]}" for run in runs)


class Period(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"begin": "from", "end": "to"}
):
    """On `days`, from `from` to `to` (over midnight where `to` is not later; the day is that of `from`).

    With `on`, only on the dates it names; never on those of `not_on`. Days mean the day of `from`, times and metrics the time itself.
    """

    days: str = "daily"
    begin: str = "00:00"
    end: str = "24:00"
    on: Annotated[
        tuple[str, ...], Meta(min_length=1)
    ] = ()  # an empty one would hold on no date, or on all of them
    not_on: tuple[str, ...] = ()
    floor: int | None = None
    ceiling: int | None = None
    label: str = ""

    def name(self) -> str:
        """How decisions name it."""
        return self.label or f"{', '.join(self.on) or self.days} {self.begin}-{self.end}"


class _Dates:
    """What `on` or `not_on` names: it holds, does not hold, or (None) is not known, because a metric is not known."""

    def __init__(self, entries: tuple[str, ...], files: Mapping[str, tuple[Event, ...]]) -> None:
        parsed = {entry: parse_dates(entry) for entry in entries}
        self._named = frozenset(entries)
        self._days = {entry: days for entry, days in parsed.items() if isinstance(days, Days)}
        self._times = {entry: times for entry, times in parsed.items() if isinstance(times, Times)}
        self._files = {entry: files[entry] for entry in entries if entry in files}
        self.metrics = tuple(entry for entry in entries if entry.isidentifier())
        self._covering: dict[date, str] = {}

    def covering(self, day: date) -> str:
        """The entry that has the day; empty if none has. Days asked for are remembered: a file has many events."""
        if day not in self._covering:
            if len(self._covering) >= _DAYS_REMEMBERED:
                self._covering.clear()
            self._covering[day] = self._first_covering(day)
        return self._covering[day]

    def _first_covering(self, day: date) -> str:
        covering = (entry for entry, days in self._days.items() if days.covers(day))
        return next(covering, "") or next((name for name, of in self._files.items() if days_of(of, day)), "")

    def holds(self, day: date, clock: Clock, view: MetricsView) -> tuple[bool | None, str]:
        """Whether it holds at the clock's time in a range that began on `day`, and the entry that says so."""
        if entry := self.covering(day):
            return True, entry
        unknown = ""
        for entry, times in self._times.items():
            if clock.within(times.begin, times.end):
                return True, entry
        for name in self.metrics:
            summary = view.metric(name) if name in view.specs else None
            if summary is None or summary.problem is not None:
                unknown = unknown or name
            elif summary.latest > 0:
                return True, name
        return (None, unknown) if unknown else (False, "")

    def weekdays(self) -> set[int] | None:
        """The weekdays of all the dates it names; None where not all of them are dates of a year."""
        ranges = list(self._days.values())
        if not ranges or len(ranges) < len(self._named):
            return None
        weekdays: set[int] = set()
        for days in ranges:
            if not isinstance(days.first, date) or not isinstance(days.last, date):
                return None
            length = min((days.last - days.first).days, 6)
            weekdays.update((days.first.weekday() + offset) % 7 for offset in range(length + 1))
        return weekdays

    def dates(self) -> Iterator[date]:
        """Days that stand for all of those it names: up to a week of each range."""
        firsts = [days.first for days in self._days.values()]
        firsts += [times.begin.date() for times in self._times.values()]
        for event in (event for events in self._files.values() for event in events):
            old = event.yearly and event.begin.year < 1970  # Outlook's calendars have events of 1601
            firsts.append((event.begin_in(_LEAP_YEAR) if old else None) or event.begin)
        for first in firsts:
            begin = first if isinstance(first, date) else date(_LEAP_YEAR, *first)
            if begin.year >= 1970:  # the first year that lint's times have
                # Not the last day that a calendar has: whoever looks at a whole day asks for its end.
                until = min(begin.toordinal() + 7, date.max.toordinal())
                yield from map(date.fromordinal, range(begin.toordinal(), until))


class _Compiled:
    def __init__(self, period: Period, files: Mapping[str, tuple[Event, ...]]) -> None:
        self.period = period
        self.days = parse_days(period.days)
        begin, end = parse_clock(period.begin), parse_clock(period.end)
        self._begin = timedelta(minutes=begin)
        self._end = timedelta(minutes=end if begin < end else end + 1440)
        self.on, self.not_on = _Dates(period.on, files), _Dates(period.not_on, files)

    def never_holds(self) -> bool:
        """Whether `on` has dates of one year only, and none of them is one of `days`."""
        weekdays = self.on.weekdays()
        return weekdays is not None and not weekdays & self.days

    def active(self, clock: Clock, view: MetricsView) -> tuple[bool | None, str]:
        """Whether the period holds, or None where a metric decides it that is not known; and the entry that made it so."""
        answer: tuple[bool | None, str] = (False, "")
        for day in clock.begin_days():
            midnight = datetime.combine(day, time())
            if day.weekday() not in self.days or not clock.within(
                midnight + self._begin, midnight + self._end
            ):
                continue
            on, why_on = self.on.holds(day, clock, view) if self.period.on else (True, "")
            not_on, why_not = self.not_on.holds(day, clock, view)
            if on and not_on is False:
                return True, ""
            if on is False:
                continue
            if not_on:
                answer = answer if answer[0] is None else (False, why_not)
            else:
                answer = (None, why_on if on is None else why_not)
        return answer


class ScheduleRule:
    """Bounds the capacity while a period is active: the highest floor, the lowest ceiling of all of them.

    Of a period that may be active, because a metric is not known, the floor counts and the ceiling does not.
    """

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`files`: the events of the iCalendar files that periods name, which whoever loads the configuration adds."""

        periods: tuple[Period, ...]
        time_zone: str = "UTC"
        files: dict[str, tuple[Event, ...]] = {}

        def problems(self) -> dict[str, str]:
            problems: dict[str, str] = {}
            try:
                ZoneInfo(self.time_zone)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                problems["time_zone"] = (
                    f"found '{self.time_zone}'; accepted are IANA names such as 'Europe/Amsterdam'"
                )
            if not self.periods:
                problems["periods"] = "give at least one period"
            for index, period in enumerate(self.periods):
                for option, text in _period_errors(period, self.files):
                    problems[f"periods[{index}].{option}"] = text
            return problems

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self._zone = ZoneInfo(params.time_zone)
        self._files = params.files
        self._periods = tuple(_Compiled(period, params.files) for period in params.periods)

    def metrics(self) -> tuple[str, ...]:
        named = (name for bounded in self._periods for name in (*bounded.on.metrics, *bounded.not_on.metrics))
        return tuple(dict.fromkeys(named))

    def evaluate(self, view: MetricsView, /) -> Verdict:
        clock = Clock(view.now, self._zone)
        floors: list[int] = []
        ceilings: list[int] = []
        notes: list[str] = []
        for bounded in self._periods:
            active, why = bounded.active(clock, view)
            period = bounded.period
            if active is not False and period.floor is not None:
                floors.append(period.floor)
            if active and period.ceiling is not None:
                ceilings.append(period.ceiling)
            if active:
                notes.append(f"{self._name}: {period.name()}")
            elif active is None:
                kept = "its floor counts" if period.floor is not None else "its ceiling does not count"
                notes.append(f"{self._name}: {period.name()}, of which {why} is not known, so {kept}")
            elif why:
                notes.append(f"{self._name}: not {period.name()}, because of {why}")
        return Verdict(
            None,
            Reason.WITHIN_TARGET,
            floor=max(floors, default=None),
            ceiling=min(ceilings, default=None),
            note="; ".join(notes),
        )

    def ends_of_files(self) -> dict[str, date | None]:
        """The last day of each iCalendar file that has one; None for a file without any day."""
        ends: dict[str, date | None] = {}
        for name, events in self._files.items():
            last = last_day(events)
            if last is not None or not any(event.yearly for event in events):
                ends[name] = last
        return ends

    def never_holding(self) -> tuple[str, ...]:
        """The periods of which no date of `on` is one of their days."""
        return tuple(bounded.period.name() for bounded in self._periods if bounded.never_holds())

    def named_days(self) -> tuple[float, ...]:
        """A time in each day that stands for those its periods name, in order."""
        days = {day for bounded in self._periods for day in bounded.on.dates()}
        return tuple(
            datetime.combine(day, time(12), tzinfo=self._zone).timestamp()
            for day in sorted(days)[-_MOST_NAMED:]
        )


def _period_errors(period: Period, files: Mapping[str, tuple[Event, ...]]) -> list[tuple[str, str]]:
    errors = []
    for option, entries in (("on", period.on), ("not_on", period.not_on)):
        for entry in entries:
            try:
                parse_dates(entry)
            except ValueError as error:
                errors.append((option, str(error)))
            if entry.endswith(".ics") and entry not in files:
                errors.append((option, f"'{entry}' was not read; a file is given beside its tidemark.toml"))
    for option, parse, value in (
        ("days", parse_days, period.days),
        ("from", parse_clock, period.begin),
        ("to", parse_clock, period.end),
    ):
        try:
            parse(value)
        except ValueError as error:
            errors.append((option, str(error)))
    if period.floor is None and period.ceiling is None:
        errors.append(("floor", "give 'floor', 'ceiling' or both"))
    elif min(v for v in (period.floor, period.ceiling) if v is not None) < 0:
        errors.append(("floor", "floors and ceilings are 0 or more"))
    elif period.floor is not None and period.ceiling is not None and period.floor > period.ceiling:
        errors.append(("floor", f"found floor {period.floor} above ceiling {period.ceiling}"))
    return errors
