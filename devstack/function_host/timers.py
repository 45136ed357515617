"""Timer triggers."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

from scaling.schedules import ncrontab


class Clock(Protocol):
    """Time as a timer sees it."""

    def now(self) -> datetime:
        """The current time, in the time zone schedules are meant in."""

    async def wait(self, seconds: float) -> bool:
        """Wait that long, or less; True, at once, when the host is stopping."""


async def run_timer(
    schedule: ncrontab.Schedule,
    fire: Callable[[bool], Awaitable[object]],
    clock: Clock,
    *,
    run_on_startup: bool = False,
) -> None:
    """Call fire(past_due) at each firing of the schedule until the clock says the host is stopping.

    One call at a time. Firings that come during a call are made up for by a single one right after it, which is told
    that it is past due.
    """
    started = clock.now()
    if run_on_startup:
        await fire(False)
    due = _next_due(schedule, started, clock.now())
    while True:
        past_due = due <= clock.now()
        while (remaining := (due - clock.now()).total_seconds()) > 0:
            if await clock.wait(remaining):
                return
        if await clock.wait(0.0):
            return
        await fire(past_due)
        due = _next_due(schedule, due, clock.now())


def _next_due(schedule: ncrontab.Schedule, previous: datetime, now: datetime) -> datetime:
    """The firing after the previous one, or now if that has passed."""
    return max(schedule.next_after(previous), now)
