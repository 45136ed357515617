"""learn(): from the memory and one report to the next memory. Pure and total. The steps change a copy of the memory.

Total: whatever is reported, in whatever order, there is a memory afterwards, and every number in it is finite. A report
that is not newer changes nothing. After a gap, or after the clock was set back, what was learned stays; what was under way
(forecasts, ages of messages, the queues of the candidates) begins again from what is there.

The steps of one report (`_learn`):

1. `_follow_capacity`: which instances started, stopped, or serve now.
2. `_follow_time`: how long a message takes, by what is counted, by ages, and by the backlog.
   `_follow_flow`: what arrived and was completed, and what follows from it about the instances.
3. `_follow_queue`: what was begun, and how much of it late.
4. `_follow_forecast`: past forecasts against what came, and the next one.
5. `_follow_candidates`: the candidates on the same arrivals, and the best of them.
6. The need, which scale-in looks back on.
"""

from __future__ import annotations

from math import isfinite

from msgspec import Struct

from scaling.rules.service_level import (
    candidates,
    estimates,
    forecast,
    instances,
    queue,
    seasonality,
    service_time,
    sizing,
)
from scaling.rules.service_level.estimates import Objective
from scaling.rules.service_level.memory import FEATURES, Memory, changeable_copy
from scaling.rules.service_level.sizing import Outlook

GAP = 3.5
"""Intervals between two reports that are a gap. Chosen: two missed reports and one late one are none."""

TOO_SOON = 0.25
"""Of an interval: a report that soon after another says nothing about rates. Chosen: counts are whole messages."""

SET_BACK = 900.0
"""A clock that is so many seconds behind the newest report was set back; less is a report that comes late. Chosen: longer than a
queue delivers again.
"""

FIRST_USE = 0.5
"""Of the capacity found at the first report, so much is assumed to be in use on an ordinary day. Chosen."""

UNCHANGED_REPORTS = 20
"""Reports of the same backlog, though messages come and go, after which it is taken for a cached count. Chosen: five minutes of
reports every 15 s.
"""

UNUSABLE = "the numbers remembered were not usable any more"


class Observation(Struct, frozen=True, kw_only=True):
    """One report. `backlog` are the messages there, `incoming` and `outgoing` those that came and were completed in the last
    `interval` seconds (None: not counted). `current` instances were asked for, `ready` are ready (None: the platform does
    not count them), `most` is the maximum. `asked_at` is when the newest of them were asked for (None: not known, or long
    ago). `oldest_age` are the seconds for which the oldest message waits (None: not known). `late_counts` are (end, seconds, came,
    completed) of time ranges that are over since some minutes, oldest first. `limited`: see `Outlook`.
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
    oldest_age: float | None = None
    late_counts: tuple[service_time.Count, ...] = ()
    limited: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether messages that came, or were completed, are counted in time."""
        return self.incoming is not None or self.outgoing is not None

    @property
    def counts(self) -> tuple[service_time.Count, ...]:
        """All counts, late or fresh."""
        if not self.is_counted:
            return self.late_counts
        return (*self.late_counts, (self.at, self.interval, self.incoming, self.outgoing))

    @property
    def believed_ready(self) -> int:
        return self.current if self.ready is None else self.ready


def learn(memory: Memory | None, seen: Observation, objective: Objective) -> Memory:
    """The memory after a report; `memory` itself, where the report says nothing."""
    if memory is None:
        return _begin(seen, objective)
    seconds = seen.at - memory.at
    if -SET_BACK < seconds < TOO_SOON * seen.interval:
        return memory
    after = changeable_copy(memory)
    if not 0.0 < seconds <= GAP * seen.interval:
        return _resume(after, seen, objective)
    try:
        _learn(after, seen, seconds, objective)
    except (ArithmeticError, ValueError):  # numbers beyond what a float holds, or not finite any more
        return _begin(seen, objective, UNUSABLE)
    sound = isfinite(after.expected_rate + after.arrived + after.error_variance + after.scored_arrivals)
    return after if sound else _begin(seen, objective, UNUSABLE)


# The first report, and one after a gap


