"""The token buckets with which Resource Manager limits the calls of one principal."""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BucketSize:
    size: int
    refill_per_second: float


# Published sizes (2024): reads 250, writes 200 refilled at 10 a second. The refill of reads is from
# memory of the same table.
READS = BucketSize(250, 25.0)
WRITES = BucketSize(200, 10.0)


@dataclass(slots=True)
class TokenBucket:
    """Holds up to `size` tokens and starts full; `now` is in seconds and does not run backwards."""

    bounds: BucketSize
    _tokens: float = field(init=False)
    _as_of: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self._tokens = float(self.bounds.size)

    def take(self, now: float) -> float:
        """Takes a token and returns 0, or takes none and returns the seconds until there is one."""
        if now > self._as_of:
            gained = (now - self._as_of) * self.bounds.refill_per_second
            self._tokens = min(float(self.bounds.size), self._tokens + gained)
            self._as_of = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.bounds.refill_per_second

    @property
    def remaining(self) -> int:
        return int(self._tokens)


@dataclass(slots=True)
class Throttle:
    """One bucket for reads and one for writes to each (subscription, principal); None: no limit."""

    reads: BucketSize | None = READS
    writes: BucketSize | None = WRITES
    _buckets: dict[tuple[str, str, bool], TokenBucket] = field(init=False, default_factory=dict)

    def bucket(self, subscription: str, principal: str, *, is_read: bool) -> TokenBucket | None:
        bounds = self.reads if is_read else self.writes
        if bounds is None:
            return None
        key = (subscription.lower(), principal, is_read)
        if key not in self._buckets:
            self._buckets[key] = TokenBucket(bounds)
        return self._buckets[key]
