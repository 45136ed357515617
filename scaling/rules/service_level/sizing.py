"""How many instances the load needs: for what is expected, for what is there, less what starts already. Pure.

An instance that is asked for now serves after the start-up time D. It then takes up c messages at once (the concurrency) and serves
mu messages per second, so a message takes s = c / mu. N_D messages will be active by then, waiting and being processed, with the
instances that serve and start (`active_ahead`). With n instances from then on, N_D - c n of them wait. To serve them at an arrival
rate g over a time T, but for the messages of a time w that may stand in the queue, takes

    mu n = g + (N_D - c n - g w) / T        so        n = (g (T - w) + N_D) / (c + mu T)

With W the allowed wait, f the expected rate, g that rate with the margin, the need is the highest of three:

    keep up   n = (g (T - w) + N_D + e) / (c + mu T)    T = max(2 D, 3 W)    w = 0.7 (W - 0.6 i)    e = sqrt(g min(D, s))
    hurry     n = (f (T - w) + N_D) / (c + mu T)        T = w = 0.65 W          T not shorter than the interval of reports
    floor     n = N / (c + mu W)                        N: the messages that are active now

`keep up` lets the queue do some of the work: it may hold most of the allowed wait, of which the age of a report goes off (a little more than half
an interval i), and what is beyond is served over twice the start-up time, which is as slow as stays stable. `hurry` is for a queue that comes
near the allowed wait: all beyond two thirds of it has to be begun within the next two thirds. `floor` means that there are always enough instances to
start every waiting message within W, whatever the forecast says.

Where messages are fast (mu T is much more than c) the c in the denominator hardly counts, and the queue alone matters. Where they are
slow, c is all that is left: N_D / c instances process everything that is there at once, which is what KEDA asks for.

Where the allowed wait is long, the queue is the margin, and what waits needs no forecast but a deadline: it has to be begun within
W' = 0.8 W after it came. K(h) messages have to be begun within h seconds (`queue.deadlines`), and r instances serve. The need is
the highest over h:

    n = K(h) / (mu h)                                              where that is no more than r
    n = r + (K(h) - r mu h) / (c + mu max(h - D, D / 4))           where it is more

Of the instances beyond r, those that start already serve sooner than D from now.

Scale-in follows the highest need within a hold time: D + s, or a tenth of a long wait. An instance that is given up and wanted again costs
its start-up, and it may stop what it processes; so it may idle for as long. A scale-in that the next report would take back, because fewer
instances need more, goes as far as stays. Small steps in wait until they were right for ten minutes. Small steps out are not taken, because
the queue has room for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

from msgspec import Struct

from scaling.rules.service_level.memory import MAX_NEEDS, MAX_STARTS, Needs, Starts
from scaling.rules.service_level.queue import active_after

NOISE = 1.0
"""Standard deviations of what arrives by chance, added to the active messages. Messages that arrive at random at a rate g, and of which
those of a time t count, vary by sqrt(g t) (Poisson). Chosen: one. It changes nothing for fast messages. With one slow message at a time
the cost and the lateness lie on the same curve as without it (22 recorded loads, 26 November 2026), at a margin that others use.
"""

MAX_INSTANCES = 1_000_000
"""No more instances are asked for, whatever the numbers. Chosen: beyond any platform. The policy's maximum applies after the rules."""

KEEP_UP_WAIT, REPORT_AGE = 0.7, 0.6
"""Of the allowed wait less this share of an interval, which is how old a report is on average and a little more, the first share may stand in
the queue. The rest is for noise. A queue that may hold work is what makes the rule cheap. Measured on eleven recorded loads, messages counted
(28 November 2026), in seconds of a wait of 60 s. Every 15 s: 18 s 1.23 times the least cost at 0.94 % late, 26 s 1.22 at 0.94 %, 34 s 1.204 at 1.02 %,
42 s 1.195 at 1.10 %. Every 60 s: none 1.41 at 2.2 %, 15 s 1.36 at 2.65 %, 20 s 1.34 at 2.8 %. So a rare report leaves less of the wait, and
more than in proportion.
"""

KEEP_UP_STARTS, KEEP_UP_WAITS = 2.0, 3.0
"""What is beyond is served over two start-up times, or three waits where that is longer. Chosen: faster, the rule answers
what its own starting instances are about to serve, and swings.
"""

