"""From recorded counts to messages by the second: what a replay needs, and nothing that was not recorded. Pure.

Bins of five minutes and longer are drawn linearly through their centres; within a bin, messages come at random (Poisson).
The total of each bin is kept. Of a gap nothing is known, so it is left out: the clock goes on, the load does not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

LINEAR_FROM = 300
"""Seconds of a bin from which on the rate within it follows the neighbours'."""

PIECE = 1 << 20
"""Seconds that are drawn in one go."""


class Load(Struct, frozen=True):
    """`arrivals` of each known second, and `parts` as `world.Run` takes them."""

    arrivals: np.ndarray
    parts: tuple[tuple[int, int], ...]


def by_second(bins: np.ndarray, width: int, rng: np.random.Generator) -> Load:
    """The load of `bins` of `width` seconds each; NaN is a bin of which nothing is known."""
    known = ~np.isnan(bins)
    arrivals = np.empty(int(known.sum()) * width, dtype=np.float32)
    parts: list[tuple[int, int]] = []
    place = 0
    for first, last in _runs(known):
        parts.append((place, first * width))
        for drawn in _drawn(bins[first:last], width, rng):
            arrivals[place : place + len(drawn)] = drawn
            place += len(drawn)
    return Load(arrivals, tuple(parts))


def _runs(known: np.ndarray) -> list[tuple[int, int]]:
    """The bins without a gap between them: first, and the one after the last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(np.int8), [0]])))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def _drawn(bins: np.ndarray, width: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    count = max(PIECE // width, 1)
    for first in range(0, len(bins), count):
        last, low = min(first + count, len(bins)), max(first - 1, 0)
        around = rates(bins[low : last + 1], width)
        expected = around[(first - low) * width : (last - low) * width].reshape(-1, width)
        if width == 1:  # has its own noise
            yield expected.ravel()
            continue
        drawn = rng.poisson(expected).astype(float)
        came = drawn.sum(axis=1)
        kept = np.divide(bins[first:last], came, out=np.ones(last - first), where=came > 0)
        drawn *= kept[:, None]
        yield np.where((came > 0)[:, None], drawn, expected).ravel()


def rates(bins: np.ndarray, width: int) -> np.ndarray:
    """Expected arrivals of each second; the total of each bin is kept."""
    if width < LINEAR_FROM:
        return np.repeat(bins / width, width)
    centres = (np.arange(len(bins)) + 0.5) * width
    drawn = np.interp(np.arange(len(bins) * width) + 0.5, centres, bins / width).reshape(-1, width)
    totals = drawn.sum(axis=1)
    kept = np.divide(bins, totals, out=np.zeros(len(bins)), where=totals > 0)
    return np.asarray((drawn * kept[:, None]).ravel())
