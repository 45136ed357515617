"""The model of a queue and its instances, by the second: deterministic, first in, first out. Pure.

An instance processes up to `concurrency` messages at once, and a message takes concurrency / service_rate seconds on average
(`times`), so that a busy instance serves `service_rate` messages a second and a new one begins `concurrency` at once. An
instance asked for at t is billed from t and serves from t + `start_up`. A scale-in takes effect at once; starting instances
go first, the newest before the others. What the removed ones process is counted as aborted; it ends as if they were there,
and until then others begin fewer. `active` counts messages that wait or are processed, as Service Bus does. The wait of a
message ends when its processing starts. After the last arrival the queue is served for another half hour, unbilled, so that
every wait is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import mul
from typing import Protocol

import numpy as np
from msgspec import Struct

from tidemark.analysis.simulation.times import FIXED, NEAR, Completion, Times, completion

AFTER = 1800
PIECE = 1 << 22
"""Seconds of load that are evaluated at once, so that a year fits into memory."""

NO_MESSAGE = 1e-6
"""Messages that are none: sums of floats are off by less."""

FLAP = 1800.0
"""Seconds within which a change back counts as a flap."""


@dataclass(frozen=True)
class Model:
    """`times` is the distribution of the time that a message takes. `drift` gives the service rate at a time, as a share of
    `service_rate`, and a message takes longer by as much; None leaves both as they are.
    """

    service_rate: float = 10.0
    concurrency: float = 16.0
    start_up: int = 90
    wait: int = 60
    minimum: int = 1
    maximum: int = 100
    times: Times = FIXED
    drift: Callable[[int], float] | None = None


class Seen(Struct, frozen=True):
    """One observation. `arrived` and `completed` are counters. `age` is that of the oldest message that waits, `oldest` that of the
    oldest one that waits or is processed; 0 where there is none.
    """

    t: float
    active: float
    waiting: float
    ready: int
    total: int
    arrived: float
    completed: float
    age: float = 0.0
    oldest: float = 0.0


class Policy(Protocol):
    """Decides every `interval` seconds; `see` returns the capacity to have."""

    interval: int

    def see(self, seen: Seen) -> int: ...


@dataclass
class Outcome:
    """What became of one load under one policy. `late` and `aborted` are shares of the messages; `totals` are (time, instances)
    at each change.
    """

    hours: float
    late: float
    aborted: float
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
        self.done = self.aborted = 0.0
        self.served = 0  # `begun` is computed up to this second
        self._completions: dict[float, Completion] = {}

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
            if self.fleet.ready < ready:
                self.aborted += (self.begun.item(now) - self.done) * (1.0 - self.fleet.ready / ready)
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
        return Seen(
            float(clock),
            active,
            arrived - begun,
            fleet.ready,
            fleet.total,
            arrived,
            completed,
            self._age(now, begun),
            self._age(now, self._begun_before(now, self._completion(now).longest)),
        )

    def _begun_before(self, now: int, seconds: float) -> float:
        whole, part = divmod(max(now - seconds, 0.0), 1.0)
        earlier, later = self.begun[int(whole) : int(whole) + 2].tolist()
        return float(earlier + part * (later - earlier))

    def _age(self, now: int, gone: float) -> float:
        """Seconds since the first message came that is not among the first `gone` ones; 0 where there is none."""
        gone += NO_MESSAGE
        if self.arrived.item(now) <= gone:
            return 0.0
        second = int(self.arrived[: now + 1].searchsorted(gone, "right"))
        before, after = self.arrived[second - 1 : second + 1].tolist()
        return float(now - second + (after - gone) / (after - before))

    def _completed(self, now: int) -> float:
        done = self._completion(now).of(self.begun, now)
        self.done = max(self.done, done)  # a service that gets slower takes nothing back
        return self.done

    def _completion(self, now: int) -> Completion:
        """How messages are completed at a time: each takes as long as it would at the service rate of that time."""
        model = self.model
        share = 1.0 if model.drift is None else model.drift(now)
        found = self._completions.get(share)
        if found is None:
            mean = model.concurrency / (model.service_rate * share)
            found = self._completions[share] = completion(model.times, mean)
        return found

    def _serve(self, end: int) -> None:
        """Computes what is begun after the second `served`: as much as is completed leaves slots to begin others.

        Goes on beyond `end` where messages take so long that what they are begun now changes nothing there.
        """
        fleet, first, drifts = self.fleet, self.served, self.model.drift is not None
        fleet.start_due(first)
        completion = self._completion(first)
        last = min(first + completion.at_once, end if drifts or completion.at_hand else self.end)
        last = min(last, fleet.next_ready or last)
        there, before = self.arrived[first + 1 : last + 1], self.begun.item(first)
        slots = self.model.concurrency * fleet.ready
        could = completion.older(self.begun, first, last - first) + slots
        least = max(before, self._completed(first) + slots) if drifts else before
        if completion.at_hand:
            began = self.begun[max(first + 1 - NEAR, 0) : first + 1].tolist()
            self.begun[first + 1 : last + 1] = _begun(
                could.tolist(), there.tolist(), least, began, completion
            )
        else:
            np.minimum(np.maximum(could, least), there, out=self.begun[first + 1 : last + 1])
        self.served = last

    def outcome(self) -> Outcome:
        arrived, length = self.arrived, self.length
        late = sum(self._late(first) for first in range(0, length, PIECE))
        ends = [at for at, _ in self.totals[1:]] + [length]
        billed = sum(count * (end - at) for (at, count), end in zip(self.totals, ends, strict=True))
        return Outcome(
            length / 3600.0,
            float(late / arrived[length]) if arrived[length] else 0.0,
            float(self.aborted / arrived[length]) if arrived[length] else 0.0,
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


def _begun(
    could: list[float], there: list[float], least: float, begun: list[float], completion: Completion
) -> list[float]:
    """Messages begun by the second, where those of the seconds just before it end in time to make room.

    `could` is what could be begun if none of them ended, `there` what has arrived, `begun` the counts so far.
    """
    begun, served = [0.0] * (NEAR - len(begun)) + begun, len(could)
    ended = [
        islice(begun, NEAR - lag, None) for lag in completion.near
    ]  # each goes on to what is appended meanwhile
    share = 1.0 / (1.0 - completion.now)
    if len(ended) == 2:  # all messages take as long
        one, two = completion.near_shares
        for room, arrived, first, second in zip(could, there, *ended, strict=False):
            most = (room + one * first + two * second) * share
            begun.append(min(max(most, least), arrived))
    else:
        for room, arrived, *each in zip(could, there, *ended, strict=False):
            most = (room + sum(map(mul, completion.near_shares, each))) * share
            begun.append(min(max(most, least), arrived))
    return begun[-served:]


def _flaps(totals: Sequence[tuple[int, int]]) -> int:
    """Changes in the other direction than the one before, within half an hour of it."""
    steps = [(at, after - before) for (_, before), (at, after) in pairwise(totals)]
    return sum(
        (one > 0) != (other > 0) and later - earlier < FLAP
        for (earlier, one), (later, other) in pairwise(steps)
    )
