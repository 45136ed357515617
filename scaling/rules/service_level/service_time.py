"""How many seconds a message takes, by what users can measure: counts that come late, the age of the oldest message, the backlog. Pure.

N messages are there, and an instance processes c at once: with r instances B = min(N, c r) are being processed, and the others wait.
Each completed message was processed for s seconds on average, so over a long time

    s = integral of B dt / completed                                  (Little's law)

The four senses differ in how they know what was completed. From the best to the weakest:

* Counts, fresh or some minutes late: what was completed in a minute that is over, and the integral over that minute.
* Age: the oldest message that waits came `age` seconds ago. Messages are begun in the order in which they come. So those that were there
  at t - age and are not being processed now are done: completed in the last `age` seconds = N(t - age) - B(t). Where the collector's
  age is that of a message being processed (a peek cannot tell), it is above 0 while nothing can wait. That excess is
  measured, and taken off.
* Drain: while all were busy the backlog fell by F messages a second; once it has come to rest, c r - N slots are free that were busy.
  Arrivals being the same, s = (c r - N) / F. It has come to rest when three times that time has passed since something waited. Busy
  times end because fewer messages come, too, and what came less looks like slots: the slower the fall, the more. So c r - N = s F is
  fitted by least squares, in which a drain counts by (F / c r) squared.
* Fall: arrivals are not negative, so what the backlog fell by was completed. Messages that were begun together end together, so a
  fall says nothing of the seconds in which it happened. For any distribution of times, with a fall within a window that ends now,

      integral of B from (now - window - s) to now  >=  s * fall

  for each completed message was processed for s on average, the earliest from window + s ago on. The largest such s is a bound.

The first three identify the time of a message; the bound does not. All lean to the slow side: twice the true time costs a tenth
more, half of it makes messages late (measured on 22 recorded loads, 26 November 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt

from msgspec import Struct

from scaling.rules.service_level.memory import MAX_POINTS, MAX_STARTS, LearnedTime
from scaling.rules.service_level.queue import at_time

FORGETTING, ENOUGH = 600.0, 200.0
"""Counts are forgotten with this half-life in seconds, but never below so many messages. Chosen: a service that halves is
followed within minutes (measured: 4 min is as good as the truth), and 200 random times have a mean that is known to 7 %.
"""

CHANGED, CHANCE = 1.25, 3.0
"""What was counted before a change is forgotten. It shows where two counts in a row, or more, all say that a message takes so many times longer
than known, or so many times less, and together by as many standard deviations more. Measured on eleven recorded loads (28 November 2026): a
service rate that halves, or doubles, is followed 30 to 45 s after it under load, and random times look like no change.
"""

TIMES = 4.0
"""The half-life is as many times of a message at least. Chosen: what is begun and not completed within the time range is then small beside the rest."""

AGE_FORGETTING = 3600.0
"""Half-life of ages in seconds: they say something only while messages wait. Measured on 22 recorded loads (26 November 2026)."""

FEW = 20.0
"""Completed messages that identify the time. Chosen: their mean is known to a quarter, and the estimate leans by as much."""

REST = 3.0
"""Times of a message after which a backlog has come to rest. Chosen: with random times 5 % of the messages are left (exp(-3))."""

MIN_FREE = 0.25
"""Of the slots, so many must be free after a drain to measure it: the estimate is a quotient of two differences. Chosen."""

DRAIN_WEIGHT = 0.1
"""Share of what earlier drains count for that goes with each. Chosen: ten of them count, as for the service rate."""

MAX_DRAIN_CHANGE = 3.0
"""A drain changes the estimate by no more than this factor. Chosen: messages that vanish (a purge) then move it by a fifth."""

MIN_DRAIN = 1e-6
"""Messages per second: a slower fall is none."""

MAX_REST = 900.0
"""Seconds after which a drain is given up that did not come to rest. Chosen: the load is another one by then."""

MIN_DRAINS = 3
"""Drains that identify the time. Chosen: of 80 simulated loads a single one was once too fast by a factor of 2.6, three never by 1.3."""

WINDOWS = (1, 4, 16)
"""Samples over which falls are looked for. Measured with 15 s: longer ones find nothing more."""

RELAXING = 0.0004
"""A bound rises by this share at each sample, so that a service that got slower is not held to it for ever. Measured: 10 % an hour
at a sample every 15 s.
"""

MAX_DROP = 1.25
"""A fall lowers the bound by no more than this factor at once: messages that vanish (a purge) look completed. Chosen."""

WAITS = 5.0
"""Seconds: the oldest message does wait where it is older. Chosen: a few seconds pass until a message is taken up."""

HELD = 1.2
"""Times the most messages that were seen to be held at once. Measured: at that number itself the rule never gives an instance up, and
never learns that one holds more (22 recorded loads, 26 November 2026).
"""

STUCK = 0.1
"""Of the time passed, the oldest message must have come later by so much: else the front stands, as a deferred message does, or all of
a burst came at once, and the backlog at that time is not known. Chosen.
"""

IDLE_AGE_WEIGHT = 0.1
"""Weight of the newest age while nothing can wait. Chosen: as for the service rate."""

BOUND_SLACK = 1.25
"""Times the bound. Right after a quiet time those completed are the short ones, the long ones are not done yet: with 95 % short and 5 %
ten times as long the bound was a fifth too low (measured, 26 November 2026).
"""

IDLE, BUSY = 0.8, 1.25
"""Times the slots: with fewer messages there nothing waits, with more of them something does. Chosen, as in `instances`."""

SAME_TIME = 0.02
"""A time that differs by less is the same. Chosen: below what any sense knows, and what came is reckoned anew seldom."""

MIN_TIME = 1e-3
"""Seconds: no message takes less, so that nothing is divided by nearly nothing."""

UNKNOWN = 3600.0
"""Seconds that a message takes where nothing is known. Chosen: so slow that the need is what holds what is there."""

Count = tuple[float, float, float | None, float | None]
"""(end, seconds, came, completed) of a time range that is over, with None for what was not counted."""


class Sample(Struct, frozen=True, kw_only=True):
    """`backlog` messages were there at `at`, when `instances` served and `slots` messages could be processed at once. `counts` are of time
    ranges that are over, oldest first. `age` are the seconds since the oldest message came, or None. `warming` instances more may serve.
    """

    at: float
    interval: float
    backlog: float
    slots: float
    instances: float
    counts: Sequence[Count] = ()
    age: float | None = None
    warming: int = 0


GIVEN, COUNTS, AGE, DRAIN, BACKLOG = "given", "counts", "age", "drain", "backlog"
"""The senses, best first. By the last one the time of a message is only bounded."""


class Known(Struct, frozen=True):
    """`seconds` a message takes, by `sense`. `identified` is false for a mere bound."""

    seconds: float
    sense: str
    identified: bool


def follow(time: LearnedTime, sample: Sample) -> None:
    """Takes one sample in, after `begin`."""
    _follow_backlog(time, sample)
    for count in sample.counts:
        _follow_count(time, sample, *count)
    if sample.age is not None:
        _follow_age(time, sample, sample.age)
    _follow_drain(time, sample)
    _follow_falls(time)
    if (
        len(time.points) > MAX_POINTS
    ):  # of the older half every second point goes: the older, the further apart
        half = MAX_POINTS // 2
        time.points = [*time.points[:half:2], *time.points[half:]]


def begin(time: LearnedTime, at: float, backlog: float, slots: float) -> None:
    """At the first report, and after a gap: what was learned stays, the history does not."""
    time.points = [(at, backlog, time.worked)]
    time.processing = time.processing_before = min(backlog, slots)
    time.counted_until = min(time.counted_until, at)  # a clock may have been set back
    time.drain_rate, time.unsure = 0.0, []


def known(time: LearnedTime) -> Known:
    """By the best sense that has said enough."""
    by_counts = _quotient(time.count_worked, time.count_completed)
    by_age = _quotient(time.age_worked, time.age_completed)
    if by_counts < inf:
        return Known(by_counts, COUNTS, identified=True)
    if by_age < inf and not time.age_includes_processing:
        return Known(by_age, AGE, identified=True)
    bound = min(BOUND_SLACK * time.bound or UNKNOWN, by_age, UNKNOWN)
    if time.drains >= MIN_DRAINS and time.drains_fast:
        return Known(min(time.drained, bound), DRAIN, identified=True)
    return Known(bound, BACKLOG, identified=False)


def use(time: LearnedTime, now: Known, at: float) -> bool:
    """Takes over what is known, and returns whether the time of a message is another one."""
    if (time.sense, time.identified) != (now.sense, now.identified):
        time.sense, time.identified, time.since = now.sense, now.identified, at
    if abs(now.seconds - time.used) <= SAME_TIME * time.used:
        return False
    time.used = max(now.seconds, MIN_TIME)
    return True


def measured(time: LearnedTime) -> int:
    """Completed messages, or drains, behind what is known."""
    count = {COUNTS: time.count_completed, AGE: time.age_completed, DRAIN: float(time.drains)}.get(
        time.sense, 0.0
    )
    return max(round(count), 0)


def _quotient(worked: float, completed: float) -> float:
    """The mean time of so many messages, and what it may be wrong by; infinity where they are too few to say."""
    if completed < FEW or worked <= 0.0:
        return inf
    return worked / completed * (1.0 + 1.0 / sqrt(completed))


def _follow_backlog(time: LearnedTime, sample: Sample) -> None:
    """Where something waited before, all slots of that time were taken. Then only those count that were there at both ends of the interval:
    the new ones serve from some moment in it, and those of removed instances until some moment. What new ones complete meanwhile is
    counted all the same, so counts of that interval say nothing.
    """
    (before, backlog, _), processing = time.points[-1], min(sample.backlog, sample.slots)
    begins, waited = min(time.processing, sample.slots), backlog > time.processing
    ends = min(processing, time.processing) if waited else processing
    time.worked += (sample.at - before) * (begins + ends) / 2.0
    if waited and processing > time.processing:
        time.unsure = [*time.unsure[1 - MAX_STARTS :], (before, sample.at)]
    time.processing_before, time.processing = time.processing, processing
    time.points.append((sample.at, sample.backlog, time.worked))


def _follow_count(
    time: LearnedTime, sample: Sample, end: float, seconds: float, came: float | None, completed: float | None
) -> None:
    if end <= time.counted_until:
        return
    passed = min(end - time.counted_until, 86_400.0)
    time.counted_until = end
    first, last = at_time(time, end - seconds), at_time(time, end)
    if first is None or last is None or any(a < end and b > end - seconds for a, b in time.unsure):
        return
    if completed is None:
        completed = max((came or 0.0) - last[0] + first[0], 0.0)
    took, worked = time.count_worked / (time.count_completed or 1.0), last[1] - first[1]
    least, most, is_sure = worked, worked, True
    if end >= sample.at:  # of the newest interval only the ends are known
        spread = abs(time.processing - time.processing_before) * seconds / 2.0
        waited = time.points[-2][1] > time.processing_before
        by_warming = sample.warming * sample.slots / max(sample.instances, 1.0) * seconds if waited else 0.0
        least, most, is_sure = worked - spread, worked + spread + by_warming, not by_warming
    is_known = time.count_completed >= FEW
    if is_sure or not is_known:
        keep = _kept(passed, FORGETTING, took, time.count_completed, completed)
        time.count_worked = time.count_worked * keep + worked
        time.count_completed = time.count_completed * keep + completed
    if is_known:
        _follow_change(time, seconds, took, completed, (least, worked, most))


def _follow_change(
    time: LearnedTime, seconds: float, took: float, completed: float, worked: tuple[float, float, float]
) -> None:
    """Forgets what was counted before a change of the time that a message takes, which was `took`. `worked` is at least, probably, and at most
    so much.
    """
    least, probably, most = worked
    is_slower, is_faster = least > CHANGED * took * completed, most * CHANGED < took * completed
    sign = is_slower - is_faster
    if sign * time.new_seconds <= 0.0:
        time.new_seconds = time.new_worked = time.new_completed = 0.0
    if not sign:
        return
    time.new_seconds += sign * seconds
    time.new_worked += most if is_faster else probably  # leans to the slow side
    time.new_completed += completed
    if time.new_completed < FEW or time.new_worked <= 0.0:
        return
    takes = time.new_worked / time.new_completed
    # Chance is in which messages are completed, and in how many are there when the backlog is read.
    seen = min(time.new_completed, took * time.new_completed / seconds)
    factor = CHANGED * (1.0 + CHANCE / sqrt(seen))
    is_long = abs(time.new_seconds) >= max(2.0 * seconds, TIMES * max(took, takes))
    if is_long and max(takes / took, took / takes) > factor:
        time.count_worked, time.count_completed = time.new_worked, time.new_completed
        time.new_seconds = time.new_worked = time.new_completed = 0.0


def _kept(passed: float, half_life: float, took: float, before: float, completed: float) -> float:
    """The share of earlier counts that still counts, after `passed` seconds and `completed` messages more."""
    keep: float = 0.5 ** (passed / max(half_life, TIMES * took))
    return min(max(keep, (ENOUGH - completed) / max(before, 1e-9)), 1.0)


def _follow_age(time: LearnedTime, sample: Sample, age: float) -> None:
    seconds = sample.at - time.points[-2][0]
    _bound_concurrency(time, sample, age)
    if sample.backlog <= IDLE * sample.slots:
        if sample.backlog > 0.0:
            _follow_idle_age(time, sample, age)
        return
    came_at, came_before = sample.at - age, time.oldest_came
    time.oldest_came = came_at
    is_steady = time.processing == time.processing_before and came_at - came_before > STUCK * seconds
    there = at_time(time, came_at)
    # Further back the points are apart, and a straight line between them is above a backlog that grows ever faster: a message would
    # seem to take a third of its time.
    is_known = there is not None and sample.interval <= age <= MAX_POINTS // 2 * sample.interval
    if there is None or not is_known or not is_steady or sample.backlog <= sample.slots:
        return
    weight = sample.interval / age
    keep = 0.5 ** (seconds / AGE_FORGETTING)
    completed = there[0] if time.age_includes_processing else there[0] - time.processing
    time.age_worked = time.age_worked * keep + weight * (time.worked - there[1])
    time.age_completed = time.age_completed * keep + weight * completed


def _follow_idle_age(time: LearnedTime, sample: Sample, age: float) -> None:
    """Nothing can wait. An age is then that of a message being processed, or of one in front that nobody takes (a deferred one)."""
    time.idle_age += IDLE_AGE_WEIGHT * (age - time.idle_age)
    includes_processing = time.idle_age > sample.interval
    if includes_processing != time.age_includes_processing:
        time.age_includes_processing = includes_processing
        time.age_worked = time.age_completed = time.least_held = time.most_held = 0.0


def _bound_concurrency(time: LearnedTime, sample: Sample, age: float) -> None:
    """An instance holds at least the messages that are there while none waits, and at most those that are there while one does."""
    if sample.instances < 1.0 or sample.backlog < 1.0 or time.age_includes_processing:
        return
    held = sample.backlog / sample.instances
    if age <= 0.0:
        time.least_held = max(time.least_held * (1.0 - RELAXING), held)
        time.most_held = max(time.most_held, time.least_held) if time.most_held else 0.0
    elif age > WAITS:
        time.most_held = min(time.most_held * (1.0 + RELAXING) or held, held)
        time.least_held = min(time.least_held, time.most_held)


def concurrency_by_ages(time: LearnedTime) -> float:
    """Messages that an instance processes at once; 0 where no age has said so."""
    if not time.least_held:
        return 0.0
    return max(min(HELD * time.least_held, time.most_held or inf), 1.0)


def _follow_drain(time: LearnedTime, sample: Sample) -> None:
    """Measures the end of a time in which all were busy."""
    (before, earlier, _), (at, backlog, _) = time.points[-2:]
    if earlier > BUSY * sample.slots < backlog:
        time.drain_rate, time.drain_slots = max(earlier - backlog, 0.0) / (at - before), sample.slots
        if time.drain_rate > MIN_DRAIN:
            time.drain_end = at + (backlog - sample.slots) / time.drain_rate
        return
    if time.drain_rate <= MIN_DRAIN or backlog > sample.slots:
        return
    free, passed = time.drain_slots - backlog, at - time.drain_end
    took = free / time.drain_rate
    if REST * took > passed and passed < MAX_REST:
        return
    if REST * took <= passed and free >= MIN_FREE * time.drain_slots:
        time.drains += 1
        known = time.drained or took
        took = min(max(took, known / MAX_DRAIN_CHANGE), known * MAX_DRAIN_CHANGE)
        weight = min(time.drain_rate / time.drain_slots, 1.0 / known) ** 2
        older = min(time.drains - 1, 1.0 / DRAIN_WEIGHT) * weight  # those of an older version
        time.drain_weight = (1.0 - DRAIN_WEIGHT) * (time.drain_weight or older) + weight
        time.drained = known + weight / time.drain_weight * (took - known)
        time.drains_fast = REST * time.drained <= sample.interval
    time.drain_rate = 0.0


def _follow_falls(time: LearnedTime) -> None:
    time.bound *= 1.0 + RELAXING
    points = time.points
    lowest = min((_bound(points, n) for n in WINDOWS if len(points) > n), default=inf)
    if lowest < (time.bound or inf):
        time.bound = max(lowest, time.bound / MAX_DROP)


def _bound(points: Sequence[tuple[float, float, float]], window: int) -> float:
    """The largest s with integral of B from (now - window - s) to now >= s * fall; infinity where there is none."""
    since, backlog, _ = points[-1 - window]
    _, newest, worked = points[-1]
    fall = backlog - newest
    if fall <= 0.0:
        return inf
    later = None
    for at, _, before in points[:-window]:
        s = since - at
        left = worked - before - s * fall
        if left >= 0.0:
            if later is None:
                return inf  # the oldest point still fulfils it
            s2, left2 = later
            return s + (s2 - s) * left / (left - left2)
        later = (s, left)
    return inf
