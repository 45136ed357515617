"""How many records may start now: exact over every sliding second, paced, and without a burst after idleness."""

from __future__ import annotations

import math
from collections import deque

SLOTS_PER_WINDOW = 10  # chosen: a burst is at most a tenth of a second's records


def divided(rate: float | None, index: int, count: int) -> float | None:
    """The part of limiter `index` (from 0) of `count` that share a rate; None is no limit. The parts add up to it.

    They differ by one record per second at most, and are whole but for the first one's fraction, so that all together
    start no more in any second than one limiter would. A rate below one record per second for each is divided
    equally: its whole is exact over the common period, and a second may hold one record of each.
    """
    if rate is None or rate < count:
        return None if rate is None else rate / count
    whole = int(rate)
    part = whole // count + (index < whole % count)
    return part + (rate - whole) if index == 0 else part


class RateLimiter:
    """Lets at most `rate` records per second start; None is no limit. Times are seconds of a monotonic clock.

    Two rules hold at once:

    - *Bound*: at most `count` starts in every half-open `window`, kept by a log of the starts, so that it holds
      whenever and however late the calls come. A whole rate N gives N in one second; a fraction the next whole
      number in the time that belongs to it (2.5/s: 3 in 1.2 s; 0.5/s: 1 in 2 s), hence never more than ceil(N)
      in a second.
    - *Pace*: the window is cut into 10 slots (fewer for rates below 10: one record each). The slots share the count
      so that any 10 in a row hold it exactly. What a slot did not use is lost: idleness saves nothing.

    Called at the times of `next_at`, it lets exactly N start in any second. After a change of the rate the records
    already started count against the new one.
    """

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate: float | None = None
        self._count = 0
        self._window = 1.0
        self._slots = 1
        self._log: deque[tuple[float, int]] = deque()  # (time, how many started), within the last window
        self._logged = 0
        self._anchor = now  # slot k begins at anchor + k * window / slots: no error adds up
        self._slot = 0
        self._used = 0  # starts in the present slot
        self._latest = now
        self.set_rate(rate, now)

    @property
    def rate(self) -> float | None:
        """Records per second; None is no limit."""
        return self._rate

    def set_rate(self, rate: float | None, now: float) -> None:
        """Changes the rate from `now` on. Raises ValueError unless it is positive and finite, or None."""
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise ValueError(
                f"rate is {rate!r}; accepted are positive numbers of records per second, or None"
            )
        if rate == self._rate:
            return
        now = self._advance(now)
        # the present slot goes on with what it has used: changing the rate often gives no extra starts
        self._anchor = now if self._rate is None else self._slot_start(self._slot)
        self._slot = 0
        self._rate = rate
        if rate is not None:
            self._count = math.ceil(rate)
            self._window = self._count / rate
            self._slots = min(SLOTS_PER_WINDOW, self._count)

    def take(self, wanted: int, now: float, forced: int = 0) -> int:
        """How many of the `wanted` records may start at `now`; they are counted as started, with `forced` others that
        start whatever the rate says: the next ones wait the longer.
        """
        if self._rate is None:
            return wanted + forced
        now = self._advance(now)
        taken = forced + max(0, min(wanted, self._quota() - self._used, self._count - self._logged))
        if taken:
            self._used += taken
            self._logged += taken
            if self._log and self._log[-1][0] == now:
                self._log[-1] = (now, self._log[-1][1] + taken)
            else:
                self._log.append((now, taken))
        return taken

    def next_at(self, now: float) -> float:
        """The earliest time at which a further record may start: `now` if it may already."""
        if self._rate is None:
            return now
        now = self._advance(now)
        earliest = now if self._used < self._quota() else self._slot_start(self._slot + 1)
        logged = self._logged
        for time, count in self._log:
            if logged < self._count:
                break
            earliest = max(earliest, time + self._window)
            logged -= count
        return earliest

    def _advance(self, now: float) -> float:
        """Forgets the starts that left the window and turns to the slot of `now`."""
        now = self._latest = max(now, self._latest)
        while self._log and self._log[0][0] + self._window <= now:
            self._logged -= self._log.popleft()[1]
        if now >= self._slot_start(self._slot + 2):  # a whole slot went by unseen: a new grid begins here
            self._anchor, self._slot, self._used = now, 0, 0
        elif now >= self._slot_start(self._slot + 1):
            self._slot += 1
            self._used = 0
        return now

    def _slot_start(self, slot: int) -> float:
        return self._anchor + slot * self._window / self._slots

    def _quota(self) -> int:
        slot = self._slot % self._slots
        return (slot + 1) * self._count // self._slots - slot * self._count // self._slots
