"""What a memory says at the time of its newest report: estimates of the instances, the forecast, and the need. Pure."""

from __future__ import annotations

from msgspec import Struct

from scaling.rules.service_level import candidates, forecast, instances, queue, sizing
from scaling.rules.service_level import service_time as times
from scaling.rules.service_level.memory import Memory, Spend, Starts
from scaling.rules.service_level.service_time import Known
from scaling.rules.service_level.sizing import MAX_INSTANCES, Outlook

LEARNING_TIME = 1800.0
"""Seconds from the first report in which what was learned is not relied on. Chosen: twenty start-ups as assumed. Until then there
are as many instances as hold the backlog, which is what KEDA does all the time.
"""

LEARNING_HOLD = 300.0
"""Seconds of the hold time meanwhile, after a gap, and while it is not known how long a message takes: the stabilization window of Kubernetes' HPA by default."""


UTILIZATION = 0.75
"""While it is not known how long a message takes, so much of what the instances process at once is asked for at most. Measured on 22 recorded
loads (26 November 2026): what KEDA costs with a target of 0.75 times the concurrency, and no later.
"""

UTILIZATION_BY_AGE = 0.9
"""The same where the age of what waits is known. Nothing is learned by it until something has waited, and with more room nothing does: five
recorded loads, messages of 32 s, first day: 1.72 times the bound with 0.75, 1.33 with this, both 0.6 % late (27 November 2026).
"""

LEAN, LEAN_LIMIT = 0.25, 0.5
"""Where arrivals are inferred, a message counts as late this share of its own time before the allowed wait is over. What instances complete is
inferred while they work on it, and comes later: after a scale-out by half a message, if all take as long. So what came seems to have come
sooner, and fewer to be late: of messages of 32 s, all the same, the rule counted 0.6 % where 1.3 % were late (eleven recorded loads, 28 November
2026). With this it counts 1.04 % of 0.95, and 0.79 % of 0.62 where times are log-normal. The time of a message counts up to the
second share of the wait: with messages of 80 s and a wait of 60 s it counts 1.33 % of 1.30.
"""


class Objective(Struct, frozen=True, kw_only=True):
    """No message waits longer than `wait` seconds, but for the share `late` of them. `concurrency` (messages an instance
    processes at once), `start_up` and `takes` (seconds until an instance serves, and of one message) are given, or None to be
    learned. `spend` names how idle capacity is traded for late messages (`candidates.TRADES`).
    """

    wait: float
    late: float
    concurrency: float | None = None
    start_up: float | None = None
    takes: float | None = None
    spend: Spend = "balanced"


def concurrency(memory: Memory, objective: Objective) -> float:
    """Messages that one instance processes at once."""
    if objective.concurrency is not None:
        return objective.concurrency
    return times.concurrency_by_ages(memory.time) or memory.learned.concurrency or instances.FIRST_CONCURRENCY


def service_time(memory: Memory, objective: Objective) -> float:
    """Seconds that one message takes, above 0. All that needs it asks here."""
    return memory.time.used or known_time(memory, objective).seconds


def known_time(memory: Memory, objective: Objective) -> Known:
    """The same, by what is given or was learned so far, and by which sense. Where messages are counted and the concurrency is not given, both
    are learned together.
    """
    if objective.takes is not None:
        return Known(objective.takes, times.GIVEN, identified=True)
    if learns_both(memory, objective):
        at_once = concurrency(memory, objective)
        return Known(at_once / instances.service_rate(memory.learned, at_once), times.COUNTS, identified=True)
    return times.known(memory.time)


def is_identified(memory: Memory) -> bool:
    """Whether the time of a message is known, and not only bounded."""
    return memory.time.identified


def learns_both(memory: Memory, objective: Objective) -> bool:
    """Whether the time of a message and the concurrency are learned together, from counts (see `instances`)."""
    unknown = objective.concurrency is None and not times.concurrency_by_ages(memory.time)
    return unknown and memory.flow_counted


def service_rate(memory: Memory, objective: Objective) -> float:
    """Messages per second of one busy instance."""
    return concurrency(memory, objective) / service_time(memory, objective)


def first_service_rate(memory: Memory, objective: Objective) -> float:
    """The same at the first report. Where messages are counted the time of one is known soon, and is assumed until then."""
    if memory.flow_counted and not memory.time.identified:
        return instances.service_rate(memory.learned, concurrency(memory, objective))
    return service_rate(memory, objective)


def start_up_time(memory: Memory, objective: Objective) -> float:
    """Seconds from asked-for to serving. Until instances were seen to serve, no less than is assumed."""
    if objective.start_up is not None:
        return objective.start_up
    learned = memory.learned
    return max(learned.start_up + instances.warm_up_time(learned), instances.MIN_START_UP)


def starting_instances(memory: Memory, objective: Objective, start_up: float) -> Starts:
    """Instances that do not serve yet, by when they were asked for; `start_up` is that of `start_up_time`."""
    if objective.start_up is not None:
        return memory.starting
    return instances.not_serving(memory, start_up, memory.at)


def outlook(
    memory: Memory, objective: Objective, start_up: float | None = None, *, limited: bool = False
) -> Outlook:
    """What is expected at the time of the newest report."""
    return Outlook(
        expected=memory.expected_rate,
        deviation=forecast.upward_deviation(memory),
        service_rate=service_rate(memory, objective),
        concurrency=concurrency(memory, objective),
        start_up=start_up_time(memory, objective) if start_up is None else start_up,
        wait=objective.wait,
        interval=memory.interval,
        identified=is_identified(memory),
        limited=limited,
    )


