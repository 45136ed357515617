"""Flapping under loads of several metrics that move apart: one stays while another is shared out among the instances. Pure.

`scaling.analysis.steady` moves one metric at a time, or several by the same value. Here each metric stands at one of its
own loads, in all combinations that are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from scaling.analysis.steady import Steps, Subject, rings_of, step
from tidemark.foundation.wording import number_text

EVALUATIONS = 60_000
"""Steps worked out at most for one policy: a few seconds on a slow machine."""


def flapping_apart(subject: Subject) -> Iterator[str]:
    """The first such load for each pair of counts."""
    names = [name for name in subject.read if (name,) in subject.loads]
    counts = [count for count in subject.levels if count not in subject.failures]
    if len(names) < 2 or not counts:
        return
    seen: set[tuple[int, ...]] = set()
    for loads in _combinations(subject, names, len(counts)):
        after = {count: step(subject.policy, count, _values(subject, loads, count)) for count in counts}
        for ring in rings_of(after):
            if ring not in seen:
                seen.add(ring)
                yield _text(subject, loads, ring)


def _combinations(subject: Subject, names: list[str], counts: int) -> Iterator[Mapping[str, float]]:
    """A load of each metric; where there are too many combinations, evenly fewer of each metric."""
    samples = {name: [piece.sample for piece in subject.loads[(name,)].pieces] for name in names}
    most = EVALUATIONS // counts
    samples_per_metric = max(int(most ** (1 / len(names))), 2)
    total = 1
    for metric_samples in samples.values():
        total *= len(metric_samples)
    if total > most:
        samples = {
            name: _thinned(metric_samples, samples_per_metric) for name, metric_samples in samples.items()
        }
    for loads in product(*samples.values()):
        yield dict(zip(names, loads, strict=True))


def _thinned(samples: list[float], most: int) -> list[float]:
    if len(samples) <= most:
        return samples
    return [samples[index * (len(samples) - 1) // (most - 1)] for index in range(most)]


def _values(subject: Subject, loads: Mapping[str, float], count: int) -> dict[str, float]:
    return {name: _steps(subject, name).value_at(load, count) for name, load in loads.items()}


def _steps(subject: Subject, name: str) -> Steps:
    return subject.loads[(name,)]


def _text(subject: Subject, loads: Mapping[str, float], ring: tuple[int, ...]) -> str:
    low, high = min(ring), max(ring)
    parts = [
        f"{name} of {number_text(_steps(subject, name).value_at(load, low))}"
        + (f" at {low}" if _steps(subject, name).per_instance else "")
        for name, load in loads.items()
    ]
    way = f"scales out at {low} and back in at {high}"
    if len(ring) > 2:
        way = f"goes round {' -> '.join(map(str, (*ring, low)))}"
    unit = subject.policy.spec.facts.unit
    return f"between {low} and {high} {unit} {' and '.join(parts)}, for example, {way}"
