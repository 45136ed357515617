"""learn(): from what is remembered and one observation to what is remembered next. Pure and total.

Total: whatever is observed, and in whatever order, there is a memory afterwards, and every number in it is finite.
An observation that is not newer changes nothing. After a gap, or where the clock was set back, what was learned stays,
and what was under way (forecasts, ages of messages, the copies on paper) begins anew from what is there.
"""

from __future__ import annotations

from math import inf, isfinite

from msgspec import Struct

from scaling.rules.service_level import arrivals, clock, instances, paper
from scaling.rules.service_level.memory import MARKS, Memory
from scaling.rules.service_level.plan import (
    Outlook,
    Starts,
    changed,
    counted,
    keeping_up,
    need,
    remember,
    rounded,
    serving,
    settled,
)

GAP = 3.5
"""Intervals between two observations that are more than some late ones."""

TOO_SOON = 0.25
"""Of an interval: an observation that soon after another says nothing new about rates."""

DAY = 86_400.0
SET_BACK = 900.0
"""A clock that is so many seconds behind the newest observation was set back; less is a report that comes late."""

LEARNING = 1800.0
"""Seconds from the first observation in which what was learned is not relied upon: as many instances as hold what is
there, and no fewer than that was at any time in the last `LEARNING_HOLD` seconds (the peers do that all the time).
"""
LEARNING_HOLD = 300.0

ASSUMED_USE = 0.5
"""Of the capacity found at the first observation, so much is assumed to be in use on an ordinary day."""

STANDS_STILL = 20
"""Observations of the same backlog, though messages come and go, after which it is not believed any more."""

UNUSABLE = "the numbers remembered were not usable any more"


class Objective(Struct, frozen=True):
    """What is asked for: no message waits longer than `wait` seconds, but for the share `late` of them. `held` messages
    per instance and `start_up` seconds are given, or None to be learned.
    """

    wait: float
    late: float
    held: float | None = None
    start_up: float | None = None


class Observation(Struct, frozen=True):
    """What was seen at one moment: messages there, messages that came and were completed in the last `interval` seconds
    (None: not counted), the capacity asked for, the instances that are ready (None: the platform does not tell), the
    most instances there may be, and when the last more of them were asked for (None: not known, or long ago).
    """

    at: float
    interval: float
    backlog: float
    incoming: float | None
    outgoing: float | None
    current: int
    ready: int | None
    most: int
    asked_at: float | None = None


def learn(memory: Memory | None, seen: Observation, objective: Objective) -> Memory:
    """The memory after an observation. Changes and returns `memory`, or makes one where there is none."""
    if memory is None:
        return _begin(seen, objective)
    seconds = seen.at - memory.at
    if seconds < TOO_SOON * seen.interval:
        return memory if seconds > -SET_BACK else _resume(memory, seen, objective)
    if seconds > GAP * seen.interval:
        return _resume(memory, seen, objective)
    try:
        _learn(memory, seen, seconds, objective)
    except (ArithmeticError, ValueError):  # numbers beyond what a float holds, or not finite any more
        return _begin(seen, objective, UNUSABLE)
    sound = isfinite(memory.expected + memory.arrived + memory.surprise + memory.scored)
    return memory if sound else _begin(seen, objective, UNUSABLE)


def held_of(memory: Memory, objective: Objective) -> float:
    """Messages one instance holds at once."""
    return objective.held or memory.learned.held or instances.FIRST_HELD


def start_up_of(memory: Memory, objective: Objective) -> float:
    """Seconds from asked-for to serving. Until instances were seen to serve, no less than is assumed."""
    if objective.start_up is not None:
        return objective.start_up
    learned = memory.learned
    took = learned.start_up + instances.warm_up_of(learned)
    return took if took > instances.LEAST_START_UP else instances.LEAST_START_UP


def starts_of(memory: Memory, objective: Objective, start_up: float) -> Starts:
    """Instances that do not serve yet, by when they were asked for; `start_up` is that of `start_up_of`."""
    return (
        memory.starts
        if objective.start_up is not None
        else instances.not_serving(memory, start_up, memory.at)
    )


