"""What is learned of the instances: what a busy one serves, how many messages it holds, how long it takes to start. Pure.

* Service rate: completed per second and serving instance, while all of them are busy, that is while more is there at
  both ends of an interval than they hold. Until that was seen, by Little's law: what an instance holds, times completed
  per second, over what is there. Where completed messages are not counted: `follow_drain`.
* What an instance holds: messages there, over completed per second, times the service rate, while not all are busy.
* Start-up time: from the report the change was decided upon to the one that finds the instances ready, where the platform
  counts its ready instances.
* Warm-up: what an instance called ready still takes to serve, for a platform that counts machines knows nothing of the
  app on them. Seen in completed messages, where all instances are busy after a scale-out.
"""

from __future__ import annotations

from msgspec import Struct

from scaling.rules.service_level.memory import STARTS, Learned, Memory
from scaling.rules.service_level.plan import Starts, fewer

FIRST_HELD = 16.0
"""Messages an instance holds at once where nothing else is known: Service Bus' `maxConcurrentCalls` in Functions."""

FIRST_START_UP = 90.0
"""Seconds, warm-up included, where nothing else is known: of an App Service plan about 30 s for the instance and 60 s
for the app.
"""

WARM = 0.75
"""New instances count as warm when so much of what they should serve is served."""
LONGEST_WARM_UP = 900.0
"""Seconds after which instances that still do not serve are taken for slow ones: it is the service rate that is lower."""

FIRST_SERVICE_TIME = 1.0
"""Seconds one message takes, where nothing else is known."""

BUSY, NOT_BUSY = 1.25, 0.8
"""Times what all instances hold: with so many messages there, all are busy; below, they are not."""

STEADY = 0.5
"""Little's law holds for a steady flow: at one end of the interval at least so much of the other is there."""

RATE_WEIGHT, HELD_WEIGHT, START_UP_WEIGHT = 0.1, 0.02, 0.3
LEAST_START_UP = 1.0

LEAST_IDLE = 0.25
"""Of the instances, so many must not have been needed at the end of a busy time for it to tell what one serves."""
LARGEST_CHANGE = 3.0
DRAINS_BELOW = 5.0
"""A drain that tells a lower rate counts so many times less than one that tells a higher: load that ends a busy time by
falling makes instances look slower than they are, and hardly anything makes them look faster.
"""


class Interval(Struct):
    """One interval between two observations: `seconds` long, messages at both ends, what arrived and was completed
    (messages per second), instances that served. None where it is not known.
    """

    seconds: float
    before: float
    after: float
    arrived: float | None
    completed: float | None
    serving: float


def service_rate(learned: Learned, held: float) -> float:
    """Messages per second of one busy instance."""
    return learned.rate if learned.rate > 0.0 else held / FIRST_SERVICE_TIME


def follow(learned: Learned, interval: Interval, held: float, now: float, *, steady: bool) -> None:
    """Learns the service rate and what an instance holds. `steady`: the same instances served all the time."""
    completed, serving = interval.completed, interval.serving
    if completed is None or serving < 1.0 or not steady:
        return
    full = held * serving
    busy = min(interval.before, interval.after) > BUSY * full
    if busy:
        if completed > 0.0:
            _take_rate(learned, completed / serving, now)
        return
    there = (interval.before + interval.after) / 2
    low, high = sorted((interval.before, interval.after))
    if not 0.0 < high < NOT_BUSY * full or completed <= 0.0 or low < STEADY * high:
        return
    if learned.rate_seen == 0:
        seen = held * completed / there
        learned.rate += (seen - learned.rate) * (0.05 if learned.rate > 0.0 else 1.0)
        return
    seen = there / completed * learned.rate
    learned.held_seen += 1
    learned.held += (seen - learned.held) * max(HELD_WEIGHT, 1.0 / learned.held_seen)


def _take_rate(learned: Learned, seen: float, now: float, weight: float = RATE_WEIGHT) -> None:
    learned.rate_seen += 1
    learned.rate_at = now
    learned.rate += (seen - learned.rate) * max(weight, 1.0 / learned.rate_seen)


