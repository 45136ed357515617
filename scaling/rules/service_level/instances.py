"""What is learned of the instances: how many messages one serves and holds at once, and how long it takes to start. Pure.

* Service time: by Little's law, the messages that are there over those completed per second are the seconds from arrival to
  completion. The lowest values are of messages that did not wait.
* Service rate: completed messages per second and serving instance, while all instances are busy. They are busy where messages take
  longer than the service time and the backlog moves. (A time that is longer while the backlog stands is a slower service.) What all
  present instances complete is a lower bound at any time. Only old instances serve for certain: the young ones, serving or
  not, bound the rate from both sides.
* Concurrency: service rate times service time. It lets the rate follow a service time that changes, where no busy interval
  measured the rate for an hour, or ever. Where the concurrency is given, or completed messages are not counted, see `service_time`.
* Start-up time: from the report that the change was decided on to the one that finds the instances ready, where the platform
  counts ready instances.
* Warm-up: what a ready instance still takes to serve. Platforms count machines and know nothing of the app on them. It shows in
  completed messages, where all instances are busy after a scale-out; but the first ones of a new instance are completed as late as
  they take. A platform that does not count ready instances is treated as one whose instances are ready at once.
"""

from __future__ import annotations

from msgspec import Struct

from scaling.rules.service_level.memory import MAX_STARTS, LearnedInstance, Memory, Starts
from scaling.rules.service_level.sizing import count_instances, remove_newest

FIRST_CONCURRENCY = 16.0
"""Messages an instance processes at once, until known: the default `maxConcurrentCalls` of Service Bus in Azure Functions."""

FIRST_START_UP = 90.0
"""Seconds, warm-up included, until known. Of an App Service plan about 30 s are for the instance and 60 s for the app (estimate
of 21 November 2026; benchmarks and `advise` assume the same).
"""

FIRST_SERVICE_TIME = 1.0
"""Seconds of one message, until known. Chosen: with 16 at once, 16 messages per second and instance."""

WARM_SHARE = 0.75
"""New instances are warm when this share of what they should serve is served. Chosen: the rate is not known to a quarter."""

VISIBLE_SHARE = 0.25
"""New instances show in what is completed if they are this share of those that serve. Chosen, for the same reason."""

MAX_START_UP = 1800.0
"""Seconds after which an instance that is not ready is one that the platform counts wrongly. Chosen: longer than any start-up of
an App Service plan or Kubernetes node that we know of.
"""

MAX_WARM_UP = 900.0
"""Seconds after which an instance that does not serve fully is a slow one: then the service rate is lower. Chosen: half of it."""

OLD_START_UPS = 1.5
"""Instances that were asked for so many start-up times ago serve for certain. Chosen: half as long again as learned."""

MIN_OLD = 600.0
"""At least so many seconds, where the start-up time is learned. A rate measured on instances that do not serve yet is too low,
asks for more of them, and so on. Chosen: no start-up of the worlds tried was longer than 5 minutes.
"""

BUSY = 1.25
"""Times the concurrency of all instances: with more messages there all are busy. Chosen: a fifth more than they hold, because the
concurrency is known to about that.
"""

WAITED, WAITED_LONG = 1.5, 5.0
"""Times the service time: messages that took so long had to wait, if the backlog moves; or in any case. Chosen."""

GROWING = 1.5
"""Where so many times more messages arrive than are completed, those there do not fit into instances with room. Chosen."""

MOVING = 0.05
"""A backlog moves where arrivals and completed messages differ by this share. Chosen: above the error of a count."""

SAME_TIME = 0.25
"""Messages that took as long as the service time, within this share, did not wait. Chosen: as `WARM_SHARE`."""

CONCURRENCY_KNOWN = 40
"""Measurements after which the concurrency is known. Chosen: ten minutes of reports every 15 s."""

MANY_MESSAGES = 32.0
"""With fewer messages there, their time is partly chance, and counts for less. Chosen: two instances' worth."""

STEADY = 0.5
"""Little's law holds for a steady flow: at one end of the interval at least this share of the other is there. Without it, a burst
that comes and goes between two reports makes messages look fast and instances slow: over 120 simulated worlds
1.10 times the instance-hours of a rule that knows the truth, with it 1.05.
"""