def outlook(memory: Memory, objective: Objective) -> Outlook:
    """What is expected at the time of the newest observation."""
    return _outlook(memory, objective, start_up_of(memory, objective))


def _outlook(memory: Memory, objective: Objective, start_up: float) -> Outlook:
    return Outlook(
        memory.expected,
        arrivals.deviation(memory.expected, memory.surprise, memory.level),
        instances.service_rate(memory.learned, held_of(memory, objective)),
        start_up,
        objective.wait,
        memory.interval,
    )


def carefulness(memory: Memory) -> float:
    """That of the best copy."""
    return degrees(memory)[memory.chosen]


def degrees(memory: Memory) -> tuple[float, ...]:
    """The carefulness of each copy."""
    return paper.degrees(memory.interval, counted=memory.counted)


def needed(memory: Memory, ahead: Outlook, backlog: float, current: int, objective: Objective) -> float:
    """Instances needed with so many messages there and so many instances asked for, not rounded."""
    held = held_of(memory, objective)
    _, seconds = serving(starts_of(memory, objective, ahead.start_up), current, memory.at, ahead.start_up)
    waiting = backlog - held * memory.serving
    if waiting < 0.0:
        waiting = 0.0
    exact = need(ahead, carefulness(memory), waiting, seconds * ahead.service)
    return max(exact, by_backlog(backlog, objective)) if learning(memory) else exact


def by_backlog(backlog: float, objective: Objective) -> float:
    """Instances that hold what is there, by what is given or assumed of them."""
    return backlog / (objective.held or instances.FIRST_HELD)


def held_by(count: float, objective: Objective) -> float:
    """Messages that so many instances hold: the inverse of `by_backlog`."""
    return count * (objective.held or instances.FIRST_HELD)


def learning(memory: Memory) -> bool:
    """True in the first half hour."""
    return memory.at - memory.since < LEARNING


def hold(memory: Memory, start_up: float) -> float:
    """Seconds whose highest need scale-in follows: the start-up time; longer at the beginning, and after a gap."""
    unsure = learning(memory) or memory.at - memory.resumed < LEARNING_HOLD
    return max(start_up, LEARNING_HOLD) if unsure else start_up


def _begin(seen: Observation, objective: Objective, why: str = "") -> Memory:
    memory = Memory(since=seen.at, at=seen.at, interval=seen.interval, started_anew=why)
    memory.learned.held = objective.held or 0.0
    service = instances.service_rate(memory.learned, held_of(memory, objective))
    there = _there(seen)
    arrivals.begin(memory, _rate_of(memory, seen, objective), ASSUMED_USE * service * there)
    memory.expected, memory.level = memory.rates[0], memory.usual
    _under_way(memory, seen, objective)
    memory.copies = paper.begin(seen.current, memory.waiting)
    memory.chosen = paper.FIRST
    return memory


def _there(seen: Observation) -> int:
    return seen.current if seen.ready is None else seen.ready


def _rate_of(memory: Memory, seen: Observation, objective: Objective) -> float:
    """Messages per second that arrive, by one observation alone."""
    if seen.incoming is not None:
        return max(seen.incoming, 0.0) / seen.interval
    held = held_of(memory, objective)
    return instances.service_rate(memory.learned, held) * min(seen.backlog / held, _there(seen))


def _resume(memory: Memory, seen: Observation, objective: Objective) -> Memory:
    gap = seen.at - memory.at
    memory.since += gap  # the time between was not observed
    arrivals.averaged(memory, _rate_of(memory, seen, objective), abs(gap))
    memory.expected = arrivals.expect(memory)
    memory.at, memory.resumed = seen.at, seen.at
    memory.forecasts, memory.starts, memory.warming, memory.recent = [], [], [], []
    memory.needs = [(seen.at, seen.current)]  # as if all were needed: nobody saw whether they were
    memory.wanted = memory.still = 0
    _under_way(memory, seen, objective)
    for copy in memory.copies:
        copy.total, copy.waiting, copy.starts = seen.current, memory.waiting, []
        copy.needs, copy.wanted = [], 0
    return memory


