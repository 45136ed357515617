"""What the rule has learned, for people: each number with the day it was learned on, and what other margins would cost. Pure."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict

from scaling.rules.service_level import estimates, seasonality
from scaling.rules.service_level.estimates import Objective
from scaling.rules.service_level.memory import Memory


class LearnedNumber(Struct, frozen=True, kw_only=True):
    """`count` is how often `value` was measured, `at` when last; 0 and null for an assumption. `given` is true where the policy
    states it.
    """

    value: float
    count: int
    at: float | None
    given: bool = False


class MessageTime(Struct, frozen=True, kw_only=True):
    """Seconds that a message takes, by which sense (`service_time.GIVEN` and those after it; empty for an assumption), and since when by that
    one. Not `identified`: nobody knows, and the rule reckons with so many to be safe.
    """

    seconds: float
    sense: str
    identified: bool
    since: float


class CandidateView(Struct, frozen=True, kw_only=True):
    """A simulated candidate: its cost as a ratio to the chosen one's, its late messages in per cent."""

    safety_factor: float
    cost: float
    late: float
    chosen: bool


class Lateness(Struct, frozen=True, kw_only=True):
    """The objective (`wait` seconds, `allowed` per cent), and how it is met today (UTC): logged at every evaluation."""

    rule: str
    wait: float
    allowed: float
    late_today: float
    begun_today: float


class ServiceLevelView(Lateness, frozen=True, kw_only=True):
    """The same, with the forecast and what was learned.

    Rates are messages per second. `expected` is over the next `start_up` seconds, `ready_for` the same with the margin.
    `shape` is by how much each minute of the hour is above the mean of its hour, as far as it is trusted (`shape_trust`, 0
    to 1). `learning_until` is null once the first half hour is over.
    """

    since: float
    learning_until: float | None
    now: float
    expected: float
    ready_for: float
    message_time: MessageTime
    service_rate: LearnedNumber
    start_up: LearnedNumber
    concurrency: LearnedNumber
    candidates: tuple[CandidateView, ...]
    shape_trust: float
    shape: tuple[float, ...]


def lateness_of(name: str, memory: Memory, objective: Objective) -> Lateness:
    return Lateness(
        rule=name,
        wait=objective.wait,
        allowed=100.0 * objective.late,
        late_today=late_today(memory),
        begun_today=memory.day_begun,
    )


def view_of(name: str, memory: Memory, objective: Objective) -> ServiceLevelView:
    """All of it, as of the newest report."""
    outlook, learned = estimates.outlook(memory, objective), memory.learned
    trust = seasonality.shape_trust(memory.minute_shape)
    return ServiceLevelView(
        **asdict(lateness_of(name, memory, objective)),
        since=memory.since,
        learning_until=memory.since + estimates.LEARNING_TIME if estimates.is_learning(memory) else None,
        now=memory.rates[0],
        expected=outlook.expected,
        ready_for=outlook.rate_with_margin(estimates.safety_factor(memory)),
        message_time=_message_time(memory, objective),
        service_rate=LearnedNumber(
            value=outlook.service_rate,
            count=learned.service_rate_count,
            at=learned.service_rate_at or None,
            given=objective.takes is not None,
        ),
        start_up=LearnedNumber(
            value=outlook.start_up,
            count=learned.start_up_count,
            at=learned.start_up_at or None,
            given=objective.start_up is not None,
        ),
        concurrency=LearnedNumber(
            value=estimates.concurrency(memory, objective),
            count=learned.concurrency_count,
            at=None,
            given=objective.concurrency is not None,
        ),
        candidates=_candidates(memory),
        shape_trust=trust,
        shape=tuple(round(trust * value, 3) for value in memory.minute_shape.shape) if trust > 0 else (),
    )


def _message_time(memory: Memory, objective: Objective) -> MessageTime:
    time = memory.time
    is_assumed = estimates.learns_both(memory, objective) and memory.learned.service_time <= 0.0
    return MessageTime(
        seconds=estimates.service_time(memory, objective),
        sense="" if is_assumed and objective.takes is None else time.sense,
        identified=time.identified,
        since=time.since,
    )


def late_today(memory: Memory) -> float:
    """Per cent of the messages begun since midnight (UTC), and of those that are too late already and still wait."""
    counted = memory.day_begun + memory.overdue
    return 100.0 * (memory.day_late + memory.overdue) / counted if counted > 0 else 0.0


def _candidates(memory: Memory) -> tuple[CandidateView, ...]:
    chosen_cost = memory.candidates[memory.chosen].cost or 1.0
    return tuple(
        CandidateView(
            safety_factor=factor,
            cost=round(candidate.cost / chosen_cost, 4),
            late=round(100.0 * candidate.late / (memory.scored_arrivals + 1.0), 3),
            chosen=index == memory.chosen,
        )
        for index, (factor, candidate) in enumerate(
            zip(estimates.safety_factors(memory), memory.candidates, strict=True)
        )
    )
