"""How much a consumer may hold: when it pauses receiving, and when it resumes."""

from __future__ import annotations

import math

from msgspec import Struct

from consumer.options import BacklogLimits

LEAST_INTAKE = 100
"""Events that may be held however low the rate is: as many as one bulk request takes (BatchLimits.operations)."""


class Held(Struct, frozen=True):
    """What a pipeline holds.

    `unsaved` counts settled events of a partition that no checkpoint covers, `beyond` those above its low-water mark;
    both are the highest of all partitions.
    """

    count: int
    bytes: int
    unsaved: int
    beyond: int
    rate: float | None


def high_count(limits: BacklogLimits, rate: float | None) -> int:
    """The number of held events at which receiving pauses."""
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
        return f"{held.beyond} events are settled beyond one that is not; that one is retried first"
    return None


def may_resume(limits: BacklogLimits, held: Held) -> bool:
    """Whether a paused consumer is below its low marks."""
    return (
        held.count <= high_count(limits, held.rate) // 2
        and held.bytes <= limits.high_bytes // 2
        and max(held.unsaved, held.beyond) < limits.unsaved
    )
