"""Tables of the backtest."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

_TEXT, _DOUBLE, _LONG = StringType(), DoubleType(), LongType()

READINGS = StructType(
    [
        StructField("target", _TEXT),
        StructField("at", _DOUBLE),
        StructField("arrivals", _DOUBLE),
        StructField("instances", _LONG),
        StructField("metrics", MapType(_TEXT, _DOUBLE)),
    ]
)
"""What was recorded: arrivals in a bin that begins at `at` (seconds since the epoch), or the metrics and the capacity a
decision saw at that time. The other columns are null.
"""

HISTORIES = StructType(
    [
        StructField("target", _TEXT),
        StructField("readings", ArrayType(StructType(READINGS.fields[1:]))),
    ]
)
"""All readings of one target, in no order."""

TASKS = StructType([*HISTORIES.fields, StructField("work", BinaryType())])
"""A history and what to do with it: some of its candidates, or the two to compare."""

SCORES = StructType(
    [
        StructField("target", _TEXT),
        StructField("candidate", _TEXT),
        StructField("part", _TEXT),
        StructField("messages", _DOUBLE),
        StructField("late", _DOUBLE),
        StructField("missed", _DOUBLE),
        StructField("oldest", _DOUBLE),
        StructField("instance_hours", _DOUBLE),
        StructField("cost", _DOUBLE),
        StructField("out", _LONG),
        StructField("inward", _LONG),
        StructField("flaps", _LONG),
        StructField("hours", _DOUBLE),
    ]
)
"""As `score.Score`, by target, candidate and part ("training" or "held_out")."""

RECOMMENDATIONS = StructType(
    [
        StructField("target", _TEXT),
        StructField("recommended", _TEXT),
        StructField("verdict", _TEXT),
        StructField("late_share", _DOUBLE),
        StructField("late_share_running", _DOUBLE),
        StructField("cost", _DOUBLE),
        StructField("cost_running", _DOUBLE),
        StructField("actions", _LONG),
        StructField("actions_running", _LONG),
        StructField("changes", _TEXT),
    ]
)
"""What to set for each target; scores are of the held-out part. `changes` is TOML."""

PLANS = StructType(
    [StructField("target", _TEXT), StructField("block", IntegerType()), StructField("work", BinaryType())]
)
"""Tasks before they meet their histories."""
