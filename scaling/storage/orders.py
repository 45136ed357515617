"""How the scaling log shows an order: as being given, then as done or refused."""

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

    The entry first says that the order is being given; the outcome replaces it. The outcome of an entry that keeps its
    first text is unknown. Raises what `save` raises, and StoreUnavailableError before it.
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
