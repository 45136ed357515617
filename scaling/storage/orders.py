"""Orders are saved, those that come at the same time together; and the scaling log shows each as being given, then as done or refused."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import uniform
from uuid import uuid4

import msgspec
from msgspec import structs

from scaling.log_entry import LogEntry
from scaling.model import Controls
from scaling.ports import DecisionLog, Snapshot, StateStore
from tidemark.foundation.errors import ConflictError, OrderError, StoreUnavailableError
from tidemark.foundation.keys import TooLargeError

ATTEMPTS = 8
"""Tries to save orders against other processes."""

PAUSE = 0.02
"""Seconds before the second try, at most; each further one doubles them. Chosen: a save takes about that long."""

LONGEST_PAUSE = 0.5

Change = Callable[[Snapshot], Controls]
"""What an order makes of the orders there are. Raises OrderError for one that is refused."""


class _Waiting:
    """An order that waits to be saved."""

    def __init__(self, change: Change, *, needs_state: bool) -> None:
        self.change = change
        self.needs_state = needs_state
        self.is_over = False
        self.error: Exception | None = None


class OrderWriter:
    """Saves the orders of one process. A thousand workers acknowledge at one moment: their orders are one write, not a thousand that
    overtake each other.
    """

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """What waits, and the locks, belong to one event loop."""
        self._loop = loop
        self._waiting: dict[str, list[_Waiting]] = defaultdict(list)
        self._writing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def save(
        self, states: StateStore, target: str, change: Change, *, needs_state: bool = False
    ) -> None:
        """Returns once it is saved. `change` gets the orders alone, or the state as well if it `needs_state`.

        Raises what `change` raises, ConflictError where other processes kept winning, TooLargeError, StoreUnavailableError.
        """
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._begin(loop)
        order, waiting = _Waiting(change, needs_state=needs_state), self._waiting[target]
        waiting.append(order)
        try:
            async with self._writing[target]:
                if not order.is_over:
                    await self._save_together(states, target, order, list(waiting))
        finally:
            waiting.remove(order)
        if order.error is not None:
            raise order.error

    async def _save_together(
        self, states: StateStore, target: str, first: _Waiting, orders: list[_Waiting]
    ) -> None:
        try:
            orders = [order for order in orders if not order.is_over]
            try:
                await self._save(states, target, orders)
            except TooLargeError:  # which one it is, is not known: each is saved by itself
                orders = [first]
                await self._save(states, target, orders)
        except Exception as error:
            for order in orders:
                order.error = order.error or error
        for order in orders:
            order.is_over = True

    async def _save(self, states: StateStore, target: str, orders: list[_Waiting]) -> None:
        load = states.load if any(order.needs_state for order in orders) else states.load_controls
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(uniform(0.0, min(PAUSE * 2**attempt, LONGEST_PAUSE)))  # noqa: S311 - no secret
            loaded = await load(target)
            controls = _changed(loaded, orders)
            if all(order.error is not None for order in orders):
                return
            try:
                await states.save_controls(loaded, controls)
            except ConflictError:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                return


def _changed(loaded: Snapshot, orders: list[_Waiting]) -> Controls:
    """The orders there are with these, one after the other."""
    controls = loaded.controls
    for order in orders:
        order.error = None
        try:
            controls = order.change(structs.replace(loaded, controls=controls))
        except OrderError as error:
            order.error = error
    return controls


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
    except (ConflictError, OrderError, TooLargeError) as error:
        why = "other orders kept arriving" if isinstance(error, ConflictError) else str(error)
        await log.append([msgspec.structs.replace(entry, line=f"{entry.line}: refused, {why}")])
        raise
    with suppress(StoreUnavailableError):  # the order holds; its entry says less than is known
        await log.append([entry])
