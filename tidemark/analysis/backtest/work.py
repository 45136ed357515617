"""One target's share of a backtest, from its readings to scores: the same function for Spark and for one machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import msgspec
import numpy as np
from msgspec import Struct

from scaling.config.policy import Policy, PolicySpec
from tidemark.analysis.backtest.candidates.grid import Rules
from tidemark.analysis.backtest.replay.fleet import Model
from tidemark.analysis.backtest.replay.history import (
    History,
    HistoryError,
    Reading,
    estimate_service_rate,
    from_arrivals,
    from_backlog,
)
from tidemark.analysis.backtest.replay.load import Load, Waiting
from tidemark.analysis.backtest.replay.score import Blocks, Row, scores
from tidemark.analysis.backtest.replay.simulate import Trajectory, simulate, starting_instances
from tidemark.analysis.simulation.waits import Series

HOUR, DAY = 3600.0, 86_400.0

DAYS_FOR_DAYS = 8
"""Days of held-out history from which on blocks are days instead of hours: days differ less by the time of day."""

PLOTTED = 1500
"""Points of a plotted line: more than a screen has pixels for."""


class Settings(Struct, frozen=True):
    """What all targets share."""

    rules: Rules
    model: Model
    estimate_rate: bool = False


class Prepared(Struct, frozen=True):
    """A target ready to replay: its history, the model with its own service rate, and the metric that is the queue."""

    history: History
    model: Model
    metric: str
    rules: Rules


def prepare(
    target: str, readings: Sequence[Reading], settings: Settings, *, metric: str, interval: float
) -> Prepared:
    """Arrivals, recorded or recovered, and the service rate, given or estimated. Raises HistoryError.

    Without arrivals the bins are `interval` wide, the time between two collections while it was recorded.
    """
    rules, model = settings.rules, settings.model
    counts = [(r.at, r.arrivals) for r in readings if r.arrivals is not None]
    seen = [r for r in readings if r.backlog is not None]
    if counts:
        history = from_arrivals(target, counts)
        ran = {r.at: r.instances for r in readings if r.arrivals is not None}
        history = msgspec.structs.replace(history, instances=ran[history.start])
        if settings.estimate_rate:
            estimate = estimate_service_rate(target, history, seen)
            model = msgspec.structs.replace(model, service_rate=estimate.rate)
            history = msgspec.structs.replace(history, notes=(f"estimated from the history: {estimate}",))
        first = next((o for o in sorted(seen, key=lambda o: o.at) if o.at >= history.start), None)
        if first is not None and first.at < history.start + max(history.step, interval):
            history = msgspec.structs.replace(
                history, backlog=first.backlog or 0.0, instances=first.instances
            )
        return Prepared(history, model, metric, rules)
    if not seen:
        raise HistoryError(f"{target}: the history is empty; readings with arrivals or a backlog are needed")
    if settings.estimate_rate:
        raise HistoryError(
            f"{target}: service_rate = 'estimate' needs arrivals as well as backlogs; give it in messages per second"
        )
    history = from_backlog(
        target, seen, step=interval, service_rate=model.service_rate, idle_utilization=rules.idle_utilization
    )
    return Prepared(history, model, metric, rules)


class Replayer:
    """Replays one target's history; what does not depend on the candidate is computed once."""

    def __init__(self, prepared: Prepared) -> None:
        self.history, self.model = prepared.history, prepared.model
        self._metric, self._rules = prepared.metric, prepared.rules
        bins = round(len(self.history.arrivals) * (1.0 - self._rules.holdout))
        self.split = self.history.start + bins * self.history.step  # on the edge of a bin
        self._loads: dict[float, tuple[Load, Waiting]] = {}

    def load(self, spec: PolicySpec) -> tuple[Load, Waiting]:
        interval = spec.metrics[self._metric].window.interval
        if interval not in self._loads:
            load = Load(self.history, interval)
            self._loads[interval] = load, Waiting(load, self.model.slo)
        return self._loads[interval]

    def run(self, spec: PolicySpec) -> Trajectory:
        load, _ = self.load(spec)
        policy = Policy(msgspec.structs.replace(spec, target=self.history.target))
        initial = self.history.instances
        if initial is None:
            initial = self._rules.initial
        if initial is None:
            initial = starting_instances(load, self.model)
        return simulate(load, policy, self.model, metric=self._metric, initial=initial)

    def rows(self, candidates: Sequence[tuple[str, PolicySpec]]) -> list[Row]:
        """Scores of the candidates over both parts of the history, in the order given."""
        history = self.history
        edges = (history.start, self.split, history.end)
        rows: list[Row] = []
        for name, spec in candidates:
            load, waiting = self.load(spec)
            first, second = scores(load, waiting, self.run(spec), self.model, edges)
            rows.append(Row(history.target, name, "training", first))
            rows.append(Row(history.target, name, "held_out", second))
        return rows