def _begin(seen: Observation, objective: Objective, why: str = "") -> Memory:
    memory = Memory(since=seen.at, at=seen.at, interval=seen.interval, restart_reason=why)
    memory.learned.concurrency = objective.concurrency or 0.0
    memory.flow_counted = seen.is_counted
    service_time.use(memory.time, estimates.known_time(memory, objective), seen.at)
    usual = FIRST_USE * estimates.first_service_rate(memory, objective) * seen.believed_ready
    forecast.begin(memory, _rate_of_report(memory, seen, objective), usual)
    memory.expected_rate, memory.usual_now = memory.rates[0], memory.usual_rate
    _start_from(memory, seen, objective)
    memory.candidates = candidates.begin(seen.current, memory.waiting, seen.backlog)
    memory.chosen, memory.spend = candidates.FIRST, objective.spend
    return memory


def _rate_of_report(memory: Memory, seen: Observation, objective: Objective) -> float:
    """Messages per second that arrive, by one report alone."""
    if seen.incoming is not None:
        return max(seen.incoming, 0.0) / seen.interval
    at_once = estimates.concurrency(memory, objective)
    busy = min(seen.backlog / at_once, seen.believed_ready)
    return estimates.service_rate(memory, objective) * busy


def _resume(memory: Memory, seen: Observation, objective: Objective) -> Memory:
    gap = seen.at - memory.at
    memory.since += gap  # the first half hour is one of reports
    rate = _rate_of_report(memory, seen, objective)
    forecast.average_rates(memory, rate, abs(gap))
    growth = seen.backlog - memory.backlog if seen.incoming is None else 0.0
    marks = queue.marks_across_gap(memory, gap, rate * gap + growth, objective.wait)
    memory.expected_rate = forecast.expected_rate(memory)
    memory.at, memory.resumed_at = seen.at, seen.at
    memory.forecasts, memory.starting, memory.warming, memory.recently_started = [], [], [], []
    memory.needs = [(seen.at, seen.current)]  # as if all were needed: nobody saw whether they were
    memory.last_need = memory.unchanged_reports = 0
    _start_from(memory, seen, objective)
    memory.marks = [*marks, *memory.marks]
    candidates.begin_again(memory.candidates, seen.current, memory.waiting, seen.backlog)
    return memory


def _start_from(memory: Memory, seen: Observation, objective: Objective) -> None:
    memory.current = seen.current
    memory.serving = float(seen.believed_ready)
    memory.backlog = seen.backlog
    memory.oldest_age = -1.0 if seen.oldest_age is None else max(seen.oldest_age, 0.0)
    memory.waiting = max(seen.backlog - estimates.concurrency(memory, objective) * memory.serving, 0.0)
    memory.marks = [(seen.at, memory.arrived)]
    service_time.begin(
        memory.time, seen.at, seen.backlog, estimates.concurrency(memory, objective) * memory.serving
    )
    memory.time.busy = [memory.time.processing] * FEATURES


# A report that follows on another


def _learn(memory: Memory, seen: Observation, seconds: float, objective: Objective) -> None:
    before, start_up = memory.at, estimates.start_up_time(memory, objective)
    within = estimates.begun_within(memory, objective)
    old_before = queue.arrived_at(memory, memory.at - within)
    at_once, served, present = estimates.concurrency(memory, objective), memory.serving, memory.current
    certain = _follow_capacity(memory, seen, start_up, objective)
    change = _follow_time(memory, seen, objective, seconds)
    candidates.follow_change(memory, change, estimates.starting_instances(memory, objective, start_up))
    service_rate = estimates.service_rate(memory, objective)
    interval = _interval_of(memory, seen, seconds, (served, present, certain), (at_once, service_rate))
    _follow_flow(memory, interval, seen.at, objective, at_once)
    old_now, late = _follow_queue(memory, seen, interval, old_before, within, at_once)

    start_up = estimates.start_up_time(memory, objective)  # the report may have taught another one
    _follow_forecast(memory, start_up + seen.interval, seconds)
    ahead = estimates.outlook(memory, objective, start_up, limited=seen.limited)
    if memory.last_need:
        sizing.record_need(memory.needs, before, memory.last_need, estimates.hold_time(memory, ahead))
    least = sizing.fewest_that_keep_up(ahead)
    arrived = interval.arrived * seconds
    passed = candidates.Interval(
        now=memory.at,
        seconds=seconds,
        keep=0.5 ** (seconds / candidates.HALF_LIFE),
        arrived=arrived,
        arrived_before=memory.arrived - arrived,
        old_before=old_before,
        old_now=old_now,
        late=late,
        is_followed=not estimates.is_learning(memory),
    )
    _follow_candidates(memory, ahead, passed, objective, least=least, most=seen.most)
    needed = estimates.instances_needed(memory, ahead, seen.backlog, seen.current, objective)
    memory.last_need = min(estimates.fewest_to_keep(ahead, needed, seen.backlog, seen.current), seen.most)


