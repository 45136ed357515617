"""Counters, numbers that only grow: what a window keeps of their readings, and the increases between them. Pure.

Each sample of such a window is the increase per collection interval since the reading before. After a failed read it is the mean of
the intervals that passed, and the sample that is missing stays missing. All samples follow from the set of readings: so whatever order
readings arrive in, and however often, no increase counts twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf

from msgspec import Struct

from scaling.model import MetricSample

JITTER = 0.05
"""Share of an interval by which two readings may be off it and still count as whole intervals apart, so that an increase of whole
messages stays one. Chosen: a timer fires within 3 s of a minute.
"""

SHORTEST = 0.5
"""Intervals that two readings are apart at least for an increase between them. Chosen: where a timer fires twice, or late and then on
time, the few messages between are no rate; they are part of the next increase.
"""


class Readings(Struct, frozen=True):
    """Readings ascending by time: those within the span of the window, and the newest one before it. `counters` names what
    was read, as in `MetricSample.counter`.
    """

    times: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    counters: tuple[int, ...] = ()

    def until(self, latest: float) -> Readings:
        """Without what is later."""
        return self._part(0, bisect_right(self.times, latest))

    def with_reading(self, sample: MetricSample, span: float, most: int) -> Readings:
        """With another reading, and no more than `most`. A second one of the same time changes nothing."""
        at, counter = bisect_left(self.times, sample.at), sample.counter or 0
        if self.times[at : at + 1] == (sample.at,):
            return self
        both = Readings(
            (*self.times[:at], sample.at, *self.times[at:]),
            (*self.values[:at], sample.value, *self.values[at:]),
            (*self.counters[:at], counter, *self.counters[at:]),
        )
        count = len(both.times)
        before = bisect_right(both.times, both.times[-1] - span) - 1
        return both._part(max(before, count - most, 0), count)

    def _part(self, first: int, end: int) -> Readings:
        return Readings(self.times[first:end], self.values[first:end], self.counters[first:end])


def increases(readings: Readings, interval: float) -> tuple[list[float], list[float]]:
    """Times and increases per interval. There is none for the first reading of a counter.

    A number that falls began anew, and what it has counted since is the increase. If that is more than any other increase there is,
    the number may have lost a part of a sum instead, as when an instance ends whose counter is in it: then there is none. So it is with
    the step by which it passes the number before the fall, for the part may have come back. Nor is there an increase
    where a counter falls that the source has named: nothing began anew there.
    """
    grown: dict[float, float] = {}
    doubted: dict[float, float] = {}
    fallen_from = -1.0
    since, before, known = -inf, 0.0, None
    for at, value, counter in zip(readings.times, readings.values, readings.counters, strict=True):
        apart = (at - since) / interval
        if counter == known and apart < SHORTEST:
            continue
        if counter != known:
            fallen_from = -1.0
        elif value < before:
            fallen_from = max(fallen_from, before)
            if not counter:
                doubted[at] = value / _intervals(apart)
        elif before < fallen_from <= value and not counter:
            fallen_from, doubted[at] = -1.0, (value - before) / _intervals(apart)
        else:
            grown[at] = (value - before) / _intervals(apart)
        since, before, known = at, value, counter
    highest = max(grown.values(), default=-1.0)
    merged = sorted(
        (grown | {at: increase for at, increase in doubted.items() if increase <= highest}).items()
    )
    return [at for at, _ in merged], [increase for _, increase in merged]


def _intervals(apart: float) -> float:
    """How many intervals two readings are apart."""
    whole = float(round(apart))
    return whole if whole and abs(apart - whole) <= JITTER else apart
