"""Operators' orders in Table Storage: the row `controls` in the target's partition of the state table."""

from __future__ import annotations

from typing import Any

from foundation.azure.connections import Settings
from foundation.azure.tables import Table, etag_of
from foundation.keys import key_of
from scaling.controls import NO_CONTROLS, Controls
from scaling.storage.rows import CorruptRowError, controls_row, read_controls
from scaling.storage.states import TABLE, entity, set_aside


class TableControlStore:
    """Writes `controls` alone, so an order never conflicts with an evaluation that only reads it."""

    def __init__(self, settings: Settings, prefix: str, *, table: str = TABLE, **options: Any) -> None:
        """`options` go to the SDK's client. Raises ConnectionSettingsError."""
        self._table = Table(settings, prefix, table, **options)

    async def load(self, target: str) -> tuple[Controls, str | None]:
        """An unreadable row reads as no controls; it is set aside, and its tag guards the next write.

        Raises NewerStateError, StoreUnavailableError.
        """
        row = await self._table.get(key_of(target), "controls")
        if row is None:
            return NO_CONTROLS, None
        try:
            return read_controls(row), etag_of(row)
        except CorruptRowError:
            await set_aside(self._table, row)
            return NO_CONTROLS, etag_of(row)

    async def save(self, target: str, controls: Controls, etag: str | None) -> None:
        """Raises ConflictError when the row changed since `etag`, TooLargeError, StoreUnavailableError."""
        await self._table.save(entity(target, "controls", controls_row(controls)), etag)

    async def aclose(self) -> None:
        await self._table.aclose()