def _follow_capacity(memory: Memory, seen: Observation, start_up: float, objective: Objective) -> int:
    """Instances that were asked for since the last report, and those that serve now. Returns how many served for certain all the
    time.
    """
    now = seen.at
    old = instances.OLD_START_UPS * start_up
    if objective.start_up is None:
        old = max(old, instances.MIN_OLD)
    memory.recently_started = sizing.still_starting(memory.recently_started, memory.at, old)
    before, after = memory.current, seen.current
    if after > before:
        asked_at = memory.at  # decided on the report before, if nothing else is known
        if seen.asked_at is not None and memory.at - instances.MAX_START_UP < seen.asked_at < now:
            asked_at = seen.asked_at
        memory.starting = sizing.starting_after_change(memory.starting, before, after, asked_at)
        memory.recently_started = sizing.starting_after_change(
            memory.recently_started, before, after, asked_at
        )
    elif after < before:
        instances.forget_removed(memory, before - after)
    memory.current = after
    if objective.start_up is None:
        instances.follow_ready_count(memory, seen.ready, now)
        starting = sizing.count_instances(instances.not_serving(memory, start_up, now))
        memory.serving = float(max(after - starting, 0))
    else:
        memory.starting = sizing.still_starting(memory.starting, now, start_up)
        memory.serving = float(sizing.serving_instances(memory.starting, after, now, start_up))
    return max(after - sizing.count_instances(memory.recently_started), 0)


def _follow_time(memory: Memory, seen: Observation, objective: Objective, seconds: float) -> float:
    """The time of a message. Where arrivals are inferred, all that came is reckoned anew with a time that changed: no surprise of the load.
    Returns how many times as long it takes as was known, 1 where nothing was.
    """
    is_inferred = not memory.flow_counted and not seen.is_counted
    memory.flow_counted = seen.is_counted
    time, at_once = memory.time, estimates.concurrency(memory, objective)
    if not time.points:  # an older version inferred arrivals with the service rate of that time
        time.used = at_once / instances.service_rate(memory.learned, at_once)
        forecast.pair_rates(memory)
        service_time.begin(time, memory.at, memory.backlog, at_once * memory.serving)
    sample = service_time.Sample(
        at=seen.at,
        interval=seen.interval,
        backlog=seen.backlog,
        slots=at_once * memory.serving,
        instances=memory.serving,
        counts=seen.counts,
        age=seen.oldest_age,
        warming=sizing.count_instances(memory.warming),
    )
    service_time.follow(time, sample)
    before, was_identified = time.used, time.identified
    is_other = service_time.use(time, estimates.known_time(memory, objective), seen.at)
    if is_other and is_inferred and before > 0.0:
        _reckon_anew(memory, before, time.used)
    if memory.flow_counted and time.identified and not was_identified and estimates.is_learning(memory):
        forecast.correct_usual_rate(memory, instances.FIRST_SERVICE_TIME / time.used)
    time.busy = forecast.averages_after(time.busy, (time.processing_before + time.processing) / 2.0, seconds)
    return time.used / before if was_identified and time.identified else 1.0


def _reckon_anew(memory: Memory, before: float, now: float) -> None:
    """Arrivals were inferred with a message that takes `before` seconds; it takes `now` seconds."""
    forecast.reckon_anew(memory, before, now)
    seasonality.scale(memory.minute_shape, memory.usual_rates, before / now)
    queue.date_anew(memory)


