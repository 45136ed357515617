"""Percentiles from counts per bucket: mergeable, the same in any order. Pure.

Buckets grow geometrically, as in DDSketch (Masson, Rim, Lee, VLDB 2019): positive values between g^(i-1) and g^i share
bucket i, and 2 g^i / (g + 1) is within (g - 1) / (g + 1) of each of them. Zero has a bucket of its own, negative values
mirror the positive. Counts are whole numbers, so that a day from minutes is the day from records, digit for digit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

RELATIVE_ERROR = 0.01
"""DDSketch's own default: an hour of a log-normal backlog (sigma 1) needs about 150 buckets, a constant one needs 1."""

PERCENTS = (50, 95, 99)

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_OCTAVE = 1 / math.log2(_GROWTH)
# Doubles reach from 2^-1074 to 2^1024, which is 37,213 buckets below one: shifted so, no positive value has bucket 0.
_SHIFT = 40_000

Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]


def buckets(values: Doubles) -> NDArray[np.int32]:
    """The bucket of each finite value; their order is the values'."""
    signed = bool(values.min(initial=0.0) < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(np.abs(values) if signed else values)
        octaves *= _PER_OCTAVE
        np.ceil(octaves, out=octaves)
        octaves += _SHIFT
        numbers: NDArray[np.int32] = octaves.astype(np.int32)
    numbers[values == 0] = 0
    if signed:
        numbers *= np.sign(values).astype(np.int32)
    return numbers


def middles(numbers: Longs) -> Doubles:
    """The value that stands for each bucket: within RELATIVE_ERROR of everything in it."""
    if not len(numbers):
        return np.empty(0)
    low = int(numbers.min())
    if int(numbers.max()) - low < len(numbers):  # each is worked out once
        return _middles(np.arange(low, int(numbers.max()) + 1))[numbers - low]
    return _middles(numbers)


def _middles(numbers: Longs) -> Doubles:
    exponents = (np.abs(numbers) - _SHIFT).astype(np.float64)
    with np.errstate(over="ignore"):  # of the greatest doubles; callers bound it by the greatest sample
        sizes = 2 / (_GROWTH + 1) * np.power(_GROWTH, exponents)
    return np.sign(numbers) * np.where(numbers == 0, 0.0, sizes)
