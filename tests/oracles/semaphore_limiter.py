"""The rate limiter that this one replaced, written down from its source: a semaphore of N slots that starts full.

N >= 10: every 100 ms ceil(N / 10) slots are released; N < 10: every second N. Never more than N are free.
"""

import math


def semaphore_starts(rate: int, seconds: int, *, idle: float = 0.0) -> list[tuple[float, int]]:
    """(time, how many records start) of a saturated consumer that was idle at first."""
    period, released = (0.1, math.ceil(rate / 10)) if rate >= 10 else (1.0, rate)
    free = rate
    starts = []
    for tick in range(round(seconds / period)):
        now = tick * period
        if tick:
            free = min(rate, free + released)
        if now >= idle and free:
            starts.append((now, free))
            free = 0
    return starts