def decisions(begin: float, end: float, spec: PolicySpec, metric: str) -> int:
    """Ticks of a policy from one time to another, in seconds."""
    return int((end - begin) // spec.metrics[metric].window.interval) + 1


class Comparison(Struct, frozen=True):
    """The baseline and the recommended candidate of one target, side by side. `series` only where asked for; `unknown` of the
    history's `bins` have no count.
    """

    target: str
    begin: float
    end: float
    service_rate: float
    baseline: Blocks
    recommended: Blocks
    split: float
    series: tuple[Series, Series] | None = None
    notes: tuple[str, ...] = ()
    bins: int = 0
    unknown: int = 0


class Comparing(Struct, frozen=True):
    """Compare the running policy with the recommended one."""

    baseline: PolicySpec
    recommended: PolicySpec
    plot: bool


def compare(replayer: Replayer, work: Comparing) -> Comparison:
    """Replays both again, and cuts the held-out part into days or hours (the last one may be shorter)."""
    history = replayer.history
    block = DAY if history.end - replayer.split >= DAYS_FOR_DAYS * DAY else HOUR
    runs = [(spec, replayer.run(spec)) for spec in (work.baseline, work.recommended)]
    theirs, ours = (_blocks(replayer, spec, run, block) for spec, run in runs)
    series = [_series(replayer.load(spec)[0], run) for spec, run in runs] if work.plot else None
    drawn = (series[0], series[1]) if series else None
    target, begin, end, rate = history.target, history.start, history.end, replayer.model.service_rate
    bins = len(history.arrivals), sum(map(isnan, history.arrivals))
    return Comparison(target, begin, end, rate, theirs, ours, replayer.split, drawn, history.notes, *bins)


def _blocks(replayer: Replayer, spec: PolicySpec, run: Trajectory, block: float) -> Blocks:
    load, waiting = replayer.load(spec)
    end = replayer.history.end
    edges = [replayer.split]
    while edges[-1] + block < end - 1e-6:
        edges.append(edges[-1] + block)
    edges.append(end)
    blocks = [s for s in scores(load, waiting, run, replayer.model, edges) if s.hours > 0]
    return Blocks([s.late for s in blocks], [s.cost for s in blocks])


def _series(load: Load, run: Trajectory) -> Series:
    steps = len(load.arrivals)
    width = max(-(-steps // PLOTTED), 1)
    starts = range(0, steps, width)
    billed = np.array([count for _, count in run.billed])
    since = np.array([at for at, _ in run.billed])
    times = [load.start + first * load.step for first in starts]
    index = np.maximum(np.searchsorted(since, np.array(times), side="right") - 1, 0)
    return Series(
        times,
        [max(load.arrivals[first : first + width]) / load.step for first in starts],
        [max(run.backlog[first + 1 : first + width + 1]) for first in starts],
        [int(count) for count in billed[index]],
    )
