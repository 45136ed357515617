"""What the rule has learned, for people: numbers with the day they were learned, and what other choices would cost. Pure."""

from __future__ import annotations

from msgspec import Struct

from scaling.rules.service_level import clock, learning
from scaling.rules.service_level.learning import Objective
from scaling.rules.service_level.memory import Memory


class Known(Struct, frozen=True):
    """One learned number: `seen` is how often it was measured, `at` when last; 0 and null for an assumption. `given` is
    true where the policy states it.
    """

    value: float
    seen: int
    at: float | None
    given: bool = False


class Choice(Struct, frozen=True):
    """One degree of carefulness on paper: its cost as a ratio to the chosen one, its late messages in per cent."""

    carefulness: float
    cost: float
    late: float
    chosen: bool


class ServiceLevelView(Struct, frozen=True):
    """The objective (`wait` seconds, `allowed` per cent), how it is met today (UTC), the forecast, what was learned.

    Rates are messages per second. `expected` is over the next `start_up` seconds, `ready_for` the same with the margin.
    `shape` is by how much each minute of the hour is above the mean of its hour, as far as it is trusted (`trust`, 0 to
    1). `learning_until` is null once the first half hour is over.
    """

    rule: str
    wait: float
    allowed: float
    late_today: float
    begun_today: float
    since: float
    learning_until: float | None
    now: float
    expected: float
    ready_for: float
    service_rate: Known
    start_up: Known
    held: Known
    choices: tuple[Choice, ...]
    trust: float
    shape: tuple[float, ...]


class Lateness(Struct, frozen=True):
    """How the objective is met today: what of `ServiceLevelView` is worth a line each minute."""

    rule: str
    wait: float
    allowed: float
    late_today: float
    begun_today: float


def lateness_of(name: str, known: Memory, objective: Objective) -> Lateness:
    return Lateness(name, objective.wait, 100.0 * objective.late, late_today(known), known.day_begun)


def view_of(name: str, known: Memory, objective: Objective) -> ServiceLevelView:
    """All of it, as of the newest observation."""
    outlook, learned = learning.outlook(known, objective), known.learned
    trust = clock.trust(known.hour)
    return ServiceLevelView(
        rule=name,
        wait=objective.wait,
        allowed=100.0 * objective.late,
        late_today=late_today(known),
        begun_today=known.day_begun,
        since=known.since,
        learning_until=known.since + learning.LEARNING if learning.learning(known) else None,
        now=known.rates[0],
        expected=outlook.expected,
        ready_for=outlook.careful(learning.carefulness(known)),
        service_rate=Known(outlook.service, learned.rate_seen, learned.rate_at or None),
        start_up=Known(
            outlook.start_up,
            learned.start_up_seen,
            learned.start_up_at or None,
            objective.start_up is not None,
        ),
        held=Known(learning.held_of(known, objective), learned.held_seen, None, objective.held is not None),
        choices=_choices(known),
        trust=trust,
        shape=tuple(round(trust * value, 3) for value in known.hour.shape) if trust > 0 else (),
    )


def late_today(known: Memory) -> float:
    """Per cent of the messages begun since midnight (UTC), and of those that are too late already and still wait."""
    counted = known.day_begun + known.overdue
    return 100.0 * (known.day_late + known.overdue) / counted if counted > 0 else 0.0


def _choices(known: Memory) -> tuple[Choice, ...]:
    chosen = known.copies[known.chosen].cost or 1.0
    return tuple(
        Choice(
            carefulness,
            round(copy.cost / chosen, 4),
            round(100.0 * copy.late / (known.scored + 1.0), 3),
            index == known.chosen,
        )
        for index, (carefulness, copy) in enumerate(zip(learning.degrees(known), known.copies, strict=True))
    )