def _interval_of(
    memory: Memory,
    seen: Observation,
    seconds: float,
    there: tuple[float, int, int],
    of_one: tuple[float, float],
) -> instances.Interval:
    """What happened since the last report. Arrivals and completed messages that are not counted follow from the backlog.

    `there` are the instances that served, those asked for, and those that served for certain; `of_one` are the messages that
    each processes at once, and serves per second while busy.
    """
    (served, present, certain), (at_once, service_rate) = there, of_one
    growth = (seen.backlog - memory.backlog) / seconds
    arrived = None if seen.incoming is None else max(seen.incoming, 0.0) / seen.interval
    completed = None if seen.outgoing is None else max(seen.outgoing, 0.0) / seen.interval
    if arrived is None:
        if completed is None:
            busy = min(served, (seen.backlog + memory.backlog) / 2 / at_once)
            completed = service_rate * busy
        inferred = completed + growth + memory.owed / seconds
        arrived = max(inferred, 0.0)
        memory.owed = max(min(inferred, 0.0) * seconds, -at_once * served)
    if completed is None:
        completed = max(arrived - growth, 0.0)
    is_moving = arrived != completed if memory.flow_counted else seen.backlog > at_once
    is_moving = is_moving and seen.backlog >= 1.0  # a fast service has no message there at any report
    memory.unchanged_reports = memory.unchanged_reports + 1 if is_moving and growth == 0.0 else 0
    return instances.Interval(
        seconds=seconds,
        backlog_before=memory.backlog,
        backlog_after=seen.backlog,
        arrived=arrived,
        completed=completed,
        serving=served,
        certain=certain,
        present=max(present, memory.current),
    )


def _follow_flow(
    memory: Memory, interval: instances.Interval, now: float, objective: Objective, at_once: float
) -> None:
    learned, time = memory.learned, memory.time
    if estimates.learns_both(memory, objective):
        instances.learn_from_flow(learned, interval, now)
    elif time.identified:
        learned.service_rate, learned.service_rate_at = at_once / time.used, now
        learned.service_rate_count = service_time.measured(time)
    if memory.flow_counted:
        instances.follow_warm_up(memory, interval, at_once, now)


def _follow_queue(
    memory: Memory,
    seen: Observation,
    interval: instances.Interval,
    old_before: float,
    wait: float,
    at_once: float,
) -> tuple[float, float]:
    """Counts messages that arrived, were begun, and were late. Returns how many of all are too old now to be begun in time, and how many
    were late.
    """
    seconds, rate = interval.seconds, interval.arrived
    begun_before = memory.arrived - memory.waiting
    memory.arrived += rate * seconds
    memory.waiting = max(seen.backlog - at_once * memory.serving, 0.0)
    begun = max(memory.arrived - memory.waiting - begun_before, 0.0)
    memory.at, memory.backlog, memory.interval = seen.at, seen.backlog, seen.interval
    memory.oldest_age = -1.0 if seen.oldest_age is None else max(seen.oldest_age, 0.0)
    memory.observations += 1
    old_now = queue.arrived_at(memory, seen.at - wait)
    overdue = old_now - begun_before - begun
    late = begun * candidates.late_share(old_before - begun_before, overdue)
    queue.count_late(memory, begun, late, max(overdue, 0.0))
    queue.mark_arrivals(memory, seen.at, wait)
    forecast.record_rate(memory, rate, seconds)
    if memory.time.identified or memory.flow_counted or memory.time.used <= wait:
        seasonality.record_rate(memory.minute_shape, memory.usual_rates, rate, seen.at - seconds, seen.at)
    else:  # nobody knows what came
        memory.forecasts = []
    return old_now, late


def _follow_forecast(memory: Memory, horizon: float, seconds: float) -> None:
    now = memory.at
    forecast.score_forecasts(memory, now, seconds)
    memory.usual_now = seasonality.usual_rate(memory.usual_rates, now, memory.usual_rate)
    rate = forecast.expected_rate(memory)
    forecast.record_forecast(memory, now, rate, memory.usual_now, horizon, seconds)
    memory.expected_rate = rate * seasonality.shape_factor(memory.minute_shape, now, horizon, seconds)


def _follow_candidates(
    memory: Memory,
    ahead: Outlook,
    passed: candidates.Interval,
    objective: Objective,
    *,
    least: int,
    most: int,
) -> None:
    if ahead.begin_within or not estimates.is_bounded(
        ahead
    ):  # no margin is chosen, or nobody knows what one does
        candidates.begin_again(memory.candidates, memory.current, memory.waiting, memory.backlog)
        return
    candidates.follow_trade(memory, objective.spend)
    candidates.follow(memory, estimates.safety_factors(memory), ahead, passed, least=least, most=most)
    candidates.choose(memory, objective.late)
    candidates.follow_objective(memory, objective.wait, objective.late)
