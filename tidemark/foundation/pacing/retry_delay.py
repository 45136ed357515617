"""When a record is tried again. There is no last attempt: limits on the backlog end a
consumer that gets nowhere, never a count of attempts. Which answers are worth a retry is known to the sinks.

One record that is refused waits for two seconds each time. Where everything is refused, the service is in trouble: the
wait doubles with each round up to ten seconds, and ends with the first success.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

LEAST_DELAY = 0.05  # also for a service that asks for none: it may refuse for ever
RETRY_DELAY = 2.0  # of the sample this consumer came from: "retries wait for 2 seconds between attempts and they will continue forever"
LONGEST_DELAY = 10.0  # short enough that a drain, which has 20 s, still meets a service that is back
LONGEST_ASKED = 300.0
"""Seconds that a service can make one try wait. Half of what ALLOW_BACKLOG_TO is by default: a header of a day, or one whose
milliseconds were taken for seconds, is tried at least once more before the age of the oldest event ends the consumer.
"""
JITTER = 0.25  # so that the records of one outage come back over half a second, not in one instant

Chance = Callable[[], float]
"""A number in [0, 1)."""


def delay(
    retry_after: float | None, failures: int = 1, chance: Chance | None = None, *, least: float = LEAST_DELAY
) -> float:
    """Seconds until the next attempt: what the service asked for, `LONGEST_ASKED` at most; else 2, 4, 8, 10 by the `failures` in a row;
    `least` in any case. By `chance` up to a quarter is added.
    """
    if retry_after is None:
        wanted = min(LONGEST_DELAY, RETRY_DELAY * 2.0 ** min(max(0, failures - 1), 10))
    else:
        wanted = asked_pause(retry_after, least)
    return wanted if chance is None else wanted * (1.0 + JITTER * chance())


def asked_pause(retry_after: float | None, least: float) -> float:
    """Seconds that an answer asks for, from `least` to `LONGEST_ASKED`; `least` where it does not say."""
    return min(LONGEST_ASKED, max(least, retry_after or 0.0))


class Backoff:
    """How long to wait for something that fails again and again."""

    def __init__(self, chance: Chance | None) -> None:
        self._chance = chance
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait now."""
        self._failures += 1
        return delay(None, self._failures, self._chance)

    def worked(self) -> None:
        self._failures = 0


class RareLines:
    """When a line that would come at every try is logged: at the first, after 10 s, and then ever less often, every ten minutes at
    least.
    """

    def __init__(self) -> None:
        self._due, self._pause = -inf, LOG_FIRST

    def is_due(self, now: float) -> bool:
        """Counts the line as logged where it is."""
        if now < self._due:
            return False
        self._due, self._pause = now + self._pause, min(2 * self._pause, LOG_LAST)
        return True


LOG_FIRST, LOG_LAST = 10.0, 600.0
"""Seconds from the first line to the second, and between lines at most. Chosen: whoever watches a start sees that it waits, and
a night without a service is a page and no book.
"""
