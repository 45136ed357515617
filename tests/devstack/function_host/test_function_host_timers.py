"""Timers fire on schedule, one at a time, and make up for missed firings once."""

from datetime import UTC, datetime, timedelta

from devstack.function_host.timers import run_timer
from scaling.schedules import ncrontab

START = datetime(2026, 3, 1, 10, 0, 0, 500_000, tzinfo=UTC)


class FakeClock:
    """Time that passes only while somebody waits or a firing takes time; says stop at the end."""

    def __init__(self, seconds):
        self.time = START
        self.end = START + timedelta(seconds=seconds)

    def now(self):
        return self.time

    async def wait(self, seconds):
        self.time += timedelta(seconds=seconds)
        return self.time >= self.end


async def firings(schedule, *, seconds, takes=(), **options):
    """The (seconds after START, past_due) of all firings; the n-th takes takes[n] seconds."""
    clock, fired, durations = FakeClock(seconds), [], list(takes)

    async def fire(past_due):
        fired.append(((clock.time - START).total_seconds(), past_due))
        clock.time += timedelta(seconds=durations.pop(0) if durations else 0)

    await run_timer(ncrontab.parse(schedule), fire, clock, **options)
    return fired


async def test_a_timer_fires_at_each_firing_of_its_schedule():
    assert await firings("*/2 * * * * *", seconds=7) == [(1.5, False), (3.5, False), (5.5, False)]


async def test_a_time_span_counts_from_the_start():
    assert await firings("00:00:03", seconds=10) == [(3.0, False), (6.0, False), (9.0, False)]


async def test_a_timer_run_on_startup_fires_at_once_and_then_on_schedule():
    fired = await firings("*/2 * * * * *", seconds=4, run_on_startup=True)

    assert fired == [(0.0, False), (1.5, False), (3.5, False)]


async def test_firings_missed_during_a_long_one_are_made_up_for_once_and_called_past_due():
    fired = await firings("* * * * * *", seconds=6, takes=[3.2])

    assert fired == [(0.5, False), (3.7, True), (4.5, False), (5.5, False)]


async def test_a_startup_run_longer_than_the_schedule_is_followed_by_one_past_due_firing():
    fired = await firings("* * * * * *", seconds=4, takes=[2.2], run_on_startup=True)

    assert fired == [(0.0, False), (2.2, True), (2.5, False), (3.5, False)]


async def test_a_timer_does_not_fire_when_the_host_stops_while_it_waits():
    assert await firings("0 0 0 1 1 *", seconds=60) == []


class EarlyClock(FakeClock):
    """Wakes up before the time is over, as real sleeps may by a hair."""

    async def wait(self, seconds):
        return await super().wait(seconds if seconds < 0.001 else seconds * 0.9)


async def test_waking_up_early_does_not_fire_twice():
    clock, fired = EarlyClock(3), []

    async def fire(past_due):
        fired.append(round((clock.time - START).total_seconds(), 3))

    await run_timer(ncrontab.parse("* * * * * *"), fire, clock)

    assert fired == [0.5, 1.5, 2.5]
