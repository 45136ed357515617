"""The charge in the result of a write, and what refused the write. Pure."""

from __future__ import annotations

from consumer.model import Outcome, WriteResult

CAPPED = "throughput_bucket"
"""The reason of a 429 by the service's own limit for a part of the clients (sub-status 3212)."""


def charge_of(result: WriteResult) -> float | None:
    """Request units; None where a request may have been charged without an answer that says so."""
    may_be_charged = result.outcome is Outcome.RETRY and (result.status in {0, 408} or result.status >= 500)
    return None if may_be_charged and not result.request_units else result.request_units


def is_capped(result: WriteResult) -> bool:
    """Whether the limit of a throughput bucket refused it: more throughput of the container would not help."""
    return result.status == 429 and result.reason == CAPPED