def follow_drain(learned: Learned, interval: Interval, held: float, now: float) -> None:
    """Learns the service rate where completed messages are not counted: at the end of a time in which all were busy.

    Then the backlog fell by what the instances served less what arrived. What arrived is known right after it, in
    instances: those that are busy then. So the fall, over the instances that were not needed, is what one serves.
    """
    full = held * max(interval.serving, 1.0)
    if min(interval.before, interval.after) > BUSY * full:
        learned.slope = (interval.after - interval.before) / interval.seconds
        learned.drained_by = interval.serving
        return
    if interval.after >= NOT_BUSY * full or learned.drained_by <= 0.0:
        return
    idle = learned.drained_by - interval.after / held
    if learned.slope < 0.0 and idle >= max(1.0, LEAST_IDLE * learned.drained_by):
        known = service_rate(learned, held)
        seen = min(max(-learned.slope / idle, known / LARGEST_CHANGE), known * LARGEST_CHANGE)
        learned.rate = known
        _take_rate(learned, seen, now, weight=RATE_WEIGHT if seen > known else RATE_WEIGHT / DRAINS_BELOW)
    learned.drained_by = 0.0


def take_start_up(learned: Learned, seen: float, now: float) -> None:
    """Takes one measured start-up time."""
    learned.start_up_seen += 1
    learned.start_up_at = now
    known = learned.start_up if learned.start_up > 0.0 else FIRST_START_UP
    weight = max(START_UP_WEIGHT, 1.0 / (learned.start_up_seen + 1.0))
    learned.start_up = max(known + (seen - known) * weight, LEAST_START_UP)


def started(memory: Memory, ready: int, now: float) -> None:
    """Compares the platform's count of ready instances with the starts that are known: those that are over tell how
    long they took, and warm up from now on.
    """
    starting = sum(count for _, count in memory.starts)
    gone = starting - max(memory.current - ready, 0)
    kept = list(memory.starts)
    while gone > 0 and kept:
        asked, count = kept[0]
        take = min(count, gone)
        gone -= take
        take_start_up(memory.learned, now - asked, now)
        memory.warming = [*memory.warming[-(STARTS - 1) :], (now, take)]
        if take == count:
            kept.pop(0)
        else:
            kept[0] = (asked, count - take)
    memory.starts = kept


def follow_warm_up(memory: Memory, interval: Interval, held: float, now: float) -> None:
    """Looks whether the instances called ready a short time ago serve. That shows only while all are busy; where they are
    not, nobody waits for them.
    """
    if not memory.warming:
        return
    learned = memory.learned
    busy = min(interval.before, interval.after) > BUSY * held * max(interval.serving, 1.0)
    if interval.completed is None or not learned.rate_seen or not busy:
        memory.warming = []
        return
    ready_at = memory.warming[0][0]
    cold = sum(count for at, count in memory.warming if at < now)
    starting = sum(count for _, count in memory.starts) + sum(
        count for at, count in memory.warming if at >= now
    )
    if cold and interval.completed >= learned.rate * (memory.current - starting - (1.0 - WARM) * cold):
        learned.warm_up_seen += 1
        seen = max(now - interval.seconds - ready_at, 0.0)
        learned.warm_up += (seen - learned.warm_up) * max(START_UP_WEIGHT, 1.0 / learned.warm_up_seen)
        memory.warming = [(at, count) for at, count in memory.warming if at >= now]
    elif now - ready_at > LONGEST_WARM_UP:
        memory.warming = []


def not_serving(memory: Memory, start_up: float, now: float) -> Starts:
    """All instances that do not serve yet, as if each had been asked for one start-up time before it does: those that are
    not ready, and those that warm up.
    """
    warm_up = memory.learned.warm_up
    warming = [
        (ready_at + warm_up - start_up, count)
        for ready_at, count in memory.warming
        if now < ready_at + warm_up
    ]
    return [*warming, *memory.starts] if warming else memory.starts


def given_up(memory: Memory, excess: int) -> None:
    """Fewer instances: those that started last went first."""
    memory.starts, excess = fewer(memory.starts, excess)
    memory.warming, _ = fewer(memory.warming, excess)
