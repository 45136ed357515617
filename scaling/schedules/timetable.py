"""When the collector is due: its schedule as times of an epoch, and how many of them fit into a window. Pure."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from functools import lru_cache
from math import floor
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from scaling.schedules import ncrontab

COUNTED = 20_000
"""Most firings that are counted at once; as many samples as a window holds."""

_MONDAY = 946_857_600.0  # 3 January 2000
_DAYS = 15
_LOOKED_AT = 4_000  # firings; a fortnight of those that are not every minute


def zone_of(name: str) -> ZoneInfo:
    """Raises ValueError naming what was found and what is accepted."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"found time zone '{name}'; accepted are IANA names such as 'Europe/Amsterdam'"
        ) from None


class Timetable:
    """A schedule (NCRONTAB or a time span) in a time zone. Raises ValueError naming what is wrong with either.

    `interval` is the smallest between two firings, in seconds; `uneven` the schedule where there are others.
    """

    def __init__(self, schedule: str, time_zone: str = "UTC") -> None:
        self._schedule = ncrontab.parse(schedule)
        self.interval = self._schedule.smallest_interval()
        self.is_even = self._schedule.is_even()
        self.uneven = "" if self.is_even else schedule
        self.time_zone = time_zone
        self._zone = zone_of(time_zone)

    def due(self, begin: float, end: float) -> int:
        """How often it fires after `begin` and before `end`, at most COUNTED times.

        Raises OverflowError, ValueError or OSError for times that no calendar has.
        """
        count = 0
        if begin < end:
            run = self._schedule.next_after(datetime.fromtimestamp(begin, self._zone))
            while (at := run.timestamp()) < end and count < COUNTED:
                count += at > begin  # an hour that a clock repeats is passed over once
                run = self._schedule.next_after(run)
        return count

    def seconds_to_next(self, now: float) -> float:
        """Seconds from `now` to the next firing; `interval` for a time that no calendar has."""
        try:
            return self._schedule.next_after(datetime.fromtimestamp(now, self._zone)).timestamp() - now
        except (OverflowError, ValueError, OSError):
            return self.interval

    def samples(self, span: float) -> tuple[int, int]:
        """The fewest and the most firings in a window of `span` that ends with one.

        For the fewest, windows that begin in a pause longer than themselves (a night, say) do not count.
        """
        even = max(int(span / self.interval + 1e-9), 1)
        if self.is_even:
            return even, even
        times = self._fortnight(span)
        counts: list[int] = []
        after_pause: list[int] = []
        for index in range(bisect_right(times, times[0] + span), len(times)):
            first = bisect_right(times, times[index] - span)
            paused = times[first] - times[first - 1] > span
            (after_pause if paused else counts).append(index - first + 1)
        return min(counts or after_pause, default=even), max(counts + after_pause, default=even)

    def _fortnight(self, span: float) -> list[float]:
        run = datetime.fromtimestamp(_MONDAY, self._zone)
        times = [run.timestamp()]
        until = _MONDAY + max(_DAYS * 86_400.0, 3 * span)
        while times[-1] < until and len(times) < _LOOKED_AT:
            run = self._schedule.next_after(run)
            times.append(run.timestamp())
        return times[1:]


EARLY = 0.1
"""Share of the schedule's interval by which a timer may fire early and still be taken for the tick it was meant to be."""


def with_every(collecting: Timetable, seconds: float) -> Timetable:
    """The timetable of a target that is due only every so many `seconds`. Raises ValueError where the schedule has no such times."""
    times = seconds / collecting.interval
    if not collecting.is_even or times < 1 or times != round(times) or seconds > 86_400:
        what = f"every {collecting.interval:g} s" if collecting.is_even else "at uneven times"
        raise ValueError(
            f"found {seconds:g} s; accepted are multiples of the collection interval up to a day, and COLLECT_SCHEDULE "
            f"fires {what}"
        )
    minutes, second = divmod(round(seconds), 60)
    return Timetable(f"{minutes // 60:02}:{minutes % 60:02}:{second:02}") if times > 1 else collecting


def is_due(now: float, every: float, interval: float, last: float | None = None) -> bool:
    """Whether an evaluation every so many seconds is due at `now`, after the `last` one at that time, or never.

    It is due if its interval began since the last one, however late the tick is. Intervals are counted from the epoch, so that
    all instances and restarts agree on them, and entities that targets share are read together. `interval` is that of the
    schedule; a tick may be early by a tenth of it.
    """
    if every <= interval or last is None:
        return True
    return _turn(now, every, interval) > _turn(last, every, interval)


def _turn(at: float, every: float, interval: float) -> int:
    return floor((at + EARLY * interval) / every)


@lru_cache(maxsize=64)
def timetable(schedule: str, time_zone: str) -> Timetable:
    """The same, worked out once."""
    return Timetable(schedule, time_zone)