RATE_WEIGHT, CONCURRENCY_WEIGHT, START_UP_WEIGHT = 0.1, 0.02, 0.3
"""Weight of the newest measurement. Chosen: ten busy intervals for the rate, fifty for the concurrency, which changes with a
deployment only, and three scale-outs for the start-up time, of which there are few.
"""

BOUND_WEIGHT = 0.3
"""Weight of an upper bound on the rate that is below it. Chosen: a service that gets slower makes messages late at once."""

TIME_DOWN, TIME_SAME, TIME_UP, MAX_TIME_RISE = 0.2, 0.05, 0.1, 0.5
"""Weights of the newest service time. It follows much lower values fast, because messages do not get fast by waiting, and much
higher ones slowly: by a twentieth per interval (0.1 of at most a half). Chosen.
"""

OTHER_RATE = 1.25
"""A service time that implies a rate so many times higher or lower is believed, although busy intervals measured another.
Chosen: more than the two differ by on a steady load.
"""

RATE_BELIEVED = 3600.0
"""Seconds for which a busy interval is believed more than the service time. Chosen: one hour, within which most loads peak."""

CONCURRENCY_DOUBLES = 360_000.0
"""Seconds in which a concurrency below the assumed one doubles: by a hundredth an hour. Chosen: a rate learned too low shows
nowhere, because too many instances are never busy, while one that is too high shows at the next load.
"""

MIN_START_UP, MIN_CONCURRENCY, MIN_COMPLETED = 1.0, 1.0, 1e-6
"""Seconds, messages, and messages per second: with less nothing is divided."""

MAX_RATE_RISE = 1.25
"""One interval raises the rate by no more than this factor: messages that vanish (a purge) look completed. Chosen."""


class Interval(Struct, kw_only=True):
    """One interval between two reports, `seconds` long.

    `backlog_before` and `backlog_after` are the messages at its ends, `arrived` and `completed` messages per second. `serving`
    instances are believed to have served. `certain` ones did, and no more than `present` ones can have.
    """

    seconds: float
    backlog_before: float
    backlog_after: float
    arrived: float
    completed: float
    serving: float
    certain: int
    present: int

    @property
    def rate_of_present(self) -> float:
        """Completed messages per second and present instance: no more than a busy one serves."""
        return self.completed / self.present


def service_rate(learned: LearnedInstance, concurrency: float) -> float:
    """Messages per second of one busy instance."""
    return learned.service_rate if learned.service_rate > 0.0 else concurrency / FIRST_SERVICE_TIME


def learn_from_flow(learned: LearnedInstance, interval: Interval, now: float) -> None:
    """Learns service time, service rate and concurrency where messages are counted. With a concurrency that is given, `service_time`
    does.
    """
    completed, present = interval.completed, interval.present
    if completed < MIN_COMPLETED or present < 1:
        return
    low, high = sorted((interval.backlog_before, interval.backlog_after))
    mean_backlog = (low + high) / 2
    took, confidence = mean_backlog / completed, min(mean_backlog / MANY_MESSAGES, 1.0)  # Little's law
    learned.concurrency = learned.concurrency or FIRST_CONCURRENCY
    is_busy = _is_full(learned, interval, low) or _did_wait(learned, interval, took, low)
    if low > 0.0 and low >= STEADY * high:
        measured = learned.service_rate_count > 0 or learned.service_time <= 0.0
        has_room = high <= learned.concurrency * present and measured
        _follow_service_time(learned, took, confidence, has_room=has_room)
    if learned.service_rate <= 0.0:
        assumed = learned.concurrency / (learned.service_time or FIRST_SERVICE_TIME)
        learned.service_rate = max(assumed, interval.rate_of_present)
    elif is_busy:
        _measure_rate(learned, interval, now)
    elif interval.rate_of_present > learned.service_rate:
        _raise_rate(learned, interval.rate_of_present)
    elif abs(took - learned.service_time) < SAME_TIME * learned.service_time:
        _follow_rate_or_concurrency(learned, interval, confidence, now)


def _is_full(learned: LearnedInstance, interval: Interval, low: float) -> bool:
    """Whether more messages were there than all instances hold, as far as that is known."""
    is_known = (
        learned.concurrency_count > CONCURRENCY_KNOWN
        or learned.service_time <= 0.0
        or interval.arrived > GROWING * interval.completed
    )
    return is_known and low > BUSY * learned.concurrency * interval.present