HURRY_WAIT, HURRY_TIME = 0.65, 0.65
"""Shares of the allowed wait. The rest is left for the interval between two reports. Measured as above, every 15 s: with three quarters 1.202 times
the least cost at 0.96 % late, with 0.65 at 0.89 %, with 0.6 1.206 at 0.83 %.
"""

STEADY_TIME, STEADY_TIME_MANY, FEW = 800.0, 240.0, 5.0
"""Seconds for which fewer instances must keep up, for the first five instances and for those beyond. Measured: at a steady
need of 1.25 instances, the rule without it went out and in 50 times an hour, at the same cost; with 600 s a steady need of 4.25 did so
42 times. The load of many instances is hardly ever that steady, hence the shorter time: with 240 s 0.8 changes an hour less than with 120 s, at
the same cost (eleven recorded loads, 28 November 2026).
"""

ROUNDING = 0.3
"""This share of an instance is not worth one more. Chosen: the queue has room for it."""

SMALL_STEP_IN, SMALL_STEP_IN_TIME = 0.2, 600.0
"""A smaller share of the instances is given up only if it was not needed for ten minutes. The time is chosen, like the window of
ten minutes of Azure Monitor's autoscale; the share is measured with the next ones.
"""

FREE_STEP_IN = 0.1
"""The share where a change costs nothing: the platform takes any number of them, and messages are over within the interval of reports, so
that a scale-in stops few. Measured on six recorded loads, first day, messages counted every 15 s (28 November 2026): 1.28 times
the least cost in place of 1.31, at the same 0.6 % late, for 21 changes an hour in place of 14. With messages of 32 s it saves 1.6 %, but a
quarter more of them are begun again.
"""

SMALL_STEP_OUT, MAX_SMALL_STEP_OUT = 0.1, 4.0
"""A smaller share of the instances, but at most four, is not added: the tolerance of Kubernetes' HPA. Measured with 0.2 for steps in
(five recorded loads, 27 November 2026): beside 0.07, at most two, and 0.15 a fifth fewer changes and a tenth less aborted work,
at less than 1 % more cost and no more late messages.
"""


LONG_WAIT = 5.0
"""An allowed wait of so many times the start-up time and the interval between two reports is long. Chosen: by then the queue has
room for what comes until new instances serve. 10 min is the shortest wait that was measured with a start-up of 90 s.
"""

BEGIN_WITHIN = 0.8
"""Of a long wait, so much may pass until a message is begun. The rest is for the start-up and for what marks and reports date
late. Measured on 19 recorded loads (26 November 2026): with 0.7 and 0.85 the cost differs by a hundredth, and none was late.
"""

LONG_WAIT_HELD = 0.1
"""Of a long wait, scale-in follows the highest need of so much. Measured: with it a target whose wait is 2 h changes 1.6 instead of 16
times an hour, at the same cost (19 recorded loads, 26 November 2026).
"""

SOONEST = 1 / 16
"""Of that time, so much is left for what is due already. Chosen: the distance of two marks of arrivals."""


class Outlook(Struct, kw_only=True):
    """What is expected at the time of a report, in messages, seconds and messages per second.

    `expected` is the rate over the start-up time. `deviation` is what a safety factor of 1 adds to it. `service_rate` is what
    one busy instance serves, `concurrency` how many messages it processes at once. `wait` is the allowed wait, `interval` the time
    between two reports. `limited`: the platform takes so many changes an hour and no more.
    """

    expected: float
    deviation: float
    service_rate: float
    concurrency: float
    start_up: float
    wait: float
    interval: float = 15.0
    service_time: float = 0.0
    keep_up_time: float = 0.0
    keep_up_wait: float = 0.0
    hurry_time: float = 0.0
    noise_time: float = 0.0
    begin_within: float = 0.0
    hold: float = 0.0
    step_in: float = 0.0
    identified: bool = True
    limited: bool = False

    def __post_init__(self) -> None:
        """Derives the times that are the same for all candidates. `begin_within` is 0 where the wait is not long."""
        self.service_time = self.concurrency / self.service_rate
        self.keep_up_time = max(KEEP_UP_STARTS * self.start_up, KEEP_UP_WAITS * self.wait)
        self.keep_up_wait = KEEP_UP_WAIT * max(self.wait - REPORT_AGE * self.interval, 0.0)
        self.hurry_time = max(HURRY_TIME * self.wait, self.interval)
        self.noise_time = min(self.start_up, self.service_time)
        if self.wait >= LONG_WAIT * (self.start_up + self.interval):
            self.begin_within = BEGIN_WITHIN * self.wait
        long_hold = LONG_WAIT_HELD * self.wait if self.begin_within else 0.0
        stopped = self.service_time if self.identified else 0.0  # a mere bound may be an hour
        self.hold = max(self.start_up + stopped, long_hold)
        is_free = not self.limited and self.service_time <= self.interval
        self.step_in = FREE_STEP_IN if is_free else SMALL_STEP_IN

    def rate_with_margin(self, safety_factor: float) -> float:
        """The expected rate and the margin, in messages per second."""
        return max(0.0, self.expected + safety_factor * self.deviation)


