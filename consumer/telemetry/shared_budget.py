"""One budget of request units for a consumer and the backfills beside it. Pure.

Who takes part beside the consumer has a row next to the consumer's orders: what it wants, and the most that it may be using now.
Everybody lowers at once and raises only within what nobody may be using, so that the sum never exceeds the budget:

- The consumer's instances leave to the others their shares, or what these hold, whichever is more.
- A backfill takes no more than the limits that the instances reported and the holdings of other backfills leave.

A row that does not change for `EXPIRES` seconds by the reader's own clock counts no more; its writer stops using its share before that.
Clocks of machines are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

MOST = 0.5
"""The part of the budget that all backfills together get at most: events that arrive now come first."""
EXPIRES = 60.0
"""Seconds. More than a backfill may use its share without having written its row: 20, and 16 until its tasks have stopped."""


class Part(Struct, frozen=True):
    """Of one backfill, in request units per second. `beat` changes with each write of the row."""

    name: str
    wants: float
    holds: float
    beat: float


def share_of(budget: float, name: str, wants: Mapping[str, float]) -> float:
    """The share of one backfill among all that want a part: what it wants, or its proportion of MOST of the budget."""
    together = sum(wants.values())
    return wants[name] * min(1.0, MOST * budget / together) if together > 0 else 0.0


class Parts:
    """The parts that count, as one reader sees them. Times are seconds of its monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Part, float]] = {}  # and since when it is unchanged

    def note(self, rows: Collection[Part], now: float) -> list[Part]:
        """The rows as they are now; returns those that count."""
        before = self._seen
        self._seen = {}
        for part in rows:
            known, since = before.get(part.name, (part, now))
            self._seen[part.name] = (part, since if known.beat == part.beat else now)
        return [part for part, since in self._seen.values() if now - since < EXPIRES]


def left_for_consumer(budget: float, parts: Collection[Part]) -> float:
    """What the instances of the consumer may use together; a tenth of the budget at least.

    Less would be left only if backfills hold more than a budget that was lowered meanwhile; they lower within seconds.
    """
    wants = {part.name: part.wants for part in parts}
    taken = sum(max(part.holds, share_of(budget, part.name, wants)) for part in parts)
    return max(budget / 10, budget - taken)


def amount_for(budget: float, name: str, wants: float, others: Collection[Part], instances: float) -> float:
    """What a backfill may use now. `instances` is the sum of the limits of the consumer's instances."""
    wanted = {part.name: part.wants for part in others} | {name: wants}
    free = budget - instances - sum(part.holds for part in others)
    return max(0.0, min(share_of(budget, name, wanted), free))
