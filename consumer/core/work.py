"""The records that the pipeline holds.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from consumer.core.settled.low_water import WorkList
from consumer.model import Record, Rejection

OPERATION_OVERHEAD = 64
"""Bytes around a document in a bulk request: operation type, field names, braces."""


class Siblings(Struct, eq=False, gc=False):
    """What the works of one event have in common, if the event has several records."""

    open: int
    """How many of its records are neither written nor dropped, nor in a stored dead letter."""
    held: int
    """Bytes in memory of the event, which its works do not count."""
    is_counted: bool = False
    """Whether it is in the backlog's count."""
    is_begun: bool = False
    """Whether any of its records was attempted or rejected."""
    is_given_up: bool = False
    """Whether a record was dropped that was neither written nor rejected, so that the event is not settled."""
    is_dead_letter: bool = False
    """Whether its dead letter is stored, and counted. It is stored again when another record is rejected."""
    rejected: list[tuple[Record, Rejection]] = []
    parked: list[tuple[Record, Rejection]] = []
    has_parked: bool = False
    """Whether any of its records was parked, also under an earlier claim: it may have become a dead letter since."""


class Work(Struct, eq=False, gc=False):
    """A record in the pipeline. Nothing that it refers to refers back, so the garbage collector may skip it (consumer.model)."""

    record: Record
    work_list: WorkList
    siblings: Siblings | None = None
    """None if the event has one record."""
    attempts: int = 0
    since: float = math.inf
    """When it was received. The flush timer starts here, also for a record that waits for an earlier one of its key."""
    started_at: float = math.inf
    size: int = 0
    """Bytes in a bulk request."""
    held: int = 0
    """Bytes in memory."""
    superseded: Sequence[Work] = ()

    @property
    def is_alone(self) -> bool:
        """Whether it is the only record of its event, is not dropped, and superseded no other one."""
        return self.siblings is None and not self.superseded and self.record.dropped is None

    def is_dropped(self, work_list: WorkList) -> bool:
        """Whether it goes when the claim of `work_list` drains (if nothing of its event was attempted, nor of any from it up to
        `work_list.kept`) or is closed.
        """
        if self.work_list is not work_list:
            return False
        return work_list.closed or not (
            self.attempts or self.is_partial or self.record.event.sequence_number <= work_list.kept
        )

    @property
    def is_partial(self) -> bool:
        """Whether some record of its event was attempted or rejected, if it has several."""
        return self.siblings is not None and self.siblings.is_begun

    def __repr__(self) -> str:
        event = self.record.event
        return f"<{event.partition}/{event.sequence_number} key {self.record.key!r} attempts {self.attempts}>"


def work_of(record: Record, work_list: WorkList, siblings: Siblings | None = None) -> Work:
    """A work that is new, with its sizes."""
    payload = len(record.payload)
    held = payload + record.event.size if siblings is None else payload
    size = payload + len(record.partition_key) + OPERATION_OVERHEAD
    return Work(record, work_list, siblings, size=size, held=held)
