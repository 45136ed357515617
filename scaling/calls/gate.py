"""The gate that every call goes through: it asks the ledger of the process, waits a moment if need be, and tells the ledger
of answers that ask everybody to wait. What is called is in `scaling.calls.budgets`, who goes when in `scaling.calls.ledger`.

A process has one ledger. Several worker processes and instances share no memory, so each takes its share of the budgets: see
TIDEMARK_CALL_SHARE in docs/settings.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from scaling.calls.budgets import BUDGETS, SHARE, WORKERS, Call, budgets_of, call_of
from scaling.calls.ledger import Ledger, Usage
from scaling.calls.throttling import asked
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.errors import UnavailableError

PATIENCE = 10.0
"""Seconds a call waits for its turn; one that would have to wait longer is refused at once. Below the length of a round of
reads, of which it lets most be used.
"""

_urgent: ContextVar[bool] = ContextVar("urgent", default=False)


class CallRefusedError(UnavailableError):
    """A call was not made, and left no trace: its budget is used up, or its service has asked to wait."""

    retry_after: float

    def __init__(self, why: str, seconds: float) -> None:
        self.message = f"not asked: {why}; again in {max(seconds, 1.0):.0f} s"
        super().__init__(self.message, seconds)


@contextmanager
def urgent() -> Iterator[None]:
    """Calls made within, and by tasks begun within, go first: those of a change that is being carried out."""
    before = _urgent.set(True)
    try:
        yield
    finally:
        _urgent.reset(before)


def is_urgent() -> bool:
    """Whether this is part of a change that is being carried out."""
    return _urgent.get()


class Gate:
    """One for all calls of a process, from whatever thread or loop."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._sleep = sleep
        self._lock = Lock()  # the doctor asks from threads of its own

    async def enter(self, method: str, url: str, api: str = "", *, patience: float = PATIENCE) -> Call:
        """Waits for the turn of a request. Raises CallRefusedError where that would take more than `patience` seconds."""
        call = call_of(method, url, api)
        until = self._clock() + patience
        while True:
            now = self._clock()
            with self._lock:
                refusal = self._ledger.ask(call, now, urgent=is_urgent())
            if refusal is None:
                return call
            if now + refusal.seconds > until:
                raise CallRefusedError(refusal.why, refusal.seconds)
            try:
                await self._sleep(refusal.seconds)
            except asyncio.CancelledError:
                with self._lock:
                    self._ledger.left(call)
                raise

    def heard(self, call: Call, status: int, headers: Mapping[str, str], text: str) -> None:
        """What the answer was; others wait where it asks them to."""
        if (what := asked(call, status, headers, text, retry_after(headers))) is not None:
            with self._lock:
                self._ledger.told(call, what, self._clock())

    def take(self, api: str, scope: str, now: float) -> tuple[float, str]:
        """Takes one call that is urgent and returns 0, or takes none and returns the seconds to wait, and why."""
        with self._lock:
            refusal = self._ledger.ask(Call((), ((api, scope),), scope), now, urgent=True)
        return (0.0, "") if refusal is None else (refusal.seconds, refusal.why)

    def usage(self) -> list[Usage]:
        """What was called within the last hour."""
        with self._lock:
            return list(self._ledger.usage(self._clock()))


_gates: dict[tuple[str, ...], Gate] = {}


def gate_of(settings: Mapping[str, str]) -> Gate:
    """The process's. Raises SettingsError naming the setting that is wrong."""
    key = tuple(settings.get(name, "") for name in (SHARE, BUDGETS, WORKERS))
    if key not in _gates:
        _gates.setdefault(key, Gate(Ledger(budgets_of(settings))))
    return _gates[key]


def forget() -> None:
    """Begins anew, as a new process does; for tests."""
    _gates.clear()
