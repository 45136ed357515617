"""The model of a queue and its instances, by the second: deterministic, first in, first out. Pure.

An instance serves `service_rate` messages a second when it is busy and holds up to `held` at once, so that a message
takes held / service_rate seconds at least. An instance asked for at t is billed from t and serves from t + `start_up`.
Fewer take effect at once; those that start go first, the newest before the others. `active` counts messages that wait
or are processed, as Service Bus does. The wait of a message ends when its processing starts. After the last arrival the
queue is served on for half an hour, unbilled, so that every wait is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from msgspec import Struct

AFTER = 1800
DAY = 86_400
PIECE = 1 << 22
"""Seconds of a load that are looked at in one go, so that a year of them fits into memory."""
AHEAD = 900
"""Seconds for which the queue is served in one go, as if no instance came or went: one that does has what is after it
worked out anew.
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
    held: float = 16.0
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
    """Decides each `interval` seconds; `see` returns the capacity to have, `miss` is told of a lost one, whose
    counters are still where the next interval begins.
    """

    interval: int

    def see(self, seen: Seen) -> int: ...

    def miss(self, seen: Seen) -> None: ...


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


@dataclass(frozen=True)
class Sight:
    """How observations reach the policy: `noise` (share by which each count is off, evenly: of the messages there, and of
    those that came and were completed since the last observation), `lost` (share of the
    observations that do not come), `age` (seconds an observation is old), `early` (seconds before an instance serves
    that it is called ready).
    """

    noise: float = 0.0
    lost: float = 0.0
    age: int = 0
    early: int = 0


@dataclass
class Counters:
    """Counters that go on by increments which are off: (as it is, as it is seen) of what arrived and was completed."""

    arrived: tuple[float, float] = (0.0, 0.0)
    completed: tuple[float, float] = (0.0, 0.0)

    def noisy(self, arrived: float, completed: float, noise: Callable[[], float]) -> tuple[float, float]:
        self.arrived = arrived, self.arrived[1] + (arrived - self.arrived[0]) * noise()
        self.completed = completed, self.completed[1] + (completed - self.completed[0]) * noise()
        return self.arrived[1], self.completed[1]


class Fleet:
    """Instances that serve, and those that start: (ready at, count), oldest first."""

    def __init__(self, count: int, start_up: int) -> None:
        self.total = self.ready = count
        self._start_up = start_up
        self._starting: list[list[int]] = []

    @property
    def next_ready(self) -> int | None:
        return self._starting[0][0] if self._starting else None

    def called_ready(self, now: int) -> int:
        """Instances that serve at a time, if nothing is changed until then."""
        if not self._starting:
            return self.ready
        return self.ready + sum(count for at, count in self._starting if at <= now)

    def come(self, now: int) -> None:
        while self._starting and self._starting[0][0] <= now:
            self.ready += self._starting.pop(0)[1]

    def ask(self, wanted: int, now: int) -> None:
        if wanted > self.total:
            self._starting.append([now + self._start_up, wanted - self.total])
        else:
            excess = self.total - wanted
            while excess and self._starting:
                newest = self._starting[-1]
                gone = min(excess, newest[1])
                newest[1] -= gone
                excess -= gone
                if not newest[1]:
                    self._starting.pop()
            self.ready -= excess
        self.total = wanted


def run(
    arrivals: np.ndarray, policy: Policy, model: Model, first: int, sight: Sight | None = None
) -> Outcome:
    """Replays one load under one policy, beginning with `first` instances."""
    return Run(arrivals, policy, model, first, sight or Sight()).replay().outcome()


class Run:
    """One replay. `parts` are (second of the load, second by the clock) where a part without a gap begins: between two
    parts the clock goes on, and nothing else does. `arrived` and `begun` are counters of messages by the second.
    """

    def __init__(
        self,
        arrivals: np.ndarray,
        policy: Policy,
        model: Model,
        first: int,
        sight: Sight,
        parts: Sequence[tuple[int, int]] = ((0, 0),),
    ) -> None:
        self.length = len(arrivals)
        self.end = self.length + AFTER
        self.arrived = np.zeros(self.end + 1)
        np.cumsum(arrivals, out=self.arrived[1 : self.length + 1])
        self.arrived[self.length + 1 :] = self.arrived[self.length]
        self.begun = np.zeros(self.end + 1)
        self.policy, self.model, self.sight, self.parts = policy, model, sight, parts
        ends = [begin for begin, _ in parts[1:]] + [self.end]
        self.spans = [(begin, end, clock - begin) for (begin, clock), end in zip(parts, ends, strict=True)]
        self.fleet = Fleet(first, model.start_up)
        self.rng = np.random.default_rng(7)
        self.totals = [(0, first)]
        self.history: list[Seen] = []
        self.counted = Counters()
        self.done = 0.0
        self.served = 0  # the second until which `begun` is worked out

    def replay(self, told: Callable[[int], None] | None = None) -> Run:
        """To the end; `told` hears of each day that is done, in seconds."""
        interval, due = self.policy.interval, 0
        for begin, end, ahead in self.spans:
            self.ahead = ahead
            for start in range(begin, end, interval):
                if start < self.length:
                    self._decide(start)
                last = min(start + interval, end)
                while self.served < last:
                    self._serve(last)
                if told is not None and start >= due:
                    told(start)
                    due += DAY
        return self

    def _decide(self, now: int) -> None:
        self.fleet.come(now)
        seen = self._seen(now)
        if self.sight.age:
            self.history.append(seen)
            lag = self.sight.age // self.policy.interval
            old = self.history[max(len(self.history) - 1 - lag, 0)]
            seen = Seen(seen.t, old.active, old.waiting, seen.ready, seen.total, old.arrived, old.completed)
        total = self.fleet.total
        if self.sight.lost and self.rng.random() < self.sight.lost:
            self.policy.miss(seen)
            return
        wanted = min(max(self.policy.see(seen), self.model.minimum), self.model.maximum)
        if wanted != total:
            ready = self.fleet.ready
            self.fleet.ask(wanted, now)
            # Served ahead as if nothing changed: true until the next instance is ready, or not at all with fewer there.
            changes = now if self.fleet.ready != ready else self.fleet.next_ready
            self.served = min(self.served, changes or self.end)
            self.totals.append((now, wanted))

    def _seen(self, now: int) -> Seen:
        arrived, begun = self.arrived.item(now), self.begun.item(now)
        completed = self._completed(now)
        active = max(arrived - completed, 0.0)  # completed is interpolated: off by a rounding
        if self.sight.noise:
            active *= self._noise()
            arrived_seen, completed_seen = self.counted.noisy(arrived, completed, self._noise)
        else:
            arrived_seen, completed_seen = arrived, completed
        fleet = self.fleet
        ready = fleet.called_ready(now + self.sight.early)
        time = float(now + self.ahead)
        return Seen(time, active, arrived - begun, ready, fleet.total, arrived_seen, completed_seen)

    def _noise(self) -> float:
        return 1.0 + self.sight.noise * (2.0 * self.rng.random() - 1.0)

    def _completed(self, now: int) -> float:
        """What was begun a service time ago."""
        before = now - self.model.held / self._service_rate(now)
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
        """Works out what is begun after the second `served`, until `end` or as long after it as the instances that are
        there then stay the same.

        What they serve since then is begun; less, where less had arrived. So the least that they were ever ahead by,
        until a second, is what they could not serve until then.
        """
        fleet, first = self.fleet, self.served
        fleet.come(first)
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
        if beyond:  # the wait is longer than the queue is served on for
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
