"""The model of a queue and its instances, by the second: deterministic, first in, first out. Pure.

A busy instance serves `service_rate` messages a second and processes up to `concurrency` at once, so that a message takes
concurrency / service_rate seconds at least. An instance asked for at t is billed from t and serves from t + `start_up`.
A scale-in takes effect at once; starting instances go first, the newest before the others. `active` counts messages that
wait or are processed, as Service Bus does. The wait of a message ends when its processing starts. After the last arrival
the queue is served for another half hour, unbilled, so that every wait is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from msgspec import Struct

AFTER = 1800
PIECE = 1 << 22
"""Seconds of load that are evaluated at once, so that a year fits into memory."""
AHEAD = 900
"""Seconds for which the queue is served at once, as if the number of instances stayed. Where it changes, the seconds after the
change are computed again.
"""
SECONDS = np.arange(1.0, AHEAD + 1.0)

FLAP = 1800.0
"""Seconds within which a change back counts as a flap."""


@dataclass(frozen=True)
class Model:
    """`drift` gives the service rate at a time, as a share of `service_rate`, and a message takes longer by as much; None
    leaves both as they are.
    """

    service_rate: float = 10.0
    concurrency: float = 16.0
    start_up: int = 90
    wait: int = 60
    minimum: int = 1
    maximum: int = 100
    drift: Callable[[int], float] | None = None


class Seen(Struct, frozen=True):
    """One observation. `arrived` and `completed` are counters."""

    t: float
    active: float
    waiting: float
    ready: int
    total: int
    arrived: float
    completed: float


class Policy(Protocol):
    """Decides every `interval` seconds; `see` returns the capacity to have."""

    interval: int

    def see(self, seen: Seen) -> int: ...


@dataclass
class Outcome:
    """What became of one load under one policy. Shares are of 1; `totals` are (time, instances) at each change."""

    hours: float
    late: float
    instance_hours: float
    actions: int
    flaps: int
    totals: list[tuple[int, int]] = field(repr=False)

    @property
    def actions_per_hour(self) -> float:
        return self.actions / self.hours

    @property
    def flaps_per_hour(self) -> float:
        return self.flaps / self.hours


class Fleet:
    """Instances that serve, and `starting` ones: [ready at, count], oldest first."""

    def __init__(self, count: int, start_up: int) -> None:
        self.total = self.ready = count
        self.starting: list[list[int]] = []
        self._start_up = start_up

    @property
    def next_ready(self) -> int | None:
        return self.starting[0][0] if self.starting else None

    def start_due(self, now: int) -> None:
        while self.starting and self.starting[0][0] <= now:
            self.ready += self.starting.pop(0)[1]

    def scale_to(self, wanted: int, now: int) -> None:
        if wanted > self.total:
            self.starting.append([now + self._start_up, wanted - self.total])
        excess = self.total - wanted
        while excess > 0 and self.starting:
            newest = self.starting[-1]
            removed = min(excess, newest[1])
            newest[1] -= removed
            excess -= removed
            if not newest[1]:
                self.starting.pop()
        self.ready -= max(excess, 0)
        self.total = wanted


class Run:
    """One replay, beginning with `first` instances. `parts` are (second of the load, second by the clock) where a part without
    a gap begins: between two parts the clock goes on, and nothing else does. `arrived` and `begun` are counters of messages by
    the second.
    """

    def __init__(
        self,
        arrivals: np.ndarray,
        policy: Policy,
        model: Model,
        first: int,
        parts: Sequence[tuple[int, int]] = ((0, 0),),
    ) -> None:
        self.length = len(arrivals)
        self.end = self.length + AFTER
        self.arrived = np.zeros(self.end + 1)
        np.cumsum(arrivals, out=self.arrived[1 : self.length + 1])
        self.arrived[self.length + 1 :] = self.arrived[self.length]
        self.begun = np.zeros(self.end + 1)
        self.policy, self.model = policy, model
        ends = [begin for begin, _ in parts[1:]] + [self.end]
        self.spans = [(begin, end, clock - begin) for (begin, clock), end in zip(parts, ends, strict=True)]
        self.fleet = Fleet(first, model.start_up)
        self.totals = [(0, first)]
        self.done = 0.0
        self.served = 0  # `begun` is computed up to this second

    def replay(self) -> Run:
        interval = self.policy.interval
        for begin, end, clock_ahead in self.spans:
            for start in range(begin, end, interval):
                if start < self.length:
                    self._decide(start, start + clock_ahead)
                last = min(start + interval, end)
                while self.served < last:
                    self._serve(last)
        return self

    def _decide(self, now: int, clock: int) -> None:
        self.fleet.start_due(now)
        wanted = self._wanted(self._observed(now, clock))
        if wanted != self.fleet.total:
            ready = self.fleet.ready
            self.fleet.scale_to(wanted, now)
            # Served ahead as if nothing changed: true until the next instance is ready, or not at all with fewer there.
            changes = now if self.fleet.ready != ready else self.fleet.next_ready
            self.served = min(self.served, changes or self.end)
            self.totals.append((now, wanted))

    def _wanted(self, seen: Seen) -> int:
        return min(max(self.policy.see(seen), self.model.minimum), self.model.maximum)

    def _observed(self, now: int, clock: int) -> Seen:
        arrived, begun = self.arrived.item(now), self.begun.item(now)
        completed, fleet = self._completed(now), self.fleet
        active = max(arrived - completed, 0.0)  # completed is interpolated: off by a rounding
        return Seen(float(clock), active, arrived - begun, fleet.ready, fleet.total, arrived, completed)

    def _completed(self, now: int) -> float:
        """Messages whose processing began a service time ago."""
        before = now - self.model.concurrency / self._service_rate(now)
        if before <= 0:
            return 0.0
        whole = int(before)
        share = before - whole
        done = self.begun.item(whole) * (1.0 - share) + self.begun.item(whole + 1) * share
        self.done = max(self.done, done)  # a service that gets slower takes nothing back
        return self.done

    def _service_rate(self, now: int) -> float:
        drift = self.model.drift
        return self.model.service_rate * (1.0 if drift is None else drift(now))

    def _serve(self, end: int) -> None:
        """Computes what is begun after the second `served`: until `end`, or for as long after it as the instances stay the same.

        Since then the instances could begin so many messages, and began fewer where fewer had arrived: the least that they
        were ever ahead by, up to a second, is what they could not serve up to then.
        """
        fleet, first = self.fleet, self.served
        fleet.start_due(first)
        last = end if self.model.drift is not None else self.end
        last = min(first + AHEAD, last, fleet.next_ready or last)
        there, before = self.arrived[first + 1 : last + 1], self.begun[first]
        could = SECONDS[: last - first] * (fleet.ready * self._service_rate(first))
        behind = there - could
        least = np.minimum.accumulate(np.minimum(behind, before))
        begun = np.where(behind > least, least + could, there)
        np.minimum(begun, there, out=self.begun[first + 1 : last + 1])  # for sums are rounded
        self.served = last

    def outcome(self) -> Outcome:
        arrived, length = self.arrived, self.length
        late = sum(self._late(first) for first in range(0, length, PIECE))
        ends = [at for at, _ in self.totals[1:]] + [length]
        billed = sum(count * (end - at) for (at, count), end in zip(self.totals, ends, strict=True))
        return Outcome(
            length / 3600.0,
            float(late / arrived[length]) if arrived[length] else 0.0,
            billed / 3600.0,
            len(self.totals) - 1,
            _flaps(self.totals),
            self.totals,
        )

    def _late(self, first: int) -> float:
        """Late messages of those that arrived in the piece of the load that begins with second `first`."""
        last, wait = min(first + PIECE, self.length), self.model.wait
        arrived, in_time = self.arrived[first : last + 1], self.begun[first + 1 + wait : last + 1 + wait]
        beyond = last - first - len(in_time)
        if beyond:  # the wait is longer than the half hour after the last arrival
            in_time = np.append(in_time, np.full(beyond, self.begun[self.end]))
        late = arrived[1:] - np.maximum(arrived[:-1], in_time)
        return float(np.maximum(late, 0.0, out=late).sum())


def _flaps(totals: Sequence[tuple[int, int]]) -> int:
    """Changes in the other direction than the one before, within half an hour of it."""
    steps = [(at, after - before) for (_, before), (at, after) in pairwise(totals)]
    return sum(
        (one > 0) != (other > 0) and later - earlier < FLAP
        for (earlier, one), (later, other) in pairwise(steps)
    )
