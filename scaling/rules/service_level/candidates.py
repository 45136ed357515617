"""Eight candidates with different safety factors, simulated on the real arrivals; the rule follows the best one. Pure.

Arrivals do not depend on what is decided. So what another safety factor would have cost, and how many messages would have
been late, can be simulated while the load goes by. Each candidate has the forecast of the rule, a safety factor of its own, and
instances that start and serve like those of the target. The rule uses the safety factor of the candidate with the lowest

    score = log(instance-hours) + price u + over max(0, u - RESERVE)        u = late share / allowed share

A late message thus has a price, by `spend` (`TRADES`): using the whole lateness budget (u = 1) costs as much as 13 % of the bill by
default (every 15 s; less where reports are rarer); its last quarter counts about double. A target with a smooth load gets no margin at all. One with bursts gets idle capacity up to
the best trade-off, where more of it hardly avoids a late message. A target whose bursts no capacity meets does not buy a
fleet for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, log

from msgspec import Struct
from msgspec.structs import replace

from scaling.rules.service_level.memory import Candidate, Memory, Spend, Starts
from scaling.rules.service_level.queue import DAY, active_after
from scaling.rules.service_level.service_time import CHANGED
from scaling.rules.service_level.sizing import (
    Outlook,
    active_ahead,
    capacity_after_hold,
    capacity_that_stays,
    instances_needed,
    record_need_until,
    remove_newest,
    round_instances,
    serving_instances,
    starting_after_change,
    still_starting,
)

SAFETY_FACTORS = (-0.5, -0.25, 0.0, 0.33, 0.67, 1.0, 1.25, 1.5)
"""Standard deviations that are added to the forecast, by candidate, for a report every 15 s. Measured on 22 recorded loads
with fixed factors (26 November 2026): 0.33 gives 1.5 % late at 1.2 times the least cost, 1.0 gives 0.8 % at 1.33 times. The
ladder reaches half a deviation beyond on both sides.
"""

CAREFUL_FACTORS = (-0.25, 0.0, 0.33, 0.67, 1.0, 1.5, 2.0, 2.5)
"""Those of `spend = "keep"`, whatever the interval. Measured with fixed factors at a report every 60 s: 1 % late takes 2 to 2.5."""

REFERENCE_INTERVAL, INTERVAL_POWER = 15.0, 0.3
"""Seconds between two reports that `SAFETY_FACTORS` are for. With fewer reports a burst is seen late: a margin idles longer and
avoids fewer late messages, so the factors fall by this power of the ratio. Chosen with 11 recorded loads at 60 s, messages counted
(27 November 2026): at the prices of then 2.8 % late at 1.28 times the least cost. 0.8 gave 4.5 % at 1.21 times, 0 gave 2.0 % at 1.34 times.
"""

INFERRED_SHARE, BACKLOG_SHARE = 0.8, 0.45
"""The factors are multiplied by this where arrivals are inferred from the backlog: that is noisy, and its noise is part of the
forecast's error, but not of the load. By the second where the time of a message is known by the backlog, too, for then they are inferred
worst. Measured with the latter on eleven recorded loads, messages of 1.6 s (28 November 2026): 0.65 gives 0.7 % late at 1.34 times the least cost,
0.5 0.8 % at 1.33 times, 0.4 0.9 % at 1.31 times; with `estimates.messages_to_hold` 0.44 1.0 % at 1.29 times. With ages (six loads, first day): 0.38 1.3 % at 1.29 times, 0.65 0.8 % at 1.31 times, 0.8
0.8 % at 1.32 times. With messages of 32 s whose time is given: 0.35 1.6 % at 1.22 times, 0.8 1.0 % at 1.28 times.
"""

POOLED = 2.0
"""Instances that process fewer messages at once keep the whole factors: few slots even out little, and a message that finds none free waits
for all of another's time. Measured with messages of 30 s, one at a time (six recorded loads, 27 November 2026): 1.6 % late in place of 2.1 at
1.43 times the least cost in place of 1.40 (`takes` given), 1.3 in place of 1.9 at 1.58 in place of 1.55 (`oldest_age`).
"""

FIRST = 4
"""The candidate that is preferred at first. Chosen: 0.67, which kept 1 % in the measurement above."""

FIRST_TIME, FIRST_WORTH = 21_600.0, 0.2
"""The preference: a safety factor that differs by 1 has to be better by 20 % of the bill. It halves in six hours. Chosen: about
as long as the scores take to differ.
"""

HALF_LIFE = 3 * 86_400.0
"""Seconds after which a cost, or a late message, counts half. Chosen: three days, so a weekend does not forget the week."""

RESERVE = 0.75
"""Beyond this share of the lateness budget a late message costs more."""

FORESEEN_AT_LEAST, MOST_OPTIMISTIC = 0.25, 4.0
"""Candidates are simulated with random times of messages, and with arrivals and start-ups that are taken for known. Where more is late than the followed one
foresaw, late messages of all count so many times more, up to the second number; less than the first share of what may be late is not
compared. Measured on eleven recorded loads (28 November 2026): messages of 80 s that all take as long, counted: 1.37 % late at 1.31 times the
least cost without it, 0.83 % at 1.34 times with it. Messages of 1.6 s: no difference.
"""


class Trade(Struct, frozen=True):
    """How idle capacity is traded for late messages, as shares of the bill: what is used of the lateness budget costs `price` times
    itself, and what of it is beyond `RESERVE` costs `over` times itself on top.
    """

    factors: tuple[float, ...]
    is_scaled: bool
    price: float
    over: float


TRADES = {
    "keep": Trade(CAREFUL_FACTORS, is_scaled=False, price=0.15, over=0.15),
    "balanced": Trade(SAFETY_FACTORS, is_scaled=True, price=0.10, over=0.12),
    "least": Trade(SAFETY_FACTORS, is_scaled=True, price=0.02, over=0.02),
}
"""By `spend`, for a report every `REFERENCE_INTERVAL` (see `trade_at`). The prices of `balanced` and `RESERVE` were fitted to 11 open recorded
loads, messages counted: 0.90 % late on average, 8 of them within 1 %, at 1.20 times the least cost; every 60 s, at a quarter of these prices, 2.5 % at
1.30 times. Those of `keep` were chosen on the same at a report every 60 s (28 November 2026): 0.8 % late at 1.56 times. Those of `least` are a
fifth of `balanced`.
"""

SCORES_DIFFER = 21_600.0
"""Seconds after which the simulated candidates say whether the objective can be kept. Chosen: as `FIRST_TIME`."""

KEPT_AGAIN = 0.8
"""Of the allowed share, so much may be late for an objective that could not be kept to count as one that can. Chosen: it must not be
said again and again.
"""


def begin(total: int, waiting: float, active: float) -> list[Candidate]:
    return [Candidate(total=total, waiting=waiting, active=active) for _ in SAFETY_FACTORS]


def begin_again(candidates: Sequence[Candidate], total: int, waiting: float, active: float) -> None:
    """From what is there, with the costs and late messages so far."""
    for candidate in candidates:
        candidate.total, candidate.waiting, candidate.active = total, waiting, active
        candidate.starting, candidate.needs, candidate.last_need = [], [], 0


def follow_change(memory: Memory, change: float, starting: Starts) -> None:
    """A message takes `change` times as long as was known, since one of the last reports: the candidates served meanwhile what no target
    could, so they go on from what is there. Where it takes less, scale-in follows what would have been needed.
    """
    if 1.0 / CHANGED <= change <= CHANGED:
        return
    followed: tuple[Memory | Candidate, ...] = (memory, *memory.candidates)
    for each in followed:
        each.needs = [(at, ceil(need * min(change, 1.0))) for at, need in each.needs]
        each.last_need = ceil(each.last_need * min(change, 1.0))
    for candidate in memory.candidates:
        candidate.total, candidate.starting = memory.current, starting
        candidate.waiting, candidate.active = memory.waiting, memory.backlog


class Interval(Struct, kw_only=True):
    """The last `seconds`, up to `now`. `arrived` messages came in them, `arrived_before` in all before, and `late` ones were begun. Of all
    messages, `old_before` were too old at their start to be begun in time, `old_now` at their end. `keep` is the share of the
    costs before that still counts. `is_followed` says whether the target followed a candidate.
    """

    now: float
    seconds: float
    keep: float
    arrived: float
    arrived_before: float
    old_before: float
    old_now: float
    late: float = 0.0
    is_followed: bool = True


@lru_cache(maxsize=64)
def safety_factors(
    interval: float, spend: str, *, counted: bool, at_once: float, backlog_alone: bool = False
) -> tuple[float, ...]:
    """That of each candidate, for a report every `interval` seconds, with arrivals counted or inferred, on instances that process
    `at_once` messages, whose time is known by the backlog alone or by more.
    """
    trade = TRADES[spend]
    if not trade.is_scaled:
        return trade.factors
    share = 1.0
    if not counted and at_once >= POOLED:
        share = BACKLOG_SHARE if backlog_alone else INFERRED_SHARE
    scale = min((REFERENCE_INTERVAL / interval) ** INTERVAL_POWER, 1.0) * share
    return tuple(scale * factor for factor in trade.factors)


def late_share(overdue_before: float, overdue_after: float) -> float:
    """Of messages begun one after the other, the share that was late. `overdue_*` is how many of them were too old and not begun
    yet, before and after; below 0, by how many messages the queue was ahead of that.
    """
    if overdue_before <= 0.0 and overdue_after <= 0.0:
        return 0.0
    if overdue_before >= 0.0 and overdue_after >= 0.0:
        return 1.0
    return max(overdue_before, overdue_after) / (abs(overdue_before) + abs(overdue_after))


def follow(
    memory: Memory, factors: Sequence[float], outlook: Outlook, interval: Interval, *, least: int, most: int
) -> None:
    """Simulates the last interval for every candidate, and sums up what is to be known of all of it."""
    keep, careful, followed = interval.keep, memory.candidates[-1], memory.candidates[memory.chosen]
    careful_before, followed_before = careful.late * keep, followed.late * keep
    had_as_many = memory.current >= followed.total
    simulate(memory.candidates, factors, outlook, interval, least=least, most=most)
    sums = (memory.scored_arrivals, memory.late_at_most, memory.late_seen, memory.late_foreseen)
    arrivals, at_most, seen, foreseen = (each * keep for each in sums)
    if careful.total >= most:
        at_most += careful.late - careful_before
    if interval.is_followed and had_as_many:
        seen += interval.late
        foreseen += followed.late - followed_before
    memory.scored_arrivals, memory.late_at_most = arrivals + interval.arrived, at_most
    memory.late_seen, memory.late_foreseen = seen, foreseen


def simulate(
    candidates: Sequence[Candidate],
    factors: Sequence[float],
    outlook: Outlook,
    interval: Interval,
    *,
    least: int,
    most: int,
) -> None:
    """Simulates the last interval for every candidate, and its next decision: it needs at least `least` instances, and
    has at most `most`.
    """
    for candidate, factor in zip(candidates, factors, strict=True):
        _serve(candidate, outlook, interval)
        ahead = active_ahead(outlook, candidate.active, candidate.total, candidate.starting, interval.now)
        needed = instances_needed(outlook, factor, candidate.active, ahead)
        after = _decide(candidate, needed, outlook, interval, least=least, most=most)
        if after < candidate.total:
            after = _what_stays(candidate, after, outlook, factor, interval.now)
        if after != candidate.total:
            candidate.starting = starting_after_change(
                candidate.starting, candidate.total, after, interval.now
            )
            candidate.total = after


def _serve(candidate: Candidate, outlook: Outlook, interval: Interval) -> None:
    """The queue of a candidate over the interval."""
    seconds, keep, arrived, at_once = interval.seconds, interval.keep, interval.arrived, outlook.concurrency
    total, waited = candidate.total, candidate.waiting
    served = serving = float(total)
    if candidate.starting:
        served = _serving_on_average(candidate, interval, outlook.start_up)
        candidate.starting = still_starting(candidate.starting, interval.now, outlook.start_up)
        serving = serving_instances(candidate.starting, total, interval.now, outlook.start_up)
    active = max(candidate.active, waited)  # an older version kept those that waited only
    candidate.active = active_after(
        active, arrived / seconds, at_once * served, outlook.service_time, seconds
    )
    candidate.waiting = max(candidate.active - at_once * serving, 0.0)
    begun_before = interval.arrived_before - waited
    begun = waited + arrived - candidate.waiting
    overdue_before, overdue = interval.old_before - begun_before, interval.old_now - begun_before - begun
    candidate.cost = candidate.cost * keep + total * seconds
    candidate.late *= keep
    if begun > 0.0 and (overdue_before > 0.0 or overdue > 0.0):
        candidate.late += begun * late_share(overdue_before, overdue)


def _serving_on_average(candidate: Candidate, interval: Interval, start_up: float) -> float:
    """Instances that served in the interval; those that became ready in it count for the part in which they did."""
    seconds = candidate.total * interval.seconds
    for asked_at, count in candidate.starting:
        missing = asked_at + start_up - interval.now + interval.seconds
        seconds -= count * min(max(missing, 0.0), interval.seconds)
    return max(seconds, 0.0) / interval.seconds


def _decide(
    candidate: Candidate, needed: float, outlook: Outlook, interval: Interval, *, least: int, most: int
) -> int:
    """The capacity to have."""
    total, last_need, hold = candidate.total, candidate.last_need, outlook.hold
    rounded = round_instances(needed)
    need = rounded if least <= rounded <= most else min(max(rounded, least), most)
    if need != last_need:
        if last_need:
            before = interval.now - interval.seconds
            record_need_until(candidate.needs, before, last_need, need, hold, interval.now)
        candidate.last_need = need
    if rounded < total:
        rounded = need  # `least` keeps instances, and adds none
    if rounded == total <= most:
        return total
    now, step_in = interval.now, outlook.step_in
    return min(capacity_after_hold(needed, rounded, total, candidate.needs, now, hold, step_in), most)


def _what_stays(candidate: Candidate, after: int, outlook: Outlook, factor: float, now: float) -> int:
    """Of a scale-in, what the next report would not take back."""
    starting, _ = remove_newest(candidate.starting, candidate.total - after)
    active = active_ahead(outlook, candidate.active, after, starting, now)
    needed = instances_needed(outlook, factor, candidate.active, active)
    return capacity_that_stays(after, candidate.total, needed)


@lru_cache(maxsize=64)
def trade_at(spend: str, interval: float) -> Trade:
    """The trade for a report every `interval` seconds: the rarer reports are, the more it costs to avoid a late message, and the less is paid,
    but no less than `least` pays.
    """
    trade, least = TRADES[spend], TRADES["least"]
    if not trade.is_scaled:
        return trade
    share = min(REFERENCE_INTERVAL / interval, 1.0)
    return replace(
        trade, price=max(share * trade.price, least.price), over=max(share * trade.over, least.over)
    )


def choose(memory: Memory, allowed: float) -> None:
    """Follows the candidate with the lowest score; `allowed` is the share that may be late."""
    age = memory.at - memory.since
    memory.chosen = choose_best(
        memory.candidates,
        memory.scored_arrivals,
        allowed / optimism(memory, allowed),
        age,
        trade_at(memory.spend, memory.interval),
    )


def optimism(memory: Memory, allowed: float) -> float:
    """How many times as many messages were late as the candidates foresaw, at least 1."""
    foreseen_at_least = FORESEEN_AT_LEAST * allowed * (memory.scored_arrivals + 1.0)
    seen, foreseen = memory.late_seen + foreseen_at_least, memory.late_foreseen + foreseen_at_least
    return min(max(seen / foreseen, 1.0), MOST_OPTIMISTIC)


def choose_best(
    candidates: Sequence[Candidate], arrived: float, allowed: float, age: float, trade: Trade
) -> int:
    """The index of the candidate with the lowest score. `arrived` messages are discounted like the costs; `age` are the seconds since the
    first report.
    """
    preference, first = FIRST_WORTH * FIRST_TIME / (FIRST_TIME + age), trade.factors[FIRST]
    scores = [
        score(candidate, arrived, allowed, trade) + preference * abs(factor - first)
        for candidate, factor in zip(candidates, trade.factors, strict=True)
    ]
    return scores.index(min(scores))


def score(candidate: Candidate, arrived: float, allowed: float, trade: Trade) -> float:
    """Lower is better: the logarithm of the cost, and the price of the late messages."""
    used = candidate.late / ((arrived + 1.0) * allowed)
    value = log(candidate.cost + 1.0) + trade.price * used
    return value + trade.over * (used - RESERVE) if used > RESERVE else value


def fewest_late(candidates: Sequence[Candidate], arrived: float) -> float:
    """The share of late messages of the candidate with the fewest."""
    return min(candidate.late for candidate in candidates) / (arrived + 1.0)


def follow_trade(memory: Memory, spend: Spend) -> None:
    """Begins anew where another trade is stated: costs and late messages are of other factors."""
    if memory.spend == spend:
        return
    memory.candidates = begin(memory.current, memory.waiting, memory.backlog)
    memory.spend, memory.chosen, memory.scored_arrivals = spend, FIRST, 0.0
    memory.late_at_most, memory.late_seen, memory.late_foreseen, memory.unkept = 0.0, 0.0, 0.0, ""


def follow_objective(memory: Memory, wait: float, late: float) -> None:
    """Whether any candidate keeps the objective, and what is in the way. It is said when it shows, and once a day."""
    allowed = late * (KEPT_AGAIN if memory.unkept else 1.0)
    is_kept = fewest_late(memory.candidates, memory.scored_arrivals) <= allowed
    if is_kept or memory.at - memory.since < SCORES_DIFFER:
        memory.unkept = ""
    elif not memory.unkept or memory.at // DAY != memory.unkept_at // DAY:
        memory.unkept_at = memory.at
        if memory.late_at_most > memory.candidates[-1].late / 2:
            memory.unkept = "maximum"
        else:
            memory.unkept = "interval" if memory.interval > wait / 2 else "start_up"
