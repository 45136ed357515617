"""Tables of the backtest."""

from __future__ import annotations

from spark_jobs.schemas import row_schema

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

CHOSEN = row_schema("target text, recommended text, candidates long, names long")
"""The best candidate of the training part by target; `names` tells sets of candidates apart."""
