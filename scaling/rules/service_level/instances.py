"""What is learned of the instances: what a busy one serves, how many messages it holds, how long it takes to start. Pure.

* Service time: messages there over completed per second, by Little's law, is the time from arrival to completion. Its
  lowest values are those of messages that did not wait.
* Service rate: completed per second and serving instance, while all of them are busy. That is so where messages take
  longer than the service time and the backlog moves; a number that only stands higher is a service that got slower.
  Whatever all instances there complete is the least they can do, at any time. Which instances serve is certain for old
  ones only: the young ones, serving or not, bound the rate from both sides.
* What an instance holds: service rate times service time. By it the rate follows a service time that changes, where no
  busy time has told the rate for an hour, or ever. Where completed messages are not counted: `follow_drain`.
* Start-up time: from the report the change was decided upon to the one that finds the instances ready, where the platform
  counts its ready instances.
* Warm-up: what an instance called ready still takes to serve, for a platform that counts machines knows nothing of the
  app on them. Seen in completed messages, where all instances are busy after a scale-out. A platform that does not count
  ready instances is one that calls them ready at once.
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
WARM_SHARE = 0.25
"""Of the instances that serve, so many new ones show in what is completed."""
LONGEST_START = 1800.0
"""Seconds after which an instance that is not called ready is one that the platform does not count right."""
LONGEST_WARM_UP = 900.0
"""Seconds after which instances that still do not serve are taken for slow ones: it is the service rate that is lower."""

OLD = 1.5
"""Times the start-up time: instances asked for so long ago serve for certain."""
OLD_LEAST = 600.0
"""Seconds of the same at least, where the start-up time is learned: a rate taken from instances that do not serve yet asks
for more of them, and so on.
"""

FIRST_SERVICE_TIME = 1.0
"""Seconds one message takes, where nothing else is known."""

BUSY, NOT_BUSY = 1.25, 0.8
"""Times what all instances hold: with so many messages there, all are busy; below, they are not."""

WAITED, WAITED_LONG = 1.5, 5.0
"""Times the service time: messages that took so long had to wait, if the backlog moves; and in any case."""
GROWS = 1.5
"""Where so many times more arrive than are completed, what is there would not fit into instances that have room."""
MOVING = 0.05
"""A backlog moves where arrivals and completed messages differ by this share."""

ALIKE = 0.25
"""Messages that took as long as the service time, within this share, did not wait."""
HELD_KNOWN = 40
"""So often measured, what an instance holds is known."""

ENOUGH = 32.0
"""Messages there; with fewer, how long they took is chance in part, and counts for less."""

STEADY = 0.5
"""Little's law holds for a steady flow: at one end of the interval at least so much of the other is there. A burst that
comes and is done between two looks would make messages look fast, and instances slow.
"""

RATE_WEIGHT, HELD_WEIGHT, START_UP_WEIGHT = 0.1, 0.02, 0.3
BOUND_WEIGHT = 0.3
"""Of a bound that a known rate is above."""
TIME_DOWN, TIME_ALIKE, TIME_UP, TIME_REACH = 0.2, 0.05, 0.1, 0.5
"""The service time follows much lower values fast, and much higher ones, of which waiting may be a part, slowly: by a
twentieth per interval at most.
"""
ANOTHER = 1.25
"""A service time that tells a rate so many times higher, or lower, is believed though a busy time told another one."""
BELIEVED = 3600.0
"""Seconds for which a busy time is believed more than the service time."""

DOUBTED = 360_000.0
"""Seconds in which it doubles towards what is assumed of what an instance holds, where that is more: a hundredth per hour. A
rate learned too low shows nowhere, for too many instances are never busy; one that is too high shows at the next load.
"""

LEAST_START_UP = 1.0
LEAST_HELD = 1.0
LEAST_COMPLETED = 1e-6
"""Messages per second; with fewer nothing is learned."""

LEAST_IDLE = 0.25
"""Of the instances, so many must not have been needed at the end of a busy time for it to tell what one serves."""
LARGEST_CHANGE = 3.0
LARGEST_RISE = 1.25
"""Messages that vanish (a purge) look completed: one interval raises the service rate by no more than this."""
DRAINS_BELOW = 5.0
"""A drain that tells a lower rate counts so many times less than one that tells a higher: load that ends a busy time by
falling makes instances look slower than they are, and hardly anything makes them look faster.
"""


class Interval(Struct):
    """One interval between two observations: `seconds` long, messages at both ends, what arrived and was completed
    (messages per second). Of the instances `serving` are believed to have served, `certain` did, no more than `present`
    can have.
    """

    seconds: float
    before: float
    after: float
    arrived: float
    completed: float
    serving: float
    certain: int
    present: int


def service_rate(learned: Learned, held: float) -> float:
    """Messages per second of one busy instance."""
    return learned.rate if learned.rate > 0.0 else held / FIRST_SERVICE_TIME


def follow(learned: Learned, interval: Interval, given: float | None, now: float) -> None:
    """Learns the service time, the service rate and what an instance holds, where that is not `given`."""
    completed, present, held = interval.completed, interval.present, given or FIRST_HELD
    if completed < LEAST_COMPLETED or present < 1:
        return
    low, high = sorted((interval.before, interval.after))
    there = (low + high) / 2
    took, sure = there / completed, min(there / ENOUGH, 1.0)
    learned.held = learned.held or held
    known = given is not None or learned.held_seen > HELD_KNOWN or learned.time <= 0.0
    known = known or interval.arrived > GROWS * completed
    busy = (known and low > BUSY * learned.held * present) or _waited(learned, interval, took, low)
    if low > 0.0 and low >= STEADY * high:
        room = high <= learned.held * present and (learned.rate_seen > 0 or learned.time <= 0.0)
        _take_time(learned, took, sure, room=room)
    least = completed / present
    if learned.rate <= 0.0:
        learned.rate = max(learned.held / (learned.time or FIRST_SERVICE_TIME), least)
    elif busy:
        _measure(learned, interval, now)
    elif least > learned.rate:
        if learned.rate_seen:
            least = learned.rate + (min(least, learned.rate * LARGEST_RISE) - learned.rate) * RATE_WEIGHT
        learned.rate = least
    elif abs(took - learned.time) < ALIKE * learned.time:
        _follow_time(learned, interval, given, sure, now)
        if given is not None:
            learned.held = min(learned.held, given)


def _waited(learned: Learned, interval: Interval, took: float, low: float) -> bool:
    """Whether messages took so long that they had to wait for a busy instance."""
    time, completed = learned.time, interval.completed
    held = max(time * max(completed, learned.rate * interval.serving), LEAST_HELD * interval.present)
    if time <= 0.0 or took < WAITED * time or low < BUSY * held:
        return False
    return abs(interval.arrived - completed) > MOVING * completed or took > WAITED_LONG * time


def _take_time(learned: Learned, took: float, sure: float, *, room: bool) -> None:
    """`room`: there is room for all messages in the instances; higher values count then only."""
    known, before = learned.time, learned.time_before
    learned.time_before = took
    if known <= 0.0:
        learned.time = took if room else 0.0
    elif abs(took - known) < ALIKE * known and (room or took < known):
        learned.time += (took - known) * TIME_ALIKE * sure
    elif took < known:
        learned.time += (took - known) * TIME_DOWN * sure
    elif room and abs(took - before) < MOVING * before:
        learned.time += min(took - known, TIME_REACH * known) * TIME_UP * sure


def _measure(learned: Learned, interval: Interval, now: float) -> None:
    """A busy interval: exact where it is certain which instances served, a bound from either side where it is not."""
    least = interval.completed / interval.present
    if interval.certain == interval.present:
        _take_rate(learned, least, now)
    elif interval.certain >= 1 and learned.rate > interval.completed / interval.certain:
        _take_rate(learned, interval.completed / interval.certain, now, weight=BOUND_WEIGHT)
    elif learned.rate < least:
        learned.rate += (least - learned.rate) * RATE_WEIGHT


def _follow_time(learned: Learned, interval: Interval, given: float | None, sure: float, now: float) -> None:
    """Not busy: the rate follows the service time, or what is held the rate where that is known better."""
    told, assumed = learned.held / learned.time, given or FIRST_HELD
    least = interval.completed / interval.present
    if not learned.rate_seen:  # the rate is what was completed at least: an instance holds more than assumed
        learned.rate = max(learned.rate, told)
        learned.held = max(learned.held, least * learned.time)
        return
    doubted = now - learned.rate_at > BELIEVED
    if doubted:
        more = learned.held * (1.0 + min(interval.seconds / DOUBTED, 1.0))
        learned.held = max(learned.held, min(more, assumed))
    alike = learned.rate < ANOTHER * told < ANOTHER * ANOTHER * learned.rate
    if doubted or (learned.held_seen > HELD_KNOWN and not alike):
        learned.rate += (min(told, LARGEST_RISE * learned.rate) - learned.rate) * RATE_WEIGHT * sure
    else:
        learned.held_seen += 1
        seen = max(learned.rate * learned.time, LEAST_HELD)
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
    full = held * (interval.serving if interval.serving > 1.0 else 1.0)
    if interval.before > BUSY * full < interval.after:
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


def warm_up_of(learned: Learned) -> float:
    """Seconds from called ready to serving. Until that was seen, start-up and warm-up together take what is assumed."""
    if learned.warm_up_seen:
        return learned.warm_up
    return FIRST_START_UP - learned.start_up if learned.start_up < FIRST_START_UP else 0.0


def started(memory: Memory, ready: int | None, now: float) -> None:
    """Compares the platform's count of ready instances with the starts that are known: those that are over tell how
    long they took, and warm up from now on. Without a count all warm up from when they were asked for.
    """
    if not memory.starts:
        return
    kept = [start for start in memory.starts if now - start[0] < LONGEST_START]
    gone = sum(count for _, count in kept) - (0 if ready is None else max(memory.current - ready, 0))
    while gone > 0 and kept:
        asked, count = kept[0]
        take = min(count, gone)
        gone -= take
        if ready is not None:
            take_start_up(memory.learned, now - asked, now)
        memory.warming = [*memory.warming[-(STARTS - 1) :], (asked if ready is None else now, take)]
        if take == count:
            kept.pop(0)
        else:
            kept[0] = (asked, count - take)
    memory.starts = kept


def follow_warm_up(memory: Memory, interval: Interval, held: float, now: float) -> None:
    """Looks whether the instances called ready a short time ago serve, the oldest first. That shows only while all are
    busy; where they are not, nobody waits for them.
    """
    learned, warming = memory.learned, memory.warming
    if not warming:
        return
    busy = min(interval.before, interval.after) > BUSY * held * max(interval.serving, 1.0)
    if not learned.rate_seen or not busy:
        memory.warming = [start for start in warming if now < start[0] + warm_up_of(learned)]
        return
    cold = sum(count for _, count in warming)
    hot = memory.current - cold - sum(count for _, count in memory.starts)
    while warming and warming[0][0] < now:
        ready_at, count = warming[0]
        if count < WARM_SHARE * hot:  # too few to show
            if now < ready_at + warm_up_of(learned):
                break
        elif interval.completed < learned.rate * (hot + WARM * count):
            break
        else:
            _take_warm_up(learned, max(now - interval.seconds - ready_at, 0.0))
        hot += count
        warming = warming[1:]
    memory.warming = [start for start in warming if now - start[0] < LONGEST_WARM_UP]


def _take_warm_up(learned: Learned, seen: float) -> None:
    learned.warm_up_seen += 1
    learned.warm_up += (seen - learned.warm_up) * max(START_UP_WEIGHT, 1.0 / learned.warm_up_seen)


def not_serving(memory: Memory, start_up: float, now: float) -> Starts:
    """All instances that do not serve yet, as if each had been asked for one start-up time before it does: those that are
    not ready, and those that warm up.
    """
    if not memory.warming:
        return memory.starts
    warm_up = warm_up_of(memory.learned)
    warming = [
        (ready_at + warm_up - start_up, count)
        for ready_at, count in memory.warming
        if now < ready_at + warm_up
    ]
    return [*warming, *memory.starts]


def given_up(memory: Memory, excess: int) -> None:
    """Fewer instances: those that started last went first."""
    memory.recent, _ = fewer(memory.recent, excess)
    memory.starts, excess = fewer(memory.starts, excess)
    memory.warming, _ = fewer(memory.warming, excess)
