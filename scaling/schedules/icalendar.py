"""Whole days out of an iCalendar file (RFC 5545), as calendars of holidays are: a subset that takes no time to expand. Pure.

Accepted are events of whole days: DTSTART and DTEND of dates (or DURATION in days or weeks), RRULE:FREQ=YEARLY with UNTIL or COUNT, and
EXDATE. Everything else that would change which days are meant is refused with its line. What describes an event (SUMMARY, TRANSP,
VALARM, ...) is passed over: calendars of holidays mark their days as TRANSPARENT.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from datetime import date, datetime

from msgspec import Struct

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
_DURATION = re.compile(r"P(\d{1,3})([DW])")
_YEARLY = "accepted is RRULE:FREQ=YEARLY, with UNTIL or COUNT"
_REFUSED = {
    "RDATE": "further dates are not read; give each an event of its own",
    "EXRULE": "exceptions by a rule are not read; use EXDATE",
    "RECURRENCE-ID": "an event changed for one date is not read; use EXDATE and an event of its own",
}
_ONCE = frozenset({"DTSTART", "DTEND", "DURATION", "RRULE"})
_PASSED_OVER = frozenset({"VTIMEZONE", "VALARM"})


class Event(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`days` days from `begin` on; if `yearly`, in each later year, too, but for those that begin after `until` or on a day of
    `skipped`. One that begins on 29 February is in leap years only.
    """

    begin: date
    days: int = 1
    yearly: bool = False
    until: date | None = None
    skipped: tuple[date, ...] = ()

    def covers(self, day: date) -> bool:
        """Whether a day is one of the event's."""
        years = (day.year, day.year - 1) if self.yearly else (self.begin.year,)
        return any(self._covers_from(year, day) for year in years)

    def _covers_from(self, year: int, day: date) -> bool:
        begin = _in_year(self.begin, year)
        if begin is None or begin < self.begin or begin in self.skipped:
            return False
        return not (self.until and begin > self.until) and 0 <= (day - begin).days < self.days


def parse_calendar(data: bytes) -> tuple[Event, ...]:
    """The events of a file. Raises ValueError that begins with `line N: ` for the first thing that is not accepted."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"line 1: the file has {len(data)} bytes; accepted are {MAX_BYTES}")
    reader, number = _Reader(), 1
    for number, content in _unfolded(data.removeprefix(BOM_UTF8)):
        reader.read(number, *_property(content, number))
    if reader.open or not reader.whole:
        raise ValueError(f"line {number}: the file ends before END:VCALENDAR")
    return tuple(reader.events)


class _Reader:
    """Takes the lines of a file in order."""

    def __init__(self) -> None:
        self.open: list[str] = []
        """The components that a line stands in, from the outermost to the innermost."""
        self.whole = False
        self.events: list[Event] = []
        self._event: dict[str, tuple[int, str]] = {}
        self._skipped: list[date] = []

    def read(self, number: int, name: str, value: str) -> None:
        inner = self.open[-1] if self.open else ""
        if name == "BEGIN":
            _check_begin(value, self.open, number)
            self.open.append(value)
            if value == "VEVENT":
                self._event, self._skipped = {"BEGIN": (number, "")}, []
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
            self._skipped += [_date(each, name, number) for each in value.split(",")]
        self._event.setdefault(name, (number, value))

    def _keep(self, number: int) -> None:
        if self._event.get("STATUS", (0, ""))[1].upper() == "CANCELLED":
            return
        if len(self.events) == MAX_EVENTS:
            raise ValueError(f"line {number}: more than {MAX_EVENTS} events; split the calendar")
        self.events.append(_event(self._event, self._skipped))


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
    return name, value.upper() if name in {"BEGIN", "END"} else value


def _check_begin(component: str, open_components: Sequence[str], number: int) -> None:
    above = open_components[-1] if open_components else ""
    accepted = {"": {"VCALENDAR"}, "VCALENDAR": {"VEVENT", "VTIMEZONE"}, "VEVENT": {"VALARM"}}.get(above)
    if component not in (accepted or set()) and _PASSED_OVER.isdisjoint(open_components):
        raise ValueError(f"line {number}: found BEGIN:{component[:40]} in {above or 'the file'}; {_ACCEPTED}")


def _event(found: dict[str, tuple[int, str]], skipped: Sequence[date]) -> Event:
    if "DTSTART" not in found:
        raise ValueError(f"line {found['BEGIN'][0]}: an event without DTSTART; {_ACCEPTED}")
    line, text = found["DTSTART"]
    begin = _date(text, "DTSTART", line)
    days = 1
    if "DTEND" in found:
        line, text = found["DTEND"]
        days = (_date(text, "DTEND", line) - begin).days  # DTEND is the first day after the event
        if days == 0:
            days = 1  # some programs write an event of one day like this
    elif "DURATION" in found:
        line, text = found["DURATION"]
        match = _DURATION.fullmatch(text)
        if match is None:
            raise ValueError(
                f"line {line}: found DURATION:{text[:40]}; accepted are days and weeks, P2D or P1W"
            )
        days = int(match[1]) * (7 if match[2] == "W" else 1)
    if not 1 <= days <= _LONGEST:
        raise ValueError(f"line {line}: the event lasts {days} days; accepted are 1 to {_LONGEST}")
    yearly, until = _rule(*found["RRULE"], begin) if "RRULE" in found else (False, None)
    return Event(begin=begin, days=days, yearly=yearly, until=until, skipped=tuple(skipped))


def _rule(line: int, text: str, begin: date) -> tuple[bool, date | None]:
    """Whether an event is yearly, and the day of its last occurrence if there is one."""
    parts = dict(part.upper().partition("=")[::2] for part in text.split(";"))
    repeated = {"BYMONTH": begin.month, "BYMONTHDAY": begin.day, "INTERVAL": 1}  # what DTSTART says already
    for name, value in repeated.items():
        if parts.get(name) == str(value):
            del parts[name]
    parts.pop("WKST", None)  # matters to weekly rules only
    if parts.pop("FREQ", "") != "YEARLY" or not parts.keys() <= {"UNTIL", "COUNT"} or len(parts) > 1:
        raise ValueError(f"line {line}: found RRULE:{text[:80]}; {_YEARLY}")
    if "UNTIL" in parts:
        return True, _date(parts["UNTIL"].partition("T")[0], "UNTIL", line)
    if "COUNT" not in parts:
        return True, None
    count = parts["COUNT"]
    if not (count.isascii() and count.isdigit()) or not 1 <= int(count[:9]) <= _MOST_YEARS:
        raise ValueError(f"line {line}: found COUNT={count[:20]}; accepted are 1 to {_MOST_YEARS}")
    years = range(begin.year, min(begin.year + 8 * int(count) + 8, 10_000))  # 29 February may be 8 years away
    occurrences = [day for year in years if (day := _in_year(begin, year)) is not None]
    return True, occurrences[: int(count)][-1]


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
