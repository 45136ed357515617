"""A cell of the grid: a policy with its senses in one world, on all traces; or on a burst that comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path

import numpy as np
from msgspec import Struct

from benchmarks.autoscaling import bound, ours, peers, traces
from tidemark.analysis.simulation import times
from tidemark.analysis.simulation.driving import (
    BACKLOG,
    INCOMING,
    LATE_INCOMING,
    LATE_OUTGOING,
    OLDEST_ACTIVE_AGE,
    OLDEST_AGE,
    OUTGOING,
)
from tidemark.analysis.simulation.peers import AzureMonitor, Keda
from tidemark.analysis.simulation.world import Model, Policy, Run

WORLDS = {
    "10/16": (10.0, 16.0),
    "1/16": (1.0, 16.0),
    "0.5/16": (0.5, 16.0),
    "0.2/8": (0.2, 8.0),
    "0.05/4": (0.05, 4.0),
    "(1/30)/1": (1.0 / 30.0, 1.0),
    "(1/150)/2": (1.0 / 150.0, 2.0),
}
"""Messages per second that an instance serves, and messages it processes at once: 1.6, 16, 32, 40, 80, 30 and 300 s each."""

TIMES = {
    "fixed": times.FIXED,
    "log-normal": times.LOGNORMAL,
    "two classes": times.TWO_CLASSES,
    "exponential": times.EXPONENTIAL,
}

GIVEN = "concurrency"
SENSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "backlog": ((BACKLOG,), ()),
    "+ concurrency": ((BACKLOG,), (GIVEN,)),
    "+ takes": ((BACKLOG,), (GIVEN, "takes")),
    "late counts": ((BACKLOG, LATE_INCOMING, LATE_OUTGOING), (GIVEN,)),
    "oldest age": ((BACKLOG, OLDEST_AGE), (GIVEN,)),
    "oldest age alone": ((BACKLOG, OLDEST_AGE), ()),
    "active age": ((BACKLOG, OLDEST_ACTIVE_AGE), (GIVEN,)),
    "exact counts": ((BACKLOG, INCOMING, OUTGOING), (GIVEN,)),
    "Event Hubs": ((BACKLOG, INCOMING, OUTGOING, OLDEST_ACTIVE_AGE), (GIVEN,)),
    "Service Bus": ((BACKLOG, OLDEST_AGE), (GIVEN,)),
    "storage queue": ((BACKLOG, OLDEST_AGE), (GIVEN,)),
}
"""What `service_level` reads, and which of its options are given. The last three are what `tidemark discover` writes for a service,
and what its collector has.
"""


@dataclass(frozen=True)
class Burst:
    """`messages` at once every `every` seconds, and `between` per second all the time."""

    messages: int
    every: int
    between: float
    days: int

    @property
    def arrivals(self) -> np.ndarray:
        found = np.full(self.days * 86_400, self.between)
        found[self.every // 2 :: self.every] += self.messages
        return found


BURSTS = {
    "12,000 every 3 h": Burst(12_000, 3 * 3600, 0.0, 1),
    "12,000 every 3 h, 2/s between": Burst(12_000, 3 * 3600, 2.0, 1),
    "12,000 every 6 h": Burst(12_000, 6 * 3600, 0.0, 2),
    "600 once a day": Burst(600, 24 * 3600, 0.0, 5),
}
"""Loads of facts that no trace has: an idle target, and then all at once."""


class Cell(Struct, frozen=True, order=True):
    """Durations in seconds. `load` is "traces" or a burst's name; `halves`: the service rate halves every other two hours.
    `policy` is service_level with `sense`, or a peer (then `sense` is empty). `options` are more of service_level's, as
    name=value. `limit` is how many changes an hour the platform takes, which the autoscaler keeps; 0: any number.
    """

    world: str = "10/16"
    times: str = "fixed"
    policy: str = "service_level"
    sense: str = ""
    look: int = 15
    wait: int = 60
    start_up: int = 90
    halves: bool = False
    load: str = "traces"
    options: str = ""
    limit: int = 0

    @property
    def model(self) -> Model:
        service_rate, concurrency = WORLDS[self.world]
        return Model(
            service_rate=service_rate,
            concurrency=concurrency,
            start_up=self.start_up,
            wait=self.wait,
            times=TIMES[self.times],
            drift=halves if self.halves else None,
        )

    def made(self) -> Policy:
        """The policy, with nothing learned. Raises KeyError for an unknown one, ValueError for options that the rule refuses."""
        model = self.model
        if self.policy == "service_level":
            counts, given = SENSES[self.sense]
            known = {GIVEN: model.concurrency, "takes": f"{model.concurrency / model.service_rate:.6g}s"}
            options: dict[str, object] = {name: known[name] for name in given}
            more = (each.partition("=") for each in self.options.split())
            options |= {name: _number_or_text(value) for name, _, value in more}
            return ours.service_level(
                interval=self.look,
                counts=counts,
                model=model,
                limit=self.limit or None,
                wait=f"{self.wait}s",
                **options,
            )
        kind, _, share = self.policy.partition(" ")
        policy = PEERS[kind](model.concurrency, float(share or 1.0))
        policy.interval = max(
            policy.interval, self.look
        )  # Functions and Azure Monitor look every 30 and 60 s at best
        return policy


def _number_or_text(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def _azure_monitor(concurrency: float, share: float) -> AzureMonitor:
    """Out above `share` of what an instance holds, in below half of it; four at a time, as its best users have it."""
    return AzureMonitor(share * concurrency, 0.5 * concurrency, 300, 60, 4)


PEERS: dict[str, Callable[[float, float], Policy]] = {
    "KEDA": lambda concurrency, share: Keda(max(share * concurrency, 0.1)),
    "Functions": lambda concurrency, share: peers.TargetBased(max(share * concurrency, 0.1)),
    "AzureMonitor": _azure_monitor,
}
"""By the first word of a policy; the second is its target, as a share of what an instance holds."""


def halves(second: int) -> float:
    """Two hours at full speed, two at half, over and over."""
    return 1.0 if second // 7200 % 2 == 0 else 0.5


@dataclass(frozen=True)
class Played:
    """One trace of a cell. `cost` is instance-hours as a ratio to the clairvoyant bound of the base world (10/16, start-up 90 s,
    wait 60 s), NaN where that is not known; `work` as a ratio to the load averaged over the wait, one instance at least.
    `late` and `aborted` are shares.
    """

    trace: str
    cost: float
    work: float
    late: float
    changes_per_hour: float
    aborted: float


@dataclass(frozen=True)
class Loads:
    """Which traces, and how much of each: the first `hours`, all for 0."""

    folder: Path = traces.FOLDER
    names: tuple[str, ...] = ()
    hours: int = 0

    def of(self, cell: Cell) -> list[str]:
        return _long_ones(self) if cell.load == "traces" else [cell.load]


@lru_cache
def _long_ones(loads: Loads) -> list[str]:
    found = loads.names or traces.names(loads.folder)
    return [name for name in found if not arrivals_of(loads, name, 10.0).apart]


@lru_cache(maxsize=12)
def arrivals_of(loads: Loads, name: str, service_rate: float) -> traces.Load:
    folder = loads.folder if (loads.folder / f"{name}.csv.gz").exists() else traces.FOLDER
    load = traces.load(folder, name, service_rate)
    return traces.Load(name, load.arrivals[: loads.hours * 3600 or None].copy(), load.apart)


@lru_cache(maxsize=256)
def bound_of(loads: Loads, name: str) -> float:
    """The bound of the base world, which is kept with the traces where these are whole."""
    return bound.lower_bound(arrivals_of(loads, name, Model().service_rate))


def play(cell: Cell, loads: Loads, name: str) -> Played:
    """One cell on one trace."""
    model = cell.model
    if cell.load == "traces":
        arrivals = arrivals_of(loads, name, model.service_rate).arrivals
        least = bound_of(loads, name)
        first = max(ceil(arrivals[:600].mean() / model.service_rate), 1)
    else:
        arrivals, least, first = BURSTS[name].arrivals, float("nan"), 1
    found = Run(arrivals, cell.made(), model, first).replay().outcome()
    return Played(
        name,
        found.instance_hours / least,
        found.instance_hours / work(arrivals, model),
        found.late,
        found.actions_per_hour,
        found.aborted,
    )


def work(arrivals: np.ndarray, model: Model) -> float:
    """Instance-hours that the load takes if it may be averaged over the wait: less than anybody needs who must start some."""
    seconds = arrivals / model.service_rate
    if model.drift is not None:
        seconds = seconds / np.array([model.drift(second) for second in range(len(arrivals))])
    block = max(model.wait, 60)
    begins = np.arange(0, len(arrivals), block)
    lengths = np.diff([*begins, len(arrivals)])
    return float(np.maximum(np.add.reduceat(seconds, begins), model.minimum * lengths).sum() / 3600.0)