def _did_wait(learned: LearnedInstance, interval: Interval, took: float, low: float) -> bool:
    """Whether messages took so long that they waited for a busy instance."""
    time, completed = learned.service_time, interval.completed
    if time <= 0.0 or took < WAITED * time:
        return False
    rate = max(completed, learned.service_rate * interval.serving)
    if low < BUSY * max(time * rate, MIN_CONCURRENCY * interval.present):
        return False
    return abs(interval.arrived - completed) > MOVING * completed or took > WAITED_LONG * time


def _follow_service_time(learned: LearnedInstance, took: float, confidence: float, *, has_room: bool) -> None:
    """Takes one time of a message in. A longer one counts only if the instances have room for all messages."""
    known, before = learned.service_time, learned.last_service_time
    learned.last_service_time = took
    if known <= 0.0:
        learned.service_time = took if has_room else 0.0
    elif abs(took - known) < SAME_TIME * known and (has_room or took < known):
        learned.service_time += (took - known) * TIME_SAME * confidence
    elif took < known:
        learned.service_time += (took - known) * TIME_DOWN * confidence
    elif has_room and abs(took - before) < MOVING * before:
        learned.service_time += min(took - known, MAX_TIME_RISE * known) * TIME_UP * confidence


def _raise_rate(learned: LearnedInstance, completed_by_one: float) -> None:
    """An instance serves no less than what all present ones completed. A measured rate follows that slowly."""
    rate = learned.service_rate
    if learned.service_rate_count:
        completed_by_one = rate + (min(completed_by_one, rate * MAX_RATE_RISE) - rate) * RATE_WEIGHT
    learned.service_rate = completed_by_one


def _measure_rate(learned: LearnedInstance, interval: Interval, now: float) -> None:
    """All instances were busy: the rate is exact if it is certain which ones served, and has a bound on either side if not."""
    lower = interval.rate_of_present
    if interval.certain == interval.present:
        _take_rate(learned, lower, now)
    elif interval.certain >= 1 and learned.service_rate > interval.completed / interval.certain:
        _take_rate(learned, interval.completed / interval.certain, now, weight=BOUND_WEIGHT)
    elif learned.service_rate < lower:
        learned.service_rate += (lower - learned.service_rate) * RATE_WEIGHT


def _follow_rate_or_concurrency(
    learned: LearnedInstance,
    interval: Interval,
    confidence: float,
    now: float,
) -> None:
    """Not busy: the rate follows the service time, or the concurrency follows the rate where that is known better."""
    implied_rate = learned.concurrency / learned.service_time
    if not learned.service_rate_count:  # the rate is a lower bound: an instance holds more than assumed
        learned.service_rate = max(learned.service_rate, implied_rate)
        learned.concurrency = max(learned.concurrency, interval.rate_of_present * learned.service_time)
        return
    is_doubted = now - learned.service_rate_at > RATE_BELIEVED
    if is_doubted:
        grown = learned.concurrency * (1.0 + min(interval.seconds / CONCURRENCY_DOUBLES, 1.0))
        learned.concurrency = max(learned.concurrency, min(grown, FIRST_CONCURRENCY))
    agrees = learned.service_rate < OTHER_RATE * implied_rate < OTHER_RATE * OTHER_RATE * learned.service_rate
    if is_doubted or (learned.concurrency_count > CONCURRENCY_KNOWN and not agrees):
        target = min(implied_rate, MAX_RATE_RISE * learned.service_rate)
        learned.service_rate += (target - learned.service_rate) * RATE_WEIGHT * confidence
    else:
        learned.concurrency_count += 1
        measured = max(learned.service_rate * learned.service_time, MIN_CONCURRENCY)
        weight = max(CONCURRENCY_WEIGHT, 1.0 / learned.concurrency_count)
        learned.concurrency += (measured - learned.concurrency) * weight


def _take_rate(learned: LearnedInstance, measured: float, now: float, weight: float = RATE_WEIGHT) -> None:
    learned.service_rate_count += 1
    learned.service_rate_at = now
    weight = max(weight, 1.0 / learned.service_rate_count)
    learned.service_rate += (measured - learned.service_rate) * weight


