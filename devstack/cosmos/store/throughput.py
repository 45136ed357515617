"""Provisioned throughput of a container or of a database that its containers share.

The rules are the service's: the floor is 400 RU/s (1,000 for autoscale), or a hundredth (a
tenth) of the most that was ever provisioned, or 1 (10) RU/s per GB stored; steps of 100
(1,000). What the physical partitions can carry (10,000 RU/s each) takes effect at once, more
than that after `split_delay` seconds, once partitions have been split; until then a further
replacement is refused (423). A database's shared throughput is one budget for all of it.
"""

import math
from collections.abc import Callable

from msgspec import Struct

from devstack.cosmos.protocol.errors import CosmosError, bad_request

RANGE_CEILING = 10_000  # RU/s that one physical partition can carry
MAXIMUM = 1_000_000  # RU/s, without asking support
_GB = 1e9
_FREE_CONTAINERS = 25  # of a shared database; each further one raises the floor by 100
_PER_CONTAINER = 100


class Level(Struct, frozen=True):
    """An amount of throughput in RU/s: fixed, or the ceiling of autoscale."""

    ru: int
    autoscale: bool = False

    @property
    def step(self) -> int:
        return 1000 if self.autoscale else 100

    def describe(self) -> str:
        return f"autoscale up to {self.ru} RU/s" if self.autoscale else f"{self.ru} RU/s"


class Owner(Struct, frozen=True):
    """What the throughput is of; the functions tell its state at any time."""

    link: str
    rid: str
    stored_bytes: Callable[[], int]
    containers: Callable[[], int]
    range_count: Callable[[], int]
    split_to: Callable[[int], None]


class Offer:
    """The throughput of one owner. Raises CosmosError (400) if the first level is not allowed."""

    def __init__(self, rid: str, level: Level, owner: Owner, split_delay: float) -> None:
        self.rid = rid
        self.owner = owner
        self.split_delay = split_delay
        self.level = level
        self.highest = 0
        self.updates = 0
        self.pending: tuple[Level, float] | None = None
        self._check(level)
        self.highest = level.ru

    @property
    def per_range(self) -> float:
        """RU/s that each physical partition may spend."""
        return self.level.ru / self.owner.range_count()

    def minimum(self, *, autoscale: bool | None = None) -> int:
        """The least that a replacement may ask for."""
        scale = 10 if (self.level.autoscale if autoscale is None else autoscale) else 1
        step = 1000 if scale == 10 else 100
        stored = self.owner.stored_bytes() / _GB * scale
        floor = max(400 if scale == 1 else 1000, stored, self.highest / (100 / scale))
        extra = max(0, self.owner.containers() - _FREE_CONTAINERS) * _PER_CONTAINER * scale
        return math.ceil((floor + extra) / step) * step

    @property
    def instant_maximum(self) -> int:
        """The most that takes effect without a split."""
        return self.owner.range_count() * RANGE_CEILING

    def replace(self, level: Level, now: float) -> None:
        """Raises CosmosError: 400 for an amount that is not allowed, 423 while another is pending."""
        self.advance(now)
        if self.pending is not None:
            raise CosmosError(423, "Another scale operation on this resource is in progress.")
        self._check(level)
        self.updates += 1
        if level.ru > self.instant_maximum:
            self.pending = level, now + self.split_delay
            self.advance(now)
        else:
            self._take_effect(level)

    def advance(self, now: float) -> None:
        """Complete a pending replacement whose time has come: split, then take effect."""
        if self.pending is None or now < self.pending[1]:
            return
        level = self.pending[0]
        self.pending = None
        self.owner.split_to(math.ceil(level.ru / RANGE_CEILING))
        self._take_effect(level)

    def _take_effect(self, level: Level) -> None:
        self.level = level
        self.highest = max(self.highest, level.ru)

    def _check(self, level: Level) -> None:
        minimum = self.minimum(autoscale=level.autoscale)
        if not minimum <= level.ru <= MAXIMUM or level.ru % level.step:
            raise bad_request(
                f"The offer should have valid throughput values between {minimum} and {MAXIMUM} inclusive "
                f"in increments of {level.step}. Got {level.ru}."
            )
