"""The limiter of all calls: it takes each call from the budgets of the process, waits if it must, and notes answers that
ask all callers to wait. `scaling.calls.budgets` has the budgets, `scaling.calls.call_budgets` the order of callers.

Processes share no memory, so each takes its share of the budgets: see TIDEMARK_CALL_SHARE in docs/settings.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from scaling.calls.budgets import BUDGETS, SHARE, WORKERS, Call, budgets_of, call_of
from scaling.calls.call_budgets import CallBudgets
from scaling.calls.throttling import asked
from scaling.calls.usage import CallsView
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.errors import UnavailableError

PATIENCE = 10.0
"""Seconds that a call waits for its turn. A call that would have to wait longer is refused at once. Chosen: below the 15 s
that a round of reads may take.
"""

_urgent: ContextVar[bool] = ContextVar("urgent", default=False)


class CallRefusedError(UnavailableError):
    """The call was not made: its budget is used up, or its service has asked to wait."""

    retry_after: float

    def __init__(self, why: str, seconds: float) -> None:
        self.message = f"not asked: {why}; again in {max(seconds, 1.0):.0f} s"
        super().__init__(self.message, seconds)


@contextmanager
def urgent() -> Iterator[None]:
    """Marks the calls made within, and by tasks begun within, as urgent: those that carry out a change."""
    before = _urgent.set(True)
    try:
        yield
    finally:
        _urgent.reset(before)


def is_urgent() -> bool:
    """Whether the current task carries out a change."""
    return _urgent.get()


class CallLimiter:
    """One limiter for all calls of a process, from any thread or event loop."""

    def __init__(
        self,
        budgets: CallBudgets,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._budgets = budgets
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
                refusal = self._budgets.ask(call, now, urgent=is_urgent())
            if refusal is None:
                return call
            if now + refusal.seconds > until:
                raise CallRefusedError(refusal.why, refusal.seconds)
            try:
                await self._sleep(refusal.seconds)
            except asyncio.CancelledError:
                with self._lock:
                    self._budgets.forget_caller(call)
                raise

    def note_answer(self, call: Call, status: int, headers: Mapping[str, str], text: str) -> None:
        """Notes an answer; other callers wait where it asks them to."""
        if (wait := asked(call, status, headers, text, retry_after(headers))) is not None:
            with self._lock:
                self._budgets.note_throttling(call, wait, self._clock())

    def take(self, api: str, scope: str, now: float) -> tuple[float, str]:
        """Takes one urgent call and returns 0, or takes none and returns the seconds to wait and the reason."""
        with self._lock:
            refusal = self._budgets.ask(Call((), ((api, scope),), scope), now, urgent=True)
        return (0.0, "") if refusal is None else (refusal.seconds, refusal.why)

    def usage(self, now: float) -> list[CallsView]:
        """The calls of the last hour; `now` in seconds since the epoch."""
        with self._lock:
            return list(self._budgets.usage(self._clock(), now))


_limiters: dict[tuple[str, ...], CallLimiter] = {}


def limiter_of(settings: Mapping[str, str]) -> CallLimiter:
    """The limiter of this process. Raises SettingsError naming the setting that is wrong."""
    key = tuple(settings.get(name, "") for name in (SHARE, BUDGETS, WORKERS))
    if key not in _limiters:
        _limiters.setdefault(key, CallLimiter(CallBudgets(budgets_of(settings))))
    return _limiters[key]
