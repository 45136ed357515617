"""How long ago a collection began: its reads share one time and take turns, so the last of them happen many seconds after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_began_at: ContextVar[float | None] = ContextVar("began_at", default=None)


@contextmanager
def collecting() -> Iterator[None]:
    """What is read within, and by tasks begun within, is of the time at which this began, or the `collecting` around it."""
    before = _began_at.set(time.monotonic() if (began_at := _began_at.get()) is None else began_at)
    try:
        yield
    finally:
        _began_at.reset(before)


def seconds_since() -> float:
    """Seconds since the collection began; 0 outside of one."""
    began_at = _began_at.get()
    return 0.0 if began_at is None else time.monotonic() - began_at
