"""One rate for several takers, such as the hubs of a process: exact for all together, and shared by what waits.

Every start is counted by one RateLimiter, so that its bound holds for the sum. Time is cut into slots; in each, the takers
divide what the rate gives by their weights, and what one does not need goes to the others.
"""

from __future__ import annotations

import math

from tidemark.foundation.pacing.rate_limiter import SLOTS_PER_WINDOW, RateLimiter

IDLE_AFTER = 1.0
"""Seconds after which a taker that asked for nothing has no part: whoever has work asks once a slot, a tenth of this."""

LEAST_PART = 0.01
"""A taker has this part of the rate however much waits elsewhere, so that a few events never wait for a million. Chosen."""


class Share:
    """A limiter of one taker, for use in place of a RateLimiter. A rate of its own is a further bound."""

    def __init__(self, whole: SharedRate, now: float) -> None:
        self.waiting = 0.0
        """How much waits at this taker: its weight."""
        self.credit = 0.0  # what it may still start in the present slot; below 0 it was lent by the next ones
        self.taken = 0  # in the present slot
        self.asked_at = -math.inf
        self._whole = whole
        self._own = RateLimiter(None, now)

    @property
    def rate(self) -> float | None:
        """Records per second at most."""
        return self._whole.rate if self._own.rate is None else min(self._own.rate, self._whole.rate)

    @property
    def takers(self) -> int:
        """How many takers `rate` is for; 0 if it is of this one alone."""
        is_own = self._own.rate is not None and self._own.rate <= self._whole.rate
        return 0 if is_own else len(self._whole.shares)

    def set_rate(self, rate: float | None, now: float) -> None:
        """Changes the taker's own rate; None leaves only the common one."""
        self._own.set_rate(rate, now)

    def take(self, wanted: int, now: float, forced: int = 0) -> int:
        """As RateLimiter.take."""
        granted = self._own.take(min(wanted, self._whole.allowed(self, now)), now, forced)
        return self._whole.take(self, granted - forced, now, forced)

    def next_at(self, now: float) -> float:
        """As RateLimiter.next_at."""
        return max(self._own.next_at(now), self._whole.next_at(self, now))


Rate = float | Share | None
"""Records per second; a share of a rate of several; or None for no limit."""


def limiter_of(rate: Rate, now: float) -> RateLimiter | Share:
    """What lets records start by a rate."""
    return rate if isinstance(rate, Share) else RateLimiter(rate, now)


class SharedRate:
    """A rate of all its shares together, in records per second."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._limiter = RateLimiter(rate, now)
        count = math.ceil(rate)
        self._slot_length = count / rate / min(SLOTS_PER_WINDOW, count)
        self._slot = -1
        self.shares: list[Share] = []

    def share(self, now: float) -> Share:
        """A share for a further taker."""
        share = Share(self, now)
        self.shares.append(share)
        return share

    def end(self, share: Share) -> None:
        """Forgets a taker that is gone."""
        self.shares.remove(share)

    def allowed(self, share: Share, now: float) -> int:
        """How many a share may start at once, by its part of the slot. A part is no whole number: what is taken beyond it is
        missing in the next slot.
        """
        was_idle = share.asked_at + IDLE_AFTER <= now
        share.asked_at = now
        slot = int(now / self._slot_length)
        if slot != self._slot or was_idle:
            self._divide(now, is_new=slot != self._slot)
            self._slot = slot
        return max(0, math.ceil(share.credit))

    def take(self, share: Share, wanted: int, now: float, forced: int = 0) -> int:
        taken = self._limiter.take(wanted, now, forced) if wanted or forced else 0
        share.credit -= taken
        share.taken += taken
        return taken

    def next_at(self, share: Share, now: float) -> float:
        at = self._limiter.next_at(now)
        return at if self.allowed(share, now) else max(at, (self._slot + 1) * self._slot_length)

    def _divide(self, now: float, *, is_new: bool) -> None:
        """Gives every taker that asks its part of the slot: by weight, but no more than it seems to need."""
        active = [share for share in self.shares if share.asked_at + IDLE_AFTER > now]
        needs = {share: self._need(share) for share in active}
        least = max(1.0, LEAST_PART * sum(share.waiting for share in active))
        weights = {share: max(least, share.waiting) for share in active}
        left, weight = self.rate * self._slot_length, sum(weights.values())
        for share in sorted(active, key=lambda share: needs[share] / weights[share]):
            part = min(needs[share], left * weights[share] / weight)
            left, weight = left - part, weight - weights[share]
            if is_new:
                share.credit = min(0.0, share.credit) + part
            elif share.taken == 0:
                share.credit = max(share.credit, part)
        for share in active if is_new else ():
            share.taken = 0

    @staticmethod
    def _need(share: Share) -> float:
        """What a taker may need in a slot: it left something of the last one, or took all that it was given."""
        return 1.5 * share.taken + 1.0 if share.credit > 0 else math.inf
