"""Tables of the backtest."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, StructType

from spark_jobs.schemas import row_schema

READINGS = row_schema("target text, at double, arrivals double, instances long, metrics numbers")
"""What was recorded: arrivals in a bin that begins at `at` (seconds since the epoch), or the metrics and the capacity a
decision saw at that time. The other columns are null.
"""

_HISTORY = ArrayType(StructType(READINGS.fields[1:]))

HISTORIES = row_schema("target text, day long, readings history", history=_HISTORY)
"""All readings of one target and day (of UTC, since 1970), in no order; those without a time that can be one have no day.
A row is as large as a day, however long the history is.
"""

TASKS = row_schema("target text, block int, day long, readings history, work bytes", history=_HISTORY)
"""The days of a history, and what to do with all of them: some of its candidates, or the two to compare. `block` counts
the works.
"""

SCORES = row_schema("""
    target text, candidate text, part text, messages double, late double, missed double,
    oldest double, instance_hours double, cost double, out long, inward long, flaps long,
    hours double
""")
"""As `score.Score`, by target, candidate and part ("training" or "held_out")."""

RECOMMENDATIONS = row_schema("""
    target text, recommended text, verdict text, late_share double, late_share_running double,
    cost double, cost_running double, actions long, actions_running long, changes text
""")
"""What to set for each target; scores are of the held-out part. `changes` is TOML."""

PLANS = row_schema("target text, block int, work bytes")
"""Tasks before they meet their histories."""

CHOSEN = row_schema("target text, recommended text, candidates long, names long")
"""The best candidate of the training part by target; `names` tells sets of candidates apart."""
