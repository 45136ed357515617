"""A history replayed under one policy: the product's own functions decide, a queue answers. Pure.

Each tick of the collector goes through `absorb`, `decide` and `advance`, each effect through `record_effect`, as in
`scaling.service.autoscaler`. Ticks whose decision is known beforehand (`quiet`) are not decided; that changes no action.
"""

from __future__ import annotations

from math import ceil, inf, isnan

import msgspec
from msgspec import Struct

from scaling.config.policy import Policy
from scaling.decision.pending_action import being_carried_out, record_effect
from scaling.decision.transitions import RECOMMENDATIONS_KEPT
from scaling.model import (
    Capacity,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Recommendation,
    ScaleAction,
    TargetState,
)
from scaling.window import Window
from tidemark.analysis.backtest.replay.fleet import Fleet, Model
from tidemark.analysis.backtest.replay.history import HistoryError
from tidemark.analysis.backtest.replay.load import Load
from tidemark.analysis.backtest.replay.quiet import Quiet, quiet
from tidemark.analysis.simulation.driving import applied, evaluate

FIRST_CHUNK, LONGEST_CHUNK = 16, 512
"""Ticks looked ahead while no rule asks for a change: few after an action, more the longer it is quiet."""


class Change(Struct, frozen=True):
    """One change of capacity that was carried out, by the time it was decided and the time of its effect."""

    decided_at: float
    at: float
    from_capacity: int
    to_capacity: int
    reason: str


class Trajectory(Struct, frozen=True):
    """What became of one history under one policy.

    `backlog` is at the start and at the end of each step of the load; `billed` are (time, instances). `decisions`
    are those that were made, all of them when every tick was asked for; `ticks` counts the reports there were.
    """

    backlog: list[float]
    billed: list[tuple[float, int]]
    changes: list[Change]
    decisions: list[Recommendation]
    ticks: int
    decided: int


def simulate(
    load: Load,
    policy: Policy,
    model: Model,
    *,
    metric: str,
    initial: int,
    every_tick: bool = False,
    keep: bool = False,
) -> Trajectory:
    """Replays the load. `metric` is the policy's metric that the queue is; others are taken from the history.

    Every tick is decided with `every_tick`; `keep` keeps the decisions. Raises HistoryError when the policy reads a
    metric the history does not have, or would give up its actions before they have their effect.
    """
    _check(load, policy, model, metric)
    run = _Run(load, policy, model, metric, initial, keep=keep)
    run.replay(every_tick=every_tick)
    return Trajectory(run.fleet.backlog, run.fleet.billed, run.changes, run.decisions, run.ticks, run.decided)


def _check(load: Load, policy: Policy, model: Model, metric: str) -> None:
    have = {metric, *load.history.metrics}
    for name in policy.windows:
        if name not in have:
            raise HistoryError(
                f"{policy.target}: its policy reads the metric '{name}', which the history does not have "
                f"({', '.join(sorted(have))}); record it, or leave its rules out of the grid"
            )
    if model.scaling_time >= policy.spec.action_ttl:
        raise HistoryError(
            f"{policy.target}: scaling_time is {model.scaling_time:g} s, but action_ttl gives an action up after "
            f"{policy.spec.action_ttl:g} s"
        )


def starting_instances(load: Load, model: Model) -> int:
    """What the arrivals of the first known hour need on average; for histories that do not tell."""
    count = min(ceil(3600.0 / load.step), len(load.arrivals))
    known = sum(load.known[:count])
    mean = sum(load.arrivals[:count]) / (known * load.step) if known else 0.0
    return max(ceil(mean / model.service_rate), 1)


