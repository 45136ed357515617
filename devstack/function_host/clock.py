"""The clock of a host, which may run faster than the day."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct


class HostClock(Struct, frozen=True):
    """Seconds since the epoch; from `began` on, `speed` of them pass in every true second.

    At a speed of 60 a timer of every minute fires every second, and finds a minute gone. Only timers, and apps that
    take their time from this clock, live faster: queues, sockets and tokens keep the true time.
    """

    speed: float = 1.0
    began: float = 0.0
    true: Callable[[], float] = time.time

    def __call__(self) -> float:
        return self.began + (self.true() - self.began) * self.speed

    def now(self) -> datetime:
        """The same as a time of UTC, in which timers of Azure are meant."""
        return datetime.fromtimestamp(self(), UTC)

    def true_time(self, at: float) -> float:
        """The true time at which this clock shows `at`."""
        return self.began + (at - self.began) / self.speed

    def true_seconds(self, seconds: float) -> float:
        """How long so many seconds of this clock truly take."""
        return seconds / self.speed


TRUE = HostClock()
