"""What the rule `service_level` remembers between reports: one bounded, versioned value per target. Pure.

It travels as bytes in the target's row (`TargetState.memories`), with everything else under the same ETag. Bytes that
cannot be read, or of another version, are no memory: the rule starts anew and says so.

Size: at most `MAX_BYTES`. What could grow is bounded where it is written: forecasts not yet judged, marks of past
arrivals, starting instances and highest needs by constants below, everything else has a fixed number of numbers.
"""

from __future__ import annotations

from collections.abc import Sized
from math import isfinite

import msgspec
from msgspec import Struct, field

VERSION = 1

MAX_BYTES = 16_384
"""No memory is larger. A usual one takes 6 KB; of the 1 MiB of a target's row that is little."""

FORECASTS = 16
"""Forecasts that wait for what came: enough to judge one in every sixteenth of the start-up time."""

MARKS = 24
"""Points kept of the arrivals of the past wait, to tell which messages were late."""

STARTS = 16
"""Groups of starting instances; more, and the two oldest are taken together."""

NEEDS = 24
"""Entries of the highest needs of a hold time."""

SCALES = (30.0, 120.0, 600.0, 3600.0)
"""Seconds over which arrival rates are averaged, beside the last interval's own."""

COPIES = 8
"""Copies of the rule on paper."""

FEATURES = 1 + len(SCALES)
MINUTES, HOURS, WEEK = 60, 24, 168


class Forecast(Struct, array_like=True):
    """What was expected at `at` of the time until `until`: `rate` messages/s, out of the rates that were seen then.
    `arrived` is the counter at `at`; `usual` and `scale` are what the error is measured by.
    """

    at: float
    until: float
    arrived: float
    rate: float
    usual: float
    scale: float
    seen: list[float]


class Copy(Struct, array_like=True):
    """One degree of carefulness, lived through on paper: what it would have, what would wait, what it would have cost.

    `starts` are (asked at, count) of instances that do not serve yet, oldest first; `needs` are (at, instances),
    falling, until what is `wanted` now. `cost` (instance-seconds) and `late` (messages) are discounted by the half-life of
    the score.
    """

    total: int = 0
    waiting: float = 0.0
    cost: float = 0.0
    late: float = 0.0
    starts: list[tuple[float, int]] = field(default_factory=list)
    needs: list[tuple[float, int]] = field(default_factory=list)
    wanted: int = 0


class Hour(Struct, array_like=True):
    """The shape of the hour: by minute, how far the arrivals are above (or below) the mean of their hour, as a share.

    `agreement` and `power` are the sums by which the shape is trusted: what each hour had in common with the shape
    known before it, and how much shape that was.
    """

    shape: list[float] = field(default_factory=lambda: [0.0] * MINUTES)
    now: list[float] = field(default_factory=lambda: [0.0] * MINUTES)
    index: int = -1
    hours: int = 0
    agreement: float = 0.0
    power: float = 0.0


class Calendar(Struct, array_like=True):
    """The usual rate by hour of the day and by hour of the week (Monday 00:00 UTC first), messages/s, with how often
    each was seen; `sum` and `count` are of the hour that `index` (hours since the epoch) is.
    """

    day: list[float] = field(default_factory=lambda: [0.0] * HOURS)
    day_seen: list[int] = field(default_factory=lambda: [0] * HOURS)
    week: list[float] = field(default_factory=lambda: [0.0] * WEEK)
    week_seen: list[int] = field(default_factory=lambda: [0] * WEEK)
    sum: float = 0.0
    count: int = 0
    index: int = -1


class Learned(Struct, array_like=True):
    """What was learned of the instances: messages/s of a busy one, seconds until the platform calls it ready (`start_up`)
    and from then until it serves (`warm_up`), messages it holds, seconds from waiting for none to completed (`time`).

    `*_seen` count the observations behind each, `*_at` is the time of the newest; 0 is an assumption. `time_before` is
    what the last interval alone said of `time`. `slope` is how fast the backlog grew in the last interval in which all
    instances, `drained_by` of them, were busy.
    """

    rate: float = 0.0
    rate_seen: int = 0
    rate_at: float = 0.0
    start_up: float = 0.0
    start_up_seen: int = 0
    start_up_at: float = 0.0
    warm_up: float = 0.0
    warm_up_seen: int = 0
    held: float = 0.0
    held_seen: int = 0
    time: float = 0.0
    time_before: float = 0.0
    slope: float = 0.0
    drained_by: float = 0.0


