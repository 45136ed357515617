"""A worker process: its share of the command's rate, and its end when the parent ends.

A parent that is killed cannot send a signal. But the standard input of its workers is a pipe that only the parent holds, so
that it ends with the parent on every platform. A worker without a parent stops in order, and exits at a deadline even if it
cannot.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from consumer.errors import ShutdownError
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.pacing.rate_limiter import divided
from tidemark.foundation.sanitize import shorten

log = logging.getLogger("tidemark.consumer")


class Worker(Struct, frozen=True):
    """Worker `index` (from 0) of `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Worker:
        """The worker that `str` described. Raises SettingsError."""
        numbers = text.split("/")
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise SettingsError(
                f"--worker is '{shorten(text, 60)}'; accepted: index/count, from `consume` itself"
            )
        return cls(*map(int, numbers))

    def share(self, rate: float | None) -> float | None:
        """The share of this worker in a rate of the command; None means no limit."""
        return divided(rate, self.index, self.count)


def watch_parent(
    pipe: int, on_gone: Callable[[], object], *, within: float, leave: Callable[[int], object] = os._exit
) -> threading.Thread:
    """Calls `on_gone` on a thread when the parent's end of `pipe` is closed.

    The process then has `within` seconds to end by itself; after that `leave` is called with the exit status.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):  # a pipe that cannot be read has no parent at its end either
            while os.read(pipe, 1):
                pass
        with contextlib.suppress(RuntimeError):  # the event loop is closed: it is ending already
            on_gone()
        time.sleep(within)
        log.error("the parent process is gone, and the shutdown did not end within %g s: exiting", within)
        leave(ShutdownError.exit_status)

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    return thread