def _under_way(memory: Memory, seen: Observation, objective: Objective) -> None:
    memory.current = seen.current
    memory.serving = float(_there(seen))
    memory.backlog = seen.backlog
    memory.waiting = max(seen.backlog - held_of(memory, objective) * memory.serving, 0.0)
    memory.marks = [(seen.at, memory.arrived)]
    memory.learned.drained_by = 0.0


def _learn(memory: Memory, seen: Observation, seconds: float, objective: Objective) -> None:
    start_up = start_up_of(memory, objective)
    if memory.wanted:
        remember(memory.needs, memory.at, memory.wanted, hold(memory, start_up))
    old = arrived_at(memory, memory.at - objective.wait)
    came, old_now = _past(memory, seen, seconds, old, start_up, objective)
    start_up = start_up_of(memory, objective)
    _expect(memory, start_up + seen.interval, seconds)
    ahead = _outlook(memory, objective, start_up)
    earlier = memory.arrived - came
    keep = 0.5 ** (seconds / paper.HALF_LIFE)
    load = paper.Past(seconds, keep, degrees(memory), came, earlier, old, old_now)
    least = keeping_up(ahead)
    paper.live(memory.copies, ahead, load, now=memory.at, least=least, most=seen.most)
    memory.scored = memory.scored * keep + came
    memory.chosen = paper.best(memory.copies, memory.scored, objective.late, memory.at - memory.since)
    wanted = rounded(needed(memory, ahead, seen.backlog, seen.current, objective))
    if wanted < least:
        wanted = least
    memory.wanted = wanted if wanted < seen.most else seen.most


def _past(
    memory: Memory, seen: Observation, seconds: float, old: float, start_up: float, objective: Objective
) -> tuple[float, float]:
    """Takes in what happened since the last observation; returns the messages that arrived, and of all the ones that are
    too old now to be begun in time; `old` were at the last observation. `start_up` is what was known then.
    """
    held, before = held_of(memory, objective), (memory.serving, memory.current)
    certain = _capacity(memory, seen, start_up, objective)
    rate = _flows(memory, seen, seconds, (*before, certain), objective)
    begun = memory.arrived - memory.waiting
    came = rate * seconds
    memory.arrived += came
    waiting = seen.backlog - held * memory.serving
    if waiting < 0.0:
        waiting = 0.0
    memory.waiting = waiting
    served = memory.arrived - waiting - begun
    if served < 0.0:
        served = 0.0
    memory.at, memory.backlog, memory.interval = seen.at, seen.backlog, seen.interval
    memory.seen += 1
    old_now = arrived_at(memory, seen.at - objective.wait)
    overdue = old_now - begun - served
    late = served * paper.late_share(old - begun, overdue)
    _count_late(memory, served, late, overdue if overdue > 0.0 else 0.0)
    _mark(memory, seen.at, objective.wait)
    arrivals.follow(memory, rate, seconds)
    clock.follow(memory.hour, memory.calendar, rate, seen.at - seconds, seen.at)
    return came, old_now


def _expect(memory: Memory, horizon: float, seconds: float) -> None:
    """What is expected of the next `horizon` seconds, after the forecasts whose time is over are judged."""
    now = memory.at
    arrivals.judge(memory, now, seconds)
    memory.level = clock.usual(memory.calendar, now, memory.usual)
    memory.expected = arrivals.expect(memory)
    arrivals.note(memory, now, memory.expected, memory.level, horizon, seconds)
    memory.expected *= clock.factor(memory.hour, now, horizon, seconds)