def instances_needed(outlook: Outlook, safety_factor: float, active: float, active_ahead: float) -> float:
    """Instances needed, not rounded, with `active` messages there now and `active_ahead` after the start-up time."""
    rate, wait, at_once, mu = outlook.expected, outlook.wait, outlook.concurrency, outlook.service_rate
    prepared_for = max(rate + safety_factor * outlook.deviation, 0.0)
    time, urgent = outlook.keep_up_time, outlook.hurry_time
    noise = NOISE * sqrt(prepared_for * outlook.noise_time)
    keep_up = (prepared_for * (time - outlook.keep_up_wait) + active_ahead + noise) / (at_once + mu * time)
    hurry = (rate * (urgent - wait * HURRY_WAIT) + active_ahead) / (at_once + mu * urgent)
    return max(keep_up, hurry, active / (at_once + mu * wait))


def instances_by_deadline(
    outlook: Outlook, due: Sequence[tuple[float, float]], total: int, starting: Starts, now: float
) -> float:
    """Instances needed, not rounded, to begin the messages of `due` (within so many seconds, so many), with `total` there or
    starting.
    """
    serving = serving_instances(starting, total, now, outlook.start_up)
    at_once, mu, start_up = outlook.concurrency, outlook.service_rate, outlook.start_up
    groups = [(min(asked_at + start_up - now, start_up), count) for asked_at, count in starting]
    groups = [*((left, count) for left, count in groups if left > 0.0), (start_up, MAX_INSTANCES)]
    highest = 0.0
    for within, messages in due:
        seconds = max(within, SOONEST * outlook.begin_within)
        needed = min(messages / (mu * seconds), serving)
        left_over = messages - mu * seconds * serving
        for left, count in groups:
            if left_over <= 0.0:
                break
            of_one = at_once + mu * max(seconds - left, start_up / 4)
            needed += min(left_over / of_one, count)
            left_over -= of_one * count
        highest = max(highest, needed)
    return highest


def active_ahead(outlook: Outlook, active: float, total: int, starting: Starts, now: float) -> float:
    """Messages active after the start-up time, of `active` now, with `total` instances of which some still start."""
    rate, at_once, takes = outlook.expected, outlook.concurrency, outlook.service_time
    if not starting:
        return active_after(active, rate, at_once * total, takes, outlook.start_up)
    serving, passed = serving_instances(starting, total, now, outlook.start_up), 0.0
    for asked_at, count in starting:
        after = min(asked_at + outlook.start_up - now, outlook.start_up)
        if after > passed:
            active = active_after(active, rate, at_once * serving, takes, after - passed)
            passed = after
        if after > 0.0:
            serving = min(serving + count, total)
    return active_after(active, rate, at_once * serving, takes, outlook.start_up - passed)


def round_instances(needed: float) -> int:
    """Whole instances, at least one; `needed` is not below 0."""
    return ceil(needed - ROUNDING) or 1


def fewest_that_keep_up(outlook: Outlook) -> int:
    """The fewest whole instances whose queue lasts for `STEADY_TIME` at the expected rate.

    With fewer, the queue fills the part of the allowed wait that it may hold before, and the instance given up is wanted again. None,
    where the queue is the margin, or where arrivals are not known because the time of a message is not.
    """
    if outlook.begin_within or not outlook.identified:
        return 0
    level = outlook.expected / outlook.service_rate
    room = outlook.keep_up_wait
    falls_behind = level * room / STEADY_TIME
    if level > FEW:
        falls_behind += (level - FEW) * room / STEADY_TIME_MANY
    return ceil(level - falls_behind)


# Instances that start


def serving_instances(starting: Starts, total: int, now: float, start_up: float) -> int:
    """Of `total` instances those that serve now."""
    not_yet = sum(count for asked_at, count in starting if now - asked_at < start_up)
    return max(total - not_yet, 0)


def count_instances(starting: Starts) -> int:
    return sum(count for _, count in starting)


