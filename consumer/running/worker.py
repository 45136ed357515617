"""What makes a process a worker: its part of what was given to the whole command, and a parent it does not outlive.

A parent that is killed can tell nobody. Two things tell its workers, whatever they are doing: standard input is a pipe
that only the parent holds, and it ends with the parent, on every platform; and Linux sends a SIGTERM, which also
ends a worker that has not come to reading the pipe. A worker that knows stops in order, and leaves at a deadline
even if it cannot.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from consumer.errors import OrphanedError, ShutdownError
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.pacing.rate_limiter import divided
from tidemark.foundation.sanitize import shorten

log = logging.getLogger("tidemark.consumer")

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h


class Worker(Struct, frozen=True):
    """Worker `index` (from 0) of `count`, of the process `parent`."""

    index: int
    count: int
    parent: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}@{self.parent}"

    @classmethod
    def parse(cls, text: str) -> Worker:
        """From what `str` gave. Raises SettingsError."""
        numbers = text.replace("@", "/").split("/")
        if len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
            raise SettingsError(
                f"--worker is '{shorten(text, 60)}'; accepted: index/count@parent, from `consume` itself"
            )
        return cls(*map(int, numbers))

    def share(self, rate: float | None) -> float | None:
        """Its part of a rate that was given to the command as a whole; None is no limit."""
        return divided(rate, self.index, self.count)


def end_with_parent(parent: int) -> None:
    """Lets the system send a SIGTERM when the parent ends, where it can. Raises OrphanedError if it has ended."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library: the pipe will do
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request, which then tells nothing any more
        raise OrphanedError("the parent process is gone: nothing was begun")


def watch_parent(
    pipe: int, on_gone: Callable[[], object], *, within: float, leave: Callable[[int], object] = os._exit
) -> threading.Thread:
    """Calls `on_gone`, on a thread of its own, when the parent's end of `pipe` is closed.

    `within` so many seconds the process has to end by itself; then `leave` is called with the exit status.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):  # a pipe that cannot be read tells of no parent either
            while os.read(pipe, 1):
                pass
        with contextlib.suppress(RuntimeError):  # the event loop is closed: it is ending already
            on_gone()
        time.sleep(within)
        log.error("the parent process is gone, and what was begun did not end within %g s: leaving", within)
        leave(ShutdownError.exit_status)

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    return thread