def begun_within(memory: Memory, objective: Objective) -> float:
    """Seconds within which a message has to be begun to count as in time: the allowed wait, and less where arrivals are inferred."""
    if memory.flow_counted or not memory.time.identified:
        return objective.wait
    return objective.wait - LEAN * min(memory.time.used, LEAN_LIMIT * objective.wait)


def safety_factor(memory: Memory) -> float:
    """That of the best candidate."""
    return safety_factors(memory)[memory.chosen]


def safety_factors(memory: Memory) -> tuple[float, ...]:
    at_once = memory.learned.service_rate * memory.time.used or instances.FIRST_CONCURRENCY
    return candidates.safety_factors(
        memory.interval,
        memory.spend,
        counted=memory.flow_counted,
        at_once=at_once,
        backlog_alone=memory.time.sense in {times.DRAIN, times.BACKLOG},
    )


def instances_needed(
    memory: Memory, ahead: Outlook, backlog: float, current: int, objective: Objective
) -> float:
    """Instances needed with so many messages there and so many instances asked for, not rounded."""
    starting = starting_instances(memory, objective, ahead.start_up)
    serving = memory.serving
    if current < memory.current:
        starting, fewer = sizing.remove_newest(starting, memory.current - current)
        serving -= fewer
    if ahead.begin_within:
        waiting = max(backlog - ahead.concurrency * serving, 0.0)
        due = queue.deadlines(memory, waiting, ahead.begin_within)
        needed = sizing.instances_by_deadline(ahead, due, current, starting, memory.at)
    else:
        active = sizing.active_ahead(ahead, backlog, current, starting, memory.at)
        needed = sizing.instances_needed(ahead, safety_factor(memory), backlog, active)
    if not ahead.identified:
        utilization = UTILIZATION_BY_AGE if _has_age(memory) else UTILIZATION
        held = messages_to_hold(memory, ahead, backlog, serving) / (utilization * ahead.concurrency)
        is_fast = ahead.service_time <= ahead.interval
        needed = min(needed, held) if ahead.begin_within or is_fast else held
    if processes_all(memory, ahead):
        return max(needed, instances_for_backlog(backlog, objective))
    return needed


def messages_to_hold(memory: Memory, ahead: Outlook, backlog: float, serving: float) -> float:
    """Messages that instances are to be there for while the time of one is not known: those there. While none waits it is the higher one of the
    averages over 30 s and 2 min, for how many there are at one moment is partly chance. Measured with eleven recorded loads, backlog and
    concurrency alone (28 November 2026): messages of 1.6 s 1.28 times the least cost in place of 1.31, of 32 s (48 hours) 1.92 in place of
    1.97, no more of them late.
    """
    if memory.flow_counted or _has_age(memory) or backlog > ahead.concurrency * serving:
        return backlog
    return max(memory.time.busy[1:3])


def _has_age(memory: Memory) -> bool:
    return memory.oldest_age >= 0.0 and not memory.time.age_includes_processing


def instances_for_backlog(backlog: float, objective: Objective) -> float:
    """Instances that process the whole backlog at once, by the concurrency that is given or assumed."""
    return backlog / (objective.concurrency or instances.FIRST_CONCURRENCY)


def fewest_to_keep(ahead: Outlook, needed: float, backlog: float, current: int) -> int:
    """Whole instances that scale-in follows, where `needed` are needed: no fewer than keep up at the expected rate, nor than the
    messages there keep busy. What a busy instance serves is work done, so none is given up while it would stop messages.
    """
    fewest = max(sizing.round_instances(needed), sizing.fewest_that_keep_up(ahead))
    if ahead.begin_within:
        fewest = max(fewest, min(sizing.round_instances(backlog / ahead.concurrency), current))
    return fewest


def next_capacity(memory: Memory, ahead: Outlook, backlog: float, current: int, objective: Objective) -> int:
    """The capacity to have, with so many messages there and so many instances asked for."""
    needed = min(instances_needed(memory, ahead, backlog, current, objective), float(MAX_INSTANCES))
    hold = hold_time(memory, ahead)
    need = min(fewest_to_keep(ahead, needed, backlog, current), MAX_INSTANCES)
    needs = sizing.needs_with(memory.needs, memory.at, need, hold)
    desired = sizing.next_capacity(needed, current, needs, memory.at, hold, ahead.step_in)
    if desired < current:
        desired = sizing.capacity_that_stays(
            desired, current, instances_needed(memory, ahead, backlog, desired, objective)
        )
    return desired


def is_bounded(ahead: Outlook) -> bool:
    """Whether the bound of the time of a message is low enough to reckon with: beyond the allowed wait it says nothing of how many arrive."""
    return ahead.identified or ahead.service_time <= ahead.wait


def is_learning(memory: Memory) -> bool:
    """True in the first half hour."""
    return memory.at - memory.since < LEARNING_TIME


def processes_all(memory: Memory, ahead: Outlook) -> bool:
    """Whether no fewer instances are needed than process the whole backlog: while the rule is learning, but for deadlines, which
    need no forecast, where the time of a message is known.
    """
    return is_learning(memory) and not (ahead.begin_within and ahead.identified)


def hold_time(memory: Memory, ahead: Outlook) -> float:
    """Seconds whose highest need scale-in follows; more at the beginning, after a gap, and while the time of a message is not known."""
    is_unsure = (
        is_learning(memory) or not is_identified(memory) or memory.at - memory.resumed_at < LEARNING_HOLD
    )
    return max(ahead.hold, LEARNING_HOLD) if is_unsure else ahead.hold
