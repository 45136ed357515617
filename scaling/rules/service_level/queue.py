"""The queue as a fluid: how many messages are active after some time. Pure.

N messages are active: those that wait, and those that are processed. C of them can be processed at once and take s seconds on
average, and f messages per second arrive. Below C all of them are processed, and N comes to rest at f s (Little's law);
from C on C / s are completed per second:

    N < C     N(t) = f s + (N - f s) exp(-t / s)
    N >= C    N(t) = N + (f - C / s) t

N moves in one direction only, so it passes C at most once. The exponential is that of random times of messages. With times that
are all the same it is off for one such time, which changed neither cost nor lateness (simulated message by message, November 2026).
"""

from __future__ import annotations

from math import exp, inf, log


def active_after(active: float, rate: float, slots: float, service_time: float, seconds: float) -> float:
    """Messages active after `seconds`, of `active` now. `slots` are processed at once and take `service_time` seconds, above 0."""
    rest = rate * service_time
    if active < slots:
        passes = service_time * log((rest - active) / (rest - slots)) if rest > slots else inf
        if seconds <= passes:
            return rest + (active - rest) * exp(-seconds / service_time)
        return slots + (rate - slots / service_time) * (seconds - passes)
    growth = rate - slots / service_time
    passes = (slots - active) / growth if growth < 0.0 else inf
    if seconds <= passes:
        return active + growth * seconds
    return rest + (slots - rest) * exp((passes - seconds) / service_time)
