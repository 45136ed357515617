"""Whole days out of an iCalendar file (RFC 5545), as calendars of holidays are: a subset that takes no time to expand. Pure.

Accepted are events of whole days: DTSTART and DTEND of dates (or DURATION in days or weeks; or of midnights by a clock of their own),
RRULE:FREQ=YEARLY on a day or on an nth weekday of a month, with UNTIL or COUNT, EXDATE, RDATE, and events that stand for one date of another
(RECURRENCE-ID). Everything else that would change which days are meant is refused with its line. What describes an event (SUMMARY,
TRANSP, VALARM, ...) is passed over: calendars of holidays mark their days as TRANSPARENT. Nor is a VTIMEZONE read: a day is one by the
clock of the rule.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct, structs

MAX_BYTES = 256 * 1024
"""Largest file that is read. Chosen: ten years of a country's holidays with descriptions take 100 KB."""

MAX_EVENTS = 1_000
"""Most events of a file. Chosen: the days of a file are stored with each decision, and so many take 6 KB there."""

_LONGEST = 366
"""Days of an event. Chosen: a calendar of holidays has none longer than a year."""

_MOST_YEARS = 500
_ACCEPTED = "accepted are whole days, such as DTSTART;VALUE=DATE:20261225"
_PROPERTY = re.compile(r'([A-Za-z0-9-]+)((?:;(?:"[^"]*"|[^":;])*)*):(.*)', re.DOTALL)
_DATE = re.compile(r"\d{8}")
_MIDNIGHT = re.compile(r"(\d{8})T000000")
_NTH = re.compile(r"([+-]?[1-4])?(MO|TU|WE|TH|FR|SA|SU)")
_DURATION = re.compile(r"P(\d{1,3})([DW])")
_YEARLY = "accepted is RRULE:FREQ=YEARLY on the day of DTSTART, or on its weekday (BYMONTH=11;BYDAY=4TH), with UNTIL or COUNT"
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_REFUSED = {"EXRULE": "exceptions by a rule are not read; use EXDATE"}
_ONCE = frozenset({"DTSTART", "DTEND", "DURATION", "RRULE", "RECURRENCE-ID", "UID"})
_PASSED_OVER = frozenset({"VTIMEZONE", "VALARM"})