class _Run:
    """One replay in the making. `tick` is always the next to come; all before it are done."""

    def __init__(
        self, load: Load, policy: Policy, model: Model, metric: str, initial: int, *, keep: bool
    ) -> None:
        self.load = load
        # A policy in dry-run is replayed as if it were not: the question is what it would do.
        self.policy = (
            Policy(msgspec.structs.replace(policy.spec, dry_run=False)) if policy.spec.dry_run else policy
        )
        self.model = model
        self.metric = metric
        self.fleet = Fleet(initial, load.history.backlog, model, start=load.start, step=load.step)
        self.state = TargetState()
        self.windows: dict[str, Window] = {}
        self.others = {name: load.other(name) for name in policy.windows if name != metric}
        self.per_instance = policy.spec.metrics[metric].per_instance
        self.moving: tuple[float, ScaleAction] | None = None  # an order, and the time of its effect
        self.tick = 0
        self.samples: list[float] = []  # of the reported ticks since the last gap
        self.skipped = 0  # newest samples that windows and state do not know yet
        self.changes: list[Change] = []
        self.decisions: list[Recommendation] = []
        self.keep = keep
        self.ticks = self.decided = 0

    def replay(self, *, every_tick: bool) -> None:
        foretold = None if every_tick else quiet(self.policy, self.metric)
        chunk = FIRST_CHUNK
        while self.tick <= self.load.ticks:
            if self.moving is not None and self.moving[0] <= self.load.time(self.tick):
                self._settle(*self.moving)
            stop = 0 if foretold is None else self._ahead(foretold, chunk)
            if foretold is None or stop < self.tick:
                self._serve(self.tick)
                self._report()
            elif self._skip(foretold, stop):
                chunk = FIRST_CHUNK
            else:
                chunk = min(chunk * 2, LONGEST_CHUNK)

    # Skipping

    def _ahead(self, foretold: Quiet, chunk: int) -> int:
        """The last tick that can be looked at together with the next one; below the next one if not even that."""
        tick, load = self.tick, self.load
        run = load.reported[tick]
        last = self.state.last
        if run < foretold.length + 1 or last is None or last.proposed is None:
            return tick - 1  # windows are not complete, or were not at the last decision
        stop = min(tick + chunk - 1, load.ticks, tick + load.left_in_run(tick))
        if self.moving is not None:  # the tick that finds the effect is looked at by itself
            stop = min(stop, self._tick_at(self.moving[0]) - 1)
        if self.fleet.next_change < inf:  # steps with another service rate cannot be taken back
            stop = min(stop, max(self._tick_at(self.fleet.next_change) - 1, tick))
        return stop

    def _tick_at(self, time: float) -> int:
        """The first tick at or after a moment."""
        tick = ceil((time - self.load.start) / self.load.interval)
        return tick if self.load.time(tick) >= time else tick + 1

    def _skip(self, foretold: Quiet, stop: int) -> bool:
        """Goes on to tick `stop`, or to the first before it that has to be decided: then true."""
        tick, before = self.tick, foretold.length - 1
        self._serve(stop)
        samples = self._samples(tick, stop)
        values = self.samples[len(self.samples) - before :] + samples
        asked = foretold.first(values, before, tick - before, self.load, self.state, self.fleet.current)
        count = len(samples) if asked is None else asked - before
        self.samples += samples[:count]
        self.skipped += count
        self.tick += count
        self.ticks += count
        if asked is None:
            return False
        self.fleet.rewind(self.tick * self.load.per_tick)
        self._report()
        return True

    def _catch_up(self) -> None:
        """Windows and state as if the skipped ticks had been decided: all of them holds that proposed what there was."""
        count, self.skipped = self.skipped, 0
        if not count:
            return
        load, last, policy = self.load, self.tick - 1, self.policy
        while not load.reported[last]:
            last -= 1
        spec = policy.windows[self.metric]
        kept = min(len(self.samples), ceil(spec.span / spec.interval) + 1)
        times = [load.time(tick) for tick in range(last - kept + 1, last + 1)]
        self.windows = {self.metric: Window(times, self.samples[-kept:])}
        self.state = msgspec.structs.replace(self.state, evaluated=(load.time(last),))
        if policy.memory > 0:
            cutoff = load.time(last) - policy.memory
            held = ((load.time(tick), self.fleet.current) for tick in range(last - count + 1, last + 1))
            known = (*self.state.recommendations, *held)
            recent = tuple(r for r in known[-RECOMMENDATIONS_KEPT:] if r[0] > cutoff)
            self.state = msgspec.structs.replace(self.state, recommendations=recent)

    # One tick

    def _serve(self, tick: int) -> None:
        """The queue goes on to a tick."""
        load, fleet = self.load, self.fleet
        first, last = len(fleet.backlog) - 1, tick * load.per_tick
        if load.whole:
            fleet.serve(load.arrivals[first:last])
            return
        for step in range(first, last):
            if load.known[step]:
                fleet.serve(load.arrivals[step : step + 1])
            else:
                fleet.skip_gap()

    def _samples(self, first: int, last: int) -> list[float]:
        """What the collector reads at ticks `first` to `last`."""
        per_tick, backlog = self.load.per_tick, self.fleet.backlog
        samples = backlog[first * per_tick : last * per_tick + 1 : per_tick]
        if self.model.service_time:
            samples = [
                value + self._processed(tick * per_tick) for tick, value in enumerate(samples, start=first)
            ]
        if self.per_instance:
            samples = [value / max(self.fleet.current, 1) for value in samples]
        return samples

    def _processed(self, step: int) -> float:
        """Messages in the hands of instances after a step: throughput times the time each takes (Little's law)."""
        if step == 0:
            return 0.0
        backlog, load = self.fleet.backlog, self.load
        served = backlog[step - 1] + load.arrivals[step - 1] - backlog[step]
        return served / load.step * self.model.service_time

    def _report(self) -> None:
        """The tick itself: a report and its decision, where there is one."""
        run = self.load.reported[self.tick]
        if run:
            self._catch_up()
            if run == 1:
                self.samples.clear()
            self.samples += self._samples(self.tick, self.tick)
            self._decide(self.load.time(self.tick))
            self.ticks += 1
            self.decided += 1
        self.tick += 1

    def _settle(self, at: float, action: ScaleAction) -> None:
        """The effect of an action is there, and recorded."""
        self._catch_up()  # what was skipped was proposed at the capacity of before
        before, after = action.from_capacity, action.to_capacity
        self.fleet.arrive(after)
        self.state = record_effect(self.state, applied(action, at))
        self.changes.append(Change(action.decided_at, at, before, after, action.reason))
        self.moving = None

    def _decide(self, now: float) -> None:
        policy = self.policy
        known: list[MetricSample] = [MetricSample(self.metric, now, self.samples[-1])]
        failed: list[MetricFailure] = []
        for name, values in self.others.items():
            if isnan(values[self.tick]):
                failed.append(MetricFailure(name, now, "not in the history"))
            else:
                known.append(MetricSample(name, now, values[self.tick]))
        capacity = Capacity(self.fleet.current, now)
        report = MetricsReport(policy.target, now, tuple(known), tuple(failed), capacity)
        self.windows, self.state, made, action = evaluate(policy, self.windows, self.state, report)
        if self.keep:
            self.decisions.append(made)
        if action is not None:
            self.moving = (self.fleet.order(now, action.to_capacity), action)
            self.state = being_carried_out(self.state, now=now, until=action.expires_at)
