"""What operators have ordered for one target: immutable data, as in `scaling.model`. Pure."""

from __future__ import annotations

from msgspec import Struct

from scaling.model import Direction


class Pause(Struct, frozen=True):
    """No change in `direction` (both when None) until `until` (for good when None)."""

    by: str
    at: float
    direction: Direction | None = None
    until: float | None = None


class Override(Struct, frozen=True):
    """Hold the target at `capacity` until `until`."""

    capacity: int
    by: str
    at: float
    until: float


class Controls(Struct, frozen=True):
    """What operators have ordered for one target (one table row, written over HTTP)."""

    pauses: tuple[Pause, ...] = ()
    override: Override | None = None
    dry_run: bool | None = None  # None: as configured
    foreign_cleared_at: float | None = None  # resume also ends a foreign-hand hold


NO_CONTROLS = Controls()
