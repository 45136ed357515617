"""The clairvoyant lower bound: the fewest instance-hours with which no message waits too long, all load being known.

A linear program over slots of a minute (or of the allowed wait, where that is shorter): instances may be fractions,
each start is billed for the start-up time, and what arrived until the end of a slot is begun until the end of the
last slot within the wait.
"""

import json
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from benchmarks.autoscaling.traces import Load
from tidemark.analysis.simulation.world import Model

LONG = 3000
"""Slots from which the interior-point method is the faster one."""


KEPT = Path(__file__).parent / "bounds.json"
"""Lower bounds of whole traces, by the load they are of: a linear program of 20,000 slots takes its time."""
FOUND = Path(gettempdir()) / "tidemark-bounds"
"""A file for each of other loads, which several processes may write."""


def lower_bound(load: Load, *, keep: bool = False) -> float:
    """Of the base world, worked out once; with `keep` the repository's file gets it."""
    key = f"{load.name}-{sha256(load.arrivals.tobytes()).hexdigest()[:16]}"
    known, found = json.loads(KEPT.read_text()), FOUND / key
    if key not in known and found.exists() and (text := found.read_text()):
        known[key] = float(text)
    elif key not in known:
        known[key] = round(instance_hours(load.arrivals, Model()), 4)
        FOUND.mkdir(exist_ok=True)
        found.write_text(str(known[key]))
    if keep:
        KEPT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return float(known[key])


def instance_hours(arrivals: np.ndarray, model: Model) -> float:
    """Raises RuntimeError where the program has no solution: more load than the most instances serve."""
    from scipy import sparse  # type: ignore[import-untyped]
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    slot = min(60, model.wait)
    count = -(-len(arrivals) // slot)
    padded = np.concatenate([arrivals, np.zeros(count * slot - len(arrivals))])
    arrived = np.cumsum(padded.reshape(count, slot).sum(axis=1))
    lag = model.wait // slot
    change = sparse.identity(count) - sparse.diags([np.ones(count - 1)], [-1])
    same, none = sparse.identity(count), sparse.csr_matrix((count, count))
    # instances, starts, messages begun until the end of a slot
    limits = sparse.vstack(
        [
            sparse.hstack([-model.service_rate * slot * same, none, change]),
            sparse.hstack([none, none, -change]),
            sparse.hstack([change, -same, none]).tocsr()[1:],
        ]
    ).tocsr()
    due = np.concatenate([np.zeros(min(lag, count)), arrived[: max(count - lag, 0)]])
    low = np.concatenate([np.full(count, float(model.minimum)), np.zeros(count), due])
    high = np.concatenate([np.full(count, float(model.maximum)), np.full(count, np.inf), arrived])
    cost = np.concatenate(
        [np.full(count, float(slot)), np.full(count, float(model.start_up)), np.zeros(count)]
    )
    found = linprog(
        cost,
        A_ub=limits,
        b_ub=np.zeros(limits.shape[0]),
        bounds=np.stack([low, high], axis=1),
        method="highs-ipm" if count > LONG else "highs",
    )
    if found.status != 0:
        raise RuntimeError(f"no lower bound: {found.message}")
    return float(found.fun) / 3600.0
