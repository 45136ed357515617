"""How long messages take: shares of them with a fixed time each, and what is completed of them by the second. Pure.

A distribution is a few pairs (share of the messages, multiple of the mean time). Messages begin in the order in which they came,
so that of those begun until u - x, a class with time x has completed all until u.
"""

from __future__ import annotations

from math import exp, log, log1p, sqrt
from operator import mul
from statistics import NormalDist

import numpy as np
from msgspec import Struct

CLASSES = 8
"""Equal shares that stand for a log-normal distribution; the exponential one, which has shorter times, takes twice as many. With
these, late shares differ by less than 3 points from those of messages one by one (tests/unit/test_autoscaling_benchmark.py).
"""

NEAR = 15
"""Seconds back up to which completed messages are reckoned second by second."""

AHEAD = 900
"""Seconds that are served at once at most: where the number of instances changes, those after it are served again."""

SHORTEST = 1e-6
"""Seconds of the shortest message: one of no time at all would be served at no rate that is a number."""

NOTHING = np.zeros(AHEAD)

Times = tuple[tuple[float, float], ...]


def _quantiles(times: list[float]) -> Times:
    """Equal shares, scaled to a mean of 1: the middles of the shares leave the longest messages out."""
    mean = sum(times) / len(times)
    return tuple((1.0 / len(times), time / mean) for time in times)


def lognormal(variation: float = 1.0) -> Times:
    """`variation` is the standard deviation as a multiple of the mean."""
    spread = sqrt(log1p(variation * variation))
    normal = NormalDist()
    return _quantiles([exp(spread * normal.inv_cdf((each + 0.5) / CLASSES)) for each in range(CLASSES)])


def two_classes(share: float = 0.05, times: float = 10.0) -> Times:
    """A `share` of the messages takes `times` as long as the others."""
    short = 1.0 / (1.0 - share + share * times)
    return ((1.0 - share, short), (share, times * short))


FIXED: Times = ((1.0, 1.0),)
LOGNORMAL = lognormal()
TWO_CLASSES = two_classes()
EXPONENTIAL = _quantiles([-log(1.0 - (each + 0.5) / (2 * CLASSES)) for each in range(2 * CLASSES)])


class Completion(Struct, frozen=True):
    """Completed messages of a second as a weighted sum of the messages begun up to earlier seconds.

    `longest` is the time in seconds of the class that takes longest. `now` is the weight of the second itself; the seconds
    `near` and `far` before it have the weights `near_shares` and `far_shares`. Between two seconds counts are
    on a straight line: with messages of less than a second that makes of so many slots exactly the rate that they serve.
    """

    longest: float
    now: float
    near: list[int]
    near_shares: list[float]
    far: np.ndarray
    far_shares: np.ndarray

    @property
    def at_once(self) -> int:
        """Seconds that can be served at once, as none of them is among `far` for another."""
        if not len(self.far):
            return AHEAD
        return NEAR if self.at_hand else min(int(self.far[0]), AHEAD)

    @property
    def at_hand(self) -> bool:
        """True where messages that begin make room for others within `NEAR` seconds."""
        return bool(self.now or self.near)

    def of(self, begun: np.ndarray, second: int) -> float:
        """Completed until a second."""
        near = (begun.item(max(second - lag, 0)) for lag in self.near)
        found = self.now * begun.item(second) + sum(map(mul, self.near_shares, near))
        return float(found + self.older(begun, second - 1, 1)[0])

    def older(self, begun: np.ndarray, first: int, count: int) -> np.ndarray:
        """What `far` adds to the `count` seconds after `first`."""
        if not len(self.far):
            return NOTHING[:count]
        seconds = np.arange(first + 1, first + count + 1) - self.far[:, None]
        return np.asarray(self.far_shares @ begun[np.maximum(seconds, 0)])


def completion(times: Times, mean: float) -> Completion:
    """Of messages that take `mean` seconds on average."""
    weights: dict[int, float] = {}
    for share, multiple in times:
        whole, part = divmod(max(multiple * mean, SHORTEST), 1.0)
        weights[int(whole)] = weights.get(int(whole), 0.0) + share * (1.0 - part)
        if part:
            weights[int(whole) + 1] = weights.get(int(whole) + 1, 0.0) + share * part
    near = sorted(lag for lag in weights if 0 < lag <= NEAR)
    far = sorted(lag for lag in weights if lag > NEAR)
    return Completion(
        max(multiple for _, multiple in times) * mean,
        weights.get(0, 0.0),
        near,
        [weights[lag] for lag in near],
        np.array(far, dtype=int),
        np.array([weights[lag] for lag in far]),
    )
