"""Who takes part: every policy by name, made anew for each load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import numpy as np

from benchmarks.autoscaling import ours, peers
from benchmarks.autoscaling.worlds import CLEAR, Sight
from scaling.config.policy import HPA_IN, HPA_OUT, Pace
from tidemark.analysis.simulation.peers import AzureMonitor, Keda
from tidemark.analysis.simulation.world import Model, Policy

Maker = Callable[[np.ndarray, Model], Policy]


@dataclass(frozen=True)
class Entry:
    """One policy of the field. `ours` are drawn apart; `fleet` says how a static one is sized."""

    name: str
    make: Maker
    ours: bool = False


def _fixed(make: Callable[[], Policy]) -> Maker:
    return lambda _arrivals, _model: make()


def _static(share: Callable[[np.ndarray], float]) -> Maker:
    def made(arrivals: np.ndarray, model: Model) -> Policy:
        return peers.Static(max(ceil(share(arrivals) / model.service_rate), model.minimum))

    return made


def _busiest_minute(arrivals: np.ndarray) -> float:
    return float(arrivals[: len(arrivals) // 60 * 60].reshape(-1, 60).mean(axis=1).max())


def _target_per_unit() -> Policy:
    return ours.shipped("target_per_unit", {"metric": "backlog", "target": 12.0}, out=HPA_OUT, inward=HPA_IN)


def _threshold() -> Policy:
    options: dict[str, object] = {
        "metric": "backlog",
        "scale_out_above": "100 * instances",
        "scale_in_below": "10 * instances",
    }
    pace = Pace(cooldown=300.0)
    return ours.shipped("threshold", options, interval=60, window=600.0, out=pace, inward=pace)


FIELD = (
    Entry("service_level", _fixed(ours.service_level), ours=True),
    Entry("service_level, every 60 s", _fixed(partial(ours.service_level, interval=60)), ours=True),
    Entry(
        "service_level, active count only",
        _fixed(partial(ours.service_level, counts=("backlog",))),
        ours=True,
    ),
    Entry(
        "service_level, active count only, every 60 s",
        _fixed(partial(ours.service_level, interval=60, counts=("backlog",))),
        ours=True,
    ),
    Entry("target_per_unit 12, behavior hpa", _fixed(_target_per_unit), ours=True),
    Entry("threshold 100/10 per instance", _fixed(_threshold), ours=True),
    Entry("naive: rate x 1.3 + drain", _fixed(peers.Naive)),
    Entry("KEDA target 5 (default)", _fixed(Keda)),
    Entry("KEDA target 12", _fixed(partial(Keda, 12.0))),
    Entry("KEDA target 12, 60 s", _fixed(partial(Keda, 12.0, 60.0))),
    Entry("KEDA target 16", _fixed(partial(Keda, 16.0))),
    Entry("Functions target 16 (default)", _fixed(peers.TargetBased)),
    Entry("Functions target 12, any step", _fixed(partial(peers.TargetBased, 12.0, 100, 100))),
    Entry("Azure Monitor 100/10, 10 min, +-1", _fixed(AzureMonitor)),
    Entry("Azure Monitor 14/8, 5 min, +-4", _fixed(partial(AzureMonitor, 14, 8, 300, 60, 4))),
    Entry("AWS backlog per instance 600", _fixed(peers.Aws)),
    Entry("AWS backlog 150, 1 min/5 min", _fixed(partial(peers.Aws, 150.0, 1, 5))),
    Entry("the classic rule 5000/1000", _fixed(peers.ClassicRule)),
    Entry("the classic rule 500/100", _fixed(partial(peers.ClassicRule, 500, 100))),
    Entry("static, mean", _static(lambda arrivals: float(arrivals.mean()))),
    Entry("static, busiest minute", _static(_busiest_minute)),
)


@dataclass(frozen=True)
class Condition:
    """A row of its own for `service_level`, which sees less of the world, or something else. Other worlds: `grid`."""

    name: str
    sight: Sight = CLEAR
    ready: bool = True

    def policy(self) -> Policy:
        return ours.service_level(ready=self.ready)


CONDITIONS = (
    Condition("as above"),
    Condition("ready instances not told", ready=False),
    Condition("instances called ready 60 s early", sight=Sight(early=60)),
    Condition("instances called ready at once", sight=Sight(early=90)),
    Condition("counts off by up to 10 %", sight=Sight(noise=0.1)),
    Condition("one observation in twenty lost", sight=Sight(lost=0.05)),
    Condition("metrics 60 s old", sight=Sight(age=60)),
)
