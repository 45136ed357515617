"""Degrees of carefulness, lived through on paper: each copy decides for itself, and a model of the queue answers. Pure.

Arrivals do not depend on what is decided, so what other decisions would have cost, and how many messages would have
been late, can be worked out as the load goes by. Each copy has the forecast of the rule, a carefulness of its own, and
instances that start and serve as those of the target do. The rule takes the carefulness of the copy with the best
score:

    log(instance-hours) + PRICE * spent + OVER * (spent - RESERVE, if above)        spent = late share / allowed share

PRICE says what a late message is worth: a fourteenth of the bill for a whole budget of them, and twice that beyond three
quarters of it. So a target with a smooth load is served with no margin at all, one with bursts gets idle capacity up to
the knee where more of it hardly saves any late message, and a target whose bursts nobody can meet does not buy a fleet
against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, log

from msgspec import Struct

from scaling.rules.service_level.memory import Copy
from scaling.rules.service_level.plan import (
    ROUNDING,
    Outlook,
    Starts,
    changed,
    needed_until,
    needs_of,
    serving,
    settled,
    stepped,
)

CAREFULNESS = (-0.5, -0.25, 0.0, 0.33, 0.67, 1.0, 1.25, 1.5)
"""Deviations of the forecast's error that are added to it, by copy, where the target is looked at every 15 s."""

LOOKS, FURTHER = 15.0, 0.8
"""Seconds between two looks `CAREFULNESS` is for. Where they are further apart, a burst is seen late: a margin has to
idle for longer and saves fewer messages, so the degrees are smaller, by this power of the ratio.
"""

UNCOUNTED = 0.65
"""Times the degrees where arrivals are not counted: what is inferred from the backlog is noisy, and that noise is part of
the forecast's error, but not of the load.
"""

FIRST = 4
"""The copy believed before any is known, for `FIRST_TIME` seconds as much as what is known."""
FIRST_TIME, FIRST_WORTH = 21_600.0, 0.2

HALF_LIFE = 3 * 86_400.0
"""Seconds after which a cost, or a late message, counts half: three days."""

PRICE, OVER = 0.07, 0.08
RESERVE = 0.75
"""Of the budget; what is beyond costs `OVER` more, so that a budget is not spent to the last message."""


def begin(total: int, waiting: float) -> list[Copy]:
    return [Copy(total, waiting) for _ in CAREFULNESS]


class Past(Struct):
    """The last `seconds`: `arrived` messages came in that time, `before` in all before it. Of all, `old` were too old to
    be begun in time at its start, `old_now` at its end. `degrees` is the carefulness of each copy; of what was counted
    before, the share `keep` counts still.
    """

    seconds: float
    keep: float
    degrees: tuple[float, ...]
    arrived: float
    before: float
    old: float
    old_now: float


def degrees(interval: float, *, counted: bool) -> tuple[float, ...]:
    """The carefulness of each copy, at so many seconds between two looks, arrivals counted or not."""
    return _degrees(interval, 1.0 if counted else UNCOUNTED)


@lru_cache(maxsize=64)
def _degrees(interval: float, share: float) -> tuple[float, ...]:
    scale = min((LOOKS / interval) ** FURTHER, 1.0) * share
    return tuple(scale * degree for degree in CAREFULNESS)


def late_share(at_start: float, at_end: float) -> float:
    """Of messages that were begun one after the other the share that was late: by how many of them were too old, and not
    begun yet, at the start of that time and at its end (below 0: by how many the queue was ahead).
    """
    if at_start <= 0.0 and at_end <= 0.0:
        return 0.0
    if at_start >= 0.0 and at_end >= 0.0:
        return 1.0
    return max(at_start, at_end) / (abs(at_start) + abs(at_end))


def _instance_seconds(starts: Starts, total: int, now: float, seconds: float, start_up: float) -> float:
    """What `total` instances were there for in the last `seconds`, those that became ready meanwhile for a part of it."""
    there = total * seconds
    for asked, count in starts:
        missing = asked + start_up - now + seconds
        if missing > 0.0:
            there -= count * (missing if missing < seconds else seconds)
    return there if there > 0.0 else 0.0


