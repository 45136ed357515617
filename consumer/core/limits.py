"""How much a consumer may hold: when it pauses receiving, and when it goes on."""

from __future__ import annotations

import math

from msgspec import Struct

from consumer.options import BacklogLimits

LEAST_INTAKE = 100


class Held(Struct, frozen=True):
    """What a pipeline holds. `unsaved` is the most settled events of one partition that no checkpoint covers, `beyond`
    the most that are beyond the low-water mark of one.
    """

    count: int
    bytes: int
    unsaved: int
    beyond: int
    rate: float | None


def high_count(limits: BacklogLimits, rate: float | None) -> int:
    """At how many events receiving pauses."""
    most = min(limits.high_count, max(1, limits.backlog_of // 2))
    if rate is None:
        return most
    return min(most, max(LEAST_INTAKE, math.ceil(rate * limits.intake_seconds)))


def pause_reason(limits: BacklogLimits, held: Held) -> str | None:
    """Why receiving must pause, or None."""
    high = high_count(limits, held.rate)
    if held.count >= high:
        return f"{held.count} events wait, the high mark is {high}"
    if held.bytes >= limits.high_bytes:
        return f"{held.bytes} bytes wait, the high mark is {limits.high_bytes}"
    if held.unsaved >= limits.unsaved:
        return f"{held.unsaved} settled events are in no checkpoint: the checkpoint store does not answer"
    if held.beyond >= limits.unsaved:
        return f"{held.beyond} events are settled beyond one that is not: it is tried again first"
    return None


def may_resume(limits: BacklogLimits, held: Held) -> bool:
    """Whether a paused consumer is below its low marks."""
    return (
        held.count <= high_count(limits, held.rate) // 2
        and held.bytes <= limits.high_bytes // 2
        and max(held.unsaved, held.beyond) < limits.unsaved
    )
