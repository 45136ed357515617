"""How many instances the load needs: what is expected, what waits, what starts already. Pure.

An instance asked for now serves after the start-up time D. What waits by then, if arrivals are as expected and the
instances of now and those starting serve as they do, is the projected backlog Q. Two answers, the higher one counts:

    keep up    (g + (Q - g * W / 3) / T) / mu         T: 2 D or 3 W; g: expected rate with the margin, f: without
    hurry      (f + (Q - f * 3 W / 4) / (3 W / 4)) / mu

The first lets the queue work: up to a third of the allowed wait W may stand in it, and what is more is served over
twice the start-up time, as slowly as that is still steady. The second is for a queue that comes near the allowed wait:
all that is beyond three quarters of it has to be gone within the next three quarters.

Never less than what waits now takes to be gone within W, whatever is expected.

Scale-in follows the highest need of a hold time, which is the start-up time: an instance given up and wanted again
costs its start, and idles as long. Small steps in are left until they were right for ten minutes, small steps out are
not taken: the queue has room for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from msgspec import Struct

from scaling.rules.service_level.memory import NEEDS, STARTS

KEEP_UP_WAIT = 1 / 3
KEEP_UP_STARTS, KEEP_UP_WAITS = 2.0, 3.0
"""The time to serve what is more: two start-ups, or three waits where that is longer."""

HURRY_WAIT, HURRY_TIME = 0.75, 0.75

LAST_FOR, LAST_FOR_MANY, FEW = 600.0, 120.0, 5.0
"""Seconds for which fewer instances must do: of the first few, and of those beyond, whose load is hardly ever so steady."""

ROUNDING = 0.3
"""So much of an instance is not worth one more."""

SMALL_STEP_IN, SMALL_STEP_FOR = 0.15, 600.0
SMALL_STEP_OUT, MOST_SMALL_STEP = 0.07, 2.0

Starts = list[tuple[float, int]]
Needs = list[tuple[float, int]]


class Outlook(Struct):
    """What is known at one moment, in messages, seconds and messages per second.

    `expected` is the rate over the start-up time, `deviation` what a whole degree of carefulness adds to it; `service`
    what one busy instance serves; `wait` what no message should wait longer than, `interval` the time between two looks.
    """

    expected: float
    deviation: float
    service: float
    start_up: float
    wait: float
    interval: float = 15.0
    keep_up_time: float = 0.0
    hurry_time: float = 0.0

    def __post_init__(self) -> None:
        """How fast what waits is served: too much of it, and so much that it comes near the allowed wait. The latter not
        faster than looked at.
        """
        starts, waits = KEEP_UP_STARTS * self.start_up, KEEP_UP_WAITS * self.wait
        hurry, interval = HURRY_TIME * self.wait, self.interval
        self.keep_up_time = starts if starts > waits else waits
        self.hurry_time = hurry if hurry > interval else interval

    def careful(self, carefulness: float) -> float:
        """The expected rate with the margin."""
        rate = self.expected + carefulness * self.deviation
        return max(0.0, rate)


def need(outlook: Outlook, carefulness: float, waiting: float, capacity: float) -> float:
    """Instances needed, not rounded. `capacity`: messages that the instances there are serve within the start-up time."""
    return needs_of(outlook, ((carefulness, waiting, capacity),))[0]


def needs_of(outlook: Outlook, cases: Iterable[tuple[float, float, float]]) -> list[float]:
    """`need` in each case: its carefulness, what waits, and the capacity."""
    rate, deviation, service, wait = outlook.expected, outlook.deviation, outlook.service, outlook.wait
    keep_up_time, hurry_time = outlook.keep_up_time, outlook.hurry_time
    coming, near = rate * outlook.start_up, rate * wait * HURRY_WAIT
    calm = rate - near / hurry_time
    found = []
    for carefulness, waiting, capacity in cases:
        ready_for = rate + carefulness * deviation
        if ready_for < 0.0:
            ready_for = 0.0
        left = waiting + coming - capacity
        if left > 0.0:
            served = ready_for + (left - ready_for * wait * KEEP_UP_WAIT) / keep_up_time
            hurry = rate + (left - near) / hurry_time
        else:
            served = ready_for - ready_for * wait * KEEP_UP_WAIT / keep_up_time
            hurry = calm
        if hurry > served:
            served = hurry
        alone = waiting / wait
        if alone > served:
            served = alone
        found.append(served / service)
    return found


def rounded(instances: float) -> int:
    """Whole instances, one at least."""
    whole = ceil(instances - ROUNDING)
    return whole if whole > 1 else 1


def keeping_up(outlook: Outlook) -> int:
    """The fewest whole instances that keep up for long with what is expected. Fewer fall behind, and the instance given up
    is soon wanted again: the queue has room for `KEEP_UP_WAIT` of the allowed wait, which must last for `LAST_FOR`.
    """
    level = outlook.expected / outlook.service
    room = KEEP_UP_WAIT * outlook.wait
    behind = level * room / LAST_FOR
    if level > FEW:
        behind += (level - FEW) * room / LAST_FOR_MANY
    return ceil(level - behind)


def lasting(exact: float, outlook: Outlook) -> int:
    """What scale-in may follow: whole instances that are needed, and never fewer than keep up for long."""
    return max(rounded(exact), keeping_up(outlook))


def serving(starts: Starts, total: int, now: float, start_up: float) -> tuple[int, float]:
    """Of `total` instances those that serve now, and the instance-seconds of all of them within the start-up time."""
    if not starts:
        return total, total * start_up
    starting, seconds = 0, 0.0
    for asked, count in starts:
        age = now - asked
        if age < start_up:
            starting += count
            seconds += count * age
    ready = total - starting
    if ready < 0:
        ready = 0
    return ready, ready * start_up + seconds


def counted(starts: Starts) -> int:
    """All of their instances."""
    return sum(count for _, count in starts) if starts else 0


def settled(starts: Starts, now: float, start_up: float) -> Starts:
    """Those that do not serve yet."""
    if not starts or now - starts[0][0] < start_up:
        return starts
    return [start for start in starts if now - start[0] < start_up]


def changed(starts: Starts, before: int, after: int, asked: float) -> Starts:
    """After a change of the capacity: more start now; fewer takes those first that started last."""
    if after > before:
        kept = starts
        if len(kept) >= STARTS:
            (_, first), (later, second), *rest = kept
            kept = [(later, first + second), *rest]
        return [*kept, (asked, after - before)]
    return fewer(starts, before - after)[0]


def fewer(starts: Starts, excess: int) -> tuple[Starts, int]:
    """Without `excess` instances, the newest first; and how many of these are to be found elsewhere."""
    kept = list(starts)
    while excess > 0 and kept:
        asked, count = kept.pop()
        if count > excess:
            kept.append((asked, count - excess))
        excess -= count
    return kept, max(excess, 0)


def remembered(needs: Needs, now: float, wanted: int, hold: float = 0.0) -> Needs:
    """`needs` after `remember`; they stay as they are."""
    kept = list(needs)
    remember(kept, now, wanted, hold)
    return kept


def remember(needs: Needs, now: float, wanted: int, hold: float) -> None:
    """Takes one more into the needs of the last `hold` seconds, ten minutes at least: those that may still be the highest
    of some time that ends now, falling.
    """
    _forget(needs, now, hold)
    while needs and needs[-1][1] <= wanted:
        needs.pop()
    if len(needs) >= NEEDS:
        del needs[NEEDS - 2 : -1]  # what is left out stands between two that are kept
    needs.append((now, wanted))


def needed_until(needs: Needs, before: float, last: int, wanted: int, hold: float, now: float) -> None:
    """`remember` of `last`, which was needed until `before`, where `wanted` is needed from `now` on: as if that were in the
    list as well.
    """
    oldest = _forget(needs, now, hold)
    if wanted > last:  # which is the highest need of no time any more
        while needs and needs[-1][1] <= wanted:
            needs.pop()
    elif before > oldest:
        del needs[NEEDS - 2 :]  # what is left out stands between two that are kept
        needs.append((before, last))


def _forget(needs: Needs, now: float, hold: float) -> float:
    """Takes out those that are too old, and returns since when others are not."""
    oldest = now - (hold if hold > SMALL_STEP_FOR else SMALL_STEP_FOR)
    while needs and needs[0][0] <= oldest:
        del needs[0]
    return oldest


def highest(needs: Needs, since: float) -> int:
    """The highest need after `since`."""
    for at, wanted in needs:
        if at > since:
            return wanted
    return 0


def step(exact: float, total: int, needs: Needs, now: float, hold: float) -> int:
    """The capacity to have, where `exact` instances are needed and `total` are there; `needs` are those before."""
    return stepped(exact, rounded(exact), total, needs, now, hold)


def stepped(exact: float, wanted: int, total: int, needs: Needs, now: float, hold: float) -> int:
    """`step`, where `wanted` is what is needed in whole instances, or the fewest and most there may be."""
    if wanted > total:
        return wanted if exact >= more_than(total) else total
    recent = highest(needs, now - hold)
    if wanted > recent:
        recent = wanted
    return total if recent >= total else _fewer_or(total, recent, highest(needs, now - SMALL_STEP_FOR))


def more_than(total: int) -> float:
    """From so many needed instances on there are too few, not rounded: of none any is, for they serve nothing."""
    if total < 1:
        return 0.0
    small = SMALL_STEP_OUT * total
    if small > MOST_SMALL_STEP:
        small = MOST_SMALL_STEP
    return total + (small if small > ROUNDING else ROUNDING)


def _fewer_or(total: int, recent: int, lately: int) -> int:
    """By the highest needs of the hold time and of ten minutes."""
    if recent < total and total - recent >= SMALL_STEP_IN * total:
        return recent
    kept = lately if lately > recent else recent
    return kept if kept < total else total
