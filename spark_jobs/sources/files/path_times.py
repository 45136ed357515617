"""Which folders and files can hold what is wanted, by what stands in their paths. Pure.

A year of capture files is a hundred thousand folders: whoever asks for a day must not list them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from msgspec import Struct

UNITS = ("Year", "Month", "Day", "Hour")
"""Of a path's time, as layouts name them; what is finer does not pay."""

HOUR = timedelta(hours=1)
BEGINNING, AHEAD = (
    datetime(2014, 1, 1, tzinfo=UTC),
    timedelta(days=2),
)  # no hub is older, no clock further ahead

ABOVE = 2
"""Folders that may lie between a path and a layout's begin, for patterns."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")

Look = Callable[[str], bool | None]
"""Of a path of a folder or file: whether what is below may be wanted; None where that is to be asked of each."""

Times = Mapping[str, str | None]
"""Texts by unit."""


class FileFilter(Struct, frozen=True):
    """What the files that are read may hold; what is unset takes all. Rows are not filtered by it.

    `hub` counts in any case. `lag`, in seconds: how much later than an event its file may be named.
    """

    since: datetime | None = None
    until: datetime | None = None
    hub: str | None = None
    partitions: tuple[str, ...] = ()
    lag: float = 0.0

    def of_time(self, times: Times, *, early: timedelta = timedelta()) -> bool | None:
        """As Look. `early`: how much earlier than an event its file may be named."""
        span = _span(times)
        if span is None:
            return None
        begin, end, lag = *span, timedelta(seconds=self.lag)
        if (self.since is not None and end + early <= self.since) or (
            self.until is not None and begin - lag >= self.until
        ):
            return False
        whole = (self.since is None or begin >= self.since) and (self.until is None or end <= self.until)
        return True if whole or times.get("Hour") is not None else None

    def of_origin(self, hub: str | None, partition: str | None) -> bool:
        """False for another hub than the one that is wanted, and for other partitions; None is not known."""
        other = None not in {self.hub, hub} and str(self.hub).lower() != str(hub).lower()
        return not (other or (self.partitions and partition is not None and partition not in self.partitions))

    def hours(self, now: datetime, *, early: timedelta = timedelta()) -> list[dict[str, str]]:
        """The times that the paths of wanted files have: whole years, months, days and hours, as few as there can be; none
        where all times are wanted.
        """
        if self.since is None and self.until is None:
            return []
        begin = max((self.since or BEGINNING) - early, BEGINNING)
        return list(_cover(begin, (self.until or now + AHEAD) + timedelta(seconds=self.lag)))


def patterns(
    folders: Sequence[str], texts: Mapping[str, str], times: Sequence[Mapping[str, str]], *, inside: int = 0
) -> list[str]:
    """Patterns of folders, from a layout's: `{Year}` and so on stand for their texts. Where a path begins is not known: ABOVE
    folders above the layout's first, or within the first `inside` of them.
    """
    globs = []
    for units in times:
        known = {**texts, **units}
        last = max(
            place for place, name in enumerate(folders) if any(f"{{{unit}}}" in name for unit in units)
        )
        named = [_PLACEHOLDER.sub(partial(_text_of, known), name) for name in folders[: last + 1]]
        globs += ["/".join([*["*"] * -begin, *named[max(begin, 0) :]]) for begin in range(-ABOVE, inside + 1)]
    return globs


def _text_of(known: Mapping[str, str], name: re.Match[str]) -> str:
    return known.get(name[1], "*")


def in_paths(*patterns: str) -> Callable[[FileFilter], Look]:
    """A Look for paths that have their time anywhere: `{Year}` and so on stand in the patterns for the numbers."""
    parsed = [
        re.compile("/" + re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(pattern))) for pattern in patterns
    ]

    def of(wanted: FileFilter) -> Look:
        def look(path: str) -> bool | None:
            # The most specific pattern comes first.
            match_found = next((match for pattern in parsed if (match := pattern.search(f"{path}/"))), None)
            return None if match_found is None else wanted.of_time(match_found.groupdict())

        return look

    return of


def _span(times: Times) -> tuple[datetime, datetime] | None:
    """From when until before when; None for what is no time."""
    numbers = [times.get(unit) for unit in UNITS]
    known = [int(number) for number in numbers[: numbers.index(None) if None in numbers else None] if number]
    if not known:
        return None
    year, month, day, hour = [*known, *(1, 1, 1, 0)[len(known) :]]
    try:
        begin = datetime(year, month, day, hour, tzinfo=UTC)
        return begin, _next(begin, len(known))
    except (ValueError, OverflowError):
        return None


def _next(begin: datetime, units: int) -> datetime:
    """The begin of the next year, month, day or hour."""
    if units == 1:
        return begin.replace(year=begin.year + 1)
    if units == 2:
        return (begin + timedelta(days=31)).replace(day=1)
    return begin + (HOUR if units == 4 else timedelta(days=1))


def _cover(begin: datetime, end: datetime) -> Iterator[dict[str, str]]:
    at = begin.replace(minute=0, second=0, microsecond=0)
    while at < end:
        texts = dict(zip(UNITS, f"{at:%Y %m %d %H}".split(), strict=True))
        starts = 4 if at.hour else 3 if at.day > 1 else 2 if at.month > 1 else 1
        units = next(depth for depth in range(starts, 5) if depth == 4 or _next(at, depth) <= end)
        yield {unit: texts[unit] for unit in UNITS[:units]}
        at = _next(at, units)
