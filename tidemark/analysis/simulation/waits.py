"""How long the messages of a replay waited, and how a replay looks over time. Pure.

Waits are by the second: all messages of a second wait as long as its last one. Gaps of the load do not count.
"""

from __future__ import annotations

from math import inf

import numpy as np
from msgspec import Struct

from tidemark.analysis.simulation.world import PIECE, Run

POINTS = 1200
"""Points of a drawn line: as many as a page shows."""


class Waits(Struct, frozen=True):
    """Seconds that the slowest message waited, and the slowest but for one in a hundred. Infinite: longer than the replay
    lasted, which is half an hour after the last arrival.
    """

    longest: float
    slow: float


def waits_of(run: Run, slow: float = 0.99) -> Waits:
    by_wait = np.zeros(1)  # messages that waited so many seconds; the last are those never served
    for first in range(0, run.length, PIECE):
        found = _waits(run, first)
        size = max(len(found), len(by_wait))
        by_wait = np.pad(by_wait, (0, size - len(by_wait))) + np.pad(found, (0, size - len(found)))
    longer = np.cumsum(by_wait[::-1])[::-1]  # messages that waited so long or longer
    allowed = (1.0 - slow) * run.arrived[run.length]
    waits = np.flatnonzero(by_wait)
    ends = (int(waits[-1]) if len(waits) else 0, int(np.flatnonzero(longer > allowed)[-1:].sum()))
    longest, slowest = (inf if each > run.end else float(each) for each in ends)
    return Waits(longest, slowest)


def _waits(run: Run, first: int) -> np.ndarray:
    """How many messages of a piece of the load waited 1, 2, ... seconds; more than `run.end` stands for never served."""
    last = min(first + PIECE, run.length)
    there = run.arrived[first + 1 : last + 1]
    waiting = np.flatnonzero(run.begun[first + 1 : last + 1] < there)
    count = there[waiting] - run.arrived[first + waiting]
    begun = np.searchsorted(run.begun, there[waiting])
    waits = np.where(begun > run.end, run.end + 1, begun - 1 - (first + waiting))
    return np.asarray(np.bincount(waits, weights=count, minlength=1))


class Series(Struct, frozen=True):
    """A replay over time, in at most `POINTS` points: seconds by the clock, messages that arrived per second (mean),
    messages that waited (highest) and instances there were (highest).
    """

    times: list[float]
    arrivals: list[float]
    waiting: list[float]
    instances: list[int]


NO_SERIES = Series([], [], [], [])


def series_of(run: Run) -> Series:
    width = max(-(-run.length // POINTS), 60)
    edges = np.arange(0, run.length, width)
    ends = np.minimum(edges + width, run.length)
    waiting = [
        float((run.arrived[begin:end] - run.begun[begin:end]).max())
        for begin, end in zip(edges.tolist(), ends.tolist(), strict=True)
    ]
    rates = (run.arrived[ends] - run.arrived[edges]) / (ends - edges)
    begins = np.array([begin for begin, _, _ in run.spans])
    ahead = np.array([offset for _, _, offset in run.spans])
    times = edges + ahead[np.searchsorted(begins, edges, side="right") - 1]
    return Series(
        times.astype(float).tolist(), rates.tolist(), waiting, _instances(run, edges.tolist(), ends.tolist())
    )


def _instances(run: Run, edges: list[int], ends: list[int]) -> list[int]:
    """The most instances there were in each time range."""
    at = np.array([time for time, _ in run.totals])
    counts = np.array([count for _, count in run.totals])
    first = np.searchsorted(at, edges, side="right") - 1
    last = np.searchsorted(at, ends, side="left")
    return [int(counts[low:high].max()) for low, high in zip(first.tolist(), last.tolist(), strict=True)]
