"""A recorded load trace, scaled and compressed in time. Pure but for reading the file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
WORLD_CUP = DATA / "wc98-1998-06-15.csv"


class Trace:
    """Arrivals over `duration` seconds with a mean of `mean_rate` per second and the trace's own shape.

    The bins' totals are kept in proportion; arrivals are spread evenly within a bin. `due(t)` is the number
    of messages that must have been sent by `t`, so whoever sends them can never drift.
    """

    def __init__(self, arrivals: Sequence[float], *, duration: float, mean_rate: float) -> None:
        """Raises ValueError for an empty trace, or one without arrivals."""
        total = sum(arrivals)
        if not arrivals or total <= 0:
            raise ValueError(f"a trace needs arrivals; found {len(arrivals)} bins with {total:g} in all")
        self.duration = duration
        self.total = round(mean_rate * duration)
        self._width = duration / len(arrivals)
        self._cumulative = [0.0, *accumulate(value * self.total / total for value in arrivals)]

    def due(self, elapsed: float) -> int:
        """Messages due `elapsed` seconds after the start."""
        if elapsed >= self.duration:
            return self.total
        if elapsed <= 0:
            return 0
        position = elapsed / self._width
        index = int(position)
        low, high = self._cumulative[index], self._cumulative[index + 1]
        return int(low + (high - low) * (position - index))

    def rate(self, elapsed: float) -> float:
        """Arrivals per second at `elapsed`."""
        if not 0 <= elapsed < self.duration:
            return 0.0
        index = int(elapsed / self._width)
        return (self._cumulative[index + 1] - self._cumulative[index]) / self._width


def read_trace(path: Path, *, duration: float, mean_rate: float) -> Trace:
    """Reads a CSV with a column `arrivals`. Raises ValueError naming the file and what is accepted."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if "arrivals" not in (reader.fieldnames or []):
            raise ValueError(f"{path}: found columns {reader.fieldnames}; 't' and 'arrivals' are accepted")
        try:
            arrivals = [float(row["arrivals"]) for row in reader]
        except ValueError as error:
            raise ValueError(f"{path}: a value of 'arrivals' is not a number: {error}") from None
    return Trace(arrivals, duration=duration, mean_rate=mean_rate)
