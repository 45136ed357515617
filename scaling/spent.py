"""What is remembered of a day's spending. Immutable data, as in `scaling.model`. Pure."""

from __future__ import annotations

from msgspec import Struct


class Spent(Struct, frozen=True):
    """What a target with a budget has spent of the day that began at `day`; times are seconds since the epoch.

    `hours` are units of capacity times hours, up to `until`; since then there are `capacity` units. They are counted
    from `since` on, and assumed before it. `pace` is the mean capacity of about the last hour. Where hours are billed
    at their highest capacity, `hours` holds the whole of the hour that began at `hour`, at its highest so far, `peak`.
    `warned`: that the budget will not last was told on that day.
    """

    day: float
    since: float
    until: float
    hours: float
    capacity: int
    pace: float
    hour: float = 0.0
    peak: int = 0
    warned: bool = False
