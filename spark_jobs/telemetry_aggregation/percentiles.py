"""Percentiles from counts per bucket: mergeable, the same in any order, all in Spark's built-in functions.

Buckets grow geometrically, as in DDSketch (Masson, Rim, Lee, VLDB 2019): positive values between g^(i-1) and g^i share
bucket i, and 2 g^i / (g + 1) is within (g - 1) / (g + 1) of each of them. Zero has a bucket of its own, negative values
mirror the positive. Counts are whole numbers, so that a day from minutes is the day from records, digit for digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

RELATIVE_ERROR = 0.01
"""DDSketch's own default: an hour of a log-normal backlog (sigma 1) needs about 150 buckets, a constant one needs 1."""

PERCENTS = (50, 95, 99)

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_OCTAVE = 1 / math.log2(_GROWTH)
# Doubles reach from 2^-1074 to 2^1024, which is 37,213 buckets below one: shifted so, no positive value has bucket 0.
_SHIFT = 40_000
# A bucket and its count in one long: sorting longs is fast, sorting structs is not. 2^40 samples in one bucket of one
# window are 35,000 a second for a year.
_COUNT_BITS = 40


def bucket(value: Column) -> Column:
    """The bucket of a finite double; order as the values'."""
    magnitude = (F.ceil(F.log2(F.abs(value)) * F.lit(_PER_OCTAVE)) + F.lit(_SHIFT)).cast("int")
    return F.when(value > 0, magnitude).when(value < 0, -magnitude).otherwise(F.lit(0))


def middle(number: Column) -> Column:
    """The value that stands for a bucket: within RELATIVE_ERROR of everything in it."""
    size = F.lit(2 / (_GROWTH + 1)) * F.pow(F.lit(_GROWTH), F.abs(number) - F.lit(_SHIFT))
    return F.when(number == 0, F.lit(0.0)).otherwise(F.signum(number) * size)


def percentiles(counts: DataFrame, keys: Sequence[str]) -> DataFrame:
    """From (keys, bucket, n), each bucket once per key, to (keys, n, p50, p95, p99), not yet bounded by min and max."""
    packed = F.shiftleft(F.col("bucket").cast("long"), _COUNT_BITS).bitwiseOR(F.col("n"))
    gathered = counts.groupBy(*keys).agg(
        F.sum("n").alias("n"), F.sort_array(F.collect_list(packed)).alias("packed")
    )
    return gathered.select(*keys, "n", *(_percentile(percent).alias(f"p{percent}") for percent in PERCENTS))


def _percentile(percent: int) -> Column:
    rank = F.floor((F.col("n") * percent + 99) / F.lit(100)).cast("long")

    def step(seen: Column, each: Column) -> Column:
        """Counts up to the rank; from there on the sum is negative and says the bucket: -(packed bucket) - 1."""
        total = seen["total"] + each.bitwiseAND(F.lit((1 << _COUNT_BITS) - 1))
        here = F.when(seen["here"].isNull() & (total >= rank), F.shiftright(each, _COUNT_BITS))
        return F.struct(total.alias("total"), F.coalesce(seen["here"], here).alias("here"))

    start = F.struct(F.lit(0).cast("long").alias("total"), F.lit(None).cast("long").alias("here"))
    return F.aggregate("packed", start, step, lambda found: middle(found["here"]))