def still_starting(starting: Starts, now: float, start_up: float) -> Starts:
    """The groups that do not serve yet."""
    return [(asked_at, count) for asked_at, count in starting if now - asked_at < start_up]


def starting_after_change(starting: Starts, before: int, after: int, asked_at: float) -> Starts:
    """The groups after a change of the capacity: one more, or the newest instances given up first."""
    if after <= before:
        return remove_newest(starting, before - after)[0]
    if len(starting) >= MAX_STARTS:
        (_, first), (asked_later, second), *rest = starting
        starting = [(asked_later, first + second), *rest]
    return [*starting, (asked_at, after - before)]


def remove_newest(starting: Starts, excess: int) -> tuple[Starts, int]:
    """The groups without the `excess` newest instances, and how many of these are not among them."""
    kept = list(starting)
    while excess > 0 and kept:
        asked_at, count = kept.pop()
        if count > excess:
            kept.append((asked_at, count - excess))
        excess -= count
    return kept, max(excess, 0)


# Needs of the hold time


def needs_with(needs: Needs, now: float, need: int, hold: float = 0.0) -> Needs:
    """A copy of `needs` with one more."""
    changed = list(needs)
    record_need(changed, now, need, hold)
    return changed


def record_need(needs: Needs, now: float, need: int, hold: float) -> None:
    """Adds a need to those of the last `hold` seconds (ten minutes at least). Smaller ones before it go: they are the highest
    of no time range that ends now.
    """
    drop_expired_needs(needs, now, hold)
    _drop_up_to(needs, need)
    if len(needs) >= MAX_NEEDS:
        del needs[MAX_NEEDS - 2 : -1]  # those left out stand between two that are kept
    needs.append((now, need))


def record_need_until(
    needs: Needs, before: float, last_need: int, need: int, hold: float, now: float
) -> None:
    """Records `last_need`, which was needed until `before`, where `need` is needed from `now` on and is kept apart."""
    oldest = drop_expired_needs(needs, now, hold)
    if need > last_need:
        _drop_up_to(needs, need)
    elif before > oldest:
        del needs[MAX_NEEDS - 2 :]  # those left out stand between two that are kept
        needs.append((before, last_need))


def drop_expired_needs(needs: Needs, now: float, hold: float) -> float:
    """Removes needs that are too old, and returns the time since when they count: the only place that does so."""
    oldest = now - max(hold, SMALL_STEP_IN_TIME)
    while needs and needs[0][0] <= oldest:
        del needs[0]
    return oldest


def _drop_up_to(needs: Needs, need: int) -> None:
    while needs and needs[-1][1] <= need:
        needs.pop()


def highest_need_since(needs: Needs, since: float) -> int:
    for at, need in needs:
        if at > since:
            return need
    return 0


# The next capacity


def next_capacity(
    needed: float, current: int, needs: Needs, now: float, hold: float, step_in: float = SMALL_STEP_IN
) -> int:
    """The capacity to have, where `needed` instances are needed and `current` are there; `needs` are those before."""
    return capacity_after_hold(needed, round_instances(needed), current, needs, now, hold, step_in)


def capacity_after_hold(
    needed: float, need: int, current: int, needs: Needs, now: float, hold: float, step_in: float
) -> int:
    """`next_capacity`, where `need` is the whole number: `needed` rounded, or a bound on it. A large step in follows the need of the
    hold time, a small one that of ten minutes.
    """
    if need > current:
        return need if needed >= scale_out_threshold(current) else current
    if need == current:
        return current
    need_in_hold = max(need, highest_need_since(needs, now - hold))
    if need_in_hold >= current:
        return current
    if current - need_in_hold >= step_in * current:
        return need_in_hold
    return min(max(need_in_hold, highest_need_since(needs, now - SMALL_STEP_IN_TIME)), current)


def capacity_that_stays(desired: int, current: int, needed_after: float) -> int:
    """A scale-in from `current` to `desired`, or to more where `needed_after` is what would be needed right after it, and the next
    report would take the scale-in back.
    """
    if needed_after <= scale_out_threshold(desired):
        return desired
    return min(round_instances(min(needed_after, MAX_INSTANCES)), current)


def scale_out_threshold(current: int) -> float:
    """The unrounded need above which the target scales out. With no instances, any need does."""
    if current < 1:
        return 0.0
    small_step = min(SMALL_STEP_OUT * current, MAX_SMALL_STEP_OUT)
    return current + max(small_step, ROUNDING)
