"""A history on the clock of one policy: steps of the queue, ticks of the collector, gaps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import gcd, isnan

import numpy as np
from numpy.typing import NDArray

from tidemark.analysis.backtest.replay.history import History, HistoryError

MILLISECONDS = 1000
"""Times are laid on a grid of milliseconds, as the decision ids are."""

Floats = NDArray[np.float64]


class Load:
    """One history, cut into steps that fit both its bins and a collection interval.

    A step is the largest time that divides both. The collector ticks at `start` and after each `per_tick` steps.
    Bins coarser than a step are spread evenly over their steps. Of a step in a gap nothing is known: the queue stands
    still, the clock of waiting too, and a tick after an interval with such a step does not happen.
    """

    def __init__(self, history: History, interval: float) -> None:
        width, tick = round(history.step * MILLISECONDS), round(interval * MILLISECONDS)
        if width < 1 or tick < 1:
            raise HistoryError(
                f"{history.target}: bins of {history.step:g} s and a collection every {interval:g} s; "
                "both must be a millisecond or more"
            )
        step = gcd(width, tick)
        pieces = width // step
        self.history = history
        self.start = history.start
        self.interval = interval
        self.step = step / MILLISECONDS
        self.per_tick = tick // step
        spread = [value / pieces for value in history.arrivals for _ in range(pieces)]
        self.ticks = len(spread) // self.per_tick
        del spread[self.ticks * self.per_tick :]  # of the last interval not even its end is known
        self.known = [not isnan(value) for value in spread]
        self.arrivals = [value if known else 0.0 for value, known in zip(spread, self.known, strict=True)]
        if not any(self.known) or not self.ticks:
            raise HistoryError(
                f"{history.target}: the history knows {sum(self.known) * self.step:g} s of load; "
                f"at least one collection interval of {interval:g} s is needed"
            )
        self.whole = all(self.known)
        self.reported = self._reported()

    def _reported(self) -> list[int]:
        """By tick: how many ticks in a row, this one included, were reported; 0 where this one was not."""
        runs, per_tick = [1], self.per_tick
        for tick in range(1, self.ticks + 1):
            whole = all(self.known[(tick - 1) * per_tick : tick * per_tick])
            runs.append(runs[-1] + 1 if whole else 0)
        return runs

    def left_in_run(self, tick: int) -> int:
        """How many ticks follow `tick` without a gap. `tick` must have been reported."""
        if self.whole:
            return self.ticks - tick
        try:
            return self.reported.index(0, tick) - tick - 1
        except ValueError:
            return self.ticks - tick

    def time(self, tick: int) -> float:
        return self.start + tick * self.interval

    def other(self, metric: str) -> list[float]:
        """A recorded metric's value at each tick: the newest whole bin's, at the first tick the first bin's."""
        values = self.history.metrics[metric]
        pieces = round(self.history.step / self.step)
        return [
            values[max(min(tick * self.per_tick // pieces, len(values)) - 1, 0)]
            for tick in range(self.ticks + 1)
        ]


class Waiting:
    """What the arrivals alone say of waiting times, shared by all candidates of a target. Times exclude gaps.

    `recent` is, at the end of each known step, how many messages have come in the last `slo` seconds: if more wait,
    the oldest has waited longer than that. `due` counts the messages that reach that age in each step.
    """

    def __init__(self, load: Load, slo: float) -> None:
        self.slo = slo
        self.step = load.step
        self.mask: NDArray[np.bool_] = np.array(load.known)
        arrivals = np.array(load.arrivals)[self.mask]
        self.ends: Floats = np.arange(len(arrivals) + 1, dtype=np.float64) * load.step
        # The backlog at the start came at the start.
        self.arrived: Floats = load.history.backlog + np.concatenate(([0.0], np.cumsum(arrivals)))
        old = np.interp(self.ends - slo, self.ends, self.arrived, left=0.0)
        self.recent: Floats = (self.arrived - old)[1:]
        self.due: Floats = np.diff(old)

    def ages(self, backlog: Floats) -> Floats:
        """Age of the oldest waiting message at the end of each known step; 0 where none waits."""
        served = self.arrived[1:] - backlog
        came = np.interp(served, self.arrived, self.ends)
        return np.where(backlog > 0.0, np.maximum(self.ends[1:] - came, 0.0), 0.0)


def steps_between(load: Load, begin: float, end: float) -> tuple[int, int]:
    """Indices of the steps that lie between two times, by their begins."""
    first = max(round((begin - load.start) / load.step), 0)
    last = min(round((end - load.start) / load.step), len(load.arrivals))
    return first, max(last, first)


def known_spans(load: Load, first: int, last: int) -> Sequence[tuple[float, float]]:
    """The known times among steps `first` to `last`, as intervals of epoch times."""
    if load.whole:
        return ((load.start + first * load.step, load.start + last * load.step),)
    runs = [list(run) for known, run in groupby(range(first, last), load.known.__getitem__) if known]
    return [(load.start + run[0] * load.step, load.start + (run[-1] + 1) * load.step) for run in runs]
