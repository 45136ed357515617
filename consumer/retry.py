"""When a record that was not written is tried again. There is no last attempt: limits on the backlog end a
consumer that gets nowhere, never a count of attempts. Which answers are worth a retry is known to the sinks.
"""

from __future__ import annotations

from collections.abc import Callable

RETRY_DELAY = 2.0  # the seed's: "retries wait for 2 seconds between attempts and they will continue forever"
JITTER = 0.25  # so that the records of one outage come back over half a second, not in one instant


def delay(retry_after: float | None, chance: Callable[[], float] | None = None) -> float:
    """Seconds until the next attempt: what the service asked for, else 2.

    `chance` gives a number in [0, 1), by which up to a quarter is added: never less than the service asked for.
    """
    wanted = RETRY_DELAY if retry_after is None else max(0.0, retry_after)
    return wanted if chance is None else wanted * (1.0 + JITTER * chance())
