"""Why an event with several records is one dead letter."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.model import Record, Rejection, WriteResult

_MOST_LISTED = 5
"""Rejected records of one event that its dead letter lists: enough to see what is wrong with it."""


def rejection_of_result(result: WriteResult) -> Rejection:
    """Why the sink rejected a record."""
    return result.rejection or Rejection(f"status_{result.status}", result.reason)


def rejection_of_event(rejected: Sequence[tuple[Record, Rejection]]) -> Rejection:
    """Why an event is a dead letter whose records were rejected, one at least."""
    record, rejection = rejected[0]
    if record.of == 1:
        return rejection
    listed = [
        f"record {record.index}{f' for {record.sink}' if record.sink else ''}: {why.detail}"
        for record, why in rejected[:_MOST_LISTED]
    ]
    more = [f"and {len(rejected) - _MOST_LISTED} more"] if len(rejected) > _MOST_LISTED else []
    return Rejection(rejection.reason, "; ".join(listed + more))
