"""The instances of a simulated target: how many are billed, how many serve, and the queue they work off. Pure."""

from __future__ import annotations

from math import inf

from msgspec import Struct


class Model(Struct, frozen=True, kw_only=True):
    """What a change of capacity does, and what load and lateness cost. Durations in seconds.

    One instance serves `service_rate` messages per second while there are any. An action decided at t has its effect
    at t + `scaling_time` (when the product records it, and cooldowns start); instances it adds serve `start_up` after
    that, and those it removes serve until then. Added instances are billed from the decision on, removed ones until
    the effect. Each message is counted in the backlog metric for `service_time` more while it is processed.
    `slo` is the age that no message should reach, `price` what one instance costs an hour. A change back within
    `flap_window` of the change before it is a flap.

    The defaults of `scaling_time` and `start_up` are assumptions: together 90 s from the decision to the first
    message. Measure yours: the scaling log has the first, and the second is in your application's telemetry.
    """

    service_rate: float
    scaling_time: float = 30.0
    start_up: float = 60.0
    service_time: float = 0.0
    slo: float = 60.0
    price: float = 1.0
    flap_window: float = 1800.0


class Fleet:
    """Instances over time, and what waits for them.

    `billed` are (time, count) pairs, ascending; `current` is what the platform reports; `backlog` is the number of
    messages at `start` and at the end of each step since.
    """

    __slots__ = ("_groups", "_pending", "_rate", "_start", "_step", "backlog", "billed", "current", "model")

    def __init__(self, count: int, backlog: float, model: Model, *, start: float, step: float) -> None:
        self.model = model
        self.current = count
        self.backlog = [backlog]
        self.billed: list[tuple[float, int]] = [(start, count)]
        self._start, self._step = start, step
        self._groups: list[tuple[float, int]] = [(start, count)]  # (serving from, how many)
        self._pending: list[tuple[float, float]] = []  # (time, messages per second from then on)
        self._rate = count * model.service_rate

    def order(self, decided_at: float, to: int) -> float:
        """Starts a change; returns the time of its effect. Only one may be under way: see `arrive`."""
        effect_at = decided_at + self.model.scaling_time
        if to > self.current:
            self.billed.append((decided_at, to))
            self._groups.append((effect_at + self.model.start_up, to - self.current))
            self._schedule(decided_at, effect_at, self._groups)
        else:
            self.billed.append((effect_at, to))
            before = self._groups
            self._groups = _fewer(before, self.current - to)
            self._schedule(decided_at, effect_at, before)
        return effect_at

    def arrive(self, to: int) -> None:
        """The effect of the last order is there."""
        self.current = to

    def _schedule(self, now: float, effect_at: float, before: list[tuple[float, int]]) -> None:
        """Service rates to come: those of `before` until the effect, then those of the groups that are left."""
        changes = {at for at, _ in before if now < at < effect_at}
        later = {at for at, _ in self._groups if at > effect_at} | {effect_at}
        rate = self.model.service_rate
        self._pending = [
            *((at, rate * _serving(before, at)) for at in sorted(changes)),
            *((at, rate * _serving(self._groups, at)) for at in sorted(later)),
        ]

    def serve(self, arrivals: list[float]) -> None:
        """Goes on by one step for each of `arrivals`; appends the backlog at its end.

        In a step, arrivals and service are spread evenly: backlog = max(0, backlog + arrivals - service).
        """
        waiting, append = self.backlog[-1], self.backlog.append
        first = len(self.backlog) - 1
        done, count = 0, len(arrivals)
        while done < count:
            if self._pending:
                # As many whole steps as end before the next change; never fewer than one, with its share of both.
                whole = min(int((self._pending[0][0] - self._start) / self._step) - first, count)
            else:
                whole = count
            if whole > done:
                work = self._rate * self._step
            else:
                work, whole = self._blended(first + done), done + 1
            for arrived in arrivals[done:whole]:
                waiting += arrived - work
                if waiting < 0.0:  # noqa: PLR1730 - a call of max() takes twice the time of this loop
                    waiting = 0.0
                append(waiting)
            done = whole

    def skip_gap(self) -> None:
        """One step: the backlog stays, changes of the fleet go on."""
        self._blended(len(self.backlog) - 1)
        self.backlog.append(self.backlog[-1])

    def rewind(self, steps: int) -> None:
        """Takes the steps after the first `steps` back. No change of the fleet may lie in them."""
        del self.backlog[steps + 1 :]

    @property
    def next_change(self) -> float:
        """When the service rate changes next; infinite for never."""
        return self._pending[0][0] if self._pending else inf

    def _blended(self, index: int) -> float:
        """What is served in a step during which the rate changes."""
        at = self._start + index * self._step
        end = self._start + (index + 1) * self._step
        work = 0.0
        while self._pending and self._pending[0][0] < end:
            change, rate = self._pending.pop(0)
            change = max(change, at)
            work += self._rate * (change - at)
            at, self._rate = change, rate
        return work + self._rate * (end - at)


def _serving(groups: list[tuple[float, int]], at: float) -> int:
    return sum(count for since, count in groups if since <= at)


def _fewer(groups: list[tuple[float, int]], excess: int) -> list[tuple[float, int]]:
    """Without `excess` instances: those that start last go first."""
    left: list[tuple[float, int]] = []
    for since, count in sorted(groups, reverse=True):
        gone = min(excess, count)
        excess -= gone
        if count > gone:
            left.append((since, count - gone))
    return left[::-1]