def learn_start_up(learned: LearnedInstance, measured: float, now: float) -> None:
    learned.start_up_count += 1
    learned.start_up_at = now
    known = learned.start_up if learned.start_up > 0.0 else FIRST_START_UP
    weight = max(START_UP_WEIGHT, 1.0 / (learned.start_up_count + 1.0))
    learned.start_up = max(known + (measured - known) * weight, MIN_START_UP)


def warm_up_time(learned: LearnedInstance) -> float:
    """Seconds from ready to serving."""
    return learned.warm_up if learned.warm_up_count else _assumed_warm_up(learned)


def _assumed_warm_up(learned: LearnedInstance) -> float:
    """Start-up and warm-up together take what is assumed."""
    return max(FIRST_START_UP - learned.start_up, 0.0)


def follow_ready_count(memory: Memory, ready: int | None, now: float) -> None:
    """Compares the known starts with the platform's count of ready instances.

    The oldest ones that are over by that count give their start-up time, and warm up from now on. Without a count all
    warm up from when they were asked for.
    """
    if not memory.starting:
        return
    starting = [start for start in memory.starting if now - start[0] < MAX_START_UP]
    not_ready = 0 if ready is None else max(memory.current - ready, 0)
    became_ready = count_instances(starting) - not_ready
    while became_ready > 0 and starting:
        asked_at, count = starting[0]
        taken = min(count, became_ready)
        became_ready -= taken
        if ready is not None:
            learn_start_up(memory.learned, now - asked_at, now)
        group = (asked_at if ready is None else now, taken)
        memory.warming = [*memory.warming[1 - MAX_STARTS :], group]
        if taken == count:
            starting.pop(0)
        else:
            starting[0] = (asked_at, count - taken)
    memory.starting = starting


def follow_warm_up(memory: Memory, interval: Interval, concurrency: float, now: float) -> None:
    """Checks whether the instances that became ready serve, the oldest first.

    That shows only while all are busy. Where they are not, nobody waits for them, and they count as warm after the time
    that is known.
    """
    learned, warming = memory.learned, memory.warming
    if not warming:
        return
    low = min(interval.backlog_before, interval.backlog_after)
    is_busy = low > BUSY * concurrency * max(interval.serving, 1.0)
    if not learned.service_rate_count or not is_busy:
        memory.warming = [start for start in warming if now < start[0] + warm_up_time(learned)]
        return
    warm = memory.current - count_instances(warming) - count_instances(memory.starting)
    while warming and warming[0][0] < now:
        ready_at, count = warming[0]
        if count < VISIBLE_SHARE * warm:
            if now < ready_at + warm_up_time(learned):
                break
        elif interval.completed < learned.service_rate * (warm + WARM_SHARE * count):
            break
        else:
            passed = max(now - interval.seconds - ready_at, 0.0)
            takes = concurrency / learned.service_rate
            _learn_warm_up(learned, passed, max(takes - interval.seconds, 0.0))
        warm += count
        warming = warming[1:]
    memory.warming = [start for start in warming if now - start[0] < MAX_WARM_UP]


def _learn_warm_up(learned: LearnedInstance, passed: float, behind: float) -> None:
    """New instances showed in what was completed `passed` seconds after they were ready: as soon as they served, if some of their messages
    are over soon, or so far `behind` that, if all take as long. What is assumed is taken, where that is in between.
    Otherwise messages of 300 s look like a warm-up of 300 s.
    """
    measured = min(max(_assumed_warm_up(learned), passed - behind), passed)
    learned.warm_up_count += 1
    weight = max(START_UP_WEIGHT, 1.0 / learned.warm_up_count)
    learned.warm_up += (measured - learned.warm_up) * weight


def not_serving(memory: Memory, start_up: float, now: float) -> Starts:
    """All instances that do not serve yet, not ready or warming up, each dated as if asked for one start-up time before it
    serves.
    """
    if not memory.warming:
        return memory.starting
    warm_up = warm_up_time(memory.learned)
    warming = [
        (ready_at + warm_up - start_up, count)
        for ready_at, count in memory.warming
        if now < ready_at + warm_up
    ]
    return [*warming, *memory.starting]


def forget_removed(memory: Memory, excess: int) -> None:
    """Takes `excess` removed instances out of those that start: the newest go first."""
    memory.recently_started, _ = remove_newest(memory.recently_started, excess)
    memory.starting, excess = remove_newest(memory.starting, excess)
    memory.warming, _ = remove_newest(memory.warming, excess)
