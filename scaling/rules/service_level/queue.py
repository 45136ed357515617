"""The queue: how many messages are active after some time, and how old those are that wait. Pure.

As a fluid it follows from the rates.
N messages are active: those that wait, and those that are processed. C of them can be processed at once and take s seconds on
average, and f messages per second arrive. Below C all of them are processed, and N comes to rest at f s (Little's law);
from C on C / s are completed per second:

    N < C     N(t) = f s + (N - f s) exp(-t / s)
    N >= C    N(t) = N + (f - C / s) t

N moves in one direction only, so it passes C at most once. The exponential is that of random times of messages. With times that
are all the same it is off for one such time, which changed neither cost nor lateness (simulated message by message, November 2026).
"""

from __future__ import annotations

from math import exp, inf, log

from scaling.rules.service_level.memory import MAX_MARKS, LearnedTime, Memory

DAY = 86_400.0

MARKS_PER_WAIT = MAX_MARKS - 8
"""Marks of the counter of arrivals within the allowed wait; the others cover reports that come late."""


def active_after(active: float, rate: float, slots: float, service_time: float, seconds: float) -> float:
    """Messages active after `seconds`, of `active` now. `slots` are processed at once and take `service_time` seconds, above 0."""
    rest = rate * service_time
    if active < slots:
        passes = service_time * log((rest - active) / (rest - slots)) if rest > slots else inf
        if seconds <= passes:
            return rest + (active - rest) * exp(-seconds / service_time)
        return slots + (rate - slots / service_time) * (seconds - passes)
    growth = rate - slots / service_time
    passes = (slots - active) / growth if growth < 0.0 else inf
    if seconds <= passes:
        return active + growth * seconds
    return rest + (slots - rest) * exp((passes - seconds) / service_time)


# The ages of what waits


def arrived_at(memory: Memory, at: float) -> float:
    """The counter of arrivals at a past time, between two marks by the straight line. Before the first mark nothing is known:
    minus infinity, so that no message is late.
    """
    end, later = memory.at, memory.arrived
    if at >= end:
        return later
    for begin, count in reversed(memory.marks):
        if begin <= at:
            return count + (later - count) * ((at - begin) / (end - begin))
        end, later = begin, count
    return -inf


def mark_arrivals(memory: Memory, now: float, wait: float) -> None:
    """Keeps the counter of arrivals as of now, no nearer to the last mark than needed."""
    spacing = wait / MARKS_PER_WAIT
    marks = memory.marks
    if marks and now - marks[-1][0] < spacing:
        return
    cutoff = now - wait - 2 * spacing
    while len(marks) >= MAX_MARKS or (len(marks) > 1 and marks[1][0] <= cutoff):
        del marks[0]
    marks.append((now, memory.arrived))


def marks_across_gap(memory: Memory, gap: float, came: float, wait: float) -> list[tuple[float, float]]:
    """The marks that stay over a gap of less than the allowed wait, in which about `came` messages came: what waited before it waits
    on, and does not get a fresh wait by an autoscaler that was not there.
    """
    if not 0.0 < gap < wait:
        return []
    memory.arrived += max(came, 0.0)
    return memory.marks[1 - MAX_MARKS :]


def deadlines(memory: Memory, waiting: float, allowed: float) -> list[tuple[float, float]]:
    """(seconds, messages): so many of the `waiting` messages have to be begun within those seconds, for none to wait longer than
    `allowed`. Below 0 seconds they wait for longer already.

    Messages are begun in the order in which they came, so the waiting ones are the newest, and the marks of the counter of
    arrivals date them. A measured age of the oldest one says where they begin. Between two marks the messages count with the
    later one; the last ones came now.
    """
    oldest, share = memory.arrived - memory.waiting, 1.0
    if memory.oldest_age >= 0.0 < waiting:
        oldest = arrived_at(memory, memory.at - memory.oldest_age)
        share = waiting / max(memory.arrived - oldest, 1e-9)
        if (
            share <= 0.0 or oldest >= memory.arrived
        ):  # older than all marks, or nothing came since: all are that old
            return [(allowed - memory.oldest_age, waiting)]
    due = [
        (at - memory.at + allowed, min(share * (count - oldest), waiting))
        for at, count in memory.marks
        if count > oldest
    ]
    return [*due, (allowed, waiting)]


def count_late(memory: Memory, begun: float, late: float, overdue: float) -> None:
    """Counts messages begun today (UTC), and those that had waited too long; `overdue` ones still wait."""
    day = int(memory.at // DAY)
    if day != memory.day:
        memory.day, memory.day_begun, memory.day_late = day, 0.0, 0.0
        if memory.at - memory.since > DAY:
            memory.restart_reason = ""
    memory.day_begun += begun
    memory.day_late += late
    memory.overdue = overdue


# What was there at a past time


def arrivals_between(time: LearnedTime, begin: float, end: float) -> float | None:
    """Messages that came, by what the backlog grew by and what was completed meanwhile; None before the first point."""
    first, last = at_time(time, begin), at_time(time, end)
    if first is None or last is None:
        return None
    return max(last[0] - first[0] + (last[1] - first[1]) / time.used, 0.0)


def at_time(time: LearnedTime, at: float) -> tuple[float, float] | None:
    """Backlog and message-seconds worked at a past time, by the straight line between two points; None before the first."""
    points = time.points
    end, backlog, worked = points[-1]
    if at >= end:
        return backlog, worked
    for index in range(len(points) - 2, -1, -1):
        begin, less, before = points[index]
        if begin <= at:
            share = (at - begin) / (end - begin)
            return less + share * (backlog - less), before + share * (worked - before)
        end, backlog, worked = begin, less, before
    return None


def date_anew(memory: Memory) -> None:
    """Reckons the marks anew from the backlog's history, where a message takes another time."""
    since = [(at, arrivals_between(memory.time, at, memory.at)) for at, _ in memory.marks]
    marks = [(at, memory.arrived - arrived) for at, arrived in since if arrived is not None]
    memory.marks = marks or memory.marks[-1:]
