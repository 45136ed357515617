"""What the rest of a day is expected to need, where a rule has learned it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec import Struct

from scaling.budget.spending import DAY, HOUR
from scaling.config.policy import Policy
from scaling.model import TargetState
from scaling.rules.service_level import memory, seasonality
from scaling.rules.service_level.memory import Memory
from scaling.rules.service_level.rule import ServiceLevelRule

HEADROOM = 1.25
"""Instances above those that the usual rate keeps busy: as many as the rule has on average over the open traces
(1.246 times the least cost: benchmarks/README.md).
"""

BEYOND_LASTS = 1.0
"""Hours that what is needed now beyond the usual is expected to last; the usual rate of each hour counts besides.
Chosen: one hour, the grain of the calendar.
"""

LEVEL = 3
"""Index of the remembered rate of the last ten minutes (`memory.SCALES`): what comes now, without its ripples."""


class Need(Struct, frozen=True):
    """Units of capacity above the minimum: `now`, and times hours until the day ends, `total`."""

    now: float
    total: float


def need_of(policy: Policy, state: TargetState, *, at: float, end: float, minimum: int) -> Need | None:
    """What is needed from `at` to `end`, in whole instances. Of several rules that learn, the largest need of each hour
    counts. None until a rule has learned for a day.
    """
    known = list(_known(policy, state))
    if not known:
        return None
    most = max(policy.maximum - minimum, 0)

    def extra(rate: float, service: float) -> float:
        return min(max(ceil(HEADROOM * rate / service) - minimum, 0), most)

    def usual(index: int) -> float:
        return max(extra(_rate(memory_, index), memory_.learned.service_rate) for memory_ in known)

    index = int(at // HOUR)
    beyond = max(
        max(extra(memory_.rates[LEVEL], memory_.learned.service_rate) for memory_ in known) - usual(index),
        0.0,
    )
    now, total = usual(index) + beyond, beyond * min((end - at) / HOUR, BEYOND_LASTS)
    while at < end:
        stop = min((index + 1) * HOUR, end)
        total += usual(index) * (stop - at) / HOUR
        at, index = stop, index + 1
    return Need(now, total)


def _known(policy: Policy, state: TargetState) -> Iterator[Memory]:
    for rule in policy.flat_rules:
        if isinstance(rule, ServiceLevelRule):
            known = memory.decode(state.memories.get(rule.name))
            if known is not None and known.learned.service_rate > 0.0 and known.at - known.since >= DAY:
                yield known


def _rate(known: Memory, index: int) -> float:
    """The usual rate of an hour (since the epoch); that of all hours where it was not seen yet."""
    rate = seasonality.rate_of_hour(known.usual_rates, index)
    return max(known.usual_rate if rate is None else rate, 0.0)