class Event(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`days` days from `begin` on; if `yearly`, in each later year, too, but for those that begin after `until` or on a day of
    `skipped`. One that begins on 29 February is in leap years only. With `nth` it is in each year on the nth weekday of that month which
    `begin` is (below 0: from the month's end), where the month has one.
    """

    begin: date
    days: int = 1
    yearly: bool = False
    until: date | None = None
    skipped: tuple[date, ...] = ()
    nth: Annotated[int, Meta(ge=-5, le=5)] = 0

    def covers(self, day: date) -> bool:
        years = (day.year, day.year - 1) if self.yearly else (self.begin.year,)
        return any(self._covers_from(year, day) for year in years)

    def _covers_from(self, year: int, day: date) -> bool:
        begin = self.begin_in(year)
        if begin is None or begin < self.begin or begin in self.skipped:
            return False
        return not (self.until and begin > self.until) and 0 <= (day - begin).days < self.days

    @property
    def last(self) -> date | None:
        """Its last day; None where it has one in later and later years, or none at all."""
        begin: date | None = self.begin
        if self.yearly and self.until is None:
            return None
        if self.yearly and self.until is not None:
            years = range(self.until.year, self.begin.year - 1, -1)
            begins = (
                begin
                for year in years
                if (begin := self.begin_in(year)) and self.begin <= begin <= self.until
            )
            begin = next((begin for begin in begins if begin not in self.skipped), None)
        elif begin in self.skipped:
            begin = None
        return begin and date.fromordinal(min(begin.toordinal() + self.days - 1, date.max.toordinal()))

    def begin_in(self, year: int) -> date | None:
        """Where it would begin in a year, if it has one there."""
        return _nth_weekday(self.begin, self.nth, year) if self.nth else _in_year(self.begin, year)


def _nth_weekday(day: date, nth: int, year: int) -> date | None:
    """The nth weekday of a month: those of `day`."""
    if not date.min.year <= year < date.max.year:
        return None
    first = date(year, day.month, 1)
    after = date(year + day.month // 12, day.month % 12 + 1, 1)
    if nth > 0:
        wanted = first + timedelta(days=(day.weekday() - first.weekday()) % 7 + 7 * (nth - 1))
    else:
        last = after - timedelta(days=1)
        wanted = last - timedelta(days=(last.weekday() - day.weekday()) % 7 + 7 * (-nth - 1))
    return wanted if first <= wanted < after else None


def parse_calendar(data: bytes) -> tuple[Event, ...]:
    """The events of a file. Raises ValueError that begins with `line N: ` for the first thing that is not accepted."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"line 1: the file has {len(data)} bytes; accepted are {MAX_BYTES}")
    reader, number = _Reader(), 1
    for number, content in _unfolded(data.removeprefix(BOM_UTF8)):
        reader.read(number, *_property(content, number))
    if reader.open or not reader.whole:
        raise ValueError(f"line {number}: the file ends before END:VCALENDAR")
    return reader.found()


class _Reader:
    """Takes the lines of a file in order."""

    def __init__(self) -> None:
        self.open: list[str] = []
        """The components that a line stands in, from the outermost to the innermost."""
        self.whole = False
        self.events: list[tuple[str, Event]] = []
        """With the UID of the event, where it is not one that stands for a date of another."""
        self._event: dict[str, tuple[int, str]] = {}
        self._skipped: list[date] = []
        self._further: list[date] = []
        self._replaced: dict[str, set[date]] = {}

    def read(self, number: int, name: str, value: str) -> None:
        inner = self.open[-1] if self.open else ""
        if name == "BEGIN":
            _check_begin(value, self.open, number)
            self.open.append(value)
            if value == "VEVENT":
                self._event, self._skipped, self._further = {"BEGIN": (number, "")}, [], []
        elif name == "END":
            if value != inner:
                raise ValueError(f"line {number}: END:{value[:40]} ends {inner or 'nothing'}")
            self.open.pop()
            self.whole = not self.open
            if value == "VEVENT":
                self._keep(number)
        elif not inner:
            raise ValueError(f"line {number}: found {name[:40]} where BEGIN:VCALENDAR is accepted")
        elif inner == "VCALENDAR" and name == "METHOD" and value.upper() == "CANCEL":
            raise ValueError(f"line {number}: METHOD:CANCEL takes events back; {_ACCEPTED}")
        elif inner == "VEVENT":
            self._note(number, name, value)

    def _note(self, number: int, name: str, value: str) -> None:
        if name in _REFUSED:
            raise ValueError(f"line {number}: found {name}: {_REFUSED[name]}")
        if name in _ONCE and name in self._event:
            raise ValueError(f"line {number}: a second {name} in one event")
        if name == "EXDATE":
            self._skipped += [_date(text, name, number) for text in value.split(",")]
        if name == "RDATE":
            self._further += [_date(text, name, number) for text in value.split(",")]
        self._event.setdefault(name, (number, value))

    def _keep(self, number: int) -> None:
        uid = self._event.get("UID", (0, ""))[1]
        if "RECURRENCE-ID" in self._event:
            line, text = self._event["RECURRENCE-ID"]
            if not uid:
                raise ValueError(f"line {line}: found RECURRENCE-ID in an event without UID")
            self._replaced.setdefault(uid, set()).add(_date(text, "RECURRENCE-ID", line))
            uid = ""
        if self._event.get("STATUS", (0, ""))[1].upper() == "CANCELLED":
            return
        event, skipped = _event(self._event, self._skipped), set(self._skipped)
        further = [day for day in self._further if day not in skipped]
        alone = structs.replace(event, yearly=False, until=None, skipped=(), nth=0)
        self.events += [(uid, event), *((uid, structs.replace(alone, begin=day)) for day in further)]
        if len(self.events) > MAX_EVENTS:
            raise ValueError(f"line {number}: more than {MAX_EVENTS} events; split the calendar")

    def found(self) -> tuple[Event, ...]:
        """The events, without the dates for which others stand."""
        return tuple(_without(event, self._replaced.get(uid, ())) for uid, event in self.events)


def _without(event: Event, days: Collection[date]) -> Event:
    return structs.replace(event, skipped=(*event.skipped, *sorted(days))) if days else event


def last_day(events: Sequence[Event]) -> date | None:
    """The last day of all events; None where there is none, or none that is the last one."""
    if any(event.yearly and event.until is None for event in events):
        return None
    return max((event.last for event in events if event.last is not None), default=None)


def days_of(events: Sequence[Event], day: date) -> bool:
    """Whether a day is one of any event's."""
    return any(event.covers(day) for event in events)


def _unfolded(data: bytes) -> Iterator[tuple[int, str]]:
    """Each line with the number it begins at; one that begins with a blank or a tab continues the one before, maybe within a letter
    of several bytes (RFC 5545, 3.1).
    """
    first, parts = 0, list[bytes]()
    for number, line in enumerate(re.split(rb"\r\n|\n|\r", data), start=1):
        if line[:1] in {b" ", b"\t"} and parts:
            parts.append(line[1:])
            continue
        if parts:
            yield first, _text(b"".join(parts), first)
        first, parts = number, [line] if line.strip() else []
    if parts:
        yield first, _text(b"".join(parts), first)


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ValueError(f"line {number}: found what is not UTF-8; save the file as UTF-8") from None


def _property(content: str, number: int) -> tuple[str, str]:
    match = _PROPERTY.fullmatch(content)
    if match is None:
        raise ValueError(f"line {number}: is no line of iCalendar (NAME:VALUE)")  # it may hold anything
    name, value = match[1].upper(), match[3].strip()
    if name == "RECURRENCE-ID" and "RANGE=" in match[2].upper():
        raise ValueError(
            f"line {number}: found RECURRENCE-ID for this and later dates; end the event by UNTIL, and begin another one"
        )
    return name, value.upper() if name in {"BEGIN", "END"} else value


def _check_begin(component: str, open_components: Sequence[str], number: int) -> None:
    above = open_components[-1] if open_components else ""
    accepted = {"": {"VCALENDAR"}, "VCALENDAR": {"VEVENT", "VTIMEZONE"}, "VEVENT": {"VALARM"}}.get(above)
    if component not in (accepted or set()) and _PASSED_OVER.isdisjoint(open_components):
        raise ValueError(f"line {number}: found BEGIN:{component[:40]} in {above or 'the file'}; {_ACCEPTED}")


def _event(lines: dict[str, tuple[int, str]], skipped: Sequence[date]) -> Event:
    if "DTSTART" not in lines:
        raise ValueError(f"line {lines['BEGIN'][0]}: an event without DTSTART; {_ACCEPTED}")
    line, text = lines["DTSTART"]
    midnight = _MIDNIGHT.fullmatch(text)
    if midnight and ("DTEND" not in lines or {"RRULE", "RDATE", "EXDATE"} & lines.keys()):
        midnight = None  # an instant; or one of which the rule means a time
    begin = _date(midnight[1] if midnight else text, "DTSTART", line)
    line, days = _length(lines, begin, at_midnight=midnight is not None)
    if not 1 <= days <= _LONGEST:
        raise ValueError(f"line {line}: the event lasts {days} days; accepted are 1 to {_LONGEST}")
    event = Event(begin=begin, days=days, skipped=tuple(skipped))
    return _repeated(event, *lines["RRULE"]) if "RRULE" in lines else event


def _length(lines: dict[str, tuple[int, str]], begin: date, *, at_midnight: bool) -> tuple[int, int]:
    """The line that says how many days an event has, and how many."""
    if "DTEND" in lines:
        line, text = lines["DTEND"]
        midnight = _MIDNIGHT.fullmatch(text) if at_midnight else None
        days = (_date(midnight[1] if midnight else text, "DTEND", line) - begin).days
        # DTEND is the first day after the event; some programs write an event of one day as if it were not
        return line, 1 if days == 0 and not at_midnight else days
    if "DURATION" not in lines:
        return lines["DTSTART"][0], 1
    line, text = lines["DURATION"]
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"line {line}: found DURATION:{text[:40]}; accepted are days and weeks, P2D or P1W")
    return line, int(match[1]) * (7 if match[2] == "W" else 1)


def _repeated(event: Event, line: int, text: str) -> Event:
    begin = event.begin
    pairs = [part.upper().partition("=")[::2] for part in text.split(";")]
    parts = dict(pairs)
    if len(parts) < len(pairs):
        raise ValueError(f"line {line}: found RRULE:{text[:80]}, where a part stands twice; {_YEARLY}")
    nth = _nth_of(parts, begin)
    repeated = {"BYMONTH": begin.month, "BYMONTHDAY": begin.day, "INTERVAL": 1}  # what DTSTART says already
    for name, value in repeated.items():
        if parts.get(name) == str(value):
            del parts[name]
    parts.pop("WKST", None)  # matters to weekly rules only
    if parts.pop("FREQ", "") != "YEARLY" or not parts.keys() <= {"UNTIL", "COUNT"} or len(parts) > 1:
        raise ValueError(f"line {line}: found RRULE:{text[:80]}; {_YEARLY}")
    event = structs.replace(event, yearly=True, nth=nth)
    if "UNTIL" in parts:
        return structs.replace(event, until=_date(parts["UNTIL"].partition("T")[0], "UNTIL", line))
    if "COUNT" not in parts:
        return event
    count = parts["COUNT"]
    if not (count.isascii() and count.isdigit()) or not 1 <= int(count[:9]) <= _MOST_YEARS:
        raise ValueError(f"line {line}: found COUNT={count[:20]}; accepted are 1 to {_MOST_YEARS}")
    years = range(begin.year, min(begin.year + 8 * int(count) + 8, 10_000))  # 29 February may be 8 years away
    begins = (day for year in years if (day := event.begin_in(year)) is not None)
    return structs.replace(event, until=next(islice(begins, int(count) - 1, None), date.max))


def _nth_of(parts: dict[str, str], begin: date) -> int:
    """Takes the weekday out of a rule's parts, as BYDAY=4TH, or BYDAY=TH;BYSETPOS=4; 0 without one, or where it is not that of DTSTART."""
    match = _NTH.fullmatch(parts.get("BYDAY", ""))
    position = parts.get("BYSETPOS", "")
    if match is None or parts.get("BYMONTH") != str(begin.month) or bool(match[1]) == bool(position):
        return 0
    alone = _NTH.fullmatch(f"{position}{match[2]}") if position else match
    if alone is None or _WEEKDAYS[begin.weekday()] != match[2]:
        return 0
    nth = int(alone[1])
    if _nth_weekday(begin, nth, begin.year) != begin:
        return 0
    for name in ("BYDAY", "BYSETPOS"):
        parts.pop(name, None)
    return nth


def _in_year(day: date, year: int) -> date | None:
    try:
        return day.replace(year=year)
    except ValueError:  # 29 February, or a year that no calendar has
        return None


def _date(text: str, name: str, line: int) -> date:
    try:
        if _DATE.fullmatch(text):
            return datetime.strptime(text, "%Y%m%d").date()  # noqa: DTZ007 - a date has no time zone
    except ValueError:
        pass
    raise ValueError(f"line {line}: found {name} {text[:40]!r}; {_ACCEPTED}")
