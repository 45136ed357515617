"""How orders stand in the scaling log: as being given, then as done or refused. Knows no storage of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import uuid4

import msgspec

from scaling.log_entry import LogEntry
from scaling.ports import DecisionLog
from tidemark.foundation.errors import ConflictError, StoreUnavailableError


def order_key(name: str) -> str:
    """The key of an order's log entry: two orders of one moment are two entries."""
    return f"control-{name}-{uuid4().hex[:12]}"


async def carried_out(log: DecisionLog, entry: LogEntry, save: Callable[[], Awaitable[None]]) -> None:
    """Saves an order so that its log entry is true at any time, also where the process ends between two lines.

    First the entry tells that the order is being given; it is replaced by what became of it. One that stays as it
    was first written is of unknown outcome. Raises what `save` raises, and StoreUnavailableError before it.
    """
    await log.append([msgspec.structs.replace(entry, line=f"{entry.line}: being given")])
    try:
        await save()
    except ConflictError:
        refused = f"{entry.line}: refused, other orders kept arriving"
        await log.append([msgspec.structs.replace(entry, line=refused)])
        raise
    with suppress(StoreUnavailableError):  # the order holds; its entry says less than is known
        await log.append([entry])
