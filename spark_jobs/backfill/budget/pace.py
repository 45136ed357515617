"""How many records per second a share of request units is worth. Pure.

What a write costs is known when it is done. The dearest of the latest samples counts, so that documents of unequal
sizes keep within the share; while nothing is known, one record is written and its charge looked at.
"""

from __future__ import annotations

import math
from collections import deque

SAMPLE = 20
"""Records charged that make a sample."""
SAMPLES = 10
"""How many of the latest samples count."""
RAMP = 4.0
"""By how much the rate may grow at a time while few charges are known."""
KNOWN = 3
"""Samples after which it may grow at once."""


class Pace:
    """`hint` is the charge per record that others have seen, None when nobody has."""

    def __init__(self, hint: float | None = None) -> None:
        self._hint = hint
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._records = 0
        self._units = 0.0
        self._last = 1.0

    def observe(self, records: int, units: float) -> None:
        """So many records more were charged so much together; those refused at no charge are not among them."""
        self._records += records
        self._units += units
        if self._records >= SAMPLE or (self._records and not self._samples):
            self._samples.append(self._units / self._records)
            self._records, self._units = 0, 0.0

    @property
    def per_record(self) -> float | None:
        """Request units of a record, rather too many than too few; None while unknown."""
        return max(self._samples) if self._samples else self._hint

    def rate(self, share: float) -> float:
        """Records per second for a share of request units per second: whole ones from 1 on, rounded down.

        Where nobody knows a charge it begins at 1 and grows step by step. A charge of zero, which no service makes,
        counts as 1 unit.
        """
        if self.per_record is None:
            return 1.0
        rate = share / (self.per_record or 1.0)
        if self._hint is None and len(self._samples) < KNOWN:
            rate = min(rate, RAMP * self._last)
        self._last = max(1.0, rate)
        return float(math.floor(rate)) if rate >= 1.0 else rate
