"""The last action of a target that was withdrawn, as its state remembers it. Pure."""

from __future__ import annotations

from msgspec import Struct


class Withdrawn(Struct, frozen=True):
    """An action that was withdrawn at `at` (seconds since the epoch, UTC), before its effect was seen.

    `may_lead_to` is the capacity that the platform may still come to; None where no scaler had begun the action.
    """

    action_id: str
    from_capacity: int
    to_capacity: int
    expires_at: float
    at: float
    may_lead_to: int | None = None
