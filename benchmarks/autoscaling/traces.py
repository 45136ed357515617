"""Real traces as arrivals per second, scaled to a fleet of about eight instances."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemark.analysis.simulation import load as by_second

FOLDER = Path(__file__).parent / "traces"

MEAN_INSTANCES, PEAK_INSTANCES = 8.0, 90.0

SHORT = 7200
"""Seconds: a trace of an hour is reported apart, for where it starts decides it."""

ON_OFF = "aws_netin_onoff"
"""Bursts of bytes with nothing between them, within the start-up time: reported apart."""


@dataclass(frozen=True)
class Load:
    """Arrivals in each second; `apart` is not part of the means."""

    name: str
    arrivals: np.ndarray
    apart: bool

    @property
    def hours(self) -> float:
        return len(self.arrivals) / 3600.0


def names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".csv.gz") for path in folder.glob("*.csv.gz"))


def load(folder: Path, name: str, service_rate: float) -> Load:
    """A trace, scaled so that its mean needs 8 busy instances, or its busiest minute 90 where that is less."""
    path = folder / f"{name}.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1)
    width = round(rows[1, 0] - rows[0, 0])
    rates = by_second.rates(rows[:, 1], width)
    minutes = rates[: len(rates) // 60 * 60].reshape(-1, 60).mean(axis=1)
    scale = min(MEAN_INSTANCES * service_rate / rates.mean(), PEAK_INSTANCES * service_rate / minutes.max())
    expected = rates * scale
    if width > 1:  # a trace by the second has its own noise
        expected = np.random.default_rng(zlib.crc32(name.encode())).poisson(expected).astype(float)
    return Load(name, expected, apart=len(expected) <= SHORT or name == ON_OFF)