def _capacity(memory: Memory, seen: Observation, start_up: float, objective: Objective) -> int:
    """Instances that were asked for since the last observation, and those that serve now. Returns how many served for
    certain all the time.
    """
    now = seen.at
    old = instances.OLD * start_up
    if objective.start_up is None:
        old = old if old > instances.OLD_LEAST else instances.OLD_LEAST
    memory.recent = settled(memory.recent, memory.at, old)
    if seen.current > memory.current:
        asked = memory.at  # decided upon the observation before, if nothing else is known
        if seen.asked_at is not None and memory.at - instances.LONGEST_START < seen.asked_at < now:
            asked = seen.asked_at
        memory.starts = changed(memory.starts, memory.current, seen.current, asked)
        memory.recent = changed(memory.recent, memory.current, seen.current, asked)
    elif seen.current < memory.current:
        instances.given_up(memory, memory.current - seen.current)
    memory.current = seen.current
    if objective.start_up is None:
        instances.started(memory, seen.ready, now)
        ready = seen.current - counted(instances.not_serving(memory, start_up, now))
        memory.serving = float(ready) if ready > 0 else 0.0
    else:
        memory.starts = settled(memory.starts, now, start_up)
        memory.serving = float(serving(memory.starts, memory.current, now, start_up)[0])
    certain = memory.current - counted(memory.recent)
    return certain if certain > 0 else 0


def _flows(
    memory: Memory, seen: Observation, seconds: float, there: tuple[float, int, int], objective: Objective
) -> float:
    """Messages per second that arrived; what of them and of the completed ones is not counted follows from the backlog.
    `there`: instances that served, those asked for, at the last observation; those that served for certain since.
    """
    held = held_of(memory, objective)
    growth = (seen.backlog - memory.backlog) / seconds
    arrived = None if seen.incoming is None else max(seen.incoming, 0.0) / seen.interval
    completed = None if seen.outgoing is None else max(seen.outgoing, 0.0) / seen.interval
    memory.counted = counted = arrived is not None or completed is not None
    served, present, certain = there
    if arrived is None and completed is None:
        busy = (seen.backlog + memory.backlog) / 2 / held
        completed = instances.service_rate(memory.learned, held) * (busy if busy < served else served)
    if arrived is None:
        arrived = (completed or 0.0) + growth
        if arrived < 0.0:
            arrived = 0.0
    if completed is None:
        completed = max(arrived - growth, 0.0)
    moving = arrived != completed if counted else seen.backlog > held
    moving = moving and seen.backlog >= 1.0  # a fast service has nothing there at every look
    memory.still = memory.still + 1 if moving and growth == 0.0 else 0
    if present < memory.current:
        present = memory.current
    interval = instances.Interval(
        seconds, memory.backlog, seen.backlog, arrived, completed, served, certain, present
    )
    if counted:
        instances.follow(memory.learned, interval, objective.held, seen.at)
        instances.follow_warm_up(memory, interval, held, seen.at)
    else:
        instances.follow_drain(memory.learned, interval, held, seen.at)
    return arrived


def arrived_at(memory: Memory, at: float) -> float:
    """The counter of arrivals at a past moment, between two marks by the straight line; before the first one
    nothing is known, which is less than any.
    """
    end, later = memory.at, memory.arrived
    if at >= end:
        return later
    for begin, count in reversed(memory.marks):
        if begin <= at:
            return count + (later - count) * ((at - begin) / (end - begin))
        end, later = begin, count
    return -inf


def _mark(memory: Memory, now: float, wait: float) -> None:
    """Keeps the counter of arrivals as of now, no nearer than needed to the last one."""
    apart = wait / (MARKS - 8)
    marks = memory.marks
    if marks and now - marks[-1][0] < apart:
        return
    cutoff = now - wait - 2 * apart
    while len(marks) >= MARKS or (len(marks) > 1 and marks[1][0] <= cutoff):
        del marks[0]
    marks.append((now, memory.arrived))


def _count_late(memory: Memory, begun: float, late: float, overdue: float) -> None:
    """Messages that were begun today (UTC), and those of them that had waited too long; `overdue` still wait."""
    day = int(memory.at // DAY)
    if day != memory.day:
        memory.day, memory.day_begun, memory.day_late = day, 0.0, 0.0
        if memory.at - memory.since > DAY:
            memory.started_anew = ""
    memory.day_begun += begun
    memory.day_late += late
    memory.overdue = overdue