class Memory(Struct, array_like=True):
    """All of it. Times are seconds since the epoch, rates messages per second, counters messages since `since`."""

    version: int = VERSION
    since: float = 0.0
    resumed: float = 0.0
    at: float = 0.0
    interval: float = 15.0
    counted: bool = False
    seen: int = 0
    still: int = 0
    backlog: float = 0.0
    waiting: float = 0.0
    current: int = 0
    serving: float = 0.0
    arrived: float = 0.0
    rates: list[float] = field(default_factory=list)
    usual: float = 0.0
    blend: list[float] = field(default_factory=list)
    spread: list[list[float]] = field(default_factory=list)
    surprise: float = 0.0
    expected: float = 0.0
    level: float = 0.0
    chosen: int = 0
    forecasts: list[Forecast] = field(default_factory=list)
    marks: list[tuple[float, float]] = field(default_factory=list)
    starts: list[tuple[float, int]] = field(default_factory=list)
    warming: list[tuple[float, int]] = field(default_factory=list)
    recent: list[tuple[float, int]] = field(default_factory=list)
    needs: list[tuple[float, int]] = field(default_factory=list)
    wanted: int = 0
    copies: list[Copy] = field(default_factory=list)
    scored: float = 0.0
    late: float = 0.0
    day: int = 0
    day_begun: float = 0.0
    day_late: float = 0.0
    overdue: float = 0.0
    hour: Hour = field(default_factory=Hour)
    calendar: Calendar = field(default_factory=Calendar)
    learned: Learned = field(default_factory=Learned)
    started_anew: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Memory)


def encode(memory: Memory) -> bytes:
    return _encoder.encode(memory)


def decode(data: bytes | None) -> Memory | None:
    """The memory in the bytes; None where there is none, or none of this version, or a number in it is not finite."""
    if not data or len(data) > MAX_BYTES:
        return None
    try:
        memory = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return memory if _sound(memory) else None


def _sound(memory: Memory) -> bool:
    """A few sums are finite only where every number is; lengths are those this version writes."""
    if memory.version != VERSION or not memory.marks or not 0 <= memory.chosen < COPIES:
        return False
    if any(len(values) != length for values, length in _lengths(memory)):
        return False
    return isfinite(_total(memory)) and memory.interval > 0.0


def _lengths(memory: Memory) -> tuple[tuple[Sized, int], ...]:
    hour, calendar = memory.hour, memory.calendar
    return (
        (memory.rates, FEATURES),
        (memory.blend, FEATURES),
        (memory.spread, FEATURES),
        *((row, FEATURES) for row in memory.spread),
        *((forecast.seen, FEATURES) for forecast in memory.forecasts),
        (memory.copies, COPIES),
        (hour.shape, MINUTES),
        (hour.now, MINUTES),
        (calendar.day, HOURS),
        (calendar.day_seen, HOURS),
        (calendar.week, WEEK),
        (calendar.week_seen, WEEK),
    )


def _total(memory: Memory) -> float:
    hour, calendar, learned = memory.hour, memory.calendar, memory.learned
    return (
        sum(memory.rates)
        + sum(memory.blend)
        + sum(map(sum, memory.spread))
        + sum(hour.shape)
        + sum(hour.now)
        + hour.agreement
        + hour.power
        + sum(calendar.day)
        + sum(calendar.week)
        + sum(copy.waiting + copy.cost + copy.late for copy in memory.copies)
        + memory.arrived
        + memory.at
        + memory.since
        + memory.interval
        + memory.backlog
        + memory.waiting
        + memory.surprise
        + memory.expected
        + memory.usual
        + memory.scored
        + learned.rate
        + learned.held
        + learned.time
        + learned.start_up
        + learned.warm_up
    )
