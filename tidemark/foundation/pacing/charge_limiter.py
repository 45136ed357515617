"""How many records may start under a budget of request units, although a charge is known only when its answer comes. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

WINDOW = 10.0
"""Seconds over which the budget is exact. Charges are learned from answers, which take up to seconds themselves."""
IN_ONE_SECOND = 1.1
"""Seconds of budget that may start within one second: what a busy loop missed is caught up, a little at a time, because the service keeps
its own throughput by the second."""
SLOT = 0.1
"""Seconds of budget that are saved up before records start: so batches stay large, as with the slots of `RateLimiter`."""
SAVED = 1.0
"""Seconds of budget that idleness, or a loop that was busy, saves at most."""
TRIAL = 1.0
"""Seconds of budget that a record reserves whose charge nobody knows yet: the next one may start a second later."""
DECAY = 0.2
"""By how much an estimate follows a lower charge. A higher one counts at once, because too little reserved is overspent."""
UNLIMITED = 1 << 62


class _Start(Struct):
    """A batch in the log; `seconds` is the budget time that it uses."""

    at: float
    seconds: float


class _Window:
    """The batches that started within the last `length` seconds; together they use at most `most` seconds of budget."""

    def __init__(self, length: float, most: float) -> None:
        self._length = length
        self.most = most
        self._log: deque[_Start] = deque()
        self.used = 0.0

    def advance(self, now: float) -> None:
        while self._log and self._log[0].at + self._length <= now:
            self.used -= self._log.popleft().seconds
        if not self._log:
            self.used = 0.0

    def add(self, start: _Start) -> None:
        self._log.append(start)
        self.used += start.seconds

    def correct(self, start: _Start, seconds: float, now: float) -> None:
        """A start in here, or one that has left, used so much more."""
        if start.at + self._length > now:
            self.used += seconds

    def fits(self, seconds: float) -> bool:
        """Whether a record of so many seconds may start; one alone always may."""
        return not self._log or self.used + seconds <= self.most

    def fits_at(self, seconds: float) -> float:
        """When it will fit."""
        earliest, used, left = -math.inf, self.used, len(self._log)
        for start in self._log:
            if not left or used + seconds <= self.most:
                break
            earliest = start.at + self._length
            used, left = used - start.seconds, left - 1
        return earliest


class _Reserved(Struct):
    """A batch in flight: what was reserved for each of its records, and the rate then."""

    start: _Start
    lane: str
    records: int
    each: float | None
    rate: float


class ChargeLimiter:
    """Lets records start that are charged `rate` request units per second together; None is no limit.

    A start reserves the estimated charge of its lane, and `settle` replaces it by the real one. Two rules hold at once,
    in seconds of budget (charge / rate), so that what was used before a change of the rate keeps its share of the time:

    - *Bound*: the batches started in any half-open `WINDOW`, settled or reserved, use at most WINDOW seconds. So the
      charges of a window exceed `WINDOW * rate` only by what the batches in flight at its last start were charged above
      their estimates, and by what batches were charged of which nothing was reserved: their lane had charged nothing. A single record that is dearer than a whole window starts alone.
    - *Pace*: one second has at most `IN_ONE_SECOND` seconds of budget. What was used is paid back at the rate before more may start. A charge above its estimate is a debt, also
      if its answer comes after the window.

    Times are seconds of a monotonic clock. While nobody knows a charge, one record starts and its answer is awaited.
    """

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate: float | None = None
        self._windows = (_Window(WINDOW, WINDOW), _Window(1.0, IN_ONE_SECOND))
        self._paid_until = now - SLOT  # a virtual clock: what was used is paid when it equals now
        self._latest = now
        self._reserved: dict[int, _Reserved] = {}
        self._estimates: dict[str, float] = {}
        self._trials = 0  # in flight
        self.set_rate(rate, now)

    @property
    def rate(self) -> float | None:
        """Request units per second; None is no limit."""
        return self._rate

    @property
    def records_per_second(self) -> float | None:
        """What the rate is worth by the dearest estimate; None without a limit or without a charge so far."""
        dearest = max(self._estimates.values(), default=0.0)
        return None if self._rate is None or not dearest else self._rate / dearest

    def set_rate(self, rate: float | None, now: float) -> None:
        """Changes the rate from `now` on. Raises ValueError unless it is positive and finite, or None.

        A debt stays the same number of request units.
        """
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise ValueError(
                f"rate is {rate!r}; accepted are positive numbers of request units per second, or None"
            )
        now = self._advance(now)
        if rate is not None and self._rate is not None and self._paid_until > now:
            self._paid_until = now + (self._paid_until - now) * self._rate / rate
        self._rate = rate

    def expect_nothing(self, lane: str) -> None:
        """Until a record of this lane is charged, any number of them starts: its records may only be of use together."""
        self._estimates.setdefault(lane, 0.0)

    def affordable(self, lane: str, now: float) -> int:
        """How many records of a lane may start at `now`. Call `start` with those that do before asking again."""
        if self._rate is None:
            return UNLIMITED
        now = self._advance(now)
        estimate = self._estimate(lane)
        if estimate == 0.0:  # a sink that charges nothing
            return UNLIMITED
        if now < self._paid_until + SLOT:
            return 0
        if estimate is None:
            return int(not self._trials and all(window.fits(TRIAL) for window in self._windows))
        seconds = estimate / self._rate
        if not all(window.fits(seconds) for window in self._windows):
            return 0
        room = min(window.most - window.used for window in self._windows)
        return max(1, int(min(now - self._paid_until, room) / seconds))

    def start(self, batch: int, lane: str, records: int, now: float) -> None:
        """Records of a batch start, at most as many as are affordable. `settle` must follow."""
        if self._rate is None:
            return
        now = self._advance(now)
        estimate = self._estimate(lane)
        seconds = TRIAL if estimate is None else records * estimate / self._rate
        start = _Start(now, seconds)
        self._reserved[batch] = _Reserved(start, lane, records, estimate, self._rate)
        self._trials += estimate is None
        for window in self._windows:
            window.add(start)
        self._paid_until += seconds

    def awaits(self, batch: int) -> bool:
        """Whether `settle` must be called for this batch; not for one that started without a limit."""
        return batch in self._reserved

    def settle(
        self,
        batch: int,
        charges: Iterable[float | None],
        now: float,
        *,
        served: Sequence[float] | None = None,
    ) -> None:
        """The answers of a batch came. A charge that is None is unknown, and what was reserved for it counts.

        `served` are the charges of the records that were not refused, from which estimates are learned; None means all.
        """
        reserved = self._reserved.pop(batch)
        known = [charge for charge in charges if charge is not None]
        learned = known if served is None else served
        if learned:
            self._learn(reserved.lane, sum(learned) / len(learned))
        self._trials -= reserved.each is None
        self._advance(now)
        if reserved.each is None:
            units = reserved.start.seconds * reserved.rate
            unknown = 0.0 if known else units
        else:
            units = reserved.records * reserved.each
            unknown = (reserved.records - len(known)) * reserved.each
        difference = sum(known) + unknown - units
        # Too much reserved is given back as it was taken; too little is paid at the present rate.
        seconds = difference / (reserved.rate if difference < 0 or self._rate is None else self._rate)
        reserved.start.seconds += seconds
        self._paid_until += seconds
        for window in self._windows:
            window.correct(reserved.start, seconds, self._latest)

    def charge(self, units: float, now: float) -> None:
        """A write was charged that did not ask before: what starts next pays it back."""
        if self._rate is None or not units:
            return
        now = self._advance(now)
        start = _Start(now, units / self._rate)
        for window in self._windows:
            window.add(start)
        self._paid_until += start.seconds

    def next_at(self, lane: str, now: float) -> float:
        """The earliest time at which a further record of a lane may start: `now` if it may already; infinite while an answer
        is awaited.
        """
        if self._rate is None:
            return now
        now = self._advance(now)
        estimate = self._estimate(lane)
        if estimate == 0.0:
            return now
        if estimate is None and self._trials:
            return math.inf
        seconds = TRIAL if estimate is None else estimate / self._rate
        return max(now, self._paid_until + SLOT, *(window.fits_at(seconds) for window in self._windows))

    def _estimate(self, lane: str) -> float | None:
        """Request units of a record; of a lane without answers as in the dearest one."""
        known = self._estimates.get(lane)
        return max(self._estimates.values(), default=None) if known is None else known

    def _learn(self, lane: str, charge: float) -> None:
        known = self._estimates.get(lane)
        is_higher = known is None or charge >= known
        self._estimates[lane] = charge if is_higher else known + DECAY * (charge - known)  # type: ignore[operator]

    def _advance(self, now: float) -> float:
        """Forgets the starts that left the window, and what idleness saved too much."""
        now = self._latest = max(now, self._latest)
        for window in self._windows:
            window.advance(now)
        self._paid_until = max(self._paid_until, now - SAVED)
        return now