def live(copies: list[Copy], outlook: Outlook, past: Past, *, now: float, least: int, most: int) -> None:
    """The time since the last observation for every copy, and its next decision: none wants fewer than `least`
    instances, or has more than `most`.
    """
    exact = needs_of(outlook, _served(copies, outlook, past, now))
    _decide(copies, exact, (least, most), (now - past.seconds, now), outlook.start_up)


def _served(copies: list[Copy], outlook: Outlook, past: Past, now: float) -> list[tuple[float, float, float]]:
    """The queue of every copy since the last observation; returns its carefulness, what waits, and its capacity."""
    seconds, came, before, old, old_now = past.seconds, past.arrived, past.before, past.old, past.old_now
    keep, start_up, service = past.keep, outlook.start_up, outlook.service
    young, young_now = before - old, before + came - old_now  # if no more than these wait, none is late
    cases = []
    for copy, carefulness in zip(copies, past.degrees, strict=True):
        total, waited, starts = copy.total, copy.waiting, copy.starts
        there = total * seconds
        served = service * (_instance_seconds(starts, total, now, seconds, start_up) if starts else there)
        waiting = waited + came - served
        if waiting < 0.0:
            served, waiting = waited + came, 0.0
        copy.waiting = waiting
        late = copy.late * keep
        if waited > young or waiting > young_now:
            begun = before - waited
            late += served * late_share(old - begun, old_now - begun - served)
        copy.late, copy.cost = late, copy.cost * keep + there
        capacity = total * start_up
        if starts:
            copy.starts = starts = settled(starts, now, start_up)
            _, capacity = serving(starts, total, now, start_up)
        cases.append((carefulness, waiting, capacity * service))
    return cases


def _decide(
    copies: list[Copy],
    needed: list[float],
    bounds: tuple[int, int],
    looks: tuple[float, float],
    start_up: float,
) -> None:
    """The next decision of every copy, at the second of two looks."""
    (least, most), (before, now) = bounds, looks
    for copy, exact in zip(copies, needed, strict=True):
        total, last = copy.total, copy.wanted
        whole = ceil(exact - ROUNDING)  # as `rounded` does
        if whole < 1:
            whole = 1
        wanted = whole if whole > least else least
        if wanted > most:
            wanted = most
        if wanted != last:
            if last:
                needed_until(copy.needs, before, last, wanted, start_up, now)
            copy.wanted = wanted
        if whole < total:
            whole = wanted  # no fewer are kept than keep up; more are asked for by the need alone
        after = total if whole == total else stepped(exact, whole, total, copy.needs, now, start_up)
        if after > most:
            after = most
        if after != total:
            copy.starts = changed(copy.starts, total, after, now)
            copy.total = after


def best(copies: list[Copy], arrived: float, allowed: float, age: float) -> int:
    """The copy with the best score. `arrived` messages, discounted as the costs are; `allowed` share of late ones;
    `age` seconds since the first observation.
    """
    trusted = FIRST_WORTH * FIRST_TIME / (FIRST_TIME + age)
    found = _scores(copies, arrived, allowed, trusted)
    return found.index(min(found))


_FAR = tuple(abs(degree - CAREFULNESS[FIRST]) for degree in CAREFULNESS)


def score(copy: Copy, arrived: float, allowed: float) -> float:
    """Lower is better: the logarithm of the cost, and the price of the late messages."""
    return _scores((copy,), arrived, allowed, 0.0)[0]


def _scores(copies: Sequence[Copy], arrived: float, allowed: float, trusted: float) -> list[float]:
    """Of each copy; a whole degree of carefulness from the first one counts as much as `trusted`."""
    allowed_late, found = (arrived + 1.0) * allowed, []
    for copy, far in zip(copies, _FAR, strict=False):
        spent = copy.late / allowed_late
        own = log(copy.cost + 1.0) + PRICE * spent
        if spent > RESERVE:
            own += OVER * (spent - RESERVE)
        found.append(own + trusted * far)
    return found
